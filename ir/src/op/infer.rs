//! The one typing rule of each op: used while recording, while parsing, and by the verifier between passes.

use smallvec::{SmallVec, smallvec};

use super::backends::one_backend;
use super::{Axes, Custom, Op, Precision, ReduceKind, ScalarOp, check};
use crate::op::scalar::DTypeRule;
use crate::{Code, DType, Diagnostic, Kind, Shape, TensorType};

/// Result types of a node.
pub type Types = SmallVec<[TensorType; 1]>;

/// The result types of `op` on operands of the given types, or what is wrong with them.
///
/// The diagnostic holds code, message, caret label and help; whoever knows the nodes adds the operands with their origins
/// ([`crate::GraphBuilder`] does).
///
/// ```
/// use kiln_ir::{infer, Backend, DType, Op, ScalarOp, TensorType};
/// let x = TensorType::new(DType::F32, [2, 3], Backend::Cpu);
/// assert_eq!(infer(&Op::Scalar(ScalarOp::Lt), &[&x, &x]).unwrap()[0].to_string(), "bool[2, 3] @cpu");
/// let y = TensorType { backend: Backend::Cuda, ..x.clone() };
/// assert_eq!(infer(&Op::Scalar(ScalarOp::Add), &[&x, &y]).unwrap_err().code.name(), "K0201");
/// ```
pub fn infer(op: &Op, operands: &[&TensorType]) -> Result<Types, Diagnostic> {
    if let Some(arity) = op.arity()
        && arity != operands.len()
    {
        let message = format!("`{}` takes {arity} operands, got {}", op.name(), operands.len());
        return Err(Diagnostic::new(Code::K0803, message));
    }
    one_backend(op, operands)?;
    let types = infer_checked(op, operands).map_err(|diagnostic| match diagnostic.op {
        Some(_) => diagnostic,
        None => diagnostic.in_op(op.name()),
    })?;
    for ty in &types {
        check::size(op, ty)?;
    }
    Ok(types)
}

fn infer_checked(op: &Op, operands: &[&TensorType]) -> Result<Types, Diagnostic> {
    let result = match op {
        Op::Input { ty, .. } => ty.clone(),
        Op::Literal { value, backend } => TensorType::new(value.dtype(), [], *backend),
        Op::Constant { data, backend } => TensorType::new(data.dtype(), data.shape().clone(), *backend),
        Op::Iota { ty, axis } => iota(op, ty, *axis)?,
        Op::RandomBits { shape, .. } => random_bits(op, operands[0], shape)?,
        Op::Scalar(scalar) => elementwise(op, *scalar, operands)?,
        Op::Cast(dtype) => operands[0].with_dtype(*dtype),
        Op::Bitcast(dtype) => bitcast(operands[0], *dtype)?,
        Op::Select => select(op, operands)?,
        Op::Reduce { kind, axes } => reduce(op, *kind, axes, operands[0])?,
        Op::Scan { axis, .. } => {
            check::axis(op, *axis, operands[0].shape.rank())?;
            check::number(op, operands[0])?;
            operands[0].clone()
        }
        Op::Reshape(shape) => reshape(operands[0], shape)?,
        Op::Permute(permutation) => permute(op, operands[0], permutation)?,
        Op::Broadcast(shape) => broadcast(operands[0], shape)?,
        Op::Slice { starts, sizes, steps } => slice(op, operands[0], starts, sizes, steps)?,
        Op::Pad { low, high, value } => pad(op, operands[0], low, high, value.dtype())?,
        Op::Concat { axis } => concat(op, operands, *axis)?,
        Op::MatMul { precision } => matmul(op, operands[0], operands[1], *precision)?,
        Op::Gather { axis, batch } => gather(op, operands[0], operands[1], *axis, *batch)?,
        Op::Scatter { axis, batch, .. } => scatter(op, operands, *axis, *batch)?,
        Op::Transfer(backend) => TensorType { backend: *backend, ..operands[0].clone() },
        Op::StopGradient | Op::Mark | Op::Barrier => operands[0].clone(),
        Op::Custom(custom) => return custom_op(custom, operands),
    };
    Ok(smallvec![result])
}

fn iota(op: &Op, ty: &TensorType, axis: usize) -> Result<TensorType, Diagnostic> {
    check::axis(op, axis, ty.shape.rank())?;
    check::number(op, ty)?;
    Ok(ty.clone())
}

fn random_bits(op: &Op, key: &TensorType, shape: &Shape) -> Result<TensorType, Diagnostic> {
    if key.dtype != DType::U32 || key.shape[..] != [2] {
        return Err(Diagnostic::new(Code::K0312, format!("a random key is u32[2], got {}{}", key.dtype, key.shape))
            .label(format!("key of `{}`", op.name())));
    }
    Ok(key.with_shape(shape.clone()))
}

