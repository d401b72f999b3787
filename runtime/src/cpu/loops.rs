//! Map, reduce and row kernels.
//!
//! A kernel is walked in one of two orders ([`Order`]), chosen by how its accesses lie in memory:
//!
//! - *lanes*: the lanes of a tile are outer points; inner points are walked one by one, folds combine lane by lane. So run maps (one
//!   inner point) and column reductions.
//! - *rows*: rows of a tile are outer points, columns inner points: long rows in several strips, short ones many at a time. Folds reduce
//!   each row. So run row reductions, softmax, layer norm.
//!
//! Where there are few outer points and many inner ones, the inner walk is cut into pieces that run side by side; the cut depends on the
//! kernel's extents alone, and pieces are merged in order, so that results do not depend on the number of threads.

use std::collections::HashSet;
use std::ops::Range;

use kiln_ir::kernel::{Affine, Fold, LoopKernel, Reg, Stage};
use kiln_ir::{DType, ReduceKind};
use smallvec::SmallVec;

use super::ahead::Runs;
use super::compile::{Compiler, Repeat, Span, lane_bits, operands};
use super::crew;
use super::fused::{Fuser, Look};
use super::lanes::{BLOCK, FoldLoops, LanesLoop, Repr, fill, row_parts, set};
use super::program::{Action, Class, Frame, Program, RawBuffer, Slot, Step, Tile, TileMap};
use super::reuse::Reuse;
use super::scratch::{Layout, with_frame};
use super::space::{Point, Space, Walk, maps_of};
use super::tiling::{MANY, Order, Tiling};
use super::vmath::Isa;

/// Work below this many nanoseconds (estimated) stays on the calling thread.
const PARALLEL: f64 = 40_000.0;
/// Work of a piece or chunk, at least.
const GRAIN: f64 = 15_000.0;
/// Steps after which sums in single precision go to their accumulators.
const PARTIAL: usize = 64;
/// Pieces of an inner walk, at most.
const PIECES: usize = 64;

/// A prepared map, reduce or row kernel.
pub(super) struct Loops {
    isa: Isa,
    space: Space,
    tiling: Tiling,
    outer: Walk,
    inner: Walk,
    stages: Vec<Prepared>,
    layout: Layout,
    /// Slots that hold the same from stage to stage of a tile.
    carried: Vec<Slot>,
    /// Loads of long runs, which are asked for ahead.
    runs: Runs,
    /// Steps per tile.
    steps: usize,
    /// Nanoseconds per tile, estimated.
    tile_cost: f64,
    /// Pieces of the inner walk; 1 where tiles run side by side instead.
    pieces: usize,
}

/// What one thread does at a time.
pub(super) enum Work {
    /// All of the kernel, tile after tile, each inner walk cut in pieces for all threads.
    Pieces,
    /// A range of tiles.
    Tiles(Range<usize>),
}

/// A stage, compiled.
enum Prepared {
    Point(Program),
    Fold(Program, Vec<FoldStep>),
    Each(Program),
}

impl Prepared {
    fn program(&self) -> &Program {
        match self {
            Prepared::Point(program) | Prepared::Fold(program, _) | Prepared::Each(program) => program,
        }
    }
}

struct FoldStep {
    /// Whether the run of machine code that makes the value can sum it.
    summed: bool,
    loops: FoldLoops,
    value: Slot,
    acc: Slot,
    /// Sums in single precision, not yet in the accumulator.
    partial: Option<(LanesLoop, Slot)>,
    /// Index slot and the map to the row-major inner index, of arg reductions.
    index: Option<(Slot, TileMap)>,
    class: Class,
    acc_size: usize,
    finish: Program,
}

impl Loops {
    /// Decides everything that does not depend on the data.
    pub(super) fn new(kernel: &LoopKernel) -> Loops {
        Loops::in_parts(kernel, 0)
    }

    /// The same of a kernel that is run part by part: each point of its first `parts` outer axes alone.
    pub(super) fn in_parts(kernel: &LoopKernel, parts: usize) -> Loops {
        let isa = Isa::best();
        let strips = || Loops::build(kernel, parts, isa, None);
        let fuser = Fuser::new(isa, if Runs::pay(kernel) { Look::Ahead } else { Look::Not });
        let built = if fuser.is_some() { Loops::build(kernel, parts, isa, fuser) } else { None };
        built.or_else(strips).expect("strips run everywhere")
    }

