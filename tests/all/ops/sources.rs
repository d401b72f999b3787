//! Literals, constants, iota, random bits, and the ops that change nothing.

use kiln_ir::{Backend, DType, Literal, Op, TensorType};

use super::{LARGE_SHAPE, SMALL_SHAPES, Trial};
use crate::data::{Values, edges, tensor};

#[test]
fn literals_of_every_dtype_keep_their_bits() {
    for dtype in DType::ALL {
        let mut trial = Trial::new(1);
        let values: Vec<Literal> = edges(dtype);
        let outputs: Vec<_> = values
            .into_iter()
            .map(|value| {
                let literal = trial.op(Op::Literal { value, backend: Backend::Cpu }, &[]);
                trial.op(Op::Broadcast([3].into()), &[literal])
            })
            .collect();
        trial.check(&outputs);
    }
}

#[test]
fn constants_of_every_dtype_and_shape_are_outputs_as_they_are() {
    for dtype in DType::ALL {
        for shape in SMALL_SHAPES.iter().chain([&LARGE_SHAPE]) {
            let mut trial = Trial::new(2);
            let data = tensor(dtype, *shape, Values::Edges, &mut trial.source);
            let constant = trial.op(Op::Constant { data, backend: Backend::Cpu }, &[]);
            trial.check(&[constant]);
        }
    }
}

#[test]
fn iota_counts_in_every_dtype_along_every_axis() {
    for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != DType::Bool) {
        for shape in SMALL_SHAPES.iter().chain([&LARGE_SHAPE, &[3000usize].as_slice()]) {
            for axis in 0..shape.len() {
                let mut trial = Trial::new(3);
                let counted = trial.op(Op::Iota { ty: TensorType::new(dtype, *shape, Backend::Cpu), axis }, &[]);
                trial.check(&[counted]);
            }
        }
    }
}

#[test]
fn random_words_are_the_same_fused_or_not() {
    for shape in SMALL_SHAPES.iter().chain([&LARGE_SHAPE]) {
        let mut trial = Trial::new(4);
        let key = trial.argument(DType::U32, &[2], Values::Edges);
        let draw = |trial: &mut Trial, stream| trial.op(Op::RandomBits { shape: (*shape).into(), stream }, &[key]);
        let (first, second) = (draw(&mut trial, 0), draw(&mut trial, 7));
        let reversed = trial.op(Op::Permute((0..shape.len()).rev().collect()), &[second]);
        let number = trial.op(Op::Cast(DType::F32), &[second]);
        trial.check(&[first, reversed, number]);
    }
}

#[test]
fn ops_that_change_nothing_change_nothing() {
    for dtype in DType::ALL {
        for op in [Op::StopGradient, Op::Mark, Op::Barrier, Op::Transfer(Backend::Cpu)] {
            let mut trial = Trial::new(5);
            let x = trial.argument(dtype, &[2, 9], Values::Edges);
            let same = trial.op(op, &[x]);
            let equal = trial.op(Op::Scalar(kiln_ir::ScalarOp::Eq), &[same, x]);
            trial.check(&[same, equal]);
        }
    }
}
