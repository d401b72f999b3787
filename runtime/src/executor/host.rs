//! Plans on the CPU: kernels prepared, slots in one block, steps one after the other on the caller's thread.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;

use kiln_ir::kernel::Kernel;
use kiln_ir::plan::{Launch, Plan, PlanBuffer, Step};
use kiln_ir::{Backend, CustomOps, Diagnostic, Result};
use smallvec::SmallVec;

use super::Moment;
use super::custom::CustomStep;
use super::layout::{Home, Program, Ready};
use super::memory::out_of_memory;
use crate::buffer::{ALIGNMENT, Storage};
use crate::cpu::{Prepared, RawBuffer};
use crate::memory::Memory;
use crate::pool::OutOfMemory;

/// The steps of a plan with their kernels found.
pub(super) struct HostEngine {
    kernels: Vec<Prepared>,
    steps: Vec<Action>,
    /// Places of slots in the block that a run takes for all of them.
    slots: Vec<usize>,
    slots_bytes: usize,
}

/// A step with its kernel found.
pub(super) enum Action {
    Launch { kernel: usize, buffers: SmallVec<[usize; 8]> },
    Custom(Box<CustomStep>),
    Copy { from: usize, to: usize },
}

impl HostEngine {
    pub(super) fn new(plan: &Plan, customs: &CustomOps) -> Result<HostEngine> {
        let mut kernels = Kernels::default();
        let steps = plan.steps.iter().map(|step| kernels.action(step, customs));
        let steps = steps.collect::<Result<_, Diagnostic>>()?;
        let (slots, slots_bytes) = place_slots(plan)?;
        Ok(HostEngine { kernels: kernels.prepared, steps, slots, slots_bytes })
    }

    /// How many distinct kernels were prepared.
    #[cfg(test)]
    pub(super) fn num_kernels(&self) -> usize {
        self.kernels.len()
    }

    /// Bytes of the memory that a run takes for slots: one block.
    pub(super) fn blocks(&self) -> Vec<(Backend, usize)> {
        vec![(Backend::Cpu, self.slots_bytes)]
    }

    /// Runs the steps. An error comes with the number of the step that failed.
    pub(super) fn run(
        &self,
        program: &Program,
        ready: &mut Ready,
        tell: &mut dyn FnMut(Moment),
    ) -> std::result::Result<(), (usize, Diagnostic)> {
        for &(input, output) in &ready.first {
            if let (Some(Memory::Host(to)), Some(from)) = (&mut ready.outputs[output], &ready.inputs[input])
                && let Some(from) = from.host()
            {
                to.bytes_mut().copy_from_slice(from.bytes());
            }
        }
        let addresses = self.addresses(program, ready);
        self.walk(&addresses, tell)
    }

    /// The address of every buffer in this run.
    fn addresses(&self, program: &Program, ready: &mut Ready) -> Vec<RawBuffer> {
        let pointer = |memory: &mut Memory| memory.host_mut().map(Storage::pointer);
        let shared = |memory: &Memory| memory.host().map(Storage::shared_pointer);
        let slots = ready.slots.first_mut().and_then(pointer);
        let outputs: Vec<Option<NonNull<u8>>> =
            ready.outputs.iter_mut().map(|output| output.as_mut().and_then(pointer)).collect();
        let address = |(index, buffer): (usize, &PlanBuffer)| {
            let data = match program.home(buffer, index, &ready.inputs) {
                Home::Slot(slot) => slots.map(|slots| slots.map_addr(|start| start.saturating_add(self.slots[slot]))),
                Home::Constant(constant) => program.constant(constant).and_then(shared),
                Home::Output(output) => outputs[output],
                Home::Input(input) => ready.inputs[input].as_ref().and_then(|memory| shared(memory)),
            };
            let data = data.expect("every buffer of a checked plan has memory").as_ptr();
            RawBuffer { data, bytes: buffer.ty.num_bytes() }
        };
        program.plan().buffers.iter().enumerate().map(address).collect()
    }

    fn walk(
        &self,
        addresses: &[RawBuffer],
        tell: &mut dyn FnMut(Moment),
    ) -> std::result::Result<(), (usize, Diagnostic)> {
        tell(Moment::Begun);
        for (index, step) in self.steps.iter().enumerate() {
            step.run(&self.kernels, addresses).map_err(|diagnostic| (index, diagnostic))?;
            tell(Moment::Done);
        }
        Ok(())
    }
}

impl Action {
    /// Runs it on the buffers of this run, by their numbers in the plan.
    pub(super) fn run(&self, kernels: &[Prepared], addresses: &[RawBuffer]) -> std::result::Result<(), Diagnostic> {
        match self {
            Action::Launch { kernel, buffers } => {
                let bound: SmallVec<[RawBuffer; 8]> = buffers.iter().map(|&buffer| addresses[buffer]).collect();
                kernels[*kernel].run(&bound);
            }
            Action::Custom(step) => step.run(addresses)?,
            Action::Copy { from, to } => copy(addresses[*from], addresses[*to]),
        }
        Ok(())
    }
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
pub(super) struct Kernels {
    known: HashMap<Arc<Kernel>, usize>,
    pub(super) prepared: Vec<Prepared>,
}

impl Kernels {
    /// A step with its kernel, prepared if it is new.
    pub(super) fn action(&mut self, step: &Step, customs: &CustomOps) -> Result<Action, Diagnostic> {
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
