//! NaN, infinities, rounding: what rewrites and fused kernels must not lose.

use kiln_ir::{DType, Direction, Op, ReduceKind, ScalarOp, ScanKind, Value};

use super::{INF, NAN, Program};
use crate::relaxed;

#[test]
fn a13_nan_passes_through_every_maximum_and_minimum() {
    let mut p = Program::new();
    let v = p.vector(&[1.0, NAN, 3.0, -2.0]);
    let most = p.reduce(ReduceKind::Max, v, 0);
    p.expect(most, &[NAN]);
    let least = p.reduce(ReduceKind::Min, v, 0);
    p.expect(least, &[NAN]);
    let zero = p.number(v, 0.0);
    let two = p.number(v, 2.0);
    let relu = p.binary(ScalarOp::Max, v, zero);
    p.expect(relu, &[1.0, NAN, 3.0, 0.0]);
    let clamped = p.op(Op::Scalar(ScalarOp::Clamp), &[v, zero, two]);
    p.expect(clamped, &[1.0, NAN, 2.0, 0.0]);
    let (left, right) = (p.vector(&[NAN, 1.0]), p.vector(&[1.0, NAN]));
    let maximum = p.binary(ScalarOp::Max, left, right);
    p.expect(maximum, &[NAN, NAN]);
    let minimum = p.binary(ScalarOp::Min, left, right);
    p.expect(minimum, &[NAN, NAN]);
    let low = p.vector(&[-INF, NAN]);
    let most = p.reduce(ReduceKind::Max, low, 0);
    p.expect(most, &[NAN]);
    let x = p.vector(&[1.0, NAN, 3.0]);
    let running = p.op(Op::Scan { kind: ScanKind::Max, axis: 0, direction: Direction::Forward }, &[x]);
    p.expect(running, &[1.0, NAN, NAN]);
    p.check();
}

#[test]
fn a13_nan_at_every_place_of_a_long_row_is_found() {
    for place in [0, 1, 15, 16, 63, 64, 1000, 1024, 1029] {
        let mut values = vec![-1.0; 1030];
        values[place] = NAN;
        let mut p = Program::new();
        let v = p.vector(&values);
        let most = p.reduce(ReduceKind::Max, v, 0);
        p.expect(most, &[NAN]);
        let first = p.reduce(ReduceKind::ArgMax, v, 0);
        p.expect_ints(first, &[place as i128]);
        let first = p.reduce(ReduceKind::ArgMin, v, 0);
        p.expect_ints(first, &[place as i128]);
        p.check_once();
    }
}

#[test]
fn a14_arg_reductions_give_the_first_nan_else_the_lowest_index() {
    let mut p = Program::new();
    let mut arg = |kind: ReduceKind, values: &[f64], right: i128| {
        let x = p.vector(values);
        let place = p.reduce(kind, x, 0);
        p.expect_ints(place, &[right]);
    };
    arg(ReduceKind::ArgMax, &[NAN, 1.0, NAN], 0);
    arg(ReduceKind::ArgMax, &[1.0, NAN, 3.0], 1);
    arg(ReduceKind::ArgMax, &[1.0, 3.0, 3.0, 2.0], 1);
    arg(ReduceKind::ArgMin, &[2.0, 0.0, 0.0], 1);
    arg(ReduceKind::ArgMax, &[-0.0, 0.0], 0);
    arg(ReduceKind::ArgMin, &[0.0, -0.0], 0);
    p.check();
}

#[test]
fn a14_ties_at_both_ends_go_to_the_lowest_index() {
    for length in [4, 511, 512, 513, 1025] {
        let mut p = Program::new();
        let mut rows = vec![0.0; 3 * length];
        for row in 0..3 {
            rows[row * length] = 7.0;
            rows[(row + 1) * length - 1] = 7.0;
        }
        let x = p.f32(&[3, length], &rows);
        let most = p.reduce(ReduceKind::ArgMax, x, 1);
        p.expect_ints(most, &[0, 0, 0]);
        let negative = p.unary(ScalarOp::Neg, x);
        let least = p.reduce(ReduceKind::ArgMin, negative, 1);
        p.expect_ints(least, &[0, 0, 0]);
        let columns = p.permute(x, &[1, 0]);
        let down = p.reduce(ReduceKind::ArgMax, columns, 0);
        p.expect_ints(down, &[0, 0, 0]);
        p.check();
    }
}

