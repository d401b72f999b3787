//! Whole graphs, and what the unit tests of the op families share.

use kiln_ir::{Backend, Code, Custom, DType, GraphBuilder, HostData, Literal, Loc, Op, ScalarOp, TensorType, Value};

use super::{evaluate, evaluate_all};

/// Host data from numbers, rounded to the dtype.
pub(super) fn floats(dtype: DType, shape: &[usize], values: &[f64]) -> HostData {
    let literals: Vec<Literal> = values.iter().map(|&value| Literal::from_f64(dtype, value)).collect();
    HostData::from_literals(dtype, shape, &literals).expect("values fit the shape")
}

/// Host data from integers, wrapped to the dtype.
pub(super) fn ints(dtype: DType, shape: &[usize], values: &[i128]) -> HostData {
    let literals: Vec<Literal> = values.iter().map(|&value| Literal::from_i128(dtype, value)).collect();
    HostData::from_literals(dtype, shape, &literals).expect("values fit the shape")
}

/// A vector of `f32`.
pub(super) fn vector(values: &[f64]) -> HostData {
    floats(DType::F32, &[values.len()], values)
}

/// The result of one op.
pub(super) fn apply(op: Op, operands: &[HostData]) -> HostData {
    let mut b = GraphBuilder::new("one op");
    let inputs: Vec<Value> = operands.iter().enumerate().map(|(index, data)| declare(&mut b, index, data)).collect();
    let result = b.value(op, &inputs, Loc::Unknown).expect("the op takes these operands");
    let graph = b.finish([("result", result)]).expect("the graph is sound");
    let mut outputs = evaluate(&graph, operands).expect("the graph evaluates");
    let output = outputs.remove(0);
    let declared = graph.ty(result);
    assert_eq!((output.dtype(), output.shape()), (declared.dtype, &declared.shape));
    output
}

/// The result of one elementwise op.
pub(super) fn scalar(op: ScalarOp, operands: &[HostData]) -> HostData {
    apply(Op::Scalar(op), operands)
}

fn declare(b: &mut GraphBuilder, index: usize, data: &HostData) -> Value {
    let ty = TensorType::new(data.dtype(), data.shape(), Backend::NdArray);
    b.input(format!("x{index}"), ty, Loc::Unknown).expect("names differ")
}

/// Elements equal to `expected` bit for bit, any NaN for a NaN.
#[track_caller]
pub(super) fn assert_floats(actual: &HostData, expected: &[f64]) {
    let actual: Vec<f64> = actual.elements().map(Literal::to_f64).collect();
    let same = |(x, y): (&f64, &f64)| x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan());
    let equal = actual.len() == expected.len() && actual.iter().zip(expected).all(same);
    assert!(equal, "got {actual:?}, expected {expected:?}");
}

/// Elements equal to `expected`.
#[track_caller]
pub(super) fn assert_ints(actual: &HostData, expected: &[i128]) {
    assert!(!actual.dtype().is_float());
    assert_eq!(actual.elements().map(Literal::to_i128).collect::<Vec<_>>(), expected);
}

#[test]
fn an_input_of_another_type_is_refused_by_name() {
    let mut b = GraphBuilder::new("f");
    let x = b.input("weight", TensorType::new(DType::F32, [2], Backend::Cpu), Loc::Unknown).unwrap();
    let graph = b.finish([("y", x)]).unwrap();
    let error = |inputs: &[HostData]| evaluate(&graph, inputs).unwrap_err();
    let wrong_dtype = error(&[ints(DType::I32, &[2], &[1, 2])]);
    assert_eq!(wrong_dtype.code, Code::K0701);
    assert_eq!(wrong_dtype.message, "argument `weight`: expected f32[2], got i32[2]");
    assert_eq!(error(&[vector(&[1.0])]).message, "argument `weight`: expected f32[2], got f32[1]");
    assert_eq!(error(&[]).message, "`f` takes 1 arguments, got 0");
}

