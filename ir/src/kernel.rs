//! Kernels: what one launch computes, as plain data.
//!
//! A kernel is made by the passes and consumed by every target: the CPU interprets it in strips, the emitters print it. It names no
//! user variable and no source line, so that equal work has equal kernels: `Hash` and `Eq` are the compile-cache key. What runs in
//! lanes, tile sizes and splits are a *schedule*, which each target chooses from its own limits; a kernel is device-free.
//!
//! The forms share one vocabulary: an iteration space of axes; [`Block`]s of SSA [`Instruction`]s evaluated at a point of that space;
//! [`Affine`] maps from points to element offsets. A [`LoopKernel`] is an outer space, an inner space, and a list of stages:
//! map = `[Point]`, sum = `[Fold, Point]`, softmax = `[Fold max, Fold sum, Each]`.
//!
//! Numeric contract, the same on every target: each instruction rounds to its dtype; `Fma` is the only contraction; folds accumulate in
//! [`Fold::accumulate`], in any order, and round once to the result's dtype.

mod attention;
mod limit;

use std::sync::Arc;

use smallvec::SmallVec;

pub use attention::{
    AttentionGradient, AttentionKernel, AttentionPass, AttentionResult, AttentionRole, AttentionSpace, GradientZeros,
    SoftmaxGradient,
};
pub use limit::{KeyLimit, LimitFill};

use crate::{Attribute, DType, Direction, Literal, Precision, ReduceKind, ScalarOp, ScanKind, ScatterKind, Shape};

/// An SSA register of a kernel: one value per point (or per outer point). Numbers are unique in a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg(pub u32);

/// Index into a kernel's list of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferIndex(pub u32);

/// One buffer that a kernel is given at launch, elements dense from offset 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Buffer {
    /// Element type in memory.
    pub dtype: DType,
    /// Number of elements.
    pub len: usize,
    /// Read, written, or both by the same lane at the same element.
    pub access: Access,
}

/// How a kernel touches a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Only loaded from.
    Read,
    /// Only stored to; every element that is live afterwards is stored.
    Write,
    /// Updated in place: an element is only loaded by the lane that stores it, before it stores it; or (scatter) initialised by the
    /// executor with a copy of the target and updated where indices point.
    ReadWrite,
}

/// An affine map from a point of the kernel's space to an integer: `offset + sum(strides[axis] * point[axis])`.
/// `strides` covers all axes of the space, outer first, then inner; missing trailing strides are 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Affine {
    /// The value at the origin.
    pub offset: i64,
    /// Change per step along each axis.
    pub strides: SmallVec<[i64; 6]>,
}

impl Affine {
    /// The constant map.
    pub fn constant(offset: i64) -> Affine {
        Affine { offset, strides: SmallVec::new() }
    }

    /// The stride along an axis, 0 where none is stored.
    pub fn stride(&self, axis: usize) -> i64 {
        self.strides.get(axis).copied().unwrap_or(0)
    }

    /// The value at a point.
    pub fn at(&self, point: &[usize]) -> i64 {
        self.offset + self.strides.iter().zip(point).map(|(&stride, &index)| stride * index as i64).sum::<i64>()
    }

    /// Smallest and largest value over a space without empty axes.
    pub fn range(&self, extents: &[usize]) -> (i64, i64) {
        let reach = |wanted: fn(i64) -> bool| -> i64 {
            let axes = self.strides.iter().zip(extents);
            axes.filter(|(stride, _)| wanted(**stride)).map(|(&stride, &extent)| stride * (extent as i64 - 1)).sum()
        };
        (self.offset + reach(|stride| stride < 0), self.offset + reach(|stride| stride > 0))
    }
}

/// Where a load or store goes: an affine part plus computed indices, each times a stride.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Address {
    /// The part known from the point alone, in elements.
    pub affine: Affine,
    /// Registers of dtype `i64` (already clamped into range), each with its stride in elements.
    pub computed: SmallVec<[(Reg, i64); 1]>,
}

/// A condition on the point: `0 <= at < extent`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bound {
    /// The index that must be inside.
    pub at: Affine,
    /// The extent it must be below.
    pub extent: usize,
}

