//! Spreading kernels over a GPU: which invocations compute what, chosen from the device's limits.
//!
//! One file a form. A schedule never changes what is computed, only in what order sums are taken; the same kernel and target always have the
//! same schedule.

mod attention;
mod matmul;
mod scan;
mod scatter;

use kiln_ir::gpu::{GpuTarget, Schedule};
use kiln_ir::kernel::Kernel;
use kiln_ir::{Code, Diagnostic};

/// How a kernel is spread over a device that offers `target`.
///
/// Errors: K0603 where a limit is exceeded that no schedule can keep.
pub fn schedule(kernel: &Kernel, target: &GpuTarget) -> Result<Schedule, Diagnostic> {
    match kernel {
        Kernel::MatMul(kernel) => Ok(Schedule::MatMul(matmul::schedule(kernel, target))),
        Kernel::Attention(kernel) => attention::schedule(kernel, target).map(Schedule::Attention),
        Kernel::Scan(kernel) => Ok(Schedule::Scan(scan::schedule(kernel, target))),
        Kernel::Scatter(kernel) => scatter::schedule(kernel, target).map(Schedule::Scatter),
        Kernel::Custom(_) => Ok(Schedule::Custom),
        Kernel::Loop(_) | Kernel::Horizontal(_) => {
            Err(Diagnostic::new(Code::K0901, format!("internal: {} cannot be spread", kernel.form().name())))
        }
    }
}
