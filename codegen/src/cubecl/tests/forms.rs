//! Every form under every schedule.

use super::*;
use crate::wgsl::tests::forms::{column_sum, reduction, softmax};
use crate::wgsl::tests::{Build, points, team};
use kiln_ir::gpu::LoopSchedule;
use kiln_ir::kernel::{Access, BufferIndex, HorizontalKernel, Operation, Part};
use kiln_ir::{DType, Literal, ReduceKind, ScalarOp};

fn biased(dtype: DType) -> Kernel {
    let mut b = Build::new(&[1024, 512], &[]);
    let (x, bias) = (b.buffer(dtype, 1024 * 512, Access::Read), b.buffer(dtype, 512, Access::Read));
    let y = b.buffer(dtype, 1024 * 512, Access::Write);
    let (value, shift) = (b.load(x, &[512, 1]), b.load(bias, &[0, 1]));
    let sum = b.scalar(ScalarOp::Add, dtype, &[value, shift]);
    let zero = b.emit(dtype, Operation::Literal(Literal::zero(dtype)));
    let relu = b.scalar(ScalarOp::Max, dtype, &[sum, zero]);
    b.store(y, &[512, 1], relu);
    b.point();
    b.kernel()
}

#[test]
fn maps_read_as_one_would_write_them() {
    insta::assert_snapshot!("map_f32", text(&program(&biased(DType::F32), &Schedule::Loop(points(256, 4)))));
    insta::assert_snapshot!("map_bf16", text(&program(&biased(DType::BF16), &Schedule::Loop(points(256, 8)))));
}

#[test]
fn every_reduction_compiles_under_every_schedule() {
    let split = |part, whole| LoopSchedule::Split { parts: 3, part: Box::new(part), whole: Box::new(whole) };
    for kind in ReduceKind::ALL {
        for dtype in DType::ALL {
            if dtype == DType::Bool && matches!(kind, ReduceKind::Sum | ReduceKind::Prod) {
                continue;
            }
            for (inner, whole) in [(&[300usize][..], 4), (&[5, 3][..], 1), (&[][..], 1)] {
                let kernel = reduction(kind, dtype, 12, inner);
                let schedules = [
                    points(32, 4),
                    team(8, 4, 1),
                    team(64, 1, whole),
                    team(128, 2, 1),
                    split(points(32, 4), points(32, 1)),
                    split(team(32, 1, whole), team(4, 8, 1)),
                ];
                for schedule in schedules {
                    // All are printed; compiled are those of a dtype for each kind of number.
                    let schedule = Schedule::Loop(schedule);
                    match dtype {
                        DType::F32 | DType::BF16 | DType::I64 | DType::Bool if inner.len() == 1 => {
                            program(&kernel, &schedule)
                        }
                        _ => printed(&kernel, &schedule),
                    };
                }
            }
        }
    }
}

#[test]
fn nothing_runs_over_an_empty_space_and_sums_of_nothing_do() {
    let none = program(&reduction(ReduceKind::Sum, DType::F32, 0, &[4]), &Schedule::Loop(points(32, 1)));
    assert!(none.steps.is_empty());
    let zeros = reduction(ReduceKind::Sum, DType::F32, 4, &[0]);
    for schedule in [points(32, 1), team(32, 1, 1)] {
        assert_eq!(program(&zeros, &Schedule::Loop(schedule)).steps.len(), 1);
    }
}

#[test]
fn a_row_is_read_once_by_a_team() {
    let text = text(&program(&softmax(64, 1024), &Schedule::Loop(team(128, 1, 4))));
    assert_eq!(text.matches("reinterpret_cast<float_4 const*>").count(), 2, "{text}");
    insta::assert_snapshot!("softmax", text);
    // 1000 is no multiple of 512.
    program(&softmax(64, 1000), &Schedule::Loop(team(128, 1, 4)));
    program(&softmax(63, 1000), &Schedule::Loop(team(32, 4, 4)));
}

#[test]
fn sums_of_columns_are_split() {
    let split = LoopSchedule::Split { parts: 16, part: Box::new(points(64, 4)), whole: Box::new(points(64, 1)) };
    insta::assert_snapshot!(text(&program(&column_sum(4096, 256), &Schedule::Loop(split))));
}

#[test]
fn indices_have_64_bits_where_a_buffer_needs_them() {
    let mut b = Build::new(&[1 << 32], &[]);
    let (x, y) = (b.buffer(DType::U8, 1 << 32, Access::Read), b.buffer(DType::U8, 1 << 32, Access::Write));
    let value = b.load(x, &[1]);
    b.store(y, &[1], value);
    b.point();
    let text = text(&program(&b.kernel(), &Schedule::Loop(points(256, 4))));
    assert!(text.contains("uint64_t const"), "{text}");
}

