//! Ways through the inner space of a loop kernel.

use kiln_ir::Diagnostic;
use kiln_ir::kernel::LoopKernel;

use super::block::{Scope, Value};
use super::fold::Accumulator;
use super::space::Point;
use super::types::Held;
use super::writer::Writer;

/// Values that are added one after the other before they are added to a longer sum.
const BLOCK: usize = 64;

/// How an invocation walks the inner space.
#[derive(Debug)]
pub(super) enum Walk {
    /// Loops over all of its axes, one in the other.
    Nest,
    /// One loop over the row-major index.
    Flat(Flat),
    /// No loop: steps that are all written out, each with what it has computed in earlier stages.
    Steps(Vec<Step>),
}

/// A loop over the row-major index of inner points.
#[derive(Clone, Debug)]
pub(super) struct Flat {
    first: String,
    end: String,
    step: u32,
    width: u32,
    /// About how many steps there are.
    steps: usize,
}

/// One of few steps.
#[derive(Debug)]
pub(super) struct Step {
    /// The row-major index of its first point.
    pub(super) index: String,
    /// Whether the point is its own, where it may not be.
    pub(super) guard: Option<String>,
    /// How many neighbours it takes.
    pub(super) width: u32,
    /// What it has computed.
    pub(super) scope: Scope,
    /// Its coordinates.
    pub(super) coordinates: Vec<String>,
}

/// Where a walk stands.
#[derive(Debug)]
pub(super) struct At<'a> {
    /// The point of the whole space.
    pub(super) point: Point,
    /// Its row-major index in the inner space.
    pub(super) index: Value,
    /// Under which condition it counts.
    pub(super) guard: Option<&'a str>,
}

type Body<'b> = dyn FnMut(&mut Writer, &mut Scope, At<'_>) -> Result<(), Diagnostic> + 'b;

type FoldBody<'b> = dyn FnMut(&mut Writer, &mut Scope, At<'_>, &[Accumulator]) -> Result<(), Diagnostic> + 'b;

impl Walk {
    /// One loop from `first` to `end`, which takes `width` neighbours every `step`; about `count` indices long.
    pub(super) fn flat(first: &str, end: &str, step: u32, width: u32, count: usize) -> Walk {
        let steps = count.div_ceil(step as usize);
        Walk::Flat(Flat { first: first.to_owned(), end: end.to_owned(), step, width, steps })
    }

    /// Prints `body` for every inner point.
    pub(super) fn each(
        &mut self,
        w: &mut Writer,
        kernel: &LoopKernel,
        outer: &Point,
        scope: &Scope,
        body: &mut Body<'_>,
    ) -> Result<(), Diagnostic> {
        self.fold(w, kernel, outer, scope, &[], &mut |w, scope, at, _| body(w, scope, at))
    }

    /// Prints `body` for every inner point, with the accumulators that it adds to.
    pub(super) fn fold(
        &mut self,
        w: &mut Writer,
        kernel: &LoopKernel,
        outer: &Point,
        scope: &Scope,
        all: &[Accumulator],
        body: &mut FoldBody<'_>,
    ) -> Result<(), Diagnostic> {
        let rounded = all.iter().any(Accumulator::is_rounded);
        match self {
            Walk::Nest => {
                let count: usize = kernel.inner.iter().product();
                nest(w, kernel, outer, scope, all, rounded && count > 2 * BLOCK, body)
            }
            Walk::Flat(flat) => flat.fold(w, kernel, outer, scope, all, rounded, body),
            Walk::Steps(steps) => steps.iter_mut().try_for_each(|step| {
                step.scope.adopt(scope);
                let point = whole(kernel, outer, &step.coordinates, step.width);
                let at = At { point, index: index(&step.index, step.width), guard: step.guard.as_deref() };
                body(w, &mut step.scope, at, all)
            }),
        }
    }
}

impl Flat {
    #[allow(clippy::too_many_arguments)]
    fn fold(
        &self,
        w: &mut Writer,
        kernel: &LoopKernel,
        outer: &Point,
        scope: &Scope,
        all: &[Accumulator],
        rounded: bool,
        body: &mut FoldBody<'_>,
    ) -> Result<(), Diagnostic> {
        let Flat { first, end, step, width, steps } = self;
        let blocked = rounded && *steps > 2 * BLOCK;
        let mut first = first.clone();
        let mut end = end.clone();
        let mut taking = all.to_vec();
        if blocked {
            let length = u64::from(*step) * BLOCK as u64;
            w.open(format!("for (var block = {first}; block < {end}; block += {length})"));
            taking = all.iter().map(Accumulator::partial).collect();
            declare_partial(w, all, &taking);
            (first, end) = ("block".to_owned(), format!("min(block + {length}, {end})"));
        }
        let next = if *step == 1 { "k++".to_owned() } else { format!("k += {step}") };
        w.open(format!("for (var k = {first}; k < {end}; {next})"));
        let inner = coordinates(w, "k", &kernel.inner, 1, "j");
        let point = whole(kernel, outer, &inner, *width);
        let at = At { point, index: index("k", *width), guard: None };
        body(w, &mut scope.clone(), at, &taking)?;
        w.close();
        if blocked {
            take_partial(w, all, &taking);
            w.close();
        }
        Ok(())
    }
}

