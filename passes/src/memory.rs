//! Memory: every value between kernels gets a place before anything runs.
//!
//! - a value lives from the launch that makes it to the last one that reads it; values whose lives do not meet may share a slot;
//! - results of the graph have memory of their own, which the caller owns afterwards;
//! - arguments are never written, except donated ones: there the result is written over the argument, if every other kernel that reads
//!   the argument has run, and the kernel that writes reads it at most at the very element it then writes;
//! - in the same way a result may take the slot of a value that dies in its kernel. Then both are one `ReadWrite` buffer of the kernel;
//! - memory of each backend is its own; a transfer copies from one to another;
//! - a scatter's result starts as a copy of its target, or takes over the target's place where nothing else reads that.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kiln_ir::kernel::{Access, AttentionRole, Block, Buffer, BufferIndex, Kernel, LoopKernel, Operation, Stage};
use kiln_ir::plan::{BufferId, Launch, Plan, PlanBuffer, Source, Step, Traffic};
use kiln_ir::{Backend, Graph, Loc, Op, TensorType, Value};

use crate::lower::Lowered;
use crate::options::{Options, Reuse};
use crate::trace::{self, Bound};
use crate::traffic;

/// Alignment and granularity of slots, in bytes: one cache line.
const SLOT_ALIGNMENT: usize = 64;

/// A kernel in its place, with the user's lines.
pub(crate) struct Placed {
    pub(crate) lowered: Lowered,
    pub(crate) locs: Vec<Loc>,
    /// For a scatter: its result and the target that the result starts from.
    pub(crate) target: Option<(Value, Value)>,
    /// Bytes and flops of the kernel, where they have been counted.
    pub(crate) counted: Option<(Traffic, u64)>,
}

impl Placed {
    /// Where it only moves a value to another backend: that value, and what it becomes there.
    pub(crate) fn transfer(&self, graph: &Graph) -> Option<(Value, Value)> {
        let to = *self.lowered.values.last()?;
        let node = graph.node(to);
        matches!(node.op, Op::Transfer(_)).then(|| (node.operands[0], to))
    }
}

/// The plan, and for each launch the values behind its buffers.
pub(crate) fn plan(graph: &Graph, options: &Options, placed: Vec<Placed>) -> (Plan, Vec<Vec<Bound>>) {
    let mut planner = Planner::new(graph, options, &placed);
    let (mut steps, mut bound) = (Vec::new(), Vec::new());
    for (time, placed) in placed.into_iter().enumerate() {
        match placed.transfer(graph) {
            Some((from, to)) => planner.transfer(time, from, to, &mut steps),
            None => bound.push(planner.step(time, placed, &mut steps)),
        }
    }
    (planner.finish(steps), bound)
}

struct Planner<'a> {
    graph: &'a Graph,
    options: &'a Options,
    buffers: Vec<PlanBuffer>,
    buffer_of: HashMap<Value, BufferId>,
    /// For each value, the last launch that reads it.
    last_read: HashMap<Value, usize>,
    /// How many launches read it.
    readers: HashMap<Value, usize>,
    output_of: HashMap<Value, usize>,
    slots: Vec<usize>,
    /// Whose memory each slot is.
    backends: Vec<Backend>,
    free: Vec<usize>,
    /// Values whose place is that of another value (a scatter's target made where its result will be).
    alias: HashMap<Value, Value>,
    /// Of the launch at hand: operands and the results that are written over them.
    merged: Vec<(Value, Value)>,
}

