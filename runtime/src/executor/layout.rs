//! A plan made ready: kernels prepared, constants placed, every buffer's place in memory known up to the addresses of one run.
//!
//! One run takes one block of memory for all slots and one for each result, writes the table of addresses, and walks the steps. What
//! must hold of a plan is checked once, before (K0901): then a run only follows it.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;

use kiln_ir::kernel::{Access, Kernel};
use kiln_ir::plan::{BufferId, Launch, Plan, PlanBuffer, Source, Step};
use kiln_ir::{CustomOps, Diagnostic, Result};
use smallvec::SmallVec;

use super::check::check;
use super::custom::CustomStep;
use super::memory::out_of_memory;
use super::{Argument, Moment, RunError};
use crate::buffer::{ALIGNMENT, Contents, OutOfMemory, Storage};
use crate::cpu::{Prepared, RawBuffer};
use crate::{Array, Device};

/// A plan with everything that can be decided before its first run.
pub(super) struct Program {
    plan: Plan,
    kernels: Vec<Prepared>,
    steps: Vec<Action>,
    /// Places of slots in the block that a run takes for all of them.
    slots: Vec<usize>,
    slots_bytes: usize,
    /// Memory of the plan's constants, by buffer.
    constants: HashMap<usize, Arc<Storage>>,
    outputs: Vec<OutputPlace>,
}

