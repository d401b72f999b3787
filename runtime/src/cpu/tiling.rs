//! Which axes a tile covers, in which order points are walked, and how large a tile is.
//!
//! The choice minimises an estimate of the time per point: what loads and stores cost by their strides along the lanes, and what the
//! dispatch of instructions costs by the number of lanes they are spread over. Nanoseconds were measured on a 2.4 GHz AVX2 machine; only
//! their proportions count.

use std::collections::HashSet;

use kiln_ir::kernel::{Affine, Block, Instruction, LoopKernel, Operation, Reg, Stage};
use kiln_ir::{DType, ScalarOp};

use super::compile::{SlotKind, Span, TileAxes, operands};
use super::program::{Class, Slot, Tile, TileMap};
use super::space::{Space, Walk};

/// How a kernel's points are walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Lanes are outer points, inner points are walked.
    Lanes,
    /// Rows are outer points, columns inner points.
    Rows,
    /// Rows are inner points, columns outer points: what is accumulated in each row is joined at the end.
    Columns,
}

/// The tiles of a kernel.
#[derive(Clone, Debug)]
pub(super) struct Tiling {
    pub(super) order: Order,
    row: Option<usize>,
    column: Option<usize>,
    /// Extents of a full tile.
    pub(super) rows: usize,
    columns: usize,
    /// Estimated nanoseconds per inner point, and per outer point besides.
    element_cost: f64,
    point_cost: f64,
    /// Whether the tile is a square for transposing, whatever the strips' size.
    square: bool,
    /// Lanes at most.
    most: usize,
}

/// Scratch memory of a tile's strips, in bytes: most of a first-level cache.
const STRIPS: usize = 24 << 10;
/// Bytes of a row's value that is kept, at most: a part of a second-level cache.
const KEPT: usize = 128 << 10;
/// With so many outer tiles no walk over a row is cut into pieces.
pub(super) const MANY: usize = 32;
/// Lanes per tile, at most and at least.
const MOST: usize = 4096;
const LEAST: usize = 256;
/// Lanes per tile of a large map that needs no strips.
const AT_ONCE: usize = 16384;
/// The same where rows lie across memory and are walked several times.
const ACROSS: usize = 64;
/// An axis this long makes strips of its own; a shorter one is joined by a second axis.
const LONG: usize = 256;
/// Rows and columns of a tile that transposes.
const SQUARE: usize = 64;
/// Dispatch of one instruction.
const DISPATCH: f64 = 8.0;

/// A load or store as the choice sees it.
struct Access {
    strides: Vec<i64>,
    size: usize,
    inner: bool,
    kind: AccessKind,
}

/// A load, or a store, which costs more where it is scattered: its lines are read, written in part and written back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AccessKind {
    Load,
    Store,
}

impl Tiling {
    /// Chooses order and axes.
    pub(super) fn choose(kernel: &LoopKernel, space: &Space) -> Tiling {
        let has_arg = kernel
            .stages
            .iter()
            .any(|stage| matches!(stage, Stage::Fold { folds, .. } if folds.iter().any(|fold| fold.kind.is_arg())));
        // The first of equals wins an arg reduction, so columns must come in the index's order.
        if has_arg { Tiling::choose_in_order(kernel, space) } else { Tiling::choose_from(kernel, space, space.outer) }
    }

    /// Chooses order and axes such that the inner points of an outer one come in row-major order.
    pub(super) fn choose_in_order(kernel: &LoopKernel, space: &Space) -> Tiling {
        Tiling::choose_from(kernel, space, space.extents.len().saturating_sub(1).max(space.outer))
    }

