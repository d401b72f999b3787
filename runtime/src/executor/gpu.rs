//! Plans on a GPU: each launch's dispatches compiled and bound, all of a run recorded as one submission.

use std::sync::Arc;
use std::time::Duration;

use kiln_ir::gpu::{Dispatch, GpuMemory, GpuProgram};
use kiln_ir::kernel::Kernel;
use kiln_ir::plan::{Launch, Plan, Step};
use kiln_ir::{Code, Diagnostic, Result};

use super::layout::{Home, Program, Ready};
use crate::memory::Memory;
use crate::wgpu::{Gpu, GpuStorage, Groups, Pipeline, Timer, Trust};

/// The steps of a plan with everything compiled.
pub(super) struct GpuEngine {
    gpu: Arc<Gpu>,
    steps: Vec<Action>,
    /// Bytes of each slot, then of each scratch buffer: launches run one after the other and share those.
    blocks: Vec<usize>,
    #[cfg(test)]
    pipelines: usize,
}

/// A step with its pipelines.
enum Action {
    Launch {
        dispatches: Vec<Compiled>,
        /// Buffers that are zeros when the launch begins.
        cleared: Vec<usize>,
    },
    Copy {
        from: usize,
        to: usize,
        bytes: u64,
    },
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

impl GpuEngine {
    /// Compiles the programs of a plan's launches. K0901 where they are not as many or do not compile.
    pub(super) fn new(plan: &Plan, programs: &[Arc<GpuProgram>], gpu: &Arc<Gpu>) -> Result<GpuEngine> {
        if plan.launches().count() != programs.len() {
            let message = format!("internal: plan `{}` has no text for each of its launches", plan.name);
            return Err(Diagnostic::new(Code::K0901, message).into());
        }
        let slots = plan.slots.len();
        let mut blocks = plan.slots.clone();
        for program in programs {
            for (index, &bytes) in program.scratch.iter().enumerate() {
                match blocks.get_mut(slots + index) {
                    Some(block) => *block = bytes.max(*block),
                    None => blocks.push(bytes),
                }
            }
        }
        let mut programs = programs.iter();
        let mut steps = Vec::with_capacity(plan.steps.len());
        for step in &plan.steps {
            steps.push(match step {
                Step::Launch(launch) => {
                    let program = programs.next().expect("as many programs as launches");
                    launched(plan, launch, program, slots, gpu)?
                }
                Step::Copy { from, to } => Action::Copy {
                    from: from.0 as usize,
                    to: to.0 as usize,
                    bytes: words(plan.buffers[to.0 as usize].ty.num_bytes()),
                },
            });
        }
        gpu.pipelines.save();
        Ok(GpuEngine {
            gpu: gpu.clone(),
            #[cfg(test)]
            pipelines: distinct(&steps),
            steps,
            blocks,
        })
    }

    #[cfg(test)]
    pub(super) fn num_kernels(&self) -> usize {
        self.pipelines
    }

    /// Bytes of each buffer that a run takes.
    pub(super) fn blocks(&self) -> Vec<usize> {
        self.blocks.clone()
    }

    /// Records the steps and hands them over. What then goes wrong is told later.
    pub(super) fn run(&self, program: &Program, ready: &mut Ready) -> std::result::Result<(), (usize, Diagnostic)> {
        self.record(program, ready, None);
        Ok(())
    }

    /// [`GpuEngine::run`] that waits, and tells when each step was done.
    pub(super) fn run_timed(
        &self,
        program: &Program,
        ready: &mut Ready,
    ) -> std::result::Result<Vec<Duration>, (usize, Diagnostic)> {
        let timer = Timer::new(&self.gpu, self.steps.len());
        let begun = std::time::Instant::now();
        self.record(program, ready, timer.as_ref());
        let done = match &timer {
            #[cfg(not(target_arch = "wasm32"))]
            Some(timer) => pollster::block_on(timer.read(&self.gpu)),
            // Without timestamps there is the time of the whole.
            _ => {
                self.gpu.wait();
                Ok(vec![begun.elapsed(); self.steps.len()])
            }
        };
        let last = self.steps.len().saturating_sub(1);
        done.and_then(|done| self.gpu.health.check().map(|()| done)).map_err(|diagnostic| (last, diagnostic))
    }

