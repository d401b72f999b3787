//! Spreading kernels over a GPU: which invocations compute what, chosen from the device's limits.
//!
//! One file a form. A schedule never changes what is computed, only in what order sums are taken; the same kernel and target always have the
//! same schedule.

mod attention;
pub mod library;
mod loops;
mod matmul;
mod scan;
mod scatter;
pub mod warps;

use kiln_ir::gpu::{GpuTarget, Schedule};
use kiln_ir::kernel::Kernel;
use kiln_ir::{Backend, Code, DType, Diagnostic, Graph};

/// Whether a device has the dtypes of a graph. K0601 for the first node of which it has not.
///
/// ```
/// use kiln_ir::gpu::GpuTarget;
/// use kiln_ir::{Backend, Code, DType, GraphBuilder, Loc, TensorType};
/// let mut b = GraphBuilder::new("f");
/// let x = b.input("x", TensorType::new(DType::F64, [3], Backend::Wgpu), Loc::Unknown)?;
/// let error = kiln_passes::gpu::check(&b.finish([("x", x)])?, &GpuTarget::WEBGPU).unwrap_err();
/// assert_eq!(error.code, Code::K0601);
/// # Ok::<(), kiln_ir::Diagnostic>(())
/// ```
pub fn check(graph: &Graph, target: &GpuTarget) -> Result<(), Diagnostic> {
    for node in &graph.nodes {
        let Some(ty) = node.types.iter().find(|ty| ty.backend != Backend::Cpu && !target.has(ty.dtype)) else {
            continue;
        };
        let had = DType::ALL.iter().filter(|&&dtype| target.has(dtype)).map(|dtype| dtype.name());
        let had: Vec<&str> = had.collect();
        return Err(Diagnostic::new(
            Code::K0601,
            format!("{} is not supported by this device of {}", ty.dtype, ty.backend),
        )
        .at(node.loc)
        .in_op(node.op.name())
        .label(format!("the result of `{}` is {ty}", node.op.name()))
        .help(format!("it has {}: cast to one of them, or compute this on another backend", had.join(", "))));
    }
    Ok(())
}

/// How a kernel is spread over a device that offers `target`.
///
/// Buffers are as large as [`Limits::gpu`](crate::Limits::gpu) allows at most: whoever makes a plan sees to that.
///
/// Errors: K0603 where a limit is exceeded that no schedule can keep.
pub fn schedule(kernel: &Kernel, target: &GpuTarget) -> Result<Schedule, Diagnostic> {
    check_bindings(kernel, target)?;
    match kernel {
        Kernel::Loop(kernel) => Ok(Schedule::Loop(loops::schedule(kernel, target))),
        Kernel::Horizontal(kernel) => Ok(Schedule::Horizontal(loops::horizontal(kernel, target))),
        Kernel::MatMul(kernel) => Ok(Schedule::MatMul(matmul::schedule(kernel, target))),
        Kernel::Attention(kernel) => attention::schedule(kernel, target).map(Schedule::Attention),
        Kernel::Scan(kernel) => Ok(Schedule::Scan(scan::schedule(kernel, target))),
        Kernel::Scatter(kernel) => scatter::schedule(kernel, target).map(Schedule::Scatter),
        Kernel::Custom(_) => Ok(Schedule::Custom),
    }
}

/// What no schedule can change: how many buffers a kernel sees.
fn check_bindings(kernel: &Kernel, target: &GpuTarget) -> Result<(), Diagnostic> {
    let seen = match kernel {
        Kernel::Attention(kernel) => attention::bindings(kernel),
        Kernel::Loop(_)
        | Kernel::Horizontal(_)
        | Kernel::MatMul(_)
        | Kernel::Scan(_)
        | Kernel::Scatter(_)
        | Kernel::Custom(_) => kernel.buffers().len(),
    };
    if seen > target.bindings as usize {
        let message = format!("a kernel sees {seen} buffers at once");
        return Err(Diagnostic::new(Code::K0603, message).label(format!("this GPU binds {} at most", target.bindings)));
    }
    Ok(())
}
