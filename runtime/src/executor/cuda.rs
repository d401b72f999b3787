//! Plans on a GPU of NVIDIA's: each launch's texts compiled and its products described once, a run handed over to the device's stream.
//!
//! A plan may also have steps on the CPU, between transfers: a transfer to the CPU waits for what was handed over before it.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::CudaFunction;
use kiln_ir::cuda::{CudaArgument, CudaProgram, CudaStep, CudaText, Product, ProductEpilogue};
use kiln_ir::gpu::GpuMemory;
use kiln_ir::plan::{Launch, Plan, PlanBuffer, Step};
use kiln_ir::{Backend, Code, CustomOps, Diagnostic, Result};

use super::host;
use super::layout::{Home, Program, Ready};
use crate::buffer::Storage;
use crate::cpu::{Prepared, RawBuffer};
use crate::cuda::{Cuda, CudaStorage, Marks, PreparedProduct, ProductPointers, Ranges};
use crate::memory::Memory;

/// The steps of a plan with everything compiled.
pub(super) struct CudaEngine {
    cuda: Arc<Cuda>,
    steps: Vec<Action>,
    /// Whose memory and how many bytes: each slot, then each scratch buffer. Launches run one after the other and share those.
    blocks: Vec<(Backend, usize)>,
    /// Kernels of the steps on the CPU.
    kernels: Vec<Prepared>,
    /// What profilers call the steps.
    ranges: Ranges,
}

/// A step with its kernels.
enum Action {
    /// On the GPU.
    Launch(Vec<Work>),
    /// From one buffer of the GPU to another.
    Copy { from: usize, to: usize, bytes: usize },
    /// On the CPU.
    Host(host::Action),
    /// From the CPU to the GPU.
    Up { from: usize, to: usize },
    /// From the GPU to the CPU.
    Down { from: usize, to: usize },
}

/// What a launch hands over.
enum Work {
    Text { text: CudaText, function: CudaFunction, arguments: Vec<Option<Place>> },
    Product { product: PreparedProduct, lhs: Place, rhs: Place, result: Place, bias: Option<Place> },
}

/// Where a buffer of a launch is found.
#[derive(Clone, Copy)]
enum Place {
    /// A buffer of the plan.
    Buffer(usize),
    /// A block of the run.
    Block(usize),
}

/// A step that failed, and why.
type Broken = (usize, Diagnostic);

impl CudaEngine {
    /// Compiles the programs of a plan's launches. K0708 without a library, K0901 where a program is missing or does not compile.
    pub(super) fn new(
        plan: &Plan,
        programs: &[Option<Arc<CudaProgram>>],
        customs: &CustomOps,
        cuda: &Arc<Cuda>,
    ) -> Result<CudaEngine> {
        let mut blocks: Vec<(Backend, usize)> =
            plan.slot_backends().into_iter().zip(plan.slots.iter().copied()).collect();
        let slots = blocks.len();
        for program in programs.iter().flatten() {
            for (index, &bytes) in program.scratch.iter().enumerate() {
                match blocks.get_mut(slots + index) {
                    Some((_, block)) => *block = bytes.max(*block),
                    None => blocks.push((plan.backend, bytes)),
                }
            }
        }
        let texts: Vec<&CudaText> = programs.iter().flatten().flat_map(|program| program.texts()).collect();
        let mut functions = cuda.functions(&texts)?.into_iter();
        let mut kernels = host::Kernels::default();
        let mut programs = programs.iter();
        let mut steps = Vec::with_capacity(plan.steps.len());
        for step in &plan.steps {
            steps.push(match step {
                Step::Launch(launch) => match programs.next().and_then(Option::as_ref) {
                    Some(program) => launched(launch, program, slots, &mut functions, cuda)?,
                    None if plan.backend_of(launch) == Backend::Cpu => Action::Host(kernels.action(step, customs)?),
                    None => {
                        let message = format!("internal: plan `{}` has no text for a launch", plan.name);
                        return Err(Diagnostic::new(Code::K0901, message).into());
                    }
                },
                Step::Copy { from, to } => {
                    let (source, target) = (&plan.buffers[from.0 as usize].ty, &plan.buffers[to.0 as usize].ty);
                    let (from, to) = (from.0 as usize, to.0 as usize);
                    match (source.backend == Backend::Cpu, target.backend == Backend::Cpu) {
                        (true, true) => Action::Host(kernels.action(step, customs)?),
                        (true, false) => Action::Up { from, to },
                        (false, true) => Action::Down { from, to },
                        (false, false) => Action::Copy { from, to, bytes: target.num_bytes() },
                    }
                }
            });
        }
        let ranges = Ranges::of(plan);
        Ok(CudaEngine { cuda: cuda.clone(), steps, blocks, kernels: kernels.prepared, ranges })
    }

