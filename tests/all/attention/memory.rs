//! What attention holds in memory, and what it moves.

use kiln::prelude::*;
use kiln_capture::{Mask, attention};

use super::{attentions, capture, plan_of};

#[test]
fn no_buffer_of_a_plan_holds_scores() {
    let captured = capture(|scope| {
        let parts: Vec<Tensor> =
            ["q", "k", "v"].iter().map(|name| scope.input(name, DType::F32, [2, 8, 1024, 64])).collect();
        value_and_grad(&parts, |p| attention(&p[0], &p[1], &p[2], Mask::Causal).square().mean(..))
    });
    let plan = plan_of(&captured);
    assert_eq!(attentions(&plan), 2);
    let scores = 2 * 8 * 1024 * 1024;
    let largest = plan.buffers.iter().map(|buffer| buffer.ty.shape.num_elements()).max().unwrap();
    assert_eq!(largest, 2 * 8 * 1024 * 64);
    // Gradients of three operands, the result, and what is small.
    assert!(plan.peak_bytes() < scores * 4 / 2, "{}", plan.peak_bytes());
}

#[test]
fn operands_results_and_statistics_are_moved_once() {
    let captured = capture(|scope| {
        let [q, k, v] = ["q", "k", "v"].map(|name| scope.input(name, DType::F32, [4, 128, 32]));
        attention(&q, &k, &v, Mask::Causal)
    });
    let plan = plan_of(&captured);
    let launch = plan.launches().next().unwrap();
    let operand = 4 * 128 * 32 * 4;
    assert_eq!((launch.bytes.read, launch.bytes.written), (3 * operand, operand));
    let products = 2 * 2 * 4 * 128 * 128 * 32;
    assert!(launch.flops >= products && launch.flops < products * 2, "{}", launch.flops);
}

#[test]
fn a_kernel_is_called_by_its_form() {
    let captured = capture(|scope| {
        let [q, k, v] = ["q", "k", "v"].map(|name| scope.input(name, DType::F32, [4, 12, 8]));
        attention(&q, &k, &v, Mask::None)
    });
    let plan = plan_of(&captured);
    let name = kiln_codegen::entry_name(&plan.launches().next().unwrap().kernel);
    assert!(name.starts_with("attention_"), "{name}");
}