#[test]
fn a_chain_of_ten_thousand_nodes_runs_on_a_small_stack() {
    let run = || {
        let mut b = GraphBuilder::new("chain");
        let x = b.input("x", TensorType::new(DType::F32, [], Backend::Cpu), Loc::Unknown).unwrap();
        let one = b.literal_like(x, 1.0, Loc::Unknown).unwrap();
        let last = (0..10_000).fold(x, |z, _| b.scalar(ScalarOp::Add, &[z, one], Loc::Unknown).unwrap());
        let graph = b.finish([("z", last)]).unwrap();
        assert_floats(&evaluate(&graph, &[floats(DType::F32, &[], &[0.0])]).unwrap()[0], &[10_000.0]);
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(run).unwrap().join().unwrap();
}

#[test]
fn a_graph_without_inputs_or_with_an_input_as_output_runs() {
    let mut b = GraphBuilder::new("f");
    let seven =
        b.value(Op::Literal { value: Literal::from_i128(DType::I8, 7), backend: Backend::Cpu }, &[], Loc::Unknown);
    let graph = b.finish([("seven", seven.unwrap())]).unwrap();
    assert_ints(&evaluate(&graph, &[]).unwrap()[0], &[7]);

    let mut b = GraphBuilder::new("identity");
    let x = b.input("x", TensorType::new(DType::F32, [2], Backend::Cpu), Loc::Unknown).unwrap();
    let graph = b.finish([("a", x), ("b", x)]).unwrap();
    let outputs = evaluate(&graph, &[vector(&[-0.0, 5.0])]).unwrap();
    assert_floats(&outputs[0], &[-0.0, 5.0]);
    assert_eq!(outputs[0], outputs[1]);
}

#[test]
fn every_nodes_results_can_be_seen() {
    let mut b = GraphBuilder::new("f");
    let x = b.input("x", TensorType::new(DType::F32, [2], Backend::Cpu), Loc::Unknown).unwrap();
    let unused = b.scalar(ScalarOp::Neg, &[x], Loc::Unknown).unwrap();
    let y = b.scalar(ScalarOp::Mul, &[x, x], Loc::Unknown).unwrap();
    let graph = b.finish([("y", y)]).unwrap();
    let all = evaluate_all(&graph, &[vector(&[3.0, -2.0])]).unwrap();
    assert_floats(&all[0][0], &[3.0, -2.0]);
    assert_floats(&all[unused.node.index()][0], &[-3.0, 2.0]);
    assert_floats(&all[y.node.index()][0], &[9.0, 4.0]);
}

fn custom(body: Option<kiln_ir::Graph>) -> Op {
    let results = [TensorType::new(DType::F32, [2], Backend::Cpu), TensorType::new(DType::Bool, [2], Backend::Cpu)];
    let body = body.map(std::sync::Arc::new);
    Op::Custom(Custom { name: "split".into(), attributes: Vec::new(), results: results.into_iter().collect(), body })
}

#[test]
fn a_custom_op_with_a_body_is_its_body() {
    let mut b = GraphBuilder::new("body");
    let x = b.input("x", TensorType::new(DType::F32, [2], Backend::Cpu), Loc::Unknown).unwrap();
    let double = b.scalar(ScalarOp::Add, &[x, x], Loc::Unknown).unwrap();
    let nan = b.scalar(ScalarOp::IsNan, &[x], Loc::Unknown).unwrap();
    let body = b.finish([("double", double), ("nan", nan)]).unwrap();

    let mut b = GraphBuilder::new("f");
    let x = b.input("x", TensorType::new(DType::F32, [2], Backend::Cpu), Loc::Unknown).unwrap();
    let node = b.add(custom(Some(body)), &[x], Loc::Unknown).unwrap();
    let value = |result| Value { node, result };
    let graph = b.finish([("nan", value(1)), ("double", value(0))]).unwrap();
    let outputs = evaluate(&graph, &[vector(&[f64::NAN, 4.0])]).unwrap();
    assert_ints(&outputs[0], &[1, 0]);
    assert_floats(&outputs[1], &[f64::NAN, 8.0]);
}

#[test]
fn a_custom_op_without_a_body_cannot_run_here() {
    let mut b = GraphBuilder::new("f");
    let x = b.input("x", TensorType::new(DType::F32, [2], Backend::Cpu), Loc::Unknown).unwrap();
    let y = b.value(custom(None), &[x], Loc::Unknown).unwrap();
    let graph = b.finish([("y", y)]).unwrap();
    let error = evaluate(&graph, &[vector(&[1.0, 2.0])]).unwrap_err();
    assert_eq!(error.code, Code::K0209);
    assert_eq!(error.message, "Backend not supported for custom op `split`");
}

#[test]
fn a_graph_that_breaks_the_rules_is_refused_rather_than_run() {
    let mut b = GraphBuilder::new("f");
    let x = b.input("x", TensorType::new(DType::F32, [2], Backend::Cpu), Loc::Unknown).unwrap();
    let y = b.scalar(ScalarOp::Neg, &[x], Loc::Unknown).unwrap();
    let mut graph = b.finish([("y", y)]).unwrap();
    graph.nodes[1].operands[0] = Value::first(9);
    assert_eq!(evaluate(&graph, &[vector(&[1.0, 2.0])]).unwrap_err().code, Code::K0106);
}

#[test]
fn a_transfer_and_its_kin_are_the_identity() {
    for op in [Op::Transfer(Backend::Cuda), Op::StopGradient, Op::Mark, Op::Barrier] {
        assert_floats(&apply(op, &[vector(&[-0.0, f64::NAN])]), &[-0.0, f64::NAN]);
    }
}
