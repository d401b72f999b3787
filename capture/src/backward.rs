//! `backward` on a loss, and the gradients of marked tensors.
//!
//! Nothing runs here: `backward` appends the gradients of every marked tensor that the loss depends on as ordinary nodes, and [`Gradients`]
//! says which is whose.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use kiln_ir::tree::Tree;
use kiln_ir::{Code, Diagnostic, GraphBuilder, Literal, Loc, Op, Value, strays};

use crate::captured::Notice;
use crate::gradient::{check_loss, reached, replaced};
use crate::session::{Session, State, record};
use crate::tracked::unmarked;
use crate::{Tensor, frame};

/// The gradients that [`Tensor::backward`] took of one loss, to be asked for by [`Tensor::grad`].
///
/// Both ways to gradients, this and [`value_and_grad`](crate::value_and_grad), are one transform of the graph, and give the same nodes.
///
/// | in Burn | here |
/// |---|---|
/// | `x.require_grad()` | the same; the tensor that it gives is the marked one |
/// | `loss.backward()` | the same, on a scalar |
/// | `x.grad(&grads)` is an `Option` | a tensor: zeros where the loss does not depend on `x`, a mistake (K0507) where `x` was not marked |
/// | `x.grad_remove(&mut grads)`, `x.grad_replace(&mut grads, g)` | the same |
/// | `x.inner()`, `Tensor::from_inner(x)` | the same; both kinds of tensor have one type here |
/// | `Autodiff<Autodiff<B>>` | mark it twice: `x.require_grad().require_grad()` |
/// | `GradientsParams::from_grads(grads, &model)` | `grads.of(&model)` |
///
/// A tensor that is not tracked, beside one that is, is constant for gradients.
pub struct Gradients {
    session: Arc<Session>,
    /// The line of `backward`.
    loc: Loc,
    /// `None` where `backward` went wrong: then every gradient is poisoned.
    taken: Option<HashMap<Value, Slot>>,
}

/// The gradient of one marked tensor.
enum Slot {
    Gradient(Tensor),
    /// `grad_remove` took it, in this line.
    Removed(Loc),
}

impl fmt::Debug for Gradients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.taken {
            Some(taken) => write!(f, "gradients of {} tensors, taken at {}", taken.len(), self.loc),
            None => f.write_str("gradients that could not be taken"),
        }
    }
}

impl Tensor {
    /// Takes the gradients of this scalar with regard to every tensor that was [marked](Tensor::require_grad) in this capture. They are
    /// constants for later gradients, but where a tensor was marked twice or [`value_and_grad`](crate::value_and_grad) is at work around.
    ///
    /// A mistake where this tensor is not tracked (K0503), where nothing was marked (K0507), or where it is no float scalar (K0401, K0309).
    /// Called twice, it gives the same gradients twice; nothing is summed up.
    ///
    /// ```
    /// use kiln_capture::CaptureDevice;
    /// use kiln_ir::{Backend, DType};
    ///
    /// // The second derivative of x^3: mark twice.
    /// CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
    ///     let outer = scope.input("x", DType::F32, []).require_grad();
    ///     let inner = outer.require_grad();
    ///     let first = inner.grad(&inner.powi(3).backward());
    ///     outer.grad(&first.backward())
    /// })?;
    /// # Ok::<(), kiln_ir::Diagnostics>(())
    /// ```
    #[track_caller]
    pub fn backward(&self) -> Gradients {
        let mut taken = None;
        if crate::custom::prepare(self).is_err() {
            return Gradients { session: self.session.clone(), loc: frame::here(), taken };
        }
        let loss = record(&[self], |state, values, loc| {
            let loss = values[0];
            self.check_tracked(&state.builder, "backward", loss)?;
            if state.marks.is_empty() {
                let label = "nothing was marked in this capture";
                return Err(state.builder.note(unmarked("backward", label), "loss", loss));
            }
            check_loss(&state.builder, "backward", loss)?;
            taken = Some(self.gradients_of_marks(state, loss, loc)?);
            Ok(loss)
        });
        Gradients { session: loss.session, loc: loss.loc, taken }
    }

