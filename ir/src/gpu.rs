//! Kernels on GPUs, as plain data: what a device offers, how a kernel is spread over it, and the texts that come out.
//!
//! A [`Kernel`](crate::kernel::Kernel) is device-free. For a GPU, `passes` choose a [`Schedule`] for it from a [`GpuTarget`]'s limits,
//! `codegen` prints both as a [`GpuProgram`], and `runtime` runs that. Each of the three only ever sees this data.

mod schedule_text;

use std::sync::Arc;

use crate::DType;
use crate::kernel::{BufferIndex, KeyLimit};

/// What a GPU offers: features that texts may use, and limits that they must keep. All sizes are in bytes unless they say otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GpuTarget {
    /// 16-bit floats in memory (`f16` in WGSL). Without it they are packed in pairs; arithmetic is in `f32` either way.
    pub f16: Support,
    /// 64-bit floats.
    pub f64: Support,
    /// 64-bit integers.
    pub i64: Support,
    /// A product and a sum that are rounded once (`fma`), where the device was seen to keep to that.
    pub fma: Support,
    /// Lanes of a subgroup, at least and at most, where its lanes can exchange values directly.
    pub subgroup: Option<(u32, u32)>,
    /// Storage buffers bound to one dispatch.
    pub bindings: u32,
    /// Bytes of one buffer that a dispatch can see.
    pub binding_bytes: u64,
    /// Bytes of one buffer.
    pub buffer_bytes: u64,
    /// Invocations of one workgroup, in all and along its first axis.
    pub workgroup_size: u32,
    /// Memory shared by one workgroup.
    pub workgroup_memory: u32,
    /// Workgroups along each axis of a dispatch.
    pub workgroups: u32,
    /// Neighbours in memory that an invocation takes at once, at most. They are 16 bytes at most, whatever they are.
    pub widest: u32,
}

/// Whether a device has a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Support {
    /// It has not.
    Missing,
    /// It has.
    Present,
}

impl Support {
    /// From what a device says.
    pub fn of(present: bool) -> Support {
        if present { Support::Present } else { Support::Missing }
    }

    /// Whether it is there.
    pub fn is_present(self) -> bool {
        self == Support::Present
    }
}

impl GpuTarget {
    /// What every WebGPU device offers: the limits that a page in a browser gets without asking, no optional feature.
    pub const WEBGPU: GpuTarget = GpuTarget {
        f16: Support::Missing,
        f64: Support::Missing,
        i64: Support::Missing,
        fma: Support::Missing,
        subgroup: None,
        bindings: 8,
        binding_bytes: 128 << 20,
        buffer_bytes: 256 << 20,
        workgroup_size: 256,
        workgroup_memory: 16 << 10,
        workgroups: 65_535,
        widest: 4,
    };

    /// What every CUDA device since 2020 offers (compute capability 8.0 and later). Buffers are pointers: a text sees as many as its parameters hold.
    pub const CUDA: GpuTarget = GpuTarget {
        f16: Support::Present,
        f64: Support::Present,
        i64: Support::Present,
        fma: Support::Present,
        subgroup: Some((32, 32)),
        bindings: 4000,
        binding_bytes: 1 << 40,
        buffer_bytes: 1 << 40,
        workgroup_size: 1024,
        workgroup_memory: 48 << 10,
        workgroups: i32::MAX as u32,
        widest: 16,
    };

    /// Whether kernels can compute with a dtype. Numbers of 16 and 8 bits are there on every device, packed in words where it has no such type;
    /// numbers of 64 bits only where the device has them.
    ///
    /// ```
    /// use kiln_ir::{DType, gpu::GpuTarget};
    /// assert!(GpuTarget::WEBGPU.has(DType::BF16) && !GpuTarget::WEBGPU.has(DType::F64));
    /// ```
    pub fn has(&self, dtype: DType) -> bool {
        match dtype {
            DType::F64 => self.f64.is_present(),
            DType::I64 => self.i64.is_present(),
            DType::F32 | DType::F16 | DType::BF16 | DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::Bool => {
                true
            }
        }
    }
}

/// A kernel's texts for one target: dispatches that run one after the other, each after all writes of those before it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GpuProgram {
    /// What runs, in order.
    pub dispatches: Vec<Dispatch>,
    /// Bytes of each buffer that only this launch uses: partial sums, sorted positions. Contents are anything at the start.
    pub scratch: Vec<usize>,
}

