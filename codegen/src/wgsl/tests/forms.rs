//! Loop and horizontal kernels under every schedule.

use super::*;
use kiln_ir::kernel::{HorizontalKernel, Part};

pub(crate) fn reduction(kind: ReduceKind, dtype: DType, outer: usize, inner: &[usize]) -> Kernel {
    let count: usize = inner.iter().product();
    let mut b = Build::new(&[outer], inner);
    let x = b.buffer(dtype, outer * count, Access::Read);
    let mut strides = vec![count as i64];
    strides.extend((0..inner.len()).map(|axis| inner[axis + 1..].iter().product::<usize>() as i64));
    let value = b.load(x, &strides);
    let (accumulate, result) = if kind.is_arg() { (dtype, DType::I32) } else { (dtype.accumulator(), dtype) };
    let folded = b.fold(kind, value, accumulate, result);
    let y = b.buffer(result, outer, Access::Write);
    b.store(y, &[1], folded);
    b.point();
    b.kernel()
}

pub(crate) fn softmax(rows: usize, columns: usize) -> Kernel {
    let mut b = Build::new(&[rows], &[columns]);
    let x = b.buffer(DType::F32, rows * columns, Access::Read);
    let y = b.buffer(DType::F32, rows * columns, Access::Write);
    let strides = [columns as i64, 1];
    let value = b.load(x, &strides);
    let most = b.fold(ReduceKind::Max, value, DType::F32, DType::F32);
    let exponential = |b: &mut Build| {
        let value = b.load(x, &strides);
        let below = b.scalar(ScalarOp::Sub, DType::F32, &[value, most]);
        b.scalar(ScalarOp::Exp, DType::F32, &[below])
    };
    let first = exponential(&mut b);
    let sum = b.fold(ReduceKind::Sum, first, DType::F32, DType::F32);
    let again = exponential(&mut b);
    let share = b.scalar(ScalarOp::Div, DType::F32, &[again, sum]);
    b.store(y, &strides, share);
    b.each();
    b.kernel()
}

pub(crate) fn column_sum(rows: usize, columns: usize) -> Kernel {
    let mut b = Build::new(&[columns], &[rows]);
    let x = b.buffer(DType::F32, rows * columns, Access::Read);
    let y = b.buffer(DType::F32, columns, Access::Write);
    let value = b.load(x, &[1, columns as i64]);
    let sum = b.fold(ReduceKind::Sum, value, DType::F32, DType::F32);
    b.store(y, &[1], sum);
    b.point();
    b.kernel()
}

#[test]
fn every_reduction_is_valid_under_every_schedule() {
    let plain = GpuTarget { f64: Support::Present, i64: Support::Present, ..GpuTarget::WEBGPU };
    let split = |part, whole| LoopSchedule::Split { parts: 3, part: Box::new(part), whole: Box::new(whole) };
    for kind in ReduceKind::ALL {
        for dtype in DType::ALL {
            if dtype == DType::Bool && matches!(kind, ReduceKind::Sum | ReduceKind::Prod) {
                continue;
            }
            for (inner, whole) in
                [(&[300usize][..], 4), (&[7, 12][..], 4), (&[5, 3][..], 1), (&[1][..], 1), (&[][..], 1)]
            {
                let kernel = reduction(kind, dtype, 12, inner);
                let schedules = [
                    points(32, 1),
                    points(32, 4),
                    team(8, 4, 1),
                    team(64, 1, whole),
                    team(128, 2, 1),
                    split(points(32, 4), points(32, 1)),
                    split(team(32, 1, whole), team(4, 8, 1)),
                ];
                for schedule in schedules {
                    for target in [&FULL, &plain] {
                        program(&kernel, &Schedule::Loop(schedule.clone()), target);
                    }
                }
            }
        }
    }
}

#[test]
fn nothing_runs_over_an_empty_space_and_sums_of_nothing_do() {
    let none = program(&reduction(ReduceKind::Sum, DType::F32, 0, &[4]), &Schedule::Loop(points(32, 1)), &FULL);
    assert!(none.dispatches.is_empty());
    let zeros = reduction(ReduceKind::Sum, DType::F32, 4, &[0]);
    for schedule in [points(32, 1), team(32, 1, 1)] {
        assert_eq!(program(&zeros, &Schedule::Loop(schedule), &FULL).dispatches.len(), 1);
    }
}

#[test]
fn more_workgroups_than_an_axis_takes_go_along_two() {
    let len = 70_001 * 32;
    let mut b = Build::new(&[len], &[]);
    let y = b.buffer(DType::U8, len, Access::Write);
    let value = b.emit(DType::U8, Operation::Index(affine(0, &[1])));
    b.store(y, &[1], value);
    b.point();
    let program = program(&b.kernel(), &Schedule::Loop(points(32, 1)), &GpuTarget::WEBGPU);
    assert_eq!(program.dispatches[0].workgroups, [35_001, 2, 1]);
    assert!(text(&program).contains("if group >= 70001 { return; }"));
}