/// Adam's update of one parameter.
fn adam(len: usize) -> Part {
    let mut b = Build::new(&[len], &[]);
    let [p, m, v] = [(); 3].map(|()| b.buffer(DType::F32, len, Access::ReadWrite));
    let (g, rate) = (b.buffer(DType::F32, len, Access::Read), b.buffer(DType::F32, 1, Access::Read));
    let number = |b: &mut Build, value| b.emit(DType::F32, Operation::Literal(Literal::from_f64(DType::F32, value)));
    let gradient = b.load(g, &[1]);
    let decayed = |b: &mut Build, buffer, by, new| {
        let old = b.load(buffer, &[1]);
        let (keep, take) = (number(b, by), number(b, 1.0 - by));
        let (kept, taken) =
            (b.scalar(ScalarOp::Mul, DType::F32, &[old, keep]), b.scalar(ScalarOp::Mul, DType::F32, &[new, take]));
        b.scalar(ScalarOp::Add, DType::F32, &[kept, taken])
    };
    let mean = decayed(&mut b, m, 0.9, gradient);
    let square = b.scalar(ScalarOp::Mul, DType::F32, &[gradient, gradient]);
    let spread = decayed(&mut b, v, 0.999, square);
    let root = b.scalar(ScalarOp::Sqrt, DType::F32, &[spread]);
    let least = number(&mut b, 1e-8);
    let root = b.scalar(ScalarOp::Add, DType::F32, &[root, least]);
    let step = b.scalar(ScalarOp::Div, DType::F32, &[mean, root]);
    let rate = b.load(rate, &[]);
    let step = b.scalar(ScalarOp::Mul, DType::F32, &[rate, step]);
    let old = b.load(p, &[1]);
    let new = b.scalar(ScalarOp::Sub, DType::F32, &[old, step]);
    for (buffer, value) in [(p, new), (m, mean), (v, spread)] {
        b.store(buffer, &[1], value);
    }
    b.point();
    Part { kernel: b.kernel, buffers: Vec::new() }
}

fn step(lens: &[usize]) -> Kernel {
    let (mut buffers, mut parts) = (Vec::new(), Vec::new());
    for &len in lens {
        let mut part = adam(len);
        let own = |index: usize| BufferIndex((buffers.len() + index) as u32);
        part.buffers = (0..4).map(own).collect();
        buffers.extend(part.kernel.buffers[..4].to_vec());
        parts.push(part);
    }
    // The rate is all parts'.
    let rate = BufferIndex(buffers.len() as u32);
    buffers.push(parts[0].kernel.buffers[4].clone());
    parts.iter_mut().for_each(|part: &mut Part| part.buffers.push(rate));
    Kernel::Horizontal(HorizontalKernel { buffers, parts })
}

#[test]
fn an_optimizer_steps_in_one_launch() {
    let schedules = Schedule::Horizontal(vec![points(256, 4), points(256, 2), points(256, 4)]);
    insta::assert_snapshot!(text(&program(&step(&[4096, 10, 4096]), &schedules)));
}

#[test]
fn hundreds_of_parameters_are_as_many_bodies_as_sizes() {
    let lens: Vec<usize> = (0..200).map(|index| [768, 768 * 768, 3072, 768 * 3072][index % 4]).collect();
    let schedules = Schedule::Horizontal(vec![points(256, 4); lens.len()]);
    let text = text(&program(&step(&lens), &schedules));
    assert_eq!(text.matches("sqrtf").count(), 4 * 4);
    assert!(text.len() < 200_000, "{}", text.len());
}

#[test]
fn a_layer_norm_reads_its_row_once() {
    let (rows, columns) = (64, 1024);
    let mut b = Build::new(&[rows], &[columns]);
    let (x, scale) = (b.buffer(DType::F32, rows * columns, Access::Read), b.buffer(DType::F32, columns, Access::Read));
    let y = b.buffer(DType::F32, rows * columns, Access::Write);
    let strides = [columns as i64, 1];
    let number = |b: &mut Build, value| b.emit(DType::F32, Operation::Literal(Literal::from_f64(DType::F32, value)));
    let value = b.load(x, &strides);
    let sum = b.fold(ReduceKind::Sum, value, DType::F32, DType::F32);
    let share = number(&mut b, 1.0 / 1024.0);
    let mean = b.scalar(ScalarOp::Mul, DType::F32, &[sum, share]);
    b.point();
    let value = b.load(x, &strides);
    let centred = b.scalar(ScalarOp::Sub, DType::F32, &[value, mean]);
    let square = b.scalar(ScalarOp::Mul, DType::F32, &[centred, centred]);
    let sum = b.fold(ReduceKind::Sum, square, DType::F32, DType::F32);
    let (share, least) = (number(&mut b, 1.0 / 1024.0), number(&mut b, 1e-5));
    let variance = b.scalar(ScalarOp::Mul, DType::F32, &[sum, share]);
    let variance = b.scalar(ScalarOp::Add, DType::F32, &[variance, least]);
    let by = b.scalar(ScalarOp::Rsqrt, DType::F32, &[variance]);
    b.point();
    let value = b.load(x, &strides);
    let centred = b.scalar(ScalarOp::Sub, DType::F32, &[value, mean]);
    let normed = b.scalar(ScalarOp::Mul, DType::F32, &[centred, by]);
    let scale = b.load(scale, &[0, 1]);
    let scaled = b.scalar(ScalarOp::Mul, DType::F32, &[normed, scale]);
    b.store(y, &strides, scaled);
    b.each();
    insta::assert_snapshot!(text(&program(&b.kernel(), &Schedule::Loop(team(128, 1, 4)))));
}
