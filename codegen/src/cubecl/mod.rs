//! CUDA C++: a kernel and its schedule as text, printed through CubeCL.
//!
//! `builder` is a typed layer over CubeCL's scope; `dialect` adds the ops that carry our arithmetic. All else is the same for every form: blocks
//! of instructions (`block`, `scalar`), points and maps (`space`), elements in memory (`memory`). Forms differ in how they walk their space.
//!
//! How numbers are held: in registers, floats of 16 bits are `float` that is rounded after each instruction, 8-bit integers are wrapped 32-bit
//! ones; in memory, elements lie as on the host. Texts contract nothing: they are compiled with `--fmad=false`, and without headers.

mod block;
mod builder;
mod dialect;
mod fold;
mod functions;
mod loops;
mod memory;
mod module;
mod scalar;
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
    let _ = target;
    match (kernel, schedule) {
        (Kernel::Loop(kernel), Schedule::Loop(schedule)) => loops::program(kernel, schedule, &entry),
        _ => Err(Diagnostic::new(
            Code::K0901,
            format!("internal: {} cannot be spread as {schedule:?}", kernel.form().name()),
        )),
    }
}

#[cfg(test)]
mod tests;
