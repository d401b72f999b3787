//! How far a backend may be from the reference: written once, per op and dtype.
//!
//! - Ints, bools, indices, the places of NaN: exact, always.
//! - Ops whose every bit IEEE 754 fixes ([`kiln_ir::Exactness::Exact`]), casts, views, gathers, maxima: exact, the sign of zero included.
//! - Transcendental functions: a few units in the last place of the result ([`ulps`]).
//! - Whatever adds up many floats (sums, running sums, matrix products, scatter-add): a bound on the rounding of its additions, in proportion
//!   to the sum of the absolute values (`additions`), because order is free. Where no order rounds, as with small whole numbers, exact.
//! - An infinity here and a finite value there agree where the finite one is within the bound of the largest number.
//!
//! These are bounds for one op on the very same operands. What they come to in a whole graph is worked out in `expected.rs`.

use kiln_ir::{
    Backend, DType, Diagnostic, Exactness, GraphBuilder, HostData, Literal, Loc, Op, ReduceKind, ScalarOp, ScanKind,
};
use kiln_ir::{ScatterKind, TensorType, Value};

use super::evaluate;

/// Units in the last place by which an elementwise op's result may differ.
pub fn ulps(op: ScalarOp, dtype: DType) -> f64 {
    if op.row().exactness == Exactness::Exact {
        return 0.0;
    }
    match dtype {
        // The f32 result, at most 3 units off, rounded: the neighbour at worst.
        DType::F16 | DType::BF16 => 1.0,
        DType::F32 => 3.0,
        DType::F64 => 4.0,
        DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => 0.0,
    }
}

/// Roundings that a sum of `count` floats may suffer, in units of half an ulp of the sum of absolute values: what summing in lanes and blocks
/// needs. Adding one after the other in one accumulator needs `count`.
fn additions(count: usize) -> f64 {
    8.0 + 2.0 * (count as f64).sqrt()
}

/// Relative rounding error of the accumulator of a dtype.
fn unit(dtype: DType) -> f64 {
    if dtype == DType::F64 { f64::powi(2.0, -53) } else { f64::powi(2.0, -24) }
}

/// For each element of each result of `op` on `operands`, the largest error that is allowed.
pub fn bounds(op: &Op, operands: &[&HostData], results: &[HostData]) -> Vec<Vec<f64>> {
    results.iter().map(|result| bounds_of_one(op, operands, result)).collect()
}

fn bounds_of_one(op: &Op, operands: &[&HostData], result: &HostData) -> Vec<f64> {
    let dtype = result.dtype();
    let exact = || vec![0.0; result.shape().num_elements()];
    if !dtype.is_float() {
        return exact();
    }
    let accumulator = dtype.accumulator();
    let of_magnitude = |count: usize, additions: f64| {
        let magnitudes = in_f64(op, operands, &magnitude);
        let exact_up_to = quantum_of_sums(op, operands) / unit(dtype);
        let error = |(sum, value): (Literal, Literal)| match sum.to_f64() {
            // Every partial sum is a number of the accumulator: only the sign of a zero is free.
            sum if sum <= exact_up_to => f64::MIN_POSITIVE,
            // A partial sum may pass the largest number, depending on the order.
            sum if sum > largest(accumulator) => f64::INFINITY,
            sum => {
                let underflow = count as f64 * ulp(accumulator, 0.0);
                additions * unit(dtype) * sum + underflow + ulp(dtype, value.to_f64())
            }
        };
        magnitudes.elements().zip(result.elements()).map(error).collect()
    };
    let of_value = |count: usize| {
        let (most, least) = (in_f64(op, operands, &at_least_one), in_f64(op, operands, &at_most_one));
        let error = |((most, least), value): ((Literal, Literal), Literal)| {
            let smallest_normal = ulp(accumulator, 0.0) / ulp(accumulator, 1.0);
            let stays_in_range = most.to_f64() <= largest(accumulator) && least.to_f64() >= smallest_normal;
            let value = value.to_f64();
            let error = count as f64 * unit(dtype) * finite(value, dtype).abs() + ulp(dtype, value);
            if stays_in_range { error } else { f64::INFINITY }
        };
        most.elements().zip(least.elements()).zip(result.elements()).map(error).collect()
    };
    let extent = |index: usize, axis: usize| operands[index].shape()[axis];
    match op {
        Op::Scalar(scalar) => {
            result.elements().map(|value| ulps(*scalar, dtype) * ulp(dtype, value.to_f64())).collect()
        }
        Op::Reduce { kind, axes } => {
            let count = axes.iter().map(|&axis| extent(0, axis)).product();
            match kind {
                ReduceKind::Sum => of_magnitude(count, additions(count)),
                ReduceKind::Prod => of_value(count),
                ReduceKind::Max | ReduceKind::Min | ReduceKind::ArgMax | ReduceKind::ArgMin => exact(),
            }
        }
        Op::Scan { kind, axis, .. } => match kind {
            // A running sum has one accumulator, and there is no float wider than f64.
            ScanKind::Sum if dtype == DType::F64 => of_magnitude(extent(0, *axis), extent(0, *axis) as f64),
            ScanKind::Sum => of_magnitude(extent(0, *axis), additions(extent(0, *axis))),
            ScanKind::Prod => of_value(extent(0, *axis)),
            ScanKind::Max | ScanKind::Min => exact(),
        },
        Op::MatMul { .. } => {
            let count = extent(0, operands[0].shape().rank() - 1);
            of_magnitude(count, additions(count))
        }
        Op::Scatter { kind: ScatterKind::Add, .. } => {
            let count = operands[2].shape().num_elements();
            of_magnitude(count, additions(count))
        }
        Op::Scatter { kind: ScatterKind::Set | ScatterKind::Max, .. } => exact(),
        Op::Custom(_) => vec![f64::INFINITY; result.shape().num_elements()],
        Op::Input { .. }
        | Op::Literal { .. }
        | Op::Constant { .. }
        | Op::Iota { .. }
        | Op::RandomBits { .. }
        | Op::Cast(_)
        | Op::Bitcast(_)
        | Op::Select
        | Op::Reshape(_)
        | Op::Permute(_)
        | Op::Broadcast(_)
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Concat { .. }
        | Op::Gather { .. }
        | Op::Transfer(_)
        | Op::StopGradient
        | Op::Mark
        | Op::Barrier => exact(),
    }
}

