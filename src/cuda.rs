//! From a graph to an executable on a GPU of NVIDIA's: planned within the device's limits, each kernel spread over it and printed as CUDA C++, or
//! handed to cuBLASLt.

use std::collections::HashMap;
use std::sync::Arc;

use kiln_codegen::cubecl;
use kiln_ir::cuda::{CudaArgument, CudaProgram, CudaStep, CudaText};
use kiln_ir::gpu::{GpuMemory, GpuTarget, Schedule};
use kiln_ir::kernel::{CustomKernel, CustomTensor, Kernel};
use kiln_ir::plan::{Launch, Plan};
use kiln_ir::{Backend, CustomOps, Diagnostic, Graph, Loc, TensorType};
use kiln_passes::gpu::library::{self, Piece, Pieces};
use kiln_passes::{AttentionKernels, Limits, Options, gpu};
use kiln_runtime::{Device, Executable, Programs};

use crate::Result;
use crate::dump;
use crate::reproduce::reproducible;

/// Compiles a graph for a GPU.
pub(crate) fn executable(graph: &Graph, options: &Options, device: &Device) -> Result<Executable> {
    let Some(target) = device.target() else { return Err(kiln_runtime::unsupported(device.backend()).into()) };
    let options = fitted(options, target);
    let ours = |diagnostic| reproducible(graph, &options, diagnostic);
    gpu::check(graph, target)?;
    let mut plan = dump::plan(graph, &options).map_err(ours)?;
    // What is all on the CPU, or nowhere, runs beside this device as well.
    plan.backend = device.backend();
    let programs = programs(&plan, &options.customs, target).map_err(ours)?;
    dump::cuda_texts(&programs);
    let programs = Programs::Cuda(&programs);
    Ok(Executable::with_programs(plan, programs, &options.customs, device).map_err(|errors| errors.map(ours))?)
}

/// Options that keep a device's limits. Attention that warps do not make is made of its parts.
fn fitted(options: &Options, target: &GpuTarget) -> Options {
    let limits = Limits { attention: AttentionKernels::Warps, ..Limits::gpu(target) };
    Options { limits: options.limits.clone().within(&limits), ..options.clone() }
}

/// The texts of a plan's launches, in order; none for those on the CPU. Equal kernels have one text.
///
/// Errors: K0209, K0211 for a custom op's text, K0601 and K0603 for what the device does not offer.
fn programs(
    plan: &Plan,
    customs: &CustomOps,
    target: &GpuTarget,
) -> std::result::Result<Vec<Option<Arc<CudaProgram>>>, Diagnostic> {
    let mut known: HashMap<&Kernel, Arc<CudaProgram>> = HashMap::new();
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

fn program(launch: &Launch, customs: &CustomOps, target: &GpuTarget) -> std::result::Result<CudaProgram, Diagnostic> {
    match &*launch.kernel {
        Kernel::Custom(kernel) => custom(kernel, customs),
        whole @ Kernel::MatMul(kernel) => match library::pieces(kernel) {
            Some(pieces) => assembled(pieces, target),
            None => text(whole, target),
        },
        whole @ Kernel::Attention(kernel) => {
            cubecl::program(whole, &Schedule::WarpAttention(gpu::warps::schedule(kernel, target)?), target)
        }
        kernel @ (Kernel::Loop(_) | Kernel::Horizontal(_) | Kernel::Scan(_) | Kernel::Scatter(_)) => {
            text(kernel, target)
        }
    }
}

fn text(kernel: &Kernel, target: &GpuTarget) -> std::result::Result<CudaProgram, Diagnostic> {
    cubecl::program(kernel, &gpu::schedule(kernel, target)?, target)
}

/// The pieces of a product as one program: the memory between them comes first, then what each piece needs for itself.
fn assembled(pieces: Pieces, target: &GpuTarget) -> std::result::Result<CudaProgram, Diagnostic> {
    let mut whole = CudaProgram { steps: Vec::new(), scratch: pieces.scratch };
    for piece in pieces.pieces {
        match piece {
            Piece::Product(product) => whole.steps.push(CudaStep::Product(product)),
            Piece::Map { kernel, memory } => {
                let program = text(&Kernel::Loop(kernel), target)?;
                let own = whole.scratch.len() as u32;
                let place = |part| match part {
                    GpuMemory::Buffer(buffer) => memory[buffer.0 as usize],
                    GpuMemory::Scratch(scratch) => GpuMemory::Scratch(own + scratch),
                };
                whole.steps.extend(program.steps.into_iter().map(|step| placed(step, &place)));
                whole.scratch.extend(program.scratch);
            }
        }
    }
    Ok(whole)
}

/// A text of a part with the buffers of the whole.
fn placed(step: CudaStep, place: &impl Fn(GpuMemory) -> GpuMemory) -> CudaStep {
    match step {
        CudaStep::Text(text) => {
            let arguments = text.arguments.iter().map(|argument| match argument {
                CudaArgument::Memory(memory) => CudaArgument::Memory(place(*memory)),
                CudaArgument::Unused => CudaArgument::Unused,
            });
            CudaStep::Text(CudaText { arguments: arguments.collect(), ..text })
        }
        product @ CudaStep::Product(_) => product,
    }
}

/// A custom op's own text: operands are its first parameters, then results.
fn custom(kernel: &CustomKernel, customs: &CustomOps) -> std::result::Result<CudaProgram, Diagnostic> {
    let types = |tensors: &[CustomTensor]| -> Vec<TensorType> {
        tensors.iter().map(|tensor| TensorType::new(tensor.dtype, tensor.shape.clone(), Backend::Cuda)).collect()
    };
    let behaviour = customs.find(&kernel.name, &kernel.attributes);
    let Some(text) = behaviour.and_then(|behaviour| behaviour.cuda.as_ref()) else {
        let (name, attributes) = (kernel.name.clone(), kernel.attributes.clone());
        let custom = kiln_ir::Custom { name, attributes, results: [].into_iter().collect(), body: None };
        return Err(kiln_ir::custom::unsupported(&custom, Backend::Cuda, customs));
    };
    let text = text(&types(&kernel.operands), &types(&kernel.results));
    let tensors = kernel.operands.iter().chain(&kernel.results);
    let step = CudaText {
        source: text.source.into(),
        entry: text.entry.into(),
        blocks: text.grid,
        threads: text.block,
        shared_bytes: 0,
        arguments: tensors.map(|tensor| CudaArgument::Memory(GpuMemory::Buffer(tensor.buffer))).collect(),
    };
    Ok(CudaProgram { steps: vec![CudaStep::Text(step)], scratch: Vec::new() })
}
