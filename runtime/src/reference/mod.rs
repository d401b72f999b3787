//! The reference interpreter (`Backend::NdArray`): what every op means, as code that runs.
//!
//! It walks a [`Graph`] node by node, operands first, and computes each result on its own from the ops' documentation and the table of
//! elementwise ops. It shares nothing with lowering, kernels or the CPU backend, because they are tested against it. Clear comes before
//! quick; a few million elements are still no trouble.
//!
//! - Every element is a `Literal`, its bits in a `u64` of an `ndarray` array (`tensor`). Moving elements about never touches a bit.
//! - Elementwise ops: [`kiln_ir::ScalarOp::eval`] per element: floats in `f64`, integers in `i128`, rounded or wrapped once to the dtype.
//! - Sums, products, running ones, matrix products and scatter-add accumulate floats in `f64` and round once at the end; integers wrap
//!   at their width.
//! - Backends named in types play no role, and a transfer is the identity: any graph may be evaluated.
//! - Nodes are visited in a loop, so a chain may be as deep as memory allows. Only bodies of custom ops nest.

mod contract;
mod elementwise;
pub mod expected;
mod index;
mod plan;
mod reduce;
mod tensor;
pub mod tolerance;
mod view;

#[cfg(test)]
mod tests;

use kiln_ir::custom::unsupported;
use kiln_ir::{
    Backend, Code, Custom, CustomOps, Diagnostic, Graph, HostData, Loc, Node, Op, TensorType, Value, live_nodes, verify,
};

pub use expected::{Difference, Expected};
pub use plan::{Arguments, Walk, run_plan, run_plan_counted};
use tensor::Tensor;

use crate::run_cpu_function;

/// Evaluates a graph on inputs in declared order, and gives its outputs in order.
///
/// Nodes that no output needs are left out, and every intermediate value is freed after its last use.
///
/// Errors: K0701 where an input's number, dtype or shape is not what the graph declares; K0209 at a custom op without a body;
/// K01xx, K03xx, K04xx or K0901 where the graph breaks a rule of the IR ([`kiln_ir::verify`]).
///
/// ```
/// use kiln_ir::{Backend, DType, GraphBuilder, HostData, Literal, Loc, ScalarOp, TensorType};
/// let mut b = GraphBuilder::new("double");
/// let x = b.input("x", TensorType::new(DType::I8, [2], Backend::Cpu), Loc::Unknown)?;
/// let y = b.scalar(ScalarOp::Add, &[x, x], Loc::Unknown)?;
/// let graph = b.finish([("y", y)])?;
/// let input = HostData::new(DType::I8, [2], vec![100, 3]).expect("two bytes");
/// let outputs = kiln_runtime::reference::evaluate(&graph, &[input])?;
/// assert_eq!(outputs[0].element(0), Literal::from_i128(DType::I8, -56));
/// # Ok::<(), kiln_ir::Diagnostic>(())
/// ```
pub fn evaluate(graph: &Graph, inputs: &[HostData]) -> Result<Vec<HostData>, Diagnostic> {
    evaluate_with(graph, inputs, &CustomOps::new())
}

/// [`evaluate`] with custom ops: those without a body are computed by their CPU function. K0705 where that fails.
pub fn evaluate_with(graph: &Graph, inputs: &[HostData], customs: &CustomOps) -> Result<Vec<HostData>, Diagnostic> {
    let inputs = checked_inputs(graph, inputs)?;
    Ok(outputs_of(graph, &inputs, customs)?.iter().map(Tensor::to_host).collect())
}

/// Evaluates every node of a graph, used or not: entry `i` holds the results of node `i`.
///
/// This is what a kernel-by-kernel comparison works on. Errors are those of [`evaluate`].
pub fn evaluate_all(graph: &Graph, inputs: &[HostData]) -> Result<Vec<Vec<HostData>>, Diagnostic> {
    evaluate_all_with(graph, inputs, &CustomOps::new())
}

/// [`evaluate_all`] with custom ops, as in [`evaluate_with`].
pub fn evaluate_all_with(
    graph: &Graph,
    inputs: &[HostData],
    customs: &CustomOps,
) -> Result<Vec<Vec<HostData>>, Diagnostic> {
    let inputs = checked_inputs(graph, inputs)?;
    let mut values = with_arguments(graph, &inputs);
    for (index, node) in graph.nodes.iter().enumerate() {
        if !is_input(node) {
            values[index] = results(node, &operands_of(node, &values), customs)?;
        }
    }
    Ok(values.iter().map(|results| results.iter().map(Tensor::to_host).collect()).collect())
}

/// The outputs of a checked graph on inputs that fit it.
fn outputs_of(graph: &Graph, inputs: &[Tensor], customs: &CustomOps) -> Result<Vec<Tensor>, Diagnostic> {
    let live = live_nodes(graph);
    let dies_at = last_uses(graph);
    let mut values = with_arguments(graph, inputs);
    for (index, node) in graph.nodes.iter().enumerate() {
        if is_input(node) || !live[index] {
            continue;
        }
        values[index] = results(node, &operands_of(node, &values), customs)?;
        for operand in &node.operands {
            if dies_at[operand.node.index()] == index {
                values[operand.node.index()].clear();
            }
        }
    }
    Ok(graph.outputs.iter().map(|output| fetch(&values, output.value)).collect())
}

