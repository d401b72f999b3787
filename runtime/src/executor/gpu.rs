//! Plans on a GPU: each launch's dispatches compiled and bound, all of a run recorded as one submission.
//!
//! A plan may also have steps on the CPU, between transfers. What is recorded is then handed over before each of them, and a transfer to the
//! CPU waits for it.

use std::sync::Arc;
use std::time::Duration;

use kiln_ir::gpu::{Dispatch, GpuMemory, GpuProgram, shared_scratch};
use kiln_ir::kernel::Kernel;
use kiln_ir::plan::{Launch, Plan, PlanBuffer, Step};
use kiln_ir::{Backend, Code, CustomOps, Diagnostic, Result};
use web_time::Instant;

use super::host;
use super::layout::{Home, Program, Ready};
use crate::buffer::Storage;
use crate::cpu::{Prepared, RawBuffer};
use crate::memory::Memory;
use crate::wgpu::{Gpu, GpuStorage, Groups, Pipeline, Timer, Trust, write_words};

/// The steps of a plan with everything compiled.
pub(super) struct GpuEngine {
    gpu: Arc<Gpu>,
    steps: Vec<Action>,
    /// Whose memory and how many bytes: each slot, then each scratch buffer. Launches run one after the other and share those.
    blocks: Vec<(Backend, usize)>,
    /// Kernels of the steps on the CPU.
    kernels: Vec<Prepared>,
}

/// A step with its pipelines.
enum Action {
    /// On the GPU.
    Launch {
        dispatches: Vec<Compiled>,
        /// Buffers that are zeros when the launch begins.
        cleared: Vec<usize>,
    },
    /// From one buffer of the GPU to another.
    Copy { from: usize, to: usize, bytes: u64 },
    /// On the CPU.
    Host(host::Action),
    /// From the CPU to the GPU.
    Up { from: usize, to: usize },
    /// From the GPU to the CPU.
    Down { from: usize, to: usize },
}

/// A dispatch, ready to be recorded.
struct Compiled {
    pipeline: Arc<Pipeline>,
    workgroups: [u32; 3],
    bindings: Vec<Bound>,
    groups: Groups,
}

/// A buffer of a dispatch.
#[derive(Clone, Copy)]
struct Bound {
    place: Place,
    /// How much of it is seen.
    bytes: u64,
}

/// Where a dispatch's buffer is found.
#[derive(Clone, Copy)]
enum Place {
    /// A buffer of the plan.
    Buffer(usize),
    /// A block of the run.
    Block(usize),
}

/// A step that failed, and why.
type Broken = (usize, Diagnostic);

impl GpuEngine {
    /// Compiles the programs of a plan's launches. K0901 where one is missing or does not compile.
    pub(super) fn new(
        plan: &Plan,
        programs: &[Option<Arc<GpuProgram>>],
        customs: &CustomOps,
        gpu: &Arc<Gpu>,
    ) -> Result<GpuEngine> {
        let sizes = plan.slots.iter().copied();
        let mut blocks: Vec<(Backend, usize)> = plan.slot_backends().into_iter().zip(sizes).collect();
        let slots = blocks.len();
        let scratch = shared_scratch(programs.iter().flatten().map(|program| &*program.scratch));
        blocks.extend(scratch.into_iter().map(|bytes| (plan.backend, bytes)));
        let mut kernels = host::Kernels::default();
        let mut programs = programs.iter();
        let mut steps = Vec::with_capacity(plan.steps.len());
        for step in &plan.steps {
            steps.push(match step {
                Step::Launch(launch) => match programs.next().cloned().flatten() {
                    Some(program) => launched(plan, launch, &program, slots, gpu)?,
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
                        (false, false) => Action::Copy { from, to, bytes: words(target.num_bytes()) },
                    }
                }
            });
        }
        gpu.pipelines.save_much();
        Ok(GpuEngine { gpu: gpu.clone(), steps, blocks, kernels: kernels.prepared })
    }

    #[cfg(test)]
    pub(super) fn num_kernels(&self) -> usize {
        let mut pipelines = std::collections::HashSet::new();
        for step in &self.steps {
            if let Action::Launch { dispatches, .. } = step {
                pipelines.extend(dispatches.iter().map(|dispatch| Arc::as_ptr(&dispatch.pipeline)));
            }
        }
        pipelines.len() + self.kernels.len()
    }

    /// The buffers that a run takes: whose, and how many bytes.
    pub(super) fn blocks(&self) -> Vec<(Backend, usize)> {
        self.blocks.clone()
    }

    /// Records the steps and hands them over. What then goes wrong on the GPU is told later.
    pub(super) fn run(&self, program: &Program, ready: &mut Ready) -> std::result::Result<(), Broken> {
        let mut recorder = Recorder::new(self, program, ready);
        for (number, step) in self.steps.iter().enumerate() {
            recorder.step(step, None).map_err(|diagnostic| (number, diagnostic))?;
        }
        recorder.hand_over();
        Ok(())
    }

    /// [`GpuEngine::run`] that waits, and tells when each step was done: by the device's own timestamps where it has some and all steps are
    /// its own, else by waiting for each step.
    pub(super) fn run_timed(&self, program: &Program, ready: &mut Ready) -> std::result::Result<Vec<Duration>, Broken> {
        let own = |step: &Action| matches!(step, Action::Launch { .. } | Action::Copy { .. });
        let timer = Timer::new(&self.gpu, self.steps.len()).filter(|_| self.steps.iter().all(own));
        let mut recorder = Recorder::new(self, program, ready);
        recorder.hand_over();
        self.gpu.wait();
        let begun = Instant::now();
        let mut done = Vec::with_capacity(self.steps.len());
        for (number, step) in self.steps.iter().enumerate() {
            let timed = timer.as_ref().map(|timer| (timer, number));
            recorder.step(step, timed).map_err(|diagnostic| (number, diagnostic))?;
            if timer.is_none() {
                recorder.hand_over();
                self.gpu.wait();
                done.push(begun.elapsed());
            }
        }
        let last = self.steps.len().saturating_sub(1);
        let told = match &timer {
            Some(timer) => {
                timer.resolve(recorder.encoder());
                recorder.hand_over();
                timer.read(&self.gpu)
            }
            None => Ok(done),
        };
        told.and_then(|done| self.gpu.health.check().map(|()| done)).map_err(|diagnostic| (last, diagnostic))
    }
}

