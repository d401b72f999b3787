//! Maps, reductions and rows: stages in order at every outer point.
//!
//! `Points`: an invocation has outer points of its own and walks their inner space alone. `Team`: invocations of a workgroup walk the inner
//! space of one outer point side by side, and combine what they have folded through subgroups and workgroup memory. Where each of them has few
//! inner points, the walk is written out, and what one stage has computed there a later one does not compute again: a row is read once.
//! `Split`: a first dispatch folds parts of the inner space into scratch memory, a second one combines them and goes on.

use kiln_ir::gpu::{GpuProgram, GpuTarget, LoopSchedule};
use kiln_ir::kernel::{Access, Block, BufferIndex, Fold, LoopKernel, Operation, Stage};
use kiln_ir::{Code, Diagnostic};

use super::block::{Scope, Value, block, stores};
use super::fold::Accumulator;
use super::module::{Module, Scratch, Subgroups};
use super::ranges::Ranges;
use super::space::{Lanes, Point};
use super::team::{self, Team};
use super::types::Held;
use super::walk::{self, Walk};
use super::writer::Writer;

/// The program of a loop kernel.
///
/// Errors: K0601 where the target lacks a dtype or an op, K0603 where a limit is exceeded.
pub(super) fn program(
    kernel: &LoopKernel,
    schedule: &LoopSchedule,
    entry: &str,
    target: &GpuTarget,
) -> Result<GpuProgram, Diagnostic> {
    let mut scratch = Scratch::default();
    let mut dispatches = Vec::new();
    if kernel.outer.contains(&0) {
        return Ok(GpuProgram { dispatches, scratch: scratch.bytes });
    }
    let mut dispatch = |schedule: &LoopSchedule, mode: &Mode, entry: String| -> Result<(), Diagnostic> {
        let mut module = Module::new(&kernel.buffers, target)?;
        module.plan_vectors(&planned(kernel, schedule, mode));
        let mut w = Writer::body();
        let shape = body(&mut module, &mut w, kernel, schedule, mode, "")?;
        dispatches.push(module.dispatch(&entry, shape.size, shape.groups, shape.subgroups, &w)?);
        Ok(())
    };
    match schedule {
        LoopSchedule::Points { .. } | LoopSchedule::Team { .. } => dispatch(schedule, &Mode::Whole, entry.to_owned())?,
        LoopSchedule::Split { parts, part, whole } => {
            let split = split(kernel, *parts, target, &mut scratch)?;
            dispatch(part, &Mode::Part(split.clone()), format!("{entry}_part"))?;
            dispatch(whole, &Mode::Combine(split), entry.to_owned())?;
        }
    }
    Ok(GpuProgram { dispatches, scratch: scratch.bytes })
}

/// How the invocations of a body are arranged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Invocations of a workgroup.
    pub(super) size: u32,
    /// Workgroups.
    pub(super) groups: u64,
    /// Whether the text uses what only subgroups have.
    pub(super) subgroups: Subgroups,
}

/// What of a kernel a dispatch computes.
#[derive(Clone, Debug)]
pub(super) enum Mode {
    /// All of it.
    Whole,
    /// Its fold, over parts of the inner space, into scratch memory.
    Part(SplitFold),
    /// What follows its fold, whose parts are in scratch memory.
    Combine(SplitFold),
}

/// A fold in parts.
#[derive(Clone, Debug)]
pub(super) struct SplitFold {
    parts: usize,
    /// For each fold, the scratch buffers of its accumulator's numbers: part by part, in each the outer points.
    numbers: Vec<Vec<(u32, Held)>>,
}