    /// Chooses among all outer axes and the inner axes from `first` on.
    fn choose_from(kernel: &LoopKernel, space: &Space, first: usize) -> Tiling {
        let accesses = accesses(kernel, space);
        let (point_instructions, point_cost) = instructions(kernel, false);
        let (inner_instructions, inner_cost) = instructions(kernel, true);
        let has_inner = kernel.stages.iter().any(|stage| !matches!(stage, Stage::Point(_)));
        let mut best: Option<(f64, Tiling)> = None;
        let mut offer = |cost: f64, tiling: Tiling| {
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, tiling));
            }
        };
        let (count, compute) =
            if has_inner { (inner_instructions, inner_cost) } else { (point_instructions, point_cost) };
        let relevant: Vec<&Access> = accesses.iter().filter(|access| access.inner == has_inner).collect();
        let moving = |axis: usize| -> f64 { relevant.iter().map(|access| access.cost(axis)).sum() };
        let dispatch = |lanes: usize| (count as f64 + 1.0) * DISPATCH / lanes.clamp(1, 1024) as f64;
        let joinable = has_inner && joinable(kernel);
        // Where several stages walk the inner points, what the first one read had better be in the cache still.
        let walks = kernel.stages.iter().filter(|stage| !matches!(stage, Stage::Point(_))).count();
        let most = match walks {
            0 | 1 => MOST,
            _ => (KEPT / (space.inner_points().max(1) * size_of::<f32>())).clamp(ACROSS, MOST),
        };
        let point_total = point_cost + point_instructions as f64 * DISPATCH / 16.0;
        for column in space.parts..space.outer {
            let extent = space.extents[column];
            let transposed = (space.parts..space.outer).find(|&row| {
                row != column
                    && space.extents[row] >= 8
                    && relevant.iter().any(|access| access.strides[row] == 1 && access.strides[column].abs() > 8)
            });
            let (row, rows, columns, square) = match transposed {
                Some(row) if extent >= 8 => (Some(row), SQUARE, SQUARE, true),
                _ if extent >= LONG => (None, 1, extent, false),
                _ => {
                    // The neighbour that continues this axis in most maps: the one with the smallest strides.
                    let others = (space.parts..space.outer).filter(|&row| row != column);
                    let reach = |row: usize| relevant.iter().map(|access| access.strides[row].abs()).max().unwrap_or(0);
                    let row = others.min_by_key(|&row| (reach(row), std::cmp::Reverse(row)));
                    (row, MOST, extent, false)
                }
            };
            let lanes = columns * row.map_or(1, |row| rows.min(space.extents[row]));
            let cost = moving(column) * if square { 0.5 } else { 1.0 } + dispatch(lanes) + compute;
            let tiling = Tiling {
                order: Order::Lanes,
                row,
                column: Some(column),
                rows,
                columns,
                element_cost: if has_inner { cost } else { 0.0 },
                point_cost: if has_inner { point_cost } else { cost },
                square,
                most,
            };
            // Few outer points leave strips short: then several inner points are taken at once.
            if extent < LONG && joinable && space.extents.len() > space.outer {
                let rows = space.extents[space.extents.len() - 1];
                let cost = 1.1 * moving(column) + dispatch(extent * rows) + compute;
                let row = Some(space.extents.len() - 1);
                let joined = Tiling { order: Order::Columns, row, rows: MOST, element_cost: cost, ..tiling.clone() };
                offer(cost, Tiling { most: MOST, ..joined });
            }
            offer(cost, tiling);
        }
        if has_inner && space.extents.len() > space.outer {
            for column in first..space.extents.len() {
                let extent = space.extents[column];
                let short = extent < LONG && space.extents.len() == space.outer + 1;
                // Rows that lie one after another are taken several at a time, where nothing else is done with them.
                let follows = |access: &&Access| {
                    let row = access.strides[..space.outer].last();
                    access.strides[column] == 1 && row.is_none_or(|&stride| stride == extent as i64)
                };
                let only_read = walks == 1 && joinable && space.extents.len() == space.outer + 1;
                let several = 2 * extent <= AT_ONCE && only_read && relevant.iter().all(follows);
                let row =
                    if short || several { space.outer.checked_sub(1).filter(|&row| row >= space.parts) } else { None };
                let lanes = row.map_or(extent, |row| (extent * space.extents[row]).min(1024));
                let fold_cost = 12.0 / extent.max(1) as f64;
                let points = space.inner_points().max(1) as f64;
                let cost = moving(column) + dispatch(lanes) + compute + fold_cost;
                let per_row = if row.is_some() { point_cost } else { point_total * 4.0 };
                let tiling = Tiling {
                    order: Order::Rows,
                    row,
                    column: Some(column),
                    rows: if row.is_some() { MOST } else { 1 },
                    columns: extent,
                    element_cost: cost,
                    point_cost: per_row,
                    square: false,
                    most: MOST,
                };
                offer(cost + per_row / points, tiling);
            }
        }
        best.map_or_else(
            || Tiling {
                order: Order::Rows,
                row: None,
                column: None,
                rows: 1,
                columns: 1,
                element_cost: compute + dispatch(1),
                point_cost: point_total,
                square: false,
                most: MOST,
            },
            |(_, tiling)| tiling,
        )
    }

    /// Whether what inner stages compute may be kept from stage to stage, and stays in the cache: rows are walked whole, in the same order
    /// by all stages, one after another on one thread.
    pub(super) fn keeps_rows(&self, space: &Space) -> bool {
        let points: usize = space.extents[..space.outer].iter().product();
        let short = self.row.is_some();
        self.order == Order::Rows && (short || (space.inner_points() * size_of::<f64>() <= KEPT && points >= MANY))
    }

    /// Whether a map with these strides takes the lanes of a tile from elements one after another. Once the tile has its size.
    pub(super) fn runs_along(&self, strides: &[i64]) -> bool {
        let along = |axis: Option<usize>| axis.map(|axis| strides[axis]);
        along(self.column) == Some(1) && (self.rows == 1 || along(self.row) == Some(self.columns as i64))
    }

    /// Whether a load's lanes lie one after another in memory. Before the tile has its size.
    pub(super) fn is_dense(&self, at: &TileMap) -> bool {
        at.column == 1 && (self.row.is_none() || at.row == self.columns as i64)
    }

    /// Sizes the tile so that its strips fit the cache, but for those that are `lent` by memory, and `seldom` bytes per lane that are seldom
    /// touched.
    pub(super) fn fit(&mut self, slots: &[SlotKind], lent: &HashSet<Slot>, seldom: usize, space: &Space) {
        let bytes: usize = slots
            .iter()
            .enumerate()
            .filter(|(slot, kind)| kind.class == Class::Full && kind.span == Span::Tile && !lent.contains(slot))
            .map(|(_, kind)| kind.size)
            .sum();
        let bytes = bytes.saturating_sub(seldom);
        // A single loop from memory to memory.
        let points: usize = space.extents.iter().product();
        let alone = bytes == 0 && self.most == MOST && points >= MANY * AT_ONCE;
        let lanes = if alone { AT_ONCE } else { (STRIPS / bytes.max(1)).clamp(LEAST, MOST).min(self.most) };
        let lanes = 1 << lanes.ilog2();
        if self.square {
            return;
        }
        self.columns = self.columns.min(lanes).max(1);
        self.rows = if self.row.is_some() { (lanes / self.columns).max(1) } else { 1 };
    }

    /// Lanes of a full tile.
    pub(super) fn lanes(&self) -> usize {
        self.rows * self.columns
    }

    /// The axes of a tile of outer points, and of one over which inner stages run.
    pub(super) fn axes(&self) -> (TileAxes, TileAxes) {
        let both = TileAxes { row: self.row, column: self.column };
        match self.order {
            Order::Lanes => (both, both),
            Order::Rows => (TileAxes { row: self.row, column: None }, both),
            Order::Columns => (TileAxes { row: None, column: self.column }, both),
        }
    }

    /// The walks over outer tiles and over the inner points of one.
    pub(super) fn walks(&self, space: &Space) -> (Walk, Walk) {
        let step = |axis: usize| {
            if Some(axis) == self.row {
                self.rows
            } else if Some(axis) == self.column {
                self.columns
            } else {
                1
            }
        };
        let steps = |axes: std::ops::Range<usize>| axes.map(|axis| (axis, space.extents[axis], step(axis)));
        let mut outer: Vec<_> = steps(0..space.outer).collect();
        if self.square {
            // Square after square along the rows: what is read then continues in memory.
            outer.sort_by_key(|&(axis, ..)| Some(axis) == self.row);
        }
        (Walk::new(outer), Walk::new(steps(space.inner())))
    }

    /// The tile at an outer point. Its extent along an inner axis is 1.
    pub(super) fn tile(&self, space: &Space, point: &[i64]) -> Tile {
        let along = |axis: Option<usize>, most: usize| match axis {
            Some(axis) if axis < space.outer => most.min(space.extents[axis] - point[axis] as usize),
            Some(_) | None => 1,
        };
        Tile { rows: along(self.row, self.rows), columns: along(self.column, self.columns) }
    }

    /// The tile at an inner point of an outer one's tile.
    pub(super) fn inner_tile(&self, space: &Space, point: &[i64], tile: Tile) -> Tile {
        let along = |axis: Option<usize>, most: usize, own: usize| match axis {
            Some(axis) if axis >= space.outer => most.min(space.extents[axis] - point[axis] as usize),
            Some(_) | None => own,
        };
        Tile { rows: along(self.row, self.rows, tile.rows), columns: along(self.column, self.columns, tile.columns) }
    }

    /// The largest tile of a walk over an outer one's inner points.
    pub(super) fn full_tile(&self, tile: Tile) -> Tile {
        match self.order {
            Order::Lanes => tile,
            Order::Rows => Tile { columns: self.columns, ..tile },
            Order::Columns => Tile { rows: self.rows, ..tile },
        }
    }

    /// Nanoseconds of a full tile, estimated.
    pub(super) fn tile_cost(&self, space: &Space) -> f64 {
        let origin = vec![0; space.extents.len()];
        let tile = self.tile(space, &origin);
        let points = tile.rows * tile.columns;
        points as f64 * (self.point_cost + self.element_cost * space.inner_points() as f64)
    }
}

