//! Maps, reductions and rows: stages in order at every outer point.
//!
//! `Points`: a thread has outer points of its own and walks their inner space alone. `Team`: threads of a block walk the inner space of one outer
//! point side by side, and combine what they have folded through warps and shared memory; where each has few inner points the row is read once
//! and stays in registers. `Split`: a first text folds parts of the inner space into scratch memory, a second one combines them and goes on.

use kiln_ir::cuda::{CudaProgram, CudaStep};
use kiln_ir::gpu::{GpuMemory, LoopSchedule};
use kiln_ir::kernel::{Access, Block, Buffer, BufferIndex, Fold, LoopKernel, Operation, Stage};
use kiln_ir::{Code, Diagnostic};

use super::block::{Scope, block, stores};
use super::builder::{Builder, IndexWidth, Pointer, Term, Ty};
use super::fold::Rule;
use super::memory::Bound;
use super::space::{Point, coordinates, sum};
use super::team::Team;
use super::types::{Number, in_memory};
use super::walk::{Accumulator, Walk};

/// The program of a loop kernel.
///
/// Errors: K0603 where a limit is exceeded, K0901 where the schedule is none of this kernel's.
pub(super) fn program(kernel: &LoopKernel, schedule: &LoopSchedule, entry: &str) -> Result<CudaProgram, Diagnostic> {
    let mut program = CudaProgram { steps: Vec::new(), scratch: Vec::new() };
    if kernel.outer.contains(&0) {
        return Ok(program);
    }
    let mut text = |schedule: &LoopSchedule, mode: &Mode, entry: &str| -> Result<(), Diagnostic> {
        let mut b = Builder::new(entry, threads(schedule)?, index_width(kernel));
        let bounds = bind(&mut b, &kernel.buffers);
        let shape = Shape::of(kernel, schedule, mode)?;
        let group = b.expression(Ty::Index, "blockIdx.x", &[]);
        body(&mut b, &bounds, kernel, schedule, mode, &shape, &group)?;
        program.steps.push(CudaStep::Text(b.finish([blocks(shape.groups)?, 1, 1])?));
        Ok(())
    };
    match schedule {
        LoopSchedule::Points { .. } | LoopSchedule::Team { .. } => text(schedule, &Mode::Whole, entry)?,
        LoopSchedule::Split { parts, part, whole } => {
            let split = split(kernel, *parts)?;
            text(part, &Mode::Part(split.clone()), &format!("{entry}_part"))?;
            text(whole, &Mode::Combine(split.clone()), entry)?;
            let points: usize = kernel.outer.iter().product();
            let bytes = |ty: &Ty| points * split.parts * in_scratch(*ty).size();
            program.scratch = split.types.iter().flatten().map(bytes).collect();
        }
    }
    Ok(program)
}

/// The parameters of a kernel's buffers, in their order.
pub(super) fn bind(b: &mut Builder, buffers: &[Buffer]) -> Vec<Bound> {
    let one = |(index, buffer): (usize, &Buffer)| {
        let memory = GpuMemory::Buffer(BufferIndex(index as u32));
        Bound { pointer: b.argument(memory, in_memory(buffer.dtype)), dtype: buffer.dtype }
    };
    buffers.iter().enumerate().map(one).collect()
}

/// Blocks along the first axis of a grid. K0603 where they are too many.
pub(super) fn blocks(groups: u64) -> Result<u32, Diagnostic> {
    i32::try_from(groups).map(|groups| groups as u32).map_err(|_| {
        Diagnostic::new(Code::K0603, format!("a kernel of {groups} blocks is too large for this GPU"))
            .label("blocks are counted in 31 bits")
    })
}

/// Whether element indices of these buffers and numbers of these points need 64 bits.
pub(super) fn width_for(buffers: &[Buffer], points: &[usize]) -> IndexWidth {
    let most = i32::MAX as usize;
    let lens = buffers.iter().map(|buffer| buffer.len);
    let points = points.iter().try_fold(1usize, |all, extent| all.checked_mul(*extent)).unwrap_or(usize::MAX);
    if lens.chain([points]).all(|number| number <= most) { IndexWidth::Narrow } else { IndexWidth::Wide }
}

