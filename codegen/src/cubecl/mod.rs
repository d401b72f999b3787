//! CUDA C++: a kernel and its schedule as text, printed through CubeCL.
//!
//! `builder` is a typed layer over CubeCL's scope; `dialect` adds the ops that carry our arithmetic. All else is the same for every form: blocks
//! of instructions (`block`, `scalar`), points and maps (`space`), elements in memory (`memory`). Forms differ in how they walk their space.
//!
//! How numbers are held: in registers, floats of 16 bits are `float` that is rounded after each instruction, 8-bit integers are wrapped 32-bit
//! ones; in memory, elements lie as on the host. Texts contract nothing: they are compiled with `--fmad=false`, and without headers.

mod attention;
mod block;
mod builder;
mod dialect;
mod fold;
mod functions;
mod horizontal;
mod loops;
mod matmul;
mod memory;
mod module;
mod scalar;
mod scan;
mod scatter;
mod space;
mod team;
mod types;
mod walk;

use kiln_ir::cuda::CudaProgram;
use kiln_ir::gpu::{GpuTarget, Schedule};
use kiln_ir::kernel::Kernel;
use kiln_ir::{Code, Diagnostic};

/// The texts of a kernel that is spread as `schedule` says, for devices that offer at least what `target` does.
///
/// Errors: K0603 where a limit is exceeded, K0901 where the schedule is not one of the kernel's form: a mistake of ours.
pub fn program(kernel: &Kernel, schedule: &Schedule, target: &GpuTarget) -> Result<CudaProgram, Diagnostic> {
    let entry = crate::entry_name(kernel);
    check_limits(kernel, target)?;
    match (kernel, schedule) {
        (Kernel::Loop(kernel), Schedule::Loop(schedule)) => loops::program(kernel, schedule, &entry),
        (Kernel::Horizontal(kernel), Schedule::Horizontal(schedules)) => horizontal::program(kernel, schedules, &entry),
        (Kernel::MatMul(kernel), Schedule::MatMul(schedule)) => matmul::program(kernel, schedule, &entry),
        (Kernel::Attention(kernel), Schedule::WarpAttention(schedule)) => attention::program(kernel, schedule, &entry),
        (Kernel::Scan(kernel), Schedule::Scan(schedule)) => scan::program(kernel, schedule, &entry),
        (Kernel::Scatter(kernel), Schedule::Scatter(schedule)) => scatter::program(kernel, schedule, &entry),
        (
            Kernel::Loop(_)
            | Kernel::Horizontal(_)
            | Kernel::MatMul(_)
            | Kernel::Attention(_)
            | Kernel::Scan(_)
            | Kernel::Scatter(_)
            | Kernel::Custom(_),
            _,
        ) => Err(Diagnostic::new(
            Code::K0901,
            format!("internal: {} cannot be spread as {schedule:?}", kernel.form().name()),
        )),
    }
}

/// A text has one parameter for each buffer.
fn check_limits(kernel: &Kernel, target: &GpuTarget) -> Result<(), Diagnostic> {
    let (seen, most) = (kernel.buffers().len(), target.bindings as usize);
    if seen <= most {
        return Ok(());
    }
    let message = format!("a kernel sees {seen} buffers at once");
    Err(Diagnostic::new(Code::K0603, message).label(format!("this GPU binds {most} at most")))
}

#[cfg(test)]
mod tests;
