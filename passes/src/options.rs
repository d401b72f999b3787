//! What a user or a device may decide about compilation.

use kiln_ir::CustomOps;
use kiln_ir::gpu::GpuTarget;

/// How to compile a graph.
#[derive(Clone, Debug)]
pub struct Options {
    /// Pairs (argument, result) of equal type: the result may be written over the argument, which the caller gives up.
    pub donate: Vec<(usize, usize)>,
    /// Whether ops share kernels.
    pub fusion: Fusion,
    /// Whether intermediates share memory.
    pub reuse: Reuse,
    /// What the device allows in one kernel.
    pub limits: Limits,
    /// Bytes of the plan beside its arguments, at most: values are computed again where they are wanted late until it fits, or it is refused.
    pub max_bytes: Option<usize>,
    /// The custom ops that the graph may name. One with a kernel for the graph's backend is run by it, any other by its body.
    pub customs: CustomOps,
    /// For tests of what finds mistakes: the launch of this number stores other values than it should.
    #[doc(hidden)]
    pub fault: Option<usize>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            donate: Vec::new(),
            fusion: Fusion::On,
            reuse: Reuse::On,
            limits: Limits::cpu(),
            max_bytes: None,
            customs: CustomOps::new(),
            fault: None,
        }
    }
}

/// Whether ops share kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fusion {
    /// As the cost model says.
    On,
    /// One kernel per op.
    Off,
}

/// Whether intermediates share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Slots are shared by values whose lifetimes do not meet, and updated in place where proved.
    On,
    /// Every intermediate has its own slot, nothing is updated in place.
    Off,
}

/// Which attention a device has kernels for; any other is made of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionKernels {
    /// All.
    Any,
    /// That of [`warps`](crate::gpu::warps): 16-bit floats, with an `f32` softmax.
    Warps,
}

/// A device's limits, as numbers.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Instructions in one kernel.
    pub instructions: usize,
    /// Buffers bound to one kernel.
    pub buffers: usize,
    /// Buffers of an attention kernel, forward or backward.
    pub attention_buffers: usize,
    /// Which attention there are kernels for.
    pub attention: AttentionKernels,
    /// Buffers that a device can bind at all, and on GPUs no more than their compilers take well: where one op reads more, it is computed in parts.
    pub bindings: usize,
    /// Buffers bound to one launch of several kernels side by side.
    pub horizontal_buffers: usize,
    /// Bytes that a kernel may move and still be delayed until it can be launched with others.
    pub horizontal_bytes: u64,
    /// Elements of a row that a row kernel may walk several times.
    pub row_elements: usize,
    /// Rows below which a row kernel would leave the device idle, unless it is small altogether.
    pub row_count: usize,
    /// Points below which a kernel is small altogether.
    pub small: usize,
    /// Bytes of one buffer.
    pub buffer_bytes: usize,
}

impl Limits {
    /// The CPU's: rows must stay in the second-level cache, and there must be enough of them for the cores.
    pub fn cpu() -> Limits {
        Limits {
            instructions: 512,
            buffers: 64,
            bindings: usize::MAX,
            attention_buffers: 64,
            attention: AttentionKernels::Any,
            horizontal_buffers: 4096,
            horizontal_bytes: 1 << 20,
            row_elements: 1 << 16,
            row_count: 16,
            small: 1 << 15,
            buffer_bytes: isize::MAX as usize,
        }
    }

    /// A GPU's: what its kernels may bind, and enough rows that every processor of a large one has some.
    ///
    /// ```
    /// use kiln_ir::gpu::GpuTarget;
    /// use kiln_passes::Limits;
    /// assert_eq!(Limits::gpu(&GpuTarget::WEBGPU).buffers, 8);
    /// ```
    pub fn gpu(target: &GpuTarget) -> Limits {
        let bindings = target.bindings as usize;
        let bytes = target.binding_bytes.min(target.buffer_bytes);
        Limits {
            instructions: 512,
            buffers: bindings.min(64),
            // A text with a branch for each of thousands of parts takes a driver minutes to compile.
            bindings: bindings.min(256),
            // No dispatch of such a kernel sees all of them: two of three gradients are another's.
            attention_buffers: bindings.min(64) + 2,
            attention: AttentionKernels::Any,
            horizontal_buffers: bindings.min(256),
            horizontal_bytes: 1 << 20,
            row_elements: 1 << 16,
            row_count: 64,
            small: 1 << 15,
            buffer_bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
        }
    }

    /// What keeps to both.
    #[must_use]
    pub fn within(self, other: &Limits) -> Limits {
        Limits {
            instructions: self.instructions.min(other.instructions),
            buffers: self.buffers.min(other.buffers),
            bindings: self.bindings.min(other.bindings),
            attention_buffers: self.attention_buffers.min(other.attention_buffers),
            attention: if self.attention == AttentionKernels::Any { other.attention } else { self.attention },
            horizontal_buffers: self.horizontal_buffers.min(other.horizontal_buffers),
            horizontal_bytes: self.horizontal_bytes.min(other.horizontal_bytes),
            row_elements: self.row_elements.min(other.row_elements),
            row_count: self.row_count.max(other.row_count),
            small: self.small.min(other.small),
            buffer_bytes: self.buffer_bytes.min(other.buffer_bytes),
        }
    }
}