impl GpuProgram {
    /// Bytes of all scratch buffers.
    pub fn scratch_bytes(&self) -> usize {
        self.scratch.iter().sum()
    }
}

/// The scratch memory of launches that run one after the other, from that of each: bytes of buffers large enough for any of them.
pub fn shared_scratch<'a>(launches: impl IntoIterator<Item = &'a [usize]>) -> Vec<usize> {
    let mut shared: Vec<usize> = Vec::new();
    for launch in launches {
        shared.resize(shared.len().max(launch.len()), 0);
        for (most, &bytes) in shared.iter_mut().zip(launch) {
            *most = bytes.max(*most);
        }
    }
    shared
}

/// One dispatch of a program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dispatch {
    /// The text, with one entry point; equal texts are compiled once.
    pub source: Arc<str>,
    /// The entry point's name.
    pub entry: Arc<str>,
    /// Workgroups along each axis; nothing runs where one of them is 0.
    pub workgroups: [u32; 3],
    /// What stands behind `@group(0) @binding(i)`, by `i`.
    pub bindings: Vec<Binding>,
}

/// A buffer as one dispatch sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Binding {
    /// Which buffer.
    pub memory: GpuMemory,
    /// Whether the text declares it writable (`read_write`).
    pub writable: bool,
}

/// Which buffer a dispatch is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GpuMemory {
    /// One of the kernel's.
    Buffer(BufferIndex),
    /// One of the program's own ([`GpuProgram::scratch`]).
    Scratch(u32),
}

/// How a kernel is spread over a GPU. Only the schedule knows of workgroups and lanes; the kernel says what is computed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// A loop kernel's.
    Loop(LoopSchedule),
    /// One for each part of a horizontal kernel.
    Horizontal(Vec<LoopSchedule>),
    /// A matrix product's.
    MatMul(MatMulSchedule),
    /// Attention's.
    Attention(AttentionSchedule),
    /// Attention's, by warps that multiply fragments of matrices.
    WarpAttention(WarpAttention),
    /// A running reduction's.
    Scan(ScanSchedule),
    /// Indexed updates'.
    Scatter(ScatterSchedule),
    /// The text of a custom op brings its own.
    Custom,
}

/// How a loop kernel is spread.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LoopSchedule {
    /// Each invocation computes `width` neighbouring outer points and walks their inner space alone.
    Points {
        /// Invocations of a workgroup.
        workgroup: u32,
        /// Points of an invocation, neighbours along the last outer axis: 1, 2 or 4.
        width: u32,
    },
    /// A team of invocations walks the inner space of one outer point together, and combines what each has folded. Where that is at most 16
    /// values for each, the walk is written out, and values stay in registers from one stage to the next.
    Team {
        /// Invocations of a team; a power of two.
        lanes: u32,
        /// Teams of a workgroup.
        teams: u32,
        /// Neighbouring inner points that an invocation takes at once: 1, 2 or 4.
        width: u32,
    },
    /// The inner space is cut into parts that are folded side by side into scratch memory; a second dispatch combines them and goes on. For
    /// kernels with one fold stage and few outer points.
    Split {
        /// How many parts.
        parts: u32,
        /// How one part is folded: `Points` or `Team`.
        part: Box<LoopSchedule>,
        /// How the parts are combined: `Points` or `Team`.
        whole: Box<LoopSchedule>,
    },
}

/// How a matrix product is spread.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MatMulSchedule {
    /// What a workgroup makes, and how.
    pub spread: MatMulSpread,
    /// Parts of the summed extent that are summed side by side into scratch memory, where there are few workgroups otherwise; 1 for none. A
    /// second dispatch adds them up in order and goes on.
    pub splits: u32,
    /// How much of the summed extent each of them has; a multiple of what a step takes.
    pub part: u32,
    /// How elements of the left operand are fetched.
    pub lhs: Fill,
    /// How elements of the right operand are fetched.
    pub rhs: Fill,
    /// Neighbouring columns at which the epilogue is evaluated at once: 1 or 4.
    pub width: u32,
}

/// What a workgroup makes of a matrix product.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MatMulSpread {
    /// A tile of the result, step by step along the summed extent; a step's operands are in workgroup memory.
    Tiles {
        /// How it is shared out.
        tile: Tile,
    },
    /// A few points along the longer axis of the result, each with all of the shorter axis. Several invocations walk the summed extent of a
    /// point together, 4 elements at a time, straight from the operands: matrix times vector, and the like.
    Thin {
        /// The longer axis.
        long: MatrixAxis,
        /// Points of a workgroup along it.
        points: u32,
        /// Invocations that sum for each of them.
        lanes: u32,
    },
}