    /// `None` where the system takes no machine code.
    fn build(kernel: &LoopKernel, parts: usize, isa: Isa, fuser: Option<Fuser>) -> Option<Loops> {
        let row_major = row_major(&kernel.outer, &kernel.inner);
        let mut maps = vec![&row_major];
        for stage in &kernel.stages {
            match stage {
                Stage::Point(block) | Stage::Fold { block, .. } | Stage::Each(block) => maps.extend(maps_of(block)),
            }
        }
        let space = Space::in_parts(&kernel.outer, &kernel.inner, &maps, parts);
        let mut tiling = Tiling::choose(kernel, &space);
        let (outer_tile, inner_tile) = tiling.axes();
        let reuse = if tiling.keeps_rows(&space) { Reuse::of(kernel) } else { Reuse::none(kernel) };
        let mut compiler = Compiler::new(isa, &kernel.buffers, &space, reuse.kept, fuser);
        let mut carried = HashSet::new();
        let mut seldom = 0;
        let stages: Vec<Prepared> = reuse
            .stages
            .iter()
            .enumerate()
            .map(|(index, stage)| {
                let later = read_by(&reuse.stages[index + 1..]);
                match stage {
                    Stage::Point(block) => {
                        let program = compiler.block(block, outer_tile, Repeat::Once, &[], &later).0;
                        Prepared::Point(program)
                    }
                    Stage::Fold { block, folds } => {
                        let at = compiler.tile_map(&row_major, inner_tile);
                        let accs: Vec<Accumulator> =
                            folds.iter().map(|fold| accumulator(&mut compiler, fold, &tiling, isa)).collect();
                        let partials = accs.iter().filter(|acc| acc.partial.is_some());
                        seldom += partials.map(|acc| Repr::of(acc.loops.accumulator).size()).sum::<usize>();
                        let wanted: Vec<(Reg, DType)> =
                            folds.iter().map(|fold| (fold.value, fold.accumulate)).collect();
                        if tiling.order == Order::Rows {
                            compiler.summed =
                                folds.iter().filter(|fold| sums_rows(fold)).map(|fold| fold.value).collect();
                        }
                        let (program, values) = compiler.block(block, inner_tile, Repeat::Inner, &wanted, &later);
                        let sums = |value: Slot| {
                            program
                                .body
                                .iter()
                                .any(|step| matches!(&step.action, Action::Fused(run) if run.sums(value)))
                        };
                        let steps = folds.iter().zip(accs).zip(values).map(|((fold, own), value)| {
                            let Accumulator { loops, acc, partial, index } = own;
                            let class = outer_tile.top();
                            let (from, slot) = match index {
                                Some(index) => (DType::I64, index),
                                None => (loops.accumulator, acc),
                            };
                            let (finish, result) = compiler.conversion(slot, class, from, fold.dtype);
                            compiler.define(fold.result, result.slot, class, fold.dtype);
                            carried.insert(result.slot);
                            let acc_size = Repr::of(loops.accumulator).size();
                            let index = index.map(|index| (index, at.clone()));
                            let summed = sums_rows(fold) && sums(value);
                            FoldStep { summed, loops, value, acc, partial, index, class, acc_size, finish }
                        });
                        let steps = steps.collect();
                        Prepared::Fold(program, steps)
                    }
                    Stage::Each(block) => {
                        Prepared::Each(compiler.block(block, inner_tile, Repeat::Inner, &[], &later).0)
                    }
                }
            })
            .collect();
        let outside = kernel.stages.iter().flat_map(|stage| match stage {
            Stage::Point(block) => {
                block.instructions.iter().map(|instruction| instruction.result).collect::<Vec<Reg>>()
            }
            Stage::Fold { .. } | Stage::Each(_) => Vec::new(),
        });
        carried.extend(outside.filter_map(|reg| compiler.known(reg)).map(|value| value.slot));
        // What is kept of a row fills the first-level cache: then tiles stay short.
        let keeps = compiler.slots.iter().any(|slot| slot.span == Span::Walk);
        let lent = if keeps { HashSet::new() } else { lent(&stages, &tiling) };
        tiling.fit(&compiler.slots, &lent, seldom, &space);
        let (outer, inner) = tiling.walks(&space);
        let fuser = compiler.fuser.take();
        let code = match fuser {
            Some(fuser) if fuser.is_used() => Some(fuser.finish()?),
            Some(_) | None => None,
        };
        let layout = Layout::new(&compiler.slots, &compiler.constants, tiling.rows, tiling.lanes(), inner.len());
        let layout = layout.with_code(code);
        let carried = carried.into_iter().collect();
        // Where little is done but read, or all of it in one loop, the hardware looks ahead well enough, and to ask on top of that costs much.
        let bodies: usize = stages.iter().map(|stage| stage.program().body.len()).sum();
        let turns = stages.iter().flat_map(|stage| &stage.program().body).any(Step::works_on_strips);
        let looks = layout.looks_ahead();
        let runs = if (bodies > 3 && turns) || looks {
            Runs::of(kernel, &reuse.stages, &space, &tiling)
        } else {
            Runs::default()
        };
        let steps = stages.iter().map(|stage| match stage {
            Prepared::Point(program) => program.body.len(),
            Prepared::Fold(program, _) | Prepared::Each(program) => program.body.len() * inner.len(),
        });
        let steps = steps.sum();
        let tile_cost = tiling.tile_cost(&space);
        // Only extents decide: fewer outer tiles than this do not keep a machine busy.
        let pieces = if outer.len() < MANY && tile_cost > 4.0 * GRAIN && space.inner_points() > 1 {
            ((tile_cost / GRAIN) as usize).clamp(1, PIECES).min(inner.len())
        } else {
            1
        };
        Some(Loops { isa, space, tiling, outer, inner, stages, layout, carried, runs, steps, tile_cost, pieces })
    }