fn elementwise(op: &Op, scalar: ScalarOp, operands: &[&TensorType]) -> Result<TensorType, Diagnostic> {
    check::one_dtype(op, operands)?;
    check::one_shape(op, operands)?;
    let operand = operands[0];
    match scalar.result_dtype(operand.dtype) {
        Some(dtype) => Ok(operand.with_dtype(dtype)),
        None => Err(match scalar.row().rule {
            DTypeRule::Float | DTypeRule::TestFloat => check::should_be(op, Kind::Float, operand.dtype),
            DTypeRule::Int => check::should_be(op, Kind::Int, operand.dtype),
            DTypeRule::IntOrBool => check::should_be(op, Kind::Bool, operand.dtype),
            DTypeRule::Number | DTypeRule::CompareNumber | DTypeRule::CompareAny => {
                return Err(check::number(op, operand).expect_err("numbers are taken"));
            }
        }),
    }
}

fn bitcast(operand: &TensorType, dtype: DType) -> Result<TensorType, Diagnostic> {
    if operand.dtype.size() != dtype.size() || DType::Bool == dtype || DType::Bool == operand.dtype {
        let message = format!("cannot read the bits of {} as {dtype}", operand.dtype);
        return Err(Diagnostic::new(Code::K0407, message)
            .label("a bitcast keeps the width of each element")
            .help(format!("to convert the value, use `.cast(DType::{})`", check::variant(dtype))));
    }
    Ok(operand.with_dtype(dtype))
}

fn select(op: &Op, operands: &[&TensorType]) -> Result<TensorType, Diagnostic> {
    if operands[0].dtype != DType::Bool {
        return Err(check::should_be(op, Kind::Bool, operands[0].dtype));
    }
    check::one_dtype(op, &operands[1..])?;
    check::one_shape(op, operands)?;
    Ok(operands[1].clone())
}

fn reduce(op: &Op, kind: ReduceKind, axes: &Axes, operand: &TensorType) -> Result<TensorType, Diagnostic> {
    for &axis in &**axes {
        check::axis(op, axis, operand.shape.rank())?;
    }
    let dtype = match kind {
        ReduceKind::Sum | ReduceKind::Prod => {
            check::number(op, operand)?;
            operand.dtype
        }
        ReduceKind::Max | ReduceKind::Min => operand.dtype,
        ReduceKind::ArgMax | ReduceKind::ArgMin => {
            check::number(op, operand)?;
            if axes.len() != 1 {
                let message = format!("`{}` takes one axis, got {}", op.name(), axes.len());
                return Err(Diagnostic::new(Code::K0304, message).help("reshape to one axis first"));
            }
            if i32::try_from(operand.shape[axes[0]]).is_err() {
                let message = format!("an axis of {} elements has indices beyond i32", operand.shape[axes[0]]);
                return Err(Diagnostic::new(Code::K0310, message));
            }
            DType::I32
        }
    };
    let has_identity = matches!(kind, ReduceKind::Sum | ReduceKind::Prod) || operand.dtype == DType::Bool;
    if let Some(empty) = axes.iter().find(|&&axis| operand.shape[axis] == 0)
        && !has_identity
    {
        let message = format!("`{}` over axis {empty}, which is empty, has no value", op.name());
        return Err(Diagnostic::new(Code::K0306, message).label(format!("operand has shape {}", operand.shape)));
    }
    let shape =
        operand.shape.iter().enumerate().map(|(axis, &extent)| if axes.contains(&axis) { 1 } else { extent }).collect();
    Ok(TensorType { shape, dtype, backend: operand.backend })
}

fn reshape(operand: &TensorType, shape: &Shape) -> Result<TensorType, Diagnostic> {
    let (from, to) = (operand.shape.checked_num_elements(), shape.checked_num_elements());
    if from != to {
        let count = |n: Option<usize>| n.map_or_else(|| "too many".to_owned(), |n| n.to_string());
        let message =
            format!("cannot reshape {} ({} elements) to {shape} ({} elements)", operand.shape, count(from), count(to));
        return Err(Diagnostic::new(Code::K0303, message).label("a reshape keeps the number of elements"));
    }
    Ok(operand.with_shape(shape.clone()))
}

fn permute(op: &Op, operand: &TensorType, permutation: &[usize]) -> Result<TensorType, Diagnostic> {
    let mut sorted: SmallVec<[usize; 4]> = permutation.into();
    sorted.sort_unstable();
    if sorted.len() != operand.shape.rank() || sorted.iter().enumerate().any(|(index, &axis)| index != axis) {
        let message = format!("{permutation:?} is not a permutation of the axes of {}", operand.shape);
        return Err(Diagnostic::new(Code::K0307, message).label(format!(
            "`{}` names each of the {} axes once",
            op.name(),
            operand.shape.rank()
        )));
    }
    Ok(operand.with_shape(permutation.iter().map(|&axis| operand.shape[axis]).collect::<Shape>()))
}

