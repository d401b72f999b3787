//! A plan made ready: kernels prepared, constants placed, every buffer's place in memory known up to the addresses of one run.
//!
//! One run takes memory for slots and for each result, and hands all of it to the engine of its backend, which walks the steps. What must hold
//! of a plan is checked once, before (K0901): then a run only follows it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kiln_ir::kernel::Access;
use kiln_ir::plan::{BufferId, Plan, PlanBuffer, Source, Step};
use kiln_ir::{Backend, CustomOps, Diagnostic, Result};
use web_time::Instant;

use super::check::check;
#[cfg(feature = "cuda")]
use super::cuda::CudaEngine;
#[cfg(feature = "wgpu")]
use super::gpu::GpuEngine;
use super::host::HostEngine;
use super::memory::out_of_memory;
use super::{Argument, Moment, Programs, RunError};
use crate::buffer::Contents;
use crate::memory::Memory;
use crate::pool::OutOfMemory;
use crate::{Array, Device};

/// A plan with everything that can be decided before its first run.
pub(super) struct Program {
    plan: Plan,
    engine: Engine,
    /// Where a GPU's plan keeps what is on the CPU.
    beside: Device,
    /// Memory of the plan's constants, by buffer.
    constants: HashMap<usize, Arc<Memory>>,
    outputs: Vec<OutputPlace>,
}

/// Results, and the donated arguments whose memory could not be taken.
pub(super) type Finished = (Vec<Array>, Vec<usize>);

/// What runs the steps.
enum Engine {
    Host(HostEngine),
    #[cfg(feature = "wgpu")]
    Wgpu(Box<GpuEngine>),
    #[cfg(feature = "cuda")]
    Cuda(Box<CudaEngine>),
}

impl Engine {
    /// The one of a device's kind. A launch without a text of that kind is K0901.
    #[cfg_attr(not(any(feature = "wgpu", feature = "cuda")), expect(unused_variables, reason = "only GPUs run texts"))]
    fn new(plan: &Plan, programs: Programs, customs: &CustomOps, device: &Device) -> Result<Engine> {
        #[cfg(feature = "wgpu")]
        if let Some(gpu) = device.gpu() {
            let programs = match programs {
                Programs::Wgsl(programs) => programs,
                Programs::None | Programs::Cuda(_) => &[],
            };
            return Ok(Engine::Wgpu(Box::new(GpuEngine::new(plan, programs, customs, gpu)?)));
        }
        #[cfg(feature = "cuda")]
        if let Some(cuda) = device.cuda_gpu() {
            let programs = match programs {
                Programs::Cuda(programs) => programs,
                Programs::None | Programs::Wgsl(_) => &[],
            };
            return Ok(Engine::Cuda(Box::new(CudaEngine::new(plan, programs, customs, cuda)?)));
        }
        Ok(Engine::Host(HostEngine::new(plan, customs)?))
    }
}

/// Where the memory of a result may come from.
#[derive(Default)]
struct OutputPlace {
    /// The buffer that only this result has; `None` where the result is another buffer's value.
    buffer: Option<usize>,
    /// The argument that may lend its memory: its index and its buffer.
    lender: Option<(usize, usize)>,
    /// What the buffer must hold before the first step where the lender's memory cannot be taken.
    start: Start,
}

/// What a result's own memory must hold at first.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Start {
    /// Anything: it is stored to before it is loaded from.
    #[default]
    Any,
    /// A copy of the argument: the first kernel updates it in place.
    Copy,
}

