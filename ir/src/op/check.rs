//! The checks that many typing rules share: one dtype, one shape, a dtype of the right kind.

use super::Op;
use crate::{Code, DType, Diagnostic, Kind, Shape, TensorType};

/// All of `operands` share one dtype (K0402).
pub(super) fn one_dtype(op: &Op, operands: &[&TensorType]) -> Result<(), Diagnostic> {
    let Some(first) = operands.first() else { return Ok(()) };
    match operands.iter().find(|ty| ty.dtype != first.dtype) {
        None => Ok(()),
        Some(other) => Err(different_dtypes(op, first.dtype, other.dtype)),
    }
}

fn different_dtypes(op: &Op, a: DType, b: DType) -> Diagnostic {
    let message = if a.kind() == b.kind() {
        format!("dtypes differ: {a} and {b}")
    } else {
        format!("Should be {}, got {}", a.kind(), b.kind())
    };
    Diagnostic::new(Code::K0402, message)
        .label(format!("`{}` takes operands of one dtype, got {a} and {b}", op.name()))
        .help(format!("cast one with `.cast(DType::{})`; dtypes are never promoted silently", variant(wider(a, b))))
}

fn wider(a: DType, b: DType) -> DType {
    let rank = |dtype: DType| (matches!(dtype.kind(), Kind::Float), dtype.kind() != Kind::Bool, dtype.size());
    if rank(b) > rank(a) { b } else { a }
}

/// The name of a dtype as a Rust variant: `F32`.
pub(super) fn variant(dtype: DType) -> String {
    format!("{dtype:?}")
}

/// All of `operands` share one shape (K0302); nothing broadcasts in the IR.
pub(super) fn one_shape(op: &Op, operands: &[&TensorType]) -> Result<(), Diagnostic> {
    let Some(first) = operands.first() else { return Ok(()) };
    match operands.iter().find(|ty| ty.shape != first.shape) {
        None => Ok(()),
        Some(other) => Err(shapes_differ(op, &first.shape, &other.shape)),
    }
}

fn shapes_differ(op: &Op, a: &Shape, b: &Shape) -> Diagnostic {
    Diagnostic::new(Code::K0302, format!("shapes {a} and {b} differ"))
        .label(format!("operands of `{}` must have one shape", op.name()))
        .help("broadcast one of them; the IR never broadcasts by itself")
}

/// A dtype of the wanted kind (K0401 float, K0403 bool, K0404 int).
pub(super) fn should_be(op: &Op, wanted: Kind, got: DType) -> Diagnostic {
    let code = match wanted {
        Kind::Float => Code::K0401,
        Kind::Bool => Code::K0403,
        Kind::Int => Code::K0404,
    };
    let target = match wanted {
        Kind::Float => "F32",
        Kind::Bool => "Bool",
        Kind::Int => "I32",
    };
    Diagnostic::new(code, format!("Should be {wanted}, got {}", got.kind()))
        .label(format!("`{}` takes {wanted} operands, this one is {got}", op.name()))
        .help(format!("cast it with `.cast(DType::{target})`"))
}

/// A float or an integer (K0405).
pub(super) fn number(op: &Op, ty: &TensorType) -> Result<(), Diagnostic> {
    if ty.dtype.kind() != Kind::Bool {
        return Ok(());
    }
    Err(Diagnostic::new(Code::K0405, "Should be a number, got bool")
        .label(format!("`{}` does not count or compare bools", op.name()))
        .help("cast it first, for example with `.cast(DType::I32)`"))
}

/// An axis below the rank (K0304).
pub(super) fn axis(op: &Op, axis: usize, rank: usize) -> Result<(), Diagnostic> {
    if axis < rank {
        return Ok(());
    }
    Err(Diagnostic::new(Code::K0304, format!("axis {axis} is out of range for rank {rank}"))
        .label(format!("`{}` has no such axis", op.name())))
}

/// A rank (K0309).
pub(super) fn rank(op: &Op, what: &str, wanted: usize, got: usize) -> Result<(), Diagnostic> {
    if wanted == got {
        return Ok(());
    }
    Err(Diagnostic::new(Code::K0309, format!("expected rank {wanted}, got {got}"))
        .label(format!("{what} of `{}` has the wrong rank", op.name())))
}

/// A result whose bytes can be counted (K0310).
pub(super) fn size(op: &Op, ty: &TensorType) -> Result<(), Diagnostic> {
    let bytes = ty.shape.checked_num_elements().and_then(|n| n.checked_mul(ty.dtype.size()));
    if bytes.is_some_and(|bytes| isize::try_from(bytes).is_ok()) {
        return Ok(());
    }
    Err(Diagnostic::new(Code::K0310, format!("a tensor {}{} is too large to address", ty.dtype, ty.shape))
        .label(format!("the result of `{}`", op.name())))
}
