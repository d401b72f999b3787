//! Every op on every dtype.

use super::*;
use crate::wgsl::tests::{Build, affine, points};
use kiln_ir::kernel::{Access, Address, Bound, Operation, Reg};
use kiln_ir::{DType, Literal, ScalarOp};
use smallvec::smallvec;

/// All ops that take a dtype, each over the same operands, and the dtypes of the results.
pub(super) fn all_ops(dtype: DType, len: usize) -> (Kernel, Vec<(ScalarOp, DType)>) {
    let mut b = Build::new(&[len], &[]);
    let operands: Vec<Reg> = (0..3)
        .map(|_| {
            let buffer = b.buffer(dtype, len, Access::Read);
            b.load(buffer, &[1])
        })
        .collect();
    let mut results = Vec::new();
    for &op in ScalarOp::ALL {
        let Some(result) = op.result_dtype(dtype) else { continue };
        let value = b.scalar(op, result, &operands[..op.arity()]);
        let y = b.buffer(result, len, Access::Write);
        b.store(y, &[1], value);
        results.push((op, result));
    }
    b.point();
    (b.kernel(), results)
}

#[test]
fn every_op_compiles_on_every_dtype_and_width() {
    for dtype in DType::ALL {
        for width in [1, 4, 8] {
            program(&all_ops(dtype, 64).0, &Schedule::Loop(points(32, width)));
        }
    }
}

#[test]
fn every_cast_and_bitcast_compiles() {
    for from in DType::ALL {
        for width in [1, 8] {
            let mut b = Build::new(&[64], &[]);
            let x = b.buffer(from, 64, Access::Read);
            let value = b.load(x, &[1]);
            for to in DType::ALL {
                let mut values = vec![b.emit(to, Operation::Cast(value))];
                if from.size() == to.size() {
                    values.push(b.emit(to, Operation::Bitcast(value)));
                }
                for value in values {
                    let y = b.buffer(to, 64, Access::Write);
                    b.store(y, &[1], value);
                }
            }
            b.point();
            program(&b.kernel(), &Schedule::Loop(points(64, width)));
        }
    }
}

#[test]
fn extreme_constants_compile() {
    for dtype in DType::ALL {
        let mut literals = vec![Literal::zero(dtype), Literal::one(dtype)];
        if let Some((low, high)) = dtype.int_range() {
            literals.extend([low, high, -1].map(|value| Literal::from_i128(dtype, value)));
        } else if dtype.is_float() {
            literals.extend(
                [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 1e-40, 5e-324, 3.3e38, -1.5]
                    .map(|value| Literal::from_f64(dtype, value)),
            );
        }
        let mut b = Build::new(&[4], &[]);
        for &x in &literals {
            for &y in &literals {
                let registers = [x, y].map(|literal| b.emit(dtype, Operation::Literal(literal)));
                let op = if dtype == DType::Bool { ScalarOp::Xor } else { ScalarOp::Sub };
                let value = b.scalar(op, dtype, &registers);
                let out = b.buffer(dtype, 4, Access::Write);
                b.store(out, &[1], value);
            }
        }
        b.point();
        program(&b.kernel(), &Schedule::Loop(points(4, 1)));
    }
}

#[test]
fn other_instructions_compile_at_one_point_and_at_neighbours() {
    for width in [1, 2, 4, 8] {
        let mut b = Build::new(&[8, 16], &[]);
        let (x, i) = (b.buffer(DType::F32, 128, Access::Read), b.buffer(DType::U32, 128, Access::Read));
        let taken = b.load(i, &[16, 1]);
        let wide = b.emit(DType::I64, Operation::Cast(taken));
        let limits =
            [0, 127].map(|value| b.emit(DType::I64, Operation::Literal(Literal::from_i128(DType::I64, value))));
        let index = b.scalar(ScalarOp::Clamp, DType::I64, &[wide, limits[0], limits[1]]);
        let bounds = vec![Bound { at: affine(-1, &[0, 1]), extent: 15 }, Bound { at: affine(-1, &[1]), extent: 8 }];
        let address = Address { affine: affine(0, &[]), computed: smallvec![(index, 1)] };
        let gathered = b.emit(DType::F32, Operation::Load { buffer: x, address, bounds: bounds.clone() });
        let inside = b.emit(DType::Bool, Operation::Within(bounds));
        let number = b.emit(DType::BF16, Operation::Index(affine(3, &[0, 2])));
        let number = b.emit(DType::F32, Operation::Cast(number));
        let chosen = b.emit(DType::F32, Operation::Select { condition: inside, then: gathered, otherwise: number });
        let fused = b.emit(DType::F32, Operation::Fma(chosen, gathered, number));
        let place = b.emit(DType::I64, Operation::Index(affine(0, &[16, 1])));
        let word = b.emit(DType::U32, Operation::Random { key: [taken, taken], stream: 7, index: place });
        let outputs = [DType::F32, DType::U32].map(|dtype| b.buffer(dtype, 128, Access::Write));
        b.store(outputs[0], &[16, 1], fused);
        b.store(outputs[1], &[16, 1], word);
        b.point();
        program(&b.kernel(), &Schedule::Loop(points(32, width)));
    }
}
