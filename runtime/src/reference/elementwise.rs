//! Ops that compute each element of the result from the elements at the same place.

use kiln_ir::{DType, Literal, ScalarOp, Shape, philox};

use super::tensor::Tensor;

/// An op of the table, on operands of one dtype and shape.
pub(super) fn scalar(op: ScalarOp, operands: &[Tensor]) -> Tensor {
    let dtype = op.result_dtype(operands[0].dtype).expect("the dtype was checked");
    let mut columns: Vec<_> = operands.iter().map(Tensor::elements).collect();
    let mut row = [Literal::zero(operands[0].dtype); 3];
    let values = (0..operands[0].bits.len()).map(|_| {
        for (place, column) in row.iter_mut().zip(&mut columns) {
            *place = column.next().expect("operands have one shape");
        }
        op.eval(&row[..operands.len()]).expect("arity and dtype were checked")
    });
    Tensor::from_elements(dtype, operands[0].shape(), values)
}

/// Each element by the rules of [`Literal::cast`].
pub(super) fn cast(x: &Tensor, dtype: DType) -> Tensor {
    Tensor::from_elements(dtype, x.shape(), x.elements().map(|element| element.cast(dtype)))
}

/// Each element's bits, read as another dtype of the same width.
pub(super) fn bitcast(x: &Tensor, dtype: DType) -> Tensor {
    Tensor { dtype, bits: x.bits.clone() }
}

/// Where the condition holds an element of `then`, elsewhere one of `otherwise`.
pub(super) fn select(condition: &Tensor, then: &Tensor, otherwise: &Tensor) -> Tensor {
    let choices = condition.elements().zip(then.elements().zip(otherwise.elements()));
    let chosen = choices.map(|(condition, (yes, no))| if condition == Literal::one(DType::Bool) { yes } else { no });
    Tensor::from_elements(then.dtype, then.shape(), chosen)
}