/// A run while it is recorded.
struct Recorder<'a> {
    engine: &'a GpuEngine,
    /// The plan's buffers that are on the GPU.
    buffers: Vec<Option<&'a wgpu::Buffer>>,
    /// Those that are on the CPU.
    addresses: Vec<RawBuffer>,
    blocks: Vec<Option<&'a wgpu::Buffer>>,
    name: &'a str,
    // A pass is dropped before its encoder.
    pass: Option<wgpu::ComputePass<'static>>,
    encoder: Option<wgpu::CommandEncoder>,
}

impl<'a> Recorder<'a> {
    fn new(engine: &'a GpuEngine, program: &'a Program, ready: &'a mut Ready) -> Recorder<'a> {
        for output in ready.outputs.iter_mut().flatten() {
            if let Memory::Wgpu(storage) = output {
                storage.forget_seen();
            }
        }
        let addresses = addresses(program, ready);
        let ready = &*ready;
        let plan = program.plan();
        let buffer = |(index, buffer): (usize, &PlanBuffer)| {
            let memory = match program.home(buffer, index, &ready.inputs) {
                Home::Slot(slot) => ready.slots.get(slot),
                Home::Constant(constant) => program.constant(constant),
                Home::Output(output) => ready.outputs[output].as_ref(),
                Home::Input(input) => ready.inputs[input].as_deref(),
            };
            memory.and_then(Memory::gpu).map(GpuStorage::buffer)
        };
        let mut recorder = Recorder {
            engine,
            buffers: plan.buffers.iter().enumerate().map(buffer).collect(),
            addresses,
            blocks: ready.slots.iter().map(|memory| memory.gpu().map(GpuStorage::buffer)).collect(),
            name: &plan.name,
            pass: None,
            encoder: None,
        };
        for &(input, output) in &ready.first {
            let (from, to) = (ready.inputs[input].as_ref(), ready.outputs[output].as_ref());
            if let (Some(from), Some(to)) = (from.and_then(|memory| memory.gpu()), to.and_then(Memory::gpu)) {
                let bytes = words(plan.inputs[input].1.num_bytes());
                recorder.encoder().copy_buffer_to_buffer(from.buffer(), 0, to.buffer(), 0, bytes);
            }
        }
        recorder
    }

    /// What to record outside of passes in.
    fn encoder(&mut self) -> &mut wgpu::CommandEncoder {
        self.pass = None;
        let (engine, name) = (self.engine, self.name);
        self.encoder.get_or_insert_with(|| engine.gpu.encoder(name))
    }

    /// Hands over what is recorded.
    fn hand_over(&mut self) {
        self.pass = None;
        if let Some(encoder) = self.encoder.take() {
            self.engine.gpu.queue.submit([encoder.finish()]);
        }
    }

    /// The buffer of the GPU that stands behind one of the plan's.
    fn buffer(&self, index: usize) -> &'a wgpu::Buffer {
        self.buffers[index].expect("a launch's buffers are on its own device")
    }

    fn step(&mut self, step: &Action, timed: Option<(&Timer, usize)>) -> std::result::Result<(), Diagnostic> {
        match step {
            Action::Copy { from, to, bytes } => {
                let (from, to) = (self.buffer(*from), self.buffer(*to));
                let encoder = self.encoder();
                if from != to && *bytes > 0 {
                    encoder.copy_buffer_to_buffer(from, 0, to, 0, *bytes);
                }
                if timed.is_some() {
                    drop(begin(encoder, timed));
                }
            }
            Action::Launch { dispatches, cleared } => self.launch(dispatches, cleared, timed),
            Action::Host(action) => {
                self.hand_over();
                action.run(&self.engine.kernels, &self.addresses)?;
            }
            Action::Up { from, to } => {
                // What was recorded may still read what the bytes are written over.
                self.hand_over();
                let RawBuffer { data, bytes } = self.addresses[*from];
                // SAFETY: a buffer of this run with so many bytes, on the CPU, alive until it ends; no kernel of the CPU runs meanwhile.
                let bytes = unsafe { std::slice::from_raw_parts(data, bytes) };
                write_words(&self.engine.gpu.queue, self.buffer(*to), bytes);
            }
            Action::Down { from, to } => {
                self.hand_over();
                let RawBuffer { data, bytes } = self.addresses[*to];
                // SAFETY: as above; nothing else reads or writes it while this step runs.
                let to = unsafe { std::slice::from_raw_parts_mut(data, bytes) };
                self.engine.gpu.read_now(self.buffer(*from), to)?;
            }
        }
        Ok(())
    }

