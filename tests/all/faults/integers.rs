//! Integers and bools at their declared width.

use kiln_ir::{DType, Literal, ReduceKind, ScalarOp};

use super::{NAN, Program};

#[test]
fn a16_a_comparison_is_one_or_zero_whatever_reads_it() {
    let mut p = Program::new();
    let x = p.vector(&[-1.0, 2.0, 0.0]);
    let zero = p.number(x, 0.0);
    let not_negative = p.binary(ScalarOp::Ge, x, zero);
    let factor = p.cast(not_negative, DType::F32);
    let product = p.mul(x, factor);
    p.expect(product, &[-0.0, 2.0, 0.0]);
    let positive = p.binary(ScalarOp::Gt, x, zero);
    let int = p.cast(positive, DType::I32);
    p.expect_ints(int, &[0, 1, 0]);
    let float = p.cast(positive, DType::F32);
    p.expect(float, &[0.0, 1.0, 0.0]);
    let not = p.unary(ScalarOp::Not, positive);
    p.expect_ints(not, &[1, 0, 1]);
    let same = p.binary(ScalarOp::Eq, positive, positive);
    p.expect_ints(same, &[1, 1, 1]);
    p.expect_ints(positive, &[0, 1, 0]);
    p.check();
}

#[test]
fn a16_three_hundred_trues_are_three_hundred() {
    let mut p = Program::new();
    let trues = p.ints(DType::Bool, &[300], &[1; 300]);
    let wide = p.cast(trues, DType::I32);
    let sum = p.sum(wide, 0);
    p.expect_ints(sum, &[300]);
    let narrow = p.cast(trues, DType::U8);
    let sum = p.sum(narrow, 0);
    p.expect_ints(sum, &[44]);
    p.check();
}

#[test]
fn a17_32_bit_integers_wrap_before_they_are_widened() {
    let mut p = Program::new();
    let most = p.ints(DType::I32, &[1], &[i32::MAX.into()]);
    let sum = p.add(most, most);
    let wide = p.cast(sum, DType::I64);
    p.expect_ints(wide, &[-2]);
    let x = p.ints(DType::I32, &[1], &[65536]);
    let square = p.mul(x, x);
    p.expect_ints(square, &[0]);
    let least = p.ints(DType::I32, &[1], &[i32::MIN.into()]);
    for op in [ScalarOp::Neg, ScalarOp::Abs] {
        let same = p.unary(op, least);
        p.expect_ints(same, &[i32::MIN.into()]);
        let wide = p.cast(same, DType::I64);
        p.expect_ints(wide, &[i32::MIN.into()]);
    }
    let (one, two) = (p.ints(DType::U32, &[1], &[1]), p.ints(DType::U32, &[1], &[2]));
    let below = p.sub(one, two);
    p.expect_ints(below, &[u32::MAX.into()]);
    p.check();
}

#[test]
fn a18_8_bit_integers_stay_8_bits_inside_a_kernel() {
    let mut p = Program::new();
    let x = p.ints(DType::U8, &[1], &[200]);
    let sum = p.add(x, x);
    let wide = p.cast(sum, DType::I32);
    p.expect_ints(wide, &[144]);
    p.expect_ints(sum, &[144]);
    let six = p.ints(DType::U8, &[1], &[6]);
    let negative = p.unary(ScalarOp::Neg, six);
    p.expect_ints(negative, &[250]);
    let four = p.number(six, 4.0);
    let small = p.binary(ScalarOp::Lt, negative, four);
    p.expect_ints(small, &[0]);
    let size = p.unary(ScalarOp::Abs, x);
    let opposite = p.unary(ScalarOp::Neg, size);
    let joined = p.concat(&[opposite, six], 0);
    let wide = p.cast(joined, DType::I32);
    let total = p.sum(wide, 0);
    p.expect_ints(total, &[62]);
    let hundred = p.ints(DType::I8, &[1], &[100]);
    let sum = p.add(hundred, hundred);
    p.expect_ints(sum, &[-56]);
    p.check();
}

#[test]
fn a19_64_bit_integers_are_64_bits() {
    let mut p = Program::new();
    let ty = kiln_ir::TensorType::new(DType::I64, [4], kiln_ir::Backend::Cpu);
    let counted = p.op(kiln_ir::Op::Iota { ty, axis: 0 }, &[]);
    let scaled = p.scale(counted, 1_500_000_000.0);
    p.expect_ints(scaled, &[0, 1_500_000_000, 3_000_000_000, 4_500_000_000]);
    let sum = p.sum(scaled, 0);
    p.expect_ints(sum, &[9_000_000_000]);
    let three = p.ints(DType::I64, &[1], &[3]);
    let product = p.scale(three, 2_147_483_648.0);
    p.expect_ints(product, &[6_442_450_944]);
    let odd = p.ints(DType::I64, &[1], &[(1 << 53) + 1]);
    let twice = p.add(odd, odd);
    p.expect_ints(twice, &[(1 << 54) + 2]);
    let most = p.reduce(ReduceKind::Max, odd, 0);
    p.expect_ints(most, &[(1 << 53) + 1]);
    p.check();
}

