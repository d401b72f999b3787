//! Attention of 16-bit floats over more rows than a block has: odd extents, masks, heads in groups, in both directions.

use kiln::prelude::*;
use kiln_capture::{Mask, attention, value_and_grad_aux};

use super::{agrees, attentions, capture, is_one_kernel, plan_of};

const DTYPES: [DType; 2] = [DType::BF16, DType::F16];

/// Extents that end within a block, within a fragment and within 16 bytes: queries, keys, depth, width.
const EXTENTS: [[usize; 4]; 4] = [[70, 131, 32, 32], [129, 65, 24, 40], [33, 50, 7, 5], [100, 64, 72, 16]];

fn parts(scope: &Scope, dtype: DType, heads: [usize; 2], [queries, keys, depth, width]: [usize; 4]) -> Vec<Tensor> {
    let own = [("q", heads[0], queries, depth), ("k", heads[1], keys, depth), ("v", heads[1], keys, width)];
    own.map(|(name, heads, rows, columns)| scope.input(name, dtype, [2, heads, rows, columns])).to_vec()
}

/// Checks attention and its gradients: two kernels, both right.
#[track_caller]
fn both_ways(dtype: DType, heads: [usize; 2], extents: [usize; 4], body: impl Fn(&Scope, &[Tensor]) -> Tensor) {
    let captured = capture(|scope| {
        let parts = parts(scope, dtype, heads, extents);
        let g = scope.input("g", dtype, [2, heads[0], extents[0], extents[3]]);
        // A sum of all that is made would be held to more than 16 bits.
        let ((_, made), gradients) = value_and_grad_aux(&parts, |parts| {
            let made = body(scope, parts);
            ((&made * &g).cast(DType::F32).sum(..), made)
        });
        (made, gradients)
    });
    let plan = plan_of(&captured);
    assert_eq!(attentions(&plan), 2, "{plan}");
    agrees(&captured);
}

#[test]
fn of_odd_extents_with_and_without_a_causal_mask() {
    for dtype in DTYPES {
        for extents in EXTENTS {
            for mask in [Mask::None, Mask::Causal] {
                // Where there are fewer keys than queries, a causal mask hides all of them from the first queries.
                if matches!(mask, Mask::Causal) && extents[0] > extents[1] {
                    continue;
                }
                both_ways(dtype, [2, 2], extents, |_, p| attention(&p[0], &p[1], &p[2], mask.clone()));
            }
        }
    }
}

#[test]
fn a_query_that_sees_no_key_is_nan() {
    for dtype in DTYPES {
        is_one_kernel(|scope| {
            let p = parts(scope, dtype, [1, 1], [80, 70, 16, 16]);
            attention(&p[0], &p[1], &p[2], Mask::Causal)
        });
    }
}

#[test]
fn with_masks_that_are_added_and_that_select() {
    for dtype in DTYPES {
        for keys in [66, 131] {
            let extents = [70, keys, 16, 24];
            both_ways(dtype, [2, 2], extents, |scope, p| {
                let mask = scope.input("mask", dtype, [2, 1, 70, keys]);
                attention(&p[0], &p[1], &p[2], Mask::Added(mask))
            });
            both_ways(dtype, [2, 2], extents, |scope, p| {
                let mask = scope.input("mask", DType::Bool, [70, keys]);
                attention(&p[0], &p[1], &p[2], Mask::Allowed(mask))
            });
        }
    }
}

#[test]
fn with_keys_and_values_shared_by_groups_of_heads() {
    for dtype in DTYPES {
        both_ways(dtype, [4, 2], [70, 70, 16, 16], |_, p| {
            let shared = |x: &Tensor| {
                let [batch, heads, rows, width] = x.shape()[..] else { panic!("heads have rows") };
                x.unsqueeze(2).broadcast_to([batch, heads, 2, rows, width]).reshape([batch, 2 * heads, rows, width])
            };
            attention(&p[0], &shared(&p[1]), &shared(&p[2]), Mask::Causal)
        });
    }
}

#[test]
fn with_a_window_of_keys_and_a_mask_the_other_way() {
    for (first, last) in [(-20, 0), (0, 200)] {
        both_ways(DType::BF16, [1, 2], [70, 70, 16, 16], |scope, p| {
            let scores = p[0].matmul(&p[1].transpose()) * 0.25;
            let seen = scope.tril_mask(70, 70, last) & !scope.tril_mask(70, 70, first - 1);
            seen.select(scores, f64::NEG_INFINITY).softmax(-1).matmul(&p[2])
        });
    }
}

#[test]
fn with_dropout_and_with_squared_weights() {
    for dtype in DTYPES {
        both_ways(dtype, [2, 2], [70, 66, 16, 16], |scope, p| {
            let keep = scope.input("keep", DType::Bool, [2, 2, 70, 66]);
            let weights = (p[0].matmul(&p[1].transpose()) * 0.25).softmax(-1);
            keep.select(weights * 1.25, 0.0).matmul(&p[2])
        });
        is_one_kernel(|scope| {
            let p = parts(scope, dtype, [2, 2], [70, 66, 16, 16]);
            (p[0].matmul(&p[1].transpose()) * 0.25).softmax(-1).square().matmul(&p[2])
        });
    }
}

#[test]
fn with_operands_computed_on_the_way_and_something_made_of_the_result() {
    for dtype in DTYPES {
        both_ways(dtype, [2, 2], [70, 66, 16, 16], |_, p| {
            attention(&(&p[0] * 0.5), &p[1], &p[2].transpose().transpose(), Mask::None)
        });
        is_one_kernel(|scope| {
            let p = parts(scope, dtype, [2, 2], [70, 66, 16, 17]);
            let more = scope.input("more", dtype, [2, 2, 70, 17]);
            attention(&p[0], &p[1], &p[2], Mask::None).relu() + more
        });
    }
}

#[test]
fn longer_than_any_block_holds() {
    for depth in [136, 300] {
        let captured = capture(|scope| {
            let p = parts(scope, DType::BF16, [1, 1], [20, 30, depth, 16]);
            attention(&p[0], &p[1], &p[2], Mask::Causal)
        });
        agrees(&captured);
    }
}
