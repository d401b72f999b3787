//! Maps, reductions, rows, and several of them side by side.
//!
//! - Where neighbours in memory are neighbours along the inner space, a team of lanes walks it together: rows.
//! - Where they are neighbours along the outer space, each invocation has points of its own: maps, and reductions of columns.
//! - Several neighbours at a time, 16 bytes at most, where the last axis is a multiple of them and memory is contiguous along it; narrow numbers
//!   are then stored as whole words.
//! - A large GPU wants tens of thousands of invocations. A reduction with too few points for that is split, if it has one fold stage; a row with
//!   several gets all the lanes that a workgroup has.

use kiln_ir::gpu::{GpuTarget, LoopSchedule};
use kiln_ir::kernel::{Affine, Block, BufferIndex, HorizontalKernel, LoopKernel, Operation, Stage};

/// Invocations that keep a large GPU busy.
const BUSY: usize = 1 << 15;
/// Invocations of a workgroup, where nothing asks for another number.
const WORKGROUP: u32 = 256;
/// A part of a split reduction has at least so many elements.
const PART: usize = 4096;
/// Parts of a split reduction, at most: what a workgroup combines in a few steps.
const PARTS: usize = 1024;
/// Values of an inner space that a lane takes one after the other, where the space is larger than a subgroup.
const STEPS: usize = 4;

/// How a loop kernel is spread.
pub(super) fn schedule(kernel: &LoopKernel, target: &GpuTarget) -> LoopSchedule {
    let shape = Shape::of(kernel, target);
    let workgroup = WORKGROUP.min(target.workgroup_size);
    if shape.inner <= 1 {
        return LoopSchedule::Points { workgroup, width: shape.outer_width };
    }
    if shape.rows() {
        let lanes = shape.lanes(shape.inner_width, lane_limit(target, &shape));
        let team = team(lanes, shape.inner_width, shape.outer, target);
        let parts = (shape.inner / PART).min(PARTS / shape.outer.clamp(1, PARTS));
        return match shape.outer * (lanes as usize) < BUSY && parts >= 2 && may_split(kernel, target) {
            true => split(parts, one_team(workgroup, shape.inner_width), &shape, target),
            false => team,
        };
    }
    let invocations = shape.outer / shape.outer_width as usize;
    let points =
        |width| LoopSchedule::Points { workgroup: smaller(workgroup, shape.outer / width as usize, target), width };
    if invocations >= BUSY {
        return points(shape.outer_width);
    }
    if may_split(kernel, target) && shape.outer * shape.inner >= 8 * PART {
        let parts = (BUSY / invocations.max(1)).min(shape.inner / 16).min(PARTS);
        if parts >= 2 {
            return split(parts, points(shape.outer_width), &shape, target);
        }
    }
    // Several folds over columns. Lanes read far apart, but there are more of them.
    if shape.outer < BUSY / 16 && shape.inner >= 256 {
        return team(shape.lanes(1, lane_limit(target, &shape)), 1, shape.outer, target);
    }
    let wide_stores = shape.packed && shape.outer_width > 1;
    points(if wide_stores || shape.outer >= BUSY { shape.outer_width } else { 1 })
}

/// How the parts of a horizontal kernel are spread: each as by itself, but in workgroups of one size and in one dispatch.
pub(super) fn horizontal(kernel: &HorizontalKernel, target: &GpuTarget) -> Vec<LoopSchedule> {
    let workgroup = WORKGROUP.min(target.workgroup_size);
    let of_one = |kernel: &LoopKernel| {
        let shape = Shape::of(kernel, target);
        if shape.inner > 1 && (shape.rows() || (shape.outer < BUSY / 16 && shape.inner >= 256)) {
            let width = if shape.rows() { shape.inner_width } else { 1 };
            let lanes = shape.lanes(width, workgroup);
            return LoopSchedule::Team { lanes, teams: workgroup / lanes, width };
        }
        LoopSchedule::Points { workgroup, width: shape.outer_width }
    };
    kernel.parts.iter().map(|part| of_one(&part.kernel)).collect()
}

/// Lanes of a team, at most.
fn lane_limit(target: &GpuTarget, shape: &Shape) -> u32 {
    // Few and long rows: all that a workgroup has, if its memory holds a number of theirs for each.
    let most = if shape.outer < 264 && shape.inner >= 1 << 14 && target.workgroup_memory >= 32 << 10 {
        1024
    } else {
        WORKGROUP
    };
    let most = most.min(target.workgroup_size);
    // A power of two.
    1 << most.ilog2()
}

/// Teams in workgroups that are neither smaller than a subgroup nor so large that few run side by side.
fn team(lanes: u32, width: u32, points: usize, target: &GpuTarget) -> LoopSchedule {
    let size = smaller(128.min(target.workgroup_size), points * lanes as usize, target).max(lanes);
    LoopSchedule::Team { lanes, teams: (size / lanes).max(1), width }
}

fn one_team(lanes: u32, width: u32) -> LoopSchedule {
    LoopSchedule::Team { lanes: 1 << lanes.ilog2(), teams: 1, width }
}

