//! Machine code against the loops over strips: the same bits.

use kiln_ir::kernel::{Instruction, Operation as Kernel, Reg};
use kiln_ir::{DType, Literal, ScalarOp};

use super::*;
use crate::cpu::lanes::{self, Work};
use crate::cpu::vmath;

/// The instruction set whose vectors the code has: there everything that can be is part of it.
fn narrow() -> Isa {
    *Isa::available().iter().find(|isa| isa.0 == Level::Avx2).expect("the machine has AVX2")
}

/// A loop of one instruction, on operands of a block or more.
fn fused(instruction: &Instruction, reads: &[(Reg, DType)], operands: &[&[u8]], result: &mut [u8], lanes: usize) {
    let mut fuser = Fuser::new(Isa::best(), Look::Not).expect("the machine has AVX2");
    let mut run = Run::default();
    let dtype_of = |reg: Reg| reads.iter().find(|(own, _)| *own == reg).expect("it is an operand").1;
    let outside = |reg: Reg| Outside::Slot(reg.0 as usize, Class::Full);
    assert!(fits(instruction, narrow(), dtype_of));
    let regs: Vec<Reg> = reads.iter().map(|&(reg, _)| reg).collect();
    run.add(instruction, &regs, dtype_of, outside);
    let made = run.finish(&mut fuser, &[(instruction.result, 9, None)], None);
    let code = fuser.finish().expect("memory may be executed");
    let mut addresses: Vec<*mut u8> = made.operands.iter().map(|&slot| operands[slot].as_ptr().cast_mut()).collect();
    addresses.push(result.as_mut_ptr());
    // SAFETY: all operands and the result have these lanes.
    unsafe { Runnable(Some(&code)).run(made.entry, &addresses, 0..lanes) };
}

/// Numbers of every exponent and sign, with the borders of all functions among them.
fn numbers(seed: u32) -> Vec<f32> {
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        0.6,
        -0.6,
        0.92,
        4.0,
        10.0,
        20.0,
        88.7,
        89.0,
        104.0,
        -104.0,
        -87.3,
        127.0,
        129.0,
        -151.0,
        f32::MIN_POSITIVE,
        1e-45,
        -1e-45,
        f32::MAX,
        f32::MIN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    let mut state = seed;
    let random = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let mixed = state ^ (state >> 15);
        if state & 0x100 == 0 { f32::from_bits(mixed) } else { (mixed as i32 as f32) / 1e8 }
    });
    let all: Vec<f32> = special.into_iter().chain(random).take(1 << 14).collect();
    if seed.is_multiple_of(2) { all } else { all.into_iter().rev().collect() }
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// The same by the loops over strips.
fn strips(op: ScalarOp, operands: &[&[u8]], result: &mut [u8], lanes: usize) {
    let isa = Isa::best();
    let mut pointers = [operands[0].as_ptr(); 3];
    for (pointer, operand) in pointers.iter_mut().zip(operands) {
        *pointer = operand.as_ptr();
    }
    let single =
        |bytes: &[u8]| -> Vec<f32> { bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect() };
    match lanes::scalar(op, DType::F32, isa) {
        // SAFETY: all have these lanes.
        Work::Lanes(run) => unsafe { run(lanes / BLOCK, pointers, [BLOCK * 4; 3], result.as_mut_ptr()) },
        Work::Unary32(function) => {
            let mut made = vec![0.0; lanes];
            vmath::unary_f32(isa, function, &single(operands[0]), &mut made);
            result.copy_from_slice(&bytes(&made));
        }
        Work::Binary32(_) | Work::Unary64(_) | Work::Binary64(_) => panic!("{op} is not fused"),
    }
}

