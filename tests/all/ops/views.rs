//! Views that are themselves outputs, views of views, and views between other ops.

use kiln_ir::{DType, Literal, Op, ScalarOp, Value};

use super::{LARGE_SHAPE, Layout, SMALL_SHAPES, Trial};
use crate::data::Values;
use crate::under_test::{each_or_one, each_or_some};

/// Every view op that takes a tensor of this shape.
fn views_of(shape: &[usize], dtype: DType) -> Vec<Op> {
    let rank = shape.len();
    let mut ops = vec![
        Op::Reshape([shape.iter().product()].into()),
        Op::Reshape(shape.iter().copied().chain([1]).collect()),
        Op::Permute((0..rank).rev().collect()),
        Op::Broadcast([2, 1].into_iter().chain(shape.iter().copied()).collect()),
        Op::Slice {
            starts: shape.iter().map(|extent| extent.saturating_sub(1)).collect(),
            sizes: shape.iter().map(|extent| extent.div_ceil(2)).collect(),
            steps: std::iter::repeat_n(-2, rank).collect(),
        },
        Op::Slice {
            starts: shape.iter().map(|extent| extent / 2).collect(),
            sizes: shape.iter().map(|extent| extent - extent / 2).collect(),
            steps: std::iter::repeat_n(1, rank).collect(),
        },
        Op::Slice {
            starts: std::iter::repeat_n(0, rank).collect(),
            sizes: shape.iter().map(|_| 0).collect(),
            steps: std::iter::repeat_n(1, rank).collect(),
        },
        Op::Pad {
            low: (0..rank).collect(),
            high: (0..rank).map(|axis| 2 * axis + 1).collect(),
            value: Literal::one(dtype),
        },
    ];
    if rank > 1 {
        ops.push(Op::Permute((1..rank).chain([0]).collect()));
    }
    ops
}

fn check_views(dtype: DType) {
    for shape in SMALL_SHAPES.iter().chain([&LARGE_SHAPE]) {
        let layouts = vec![Layout::Plain, Layout::Permuted, Layout::Strided, Layout::RepeatedRows];
        for layout in each_or_one(layouts, &(dtype, shape)) {
            let mut trial = Trial::new(1);
            let x = trial.operand(dtype, shape, Values::Edges, layout);
            let outputs: Vec<Value> = views_of(shape, dtype).into_iter().map(|view| trial.op(view, &[x])).collect();
            trial.check(&outputs);
        }
    }
}

super::for_each_dtype! { check_views:
    views_of_f32_match F32
    views_of_f16_match F16
    views_of_bf16_match BF16
    views_of_f64_match F64
    views_of_i8_match I8
    views_of_u8_match U8
    views_of_i32_match I32
    views_of_u32_match U32
    views_of_i64_match I64
    views_of_bool_match Bool
}

#[test]
fn a_view_of_a_view_matches_before_and_after_arithmetic() {
    for shape in SMALL_SHAPES {
        for outer in each_or_some(3, views_of(shape, DType::F32), shape) {
            let mut trial = Trial::new(2);
            let x = trial.argument(DType::F32, shape, Values::Edges);
            let first = trial.op(outer, &[x]);
            let inner_shape = trial.b.ty(first).shape.clone();
            let mut outputs = Vec::new();
            for inner in views_of(&inner_shape, DType::F32) {
                let seen = trial.op(inner.clone(), &[first]);
                let square = trial.op(Op::Scalar(ScalarOp::Mul), &[first, first]);
                let viewed = trial.op(inner, &[square]);
                outputs.push(trial.op(Op::Scalar(ScalarOp::Sub), &[seen, viewed]));
            }
            let (graph, inputs) = trial.finish(&outputs);
            crate::check::check_compiled(&graph, &inputs);
        }
    }
}

#[test]
fn concats_match_along_every_axis_in_every_dtype() {
    for dtype in DType::ALL {
        for shape in SMALL_SHAPES.iter().chain([&LARGE_SHAPE]).filter(|shape| !shape.is_empty()) {
            for axis in each_or_one((0..shape.len()).collect(), &(dtype, shape)) {
                let mut trial = Trial::new(3);
                let a = trial.operand(dtype, shape, Values::Edges, Layout::Permuted);
                let mut longer = shape.to_vec();
                longer[axis] += 3;
                let b = trial.operand(dtype, &longer, Values::Edges, Layout::Strided);
                let not_equal = trial.op(Op::Scalar(ScalarOp::Ne), &[b, b]);
                let mixed = trial.op(Op::Select, &[not_equal, b, b]);
                let joined = trial.op(Op::Concat { axis }, &[a, mixed, a, b]);
                let alone = trial.op(Op::Concat { axis }, &[a]);
                trial.check(&[joined, alone]);
            }
        }
    }
}

#[test]
fn a_wide_concat_of_computed_parts_matches() {
    let mut trial = Trial::new(4);
    let parts: Vec<Value> = (0..100)
        .map(|index| {
            let x = trial.argument(DType::F32, &[1 + index % 3, 2], Values::Tame);
            trial.op(Op::Scalar(ScalarOp::Mul), &[x, x])
        })
        .collect();
    let joined = trial.op(Op::Concat { axis: 0 }, &parts);
    let doubled = trial.op(Op::Scalar(ScalarOp::Add), &[joined, joined]);
    trial.check(&[doubled]);
}
