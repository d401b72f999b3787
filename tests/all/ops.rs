//! The op table against the CPU: every op, every dtype it takes, shapes from nothing to several strips, operands in every layout.
//!
//! The tables drive the tests ([`ScalarOp::ALL`], [`kiln_ir::ReduceKind::ALL`], [`DType::ALL`], ..): an op that is added is tested.

mod indexing;
mod reductions;
mod sources;
mod views;

use kiln_ir::{Backend, DType, Graph, GraphBuilder, HostData, Loc, Op, ScalarOp, Shape, TensorType, Value};

use crate::check::{check, check_compiled};
use crate::data::{Source, Values, tensor};
use crate::under_test::{each_or_one, each_or_some};

/// Shapes that every op must take: scalar, empty, one element, odd, prime, flat both ways, some rank.
pub(crate) const SMALL_SHAPES: &[&[usize]] =
    &[&[], &[0], &[1], &[9], &[13], &[7, 1], &[1, 7], &[3, 0], &[2, 3, 5], &[2, 1, 3, 2]];

/// A shape of several strips.
pub(crate) const LARGE_SHAPE: &[usize] = &[50, 101];

/// How an operand of some shape comes about from an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// It is the argument.
    Plain,
    /// Its axes are the argument's in reverse.
    Permuted,
    /// Every second element of the argument.
    Strided,
    /// The argument's elements backwards along each axis.
    Reversed,
    /// Its first axis is an axis of extent 1, repeated.
    RepeatedRows,
    /// Its last axis is an axis of extent 1, repeated.
    RepeatedColumns,
    /// The argument under another shape.
    Reshaped,
}

impl Layout {
    pub(crate) const ALL: [Layout; 7] = [
        Layout::Plain,
        Layout::Permuted,
        Layout::Strided,
        Layout::Reversed,
        Layout::RepeatedRows,
        Layout::RepeatedColumns,
        Layout::Reshaped,
    ];
}

/// A graph under construction together with the data of its arguments.
pub(crate) struct Trial {
    pub(crate) b: GraphBuilder,
    pub(crate) inputs: Vec<HostData>,
    pub(crate) source: Source,
}

impl Trial {
    pub(crate) fn new(seed: u64) -> Trial {
        Trial { b: GraphBuilder::new("trial"), inputs: Vec::new(), source: Source::new(seed) }
    }

    /// A new argument.
    pub(crate) fn argument(&mut self, dtype: DType, shape: &[usize], values: Values) -> Value {
        let data = tensor(dtype, shape, values, &mut self.source);
        let name = format!("x{}", self.inputs.len());
        self.inputs.push(data);
        self.b.input(name, TensorType::new(dtype, shape, Backend::Cpu), Loc::Unknown).expect("names differ")
    }

    pub(crate) fn op(&mut self, op: Op, operands: &[Value]) -> Value {
        self.b.value(op, operands, Loc::Unknown).expect("the op takes these operands")
    }

    /// A value of a shape, made from a new argument by views.
    pub(crate) fn operand(&mut self, dtype: DType, shape: &[usize], values: Values, layout: Layout) -> Value {
        let rank = shape.len();
        match layout {
            Layout::Plain => self.argument(dtype, shape, values),
            Layout::Permuted => {
                let reversed: Vec<usize> = shape.iter().rev().copied().collect();
                let x = self.argument(dtype, &reversed, values);
                self.op(Op::Permute((0..rank).rev().collect()), &[x])
            }
            Layout::Strided => {
                let wide: Vec<usize> = shape.iter().map(|extent| 2 * extent + 1).collect();
                let x = self.argument(dtype, &wide, values);
                let steps = std::iter::repeat_n(2, rank).collect();
                self.op(Op::Slice { starts: std::iter::repeat_n(1, rank).collect(), sizes: shape.into(), steps }, &[x])
            }
            Layout::Reversed => {
                let x = self.argument(dtype, shape, values);
                let starts = shape.iter().map(|extent| extent.saturating_sub(1)).collect();
                let steps = std::iter::repeat_n(-1, rank).collect();
                self.op(Op::Slice { starts, sizes: shape.into(), steps }, &[x])
            }
            Layout::RepeatedRows | Layout::RepeatedColumns => {
                let mut flat = shape.to_vec();
                let axis = if layout == Layout::RepeatedRows { 0 } else { rank.saturating_sub(1) };
                if let Some(extent) = flat.get_mut(axis) {
                    *extent = 1;
                }
                let x = self.argument(dtype, &flat, values);
                self.op(Op::Broadcast(shape.into()), &[x])
            }
            Layout::Reshaped => {
                let x = self.argument(dtype, &[shape.iter().product()], values);
                self.op(Op::Reshape(shape.into()), &[x])
            }
        }
    }

    /// The graph that gives these values, and its arguments.
    pub(crate) fn finish(self, outputs: &[Value]) -> (Graph, Vec<HostData>) {
        let outputs = outputs.iter().enumerate().map(|(index, &value)| (format!("y{index}"), value));
        (self.b.finish(outputs).expect("names differ"), self.inputs)
    }

    /// Checks the graph that gives these values in all ways.
    #[track_caller]
    pub(crate) fn check(self, outputs: &[Value]) {
        let (graph, inputs) = self.finish(outputs);
        check(&graph, &inputs);
    }
}

