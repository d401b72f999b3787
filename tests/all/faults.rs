//! Faults that systems of this kind really have had: each case is a small program with the numbers that are right.
//!
//! [`Program::check`] runs a case op by op on the reference, as one compiled graph in every variant (fused and not, memory reused and not),
//! replayed with other values, with its inputs baked in, with all intermediates as outputs, and with each one alone as one more output.
//!
//! | cases | where |
//! |---|---|
//! | A2 A3 A4 A5 A12 A45 C9 D4 D6 D10 | `memory` |
//! | U-A6 A8 A9 A10 A11 A32 A33 A34 A43 A44 A46 B11 B12 B15 | `layout` |
//! | A13 A14 A23 A24 A25 A26 A27 A29 A30 A37 A40 A41 U-A42 B14 | `floats` |
//! | A16 A17 A18 A19 A20 A21 B8 B19 | `integers` |
//! | A35 A36 | `random_draws` |
//! | U-A39 C20 D1 D2 U-D3 D5 D9 | `arrays` |
//! | B1 B2 B4 B6 B10 B13 B16 B18 B20 D11 D12 | `degenerate` |
//!
//! Later, with what they need:
//!
//! - A38 (32-bit element indices), the texts of B1 and B2: with the emitters; the CPU counts in 64 bits and
//!   has no shader. Here they run for their numbers.
//! - D7 (two queues), the lost device of D9: with asynchronous devices; a CPU call is over when it returns.
//! - B3, B5 and B7: with devices that have such limits and lack such dtypes.
//! - (c) needs `jit` and capture and stands with their tests, (e) with the gradients, (f) with the diagnostics.

mod arrays;
mod degenerate;
mod floats;
mod integers;
mod layout;
mod memory;
mod random_draws;

use kiln_ir::{
    Axes, Backend, DType, Graph, GraphBuilder, HostData, Literal, Loc, Op, Precision, ReduceKind, ScalarOp,
    ScatterKind, Shape, TensorType, Value,
};
use kiln_runtime::reference::evaluate;

use crate::check::{check, check_exposing_each};
use crate::compiled::{Compiled, variants};
use crate::relaxed;

pub(crate) const NAN: f64 = f64::NAN;
pub(crate) const INF: f64 = f64::INFINITY;

/// A program with the right numbers.
pub(crate) struct Program {
    b: GraphBuilder,
    inputs: Vec<HostData>,
    outputs: Vec<Value>,
    expected: Vec<Expected>,
}

/// The elements of an output, row-major.
enum Expected {
    /// These, bit for bit but for NaN; or where `relative` is not 0 within that.
    Floats {
        values: Vec<f64>,
        relative: f64,
    },
    Ints(Vec<i128>),
    /// Whatever the reference says.
    Any,
}

impl Program {
    pub(crate) fn new() -> Program {
        Program { b: GraphBuilder::new("case"), inputs: Vec::new(), outputs: Vec::new(), expected: Vec::new() }
    }

    /// An argument.
    pub(crate) fn input(&mut self, data: HostData) -> Value {
        let ty = TensorType::new(data.dtype(), data.shape(), Backend::Cpu);
        let name = format!("x{}", self.inputs.len());
        self.inputs.push(data);
        self.b.input(name, ty, Loc::Unknown).unwrap()
    }

    /// A float argument.
    pub(crate) fn floats(&mut self, dtype: DType, shape: &[usize], values: &[f64]) -> Value {
        self.input(floats(dtype, shape, values))
    }

    /// An argument of `f32`.
    pub(crate) fn f32(&mut self, shape: &[usize], values: &[f64]) -> Value {
        self.floats(DType::F32, shape, values)
    }

    /// A vector argument of `f32`.
    pub(crate) fn vector(&mut self, values: &[f64]) -> Value {
        self.f32(&[values.len()], values)
    }

    /// An integer or bool argument.
    pub(crate) fn ints(&mut self, dtype: DType, shape: &[usize], values: &[i128]) -> Value {
        self.input(ints(dtype, shape, values))
    }

    /// 0, 1, 2, .. in a shape, as an `f32` argument.
    pub(crate) fn counting(&mut self, shape: &[usize]) -> Value {
        let count: usize = shape.iter().product();
        self.f32(shape, &(0..count).map(|index| index as f64).collect::<Vec<_>>())
    }

    #[track_caller]
    pub(crate) fn op(&mut self, op: Op, operands: &[Value]) -> Value {
        self.b.value(op, operands, Loc::Unknown).unwrap()
    }

    /// A number in the type of `like`.
    pub(crate) fn number(&mut self, like: Value, value: f64) -> Value {
        self.b.full_like(like, value, Loc::Unknown).unwrap()
    }

    /// A tensor filled with one number.
    pub(crate) fn full(&mut self, shape: &[usize], value: Literal) -> Value {
        self.b.full(&TensorType::new(value.dtype(), shape, Backend::Cpu), value, Loc::Unknown).unwrap()
    }

    pub(crate) fn unary(&mut self, op: ScalarOp, x: Value) -> Value {
        self.op(Op::Scalar(op), &[x])
    }

