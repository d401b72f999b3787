//! Operands of elementwise ops: tensors and weak scalars, brought to one shape.
//!
//! Checks come in the order of what a user must mend first: scopes, backends, dtypes, shapes; and they are made on the operands as the
//! user gave them, before any broadcast is inserted, so that errors show those.

use kiln_ir::{Backend, Code, Diagnostic, GraphBuilder, Loc, Op, ScalarOp, Shape, TensorType, Value, infer, strays};
use smallvec::SmallVec;

use crate::Tensor;
use crate::data::Scalar;
use crate::session::record;

/// A tensor or a number.
#[derive(Clone, Debug)]
pub enum Operand {
    /// A tensor.
    Tensor(Tensor),
    /// A number that takes the dtype of the tensor beside it.
    Scalar(Scalar),
}

impl From<Tensor> for Operand {
    fn from(tensor: Tensor) -> Operand {
        Operand::Tensor(tensor)
    }
}

impl From<&Tensor> for Operand {
    fn from(tensor: &Tensor) -> Operand {
        Operand::Tensor(tensor.clone())
    }
}

impl From<&Operand> for Operand {
    fn from(operand: &Operand) -> Operand {
        operand.clone()
    }
}

impl From<Scalar> for Operand {
    fn from(scalar: Scalar) -> Operand {
        Operand::Scalar(scalar)
    }
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl From<$number> for Operand {
            fn from(value: $number) -> Operand {
                Operand::Scalar(Scalar::from(value))
            }
        }
    )*};
}

numbers! { f32 f64 i8 u8 i32 u32 i64 bool }

impl Operand {
    fn tensor(&self) -> Option<&Tensor> {
        match self {
            Operand::Tensor(tensor) => Some(tensor),
            Operand::Scalar(_) => None,
        }
    }
}

/// Records an elementwise op on operands of which at least one is a tensor. Numbers take the dtype of the first tensor.
#[track_caller]
pub(crate) fn elementwise(op: Op, operands: &[Operand]) -> Tensor {
    let tensors: SmallVec<[&Tensor; 3]> = operands.iter().filter_map(Operand::tensor).collect();
    record(&tensors, |state, values, loc| {
        let builder = &mut state.builder;
        check_backends(builder, &op, operands, values, loc)?;
        let like = builder.ty(values[0]).clone();
        let mut tickets = values.iter().copied();
        let mut all: SmallVec<[Value; 4]> = SmallVec::new();
        for operand in operands {
            all.push(match operand {
                Operand::Tensor(_) => tickets.next().expect("one value for each tensor"),
                Operand::Scalar(scalar) => literal(builder, *scalar, &like, loc)
                    .map_err(|diagnostic| builder.explain(diagnostic, &op, values, loc))?,
            });
        }
        combine(builder, op, &all, loc)
    })
}

/// K0201 where the tensors among the operands are on different backends: the numbers beside them are on none.
fn check_backends(
    builder: &GraphBuilder,
    op: &Op,
    operands: &[Operand],
    values: &[Value],
    loc: Loc,
) -> Result<(), Diagnostic> {
    let backends: SmallVec<[Backend; 3]> = values.iter().map(|&value| builder.ty(value).backend).collect();
    let Some(strays) = strays(&backends) else { return Ok(()) };
    let places = (0..operands.len()).filter(|&place| operands[place].tensor().is_some());
    let roles: Vec<String> = places.map(|place| op.role(place, operands.len())).collect();
    let diagnostic = strays.of_operands(&op.name(), &roles, &backends).at(loc).in_op(op.name());
    let noted = roles.iter().zip(values);
    Err(noted.fold(diagnostic, |diagnostic, (role, &value)| builder.note(diagnostic, role, value)))
}

/// A weak number as a rank-0 literal of the dtype and backend of `like`.
pub(crate) fn literal(
    builder: &mut GraphBuilder,
    scalar: Scalar,
    like: &TensorType,
    loc: Loc,
) -> Result<Value, Diagnostic> {
    let value = scalar.literal(like.dtype)?;
    builder.value(Op::Literal { value, backend: like.backend }, &[], loc)
}

/// A binary elementwise op.
#[track_caller]
pub(crate) fn binary(op: ScalarOp, lhs: impl Into<Operand>, rhs: impl Into<Operand>) -> Tensor {
    elementwise(Op::Scalar(op), &[lhs.into(), rhs.into()])
}

/// Adds an elementwise op on operands that broadcast to one shape.
pub(crate) fn combine(builder: &mut GraphBuilder, op: Op, operands: &[Value], loc: Loc) -> Result<Value, Diagnostic> {
    let first = &builder.ty(operands[0]).shape;
    if operands.iter().all(|&operand| builder.ty(operand).shape == *first) {
        return builder.value(op, operands, loc);
    }
    check_apart_from_shapes(builder, &op, operands, loc)?;
    let shape = broadcast_shape(builder, &op, operands, loc)?;
    check_as(builder, &op, operands, &shape, loc)?;
    let operands: Result<SmallVec<[Value; 4]>, Diagnostic> =
        operands.iter().map(|&operand| builder.broadcast(operand, &shape, loc)).collect();
    builder.value(op, &operands?, loc)
}