    fn launch(&mut self, dispatches: &[Compiled], cleared: &[usize], timed: Option<(&Timer, usize)>) {
        if !cleared.is_empty() || timed.is_some() {
            self.pass = None;
        }
        for &buffer in cleared {
            let buffer = self.buffer(buffer);
            self.encoder().clear_buffer(buffer, 0, None);
        }
        // One pass for all launches in a row; one for each where they are timed.
        let mut pass = match self.pass.take() {
            Some(pass) => pass,
            None => begin(self.encoder(), timed),
        };
        for dispatch in dispatches {
            let bound: Vec<(&wgpu::Buffer, u64)> = dispatch
                .bindings
                .iter()
                .map(|bound| match bound.place {
                    Place::Buffer(buffer) => (self.buffer(buffer), bound.bytes),
                    Place::Block(block) => {
                        (self.blocks[block].expect("scratch memory is the device's own"), bound.bytes)
                    }
                })
                .collect();
            let group = dispatch.groups.get(&self.engine.gpu.device, &dispatch.pipeline, &bound);
            pass.set_pipeline(&dispatch.pipeline.compute);
            pass.set_bind_group(0, &group, &[]);
            let [x, y, z] = dispatch.workgroups;
            pass.dispatch_workgroups(x, y, z);
        }
        self.pass = Some(pass);
    }
}

fn begin(encoder: &mut wgpu::CommandEncoder, timed: Option<(&Timer, usize)>) -> wgpu::ComputePass<'static> {
    let timestamp_writes = timed.map(|(timer, step)| timer.writes(step));
    encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes }).forget_lifetime()
}

/// The addresses of the plan's buffers that are on the CPU; those on the GPU have none.
fn addresses(program: &Program, ready: &mut Ready) -> Vec<RawBuffer> {
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

/// Bytes rounded to whole words, as copies want them.
fn words(bytes: usize) -> u64 {
    bytes.next_multiple_of(4) as u64
}

fn launched(plan: &Plan, launch: &Launch, program: &GpuProgram, slots: usize, gpu: &Gpu) -> Result<Action> {
    let is_custom = matches!(*launch.kernel, Kernel::Custom(_));
    let trust = if is_custom { Trust::Theirs } else { Trust::Ours };
    let bytes_of = |memory: GpuMemory| match memory {
        GpuMemory::Buffer(buffer) => plan.buffers[launch.buffers[buffer.0 as usize].0 as usize].ty.num_bytes(),
        GpuMemory::Scratch(scratch) => program.scratch[scratch as usize],
    };
    let mut dispatches = Vec::with_capacity(program.dispatches.len());
    for dispatch in &program.dispatches {
        let Dispatch { workgroups, bindings, .. } = dispatch;
        if workgroups.contains(&0) {
            continue;
        }
        let pipeline = gpu.pipelines.get(&gpu.device, dispatch, trust).map_err(|diagnostic| {
            let loc = launch.locs.first().copied().unwrap_or(kiln_ir::Loc::Unknown);
            diagnostic.at(loc)
        })?;
        let bindings = bindings.iter().map(|binding| Bound {
            place: match binding.memory {
                GpuMemory::Buffer(buffer) => Place::Buffer(launch.buffers[buffer.0 as usize].0 as usize),
                GpuMemory::Scratch(scratch) => Place::Block(slots + scratch as usize),
            },
            // A text of a user's may ask how long its arrays are; ours may see whole vectors of 16 bytes.
            bytes: match trust {
                Trust::Theirs => words(bytes_of(binding.memory).max(4)),
                Trust::Ours => bytes_of(binding.memory).max(1).next_multiple_of(16) as u64,
            },
        });
        let bindings = bindings.collect();
        dispatches.push(Compiled { pipeline, workgroups: *workgroups, bindings, groups: Groups::default() });
    }
    let cleared = match &*launch.kernel {
        // What a user's text leaves unwritten must not depend on what was in this memory before.
        Kernel::Custom(kernel) => {
            kernel.results.iter().map(|result| launch.buffers[result.buffer.0 as usize].0 as usize).collect()
        }
        Kernel::Loop(_)
        | Kernel::Horizontal(_)
        | Kernel::MatMul(_)
        | Kernel::Attention(_)
        | Kernel::Scan(_)
        | Kernel::Scatter(_) => Vec::new(),
    };
    Ok(Action::Launch { dispatches, cleared })
}
