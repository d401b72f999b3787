//! pow, sqrt and the reciprocal square root.
//!
//! `x^y = e^(y ln |x|)`. The product may be as large as 104 before the result leaves f32, so the logarithm needs seven
//! bits more than the result has: it is taken in f64. The sign and the cases that C settles follow.

use super::exponential::exp_double;
use super::lane::{MulAdd, clamp_double, round_double, select};
use super::logarithm::log_positive_double;

/// x to the power of y, special cases as in C: `x^0 = 1` and `1^y = 1` even for NaN.
#[inline(always)]
pub(super) fn pow<M: MulAdd>(x: f32, y: f32) -> f32 {
    // Comparisons are in f64 as well: a mask as wide as the numbers it selects needs no conversion.
    let (x, y) = (f64::from(x), f64::from(y));
    // An even integer so large that the result is 0, 1 or infinite, as for an infinite y; finite, so that (-1)^inf is 1.
    const LARGE: f64 = (1u64 << 40) as f64;
    let limited = clamp_double(y, -LARGE, LARGE);
    let base = x.abs();
    // e^(+-200) is as good as infinity or 0 in f32.
    let magnitude = exp_double::<M>(clamp_double(limited * log_positive_double::<M>(base), -200.0, 200.0));
    let (nearest, integer) = round_double(limited);
    let whole = nearest == limited;
    let sign = select(whole, x.to_bits() & (integer << 63), 0);
    let signed = f64::from_bits(magnitude.to_bits() ^ sign);
    let imaginary = !whole & (x < 0.0) & (base < f64::INFINITY);
    let result = select(imaginary, f64::NAN, signed);
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