/// As [`width_for`], of a loop kernel.
pub(super) fn index_width(kernel: &LoopKernel) -> IndexWidth {
    let points: Vec<usize> = kernel.outer.iter().chain(&kernel.inner).copied().collect();
    width_for(&kernel.buffers, &points)
}

/// Threads of a block. K0901 for a schedule of two texts.
pub(super) fn threads(schedule: &LoopSchedule) -> Result<u32, Diagnostic> {
    match schedule {
        LoopSchedule::Points { workgroup, .. } => Ok(*workgroup),
        LoopSchedule::Team { lanes, teams, .. } => Ok(lanes * teams),
        LoopSchedule::Split { .. } => {
            Err(Diagnostic::new(Code::K0901, "internal: parts of a split kernel are not split again"))
        }
    }
}

/// What of a kernel a text computes.
#[derive(Clone, Debug)]
pub(super) enum Mode {
    /// All of it.
    Whole,
    /// Its fold, over parts of the inner space, into scratch memory.
    Part(SplitFold),
    /// What follows its fold, whose parts are in scratch memory.
    Combine(SplitFold),
}

/// A fold in parts. Scratch memory holds each number part by part, in each the outer points.
#[derive(Clone, Debug)]
pub(super) struct SplitFold {
    parts: usize,
    /// How the numbers of each fold are held.
    types: Vec<Vec<Ty>>,
}

impl SplitFold {
    /// The scratch memory of a fold's number.
    fn memory(&self, b: &mut Builder, fold: usize, number: usize) -> Pointer {
        let before: usize = self.types[..fold].iter().map(Vec::len).sum();
        b.argument(GpuMemory::Scratch((before + number) as u32), in_scratch(self.types[fold][number]))
    }
}

fn in_scratch(ty: Ty) -> Ty {
    if ty == Ty::Bool { Ty::U8 } else { ty }
}

/// The kernel's only fold. K0901 where it has not just one.
fn split(kernel: &LoopKernel, parts: u32) -> Result<SplitFold, Diagnostic> {
    let mut stages = kernel.stages.iter().filter_map(|stage| match stage {
        Stage::Fold { folds, .. } => Some(folds),
        Stage::Point(_) | Stage::Each(_) => None,
    });
    let (Some(folds), None, 2..) = (stages.next(), stages.next(), parts) else {
        return Err(Diagnostic::new(Code::K0901, "internal: only a kernel with one fold stage is split"));
    };
    Ok(SplitFold { parts: parts as usize, types: folds.iter().map(|fold| Rule::of(fold).types).collect() })
}

/// How the threads of a body are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Outer points that a thread takes at once.
    width: usize,
    /// How many of those there are, in all parts together.
    work: usize,
    /// How many a block takes.
    per_group: usize,
    /// Blocks.
    pub(super) groups: u64,
}

impl Shape {
    /// K0901 where points do not come in the schedule's width.
    pub(super) fn of(kernel: &LoopKernel, schedule: &LoopSchedule, mode: &Mode) -> Result<Shape, Diagnostic> {
        let points: usize = kernel.outer.iter().product();
        let parts = if let Mode::Part(split) = mode { split.parts } else { 1 };
        let (width, per_group) = match schedule {
            LoopSchedule::Points { workgroup, width } => (*width as usize, *workgroup as usize),
            LoopSchedule::Team { teams, .. } => (1, *teams as usize),
            LoopSchedule::Split { .. } => (1, 1),
        };
        if width > 1 && !kernel.outer.last().is_some_and(|last| last.is_multiple_of(width)) {
            return Err(Diagnostic::new(Code::K0901, format!("internal: points are not taken {width} at a time")));
        }
        let work = points / width * parts;
        Ok(Shape { width, work, per_group, groups: work.div_ceil(per_group.max(1)) as u64 })
    }
}

