//! What a node does: one plain enum of few families, attributes inside the variant, operands never.

mod backends;
mod check;
mod infer;
mod names;
mod scalar;
mod table;

use std::sync::Arc;

use smallvec::SmallVec;

pub use backends::{Standing, Strays, strays};
pub use infer::{Types, infer};
pub use scalar::ScalarOp;
pub use scalar::{DTypeRule, Exactness, FloatValue, IntValue, ScalarRow, Symmetry};
pub use table::{OpRow, op_rows};

use crate::{Backend, Code, DType, Diagnostic, Graph, HostData, Literal, Shape, TensorType};

/// An operation of the IR. Everything that decides types or gradients by op lives in this folder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// A named argument of the graph.
    Input {
        /// The user's name for it.
        name: Arc<str>,
        /// Its type.
        ty: TensorType,
    },
    /// A rank-0 number.
    Literal {
        /// The number.
        value: Literal,
        /// Where it lives.
        backend: Backend,
    },
    /// A tensor baked into the graph.
    Constant {
        /// The data.
        data: HostData,
        /// Where it lives.
        backend: Backend,
    },
    /// Each element's index along `axis`, as a number of the type's dtype.
    Iota {
        /// The type of the result.
        ty: TensorType,
        /// The axis that is counted along.
        axis: usize,
    },
    /// Random `u32` words by Philox 4x32-10 ([`crate::philox`]). Operand: a key, `u32[2]`.
    RandomBits {
        /// Shape of the result.
        shape: Shape,
        /// Draws from one key in different streams are independent.
        stream: u32,
    },
    /// An elementwise op on operands of one shape.
    Scalar(ScalarOp),
    /// Conversion of each element to another dtype.
    Cast(DType),
    /// Each element's bits read as another dtype of the same width.
    Bitcast(DType),
    /// `select(condition, then, otherwise)`, elementwise.
    Select,
    /// A reduction over axes; reduced axes stay, with extent 1.
    Reduce {
        /// What is computed.
        kind: ReduceKind,
        /// Over which axes; exactly one for arg reductions.
        axes: Axes,
    },
    /// A running reduction along one axis, inclusive.
    Scan {
        /// What is computed.
        kind: ScanKind,
        /// Along which axis.
        axis: usize,
        /// From which end.
        direction: Direction,
    },
    /// The same elements in row-major order under another shape.
    Reshape(Shape),
    /// Result axis `i` is operand axis `permutation[i]`.
    Permute(SmallVec<[usize; 4]>),
    /// Broadcast to a shape by the numpy rule: axes aligned at the end, extents equal or 1.
    Broadcast(Shape),
    /// A regular part: element `i` of an axis is element `start + i * step` of the operand.
    Slice {
        /// First index, per axis.
        starts: SmallVec<[usize; 4]>,
        /// Extents of the result.
        sizes: Shape,
        /// Distance between taken elements, per axis; never 0, may be negative.
        steps: SmallVec<[i64; 4]>,
    },
    /// The operand surrounded by a value.
    Pad {
        /// Elements before, per axis.
        low: SmallVec<[usize; 4]>,
        /// Elements after, per axis.
        high: SmallVec<[usize; 4]>,
        /// The value around it, of the operand's dtype.
        value: Literal,
    },
    /// Operands one after another along an axis.
    Concat {
        /// The axis along which they are joined.
        axis: usize,
    },
    /// Matrix product of `[..batch, m, k]` and `[..batch, k, n]`, batch extents equal.
    MatMul {
        /// How exact it must be, and whether sums of 8-bit integers are kept wide.
        precision: Precision,
    },
    /// `gather(x, indices)`: elements of `x` along `axis`. The first `batch` axes of both are aligned; the result has shape
    /// `x[..axis] ++ indices[batch..] ++ x[axis + 1..]`. Indices outside are clamped.
    Gather {
        /// The indexed axis of `x`.
        axis: usize,
        /// How many leading axes `x` and `indices` share; at most `axis`.
        batch: usize,
    },
    /// `scatter(target, indices, updates)`: the target with updates combined in at the places where [`Op::Gather`] would read.
    /// Updates whose index is outside are dropped.
    Scatter {
        /// How an update meets what is there.
        kind: ScatterKind,
        /// The indexed axis of the target.
        axis: usize,
        /// How many leading axes target and indices share; at most `axis`.
        batch: usize,
    },
    /// The operand on another backend: the only op that crosses.
    Transfer(Backend),
    /// The operand, with gradient 0.
    StopGradient,
    /// The operand, as a fresh value: marks what a gradient is taken with regard to. Vanishes in simplify.
    Mark,
    /// The operand, as a value that no rewrite looks through.
    Barrier,
    /// An op from outside, plain data: behaviour comes from its body or from the kernels given at compile time.
    Custom(Custom),
}

/// Normalised axes: ascending, without repeats, each below the rank they were made for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Axes(SmallVec<[usize; 4]>);