#[test]
fn every_op_gives_the_bits_of_its_loop_over_strips() {
    let mut checked = 0;
    for &op in ScalarOp::ALL {
        let count = op.arity();
        let reads: Vec<(Reg, DType)> = (0..count as u32).map(|index| (Reg(index), DType::F32)).collect();
        let flags = matches!(
            op,
            ScalarOp::Eq
                | ScalarOp::Ne
                | ScalarOp::Lt
                | ScalarOp::Le
                | ScalarOp::Gt
                | ScalarOp::Ge
                | ScalarOp::IsNan
                | ScalarOp::IsInf
                | ScalarOp::IsFinite
        );
        let dtype = if flags { DType::Bool } else { DType::F32 };
        let operation = Kernel::Scalar(op, reads.iter().map(|&(reg, _)| reg).collect());
        let instruction = Instruction { result: Reg(8), dtype, operation };
        if !fits(&instruction, narrow(), |_| DType::F32) {
            continue;
        }
        let operands: Vec<Vec<u8>> = (0..count as u32).map(|index| bytes(&numbers(index + 1))).collect();
        let operands: Vec<&[u8]> = operands.iter().map(Vec::as_slice).collect();
        let lanes = operands[0].len() / 4;
        let (mut here, mut there) = (vec![0; lanes * dtype.size()], vec![0; lanes * dtype.size()]);
        fused(&instruction, &reads, &operands, &mut here, lanes);
        strips(op, &operands, &mut there, lanes);
        for lane in 0..lanes {
            let (a, b) = match dtype {
                DType::Bool => (u32::from(here[lane]), u32::from(there[lane])),
                _ => {
                    let at = |bytes: &[u8]| u32::from_le_bytes(bytes.as_chunks().0[lane]);
                    (at(&here), at(&there))
                }
            };
            let nan = dtype == DType::F32 && f32::from_bits(a).is_nan() && f32::from_bits(b).is_nan();
            let arguments: Vec<f32> =
                operands.iter().map(|operand| f32::from_le_bytes(operand.as_chunks().0[lane])).collect();
            assert!(a == b || nan, "{op}{arguments:?} at lane {lane}: {a:08x}, and {b:08x} by strips");
        }
        checked += 1;
    }
    assert!(checked >= 30, "only {checked} ops are fused");
}

/// More values at a time than there are registers, and more operands than there are addresses.
#[test]
fn a_run_of_many_values_spills_and_is_right() {
    let count = 20;
    let mut fuser = Fuser::new(Isa::best(), Look::Not).expect("the machine has AVX2");
    let mut run = Run::default();
    let outside =
        |reg: Reg| Outside::Slot(reg.0 as usize, if reg.0.is_multiple_of(5) { Class::Uniform } else { Class::Full });
    let scalar = |result: u32, op: ScalarOp, reads: [u32; 2]| Instruction {
        result: Reg(result),
        dtype: DType::F32,
        operation: Kernel::Scalar(op, reads.map(Reg).into_iter().collect()),
    };
    // Squares of sums of neighbours first, all of them alive until they are added up from the last to the first.
    let mut instructions = Vec::new();
    for index in 0..count {
        instructions.push(scalar(100 + index, ScalarOp::Mul, [index, (index + 1) % count]));
    }
    instructions.push(scalar(200, ScalarOp::Sub, [100 + count - 1, 0]));
    for index in (0..count - 1).rev() {
        instructions.push(scalar(200 + count - 1 - index, ScalarOp::Sub, [200 + count - 2 - index, 100 + index]));
    }
    for instruction in &instructions {
        let Kernel::Scalar(_, reads) = &instruction.operation else { unreachable!() };
        run.add(instruction, reads, |_| DType::F32, outside);
    }
    let last = instructions.last().unwrap().result;
    let made = run.finish(&mut fuser, &[(last, 99, None), (Reg(100), 98, None)], None);
    let code = fuser.finish().expect("memory may be executed");
    let operands: Vec<Vec<f32>> = (0..count)
        .map(|index| {
            let own = |lane: usize| ((lane * 7 + index as usize * 13) % 29) as f32 - 11.0;
            (0..BLOCK * 2).map(|lane| own(if index % 5 == 0 { 0 } else { lane })).collect()
        })
        .collect();
    let (mut first, mut second) = (vec![0.0f32; BLOCK * 2], vec![0.0f32; BLOCK * 2]);
    let mut addresses: Vec<*mut u8> =
        made.operands.iter().map(|&slot| operands[slot].as_ptr().cast_mut().cast()).collect();
    addresses.extend([first.as_mut_ptr().cast::<u8>(), second.as_mut_ptr().cast()]);
    // SAFETY: all operands and results have these lanes.
    unsafe { Runnable(Some(&code)).run(made.entry, &addresses, 0..BLOCK * 2) };
    for lane in 0..BLOCK * 2 {
        let x: Vec<f32> = operands.iter().map(|operand| operand[lane]).collect();
        let products: Vec<f32> = (0..count as usize).map(|index| x[index] * x[(index + 1) % count as usize]).collect();
        let expected = products.iter().rev().skip(1).fold(products[count as usize - 1] - x[0], |sum, y| sum - y);
        assert_eq!((first[lane], second[lane]), (expected, products[0]), "lane {lane}");
    }
}