/// Loops over the axes. Long sums are taken in blocks: all of the last axis, or parts of it where it is the only one.
fn nest(
    w: &mut Writer,
    kernel: &LoopKernel,
    outer: &Point,
    scope: &Scope,
    all: &[Accumulator],
    blocked: bool,
    body: &mut FoldBody<'_>,
) -> Result<(), Diagnostic> {
    let loops: Vec<usize> = (0..kernel.inner.len()).filter(|&axis| kernel.inner[axis] != 1).collect();
    let mut names = vec!["0".to_owned(); kernel.inner.len()];
    let mut taking = all.to_vec();
    let mut closing = Vec::new();
    for (depth, &axis) in loops.iter().enumerate() {
        let (name, extent) = (w.fresh("j"), kernel.inner[axis]);
        let (mut first, mut end) = ("0".to_owned(), extent.to_string());
        if blocked && depth + 1 == loops.len() {
            if loops.len() == 1 {
                w.open(format!("for (var block = 0; block < {extent}; block += {BLOCK})"));
                (first, end) = ("block".to_owned(), format!("min(block + {BLOCK}, {extent})"));
            }
            taking = all.iter().map(Accumulator::partial).collect();
            declare_partial(w, all, &taking);
            closing.push(Closing::Partial);
        }
        w.open(format!("for (var {name} = {first}; {name} < {end}; {name}++)"));
        closing.push(Closing::Loop);
        names[axis] = name;
    }
    if loops.is_empty() {
        // A scope of its own all the same.
        w.open("if true");
        closing.push(Closing::Loop);
    }
    let row_major: Vec<i64> =
        (0..kernel.inner.len()).map(|axis| kernel.inner[axis + 1..].iter().product::<usize>() as i64).collect();
    let flat = Point::new(names.clone(), kernel.inner.to_vec());
    let place = kiln_ir::kernel::Affine { offset: 0, strides: row_major.into_iter().collect() };
    let axes: Vec<String> = outer.axes.iter().cloned().chain(names).collect();
    let point = Point { axes, extents: extents(kernel), lanes: outer.lanes };
    let at = At { point, index: index(&format!("({})", flat.affine(&place, 0)), 1), guard: None };
    body(w, &mut scope.clone(), at, &taking)?;
    for closing in closing.iter().rev() {
        match closing {
            Closing::Loop => w.close(),
            Closing::Partial => {
                take_partial(w, all, &taking);
                if loops.len() == 1 {
                    w.close();
                }
            }
        }
    }
    Ok(())
}

enum Closing {
    Loop,
    Partial,
}

fn declare_partial(w: &mut Writer, all: &[Accumulator], partial: &[Accumulator]) {
    all.iter().zip(partial).filter(|(total, _)| total.is_rounded()).for_each(|(_, partial)| partial.declare(w));
}

fn take_partial(w: &mut Writer, all: &[Accumulator], partial: &[Accumulator]) {
    all.iter().zip(partial).for_each(|(total, partial)| total.take_partial(w, partial));
}

fn extents(kernel: &LoopKernel) -> Vec<usize> {
    kernel.outer.iter().chain(&kernel.inner).copied().collect()
}

/// The point of the whole space at these inner coordinates, with neighbours along the last axis.
fn whole(kernel: &LoopKernel, outer: &Point, inner: &[String], width: u32) -> Point {
    let axes: Vec<String> = outer.axes.iter().cloned().chain(inner.iter().cloned()).collect();
    let last = axes.len().saturating_sub(1);
    let point = Point::new(axes, extents(kernel));
    if width > 1 { point.with_lanes(last, width) } else { Point { lanes: outer.lanes, ..point } }
}

/// An index, or that of neighbours.
fn index(first: &str, width: u32) -> Value {
    let text = match width {
        1 => first.to_owned(),
        2 => format!("({first} + vec2<i32>(0, 1))"),
        _ => format!("({first} + vec4<i32>(0, 1, 2, 3))"),
    };
    Value::new(text, Held::I32, width)
}

/// Prints the coordinates of a point from its row-major number, which counts the last axis by `width`.
pub(super) fn coordinates(w: &mut Writer, number: &str, extents: &[usize], width: usize, prefix: &str) -> Vec<String> {
    let last = extents.len().saturating_sub(1);
    let units: Vec<usize> =
        extents.iter().enumerate().map(|(axis, &extent)| if axis == last { extent / width } else { extent }).collect();
    let first = units.iter().position(|&unit| unit != 1);
    let mut names = vec!["0".to_owned(); extents.len()];
    let mut rest = number.to_owned();
    for axis in (0..extents.len()).rev() {
        if units[axis] == 1 {
            continue;
        }
        let is_first = Some(axis) == first;
        let mut text = if is_first { rest.clone() } else { format!("{rest} % {}", units[axis]) };
        if axis == last && width > 1 {
            text = format!("{text} * {width}");
        }
        if text == number {
            names[axis] = text;
            continue;
        }
        names[axis] = w.fresh(prefix);
        w.line(format!("let {} = {text};", names[axis]));
        if !is_first {
            let next = w.fresh("rest");
            w.line(format!("let {next} = {rest} / {};", units[axis]));
            rest = next;
        }
    }
    names
}
