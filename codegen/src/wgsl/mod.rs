//! WGSL: a kernel and its schedule as text.
//!
//! Every form is printed from the same parts: blocks of instructions (`block`), what numbers are and how they lie in memory (`types`,
//! `memory`), functions that WGSL lacks or leaves inexact (`functions`). Forms differ in how they walk their space.
//!
//! How numbers are held:
//! - in registers, floats of 16 bits are `f32` that are rounded after each instruction, 8-bit integers are `i32` and `u32` that are wrapped;
//! - in memory, elements narrower than 32 bits are packed in words, as they are on the host: 4 of `i8`, `u8`, `bool`, 2 of `bf16` (and of `f16`,
//!   where the device has no such type). An invocation that owns whole words writes words; any other changes its own bits by atomics.

mod attention;
mod block;
#[cfg(feature = "wgpu")]
mod check;
mod fold;
mod functions;
mod horizontal;
mod loops;
mod matmul;
mod memory;
mod module;
mod operand;
mod points;
mod product;
mod ranges;
mod scalar;
mod scan;
mod scatter;
mod sort;
mod space;
mod team;
mod types;
mod walk;
mod writer;

#[cfg(feature = "wgpu")]
pub use check::check_wgsl;

use kiln_ir::gpu::{GpuProgram, GpuTarget, Schedule};
use kiln_ir::kernel::Kernel;
use kiln_ir::{Code, Diagnostic};

/// The texts of a kernel that is spread as `schedule` says, for devices that offer at least what `target` does.
///
/// Errors: K0601 where the target lacks a dtype or an op that the kernel needs, K0603 where a limit is exceeded, K0901 where the schedule is not
/// one of the kernel's form: a mistake of ours.
pub fn program(kernel: &Kernel, schedule: &Schedule, target: &GpuTarget) -> Result<GpuProgram, Diagnostic> {
    let entry = crate::entry_name(kernel);
    match (kernel, schedule) {
        (Kernel::Loop(kernel), Schedule::Loop(schedule)) => loops::program(kernel, schedule, &entry, target),
        (Kernel::Horizontal(kernel), Schedule::Horizontal(schedules)) => {
            horizontal::program(kernel, schedules, &entry, target)
        }
        (Kernel::MatMul(kernel), Schedule::MatMul(schedule)) => matmul::program(kernel, schedule, &entry, target),
        (Kernel::Attention(kernel), Schedule::Attention(schedule)) => {
            attention::program(kernel, schedule, &entry, target)
        }
        (Kernel::Scan(kernel), Schedule::Scan(schedule)) => scan::program(kernel, schedule, &entry, target),
        (Kernel::Scatter(kernel), Schedule::Scatter(schedule)) => scatter::program(kernel, schedule, &entry, target),
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

#[cfg(test)]
pub(crate) mod tests;