/// What the typing rule says of the operands' backends and dtypes.
pub(crate) fn check_apart_from_shapes(
    builder: &GraphBuilder,
    op: &Op,
    operands: &[Value],
    loc: Loc,
) -> Result<(), Diagnostic> {
    check_as(builder, op, operands, &Shape::scalar(), loc)
}

/// [`check_apart_from_shapes`] of a list that is going to be joined.
pub(crate) fn check_joined(builder: &GraphBuilder, operands: &[Value], loc: Loc) -> Result<(), Diagnostic> {
    check_as(builder, &Op::Concat { axis: 0 }, operands, &Shape::from([1]), loc)
}

/// [`check_apart_from_shapes`] of a matrix product.
pub(crate) fn check_matrices(
    builder: &GraphBuilder,
    op: &Op,
    operands: [Value; 2],
    loc: Loc,
) -> Result<(), Diagnostic> {
    check_as(builder, op, &operands, &Shape::from([1, 1]), loc)
}

/// What the typing rule says of the operands if all had one shape.
fn check_as(builder: &GraphBuilder, op: &Op, operands: &[Value], shape: &Shape, loc: Loc) -> Result<(), Diagnostic> {
    let types: SmallVec<[TensorType; 4]> =
        operands.iter().map(|&operand| builder.ty(operand).with_shape(shape)).collect();
    let types: SmallVec<[&TensorType; 4]> = types.iter().collect();
    match infer(op, &types) {
        Ok(_) => Ok(()),
        Err(diagnostic) => Err(builder.explain(diagnostic, op, operands, loc)),
    }
}

/// The one shape that operands broadcast to by the numpy rule, or K0302 with the two that clash.
pub(crate) fn broadcast_shape(
    builder: &GraphBuilder,
    op: &Op,
    operands: &[Value],
    loc: Loc,
) -> Result<Shape, Diagnostic> {
    let shape = |operand: Value| &builder.ty(operand).shape;
    let mut result = shape(operands[0]).clone();
    for (index, &operand) in operands.iter().enumerate().skip(1) {
        result = match join(&result, shape(operand)) {
            Some(joined) => joined,
            None => {
                // The operand that clashes may be any of those before.
                let earlier = operands[..index].iter().find(|&&earlier| join(shape(earlier), shape(operand)).is_none());
                let lhs = earlier.map_or(&result, |&earlier| shape(earlier));
                return Err(builder.explain(clash(op, lhs, shape(operand)), op, operands, loc));
            }
        };
    }
    Ok(result)
}

/// The shape two shapes broadcast to.
pub(crate) fn join(a: &[usize], b: &[usize]) -> Option<Shape> {
    let rank = a.len().max(b.len());
    (0..rank)
        .map(|axis| match (extent(a, axis, rank), extent(b, axis, rank)) {
            (a, b) if a == b => Some(a),
            (1, b) => Some(b),
            (a, 1) => Some(a),
            _ => None,
        })
        .collect()
}

/// The extent of axis `axis` of `rank` once the shape is aligned at the end.
fn extent(shape: &[usize], axis: usize, rank: usize) -> usize {
    let missing = rank - shape.len();
    if axis < missing { 1 } else { shape[axis - missing] }
}

/// K0302: both shapes, the axis, and what would fit.
fn clash(op: &Op, lhs: &Shape, rhs: &Shape) -> Diagnostic {
    let rank = lhs.rank().max(rhs.rank());
    let axis = (0..rank).rev().find(|&axis| {
        let (a, b) = (extent(lhs, axis, rank), extent(rhs, axis, rank));
        a != b && a != 1 && b != 1
    });
    let axis = axis.expect("shapes that do not broadcast clash in an axis");
    let message = format!(
        "shapes {lhs} and {rhs} do not broadcast: axis {axis} is {} and {}",
        extent(lhs, axis, rank),
        extent(rhs, axis, rank)
    );
    let diagnostic = Diagnostic::new(Code::K0302, message).label(format!(
        "operands of `{}`: axes are aligned at the end, each pair must be equal or hold a 1",
        op.name()
    ));
    match (unsqueezed(rhs, lhs), unsqueezed(lhs, rhs)) {
        (Some((axis, shape)), _) => diagnostic.help(format!("rhs fits as {shape}: `.unsqueeze({axis})`")),
        (None, Some((axis, shape))) => diagnostic.help(format!("lhs fits as {shape}: `.unsqueeze({axis})`")),
        (None, None) => diagnostic.help("reshape, slice or broadcast one of them to the other's shape"),
    }
}

/// An axis to add to a shape of one axis less than `other` so that the two broadcast.
fn unsqueezed(shape: &Shape, other: &Shape) -> Option<(usize, Shape)> {
    if shape.rank() + 1 != other.rank() {
        return None;
    }
    (1..=shape.rank()).find_map(|axis| {
        let wider: Shape = shape[..axis].iter().copied().chain([1]).chain(shape[axis..].iter().copied()).collect();
        join(&wider, other).map(|_| (axis, wider))
    })
}
