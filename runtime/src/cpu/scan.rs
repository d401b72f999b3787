//! Running reductions.
//!
//! The scanned axis is the inner space of a loop: its points are walked in the direction of the scan, either one by one with an
//! accumulator per lane, or as the columns of a strip with an accumulator per row. Running sums and products of floats are held in `f64`
//! and rounded where they are stored.

use std::collections::HashSet;

use kiln_ir::kernel::{LoopKernel, ScanKernel, Stage, Store};
use kiln_ir::{Direction, ReduceKind, ScanKind};
use rayon::prelude::*;
use smallvec::smallvec;

use super::compile::{Compiler, Repeat, lane_bits};
use super::lanes::{self, BLOCK, FoldLoops, Repr, fill};
use super::program::{Program, RawBuffer, Slot, StoreStep, Tile, Write};
use super::scratch::{Layout, with_frame};
use super::space::{Point, Space, Walk, maps_of};
use super::tiling::{Order, Tiling};
use super::vmath::Isa;

/// Work below this many nanoseconds (estimated) stays on the calling thread.
const PARALLEL: f64 = 40_000.0;

/// A prepared scan.
pub(super) struct Scan {
    isa: Isa,
    space: Space,
    tiling: Tiling,
    outer: Walk,
    inner: Walk,
    direction: Direction,
    program: Program,
    loops: FoldLoops,
    value: Slot,
    acc: Slot,
    running: Slot,
    /// From running values to the result's dtype.
    rounding: Program,
    store: StoreStep,
    layout: Layout,
    tile_cost: f64,
}

impl Scan {
    pub(super) fn new(kernel: &ScanKernel) -> Scan {
        let isa = Isa::best();
        // As a loop kernel it says how its accesses lie; the running value's store stands for the value's.
        let mut block = kernel.block.clone();
        block.stores.push(Store { buffer: kernel.output, address: kernel.address.clone(), value: kernel.value });
        let shape = LoopKernel {
            buffers: kernel.buffers.clone(),
            outer: kernel.outer.clone(),
            inner: smallvec![kernel.extent],
            stages: vec![Stage::Each(block)],
        };
        let mut maps = maps_of(&kernel.block);
        maps.push(&kernel.address);
        let space = Space::new(&shape.outer, &shape.inner, &maps);
        let mut tiling = Tiling::choose(&shape, &space);
        let (_, tile) = tiling.axes();
        let mut compiler = Compiler::new(isa, &kernel.buffers, &space, HashSet::new(), None);
        let kind = match kernel.kind {
            ScanKind::Sum => ReduceKind::Sum,
            ScanKind::Prod => ReduceKind::Prod,
            ScanKind::Max => ReduceKind::Max,
            ScanKind::Min => ReduceKind::Min,
        };
        let loops = lanes::fold_loops(kind, kernel.accumulate, isa);
        let size = Repr::of(loops.accumulator).size();
        let (acc, running) = (compiler.take(tile.top(), size), compiler.take(tile.top(), size));
        // Before the block, which gives back slots that hold one value for all steps.
        let (rounding, result) = compiler.conversion(running, tile.top(), loops.accumulator, kernel.dtype);
        let wanted = [(kernel.value, kernel.accumulate)];
        let (program, values) = compiler.block(&kernel.block, tile, Repeat::Inner, &wanted, &HashSet::new());
        let store = StoreStep {
            value: result.slot,
            class: tile.top(),
            buffer: kernel.output.0 as usize,
            at: compiler.tile_map(&kernel.address, tile),
            mover: lanes::mover(kernel.dtype, isa),
            write: Write::Last,
        };
        tiling.fit(&compiler.slots, &HashSet::new(), 0, &space);
        let layout = Layout::new(&compiler.slots, &compiler.constants, tiling.rows, tiling.lanes(), 1);
        let (outer, inner) = tiling.walks(&space);
        let tile_cost = tiling.tile_cost(&space);
        let (value, direction) = (values[0], kernel.direction);
        Scan {
            isa,
            space,
            tiling,
            outer,
            inner,
            direction,
            program,
            loops,
            value,
            acc,
            running,
            rounding,
            store,
            layout,
            tile_cost,
        }
    }

    /// Runs the kernel. Safety: as for `Loops::run`.
    pub(super) unsafe fn run(&self, buffers: &[RawBuffer]) {
        if self.space.empty_outer || self.space.empty_inner {
            return;
        }
        let tiles = self.outer.len();
        // SAFETY: the caller's; tiles are disjoint sets of outer points.
        let run = |tile| unsafe { self.run_tile(buffers, tile) };
        if self.tile_cost * (tiles as f64) < PARALLEL || tiles == 1 {
            (0..tiles).for_each(run);
        } else {
            (0..tiles).into_par_iter().for_each(run);
        }
    }

    unsafe fn run_tile(&self, buffers: &[RawBuffer], index: usize) {
        with_frame(&self.layout, self.isa, buffers, |frame| {
            let mut point: Point = Point::from_elem(0, self.space.extents.len());
            self.outer.seek(index, &mut point);
            let tile = self.tiling.tile(&self.space, &point);
            let steps = self.inner.len();
            // SAFETY: the caller's; slots have the lanes of the tile.
            unsafe {
                let full = self.tiling.full_tile(tile);
                let accs = (full.rows * full.columns).div_ceil(BLOCK);
                let bits = lane_bits(self.loops.start);
                fill(frame.home[self.acc], Repr::of(self.loops.accumulator).size(), bits, accs);
                self.program.prepare(frame, &point, self.tiling.full_tile(tile));
                for step in 0..steps {
                    let step = match self.direction {
                        Direction::Forward => step,
                        Direction::Reverse => steps - 1 - step,
                    };
                    self.inner.seek(step, &mut point);
                    let tile: Tile = self.tiling.inner_tile(&self.space, &point, tile);
                    self.program.run(frame, &point, tile);
                    let (value, acc, running) = (frame.at[self.value], frame.home[self.acc], frame.home[self.running]);
                    match self.tiling.order {
                        Order::Rows => {
                            (self.loops.scan_rows)(value, tile.rows, tile.columns, acc, self.direction, running);
                        }
                        Order::Lanes | Order::Columns => {
                            (self.loops.scan_lanes)(value, tile.rows * tile.columns, acc, running)
                        }
                    }
                    frame.at[self.running] = running;
                    self.rounding.run(frame, &point, tile);
                    self.store.run(frame, &point, tile);
                }
            }
        });
    }
}
