//! Ways through the inner space of a loop kernel, and the accumulators that go along.

use kiln_ir::Diagnostic;
use kiln_ir::kernel::{Fold, LoopKernel};

use super::block::Scope;
use super::builder::{Builder, Term, Ty};
use super::fold::{Numbers, Rule};
use super::space::{Point, coordinates, sum};
use super::team::Team;

/// Values that are added one after the other before they are added to a longer sum: short sums of short sums lose less than a long one.
const BLOCK: usize = 64;

/// Values of a row that a lane keeps in registers from one stage to the next, at most.
const KEPT: usize = 64;

/// How a thread walks the inner space.
#[derive(Clone, Debug)]
pub(super) enum Walk {
    /// Loops over all of its axes, one in the other.
    Nest,
    /// One loop over the row-major index from `first` to `end`, which takes `width` neighbours every `step`.
    Flat {
        /// Where it begins.
        first: Term,
        /// Where it ends.
        end: Term,
        /// From one step to the next.
        step: usize,
        /// Neighbours.
        width: u32,
        /// About how many steps there are.
        steps: usize,
    },
    /// No loop: steps that are all written out. What has been computed at a step in one stage is not computed again in the next.
    Steps {
        /// Row-major index of the first point of each, and whether the point is its own, where it may not be.
        all: Vec<(Term, Option<Term>)>,
        /// Neighbours.
        width: u32,
    },
}

/// Where a walk stands.
pub(super) struct At {
    /// The point of the whole space.
    pub(super) point: Point,
    /// Its row-major index in the inner space.
    pub(super) index: Term,
    /// Under which condition it counts.
    pub(super) guard: Option<Term>,
}

/// What a fold has accumulated, for each neighbour by itself.
#[derive(Clone, Debug)]
pub(super) struct Accumulator {
    /// How.
    pub(super) rule: Rule,
    /// The numbers of each neighbour.
    pub(super) lanes: Vec<Numbers>,
}

impl Accumulator {
    /// Fresh ones for a stage's folds.
    pub(super) fn declare(b: &mut Builder, folds: &[Fold], width: u32) -> Vec<Accumulator> {
        folds
            .iter()
            .map(|fold| {
                let rule = Rule::of(fold);
                let lanes = (0..width).map(|_| rule.declare(b)).collect();
                Accumulator { rule, lanes }
            })
            .collect()
    }

    /// One that takes some of the values in this one's stead; itself where it is exact.
    fn partial(&self, b: &mut Builder) -> Accumulator {
        if !self.rule.is_rounded() {
            return self.clone();
        }
        Accumulator { rule: self.rule.clone(), lanes: self.lanes.iter().map(|_| self.rule.declare(b)).collect() }
    }

    /// Takes what a partial one has taken.
    fn take_partial(&self, b: &mut Builder, partial: &Accumulator) {
        if !self.rule.is_rounded() {
            return;
        }
        for (mine, other) in self.lanes.iter().zip(&partial.lanes) {
            let taken = self.rule.values(b, other);
            self.rule.take(b, mine, &taken, None);
        }
    }

    /// What the neighbours have taken, as one.
    pub(super) fn across(&self, b: &mut Builder) -> Numbers {
        for other in &self.lanes[1..] {
            let taken = self.rule.values(b, other);
            self.rule.take(b, &self.lanes[0], &taken, None);
        }
        self.lanes[0].clone()
    }
}

type Body<'b> = dyn FnMut(&mut Builder, &mut Scope, At, &[Accumulator]) -> Result<(), Diagnostic> + 'b;

impl Walk {
    /// How the lanes of a team walk a space: few steps are written out.
    pub(super) fn of_team(b: &mut Builder, team: &Team, inner: &[usize]) -> Walk {
        let (count, width) = (inner.iter().product::<usize>(), team.width as usize);
        let stride = team.lanes as usize * width;
        let steps = count.div_ceil(stride);
        let first = sum(b, 0, &[(team.lane.clone(), width as i64)]);
        if count < width || steps == 0 || steps * width > KEPT {
            let end = Term::constant(count.to_string());
            return Walk::Flat { first, end, step: stride, width: team.width, steps };
        }
        let all = (0..steps)
            .map(|step| {
                let own = sum(b, (step * stride) as i64, &[(first.clone(), 1)]);
                if (step + 1) * stride <= count {
                    return (own, None);
                }
                // A step beyond the end computes the last points once more and does not count them.
                let guard = b.expression(Ty::Bool, &format!("$0 < {count}"), std::slice::from_ref(&own));
                let last = count - width;
                (b.expression(Ty::Index, &format!("$0 < {last} ? $0 : {last}"), &[own]), Some(guard))
            })
            .collect();
        Walk::Steps { all, width: team.width }
    }

