//! Texts are CUDA C++ that NVRTC compiles for old and new devices, compute what the table of ops says, and read as they should.

mod attention;
mod forms;
mod host;
mod nvrtc;
mod ops;
mod ordered;
mod products;

use kiln_ir::cuda::CudaProgram;
use kiln_ir::gpu::{GpuTarget, Schedule};
use kiln_ir::kernel::Kernel;

pub(super) const TARGET: GpuTarget = GpuTarget::CUDA;

/// The program, the same when it is made again, compiled wherever NVRTC is found.
#[track_caller]
pub(super) fn program(kernel: &Kernel, schedule: &Schedule) -> CudaProgram {
    let program = printed(kernel, schedule);
    program.texts().for_each(nvrtc::compile);
    program
}

/// The program, the same when it is made again.
#[track_caller]
pub(super) fn printed(kernel: &Kernel, schedule: &Schedule) -> CudaProgram {
    let program = super::program(kernel, schedule, &TARGET).unwrap_or_else(|error| panic!("{error:?}"));
    assert_eq!(super::program(kernel, schedule, &TARGET).as_ref(), Ok(&program));
    program
}

/// All texts of a program.
pub(super) fn text(program: &CudaProgram) -> String {
    program
        .texts()
        .map(|text| {
            let (blocks, threads) = (text.blocks, text.threads);
            let (shared, arguments) = (text.shared_bytes, &text.arguments);
            format!("// blocks {blocks:?}, threads {threads:?}, shared {shared}, {arguments:?}\n{}", text.source)
        })
        .collect::<Vec<_>>()
        .join("\n")
}

/// Whether a tool must be there: then nothing is skipped for want of it.
pub(super) fn is_required(tool: &str) -> bool {
    std::env::var("KILN_REQUIRE").is_ok_and(|tools| tools.split(',').any(|required| required == tool))
}
