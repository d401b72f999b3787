//! The gradient graphs of a few ops as text, and the mistakes as users see them.

use smallvec::smallvec;

use super::{append, grad, vjp};
use crate::{
    Axes, Backend, Code, Custom, DType, Diagnostic, Graph, GraphBuilder, Loc, Op, Precision, ReduceKind, ScalarOp,
    TensorType, Value, parse,
};

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape, Backend::Cpu)
}

/// The gradient of the output `y` of a graph, appended and printed. The text is checked to read back.
fn with_gradient(text: &str, wrt: &[&str]) -> String {
    let graph = append(&parse(text).unwrap(), "y", wrt).unwrap();
    crate::verify(&graph).unwrap();
    let text = graph.to_string();
    assert_eq!(parse(&text).unwrap().to_string(), text);
    text
}

#[test]
fn a_product_hands_each_operand_the_other() {
    insta::assert_snapshot!(with_gradient(
        r#"kiln 1
graph @f(%0 "a": f32[] @cpu, %1 "b": f32[] @cpu) {
  %2 = exp %0 : f32[] @cpu
  %3 = mul %2, %1 : f32[] @cpu
  return %3 "y"
}
"#,
        &["a", "b"],
    ));
}

#[test]
fn a_layer_is_differentiated_by_products_with_transposes() {
    insta::assert_snapshot!(with_gradient(
        r#"kiln 1
graph @f(%0 "x": f32[2, 3] @cpu, %1 "w": f32[3, 4] @cpu, %2 "b": f32[4] @cpu) {
  %3 = matmul %0, %1 : f32[2, 4] @cpu
  %4 = broadcast [2, 4] %2 : f32[2, 4] @cpu
  %5 = add %3, %4 : f32[2, 4] @cpu
  %6 = literal 0.0 : f32[] @cpu
  %7 = broadcast [2, 4] %6 : f32[2, 4] @cpu
  %8 = le %5, %7 : bool[2, 4] @cpu
  %9 = select %8, %7, %5 : f32[2, 4] @cpu
  %10 = reduce.sum [0, 1] %9 : f32[1, 1] @cpu
  %11 = reshape [] %10 : f32[] @cpu
  return %11 "y"
}
"#,
        &["w", "b"],
    ));
}

#[test]
fn a_slice_with_a_step_is_undone_by_spreading_and_padding() {
    insta::assert_snapshot!(with_gradient(
        r#"kiln 1
graph @f(%0 "x": f32[8] @cpu) {
  %1 = slice starts=[6] sizes=[3] steps=[-2] %0 : f32[3] @cpu
  %2 = reduce.sum [0] %1 : f32[1] @cpu
  %3 = reshape [] %2 : f32[] @cpu
  return %3 "y"
}
"#,
        &["x"],
    ));
}

#[test]
fn a_product_with_a_branch_that_may_not_be_taken_is_guarded() {
    insta::assert_snapshot!(with_gradient(
        r#"kiln 1
graph @f(%0 "x": f32[] @cpu) {
  %1 = literal 0.0 : f32[] @cpu
  %2 = gt %0, %1 : bool[] @cpu
  %3 = sqrt %0 : f32[] @cpu
  %4 = select %2, %3, %0 : f32[] @cpu
  return %4 "y"
}
"#,
        &["x"],
    ));
}

#[test]
fn a_maximum_counts_its_ties() {
    insta::assert_snapshot!(with_gradient(
        r#"kiln 1
graph @f(%0 "x": f16[3] @cpu) {
  %1 = reduce.max [0] %0 : f16[1] @cpu
  %2 = reshape [] %1 : f16[] @cpu
  return %2 "y"
}
"#,
        &["x"],
    ));
}

#[test]
fn a_gather_adds_at_the_clamped_index() {
    insta::assert_snapshot!(with_gradient(
        r#"kiln 1
graph @f(%0 "x": f32[5] @cpu, %1 "i": i32[] @cpu) {
  %2 = gather axis=0 %0, %1 : f32[] @cpu
  return %2 "y"
}
"#,
        &["x"],
    ));
}

#[test]
fn a_gradient_of_a_gradient_takes_the_next_free_name() {
    let graph = parse(
        r#"kiln 1
graph @cube(%0 "x": f32[] @cpu) {
  %1 = mul %0, %0 : f32[] @cpu
  %2 = mul %1, %0 : f32[] @cpu
  return %2 "y"
}
"#,
    )
    .unwrap();
    let once = append(&graph, "y", &["x"]).unwrap();
    let twice = append(&once, "grad.x", &["x"]).unwrap();
    let names: Vec<&str> = twice.outputs.iter().map(|output| &*output.name).collect();
    assert_eq!(names, ["y", "grad.x", "grad.grad.x"]);
    assert_eq!(graph.nodes[..], twice.nodes[..graph.nodes.len()]);
}

