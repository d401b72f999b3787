//! Plans on a GPU of NVIDIA's: each launch's texts compiled and its products described once, a run handed over to the device's stream, launch by
//! launch or as one graph (`replay`).
//!
//! Slots and scratch buffers lie in one arena, at offsets known beforehand. A plan may also have steps on the CPU, between transfers: a transfer
//! to the CPU waits for what was handed over before it.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::CudaFunction;
use kiln_ir::cuda::{CudaArgument, CudaProgram, CudaStep, CudaText, Product, ProductEpilogue};
use kiln_ir::gpu::GpuMemory;
use kiln_ir::kernel::Access;
use kiln_ir::plan::{Launch, Plan, PlanBuffer, Step};
use kiln_ir::{Backend, Code, CustomOps, Diagnostic, Result};

use super::host;
use super::layout::{Home, Program, Ready};
use super::replay::Replays;
use crate::buffer::Storage;
use crate::cpu::{Prepared, RawBuffer};
use crate::cuda::{Cuda, CudaStorage, Marks, PreparedProduct, ProductPointers, Ranges};
use crate::memory::Memory;

/// The steps of a plan with everything compiled.
pub(super) struct CudaEngine {
    cuda: Arc<Cuda>,
    steps: Vec<Action>,
    memory: Blocks,
    /// Kernels of the steps on the CPU.
    kernels: Vec<Prepared>,
    /// What profilers call the steps.
    ranges: Ranges,
    /// Graphs of the plan, where all of it runs on the GPU.
    replays: Option<Replays>,
}

/// Where slots and scratch buffers lie.
struct Blocks {
    /// The buffers that a run takes: whose, and how many bytes. The arena is the first.
    taken: Vec<(Backend, usize)>,
    /// Of each slot, then of each scratch buffer: in which of those, and how many bytes from where it begins.
    places: Vec<(usize, u64)>,
    /// The place of each launch's first scratch buffer, behind the slots.
    scratch: Vec<usize>,
}

/// Launches whose scratch buffers are not larger have their own, so that they may run side by side; as long as those of all together are not larger
/// than the other number. The others share theirs.
const OWN_SCRATCH: usize = 8 << 20;
const ALL_OWN_SCRATCH: usize = 64 << 20;

/// Where parts of a block may begin: as aligned as memory of the device's own.
const ALIGNMENT: usize = 256;

/// Pieces of one block of memory, one behind the other.
#[derive(Default)]
pub(super) struct Layout {
    pub(super) bytes: usize,
}

impl Layout {
    /// Where the next piece begins, in bytes from where the block does.
    pub(super) fn add(&mut self, bytes: usize) -> u64 {
        let at = self.bytes as u64;
        self.bytes += bytes.next_multiple_of(ALIGNMENT);
        at
    }
}

impl Blocks {
    fn new(plan: &Plan, programs: &[Option<Arc<CudaProgram>>]) -> Blocks {
        let mut blocks: Vec<(Backend, usize)> =
            plan.slot_backends().into_iter().zip(plan.slots.iter().copied()).collect();
        let slots = blocks.len();
        let shared = programs.iter().flatten().map(|program| program.scratch.len()).max().unwrap_or(0);
        blocks.resize(slots + shared, (plan.backend, 0));
        let mut scratch = Vec::with_capacity(programs.len());
        let mut own = 0;
        for program in programs {
            let sizes = program.as_ref().map_or(&[][..], |program| &program.scratch);
            let bytes: usize = sizes.iter().sum();
            if bytes <= OWN_SCRATCH && own + bytes <= ALL_OWN_SCRATCH {
                own += bytes;
                scratch.push(blocks.len() - slots);
                blocks.extend(sizes.iter().map(|&bytes| (plan.backend, bytes)));
                continue;
            }
            scratch.push(0);
            for (block, &bytes) in blocks[slots..].iter_mut().zip(sizes) {
                block.1 = bytes.max(block.1);
            }
        }
        let mut arena = Layout::default();
        let mut taken = vec![(plan.backend, 0)];
        let mut places = Vec::with_capacity(blocks.len());
        for (backend, bytes) in blocks {
            if backend == plan.backend {
                places.push((0, arena.add(bytes)));
            } else {
                places.push((taken.len(), 0));
                taken.push((backend, bytes));
            }
        }
        taken[0].1 = arena.bytes;
        Blocks { taken, places, scratch }
    }
}

/// A step with its kernels.
enum Action {
    /// On the GPU.
    Launch(Vec<Work>),
    /// On the CPU.
    Host(host::Action),
    /// From the CPU to the GPU.
    Up { from: usize, to: usize },
    /// From the GPU to the CPU.
    Down { from: usize, to: usize },
}

