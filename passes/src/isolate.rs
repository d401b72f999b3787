//! One launch of a plan by itself: the part of the graph that its kernel computes, and a plan of that kernel alone.
//!
//! Both have the launch's operands as arguments and what it stores as results, so that they can be held against each other, and the part of
//! the graph stands for the launch wherever it is to be shown again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kiln_ir::plan::{BufferId, Launch, Plan, PlanBuffer, Source, Step};
use kiln_ir::{Diagnostic, Graph, GraphBuilder, Op, TensorType, Value};

use crate::trace::{Bound, Traced};

/// A launch by itself.
#[derive(Clone, Debug)]
pub struct Isolated {
    /// What the kernel is to compute. Its arguments are [`Isolated::operands`], its results [`Isolated::results`].
    pub graph: Graph,
    /// The kernel. Its results are those of the graph.
    pub plan: Plan,
    /// For each argument of the plan which of the operands it is, perhaps in another shape of as many elements.
    pub arguments: Vec<usize>,
    /// Values of [`Traced::graph`] that it finds.
    pub operands: Vec<Value>,
    /// Values of [`Traced::graph`] that it leaves.
    pub results: Vec<Value>,
}

impl Traced {
    /// The launch of this number by itself.
    ///
    /// # Errors
    ///
    /// K0901 where the part of the graph is not sound.
    ///
    /// # Panics
    ///
    /// Where there is no such launch.
    pub fn isolate(&self, number: usize) -> Result<Isolated, Diagnostic> {
        let launch = self.plan.launches().nth(number).expect("the launch is one of the plan's");
        let bound = &self.bound[number];
        let mut operands: Vec<Value> = Vec::new();
        for operand in bound.iter().filter_map(|bound| bound.before) {
            // What a scatter starts from may be read beside.
            if !operands.contains(&operand) {
                operands.push(operand);
            }
        }
        let results: Vec<Value> = bound.iter().filter_map(|bound| bound.after).collect();
        let (graph, operands) = part(&self.graph, operands, &results, &self.plan.name, number)?;
        let (plan, arguments) = alone(&self.graph, &graph, launch, bound, &operands);
        Ok(Isolated { graph, plan, arguments, operands, results })
    }
}

/// The part of a graph between some values and others. Arguments that it reads beside the given ones are added to them.
fn part(
    graph: &Graph,
    mut operands: Vec<Value>,
    results: &[Value],
    name: &str,
    number: usize,
) -> Result<(Graph, Vec<Value>), Diagnostic> {
    let mut inside: HashSet<usize> = HashSet::new();
    let mut open: Vec<Value> = results.to_vec();
    while let Some(value) = open.pop() {
        if operands.contains(&value) {
            continue;
        }
        if let Op::Input { .. } = graph.node(value).op {
            operands.push(value);
        } else if inside.insert(value.node.index()) {
            open.extend(&graph.node(value).operands);
        }
    }
    let mut builder = GraphBuilder::new(format!("{name}.kernel{number}"));
    let mut moved: HashMap<Value, Value> = HashMap::new();
    for &operand in &operands {
        let node = graph.node(operand);
        let name = match &node.op {
            Op::Input { name, .. } => name.clone(),
            _ => Arc::from(format!("v{}", &operand.to_string()[1..])),
        };
        moved.insert(operand, builder.input(name, graph.ty(operand).clone(), node.loc)?);
    }
    let mut nodes: Vec<usize> = inside.into_iter().collect();
    nodes.sort_unstable();
    for index in nodes {
        let node = &graph.nodes[index];
        let from: Vec<Value> = node.operands.iter().map(|operand| moved[operand]).collect();
        let id = builder.add(node.op.clone(), &from, node.loc)?;
        for result in 0..node.types.len() as u32 {
            let value = Value { result, ..Value::first(index) };
            moved.entry(value).or_insert(Value { node: id, result });
        }
    }
    let outputs = results.iter().map(|result| {
        let known = graph.outputs.iter().find(|output| output.value == *result);
        let name = known.map_or_else(|| format!("v{}", &result.to_string()[1..]), |output| output.name.to_string());
        (name, moved[result])
    });
    Ok((builder.finish(outputs)?, operands))
}

/// A plan of one kernel, and for each of its arguments which of the operands it is. What is updated in place starts as a copy of its operand.
fn alone(whole: &Graph, graph: &Graph, launch: &Launch, bound: &[Bound], operands: &[Value]) -> (Plan, Vec<usize>) {
    let (mut buffers, mut bindings, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    let (mut inputs, mut results, mut arguments) = (Vec::new(), Vec::new(), Vec::new());
    for (bound, described) in bound.iter().zip(launch.kernel.buffers()) {
        let mut add = |source: Source, ty: TensorType, value: Value| {
            let loc = whole.node(value).loc;
            buffers.push(PlanBuffer { source, ty, donated_to: None, loc });
            BufferId(buffers.len() as u32 - 1)
        };
        debug_assert_eq!(described.len, {
            let value = bound.after.or(bound.before).expect("a buffer holds something");
            whole.ty(value).shape.num_elements()
        });
        // An operand that is written over may have another shape of as many elements.
        let before = bound.before.map(|value| {
            let ty = whole.ty(bound.after.unwrap_or(value)).clone();
            let operand = operands.iter().position(|&operand| operand == value).expect("what is found is an operand");
            arguments.push(operand);
            inputs.push((graph.input_name(operand).unwrap_or("?").into(), ty.clone()));
            add(Source::Input(inputs.len() - 1), ty, value)
        });
        let after = bound.after.map(|value| {
            let id = add(Source::Output(results.len()), whole.ty(value).clone(), value);
            results.push(id);
            id
        });
        if let (Some(from), Some(to)) = (before, after) {
            steps.push(Step::Copy { from, to });
        }
        bindings.extend(after.or(before));
    }
    steps.push(Step::Launch(Launch { buffers: bindings, ..launch.clone() }));
    let outputs = graph.outputs.iter().map(|output| (output.name.clone(), graph.ty(output.value).clone())).collect();
    let plan = Plan {
        name: graph.name.clone(),
        backend: whole.backends().first().copied().unwrap_or(kiln_ir::Backend::Cpu),
        inputs,
        outputs,
        buffers,
        results,
        slots: Vec::new(),
        steps,
        ledger: Vec::new(),
        recomputed: Vec::new(),
        scratch: Vec::new(),
    };
    (plan, arguments)
}