/// A workgroup size from `size` down to a subgroup's, such that some hundred workgroups share `invocations`.
fn smaller(size: u32, invocations: usize, target: &GpuTarget) -> u32 {
    let least = target.subgroup.map_or(32, |(_, most)| most).min(size);
    let mut size = 1 << size.ilog2();
    while size > least && invocations.div_ceil(size as usize) < 264 {
        size /= 2;
    }
    size
}

fn split(parts: usize, part: LoopSchedule, shape: &Shape, target: &GpuTarget) -> LoopSchedule {
    // Whether there is one point or there are many, the parts of a point are few.
    let whole = if shape.outer >= 1024 || parts < 32 {
        let workgroup = smaller(WORKGROUP.min(target.workgroup_size), shape.outer, target);
        LoopSchedule::Points { workgroup, width: 1 }
    } else {
        let lanes = (parts.next_power_of_two() as u32 / 4).clamp(32, WORKGROUP.min(target.workgroup_size));
        LoopSchedule::Team { lanes: 1 << lanes.ilog2(), teams: 1, width: 1 }
    };
    LoopSchedule::Split { parts: parts as u32, part: Box::new(part), whole: Box::new(whole) }
}

/// Whether a kernel has one fold stage and nothing over the inner space after it, and a binding left for each number that it folds.
fn may_split(kernel: &LoopKernel, target: &GpuTarget) -> bool {
    let mut numbers = 0;
    for (index, stage) in kernel.stages.iter().enumerate() {
        match stage {
            Stage::Each(_) => return false,
            Stage::Fold { .. } if numbers > 0 => return false,
            Stage::Fold { folds, .. } => {
                numbers = folds.iter().map(|fold| if fold.kind.is_arg() { 2 } else { 1 }).sum()
            }
            // What the first dispatch computes as well must be cheap, and must not be stored before it is read.
            Stage::Point(block) if numbers == 0 && !block.stores.is_empty() && index > 0 => return false,
            Stage::Point(_) => {}
        }
    }
    numbers > 0 && kernel.buffers.len() + numbers <= target.bindings as usize
}

/// What a schedule depends on.
struct Shape {
    /// Outer points.
    outer: usize,
    /// Points of the inner space.
    inner: usize,
    /// Accesses of the inner space that are contiguous along its last axis, and along the last outer axis.
    along_inner: usize,
    along_outer: usize,
    /// Neighbours that may be taken at once along each.
    inner_width: u32,
    outer_width: u32,
    /// Whether numbers narrower than a word are stored.
    packed: bool,
}

impl Shape {
    fn of(kernel: &LoopKernel, target: &GpuTarget) -> Shape {
        let (outer, inner): (usize, usize) = (kernel.outer.iter().product(), kernel.inner.iter().product());
        let outer_axis = kernel.outer.len().checked_sub(1);
        let inner_axis = kernel.inner.len().checked_sub(1).map(|axis| kernel.outer.len() + axis);
        let (mut along_inner, mut along_outer, mut points_along_outer) = (0, 0, 0);
        let mut packed = false;
        // Bytes of the widest numbers that are contiguous along each.
        let (mut inner_bytes, mut outer_bytes) = (1, 1);
        for stage in &kernel.stages {
            let (block, over_inner) = match stage {
                Stage::Point(block) => (block, false),
                Stage::Each(block) | Stage::Fold { block, .. } => (block, true),
            };
            for (buffer, affine) in accesses(block) {
                let contiguous = |axis: Option<usize>| usize::from(axis.is_some_and(|axis| affine.stride(axis) == 1));
                let bytes = |axis| contiguous(axis) * kernel.buffers[buffer.0 as usize].dtype.size();
                inner_bytes = inner_bytes.max(bytes(inner_axis));
                outer_bytes = outer_bytes.max(bytes(outer_axis));
                if over_inner {
                    along_inner += contiguous(inner_axis);
                    along_outer += contiguous(outer_axis);
                } else {
                    points_along_outer += contiguous(outer_axis);
                }
            }
            packed |= block.stores.iter().any(|store| kernel.buffers[store.buffer.0 as usize].dtype.size() < 4);
        }
        let width = |extent: Option<&usize>, accesses: usize, bytes: usize| {
            // Wide numbers are taken four at a time all the same: in several accesses.
            let most = (16 / bytes).max(4).min(target.widest as usize);
            let divides = |width: &usize| extent.is_some_and(|extent| *extent > 0 && extent.is_multiple_of(*width));
            let widths = [16usize, 8, 4, 2].into_iter().filter(|&width| width <= most && accesses > 0);
            widths.into_iter().find(divides).unwrap_or(1) as u32
        };
        let outer_accesses = if inner > 1 { along_outer } else { along_outer + points_along_outer };
        Shape {
            outer,
            inner,
            along_inner,
            along_outer,
            inner_width: width(kernel.inner.last(), along_inner, inner_bytes),
            outer_width: width(kernel.outer.last(), outer_accesses, outer_bytes),
            packed,
        }
    }