    /// Does `body` for every inner point, with the accumulators that it adds to.
    pub(super) fn each(
        &self,
        b: &mut Builder,
        kernel: &LoopKernel,
        outer: &Point,
        scope: &Scope,
        all: &[Accumulator],
        body: &mut Body<'_>,
    ) -> Result<(), Diagnostic> {
        let rounded = all.iter().any(|accumulator| accumulator.rule.is_rounded());
        match self {
            Walk::Nest => {
                let count: usize = kernel.inner.iter().product();
                nest(b, kernel, outer, scope, all, rounded && count > 2 * BLOCK, body)
            }
            Walk::Flat { first, end, step, width, steps } => {
                let blocked = rounded && *steps > 2 * BLOCK;
                let by = Term::constant(step.to_string());
                if !blocked {
                    let index = b.open_loop(first, end, &by);
                    inside(b, kernel, outer, scope, all, &index, *width, None, body)?;
                    b.close();
                    return Ok(());
                }
                let length = Term::constant((step * BLOCK).to_string());
                let block = b.open_loop(first, end, &length);
                let parts: Vec<Accumulator> = all.iter().map(|accumulator| accumulator.partial(b)).collect();
                let terms = [block.clone(), end.clone()];
                let template = format!("$1 - $0 < {0} ? $1 : $0 + {0}", step * BLOCK);
                let stop = b.expression(Ty::Index, &template, &terms);
                let index = b.open_loop(&block, &stop, &by);
                inside(b, kernel, outer, scope, &parts, &index, *width, None, body)?;
                b.close();
                all.iter().zip(&parts).for_each(|(total, partial)| total.take_partial(b, partial));
                b.close();
                Ok(())
            }
            Walk::Steps { all: steps, width } => steps.iter().try_for_each(|(index, guard)| {
                inside(b, kernel, outer, scope, all, index, *width, guard.clone(), body)
            }),
        }
    }
}

#[allow(clippy::too_many_arguments)]
fn inside(
    b: &mut Builder,
    kernel: &LoopKernel,
    outer: &Point,
    scope: &Scope,
    all: &[Accumulator],
    index: &Term,
    width: u32,
    guard: Option<Term>,
    body: &mut Body<'_>,
) -> Result<(), Diagnostic> {
    let inner = coordinates(b, index, &kernel.inner, 1);
    let axes: Vec<Term> = outer.axes.iter().cloned().chain(inner).collect();
    let last = axes.len().saturating_sub(1);
    let point = Point::new(axes, extents(kernel));
    let point = if width > 1 { point.with_lanes(last, width) } else { Point { lanes: outer.lanes, ..point } };
    body(b, &mut scope.clone(), At { point, index: index.clone(), guard }, all)
}

/// Loops over the axes. Long sums are taken in blocks: all of the last axis, or parts of it where it is the only one.
fn nest(
    b: &mut Builder,
    kernel: &LoopKernel,
    outer: &Point,
    scope: &Scope,
    all: &[Accumulator],
    blocked: bool,
    body: &mut Body<'_>,
) -> Result<(), Diagnostic> {
    let loops: Vec<usize> = (0..kernel.inner.len()).filter(|&axis| kernel.inner[axis] != 1).collect();
    let mut names = vec![Term::constant("0"); kernel.inner.len()];
    let mut taking = all.to_vec();
    let number = |value: usize| Term::constant(value.to_string());
    let mut opened = 0;
    let mut split = false;
    for (depth, &axis) in loops.iter().enumerate() {
        let extent = kernel.inner[axis];
        let (mut first, mut end) = (number(0), number(extent));
        if blocked && depth + 1 == loops.len() {
            if loops.len() == 1 {
                first = b.open_loop(&number(0), &number(extent), &number(BLOCK));
                let template = format!("{extent} - $0 < {BLOCK} ? {extent} : $0 + {BLOCK}");
                end = b.expression(Ty::Index, &template, std::slice::from_ref(&first));
                split = true;
            }
            taking = all.iter().map(|accumulator| accumulator.partial(b)).collect();
        }
        names[axis] = b.open_loop(&first, &end, &number(1));
        opened += 1;
    }
    let row_major: Vec<(Term, i64)> = (0..kernel.inner.len())
        .map(|axis| (names[axis].clone(), kernel.inner[axis + 1..].iter().product::<usize>() as i64))
        .collect();
    let index = sum(b, 0, &row_major);
    let axes: Vec<Term> = outer.axes.iter().cloned().chain(names).collect();
    let point = Point { axes, extents: extents(kernel), lanes: outer.lanes };
    body(b, &mut scope.clone(), At { point, index, guard: None }, &taking)?;
    for depth in (0..opened).rev() {
        b.close();
        if blocked && depth + 1 == opened {
            all.iter().zip(&taking).for_each(|(total, partial)| total.take_partial(b, partial));
            if split {
                b.close();
            }
        }
    }
    Ok(())
}

fn extents(kernel: &LoopKernel) -> Vec<usize> {
    kernel.outer.iter().chain(&kernel.inner).copied().collect()
}
