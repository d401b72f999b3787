//! Which values are candidates for memory: the roots. Every other value is computed wherever it is read.
//!
//! A value is a root if
//! - it is a result of the graph;
//! - its op ends a kernel form (reductions, matrix products, scans, scatters);
//! - attention reads it, through views, casts and a constant scale at most;
//! - a matrix product or scatter target reads it, through views that strides can express at most; a custom op or a transfer reads it, dense as it is;
//! - it is read in several places and costs more to compute again than to keep;
//! - it is read at many more points than it has elements and is not cheap;
//! - the expression behind it has grown to a size that one kernel should not exceed.
//!
//! What is computed inside of attention is no root, whatever it is.
//!
//! A root whose readers all join its kernel is never stored after all: that is for grouping to find.

use kiln_ir::{Graph, Op, ScalarOp, Value};

use crate::attention::{Attentions, behind_views};
use crate::classify::{Class, class, weight};
use crate::options::{Fusion, Options};

/// An expression heavier than this becomes a root.
const LARGEST_EXPRESSION: u32 = 96;
/// Up to this weight a value is computed again for each reader.
const LIGHT: u32 = 4;
/// Up to this weight a value is computed again for each element it is broadcast to.
const LIGHT_BROADCAST: u32 = 6;
/// Up to this many different reads from memory a value is computed again for each reader.
const LIGHT_READS: u32 = 2;

/// The roots of a graph, and the live nodes.
pub(crate) struct Roots {
    /// Per node: is its value a root? Leaves are not.
    pub(crate) is_root: Vec<bool>,
}

/// What computing a value inline costs: operations, and loads from memory.
#[derive(Clone, Copy, Default)]
struct Cost {
    weight: u32,
    reads: u32,
}

pub(crate) fn find(graph: &Graph, attentions: &Attentions, options: &Options) -> Roots {
    let demand = Demand::of(graph, attentions);
    let mut is_root = vec![false; graph.nodes.len()];
    let mut cost = vec![Cost::default(); graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        let mut sum = Cost { weight: weight(&node.op), reads: 0 };
        for operand in &node.operands {
            let operand = operand.node.index();
            let part = match class(&graph.nodes[operand].op) {
                Class::Leaf => Cost { weight: 0, reads: 1 },
                _ if is_root[operand] => Cost { weight: 0, reads: 1 },
                Class::View | Class::Point | Class::Reduce | Class::Anchor => cost[operand],
            };
            sum.weight = sum.weight.saturating_add(part.weight);
            sum.reads = sum.reads.saturating_add(part.reads);
        }
        // Each root is one more buffer, and so is the result.
        let most = options.limits.bindings.saturating_sub(1).min(u32::MAX as usize) as u32;
        if sum.reads > most {
            sum.reads = keep_apart(graph, index, most, &mut is_root, &cost, attentions);
        }
        cost[index] = sum;
        if attentions.interior.contains(&index) {
            continue;
        }
        let demand = &demand[index];
        is_root[index] = demand.is_output && class(&node.op) != Class::Leaf
            || match class(&node.op) {
                Class::Leaf => false,
                Class::Reduce | Class::Anchor => true,
                Class::View => demand.in_memory || sum.weight > LARGEST_EXPRESSION,
                Class::Point if matches!(node.op, Op::Literal { .. }) => demand.in_memory,
                Class::Point => {
                    let light = sum.weight <= LIGHT && sum.reads <= LIGHT_READS;
                    options.fusion == Fusion::Off
                        || demand.in_memory
                        || (demand.readers > 1 && !light)
                        || (demand.is_broadcast && sum.weight > LIGHT_BROADCAST)
                        || sum.weight > LARGEST_EXPRESSION
                        || sum.reads > LARGEST_EXPRESSION / 4
                }
            };
    }
    Roots { is_root }
}

/// Makes operands of a node roots, those with the most reads first, until it reads no more than `most` buffers. Gives how many it then reads.
fn keep_apart(
    graph: &Graph,
    index: usize,
    most: u32,
    is_root: &mut [bool],
    cost: &[Cost],
    attentions: &Attentions,
) -> u32 {
    let computed = |value: &Value, is_root: &[bool]| {
        let own = value.node.index();
        !is_root[own] && class(&graph.nodes[own].op) != Class::Leaf && !attentions.interior.contains(&own)
    };
    let mut operands: Vec<Value> = graph.nodes[index].operands.to_vec();
    operands.sort_unstable();
    operands.dedup();
    let reads =
        |value: &Value, is_root: &[bool]| if computed(value, is_root) { cost[value.node.index()].reads } else { 1 };
    loop {
        let sum: u32 = operands.iter().map(|value| reads(value, is_root)).sum();
        let widest = operands.iter().filter(|value| computed(value, is_root) && reads(value, is_root) > 1);
        let Some(widest) = widest.max_by_key(|value| reads(value, is_root)).filter(|_| sum > most) else { return sum };
        is_root[widest.node.index()] = true;
    }
}

