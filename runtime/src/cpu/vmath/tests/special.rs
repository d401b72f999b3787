//! The values that C fixes: zeros and their signs, infinities, NaN, exact powers.

use crate::cpu::vmath::{BinaryMath, Isa, UnaryMath, binary_f32, unary_f32};
use std::f32::consts::{FRAC_PI_2, FRAC_PI_4, PI};

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;
/// The least subnormal.
const LEAST: f32 = f32::from_bits(1);

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

fn check(op: UnaryMath, cases: &[(f32, f32)]) {
    for &isa in Isa::available() {
        for &(x, expected) in cases {
            let mut got = [0.0];
            unary_f32(isa, op, &[x], &mut got);
            assert!(same(got[0], expected), "{}({x:e}) on {isa} is {expected:e}, got {:e}", op.name(), got[0]);
        }
    }
}

fn check_pairs(op: BinaryMath, cases: &[(f32, f32, f32)]) {
    for &isa in Isa::available() {
        for &(x, y, expected) in cases {
            let mut got = [0.0];
            binary_f32(isa, op, &[x], &[y], &mut got);
            assert!(same(got[0], expected), "{}({x:e}, {y:e}) on {isa} is {expected:e}, got {:e}", op.name(), got[0]);
        }
    }
}

#[test]
fn nan_propagates_through_every_unary_function() {
    for &op in UnaryMath::ALL {
        check(op, &[(NAN, NAN), (-NAN, NAN), (f32::from_bits(0x7f80_0001), NAN), (f32::from_bits(0x7fff_ffff), NAN)]);
    }
}

#[test]
fn odd_functions_keep_signed_zeros_and_the_least_numbers() {
    use UnaryMath::*;
    for op in [Expm1, Log1p, Sin, Tan, Asin, Atan, Sinh, Tanh, Asinh, Atanh] {
        check(op, &[(0.0, 0.0), (-0.0, -0.0), (LEAST, LEAST), (-LEAST, -LEAST), (1e-40, 1e-40)]);
    }
    check(Erf, &[(0.0, 0.0), (-0.0, -0.0), (LEAST, LEAST), (-LEAST, -LEAST)]);
    check(Sqrt, &[(0.0, 0.0), (-0.0, -0.0), (4.0, 2.0), (-1.0, NAN), (INF, INF), (-INF, NAN)]);
    check(Rsqrt, &[(0.0, INF), (-0.0, -INF), (4.0, 0.5), (-1.0, NAN), (INF, 0.0), (-INF, NAN)]);
}