/// A block of a product that a workgroup makes in registers, from pieces of the operands in workgroup memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Rows and columns.
    pub extents: [u32; 2],
    /// Rows and columns of one invocation; columns are a multiple of 4.
    pub registers: [u32; 2],
    /// How much of the summed extent is in workgroup memory at once; a multiple of 4.
    pub depth: u32,
}

impl Tile {
    /// Invocations that have a part of it.
    pub fn invocations(&self) -> u32 {
        (self.extents[0] / self.registers[0]) * (self.extents[1] / self.registers[1])
    }
}

/// An axis of a matrix product's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixAxis {
    /// The left operand's.
    Rows,
    /// The right operand's.
    Columns,
}

/// How elements of an operand of a product are fetched, 4 at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fill {
    /// Along which of its axes those 4, and then the elements of neighbouring invocations, lie.
    pub along: Along,
    /// How many are made at once: 4 where the axis ends with none of four missing, else 1.
    pub width: u32,
}

/// An axis of an operand of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Along {
    /// The one that is summed over.
    Summed,
    /// The one that the result keeps.
    Kept,
}

/// How attention is spread: a workgroup takes a block of rows over all keys, or (gradients of keys and values) a block of keys over all rows.
/// What each of its dispatches makes is a matter of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttentionSchedule {
    /// How a block of scores is made: as many rows as keys.
    pub scores: Tile,
    /// How a block of factors is multiplied with values, or with gradients of the product: as many rows as `scores`, and so many of their
    /// columns at once.
    pub values: Tile,
    /// How a block of gradients of scores is multiplied with queries or keys.
    pub depths: Tile,
    /// How queries are fetched.
    pub query: Fills,
    /// How keys are fetched.
    pub key: Fills,
    /// How values are fetched.
    pub value: Fills,
    /// How gradients of the product are fetched.
    pub gradient: Fills,
}

/// How a matrix is fetched where it is summed over one of its axes, and where over the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fills {
    /// Its rows are kept, its columns summed over.
    pub rows: Fill,
    /// Its columns are kept, its rows summed over.
    pub columns: Fill,
}

/// How attention of 16-bit floats is spread over units that multiply fragments of 16 rows: each warp owns some rows, or (gradients of keys and
/// values) keys, and walks the others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WarpAttention {
    /// Whose rows are owned.
    pub rows: WarpTile,
    /// Whose keys are owned.
    pub keys: WarpTile,
    /// How factors come about in the forward direction.
    pub weights: Weights,
    /// Which keys a query sees, where their places tell and those that it does not see may be left out.
    pub limit: Option<KeyLimit>,
}

/// What a block of warps has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WarpTile {
    /// Warps of a block.
    pub warps: u32,
    /// Fragments of 16 rows that each of them owns.
    pub fragments: u32,
    /// Rows that it walks at once; a multiple of 16.
    pub step: u32,
}

impl WarpTile {
    /// Rows that a block owns.
    pub fn own(&self) -> u32 {
        16 * self.warps * self.fragments
    }
}

/// How factors come about in the forward direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Weights {
    /// From exponentials that are not yet divided by their sum: the product is divided in the end.
    Online,
    /// From weights: keys are walked twice, once for the sums.
    Whole,
}

/// How a running reduction is spread: a team of invocations for each outer point, or one invocation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScanSchedule {
    /// Invocations of a team; a power of two, 1 where each outer point has one invocation.
    pub lanes: u32,
    /// Teams of a workgroup.
    pub teams: u32,
    /// Neighbouring elements of an invocation in each step of a team; more than 1 are looked at twice.
    pub width: u32,
}

/// How indexed updates are spread.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ScatterSchedule {
    /// One invocation for every point of the independent axes walks the ordered ones.
    Walk {
        /// Invocations of a workgroup.
        workgroup: u32,
    },
    /// (index, position) pairs are sorted, stably, then one invocation combines each segment of equal indices. A workgroup sorts as many pairs
    /// as it has invocations; further dispatches merge.
    Sort {
        /// Invocations of a workgroup.
        workgroup: u32,
        /// Sorted runs that a step merges.
        ways: u32,
        /// Axes outside of the ordered ones that the index depends on, by which pairs are sorted first.
        axes: Vec<usize>,
    },
}