/// For each node, the last node that reads it; past the end for outputs of the graph.
fn last_uses(graph: &Graph) -> Vec<usize> {
    let mut last = vec![0; graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for operand in &node.operands {
            last[operand.node.index()] = index;
        }
    }
    for output in &graph.outputs {
        last[output.value.node.index()] = usize::MAX;
    }
    last
}

/// The results of each node so far: those of the input nodes.
fn with_arguments(graph: &Graph, inputs: &[Tensor]) -> Vec<Vec<Tensor>> {
    let mut values = vec![Vec::new(); graph.nodes.len()];
    for (place, input) in graph.inputs.iter().zip(inputs) {
        values[place.node.index()] = vec![input.clone()];
    }
    values
}

fn is_input(node: &Node) -> bool {
    matches!(node.op, Op::Input { .. })
}

fn operands_of(node: &Node, values: &[Vec<Tensor>]) -> Vec<Tensor> {
    node.operands.iter().map(|&operand| fetch(values, operand)).collect()
}

fn fetch(values: &[Vec<Tensor>], value: Value) -> Tensor {
    values[value.node.index()][value.result as usize].clone()
}

/// The results of one node that is no input.
fn results(node: &Node, operands: &[Tensor], customs: &CustomOps) -> Result<Vec<Tensor>, Diagnostic> {
    let result = match &node.op {
        Op::Input { .. } => unreachable!("arguments are in place before the first node is visited"),
        Op::Literal { value, .. } => Tensor::filled(*value, &[]),
        Op::Constant { data, .. } => Tensor::from_host(data),
        Op::Iota { ty, axis } => view::iota(ty, *axis),
        Op::RandomBits { shape, stream } => elementwise::random_bits(&operands[0], shape, *stream),
        Op::Scalar(op) => elementwise::scalar(*op, operands),
        Op::Cast(dtype) => elementwise::cast(&operands[0], *dtype),
        Op::Bitcast(dtype) => elementwise::bitcast(&operands[0], *dtype),
        Op::Select => elementwise::select(&operands[0], &operands[1], &operands[2]),
        Op::Reduce { kind, axes } => reduce::reduce(&operands[0], *kind, axes),
        Op::Scan { kind, axis, direction } => reduce::scan(&operands[0], *kind, *axis, *direction),
        Op::Reshape(shape) => view::reshape(&operands[0], shape),
        Op::Permute(permutation) => view::permute(&operands[0], permutation),
        Op::Broadcast(shape) => view::broadcast(&operands[0], shape),
        Op::Slice { starts, sizes, steps } => view::slice(&operands[0], starts, sizes, steps),
        Op::Pad { low, high, value } => view::pad(&operands[0], low, high, *value),
        Op::Concat { axis } => view::concat(operands, *axis),
        Op::MatMul { .. } => contract::matmul(&operands[0], &operands[1], node.types[0].dtype),
        Op::Gather { axis, batch } => index::gather(&operands[0], &operands[1], *axis, *batch),
        Op::Scatter { kind, axis, batch } => {
            index::scatter(*kind, &operands[0], &operands[1], &operands[2], *axis, *batch)
        }
        Op::Transfer(_) | Op::StopGradient | Op::Mark | Op::Barrier => operands[0].clone(),
        Op::Custom(custom) => return custom_results(custom, operands, node.loc, customs),
    };
    Ok(vec![result])
}

/// By the body; without one by the CPU function.
fn custom_results(
    custom: &Custom,
    operands: &[Tensor],
    loc: Loc,
    customs: &CustomOps,
) -> Result<Vec<Tensor>, Diagnostic> {
    if let Some(body) = &custom.body {
        return outputs_of(body, operands, customs);
    }
    let Some(behaviour) = customs.of(custom).filter(|behaviour| behaviour.cpu.is_some()) else {
        return Err(unsupported(custom, Backend::NdArray, customs).at(loc));
    };
    let operands: Vec<HostData> = operands.iter().map(Tensor::to_host).collect();
    let results = run_cpu_function(behaviour, loc, &operands, &custom.results, 0)?;
    Ok(results.iter().map(Tensor::from_host).collect())
}

/// The inputs as tensors, after the graph has been verified and they have been found to fit it.
fn checked_inputs(graph: &Graph, inputs: &[HostData]) -> Result<Vec<Tensor>, Diagnostic> {
    verify(graph)?;
    if inputs.len() != graph.inputs.len() {
        let message = format!("`{}` takes {} arguments, got {}", graph.name, graph.inputs.len(), inputs.len());
        return Err(Diagnostic::new(Code::K0701, message));
    }
    for (index, input) in inputs.iter().enumerate() {
        let declared = graph.node(graph.inputs[index]);
        let wanted = &declared.types[0];
        if (input.dtype(), input.shape()) != (wanted.dtype, &wanted.shape) {
            return Err(misfit(graph.input_name(index).unwrap_or("?"), wanted, input, declared.loc));
        }
    }
    Ok(inputs.iter().map(Tensor::from_host).collect())
}

fn misfit(name: &str, wanted: &TensorType, input: &HostData, declared: Loc) -> Diagnostic {
    let TensorType { shape, dtype, .. } = wanted;
    let message = format!("argument `{name}`: expected {dtype}{shape}, got {}{}", input.dtype(), input.shape());
    Diagnostic::new(Code::K0701, message).note(
        name,
        wanted.to_string(),
        format!("input \"{name}\", declared"),
        declared,
    )
}
