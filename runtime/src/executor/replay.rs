//! A plan's run as one CUDA graph: recorded at the addresses of a run, replayed for the runs after it. In it a kernel waits for those whose memory
//! it touches (`after`), and for no others.
//!
//! Addresses are compared at every run, never assumed. A kernel whose memory has moved is bound again before the launch, which costs about what
//! launching it would. What a library launches cannot be bound again: operands of its products that move from run to run, such as batches of
//! data, are copied to and from memory of the graph's own, and where others move (two states in turn) a graph is kept for each. Where that does
//! not help either, launches are handed over one by one, as they are the first time.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::DriverError;
use kiln_ir::kernel::Access;
use kiln_ir::plan::{Plan, Source, Step};

use super::after::After;
use super::cuda::{Layout, Work};
use crate::buffer::Contents;
use crate::cuda::{Cuda, CudaStorage, Node, Recorded, Recording};

/// Graphs that are kept of one plan.
const KEPT: usize = 4;

/// Larger operands are not copied: two such copies take as long as a few launches.
const COPIED: usize = 4 << 20;

/// Bytes of a graph's own, at most.
const OWN: usize = 64 << 20;

/// So many graphs that were made in vain are followed by so many runs without one.
const IN_VAIN: u32 = 4;
const PAUSE: u32 = 256;

/// Runs without a graph after one that the driver refused to make.
const AGAIN: u32 = 16;

/// What may be replayed of a plan.
pub(super) struct Replays {
    /// Places whose address a graph keeps.
    fixed: Vec<usize>,
    /// Those of them that may be copied.
    movable: Vec<Movable>,
    /// Of each place, the memory that it is.
    memory: Vec<usize>,
    state: Mutex<State>,
}

/// An operand of products that may be copied.
struct Movable {
    place: usize,
    bytes: usize,
    direction: Direction,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// An argument: from where it is, before the first launch.
    In,
    /// A result: to where it belongs, after the product.
    Out,
}

#[derive(Default)]
struct State {
    /// The latest first.
    graphs: Vec<Replay>,
    /// Places that are copied.
    copied: BTreeSet<usize>,
    runs: u64,
    replays: u64,
    recordings: u64,
    in_vain: u32,
    pause: u32,
}

/// A graph, and what its nodes are bound to.
struct Replay {
    recorded: Recorded,
    addresses: Vec<u64>,
    nodes: Vec<Bound>,
    /// Of each place, the nodes that see it.
    seen_by: Vec<Vec<usize>>,
    /// Memory of the graph's own.
    _copies: Option<CudaStorage>,
    launches: u64,
}

/// A node whose addresses can be changed.
#[derive(Clone, Copy)]
struct Bound {
    node: Node,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    /// One of the plan's kernels or copies.
    Work(usize),
    /// A copy of an operand to memory of the graph's own.
    In { place: usize, own: u64, bytes: usize },
    /// The same of a result, from there.
    Out { place: usize, own: u64, bytes: usize },
}

impl Replays {
    /// `None` where there is nothing to gain.
    pub(super) fn new(plan: &Plan, works: &[&Work], blocks: usize) -> Option<Replays> {
        if works.len() < 2 {
            return None;
        }
        let places = plan.buffers.len() + blocks;
        let mut fixed = BTreeSet::new();
        let mut products_to = vec![0; places];
        for work in works {
            if let Work::Product { lhs, rhs, result, bias, .. } = work {
                fixed.extend([*lhs, *rhs, *result]);
                fixed.extend(bias);
                products_to[*result] += 1;
            }
        }
        let mut writers = vec![0; places];
        for step in &plan.steps {
            match step {
                Step::Copy { to, .. } => writers[to.0 as usize] += 1,
                Step::Launch(launch) => {
                    for (id, buffer) in launch.buffers.iter().zip(launch.kernel.buffers()) {
                        writers[id.0 as usize] += usize::from(buffer.access != Access::Read);
                    }
                }
            }
        }
        let lent: BTreeSet<usize> = plan.buffers.iter().filter_map(|buffer| buffer.donated_to).collect();
        let movable = fixed.iter().filter_map(|&place| {
            let buffer = plan.buffers.get(place)?;
            let (direction, alone) = match buffer.source {
                Source::Input(_) => (Direction::In, buffer.donated_to.is_none() && writers[place] == 0),
                Source::Output(output) => {
                    let once = writers[place] == 1 && products_to[place] == 1;
                    (Direction::Out, once && !lent.contains(&output))
                }
                Source::Slot(_) | Source::Constant(_) => return None,
            };
            let bytes = buffer.ty.num_bytes();
            (alone && bytes <= COPIED).then_some(Movable { place, bytes, direction })
        });
        let movable = movable.collect();
        let memory = memory_of(plan, blocks);
        Some(Replays { fixed: fixed.into_iter().collect(), movable, memory, state: Mutex::default() })
    }