    /// Runs the kernel.
    ///
    /// # Safety
    ///
    /// The buffers are those of the kernel, in order, and large enough; written ones are nobody else's meanwhile.
    pub(super) unsafe fn run(&self, buffers: &[RawBuffer]) {
        let mut works: SmallVec<[Work; 16]> = SmallVec::new();
        self.share(self.cost(), |work| works.push(work));
        if let [work] = works.as_slice() {
            // SAFETY: the caller's.
            return unsafe { self.run_work(buffers, work) };
        }
        crew::share(works.len(), |index| {
            // SAFETY: the caller's; works are disjoint sets of outer points.
            unsafe { self.run_work(buffers, &works[index]) };
        });
    }

    /// Nanoseconds of a run on one thread, estimated.
    pub(super) fn cost(&self) -> f64 {
        if self.space.empty_outer { 0.0 } else { self.tile_cost * self.outer.len() as f64 }
    }

    /// Whether work of so many nanoseconds is worth another thread.
    pub(super) fn is_parallel(cost: f64) -> bool {
        cost >= PARALLEL && rayon::current_num_threads() > 1
    }

    /// Cuts a run into works for threads, where all there is to do beside takes `total` nanoseconds with it.
    pub(super) fn share(&self, total: f64, mut take: impl FnMut(Work)) {
        let tiles = self.outer.len();
        if self.space.empty_outer {
        } else if self.pieces > 1 {
            take(Work::Pieces);
        } else if Loops::is_parallel(total) {
            let chunks = ((self.cost() / GRAIN) as usize).min(8 * rayon::current_num_threads()).clamp(1, tiles);
            (0..chunks).for_each(|chunk| take(Work::Tiles(chunk * tiles / chunks..(chunk + 1) * tiles / chunks)));
        } else {
            take(Work::Tiles(0..tiles));
        }
    }

    /// Runs a work. Safety: as for [`Loops::run`].
    pub(super) unsafe fn run_work(&self, buffers: &[RawBuffer], work: &Work) {
        // SAFETY: the caller's.
        unsafe {
            match work {
                Work::Pieces => with_frame(&self.layout, self.isa, buffers, |frame| self.run_pieces(frame)),
                Work::Tiles(tiles) => self.run_tiles(buffers, tiles.clone()),
            }
        }
    }

