//! sinh, cosh, tanh and their inverses.
//!
//! tanh, the one that networks lean on, is in f32: an odd polynomial near zero, `1 - 2 / (e^(2|x|) + 1)` further out.
//! The others go through the f64 exponential and logarithm and are rounded once at the end.

use super::exponential::{exp_double, exp_parts, expm1_double};
use super::lane::{MulAdd, clamp_double, polynomial, power_of_two, select, with_sign_of};
use super::logarithm::{log_double, log_positive_double};

/// `(tanh(x) / x - 1) / x^2` in x^2 for `|x| <= 0.62`, within 2^-27.
pub(in crate::cpu) const TANH: [f32; 5] =
    [-3.333_329_6e-1, 1.333_164_3e-1, -5.374_806e-2, 2.064_891_2e-2, -5.703_085e-3];

/// The hyperbolic tangent.
#[inline(always)]
pub(super) fn tanh<M: MulAdd>(x: f32) -> f32 {
    let square = x * x;
    let near = M::single(x * square, polynomial::<M, 5>(square, TANH), x);
    // From 10 on tanh is 1 to the last bit.
    let (power, exponent) = exp_parts::<M>(select(x.abs() > 10.0, 20.0, 2.0 * x.abs()));
    let far = 1.0 - 2.0 / M::single(power, power_of_two(exponent), 1.0);
    // The zero of tanh(-0) is lost in the fused form of `near`.
    select(x.abs() < 0.6, near, far).copysign(x)
}

/// Beyond this magnitude sinh and cosh overflow in f32, far before they do in f64.
const OVERFLOW: f64 = 100.0;
/// Below this magnitude the first two terms of asinh and atanh are exact to 2^-40.
const SMALL: f64 = 1.0 / 1024.0;

/// The hyperbolic sine.
#[inline(always)]
pub(super) fn sinh<M: MulAdd>(x: f32) -> f32 {
    let grown = expm1_double::<M>(clamp_double(f64::from(x.abs()), 0.0, OVERFLOW));
    with_sign_of(0.5 * (grown + grown / (grown + 1.0)), x)
}

/// The hyperbolic cosine.
#[inline(always)]
pub(super) fn cosh<M: MulAdd>(x: f32) -> f32 {
    let power = exp_double::<M>(clamp_double(f64::from(x.abs()), 0.0, OVERFLOW));
    (0.5 * (power + 1.0 / power)) as f32
}

/// The inverse hyperbolic sine.
#[inline(always)]
pub(super) fn asinh<M: MulAdd>(x: f32) -> f32 {
    let a = f64::from(x.abs());
    let square = a * a;
    let near = M::double(a * square, -1.0 / 6.0, a);
    let far = log_positive_double::<M>(a + M::double(a, a, 1.0).sqrt());
    with_sign_of(select(a < SMALL, near, far), x)
}

/// The inverse hyperbolic cosine; NaN below 1.
#[inline(always)]
pub(super) fn acosh<M: MulAdd>(x: f32) -> f32 {
    let wide = f64::from(x);
    let root = ((wide - 1.0) * (wide + 1.0)).sqrt();
    // Below -1 the root is real again.
    select(x < 1.0, f64::NAN, log_positive_double::<M>(wide + root)) as f32
}

/// The inverse hyperbolic tangent; infinite at 1 and -1, NaN beyond.
#[inline(always)]
pub(super) fn atanh<M: MulAdd>(x: f32) -> f32 {
    let a = f64::from(x.abs());
    let near = M::double(a * (a * a), 1.0 / 3.0, a);
    let far = 0.5 * log_double::<M>((1.0 + a) / (1.0 - a));
    with_sign_of(select(a < SMALL, near, far), x)
}
