//! Concats of more parts than a device can bind: parts of them are put together first.

use kiln_ir::{Diagnostic, Graph, Op, Value, rebuild};
use smallvec::smallvec;

use crate::options::Options;

/// Rewrites each concat that reads more than a kernel can bind as concats of concats. Nothing is computed otherwise: each element is copied from
/// where it was.
pub(crate) fn narrow(graph: &Graph, options: &Options) -> Result<Graph, Diagnostic> {
    let most = options.limits.bindings.saturating_sub(1).max(2);
    let wide = |op: &Op, operands: usize| matches!(op, Op::Concat { .. }) && operands > most;
    if !graph.nodes.iter().any(|node| wide(&node.op, node.operands.len())) {
        return Ok(graph.clone());
    }
    rebuild(graph, |builder, node, operands| {
        if !wide(&node.op, operands.len()) {
            return Ok(None);
        }
        let mut parts: Vec<Value> = operands.to_vec();
        while parts.len() > most {
            let joined = parts.chunks(most).map(|chunk| match chunk {
                [one] => Ok(*one),
                several => builder.value(node.op.clone(), several, node.loc),
            });
            parts = joined.collect::<Result<_, _>>()?;
        }
        Ok(Some(smallvec![builder.value(node.op.clone(), &parts, node.loc)?]))
    })
}
