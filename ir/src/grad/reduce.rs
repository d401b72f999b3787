//! Gradients of the reductions.

use smallvec::SmallVec;

use super::cotangent::Cotangent;
use super::rule::Arrival;
use super::scan::exclusive;
use super::tape::Term;
use crate::{Axes, DType, Direction, ReduceKind, ScalarOp, ScanKind, Shape};

pub(super) fn sum<'t>(at: &Arrival<'t>) -> Option<Cotangent<'t>> {
    Some(at.g.map(|g| g.broadcast(&at.x().shape())))
}

/// Each element's gradient is the product of all others: of those before it times those after it. Nothing is divided, so zeros among
/// the elements are right, in higher derivatives too.
pub(super) fn prod<'t>(at: &Arrival<'t>, axes: &Axes) -> Option<Cotangent<'t>> {
    let x = at.x();
    let g = at.g.map(|g| g.broadcast(&x.shape()));
    if x.shape().num_elements() == 0 {
        return None;
    }
    Some(g * on_one_axis(x, axes, product_of_others))
}

fn product_of_others(x: Term<'_>, axis: usize) -> Term<'_> {
    let product = |direction| exclusive(x.scan(ScanKind::Prod, axis, direction), axis, direction, 1.0);
    product(Direction::Forward) * product(Direction::Reverse)
}

/// Applies `along`, which keeps the shape, to several axes as if they were one.
fn on_one_axis<'t>(x: Term<'t>, axes: &Axes, along: impl FnOnce(Term<'t>, usize) -> Term<'t>) -> Term<'t> {
    if let [axis] = axes[..] {
        return along(x, axis);
    }
    let shape = x.shape();
    let kept = (0..shape.rank()).filter(|axis| !axes.contains(axis));
    let order: SmallVec<[usize; 4]> = kept.clone().chain(axes.iter().copied()).collect();
    let count = axes.iter().map(|&axis| shape[axis]).product();
    let rows: Shape = kept.map(|axis| shape[axis]).chain([count]).collect();
    let sorted = x.permute(&order);
    let result = along(sorted.reshape(&rows), rows.rank() - 1).reshape(&sorted.shape());
    let mut inverse: SmallVec<[usize; 4]> = SmallVec::from_elem(0, order.len());
    for (index, &axis) in order.iter().enumerate() {
        inverse[axis] = index;
    }
    result.permute(&inverse)
}

/// `max` and `min`: split evenly over the elements that are not `worse` than the result. A NaN result is no worse to any of them.
pub(super) fn extreme<'t>(at: &Arrival<'t>, axes: &Axes, worse: ScalarOp) -> Option<Cotangent<'t>> {
    let (x, shape) = (at.x(), at.x().shape());
    let loses = x.zip(worse, at.y.broadcast(&shape));
    let ties = loses.map(ScalarOp::Not).cast(DType::I32).reduce(ReduceKind::Sum, axes.clone());
    Some(at.g.map(|g| split(g, ties).broadcast(&shape)).drop_where(loses))
}

/// `g / ties`, where `ties` counts in `i32`. 16-bit floats do not reach far enough for counts, so the quotient is taken in `f32`.
pub(super) fn split<'t>(g: Term<'t>, ties: Term<'t>) -> Term<'t> {
    let wide = g.dtype().accumulator();
    (g.cast(wide) / ties.cast(wide)).cast(g.dtype())
}