/// Word `i` of the draw from `key` in `stream`, at row-major place `i`.
pub(super) fn random_bits(key: &Tensor, shape: &Shape, stream: u32) -> Tensor {
    let key = [key.at(&[0]).bits() as u32, key.at(&[1]).bits() as u32];
    let words = (0..shape.num_elements() as u64).map(|index| philox::element(key, stream, index));
    Tensor::from_elements(DType::U32, shape, words.map(|word| Literal::from_bits(DType::U32, u64::from(word))))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{apply, assert_floats, assert_ints, floats, ints, scalar, vector};
    use super::*;
    use kiln_ir::{HostData, Op};

    const NAN: f64 = f64::NAN;
    const INF: f64 = f64::INFINITY;

    fn i32s(values: &[i128]) -> HostData {
        ints(DType::I32, &[values.len()], values)
    }

    #[test]
    fn nan_passes_through_maximum_minimum_and_clamp() {
        let v = vector(&[1.0, NAN, 3.0, -2.0]);
        let zeros = vector(&[0.0; 4]);
        assert_floats(&scalar(ScalarOp::Max, &[v.clone(), zeros.clone()]), &[1.0, NAN, 3.0, 0.0]);
        assert_floats(&scalar(ScalarOp::Clamp, &[v, zeros, vector(&[2.0; 4])]), &[1.0, NAN, 2.0, 0.0]);
        let (left, right) = (vector(&[NAN, 1.0]), vector(&[1.0, NAN]));
        assert_floats(&scalar(ScalarOp::Max, &[left.clone(), right.clone()]), &[NAN, NAN]);
        assert_floats(&scalar(ScalarOp::Min, &[left, right]), &[NAN, NAN]);
    }

    #[test]
    fn a_comparison_gives_one_or_zero_whatever_reads_it() {
        let x = vector(&[-1.0, 2.0, 0.0]);
        let zero = vector(&[0.0; 3]);
        let not_negative = scalar(ScalarOp::Ge, &[x.clone(), zero.clone()]);
        assert_eq!(not_negative.bytes(), [0, 1, 1]);
        let factor = apply(Op::Cast(DType::F32), &[not_negative]);
        assert_floats(&scalar(ScalarOp::Mul, &[x.clone(), factor]), &[-0.0, 2.0, 0.0]);
        let positive = scalar(ScalarOp::Gt, &[x, zero]);
        assert_ints(&apply(Op::Cast(DType::I32), std::slice::from_ref(&positive)), &[0, 1, 0]);
        assert_floats(&apply(Op::Cast(DType::F32), std::slice::from_ref(&positive)), &[0.0, 1.0, 0.0]);
        assert_eq!(scalar(ScalarOp::Not, std::slice::from_ref(&positive)).bytes(), [1, 0, 1]);
        assert_eq!(scalar(ScalarOp::Eq, &[positive.clone(), positive]).bytes(), [1, 1, 1]);
    }

    #[test]
    fn integers_wrap_at_their_width() {
        let max = i32s(&[i128::from(i32::MAX)]);
        let sum = scalar(ScalarOp::Add, &[max.clone(), max]);
        assert_ints(&apply(Op::Cast(DType::I64), &[sum]), &[-2]);
        assert_ints(&scalar(ScalarOp::Mul, &[i32s(&[65536]), i32s(&[65536])]), &[0]);
        let min = i32s(&[i128::from(i32::MIN)]);
        assert_ints(&scalar(ScalarOp::Neg, std::slice::from_ref(&min)), &[i128::from(i32::MIN)]);
        assert_ints(&scalar(ScalarOp::Abs, &[min]), &[i128::from(i32::MIN)]);
        let (one, two) = (ints(DType::U32, &[], &[1]), ints(DType::U32, &[], &[2]));
        assert_ints(&scalar(ScalarOp::Sub, &[one, two]), &[4_294_967_295]);
        let u8s = |value| ints(DType::U8, &[], &[value]);
        let wrapped = scalar(ScalarOp::Add, &[u8s(200), u8s(200)]);
        assert_ints(&apply(Op::Cast(DType::I32), &[wrapped]), &[144]);
        let negated = scalar(ScalarOp::Neg, &[u8s(6)]);
        assert_ints(&negated, &[250]);
        assert_ints(&scalar(ScalarOp::Lt, &[negated, u8s(4)]), &[0]);
        let i8s = || ints(DType::I8, &[], &[100]);
        assert_ints(&scalar(ScalarOp::Add, &[i8s(), i8s()]), &[-56]);
    }

    #[test]
    fn i64_is_exact_beyond_f64() {
        let i64s = |values: &[i128]| ints(DType::I64, &[values.len()], values);
        let factor = i64s(&[1_500_000_000; 4]);
        let scaled = scalar(ScalarOp::Mul, &[i64s(&[0, 1, 2, 3]), factor]);
        assert_ints(&scaled, &[0, 1_500_000_000, 3_000_000_000, 4_500_000_000]);
        let large = (1 << 53) + 1;
        assert_ints(&scalar(ScalarOp::Add, &[i64s(&[large]), i64s(&[large])]), &[2 * large]);
        let max = i128::from(i64::MAX);
        assert_ints(&scalar(ScalarOp::Mul, &[i64s(&[max]), i64s(&[max])]), &[1]);
    }

    #[test]
    fn integer_division_truncates_and_has_a_value_at_its_edges() {
        let (n, d) = (i32s(&[-7, 7, -7, 7]), i32s(&[2, -2, -2, 2]));
        assert_ints(&scalar(ScalarOp::Div, &[n.clone(), d.clone()]), &[-3, -3, 3, 3]);
        assert_ints(&scalar(ScalarOp::Rem, &[n, d]), &[-1, 1, -1, 1]);
        let (n, d) = (i32s(&[i128::from(i32::MIN), 7]), i32s(&[-1, 0]));
        assert_ints(&scalar(ScalarOp::Div, &[n.clone(), d.clone()]), &[i128::from(i32::MIN), 0]);
        assert_ints(&scalar(ScalarOp::Rem, &[n, d]), &[0, 7]);
    }

    #[test]
    fn arithmetic_keeps_nan_and_infinity() {
        let x = || vector(&[INF, NAN, 2.0, 0.0]);
        let zeros = vector(&[0.0; 4]);
        assert_floats(&scalar(ScalarOp::Mul, &[x(), zeros.clone()]), &[NAN, NAN, 0.0, 0.0]);
        assert_floats(&scalar(ScalarOp::Sub, &[x(), x()]), &[NAN, NAN, 0.0, 0.0]);
        assert_floats(&scalar(ScalarOp::Div, &[x(), x()]), &[NAN, NAN, 1.0, NAN]);
        assert_floats(&scalar(ScalarOp::Pow, &[x(), zeros]), &[1.0; 4]);
        assert_ints(&scalar(ScalarOp::Eq, &[x(), x()]), &[1, 0, 1, 1]);
        let exp = |value: f64| scalar(ScalarOp::Exp, &[vector(&[value])]);
        assert_floats(&scalar(ScalarOp::Log, &[exp(100.0)]), &[INF]);
        assert_floats(&scalar(ScalarOp::Log, &[exp(-200.0)]), &[-INF]);
        assert_floats(&scalar(ScalarOp::Mul, &[exp(100.0), exp(-110.0)]), &[NAN]);
        let square = scalar(ScalarOp::Mul, &[vector(&[1e20]), vector(&[1e20])]);
        assert_floats(&scalar(ScalarOp::Sqrt, &[square]), &[INF]);
        assert_floats(&scalar(ScalarOp::Atan2, &[vector(&[0.0]), vector(&[0.0])]), &[0.0]);
        let pow = |x: f64, y: f64| scalar(ScalarOp::Pow, &[vector(&[x]), vector(&[y])]);
        assert_floats(&scalar(ScalarOp::Log, &[pow(-1.5, -1.5)]), &[NAN]);
        assert_floats(&pow(-2.0, 3.0), &[-8.0]);
        assert_floats(&pow(-2.0, 2.0), &[4.0]);
        assert_floats(&pow(0.0, 0.0), &[1.0]);
        assert_floats(&pow(-8.0, 1.0 / 3.0), &[NAN]);
    }

    #[test]
    fn a_pair_of_casts_keeps_its_rounding() {
        let pair = |x: HostData, through: DType| {
            let back = x.dtype();
            apply(Op::Cast(back), &[apply(Op::Cast(through), &[x])])
        };
        assert_floats(&pair(vector(&[1.001, 3.3, 70000.0]), DType::F16), &[1.000_976_562_5, 3.300_781_25, INF]);
        assert_floats(&pair(vector(&[1.003_906_25]), DType::BF16), &[1.0]);
        assert_floats(&pair(vector(&[3.9, -3.9]), DType::I32), &[3.0, -3.0]);
        assert_ints(&pair(i32s(&[16_777_217]), DType::F32), &[16_777_216]);
        assert_floats(&pair(vector(&[2.0, 0.0, NAN]), DType::Bool), &[1.0, 0.0, 1.0]);
    }

    #[test]
    fn float_to_int_truncates_and_saturates() {
        let cast = |values: &[f64], dtype| apply(Op::Cast(dtype), &[floats(DType::F64, &[values.len()], values)]);
        assert_ints(&cast(&[1.9, -1.9, 0.5], DType::I64), &[1, -1, 0]);
        let (low, high) = (i128::from(i32::MIN), i128::from(i32::MAX));
        assert_ints(&cast(&[NAN, INF, -INF, 3e9], DType::I32), &[0, high, low, high]);
        assert_ints(&cast(&[-1.0, 300.0], DType::U8), &[0, 255]);
    }

    #[test]
    fn a_bitcast_keeps_every_bit_of_a_signalling_nan() {
        let bits = ints(DType::U32, &[2], &[0x7f80_0001, 0x3f80_0000]);
        let numbers = apply(Op::Bitcast(DType::F32), std::slice::from_ref(&bits));
        assert_floats(&numbers, &[NAN, 1.0]);
        assert_eq!(apply(Op::Bitcast(DType::U32), &[numbers]), bits);
    }

    #[test]
    fn select_takes_the_chosen_branch_as_it_is() {
        let condition = ints(DType::Bool, &[3], &[1, 0, 1]);
        let chosen = apply(Op::Select, &[condition, vector(&[1.0, NAN, -0.0]), vector(&[NAN, 2.0, 3.0])]);
        assert_floats(&chosen, &[1.0, 2.0, -0.0]);
    }

    #[test]
    fn random_words_depend_on_key_stream_and_place_alone() {
        let key = ints(DType::U32, &[2], &[1, 2]);
        let draw =
            |shape: &[usize], stream| apply(Op::RandomBits { shape: shape.into(), stream }, std::slice::from_ref(&key));
        let words = draw(&[2, 3], 0);
        let expected: Vec<i128> = (0..6).map(|index| i128::from(philox::element([1, 2], 0, index))).collect();
        assert_ints(&words, &expected);
        assert_eq!(draw(&[6], 0).bytes(), words.bytes());
        assert_ne!(draw(&[2, 3], 1).bytes(), words.bytes());
        assert_ints(&draw(&[0], 0), &[]);
    }

    #[test]
    fn sixteen_bit_arithmetic_is_rounded_once() {
        let half = |value: f64| floats(DType::F16, &[], &[value]);
        assert_floats(&scalar(ScalarOp::Div, &[half(1.0), half(3.0)]), &[0.333_251_953_125]);
        assert_floats(&scalar(ScalarOp::Add, &[half(2048.0), half(1.0)]), &[2048.0]);
        assert_floats(&scalar(ScalarOp::Mul, &[half(300.0), half(300.0)]), &[INF]);
    }
}