/// The statements of a kernel in the block number `group` of those that are its own.
pub(super) fn body(
    b: &mut Builder,
    bounds: &[Bound],
    kernel: &LoopKernel,
    schedule: &LoopSchedule,
    mode: &Mode,
    shape: &Shape,
    group: &Term,
) -> Result<(), Diagnostic> {
    let Shape { width, work, per_group, groups } = *shape;
    let points: usize = kernel.outer.iter().product();
    let exact = groups as usize * per_group == work;
    let thread = b.expression(Ty::Index, "threadIdx.x", &[]);
    let mut live = None;
    let mut guarded = false;
    // `at` counts outer points (by `width`), part by part.
    let (team, at) = match schedule {
        LoopSchedule::Team { lanes, width, .. } => {
            let team = Team::new(b, &thread, *lanes, *width);
            let number = sum(b, 0, &[(group.clone(), per_group as i64), (team.team.clone(), 1)]);
            let at = if exact {
                number
            } else {
                // The last block has teams without a point: they compute another's and store nothing, as all must meet at barriers.
                live = Some(b.expression(Ty::Bool, &format!("$0 < {work}"), std::slice::from_ref(&number)));
                b.expression(Ty::Index, &format!("$0 < {work} ? $0 : {}", work - 1), &[number])
            };
            (Some(team), at)
        }
        LoopSchedule::Points { .. } | LoopSchedule::Split { .. } => {
            let at = sum(b, 0, &[(group.clone(), per_group as i64), (thread, 1)]);
            if !exact {
                let inside = b.expression(Ty::Bool, &format!("$0 < {work}"), std::slice::from_ref(&at));
                b.open_if(&inside);
                guarded = true;
            }
            (None, at)
        }
    };
    let (part, at) = if matches!(mode, Mode::Part(_)) {
        let terms = std::slice::from_ref(&at);
        let each = points / width;
        (
            b.expression(Ty::Index, &format!("$0 / {each}"), terms),
            b.expression(Ty::Index, &format!("$0 % {each}"), terms),
        )
    } else {
        (Term::constant("0"), at)
    };
    let outer = coordinates(b, &at, &kernel.outer, width);
    let last = kernel.outer.len().saturating_sub(1);
    let point = Point::new(outer, kernel.outer.to_vec()).with_lanes(last, width as u32);
    let walk = choose_walk(b, kernel, mode, team.as_ref(), &part);
    let mut loops =
        Loops { kernel, bounds, mode, point, points, width, team, live, scope: Scope::default(), walk, part, at };
    loops.stages(b)?;
    if guarded {
        b.close();
    }
    Ok(())
}

/// How the inner space is walked.
fn choose_walk(b: &mut Builder, kernel: &LoopKernel, mode: &Mode, team: Option<&Team>, part: &Term) -> Walk {
    let inner: usize = kernel.inner.iter().product();
    match (team, mode) {
        (team, Mode::Part(split)) => {
            let width = team.map_or(1, |team| team.width as usize);
            let lanes = team.map_or(1, |team| team.lanes as usize);
            let chunk = inner.div_ceil(split.parts).next_multiple_of(width);
            let begin = sum(b, 0, &[(part.clone(), chunk as i64)]);
            let template = format!("$0 + {chunk} < {inner} ? $0 + {chunk} : {inner}");
            let end = b.expression(Ty::Index, &template, std::slice::from_ref(&begin));
            let first = match team {
                None => begin,
                Some(team) => sum(b, 0, &[(begin, 1), (team.lane.clone(), width as i64)]),
            };
            let step = lanes * width;
            Walk::Flat { first, end, step, width: width as u32, steps: chunk.div_ceil(step) }
        }
        (None, Mode::Whole | Mode::Combine(_)) => Walk::Nest,
        (Some(team), Mode::Whole | Mode::Combine(_)) => Walk::of_team(b, team, &kernel.inner),
    }
}

struct Loops<'k> {
    kernel: &'k LoopKernel,
    bounds: &'k [Bound],
    mode: &'k Mode,
    /// The outer point.
    point: Point,
    points: usize,
    width: usize,
    team: Option<Team>,
    /// Whether this team has a point of its own, where it may not.
    live: Option<Term>,
    scope: Scope,
    walk: Walk,
    part: Term,
    at: Term,
}

