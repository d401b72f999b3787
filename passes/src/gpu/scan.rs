//! Running reductions: a team of invocations for each line, or one invocation where there are lines enough.

use kiln_ir::gpu::{GpuTarget, ScanSchedule};
use kiln_ir::kernel::ScanKernel;

/// Lines that keep a large GPU busy with one invocation each.
const LINES: usize = 1 << 14;

/// Elements up to which a line is not worth a team.
const SHORT: usize = 16;

/// Invocations of a workgroup.
const WORKGROUP: u32 = 256;

/// How a running reduction is spread.
pub(super) fn schedule(kernel: &ScanKernel, target: &GpuTarget) -> ScanSchedule {
    let workgroup = WORKGROUP.min(target.workgroup_size);
    let lines: usize = kernel.outer.iter().product();
    // Neighbouring lines read side by side where the scanned axis is not the one that lies densely.
    let dense = kernel.address.stride(kernel.outer.len()).unsigned_abs() == 1;
    if kernel.extent <= SHORT || (lines >= LINES && !dense) {
        return ScanSchedule { lanes: 1, teams: 64.min(workgroup), width: 1 };
    }
    let wanted = (kernel.extent.min(workgroup as usize) as u32).next_power_of_two();
    let lanes = if wanted > workgroup { workgroup } else { wanted };
    let width = if kernel.extent > 4 * lanes as usize { 4 } else { 1 };
    ScanSchedule { lanes, teams: (64 / lanes).max(1), width }
}