/// A step with its kernel found.
enum Action {
    Launch { kernel: usize, buffers: SmallVec<[usize; 8]> },
    Custom(Box<CustomStep>),
    Copy { from: usize, to: usize },
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
    pub(super) fn new(plan: Plan, customs: &CustomOps, device: &Device) -> Result<Program> {
        check(&plan)?;
        let mut kernels = Kernels::default();
        let steps = plan.steps.iter().map(|step| kernels.action(step, customs));
        let steps = steps.collect::<Result<_, Diagnostic>>()?;
        let (slots, slots_bytes) = place_slots(&plan)?;
        let constants = place_constants(&plan, device)?;
        let outputs = place_outputs(&plan);
        Ok(Program { kernels: kernels.prepared, steps, slots, slots_bytes, constants, outputs, plan })
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// How many distinct kernels were prepared.
    #[cfg(test)]
    pub(super) fn num_kernels(&self) -> usize {
        self.kernels.len()
    }

    /// Runs with checked arguments. Gives the results and the donated arguments whose memory could not be taken. `tell` hears
    /// when the steps begin and when each is done; who has no use for that gives a closure that does nothing, which costs nothing.
    pub(super) fn run(
        &self,
        arguments: Vec<Argument>,
        device: &Device,
        tell: impl FnMut(Moment),
    ) -> std::result::Result<(Vec<Array>, Vec<usize>), RunError> {
        let loans: Vec<bool> = self.outputs.iter().map(|output| is_lent(output, &arguments)).collect();
        let mut memory = match self.take_memory(&loans, device) {
            Ok(memory) => memory,
            Err(diagnostic) => return Err(RunError { diagnostics: diagnostic.into(), arguments }),
        };
        let copied = self.refused(&arguments, &loans);
        let donated: Vec<bool> = arguments.iter().map(|argument| matches!(argument, Argument::Donated(_))).collect();
        let mut inputs: Vec<Option<Arc<Storage>>> =
            arguments.into_iter().map(|argument| Some(argument.into_array().into_storage())).collect();
        self.settle_loans(&mut memory, &mut inputs, &loans);
        let addresses = self.addresses(&mut memory, &inputs);
        if let Err((step, diagnostic)) = self.walk(&addresses, tell) {
            return Err(self.broken_off(step, diagnostic, memory, inputs, &donated, device));
        }
        Ok((self.results(memory, &inputs, device), copied))
    }

    /// Asks for all memory of a run, so that nothing is missing once it has begun.
    fn take_memory(&self, loans: &[bool], device: &Device) -> Result<Memory, Diagnostic> {
        let refuse = |what: &str| {
            let what = what.to_owned();
            move |refused: OutOfMemory| out_of_memory(&self.plan, &what, refused)
        };
        let slots = device.pool().acquire(self.slots_bytes, Contents::Any).map_err(refuse("intermediate values"))?;
        let mut outputs = Vec::with_capacity(self.outputs.len());
        for (index, (output, lent)) in self.outputs.iter().zip(loans).enumerate() {
            let own = output.buffer.filter(|_| !lent).map(|buffer| {
                let bytes = self.plan.buffers[buffer].ty.num_bytes();
                let what = format!("result `{}`", self.plan.outputs[index].0);
                device.pool().acquire(bytes, Contents::Any).map_err(refuse(&what))
            });
            outputs.push(own.transpose()?);
        }
        Ok(Memory { slots, outputs })
    }

    /// Donated arguments that a result would have been written into, had they been the last handle.
    fn refused(&self, arguments: &[Argument], loans: &[bool]) -> Vec<usize> {
        let asked = self.outputs.iter().zip(loans).filter(|(_, lent)| !**lent);
        let lenders = asked.filter_map(|(output, _)| output.lender.map(|(input, _)| input));
        lenders.filter(|&input| matches!(arguments[input], Argument::Donated(_))).collect()
    }

    /// Moves lent memory to the results, and copies arguments that are updated but could not be lent.
    fn settle_loans(&self, memory: &mut Memory, inputs: &mut [Option<Arc<Storage>>], loans: &[bool]) {
        for (index, output) in self.outputs.iter().enumerate() {
            let Some((input, _)) = output.lender else { continue };
            if loans[index] {
                let lent = inputs[input].take().and_then(Arc::into_inner);
                memory.outputs[index] = Some(lent.expect("a loan is only made of the last handle"));
            } else if output.start == Start::Copy
                && let (Some(to), Some(from)) = (&mut memory.outputs[index], &inputs[input])
            {
                to.bytes_mut().copy_from_slice(from.bytes());
            }
        }
    }

    /// The address of every buffer in this run.
    fn addresses(&self, memory: &mut Memory, inputs: &[Option<Arc<Storage>>]) -> Vec<RawBuffer> {
        let slots = memory.slots.pointer();
        let outputs: Vec<Option<NonNull<u8>>> =
            memory.outputs.iter_mut().map(|output| output.as_mut().map(Storage::pointer)).collect();
        let address = |(index, buffer): (usize, &PlanBuffer)| {
            let data = match &buffer.source {
                Source::Slot(slot) => Some(slots.map_addr(|start| start.saturating_add(self.slots[*slot]))),
                Source::Constant(_) => self.constants.get(&index).map(|constant| constant.shared_pointer()),
                Source::Output(output) => outputs[*output],
                Source::Input(input) => match (&inputs[*input], buffer.donated_to) {
                    // A kernel that updates the argument itself is given the result's memory, lent or copied.
                    (_, Some(output)) if self.outputs[output].start == Start::Copy => outputs[output],
                    (Some(storage), _) => Some(storage.shared_pointer()),
                    (None, Some(output)) => outputs[output],
                    (None, None) => None,
                },
            };
            let data = data.expect("every buffer of a checked plan has memory").as_ptr();
            RawBuffer { data, bytes: buffer.ty.num_bytes() }
        };
        self.plan.buffers.iter().enumerate().map(address).collect()
    }

    /// Runs the steps. An error comes with the number of the step that failed.
    fn walk(
        &self,
        addresses: &[RawBuffer],
        mut tell: impl FnMut(Moment),
    ) -> std::result::Result<(), (usize, Diagnostic)> {
        let mut bound: SmallVec<[RawBuffer; 8]> = SmallVec::new();
        tell(Moment::Begun);
        for (index, step) in self.steps.iter().enumerate() {
            match step {
                Action::Launch { kernel, buffers } => {
                    bound.clear();
                    bound.extend(buffers.iter().map(|&buffer| addresses[buffer]));
                    self.kernels[*kernel].run(&bound);
                }
                Action::Custom(step) => step.run(addresses).map_err(|diagnostic| (index, diagnostic))?,
                Action::Copy { from, to } => copy(addresses[*from], addresses[*to]),
            }
            tell(Moment::Done);
        }
        Ok(())
    }

    /// The arguments of a run that a step broke off: those whose lent memory was written to are lost, the others as they were.
    fn broken_off(
        &self,
        step: usize,
        diagnostic: Diagnostic,
        memory: Memory,
        inputs: Vec<Option<Arc<Storage>>>,
        donated: &[bool],
        device: &Device,
    ) -> RunError {
        let mut lent: HashMap<usize, (usize, Storage)> = HashMap::new();
        for (output, (place, storage)) in self.outputs.iter().zip(memory.outputs).enumerate() {
            if let (Some((input, _)), Some(storage)) = (place.lender, storage) {
                lent.insert(input, (output, storage));
            }
        }
        let mut lost = Vec::new();
        let arguments = inputs.into_iter().zip(&self.plan.inputs).enumerate().map(|(index, (storage, (name, ty)))| {
            let array = match storage {
                Some(storage) => Array::from_shared(device, ty.clone(), storage),
                None => {
                    let (output, storage) = lent.remove(&index).expect("an argument's memory is its own or lent");
                    if self.writes(step, output) {
                        lost.push(name.to_string());
                        Array::lost(device, ty.clone(), storage)
                    } else {
                        Array::from_storage(device, ty.clone(), storage)
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

    fn results(&self, memory: Memory, inputs: &[Option<Arc<Storage>>], device: &Device) -> Vec<Array> {
        let outputs: Vec<Option<Arc<Storage>>> =
            memory.outputs.into_iter().map(|output| output.map(Arc::new)).collect();
        let result = |(BufferId(id), (_, ty)): (&BufferId, &(Arc<str>, kiln_ir::TensorType))| {
            let buffer = *id as usize;
            let storage = match &self.plan.buffers[buffer].source {
                Source::Input(input) => inputs[*input].clone(),
                Source::Output(output) => outputs[*output].clone(),
                Source::Constant(_) => self.constants.get(&buffer).cloned(),
                Source::Slot(_) => None,
            };
            Array::from_shared(device, ty.clone(), storage.expect("a checked plan's results have memory"))
        };
        self.plan.results.iter().zip(&self.plan.outputs).map(result).collect()
    }
}

/// Memory of one run.
struct Memory {
    slots: Storage,
    outputs: Vec<Option<Storage>>,
}

/// Whether a result is written into its lender's memory: the argument was donated and its handle is the last one.
fn is_lent(output: &OutputPlace, arguments: &[Argument]) -> bool {
    output.lender.is_some_and(|(input, _)| match &arguments[input] {
        Argument::Donated(array) => Arc::strong_count(array.storage()) == 1,
        Argument::Borrowed(_) => false,
    })
}

fn copy(from: RawBuffer, to: RawBuffer) {
    if from.data == to.data {
        return;
    }
    // SAFETY: both are buffers of this run with `bytes` bytes each (checked when the plan was), alive until it ends; different buffers
    // whose lifetimes meet do not overlap, and no kernel runs meanwhile.
    unsafe { std::ptr::copy_nonoverlapping(from.data, to.data, to.bytes) }
}

/// Distinct kernels, each prepared once.
#[derive(Default)]
struct Kernels {
    known: HashMap<Arc<Kernel>, usize>,
    prepared: Vec<Prepared>,
}

impl Kernels {
    fn action(&mut self, step: &Step, customs: &CustomOps) -> Result<Action, Diagnostic> {
        Ok(match step {
            Step::Copy { from, to } => Action::Copy { from: from.0 as usize, to: to.0 as usize },
            Step::Launch(launch @ Launch { kernel, buffers, .. }) => {
                if let Kernel::Custom(kernel) = &**kernel {
                    return CustomStep::new(kernel, launch, customs).map(|step| Action::Custom(Box::new(step)));
                }
                let next = self.prepared.len();
                let index = *self.known.entry(kernel.clone()).or_insert(next);
                if index == next {
                    self.prepared.push(Prepared::new(kernel));
                }
                Action::Launch { kernel: index, buffers: buffers.iter().map(|buffer| buffer.0 as usize).collect() }
            }
        })
    }
}

/// Offsets of the slots in one block, each aligned, and the block's size.
fn place_slots(plan: &Plan) -> Result<(Vec<usize>, usize)> {
    let mut offsets = Vec::with_capacity(plan.slots.len());
    let mut end = 0usize;
    for &bytes in &plan.slots {
        offsets.push(end);
        let next = bytes.checked_next_multiple_of(ALIGNMENT).and_then(|bytes| end.checked_add(bytes));
        end = next.ok_or_else(|| {
            let refused = OutOfMemory { asked: usize::MAX, available: isize::MAX as usize };
            out_of_memory(plan, "intermediate values", refused)
        })?;
    }
    Ok((offsets, end))
}

fn place_constants(plan: &Plan, device: &Device) -> Result<HashMap<usize, Arc<Storage>>> {
    let mut placed = HashMap::new();
    for (index, buffer) in plan.buffers.iter().enumerate() {
        if let Source::Constant(data) = &buffer.source {
            let acquired = device.pool().acquire(data.bytes().len(), Contents::Any);
            let mut storage = acquired.map_err(|refused| out_of_memory(plan, "a constant", refused))?;
            storage.bytes_mut().copy_from_slice(data.bytes());
            placed.insert(index, Arc::new(storage));
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
