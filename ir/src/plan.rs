//! Plans: a graph compiled for one backend, as plain data: which kernels run in which order on which buffers.
//!
//! The executor sees only this. Memory is planned before the run: every intermediate has a slot, and [`Plan::peak_bytes`] is known and
//! printable before anything executes.

use std::sync::Arc;

use crate::kernel::Kernel;
use crate::{Backend, HostData, Loc, TensorType};

/// Index of a buffer in [`Plan::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// What stands behind a buffer of a plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Argument `i` of the graph; never written, unless it was donated (see [`PlanBuffer::donated_to`]).
    Input(usize),
    /// A baked-in tensor.
    Constant(HostData),
    /// A result, owned by the caller after the run.
    Output(usize),
    /// A slot of the plan's own memory, reused between calls and by buffers whose lifetimes do not meet.
    Slot(usize),
}

/// A dense row-major tensor in memory during a run.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanBuffer {
    /// What stands behind it.
    pub source: Source,
    /// Its type.
    pub ty: TensorType,
    /// For an input that may be updated in place: the output whose kernels write into it. The executor does so where the caller donated the
    /// argument and holds its last handle; otherwise the output gets memory of its own (with a copy of the argument where a kernel's
    /// access is `ReadWrite`).
    pub donated_to: Option<usize>,
    /// The line that made it.
    pub loc: Loc,
}

/// One launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// What runs; equal kernels are shared.
    pub kernel: Arc<Kernel>,
    /// The plan's buffers bound to the kernel's, in order.
    pub buffers: Vec<BufferId>,
    /// The user's lines it computes, in graph order, without repeats.
    pub locs: Vec<Loc>,
    /// Bytes read and written, counted from loads and stores.
    pub bytes: Traffic,
    /// Floating-point operations.
    pub flops: u64,
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Run a kernel.
    Launch(Launch),
    /// Copy a whole buffer: a scatter's target into its result, an argument or constant that is itself an output, a value to another backend.
    Copy {
        /// From where.
        from: BufferId,
        /// To where, of the same shape and dtype.
        to: BufferId,
    },
}

/// Bytes moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Bytes loaded.
    pub read: u64,
    /// Bytes stored.
    pub written: u64,
}

/// Why a value was left in memory between the kernel that makes it and others that read it. A value that several kernels read for different
/// reasons has an edge for each reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Edge {
    /// The value's type.
    pub ty: TensorType,
    /// The line that made it.
    pub loc: Loc,
    /// The reason.
    pub blocked: Blocked,
    /// The launch that makes it, by its number among [`Plan::launches`]; `None` where none does, because it has no elements.
    pub made_by: Option<usize>,
    /// Who reads it. Empty for a result of the graph that no kernel reads.
    pub readers: Vec<Reader>,
}

impl Edge {
    /// Bytes of the value.
    pub fn bytes(&self) -> usize {
        self.ty.num_bytes()
    }
}

/// One end of an edge of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    /// The launch that reads the value, by its number among [`Plan::launches`].
    pub launch: usize,
    /// The line of the op that reads it.
    pub loc: Loc,
}

/// The reasons for which a producer and its consumer are not one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Blocked {
    /// The value is a result of the graph.
    Output,
    /// The consumer is a matrix product, which reads operands from memory.
    MatMulOperand,
    /// The producer's form ends with this value: its result is only complete after all its points.
    Complete,
    /// The consumer reads it at other points than the producer makes it, many times over.
    Reread,
    /// The spaces of producer and consumer do not fit one kernel.
    Space,
    /// Fusing would make the groups depend on each other in a circle.
    Cycle,
    /// The producer is too costly to compute once for each consumer.
    Recompute,
    /// The fused kernel would exceed a limit of the device.
    Limit,
    /// The value crosses from one backend to another.
    Transfer,
    /// Attention keeps its scores to itself, and something of them is a result of the graph.
    ScoresAreResult,
    /// Attention keeps its weights to itself, and something other than its own gradients reads them.
    WeightsRead,
    /// The softmax between two products does not run over the keys.
    SoftmaxAxis,
    /// The softmax between two products does not subtract the largest logit, so it may overflow where attention does not.
    NoMaximum,
}

impl Blocked {
    /// Every reason.
    pub const ALL: [Blocked; 13] = [
        Blocked::Output,
        Blocked::MatMulOperand,
        Blocked::Complete,
        Blocked::Reread,
        Blocked::Space,
        Blocked::Cycle,
        Blocked::Recompute,
        Blocked::Limit,
        Blocked::Transfer,
        Blocked::ScoresAreResult,
        Blocked::WeightsRead,
        Blocked::SoftmaxAxis,
        Blocked::NoMaximum,
    ];