#[test]
fn a_name_that_the_graph_does_not_have_is_named_with_those_it_has() {
    let graph = parse(
        r#"kiln 1
graph @f(%0 "x": f32[] @cpu) {
  %1 = exp %0 : f32[] @cpu
  return %1 "y"
}
"#,
    )
    .unwrap();
    insta::assert_snapshot!(append(&graph, "z", &["x"]).unwrap_err().to_string());
    insta::assert_snapshot!(append(&graph, "y", &["w"]).unwrap_err().to_string());
}

#[test]
fn a_gradient_node_carries_the_line_of_the_node_it_differentiates() {
    let line = |line: u32| Loc::Text { line, column: 1 };
    let mut b = GraphBuilder::new("f");
    let x = b.input("x", f32s(&[]), line(1)).unwrap();
    let sin = b.scalar(ScalarOp::Sin, &[x], line(2)).unwrap();
    let y = b.scalar(ScalarOp::Exp, &[sin], line(3)).unwrap();
    let first = b.nodes().len();
    grad(&mut b, y, &[x], line(9)).unwrap();
    let lines: Vec<_> = b.nodes()[first..].iter().map(|node| (node.op.name().into_owned(), node.loc)).collect();
    let expected = [("literal", 9), ("mul", 3), ("cos", 2), ("mul", 2)];
    assert_eq!(lines, expected.map(|(name, number)| (name.to_owned(), line(number))));
}

#[test]
fn unused_values_get_zeros_of_their_own_type() {
    let mut b = GraphBuilder::new("f");
    let x = b.input("x", f32s(&[]), Loc::Unknown).unwrap();
    let unused = b.input("unused", TensorType::new(DType::BF16, [2, 0, 3], Backend::Cuda), Loc::Unknown).unwrap();
    let found = grad(&mut b, x, &[unused, x, unused], Loc::Unknown).unwrap();
    assert_eq!(b.ty(found[0]), b.ty(unused));
    assert_eq!(b.ty(found[2]), b.ty(unused));
}

/// A loss that goes through the bits of `x`, with a line on every node.
fn through_bits(steps: usize) -> Result<Vec<Value>, Diagnostic> {
    let mut b = GraphBuilder::new("f");
    let mut line = 0;
    let mut next = || {
        line += 1;
        Loc::Text { line, column: 1 }
    };
    let x = b.input("x", f32s(&[2]), next())?;
    let bits = b.value(Op::Bitcast(DType::I32), &[x], next())?;
    let shifted = b.scalar(ScalarOp::Shr, &[bits, bits], next())?;
    let back = b.value(Op::Bitcast(DType::F32), &[shifted], next())?;
    let mut y = back;
    for _ in 0..steps {
        y = b.scalar(ScalarOp::Exp, &[y], next())?;
    }
    let product = b.scalar(ScalarOp::Mul, &[x, y], next())?;
    let sum = b.reduce(ReduceKind::Sum, Axes::all(1), product, next())?;
    let loss = b.reshape(sum, &[].into(), next())?;
    grad(&mut b, loss, &[x], next())
}

#[test]
fn an_op_without_a_rule_is_reported_with_the_path_to_it() {
    insta::assert_snapshot!(through_bits(1).unwrap_err().to_string());
}

#[test]
fn the_middle_of_a_long_path_is_left_out() {
    insta::assert_snapshot!(through_bits(100).unwrap_err().to_string());
}

#[test]
fn an_op_without_a_rule_is_no_error_off_the_path() {
    let mut b = GraphBuilder::new("f");
    let x = b.input("x", f32s(&[]), Loc::Unknown).unwrap();
    let held = b.value(Op::StopGradient, &[x], Loc::Unknown).unwrap();
    let bits = b.value(Op::Bitcast(DType::I32), &[held], Loc::Unknown).unwrap();
    let back = b.value(Op::Bitcast(DType::F32), &[bits], Loc::Unknown).unwrap();
    let y = b.scalar(ScalarOp::Mul, &[x, back], Loc::Unknown).unwrap();
    assert!(grad(&mut b, y, &[x], Loc::Unknown).is_ok());
    // Nor where the bits only decide something.
    let bits = b.value(Op::Bitcast(DType::I32), &[x], Loc::Unknown).unwrap();
    let even = b.scalar(ScalarOp::Eq, &[bits, bits], Loc::Unknown).unwrap();
    let y = b.value(Op::Select, &[even, x, y], Loc::Unknown).unwrap();
    assert!(grad(&mut b, y, &[x], Loc::Unknown).is_ok());
}

