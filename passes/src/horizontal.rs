//! Kernels side by side: independent map, reduce and row kernels become one launch.
//!
//! An optimizer that updates each parameter by itself, statistics of several tensors, gradients of biases: such kernels have spaces of their
//! own and know nothing of each other. Walking the kernels in running order, each may take up an earlier one (or several that were already
//! joined), which is thereby delayed until now, if
//!
//! - nobody between them reads what it makes or writes over a donated argument that it reads, and it writes over none that the other reads;
//! - what it alone still read, and what now lives on until the later launch, does not raise the peak of memory;
//! - nothing is left between them, or it is small: a large kernel had better run while what it reads is still in the cache.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use kiln_ir::kernel::{Access, BufferIndex, HorizontalKernel, Kernel, Part};
use kiln_ir::{Backend, Graph, Op, Value};

use crate::lower::Lowered;
use crate::memory::{Placed, reads};
use crate::options::{Fusion, Options};
use crate::traffic;

/// How far back a kernel looks for others, in launches.
const WINDOW: usize = 64;
/// How many it looks at.
const OPEN: usize = 8;
/// Bytes by which the peak may rise.
const SLACK: u64 = 1 << 16;

/// Joins what may run side by side. Kernels keep their order apart from that. Besides, for each kernel, which launch it has become part of.
pub(crate) fn join(graph: &Graph, options: &Options, mut placed: Vec<Placed>) -> (Vec<Placed>, Vec<usize>) {
    if options.fusion == Fusion::Off {
        let same = (0..placed.len()).collect();
        return (placed, same);
    }
    let mut joiner = Joiner::new(graph, options, &mut placed);
    for time in 0..placed.len() {
        joiner.take(time);
    }
    let mut joined = vec![0; placed.len()];
    let mut placed: Vec<Option<Placed>> = placed.into_iter().map(Some).collect();
    let mut shared: HashMap<Arc<Kernel>, Arc<Kernel>> = HashMap::new();
    let launches = joiner.order.into_iter().filter(|members| !members.is_empty());
    let launches = launches
        .enumerate()
        .map(|(launch, members)| {
            members.iter().for_each(|&time| joined[time] = launch);
            let members = members.into_iter().filter_map(|time| placed[time].take());
            let mut launch = side_by_side(members.collect());
            let kernel = &mut launch.lowered.kernel;
            *kernel = shared.entry(kernel.clone()).or_insert_with(|| kernel.clone()).clone();
            launch
        })
        .collect();
    (launches, joined)
}

/// One launch of several kernels, or of the only one.
fn side_by_side(mut members: Vec<Placed>) -> Placed {
    if members.len() == 1 {
        return members.remove(0);
    }
    let mut values: Vec<Value> = Vec::new();
    let mut places: HashMap<Value, BufferIndex> = HashMap::new();
    let mut kernel = HorizontalKernel { buffers: Vec::new(), parts: Vec::new() };
    let mut locs = Vec::new();
    for member in members {
        let Kernel::Loop(own) = Arc::unwrap_or_clone(member.lowered.kernel) else {
            unreachable!("only loop kernels are taken up");
        };
        let buffers = member.lowered.values.into_iter().zip(&own.buffers).map(|(value, buffer)| {
            *places.entry(value).or_insert_with(|| {
                values.push(value);
                kernel.buffers.push(buffer.clone());
                BufferIndex(values.len() as u32 - 1)
            })
        });
        let buffers = buffers.collect();
        kernel.parts.push(Part { kernel: own, buffers });
        for loc in member.locs {
            if !locs.contains(&loc) {
                locs.push(loc);
            }
        }
    }
    Placed {
        lowered: Lowered { kernel: Arc::new(Kernel::Horizontal(kernel)), values },
        locs,
        target: None,
        counted: None,
    }
}

/// A launch under way that may still be delayed.
struct Batch {
    /// Where it stands in the order.
    at: usize,
    /// When its last kernel would have run.
    last: usize,
    reads: HashSet<Value>,
    writes: HashSet<Value>,
    /// Arguments that it writes over.
    over: HashSet<Value>,
    /// Most bytes that one of its kernels moves.
    bytes: u64,
    /// Bytes of what only it still reads.
    dying: u64,
}

struct Joiner<'a> {
    options: &'a Options,
    /// The argument that a value may be written over.
    donor: HashMap<Value, Value>,
    kernels: Vec<Batch>,
    is_loop: Vec<bool>,
    /// Where each kernel runs.
    backends: Vec<Option<Backend>>,
    /// Bytes between kernels that live during each kernel, and the most that may.
    live: Vec<u64>,
    most: u64,
    open: Vec<Batch>,
    /// The launches so far, each with its kernels; one that was delayed left an empty place.
    order: Vec<Vec<usize>>,
}

