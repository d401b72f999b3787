//! Custom ops with a body become that body; one without is an error here, since no pass knows what it does.

use kiln_ir::{Code, Diagnostic, Graph, GraphBuilder, Op, Replacement, Value, rebuild};

/// Replaces every custom op by its body. K0209 names one that has none.
pub fn inline(graph: &Graph) -> Result<Graph, Diagnostic> {
    if !graph.nodes.iter().any(|node| matches!(node.op, Op::Custom(_))) {
        return Ok(graph.clone());
    }
    rebuild(graph, |builder, node, operands| match &node.op {
        Op::Custom(custom) => {
            let Some(body) = &custom.body else {
                let message = format!("Backend not supported for custom op `{}`", custom.name);
                return Err(Diagnostic::new(Code::K0209, message)
                    .at(node.loc)
                    .label("it has neither a body nor a kernel for this backend"));
            };
            let results = append(builder, body, operands)?;
            Ok(Some(results))
        }
        _ => Ok(None),
    })
}

/// Adds a body's nodes with its inputs replaced by `operands`; nested bodies too.
fn append(builder: &mut GraphBuilder, body: &Graph, operands: &[Value]) -> Result<Replacement, Diagnostic> {
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
        map[index] = match &node.op {
            Op::Custom(custom) if custom.body.is_some() => {
                let nested = custom.body.as_ref().expect("the guard has seen it");
                append(builder, nested, &own)?
            }
            op => {
                let id = builder.add(op.clone(), &own, node.loc)?;
                (0..node.types.len()).map(|result| Value { node: id, result: result as u32 }).collect()
            }
        };
    }
    Ok(body.outputs.iter().map(|output| look_up(&map, output.value)).collect())
}