impl Program {
    /// Of a plan, with the texts of its launches.
    pub(super) fn new(plan: Plan, programs: Programs, customs: &CustomOps, device: &Device) -> Result<Program> {
        check(&plan)?;
        let engine = Engine::new(&plan, programs, customs, device)?;
        let beside = Device::cpu();
        let constants = place_constants(&plan, device, &beside)?;
        let outputs = place_outputs(&plan);
        Ok(Program { engine, beside, constants, outputs, plan })
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// How many distinct kernels were prepared.
    #[cfg(test)]
    pub(super) fn num_kernels(&self) -> usize {
        match &self.engine {
            Engine::Host(engine) => engine.num_kernels(),
            #[cfg(feature = "wgpu")]
            Engine::Wgpu(engine) => engine.num_kernels(),
            #[cfg(feature = "cuda")]
            Engine::Cuda(engine) => engine.num_kernels(),
        }
    }

    /// Runs that were handed over as one graph, and graphs that were made.
    pub(super) fn replayed(&self) -> (u64, u64) {
        match &self.engine {
            Engine::Host(_) => (0, 0),
            #[cfg(feature = "wgpu")]
            Engine::Wgpu(_) => (0, 0),
            #[cfg(feature = "cuda")]
            Engine::Cuda(engine) => engine.replayed(),
        }
    }

    /// Runs with checked arguments. Gives the results and the donated arguments whose memory could not be taken. `tell` hears
    /// when the steps begin and when each is done; who has no use for that gives a closure that does nothing, which costs nothing.
    pub(super) fn run(
        &self,
        arguments: Vec<Argument>,
        device: &Device,
        tell: &mut dyn FnMut(Moment),
    ) -> std::result::Result<Finished, RunError> {
        let mut ready = self.make_ready(arguments, device)?;
        device.begin(&self.plan.name);
        let walked = match &self.engine {
            Engine::Host(engine) => engine.run(self, &mut ready, tell),
            #[cfg(feature = "wgpu")]
            Engine::Wgpu(engine) => {
                tell(Moment::Begun);
                let walked = engine.run(self, &mut ready);
                // The device works on while the caller goes on: to him the steps are done.
                self.plan.steps.iter().for_each(|_| tell(Moment::Done));
                walked
            }
            #[cfg(feature = "cuda")]
            Engine::Cuda(engine) => {
                tell(Moment::Begun);
                let walked = engine.run(self, &mut ready);
                self.plan.steps.iter().for_each(|_| tell(Moment::Done));
                walked
            }
        };
        if let Err((step, diagnostic)) = walked {
            return Err(self.broken_off(step, diagnostic, ready, device));
        }
        Ok(self.results(ready, device))
    }

    /// [`Program::run`] that also gives when each step was done, from the start of the first: on a GPU the run is waited for.
    pub(super) fn run_timed(
        &self,
        arguments: Vec<Argument>,
        device: &Device,
    ) -> std::result::Result<(Finished, Vec<Duration>), RunError> {
        #[cfg(feature = "wgpu")]
        if let Engine::Wgpu(engine) = &self.engine {
            let mut ready = self.make_ready(arguments, device)?;
            device.begin(&self.plan.name);
            return match engine.run_timed(self, &mut ready) {
                Ok(done) => Ok((self.results(ready, device), done)),
                Err((step, diagnostic)) => Err(self.broken_off(step, diagnostic, ready, device)),
            };
        }
        #[cfg(feature = "cuda")]
        if let Engine::Cuda(engine) = &self.engine {
            let mut ready = self.make_ready(arguments, device)?;
            device.begin(&self.plan.name);
            return match engine.run_timed(self, &mut ready) {
                Ok(done) => Ok((self.results(ready, device), done)),
                Err((step, diagnostic)) => Err(self.broken_off(step, diagnostic, ready, device)),
            };
        }
        let mut done = Vec::with_capacity(self.plan.steps.len());
        let mut begun = None;
        // Arguments are bound before the first step begins; that is no kernel's time.
        let finished = self.run(arguments, device, &mut |moment| match moment {
            Moment::Begun => begun = Some(Instant::now()),
            Moment::Done => done.push(begun.map(|begun: Instant| begun.elapsed()).unwrap_or_default()),
        })?;
        Ok((finished, done))
    }

    /// The device of a backend in this program.
    fn device_of<'a>(&'a self, backend: Backend, device: &'a Device) -> &'a Device {
        of_backend(backend, device, &self.beside)
    }

    /// Takes all memory of a run, so that nothing is missing once it has begun, and settles who lends what.
    fn make_ready(&self, arguments: Vec<Argument>, device: &Device) -> std::result::Result<Ready, RunError> {
        let loans: Vec<bool> = self.outputs.iter().map(|output| is_lent(output, &arguments)).collect();
        let memory = device.healthy().and_then(|()| self.take_memory(&loans, device));
        let (slots, mut outputs) = match memory {
            Ok(memory) => memory,
            Err(diagnostic) => return Err(RunError { diagnostics: diagnostic.into(), arguments }),
        };
        let copied = self.refused(&arguments, &loans);
        let donated: Vec<bool> = arguments.iter().map(|argument| matches!(argument, Argument::Donated(_))).collect();
        let mut inputs: Vec<Option<Arc<Memory>>> =
            arguments.into_iter().map(|argument| Some(argument.into_array().into_storage())).collect();
        let first = self.settle_loans(&mut outputs, &mut inputs, &loans);
        Ok(Ready { slots, outputs, inputs, first, donated, copied })
    }

    /// Memory for slots and for results that have memory of their own.
    fn take_memory(
        &self,
        loans: &[bool],
        device: &Device,
    ) -> std::result::Result<(Vec<Memory>, Vec<Option<Memory>>), Diagnostic> {
        let acquire = |backend: Backend, bytes: usize, what: &str| {
            let acquired = self.device_of(backend, device).acquire(bytes, Contents::Any);
            acquired.map_err(|refused| out_of_memory(&self.plan, what, refused))
        };
        let blocks = match &self.engine {
            Engine::Host(engine) => engine.blocks(),
            #[cfg(feature = "wgpu")]
            Engine::Wgpu(engine) => engine.blocks(),
            #[cfg(feature = "cuda")]
            Engine::Cuda(engine) => engine.blocks(),
        };
        let slots = blocks.iter().map(|&(backend, bytes)| acquire(backend, bytes, "intermediate values"));
        let slots = slots.collect::<Result<_, _>>()?;
        let mut outputs = Vec::with_capacity(self.outputs.len());
        for (index, (output, lent)) in self.outputs.iter().zip(loans).enumerate() {
            let own = output.buffer.filter(|_| !lent).map(|buffer| {
                let ty = &self.plan.buffers[buffer].ty;
                acquire(ty.backend, ty.num_bytes(), &format!("result `{}`", self.plan.outputs[index].0))
            });
            outputs.push(own.transpose()?);
        }
        Ok((slots, outputs))
    }

    /// Donated arguments that a result would have been written into, had they been the last handle.
    fn refused(&self, arguments: &[Argument], loans: &[bool]) -> Vec<usize> {
        let asked = self.outputs.iter().zip(loans).filter(|(_, lent)| !**lent);
        let lenders = asked.filter_map(|(output, _)| output.lender.map(|(input, _)| input));
        lenders.filter(|&input| matches!(arguments[input], Argument::Donated(_))).collect()
    }

    /// Moves lent memory to the results. Gives the results that must start as copies of arguments which could not be lent.
    fn settle_loans(
        &self,
        outputs: &mut [Option<Memory>],
        inputs: &mut [Option<Arc<Memory>>],
        loans: &[bool],
    ) -> Vec<(usize, usize)> {
        let mut first = Vec::new();
        for (index, output) in self.outputs.iter().enumerate() {
            let Some((input, _)) = output.lender else { continue };
            if loans[index] {
                let lent = inputs[input].take().and_then(Arc::into_inner);
                outputs[index] = Some(lent.expect("a loan is only made of the last handle"));
            } else if output.start == Start::Copy {
                first.push((input, index));
            }
        }
        first
    }

    /// Where a buffer of the plan lies in a run with these inputs.
    pub(super) fn home(&self, buffer: &PlanBuffer, index: usize, inputs: &[Option<Arc<Memory>>]) -> Home {
        match &buffer.source {
            Source::Slot(slot) => Home::Slot(*slot),
            Source::Constant(_) => Home::Constant(index),
            Source::Output(output) => Home::Output(*output),
            Source::Input(input) => match (&inputs[*input], buffer.donated_to) {
                // A kernel that updates the argument itself is given the result's memory, lent or copied.
                (_, Some(output)) if self.outputs[output].start == Start::Copy => Home::Output(output),
                (None, Some(output)) => Home::Output(output),
                (Some(_), _) | (None, None) => Home::Input(*input),
            },
        }
    }

    /// The memory of a constant.
    pub(super) fn constant(&self, buffer: usize) -> Option<&Memory> {
        self.constants.get(&buffer).map(|memory| &**memory)
    }

    /// The arguments of a run that a step broke off: those whose lent memory was written to are lost, the others as they were.
    fn broken_off(&self, step: usize, diagnostic: Diagnostic, ready: Ready, device: &Device) -> RunError {
        let Ready { outputs, inputs, donated, .. } = ready;
        let mut lent: HashMap<usize, (usize, Memory)> = HashMap::new();
        for (output, (place, storage)) in self.outputs.iter().zip(outputs).enumerate() {
            if let (Some((input, _)), Some(storage)) = (place.lender, storage) {
                lent.insert(input, (output, storage));
            }
        }
        let mut lost = Vec::new();
        let arguments = inputs.into_iter().zip(&self.plan.inputs).enumerate().map(|(index, (storage, (name, ty)))| {
            let array = match storage {
                Some(storage) => Array::from_shared(self.device_of(ty.backend, device), ty.clone(), storage),
                None => {
                    let (output, storage) = lent.remove(&index).expect("an argument's memory is its own or lent");
                    if self.writes(step, output) {
                        lost.push(name.to_string());
                        Array::lost(self.device_of(ty.backend, device), ty.clone(), storage)
                    } else {
                        Array::from_storage(self.device_of(ty.backend, device), ty.clone(), storage)
                    }
                }
            };
            if donated[index] { Argument::Donated(array) } else { Argument::Borrowed(array) }
        });
        let arguments = arguments.collect();
        let diagnostic = match lost.as_slice() {
            [] => diagnostic,
            names => diagnostic
                .help(format!("written over in place before it failed, and so lost: {}", names.join(", ")))
                .help("`keep_previous()` keeps the state of a step that fails"),
        };
        RunError { diagnostics: diagnostic.into(), arguments }
    }

    /// Whether a step up to this one writes into the memory of a result.
    fn writes(&self, last: usize, output: usize) -> bool {
        let belongs = |id: &BufferId| match self.plan.buffers[id.0 as usize] {
            PlanBuffer { source: Source::Output(own), .. } => own == output,
            PlanBuffer { source: Source::Input(_), donated_to, .. } => donated_to == Some(output),
            PlanBuffer { source: Source::Constant(_) | Source::Slot(_), .. } => false,
        };
        self.plan.steps[..=last].iter().any(|step| match step {
            Step::Copy { to, .. } => belongs(to),
            Step::Launch(launch) => {
                let bound = launch.buffers.iter().zip(launch.kernel.buffers());
                bound.into_iter().any(|(id, buffer)| buffer.access != Access::Read && belongs(id))
            }
        })
    }

    /// The results, and the donated arguments whose memory could not be taken.
    fn results(&self, ready: Ready, device: &Device) -> Finished {
        let Ready { slots, outputs, inputs, copied, .. } = ready;
        // Given back in the order in which the next run will ask for them.
        slots.into_iter().rev().for_each(drop);
        let outputs: Vec<Option<Arc<Memory>>> = outputs.into_iter().map(|output| output.map(Arc::new)).collect();
        let result = |(BufferId(id), (_, ty)): (&BufferId, &(Arc<str>, kiln_ir::TensorType))| {
            let buffer = *id as usize;
            let storage = match &self.plan.buffers[buffer].source {
                Source::Input(input) => inputs[*input].clone(),
                Source::Output(output) => outputs[*output].clone(),
                Source::Constant(_) => self.constants.get(&buffer).cloned(),
                Source::Slot(_) => None,
            };
            let device = self.device_of(ty.backend, device);
            Array::from_shared(device, ty.clone(), storage.expect("a checked plan's results have memory"))
        };
        (self.plan.results.iter().zip(&self.plan.outputs).map(result).collect(), copied)
    }
}

/// Where a buffer of a plan lies in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// A slot.
    Slot(usize),
    /// A constant, by its buffer.
    Constant(usize),
    /// A result's memory.
    Output(usize),
    /// An argument's.
    Input(usize),
}