impl<'a> Planner<'a> {
    fn new(graph: &'a Graph, options: &'a Options, placed: &[Placed]) -> Planner<'a> {
        let mut planner = Planner {
            graph,
            options,
            buffers: Vec::new(),
            buffer_of: HashMap::new(),
            last_read: HashMap::new(),
            readers: HashMap::new(),
            output_of: HashMap::new(),
            slots: Vec::new(),
            backends: Vec::new(),
            free: Vec::new(),
            alias: HashMap::new(),
            merged: Vec::new(),
        };
        for (position, &input) in graph.inputs.iter().enumerate() {
            planner.add(input, Source::Input(position));
        }
        for (position, output) in graph.outputs.iter().enumerate() {
            planner.output_of.entry(output.value).or_insert(position);
        }
        for (time, placed) in placed.iter().enumerate() {
            for value in reads(placed) {
                planner.last_read.insert(value, time);
                *planner.readers.entry(value).or_default() += 1;
            }
        }
        for placed in placed {
            if let Some((result, target)) = placed.target
                && planner.takes_over(result, target, placed)
            {
                planner.alias.insert(target, result);
            }
        }
        planner
    }

    fn add(&mut self, value: Value, source: Source) -> BufferId {
        let id = BufferId(self.buffers.len() as u32);
        let (ty, loc) = (self.graph.ty(value).clone(), self.graph.node(value).loc);
        self.buffers.push(PlanBuffer { source, ty, donated_to: None, loc });
        self.buffer_of.insert(value, id);
        id
    }

    /// Whether a scatter's target can be made where the result will be: only the scatter reads it, and only as its target.
    fn takes_over(&self, result: Value, target: Value, placed: &Placed) -> bool {
        let leaf = matches!(self.graph.node(target).op, Op::Input { .. } | Op::Constant { .. });
        let inside = placed.lowered.values.iter().any(|&value| value == target && value != result);
        self.options.reuse == Reuse::On
            && !leaf
            && !inside
            && !self.output_of.contains_key(&target)
            && self.readers.get(&target) == Some(&1)
    }

    fn step(&mut self, time: usize, placed: Placed, steps: &mut Vec<Step>) -> Vec<Bound> {
        let Placed { lowered, locs, target, counted } = placed;
        let Lowered { mut kernel, mut values } = lowered;
        for &value in &values {
            self.present(value);
        }
        if let Some((result, target)) = target {
            self.present(target);
            self.scatter_target(time, result, target, &values, steps);
        }
        let written: Vec<Value> = values
            .iter()
            .zip(kernel.buffers())
            .filter(|(_, buffer)| buffer.access != Access::Read)
            .map(|(&value, _)| value)
            .collect();
        self.merged.clear();
        for &value in &written {
            if !self.buffer_of.contains_key(&self.home(value)) {
                self.place(time, value, &mut kernel, &mut values);
            }
        }
        let bound = trace::bound(&kernel, &values, &self.merged, target);
        let buffers = values.iter().map(|&value| self.buffer_of[&self.home(value)]).collect();
        // Written over or not, a loop kernel reads and writes the same elements.
        let (bytes, flops) = counted.unwrap_or_else(|| traffic::count(&kernel));
        steps.push(Step::Launch(Launch { kernel, buffers, locs, bytes, flops }));
        self.release(time, &values, target.map(|(_, target)| target));
        bound
    }

    /// Moves a value to another backend, where it has memory of its own.
    fn transfer(&mut self, time: usize, from: Value, to: Value, steps: &mut Vec<Step>) {
        self.present(from);
        let home = self.home(to);
        let donor = self.donation(home).map(|input| self.graph.inputs[input]);
        let done = |argument: &Value| self.last_read.get(argument).is_none_or(|&last| last < time);
        let donor = donor.filter(|argument| done(argument) && self.graph.ty(*argument) == self.graph.ty(home));
        let target = self.fresh(home);
        if let Some(argument) = donor {
            self.donate(argument, home);
        }
        steps.push(Step::Copy { from: self.buffer_of[&self.home(from)], to: target });
        self.release(time, &[from, to], None);
    }

    fn home(&self, value: Value) -> Value {
        let mut home = value;
        while let Some(&next) = self.alias.get(&home) {
            home = next;
        }
        home
    }

    /// Gives a place to what no kernel makes: constants, and values without elements.
    fn present(&mut self, value: Value) {
        let home = self.home(value);
        if self.buffer_of.contains_key(&home) {
            return;
        }
        if let Op::Constant { data, .. } = &self.graph.node(home).op {
            self.add(home, Source::Constant(data.clone()));
        } else if self.graph.ty(home).num_bytes() == 0 {
            self.fresh(home);
        }
    }

    /// Gives a scatter's result its place, holding the target.
    fn scatter_target(&mut self, time: usize, result: Value, target: Value, bound: &[Value], steps: &mut Vec<Step>) {
        let home = self.home(result);
        if self.home(target) == home {
            return;
        }
        let donor = self.donation(home).filter(|&input| self.graph.inputs[input] == target);
        let to = self.fresh(home);
        let from = self.buffer_of[&self.home(target)];
        let read_elsewhere = bound.contains(&target) || self.last_read.get(&target) != Some(&time);
        match donor.filter(|_| !read_elsewhere) {
            // The executor copies the argument itself where it was not donated.
            Some(_) => self.donate(target, home),
            None => steps.push(Step::Copy { from, to }),
        }
    }

    /// The argument that a result may be written over.
    fn donation(&self, value: Value) -> Option<usize> {
        let output = self.output_of.get(&value)?;
        let (input, _) = *self.options.donate.iter().find(|(_, result)| result == output)?;
        let argument = self.graph.inputs[input];
        // An argument that is itself a result keeps its value, and no two results share one.
        let free = self.options.reuse == Reuse::On
            && !self.output_of.contains_key(&argument)
            && self.buffers[self.buffer_of[&argument].0 as usize].donated_to.is_none();
        free.then_some(input)
    }

    fn donate(&mut self, input: Value, result: Value) {
        let output = self.output_of[&result];
        let buffer = self.buffer_of[&input];
        self.buffers[buffer.0 as usize].donated_to = Some(output);
    }

    /// Gives a value its place: over a donated argument, over a value that dies here, or fresh.
    fn place(&mut self, time: usize, value: Value, kernel: &mut Arc<Kernel>, values: &mut Vec<Value>) {
        let home = self.home(value);
        if let Some(input) = self.donation(home) {
            let argument = self.graph.inputs[input];
            let done = self.last_read.get(&argument).is_none_or(|&last| last < time);
            if home == value && self.last_read.get(&argument) == Some(&time) && merge(kernel, values, argument, value) {
                self.merged.push((argument, value));
                self.fresh(home);
                self.donate(argument, home);
                return;
            }
            if done && self.graph.ty(argument) == self.graph.ty(home) {
                self.fresh(home);
                self.donate(argument, home);
                return;
            }
        }
        if self.options.reuse == Reuse::On && !self.output_of.contains_key(&home) && home == value {
            let dying: Vec<Value> = values.iter().copied().filter(|&read| self.dies(read, time)).collect();
            for read in dying {
                if merge(kernel, values, read, value) {
                    self.merged.push((read, value));
                    let place = self.buffers[self.buffer_of[&self.home(read)].0 as usize].source.clone();
                    self.add(value, place);
                    return;
                }
            }
        }
        self.fresh(home);
    }

    /// Whether a value's slot is free after this launch.
    fn dies(&self, value: Value, time: usize) -> bool {
        let home = self.home(value);
        let in_slot = self
            .buffer_of
            .get(&home)
            .is_some_and(|buffer| matches!(self.buffers[buffer.0 as usize].source, Source::Slot(_)));
        in_slot && home == value && self.last_read.get(&value) == Some(&time)
    }

    fn fresh(&mut self, value: Value) -> BufferId {
        let source = match self.output_of.get(&value) {
            Some(&output) => Source::Output(output),
            None => Source::Slot(self.slot(self.graph.ty(value))),
        };
        self.add(value, source)
    }

    /// A slot of at least so many bytes: the tightest free one, else the largest free one grown, else a new one.
    fn slot(&mut self, ty: &TensorType) -> usize {
        let bytes = ty.num_bytes().next_multiple_of(SLOT_ALIGNMENT);
        let free = self.free.iter().copied().filter(|&slot| self.backends[slot] == ty.backend);
        let free: Vec<usize> = free.collect();
        let fitting =
            free.iter().copied().filter(|&slot| self.slots[slot] >= bytes).min_by_key(|&slot| self.slots[slot]);
        let chosen = fitting.or_else(|| free.iter().copied().max_by_key(|&slot| self.slots[slot]));
        match chosen {
            Some(slot) => {
                self.free.retain(|&free| free != slot);
                self.slots[slot] = self.slots[slot].max(bytes);
                slot
            }
            None => {
                self.slots.push(bytes);
                self.backends.push(ty.backend);
                self.slots.len() - 1
            }
        }
    }

    /// Frees the slots of values that this launch was the last to touch, unless a result has taken them over.
    fn release(&mut self, time: usize, values: &[Value], target: Option<Value>) {
        if self.options.reuse == Reuse::Off {
            return;
        }
        let slot_of = |planner: &Planner<'_>, value: Value| {
            let buffer = planner.buffer_of.get(&planner.home(value))?;
            match planner.buffers[buffer.0 as usize].source {
                Source::Slot(slot) => Some(slot),
                Source::Input(_) | Source::Constant(_) | Source::Output(_) => None,
            }
        };
        let alive = |planner: &Planner<'_>, value: Value| {
            let home = planner.home(value);
            planner.last_read.get(&home).is_some_and(|&last| last > time)
                || planner.alias.iter().any(|(from, _)| {
                    planner.home(*from) == home && planner.last_read.get(from).is_some_and(|&last| last > time)
                })
        };
        let touched: Vec<Value> = values.iter().copied().chain(target).collect();
        let kept: HashSet<usize> =
            touched.iter().filter(|&&value| alive(self, value)).filter_map(|&value| slot_of(self, value)).collect();
        for &value in &touched {
            if let Some(slot) = slot_of(self, value)
                && !kept.contains(&slot)
                && !self.free.contains(&slot)
            {
                self.free.push(slot);
            }
        }
    }

    fn finish(mut self, steps: Vec<Step>) -> Plan {
        let graph = self.graph;
        let results = graph
            .outputs
            .iter()
            .map(|output| {
                self.present(output.value);
                self.buffer_of[&self.home(output.value)]
            })
            .collect();
        let name = |index: usize| graph.input_name(index).unwrap_or("").into();
        Plan {
            name: graph.name.clone(),
            backend: home(graph),
            inputs: graph.inputs.iter().enumerate().map(|(i, &value)| (name(i), graph.ty(value).clone())).collect(),
            outputs: graph.outputs.iter().map(|output| (output.name.clone(), graph.ty(output.value).clone())).collect(),
            buffers: self.buffers,
            results,
            slots: self.slots,
            steps,
            ledger: Vec::new(),
            recomputed: Vec::new(),
            scratch: Vec::new(),
        }
    }
}

