//! Updates combined into a target.
//!
//! The axes that are walked in order become the inner space of a loop, all others its outer space: tiles of outer points run side by
//! side, the inner points of each in row-major order, so that duplicates meet as the kernel says and the result does not depend on the
//! number of threads. Sums of 16-bit floats are made in `f32` and rounded once at the end.

use std::collections::HashSet;

use kiln_ir::kernel::{Affine, Block, LoopKernel, ScatterKernel, Stage, Store};
use kiln_ir::{DType, ScatterKind};
use rayon::prelude::*;
use smallvec::SmallVec;

use super::compile::{Compiler, Repeat};
use super::lanes::{Place, Shape, UpdateLoop, mover, update_loop};
use super::program::{Program, RawBuffer, Slot, TileMap};
use super::scratch::{Layout, Pool, with_frame};
use super::space::{Point, Space, Walk, maps_of};
use super::tiling::Tiling;
use super::vmath::Isa;

/// Work below this many nanoseconds (estimated) stays on the calling thread.
const PARALLEL: f64 = 40_000.0;

/// A prepared scatter.
pub(super) struct Scatter {
    isa: Isa,
    space: Space,
    tiling: Tiling,
    outer: Walk,
    inner: Walk,
    program: Program,
    index: Slot,
    value: Slot,
    at: TileMap,
    stride: i64,
    extent: usize,
    output: usize,
    len: usize,
    update: UpdateLoop,
    /// Whether sums are made in a wide copy of the target, and its dtype.
    widened: Option<DType>,
    layout: Layout,
    tile_cost: f64,
    pool: Pool,
}

impl Scatter {
    pub(super) fn new(kernel: &ScatterKernel) -> Scatter {
        let isa = Isa::best();
        let ordered = kernel.ordered.clone();
        let order: Vec<usize> =
            (0..ordered.start).chain(ordered.end..kernel.space.len()).chain(ordered.clone()).collect();
        let extents: SmallVec<[usize; 6]> = order.iter().map(|&axis| kernel.space[axis]).collect();
        let (outer, inner) = extents.split_at(extents.len() - ordered.len());
        let block = reorder_block(&kernel.block, &order);
        let address = reorder(&kernel.address, &order);
        let mut stored = block.clone();
        stored.stores.push(Store { buffer: kernel.output, address: address.clone(), value: kernel.update });
        let shape = LoopKernel {
            buffers: kernel.buffers.clone(),
            outer: outer.into(),
            inner: inner.into(),
            stages: vec![Stage::Each(stored)],
        };
        let mut maps = maps_of(&block);
        // Columns must come in row-major order of the ordered axes: a map that steps through them keeps them together.
        let row_major = super::loops::row_major(outer, inner);
        maps.extend([&address, &row_major]);
        let space = Space::new(outer, inner, &maps);
        let mut tiling = Tiling::choose_in_order(&shape, &space);
        let (_, tile) = tiling.axes();
        let output = kernel.output.0 as usize;
        let dtype = kernel.buffers[output].dtype;
        let widened = match (kernel.kind, dtype) {
            (ScatterKind::Add, DType::F16 | DType::BF16) => Some(dtype),
            (ScatterKind::Add | ScatterKind::Set | ScatterKind::Max, _) => None,
        };
        let mut compiler = Compiler::new(isa, &kernel.buffers, &space, HashSet::new(), None);
        let wanted = [(kernel.index, DType::I64), (kernel.update, dtype)];
        let (program, values) = compiler.block(&block, tile, Repeat::Inner, &wanted, &HashSet::new());
        let at = compiler.tile_map(&address, tile);
        tiling.fit(&compiler.slots, &HashSet::new(), 0, &space);
        let layout = Layout::new(&compiler.slots, &compiler.constants, tiling.rows, tiling.lanes(), 1);
        let (outer, inner) = tiling.walks(&space);
        let tile_cost = tiling.tile_cost(&space);
        let update = update_loop(kernel.kind, if widened.is_some() { DType::F32 } else { dtype });
        let (len, stride, extent) = (kernel.buffers[output].len, kernel.stride, kernel.extent);
        let (index, value, pool) = (values[0], values[1], Pool::default());
        Scatter {
            isa,
            space,
            tiling,
            outer,
            inner,
            program,
            index,
            value,
            at,
            stride,
            extent,
            output,
            len,
            update,
            widened,
            layout,
            tile_cost,
            pool,
        }
    }

    /// Runs the kernel. Safety: as for `Loops::run`.
    pub(super) unsafe fn run(&self, buffers: &[RawBuffer]) {
        if self.space.empty_outer || self.space.empty_inner || self.len == 0 {
            return;
        }
        let target = buffers[self.output].data;
        let Some(dtype) = self.widened else {
            // SAFETY: the caller's.
            return unsafe { self.run_on(buffers, target) };
        };
        let moves = mover(dtype, self.isa);
        self.pool.with(self.len * DType::F32.size(), |wide| {
            let shape = Shape::row(self.len, 1);
            // SAFETY: the caller's; the wide copy has an `f32` for every element.
            unsafe {
                (moves.load)(target, shape, wide.data);
                self.run_on(buffers, wide.data);
                (moves.store)(wide.data, shape, target);
            }
        });
    }

    unsafe fn run_on(&self, buffers: &[RawBuffer], target: *mut u8) {
        let tiles = self.outer.len();
        let target = Target(target);
        if self.tile_cost * (tiles as f64) < PARALLEL || tiles == 1 {
            // SAFETY: the caller's.
            (0..tiles).for_each(|tile| unsafe { self.run_tile(buffers, &target, tile) });
        } else {
            // SAFETY: the caller's; points that differ in other than ordered axes never meet at one element.
            (0..tiles).into_par_iter().for_each(|tile| unsafe { self.run_tile(buffers, &target, tile) });
        }
    }

    unsafe fn run_tile(&self, buffers: &[RawBuffer], target: &Target, index: usize) {
        with_frame(&self.layout, self.isa, buffers, |frame| {
            let mut point: Point = Point::from_elem(0, self.space.extents.len());
            self.outer.seek(index, &mut point);
            let tile = self.tiling.tile(&self.space, &point);
            // SAFETY: the caller's; slots have the lanes of the tile, and the loop keeps inside the target.
            unsafe {
                self.program.prepare(frame, &point, self.tiling.full_tile(tile));
                for _ in 0..self.inner.len() {
                    let tile = self.tiling.inner_tile(&self.space, &point, tile);
                    self.program.run(frame, &point, tile);
                    let shape = Shape {
                        rows: tile.rows,
                        row_stride: self.at.row as isize,
                        columns: tile.columns,
                        column_stride: self.at.column as isize,
                    };
                    let place = Place {
                        first: self.at.map.at(&point),
                        shape,
                        stride: self.stride,
                        extent: self.extent as i64,
                        len: self.len as i64,
                    };
                    (self.update)(frame.at[self.value], frame.at[self.index].cast(), place, target.0);
                    self.inner.advance(&mut point);
                }
            }
        });
    }
}

/// The target's first element.
struct Target(*mut u8);

// SAFETY: tiles that run side by side update different elements.
unsafe impl Sync for Target {}

/// A map over axes in another order.
fn reorder(affine: &Affine, order: &[usize]) -> Affine {
    Affine { offset: affine.offset, strides: order.iter().map(|&axis| affine.stride(axis)).collect() }
}

fn reorder_block(block: &Block, order: &[usize]) -> Block {
    let mut block = block.clone();
    block.affines_mut().for_each(|affine| *affine = reorder(affine, order));
    block
}