/// Memory of one run.
pub(super) struct Ready {
    /// What the engine asked for.
    pub(super) slots: Vec<Memory>,
    /// Of results; `None` where a result is another buffer's value.
    pub(super) outputs: Vec<Option<Memory>>,
    /// Of arguments; `None` where it was lent to a result.
    pub(super) inputs: Vec<Option<Arc<Memory>>>,
    /// Arguments and the results that start as copies of them.
    pub(super) first: Vec<(usize, usize)>,
    donated: Vec<bool>,
    copied: Vec<usize>,
}

/// Whether a result is written into its lender's memory: the argument was donated and its handle is the last one.
fn is_lent(output: &OutputPlace, arguments: &[Argument]) -> bool {
    output.lender.is_some_and(|(input, _)| match &arguments[input] {
        Argument::Donated(array) => Arc::strong_count(array.storage()) == 1,
        Argument::Borrowed(_) => false,
    })
}

/// The device of a backend: a plan's own, or the CPU beside it.
fn of_backend<'a>(backend: Backend, device: &'a Device, beside: &'a Device) -> &'a Device {
    if backend == device.backend() { device } else { beside }
}

fn place_constants(plan: &Plan, device: &Device, beside: &Device) -> Result<HashMap<usize, Arc<Memory>>> {
    let mut placed = HashMap::new();
    for (index, buffer) in plan.buffers.iter().enumerate() {
        if let Source::Constant(data) = &buffer.source {
            let bytes = data.bytes();
            let acquired = of_backend(buffer.ty.backend, device, beside).acquire(bytes.len(), Contents::Any);
            let mut memory = acquired.map_err(|refused: OutOfMemory| out_of_memory(plan, "a constant", refused))?;
            memory.fill(bytes.len(), |to| to.copy_from_slice(bytes));
            placed.insert(index, Arc::new(memory));
        }
    }
    Ok(placed)
}