/// A number of which everything that is added up is a multiple.
fn quantum_of_sums(op: &Op, operands: &[&HostData]) -> f64 {
    let floats = operands.iter().filter(|data| data.dtype().is_float()).map(|data| quantum(data));
    if let Op::MatMul { .. } = op { floats.product() } else { floats.fold(f64::INFINITY, f64::min) }
}

/// The largest power of two of which every finite element is a multiple; infinite where all are 0.
fn quantum(data: &HostData) -> f64 {
    let lowest_bit = |value: f64| {
        let mut power = ulp(DType::F64, value);
        while power < value.abs() && (value / (2.0 * power)).fract() == 0.0 {
            power *= 2.0;
        }
        power
    };
    let values = data.elements().map(Literal::to_f64).filter(|value| value.is_finite() && *value != 0.0);
    values.map(lowest_bit).fold(f64::INFINITY, f64::min)
}

/// The op in f64, on its float operands after `change`.
fn in_f64(op: &Op, operands: &[&HostData], change: &Change) -> HostData {
    let mut b = GraphBuilder::new("in f64");
    let mut values: Vec<Value> = Vec::new();
    for (index, data) in operands.iter().enumerate() {
        let ty = TensorType::new(data.dtype(), data.shape(), Backend::NdArray);
        let value = b.input(format!("x{index}"), ty, Loc::Unknown).expect("names differ");
        let is_float = data.dtype().is_float();
        values.push(if is_float { change(&mut b, value).expect("floats take every op") } else { value });
    }
    let result = b.value(op.clone(), &values, Loc::Unknown).expect("the op took these shapes before");
    let graph = b.finish([("result", result)]).expect("one output");
    let operands: Vec<HostData> = operands.iter().map(|&data| data.clone()).collect();
    evaluate(&graph, &operands).expect("the graph is sound").remove(0)
}

type Change = dyn Fn(&mut GraphBuilder, Value) -> Result<Value, Diagnostic>;

/// `|x|`, and 0 for what is not finite.
fn magnitude(b: &mut GraphBuilder, x: Value) -> Result<Value, Diagnostic> {
    let wide = b.cast(x, DType::F64, Loc::Unknown)?;
    let size = b.scalar(ScalarOp::Abs, &[wide], Loc::Unknown)?;
    let finite = b.scalar(ScalarOp::IsFinite, &[wide], Loc::Unknown)?;
    let zero = b.full_like(wide, 0.0, Loc::Unknown)?;
    b.value(Op::Select, &[finite, size, zero], Loc::Unknown)
}

/// `max(|x|, 1)` of what is finite.
fn at_least_one(b: &mut GraphBuilder, x: Value) -> Result<Value, Diagnostic> {
    let size = magnitude(b, x)?;
    let one = b.full_like(size, 1.0, Loc::Unknown)?;
    b.scalar(ScalarOp::Max, &[size, one], Loc::Unknown)
}

/// `min(|x|, 1)`, and 1 for 0, whose product is exact.
fn at_most_one(b: &mut GraphBuilder, x: Value) -> Result<Value, Diagnostic> {
    let size = magnitude(b, x)?;
    let (zero, one) = (b.full_like(size, 0.0, Loc::Unknown)?, b.full_like(size, 1.0, Loc::Unknown)?);
    let is_zero = b.scalar(ScalarOp::Eq, &[size, zero], Loc::Unknown)?;
    let least = b.scalar(ScalarOp::Min, &[size, one], Loc::Unknown)?;
    b.value(Op::Select, &[is_zero, one, least], Loc::Unknown)
}

