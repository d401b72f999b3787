//! Gradients of the running reductions.
//!
//! A running product or maximum hands gradients back along a linear recurrence, `s[k] = h[k] + link(k, s[k + 1])`. It is solved by
//! doubling: after `d` steps `s[k]` has gathered `d` terms, and one more step makes that `2 d`. So it takes `log2(n)` rounds of
//! ordinary ops, divides nothing (zeros among the elements are right), and is itself differentiable any number of times.

use super::cotangent::{Cotangent, Zeros};
use super::reduce::split;
use super::rule::Arrival;
use super::tape::Term;
use crate::{DType, Direction, ScalarOp, ScanKind};

pub(super) fn scan<'t>(at: &Arrival<'t>, kind: ScanKind, axis: usize, direction: Direction) -> Option<Cotangent<'t>> {
    let (x, y, g) = (at.x(), at.y, at.g);
    if x.shape().num_elements() == 0 {
        return None;
    }
    if kind == ScanKind::Sum {
        return Some(g.map(|g| g.scan(ScanKind::Sum, axis, opposite(direction))));
    }
    // From here on elements run forward.
    let turn = |term: Term<'t>| match direction {
        Direction::Forward => term,
        Direction::Reverse => term.flip(&[axis]),
    };
    let (x, y, g) = (turn(x), turn(y), g.map(turn));
    let turned = match kind {
        ScanKind::Sum => unreachable!("sums are done above"),
        ScanKind::Prod => product(x, y, g, axis),
        ScanKind::Max => extreme(x, y, g, axis, ScalarOp::Lt),
        ScanKind::Min => extreme(x, y, g, axis, ScalarOp::Gt),
    };
    Some(turned.map(turn))
}

fn opposite(direction: Direction) -> Direction {
    match direction {
        Direction::Forward => Direction::Reverse,
        Direction::Reverse => Direction::Forward,
    }
}

/// A running result without the element at which it stands: moved one place on, `identity` at the start.
pub(super) fn exclusive(running: Term<'_>, axis: usize, direction: Direction, identity: f64) -> Term<'_> {
    let rest = running.shape()[axis] - 1;
    match direction {
        Direction::Forward => running.part(axis, 0, rest).pad_axis(axis, 1, 0, identity),
        Direction::Reverse => running.part(axis, 1, rest).pad_axis(axis, 0, 1, identity),
    }
}

/// `dx[k] = (x[0] .. x[k-1]) * s[k]`, where `s[k] = g[k] + x[k+1] * s[k+1]`.
fn product<'t>(x: Term<'t>, y: Term<'t>, g: Cotangent<'t>, axis: usize) -> Cotangent<'t> {
    let following = x.part(axis, 1, x.shape()[axis] - 1);
    let gathered = recurrence(g, following, axis, |links, s| s * links, |a, b| a * b);
    gathered * exclusive(y, axis, Direction::Forward, 1.0)
}

/// `max` and `min`: each result's gradient goes to the elements up to there that attain it, split evenly as in a reduction.
///
/// Equal results stand next to each other. Within such a run, `seen[i]` counts the elements up to `i` that attain the result, and
/// each of them gets its share of every later result of the run.
fn extreme<'t>(x: Term<'t>, y: Term<'t>, g: Cotangent<'t>, axis: usize, worse: ScalarOp) -> Cotangent<'t> {
    let rest = x.shape()[axis] - 1;
    let loses = x.zip(worse, y);
    let same = y.part(axis, 1, rest).zip(ScalarOp::Eq, y.part(axis, 0, rest));
    let both = |a: Term<'t>, b: Term<'t>| a.zip(ScalarOp::And, b);
    let attains = Cotangent::new(loses.map(ScalarOp::Not).cast(DType::I32), Zeros::Arithmetic);
    let seen =
        recurrence(attains.map(|n| n.flip(&[axis])), same.flip(&[axis]), axis, |links, s| s.keep_where(links), both)
            .term()
            .flip(&[axis]);
    let shares = g.map(|g| split(g, seen));
    recurrence(shares, same, axis, |links, s| s.keep_where(links), both).drop_where(loses)
}

/// Solves `s[k] = h[k] + link(k, s[k + 1])` along an axis of `n` elements. `links` holds the `n - 1` links between neighbours; `pass`
/// sends values through links, `join` makes one link of two that follow each other.
fn recurrence<'t>(
    h: Cotangent<'t>,
    links: Term<'t>,
    axis: usize,
    pass: impl Fn(Term<'t>, Cotangent<'t>) -> Cotangent<'t>,
    join: impl Fn(Term<'t>, Term<'t>) -> Term<'t>,
) -> Cotangent<'t> {
    let extent = h.term().shape()[axis];
    let (mut s, mut links, mut distance) = (h, links, 1);
    while distance < extent {
        let reach = extent - distance;
        let passed = pass(links, s.map(|s| s.part(axis, distance, reach)));
        s = s.plus(passed.map(|p| p.pad_axis(axis, 0, distance, 0.0)));
        if let Some(next) = reach.checked_sub(distance).filter(|&next| next > 0) {
            links = join(links.part(axis, 0, next), links.part(axis, distance, next));
        }
        distance *= 2;
    }
    s
}