    /// Appends the gradients of a loss with regard to what is marked and reached from it.
    fn gradients_of_marks(&self, state: &mut State, loss: Value, loc: Loc) -> Result<HashMap<Value, Slot>, Diagnostic> {
        let reached = reached(&state.builder, loss);
        let marks: Vec<Value> =
            state.marks.iter().copied().filter(|mark| reached.get(mark.node.index()) == Some(&true)).collect();
        let gradients = kiln_ir::grad::grad(&mut state.builder, loss, &marks, loc)?;
        let tracking = self.tracking.clone().of_gradients();
        let mut taken = HashMap::new();
        for (mark, mut gradient) in marks.into_iter().zip(gradients) {
            // A ticket that is not tracked is constant for later gradients, and so must its value be.
            if !tracking.is_tracked() {
                gradient = state.builder.value(Op::StopGradient, &[gradient], loc)?;
            }
            let ty = state.builder.ty(gradient).clone();
            let ticket = Tensor::new(self.session.clone(), gradient, ty, loc, tracking.clone());
            taken.insert(mark, Slot::Gradient(ticket));
        }
        Ok(taken)
    }

    /// This marked tensor's gradient. Zeros, with a notice in the report, where the loss does not depend on it.
    ///
    /// A mistake where this tensor is not tracked (K0503: it is the tensor that [`Tensor::require_grad`] *gave* which is), or is tracked and
    /// was not marked itself (K0507).
    #[track_caller]
    pub fn grad(&self, gradients: &Gradients) -> Tensor {
        self.gradient("grad", gradients)
    }

    /// [`Tensor::grad`], taken out of the gradients: asked for again, it is K0507.
    #[track_caller]
    pub fn grad_remove(&self, gradients: &mut Gradients) -> Tensor {
        let gradient = self.gradient("grad_remove", gradients);
        if let (Some(taken), Some(value), false) = (&mut gradients.taken, self.value, gradient.is_poisoned()) {
            taken.insert(value, Slot::Removed(frame::here()));
        }
        gradient
    }

    /// Puts another gradient in the place of this marked tensor's: one that was clipped, or averaged over devices.
    ///
    /// A mistake where this tensor is not tracked (K0503), not marked (K0507) or marked twice (K0504), and where the other is on another
    /// backend (K0201), of another dtype (K0402) or another shape (K0312).
    ///
    /// ```
    /// use kiln_capture::CaptureDevice;
    /// use kiln_ir::{Backend, DType};
    ///
    /// CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
    ///     let w = scope.input("w", DType::F32, [10]).require_grad();
    ///     let mut gradients = w.square().sum(..).backward();
    ///     let clipped = w.grad(&gradients).clamp(-1.0, 1.0);
    ///     w.grad_replace(&mut gradients, clipped);
    ///     w.grad_remove(&mut gradients)
    /// })?;
    /// # Ok::<(), kiln_ir::Diagnostics>(())
    /// ```
    #[track_caller]
    pub fn grad_replace(&self, gradients: &mut Gradients, gradient: impl Borrow<Tensor>) {
        let gradient = gradient.borrow();
        let replaced = record(&[self, gradient], |state, values, _| {
            let builder = &state.builder;
            if gradients.taken.is_none() {
                return Ok(values[1]);
            }
            self.check_marked(state, "grad_replace", values[0])?;
            gradients.check_session(self)?;
            check_replacement(builder, values[0], values[1])?;
            if self.tracking.depth > 1 {
                let diagnostic = Diagnostic::new(Code::K0504, "Autodiff should not wrap an autodiff tensor.")
                    .in_op("grad_replace")
                    .label("this tensor is tracked twice through `require_grad`: its gradient is part of another one's")
                    .help("mark it once: `.inner()` of it, which is tracked no longer");
                return Err(builder.note(builder.note(diagnostic, "tensor", values[0]), "gradient", values[1]));
            }
            Ok(values[1])
        });
        if let (Some(taken), Some(value)) = (&mut gradients.taken, self.value) {
            let sound = !replaced.is_poisoned();
            taken.insert(value, Slot::Gradient(if sound { gradient.clone() } else { replaced }));
        }
    }