    /// Runs that were replayed, and graphs that were made.
    pub(super) fn counts(&self) -> (u64, u64) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.replays, state.recordings)
    }

    /// Hands a run over as one graph; `false` where it is to be handed over launch by launch.
    pub(super) fn run<'w>(&self, cuda: &Arc<Cuda>, addresses: &[u64], works: impl Fn() -> Vec<&'w Work>) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        state.runs += 1;
        if state.runs == 1 {
            return false;
        }
        let copied = &state.copied;
        let fits = |replay: &Replay| self.moved(replay, addresses).all(|place| copied.contains(&place));
        match state.graphs.iter().position(fits) {
            Some(place) => state.graphs[..=place].rotate_right(1),
            None => {
                if !self.make_room(state, addresses) {
                    return false;
                }
                match self.record(&state.copied, cuda, addresses, &works()) {
                    Ok(made) => state.graphs.insert(0, made),
                    Err(_) => {
                        state.pause = AGAIN;
                        return false;
                    }
                }
                state.recordings += 1;
            }
        }
        let replay = &mut state.graphs[0];
        if replay.addresses != addresses && replay.rebind(addresses, &works()).is_err() {
            // Half of it may be bound: nobody may launch it.
            state.graphs.remove(0);
            state.pause = PAUSE;
            return false;
        }
        replay.launches += 1;
        state.replays += 1;
        cuda.told("launching a graph", replay.recorded.launch());
        true
    }

    /// Places that a graph keeps and that are elsewhere now.
    fn moved(&self, replay: &Replay, addresses: &[u64]) -> impl Iterator<Item = usize> {
        self.fixed.iter().copied().filter(|&place| replay.addresses[place] != addresses[place])
    }

    /// Before another graph is made; `false` where none should be.
    fn make_room(&self, state: &mut State, addresses: &[u64]) -> bool {
        if state.pause > 0 {
            state.pause -= 1;
            return false;
        }
        if let Some(latest) = state.graphs.first() {
            let moved: BTreeSet<usize> = self.moved(latest, addresses).collect();
            let movable = self.movable.iter().map(|movable| movable.place);
            let learned: Vec<usize> =
                movable.filter(|place| moved.contains(place) && !state.copied.contains(place)).collect();
            if !learned.is_empty() {
                state.copied.extend(learned);
                state.graphs.clear();
            }
        }
        if state.graphs.len() == KEPT {
            state.in_vain = match state.graphs.pop() {
                Some(last) if last.launches < 2 => state.in_vain + 1,
                _ => 0,
            };
            if state.in_vain == IN_VAIN {
                (state.in_vain, state.pause) = (0, PAUSE);
                return false;
            }
        }
        true
    }

    fn record(
        &self,
        copied: &BTreeSet<usize>,
        cuda: &Arc<Cuda>,
        addresses: &[u64],
        works: &[&Work],
    ) -> Result<Replay, Refused> {
        let copied: Vec<&Movable> = self.movable.iter().filter(|movable| copied.contains(&movable.place)).collect();
        let workspaces: Vec<usize> = works.iter().map(|work| work.workspace_bytes()).collect();
        let mut layout = Layout::default();
        let own: Vec<u64> = copied.iter().map(|movable| layout.add(movable.bytes)).collect();
        let places: Vec<u64> = workspaces.iter().map(|&bytes| layout.add(bytes)).collect();
        // Products that run side by side must not share what the library writes to; where they would need too much, they run one by one.
        let apart = layout.bytes <= OWN;
        if !apart {
            layout.bytes = places.first().copied().unwrap_or_default() as usize;
        }
        let copies = match layout.bytes {
            0 => None,
            bytes => Some(CudaStorage::new(cuda, bytes, Contents::Any).map_err(|_| Refused)?),
        };
        let begin = copies.as_ref().map_or(0, CudaStorage::pointer);
        let memories = self.memory.iter().max().map_or(0, |most| most + 1);
        // Where a product finds a place, and which memory that is; memory behind the plan's are the copies, and the workspace that is shared.
        let shared = memories + copied.len();
        let found = |place: usize| match copied.iter().position(|movable| movable.place == place) {
            Some(index) => (begin + own[index], memories + index),
            None => (addresses[place], self.memory[place]),
        };
        let mut scribe = Scribe {
            recording: Recording::new(cuda)?,
            after: After::new(shared + 1),
            all: Vec::new(),
            bound: Vec::new(),
            seen_by: vec![Vec::new(); addresses.len()],
        };
        for &&Movable { place, bytes, .. } in copied.iter().filter(|movable| movable.direction == Direction::In) {
            let (to, memory) = found(place);
            let what = What::In { place, own: to, bytes };
            scribe.copy([addresses[place], to], bytes, (&[self.memory[place]], &[memory]), what, &[place])?;
        }
        for (index, work) in works.iter().enumerate() {
            let memories = |places: &[usize]| places.iter().map(|&place| self.memory[place]).collect::<Vec<_>>();
            match work {
                Work::Text { text, function, arguments, written } => {
                    // A graph has no kernels of no threads.
                    if text.blocks.contains(&0) {
                        continue;
                    }
                    let places = work.places();
                    let wait = scribe.next(&memories(&places), &memories(written));
                    let pointers = Work::pointers(arguments, addresses);
                    let node = scribe.recording.kernel(function, text, &pointers, &wait)?;
                    scribe.done(node, Some(What::Work(index)), &places);
                }
                Work::Product { product, lhs, rhs, result, bias } => {
                    let mut pointers = Work::operands([*lhs, *rhs, *result], *bias, |place| found(place).0);
                    let read: Vec<usize> = [*lhs, *rhs].iter().chain(bias).map(|&place| found(place).1).collect();
                    let mut written = vec![found(*result).1];
                    match apart {
                        true => pointers.workspace = Some(begin + places[index]),
                        false => written.push(shared),
                    }
                    let wait = scribe.next(&read, &written);
                    let node = scribe.recording.product(product, pointers, &wait)?;
                    scribe.done(node, None, &[]);
                    if let Some(movable) = copied.iter().find(|movable| movable.place == *result) {
                        let (from, memory) = found(*result);
                        let bytes = movable.bytes;
                        let what = What::Out { place: *result, own: from, bytes };
                        let memory = (&[memory][..], &[self.memory[*result]][..]);
                        scribe.copy([from, addresses[*result]], bytes, memory, what, &[*result])?;
                    }
                }
                Work::Copy { from, to, bytes } => {
                    let memory = (&memories(&[*from])[..], &memories(&[*to])[..]);
                    let places = [*from, *to];
                    scribe.copy(places.map(|place| addresses[place]), *bytes, memory, What::Work(index), &places)?;
                }
            }
        }
        let Scribe { recording, bound: nodes, seen_by, .. } = scribe;
        let recorded = recording.finish()?;
        Ok(Replay { recorded, addresses: addresses.to_vec(), nodes, seen_by, _copies: copies, launches: 0 })
    }
}