/// What an instruction computes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A constant.
    Literal(Literal),
    /// The value of an affine map, as a number of the instruction's dtype (wrapped for narrow integers, rounded for floats).
    Index(Affine),
    /// An element of a buffer, or zero where a bound does not hold (then nothing is read).
    Load {
        /// Which buffer.
        buffer: BufferIndex,
        /// Where in it.
        address: Address,
        /// All must hold for the element to be read.
        bounds: Vec<Bound>,
    },
    /// Whether all bounds hold, as bool.
    Within(Vec<Bound>),
    /// An elementwise op on registers of one dtype.
    Scalar(ScalarOp, SmallVec<[Reg; 3]>),
    /// `a * b + c`, rounded once.
    Fma(Reg, Reg, Reg),
    /// Conversion to the instruction's dtype.
    Cast(Reg),
    /// The bits read as the instruction's dtype.
    Bitcast(Reg),
    /// `if condition { then } else { otherwise }`; both sides are evaluated.
    Select {
        /// A bool.
        condition: Reg,
        /// The value where it holds.
        then: Reg,
        /// The value where it does not.
        otherwise: Reg,
    },
    /// A word of a random draw ([`crate::philox::element`]), `u32`.
    Random {
        /// The two key words, `u32`.
        key: [Reg; 2],
        /// The stream.
        stream: u32,
        /// Which element of the draw, `i64`.
        index: Reg,
    },
}

impl Operation {
    /// The registers that it reads.
    pub fn operands(&self) -> SmallVec<[Reg; 3]> {
        match self {
            Operation::Literal(_) | Operation::Index(_) | Operation::Within(_) => SmallVec::new(),
            Operation::Load { address, .. } => address.computed.iter().map(|&(reg, _)| reg).collect(),
            Operation::Scalar(_, operands) => operands.clone(),
            Operation::Fma(a, b, c) => SmallVec::from_slice(&[*a, *b, *c]),
            Operation::Cast(operand) | Operation::Bitcast(operand) => SmallVec::from_slice(&[*operand]),
            Operation::Select { condition, then, otherwise } => SmallVec::from_slice(&[*condition, *then, *otherwise]),
            Operation::Random { key, index, .. } => SmallVec::from_slice(&[key[0], key[1], *index]),
        }
    }

    /// Gives the registers that it reads other names.
    pub fn rename(&mut self, named: &dyn Fn(Reg) -> Reg) {
        match self {
            Operation::Literal(_) | Operation::Index(_) | Operation::Within(_) => {}
            Operation::Load { address, .. } => address.computed.iter_mut().for_each(|(reg, _)| *reg = named(*reg)),
            Operation::Scalar(_, operands) => operands.iter_mut().for_each(|reg| *reg = named(*reg)),
            Operation::Fma(a, b, c) => [a, b, c].into_iter().for_each(|reg| *reg = named(*reg)),
            Operation::Cast(operand) | Operation::Bitcast(operand) => *operand = named(*operand),
            Operation::Select { condition, then, otherwise } => {
                [condition, then, otherwise].into_iter().for_each(|reg| *reg = named(*reg));
            }
            Operation::Random { key, index, .. } => key.iter_mut().chain([index]).for_each(|reg| *reg = named(*reg)),
        }
    }
}

/// One SSA instruction: `result: dtype = operation`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Instruction {
    /// The register it defines.
    pub result: Reg,
    /// The dtype of the result; floats are rounded to it.
    pub dtype: DType,
    /// What is computed.
    pub operation: Operation,
}

/// A value written to a buffer, of the buffer's dtype.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Store {
    /// Which buffer.
    pub buffer: BufferIndex,
    /// Where; different points write different elements.
    pub address: Affine,
    /// What.
    pub value: Reg,
}

/// Straight-line code evaluated at a point. All loads happen before all stores.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Block {
    /// Instructions, operands first.
    pub instructions: Vec<Instruction>,
    /// Results that leave the kernel here.
    pub stores: Vec<Store>,
}

impl Block {
    /// Every affine map of the block, in order: indices, addresses and bounds.
    pub fn affines_mut(&mut self) -> impl Iterator<Item = &mut Affine> {
        let own = self.instructions.iter_mut().flat_map(|instruction| -> SmallVec<[&mut Affine; 2]> {
            match &mut instruction.operation {
                Operation::Index(affine) => SmallVec::from_iter([affine]),
                Operation::Load { address, bounds, .. } => {
                    let bounds = bounds.iter_mut().map(|bound| &mut bound.at);
                    std::iter::once(&mut address.affine).chain(bounds).collect()
                }
                Operation::Within(bounds) => bounds.iter_mut().map(|bound| &mut bound.at).collect(),
                Operation::Literal(_)
                | Operation::Scalar(..)
                | Operation::Fma(..)
                | Operation::Cast(_)
                | Operation::Bitcast(_)
                | Operation::Select { .. }
                | Operation::Random { .. } => SmallVec::new(),
            }
        });
        own.chain(self.stores.iter_mut().map(|store| &mut store.address))
    }
}

/// One accumulator of a fold stage.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fold {
    /// The reduction. Arg reductions give the row-major index in the inner space, as `i32`.
    pub kind: ReduceKind,
    /// The value accumulated, defined in the stage's block or seen from outside.
    pub value: Reg,
    /// Dtype of the accumulator.
    pub accumulate: DType,
    /// The register that holds the result from the next stage on, one per outer point.
    pub result: Reg,
    /// Its dtype.
    pub dtype: DType,
}