#[test]
fn a20_division_truncates_and_division_and_remainder_belong_together() {
    let mut p = Program::new();
    let n = p.ints(DType::I32, &[4], &[-7, 7, -7, 7]);
    let d = p.ints(DType::I32, &[4], &[2, -2, -2, 2]);
    let quotient = p.binary(ScalarOp::Div, n, d);
    p.expect_ints(quotient, &[-3, -3, 3, 3]);
    let remainder = p.binary(ScalarOp::Rem, n, d);
    p.expect_ints(remainder, &[-1, 1, -1, 1]);
    let product = p.mul(quotient, d);
    let back = p.add(product, remainder);
    p.expect_ints(back, &[-7, 7, -7, 7]);
    // The floor forms, as the composites make them: the quotient less one where the remainder has the other sign.
    let zero = p.number(n, 0.0);
    let some = p.binary(ScalarOp::Ne, remainder, zero);
    let signs = p.binary(ScalarOp::Xor, n, d);
    let differ = p.binary(ScalarOp::Lt, signs, zero);
    let adjust = p.binary(ScalarOp::And, some, differ);
    let one = p.cast(adjust, DType::I32);
    let floor = p.sub(quotient, one);
    p.expect_ints(floor, &[-4, -4, 3, 3]);
    let more = p.mul(one, d);
    let modulo = p.add(remainder, more);
    p.expect_ints(modulo, &[1, -1, -1, 1]);
    p.check();
}

#[test]
fn a20_index_algebra_is_right_below_zero() {
    let mut p = Program::new();
    let x = p.ints(DType::I32, &[7], &[-3, -2, -1, 0, 1, 2, 3]);
    let scaled = p.scale(x, 6.0);
    let shifted = p.shift(scaled, 3.0);
    let six = p.number(x, 6.0);
    let quotient = p.binary(ScalarOp::Div, shifted, six);
    p.expect_ints(quotient, &[-2, -1, 0, 0, 1, 2, 3]);
    let scaled = p.scale(x, 4.0);
    let shifted = p.shift(scaled, -1.0);
    let four = p.number(x, 4.0);
    let remainder = p.binary(ScalarOp::Rem, shifted, four);
    p.expect_ints(remainder, &[-1, -1, -1, -1, 3, 3, 3]);
    p.check();
}

#[test]
fn a21_division_at_its_edges_has_a_value_however_it_is_computed() {
    let least = i128::from(i32::MIN);
    let (numerators, denominators) = ([least, 7], [-1, 0]);
    let constant = |p: &mut Program, values: [i128; 2]| {
        let data = super::ints(DType::I32, &[2], &values);
        p.op(kiln_ir::Op::Constant { data, backend: kiln_ir::Backend::Cpu }, &[])
    };
    for fixed in 0..4 {
        let mut p = Program::new();
        let value = |p: &mut Program, bit: i32, values: [i128; 2]| {
            if fixed & bit != 0 { constant(p, values) } else { p.ints(DType::I32, &[2], &values) }
        };
        let n = value(&mut p, 1, numerators);
        let d = value(&mut p, 2, denominators);
        let quotient = p.binary(ScalarOp::Div, n, d);
        p.expect_ints(quotient, &[least, 0]);
        let remainder = p.binary(ScalarOp::Rem, n, d);
        p.expect_ints(remainder, &[0, 7]);
        p.check();
    }
}

#[test]
fn b8_extreme_literals_come_back_bit_for_bit() {
    let integers = [
        (DType::I32, i128::from(i32::MIN)),
        (DType::I32, i128::from(i32::MAX)),
        (DType::U32, i128::from(u32::MAX)),
        (DType::I64, i128::from(i64::MIN)),
        (DType::I64, i128::from(i64::MAX)),
        (DType::I8, -128),
        (DType::U8, 255),
    ];
    let mut p = Program::new();
    for (dtype, value) in integers {
        let x = p.full(&[2], Literal::from_i128(dtype, value));
        let zero = p.number(x, 0.0);
        let same = p.add(x, zero);
        p.expect_ints(same, &[value, value]);
    }
    let x = p.ints(DType::I32, &[1], &[5]);
    let more = p.number(x, -1.0);
    let six = p.sub(x, more);
    p.expect_ints(six, &[6]);
    for value in [0.1f32, 1e-45, 3.402_823_5e38, 1.175_494_4e-38, -0.0, 16_777_216.0] {
        let literal = p.full(&[2], Literal::from_f64(DType::F32, f64::from(value)));
        p.expect(literal, &[f64::from(value), f64::from(value)]);
    }
    let nan = p.full(&[2], Literal::from_f64(DType::F32, NAN));
    p.expect(nan, &[NAN, NAN]);
    p.check();
}

#[test]
fn b19_the_same_op_in_two_dtypes_and_two_orders_are_two_kernels() {
    let mut p = Program::new();
    let (a, b) = (p.vector(&[1.5]), p.vector(&[2.0]));
    let product = p.mul(a, b);
    p.expect(product, &[3.0]);
    let (m, n) = (p.ints(DType::I32, &[1], &[3]), p.ints(DType::I32, &[1], &[2]));
    let product = p.mul(m, n);
    p.expect_ints(product, &[6]);
    let (ahead, back) = (p.sub(a, b), p.sub(b, a));
    p.expect(ahead, &[-0.5]);
    p.expect(back, &[0.5]);
    p.check();
}
