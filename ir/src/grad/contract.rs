//! Gradients of the contractions.

use smallvec::SmallVec;

use super::cotangent::Cotangent;
use super::rule::Arrival;
use super::tape::Term;
use crate::{Op, Precision};

/// `g b^T` for the left matrix, `a^T g` for the right one, per batch.
pub(super) fn matmul<'t>(at: &Arrival<'t>, precision: Precision) -> Cotangent<'t> {
    let product = |a: Term<'t>, b: Term<'t>| a.op(Op::MatMul { precision }, &[b]);
    let (a, b) = (at.operands[0], at.operands[1]);
    at.g.map(|g| if at.operand == 0 { product(g, transpose(b)) } else { product(transpose(a), g) })
}

fn transpose(x: Term<'_>) -> Term<'_> {
    let rank = x.shape().rank();
    let mut order: SmallVec<[usize; 4]> = (0..rank).collect();
    order.swap(rank - 2, rank - 1);
    x.permute(&order)
}