    /// An elementwise op on operands that are broadcast to each other.
    #[track_caller]
    pub(crate) fn binary(&mut self, op: ScalarOp, x: Value, y: Value) -> Value {
        let (a, b) = (self.shape(x), self.shape(y));
        let rank = a.rank().max(b.rank());
        let extent = |shape: &Shape, axis: usize| (axis + shape.rank()).checked_sub(rank).map_or(1, |axis| shape[axis]);
        let wide = |axis: usize| if extent(&a, axis) == 1 { extent(&b, axis) } else { extent(&a, axis) };
        let shape: Shape = (0..rank).map(wide).collect();
        let operands = [x, y].map(|value| self.b.broadcast(value, &shape, Loc::Unknown).unwrap());
        self.op(Op::Scalar(op), &operands)
    }

    pub(crate) fn add(&mut self, x: Value, y: Value) -> Value {
        self.binary(ScalarOp::Add, x, y)
    }

    pub(crate) fn sub(&mut self, x: Value, y: Value) -> Value {
        self.binary(ScalarOp::Sub, x, y)
    }

    pub(crate) fn mul(&mut self, x: Value, y: Value) -> Value {
        self.binary(ScalarOp::Mul, x, y)
    }

    /// `x * number`.
    pub(crate) fn scale(&mut self, x: Value, factor: f64) -> Value {
        let factor = self.number(x, factor);
        self.mul(x, factor)
    }

    /// `x + number`.
    pub(crate) fn shift(&mut self, x: Value, amount: f64) -> Value {
        let amount = self.number(x, amount);
        self.add(x, amount)
    }

    pub(crate) fn cast(&mut self, x: Value, dtype: DType) -> Value {
        self.op(Op::Cast(dtype), &[x])
    }

    /// A reduction that keeps its axis with extent 1.
    pub(crate) fn reduce(&mut self, kind: ReduceKind, x: Value, axis: usize) -> Value {
        self.op(Op::Reduce { kind, axes: Axes::one(axis) }, &[x])
    }

    pub(crate) fn sum(&mut self, x: Value, axis: usize) -> Value {
        self.reduce(ReduceKind::Sum, x, axis)
    }

    /// The sum of all elements, as a scalar.
    pub(crate) fn sum_all(&mut self, x: Value) -> Value {
        let axes = Axes::all(self.shape(x).rank());
        let sum = self.op(Op::Reduce { kind: ReduceKind::Sum, axes }, &[x]);
        self.reshape(sum, &[])
    }

    pub(crate) fn mean(&mut self, x: Value, axis: usize) -> Value {
        let count = self.shape(x)[axis] as f64;
        let sum = self.sum(x, axis);
        let count = self.number(sum, count);
        self.binary(ScalarOp::Div, sum, count)
    }

    pub(crate) fn reshape(&mut self, x: Value, shape: &[usize]) -> Value {
        self.op(Op::Reshape(shape.into()), &[x])
    }

    pub(crate) fn permute(&mut self, x: Value, order: &[usize]) -> Value {
        self.op(Op::Permute(order.into()), &[x])
    }

    pub(crate) fn broadcast(&mut self, x: Value, shape: &[usize]) -> Value {
        self.op(Op::Broadcast(shape.into()), &[x])
    }

    pub(crate) fn slice(&mut self, x: Value, starts: &[usize], sizes: &[usize], steps: &[i64]) -> Value {
        self.op(Op::Slice { starts: starts.into(), sizes: sizes.into(), steps: steps.into() }, &[x])
    }

    /// Elements `start..end` of a vector.
    pub(crate) fn range(&mut self, x: Value, start: usize, end: usize) -> Value {
        self.slice(x, &[start], &[end - start], &[1])
    }

    pub(crate) fn concat(&mut self, parts: &[Value], axis: usize) -> Value {
        self.op(Op::Concat { axis }, parts)
    }

    pub(crate) fn matmul(&mut self, x: Value, y: Value) -> Value {
        self.op(Op::MatMul { precision: Precision::Full }, &[x, y])
    }

    pub(crate) fn gather(&mut self, x: Value, indices: Value, axis: usize) -> Value {
        self.op(Op::Gather { axis, batch: 0 }, &[x, indices])
    }

    pub(crate) fn scatter(&mut self, kind: ScatterKind, target: Value, indices: Value, updates: Value) -> Value {
        self.op(Op::Scatter { kind, axis: 0, batch: 0 }, &[target, indices, updates])
    }

    pub(crate) fn select(&mut self, condition: Value, then: Value, otherwise: Value) -> Value {
        self.op(Op::Select, &[condition, then, otherwise])
    }

    /// `exp(x - max) / sum` along an axis.
    pub(crate) fn softmax(&mut self, x: Value, axis: usize) -> Value {
        let most = self.reduce(ReduceKind::Max, x, axis);
        let below = self.sub(x, most);
        let powers = self.unary(ScalarOp::Exp, below);
        let sum = self.sum(powers, axis);
        self.binary(ScalarOp::Div, powers, sum)
    }