fn place_outputs(plan: &Plan) -> Vec<OutputPlace> {
    let mut places: Vec<OutputPlace> = plan.outputs.iter().map(|_| OutputPlace::default()).collect();
    for (index, buffer) in plan.buffers.iter().enumerate() {
        match buffer.source {
            Source::Output(output) => places[output].buffer = Some(index),
            Source::Input(input) => {
                if let Some(output) = buffer.donated_to {
                    places[output].lender = Some((input, index));
                }
            }
            Source::Constant(_) | Source::Slot(_) => {}
        }
    }
    for place in &mut places {
        place.start = start(plan, place);
    }
    places
}

/// Whether the first step that touches a result (or its lender, to write) updates what is there.
fn start(plan: &Plan, place: &OutputPlace) -> Start {
    let Some((_, lender)) = place.lender else { return Start::Any };
    for step in &plan.steps {
        match step {
            Step::Copy { to, .. } if Some(to.0 as usize) == place.buffer => return Start::Any,
            Step::Copy { .. } => {}
            Step::Launch(launch) => {
                for (BufferId(id), buffer) in launch.buffers.iter().zip(launch.kernel.buffers()) {
                    let id = *id as usize;
                    match buffer.access {
                        Access::ReadWrite if id == lender || Some(id) == place.buffer => return Start::Copy,
                        Access::Write if Some(id) == place.buffer => return Start::Any,
                        Access::Write if id == lender => return Start::Copy,
                        Access::Read | Access::Write | Access::ReadWrite => {}
                    }
                }
            }
        }
    }
    Start::Any
}