/// The backend that a graph is for: of several, the one beside the CPU.
pub(crate) fn home(graph: &Graph) -> Backend {
    let backends = graph.backends();
    let other = backends.iter().copied().find(|&backend| backend != Backend::Cpu);
    other.or(backends.first().copied()).unwrap_or(Backend::Cpu)
}

/// The values that a launch reads.
pub(crate) fn reads(placed: &Placed) -> HashSet<Value> {
    let buffers = placed.lowered.values.iter().zip(placed.lowered.kernel.buffers());
    let loaded = buffers.filter(|(_, buffer)| buffer.access == Access::Read).map(|(&value, _)| value);
    loaded.chain(placed.target.map(|(_, target)| target)).collect()
}

/// Makes the buffers of `read` and `written` one, updated in place, if the kernel reads the former at most at the element that it then
/// writes of the latter.
fn merge(kernel: &mut Arc<Kernel>, values: &mut Vec<Value>, read: Value, written: Value) -> bool {
    let position = |value: Value| values.iter().position(|&bound| bound == value);
    let (Some(from), Some(to)) = (position(read), position(written)) else { return false };
    let buffers = kernel.buffers();
    let alike = buffers[from].dtype == buffers[to].dtype && buffers[from].len == buffers[to].len;
    let (from, to) = (BufferIndex(from as u32), BufferIndex(to as u32));
    if !alike || buffers[from.0 as usize].access != Access::Read || !same_elements(kernel, from, to) {
        return false;
    }
    let mut merged = Kernel::clone(kernel);
    rebind(&mut merged, from, to);
    values.remove(from.0 as usize);
    *kernel = Arc::new(merged);
    true
}

