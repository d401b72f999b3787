//! log, log2 and log1p.
//!
//! `x = m * 2^e` with m around 1, so that `ln x = e ln 2 + ln m`. The f32 kernels take `ln(1 + f)` as `f - f^2/2` plus a
//! polynomial; the f64 one, made for the kernels whose results are rounded to f32, as `2 atanh((m - 1) / (m + 1))`.

use super::exponential::{LN_2_HIGH, LN_2_HIGH_DOUBLE, LN_2_LOW, LN_2_LOW_DOUBLE};
use super::lane::{MulAdd, polynomial, polynomial_double, select, split, split_double};

/// `(ln(1 + f) - f) / f^2` for `1 + f` in `[sqrt(1/2), sqrt(2)]`, within 2^-27 of ln(1 + f).
pub(in crate::cpu) const LOG: [f32; 9] = [
    -0.5,
    3.333_333e-1,
    -2.500_082e-1,
    2.000_122_8e-1,
    -1.662_335_8e-1,
    1.420_174_5e-1,
    -1.316_016_2e-1,
    1.276_164_8e-1,
    -7.634_63e-2,
];

/// The natural logarithm.
#[inline(always)]
pub(super) fn log<M: MulAdd>(x: f32) -> f32 {
    let (f, tail, e) = log_parts::<M>(x);
    let sum = f + M::single(e, LN_2_LOW, tail);
    at_the_edges(x, M::single(e, LN_2_HIGH, sum))
}

/// The logarithm to base 2; exact for powers of two.
#[inline(always)]
pub(super) fn log2<M: MulAdd>(x: f32) -> f32 {
    /// log2(e) in two parts; the first has 12 bits, so that its product with another 12-bit number is exact.
    const HIGH: f32 = 1.442_382_8;
    const LOW: f32 = 3.122_284e-4;
    let (f, tail, e) = log_parts::<M>(x);
    // Twelve bits of ln m are multiplied exactly; what they leave off joins the small terms.
    let high = f32::from_bits((f + tail).to_bits() & 0xffff_f000);
    let low = (f - high) + tail;
    let small = M::single(high, LOW, low * std::f32::consts::LOG2_E);
    at_the_edges(x, M::single(high, HIGH, small) + e)
}

/// `(f, t, e)` with `ln x = f + t + e ln 2`, for x above 0.
#[inline(always)]
fn log_parts<M: MulAdd>(x: f32) -> (f32, f32, f32) {
    const TWO_23: f32 = 8_388_608.0;
    let subnormal = x < f32::MIN_POSITIVE;
    let (f, tail, e) = log_parts_normal::<M>(select(subnormal, x * TWO_23, x));
    (f, tail, e - select(subnormal, 23.0, 0.0))
}

/// As [`log_parts`], for normal x.
#[inline(always)]
fn log_parts_normal<M: MulAdd>(x: f32) -> (f32, f32, f32) {
    let (m, e) = split(x);
    let f = m - 1.0;
    (f, f * f * polynomial::<M, 9>(f, LOG), e)
}

/// The logarithm `inside` of a positive finite x; else what the logarithm of x is.
#[inline(always)]
fn at_the_edges(x: f32, inside: f32) -> f32 {
    let result = select(x < f32::INFINITY, inside, x);
    let result = select(x == 0.0, f32::NEG_INFINITY, result);
    select(x < 0.0, f32::NAN, result)
}

/// ln(1 + x).
#[inline(always)]
pub(super) fn log1p<M: MulAdd>(x: f32) -> f32 {
    let sum = 1.0 + x;
    // What the sum lost, exact while it matters; ln(sum + lost) is ln(sum) + lost / sum to the last bit.
    let lost = x - (sum - 1.0);
    let (f, tail, e) = log_parts_normal::<M>(sum);
    let small = M::single(e, LN_2_LOW, tail + lost / sum);
    let result = at_the_edges(sum, M::single(e, LN_2_HIGH, f + small));
    // The zero of ln(1 - 0) is negative; every other sign is right already.
    result.copysign(x)
}

/// `(atanh(s) / s - 1) / s^2` in s^2 for `|s| <= (sqrt(2) - 1) / (sqrt(2) + 1)`, within 2^-51 of atanh(s) / s.
const LOG_DOUBLE: [f64; 6] = [
    0.3333333333330539,
    0.20000000023060197,
    0.142857087438527,
    0.11111689598880237,
    0.09061309990521797,
    0.08419522006366555,
];

/// ln x within 2^-48 of itself; -inf at 0, NaN below.
///
/// x must not be subnormal: no f32 widened to f64 is.
#[inline(always)]
pub(super) fn log_double<M: MulAdd>(x: f64) -> f64 {
    select(x < 0.0, f64::NAN, log_positive_double::<M>(x))
}

/// As [`log_double`] for x that is not below 0.
#[inline(always)]
pub(super) fn log_positive_double<M: MulAdd>(x: f64) -> f64 {
    let (m, e) = split_double(x);
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let tail = square * polynomial_double::<M, 6>(square, LOG_DOUBLE);
    let twice = s + s;
    let sum = M::double(twice, tail, M::double(e, LN_2_LOW_DOUBLE, twice));
    let result = select(x < f64::INFINITY, M::double(e, LN_2_HIGH_DOUBLE, sum), x);
    select(x == 0.0, f64::NEG_INFINITY, result)
}