#[test]
fn a23_arithmetic_that_looks_trivial_keeps_nan() {
    if relaxed::ignores_nan() {
        return;
    }
    let mut p = Program::new();
    let x = p.vector(&[INF, NAN, 2.0, 0.0]);
    let zero = p.number(x, 0.0);
    let product = p.mul(x, zero);
    p.expect(product, &[NAN, NAN, 0.0, 0.0]);
    let difference = p.sub(x, x);
    p.expect(difference, &[NAN, NAN, 0.0, 0.0]);
    let quotient = p.binary(ScalarOp::Div, x, x);
    p.expect(quotient, &[NAN, NAN, 1.0, NAN]);
    let power = p.binary(ScalarOp::Pow, x, zero);
    p.expect(power, &[1.0; 4]);
    let same = p.binary(ScalarOp::Eq, x, x);
    p.expect_ints(same, &[1, 0, 1, 1]);
    let (whole, broken) = (p.vector(&[1.0, 1.0]), p.vector(&[1.0, NAN]));
    let (fine, lost) = (p.mean(whole, 0), p.mean(broken, 0));
    let nothing = p.scale(lost, 0.0);
    let sum = p.add(fine, nothing);
    p.expect(sum, &[NAN]);
    p.check();
}

#[test]
fn a24_inverse_pairs_keep_their_overflow() {
    let mut p = Program::new();
    let x = p.vector(&[100.0, -200.0]);
    let power = p.unary(ScalarOp::Exp, x);
    let back = p.unary(ScalarOp::Log, power);
    p.expect(back, &[INF, -INF]);
    let large = p.vector(&[1e20]);
    let square = p.mul(large, large);
    let root = p.unary(ScalarOp::Sqrt, square);
    p.expect(root, &[INF]);
    let negative = p.vector(&[-1.0]);
    let log = p.unary(ScalarOp::Log, negative);
    let back = p.unary(ScalarOp::Exp, log);
    p.expect(back, &[NAN]);
    p.check();
}

#[test]
fn a25_a_product_of_powers_is_not_a_power_of_the_sum() {
    let mut p = Program::new();
    let (a, b) = (p.vector(&[100.0]), p.vector(&[-110.0]));
    let (a, b) = (p.unary(ScalarOp::Exp, a), p.unary(ScalarOp::Exp, b));
    let product = p.mul(a, b);
    p.expect(product, &[NAN]);
    p.check();
}

#[test]
fn a26_special_values_are_the_same_folded_and_run() {
    let mut p = Program::new();
    let zero = p.vector(&[0.0]);
    let angle = p.binary(ScalarOp::Atan2, zero, zero);
    p.expect(angle, &[0.0]);
    let pairs = [(-1.5, -1.5, NAN), (-2.0, 3.0, -8.0), (-2.0, 2.0, 4.0), (0.0, 0.0, 1.0), (-8.0, 1.0 / 3.0, NAN)];
    for (base, exponent, right) in pairs {
        let (base, exponent) = (p.vector(&[base]), p.vector(&[exponent]));
        let power = p.binary(ScalarOp::Pow, base, exponent);
        p.expect(power, &[right]);
        if right.is_nan() {
            let log = p.unary(ScalarOp::Log, power);
            p.expect(log, &[NAN]);
        }
    }
    let a = p.vector(&[3.0]);
    let nonzero = p.binary(ScalarOp::Ne, a, zero);
    let neither = p.binary(ScalarOp::Xor, nonzero, nonzero);
    let number = p.cast(neither, DType::F32);
    let angle = p.binary(ScalarOp::Atan2, number, number);
    p.expect(angle, &[0.0]);
    p.check();
}

fn pair(p: &mut Program, x: Value, through: DType) -> Value {
    let dtype = p.b.ty(x).dtype;
    let there = p.cast(x, through);
    p.cast(there, dtype)
}