/// Scratch memory for a kernel's only fold. K0901 where it has not just one.
fn split(kernel: &LoopKernel, parts: u32, target: &GpuTarget, scratch: &mut Scratch) -> Result<SplitFold, Diagnostic> {
    let mut stages = kernel.stages.iter().filter_map(|stage| match stage {
        Stage::Fold { folds, .. } => Some(folds),
        Stage::Point(_) | Stage::Each(_) => None,
    });
    let (Some(folds), None, 2..) = (stages.next(), stages.next(), parts) else {
        return Err(Diagnostic::new(Code::K0901, "internal: only a kernel with one fold stage is split"));
    };
    let points: usize = kernel.outer.iter().product();
    let mut module = Module::new(&[], target)?;
    let mut numbers = Vec::new();
    for fold in folds {
        let accumulator = Accumulator::new(&mut module, fold, "f", 1)?;
        let buffers =
            accumulator.numbers.iter().map(|number| (scratch.add(number.held, points * parts as usize), number.held));
        numbers.push(buffers.collect());
    }
    Ok(SplitFold { parts: parts as usize, numbers })
}

/// The blocks that a dispatch prints, each with its neighbours.
pub(super) fn planned<'k>(
    kernel: &'k LoopKernel,
    schedule: &LoopSchedule,
    mode: &Mode,
) -> Vec<(&'k Block, Option<Lanes>)> {
    let outer = kernel.outer.len();
    let lanes = |axis: usize, width: u32| (width > 1).then_some(Lanes { axis, width });
    let (at_points, at_inner) = match schedule {
        LoopSchedule::Points { width, .. } => {
            let lanes = lanes(outer.saturating_sub(1), *width);
            (lanes, lanes)
        }
        LoopSchedule::Team { width, .. } => (None, lanes((outer + kernel.inner.len()).saturating_sub(1), *width)),
        LoopSchedule::Split { .. } => (None, None),
    };
    let mut blocks = Vec::new();
    for stage in &kernel.stages {
        match (stage, mode) {
            (Stage::Point(block), _) => blocks.push((block, at_points)),
            (Stage::Fold { .. }, Mode::Combine(_)) => {}
            (Stage::Fold { block, .. } | Stage::Each(block), _) => blocks.push((block, at_inner)),
        }
        if matches!((stage, mode), (Stage::Fold { .. }, Mode::Part(_))) {
            break;
        }
    }
    blocks
}

/// What is known of a kernel's registers.
fn ranges(kernel: &LoopKernel) -> Ranges {
    let whole: Vec<usize> = kernel.outer.iter().chain(&kernel.inner).copied().collect();
    let blocks: Vec<(&Block, &[usize], &[Fold])> = kernel
        .stages
        .iter()
        .map(|stage| match stage {
            Stage::Point(block) => (block, &kernel.outer[..], &[][..]),
            Stage::Each(block) => (block, &whole[..], &[][..]),
            Stage::Fold { block, folds } => (block, &whole[..], &folds[..]),
        })
        .collect();
    Ranges::of(blocks.into_iter(), &[])
}

