//! Every form under every schedule.

use super::*;
use crate::wgsl::tests::forms::{column_sum, reduction, softmax};
use crate::wgsl::tests::{Build, points, team};
use kiln_ir::gpu::LoopSchedule;
use kiln_ir::kernel::{Access, Operation};
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
