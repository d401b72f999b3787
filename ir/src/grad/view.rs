//! Gradients of the views: each element's gradient goes back to where the element came from.

use smallvec::SmallVec;

use super::cotangent::Cotangent;
use super::rule::Arrival;
use super::tape::Term;
use crate::{Axes, ReduceKind, Shape};

pub(super) fn permute<'t>(at: &Arrival<'t>, permutation: &[usize]) -> Cotangent<'t> {
    let mut inverse: SmallVec<[usize; 4]> = SmallVec::from_elem(0, permutation.len());
    for (index, &axis) in permutation.iter().enumerate() {
        inverse[axis] = index;
    }
    at.g.map(|g| g.permute(&inverse))
}

/// The sum over the axes along which elements were repeated, in exactly the operand's shape.
pub(super) fn broadcast<'t>(at: &Arrival<'t>) -> Cotangent<'t> {
    let (from, to) = (at.x().shape(), at.y.shape());
    let added = to.rank() - from.rank();
    let repeated = (0..to.rank()).filter(|&axis| axis < added || (from[axis - added] == 1 && to[axis] != 1));
    let axes = Axes::from_indices(repeated);
    at.g.map(|g| if axes.is_empty() { g } else { g.reduce(ReduceKind::Sum, axes) }.reshape(&from))
}

/// Zeros, with the gradient put where the elements were taken from.
///
/// Steps below 0 are undone by flipping. A step of `n` is undone by giving each element `n - 1` zeros to follow it, as a new axis
/// that is padded and then merged.
pub(super) fn slice<'t>(at: &Arrival<'t>, starts: &[usize], sizes: &Shape, steps: &[i64]) -> Option<Cotangent<'t>> {
    let extents = at.x().shape();
    if sizes.contains(&0) {
        return None;
    }
    let flipped: SmallVec<[usize; 4]> = (0..sizes.rank()).filter(|&axis| steps[axis] < 0 && sizes[axis] > 1).collect();
    // Along an axis with one element the step says nothing.
    let stride = |axis: usize| if sizes[axis] == 1 { 1 } else { steps[axis].unsigned_abs() as usize };
    let first = |axis: usize| {
        if flipped.contains(&axis) { starts[axis] - (sizes[axis] - 1) * stride(axis) } else { starts[axis] }
    };
    let axes = 0..sizes.rank();
    let strides: SmallVec<[usize; 4]> = axes.clone().map(stride).collect();
    let low: SmallVec<[usize; 4]> = axes.clone().map(first).collect();
    // The zeros after the last element may reach past the end.
    let lengths: Shape =
        axes.clone().map(|axis| (sizes[axis] * strides[axis]).min(extents[axis] - low[axis])).collect();
    let high: SmallVec<[usize; 4]> = axes.map(|axis| extents[axis] - low[axis] - lengths[axis]).collect();
    let origin: SmallVec<[usize; 4]> = SmallVec::from_elem(0, sizes.rank());
    Some(at.g.mask(|g| dilate(g.flip(&flipped), &strides).window(&origin, &lengths).pad(&low, &high, 0.0)))
}

/// Each element followed by `stride - 1` zeros, per axis.
fn dilate<'t>(x: Term<'t>, strides: &[usize]) -> Term<'t> {
    if strides.iter().all(|&stride| stride == 1) {
        return x;
    }
    let shape = x.shape();
    let apart: Shape = shape.iter().zip(strides).flat_map(|(&extent, &stride)| split(extent, stride, 1)).collect();
    let high: SmallVec<[usize; 4]> = strides.iter().flat_map(|&stride| split(0, stride, stride - 1)).collect();
    let low: SmallVec<[usize; 4]> = SmallVec::from_elem(0, high.len());
    let merged: Shape = shape.iter().zip(strides).map(|(&extent, &stride)| extent * stride).collect();
    x.reshape(&apart).pad(&low, &high, 0.0).reshape(&merged)
}

/// An axis that is dilated is two for a while.
fn split(outer: usize, stride: usize, inner: usize) -> impl Iterator<Item = usize> {
    std::iter::once(outer).chain((stride > 1).then_some(inner))
}

pub(super) fn pad<'t>(at: &Arrival<'t>, low: &[usize]) -> Cotangent<'t> {
    let inner = at.x().shape();
    at.g.map(|g| g.window(low, &inner))
}

pub(super) fn concat<'t>(at: &Arrival<'t>, axis: usize) -> Cotangent<'t> {
    let start = at.operands[..at.operand].iter().map(|element| element.shape()[axis]).sum();
    at.g.map(|g| g.part(axis, start, at.x().shape()[axis]))
}
