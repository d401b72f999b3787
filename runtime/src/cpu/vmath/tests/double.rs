//! The f64 forms against libm, an implementation of its own.

use crate::cpu::vmath::{BinaryMath, UnaryMath, binary_f64, binary_f64_in_place, unary_f64, unary_f64_in_place};

fn assert_close(got: f64, expected: f64, what: &str) {
    let exponent = ((expected.to_bits() >> 52) & 0x7ff) as i32;
    let ulp = 2f64.powi((exponent - 1075).max(-1022)).max(f64::from_bits(1));
    let same = got == expected || (got.is_nan() && expected.is_nan());
    // Each of the two may be off.
    assert!(same || (got - expected).abs() <= 3.0 * ulp, "{what}: {got:e}, libm {expected:e}");
}

fn numbers() -> Vec<f64> {
    let edges = [0.0, -0.0, 1.0, -1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, f64::MIN_POSITIVE, 5e-324];
    let spread = (-400..400).map(|i| (f64::from(i) * 0.07).sinh() * 0.37);
    edges.into_iter().chain(spread).collect()
}

fn libm_unary(op: UnaryMath) -> fn(f64) -> f64 {
    match op {
        UnaryMath::Exp => libm::exp,
        UnaryMath::Exp2 => libm::exp2,
        UnaryMath::Expm1 => libm::expm1,
        UnaryMath::Log => libm::log,
        UnaryMath::Log2 => libm::log2,
        UnaryMath::Log1p => libm::log1p,
        UnaryMath::Sqrt => libm::sqrt,
        UnaryMath::Rsqrt => |x| 1.0 / libm::sqrt(x),
        UnaryMath::Sin => libm::sin,
        UnaryMath::Cos => libm::cos,
        UnaryMath::Tan => libm::tan,
        UnaryMath::Asin => libm::asin,
        UnaryMath::Acos => libm::acos,
        UnaryMath::Atan => libm::atan,
        UnaryMath::Sinh => libm::sinh,
        UnaryMath::Cosh => libm::cosh,
        UnaryMath::Tanh => libm::tanh,
        UnaryMath::Asinh => libm::asinh,
        UnaryMath::Acosh => |x| if x < 1.0 { f64::NAN } else { libm::acosh(x) },
        UnaryMath::Atanh => libm::atanh,
        UnaryMath::Erf => libm::erf,
        UnaryMath::Erfc => libm::erfc,
        UnaryMath::Sigmoid => |x| {
            if x < 0.0 { libm::exp(x) / (1.0 + libm::exp(x)) } else { 1.0 / (1.0 + libm::exp(-x)) }
        },
    }
}

#[test]
fn f64_functions_agree_with_libm() {
    let input = numbers();
    let mut output = vec![0.0; input.len()];
    for &op in UnaryMath::ALL {
        unary_f64(op, &input, &mut output);
        for (x, y) in input.iter().zip(&output) {
            assert_close(*y, libm_unary(op)(*x), &format!("{}({x:e})", op.name()));
        }
        let mut values = input.clone();
        unary_f64_in_place(op, &mut values);
        assert!(values.iter().zip(&output).all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())));
    }
}

#[test]
fn f64_functions_of_two_numbers_agree_with_libm() {
    let left = numbers();
    for shift in [0, 1, 7, 100] {
        let mut right = numbers();
        right.rotate_left(shift);
        for &op in BinaryMath::ALL {
            let libm: fn(f64, f64) -> f64 = match op {
                BinaryMath::Pow => libm::pow,
                BinaryMath::Atan2 => libm::atan2,
            };
            let mut output = vec![0.0; left.len()];
            binary_f64(op, &left, &right, &mut output);
            for ((x, y), z) in left.iter().zip(&right).zip(&output) {
                assert_close(*z, libm(*x, *y), &format!("{}({x:e}, {y:e})", op.name()));
            }
            let mut values = left.clone();
            binary_f64_in_place(op, &mut values, &right);
            assert!(values.iter().zip(&output).all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())));
        }
    }
}