    /// Runs one part on the calling thread. Safety: as for [`Loops::run`].
    pub(super) unsafe fn run_part(&self, buffers: &[RawBuffer], part: usize) {
        let tiles = self.outer.len() / self.space.num_parts().max(1);
        if !self.space.empty_outer {
            // SAFETY: the caller's. The axes of parts are walked slowest, point by point.
            unsafe { self.run_tiles(buffers, part * tiles..(part + 1) * tiles) };
        }
    }

    unsafe fn run_tiles(&self, buffers: &[RawBuffer], tiles: Range<usize>) {
        with_frame(&self.layout, self.isa, buffers, |frame| {
            let mut point: Point = Point::from_elem(0, self.space.extents.len());
            self.outer.seek(tiles.start, &mut point);
            let last = tiles.end - 1;
            for index in tiles {
                let tile = self.tiling.tile(&self.space, &point);
                if !self.runs.is_empty() && index != last {
                    let mut next = point.clone();
                    self.outer.advance(&mut next);
                    let tile = self.tiling.tile(&self.space, &next);
                    let lanes = tile.rows * tile.columns * self.space.inner_points();
                    frame.ahead.plan(&self.runs, buffers, &next, lanes, self.steps);
                    if self.layout.looks_ahead() {
                        frame.ahead.leave();
                    }
                }
                for stage in &self.stages {
                    // SAFETY: the caller's.
                    unsafe {
                        match stage {
                            Prepared::Point(program) => program.run(frame, &point, tile),
                            Prepared::Fold(program, folds) => {
                                self.fold(frame, &mut point, tile, program, folds, 0..self.inner.len());
                                finish_folds(folds, frame, &point, tile);
                            }
                            Prepared::Each(program) => {
                                self.each(frame, &mut point, tile, program, 0..self.inner.len());
                            }
                        }
                    }
                }
                self.outer.advance(&mut point);
            }
        });
    }

    /// Combines part of the inner walk into fresh accumulators.
    unsafe fn fold(
        &self,
        frame: &mut Frame<'_>,
        point: &mut Point,
        tile: Tile,
        program: &Program,
        folds: &[FoldStep],
        steps: Range<usize>,
    ) {
        if !self.space.empty_inner {
            self.inner.seek(steps.start, point);
        }
        let full = self.tiling.full_tile(tile);
        // SAFETY: the caller's; accumulators and values are slots of their own.
        unsafe {
            for fold in folds {
                fold.start(frame, point, full);
            }
            if self.space.empty_inner {
                return;
            }
            program.prepare(frame, point, full);
            for step in steps.clone() {
                let tile = self.tiling.inner_tile(&self.space, point, tile);
                self.layout.turn_to(frame, step);
                program.run(frame, point, tile);
                let flush = step % PARTIAL == PARTIAL - 1 || step + 1 == steps.end;
                for fold in folds {
                    fold.combine(frame, point, tile, self.tiling.order);
                    if flush {
                        fold.flush(frame, full);
                    }
                }
                self.inner.advance(point);
            }
            if self.tiling.order == Order::Columns {
                let rows = self.space.extents[self.space.extents.len() - 1].min(full.rows);
                folds.iter().for_each(|fold| fold.join(frame, Tile { rows, ..full }));
            }
        }
        self.inner.seek(0, point);
    }

    /// Runs part of the inner walk of a stage that stores.
    unsafe fn each(
        &self,
        frame: &mut Frame<'_>,
        point: &mut Point,
        tile: Tile,
        program: &Program,
        steps: Range<usize>,
    ) {
        if self.space.empty_inner {
            return;
        }
        self.inner.seek(steps.start, point);
        // SAFETY: the caller's.
        unsafe {
            program.prepare(frame, point, self.tiling.full_tile(tile));
            for step in steps {
                let tile = self.tiling.inner_tile(&self.space, point, tile);
                self.layout.turn_to(frame, step);
                program.run(frame, point, tile);
                self.inner.advance(point);
            }
        }
        self.inner.seek(0, point);
    }

