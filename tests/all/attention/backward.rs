//! Gradients of attention: one kernel more.

use kiln::prelude::*;
use kiln_capture::{CapturedGraph, Mask, attention, layer_norm, linear, value_and_grad_aux};
use kiln_ir::kernel::{AttentionPass, Form, Kernel};
use kiln_ir::plan::Plan;

use super::{agrees, attentions, capture, forms, plan_of, three};

/// A loss of which the gradient of attention is `g`, whatever else is computed.
fn weighed(out: &Tensor, g: &Tensor) -> Tensor {
    (out * g).cast(DType::F32).sum(..)
}

/// Checks that attention with its gradients is two kernels of that form and `others` more, and right.
#[track_caller]
fn is_two_kernels(
    others: usize,
    dtype: DType,
    [queries, keys]: [usize; 2],
    body: impl FnOnce(&Scope, &[Tensor]) -> Tensor,
) -> CapturedGraph {
    let captured = capture(|scope| {
        let parts = three(scope, queries, keys, dtype).to_vec();
        let g = scope.input("g", dtype, [2, 3, queries, 8]);
        let ((loss, made), gradients) = value_and_grad_aux(&parts, |parts| {
            let made = body(scope, parts);
            (weighed(&made, &g), made)
        });
        // Of 16-bit floats the sum of all that is made would be held to more than 16 bits: what is made is looked at itself.
        (if dtype == DType::F32 { loss } else { made }, gradients)
    });
    let plan = plan_of(&captured);
    // One more sums up the loss.
    let sums = usize::from(dtype == DType::F32);
    assert_eq!((attentions(&plan), forms(&plan).len()), (2, 2 + sums + others), "{plan}");
    agrees(&captured);
    captured
}

fn backward_of(plan: &Plan) -> Option<&kiln_ir::kernel::AttentionGradient> {
    plan.launches().find_map(|launch| match &*launch.kernel {
        Kernel::Attention(kernel) => match &kernel.pass {
            AttentionPass::Backward(backward) => Some(&**backward),
            AttentionPass::Forward(_) => None,
        },
        _ => None,
    })
}

#[test]
fn of_the_librarys_function() {
    for mask in [Mask::None, Mask::Causal] {
        is_two_kernels(0, DType::F32, [5, 7], |_, p| attention(&p[0], &p[1], &p[2], mask));
    }
}

#[test]
fn of_as_many_queries_as_keys() {
    is_two_kernels(0, DType::F32, [6, 6], |_, p| attention(&p[0], &p[1], &p[2], Mask::Causal));
}

#[test]
fn scaled_before_on_the_queries_and_on_the_keys() {
    is_two_kernels(0, DType::F32, [5, 7], |_, p| (&p[0] * 0.35).matmul(&p[1].transpose()).softmax(-1).matmul(&p[2]));
    is_two_kernels(0, DType::F32, [5, 7], |_, p| p[0].matmul(&(&p[1] * 0.35).transpose()).softmax(-1).matmul(&p[2]));
}

#[test]
fn with_masks_that_are_given() {
    is_two_kernels(0, DType::F32, [5, 7], |scope, p| {
        let mask = scope.input("mask", DType::F32, [2, 1, 5, 7]);
        attention(&p[0], &p[1], &p[2], Mask::Added(mask))
    });
    is_two_kernels(0, DType::F32, [5, 7], |scope, p| {
        let mask = scope.input("mask", DType::Bool, [5, 7]);
        let scores = p[0].matmul(&p[1].transpose()) / 8f64.sqrt();
        mask.select(scores, -1e9).softmax(-1).matmul(&p[2])
    });
}

#[test]
fn with_scores_made_crosswise() {
    is_two_kernels(0, DType::F32, [5, 7], |_, p| {
        (p[1].matmul(&p[0].transpose()) * 0.35).softmax(-2).transpose().matmul(&p[2])
    });
}

#[test]
fn by_hand_with_the_maximum_held_constant() {
    is_two_kernels(0, DType::F32, [5, 7], |_, p| {
        let scores = p[0].matmul(&p[1].transpose()) * 0.35;
        let e = (&scores - scores.max_keepdim(-1).detach()).exp();
        (&e / e.sum_keepdim(-1)).matmul(&p[2])
    });
}

#[test]
fn with_dropout_between() {
    is_two_kernels(0, DType::F32, [5, 7], |scope, p| {
        let keep = scope.input("keep", DType::Bool, [2, 3, 5, 7]);
        let weights = (p[0].matmul(&p[1].transpose()) * 0.35).softmax(-1);
        keep.select(weights * 1.25, 0.0).matmul(&p[2])
    });
}

#[test]
fn in_f32_between_16_bit_floats() {
    for dtype in [DType::BF16, DType::F16] {
        is_two_kernels(0, dtype, [5, 7], |_, p| {
            let scores = p[0].matmul(&p[1].transpose()).cast(DType::F32) * 0.35;
            scores.softmax(-1).cast(dtype).matmul(&p[2])
        });
        is_two_kernels(0, dtype, [5, 7], |_, p| attention(&p[0], &p[1], &p[2], Mask::Causal));
    }
}

