//! Custom ops become their bodies, but for those that have a kernel of their own for the backend; one that has neither is an error here,
//! since no pass knows what it does.

use kiln_ir::custom::unsupported;
use kiln_ir::{Custom, CustomOps, Diagnostic, Graph, GraphBuilder, Node, Op, Replacement, Value, rebuild};

use crate::Options;

/// Replaces custom ops by their bodies. K0209 names one that has neither a body nor a kernel.
pub fn inline(graph: &Graph, options: &Options) -> Result<Graph, Diagnostic> {
    if !graph.nodes.iter().any(|node| matches!(node.op, Op::Custom(_))) {
        return Ok(graph.clone());
    }
    rebuild(graph, |builder, node, operands| match &node.op {
        Op::Custom(custom) => inlined(builder, node, custom, operands, &options.customs),
        _ => Ok(None),
    })
}

/// What stands in for a custom op; `None` where it stays, to be run by its own kernel.
fn inlined(
    builder: &mut GraphBuilder,
    node: &Node,
    custom: &Custom,
    operands: &[Value],
    customs: &CustomOps,
) -> Result<Option<Replacement>, Diagnostic> {
    let Some(backend) = node.types.first().map(|ty| ty.backend) else { return Ok(None) };
    match &custom.body {
        _ if customs.run_on(custom, backend) => Ok(None),
        Some(body) => append(builder, body, operands, customs).map(Some),
        None => Err(unsupported(custom, backend, customs).at(node.loc)),
    }
}

/// Adds a body's nodes with its inputs replaced by `operands`; nested bodies too.
fn append(
    builder: &mut GraphBuilder,
    body: &Graph,
    operands: &[Value],
    customs: &CustomOps,
) -> Result<Replacement, Diagnostic> {
    let mut map: Vec<Replacement> = vec![Replacement::new(); body.nodes.len()];
    for (input, &operand) in body.inputs.iter().zip(operands) {
        map[input.node.index()].push(operand);
    }
    let look_up = |map: &[Replacement], value: Value| map[value.node.index()][value.result as usize];
    for (index, node) in body.nodes.iter().enumerate() {
        if matches!(node.op, Op::Input { .. }) {
            continue;
        }
        let own: Vec<Value> = node.operands.iter().map(|&operand| look_up(&map, operand)).collect();
        let nested = match &node.op {
            Op::Custom(custom) => inlined(builder, node, custom, &own, customs)?,
            _ => None,
        };
        map[index] = match nested {
            Some(results) => results,
            None => {
                let id = builder.add(node.op.clone(), &own, node.loc)?;
                (0..node.types.len()).map(|result| Value { node: id, result: result as u32 }).collect()
            }
        };
    }
    Ok(body.outputs.iter().map(|output| look_up(&map, output.value)).collect())
}