    /// Runs tile after tile, the pieces of each inner walk side by side.
    unsafe fn run_pieces(&self, frame: &mut Frame<'_>) {
        let mut point: Point = Point::from_elem(0, self.space.extents.len());
        let steps = self.inner.len();
        let piece = |index: usize| index * steps / self.pieces..(index + 1) * steps / self.pieces;
        for _ in 0..self.outer.len() {
            let tile = self.tiling.tile(&self.space, &point);
            for stage in &self.stages {
                match stage {
                    // SAFETY: the caller's.
                    Prepared::Point(program) => unsafe { program.run(frame, &point, tile) },
                    Prepared::Fold(program, folds) => {
                        let done = self.in_pieces(frame, &point, |frame, point, index| {
                            // SAFETY: the caller's; each piece has a frame of its own.
                            unsafe { self.fold(frame, point, tile, program, folds, piece(index)) };
                            folds.iter().map(|fold| fold.save(frame, tile)).collect::<Vec<_>>()
                        });
                        for (index, fold) in folds.iter().enumerate() {
                            for (number, accs) in done.iter().enumerate() {
                                // SAFETY: accumulators of the same fold and tile.
                                unsafe { fold.merge(frame, tile, &accs[index], number == 0) };
                            }
                        }
                        // SAFETY: the caller's.
                        unsafe { finish_folds(folds, frame, &point, tile) };
                    }
                    Prepared::Each(program) => {
                        self.in_pieces(frame, &point, |frame, point, index| {
                            // SAFETY: the caller's; pieces store different elements.
                            unsafe { self.each(frame, point, tile, program, piece(index)) };
                        });
                    }
                }
            }
            self.outer.advance(&mut point);
        }
    }

    /// Runs every piece on a frame of its own that sees what earlier stages left in `frame`.
    fn in_pieces<R: Send + Sync>(
        &self,
        frame: &Frame<'_>,
        point: &Point,
        run: impl Fn(&mut Frame<'_>, &mut Point, usize) -> R + Sync,
    ) -> Vec<R> {
        let carried = Shared(self.carried.iter().map(|&slot| (slot, frame.at[slot])).collect());
        let (carried, buffers) = (&carried, frame.buffers);
        crew::gather(self.pieces, |index| {
            with_frame(&self.layout, self.isa, buffers, |own| {
                for &(slot, at) in &carried.get().0 {
                    own.at[slot] = at;
                }
                run(own, &mut point.clone(), index)
            })
        })
    }
}

/// Lanes that several threads read while nobody writes them.
struct Shared(Vec<(Slot, *mut u8)>);

// SAFETY: carried slots are written by the stage that defines them, on the thread that owns the frame, before pieces start.
unsafe impl Sync for Shared {}

impl Shared {
    fn get(&self) -> &Shared {
        self
    }
}

/// An accumulator's lanes, kept until all pieces are done.
struct Saved {
    values: Vec<u64>,
    indices: Vec<i64>,
}

impl FoldStep {
    /// Lanes of the accumulators during a walk whose largest tile this is.
    fn lanes(&self, full: Tile, order: Order) -> usize {
        match order {
            Order::Rows => full.lanes(self.class),
            Order::Lanes | Order::Columns => full.rows * full.columns,
        }
    }

    unsafe fn start(&self, frame: &mut Frame<'_>, point: &[i64], full: Tile) {
        // In the rows' order there are fewer; the slots are as large as the tile in all others.
        let blocks = full.lanes(self.class).div_ceil(BLOCK);
        // SAFETY: accumulator and index have these lanes, in whole blocks.
        unsafe {
            frame.at[self.acc] = frame.home[self.acc];
            let start = lane_bits(self.loops.start);
            match self.class {
                Class::Uniform => set(frame.home[self.acc], self.acc_size, start),
                Class::Row | Class::Full => fill(frame.home[self.acc], self.acc_size, start, blocks),
            }
            if let Some((_, partial)) = self.partial {
                fill(frame.home[partial], Repr::F32.size(), 0, blocks);
            }
            if let Some((index, at)) = &self.index {
                frame.at[*index] = frame.home[*index];
                fill(frame.home[*index], 8, at.map.at(point) as u64, blocks);
            }
        }
    }