    /// The reason as a short code that stays what it is: tests and tools compare it.
    pub const fn code(self) -> &'static str {
        match self {
            Blocked::Output => "output",
            Blocked::MatMulOperand => "matmul-operand",
            Blocked::Complete => "complete",
            Blocked::Reread => "reread",
            Blocked::Space => "space",
            Blocked::Cycle => "cycle",
            Blocked::Recompute => "recompute",
            Blocked::Limit => "limit",
            Blocked::Transfer => "transfer",
            Blocked::ScoresAreResult => "attention-result",
            Blocked::WeightsRead => "attention-read",
            Blocked::SoftmaxAxis => "attention-axis",
            Blocked::NoMaximum => "attention-maximum",
        }
    }

    /// The reason in words.
    pub const fn reason(self) -> &'static str {
        match self {
            Blocked::Output => "is a result of the graph",
            Blocked::MatMulOperand => "is an operand of a matrix product, which reads from memory",
            Blocked::Complete => "is complete only after all points of its kernel",
            Blocked::Reread => "is read at other points than it is made, many times over",
            Blocked::Space => "has another iteration space than its consumer",
            Blocked::Cycle => "would tie two kernels to each other in a circle",
            Blocked::Recompute => "costs too much to compute once for each consumer",
            Blocked::Limit => "would exceed a limit of the device in one kernel",
            Blocked::Transfer => "crosses from one backend to another",
            Blocked::ScoresAreResult => "is no attention: scores or weights are a result of the graph",
            Blocked::WeightsRead => "is no attention: weights or scores are read by more than it and its gradients",
            Blocked::SoftmaxAxis => "is no attention: the softmax does not run over the keys",
            Blocked::NoMaximum => "is no attention: the softmax does not subtract the largest logit",
        }
    }
}

/// A value that is computed again after it was given up, so that the plan fits a budget of bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Recomputed {
    /// Its type.
    pub ty: TensorType,
    /// The line that made it.
    pub loc: Loc,
}

/// A compiled graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The graph's name.
    pub name: Arc<str>,
    /// Where it runs; what is on the CPU beside a GPU runs there.
    pub backend: Backend,
    /// Argument names and types.
    pub inputs: Vec<(Arc<str>, TensorType)>,
    /// Result names and types.
    pub outputs: Vec<(Arc<str>, TensorType)>,
    /// All buffers.
    pub buffers: Vec<PlanBuffer>,
    /// For each result, the buffer that holds it at the end: an `Output`, or an `Input` or another output where the result is that very value.
    pub results: Vec<BufferId>,
    /// Bytes of each slot.
    pub slots: Vec<usize>,
    /// What runs, in order.
    pub steps: Vec<Step>,
    /// The fusion ledger: every value that stays in memory, with its reason.
    pub ledger: Vec<Edge>,
    /// What is computed more than once to fit a budget.
    pub recomputed: Vec<Recomputed>,
    /// Bytes of each buffer that a GPU's launches use one after the other, each for itself. Known when the launches are printed; none before.
    pub scratch: Vec<usize>,
}

impl Plan {
    /// Bytes that a run takes beside its arguments: slots, scratch memory, constants, and results in memory of their own. A result that is written over a
    /// donated argument takes none.
    pub fn peak_bytes(&self) -> usize {
        let lent = self.buffers.iter().filter_map(|buffer| buffer.donated_to);
        let lent: std::collections::HashSet<usize> = lent.collect();
        self.owned_bytes(|output| !lent.contains(&output))
    }

    /// Bytes that a run takes where no argument is donated, or other handles to all of them live: [`Plan::peak_bytes`] and every result.
    pub fn most_bytes(&self) -> usize {
        self.owned_bytes(|_| true)
    }

    /// The largest buffers that are no arguments, at most `count`, each with what it is: ``result `loss` ``, `constant`, `intermediate`.
    pub fn largest(&self, count: usize) -> Vec<(&PlanBuffer, String)> {
        let role = |buffer: &PlanBuffer| match buffer.source {
            Source::Input(_) => None,
            Source::Constant(_) => Some("constant".to_owned()),
            Source::Output(index) => Some(format!("result `{}`", self.outputs[index].0)),
            Source::Slot(_) => Some("intermediate".to_owned()),
        };
        let mut buffers: Vec<_> =
            self.buffers.iter().filter_map(|buffer| role(buffer).map(|role| (buffer, role))).collect();
        buffers.sort_by_key(|(buffer, _)| std::cmp::Reverse(buffer.ty.num_bytes()));
        buffers.truncate(count);
        buffers
    }

    fn owned_bytes(&self, own: impl Fn(usize) -> bool) -> usize {
        let owned = self.buffers.iter().filter(|buffer| match buffer.source {
            Source::Constant(_) => true,
            Source::Output(output) => own(output),
            Source::Input(_) | Source::Slot(_) => false,
        });
        let shared = self.slots.iter().chain(&self.scratch).sum::<usize>();
        shared + owned.map(|buffer| buffer.ty.num_bytes()).sum::<usize>()
    }

    /// Where a launch runs: the backend of its buffers.
    pub fn backend_of(&self, launch: &Launch) -> Backend {
        let buffer = launch.buffers.first().and_then(|id| self.buffers.get(id.0 as usize));
        buffer.map_or(self.backend, |buffer| buffer.ty.backend)
    }

    /// Whose memory each slot is.
    pub fn slot_backends(&self) -> Vec<Backend> {
        let mut backends = vec![self.backend; self.slots.len()];
        for buffer in &self.buffers {
            if let Source::Slot(slot) = buffer.source {
                backends[slot] = buffer.ty.backend;
            }
        }
        backends
    }

    /// The launches, in order.
    pub fn launches(&self) -> impl Iterator<Item = &Launch> {
        self.steps.iter().filter_map(|step| match step {
            Step::Launch(launch) => Some(launch),
            Step::Copy { .. } => None,
        })
    }
}