/// What is handed over to the GPU. Memory is named by its place: a buffer of the plan, or behind those a slot or scratch buffer.
pub(super) enum Work {
    /// `written` are those of its arguments that it may write to.
    Text {
        text: CudaText,
        function: CudaFunction,
        arguments: Vec<Option<usize>>,
        written: Vec<usize>,
    },
    Product {
        product: PreparedProduct,
        lhs: usize,
        rhs: usize,
        result: usize,
        bias: Option<usize>,
    },
    Copy {
        from: usize,
        to: usize,
        bytes: usize,
    },
}

impl Work {
    /// The places that it reads or writes.
    pub(super) fn places(&self) -> Vec<usize> {
        match self {
            Work::Text { arguments, .. } => arguments.iter().flatten().copied().collect(),
            Work::Product { lhs, rhs, result, bias, .. } => [*lhs, *rhs, *result].into_iter().chain(*bias).collect(),
            Work::Copy { from, to, .. } => vec![*from, *to],
        }
    }

    /// Bytes that a library uses beside the operands.
    pub(super) fn workspace_bytes(&self) -> usize {
        match self {
            Work::Product { product, .. } => product.workspace_bytes(),
            Work::Text { .. } | Work::Copy { .. } => 0,
        }
    }

    /// What a kernel is given, where memory is at these addresses.
    pub(super) fn pointers(arguments: &[Option<usize>], addresses: &[u64]) -> Vec<u64> {
        arguments.iter().map(|place| place.map_or(0, |place| addresses[place])).collect()
    }

    /// What a product is given; `at` tells where memory is.
    pub(super) fn operands(
        [lhs, rhs, result]: [usize; 3],
        bias: Option<usize>,
        at: impl Fn(usize) -> u64,
    ) -> ProductPointers {
        ProductPointers { lhs: at(lhs), rhs: at(rhs), result: at(result), bias: bias.map(&at), workspace: None }
    }
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
        let texts: Vec<&CudaText> = programs.iter().flatten().flat_map(|program| program.texts()).collect();
        let mut functions = cuda.functions(&texts)?.into_iter();
        let mut kernels = host::Kernels::default();
        let memory = Blocks::new(plan, programs);
        let mut programs = programs.iter().zip(&memory.scratch);
        let mut steps = Vec::with_capacity(plan.steps.len());
        for step in &plan.steps {
            steps.push(match step {
                Step::Launch(launch) => match programs.next() {
                    Some((Some(program), scratch)) => {
                        let scratch = plan.buffers.len() + plan.slots.len() + scratch;
                        launched(launch, program, scratch, &mut functions, cuda)?
                    }
                    Some((None, _)) | None if plan.backend_of(launch) == Backend::Cpu => {
                        Action::Host(kernels.action(step, customs)?)
                    }
                    Some((None, _)) | None => {
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
                        (false, false) => Action::Launch(vec![Work::Copy { from, to, bytes: target.num_bytes() }]),
                    }
                }
            });
        }
        let ranges = Ranges::of(plan);
        let on_gpu = steps.iter().all(|step| matches!(step, Action::Launch(_)));
        let replays = if on_gpu { Replays::new(plan, &works(&steps), memory.places.len()) } else { None };
        Ok(CudaEngine { cuda: cuda.clone(), steps, memory, kernels: kernels.prepared, ranges, replays })
    }

    /// Runs that were handed over as one graph, and graphs that were made.
    pub(super) fn replayed(&self) -> (u64, u64) {
        self.replays.as_ref().map(Replays::counts).unwrap_or_default()
    }

    #[cfg(test)]
    pub(super) fn num_kernels(&self) -> usize {
        self.steps.len() + self.kernels.len()
    }

    /// The buffers that a run takes: whose, and how many bytes.
    pub(super) fn blocks(&self) -> Vec<(Backend, usize)> {
        self.memory.taken.clone()
    }

    /// Hands the steps over. What then goes wrong on the GPU is told later.
    pub(super) fn run(&self, program: &Program, ready: &mut Ready) -> std::result::Result<(), Broken> {
        let run = Run::new(self, program, ready);
        if let Some(replays) = &self.replays
            && replays.run(&self.cuda, &run.addresses, || works(&self.steps))
        {
            return Ok(());
        }
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

/// All that is handed over to the GPU, in order.
fn works(steps: &[Action]) -> Vec<&Work> {
    let works = steps.iter().flat_map(|step| match step {
        Action::Launch(works) => &**works,
        Action::Host(_) | Action::Up { .. } | Action::Down { .. } => &[],
    });
    works.collect()
}

/// The memory of one run.
struct Run<'a> {
    engine: &'a CudaEngine,
    /// Of each place on the GPU; 0 for those that are on the CPU.
    addresses: Vec<u64>,
    /// Of buffers that are on the CPU.
    host: Vec<RawBuffer>,
}