#[test]
fn a27_a_pair_of_casts_keeps_its_rounding() {
    let mut p = Program::new();
    let x = p.vector(&[1.001, 3.3, 70000.0]);
    let half = pair(&mut p, x, DType::F16);
    p.expect(half, &[1.000_976_562_5, 3.300_781_25, INF]);
    let x = p.vector(&[1.003_906_25]);
    let brain = pair(&mut p, x, DType::BF16);
    p.expect(brain, &[1.0]);
    let x = p.vector(&[3.9, -3.9]);
    let whole = pair(&mut p, x, DType::I32);
    p.expect(whole, &[3.0, -3.0]);
    let x = p.ints(DType::I32, &[1], &[16_777_217]);
    let float = pair(&mut p, x, DType::F32);
    p.expect_ints(float, &[16_777_216]);
    let x = p.vector(&[2.0, 0.0, NAN]);
    let truth = pair(&mut p, x, DType::Bool);
    p.expect(truth, &[1.0, 0.0, 1.0]);
    p.check();
}

#[test]
fn a29_sixteen_bit_sums_are_accumulated_wide() {
    let mut p = Program::new();
    let ones = p.floats(DType::F16, &[4096], &[1.0; 4096]);
    let sum = p.sum(ones, 0);
    p.expect(sum, &[4096.0]);
    let ones = p.floats(DType::BF16, &[512], &[1.0; 512]);
    let sum = p.sum(ones, 0);
    p.expect(sum, &[512.0]);
    let large = p.floats(DType::F16, &[2], &[65504.0; 2]);
    let sum = p.sum(large, 0);
    p.expect(sum, &[INF]);
    p.check();
}

#[test]
fn a29_a_mean_and_a_softmax_in_f32_serve_f16() {
    let mut p = Program::new();
    let x = p.floats(DType::F16, &[4], &[30000.0; 4]);
    let wide = p.cast(x, DType::F32);
    let mean = p.mean(wide, 0);
    let narrow = p.cast(mean, DType::F16);
    p.expect(narrow, &[30000.0]);
    let logits = p.floats(DType::F16, &[4096], &[1.5; 4096]);
    let wide = p.cast(logits, DType::F32);
    let soft = p.softmax(wide, 0);
    let narrow = p.cast(soft, DType::F16);
    p.expect(narrow, &[1.0 / 4096.0; 4096]);
    let total = p.sum(narrow, 0);
    p.expect_near(total, &[1.0], 1e-3);
    p.check();
}

#[test]
fn a30_a_small_constant_is_what_its_dtype_makes_of_it() {
    let mut p = Program::new();
    let x = p.floats(DType::F16, &[5], &[0.0; 5]);
    let variance = p.variance(x, 0);
    let with_epsilon = p.shift(variance, 1e-9);
    let scale = p.unary(ScalarOp::Rsqrt, with_epsilon);
    let result = p.mul(x, scale);
    p.expect(result, &[NAN; 5]);
    let wide = p.cast(x, DType::F32);
    let variance = p.variance(wide, 0);
    let with_epsilon = p.shift(variance, 1e-9);
    let scale = p.unary(ScalarOp::Rsqrt, with_epsilon);
    let result = p.mul(wide, scale);
    let result = p.cast(result, DType::F16);
    p.expect(result, &[0.0; 5]);
    p.check();
}

#[test]
fn a37_casts_to_integers_truncate_and_saturate_in_every_kernel() {
    let mut p = Program::new();
    let x = p.floats(DType::F64, &[3], &[1.9, -1.9, 0.5]);
    let whole = p.cast(x, DType::I64);
    p.expect_ints(whole, &[1, -1, 0]);
    let x = p.floats(DType::F64, &[1], &[1.9427]);
    let doubled = p.add(x, x);
    let whole = p.cast(doubled, DType::I64);
    p.expect_ints(whole, &[3]);
    let x = p.vector(&[NAN, INF, -INF, 3e9]);
    let whole = p.cast(x, DType::I32);
    p.expect_ints(whole, &[0, i32::MAX.into(), i32::MIN.into(), i32::MAX.into()]);
    p.check();
}

