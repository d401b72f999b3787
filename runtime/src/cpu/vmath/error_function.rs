//! erf and erfc.
//!
//! Near zero erf is an odd polynomial; further out it is `1 - 2^q(|x|)` with q a polynomial through log2(erfc), which
//! may be coarse there because erfc is small beside 1. erfc needs all its digits in the tail, so it is
//! `e^(-x^2)` times a smooth factor, in f64, where the square of an f32 is exact.

use super::exponential::{exp_double, exp2_fraction};
use super::lane::{MulAdd, clamp_double, polynomial, polynomial_double, power_of_two, round, select};

/// `erf(x) / x - 1` in x^2 for `|x| <= 0.92`, within 2^-31.
pub(in crate::cpu) const NEAR: [f32; 7] =
    [1.283_791_6e-1, -3.761_263_5e-1, 1.128_369_7e-1, -2.685_95e-2, 5.201_286e-3, -8.145_597e-4, 8.382_388e-5];
/// `log2(erfc(x))` for x in `[0.92, 4]`, within 2^-34 of erf.
pub(in crate::cpu) const FAR: [f32; 9] = [
    2.314_053_1e-4,
    -1.629_429,
    -9.140_101_7e-1,
    -1.558_280_4e-1,
    3.591_595_6e-2,
    -5.847_757e-3,
    5.722_601e-4,
    -2.063_481_4e-5,
    -7.538_342_3e-7,
];

/// The error function, 2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x.
#[inline(always)]
pub(super) fn erf<M: MulAdd>(x: f32) -> f32 {
    let near = M::single(x, polynomial::<M, 7>(x * x, NEAR), x);
    // From 4 on erf is 1 to the last bit, as is what the polynomial gives at 4.
    let a = select(x.abs() > 4.0, 4.0, x.abs());
    let logarithm = polynomial::<M, 9>(a, FAR);
    let (k, exponent) = round(logarithm);
    let far = 1.0 - exp2_fraction::<M>(logarithm - k) * power_of_two(exponent);
    select(x.abs() < 0.92, near, far.copysign(x))
}

/// `(x + 2) e^(x^2) erfc(x)` in `(x - 2) / (x + 2)` for x in `[0, 10.4]`, within 2^-32.
const TAIL: [f64; 13] = [
    1.0215827054076427,
    -0.6871606850963389,
    0.27947207132007407,
    -0.03644219915014334,
    -0.021510211910720105,
    0.006478857506039498,
    0.0030870046642864244,
    -0.0008365698492602223,
    -0.0006495045664720795,
    3.7227276920553784e-5,
    0.00012013420618479046,
    2.0533621880637096e-5,
    -5.0351434742982355e-6,
];

/// 1 - erf(x), with all its digits where it is small.
#[inline(always)]
pub(super) fn erfc<M: MulAdd>(x: f32) -> f32 {
    // erfc(10.4) is far below the least subnormal.
    let a = clamp_double(f64::from(x.abs()), 0.0, 10.4);
    let inverse = 1.0 / (a + 2.0);
    let factor = polynomial_double::<M, 13>((a - 2.0) * inverse, TAIL) * inverse;
    let right = exp_double::<M>(-a * a) * factor;
    select(x < 0.0, 2.0 - right, right) as f32
}
