//! Every elementwise op that has a gradient, and what its gradient is at special places.

use kiln_ir::grad::{Differentiability, differentiability};
use kiln_ir::{DType, Op, ScalarOp};

use super::difference::{Argument, agrees};
use super::{LOC, derivatives, gradients};

/// Where the operands of an op are drawn from: inside its domain, and where it is smooth.
fn domains(op: ScalarOp) -> [std::ops::Range<f64>; 3] {
    use ScalarOp::*;
    let one = |range: std::ops::Range<f64>| [range.clone(), range.clone(), range];
    match op {
        Log | Log2 | Sqrt | Rsqrt | Recip => one(0.3..3.0),
        Log1p => one(-0.5..2.0),
        Tan => one(-1.2..1.2),
        Asin | Acos | Atanh => one(-0.8..0.8),
        Acosh => one(1.2..3.0),
        Abs => one(0.1..2.0),
        Div => [-2.0..2.0, 0.5..2.0, 0.0..0.0],
        // The quotient lies between 1.1 and 1.9, so its integer part does not jump.
        Rem => [2.2..2.8, 1.5..2.0, 0.0..0.0],
        Pow => [0.4..2.0, -2.0..2.5, 0.0..0.0],
        Atan2 => [0.3..2.0, -2.0..2.0, 0.0..0.0],
        // Some inputs are below, some inside, some above the bounds.
        Clamp => [-2.0..2.0, -1.1..-0.9, 0.9..1.1],
        Neg | Exp | Exp2 | Expm1 | Sin | Cos | Atan | Sinh | Cosh | Tanh | Asinh | Erf | Sigmoid | Add | Sub | Mul
        | Max | Min => one(-1.7..1.9),
        Sign | Floor | Ceil | Round | Trunc | Not | IsNan | IsInf | IsFinite | And | Or | Xor | Shl | Shr | Eq | Ne
        | Lt | Le | Gt | Ge => one(0.1..0.9),
    }
}

#[test]
fn every_elementwise_gradient_equals_finite_differences_to_third_order() {
    let mut checked = 0;
    for &op in ScalarOp::ALL {
        if differentiability(&Op::Scalar(op)) != Differentiability::Differentiable {
            continue;
        }
        let domains = domains(op);
        for shape in [&[][..], &[0], &[1], &[7], &[3, 1], &[1, 3]] {
            let arguments: Vec<Argument<'_>> =
                domains[..op.arity()].iter().map(|domain| (shape, domain.clone())).collect();
            agrees(op.name(), 3, &arguments, |b, x| b.scalar(op, x, LOC));
        }
        checked += 1;
    }
    assert_eq!(checked, 35);
}

#[test]
fn an_elementwise_op_of_floats_has_a_gradient_or_is_piecewise_constant() {
    for &op in ScalarOp::ALL {
        let flat = ["sign", "floor", "ceil", "round", "trunc"].contains(&op.name());
        let gives_floats = op.result_dtype(DType::F32).is_some_and(DType::is_float);
        let expected = match gives_floats && !flat {
            true => Differentiability::Differentiable,
            false => Differentiability::Zero,
        };
        assert_eq!(differentiability(&Op::Scalar(op)), expected, "{op}");
    }
}

#[test]
fn gradients_at_the_edges_of_a_domain_are_what_ieee_754_makes_of_the_formula() {
    let at = |op: ScalarOp, x: f64| derivatives(1, x, |b, v| b.scalar(op, &[v], LOC))[0];
    assert_eq!(at(ScalarOp::Sqrt, 0.0), f64::INFINITY);
    assert_eq!(at(ScalarOp::Log, 0.0), f64::INFINITY);
    assert_eq!(at(ScalarOp::Log1p, -1.0), f64::INFINITY);
    assert_eq!(at(ScalarOp::Asin, 1.0), f64::INFINITY);
    assert_eq!(at(ScalarOp::Acos, 1.0), f64::NEG_INFINITY);
    assert_eq!(at(ScalarOp::Acosh, 1.0), f64::INFINITY);
    assert_eq!(at(ScalarOp::Atanh, 1.0), f64::INFINITY);
    assert_eq!(at(ScalarOp::Abs, 0.0), 0.0);
    assert_eq!(at(ScalarOp::Recip, 0.0), f64::NEG_INFINITY);
    assert!(at(ScalarOp::Sqrt, -1.0).is_nan());
}

