//! The graphs that composites leave, as text.

use kiln_ir::tree::Tree;
use kiln_ir::{Backend, DType};

use crate::{CaptureDevice, Mask, Scope, Tensor, attention, cross_entropy, layer_norm};

fn text<R: Tree<Tensor>>(body: impl FnOnce(&Scope) -> R) -> String {
    CaptureDevice::new(Backend::Cpu).capture_scope(body).expect("a sound capture").graph.to_string()
}

#[test]
fn softmax_subtracts_the_largest_element_held_constant() {
    insta::assert_snapshot!(text(|scope| scope.input("x", DType::F32, [4, 10]).softmax(-1)));
}

#[test]
fn log_softmax_holds_no_softmax() {
    insta::assert_snapshot!(text(|scope| scope.input("x", DType::F32, [4, 10]).log_softmax(-1)));
}

#[test]
fn layer_norm_of_16_bit_floats_is_rounded_once_at_the_end() {
    insta::assert_snapshot!(text(|scope| {
        let (weight, bias) = (scope.input("weight", DType::BF16, [8]), scope.input("bias", DType::BF16, [8]));
        layer_norm(&scope.input("x", DType::BF16, [4, 8]), Some(&weight), Some(&bias), 1e-5)
    }));
}

#[test]
fn cross_entropy_of_labels_keeps_to_its_rows() {
    insta::assert_snapshot!(text(|scope| {
        let logits = scope.input("logits", DType::F32, [4, 10]);
        cross_entropy(&logits, &scope.input("labels", DType::I32, [4]))
    }));
}

#[test]
fn causal_attention_hides_later_keys() {
    insta::assert_snapshot!(text(|scope| {
        let [q, k, v] = ["q", "k", "v"].map(|name| scope.input(name, DType::F32, [2, 4, 8]));
        attention(&q, &k, &v, Mask::Causal)
    }));
}

#[test]
fn relu_is_a_selection_that_keeps_nan() {
    insta::assert_snapshot!(text(|scope| scope.input("x", DType::F32, [4]).relu()));
}
