//! Gradients of the elementwise ops. Most stand as one formula in their row of the table ([`crate::op::scalar`]); what needs more
//! words than a row has is here.

use super::cotangent::{Cotangent, zero_wins};
use super::tape::Term;
use crate::{Op, ScalarOp};

/// How an elementwise op is differentiated: a column of the table.
#[derive(Debug)]
pub(crate) enum ScalarGradient {
    /// Piecewise constant, or no number comes out: every gradient is 0.
    Zero,
    /// One formula per operand.
    Each(&'static [Partial]),
}

/// The gradient of one operand.
pub(crate) type Partial = for<'t> fn(&Point<'t>) -> Cotangent<'t>;

/// What a formula sees: the arriving gradient, the operands, the result.
pub(crate) struct Point<'t> {
    /// The gradient of the result.
    pub(crate) g: Cotangent<'t>,
    /// The first operand.
    pub(crate) a: Term<'t>,
    /// The second operand; the first where there is none.
    pub(crate) b: Term<'t>,
    /// The third operand; the first where there is none.
    pub(crate) c: Term<'t>,
    /// The result.
    pub(crate) y: Term<'t>,
}

/// The larger of `a` and `b`, with regard to the one given first: all where it is larger, half at a tie (or a NaN).
pub(crate) fn larger<'t>(g: Cotangent<'t>, this: Term<'t>, other: Term<'t>) -> Cotangent<'t> {
    share(g, this.zip(ScalarOp::Gt, other), this.zip(ScalarOp::Lt, other))
}

/// The smaller of `a` and `b`, with regard to the one given first.
pub(crate) fn smaller<'t>(g: Cotangent<'t>, this: Term<'t>, other: Term<'t>) -> Cotangent<'t> {
    share(g, this.zip(ScalarOp::Lt, other), this.zip(ScalarOp::Gt, other))
}

fn share<'t>(g: Cotangent<'t>, all: Term<'t>, none: Term<'t>) -> Cotangent<'t> {
    g.mask(|g| all.select(g, none.select(g.full(0.0), g * 0.5)))
}

/// `clamp`, with regard to its input: passes inside and at the bounds, and for NaN.
pub(crate) fn clamp_input<'t>(p: &Point<'t>) -> Cotangent<'t> {
    let outside = p.a.zip(ScalarOp::Lt, p.b).zip(ScalarOp::Or, p.a.zip(ScalarOp::Gt, p.c));
    p.g.drop_where(outside)
}

/// `clamp`, with regard to its lower bound: where the input is below it and it is not above the upper bound.
pub(crate) fn clamp_low<'t>(p: &Point<'t>) -> Cotangent<'t> {
    let counts = p.a.zip(ScalarOp::Lt, p.b).zip(ScalarOp::And, p.b.zip(ScalarOp::Le, p.c));
    p.g.keep_where(counts)
}

/// `clamp`, with regard to its upper bound: where it is below both others.
pub(crate) fn clamp_high<'t>(p: &Point<'t>) -> Cotangent<'t> {
    p.g.keep_where(p.a.zip(ScalarOp::Max, p.b).zip(ScalarOp::Gt, p.c))
}

/// `pow`, with regard to the base: `b * a^(b - 1)`, and 0 for exponent 0 even where `a^-1` is infinite.
pub(crate) fn pow_base<'t>(p: &Point<'t>) -> Cotangent<'t> {
    match p.b.number() {
        Some(0.0) => p.g.mask(|g| g.full(0.0)),
        Some(1.0) => p.g,
        Some(2.0) => p.g * (p.a * 2.0),
        Some(exponent) => p.g * (p.a.zip(ScalarOp::Pow, p.a.full(exponent - 1.0)) * exponent),
        None => {
            let partial = p.b * p.a.zip(ScalarOp::Pow, p.b - 1.0);
            p.g * zero_wins(p.b, partial)
        }
    }
}

/// `pow`, with regard to the exponent: `a^b * log(a)`, and 0 for base 0 under an exponent not below 0.
pub(crate) fn pow_exponent<'t>(p: &Point<'t>) -> Cotangent<'t> {
    let zero = p.a.full(0.0);
    let flat = p.a.zip(ScalarOp::Eq, zero).zip(ScalarOp::And, p.b.zip(ScalarOp::Ge, zero));
    p.g * flat.select(zero, p.y * p.a.map(ScalarOp::Log))
}

/// `rem`, with regard to the divisor: how often it was taken away.
pub(crate) fn rem_divisor<'t>(p: &Point<'t>) -> Cotangent<'t> {
    p.g * -(p.a / p.b).map(ScalarOp::Trunc)
}

/// `atan2`, up to its sign: `side / (a^2 + b^2)`. The squares are taken of numbers scaled to 1, lest they overflow or vanish; the
/// result does not depend on the scale, so the scale is a constant to every derivative.
pub(crate) fn angle<'t>(p: &Point<'t>, side: Term<'t>) -> Cotangent<'t> {
    let scale = larger_size(p.a, p.b);
    let (a, b) = (p.a / scale, p.b / scale);
    p.g * (side / scale / ((a * a + b * b) * scale))
}

/// `asinh`: `1 / sqrt(a^2 + 1)`, scaled like [`angle`].
pub(crate) fn asinh<'t>(p: &Point<'t>) -> Cotangent<'t> {
    let one = p.a.full(1.0);
    let scale = larger_size(p.a, one);
    let (a, one) = (p.a / scale, one / scale);
    p.g / ((a * a + one * one).map(ScalarOp::Sqrt) * scale)
}

fn larger_size<'t>(a: Term<'t>, b: Term<'t>) -> Term<'t> {
    a.map(ScalarOp::Abs).zip(ScalarOp::Max, b.map(ScalarOp::Abs)).op(Op::StopGradient, &[])
}
