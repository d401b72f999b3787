//! Joining tensors along an old or a new axis.

use kiln_ir::{Code, Diagnostic, Op, Result, Shape, normalize_axis};
use smallvec::SmallVec;

use crate::backends::{check_list, nothing_to_select_from};
use crate::session::{Session, record, record_as};
use crate::source::refuse_all;
use crate::{Scope, Tensor};

/// Tensors one after another along an axis.
///
/// K0202 names an element on another backend by its position (K0203 if it is tracked for gradients), K0305 one whose other extents differ.
///
/// ```
/// # use kiln_capture::{CaptureDevice, concat}; use kiln_ir::{Backend, DType};
/// # CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
/// let (a, b) = (scope.input("a", DType::F32, [2, 3]), scope.input("b", DType::F32, [5, 3]));
/// assert_eq!(concat(&[&a, &b], 0).shape()[..], [7, 3]);
/// # })?; Ok::<(), kiln_ir::Diagnostics>(())
/// ```
#[track_caller]
pub fn concat(tensors: &[&Tensor], axis: isize) -> Tensor {
    or_panic(try_concat(tensors, axis))
}

/// [`concat()`] that may be called where no scope is open.
///
/// # Errors
///
/// K0210 for no tensors outside any scope: nothing says which backend is meant, and nothing collects the mistake. Every other mistake is
/// collected by the scope, as that of any op.
///
/// ```
/// # use kiln_capture::try_concat; use kiln_ir::Code;
/// assert_eq!(try_concat(&[], 0).unwrap_err().codes(), [Code::K0210]);
/// ```
#[track_caller]
pub fn try_concat(tensors: &[&Tensor], axis: isize) -> Result<Tensor> {
    if tensors.is_empty() {
        return of_nothing("concat");
    }
    Ok(record(tensors, |state, values, loc| {
        check_list(state, "concat", tensors, values)?;
        let builder = &mut state.builder;
        let axis = normalize_axis(axis, builder.ty(values[0]).shape.rank());
        let axis = axis.map_err(|diagnostic| builder.explain(diagnostic, &Op::Concat { axis: 0 }, values, loc))?;
        builder.value(Op::Concat { axis }, values, loc)
    }))
}

/// Tensors of one shape one after another along a new axis, at this place of the result.
#[track_caller]
pub fn stack(tensors: &[&Tensor], axis: isize) -> Tensor {
    or_panic(try_stack(tensors, axis))
}

/// [`stack`] that may be called where no scope is open.
///
/// # Errors
///
/// K0210, as [`try_concat`].
#[track_caller]
pub fn try_stack(tensors: &[&Tensor], axis: isize) -> Result<Tensor> {
    if tensors.is_empty() {
        return of_nothing("stack");
    }
    Ok(record_as("stack", tensors, |state, values, loc| {
        check_list(state, "stack", tensors, values)?;
        let builder = &mut state.builder;
        let op = Op::Concat { axis: 0 };
        let shape = builder.ty(values[0]).shape.clone();
        let odd = values.iter().position(|&value| builder.ty(value).shape != shape);
        if let Some(odd) = odd {
            let other = builder.ty(values[odd]).shape.clone();
            let message = format!("element {odd} of `stack` has shape {other}, element 0 {shape}");
            let diagnostic = Diagnostic::new(Code::K0305, message).label("stacked tensors have one shape");
            return Err(builder.explain(diagnostic, &op, values, loc));
        }
        let axis = normalize_axis(axis, shape.rank() + 1);
        let axis = axis.map_err(|diagnostic| builder.explain(diagnostic, &op, values, loc))?;
        let wider: Shape = shape[..axis].iter().chain([&1]).chain(&shape[axis..]).copied().collect();
        let mut elements: SmallVec<[_; 4]> = SmallVec::new();
        // The typing rule of concat speaks of the user's own tensors, not of the reshaped ones.
        crate::operand::check_joined(builder, values, loc)?;
        for &value in values {
            elements.push(builder.reshape(value, &wider, loc)?);
        }
        builder.value(Op::Concat { axis }, &elements, loc)
    }))
}

/// K0312 in the scope that is open on this thread; K0210 where there is none.
#[track_caller]
fn of_nothing(name: &str) -> Result<Tensor> {
    let diagnostic = Diagnostic::new(Code::K0312, format!("`{name}` of no tensors"))
        .label("the result would have neither shape nor dtype");
    match Session::current() {
        Some(session) => Ok(Scope::of(session).record(|_, _| Err(diagnostic.in_op(name)))),
        None => Err(nothing_to_select_from(name).at(crate::frame::here()).into()),
    }
}

#[track_caller]
fn or_panic(joined: Result<Tensor>) -> Tensor {
    match joined {
        Ok(tensor) => tensor,
        Err(errors) => refuse_all(&errors),
    }
}
