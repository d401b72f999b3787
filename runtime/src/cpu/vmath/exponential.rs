//! exp, exp2, expm1 and the logistic function.
//!
//! `e^x = 2^k * e^r` with k the integer nearest to `x / ln 2` and `|r| <= ln 2 / 2`, where a short polynomial is exact
//! enough. The two factors of 2^k let the last product overflow to infinity and round to subnormals by itself.

use super::lane::{
    MulAdd, clamp, clamp_double, polynomial, polynomial_double, power_of_two_double, round, round_double, scale,
    select, with_sign_of,
};

/// ln 2 in two parts; the first has 15 bits, so that its product with any exponent is exact.
pub(in crate::cpu) const LN_2_HIGH: f32 = 0.693_145_75;
pub(in crate::cpu) const LN_2_LOW: f32 = 1.428_606_8e-6;

/// `(e^r - 1 - r) / r^2` for `|r| <= ln 2 / 2`, within 2^-28 of e^r.
pub(in crate::cpu) const EXP: [f32; 5] = [0.5, 1.666_651_8e-1, 4.166_619e-2, 8.369_036e-3, 1.395_147e-3];
/// `(2^r - 1 - r ln 2) / r^2` for `|r| <= 1/2`, within 2^-28 of 2^r.
pub(in crate::cpu) const EXP2: [f32; 5] = [2.402_265e-1, 5.550_361e-2, 9.618_019e-3, 1.339_068_9e-3, 1.547_320_9e-4];

/// e^x.
#[inline(always)]
pub(super) fn exp<M: MulAdd>(x: f32) -> f32 {
    // Beyond these limits the result is 0 or infinity and the scaling still says so.
    let (m, k) = exp_parts::<M>(clamp(x, -104.0, 89.0));
    scale(m, k)
}

/// `(m, k)` with `e^x = m * 2^k` and m in `[0.7, 1.42]`, for `|x| <= 104`.
#[inline(always)]
pub(super) fn exp_parts<M: MulAdd>(x: f32) -> (f32, i32) {
    let (k, exponent) = round(x * std::f32::consts::LOG2_E);
    let r = M::single(-k, LN_2_LOW, M::single(-k, LN_2_HIGH, x));
    (1.0 + M::single(r * r, polynomial::<M, 5>(r, EXP), r), exponent)
}

/// 2^x.
#[inline(always)]
pub(super) fn exp2<M: MulAdd>(x: f32) -> f32 {
    let x = clamp(x, -151.0, 129.0);
    let (k, exponent) = round(x);
    scale(exp2_fraction::<M>(x - k), exponent)
}

/// 2^r for `|r| <= 1/2`.
#[inline(always)]
pub(super) fn exp2_fraction<M: MulAdd>(r: f32) -> f32 {
    let slope = M::single(r, polynomial::<M, 5>(r, EXP2), std::f32::consts::LN_2);
    M::single(r, slope, 1.0)
}

/// 1 / (1 + e^-x), with all its digits for large negative x too.
#[inline(always)]
pub(super) fn sigmoid<M: MulAdd>(x: f32) -> f32 {
    // e^-|x| never overflows; left of zero it is the numerator as well.
    let (m, k) = exp_parts::<M>(select(x.abs() > 104.0, -104.0, -x.abs()));
    let small = scale(m, k);
    let sum = 1.0 + small;
    let quotient = select(x < 0.0, small, 1.0) / sum;
    // What the sum lost, times about 1 / sum, is given back: half an ulp less error for three instructions.
    let lost = (small - (sum - 1.0)) * M::single(small, -0.5, 1.0);
    M::single(-quotient, lost, quotient)
}

/// e^x - 1.
#[inline(always)]
pub(super) fn expm1<M: MulAdd>(x: f32) -> f32 {
    with_sign_of(expm1_double::<M>(clamp_double(f64::from(x), -104.0, 89.0)), x)
}

/// ln 2 in two parts; the first has 40 bits.
pub(super) const LN_2_HIGH_DOUBLE: f64 = 0.6931471805592082;
pub(super) const LN_2_LOW_DOUBLE: f64 = 7.371002565167799e-13;

/// `(e^r - 1 - r) / r^2` for `|r| <= ln 2 / 2`, within 2^-45 of e^r.
const EXP_DOUBLE: [f64; 8] = [
    0.4999999999963445,
    0.16666666666629973,
    0.04166666699997624,
    0.00833333336540352,
    0.0013888803503996244,
    0.00019841189639056739,
    2.488481973217763e-5,
    2.763411849958273e-6,
];

/// e^x within 2^-44, for `|x| <= 700`.
#[inline(always)]
pub(super) fn exp_double<M: MulAdd>(x: f64) -> f64 {
    let (power, tail) = exp_parts_double::<M>(x);
    M::double(power, tail, power)
}

/// e^x - 1 within 2^-44 of itself, for `|x| <= 700`; the sign of zero is lost.
#[inline(always)]
pub(super) fn expm1_double<M: MulAdd>(x: f64) -> f64 {
    let (power, tail) = exp_parts_double::<M>(x);
    M::double(power, tail, power - 1.0)
}

/// `(p, t)` with `e^x = p * (1 + t)` and p a power of two.
#[inline(always)]
fn exp_parts_double<M: MulAdd>(x: f64) -> (f64, f64) {
    let (k, exponent) = round_double(x * std::f64::consts::LOG2_E);
    let r = M::double(-k, LN_2_LOW_DOUBLE, M::double(-k, LN_2_HIGH_DOUBLE, x));
    let tail = M::double(r * r, polynomial_double::<M, 8>(r, EXP_DOUBLE), r);
    (power_of_two_double(exponent), tail)
}