impl Loops<'_> {
    fn stages(&mut self, b: &mut Builder) -> Result<(), Diagnostic> {
        let mut read_by_points: Vec<BufferIndex> = Vec::new();
        for stage in &self.kernel.stages {
            match stage {
                Stage::Point(content) => {
                    block(b, self.bounds, &mut self.scope, content, &self.point)?;
                    read_by_points.extend(loaded(content));
                    // The second text computes these again, and stores them.
                    if !content.stores.is_empty() && !matches!(self.mode, Mode::Part(_)) {
                        self.meet_before_stores(b, content, &read_by_points);
                        self.point_stores(b, content)?;
                    }
                }
                // The second text does this one.
                Stage::Each(_) if matches!(self.mode, Mode::Part(_)) => {}
                Stage::Each(content) => {
                    self.meet_before_stores(b, content, &read_by_points);
                    self.each(b, content)?;
                }
                Stage::Fold { block: content, folds } => {
                    let lanes = match self.mode {
                        Mode::Combine(split) => self.combine(b, split, folds),
                        Mode::Whole | Mode::Part(_) => self.fold(b, content, folds)?,
                    };
                    if let Mode::Part(split) = self.mode {
                        self.store_parts(b, split, &lanes);
                        return Ok(());
                    }
                    for (fold, lanes) in folds.iter().zip(lanes) {
                        let rule = Rule::of(fold);
                        let lanes = lanes.iter().map(|numbers| rule.result(b, numbers, fold.dtype)).collect();
                        self.scope.define(fold.result, Number { lanes, dtype: fold.dtype });
                    }
                }
            }
        }
        Ok(())
    }

    /// A barrier where a thread may store what another of its team has yet to load: all of them load what is loaded once a point.
    fn meet_before_stores(&self, b: &mut Builder, content: &Block, read: &[BufferIndex]) {
        let updated = |buffer: BufferIndex| {
            self.kernel.buffers[buffer.0 as usize].access == Access::ReadWrite && read.contains(&buffer)
        };
        if self.team.is_some() && content.stores.iter().any(|store| updated(store.buffer)) {
            b.barrier();
        }
    }

    /// Opens a branch for the lane that stores what a team has once.
    fn open_first(&self, b: &mut Builder) -> bool {
        let Some(team) = &self.team else { return false };
        let first = team.is_first(b);
        let guard = match &self.live {
            None => first,
            Some(live) => b.expression(Ty::Bool, "$0 && $1", &[first, live.clone()]),
        };
        b.open_if(&guard);
        true
    }

    fn point_stores(&self, b: &mut Builder, content: &Block) -> Result<(), Diagnostic> {
        let guarded = self.open_first(b);
        stores(b, self.bounds, &self.scope, content, &self.point)?;
        if guarded {
            b.close();
        }
        Ok(())
    }

    fn each(&mut self, b: &mut Builder, content: &Block) -> Result<(), Diagnostic> {
        let (bounds, live) = (self.bounds, self.live.clone());
        self.walk.each(b, self.kernel, &self.point, &self.scope, &[], &mut |b, scope, at, _| {
            block(b, bounds, scope, content, &at.point)?;
            let guard = match (live.clone(), at.guard) {
                (Some(live), Some(guard)) => Some(b.expression(Ty::Bool, "$0 && $1", &[live, guard])),
                (live, guard) => live.or(guard),
            };
            if let Some(guard) = &guard {
                b.open_if(guard);
            }
            stores(b, bounds, scope, content, &at.point)?;
            if guard.is_some() {
                b.close();
            }
            Ok(())
        })
    }

    /// The fold of a stage: for each fold, the numbers of each outer neighbour.
    fn fold(&mut self, b: &mut Builder, content: &Block, folds: &[Fold]) -> Result<Vec<Vec<Vec<Term>>>, Diagnostic> {
        let width = self.team.as_ref().map_or(self.width as u32, |team| team.width);
        let all = Accumulator::declare(b, folds, width);
        let (bounds, is_team) = (self.bounds, self.team.is_some());
        self.walk.each(b, self.kernel, &self.point, &self.scope, &all, &mut |b, scope, at, accumulators| {
            block(b, bounds, scope, content, &at.point)?;
            for (accumulator, fold) in accumulators.iter().zip(folds) {
                let value = scope.value(fold.value)?.clone();
                for (lane, numbers) in accumulator.lanes.iter().enumerate() {
                    // Neighbours of a team are inner points, those of a thread alone outer ones.
                    let index = if is_team { sum(b, lane as i64, &[(at.index.clone(), 1)]) } else { at.index.clone() };
                    let taken = accumulator.rule.taken(b, value.lane(lane), value.dtype, &index);
                    accumulator.rule.take(b, numbers, &taken, at.guard.as_ref());
                }
            }
            Ok(())
        })?;
        Ok(all
            .iter()
            .map(|accumulator| match &self.team {
                None => accumulator.lanes.iter().map(|numbers| accumulator.rule.values(b, numbers)).collect(),
                Some(team) => {
                    let numbers = accumulator.across(b);
                    vec![team.combine(b, &accumulator.rule, &numbers)]
                }
            })
            .collect())
    }

    /// The fold of the parts that the first text has left.
    fn combine(&mut self, b: &mut Builder, split: &SplitFold, folds: &[Fold]) -> Vec<Vec<Vec<Term>>> {
        let width = if self.team.is_some() { 1 } else { self.width as u32 };
        let all = Accumulator::declare(b, folds, width);
        let memory: Vec<Vec<Pointer>> = (0..folds.len())
            .map(|fold| (0..split.types[fold].len()).map(|number| split.memory(b, fold, number)).collect())
            .collect();
        let (first, step) = self.team.as_ref().map_or((Term::constant("0"), 1), |team| (team.lane.clone(), team.lanes));
        let ends = [split.parts.to_string(), step.to_string()].map(Term::constant);
        let part = b.open_loop(&first, &ends[0], &ends[1]);
        for (accumulator, memory) in all.iter().zip(&memory) {
            for (lane, numbers) in accumulator.lanes.iter().enumerate() {
                let at = self.part_index(b, &part, lane);
                let taken: Vec<Term> = memory
                    .iter()
                    .zip(&accumulator.rule.types)
                    .map(|(pointer, ty)| {
                        let loaded = b.load(*pointer, &at, 1).remove(0);
                        if *ty == Ty::Bool { b.expression(Ty::Bool, "$0 != 0", &[loaded]) } else { loaded }
                    })
                    .collect();
                accumulator.rule.take(b, numbers, &taken, None);
            }
        }
        b.close();
        all.iter()
            .map(|accumulator| match &self.team {
                None => accumulator.lanes.iter().map(|numbers| accumulator.rule.values(b, numbers)).collect(),
                Some(team) => vec![team.combine(b, &accumulator.rule, &accumulator.lanes[0])],
            })
            .collect()
    }

    /// Where the number of a part and a point is in scratch memory.
    fn part_index(&self, b: &mut Builder, part: &Term, lane: usize) -> Term {
        sum(b, lane as i64, &[(part.clone(), self.points as i64), (self.at.clone(), self.width as i64)])
    }

    fn store_parts(&self, b: &mut Builder, split: &SplitFold, all: &[Vec<Vec<Term>>]) {
        let guarded = self.open_first(b);
        for (fold, lanes) in all.iter().enumerate() {
            for (lane, numbers) in lanes.iter().enumerate() {
                let at = self.part_index(b, &self.part, lane);
                for (number, term) in numbers.iter().enumerate() {
                    let pointer = split.memory(b, fold, number);
                    let value = match split.types[fold][number] {
                        Ty::Bool => b.expression(Ty::U8, "uint8_t($0 ? 1 : 0)", std::slice::from_ref(term)),
                        _ => term.clone(),
                    };
                    b.store(pointer, &at, &[value]);
                }
            }
        }
        if guarded {
            b.close();
        }
    }
}

/// The buffers that a block loads from.
fn loaded(content: &Block) -> impl Iterator<Item = BufferIndex> {
    content.instructions.iter().filter_map(|instruction| match &instruction.operation {
        Operation::Load { buffer, .. } => Some(*buffer),
        Operation::Literal(_)
        | Operation::Index(_)
        | Operation::Within(_)
        | Operation::Scalar(..)
        | Operation::Fma(..)
        | Operation::Cast(_)
        | Operation::Bitcast(_)
        | Operation::Select { .. }
        | Operation::Random { .. } => None,
    })
}