#[test]
fn a40_the_variance_of_large_numbers_is_not_lost() {
    let mut p = Program::new();
    let x = p.vector(&[10000.0, 10001.0, 10002.0]);
    let variance = p.variance(x, 0);
    p.expect_near(variance, &[2.0 / 3.0], 1e-6);
    let mean = p.mean(x, 0);
    let distance = p.sub(x, mean);
    let shifted = p.shift(variance, 1e-5);
    let root = p.unary(ScalarOp::Sqrt, shifted);
    let normal = p.binary(ScalarOp::Div, distance, root);
    p.expect_near(normal, &[-1.224_735, 0.0, 1.224_735], 1e-5);
    let same = p.vector(&[12345.678; 7]);
    let variance = p.variance(same, 0);
    let negative = p.number(variance, 0.0);
    let negative = p.binary(ScalarOp::Lt, variance, negative);
    p.expect_ints(negative, &[0]);
    p.check();
}

#[test]
fn a41_log_softmax_and_masked_rows_stay_finite() {
    let mut p = Program::new();
    let x = p.vector(&[1000.0, 0.0, -1000.0]);
    let log = p.log_softmax(x, 0);
    p.expect(log, &[0.0, -1000.0, -2000.0]);
    let x = p.vector(&[0.0, -200.0]);
    let log = p.log_softmax(x, 0);
    p.expect(log, &[0.0, -200.0]);
    let x = p.vector(&[-INF, 0.0, 0.0]);
    let soft = p.softmax(x, 0);
    p.expect(soft, &[0.0, 0.5, 0.5]);
    let log = p.log_softmax(x, 0);
    p.expect_near(log, &[-INF, -0.693_147_2, -0.693_147_2], 1e-6);
    let x = p.vector(&[-INF; 3]);
    let soft = p.softmax(x, 0);
    p.expect(soft, &[NAN; 3]);
    p.check();
    for width in [1usize, 3, 31, 32, 33, 1023, 1025] {
        let mut p = Program::new();
        let mut rows = vec![0.0; 2 * width];
        rows[width..].fill(-INF);
        rows[2 * width - 1] = 5.0;
        let x = p.f32(&[2, width], &rows);
        let soft = p.softmax(x, 1);
        let mut right = vec![1.0 / width as f64; width];
        right.extend(vec![0.0; width]);
        right[2 * width - 1] = 1.0;
        p.expect_near(soft, &right, 1e-6);
        p.check();
    }
}

#[test]
fn u_a42_a_value_computed_twice_is_the_same_value() {
    if relaxed::contracts() {
        return;
    }
    let mut p = Program::new();
    let x = p.vector(&[1e14, 5e13, -2e14]);
    let scaled = p.scale(x, 0.3);
    let soft = p.softmax(scaled, 0);
    p.expect(soft, &[1.0, 0.0, 0.0]);
    p.check();
    let mut p = Program::new();
    let x = p.vector(&[1e14, 5e13, -2e14]);
    let z = p.scale(x, 0.3);
    let most = p.reduce(ReduceKind::Max, z, 0);
    let below = p.sub(most, z);
    let zero = p.number(below, 0.0);
    let exact = p.binary(ScalarOp::Eq, below, zero);
    p.expect_ints(exact, &[1, 0, 0]);
    let negative = p.binary(ScalarOp::Lt, below, zero);
    p.expect_ints(negative, &[0, 0, 0]);
    p.check();
}

#[test]
fn b14_nan_does_not_trip_the_analysis() {
    let mut p = Program::new();
    let ones = p.full(&[2, 2], kiln_ir::Literal::one(DType::F32));
    let angle = p.binary(ScalarOp::Atan2, ones, ones);
    let log = p.unary(ScalarOp::Log2, angle);
    let area = p.unary(ScalarOp::Acosh, log);
    let soft = p.softmax(area, 1);
    p.expect(soft, &[NAN; 4]);
    let nan = p.full(&[2], kiln_ir::Literal::from_f64(DType::F32, NAN));
    let (zero, one) = (p.number(nan, 0.0), p.number(nan, 1.0));
    let clamped = p.op(Op::Scalar(ScalarOp::Clamp), &[nan, zero, one]);
    p.expect(clamped, &[NAN, NAN]);
    let most = p.binary(ScalarOp::Max, nan, one);
    p.expect(most, &[NAN, NAN]);
    let whole = p.cast(nan, DType::I32);
    p.expect_ints(whole, &[0, 0]);
    p.check();
}