#[test]
fn in_f64() {
    is_two_kernels(0, DType::F64, [5, 7], |_, p| attention(&p[0], &p[1], &p[2], Mask::Causal));
}

/// Gradients of some of the operands.
#[track_caller]
fn of_some(wanted: &[usize]) -> Plan {
    let captured = capture(|scope| {
        let parts = three(scope, 5, 7, DType::F32);
        let g = scope.input("g", DType::F32, [2, 3, 5, 8]);
        let of: Vec<Tensor> = wanted.iter().map(|&index| parts[index].clone()).collect();
        value_and_grad(&of, |of| {
            let mut all = parts.clone();
            wanted.iter().zip(of).for_each(|(&index, part)| all[index] = part.clone());
            weighed(&attention(&all[0], &all[1], &all[2], Mask::Causal), &g)
        })
    });
    agrees(&captured);
    plan_of(&captured)
}

#[test]
fn of_the_values_alone_goes_through_no_softmax() {
    let plan = of_some(&[2]);
    assert_eq!(attentions(&plan), 2);
    assert!(backward_of(&plan).is_some_and(|backward| backward.through.is_none() && backward.value.is_some()));
}

#[test]
fn of_queries_or_keys_alone_makes_no_other() {
    for (wanted, made) in [(0, (true, false)), (1, (false, true))] {
        let plan = of_some(&[wanted]);
        assert_eq!(attentions(&plan), 2);
        let backward = backward_of(&plan).unwrap();
        let through = backward.through.as_ref().unwrap();
        assert_eq!((through.query.is_some(), through.key.is_some()), made);
        assert!(backward.value.is_none());
    }
}

#[test]
fn of_keys_shared_by_groups_of_heads_is_summed_over_them() {
    let captured = capture(|scope| {
        let q = scope.input("q", DType::F32, [2, 6, 5, 8]);
        let [k, v] = ["k", "v"].map(|name| scope.input(name, DType::F32, [2, 3, 7, 8]));
        let g = scope.input("g", DType::F32, [2, 6, 5, 8]);
        value_and_grad(&vec![q, k, v], |p| {
            let shared = |x: &Tensor| x.unsqueeze(2).broadcast_to([2, 3, 2, 7, 8]).reshape([2, 6, 7, 8]);
            weighed(&attention(&p[0], &shared(&p[1]), &shared(&p[2]), Mask::Causal), &g)
        })
    });
    assert_eq!(attentions(&plan_of(&captured)), 2);
    agrees(&captured);
}

/// A pre-norm block with one projection for queries, keys and values.
fn block(x: &Tensor, weights: &[Tensor], [heads, width]: [usize; 2]) -> Tensor {
    let [batch, rows, _] = x.shape()[..] else { panic!("a block takes [batch, rows, width]") };
    let all = heads * width;
    let normal = layer_norm(x, None, None, 1e-5);
    let joined = linear(&normal, &weights[0], Some(&weights[1]));
    let part = |index: usize| {
        let part = joined.narrow(-1, index * all, all);
        part.reshape([batch, rows, heads, width]).permute([0, 2, 1, 3])
    };
    let out = attention(&part(0), &part(1), &part(2), Mask::Causal);
    let out = out.permute([0, 2, 1, 3]).reshape([batch, rows, all]);
    x + out.matmul(&weights[2])
}

#[test]
fn of_a_transformers_block_with_one_projection_for_all() {
    let captured = capture(|scope| {
        let x = scope.input("x", DType::F32, [2, 6, 24]);
        let weights = vec![
            scope.input("w", DType::F32, [24, 72]),
            scope.input("b", DType::F32, [72]),
            scope.input("o", DType::F32, [24, 24]),
        ];
        value_and_grad(&weights, |w| block(&block(&x, w, [3, 8]), w, [3, 8]).square().mean(..))
    });
    let plan = plan_of(&captured);
    assert_eq!(attentions(&plan), 4, "{plan}");
    agrees(&captured);
}

#[test]
fn a_forward_block_has_nothing_between_projections_and_attention() {
    let captured = capture(|scope| {
        let x = scope.input("x", DType::F32, [2, 6, 24]);
        let weights = [
            scope.input("w", DType::F32, [24, 72]),
            scope.input("b", DType::F32, [72]),
            scope.input("o", DType::F32, [24, 24]),
        ];
        block(&x, &weights, [3, 8])
    });
    let plan = plan_of(&captured);
    assert_eq!(forms(&plan), [Form::Row, Form::MatMul, Form::Attention, Form::MatMul], "{plan}");
    agrees(&captured);
}

#[test]
fn the_text_of_a_kernel_shows_all_that_is_computed() {
    let captured = capture(|scope| {
        let parts = three(scope, 5, 7, DType::F32).to_vec();
        let g = scope.input("g", DType::F32, [2, 3, 5, 8]);
        value_and_grad(&parts, |p| weighed(&attention(&p[0], &p[1], &p[2], Mask::Causal), &g))
    });
    insta::assert_snapshot!(plan_of(&captured));
}