#[test]
fn squashing_functions_are_flat_far_out_and_never_nan() {
    let numbers = [-1e4, -100.0, 0.0, 100.0, 1e4];
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let of = |op: ScalarOp| gradients(dtype, &[(&[5], &numbers)], |b, x| b.scalar(op, x, LOC)).concat();
        let sigmoid = of(ScalarOp::Sigmoid);
        assert!(sigmoid.iter().zip([0.0, 0.0, 0.25, 0.0, 0.0]).all(|(a, b)| (a - b).abs() < 1e-38), "{sigmoid:?}");
        assert_eq!(of(ScalarOp::Tanh), [0.0, 0.0, 1.0, 0.0, 0.0]);
        let erf = of(ScalarOp::Erf);
        assert!((erf[2] - std::f64::consts::FRAC_2_SQRT_PI).abs() < 1e-2);
        assert!([0, 1, 3, 4].into_iter().all(|index| erf[index] == 0.0), "{erf:?}");
        assert_eq!(of(ScalarOp::Atan)[2], 1.0);
    }
}

#[test]
fn the_gradients_of_an_angle_survive_where_squares_overflow_or_vanish() {
    for (dtype, size) in [(DType::F16, 300.0), (DType::F32, 1e25), (DType::F32, 1e-25), (DType::F64, 1e200)] {
        let found = gradients(dtype, &[(&[], &[size]), (&[], &[size])], |b, x| b.scalar(ScalarOp::Atan2, x, LOC));
        let expected = 0.5 / size;
        assert!((found[0][0] / expected - 1.0).abs() < 1e-2, "{dtype} {size}: {found:?}");
        assert!((found[1][0] / -expected - 1.0).abs() < 1e-2, "{dtype} {size}: {found:?}");
    }
    let asinh = gradients(DType::F16, &[(&[], &[1000.0])], |b, x| b.scalar(ScalarOp::Asinh, x, LOC));
    assert!((asinh[0][0] * 1000.0 - 1.0).abs() < 1e-2, "{asinh:?}");
    let acosh = gradients(DType::F16, &[(&[], &[1000.0])], |b, x| b.scalar(ScalarOp::Acosh, x, LOC));
    assert!((acosh[0][0] * 1000.0 - 1.0).abs() < 1e-2, "{acosh:?}");
}

#[test]
fn an_angle_on_an_axis_has_all_its_derivatives() {
    // atan2(x, 1) = atan(x): derivatives at 0 are 1, 0, -2, 0, 24.
    let found = derivatives(5, 0.0, |b, x| {
        let one = b.full_like(x, 1.0, LOC)?;
        b.scalar(ScalarOp::Atan2, &[x, one], LOC)
    });
    assert!(found.iter().zip([1.0, 0.0, -2.0, 0.0, 24.0]).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
}

#[test]
fn a_tie_of_maximum_and_minimum_gives_half_to_each() {
    let (a, b): (&[f64], &[f64]) = (&[2.0, 1.0, 3.0], &[2.0, 3.0, 1.0]);
    let maximum = gradients(DType::F32, &[(&[3], a), (&[3], b)], |g, x| g.scalar(ScalarOp::Max, x, LOC));
    assert_eq!(maximum, [[0.5, 0.0, 1.0], [0.5, 1.0, 0.0]]);
    let minimum = gradients(DType::F32, &[(&[3], a), (&[3], b)], |g, x| g.scalar(ScalarOp::Min, x, LOC));
    assert_eq!(minimum, [[0.5, 1.0, 0.0], [0.5, 0.0, 1.0]]);
}

#[test]
fn clamp_passes_inside_and_at_its_bounds() {
    let clamp = |x: f64, low: f64, high: f64| {
        let arguments: [(&[usize], &[f64]); 3] = [(&[], &[x]), (&[], &[low]), (&[], &[high])];
        gradients(DType::F32, &arguments, |b, x| b.scalar(ScalarOp::Clamp, x, LOC)).concat()
    };
    assert_eq!(clamp(0.5, 0.0, 1.0), [1.0, 0.0, 0.0]);
    assert_eq!(clamp(0.0, 0.0, 1.0), [1.0, 0.0, 0.0]);
    assert_eq!(clamp(1.0, 0.0, 1.0), [1.0, 0.0, 0.0]);
    assert_eq!(clamp(-1.0, 0.0, 1.0), [0.0, 1.0, 0.0]);
    assert_eq!(clamp(2.0, 0.0, 1.0), [0.0, 0.0, 1.0]);
    // Bounds that cross: the result is the upper one.
    assert_eq!(clamp(0.5, 1.0, 0.0), [0.0, 0.0, 1.0]);
    assert_eq!(clamp(f64::NAN, 0.0, 1.0), [1.0, 0.0, 0.0]);
}

#[test]
fn the_remainder_moves_with_its_dividend_and_against_the_quotient_of_its_divisor() {
    let found =
        gradients(DType::F32, &[(&[2], &[7.5, -7.5]), (&[2], &[2.0, 2.0])], |b, x| b.scalar(ScalarOp::Rem, x, LOC));
    assert_eq!(found, [[1.0, 1.0], [-3.0, 3.0]]);
}