    fn record(&self, program: &Program, ready: &mut Ready, timer: Option<&Timer>) {
        for output in ready.outputs.iter_mut().flatten() {
            if let Memory::Wgpu(storage) = output {
                storage.forget_seen();
            }
        }
        let ready = &*ready;
        let buffers = places(program, ready);
        let blocks: Vec<&wgpu::Buffer> =
            ready.slots.iter().filter_map(|memory| memory.gpu().map(GpuStorage::buffer)).collect();
        let mut encoder = self.gpu.encoder(&program.plan().name);
        for &(input, output) in &ready.first {
            let (from, to) = (ready.inputs[input].as_ref(), ready.outputs[output].as_ref());
            if let (Some(from), Some(to)) = (from.and_then(|memory| memory.gpu()), to.and_then(Memory::gpu)) {
                let bytes = program.plan().inputs[input].1.num_bytes();
                encoder.copy_buffer_to_buffer(from.buffer(), 0, to.buffer(), 0, words(bytes));
            }
        }
        let mut pass = None;
        for (number, step) in self.steps.iter().enumerate() {
            match step {
                Action::Copy { from, to, bytes } => {
                    pass = None;
                    if buffers[*from] != buffers[*to] && *bytes > 0 {
                        encoder.copy_buffer_to_buffer(buffers[*from], 0, buffers[*to], 0, *bytes);
                    }
                    if let Some(timer) = timer {
                        drop(begin(&mut encoder, Some((timer, number))));
                    }
                }
                Action::Launch { dispatches, cleared } => {
                    if !cleared.is_empty() || timer.is_some() {
                        pass = None;
                    }
                    for &buffer in cleared {
                        encoder.clear_buffer(buffers[buffer], 0, None);
                    }
                    // One pass for all launches in a row; one for each where they are timed.
                    let timed = timer.map(|timer| (timer, number));
                    let pass = pass.get_or_insert_with(|| begin(&mut encoder, timed));
                    for dispatch in dispatches {
                        let bound: Vec<(&wgpu::Buffer, u64)> = dispatch
                            .bindings
                            .iter()
                            .map(|bound| match bound.place {
                                Place::Buffer(buffer) => (buffers[buffer], bound.bytes),
                                Place::Block(block) => (blocks[block], bound.bytes),
                            })
                            .collect();
                        let group = dispatch.groups.get(&self.gpu.device, &dispatch.pipeline, &bound);
                        pass.set_pipeline(&dispatch.pipeline.compute);
                        pass.set_bind_group(0, &group, &[]);
                        let [x, y, z] = dispatch.workgroups;
                        pass.dispatch_workgroups(x, y, z);
                    }
                }
            }
        }
        drop(pass);
        if let Some(timer) = timer {
            timer.resolve(&mut encoder);
        }
        self.gpu.queue.submit([encoder.finish()]);
    }
}

fn begin(encoder: &mut wgpu::CommandEncoder, timed: Option<(&Timer, usize)>) -> wgpu::ComputePass<'static> {
    let timestamp_writes = timed.map(|(timer, step)| timer.writes(step));
    encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes }).forget_lifetime()
}

/// The buffer behind each of the plan's.
fn places<'a>(program: &'a Program, ready: &'a Ready) -> Vec<&'a wgpu::Buffer> {
    let plan = program.plan();
    let place = |(index, buffer)| {
        let memory = match program.home(buffer, index, &ready.inputs) {
            Home::Slot(slot) => ready.slots.get(slot),
            Home::Constant(constant) => program.constant(constant),
            Home::Output(output) => ready.outputs[output].as_ref(),
            Home::Input(input) => ready.inputs[input].as_deref(),
        };
        memory.and_then(Memory::gpu).expect("every buffer of a checked plan has memory on its device").buffer()
    };
    plan.buffers.iter().enumerate().map(place).collect()
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

#[cfg(test)]
fn distinct(steps: &[Action]) -> usize {
    let mut pipelines = std::collections::HashSet::new();
    for step in steps {
        if let Action::Launch { dispatches, .. } = step {
            pipelines.extend(dispatches.iter().map(|dispatch| Arc::as_ptr(&dispatch.pipeline)));
        }
    }
    pipelines.len()
}
