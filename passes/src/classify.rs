//! What the passes need to know of an op: how it takes part in fusion, and what it costs.

use kiln_ir::{Op, ScalarOp};

/// How an op takes part in fusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// In memory from the start.
    Leaf,
    /// Index arithmetic: no kernel of its own.
    View,
    /// A value per point, computed wherever it is needed.
    Point,
    /// Ends a fold.
    Reduce,
    /// Its own kernel form, which reads what it needs by inlining or from memory.
    Anchor,
}

/// The class of an op. Of custom ops only those with a kernel of their own are left when anyone asks.
pub(crate) fn class(op: &Op) -> Class {
    match op {
        Op::Input { .. } | Op::Constant { .. } => Class::Leaf,
        Op::Literal { .. }
        | Op::Iota { .. }
        | Op::RandomBits { .. }
        | Op::Scalar(_)
        | Op::Cast(_)
        | Op::Bitcast(_)
        | Op::Select
        | Op::Gather { .. } => Class::Point,
        Op::Reduce { .. } => Class::Reduce,
        Op::Reshape(_)
        | Op::Permute(_)
        | Op::Broadcast(_)
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Concat { .. }
        | Op::StopGradient
        | Op::Mark
        | Op::Barrier => Class::View,
        // What only names the backend that a value is on already has gone when anyone asks: the rest moves bytes.
        Op::MatMul { .. } | Op::Scan { .. } | Op::Scatter { .. } | Op::Custom(_) | Op::Transfer(_) => Class::Anchor,
    }
}

/// The cost of computing one element, where 1 is an addition.
pub(crate) fn weight(op: &Op) -> u32 {
    match op {
        Op::Scalar(scalar) => scalar_weight(*scalar),
        Op::RandomBits { .. } => 24,
        Op::Gather { .. } => 3,
        Op::Pad { .. } | Op::Concat { .. } => 2,
        Op::Cast(_) | Op::Bitcast(_) | Op::Select | Op::Iota { .. } => 1,
        Op::Input { .. }
        | Op::Constant { .. }
        | Op::Literal { .. }
        | Op::Reduce { .. }
        | Op::Scan { .. }
        | Op::Reshape(_)
        | Op::Permute(_)
        | Op::Broadcast(_)
        | Op::Slice { .. }
        | Op::MatMul { .. }
        | Op::Scatter { .. }
        | Op::Transfer(_)
        | Op::StopGradient
        | Op::Mark
        | Op::Barrier
        | Op::Custom(_) => 0,
    }
}

fn scalar_weight(op: ScalarOp) -> u32 {
    match op {
        ScalarOp::Neg
        | ScalarOp::Abs
        | ScalarOp::Sign
        | ScalarOp::Floor
        | ScalarOp::Ceil
        | ScalarOp::Round
        | ScalarOp::Trunc
        | ScalarOp::Not
        | ScalarOp::IsNan
        | ScalarOp::IsInf
        | ScalarOp::IsFinite
        | ScalarOp::Add
        | ScalarOp::Sub
        | ScalarOp::Mul
        | ScalarOp::Max
        | ScalarOp::Min
        | ScalarOp::And
        | ScalarOp::Or
        | ScalarOp::Xor
        | ScalarOp::Shl
        | ScalarOp::Shr
        | ScalarOp::Eq
        | ScalarOp::Ne
        | ScalarOp::Lt
        | ScalarOp::Le
        | ScalarOp::Gt
        | ScalarOp::Ge
        | ScalarOp::Clamp => 1,
        ScalarOp::Div | ScalarOp::Rem | ScalarOp::Sqrt | ScalarOp::Rsqrt | ScalarOp::Recip => 4,
        ScalarOp::Exp
        | ScalarOp::Exp2
        | ScalarOp::Expm1
        | ScalarOp::Log
        | ScalarOp::Log2
        | ScalarOp::Log1p
        | ScalarOp::Sin
        | ScalarOp::Cos
        | ScalarOp::Tanh
        | ScalarOp::Sigmoid => 8,
        ScalarOp::Tan
        | ScalarOp::Asin
        | ScalarOp::Acos
        | ScalarOp::Atan
        | ScalarOp::Sinh
        | ScalarOp::Cosh
        | ScalarOp::Asinh
        | ScalarOp::Acosh
        | ScalarOp::Atanh
        | ScalarOp::Erf
        | ScalarOp::Pow
        | ScalarOp::Atan2 => 16,
    }
}
