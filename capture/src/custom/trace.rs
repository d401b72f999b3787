//! Recording what a custom op consists of (its body, its gradient) as a graph of its own.
//!
//! User code runs here with no lock held: it may call other custom ops, whose behaviour is collected along with the graph.

use kiln_ir::{Backend, Code, Diagnostic, Diagnostics, Loc, Result, TensorType};

use crate::{CaptureDevice, CapturedGraph, Tensor};

/// What is recorded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    /// The op.
    pub(super) op: &'a str,
    /// What of it: `body`, `gradient rule`.
    pub(super) part: &'a str,
    /// Where nodes live.
    pub(super) backend: Backend,
}

/// Records a closure on tickets of the given names and types. Its outputs are what it returns, by name.
pub(super) fn trace<R>(
    subject: Subject,
    inputs: &[(String, TensorType)],
    record: impl FnOnce(Vec<Tensor>) -> R,
    outputs: impl FnOnce(&R) -> Result<Vec<(String, Tensor)>, Diagnostic>,
) -> Result<(R, CapturedGraph)> {
    let open = CaptureDevice::new(subject.backend).begin(subject.op)?;
    let tickets = inputs.iter().map(|(name, ty)| open.declare(name, ty.clone())).collect();
    let results = open.run(|_| record(tickets))?;
    // What went wrong so far is told before anything that follows from it.
    if let Some(mistakes) = open.session().diagnostics() {
        return Err(mistakes);
    }
    let named = outputs(&results)?;
    let named: Vec<(String, &Tensor)> = named.iter().map(|(name, tensor)| (name.clone(), tensor)).collect();
    let captured = open.finish_with(&named)?;
    match captured.graph.inputs.get(inputs.len()) {
        None => Ok((results, captured)),
        Some(&stray) => {
            let name = captured.graph.input_name(inputs.len()).unwrap_or("?");
            let message = format!("graph reads undeclared input tensor {name}");
            let label = format!("the {} of a custom op has its operands and no other inputs", subject.part);
            Err(Diagnostic::new(Code::K0108, message).at(captured.graph.node(stray).loc).label(label).into())
        }
    }
}

/// Mistakes made while recording a part of an op, with the line that called for it.
pub(super) fn called_from(mistakes: Diagnostics, subject: Subject, loc: Loc) -> impl Iterator<Item = Diagnostic> {
    let text = format!("{} of custom op `{}`", subject.part, subject.op);
    mistakes.into_iter().map(move |mistake| mistake.note("in the", text.clone(), "called", loc))
}