/// Distance from `|value|` to the next larger number of a float dtype; that of the largest number for infinities, 0 for NaN.
pub fn ulp(dtype: DType, value: f64) -> f64 {
    if value.is_nan() {
        return 0.0;
    }
    let (digits, least_exponent) = match dtype {
        DType::F16 => (10, -14),
        DType::BF16 => (7, -126),
        DType::F32 => (23, -126),
        DType::F64 => (52, -1022),
        DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => return 0.0,
    };
    let magnitude = finite(value, dtype).abs();
    let exponent =
        if magnitude == 0.0 { least_exponent } else { (magnitude.log2().floor() as i32).max(least_exponent) };
    // Two steps, because 2^-1074 has no normal factor.
    f64::powi(2.0, exponent) * f64::powi(2.0, -digits)
}

/// The value, or for an infinity the largest number of the dtype; NaN becomes 0.
fn finite(value: f64, dtype: DType) -> f64 {
    if value.is_nan() { 0.0 } else { value.clamp(-largest(dtype), largest(dtype)) }
}

/// The largest finite number of a float dtype.
pub fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 65504.0,
        DType::BF16 => f64::from(f32::from_bits(0x7f7f_0000)),
        DType::F32 => f64::from(f32::MAX),
        DType::F64 => f64::MAX,
        DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => 0.0,
    }
}

/// Whether a backend's element agrees with the reference's within `bound`.
pub fn agree(expected: Literal, actual: Literal, bound: f64) -> bool {
    if expected == actual {
        return true;
    }
    let dtype = expected.dtype();
    if !dtype.is_float() || dtype != actual.dtype() {
        return false;
    }
    let (expected, actual) = (expected.to_f64(), actual.to_f64());
    if expected.is_nan() || actual.is_nan() {
        return expected.is_nan() && actual.is_nan();
    }
    if expected == actual {
        // Zeros of different sign.
        return bound > 0.0;
    }
    let (near, far) = (finite(expected, dtype), finite(actual, dtype));
    near != far && (near - far).abs() <= bound || (near == far && bound > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ulp_is_the_distance_to_the_next_number() {
        for value in [1.0f32, 1.5, 3.0e38, 1e-40, 0.0, 1e-45, 123_456.7] {
            let next = f32::from_bits(value.to_bits() + 1);
            assert_eq!(ulp(DType::F32, f64::from(value)), f64::from(next) - f64::from(value), "{value}");
        }
        assert_eq!(ulp(DType::F64, 0.0), f64::from_bits(1));
        assert_eq!(ulp(DType::F16, 2048.0), 2.0);
        assert_eq!(ulp(DType::BF16, 1.0), 0.007_812_5);
    }

    #[test]
    fn agreement_is_exact_where_the_bound_is_zero() {
        let f32s = |value: f64| Literal::from_f64(DType::F32, value);
        assert!(agree(f32s(f64::NAN), Literal::from_bits(DType::F32, 0xffc0_0001), 0.0));
        assert!(!agree(f32s(f64::NAN), f32s(1.0), 1e9));
        assert!(!agree(f32s(0.0), f32s(-0.0), 0.0));
        assert!(agree(f32s(0.0), f32s(-0.0), 1e-9));
        assert!(!agree(f32s(1.0), f32s(1.000_000_1), 0.0));
        assert!(agree(f32s(f64::INFINITY), f32s(f64::from(f32::MAX)), 1e32));
        assert!(!agree(f32s(f64::INFINITY), f32s(f64::from(f32::MAX)), 0.0));
        assert!(!agree(f32s(f64::INFINITY), f32s(f64::NEG_INFINITY), 1e32));
        assert!(!agree(f32s(f64::INFINITY), f32s(1.0), 1e32));
    }

    #[test]
    fn sums_of_small_whole_numbers_must_be_exact() {
        let data = |values: &[f64]| {
            let literals: Vec<Literal> = values.iter().map(|&value| Literal::from_f64(DType::F32, value)).collect();
            HostData::from_literals(DType::F32, [values.len()], &literals).unwrap()
        };
        let sum = Op::Reduce { kind: ReduceKind::Sum, axes: kiln_ir::Axes::one(0) };
        let bound = |values: &[f64]| bounds(&sum, &[&data(values)], &[data(&[values.iter().sum()])])[0][0];
        assert_eq!(bound(&[1.0, -3.0, 0.25]), f64::MIN_POSITIVE);
        assert_eq!(bound(&[16_777_215.0, 1.0]), f64::MIN_POSITIVE);
        assert!(bound(&[16_777_216.0, 1.0]) > 1.0);
        assert!(bound(&[0.1, 0.2]) > 1e-9);
    }
}