    #[cfg(test)]
    pub(super) fn num_kernels(&self) -> usize {
        self.steps.len() + self.kernels.len()
    }

    /// The buffers that a run takes: whose, and how many bytes.
    pub(super) fn blocks(&self) -> Vec<(Backend, usize)> {
        self.blocks.clone()
    }

    /// Hands the steps over. What then goes wrong on the GPU is told later.
    pub(super) fn run(&self, program: &Program, ready: &mut Ready) -> std::result::Result<(), Broken> {
        let run = Run::new(self, program, ready);
        for (number, step) in self.steps.iter().enumerate() {
            let _range = self.ranges.enter(number);
            run.step(step).map_err(|diagnostic| (number, diagnostic))?;
        }
        Ok(())
    }

    /// [`CudaEngine::run`] that tells when each step was done, by the device's own clock.
    pub(super) fn run_timed(&self, program: &Program, ready: &mut Ready) -> std::result::Result<Vec<Duration>, Broken> {
        let run = Run::new(self, program, ready);
        let mut marks = Marks::new(&self.cuda);
        for (number, step) in self.steps.iter().enumerate() {
            run.step(step).map_err(|diagnostic| (number, diagnostic))?;
            marks.add();
        }
        let last = self.steps.len().saturating_sub(1);
        marks.passed().map_err(|diagnostic| (last, diagnostic))
    }
}

/// The memory of one run.
struct Run<'a> {
    engine: &'a CudaEngine,
    /// Where the plan's buffers are on the GPU; 0 for those that are on the CPU.
    buffers: Vec<u64>,
    /// Those that are on the CPU.
    addresses: Vec<RawBuffer>,
    blocks: Vec<u64>,
}

impl<'a> Run<'a> {
    fn new(engine: &'a CudaEngine, program: &'a Program, ready: &mut Ready) -> Run<'a> {
        for output in ready.outputs.iter_mut().flatten() {
            if let Memory::Cuda(storage) = output {
                storage.forget_seen();
            }
        }
        let addresses = host_addresses(program, ready);
        let ready = &*ready;
        let plan = program.plan();
        let pointer = |memory: &Memory| memory.cuda().map_or(0, CudaStorage::pointer);
        let buffer = |(index, buffer): (usize, &PlanBuffer)| {
            let memory = match program.home(buffer, index, &ready.inputs) {
                Home::Slot(slot) => ready.slots.get(slot),
                Home::Constant(constant) => program.constant(constant),
                Home::Output(output) => ready.outputs[output].as_ref(),
                Home::Input(input) => ready.inputs[input].as_deref(),
            };
            memory.map_or(0, pointer)
        };
        for &(input, output) in &ready.first {
            let (from, to) = (ready.inputs[input].as_ref(), ready.outputs[output].as_ref());
            if let (Some(from), Some(to)) = (from.and_then(|memory| memory.cuda()), to.and_then(Memory::cuda)) {
                engine.cuda.copy(from.pointer(), to.pointer(), plan.inputs[input].1.num_bytes());
            }
        }
        Run {
            engine,
            buffers: plan.buffers.iter().enumerate().map(buffer).collect(),
            addresses,
            blocks: ready.slots.iter().map(pointer).collect(),
        }
    }

    fn at(&self, place: Place) -> u64 {
        match place {
            Place::Buffer(buffer) => self.buffers[buffer],
            Place::Block(block) => self.blocks[block],
        }
    }

    fn step(&self, step: &Action) -> std::result::Result<(), Diagnostic> {
        let cuda = &self.engine.cuda;
        match step {
            Action::Launch(works) => works.iter().for_each(|work| self.hand_over(work)),
            Action::Copy { from, to, bytes } => cuda.copy(self.buffers[*from], self.buffers[*to], *bytes),
            Action::Host(action) => action.run(&self.engine.kernels, &self.addresses)?,
            Action::Up { from, to } => {
                let RawBuffer { data, bytes } = self.addresses[*from];
                // SAFETY: a buffer of this run with so many bytes, on the CPU, alive until it ends; no kernel of the CPU runs meanwhile.
                let bytes = unsafe { std::slice::from_raw_parts(data, bytes) };
                cuda.upload(self.buffers[*to], bytes);
            }
            Action::Down { from, to } => {
                let RawBuffer { data, bytes } = self.addresses[*to];
                // SAFETY: as above; nothing else reads or writes it while this step runs.
                let to = unsafe { std::slice::from_raw_parts_mut(data, bytes) };
                cuda.download(self.buffers[*from], to)?;
            }
        }
        Ok(())
    }

    fn hand_over(&self, work: &Work) {
        let cuda = &self.engine.cuda;
        match work {
            Work::Text { text, function, arguments } => {
                let pointers: Vec<u64> =
                    arguments.iter().map(|place| place.map_or(0, |place| self.at(place))).collect();
                cuda.told("launching a kernel", cuda.launch(function, text, &pointers));
            }
            Work::Product { product, lhs, rhs, result, bias } => {
                let pointers = ProductPointers {
                    lhs: self.at(*lhs),
                    rhs: self.at(*rhs),
                    result: self.at(*result),
                    bias: bias.map(|bias| self.at(bias)),
                };
                if let Err(error) = product.run(cuda, pointers) {
                    cuda.health.fail(format!("launching a product: {error}"));
                }
            }
        }
    }
}

