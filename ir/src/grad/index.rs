//! Gradients of gather and scatter: they follow the forward op, index by index.
//!
//! A gather reads at the clamped index, so its gradient is added there. A scatter drops an update whose index is outside, so that
//! update's gradient is 0, as it is where a later update overwrote it.

use super::cotangent::Cotangent;
use super::reduce::split;
use super::rule::Arrival;
use super::tape::Term;
use crate::{DType, Literal, Op, ScalarOp, ScatterKind, Shape, TensorType};

pub(super) fn gather<'t>(at: &Arrival<'t>, axis: usize, batch: usize) -> Option<Cotangent<'t>> {
    let (x, indices) = (at.operands[0], at.operands[1]);
    let extent = x.shape()[axis];
    if extent == 0 {
        return None;
    }
    let indices = clamped(indices, extent);
    let add = Op::Scatter { kind: ScatterKind::Add, axis, batch };
    Some(at.g.mask(|g| x.full(0.0).op(add, &[indices, g])))
}

pub(super) fn scatter<'t>(at: &Arrival<'t>, kind: ScatterKind, axis: usize, batch: usize) -> Option<Cotangent<'t>> {
    let place = Place { indices: at.operands[1], target: at.operands[0].shape(), axis, batch };
    if place.extent() == 0 {
        return None;
    }
    Some(match (kind, at.operand) {
        (ScatterKind::Add, 0) => at.g,
        (ScatterKind::Add, _) => place.kept(at.g.map(|g| place.read(g))),
        (ScatterKind::Set, 0) => {
            let writers = place.writers();
            at.g.drop_where(place.along_target(writers.zip(ScalarOp::Ge, writers.full(0.0))))
        }
        (ScatterKind::Set, _) => at.g.map(|g| place.read(g)).keep_where(place.along_updates(place.survivors())),
        (ScatterKind::Max, _) => place.largest(at),
    })
}

/// Where the updates of a scatter go.
struct Place<'t> {
    indices: Term<'t>,
    /// Shape of the target.
    target: Shape,
    axis: usize,
    batch: usize,
}

impl<'t> Place<'t> {
    fn extent(&self) -> usize {
        self.target[self.axis]
    }

    /// What stands at each update's place.
    fn read(&self, x: Term<'t>) -> Term<'t> {
        x.op(Op::Gather { axis: self.axis, batch: self.batch }, &[self.indices])
    }

    /// Updates' gradients, 0 for those that were dropped.
    fn kept(&self, g: Cotangent<'t>) -> Cotangent<'t> {
        match self.inside() {
            Some(inside) => g.keep_where(self.along_updates(inside)),
            None => g,
        }
    }

    /// Which indices are in range; `None` where the dtype alone says all of them.
    fn inside(&self) -> Option<Term<'t>> {
        let dtype = self.indices.dtype();
        let number = |number: i128| {
            self.indices.tape().full(self.indices.value(), &self.indices.ty(), Literal::from_i128(dtype, number))
        };
        let above = dtype.is_signed().then(|| self.indices.zip(ScalarOp::Ge, number(0)));
        let extent = self.extent() as i128;
        let below = (extent <= largest_index(dtype)).then(|| self.indices.zip(ScalarOp::Lt, number(extent)));
        match (above, below) {
            (Some(above), Some(below)) => Some(above.zip(ScalarOp::And, below)),
            (one, other) => one.or(other),
        }
    }

    /// For every place along the indexed axis, the position of the update that wrote there last; -1 where none did.
    fn writers(&self) -> Term<'t> {
        let shape: Shape = self.target[..self.batch].iter().copied().chain([self.extent()]).collect();
        let ty = TensorType { shape, dtype: DType::I32, ..self.indices.ty() };
        let nobody = self.indices.tape().full(self.indices.value(), &ty, Literal::from_i128(DType::I32, -1));
        let set = Op::Scatter { kind: ScatterKind::Set, axis: self.batch, batch: self.batch };
        nobody.op(set, &[self.indices, self.positions()])
    }

    /// Each index's place in index order.
    fn positions(&self) -> Term<'t> {
        let shape = self.indices.shape();
        let rest: Shape = shape[self.batch..].iter().copied().collect();
        let flat = TensorType { shape: [rest.num_elements()].into(), dtype: DType::I32, ..self.indices.ty() };
        self.indices.tape().iota(self.indices.value(), flat, 0).reshape(&rest).broadcast(&shape)
    }

    /// Which indices' updates were neither dropped nor overwritten: those that find their own position where they wrote.
    fn survivors(&self) -> Term<'t> {
        let found = self.writers().op(Op::Gather { axis: self.batch, batch: self.batch }, &[self.indices]);
        found.zip(ScalarOp::Eq, self.positions())
    }

    /// `scatter.max`, for either operand: split evenly over the target and the updates that attain the result.
    fn largest(&self, at: &Arrival<'t>) -> Cotangent<'t> {
        let (target, updates) = (at.operands[0], at.operands[2]);
        let attains = |x: Term<'t>, y: Term<'t>| x.zip(ScalarOp::Lt, y).map(ScalarOp::Not);
        let (stays, comes) = (attains(target, at.y), attains(updates, self.read(at.y)));
        let add = Op::Scatter { kind: ScatterKind::Add, axis: self.axis, batch: self.batch };
        let ties = stays.cast(DType::I32).op(add, &[self.indices, comes.cast(DType::I32)]);
        let shares = at.g.map(|g| split(g, ties));
        if at.operand == 0 {
            shares.keep_where(stays)
        } else {
            self.kept(shares.map(|g| self.read(g)).keep_where(comes))
        }
    }

    /// Something known per index, for every element of the updates.
    fn along_updates(&self, x: Term<'t>) -> Term<'t> {
        let shape = x.shape();
        let (before, after) = (self.axis - self.batch, self.target.rank() - self.axis - 1);
        let spread = spread(&shape[..self.batch], before, &shape[self.batch..], after);
        let updates = self.target[..self.axis].iter().chain(&shape[self.batch..]).chain(&self.target[self.axis + 1..]);
        x.reshape(&spread).broadcast(&updates.copied().collect())
    }

    /// Something known per place along the indexed axis, for every element of the target.
    fn along_target(&self, x: Term<'t>) -> Term<'t> {
        let shape = x.shape();
        let (before, after) = (self.axis - self.batch, self.target.rank() - self.axis - 1);
        x.reshape(&spread(&shape[..self.batch], before, &shape[self.batch..], after)).broadcast(&self.target)
    }
}

/// Batch extents, ones, the indexed extents, ones.
fn spread(batch: &[usize], before: usize, indexed: &[usize], after: usize) -> Shape {
    let ones = |count: usize| std::iter::repeat_n(1, count);
    batch.iter().copied().chain(ones(before)).chain(indexed.iter().copied()).chain(ones(after)).collect()
}

/// Indices as a gather sees them: brought into range.
fn clamped(indices: Term<'_>, extent: usize) -> Term<'_> {
    let ty = indices.ty();
    let number = |number: i128| indices.tape().full(indices.value(), &ty, Literal::from_i128(ty.dtype, number));
    let last = (extent as i128 - 1).min(largest_index(ty.dtype));
    indices.op(Op::Scalar(ScalarOp::Clamp), &[number(0), number(last)])
}

fn largest_index(dtype: DType) -> i128 {
    dtype.int_range().map_or(0, |(_, last)| last)
}