#[test]
fn a_custom_op_without_a_body_is_reported_by_its_name() {
    let mut b = GraphBuilder::new("f");
    let x = b.input("x", f32s(&[]), Loc::Unknown).unwrap();
    let custom = Custom { name: "swirl".into(), attributes: Vec::new(), results: smallvec![f32s(&[])], body: None };
    let y = b.value(Op::Custom(custom), &[x], Loc::Unknown).unwrap();
    insta::assert_snapshot!(grad(&mut b, y, &[x], Loc::Unknown).unwrap_err().to_string());
}

#[test]
fn mistakes_in_what_is_asked_for_are_named() {
    let mut b = GraphBuilder::new("f");
    let x = b.input("x", f32s(&[2]), Loc::Unknown).unwrap();
    let n = b.input("n", TensorType::new(DType::I32, [], Backend::Cpu), Loc::Unknown).unwrap();
    insta::assert_snapshot!(grad(&mut b, x, &[x], Loc::Unknown).unwrap_err().to_string());
    insta::assert_snapshot!(grad(&mut b, n, &[x], Loc::Unknown).unwrap_err().to_string());
    insta::assert_snapshot!(vjp(&mut b, &[x], &[x], &[n]).unwrap_err().to_string());
    assert_eq!(vjp(&mut b, &[x], &[], &[x]).unwrap_err().code, Code::K0312);
    assert_eq!(vjp(&mut b, &[x], &[n], &[x]).unwrap_err().code, Code::K0312);
    // The builder is whole after a mistake.
    assert!(vjp(&mut b, &[x], &[x], &[x]).is_ok());
}

/// A custom op whose body is the custom op below it, `depth` times.
fn nested(depth: usize) -> Op {
    let mut b = GraphBuilder::new("body");
    let x = b.input("x", f32s(&[]), Loc::Unknown).unwrap();
    let inner = match depth {
        0 => Op::Scalar(ScalarOp::Exp),
        _ => nested(depth - 1),
    };
    let y = b.value(inner, &[x], Loc::Unknown).unwrap();
    let body = b.finish([("y", y)]).unwrap();
    Op::Custom(Custom {
        name: format!("level {depth}").into(),
        attributes: Vec::new(),
        results: smallvec![f32s(&[])],
        body: Some(body.into()),
    })
}

#[test]
fn bodies_within_bodies_are_differentiated() {
    let mut b = GraphBuilder::new("f");
    let x = b.input("x", f32s(&[]), Loc::Unknown).unwrap();
    let y = b.value(nested(20), &[x], Loc::Unknown).unwrap();
    let dx = grad(&mut b, y, &[x], Loc::Unknown).unwrap()[0];
    let graph: Graph = b.finish([("dx", dx)]).unwrap();
    crate::verify(&graph).unwrap();
    assert!(graph.nodes.iter().any(|node| node.op == Op::Scalar(ScalarOp::Exp)));
}

#[test]
fn the_precision_of_a_matrix_product_is_that_of_its_gradients() {
    let mut b = GraphBuilder::new("f");
    let x = b.input("x", f32s(&[2, 2]), Loc::Unknown).unwrap();
    let y = b.value(Op::MatMul { precision: Precision::Tf32 }, &[x, x], Loc::Unknown).unwrap();
    vjp(&mut b, &[y], &[x], &[x]).unwrap();
    let products = b.nodes().iter().filter(|node| node.op == Op::MatMul { precision: Precision::Tf32 });
    assert_eq!(products.count(), 3);
}

#[test]
fn a_tensor_too_large_to_address_is_an_error_and_no_panic() {
    let mut b = GraphBuilder::new("f");
    let huge = isize::MAX as usize / 3;
    let x = b.input("x", TensorType::new(DType::F16, [1], Backend::Cpu), Loc::Unknown).unwrap();
    let wide = b.broadcast(x, &[huge].into(), Loc::Unknown).unwrap();
    let most = b.reduce(ReduceKind::Max, Axes::all(1), wide, Loc::Unknown).unwrap();
    // Counting ties takes four bytes an element, and those cannot be addressed.
    let most = b.reshape(most, &[].into(), Loc::Unknown).unwrap();
    assert_eq!(grad(&mut b, most, &[x], Loc::Unknown).unwrap_err().code, Code::K0310);
    assert!(vjp(&mut b, &[x], &[x], &[x]).is_ok());
}
