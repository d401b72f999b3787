//! Tensors that are tracked for gradients: marking them, asking whether they are, and leaving it.
//!
//! Marking is the other way to gradients beside [`value_and_grad`](crate::value_and_grad), which is a function of functions: it suits models
//! whose tensors are not handed round as one argument. `backward.rs` takes the gradients.

use std::borrow::Borrow;

use kiln_ir::{Code, Diagnostic, GraphBuilder, Op, Value};

use crate::Tensor;
use crate::session::{State, record};
use crate::tracking::Tracking;

impl Tensor {
    /// The same value, marked: [`Tensor::backward`] takes its gradient. Everything made of the marked tensor is tracked; the tensor it was made
    /// from is not.
    ///
    /// Marked once more, it is tracked twice, and its gradient can be differentiated again. K0502 where it is no float.
    ///
    /// ```
    /// use kiln_capture::CaptureDevice;
    /// use kiln_ir::{Backend, DType};
    ///
    /// let captured = CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
    ///     let x = scope.input("x", DType::F32, [32, 10]);
    ///     let w = scope.input("w", DType::F32, [10]).require_grad();
    ///     let loss = x.matmul(&w).square().mean(..);
    ///     let gradients = loss.backward();
    ///     w.inner() - w.grad(&gradients) * 0.01
    /// })?;
    /// assert_eq!(captured.graph.ty(captured.graph.outputs[0].value).to_string(), "f32[10] @cpu");
    /// # Ok::<(), kiln_ir::Diagnostics>(())
    /// ```
    #[track_caller]
    pub fn require_grad(&self) -> Tensor {
        let marked = record(&[self], |state, values, loc| {
            check_float(&state.builder, "require_grad", values[0])?;
            let mark = state.builder.value(Op::Mark, values, loc)?;
            state.marks.push(mark);
            Ok(mark)
        });
        let tracking = marked.tracking.clone();
        marked.tracked_if_sound(tracking.deeper())
    }

    /// Whether gradients pass through this tensor: it was marked, or made from tensors of which one was.
    pub fn is_tracked(&self) -> bool {
        self.tracking.is_tracked()
    }

    /// Whether this tensor itself was marked by [`Tensor::require_grad`] in the capture that is open.
    pub fn is_require_grad(&self) -> bool {
        self.value.is_some_and(|value| self.session.is_open() && self.session.lock().marks.contains(&value))
    }

    /// The value, tracked no longer: what it is used for is not differentiated. K0503 where it is not tracked; [`Tensor::detach`] does not
    /// mind.
    #[track_caller]
    pub fn inner(&self) -> Tensor {
        record(&[self], |state, values, loc| {
            self.check_tracked(&state.builder, "inner", values[0])?;
            state.builder.value(Op::StopGradient, values, loc)
        })
    }

    /// The value as a tracked tensor, of which no gradient is taken unless it is marked. What is not tracked is promoted wherever it stands
    /// beside what is, so that only [strict](crate::CaptureDevice::strict) captures need this.
    ///
    /// K0504 where it is tracked already, K0502 where it is no float.
    ///
    /// ```
    /// use kiln_capture::{CaptureDevice, Tensor};
    /// use kiln_ir::{Backend, DType};
    ///
    /// CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
    ///     let x = scope.input("x", DType::F32, [3]);
    ///     let tracked = Tensor::from_inner(&x);
    ///     assert!(tracked.is_tracked() && !x.is_tracked() && !tracked.inner().is_tracked());
    ///     tracked
    /// })?;
    /// # Ok::<(), kiln_ir::Diagnostics>(())
    /// ```
    #[track_caller]
    pub fn from_inner(inner: impl Borrow<Tensor>) -> Tensor {
        let inner = inner.borrow();
        let promoted = record(&[inner], |state, values, loc| {
            check_float(&state.builder, "from_inner", values[0])?;
            if inner.is_tracked() {
                let diagnostic = Diagnostic::new(Code::K0504, "Autodiff should not wrap an autodiff tensor.")
                    .in_op("from_inner")
                    .label("this tensor is tracked already")
                    .help("use it as it is, or take `.inner()` of it first");
                return Err(state.builder.note(diagnostic, "tensor", values[0]));
            }
            state.builder.value(Op::Mark, values, loc)
        });
        promoted.tracked_if_sound(Tracking::promoted())
    }

    /// The ticket with a tracking, unless it is poisoned.
    pub(crate) fn tracked_if_sound(self, tracking: Tracking) -> Tensor {
        if self.is_poisoned() { self } else { self.tracked_by(tracking) }
    }

    /// K0503 where this tensor is not tracked.
    pub(crate) fn check_tracked(&self, builder: &GraphBuilder, op: &str, value: Value) -> Result<(), Diagnostic> {
        if self.is_tracked() {
            return Ok(());
        }
        let diagnostic = Diagnostic::new(Code::K0503, "Requires autodiff tensor.")
            .in_op(op)
            .label(format!("`{op}` of a tensor that is not tracked for gradients"))
            .help("`.require_grad()` gives a tracked tensor: compute the loss from that one, and ask that one for its gradient");
        Err(builder.note(diagnostic, "tensor", value))
    }

    /// K0503 where this tensor is not tracked, K0507 where it was not marked.
    pub(crate) fn check_marked(&self, state: &State, op: &str, value: Value) -> Result<(), Diagnostic> {
        self.check_tracked(&state.builder, op, value)?;
        if state.marks.contains(&value) {
            return Ok(());
        }
        let label = "this tensor was never marked in this capture";
        Err(state.builder.note(unmarked(op, label), "tensor", value))
    }
}

/// K0507, of an op on a tensor.
pub(crate) fn unmarked(op: &str, label: &str) -> Diagnostic {
    let message = "Node should have a step registered, did you forget to call `Tensor::require_grad` on the tensor \
                   where you need gradients?";
    Diagnostic::new(Code::K0507, message)
        .in_op(op)
        .label(label)
        .help("mark it with `.require_grad()` before the loss is computed from it")
}

/// K0502 where a value is no float.
fn check_float(builder: &GraphBuilder, op: &str, value: Value) -> Result<(), Diagnostic> {
    let dtype = builder.ty(value).dtype;
    if dtype.is_float() {
        return Ok(());
    }
    let diagnostic = Diagnostic::new(Code::K0502, "only float tensors may use an autodiff primitive")
        .in_op(op)
        .label(format!("`{op}` of {dtype}: only floats have gradients"))
        .help("cast it to a float first: `.cast(DType::F32)`");
    Err(builder.note(diagnostic, "tensor", value))
}
