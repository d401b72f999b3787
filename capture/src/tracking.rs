//! Who tracks a ticket for gradients.
//!
//! That a tensor is *tracked* is a fact of its ticket, not of its type: the graph holds no trace of it. A ticket is tracked
//!
//! - through [`require_grad`](crate::Tensor::require_grad), to a *depth*: 1 for a tensor that was marked, 2 for one that was marked again on
//!   the way. A gradient that `backward` takes is one less deep than the loss, so the gradient of a tensor that was marked twice can be
//!   differentiated again;
//! - through [`from_inner`](crate::Tensor::from_inner), which promotes it and marks nothing;
//! - by the calls of [`value_and_grad`](crate::value_and_grad) that it was made in, for as long as they run.
//!
//! The float results of an op are tracked as its operands are, all together; integers and bools are not tracked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kiln_ir::{Code, Diagnostic, Loc, Node};
use smallvec::SmallVec;

use crate::Tensor;

/// By whom a ticket is tracked; by nobody at first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tracking {
    /// How many times over through `require_grad`.
    pub(crate) depth: u32,
    /// Whether through `from_inner`.
    promoted: bool,
    contexts: SmallVec<[Arc<Context>; 1]>,
}

/// A call of `value_and_grad`.
#[derive(Debug)]
struct Context {
    loc: Loc,
    open: AtomicBool,
}

/// A call of `value_and_grad` that runs. Dropped, it is over, also where the loss panics.
#[derive(Debug)]
pub(crate) struct OpenContext(Arc<Context>);

impl OpenContext {
    /// Begins a call at a user's line.
    pub(crate) fn new(loc: Loc) -> OpenContext {
        OpenContext(Arc::new(Context { loc, open: AtomicBool::new(true) }))
    }
}

impl Drop for OpenContext {
    fn drop(&mut self) {
        self.0.open.store(false, Ordering::Release);
    }
}

impl Tracking {
    /// What a tensor of these operands is tracked by.
    pub(crate) fn of(operands: &[&Tensor]) -> Tracking {
        let mut joined = Tracking::default();
        for operand in operands {
            joined.join(&operand.tracking);
        }
        joined
    }

    fn join(&mut self, other: &Tracking) {
        self.depth = self.depth.max(other.depth);
        self.promoted |= other.promoted;
        for context in &other.contexts {
            if !self.contexts.iter().any(|known| Arc::ptr_eq(known, context)) {
                self.contexts.push(context.clone());
            }
        }
    }

    /// Whether anybody does.
    pub(crate) fn is_tracked(&self) -> bool {
        self.depth > 0 || self.promoted || !self.contexts.is_empty()
    }

    /// Of a leaf that a call of `value_and_grad` marked.
    pub(crate) fn within(mut self, context: &OpenContext) -> Tracking {
        self.contexts.push(context.0.clone());
        self
    }

    /// Of what a call of `value_and_grad` gives back.
    pub(crate) fn without(mut self, context: &OpenContext) -> Tracking {
        self.contexts.retain(|known| !Arc::ptr_eq(known, &context.0));
        self
    }

    /// Marked once more.
    pub(crate) fn deeper(mut self) -> Tracking {
        self.depth += 1;
        self
    }

    /// Of what `from_inner` gives.
    pub(crate) fn promoted() -> Tracking {
        Tracking { promoted: true, ..Tracking::default() }
    }

    /// Of the gradients of a loss that is tracked so.
    pub(crate) fn of_gradients(mut self) -> Tracking {
        self.depth = self.depth.saturating_sub(1);
        self.promoted = false;
        self
    }

    /// Where the gradient was asked for that is over and still tracks this.
    fn closed(&self) -> Option<Loc> {
        self.contexts.iter().find(|context| !context.open.load(Ordering::Acquire)).map(|context| context.loc)
    }

    /// Of a node's result, where the operands are tracked so. The bits of a tracked float stay tracked until they are a float again: there the
    /// missing gradient is found.
    pub(crate) fn of_result(self, node: &Node, result: usize) -> Tracking {
        let bits = matches!(node.op, kiln_ir::Op::Bitcast(_));
        let stopped = matches!(node.op, kiln_ir::Op::StopGradient);
        if !stopped && (bits || node.types[result].dtype.is_float()) { self } else { Tracking::default() }
    }
}

/// K0508 where an operand was kept from inside a call of `value_and_grad` that is over.
pub(crate) fn check_contexts(operands: &[&Tensor], loc: Loc) -> Result<(), Diagnostic> {
    let kept = operands.iter().enumerate().find_map(|(place, operand)| Some((place, operand.tracking.closed()?)));
    let Some((place, closed)) = kept else { return Ok(()) };
    let message = "an autodiff float primitive must have an enabled autodiff context";
    let mut diagnostic = Diagnostic::new(Code::K0508, message)
        .at(loc)
        .label("an operand is tracked by a gradient that is already taken");
    for (index, operand) in operands.iter().enumerate() {
        let role = if operands.len() == 1 { "tensor".to_owned() } else { format!("operand {index}") };
        diagnostic = diagnostic.note(role, operand.to_string(), "made", operand.loc);
        if index == place {
            diagnostic = diagnostic.note("", "tracked by the gradient", "asked for", closed);
        }
    }
    Err(diagnostic
        .help("return it beside the loss: `value_and_grad_aux` gives tensors that can be used")
        .help("or keep `.detach()` of it, made inside"))
}
