//! What stands behind a plan: the graph that was lowered, and for every buffer of every launch the values it holds.
//!
//! The executor needs none of it. Who asks whether a kernel computes what it should does: a launch's operands and results are values of
//! [`Traced::graph`], which the reference interpreter evaluates.

use kiln_ir::kernel::{Access, Kernel};
use kiln_ir::plan::Plan;
use kiln_ir::{Graph, Value};

/// A plan and where it comes from.
#[derive(Clone, Debug)]
pub struct Traced {
    /// The plan.
    pub plan: Plan,
    /// The graph after all graph passes, from which it was lowered.
    pub graph: Graph,
    /// For each launch, one entry for each of its buffers, in order.
    pub bound: Vec<Vec<Bound>>,
}

/// The values of [`Traced::graph`] that a buffer holds around a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// What the launch finds there; `None` where it stores everything anew.
    pub before: Option<Value>,
    /// What it leaves there; `None` where it only reads.
    pub after: Option<Value>,
}

/// The values behind a launch's buffers. `values` are those that its buffers end with, `merged` are operands with the results that are written
/// over them, `target` is a scatter's result and what that starts from.
pub(crate) fn bound(
    kernel: &Kernel,
    values: &[Value],
    merged: &[(Value, Value)],
    target: Option<(Value, Value)>,
) -> Vec<Bound> {
    let before = |value: Value| {
        let read = merged.iter().find(|(_, written)| *written == value).map(|(read, _)| *read);
        read.or(target.filter(|(result, _)| *result == value).map(|(_, target)| target))
    };
    let buffers = values.iter().zip(kernel.buffers());
    buffers
        .map(|(&value, buffer)| match buffer.access {
            Access::Read => Bound { before: Some(value), after: None },
            Access::Write => Bound { before: None, after: Some(value) },
            Access::ReadWrite => Bound { before: before(value), after: Some(value) },
        })
        .collect()
}
