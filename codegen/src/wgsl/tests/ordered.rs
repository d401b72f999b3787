//! Running reductions and indexed updates: every dtype and kind, walked alone and by many.

use super::*;
use kiln_ir::gpu::{ScanSchedule, ScatterSchedule};
use kiln_ir::kernel::{ScanKernel, ScatterKernel};
use kiln_ir::{Direction, ScanKind, ScatterKind};

fn load(result: u32, dtype: DType, buffer: u32, strides: &[i64]) -> Instruction {
    let address = Address { affine: affine(0, strides), ..Address::default() };
    let operation = Operation::Load { buffer: BufferIndex(buffer), address, bounds: Vec::new() };
    Instruction { result: Reg(result), dtype, operation }
}

fn buffer(dtype: DType, len: usize, access: Access) -> Buffer {
    Buffer { dtype, len, access }
}

pub(crate) fn scan(kind: ScanKind, direction: Direction, dtype: DType, [lines, extent]: [usize; 2]) -> Kernel {
    let strides = [extent as i64, 1];
    Kernel::Scan(ScanKernel {
        buffers: vec![buffer(dtype, lines * extent, Access::Read), buffer(dtype, lines * extent, Access::Write)],
        outer: [lines].into_iter().collect(),
        extent,
        kind,
        direction,
        accumulate: dtype.accumulator(),
        block: Block { instructions: vec![load(0, dtype, 0, &strides)], stores: Vec::new() },
        value: Reg(0),
        dtype,
        output: BufferIndex(1),
        address: affine(0, &strides),
    })
}

/// Updates of rows of a table.
pub(crate) fn scatter(kind: ScatterKind, dtype: DType, [rows, columns, updates]: [usize; 3]) -> Kernel {
    let index = Instruction { result: Reg(1), dtype: DType::I64, operation: Operation::Cast(Reg(0)) };
    let instructions = vec![load(0, DType::I32, 0, &[1, 0]), index, load(2, dtype, 1, &[columns as i64, 1])];
    Kernel::Scatter(ScatterKernel {
        buffers: vec![
            buffer(DType::I32, updates, Access::Read),
            buffer(dtype, updates * columns, Access::Read),
            buffer(dtype, rows * columns, Access::ReadWrite),
        ],
        space: [updates, columns].into_iter().collect(),
        ordered: 0..1,
        kind,
        block: Block { instructions, stores: Vec::new() },
        index: Reg(1),
        update: Reg(2),
        extent: rows,
        output: BufferIndex(2),
        address: affine(0, &[0, 1]),
        stride: columns as i64,
    })
}

fn plain(dtype: DType) -> GpuTarget {
    let support = |own: DType| Support::of(dtype == own);
    GpuTarget { f64: support(DType::F64), i64: support(DType::I64), ..GpuTarget::WEBGPU }
}

#[test]
fn every_scan_is_valid_alone_and_in_teams() {
    let schedules =
        [(1, 64, 1), (32, 2, 1), (256, 1, 4)].map(|(lanes, teams, width)| ScanSchedule { lanes, teams, width });
    for kind in ScanKind::ALL {
        for direction in [Direction::Forward, Direction::Reverse] {
            for dtype in DType::ALL.into_iter().filter(|dtype| *dtype != DType::Bool) {
                for schedule in &schedules {
                    let kernel = scan(kind, direction, dtype, [5, 1000]);
                    for target in [FULL, plain(dtype)] {
                        program(&kernel, &Schedule::Scan(schedule.clone()), &target);
                    }
                }
            }
        }
    }
}

#[test]
fn every_scatter_is_valid_walked_and_sorted() {
    for kind in ScatterKind::ALL {
        for dtype in DType::ALL.into_iter().filter(|dtype| *dtype != DType::Bool || kind == ScatterKind::Set) {
            let kernel = scatter(kind, dtype, [50, 3, 1000]);
            for target in [FULL, plain(dtype)] {
                let sort = ScatterSchedule::Sort { workgroup: 64, ways: 4, axes: Vec::new() };
                program(&kernel, &Schedule::Scatter(sort), &target);
                if dtype.accumulator() == dtype || kind != ScatterKind::Add {
                    program(&kernel, &Schedule::Scatter(ScatterSchedule::Walk { workgroup: 64 }), &target);
                }
            }
        }
    }
}

#[test]
fn runs_are_merged_until_there_is_one() {
    let kernel = scatter(ScatterKind::Add, DType::F32, [50, 3, 1000]);
    let sort = |workgroup, ways| Schedule::Scatter(ScatterSchedule::Sort { workgroup, ways, axes: Vec::new() });
    // 16 runs of 64, then 4, then 1; with one run there is nothing to merge.
    let made = program(&kernel, &sort(64, 4), &GpuTarget::WEBGPU);
    assert_eq!((made.dispatches.len(), &made.scratch[..]), (4, &[8192, 8192][..]));
    let small = scatter(ScatterKind::Add, DType::F32, [50, 3, 60]);
    assert_eq!(program(&small, &sort(64, 4), &GpuTarget::WEBGPU).dispatches.len(), 2);
}

#[test]
fn a_scan_reads_as_one_would_write_it() {
    let kernel = scan(ScanKind::Sum, Direction::Forward, DType::F32, [8, 1000]);
    let schedule = Schedule::Scan(ScanSchedule { lanes: 64, teams: 1, width: 4 });
    insta::assert_snapshot!(text(&program(&kernel, &schedule, &GpuTarget::WEBGPU)));
}

#[test]
fn a_sorted_scatter_reads_as_one_would_write_it() {
    let kernel = scatter(ScatterKind::Add, DType::F32, [50, 3, 100]);
    let schedule = Schedule::Scatter(ScatterSchedule::Sort { workgroup: 64, ways: 8, axes: Vec::new() });
    insta::assert_snapshot!(text(&program(&kernel, &schedule, &GpuTarget::WEBGPU)));
}
