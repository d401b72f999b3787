//! The ways in which people write attention: each is one kernel.

use kiln::prelude::*;
use kiln_capture::{Mask, attention};

use super::{agrees, attentions, capture, is_one_kernel, plan_of, three};

#[test]
fn scaled_after_the_scores() {
    is_one_kernel(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        (q.matmul(&k.transpose()) * 0.35).softmax(-1).matmul(&v)
    });
}

#[test]
fn scaled_before_on_the_queries() {
    is_one_kernel(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        (&q * 0.35).matmul(&k.transpose()).softmax(-1).matmul(&v)
    });
}

#[test]
fn scaled_before_on_the_keys() {
    is_one_kernel(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        q.matmul(&(&k * 0.35).transpose()).softmax(-1).matmul(&v)
    });
}

#[test]
fn not_scaled() {
    is_one_kernel(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        q.matmul(&k.transpose()).softmax(-1).matmul(&v)
    });
}

#[test]
fn divided_by_a_root() {
    is_one_kernel(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        (q.matmul(&k.transpose()) / 8f64.sqrt()).softmax(-1).matmul(&v)
    });
}

#[test]
fn scaled_by_an_argument() {
    is_one_kernel(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        let scale = scope.input("scale", DType::F32, []);
        (q.matmul(&k.transpose()) * scale).softmax(-1).matmul(&v)
    });
}

#[test]
fn with_a_mask_that_is_added() {
    is_one_kernel(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        let mask = scope.input("mask", DType::F32, [5, 7]);
        (q.matmul(&k.transpose()) * 0.35 + mask).softmax(-1).matmul(&v)
    });
}

#[test]
fn with_a_mask_for_each_matrix_of_the_batch() {
    is_one_kernel(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        let mask = scope.input("mask", DType::F32, [2, 1, 5, 7]);
        (q.matmul(&k.transpose()) * 0.35 + mask).softmax(-1).matmul(&v)
    });
}

#[test]
fn with_a_mask_of_padded_keys() {
    is_one_kernel(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        let mask = scope.input("mask", DType::Bool, [2, 1, 1, 7]);
        let scores = q.matmul(&k.transpose()) * 0.35;
        mask.select(scores, -1e9).softmax(-1).matmul(&v)
    });
}

#[test]
fn with_a_mask_that_selects() {
    is_one_kernel(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        let mask = scope.input("mask", DType::Bool, [5, 7]);
        let scores = q.matmul(&k.transpose()) * 0.35;
        mask.select(scores, f64::NEG_INFINITY).softmax(-1).matmul(&v)
    });
}

#[test]
fn causal_by_comparing_places() {
    is_one_kernel(|scope| {
        let [q, k, v] = three(scope, 6, 6, DType::F32);
        let (row, column) = (scope.iota([6, 6], 0, DType::I32), scope.iota([6, 6], 1, DType::I32));
        let scores = q.matmul(&k.transpose()) * 0.35;
        column.gt(&row).select(-1e30, scores).softmax(-1).matmul(&v)
    });
}

#[test]
fn by_the_librarys_function() {
    for mask in [Mask::None, Mask::Causal] {
        is_one_kernel(|scope| {
            let [q, k, v] = three(scope, 5, 7, DType::F32);
            attention(&q, &k, &v, mask)
        });
    }
}

#[test]
fn by_hand_with_the_maximum_subtracted() {
    is_one_kernel(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        let scores = q.matmul(&k.transpose()) * 0.35;
        let e = (&scores - scores.max_keepdim(-1)).exp();
        (&e / e.sum(-1).unsqueeze(-1)).matmul(&v)
    });
}

#[test]
fn with_keys_that_come_transposed() {
    is_one_kernel(|scope| {
        let [q, _, v] = three(scope, 5, 7, DType::F32);
        let keys = scope.input("keys", DType::F32, [2, 3, 8, 7]);
        (q.matmul(&keys) * 0.35).softmax(-1).matmul(&v)
    });
}

#[test]
fn with_scores_made_crosswise() {
    is_one_kernel(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        let scores = k.matmul(&q.transpose()) * 0.35;
        scores.softmax(-2).transpose().matmul(&v)
    });
}