/// Writes nodes down.
struct Scribe<'a> {
    recording: Recording<'a>,
    after: After,
    /// Every node.
    all: Vec<Node>,
    /// Those whose addresses can be changed, and by place which of them see it.
    bound: Vec<Bound>,
    seen_by: Vec<Vec<usize>>,
}

impl Scribe<'_> {
    /// The nodes that the next one waits for.
    fn next(&mut self, read: &[usize], written: &[usize]) -> Vec<Node> {
        self.after.next(read, written).into_iter().map(|number| self.all[number]).collect()
    }

    fn done(&mut self, node: Node, what: Option<What>, places: &[usize]) {
        self.all.push(node);
        if let Some(what) = what {
            places.iter().for_each(|&place| self.seen_by[place].push(self.bound.len()));
            self.bound.push(Bound { node, what });
        }
    }

    fn copy(
        &mut self,
        [from, to]: [u64; 2],
        bytes: usize,
        (read, written): (&[usize], &[usize]),
        what: What,
        places: &[usize],
    ) -> Result<(), DriverError> {
        let wait = self.next(read, written);
        let node = self.recording.copy(from, to, bytes, &wait)?;
        self.done(node, Some(what), places);
        Ok(())
    }
}

/// The memory that each place is: buffers in one slot are one memory, and so are an argument and the result that it is donated to.
fn memory_of(plan: &Plan, blocks: usize) -> Vec<usize> {
    let outputs = plan.outputs.len();
    let buffers = plan.buffers.iter().enumerate().map(|(index, buffer)| match buffer.source {
        Source::Slot(slot) => slot,
        Source::Output(output) => blocks + output,
        Source::Input(_) | Source::Constant(_) => {
            buffer.donated_to.map_or(blocks + outputs + index, |output| blocks + output)
        }
    });
    buffers.chain(0..blocks).collect()
}

impl Replay {
    /// Gives nodes the addresses of a run.
    fn rebind(&mut self, addresses: &[u64], works: &[&Work]) -> Result<(), DriverError> {
        let mut nodes: BTreeSet<usize> = BTreeSet::new();
        for (place, (bound, &address)) in self.addresses.iter_mut().zip(addresses).enumerate() {
            if *bound != address {
                nodes.extend(&self.seen_by[place]);
                *bound = address;
            }
        }
        for index in nodes {
            let Bound { node, what } = self.nodes[index];
            match what {
                What::In { place, own, bytes } => self.recorded.rebind_copy(node, addresses[place], own, bytes)?,
                What::Out { place, own, bytes } => self.recorded.rebind_copy(node, own, addresses[place], bytes)?,
                What::Work(work) => match works[work] {
                    Work::Text { text, function, arguments, .. } => {
                        let pointers = Work::pointers(arguments, addresses);
                        self.recorded.rebind_kernel(node, function, text, &pointers)?;
                    }
                    Work::Copy { from, to, bytes } => {
                        self.recorded.rebind_copy(node, addresses[*from], addresses[*to], *bytes)?;
                    }
                    Work::Product { .. } => {}
                },
            }
        }
        Ok(())
    }
}

/// No graph was made; the run goes on without one, and tells what there is to tell.
struct Refused;

impl From<DriverError> for Refused {
    fn from(_: DriverError) -> Refused {
        Refused
    }
}