    /// Whether lanes should walk the inner space: memory is contiguous along it, or along nothing and there are few points.
    fn rows(&self) -> bool {
        self.along_inner > 0 && self.along_inner >= self.along_outer
            || self.along_inner == 0 && self.along_outer == 0 && self.outer < BUSY
    }

    /// Lanes of a team for the inner space: one step where a subgroup covers it, else a few.
    fn lanes(&self, width: u32, most: u32) -> u32 {
        let values = self.inner.div_ceil(width as usize);
        let lanes =
            if values <= 32 { values.next_power_of_two() } else { values.div_ceil(STEPS).next_power_of_two().max(32) };
        (lanes as u32).clamp(1, most)
    }
}

/// The buffers and maps of all loads and stores.
fn accesses(block: &Block) -> impl Iterator<Item = (BufferIndex, &Affine)> {
    let loads = block.instructions.iter().filter_map(|instruction| match &instruction.operation {
        Operation::Load { buffer, address, .. } => Some((*buffer, &address.affine)),
        Operation::Literal(_)
        | Operation::Index(_)
        | Operation::Within(_)
        | Operation::Scalar(..)
        | Operation::Fma(..)
        | Operation::Cast(_)
        | Operation::Bitcast(_)
        | Operation::Select { .. }
        | Operation::Random { .. } => None,
    });
    loads.chain(block.stores.iter().map(|store| (store.buffer, &store.address)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_ir::kernel::{Access, Address, Buffer, Fold, Instruction, Reg, Store};
    use kiln_ir::{DType, ReduceKind};

    const GPU: GpuTarget = GpuTarget { subgroup: Some((32, 32)), ..GpuTarget::WEBGPU };

    fn buffer(len: usize, access: Access) -> Buffer {
        Buffer { dtype: DType::F32, len, access }
    }

    fn load(strides: &[i64]) -> Instruction {
        let affine = Affine { offset: 0, strides: strides.iter().copied().collect() };
        let address = Address { affine, ..Address::default() };
        let operation = Operation::Load { buffer: BufferIndex(0), address, bounds: Vec::new() };
        Instruction { result: Reg(0), dtype: DType::F32, operation }
    }

    fn store(value: u32) -> Store {
        let address = Affine { offset: 0, strides: [1].into_iter().collect() };
        Store { buffer: BufferIndex(1), address, value: Reg(value) }
    }

    fn copy(len: usize) -> LoopKernel {
        let block = Block { instructions: vec![load(&[1])], stores: vec![store(0)] };
        LoopKernel {
            buffers: vec![buffer(len, Access::Read), buffer(len, Access::Write)],
            outer: [len].into_iter().collect(),
            inner: Default::default(),
            stages: vec![Stage::Point(block)],
        }
    }

    fn sum(outer: usize, inner: usize, strides: [i64; 2]) -> LoopKernel {
        let kind = ReduceKind::Sum;
        let fold = Fold { kind, value: Reg(0), accumulate: DType::F32, result: Reg(1), dtype: DType::F32 };
        let block = Block { instructions: vec![load(&strides)], stores: Vec::new() };
        let after = Block { instructions: Vec::new(), stores: vec![store(1)] };
        LoopKernel {
            buffers: vec![buffer(outer * inner, Access::Read), buffer(outer, Access::Write)],
            outer: [outer].into_iter().collect(),
            inner: [inner].into_iter().collect(),
            stages: vec![Stage::Fold { block, folds: vec![fold] }, Stage::Point(after)],
        }
    }

    #[test]
    fn maps_take_as_many_neighbours_as_divide_their_last_axis() {
        for (len, width) in [(1024, 4), (1022, 2), (1021, 1)] {
            assert_eq!(schedule(&copy(len), &GPU), LoopSchedule::Points { workgroup: 256, width });
        }
    }

    #[test]
    fn rows_are_walked_by_teams_and_columns_by_invocations() {
        let rows = schedule(&sum(8192, 1024, [1024, 1]), &GPU);
        assert!(matches!(rows, LoopSchedule::Team { lanes: 64, width: 4, .. }), "{rows:?}");
        let columns = schedule(&sum(1 << 18, 64, [1, 1 << 18]), &GPU);
        // Some hundred workgroups are worth more than large ones.
        assert_eq!(columns, LoopSchedule::Points { workgroup: 128, width: 4 });
    }

    #[test]
    fn reductions_with_few_results_are_split() {
        for kernel in [sum(1, 1 << 24, [1 << 24, 1]), sum(256, 1 << 16, [1, 256])] {
            let found = schedule(&kernel, &GPU);
            assert!(matches!(found, LoopSchedule::Split { parts: 16.., .. }), "{found:?}");
        }
        // A binding is left for the parts, or it is not split.
        let found = schedule(&sum(1, 1 << 24, [1 << 24, 1]), &GpuTarget { bindings: 2, ..GPU });
        assert!(matches!(found, LoopSchedule::Team { .. }), "{found:?}");
    }
}
