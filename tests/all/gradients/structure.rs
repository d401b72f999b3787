//! What gradients cost, and what they leave alone.

use std::time::Instant;

use kiln_ir::grad::{grad, vjp};
use kiln_ir::{DType, GraphBuilder, ScalarOp, Value};

use super::{LOC, data, run, ty};

fn chain(length: usize) -> (GraphBuilder, Value, Value) {
    let mut b = GraphBuilder::new("chain");
    let x = b.input("x", ty(DType::F64, &[]), LOC).unwrap();
    let y = (0..length).fold(x, |y, _| b.scalar(ScalarOp::Sin, &[y], LOC).unwrap());
    (b, x, y)
}

#[test]
fn a_chain_of_ten_thousand_nodes_fits_a_small_stack() {
    let small = std::thread::Builder::new().stack_size(256 << 10).spawn(|| {
        let (mut b, x, y) = chain(10_000);
        let dx = grad(&mut b, y, &[x], LOC).unwrap()[0];
        let ddx = grad(&mut b, dx, &[x], LOC).unwrap()[0];
        b.finish([("dx", dx), ("ddx", ddx)]).unwrap()
    });
    let graph = small.unwrap().join().unwrap();
    assert!(graph.nodes.len() < 120_000, "{}", graph.nodes.len());
    assert!(run(&graph, &[data(DType::F64, &[], &[0.3])]).concat().iter().all(|number| number.is_finite()));
}

#[test]
fn a_value_with_many_paths_to_the_output_is_visited_once() {
    let mut b = GraphBuilder::new("doubling");
    let x = b.input("x", ty(DType::F64, &[]), LOC).unwrap();
    let y = (0..60).fold(x, |z, _| b.scalar(ScalarOp::Add, &[z, z], LOC).unwrap());
    let dx = grad(&mut b, y, &[x], LOC).unwrap()[0];
    assert!(b.nodes().len() < 200, "{}", b.nodes().len());
    let graph = b.finish([("dx", dx)]).unwrap();
    assert_eq!(run(&graph, &[data(DType::F64, &[], &[1.0])]).concat(), [2f64.powi(60)]);
}

#[test]
fn a_gradient_costs_a_small_multiple_of_the_nodes_it_differentiates() {
    let nodes = |length: usize| {
        let (mut b, x, y) = chain(length);
        let start = Instant::now();
        grad(&mut b, y, &[x], LOC).unwrap();
        (b.nodes().len(), start.elapsed())
    };
    let ((small, _), (large, time)) = (nodes(1_000), nodes(50_000));
    // The argument, a sine each; one seed, a cosine and a product each.
    assert_eq!((small, large), (3_002, 150_002));
    assert!(time.as_secs() < 10, "{time:?}");
}

#[test]
fn only_nodes_between_the_wanted_values_and_the_outputs_are_differentiated() {
    let mut b = GraphBuilder::new("f");
    let x = b.input("x", ty(DType::F32, &[]), LOC).unwrap();
    let w = b.input("w", ty(DType::F32, &[]), LOC).unwrap();
    // A long computation on x alone, which w has nothing to do with.
    let features = (0..50).fold(x, |y, _| b.scalar(ScalarOp::Sin, &[y], LOC).unwrap());
    let y = b.scalar(ScalarOp::Mul, &[features, w], LOC).unwrap();
    // And one after the loss.
    b.scalar(ScalarOp::Exp, &[y], LOC).unwrap();
    let before = b.nodes().len();
    grad(&mut b, y, &[w], LOC).unwrap();
    // The seed and its product with the features.
    assert_eq!(b.nodes().len(), before + 2);
}

#[test]
fn appending_changes_no_node_that_was_there() {
    let (mut b, x, y) = chain(5);
    let before = b.nodes().to_vec();
    let seed = b.full_like(y, 1.0, LOC).unwrap();
    vjp(&mut b, &[y], &[seed], &[x]).unwrap();
    assert_eq!(&b.nodes()[..before.len()], before);
}

#[test]
fn two_gradients_of_one_graph_are_the_same_nodes() {
    let text = |_| {
        let (mut b, x, y) = chain(3);
        let dx = grad(&mut b, y, &[x], LOC).unwrap()[0];
        b.finish([("dx", dx)]).unwrap().to_string()
    };
    assert_eq!(text(0), text(1));
}