#[test]
fn a_selection_by_stored_bools_and_literals_is_right() {
    let mut fuser = Fuser::new(Isa::best(), Look::Not).expect("the machine has AVX2");
    let mut run = Run::default();
    let dtype_of = |reg: Reg| if reg == Reg(0) { DType::Bool } else { DType::F32 };
    let outside = |reg: Reg| match reg {
        Reg(2) => Outside::Literal(Literal::from_f64(DType::F32, 2.5)),
        reg => Outside::Slot(reg.0 as usize, Class::Full),
    };
    let operation = Kernel::Select { condition: Reg(0), then: Reg(1), otherwise: Reg(2) };
    run.add(
        &Instruction { result: Reg(3), dtype: DType::F32, operation },
        &[Reg(0), Reg(1), Reg(2)],
        dtype_of,
        outside,
    );
    let made = run.finish(&mut fuser, &[(Reg(3), 3, None)], None);
    let code = fuser.finish().expect("memory may be executed");
    let flags: Vec<u8> = (0..BLOCK).map(|lane| u8::from(lane % 3 == 0)).collect();
    let numbers: Vec<f32> = (0..BLOCK).map(|lane| lane as f32).collect();
    let mut result = vec![0.0f32; BLOCK];
    let addresses = [flags.as_ptr().cast_mut(), numbers.as_ptr().cast_mut().cast(), result.as_mut_ptr().cast()];
    // SAFETY: all operands and the result have these lanes.
    unsafe { Runnable(Some(&code)).run(made.entry, &addresses, 0..BLOCK) };
    let expected = |lane: usize| if lane.is_multiple_of(3) { lane as f32 } else { 2.5 };
    assert_eq!(result, (0..BLOCK).map(expected).collect::<Vec<_>>());
}

#[test]
fn sums_in_machine_code_have_the_bits_of_sums_over_strips() {
    use kiln_ir::ReduceKind;
    let scalar = |result: u32, op: ScalarOp, reads: [u32; 2]| Instruction {
        result: Reg(result),
        dtype: DType::F32,
        operation: Kernel::Scalar(op, reads.map(Reg).into_iter().collect()),
    };
    let (centred, square) = (scalar(10, ScalarOp::Sub, [0, 1]), scalar(11, ScalarOp::Mul, [10, 10]));
    let deep = scalar(12, ScalarOp::Div, [11, 0]);
    let outside = |reg: Reg| Outside::Slot(reg.0 as usize, if reg == Reg(1) { Class::Uniform } else { Class::Full });
    // One copy at a time, two, and four.
    for instructions in [&[square.clone()][..], &[centred.clone(), square.clone()], &[centred, square, deep]] {
        let mut fuser = Fuser::new(Isa::best(), Look::Not).expect("the machine has AVX2");
        let mut run = Run::default();
        for instruction in instructions {
            let Kernel::Scalar(_, reads) = &instruction.operation else { unreachable!() };
            run.add(instruction, reads, |_| DType::F32, outside);
        }
        let result = instructions.last().expect("there are some").result;
        let made = run.finish(&mut fuser, &[(result, 99, None)], Some(99));
        let (entry, _) = made.summed.expect("the sum is small");
        let code = fuser.finish().expect("memory may be executed");
        for lanes in [BLOCK, 3 * BLOCK, 2048, 2048 + 5 * BLOCK] {
            let operand = |index: usize| -> Vec<f32> {
                (0..lanes).map(|lane| ((lane * 7919 + index * 31) % 1013) as f32 * 0.37 + 0.1).collect()
            };
            let operands: Vec<Vec<f32>> = (0..11).map(operand).collect();
            let mut strip = vec![0.0f32; lanes];
            let mut addresses: Vec<*mut u8> =
                made.operands.iter().map(|&slot| operands[slot].as_ptr().cast_mut().cast()).collect();
            addresses.push(strip.as_mut_ptr().cast());
            let runnable = Runnable(Some(&code));
            let (mut here, mut there) = (0.0f64, 0.0f64);
            // SAFETY: all operands and the result have these lanes.
            unsafe {
                for part in row_parts(lanes) {
                    let mut sums = [0.0f32; LAST];
                    *addresses.last_mut().expect("the result's is last") = sums.as_mut_ptr().cast();
                    runnable.run(entry, &addresses, part);
                    here += f64::from(joined_sums(&sums));
                }
                *addresses.last_mut().expect("the result's is last") = strip.as_mut_ptr().cast();
                runnable.run(made.entry, &addresses, 0..lanes);
                let rows = lanes::fold_loops(ReduceKind::Sum, DType::F32, Isa::best()).rows;
                let acc = (&raw mut there).cast();
                rows(strip.as_ptr().cast(), 1, lanes, acc, std::ptr::null_mut(), 0, 0);
            }
            assert_eq!(here.to_bits(), there.to_bits(), "{} instructions, {lanes} lanes", instructions.len());
        }
    }
}
