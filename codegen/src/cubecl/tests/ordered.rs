//! Running reductions and indexed updates: every dtype and kind, walked alone and by many.

use super::*;
use crate::wgsl::tests::ordered::{scan, scatter};
use kiln_ir::gpu::{ScanSchedule, ScatterSchedule};
use kiln_ir::{DType, Direction, ScanKind, ScatterKind};

/// Dtypes of each kind of number.
const DTYPES: [DType; 4] = [DType::F32, DType::BF16, DType::I8, DType::I64];

#[test]
fn every_scan_compiles_alone_and_in_teams() {
    for kind in ScanKind::ALL {
        for dtype in DTYPES {
            for (direction, lanes, teams, width) in
                [(Direction::Forward, 1, 64, 1), (Direction::Reverse, 32, 2, 1), (Direction::Forward, 256, 1, 4)]
            {
                let schedule = Schedule::Scan(ScanSchedule { lanes, teams, width });
                program(&scan(kind, direction, dtype, [70, 1000]), &schedule);
            }
        }
    }
}

#[test]
fn every_scatter_compiles_walked_and_sorted() {
    for kind in ScatterKind::ALL {
        for dtype in DTYPES {
            let kernel = scatter(kind, dtype, [100, 7, 5000]);
            program(&kernel, &Schedule::Scatter(ScatterSchedule::Walk { workgroup: 64 }));
            let sort = ScatterSchedule::Sort { workgroup: 256, ways: 8, axes: Vec::new() };
            // 20 runs of 256: sorted, merged twice, applied.
            assert_eq!(program(&kernel, &Schedule::Scatter(sort)).steps.len(), 4);
        }
    }
}