    unsafe fn combine(&self, frame: &mut Frame<'_>, point: &[i64], tile: Tile, order: Order) {
        let (value, acc) = (frame.at[self.value], frame.home[self.acc]);
        if self.summed && !frame.sums.is_empty() {
            // SAFETY: there is an accumulator of `f64` for each row.
            let accs = unsafe { std::slice::from_raw_parts_mut(acc.cast::<f64>(), tile.rows) };
            let parts = frame.sums.chunks_exact(row_parts(tile.columns).count());
            for (acc, parts) in accs.iter_mut().zip(parts) {
                parts.iter().for_each(|&sum| *acc += f64::from(sum));
            }
            return frame.sums.clear();
        }
        let (indices, first, step) = match &self.index {
            Some((slot, at)) => (frame.home[*slot].cast::<i64>(), at.map.at(point), at.column),
            None => (std::ptr::null_mut(), 0, 0),
        };
        // SAFETY: values are of the tile's top class; so are accumulators and indices, or they have a lane per row.
        unsafe {
            match (order, self.partial) {
                (Order::Rows, _) => (self.loops.rows)(value, tile.rows, tile.columns, acc, indices, first, step),
                (Order::Lanes | Order::Columns, Some((add, partial))) => {
                    add(value, self.lanes(tile, order), frame.home[partial], indices, first);
                }
                (Order::Lanes | Order::Columns, None) => {
                    (self.loops.lanes)(value, self.lanes(tile, order), acc, indices, first);
                }
            }
        }
    }

    /// Adds partial sums to the accumulators.
    unsafe fn flush(&self, frame: &mut Frame<'_>, full: Tile) {
        if let Some((_, slot)) = self.partial {
            let (partial, lanes) = (frame.home[slot], full.rows * full.columns);
            // SAFETY: both have a lane for every lane of the tile.
            unsafe {
                (self.loops.lanes)(partial, lanes, frame.home[self.acc], std::ptr::null_mut(), 0);
                fill(partial, Repr::F32.size(), 0, lanes.div_ceil(BLOCK));
            }
        }
    }

    /// Joins what was accumulated in the rows of a tile into its first row.
    unsafe fn join(&self, frame: &mut Frame<'_>, full: Tile) {
        let acc = frame.home[self.acc];
        for row in 1..full.rows {
            // SAFETY: the accumulators have all rows; kernels walked in this order have no indices.
            unsafe {
                let later = acc.add(row * full.columns * self.acc_size);
                (self.loops.merge)(full.columns, acc, std::ptr::null_mut(), later, std::ptr::null());
            }
        }
    }

    fn save(&self, frame: &Frame<'_>, tile: Tile) -> Saved {
        let count = tile.lanes(self.class);
        let mut values = vec![0u64; (count * self.acc_size).div_ceil(8)];
        // SAFETY: the accumulator has that many lanes.
        unsafe {
            let bytes = count * self.acc_size;
            std::ptr::copy_nonoverlapping(frame.home[self.acc], values.as_mut_ptr().cast::<u8>(), bytes);
        }
        let indices = self.index.as_ref().map_or(Vec::new(), |&(slot, _)| {
            // SAFETY: the index slot has that many lanes.
            unsafe { std::slice::from_raw_parts(frame.home[slot].cast::<i64>(), count) }.to_vec()
        });
        Saved { values, indices }
    }