/// Whether every load from `from` is at the very element that the one store to `to` writes at the same point.
fn same_elements(kernel: &Kernel, from: BufferIndex, to: BufferIndex) -> bool {
    match kernel {
        Kernel::Loop(kernel) => same_elements_of(&loop_blocks(kernel), from, to),
        Kernel::Horizontal(kernel) => {
            // Other parts run in their own time.
            let mut parts =
                kernel.parts.iter().filter(|part| part.buffers.contains(&from) || part.buffers.contains(&to));
            let (Some(part), None) = (parts.next(), parts.next()) else { return false };
            match (part.local(from), part.local(to)) {
                (Some(from), Some(to)) => same_elements_of(&loop_blocks(&part.kernel), from, to),
                _ => false,
            }
        }
        Kernel::MatMul(kernel) => {
            let operands = [&kernel.lhs.block, &kernel.rhs.block];
            operands.iter().all(|block| loads(block, from).next().is_none())
                && same_elements_of(&[&kernel.epilogue], from, to)
        }
        Kernel::Attention(kernel) => {
            // Only the block that stores has the elements of its loads at hand; the others go on reading.
            let stores = |block: &Block| block.stores.iter().any(|store| store.buffer == to);
            let (writing, reading): (Vec<_>, Vec<_>) = kernel
                .blocks()
                .into_iter()
                .partition(|(block, _, role)| *role == AttentionRole::Epilogue && stores(block));
            let writing: Vec<&Block> = writing.into_iter().map(|(block, ..)| block).collect();
            reading.iter().all(|(block, ..)| loads(block, from).next().is_none())
                && same_elements_of(&writing, from, to)
        }
        Kernel::Scan(_) | Kernel::Scatter(_) | Kernel::Custom(_) => false,
    }
}