impl Access {
    /// Moving one element whose neighbour in lanes lies one step along `axis` away.
    fn cost(&self, axis: usize) -> f64 {
        let scattered = match self.kind {
            AccessKind::Load => 1.0,
            AccessKind::Store => 1.5,
        };
        match self.strides[axis].unsigned_abs() as usize {
            0 => 0.03,
            1 => 0.05 + 0.03 * self.size as f64,
            far if far * self.size <= 32 => 0.7 * scattered,
            _ => 1.5 * scattered,
        }
    }
}

fn accesses(kernel: &LoopKernel, space: &Space) -> Vec<Access> {
    let mut accesses = Vec::new();
    let mut note = |affine: &Affine, dtype: DType, inner: bool, kind: AccessKind| {
        let strides = space.map(affine).strides.to_vec();
        accesses.push(Access { strides, size: dtype.size(), inner, kind });
    };
    for stage in &kernel.stages {
        let (block, inner) = block_of(stage);
        for instruction in &block.instructions {
            if let Operation::Load { buffer, address, .. } = &instruction.operation {
                note(&address.affine, kernel.buffers[buffer.0 as usize].dtype, inner, AccessKind::Load);
            }
        }
        for store in &block.stores {
            note(&store.address, kernel.buffers[store.buffer.0 as usize].dtype, inner, AccessKind::Store);
        }
    }
    accesses
}