fn broadcast(operand: &TensorType, shape: &Shape) -> Result<TensorType, Diagnostic> {
    let from = &operand.shape;
    let fits = from.rank() <= shape.rank()
        && from.iter().rev().zip(shape.iter().rev()).all(|(&extent, &wanted)| extent == wanted || extent == 1);
    if !fits {
        return Err(Diagnostic::new(Code::K0302, format!("{from} does not broadcast to {shape}"))
            .label("axes are aligned at the end; each extent must be equal or 1"));
    }
    Ok(operand.with_shape(shape.clone()))
}

fn slice(
    op: &Op,
    operand: &TensorType,
    starts: &[usize],
    sizes: &Shape,
    steps: &[i64],
) -> Result<TensorType, Diagnostic> {
    let rank = operand.shape.rank();
    for given in [starts.len(), sizes.rank(), steps.len()] {
        check::rank(op, "the range", rank, given)?;
    }
    for axis in 0..rank {
        let (start, size, step, extent) = (starts[axis], sizes[axis], steps[axis], operand.shape[axis]);
        let last = (size as i128 - 1) * i128::from(step) + start as i128;
        let inside = size == 0 || (start < extent && (0..extent as i128).contains(&last));
        if step == 0 || !inside {
            let message =
                format!("slice of axis {axis} from {start} by {step}, {size} elements, leaves its extent {extent}");
            return Err(Diagnostic::new(Code::K0308, message).label(format!("operand has shape {}", operand.shape)));
        }
    }
    Ok(operand.with_shape(sizes.clone()))
}

fn pad(op: &Op, operand: &TensorType, low: &[usize], high: &[usize], value: DType) -> Result<TensorType, Diagnostic> {
    check::rank(op, "the padding", operand.shape.rank(), low.len())?;
    check::rank(op, "the padding", operand.shape.rank(), high.len())?;
    if value != operand.dtype {
        let message = format!("padding value is {value}, the operand {}", operand.dtype);
        return Err(Diagnostic::new(Code::K0402, message));
    }
    let extents = operand.shape.iter().zip(low.iter().zip(high));
    let shape: Option<Shape> =
        extents.map(|(&extent, (&low, &high))| extent.checked_add(low)?.checked_add(high)).collect();
    match shape {
        Some(shape) => Ok(operand.with_shape(shape)),
        None => Err(Diagnostic::new(Code::K0310, format!("padding of {} is too large to address", operand.shape))),
    }
}

fn concat(op: &Op, operands: &[&TensorType], axis: usize) -> Result<TensorType, Diagnostic> {
    let Some(first) = operands.first() else {
        return Err(Diagnostic::new(Code::K0312, "`concat` of no tensors")
            .label("the result would have neither shape nor dtype"));
    };
    check::axis(op, axis, first.shape.rank())?;
    check::one_dtype(op, operands)?;
    let mut extent = 0usize;
    for (index, ty) in operands.iter().enumerate() {
        let fits =
            ty.shape.rank() == first.shape.rank() && ty.shape.with_extent(axis, 0) == first.shape.with_extent(axis, 0);
        if !fits {
            let message = format!("element {index} of `concat` has shape {}, element 0 {}", ty.shape, first.shape);
            return Err(
                Diagnostic::new(Code::K0305, message).label(format!("extents may differ along axis {axis} only"))
            );
        }
        extent = extent.saturating_add(ty.shape[axis]);
    }
    Ok(first.with_shape(first.shape.with_extent(axis, extent)))
}