fn same_elements_of(blocks: &[&Block], from: BufferIndex, to: BufferIndex) -> bool {
    let mut stores = blocks.iter().flat_map(|block| &block.stores).filter(|store| store.buffer == to);
    let (Some(store), None) = (stores.next(), stores.next()) else { return false };
    blocks.iter().flat_map(|block| loads(block, from)).all(|operation| match operation {
        Operation::Load { address, bounds, .. } => {
            address.computed.is_empty() && bounds.is_empty() && address.affine == store.address
        }
        _ => false,
    })
}

fn loop_blocks(kernel: &LoopKernel) -> Vec<&Block> {
    kernel.stages.iter().map(stage_block).collect()
}

fn stage_block(stage: &Stage) -> &Block {
    match stage {
        Stage::Point(block) | Stage::Each(block) | Stage::Fold { block, .. } => block,
    }
}

fn loads(block: &Block, from: BufferIndex) -> impl Iterator<Item = &Operation> {
    let operations = block.instructions.iter().map(|instruction| &instruction.operation);
    operations.filter(move |operation| matches!(operation, Operation::Load { buffer, .. } if *buffer == from))
}

/// Redirects `from` to `to`, drops the former, and marks the latter as updated in place.
fn rebind(kernel: &mut Kernel, from: BufferIndex, to: BufferIndex) {
    match kernel {
        Kernel::Loop(kernel) => rebind_loop(kernel, from, to),
        Kernel::Horizontal(kernel) => {
            join(&mut kernel.buffers, from, to);
            for part in &mut kernel.parts {
                if let (Some(from), Some(to)) = (part.local(from), part.local(to)) {
                    rebind_loop(&mut part.kernel, from, to);
                    part.buffers.remove(from.0 as usize);
                }
                part.buffers.iter_mut().for_each(|buffer| *buffer = moved(*buffer, from, to));
            }
        }
        Kernel::MatMul(kernel) => {
            join(&mut kernel.buffers, from, to);
            redirect([&mut kernel.lhs.block, &mut kernel.rhs.block, &mut kernel.epilogue], from, to);
        }
        Kernel::Attention(kernel) => {
            let (buffers, blocks) = kernel.parts_mut();
            join(buffers, from, to);
            redirect(blocks, from, to);
        }
        // Who reads what it updates does so at other points, or (a custom function) at any time.
        Kernel::Scan(_) | Kernel::Scatter(_) | Kernel::Custom(_) => {}
    }
}

fn rebind_loop(kernel: &mut LoopKernel, from: BufferIndex, to: BufferIndex) {
    join(&mut kernel.buffers, from, to);
    let blocks = kernel.stages.iter_mut().map(|stage| match stage {
        Stage::Point(block) | Stage::Each(block) | Stage::Fold { block, .. } => block,
    });
    redirect(blocks, from, to);
}

fn join(buffers: &mut Vec<Buffer>, from: BufferIndex, to: BufferIndex) {
    buffers[to.0 as usize].access = Access::ReadWrite;
    buffers.remove(from.0 as usize);
}

fn redirect<'a>(blocks: impl IntoIterator<Item = &'a mut Block>, from: BufferIndex, to: BufferIndex) {
    for block in blocks {
        for instruction in &mut block.instructions {
            if let Operation::Load { buffer, .. } = &mut instruction.operation {
                *buffer = moved(*buffer, from, to);
            }
        }
        block.stores.iter_mut().for_each(|store| store.buffer = moved(store.buffer, from, to));
    }
}

/// The number that a buffer has once `from` is `to`.
fn moved(buffer: BufferIndex, from: BufferIndex, to: BufferIndex) -> BufferIndex {
    let target = if buffer == from { to } else { buffer };
    BufferIndex(target.0 - u32::from(target.0 > from.0))
}