/// A stage of a loop kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Once per outer point. Its registers are seen by all later stages.
    Point(Block),
    /// For every inner point; its accumulators are seen by all later stages, its other registers by none.
    Fold {
        /// Evaluated at every inner point; stores nothing.
        block: Block,
        /// What is accumulated.
        folds: Vec<Fold>,
    },
    /// For every inner point; registers are seen by no other stage.
    Each(Block),
}

/// Map, reduce and row kernels: stages run in order at every outer point; outer points are independent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LoopKernel {
    /// What is given at launch.
    pub buffers: Vec<Buffer>,
    /// Extents of the outer space, outermost first; empty for a single point.
    pub outer: SmallVec<[usize; 6]>,
    /// Extents of the inner space, iterated row-major; empty (one inner point) for a map.
    pub inner: SmallVec<[usize; 6]>,
    /// What happens at each outer point.
    pub stages: Vec<Stage>,
}

/// A loop kernel inside a [`HorizontalKernel`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// What it computes, in buffers of its own numbering.
    pub kernel: LoopKernel,
    /// For each of its buffers, the launch's; no two are the same.
    pub buffers: Vec<BufferIndex>,
}

impl Part {
    /// Its own number of one of the launch's buffers.
    pub fn local(&self, buffer: BufferIndex) -> Option<BufferIndex> {
        self.buffers.iter().position(|&bound| bound == buffer).map(|position| BufferIndex(position as u32))
    }
}

/// Loop kernels over spaces of their own in one launch: the updates of all parameters by an optimizer, say. Parts do not see each other: what
/// one writes no other touches, so that they may run in any order and side by side.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HorizontalKernel {
    /// What is given at launch; each is some part's.
    pub buffers: Vec<Buffer>,
    /// At least two.
    pub parts: Vec<Part>,
}

/// One operand of a matrix product: a block over the space `[..batch, row, column]`, evaluated at load. Most often a single load.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MatrixOperand {
    /// The code that makes an element.
    pub block: Block,
    /// The element, of the product's dtype.
    pub value: Reg,
}

impl MatrixOperand {
    /// Buffer and map where the operand is read straight from memory with strides.
    pub fn plain(&self) -> Option<(BufferIndex, &Affine)> {
        match self.block.instructions.as_slice() {
            [
                Instruction {
                    result,
                    operation: Operation::Load { buffer, address: Address { affine, computed }, bounds },
                    ..
                },
            ] if *result == self.value && computed.is_empty() && bounds.is_empty() => Some((*buffer, affine)),
            _ => None,
        }
    }
}

/// A (batched) matrix product with an epilogue. Operand space `[..batch, m, k]` and `[..batch, k, n]`, result space `[..batch, m, n]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MatMulKernel {
    /// What is given at launch.
    pub buffers: Vec<Buffer>,
    /// Batch extents.
    pub batch: SmallVec<[usize; 6]>,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// The summed extent.
    pub k: usize,
    /// Dtype of the operands.
    pub dtype: DType,
    /// Dtype of the sums.
    pub accumulate: DType,
    /// How exact it must be; `Wide` sums 8-bit integers in `accumulate`, which is then the product's dtype as well.
    pub precision: Precision,
    /// Left operand.
    pub lhs: MatrixOperand,
    /// Right operand.
    pub rhs: MatrixOperand,
    /// The register that holds the product, rounded to [`MatMulKernel::product_dtype`], in the epilogue.
    pub product: Reg,
    /// Evaluated at every result point; stores the results.
    pub epilogue: Block,
}

impl MatMulKernel {
    /// Dtype of the product in the epilogue.
    pub fn product_dtype(&self) -> DType {
        match self.precision {
            Precision::Full | Precision::Tf32 => self.dtype,
            Precision::Wide => self.accumulate,
        }
    }
}

/// A running reduction along one axis. Space: `outer` then the scanned axis, last.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScanKernel {
    /// What is given at launch.
    pub buffers: Vec<Buffer>,
    /// All axes but the scanned one.
    pub outer: SmallVec<[usize; 6]>,
    /// Extent of the scanned axis.
    pub extent: usize,
    /// What is computed.
    pub kind: ScanKind,
    /// From which end.
    pub direction: Direction,
    /// Dtype of the running value.
    pub accumulate: DType,
    /// Makes the scanned value at a point.
    pub block: Block,
    /// That value.
    pub value: Reg,
    /// Dtype of the result.
    pub dtype: DType,
    /// Where the running value goes.
    pub output: BufferIndex,
    /// At which element.
    pub address: Affine,
}