    #[track_caller]
    fn gradient(&self, op: &str, gradients: &Gradients) -> Tensor {
        let mut known = None;
        let zeros = record(&[self], |state, values, loc| {
            let Some(taken) = &gradients.taken else {
                known = Some(Tensor::poison(self.session.clone(), loc));
                return Ok(values[0]);
            };
            self.check_marked(state, op, values[0])?;
            gradients.check_session(self)?;
            match taken.get(&values[0]) {
                None => return zeros(state, values[0], gradients.loc),
                Some(Slot::Gradient(gradient)) => known = Some(gradient.clone()),
                Some(Slot::Removed(removed)) => {
                    let diagnostic = unmarked(op, "this tensor's gradient is not among these any more")
                        .note("gradient", "of this tensor", "removed", *removed)
                        .help("keep what `grad_remove` gave, or ask with `grad`, which leaves it there");
                    return Err(state.builder.note(diagnostic, "tensor", values[0]));
                }
            }
            Ok(values[0])
        });
        let tracking = zeros.tracking.clone().of_gradients();
        known.unwrap_or_else(|| zeros.tracked_if_sound(tracking))
    }
}

impl Gradients {
    /// The gradients of a model whose tensors were all marked, as a model of the same type: what optimizers take.
    ///
    /// ```
    /// use kiln_capture::CaptureDevice;
    /// use kiln_ir::tree::Tree;
    /// use kiln_ir::{Backend, DType};
    ///
    /// CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
    ///     let model = [scope.input("w", DType::F32, [3]), scope.input("b", DType::F32, [])];
    ///     let [w, b] = model.map_ref(|tensor| tensor.require_grad());
    ///     let gradients = (&w * 2.0 + &b).square().mean(..).backward();
    ///     let [dw, db] = gradients.of(&[w, b]);
    ///     (dw, db)
    /// })?;
    /// # Ok::<(), kiln_ir::Diagnostics>(())
    /// ```
    #[track_caller]
    pub fn of<M: Tree<Tensor>>(&self, model: &M) -> M {
        let mut gradients = Vec::new();
        for leaf in model.leaves() {
            gradients.push(leaf.gradient("grad", self));
        }
        replaced(model, &gradients)
    }

    /// K0105 where a tensor belongs to another capture than these gradients.
    fn check_session(&self, tensor: &Tensor) -> Result<(), Diagnostic> {
        if self.session.is(&tensor.session) {
            return Ok(());
        }
        Err(Diagnostic::new(Code::K0105, "capture scope is already complete")
            .label("the gradients were taken in another capture")
            .note("gradients", "of a loss", "taken", self.loc)
            .note("", "of a scope", "opened", self.session.opened)
            .note("tensor", tensor.to_string(), "made", tensor.loc)
            .note("", "of a scope", "opened", tensor.session.opened)
            .help("take the gradients in the capture that marks the tensor"))
    }
}

/// The zero gradient of a marked tensor that the loss does not depend on.
fn zeros(state: &mut State, mark: Value, taken: Loc) -> Result<Value, Diagnostic> {
    let node = state.builder.node(mark);
    let (ty, loc) = (node.types[0].clone(), node.loc);
    let tensor = if let Op::Input { name, .. } = &state.builder.node(node.operands[0]).op {
        format!("`{name}`")
    } else {
        format!("the tensor marked at {loc}")
    };
    let text = format!("the gradient of {tensor} is zero everywhere: the loss does not depend on it");
    state.notices.push(Notice { text, loc: taken });
    state.builder.full(&ty, Literal::zero(ty.dtype), taken)
}

/// What is put in the place of a gradient is of the tensor's type: K0201, K0402 and K0312 say where it is not.
fn check_replacement(builder: &GraphBuilder, tensor: Value, gradient: Value) -> Result<(), Diagnostic> {
    let (tensor_type, gradient_type) = (builder.ty(tensor), builder.ty(gradient));
    let backends = [tensor_type.backend, gradient_type.backend];
    let roles = ["tensor", "gradient"].map(str::to_owned);
    let diagnostic = if let Some(strays) = strays(&backends) {
        strays.of_operands("grad_replace", &roles, &backends)
    } else if tensor_type.dtype != gradient_type.dtype {
        Diagnostic::new(Code::K0402, format!("dtypes differ: {} and {}", tensor_type.dtype, gradient_type.dtype))
            .label("a gradient has the dtype of its tensor")
            .help(format!("cast it with `.cast(DType::{:?})`", tensor_type.dtype))
    } else if tensor_type.shape != gradient_type.shape {
        let message =
            format!("a gradient of shape {} does not fit a tensor of shape {}", gradient_type.shape, tensor_type.shape);
        Diagnostic::new(Code::K0312, message).label("a gradient has the shape of its tensor")
    } else {
        return Ok(());
    };
    let diagnostic = builder.note(diagnostic.in_op("grad_replace"), "tensor", tensor);
    Err(builder.note(diagnostic, "gradient", gradient))
}
