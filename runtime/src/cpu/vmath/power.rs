//! pow, sqrt and the reciprocal square root.
//!
//! `x^y = e^(y ln |x|)`. The product may be as large as 104 before the result leaves f32, so the logarithm needs seven
//! bits more than the result has: it is taken in f64. The sign and the cases that C settles follow.

use super::exponential::exp_double;
use super::lane::{MulAdd, clamp_double, round_double, select};
use super::logarithm::log_double;

/// x to the power of y, special cases as in C: `x^0 = 1` and `1^y = 1` even for NaN.
#[inline(always)]
pub(super) fn pow<M: MulAdd>(x: f32, y: f32) -> f32 {
    /// From 2^24 on every f32 is an even integer.
    const EVEN: f64 = (1u64 << 25) as f64;
    let (base, wide) = (f64::from(x.abs()), f64::from(y));
    // e^(+-200) is as good as infinity or 0 in f32.
    let magnitude = exp_double::<M>(clamp_double(wide * log_double::<M>(base), -200.0, 200.0));
    // (-1)^inf is 1, not e^(inf * 0).
    let magnitude = select(base == 1.0, 1.0, magnitude);
    let limited = clamp_double(wide, -EVEN, EVEN);
    let (nearest, bits) = round_double(limited);
    let whole = nearest == limited;
    let odd = whole & (bits & 1 == 1);
    let signed = select(odd & x.is_sign_negative(), -magnitude, magnitude);
    let real = whole | (x >= 0.0) | (base == f64::INFINITY);
    let result = select(real, signed, f64::NAN);
    // Both sides: the product above is NaN for a NaN on either, but base 1 has settled it.
    let result = select(y.is_nan(), f64::NAN, result);
    select((y == 0.0) | (x == 1.0), 1.0, result) as f32
}

/// The square root, correctly rounded; NaN below 0.
#[inline(always)]
pub(super) fn sqrt<M: MulAdd>(x: f32) -> f32 {
    x.sqrt()
}

/// 1 / sqrt(x): infinite, with its sign, at zero.
#[inline(always)]
pub(super) fn rsqrt<M: MulAdd>(x: f32) -> f32 {
    1.0 / x.sqrt()
}