#[test]
fn with_heads_split_off_and_joined_again() {
    is_one_kernel(|scope| {
        let heads = |name: &str, rows: usize| {
            scope.input(name, DType::F32, [2, rows, 24]).reshape([2, rows, 3, 8]).permute([0, 2, 1, 3])
        };
        let (q, k, v) = (heads("q", 5), heads("k", 7), heads("v", 7));
        let out = (q.matmul(&k.transpose()) * 0.35).softmax(-1).matmul(&v);
        out.permute([0, 2, 1, 3]).reshape([2, 5, 24])
    });
}

#[test]
fn with_heads_joined_to_the_batch() {
    is_one_kernel(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        let flat = |x: Tensor, rows: usize| x.reshape([6, rows, 8]);
        let (q, k, v) = (flat(q, 5), flat(k, 7), flat(v, 7));
        let weights = (q.matmul(&k.transpose()) * 0.35).softmax(-1);
        weights.matmul(&v).reshape([2, 3, 5, 8])
    });
}

#[test]
fn with_a_softmax_over_batch_axes_apart() {
    is_one_kernel(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        let flat = |x: Tensor, rows: usize| x.reshape([6, rows, 8]);
        let scores = flat(q, 5).matmul(&flat(k, 7).transpose()).reshape([2, 3, 5, 7]);
        let mask = scope.input("mask", DType::F32, [5, 7]);
        let weights = (scores + mask).softmax(-1).reshape([6, 5, 7]);
        weights.matmul(&flat(v, 7))
    });
}

#[test]
fn of_matrices_without_a_batch() {
    is_one_kernel(|scope| {
        let [q, k, v] = [("q", 5), ("k", 7), ("v", 7)].map(|(name, rows)| scope.input(name, DType::F32, [rows, 8]));
        (q.matmul(&k.transpose()) * 0.35).softmax(-1).matmul(&v)
    });
}

#[test]
fn with_keys_and_values_shared_by_groups_of_heads() {
    is_one_kernel(|scope| {
        let q = scope.input("q", DType::F32, [2, 6, 5, 8]);
        let shared = |name: &str| {
            let x = scope.input(name, DType::F32, [2, 3, 7, 8]);
            x.unsqueeze(2).broadcast_to([2, 3, 2, 7, 8]).reshape([2, 6, 7, 8])
        };
        let (k, v) = (shared("k"), shared("v"));
        attention(&q, &k, &v, Mask::Causal)
    });
}

#[test]
fn in_f32_between_16_bit_floats() {
    for dtype in [DType::BF16, DType::F16] {
        is_one_kernel(|scope| {
            let [q, k, v] = three(scope, 5, 7, dtype);
            let scores = q.matmul(&k.transpose()).cast(DType::F32) * 0.35;
            scores.softmax(-1).cast(dtype).matmul(&v)
        });
        is_one_kernel(|scope| {
            let [q, k, v] = three(scope, 5, 7, dtype);
            attention(&q, &k, &v, Mask::Causal)
        });
    }
}

#[test]
fn with_16_bit_floats_widened_for_all_of_it() {
    is_one_kernel(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::BF16).map(|x| x.cast(DType::F32));
        (q.matmul(&k.transpose()) * 0.35).softmax(-1).matmul(&v).cast(DType::BF16)
    });
}

#[test]
fn in_f64() {
    is_one_kernel(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F64);
        attention(&q, &k, &v, Mask::None)
    });
}

#[test]
fn with_something_computed_from_the_result() {
    is_one_kernel(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        let gate = scope.input("gate", DType::F32, [2, 3, 5, 8]);
        attention(&q, &k, &v, Mask::None) * gate.sigmoid() + 1.0
    });
}

#[test]
fn with_dropout_between() {
    let captured = capture(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::F32);
        let keep = scope.input("keep", DType::Bool, [2, 3, 5, 7]);
        let weights = (q.matmul(&k.transpose()) * 0.35).softmax(-1);
        keep.select(weights * 1.25, 0.0).matmul(&v)
    });
    assert_eq!(attentions(&plan_of(&captured)), 1);
    agrees(&captured);
}

#[test]
fn the_text_of_a_kernel_shows_all_that_is_computed() {
    let captured = capture(|scope| {
        let [q, k, v] = three(scope, 5, 7, DType::BF16);
        attention(&q, &k, &v, Mask::Causal)
    });
    insta::assert_snapshot!(plan_of(&captured));
}
