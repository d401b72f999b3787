//! Gradients of recorded computations: more nodes in the same graph.
//!
//! [`value_and_grad`] hands a function fresh copies of a model's tensors, so only uses through its argument count, and calls may be nested:
//! a gradient is an ordinary tensor, of which gradients can be taken again.

use kiln_ir::tree::{Tree, With};
use kiln_ir::{Code, Diagnostic, GraphBuilder, Loc, Op, Value};

use crate::captured::Notice;
use crate::session::{State, record, record_many};
use crate::tracking::OpenContext;
use crate::{Tensor, frame};

/// The value of a scalar loss, and its gradient with regard to every tensor of a model, as a model of the same type.
///
/// The loss is a function of its argument: what it uses of `model` itself counts as constant. A tensor that the loss does not depend on
/// gets zeros, and the capture a notice. Every tensor of the model must be a float (K0502).
///
/// ```
/// use kiln_capture::{CaptureDevice, value_and_grad};
/// use kiln_ir::{Backend, DType};
///
/// let captured = CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
///     let x = scope.input("x", DType::F32, [32, 10]);
///     let model = (scope.input("w", DType::F32, [10]), scope.input("b", DType::F32, []));
///     let (loss, (dw, db)) = value_and_grad(&model, |(w, b)| (x.matmul(w) + b).square().mean(..));
///     assert_eq!((dw.ty(), db.ty()), (model.0.ty(), model.1.ty()));
///     (loss, dw, db)
/// })?;
/// # Ok::<(), kiln_ir::Diagnostics>(())
/// ```
#[track_caller]
pub fn value_and_grad<M: Tree<Tensor>>(model: &M, loss: impl FnOnce(&M) -> Tensor) -> (Tensor, M) {
    let ((loss, ()), gradients) = value_and_grad_aux(model, |model| (loss(model), ()));
    (loss, gradients)
}

/// [`value_and_grad`] of a function that returns more than its loss, a tree of tensors and plain data: `((loss, more), gradients)`. No
/// gradient is taken of the rest. A tensor that leaves the function in any other way stays tracked by a gradient that is over: used, it is
/// K0508.
#[track_caller]
pub fn value_and_grad_aux<M: Tree<Tensor>, A: Tree<Tensor>>(
    model: &M,
    loss: impl FnOnce(&M) -> (Tensor, A),
) -> ((Tensor, A), M) {
    let loc = frame::here();
    let context = OpenContext::new(loc);
    let names = model.names();
    let mut marks = Vec::with_capacity(names.len());
    for (leaf, name) in model.leaves().into_iter().zip(&names) {
        let mark = mark(leaf, name);
        let tracking = mark.tracking.clone().within(&context);
        marks.push(mark.tracked_if_sound(tracking));
    }
    let marked: M = replaced(model, &marks);
    let (loss, more) = loss(&marked);
    let names: Vec<Option<String>> = names.into_iter().map(Some).collect();
    let gradients = append(&loss, &marks, &names, loc);
    let released = |tensor: &Tensor| tensor.clone().tracked_by(tensor.tracking.clone().without(&context));
    let gradients: Vec<Tensor> = gradients.iter().map(released).collect();
    let more_leaves: Vec<Tensor> = more.leaves().into_iter().map(released).collect();
    ((released(&loss), replaced(&more, &more_leaves)), replaced(model, &gradients))
}

/// The gradient of a scalar loss with regard to every tensor of a model: [`value_and_grad`] without the value.
#[track_caller]
pub fn grad<M: Tree<Tensor>>(model: &M, loss: impl FnOnce(&M) -> Tensor) -> M {
    value_and_grad(model, loss).1
}

/// The gradients of a recorded scalar with regard to recorded tensors, through every use of them.
#[track_caller]
pub fn gradients(of: &Tensor, wrt: &[&Tensor]) -> Vec<Tensor> {
    let loc = frame::here();
    let wrt: Vec<Tensor> = wrt.iter().map(|&tensor| tensor.clone()).collect();
    append(of, &wrt, &vec![None; wrt.len()], loc)
}