/// How the rest of the graph uses a value.
#[derive(Clone, Copy, Default)]
struct Demand {
    /// It is a result of the graph.
    is_output: bool,
    /// Some op wants it in memory.
    in_memory: bool,
    /// How many nodes read it, views counted by their readers.
    readers: u32,
    /// Some reader reads elements many times over.
    is_broadcast: bool,
}

impl Demand {
    fn of(graph: &Graph, attentions: &Attentions) -> Vec<Demand> {
        let mut demand = vec![Demand::default(); graph.nodes.len()];
        for output in &graph.outputs {
            demand[output.value.node.index()].is_output = true;
        }
        for (index, node) in graph.nodes.iter().enumerate().rev() {
            let own = demand[index];
            let through_view = class(&node.op) == Class::View && !own.is_output;
            for (position, operand) in node.operands.iter().enumerate() {
                if node.operands[..position].contains(operand) {
                    continue;
                }
                let of = &mut demand[operand.node.index()];
                of.readers = of.readers.saturating_add(if through_view { own.readers.max(1) } else { 1 });
                let expands = matches!(&node.op, Op::Broadcast(shape) if shape.num_elements() > graph.ty(*operand).shape.num_elements());
                let indexed = matches!(node.op, Op::Gather { .. }) && position == 0;
                of.is_broadcast |= expands || indexed || (through_view && own.is_broadcast);
            }
            if attentions.is_part(Value::first(index)) && matches!(node.op, Op::MatMul { .. }) {
                for &operand in &node.operands {
                    let base = scaled_base(graph, operand);
                    // A number is at hand anywhere.
                    demand[base.node.index()].in_memory |= !matches!(graph.node(base).op, Op::Literal { .. });
                }
            } else if let Op::MatMul { .. } = &node.op {
                for &operand in &node.operands {
                    demand[strided_base(graph, operand).node.index()].in_memory = true;
                }
            } else if let Op::Scatter { .. } = &node.op {
                demand[node.operands[0].node.index()].in_memory = true;
            } else if let Op::Custom(_) | Op::Transfer(_) = &node.op {
                node.operands.iter().for_each(|operand| demand[operand.node.index()].in_memory = true);
            }
        }
        demand
    }
}

/// The value that a matrix product's operand is read from: views that strides express are looked through.
pub(crate) fn strided_base(graph: &Graph, value: Value) -> Value {
    let mut base = value;
    loop {
        let node = graph.node(base);
        // A reshape of what is dense in memory is itself dense, and adding or dropping axes of extent 1 never hurts.
        let dense = matches!(node.op, Op::Reshape(_))
            && (class(&graph.node(node.operands[0]).op) != Class::View || same_axes(graph, base));
        if !dense && !matches!(node.op, Op::Permute(_) | Op::Broadcast(_) | Op::Slice { .. }) {
            return base;
        }
        base = node.operands[0];
    }
}

/// The value that an operand of attention is made from where it is read: behind views, casts and a constant scale.
fn scaled_base(graph: &Graph, value: Value) -> Value {
    let mut base = value;
    loop {
        let node = graph.node(base);
        let number = |value: Value| matches!(graph.node(behind_views(graph, value)).op, Op::Literal { .. });
        base = match &node.op {
            Op::Permute(_) | Op::Broadcast(_) | Op::Slice { .. } | Op::Reshape(_) | Op::Cast(_) => node.operands[0],
            Op::Scalar(ScalarOp::Mul | ScalarOp::Div) if number(node.operands[1]) => node.operands[0],
            Op::Scalar(ScalarOp::Mul) if number(node.operands[0]) => node.operands[1],
            _ => return base,
        };
    }
}

/// Whether a reshape only adds or drops axes of extent 1.
fn same_axes(graph: &Graph, reshape: Value) -> bool {
    let from = &graph.ty(graph.node(reshape).operands[0]).shape;
    let to = &graph.ty(reshape).shape;
    from.iter().filter(|&&extent| extent != 1).eq(to.iter().filter(|&&extent| extent != 1))
}