#[test]
fn exponentials_overflow_to_infinity_and_underflow_to_zero() {
    use UnaryMath::*;
    check(
        Exp,
        &[
            (0.0, 1.0),
            (-0.0, 1.0),
            (INF, INF),
            (-INF, 0.0),
            (88.8, INF),
            (f32::MAX, INF),
            (-104.0, 0.0),
            (f32::MIN, 0.0),
        ],
    );
    check(
        Exp2,
        &[
            (0.0, 1.0),
            (INF, INF),
            (-INF, 0.0),
            (128.0, INF),
            (f32::MAX, INF),
            (-149.0, LEAST),
            (-151.0, 0.0),
            (-126.0, f32::MIN_POSITIVE),
        ],
    );
    check(Expm1, &[(INF, INF), (-INF, -1.0), (89.0, INF), (f32::MAX, INF), (-104.0, -1.0), (f32::MIN, -1.0)]);
    check(Sigmoid, &[(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (f32::MAX, 1.0), (f32::MIN, 0.0)]);
    check(Sinh, &[(INF, INF), (-INF, -INF), (90.0, INF), (-f32::MAX, -INF)]);
    check(Cosh, &[(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, INF), (90.0, INF), (-f32::MAX, INF)]);
    check(Tanh, &[(INF, 1.0), (-INF, -1.0), (f32::MAX, 1.0), (-50.0, -1.0)]);
    check(Erf, &[(INF, 1.0), (-INF, -1.0), (f32::MAX, 1.0), (-4.0, -1.0)]);
    check(Erfc, &[(0.0, 1.0), (-0.0, 1.0), (INF, 0.0), (-INF, 2.0), (f32::MAX, 0.0), (f32::MIN, 2.0)]);
}

#[test]
fn powers_of_two_are_exact() {
    for k in -149..128 {
        let power = 2f64.powi(k) as f32;
        check(UnaryMath::Exp2, &[(k as f32, power)]);
        check(UnaryMath::Log2, &[(power, k as f32)]);
        check_pairs(BinaryMath::Pow, &[(2.0, k as f32, power)]);
    }
}

#[test]
fn logarithms_are_infinite_at_zero_and_nan_below() {
    use UnaryMath::*;
    for op in [Log, Log2] {
        check(op, &[(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF), (-1.0, NAN), (-LEAST, NAN), (-INF, NAN)]);
    }
    check(Log1p, &[(-1.0, -INF), (INF, INF), (-1.000_000_1, NAN), (-INF, NAN)]);
    check(Acosh, &[(1.0, 0.0), (INF, INF), (0.999_999_94, NAN), (0.0, NAN), (-2.0, NAN), (-INF, NAN)]);
    check(Asinh, &[(INF, INF), (-INF, -INF)]);
    check(Atanh, &[(1.0, INF), (-1.0, -INF), (1.000_000_1, NAN), (-2.0, NAN), (INF, NAN), (-INF, NAN)]);
}

#[test]
fn circular_functions_take_any_argument_but_infinity() {
    use UnaryMath::*;
    for op in [Sin, Cos, Tan] {
        check(op, &[(INF, NAN), (-INF, NAN)]);
    }
    check(Cos, &[(0.0, 1.0), (-0.0, 1.0), (LEAST, 1.0)]);
    // Computed with 400 digits of pi.
    check(Sin, &[(f32::MAX, -0.521_876_5), (1e30, -0.791_163_44), (32_769.0, 0.815_139_3)]);
    check(Asin, &[(1.0, FRAC_PI_2), (-1.0, -FRAC_PI_2), (1.000_000_1, NAN), (-INF, NAN)]);
    check(Acos, &[(1.0, 0.0), (-1.0, PI), (0.0, FRAC_PI_2), (-0.0, FRAC_PI_2), (1.000_000_1, NAN), (-INF, NAN)]);
    check(Atan, &[(1.0, FRAC_PI_4), (INF, FRAC_PI_2), (-INF, -FRAC_PI_2), (f32::MAX, FRAC_PI_2)]);
}

#[test]
fn pow_follows_c() {
    let half = 0.5;
    check_pairs(
        BinaryMath::Pow,
        &[
            (NAN, 0.0, 1.0),
            (NAN, -0.0, 1.0),
            (INF, 0.0, 1.0),
            (0.0, 0.0, 1.0),
            (-2.0, -0.0, 1.0),
            (1.0, NAN, 1.0),
            (1.0, INF, 1.0),
            (1.0, -INF, 1.0),
            (1.0, 7.3, 1.0),
            (NAN, 1.0, NAN),
            (2.0, NAN, NAN),
            (-1.0, NAN, NAN),
            (0.0, NAN, NAN),
            (INF, NAN, NAN),
            (NAN, INF, NAN),
            (-2.0, 3.0, -8.0),
            (-2.0, 2.0, 4.0),
            (-2.0, -1.0, -half),
            (-8.0, 1.0 / 3.0, NAN),
            (-half, half, NAN),
            (3.0, 3.0, 27.0),
            (10.0, 2.0, 100.0),
            (7.0, 1.0, 7.0),
            (4.0, half, 2.0),
            (0.0, -3.0, INF),
            (-0.0, -3.0, -INF),
            (0.0, -2.0, INF),
            (-0.0, -2.0, INF),
            (-0.0, -half, INF),
            (-0.0, -INF, INF),
            (0.0, 3.0, 0.0),
            (-0.0, 3.0, -0.0),
            (0.0, 2.0, 0.0),
            (-0.0, 2.0, 0.0),
            (-0.0, half, 0.0),
            (-0.0, INF, 0.0),
            (-1.0, INF, 1.0),
            (-1.0, -INF, 1.0),
            (-1.0, 3.0, -1.0),
            (-1.0, 4.0, 1.0),
            (-1.0, half, NAN),
            (-1.0, 16_777_217.0, 1.0),
            (-1.0, 16_777_215.0, -1.0),
            (-1.0, 8_388_607.5, NAN),
            (-1.0, f32::MAX, 1.0),
            (half, INF, 0.0),
            (half, -INF, INF),
            (2.0, INF, INF),
            (2.0, -INF, 0.0),
            (-half, INF, 0.0),
            (-2.0, INF, INF),
            (INF, 2.0, INF),
            (INF, -2.0, 0.0),
            (INF, half, INF),
            (-INF, 3.0, -INF),
            (-INF, 2.0, INF),
            (-INF, half, INF),
            (-INF, -3.0, -0.0),
            (-INF, -2.0, 0.0),
            (-INF, -half, 0.0),
            (f32::MAX, 2.0, INF),
            (-f32::MAX, 3.0, -INF),
            (1e-30, 3.0, 0.0),
            (-1e-30, 3.0, -0.0),
            (LEAST, 1.0, LEAST),
        ],
    );
}

#[test]
fn atan2_follows_c() {
    let three_quarters = 2.356_194_5;
    check_pairs(
        BinaryMath::Atan2,
        &[
            (0.0, 0.0, 0.0),
            (-0.0, 0.0, -0.0),
            (0.0, -0.0, PI),
            (-0.0, -0.0, -PI),
            (0.0, 1.0, 0.0),
            (-0.0, 1.0, -0.0),
            (0.0, -1.0, PI),
            (-0.0, -1.0, -PI),
            (1.0, 0.0, FRAC_PI_2),
            (1.0, -0.0, FRAC_PI_2),
            (-1.0, 0.0, -FRAC_PI_2),
            (-1.0, -0.0, -FRAC_PI_2),
            (1.0, INF, 0.0),
            (-1.0, INF, -0.0),
            (1.0, -INF, PI),
            (-1.0, -INF, -PI),
            (0.0, INF, 0.0),
            (0.0, -INF, PI),
            (INF, 1.0, FRAC_PI_2),
            (-INF, -1.0, -FRAC_PI_2),
            (INF, 0.0, FRAC_PI_2),
            (INF, INF, FRAC_PI_4),
            (-INF, INF, -FRAC_PI_4),
            (INF, -INF, three_quarters),
            (-INF, -INF, -three_quarters),
            (NAN, 1.0, NAN),
            (1.0, NAN, NAN),
            (0.0, NAN, NAN),
            (INF, NAN, NAN),
            (NAN, INF, NAN),
            (NAN, 0.0, NAN),
            (1.0, 1.0, FRAC_PI_4),
            (LEAST, LEAST, FRAC_PI_4),
            (LEAST, -f32::MAX, PI),
            (LEAST, f32::MAX, 0.0),
        ],
    );
}