/// Updates combined into a target. Space: the axes of the updates in the order `before ++ indices ++ after`; points that differ only in
/// `indices` axes may meet at one element, where they combine in row-major order; all other axes are independent.
///
/// The output buffer is `ReadWrite` and holds the target when the kernel starts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScatterKernel {
    /// What is given at launch.
    pub buffers: Vec<Buffer>,
    /// Extents of the whole space.
    pub space: SmallVec<[usize; 6]>,
    /// The range of axes that are walked in order: the indices' own.
    pub ordered: std::ops::Range<usize>,
    /// How updates combine.
    pub kind: ScatterKind,
    /// Makes index and update at a point.
    pub block: Block,
    /// The index, `i64`, may be out of range: then the update is dropped.
    pub index: Reg,
    /// The update, of the output's dtype.
    pub update: Reg,
    /// Extent of the indexed axis.
    pub extent: usize,
    /// The output.
    pub output: BufferIndex,
    /// The element at index 0.
    pub address: Affine,
    /// Elements between neighbours along the indexed axis.
    pub stride: i64,
}

/// A tensor that a custom kernel is given whole, dense and row-major.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CustomTensor {
    /// The buffer that holds it.
    pub buffer: BufferIndex,
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Shape,
}

/// A custom op's own kernel. What it does is not here: the name and the attributes find it in the [`CustomOps`](crate::CustomOps) that the
/// plan is run with. The name is the op's identity, no variable of the user's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CustomKernel {
    /// The op.
    pub name: Arc<str>,
    /// Its attributes.
    pub attributes: Vec<(Arc<str>, Attribute)>,
    /// What is given at launch.
    pub buffers: Vec<Buffer>,
    /// The operands, in order; one buffer may be several.
    pub operands: Vec<CustomTensor>,
    /// The results, in order, each in a buffer of its own, all of which are written.
    pub results: Vec<CustomTensor>,
}

/// What one launch (or, on the CPU, one parallel region) computes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Map, reduce, row, copy.
    Loop(LoopKernel),
    /// Several of those side by side.
    Horizontal(HorizontalKernel),
    /// Matrix product with epilogue.
    MatMul(MatMulKernel),
    /// Softmax of one product, times another, forward or backward.
    Attention(Box<AttentionKernel>),
    /// Running reduction.
    Scan(ScanKernel),
    /// Indexed updates.
    Scatter(ScatterKernel),
    /// A custom op's own function or text.
    Custom(CustomKernel),
}

/// The form of a kernel, as reports name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Form {
    /// Elementwise, any number of results.
    Map,
    /// One fold stage and what follows per outer point.
    Reduce,
    /// Folds and elementwise stages over one inner space.
    Row,
    /// Several maps, reductions and rows over spaces of their own.
    Horizontal,
    /// Matrix product.
    MatMul,
    /// Softmax of one product, times another, forward or backward.
    Attention,
    /// Running reduction.
    Scan,
    /// Indexed updates.
    Scatter,
    /// A custom op's own kernel.
    Custom,
}

impl Form {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Form::Map => "map",
            Form::Reduce => "reduce",
            Form::Row => "row",
            Form::Horizontal => "horizontal",
            Form::MatMul => "matmul",
            Form::Attention => "attention",
            Form::Scan => "scan",
            Form::Scatter => "scatter",
            Form::Custom => "custom",
        }
    }
}

impl Kernel {
    /// What is given at launch, in order.
    pub fn buffers(&self) -> &[Buffer] {
        match self {
            Kernel::Loop(kernel) => &kernel.buffers,
            Kernel::Horizontal(kernel) => &kernel.buffers,
            Kernel::MatMul(kernel) => &kernel.buffers,
            Kernel::Attention(kernel) => &kernel.buffers,
            Kernel::Scan(kernel) => &kernel.buffers,
            Kernel::Scatter(kernel) => &kernel.buffers,
            Kernel::Custom(kernel) => &kernel.buffers,
        }
    }

    /// Its form.
    pub fn form(&self) -> Form {
        match self {
            Kernel::Loop(kernel) => kernel.form(),
            Kernel::Horizontal(_) => Form::Horizontal,
            Kernel::MatMul(_) => Form::MatMul,
            Kernel::Attention(_) => Form::Attention,
            Kernel::Scan(_) => Form::Scan,
            Kernel::Scatter(_) => Form::Scatter,
            Kernel::Custom(_) => Form::Custom,
        }
    }
}

impl LoopKernel {
    /// Map, reduce or row, by its stages.
    pub fn form(&self) -> Form {
        let folds = self.stages.iter().filter(|stage| matches!(stage, Stage::Fold { .. })).count();
        let each = self.stages.iter().any(|stage| matches!(stage, Stage::Each(_)));
        match (folds, each) {
            (0, _) => Form::Map,
            (1, false) => Form::Reduce,
            _ => Form::Row,
        }
    }
}
