//! Joining tensors along an old or a new axis.

use kiln_ir::{Code, Diagnostic, Op, Shape, normalize_axis};
use smallvec::SmallVec;

use crate::session::{Session, record, record_as};
use crate::{Scope, Tensor};

/// Tensors one after another along an axis.
///
/// K0202 names an element on another backend by its position, K0305 one whose other extents differ.
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
    if tensors.is_empty() {
        return of_nothing("concat");
    }
    record(tensors, |state, values, loc| {
        let builder = &mut state.builder;
        let axis = normalize_axis(axis, builder.ty(values[0]).shape.rank());
        let axis = axis.map_err(|diagnostic| builder.explain(diagnostic, &Op::Concat { axis: 0 }, values, loc))?;
        builder.value(Op::Concat { axis }, values, loc)
    })
}

/// Tensors of one shape one after another along a new axis, at this place of the result.
#[track_caller]
pub fn stack(tensors: &[&Tensor], axis: isize) -> Tensor {
    if tensors.is_empty() {
        return of_nothing("stack");
    }
    record_as("stack", tensors, |state, values, loc| {
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
        crate::operand::check_list(builder, values, loc)?;
        for &value in values {
            elements.push(builder.reshape(value, &wider, loc)?);
        }
        builder.value(Op::Concat { axis }, &elements, loc)
    })
}

/// K0312 in the scope that is open on this thread, or a panic where there is none.
#[track_caller]
fn of_nothing(name: &str) -> Tensor {
    let diagnostic = Diagnostic::new(Code::K0312, format!("`{name}` of no tensors"))
        .label("the result would have neither shape nor dtype");
    match Session::current() {
        Some(session) => Scope::of(session).record(|_, _| Err(diagnostic.in_op(name))),
        None => crate::source::refuse(&diagnostic.at(crate::frame::here()).in_op(name)),
    }
}