    /// Takes over the first piece's accumulators, then merges the others' into them.
    unsafe fn merge(&self, frame: &mut Frame<'_>, tile: Tile, saved: &Saved, first: bool) {
        let count = tile.lanes(self.class);
        let acc = frame.home[self.acc];
        frame.at[self.acc] = acc;
        let indices = match &self.index {
            Some((slot, _)) => {
                frame.at[*slot] = frame.home[*slot];
                frame.home[*slot].cast::<i64>()
            }
            None => std::ptr::null_mut(),
        };
        let (values, later) = (saved.values.as_ptr().cast::<u8>(), saved.indices.as_ptr());
        // SAFETY: both sides have this many lanes; indices are read only where the fold has them.
        unsafe {
            if first {
                std::ptr::copy_nonoverlapping(values, acc, count * self.acc_size);
                std::ptr::copy_nonoverlapping(later, indices, saved.indices.len());
            } else {
                (self.loops.merge)(count, acc, indices, values, later);
            }
        }
    }
}

/// Turns accumulators into results.
unsafe fn finish_folds(folds: &[FoldStep], frame: &mut Frame<'_>, point: &[i64], tile: Tile) {
    for fold in folds {
        let (slot, size) = match &fold.index {
            Some((index, _)) => (*index, 8),
            None => (fold.acc, fold.acc_size),
        };
        // SAFETY: the caller's.
        unsafe {
            if fold.class == Class::Uniform {
                let bits = match size {
                    1 => u64::from(*frame.home[slot]),
                    4 => u64::from(*frame.home[slot].cast::<u32>()),
                    _ => *frame.home[slot].cast::<u64>(),
                };
                fill(frame.home[slot], size, bits, 1);
            }
            fold.finish.run(frame, point, tile);
        }
    }
}

/// Slots whose lanes are read and written where they lie in memory, so that their strips are hardly touched.
fn lent(stages: &[Prepared], tiling: &Tiling) -> HashSet<Slot> {
    let (mut lent, mut used) = (HashSet::new(), HashSet::new());
    for step in stages.iter().flat_map(|stage| stage.program().before.iter().chain(&stage.program().body)) {
        match &step.action {
            Action::Load(load) if load.lies_in_lanes(|at| tiling.is_dense(at)) => _ = lent.insert(step.result),
            Action::Fused(run) => {
                run.made().for_each(|(slot, direct)| _ = if direct { lent.insert(slot) } else { used.insert(slot) })
            }
            Action::Work(_) | Action::Random(..) if step.direct.is_some() => _ = lent.insert(step.result),
            Action::Load(_)
            | Action::Work(_)
            | Action::Random(..)
            | Action::Index(..)
            | Action::Within(_)
            | Action::Expand(..) => {
                used.insert(step.result);
            }
        }
    }
    lent.retain(|slot| !used.contains(slot));
    lent
}

/// Whether a fold adds up rows of `f32`.
fn sums_rows(fold: &Fold) -> bool {
    fold.kind == ReduceKind::Sum && fold.accumulate == DType::F32
}

/// What a fold accumulates in.
struct Accumulator {
    loops: FoldLoops,
    acc: Slot,
    partial: Option<(LanesLoop, Slot)>,
    index: Option<Slot>,
}

fn accumulator(compiler: &mut Compiler<'_>, fold: &Fold, tiling: &Tiling, isa: Isa) -> Accumulator {
    let loops = super::lanes::fold_loops(fold.kind, fold.accumulate, isa);
    // Rows are reduced whole, other orders have an accumulator in every lane of the tile.
    let class = match tiling.order {
        Order::Rows => tiling.axes().0.top(),
        Order::Lanes | Order::Columns => tiling.axes().1.top(),
    };
    let acc = compiler.take(class, Repr::of(loops.accumulator).size());
    let index = fold.kind.is_arg().then(|| compiler.take(class, Repr::I64.size()));
    let partial = match tiling.order {
        Order::Rows => None,
        Order::Lanes | Order::Columns => loops.partial.map(|run| (run, compiler.take(class, Repr::F32.size()))),
    };
    Accumulator { loops, acc, partial, index }
}

/// The row-major index in the inner space.
pub(super) fn row_major(outer: &[usize], inner: &[usize]) -> Affine {
    let mut strides = vec![0; outer.len() + inner.len()];
    let mut step = 1;
    for (axis, &extent) in inner.iter().enumerate().rev() {
        strides[outer.len() + axis] = step;
        step *= extent as i64;
    }
    Affine { offset: 0, strides: strides.into_iter().collect() }
}

/// The registers that stages read.
fn read_by(stages: &[Stage]) -> HashSet<Reg> {
    let mut read = HashSet::new();
    for stage in stages {
        let (block, folds) = match stage {
            Stage::Point(block) | Stage::Each(block) => (block, &[][..]),
            Stage::Fold { block, folds } => (block, &folds[..]),
        };
        read.extend(block.instructions.iter().flat_map(|instruction| operands(&instruction.operation)));
        read.extend(block.stores.iter().map(|store| store.value));
        read.extend(folds.iter().map(|fold| fold.value));
    }
    read
}