fn launched(
    launch: &Launch,
    program: &CudaProgram,
    slots: usize,
    functions: &mut impl Iterator<Item = CudaFunction>,
    cuda: &Cuda,
) -> Result<Action, Diagnostic> {
    let place = |memory: GpuMemory| match memory {
        GpuMemory::Buffer(buffer) => Place::Buffer(launch.buffers[buffer.0 as usize].0 as usize),
        GpuMemory::Scratch(scratch) => Place::Block(slots + scratch as usize),
    };
    let work = |step: &CudaStep| match step {
        CudaStep::Text(text) => Ok(Work::Text {
            text: text.clone(),
            function: functions.next().expect("a function was asked for each text"),
            arguments: text
                .arguments
                .iter()
                .map(|argument| match argument {
                    CudaArgument::Memory(memory) => Some(place(*memory)),
                    CudaArgument::Unused => None,
                })
                .collect(),
        }),
        CudaStep::Product(product) => {
            let Product { lhs, rhs, result, epilogue, .. } = product;
            let bias = match epilogue {
                ProductEpilogue::Bias { memory, .. } => Some(place(*memory)),
                ProductEpilogue::None | ProductEpilogue::Activation(_) => None,
            };
            let (lhs, rhs, result) = (place(lhs.memory), place(rhs.memory), place(result.memory));
            Ok(Work::Product { product: PreparedProduct::new(product, cuda)?, lhs, rhs, result, bias })
        }
    };
    program.steps.iter().map(work).collect::<Result<_, Diagnostic>>().map(Action::Launch)
}

/// The addresses of the plan's buffers that are on the CPU; those on the GPU have none.
fn host_addresses(program: &Program, ready: &mut Ready) -> Vec<RawBuffer> {
    let plan = program.plan();
    if plan.buffers.iter().all(|buffer| buffer.ty.backend != Backend::Cpu) {
        return Vec::new();
    }
    let pointer = |memory: &mut Memory| memory.host_mut().map(Storage::pointer);
    let shared = |memory: &Memory| memory.host().map(Storage::shared_pointer);
    let slots: Vec<_> = ready.slots.iter_mut().map(pointer).collect();
    let outputs: Vec<_> = ready.outputs.iter_mut().map(|output| output.as_mut().and_then(pointer)).collect();
    let address = |(index, buffer): (usize, &PlanBuffer)| {
        let data = match program.home(buffer, index, &ready.inputs) {
            Home::Slot(slot) => slots[slot],
            Home::Constant(constant) => program.constant(constant).and_then(shared),
            Home::Output(output) => outputs[output],
            Home::Input(input) => ready.inputs[input].as_ref().and_then(|memory| shared(memory)),
        };
        let bytes = if data.is_some() { buffer.ty.num_bytes() } else { 0 };
        RawBuffer { data: data.unwrap_or(std::ptr::NonNull::dangling()).as_ptr(), bytes }
    };
    plan.buffers.iter().enumerate().map(address).collect()
}