#[test]
fn whole_words_are_stored_without_atomics() {
    let copy = |width| {
        let mut b = Build::new(&[64], &[]);
        let (x, y) = (b.buffer(DType::U8, 64, Access::Read), b.buffer(DType::U8, 64, Access::Write));
        let value = b.load(x, &[1]);
        b.store(y, &[1], value);
        b.point();
        text(&program(&b.kernel(), &Schedule::Loop(points(16, width)), &GpuTarget::WEBGPU))
    };
    assert!(!copy(4).contains("atomic"));
    assert!(copy(1).contains("atomicOr"));
}

#[test]
fn a_map_reads_as_one_would_write_it() {
    let mut b = Build::new(&[1024, 512], &[]);
    let (x, bias) = (b.buffer(DType::F32, 1024 * 512, Access::Read), b.buffer(DType::F32, 512, Access::Read));
    let y = b.buffer(DType::F32, 1024 * 512, Access::Write);
    let (value, shift) = (b.load(x, &[512, 1]), b.load(bias, &[0, 1]));
    let sum = b.scalar(ScalarOp::Add, DType::F32, &[value, shift]);
    let zero = b.emit(DType::F32, Operation::Literal(kiln_ir::Literal::zero(DType::F32)));
    let relu = b.scalar(ScalarOp::Max, DType::F32, &[sum, zero]);
    b.store(y, &[512, 1], relu);
    b.point();
    insta::assert_snapshot!(text(&program(&b.kernel(), &Schedule::Loop(points(256, 4)), &FULL)));
}

#[test]
fn a_row_is_read_once_by_a_team() {
    let kernel = softmax(64, 1024);
    insta::assert_snapshot!("softmax_team", text(&program(&kernel, &Schedule::Loop(team(128, 1, 4)), &FULL)));
    insta::assert_snapshot!(
        "softmax_points",
        text(&program(&kernel, &Schedule::Loop(points(64, 1)), &GpuTarget::WEBGPU))
    );
    // 1000 is no multiple of 512.
    program(&softmax(64, 1000), &Schedule::Loop(team(128, 1, 4)), &FULL);
    program(&softmax(63, 1000), &Schedule::Loop(team(32, 4, 4)), &FULL);
}

#[test]
fn sums_of_columns_are_split() {
    let split = LoopSchedule::Split { parts: 16, part: Box::new(points(64, 4)), whole: Box::new(points(64, 1)) };
    insta::assert_snapshot!(text(&program(&column_sum(4096, 256), &Schedule::Loop(split), &GpuTarget::WEBGPU)));
}

pub(crate) fn update(len: usize) -> Part {
    let mut b = Build::new(&[len], &[]);
    let (p, g) = (b.buffer(DType::F32, len, Access::ReadWrite), b.buffer(DType::F32, len, Access::Read));
    let m = b.buffer(DType::F32, len, Access::ReadWrite);
    let rate = b.emit(DType::F32, Operation::Literal(kiln_ir::Literal::from_f64(DType::F32, 0.1)));
    let (momentum, gradient) = (b.load(m, &[1]), b.load(g, &[1]));
    let momentum = b.scalar(ScalarOp::Mul, DType::F32, &[momentum, rate]);
    let momentum = b.scalar(ScalarOp::Add, DType::F32, &[momentum, gradient]);
    let parameter = b.load(p, &[1]);
    let step = b.scalar(ScalarOp::Mul, DType::F32, &[momentum, rate]);
    let parameter = b.scalar(ScalarOp::Sub, DType::F32, &[parameter, step]);
    b.store(p, &[1], parameter);
    b.store(m, &[1], momentum);
    b.point();
    Part { kernel: b.kernel, buffers: Vec::new() }
}

#[test]
fn parts_of_a_horizontal_kernel_have_workgroups_of_their_own() {
    let (mut buffers, mut parts) = (Vec::new(), Vec::new());
    for len in [1024, 10] {
        let mut part = update(len);
        part.buffers = (0..3).map(|index| BufferIndex((buffers.len() + index) as u32)).collect();
        buffers.extend(part.kernel.buffers.clone());
        parts.push(part);
    }
    let kernel = Kernel::Horizontal(HorizontalKernel { buffers, parts });
    let schedule = Schedule::Horizontal(vec![points(64, 4), points(64, 1)]);
    insta::assert_snapshot!(text(&program(&kernel, &schedule, &FULL)));
    let unequal = Schedule::Horizontal(vec![points(64, 4), points(32, 1)]);
    assert_eq!(super::super::program(&kernel, &unequal, &FULL).unwrap_err().code, kiln_ir::Code::K0901);
}