/// A tree with other tensors in the places of its own.
pub(crate) fn replaced<M: Tree<Tensor>>(tree: &M, tensors: &[Tensor]) -> M {
    let tree: Result<With<M, Tensor, Tensor>, _> = tree.with_leaves(tensors.iter().cloned());
    tree.expect("one tensor for each leaf")
}

/// A fresh copy of a leaf, for gradients to be taken of.
#[track_caller]
fn mark(leaf: &Tensor, name: &str) -> Tensor {
    record(&[leaf], |state, values, loc| {
        let ty = state.builder.ty(values[0]);
        if ty.dtype.is_float() {
            return state.builder.value(Op::Mark, values, loc);
        }
        let role = if name.is_empty() { "the argument".to_owned() } else { format!("leaf `{name}`") };
        let diagnostic = Diagnostic::new(Code::K0502, "only float tensors may use an autodiff primitive")
            .in_op("value_and_grad")
            .label(format!("{role} is {}", ty.dtype))
            .help("take the gradient of the float part of the model: what is no parameter goes beside it");
        Err(state.builder.note(diagnostic, &role, values[0]))
    })
}

/// Appends the gradients of `of` to the graph. Names are those of leaves that a notice may speak of.
#[track_caller]
fn append(of: &Tensor, wrt: &[Tensor], names: &[Option<String>], loc: Loc) -> Vec<Tensor> {
    let operands: Vec<&Tensor> = std::iter::once(of).chain(wrt).collect();
    if crate::custom::prepare(of).is_err() {
        return vec![Tensor::poison(of.session.clone(), loc); wrt.len()];
    }
    record_many(&operands, wrt.len(), |state, values, _| {
        let (of, wrt) = (values[0], &values[1..]);
        check_loss(&state.builder, "value_and_grad", of)?;
        let gradients = kiln_ir::grad::grad(&mut state.builder, of, wrt, loc)?;
        notice_unused(state, of, wrt, names, loc);
        Ok(gradients)
    })
}

/// K0309 and K0401: a loss is a float scalar.
pub(crate) fn check_loss(builder: &GraphBuilder, op: &str, of: Value) -> Result<(), Diagnostic> {
    let ty = builder.ty(of);
    let (code, message, label, help) = if !ty.dtype.is_float() {
        let message = format!("Should be float, got {}", ty.dtype.kind());
        let label = format!("the gradient of {} is asked for, and a loss is a float", ty.dtype);
        (Code::K0401, message, label, "cast what it is computed from, before the ops that should have gradients")
    } else if ty.shape.rank() != 0 {
        let message = format!("expected rank 0, got {}", ty.shape.rank());
        let label = format!("the gradient of a tensor of shape {} is asked for, and a loss is a scalar", ty.shape);
        (Code::K0309, message, label, "reduce it: `.mean(..)` or `.sum(..)`")
    } else {
        return Ok(());
    };
    let diagnostic = Diagnostic::new(code, message).in_op(op).label(label).help(help);
    Err(builder.note(diagnostic, "loss", of))
}

/// For each node up to that of a value, whether the value depends on it in a way that gradients may take.
pub(crate) fn reached(builder: &GraphBuilder, of: Value) -> Vec<bool> {
    let nodes = builder.nodes();
    let mut reached = vec![false; of.node.index() + 1];
    reached[of.node.index()] = true;
    for index in (0..reached.len()).rev() {
        if reached[index] && !matches!(nodes[index].op, Op::StopGradient) {
            nodes[index].operands.iter().for_each(|operand| reached[operand.node.index()] = true);
        }
    }
    reached
}

/// A notice for every leaf that the loss does not depend on.
fn notice_unused(state: &mut State, of: Value, wrt: &[Value], names: &[Option<String>], loc: Loc) {
    let reached = reached(&state.builder, of);
    for (value, name) in wrt.iter().zip(names) {
        if let Some(name) = name
            && !reached.get(value.node.index()).copied().unwrap_or(false)
        {
            let name = if name.is_empty() { "the argument".to_owned() } else { format!("`{name}`") };
            let text = format!("the gradient of {name} is zero everywhere: the loss does not depend on it");
            state.notices.push(Notice { text, loc });
        }
    }
}
