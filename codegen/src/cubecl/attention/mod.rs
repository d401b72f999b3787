//! Attention on units that multiply fragments of matrices: CUDA C++ of our own around blocks that CubeCL prints.
//!
//! Each `.cu` file here is an entry point over names that are defined before it: extents and tiles, what a lane copies into shared memory
//! (`operand.rs`), and the kernel's blocks as functions (`function.rs`). Scores stay in registers, where a lane holds pairs of neighbouring
//! columns; `warp.cu` has what is an instruction of the device each, `scores.cu` what is done to scores.

mod backward;
mod forward;
mod function;
mod marks;
mod operand;
mod text;
mod wide;

use kiln_ir::Diagnostic;
use kiln_ir::cuda::CudaProgram;
use kiln_ir::gpu::WarpAttention;
use kiln_ir::kernel::{AttentionKernel, AttentionPass};

/// The texts of an attention kernel.
pub(super) fn program(
    kernel: &AttentionKernel,
    schedule: &WarpAttention,
    entry: &str,
) -> Result<CudaProgram, Diagnostic> {
    match &kernel.pass {
        AttentionPass::Forward(result) => forward::program(kernel, schedule, result, entry),
        AttentionPass::Backward(backward) => backward::program(kernel, schedule, backward, entry),
    }
}
