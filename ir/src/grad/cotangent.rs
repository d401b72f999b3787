//! The gradient that arrives at a value, and what a zero in it means.
//!
//! SEMANTICS: a branch that was not taken contributes gradient exactly 0, even where it holds an infinity or NaN. A selection writes
//! zeros into the gradient of the branch; if the branch is `sqrt(x)` at 0 or `1 / x`, the next factor is infinite, and `0 * inf` would
//! be NaN. So a gradient remembers whether its zeros came from a selection ([`Zeros::Masked`]), and only then its product with a factor
//! that may be infinite is guarded: NaN becomes 0 where the gradient is 0.
//!
//! The guard looks at the product and not at the gradient alone. Where the factor is finite it changes nothing, so the guarded
//! product's own derivative is right as well, and `grad` of `grad` keeps its value at a gradient that happens to be 0.
//!
//! Contractions are not guarded: a masked 0 that meets an infinity *inside a sum* of a matrix product is NaN, as IEEE 754 says.

use std::ops::{Div, Mul, Neg};

use super::tape::Term;
use crate::ScalarOp;

/// Where a gradient's zeros come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Zeros {
    /// From arithmetic: `0 * inf` is NaN.
    Arithmetic,
    /// From a selection, at least some of them: `0 * inf` is 0.
    Masked,
}

/// A gradient on its way from the outputs to the inputs.
#[derive(Clone, Copy)]
pub(crate) struct Cotangent<'t> {
    term: Term<'t>,
    zeros: Zeros,
}

impl<'t> Cotangent<'t> {
    pub(super) fn new(term: Term<'t>, zeros: Zeros) -> Cotangent<'t> {
        Cotangent { term, zeros }
    }

    pub(crate) fn term(self) -> Term<'t> {
        self.term
    }

    pub(super) fn zeros(self) -> Zeros {
        self.zeros
    }

    /// The same, rearranged, summed or copied: nothing is multiplied.
    pub(super) fn map(self, linear: impl FnOnce(Term<'t>) -> Term<'t>) -> Cotangent<'t> {
        Cotangent { term: linear(self.term), ..self }
    }

    /// The same, with zeros where it does not count.
    pub(crate) fn mask(self, select: impl FnOnce(Term<'t>) -> Term<'t>) -> Cotangent<'t> {
        Cotangent { term: select(self.term), zeros: Zeros::Masked }
    }

    /// This gradient where a condition holds, else 0.
    pub(crate) fn keep_where(self, condition: Term<'t>) -> Cotangent<'t> {
        self.mask(|g| condition.select(g, g.full(0.0)))
    }

    /// This gradient where a condition does not hold, else 0.
    pub(crate) fn drop_where(self, condition: Term<'t>) -> Cotangent<'t> {
        self.mask(|g| condition.select(g.full(0.0), g))
    }

    /// The sum of two uses' gradients. Its zeros are masked only if both are: a use that counts decides.
    pub(super) fn plus(self, other: Cotangent<'t>) -> Cotangent<'t> {
        let zeros = if self.zeros == other.zeros { self.zeros } else { Zeros::Arithmetic };
        Cotangent { term: self.term + other.term, zeros }
    }

    /// `product` was made from this gradient and a factor that may be infinite.
    fn guard(self, product: Term<'t>) -> Cotangent<'t> {
        match self.zeros {
            Zeros::Arithmetic => Cotangent { term: product, ..self },
            Zeros::Masked => Cotangent { term: zero_wins(self.term, product), ..self },
        }
    }
}

/// `product`, which `factor` is a factor of, with 0 for `0 * inf` and `0 * NaN` where that factor is 0.
pub(super) fn zero_wins<'t>(factor: Term<'t>, product: Term<'t>) -> Term<'t> {
    let zero = factor.full(0.0);
    let lost = factor.zip(ScalarOp::Eq, zero).zip(ScalarOp::And, product.map(ScalarOp::IsNan));
    lost.select(zero, product)
}

impl<'t> Mul<Term<'t>> for Cotangent<'t> {
    type Output = Cotangent<'t>;

    fn mul(self, factor: Term<'t>) -> Cotangent<'t> {
        let product = self.term * factor;
        match factor.number() {
            Some(number) if number.is_finite() => Cotangent { term: product, ..self },
            _ => self.guard(product),
        }
    }
}

impl<'t> Div<Term<'t>> for Cotangent<'t> {
    type Output = Cotangent<'t>;

    fn div(self, divisor: Term<'t>) -> Cotangent<'t> {
        let quotient = self.term / divisor;
        match divisor.number() {
            Some(number) if number != 0.0 && !number.is_nan() => Cotangent { term: quotient, ..self },
            _ => self.guard(quotient),
        }
    }
}

impl<'t> Mul<f64> for Cotangent<'t> {
    type Output = Cotangent<'t>;

    fn mul(self, number: f64) -> Cotangent<'t> {
        Cotangent { term: self.term * number, ..self }
    }
}

impl<'t> Neg for Cotangent<'t> {
    type Output = Cotangent<'t>;

    fn neg(self) -> Cotangent<'t> {
        Cotangent { term: -self.term, ..self }
    }
}
