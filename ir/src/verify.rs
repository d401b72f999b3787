//! The verifier: what must hold of every graph between passes.
//!
//! - every operand refers to a result of an earlier node, and so does every output;
//! - each node's types are what [`infer`] gives for its operands;
//! - `inputs` lists exactly the input nodes, whose names are unique; output names are unique;
//! - graphs inside ops hold the same.

use std::collections::HashSet;

use crate::op::infer;
use crate::{Code, Diagnostic, Graph, Op, TensorType, Value};

/// Checks a graph against the rules above. The diagnostic is K0106 to K0110 for its boundary, and otherwise what [`infer`] says.
pub fn verify(graph: &Graph) -> Result<(), Diagnostic> {
    let mut names = HashSet::new();
    let mut declared = HashSet::new();
    for &input in &graph.inputs {
        let Some(Op::Input { name, .. }) = graph.nodes.get(input.node.index()).map(|node| &node.op) else {
            return Err(Diagnostic::new(
                Code::K0109,
                format!("graph input tensor {input} is produced within the graph"),
            ));
        };
        if !names.insert(name.clone()) {
            return Err(Diagnostic::new(Code::K0107, format!("duplicate graph input tensor {name}")));
        }
        declared.insert(input);
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        if let Op::Input { name, .. } = &node.op
            && !declared.contains(&Value::first(index))
        {
            let message = format!("graph reads undeclared input tensor {name}");
            return Err(Diagnostic::new(Code::K0108, message).at(node.loc));
        }
        let known =
            |value: &&Value| value.node.index() < index && (value.result as usize) < graph.node(**value).types.len();
        if let Some(unknown) = node.operands.iter().find(|value| !known(value)) {
            let message = format!("unknown graph {} tensor {unknown}", graph.name);
            return Err(Diagnostic::new(Code::K0106, message).at(node.loc).in_op(node.op.name()));
        }
        let operands: Vec<&TensorType> = node.operands.iter().map(|&operand| graph.ty(operand)).collect();
        let types = infer(&node.op, &operands).map_err(|diagnostic| diagnostic.at(node.loc))?;
        if types != node.types {
            let name = node.op.name();
            let list = |types: &[TensorType]| types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let (declared, inferred) = (list(&node.types), list(&types));
            let message = format!("internal: `{name}` gives {inferred}, and the graph says {declared}");
            return Err(Diagnostic::new(Code::K0901, message).at(node.loc).in_op(name));
        }
        if let Op::Custom(custom) = &node.op
            && let Some(body) = &custom.body
        {
            verify(body)?;
        }
    }
    let mut names = HashSet::new();
    for output in &graph.outputs {
        let node = graph.nodes.get(output.value.node.index());
        if node.is_none_or(|node| output.value.result as usize >= node.types.len()) {
            let message = format!("graph output tensor {} does not survive the graph", output.name);
            return Err(Diagnostic::new(Code::K0110, message));
        }
        if !names.insert(&output.name) {
            return Err(Diagnostic::new(Code::K0107, format!("duplicate graph output tensor {}", output.name)));
        }
    }
    Ok(())
}