/// Whether inner points can be taken in any grouping: nothing they read is defined per outer point, and no index is wanted.
fn joinable(kernel: &LoopKernel) -> bool {
    kernel.stages.iter().all(|stage| match stage {
        Stage::Point(_) => true,
        Stage::Each(_) => false,
        Stage::Fold { block, folds } => {
            let defined: HashSet<Reg> = block.instructions.iter().map(|instruction| instruction.result).collect();
            let mut read = block.instructions.iter().flat_map(|instruction| operands(&instruction.operation));
            read.all(|reg| defined.contains(&reg))
                && folds.iter().all(|fold| !fold.kind.is_arg() && defined.contains(&fold.value))
        }
    })
}

fn block_of(stage: &Stage) -> (&Block, bool) {
    match stage {
        Stage::Point(block) => (block, false),
        Stage::Fold { block, .. } | Stage::Each(block) => (block, true),
    }
}

/// Number and cost per lane of the instructions of point stages or of inner stages.
fn instructions(kernel: &LoopKernel, wanted: bool) -> (usize, f64) {
    let blocks = kernel.stages.iter().map(block_of).filter(|&(_, inner)| inner == wanted);
    blocks.fold((0, 0.0), |(count, cost), (block, _)| {
        (count + block.instructions.len() + block.stores.len(), cost + block_cost(block))
    })
}

/// Nanoseconds per lane of a block's arithmetic.
fn block_cost(block: &Block) -> f64 {
    block.instructions.iter().map(instruction_cost).sum()
}

/// Nanoseconds per lane of an instruction's arithmetic.
pub(super) fn instruction_cost(instruction: &Instruction) -> f64 {
    let narrow = match instruction.dtype {
        DType::F16 | DType::BF16 => 0.4,
        DType::F64 | DType::I64 => 0.1,
        DType::F32 | DType::I32 | DType::U32 | DType::I8 | DType::U8 | DType::Bool => 0.0,
    };
    let wide = instruction.dtype == DType::F64;
    let math = |cost: f64| if wide { 12.0 } else { cost };
    use ScalarOp::*;
    let work = match &instruction.operation {
        Operation::Literal(_) | Operation::Bitcast(_) | Operation::Load { .. } => return 0.0,
        Operation::Index(_) | Operation::Within(_) | Operation::Fma(..) | Operation::Select { .. } => 0.1,
        Operation::Cast(_) => 0.15,
        Operation::Random { .. } => 5.0,
        Operation::Scalar(op, _) => match op {
            Neg | Abs | Sign | Floor | Ceil | Round | Trunc | Not | IsNan | IsInf | IsFinite | Add | Sub | Mul => 0.08,
            And | Or | Xor | Shl | Shr | Eq | Ne | Lt | Le | Gt | Ge | Max | Min | Clamp => 0.12,
            Sqrt | Rsqrt | Recip | Div => 0.3,
            Exp | Exp2 | Log | Log2 | Sin | Cos | Tanh | Erf | Sigmoid => math(0.7),
            Expm1 | Log1p | Tan | Asin | Acos | Atan | Sinh | Cosh | Asinh | Acosh | Atanh => math(1.5),
            Rem | Pow | Atan2 => math(3.0),
        },
    };
    work + narrow
}