/// Layouts, the operands taking turns so that they are seldom laid out alike.
fn turns(count: usize) -> impl Iterator<Item = Vec<Layout>> {
    let all = Layout::ALL;
    (0..all.len()).map(move |turn| (0..count).map(|operand| all[(turn * (operand + 1)) % all.len()]).collect())
}

fn elementwise(op: Op, dtypes: &[DType], shape: &[usize], layouts: &[Layout], seed: u64) -> (Graph, Vec<HostData>) {
    let mut trial = Trial::new(seed);
    let operands: Vec<Value> = dtypes
        .iter()
        .zip(layouts)
        .map(|(&dtype, &layout)| trial.operand(dtype, shape, Values::Edges, layout))
        .collect();
    let result = trial.op(op, &operands);
    trial.finish(&[result])
}

/// All shapes and layouts of one elementwise op.
#[track_caller]
fn check_elementwise(op: &Op, dtypes: &[DType]) {
    for shape in each_or_some(3, SMALL_SHAPES.to_vec(), &(op, dtypes)) {
        for layouts in each_or_one(turns(dtypes.len()).collect(), &(op, dtypes, shape)) {
            let (graph, inputs) = elementwise(op.clone(), dtypes, shape, &layouts, shape.len() as u64);
            check_compiled(&graph, &inputs);
        }
    }
    let (graph, inputs) = elementwise(op.clone(), dtypes, &[13], &vec![Layout::Plain; dtypes.len()], 3);
    check(&graph, &inputs);
    let turns = turns(dtypes.len()).enumerate().step_by(2).collect();
    for (seed, layouts) in each_or_one(turns, &(op, dtypes)) {
        let (graph, inputs) = elementwise(op.clone(), dtypes, LARGE_SHAPE, &layouts, seed as u64);
        check_compiled(&graph, &inputs);
    }
}

fn check_scalar_ops(dtype: DType) {
    for &op in ScalarOp::ALL {
        if op.result_dtype(dtype).is_some() {
            check_elementwise(&Op::Scalar(op), &vec![dtype; op.arity()]);
        }
    }
}

/// One test a dtype, so that they run side by side.
macro_rules! for_each_dtype {
    ($check:path: $($name:ident $dtype:ident)*) => {
        $(#[test]
        fn $name() {
            $check(kiln_ir::DType::$dtype);
        })*
    };
}
pub(crate) use for_each_dtype;

for_each_dtype! { check_scalar_ops:
    elementwise_ops_of_f32_match F32
    elementwise_ops_of_f16_match F16
    elementwise_ops_of_bf16_match BF16
    elementwise_ops_of_f64_match F64
    elementwise_ops_of_i8_match I8
    elementwise_ops_of_u8_match U8
    elementwise_ops_of_i32_match I32
    elementwise_ops_of_u32_match U32
    elementwise_ops_of_i64_match I64
    elementwise_ops_of_bool_match Bool
}

#[test]
fn casts_match_from_every_dtype_to_every_other() {
    for from in DType::ALL {
        for to in DType::ALL {
            check_elementwise(&Op::Cast(to), &[from]);
        }
    }
}

#[test]
fn bitcasts_match_between_dtypes_of_one_width() {
    for from in DType::ALL {
        for to in DType::ALL {
            if from.size() == to.size() && from != DType::Bool && to != DType::Bool {
                check_elementwise(&Op::Bitcast(to), &[from]);
            }
        }
    }
}

#[test]
fn selects_match_for_every_dtype() {
    for dtype in DType::ALL {
        check_elementwise(&Op::Select, &[DType::Bool, dtype, dtype]);
    }
}

#[test]
fn chains_of_every_elementwise_op_match_in_one_kernel() {
    for dtype in DType::ALL {
        let mut trial = Trial::new(5);
        let x = trial.operand(dtype, LARGE_SHAPE, Values::Edges, Layout::Permuted);
        let y = trial.operand(dtype, LARGE_SHAPE, Values::Tame, Layout::Plain);
        let z = trial.operand(dtype, LARGE_SHAPE, Values::Tame, Layout::RepeatedRows);
        let results: Vec<Value> = ScalarOp::ALL
            .iter()
            .filter(|op| op.result_dtype(dtype).is_some())
            .map(|&op| trial.op(Op::Scalar(op), &[x, y, z][..op.arity()]))
            .collect();
        let (graph, inputs) = trial.finish(&results);
        check_compiled(&graph, &inputs);
    }
}

#[test]
fn an_op_may_read_one_operand_in_two_layouts() {
    let mut trial = Trial::new(6);
    let x = trial.argument(DType::F32, &[40, 40], Values::Edges);
    let transposed = trial.op(Op::Permute([1, 0].as_slice().into()), &[x]);
    let sizes: Shape = [40, 40].into();
    let flip = Op::Slice { starts: [39, 0].as_slice().into(), sizes, steps: [-1, 1].as_slice().into() };
    let flipped = trial.op(flip, &[x]);
    let sum = trial.op(Op::Scalar(ScalarOp::Add), &[x, transposed]);
    let difference = trial.op(Op::Scalar(ScalarOp::Sub), &[sum, flipped]);
    trial.check(&[difference, sum]);
}
