//! From a graph to an executable on a GPU: planned within the device's limits, each kernel spread over it and printed.

use std::collections::HashMap;
use std::sync::Arc;

use kiln_codegen::{check_wgsl, wgsl};
use kiln_ir::gpu::{Binding, Dispatch, GpuMemory, GpuProgram, GpuTarget, shared_scratch};
use kiln_ir::kernel::{CustomKernel, CustomTensor, Kernel};
use kiln_ir::plan::{Launch, Plan};
use kiln_ir::{Backend, CustomOps, Diagnostic, Graph, Loc, TensorType};
use kiln_passes::{Limits, Options, gpu};
use kiln_runtime::{Device, Executable, Programs};

use crate::Result;
use crate::dump;
use crate::reproduce::reproducible;

/// Compiles a graph for a GPU.
pub(crate) fn executable(graph: &Graph, options: &Options, device: &Device) -> Result<Executable> {
    let Some(target) = device.target() else { return Err(kiln_runtime::unsupported(device.backend()).into()) };
    let fitted = fitted(options, target);
    let ours = |diagnostic| reproducible(graph, &fitted, diagnostic);
    gpu::check(graph, target)?;
    let mut plan = dump::plan(graph, &fitted).map_err(ours)?;
    // What is all on the CPU, or nowhere, runs beside this device as well.
    plan.backend = device.backend();
    let programs = programs(&plan, &options.customs, target).map_err(ours)?;
    plan.scratch = shared_scratch(programs.iter().flatten().map(|program| &*program.scratch));
    dump::texts(&programs);
    Ok(Executable::with_programs(plan, Programs::Wgsl(&programs), &options.customs, device)
        .map_err(|errors| errors.map(ours))?)
}

/// A plan that was made within a device's limits, ready to run.
pub(crate) fn of_plan(mut plan: Plan, customs: &CustomOps, device: &Device) -> Result<Executable> {
    let Some(target) = device.target() else { return Err(kiln_runtime::unsupported(device.backend()).into()) };
    let programs = programs(&plan, customs, target)?;
    plan.scratch = shared_scratch(programs.iter().flatten().map(|program| &*program.scratch));
    Ok(Executable::with_programs(plan, Programs::Wgsl(&programs), customs, device)?)
}

/// Options that keep a device's limits.
pub(crate) fn fitted(options: &Options, target: &GpuTarget) -> Options {
    Options { limits: options.limits.clone().within(&Limits::gpu(target)), ..options.clone() }
}

/// The texts of a plan's launches, in order; none for those on the CPU. Equal kernels have one text.
///
/// Errors: K0209, K0211 for a custom op's text, K0601 and K0603 for what the device does not offer.
pub(crate) fn programs(
    plan: &Plan,
    customs: &CustomOps,
    target: &GpuTarget,
) -> std::result::Result<Vec<Option<Arc<GpuProgram>>>, Diagnostic> {
    let mut known: HashMap<&Kernel, Arc<GpuProgram>> = HashMap::new();
    let mut programs = Vec::new();
    for launch in plan.launches() {
        if plan.backend_of(launch) == Backend::Cpu {
            programs.push(None);
            continue;
        }
        let kernel: &Kernel = &launch.kernel;
        let program = match known.get(kernel) {
            Some(program) => program.clone(),
            None => {
                let program =
                    Arc::new(program(launch, customs, target).map_err(|diagnostic| told(launch, diagnostic))?);
                known.insert(kernel, program.clone());
                program
            }
        };
        programs.push(Some(program));
    }
    Ok(programs)
}

fn told(launch: &Launch, diagnostic: Diagnostic) -> Diagnostic {
    match launch.locs.first() {
        Some(&loc) if diagnostic.loc == Loc::Unknown => diagnostic.at(loc),
        Some(_) | None => diagnostic,
    }
}

fn program(launch: &Launch, customs: &CustomOps, target: &GpuTarget) -> std::result::Result<GpuProgram, Diagnostic> {
    match &*launch.kernel {
        Kernel::Custom(kernel) => custom(kernel, customs),
        kernel @ (Kernel::Loop(_)
        | Kernel::Horizontal(_)
        | Kernel::MatMul(_)
        | Kernel::Attention(_)
        | Kernel::Scan(_)
        | Kernel::Scatter(_)) => wgsl::program(kernel, &gpu::schedule(kernel, target)?, target),
    }
}

/// A custom op's own text, checked against the op's types: operands are bound first, then results.
fn custom(kernel: &CustomKernel, customs: &CustomOps) -> std::result::Result<GpuProgram, Diagnostic> {
    let types = |tensors: &[CustomTensor]| -> Vec<TensorType> {
        tensors.iter().map(|tensor| TensorType::new(tensor.dtype, tensor.shape.clone(), Backend::Wgpu)).collect()
    };
    let (operands, results) = (types(&kernel.operands), types(&kernel.results));
    let behaviour = customs.find(&kernel.name, &kernel.attributes);
    let Some(text) = behaviour.and_then(|behaviour| behaviour.wgsl.as_ref()) else {
        let (name, attributes) = (kernel.name.clone(), kernel.attributes.clone());
        let custom = kiln_ir::Custom { name, attributes, results: [].into_iter().collect(), body: None };
        return Err(kiln_ir::custom::unsupported(&custom, Backend::Wgpu, customs));
    };
    let text = text(&operands, &results);
    check_wgsl(&kernel.name, &text, &operands, &results)?;
    let bound = |tensor: &CustomTensor, writable| Binding { memory: GpuMemory::Buffer(tensor.buffer), writable };
    let operands = kernel.operands.iter().map(|tensor| bound(tensor, false));
    let bindings = operands.chain(kernel.results.iter().map(|tensor| bound(tensor, true))).collect();
    let dispatch =
        Dispatch { source: text.source.into(), entry: text.entry.into(), workgroups: text.workgroups, bindings };
    Ok(GpuProgram { dispatches: vec![dispatch], scratch: Vec::new() })
}
