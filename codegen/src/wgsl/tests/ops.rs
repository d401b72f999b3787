//! Every op on every dtype, at one point and at neighbours.

use super::*;
use kiln_ir::{Code, Literal};
use smallvec::smallvec;

/// `y = op(x0, x1, ..)` over `len` elements of a dtype.
pub(crate) fn elementwise(op: ScalarOp, dtype: DType, len: usize) -> Option<Kernel> {
    let result = op.result_dtype(dtype)?;
    let mut b = Build::new(&[len], &[]);
    let operands: Vec<Reg> = (0..op.arity())
        .map(|_| {
            let buffer = b.buffer(dtype, len, Access::Read);
            b.load(buffer, &[1])
        })
        .collect();
    let value = b.scalar(op, result, &operands);
    let y = b.buffer(result, len, Access::Write);
    b.store(y, &[1], value);
    b.point();
    Some(b.kernel())
}

/// What no GPU computes.
fn is_missing(op: ScalarOp, dtype: DType) -> bool {
    dtype == DType::F64 && op.row().exactness == kiln_ir::Exactness::Approximate
}

#[test]
fn every_op_is_valid_on_every_dtype_and_width() {
    let plain = GpuTarget { f64: Support::Present, i64: Support::Present, ..GpuTarget::WEBGPU };
    for &op in ScalarOp::ALL {
        for dtype in DType::ALL {
            for width in [1, 2, 4] {
                let Some(kernel) = elementwise(op, dtype, 64) else { continue };
                let schedule = Schedule::Loop(points(32, width));
                for target in [&FULL, &plain] {
                    if is_missing(op, dtype) {
                        let refused = super::super::program(&kernel, &schedule, target).unwrap_err();
                        assert_eq!(refused.code, Code::K0601, "{op} {dtype}");
                        continue;
                    }
                    program(&kernel, &schedule, target);
                }
            }
        }
    }
}

#[test]
fn devices_without_wide_numbers_say_so() {
    for dtype in [DType::F64, DType::I64] {
        let kernel = elementwise(ScalarOp::Add, dtype, 64).expect("numbers are added");
        let refused = super::super::program(&kernel, &Schedule::Loop(points(32, 1)), &GpuTarget::WEBGPU).unwrap_err();
        assert_eq!(refused.code, Code::K0601);
        assert!(refused.message.contains(dtype.name()), "{refused:?}");
    }
}

#[test]
fn every_cast_and_bitcast_is_valid() {
    for from in DType::ALL {
        for to in DType::ALL {
            for width in [1, 4] {
                let mut b = Build::new(&[64], &[]);
                let (x, y) = (b.buffer(from, 64, Access::Read), b.buffer(to, 64, Access::Write));
                let value = b.load(x, &[1]);
                let mut values = vec![b.emit(to, Operation::Cast(value))];
                if from.size() == to.size() {
                    values.push(b.emit(to, Operation::Bitcast(value)));
                }
                for value in values {
                    b.store(y, &[1], value);
                }
                b.point();
                program(&b.kernel(), &Schedule::Loop(points(64, width)), &FULL);
            }
        }
    }
}

#[test]
fn extreme_constants_are_valid_and_their_expressions_too() {
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
        for &x in &literals {
            for &y in &literals {
                let mut b = Build::new(&[4], &[]);
                let registers = [x, y].map(|literal| b.emit(dtype, Operation::Literal(literal)));
                let mut results = Vec::new();
                for &op in ScalarOp::ALL.iter().filter(|&&op| !is_missing(op, dtype) && op.arity() <= 2) {
                    if let Some(result) = op.result_dtype(dtype) {
                        results.push((result, b.scalar(op, result, &registers[..op.arity()])));
                    }
                }
                for (result, value) in results {
                    let out = b.buffer(result, 4, Access::Write);
                    b.store(out, &[1], value);
                }
                b.point();
                program(&b.kernel(), &Schedule::Loop(points(4, 1)), &FULL);
            }
        }
    }
}

#[test]
fn other_instructions_are_valid_at_one_point_and_at_neighbours() {
    for width in [1, 2, 4] {
        let mut b = Build::new(&[8, 16], &[]);
        let (x, i) = (b.buffer(DType::F32, 128, Access::Read), b.buffer(DType::U32, 128, Access::Read));
        let taken = b.load(i, &[16, 1]);
        let wide = b.emit(DType::I64, Operation::Cast(taken));
        let limits =
            [0, 127].map(|value| b.emit(DType::I64, Operation::Literal(Literal::from_i128(DType::I64, value))));
        let index = b.scalar(ScalarOp::Clamp, DType::I64, &[wide, limits[0], limits[1]]);
        let bounds = vec![
            kiln_ir::kernel::Bound { at: affine(-1, &[0, 1]), extent: 15 },
            kiln_ir::kernel::Bound { at: affine(-1, &[1]), extent: 8 },
        ];
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
        let program = program(&b.kernel(), &Schedule::Loop(points(32, width)), &GpuTarget::WEBGPU);
        assert!(!text(&program).contains("i64"), "small indices need no 64-bit integers");
    }
}
