//! Gathers and scatters: every dtype of data and indices, batched and not, in and out of range.

use kiln_ir::{DType, Op, ScalarOp, ScatterKind, infer};

use super::{Layout, Trial};
use crate::check::check_compiled;
use crate::data::Values;
use crate::under_test::each_or_one;

/// Shape of the operand, axis, batch axes, and the indices' own axes.
const CASES: &[(&[usize], usize, usize, &[usize])] = &[
    (&[1], 0, 0, &[]),
    (&[7], 0, 0, &[5]),
    (&[7], 0, 0, &[0]),
    (&[7], 0, 0, &[2, 3]),
    (&[5, 4], 0, 0, &[6]),
    (&[5, 4], 1, 0, &[3]),
    (&[5, 4], 1, 1, &[3]),
    (&[5, 4], 1, 1, &[]),
    (&[2, 3, 4], 1, 0, &[2, 2]),
    (&[2, 3, 4], 2, 1, &[3]),
    (&[2, 3, 4], 2, 2, &[5]),
    (&[2, 3, 4], 1, 1, &[6]),
    (&[0, 3], 1, 0, &[2]),
    (&[70, 3], 0, 0, &[2000]),
];

fn indices_shape(shape: &[usize], batch: usize, own: &[usize]) -> Vec<usize> {
    [&shape[..batch], own].concat()
}

fn check_indexing(dtype: DType) {
    for case in CASES {
        let &(shape, axis, batch, own) = case;
        let int_dtypes = DType::ALL.into_iter().filter(|dtype| dtype.is_int());
        for (turn, index_dtype) in each_or_one(int_dtypes.enumerate().collect(), &(dtype, case)) {
            let layout = Layout::ALL[turn % Layout::ALL.len()];
            let indices = Values::Indices { extent: shape[axis] };

            let mut trial = Trial::new(turn as u64);
            let x = trial.operand(dtype, shape, Values::Edges, layout);
            let at = trial.operand(index_dtype, &indices_shape(shape, batch, own), indices, Layout::Permuted);
            let taken = trial.op(Op::Gather { axis, batch }, &[x, at]);
            trial.check(&[taken]);

            let updates_shape = [&shape[..axis], own, &shape[axis + 1..]].concat();
            for kind in each_or_one(ScatterKind::ALL.to_vec(), &(dtype, case)) {
                let mut trial = Trial::new(turn as u64);
                let target = trial.operand(dtype, shape, Values::Tame, layout);
                let at = trial.operand(index_dtype, &indices_shape(shape, batch, own), indices, Layout::Plain);
                let values = if kind == ScatterKind::Add { Values::Tame } else { Values::Edges };
                let updates = trial.operand(dtype, &updates_shape, values, Layout::ALL[(turn + 3) % 7]);
                let op = Op::Scatter { kind, axis, batch };
                let types = [target, at, updates].map(|value| trial.b.ty(value).clone());
                if infer(&op, &types.each_ref()).is_ok() {
                    let result = trial.op(op, &[target, at, updates]);
                    trial.check(&[result]);
                }
            }
        }
    }
}

super::for_each_dtype! { check_indexing:
    gathers_and_scatters_of_f32_match F32
    gathers_and_scatters_of_f16_match F16
    gathers_and_scatters_of_bf16_match BF16
    gathers_and_scatters_of_f64_match F64
    gathers_and_scatters_of_i8_match I8
    gathers_and_scatters_of_u8_match U8
    gathers_and_scatters_of_i32_match I32
    gathers_and_scatters_of_u32_match U32
    gathers_and_scatters_of_i64_match I64
    gathers_and_scatters_of_bool_match Bool
}

#[test]
fn indices_computed_in_the_same_kernel_are_clamped() {
    let mut trial = Trial::new(9);
    let x = trial.argument(DType::F32, &[11], Values::Tame);
    let raw = trial.argument(DType::I32, &[300], Values::Indices { extent: 11 });
    let twice = trial.op(Op::Scalar(ScalarOp::Add), &[raw, raw]);
    let taken = trial.op(Op::Gather { axis: 0, batch: 0 }, &[x, twice]);
    let square = trial.op(Op::Scalar(ScalarOp::Mul), &[taken, taken]);
    let (graph, inputs) = trial.finish(&[square]);
    check_compiled(&graph, &inputs);
}

#[test]
fn a_scatter_leaves_its_target_as_it_was() {
    for kind in ScatterKind::ALL {
        let mut trial = Trial::new(10);
        let x = trial.argument(DType::F32, &[9, 3], Values::Tame);
        let target = trial.op(Op::Scalar(ScalarOp::Neg), &[x]);
        let at = trial.argument(DType::I32, &[4], Values::Indices { extent: 9 });
        let updates = trial.argument(DType::F32, &[4, 3], Values::Tame);
        let result = trial.op(Op::Scatter { kind, axis: 0, batch: 0 }, &[target, at, updates]);
        let difference = trial.op(Op::Scalar(ScalarOp::Sub), &[result, target]);
        trial.check(&[difference, target]);
        let mut trial = Trial::new(10);
        let target = trial.argument(DType::F32, &[9, 3], Values::Tame);
        let at = trial.argument(DType::I32, &[4], Values::Indices { extent: 9 });
        let updates = trial.argument(DType::F32, &[4, 3], Values::Tame);
        let result = trial.op(Op::Scatter { kind, axis: 0, batch: 0 }, &[target, at, updates]);
        trial.check(&[result, target]);
    }
}