impl<'a> Run<'a> {
    fn new(engine: &'a CudaEngine, program: &'a Program, ready: &mut Ready) -> Run<'a> {
        for output in ready.outputs.iter_mut().flatten() {
            if let Memory::Cuda(storage) = output {
                storage.forget_seen();
            }
        }
        let host = host_addresses(program, ready, &engine.memory.places);
        let ready = &*ready;
        let plan = program.plan();
        let pointer = |memory: &Memory| memory.cuda().map_or(0, CudaStorage::pointer);
        let taken: Vec<u64> = ready.slots.iter().map(pointer).collect();
        let blocks = engine.memory.places.iter().map(|&(block, offset)| match taken[block] {
            0 => 0,
            begin => begin + offset,
        });
        let blocks: Vec<u64> = blocks.collect();
        let buffer = |(index, buffer): (usize, &PlanBuffer)| {
            let memory = match program.home(buffer, index, &ready.inputs) {
                Home::Slot(slot) => return blocks[slot],
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
        let mut addresses: Vec<u64> = plan.buffers.iter().enumerate().map(buffer).collect();
        addresses.extend(&blocks);
        Run { engine, addresses, host }
    }

    fn step(&self, step: &Action) -> std::result::Result<(), Diagnostic> {
        let cuda = &self.engine.cuda;
        match step {
            Action::Launch(works) => works.iter().for_each(|work| self.hand_over(work)),
            Action::Host(action) => action.run(&self.engine.kernels, &self.host)?,
            Action::Up { from, to } => {
                let RawBuffer { data, bytes } = self.host[*from];
                // SAFETY: a buffer of this run with so many bytes, on the CPU, alive until it ends; no kernel of the CPU runs meanwhile.
                let bytes = unsafe { std::slice::from_raw_parts(data, bytes) };
                cuda.upload(self.addresses[*to], bytes);
            }
            Action::Down { from, to } => {
                let RawBuffer { data, bytes } = self.host[*to];
                // SAFETY: as above; nothing else reads or writes it while this step runs.
                let to = unsafe { std::slice::from_raw_parts_mut(data, bytes) };
                cuda.download(self.addresses[*from], to)?;
            }
        }
        Ok(())
    }

    fn hand_over(&self, work: &Work) {
        let cuda = &self.engine.cuda;
        match work {
            Work::Text { text, function, arguments, .. } => {
                let pointers = Work::pointers(arguments, &self.addresses);
                cuda.told("launching a kernel", cuda.launch(function, text, &pointers));
            }
            Work::Product { product, lhs, rhs, result, bias } => {
                let pointers = Work::operands([*lhs, *rhs, *result], *bias, |place| self.addresses[place]);
                if let Err(error) = product.run(cuda, cuda.stream().cu_stream(), pointers) {
                    cuda.health.fail(format!("launching a product: {error}"));
                }
            }
            Work::Copy { from, to, bytes } => cuda.copy(self.addresses[*from], self.addresses[*to], *bytes),
        }
    }
}

fn launched(
    launch: &Launch,
    program: &CudaProgram,
    scratch: usize,
    functions: &mut impl Iterator<Item = CudaFunction>,
    cuda: &Cuda,
) -> Result<Action, Diagnostic> {
    let place = |memory: GpuMemory| match memory {
        GpuMemory::Buffer(buffer) => launch.buffers[buffer.0 as usize].0 as usize,
        GpuMemory::Scratch(index) => scratch + index as usize,
    };
    let accesses: Vec<Access> = launch.kernel.buffers().iter().map(|buffer| buffer.access).collect();
    let work = |step: &CudaStep| match step {
        CudaStep::Text(text) => {
            let memory = text.arguments.iter().map(|argument| match argument {
                CudaArgument::Memory(memory) => Some(*memory),
                CudaArgument::Unused => None,
            });
            let written = memory.clone().flatten().filter(|memory| match memory {
                GpuMemory::Buffer(buffer) => accesses[buffer.0 as usize] != Access::Read,
                GpuMemory::Scratch(_) => true,
            });
            Ok(Work::Text {
                text: text.clone(),
                function: functions.next().expect("a function was asked for each text"),
                written: written.map(place).collect(),
                arguments: memory.map(|memory| memory.map(place)).collect(),
            })
        }
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
fn host_addresses(program: &Program, ready: &mut Ready, places: &[(usize, u64)]) -> Vec<RawBuffer> {
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
            Home::Slot(slot) => slots[places[slot].0],
            Home::Constant(constant) => program.constant(constant).and_then(shared),
            Home::Output(output) => outputs[output],
            Home::Input(input) => ready.inputs[input].as_ref().and_then(|memory| shared(memory)),
        };
        let bytes = if data.is_some() { buffer.ty.num_bytes() } else { 0 };
        RawBuffer { data: data.unwrap_or(std::ptr::NonNull::dangling()).as_ptr(), bytes }
    };
    plan.buffers.iter().enumerate().map(address).collect()
}