    /// `x - max - log(sum(exp(x - max)))` along an axis.
    pub(crate) fn log_softmax(&mut self, x: Value, axis: usize) -> Value {
        let most = self.reduce(ReduceKind::Max, x, axis);
        let below = self.sub(x, most);
        let powers = self.unary(ScalarOp::Exp, below);
        let sum = self.sum(powers, axis);
        let log = self.unary(ScalarOp::Log, sum);
        self.sub(below, log)
    }

    /// The mean of squared distances from the mean.
    pub(crate) fn variance(&mut self, x: Value, axis: usize) -> Value {
        let mean = self.mean(x, axis);
        let distance = self.sub(x, mean);
        let square = self.mul(distance, distance);
        self.mean(square, axis)
    }

    pub(crate) fn shape(&self, x: Value) -> Shape {
        self.b.ty(x).shape.clone()
    }

    /// An output with these elements exactly; any NaN for a NaN.
    pub(crate) fn expect(&mut self, value: Value, elements: &[f64]) {
        self.expect_near(value, elements, 0.0);
    }

    /// An output with elements within a relative distance of these.
    pub(crate) fn expect_near(&mut self, value: Value, elements: &[f64], relative: f64) {
        self.outputs.push(value);
        self.expected.push(Expected::Floats { values: elements.to_vec(), relative });
    }

    /// An output of integers or bools.
    pub(crate) fn expect_ints(&mut self, value: Value, elements: &[i128]) {
        self.outputs.push(value);
        self.expected.push(Expected::Ints(elements.to_vec()));
    }

    /// An output that only has to be what the reference says.
    pub(crate) fn output(&mut self, value: Value) {
        self.outputs.push(value);
        self.expected.push(Expected::Any);
    }

    /// The graph, and its arguments.
    pub(crate) fn graph(&self) -> (Graph, Vec<HostData>) {
        let outputs = self.outputs.iter().enumerate().map(|(index, &value)| (format!("y{index}"), value));
        (self.b.clone().finish(outputs).unwrap(), self.inputs.clone())
    }

    /// Runs it in every way.
    #[track_caller]
    pub(crate) fn check(self) {
        let (graph, inputs) = self.graph();
        self.check_outputs(REFERENCE, &evaluate(&graph, &inputs).unwrap());
        for (variant, options) in variants() {
            if let Some(compiled) = Compiled::unless_refused(&graph, &options) {
                self.check_outputs(variant, &compiled.run(&inputs));
            }
        }
        check(&graph, &inputs);
        check_exposing_each(&graph, &inputs);
    }

    /// Runs it as it is: for programs with too many elements for more.
    #[track_caller]
    pub(crate) fn check_once(self) {
        let (graph, inputs) = self.graph();
        self.check_outputs(REFERENCE, &evaluate(&graph, &inputs).unwrap());
        self.check_outputs("on the CPU", &Compiled::new(&graph, &variants()[0].1).run(&inputs));
    }

    #[track_caller]
    fn check_outputs(&self, place: &str, outputs: &[HostData]) {
        assert_eq!(outputs.len(), self.expected.len());
        for (index, (output, expected)) in outputs.iter().zip(&self.expected).enumerate() {
            check_output(place, index, output, expected);
        }
    }
}

#[track_caller]
fn check_output(place: &str, index: usize, output: &HostData, expected: &Expected) {
    let told = format!("output {index} {place}");
    match expected {
        Expected::Any => {}
        Expected::Ints(expected) => {
            assert_eq!(output.elements().map(Literal::to_i128).collect::<Vec<_>>(), *expected, "{told}");
        }
        Expected::Floats { values, relative } => {
            let actual: Vec<f64> = output.elements().map(Literal::to_f64).collect();
            let near = |(x, y): (&f64, &f64)| {
                let rounded = Literal::from_f64(output.dtype(), *y).to_f64();
                let lost = place != REFERENCE && !y.is_finite() && relaxed::ignores_nan();
                let exact = x.to_bits() == rounded.to_bits() || (x.is_nan() && y.is_nan()) || lost;
                exact || (x - y).abs() <= relative * y.abs()
            };
            let all = actual.len() == values.len() && actual.iter().zip(values).all(near);
            assert!(all, "{told}: {actual:?}, right is {values:?}");
        }
    }
}

/// Where the reference ran.
const REFERENCE: &str = "on the reference";

/// Host data from floats.
pub(crate) fn floats(dtype: DType, shape: &[usize], values: &[f64]) -> HostData {
    let literals: Vec<Literal> = values.iter().map(|&value| Literal::from_f64(dtype, value)).collect();
    HostData::from_literals(dtype, shape, &literals).unwrap()
}

/// Host data from integers.
pub(crate) fn ints(dtype: DType, shape: &[usize], values: &[i128]) -> HostData {
    let literals: Vec<Literal> = values.iter().map(|&value| Literal::from_i128(dtype, value)).collect();
    HostData::from_literals(dtype, shape, &literals).unwrap()
}