/// The statements of a kernel, in the place where `group` and `local` are known. `prefix` stands before the names of workgroup memory.
pub(super) fn body(
    module: &mut Module<'_>,
    w: &mut Writer,
    kernel: &LoopKernel,
    schedule: &LoopSchedule,
    mode: &Mode,
    prefix: &str,
) -> Result<Shape, Diagnostic> {
    let points: usize = kernel.outer.iter().product();
    let parts = if let Mode::Part(split) = mode { split.parts } else { 1 };
    let (width, team, size, per_group) = match schedule {
        LoopSchedule::Points { workgroup, width } => (*width as usize, None, *workgroup, *workgroup as usize),
        LoopSchedule::Team { lanes, teams, width } => {
            let team = Team::new(*lanes, *teams, *width, prefix, module.target);
            (1, Some(team), lanes * teams, *teams as usize)
        }
        LoopSchedule::Split { .. } => {
            return Err(Diagnostic::new(Code::K0901, "internal: parts of a split kernel are not split again"));
        }
    };
    if width > 1 && !kernel.outer.last().is_some_and(|last| last.is_multiple_of(width)) {
        return Err(Diagnostic::new(Code::K0901, format!("internal: points are not taken {width} at a time")));
    }
    let work = points / width * parts;
    if work > i32::MAX as usize / 2 {
        return Err(Diagnostic::new(Code::K0603, format!("a kernel over {points} points is too large for this GPU"))
            .label("invocations are counted in 31 bits"));
    }
    let groups = work.div_ceil(per_group.max(1));
    let exact = groups * per_group == work;
    let subgroups = team.as_ref().map_or(Subgroups::Unused, Team::subgroups);
    // Who this is: `at` counts outer points (by `width`), part by part.
    let mut live = None;
    match &team {
        None => {
            w.line(format!("let at = group * {per_group} + local;"));
            if !exact {
                w.line(format!("if at >= {work} {{ return; }}"));
            }
        }
        Some(team) => {
            team.declare(w);
            let number = if team.teams == 1 { "group".to_owned() } else { format!("group * {per_group} + team") };
            if exact {
                w.line(format!("let at = {number};"));
            } else {
                // The last workgroup has teams without a point: they compute another's and store nothing, as all must meet at barriers.
                w.line(format!("let live = {number} < {work};"));
                w.line(format!("let at = min({number}, {});", work - 1));
                live = Some("live".to_owned());
            }
        }
    }
    let point_text = if parts > 1 {
        w.line(format!("let part = at / {};", points / width));
        w.line(format!("let point = at % {};", points / width));
        "point"
    } else {
        "at"
    };
    let outer = walk::coordinates(w, point_text, &kernel.outer, width, "i");
    let mut loops = Loops {
        kernel,
        mode,
        point: Point::new(outer, kernel.outer.to_vec()).with_lanes(kernel.outer.len().saturating_sub(1), width as u32),
        points,
        width,
        team,
        live,
        scope: Scope::new(ranges(kernel)),
        walk: Walk::Nest,
    };
    loops.walk = loops.choose_walk(w);
    loops.stages(module, w)?;
    Ok(Shape { size, groups: groups as u64, subgroups })
}

struct Loops<'k> {
    kernel: &'k LoopKernel,
    mode: &'k Mode,
    /// The outer point.
    point: Point,
    points: usize,
    width: usize,
    team: Option<Team>,
    /// Whether this team has a point of its own, where it may not.
    live: Option<String>,
    scope: Scope,
    walk: Walk,
}

