//! Reductions over every set of axes, scans along every axis both ways, matrix products.

use kiln_ir::{Axes, DType, Direction, Op, Precision, ReduceKind, ScalarOp, ScanKind, infer};

use super::{LARGE_SHAPE, Layout, SMALL_SHAPES, Trial};
use crate::check::check_compiled;
use crate::data::Values;
use crate::under_test::each_or_one;

/// Data on which products stay in range.
fn values_for(product: bool) -> [Values; 2] {
    if product { [Values::NearOne, Values::Edges] } else { [Values::Tame, Values::Edges] }
}

fn check_reductions(dtype: DType) {
    for kind in ReduceKind::ALL {
        for shape in SMALL_SHAPES.iter().chain([&LARGE_SHAPE, &[5003].as_slice(), &[2, 4100].as_slice()]) {
            for set in each_or_one((0..1usize << shape.len()).collect(), &(kind, dtype, shape)) {
                let axes = Axes::from_indices((0..shape.len()).filter(|axis| set >> axis & 1 == 1));
                check_one(Op::Reduce { kind, axes }, dtype, shape, values_for(kind == ReduceKind::Prod));
            }
        }
    }
}

/// Checks an op of one operand in each layout, where it takes the type at all.
fn check_one(op: Op, dtype: DType, shape: &[usize], values: [Values; 2]) {
    let ty = kiln_ir::TensorType::new(dtype, shape, kiln_ir::Backend::Cpu);
    if infer(&op, &[&ty]).is_err() {
        return;
    }
    for (seed, layout) in each_or_one(Layout::ALL.into_iter().enumerate().collect(), &(&op, dtype, shape)) {
        let mut trial = Trial::new(seed as u64);
        let x = trial.operand(dtype, shape, values[seed % 2], layout);
        let result = trial.op(op.clone(), &[x]);
        let (graph, inputs) = trial.finish(&[result]);
        check_compiled(&graph, &inputs);
    }
}

super::for_each_dtype! { check_reductions:
    reductions_of_f32_match F32
    reductions_of_f16_match F16
    reductions_of_bf16_match BF16
    reductions_of_f64_match F64
    reductions_of_i8_match I8
    reductions_of_u8_match U8
    reductions_of_i32_match I32
    reductions_of_u32_match U32
    reductions_of_i64_match I64
    reductions_of_bool_match Bool
}

fn check_scans(dtype: DType) {
    for kind in ScanKind::ALL {
        for shape in SMALL_SHAPES.iter().chain([&LARGE_SHAPE, &[5003].as_slice(), &[129].as_slice()]) {
            let ways =
                [Direction::Forward, Direction::Reverse].map(|way| (0..shape.len()).map(move |axis| (axis, way)));
            for (axis, direction) in each_or_one(ways.into_iter().flatten().collect(), &(kind, dtype, shape)) {
                check_one(Op::Scan { kind, axis, direction }, dtype, shape, values_for(kind == ScanKind::Prod));
            }
        }
    }
}

super::for_each_dtype! { check_scans:
    scans_of_f32_match F32
    scans_of_f16_match F16
    scans_of_bf16_match BF16
    scans_of_f64_match F64
    scans_of_i8_match I8
    scans_of_u8_match U8
    scans_of_i32_match I32
    scans_of_u32_match U32
    scans_of_i64_match I64
}

#[test]
fn a_reduction_with_arithmetic_before_and_after_matches() {
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
        for axes in [vec![], vec![0], vec![1], vec![0, 1]] {
            let mut trial = Trial::new(7);
            let x = trial.operand(dtype, LARGE_SHAPE, Values::Tame, Layout::Permuted);
            let square = trial.op(Op::Scalar(ScalarOp::Mul), &[x, x]);
            let axes = Axes::from_indices(axes);
            let sum = trial.op(Op::Reduce { kind: ReduceKind::Sum, axes: axes.clone() }, &[square]);
            let root = trial.op(Op::Scalar(ScalarOp::Sqrt), &[sum]);
            let spread = trial.op(Op::Broadcast(LARGE_SHAPE.into()), &[root]);
            let scaled = trial.op(Op::Scalar(ScalarOp::Div), &[x, spread]);
            let most = trial.op(Op::Reduce { kind: ReduceKind::Max, axes }, &[scaled]);
            let (graph, inputs) = trial.finish(&[scaled, most]);
            check_compiled(&graph, &inputs);
            crate::check::check_every_node(&graph, &inputs);
        }
    }
}

fn check_matmuls(dtype: DType) {
    let sizes: &[(&[usize], usize, usize, usize)] = &[
        (&[], 1, 1, 1),
        (&[], 0, 3, 2),
        (&[], 2, 0, 3),
        (&[], 2, 3, 0),
        (&[], 1, 17, 1),
        (&[], 5, 3, 7),
        (&[], 13, 1, 13),
        (&[], 1, 64, 33),
        (&[], 33, 64, 1),
        (&[], 70, 129, 65),
        (&[3], 4, 5, 6),
        (&[2, 3], 1, 4, 2),
        (&[0], 2, 2, 2),
        (&[40], 1, 1, 1),
    ];
    for &(batch, m, k, n) in sizes {
        let layouts = Layout::ALL.into_iter().zip(Layout::ALL.into_iter().rev()).enumerate().collect();
        for (seed, (left, right)) in each_or_one(layouts, &(dtype, batch, m, k, n)) {
            let mut trial = Trial::new(seed as u64);
            let values = if seed % 3 == 2 { Values::Edges } else { Values::Tame };
            let lhs = trial.operand(dtype, &[batch, &[m, k]].concat(), values, left);
            let rhs = trial.operand(dtype, &[batch, &[k, n]].concat(), values, right);
            let product = trial.op(Op::MatMul { precision: Precision::Full }, &[lhs, rhs]);
            let (graph, inputs) = trial.finish(&[product]);
            check_compiled(&graph, &inputs);
        }
    }
}

super::for_each_dtype! { check_matmuls:
    matrix_products_of_f32_match F32
    matrix_products_of_f16_match F16
    matrix_products_of_bf16_match BF16
    matrix_products_of_f64_match F64
    matrix_products_of_i8_match I8
    matrix_products_of_u8_match U8
    matrix_products_of_i32_match I32
    matrix_products_of_u32_match U32
    matrix_products_of_i64_match I64
}

#[test]
fn a_matrix_product_with_arithmetic_before_and_after_matches() {
    for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != DType::Bool) {
        let mut trial = Trial::new(8);
        let x = trial.operand(dtype, &[33, 20], Values::Tame, Layout::Plain);
        let w = trial.operand(dtype, &[20, 17], Values::Tame, Layout::Permuted);
        let bias = trial.operand(dtype, &[33, 17], Values::Tame, Layout::RepeatedRows);
        let doubled = trial.op(Op::Scalar(ScalarOp::Add), &[x, x]);
        let product = trial.op(Op::MatMul { precision: Precision::Full }, &[doubled, w]);
        let shifted = trial.op(Op::Scalar(ScalarOp::Add), &[product, bias]);
        let zero = trial.b.full_like(shifted, 0.0, kiln_ir::Loc::Unknown).expect("any dtype has a zero");
        let relu = trial.op(Op::Scalar(ScalarOp::Max), &[shifted, zero]);
        trial.check(&[relu]);
    }
}