impl<'a> Joiner<'a> {
    /// Counts what loop kernels move, and leaves it there for the plan.
    fn new(graph: &Graph, options: &'a Options, placed: &mut [Placed]) -> Joiner<'a> {
        let donor = options.donate.iter().map(|&(input, output)| (graph.outputs[output].value, graph.inputs[input]));
        let donor: HashMap<Value, Value> = donor.collect();
        let reading: Vec<HashSet<Value>> = placed.iter().map(reads).collect();
        let mut last_read: HashMap<Value, usize> = HashMap::new();
        for (time, reading) in reading.iter().enumerate() {
            last_read.extend(reading.iter().map(|&value| (value, time)));
        }
        let outputs: HashSet<Value> = graph.outputs.iter().map(|output| output.value).collect();
        let between = |value: &Value| {
            !outputs.contains(value) && !matches!(graph.node(*value).op, Op::Input { .. } | Op::Constant { .. })
        };
        let size = |value: Value| graph.ty(value).num_bytes() as u64;
        let mut changes = vec![0i64; placed.len() + 1];
        let kernels: Vec<Batch> = placed
            .iter_mut()
            .zip(reading)
            .enumerate()
            .map(|(time, (placed, reads))| {
                let writes = written(placed);
                for value in writes.iter().filter(|value| between(value)) {
                    let last = last_read.get(value).copied().unwrap_or(time).max(time);
                    changes[time] += size(*value) as i64;
                    changes[last + 1] -= size(*value) as i64;
                }
                let dies = |value: &&Value| between(value) && last_read.get(value) == Some(&time);
                if matches!(*placed.lowered.kernel, Kernel::Loop(_)) {
                    placed.counted = Some(traffic::count(&placed.lowered.kernel));
                }
                let (traffic, _) = placed.counted.unwrap_or_default();
                Batch {
                    at: 0,
                    last: time,
                    over: writes.iter().filter_map(|value| donor.get(value)).copied().collect(),
                    bytes: traffic.read + traffic.written,
                    dying: reads.iter().filter(dies).map(|&value| size(value)).sum(),
                    reads,
                    writes,
                }
            })
            .collect();
        let running = changes.iter().scan(0, |live, change| {
            *live += change;
            Some(*live as u64)
        });
        let live: Vec<u64> = running.take(placed.len()).collect();
        let most = live.iter().copied().max().unwrap_or(0) + SLACK;
        let is_loop = placed
            .iter()
            .map(|placed| matches!(*placed.lowered.kernel, Kernel::Loop(_)) && placed.transfer(graph).is_none());
        let is_loop = is_loop.collect();
        let backend = |placed: &Placed| placed.lowered.values.last().map(|&value| graph.ty(value).backend);
        let backends = placed.iter().map(backend).collect();
        Joiner { options, donor, kernels, is_loop, backends, live, most, open: Vec::new(), order: Vec::new() }
    }

    /// Puts the next kernel in the order, together with what it takes up.
    fn take(&mut self, time: usize) {
        let kernel = &self.kernels[time];
        let over: Vec<Value> = kernel.writes.iter().filter_map(|value| self.donor.get(value)).copied().collect();
        let here = self.order.len();
        self.open.retain(|batch| {
            here - batch.at <= WINDOW
                && kernel.reads.is_disjoint(&batch.writes)
                && !over.iter().any(|argument| batch.reads.contains(argument))
        });
        if !self.is_loop[time] {
            self.order.push(vec![time]);
            return;
        }
        let found = (0..self.open.len()).rev().find(|&index| self.takes_up(&self.open[index], time));
        let mut members = Vec::new();
        let mut batch = self.kernels[time].alone();
        if let Some(index) = found {
            let earlier = self.open.remove(index);
            members = std::mem::take(&mut self.order[earlier.at]);
            self.live[between(&earlier, time)].iter_mut().for_each(|live| *live += earlier.dying);
            batch.join(earlier);
        }
        members.push(time);
        batch.at = self.order.len();
        self.order.push(members);
        if self.open.len() == OPEN {
            self.open.remove(0);
        }
        self.open.push(batch);
    }

    fn takes_up(&self, batch: &Batch, time: usize) -> bool {
        let (kernel, limits) = (&self.kernels[time], &self.options.limits);
        let adjacent = self.order[batch.at + 1..].iter().all(Vec::is_empty);
        let buffers = batch.reads.len() + batch.writes.len() + kernel.reads.len() + kernel.writes.len();
        self.backends[batch.last] == self.backends[time]
            && (adjacent || batch.bytes <= limits.horizontal_bytes)
            && kernel.reads.is_disjoint(&batch.over)
            && buffers <= limits.horizontal_buffers
            && self.live[between(batch, time)].iter().all(|&live| live + batch.dying <= self.most)
    }
}

/// The kernels for which a batch is delayed until one runs.
fn between(batch: &Batch, time: usize) -> Range<usize> {
    batch.last + 1..time + 1
}

impl Batch {
    /// The same, as the first of a batch.
    fn alone(&self) -> Batch {
        let (reads, writes, over) = (self.reads.clone(), self.writes.clone(), self.over.clone());
        Batch { reads, writes, over, ..*self }
    }

    fn join(&mut self, earlier: Batch) {
        self.reads.extend(earlier.reads);
        self.writes.extend(earlier.writes);
        self.over.extend(earlier.over);
        self.bytes = self.bytes.max(earlier.bytes);
        self.dying += earlier.dying;
    }
}

/// The values that a kernel makes.
fn written(placed: &Placed) -> HashSet<Value> {
    let buffers = placed.lowered.values.iter().zip(placed.lowered.kernel.buffers());
    buffers.filter(|(_, buffer)| buffer.access != Access::Read).map(|(&value, _)| value).collect()
}