impl Axes {
    /// Normalises user axes, where -1 is the last one. K0304 names an axis out of range or given twice.
    ///
    /// ```
    /// use kiln_ir::Axes;
    /// assert_eq!(&*Axes::new(&[-1, 0], 3).unwrap(), &[0, 2]);
    /// assert!(Axes::new(&[3], 3).is_err());
    /// ```
    pub fn new(axes: &[isize], rank: usize) -> Result<Axes, Diagnostic> {
        let mut normal = SmallVec::new();
        for &axis in axes {
            let axis = normalize_axis(axis, rank)?;
            if normal.contains(&axis) {
                return Err(Diagnostic::new(Code::K0304, format!("axis {axis} is given twice")));
            }
            normal.push(axis);
        }
        normal.sort_unstable();
        Ok(Axes(normal))
    }

    /// All axes of a rank.
    pub fn all(rank: usize) -> Axes {
        Axes((0..rank).collect())
    }

    /// One axis.
    pub fn one(axis: usize) -> Axes {
        Axes(SmallVec::from_slice(&[axis]))
    }

    /// From indices in any order; repeats are dropped.
    pub fn from_indices(indices: impl IntoIterator<Item = usize>) -> Axes {
        let mut axes: SmallVec<[usize; 4]> = indices.into_iter().collect();
        axes.sort_unstable();
        axes.dedup();
        Axes(axes)
    }
}

impl std::ops::Deref for Axes {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.0
    }
}

/// A user's axis, where -1 is the last one, as an index. K0304 where it is out of range.
pub fn normalize_axis(axis: isize, rank: usize) -> Result<usize, Diagnostic> {
    let signed = if axis < 0 { axis + rank as isize } else { axis };
    match usize::try_from(signed) {
        Ok(index) if index < rank => Ok(index),
        _ => {
            Err(Diagnostic::new(Code::K0304, format!("axis {axis} is out of range for rank {rank}")).help(match rank {
                0 => "a scalar has no axes".to_owned(),
                _ => format!("axes of this tensor run from -{rank} to {}", rank - 1),
            }))
        }
    }
}

/// The reductions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReduceKind {
    /// Sum; 0 over nothing.
    Sum,
    /// Product; 1 over nothing.
    Prod,
    /// Largest; NaN if any is. Of bools: any.
    Max,
    /// Smallest; NaN if any is. Of bools: all.
    Min,
    /// `i32` index of the first NaN, else of the first largest.
    ArgMax,
    /// `i32` index of the first NaN, else of the first smallest.
    ArgMin,
}

impl ReduceKind {
    /// Every reduction.
    pub const ALL: [ReduceKind; 6] =
        [ReduceKind::Sum, ReduceKind::Prod, ReduceKind::Max, ReduceKind::Min, ReduceKind::ArgMax, ReduceKind::ArgMin];

    /// The name after `reduce.` in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceKind::Sum => "sum",
            ReduceKind::Prod => "prod",
            ReduceKind::Max => "max",
            ReduceKind::Min => "min",
            ReduceKind::ArgMax => "argmax",
            ReduceKind::ArgMin => "argmin",
        }
    }

    /// Whether the result is an index.
    pub const fn is_arg(self) -> bool {
        matches!(self, ReduceKind::ArgMax | ReduceKind::ArgMin)
    }
}

/// The scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScanKind {
    /// Running sum.
    Sum,
    /// Running product.
    Prod,
    /// Running maximum; NaN from the first NaN on.
    Max,
    /// Running minimum; NaN from the first NaN on.
    Min,
}

impl ScanKind {
    /// Every scan.
    pub const ALL: [ScanKind; 4] = [ScanKind::Sum, ScanKind::Prod, ScanKind::Max, ScanKind::Min];

    /// The name after `scan.` in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            ScanKind::Sum => "sum",
            ScanKind::Prod => "prod",
            ScanKind::Max => "max",
            ScanKind::Min => "min",
        }
    }
}

/// From which end a scan runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From index 0 up.
    Forward,
    /// From the last index down.
    Reverse,
}

/// How a scatter combines an update with what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScatterKind {
    /// Added; every duplicate counts.
    Add,
    /// Replaced; the last duplicate in index order wins.
    Set,
    /// The larger one stays; NaN wins.
    Max,
}

impl ScatterKind {
    /// Every scatter.
    pub const ALL: [ScatterKind; 3] = [ScatterKind::Add, ScatterKind::Set, ScatterKind::Max];

    /// The name after `scatter.` in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            ScatterKind::Add => "add",
            ScatterKind::Set => "set",
            ScatterKind::Max => "max",
        }
    }
}

/// How exact a matrix product must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// True `f32`, and any other dtype by its own rules.
    #[default]
    Full,
    /// Operands may be rounded to TF32 where the device has it.
    Tf32,
    /// Of 8-bit integers, summed in `i32`, which is the result's dtype: exact for sums of up to 131071 products of `i8`, 33025 of `u8`.
    Wide,
}

/// A custom op's data.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Custom {
    /// Its registered name.
    pub name: Arc<str>,
    /// Named attributes.
    pub attributes: Vec<(Arc<str>, Attribute)>,
    /// Declared result types.
    pub results: SmallVec<[TensorType; 1]>,
    /// What it computes in terms of other ops: inputs in operand order, outputs in result order.
    pub body: Option<Arc<Graph>>,
}

/// The value of a custom op's attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attribute {
    /// A number.
    Number(Literal),
    /// Integers.
    Ints(Vec<i64>),
    /// Text.
    Text(Arc<str>),
}
