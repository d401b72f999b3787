//! The one rebuilder: a new graph from an old one, with dead nodes gone and equal nodes merged.

use smallvec::SmallVec;

use crate::{Backend, Diagnostic, Graph, GraphBuilder, Node, Op, Value};

/// What stands in for a node's results in the new graph, one value a result.
pub type Replacement = SmallVec<[Value; 1]>;

/// Rebuilds `graph` node by node, operands first. `rule` sees each live node with its operands already in the new graph, and may give
/// values that stand in for its results; where it gives `None` the node is copied. Nodes that no output needs are dropped (arguments
/// stay), equal nodes become one.
///
/// ```
/// use kiln_ir::{rebuild, Backend, DType, GraphBuilder, Loc, ScalarOp, TensorType};
/// let mut b = GraphBuilder::new("f");
/// let x = b.input("x", TensorType::new(DType::F32, [3], Backend::Cpu), Loc::Unknown)?;
/// let a = b.scalar(ScalarOp::Exp, &[x], Loc::Unknown)?;
/// let same = b.scalar(ScalarOp::Exp, &[x], Loc::Unknown)?;
/// let y = b.scalar(ScalarOp::Add, &[a, same], Loc::Unknown)?;
/// let graph = b.finish([("y", y)])?;
/// assert_eq!(rebuild(&graph, |_, _, _| Ok(None))?.nodes.len(), 3);
/// # Ok::<(), kiln_ir::Diagnostic>(())
/// ```
pub fn rebuild(
    graph: &Graph,
    mut rule: impl FnMut(&mut GraphBuilder, &Node, &[Value]) -> Result<Option<Replacement>, Diagnostic>,
) -> Result<Graph, Diagnostic> {
    let live = live_nodes(graph);
    let mut builder = GraphBuilder::interning(graph.name.clone());
    let mut map: Vec<Replacement> = vec![Replacement::new(); graph.nodes.len()];
    for &input in &graph.inputs {
        let node = graph.node(input);
        map[input.node.index()] = match rule(&mut builder, node, &[])? {
            Some(values) => values,
            None => SmallVec::from_slice(&[builder.value(node.op.clone(), &[], node.loc)?]),
        };
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        if !live[index] || !map[index].is_empty() {
            continue;
        }
        let operands: SmallVec<[Value; 3]> = node.operands.iter().map(|&operand| resolve(&map, operand)).collect();
        map[index] = match rule(&mut builder, node, &operands)? {
            Some(values) => values,
            None => {
                let id = builder.add(node.op.clone(), &operands, node.loc)?;
                (0..node.types.len()).map(|result| Value { node: id, result: result as u32 }).collect()
            }
        };
    }
    let outputs: Vec<_> =
        graph.outputs.iter().map(|output| (output.name.clone(), resolve(&map, output.value))).collect();
    builder.finish(outputs)
}

fn resolve(map: &[Replacement], value: Value) -> Value {
    map[value.node.index()][value.result as usize]
}

/// Which nodes some output needs.
pub fn live_nodes(graph: &Graph) -> Vec<bool> {
    let mut live = vec![false; graph.nodes.len()];
    for output in &graph.outputs {
        live[output.value.node.index()] = true;
    }
    for index in (0..graph.nodes.len()).rev() {
        if live[index] {
            for operand in &graph.nodes[index].operands {
                live[operand.node.index()] = true;
            }
        }
    }
    live
}

impl Graph {
    /// The whole graph on one backend: every type rewritten, transfers dropped as they become empty.
    pub fn retarget(&self, backend: Backend) -> Result<Graph, Diagnostic> {
        rebuild(self, |builder, node, operands| match &node.op {
            Op::Transfer(_) => Ok(Some(SmallVec::from_slice(&operands[..1]))),
            op => {
                let id = builder.add(retarget_op(op, backend)?, operands, node.loc)?;
                Ok(Some((0..node.types.len()).map(|result| Value { node: id, result: result as u32 }).collect()))
            }
        })
    }
}

/// An op on another backend, as far as it says where it is.
pub(crate) fn retarget_op(op: &Op, backend: Backend) -> Result<Op, Diagnostic> {
    let mut op = op.clone();
    match &mut op {
        Op::Input { ty, .. } | Op::Iota { ty, .. } => ty.backend = backend,
        Op::Literal { backend: place, .. } | Op::Constant { backend: place, .. } => *place = backend,
        Op::Custom(custom) => {
            custom.results.iter_mut().for_each(|ty| ty.backend = backend);
            if let Some(body) = &custom.body {
                custom.body = Some(std::sync::Arc::new(body.retarget(backend)?));
            }
        }
        Op::RandomBits { .. }
        | Op::Scalar(_)
        | Op::Cast(_)
        | Op::Bitcast(_)
        | Op::Select
        | Op::Reduce { .. }
        | Op::Scan { .. }
        | Op::Reshape(_)
        | Op::Permute(_)
        | Op::Broadcast(_)
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Concat { .. }
        | Op::MatMul { .. }
        | Op::Gather { .. }
        | Op::Scatter { .. }
        | Op::Transfer(_)
        | Op::StopGradient
        | Op::Mark
        | Op::Barrier => {}
    }
    Ok(op)
}