fn matmul(op: &Op, lhs: &TensorType, rhs: &TensorType, precision: Precision) -> Result<TensorType, Diagnostic> {
    check::one_dtype(op, &[lhs, rhs])?;
    check::number(op, lhs)?;
    let dtype = match precision {
        Precision::Full | Precision::Tf32 => lhs.dtype,
        Precision::Wide if matches!(lhs.dtype, DType::I8 | DType::U8) => DType::I32,
        Precision::Wide => {
            return Err(Diagnostic::new(Code::K0404, format!("Should be i8 or u8, got {}", lhs.dtype))
                .label("a wide matrix product sums 8-bit integers in i32"));
        }
    };
    let rank = lhs.shape.rank();
    if rank < 2 || rhs.shape.rank() < 2 {
        let message = format!("matmul of {} and {}: both need at least 2 axes", lhs.shape, rhs.shape);
        return Err(Diagnostic::new(Code::K0309, message)
            .help("give a vector a second axis with `.unsqueeze(0)` or `.unsqueeze(1)`"));
    }
    check::rank(op, "rhs", rank, rhs.shape.rank())?;
    let (batch, rhs_batch) = (&lhs.shape[..rank - 2], &rhs.shape[..rank - 2]);
    if batch != rhs_batch {
        let message = format!("batch extents of {} and {} differ", lhs.shape, rhs.shape);
        return Err(Diagnostic::new(Code::K0302, message).label("all axes but the last two must be equal"));
    }
    let (k, rhs_k) = (lhs.shape[rank - 1], rhs.shape[rank - 2]);
    if k != rhs_k {
        let message =
            format!("matrix product of {} and {}: inner extents {k} and {rhs_k} differ", lhs.shape, rhs.shape);
        let transposed = rhs.shape[rank - 1] == k;
        let help = if transposed {
            "rhs fits when transposed: `.matmul(&rhs.transpose())`".to_owned()
        } else {
            format!("rhs would fit with shape [.., {k}, {}]", rhs.shape[rank - 1])
        };
        return Err(Diagnostic::new(Code::K0301, message)
            .label(format!("the last axis of lhs ({k}) meets the last but one of rhs ({rhs_k})"))
            .help(help));
    }
    Ok(lhs.with_dtype(dtype).with_shape(lhs.shape.with_extent(rank - 1, rhs.shape[rank - 1])))
}

/// Shape of what `gather` gives and of a scatter's updates.
fn indexed_shape(
    op: &Op,
    x: &TensorType,
    indices: &TensorType,
    axis: usize,
    batch: usize,
) -> Result<Shape, Diagnostic> {
    check::axis(op, axis, x.shape.rank())?;
    if !indices.dtype.is_int() {
        return Err(check::should_be(op, Kind::Int, indices.dtype));
    }
    if batch > axis || batch > indices.shape.rank() || x.shape[..batch] != indices.shape[..batch] {
        let message = format!("the first {batch} axes of {} and indices {} differ", x.shape, indices.shape);
        return Err(Diagnostic::new(Code::K0312, message).label(format!("batch axes of `{}`", op.name())));
    }
    Ok(x.shape[..axis].iter().chain(&indices.shape[batch..]).chain(&x.shape[axis + 1..]).copied().collect())
}

fn gather(op: &Op, x: &TensorType, indices: &TensorType, axis: usize, batch: usize) -> Result<TensorType, Diagnostic> {
    let shape = indexed_shape(op, x, indices, axis, batch)?;
    if x.shape[axis] == 0 && !shape.contains(&0) {
        return Err(Diagnostic::new(Code::K0306, format!("`gather` from axis {axis}, which is empty, has no value"))
            .label(format!("operand has shape {}", x.shape)));
    }
    Ok(x.with_shape(shape))
}

fn scatter(op: &Op, operands: &[&TensorType], axis: usize, batch: usize) -> Result<TensorType, Diagnostic> {
    let (target, indices, updates) = (operands[0], operands[1], operands[2]);
    check::one_dtype(op, &[target, updates])?;
    if !matches!(op, Op::Scatter { kind: super::ScatterKind::Set, .. }) {
        check::number(op, target)?;
    }
    let wanted = indexed_shape(op, target, indices, axis, batch)?;
    if updates.shape != wanted {
        let message = format!("updates have shape {}, the places they go to {wanted}", updates.shape);
        return Err(
            Diagnostic::new(Code::K0312, message).label(format!("target {}, indices {}", target.shape, indices.shape))
        );
    }
    Ok(target.clone())
}

fn custom_op(custom: &Custom, operands: &[&TensorType]) -> Result<Types, Diagnostic> {
    if let Some(body) = &custom.body {
        for (index, (input, operand)) in body.inputs.iter().zip(operands).enumerate() {
            let wanted = body.ty(*input);
            if wanted.shape != operand.shape || wanted.dtype != operand.dtype {
                let message = format!("operand {index} of `{}` is {operand}, its body takes {wanted}", custom.name);
                return Err(Diagnostic::new(Code::K0312, message));
            }
        }
        let given: Types = body.outputs.iter().map(|output| body.ty(output.value).clone()).collect();
        let agree = given.len() == custom.results.len()
            && given.iter().zip(&custom.results).all(|(a, b)| a.shape == b.shape && a.dtype == b.dtype);
        if !agree {
            let message = format!("the body of `{}` gives {given:?}, declared {:?}", custom.name, custom.results);
            return Err(Diagnostic::new(Code::K0312, message));
        }
    }
    Ok(custom.results.clone())
}
