//! What looks like attention and is not, or must not be: left alone, right, and told in the ledger.

use kiln::prelude::*;
use kiln_capture::{CapturedGraph, Mask, attention};
use kiln_ir::plan::Blocked;
use kiln_passes::{Fusion, Limits, Options, compile};

use super::{agrees, attentions, capture, forms, plan_of, three};

/// Checks that no kernel is attention, that results are right, and that the ledger gives the reason.
#[track_caller]
fn is_left_alone(captured: &CapturedGraph, reason: Option<Blocked>) {
    let plan = plan_of(captured);
    assert_eq!(attentions(&plan), 0, "{plan}");
    if let Some(reason) = reason {
        let told: Vec<Blocked> = plan.ledger.iter().map(|edge| edge.blocked).collect();
        assert!(told.contains(&reason), "{told:?}");
    }
    agrees(captured);
}

#[test]
fn scores_that_are_a_result_are_told() {
    let captured = capture(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        let scores = q.matmul(&k.transpose()) * 0.35;
        (scores.softmax(-1).matmul(&v), scores)
    });
    is_left_alone(&captured, Some(Blocked::ScoresAreResult));
}

#[test]
fn weights_that_are_a_result_are_told() {
    let captured = capture(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        let weights = (q.matmul(&k.transpose()) * 0.35).softmax(-1);
        (weights.matmul(&v), weights)
    });
    is_left_alone(&captured, Some(Blocked::ScoresAreResult));
}

#[test]
fn weights_that_are_read_twice_are_told() {
    let captured = capture(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        let weights = (q.matmul(&k.transpose()) * 0.35).softmax(-1);
        (weights.matmul(&v), weights.mean(0))
    });
    is_left_alone(&captured, Some(Blocked::WeightsRead));
}

#[test]
fn weights_that_multiply_two_values_are_told() {
    let captured = capture(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        let weights = (q.matmul(&k.transpose()) * 0.35).softmax(-1);
        (weights.matmul(&v), weights.matmul(&k))
    });
    is_left_alone(&captured, Some(Blocked::WeightsRead));
}

#[test]
fn a_softmax_over_the_queries_is_told() {
    let captured = capture(|scope| {
        let [q, k, v] = three(scope, 7, 7, DType::F32);
        (q.matmul(&k.transpose()) * 0.35).softmax(-2).matmul(&v)
    });
    is_left_alone(&captured, Some(Blocked::SoftmaxAxis));
}

#[test]
fn a_softmax_over_the_heads_is_told() {
    let captured = capture(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        (q.matmul(&k.transpose()) * 0.35).softmax(1).matmul(&v)
    });
    is_left_alone(&captured, Some(Blocked::SoftmaxAxis));
}

#[test]
fn a_softmax_that_may_overflow_is_told() {
    let captured = capture(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        let e = (q.matmul(&k.transpose()) * 0.35).exp();
        (&e / e.sum_keepdim(-1)).matmul(&v)
    });
    is_left_alone(&captured, Some(Blocked::NoMaximum));
}

#[test]
fn squared_relu_is_no_softmax() {
    let captured = capture(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        let weights = q.matmul(&k.transpose()).relu().square();
        (&weights / (weights.sum_keepdim(-1) + 1.0)).matmul(&v)
    });
    is_left_alone(&captured, None);
}

#[test]
fn a_sum_of_something_else_is_no_softmax() {
    let captured = capture(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        let scores = q.matmul(&k.transpose()) * 0.35;
        let e = (&scores - scores.max_keepdim(-1)).exp();
        (&e / (e.sum_keepdim(-1) + 1.0)).matmul(&v)
    });
    is_left_alone(&captured, None);
}

#[test]
fn a_maximum_of_something_else_is_told() {
    let captured = capture(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        let scores = q.matmul(&k.transpose());
        let e = (&scores * 0.35 - scores.max_keepdim(-1)).exp();
        (&e / e.sum_keepdim(-1)).matmul(&v)
    });
    is_left_alone(&captured, Some(Blocked::NoMaximum));
}

#[test]
fn a_gradient_for_the_bias_keeps_the_scores_in_memory() {
    let captured = capture(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        let bias = scope.input("bias", DType::F32, [5, 7]);
        let parts = vec![q, k, v, bias];
        value_and_grad(&parts, |p| attention(&p[0], &p[1], &p[2], Mask::Added(p[3].clone())).square().sum(..))
    });
    is_left_alone(&captured, Some(Blocked::WeightsRead));
}

#[test]
fn a_maximum_that_gradients_pass_through_keeps_the_scores_in_memory() {
    let captured = capture(|scope| {
        let parts = three(scope, 5, 7, DType::F32).to_vec();
        value_and_grad(&parts, |p| {
            let scores = p[0].matmul(&p[1].transpose()) * 0.35;
            let e = (&scores - scores.max_keepdim(-1)).exp();
            (&e / e.sum_keepdim(-1)).matmul(&p[2]).square().sum(..)
        })
    });
    is_left_alone(&captured, Some(Blocked::WeightsRead));
}

#[test]
fn a_second_gradient_is_right() {
    let captured = capture(|scope| {
        let [q, k, v] = three(scope, 3, 4, DType::F32);
        grad(&q, |q| grad(q, |q| attention(q, &k, &v, Mask::None).square().sum(..)).square().sum(..))
    });
    agrees(&captured);
}

#[test]
fn a_device_that_binds_few_buffers_has_no_attention() {
    let captured = capture(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        attention(&q, &k, &v, Mask::None)
    });
    let limits = Limits { buffers: 8, attention_buffers: 8, ..Limits::cpu() };
    let plan = compile(&captured.graph, &Options { limits, ..Options::default() }).unwrap();
    assert_eq!(attentions(&plan), 0);
    assert!(plan.ledger.iter().any(|edge| edge.blocked == Blocked::Limit));
}

#[test]
fn one_kernel_per_op_means_so() {
    let captured = capture(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        attention(&q, &k, &v, Mask::None)
    });
    let plan = compile(&captured.graph, &Options { fusion: Fusion::Off, ..Options::default() }).unwrap();
    assert!(forms(&plan).len() > 5);
    assert_eq!(attentions(&plan), 0);
}