impl Loops<'_> {
    /// How the inner space is walked.
    fn choose_walk(&mut self, w: &mut Writer) -> Walk {
        let inner: usize = self.kernel.inner.iter().product();
        match (&self.team, self.mode) {
            (team, Mode::Part(split)) => {
                let step = team.as_ref().map_or(1, |team| team.width as usize);
                let chunk = inner.div_ceil(split.parts).next_multiple_of(step);
                w.line(format!("let first = part * {chunk};"));
                w.line(format!("let end = min(first + {chunk}, {inner});"));
                match team {
                    None => Walk::flat("first", "end", 1, 1, chunk),
                    Some(team) => Walk::flat(
                        &if team.width == 1 {
                            "first + lane".to_owned()
                        } else {
                            format!("first + lane * {}", team.width)
                        },
                        "end",
                        team.lanes * team.width,
                        team.width,
                        chunk,
                    ),
                }
            }
            (None, Mode::Whole | Mode::Combine(_)) => Walk::Nest,
            (Some(team), Mode::Whole | Mode::Combine(_)) => team.walk(w, &self.kernel.inner, &self.scope),
        }
    }

    fn stages(&mut self, module: &mut Module<'_>, w: &mut Writer) -> Result<(), Diagnostic> {
        let mut read_by_points: Vec<BufferIndex> = Vec::new();
        for stage in &self.kernel.stages {
            match stage {
                Stage::Point(content) => {
                    block(module, &mut self.scope, w, content, &self.point)?;
                    read_by_points.extend(loaded(content));
                    // The second dispatch computes these again, and stores them.
                    if !content.stores.is_empty() && !matches!(self.mode, Mode::Part(_)) {
                        self.meet_before_stores(w, content, &read_by_points);
                        self.point_stores(module, w, content)?;
                    }
                }
                // The second dispatch does this one.
                Stage::Each(_) if matches!(self.mode, Mode::Part(_)) => {}
                Stage::Each(content) => {
                    self.meet_before_stores(w, content, &read_by_points);
                    self.each(module, w, content)?;
                }
                Stage::Fold { block, folds } => {
                    let accumulators = match self.mode {
                        Mode::Whole | Mode::Part(_) => self.fold(module, w, block, folds)?,
                        Mode::Combine(split) => self.combine(module, w, split, folds)?,
                    };
                    let accumulators = match &self.team {
                        None => accumulators,
                        Some(team) => team::combine(module, w, team, &accumulators)?,
                    };
                    if let Mode::Part(split) = self.mode {
                        self.store_parts(module, w, split, &accumulators);
                        return Ok(());
                    }
                    for (fold, accumulator) in folds.iter().zip(&accumulators) {
                        let held = self.scope.held(fold.result, fold.dtype);
                        let result = accumulator.result(module, fold, held)?;
                        let name = format!("r{}", fold.result.0);
                        w.line(format!("let {name} = {};", result.text));
                        self.scope.define(fold.result, Value { text: name, ..result });
                    }
                }
            }
        }
        Ok(())
    }

    /// A barrier where an invocation may store what another of its team has yet to load: all of them load what is loaded once a point.
    fn meet_before_stores(&self, w: &mut Writer, content: &Block, read: &[BufferIndex]) {
        let updated = |buffer: BufferIndex| {
            self.kernel.buffers[buffer.0 as usize].access == Access::ReadWrite && read.contains(&buffer)
        };
        if self.team.is_some() && content.stores.iter().any(|store| updated(store.buffer)) {
            w.line("workgroupBarrier();");
        }
    }

    fn point_stores(&self, module: &mut Module<'_>, w: &mut Writer, content: &Block) -> Result<(), Diagnostic> {
        let Some(guard) = self.team.as_ref().map(|team| team.first_lane(self.live.as_deref())) else {
            return stores(module, &self.scope, w, content, &self.point);
        };
        w.open(format!("if {guard}"));
        stores(module, &self.scope, w, content, &self.point)?;
        w.close();
        Ok(())
    }

    fn each(&mut self, module: &mut Module<'_>, w: &mut Writer, content: &Block) -> Result<(), Diagnostic> {
        let (kernel, live) = (self.kernel, self.live.clone());
        let mut walk = std::mem::replace(&mut self.walk, Walk::Nest);
        let result = walk.each(w, kernel, &self.point, &self.scope, &mut |w, scope, at| {
            block(module, scope, w, content, &at.point)?;
            let guards: Vec<&str> = live.as_deref().into_iter().chain(at.guard).collect();
            if guards.is_empty() {
                return stores(module, scope, w, content, &at.point);
            }
            w.open(format!("if {}", guards.join(" && ")));
            stores(module, scope, w, content, &at.point)?;
            w.close();
            Ok(())
        });
        self.walk = walk;
        result
    }

    /// The fold of a stage over what this invocation walks.
    fn fold(
        &mut self,
        module: &mut Module<'_>,
        w: &mut Writer,
        content: &Block,
        folds: &[Fold],
    ) -> Result<Vec<Accumulator>, Diagnostic> {
        let width = self.team.as_ref().map_or(self.width as u32, |team| team.width);
        let mut all = Vec::new();
        for fold in folds {
            let accumulator = Accumulator::new(module, fold, "f", width)?;
            accumulator.declare(w);
            all.push(accumulator);
        }
        let kernel = self.kernel;
        let mut walk = std::mem::replace(&mut self.walk, Walk::Nest);
        let result = walk.fold(w, kernel, &self.point, &self.scope, &all, &mut |w, scope, at, accumulators| {
            block(module, scope, w, content, &at.point)?;
            if let Some(guard) = at.guard {
                w.open(format!("if {guard}"));
            }
            for (accumulator, fold) in accumulators.iter().zip(folds) {
                let value = scope.value(fold.value)?.clone();
                let taken = accumulator.taken(module, &value, &at.index)?;
                accumulator.take(module, w, &taken)?;
            }
            if at.guard.is_some() {
                w.close();
            }
            Ok(())
        });
        self.walk = walk;
        result?;
        if self.team.is_none() || width == 1 {
            return Ok(all);
        }
        all.iter().map(|accumulator| accumulator.across(module, w, "_all")).collect()
    }

    /// The fold of the parts that the first dispatch has left.
    fn combine(
        &mut self,
        module: &mut Module<'_>,
        w: &mut Writer,
        split: &SplitFold,
        folds: &[Fold],
    ) -> Result<Vec<Accumulator>, Diagnostic> {
        let width = if self.team.is_some() { 1 } else { self.width as u32 };
        let mut all = Vec::new();
        for fold in folds {
            let accumulator = Accumulator::new(module, fold, "f", width)?;
            accumulator.declare(w);
            all.push(accumulator);
        }
        let (first, step) = self.team.as_ref().map_or(("0", 1), |team| ("lane", team.lanes));
        let next = if step == 1 { "part++".to_owned() } else { format!("part += {step}") };
        w.open(format!("for (var part = {first}; part < {}; {next})", split.parts));
        for (accumulator, buffers) in all.iter().zip(&split.numbers) {
            let taken: Vec<Value> = buffers
                .iter()
                .map(|&(number, held)| {
                    let name = module.scratch(number, held.in_scratch(), false);
                    let load = |lane: usize| {
                        let element = format!("{name}[{}]", self.part_index("part", lane));
                        if held == Held::Bool { format!("{element} != 0u") } else { element }
                    };
                    let parts: Vec<String> = (0..width as usize).map(load).collect();
                    let text = if width == 1 {
                        format!("({})", parts[0])
                    } else {
                        format!("{}({})", held.wide(width), parts.join(", "))
                    };
                    Value::new(text, held, width)
                })
                .collect();
            accumulator.take(module, w, &taken)?;
        }
        w.close();
        Ok(all)
    }

    /// Where the number of a part and a point is in scratch memory.
    fn part_index(&self, part: &str, lane: usize) -> String {
        let point = if matches!(self.mode, Mode::Part(_)) { "point" } else { "at" };
        let point = match (self.width, lane) {
            (1, _) => point.to_owned(),
            (width, 0) => format!("{point} * {width}"),
            (width, lane) => format!("{point} * {width} + {lane}"),
        };
        if self.points == 1 { part.to_owned() } else { format!("{part} * {} + {point}", self.points) }
    }

    fn store_parts(&self, module: &mut Module<'_>, w: &mut Writer, split: &SplitFold, all: &[Accumulator]) {
        let guard = self.team.as_ref().map(|team| team.first_lane(self.live.as_deref()));
        if let Some(guard) = &guard {
            w.open(format!("if {guard}"));
        }
        let part = if split.parts > 1 { "part" } else { "0" };
        for (accumulator, buffers) in all.iter().zip(&split.numbers) {
            for (value, &(number, held)) in accumulator.values().iter().zip(buffers) {
                let name = module.scratch(number, held.in_scratch(), true);
                for lane in 0..accumulator.width {
                    let text = value.component(lane);
                    let text = if held == Held::Bool { format!("u32({text})") } else { text };
                    w.line(format!("{name}[{}] = {text};", self.part_index(part, lane as usize)));
                }
            }
        }
        if guard.is_some() {
            w.close();
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
