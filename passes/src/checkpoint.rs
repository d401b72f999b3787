//! Checkpointing: values that are computed again where they are wanted late, so that a plan fits a budget of bytes.
//!
//! A training step keeps what its forward part has made until its gradients want it, and holds the most in between. Where that is more than
//! allowed, some of the values that lie idle at the peak are not kept: whoever reads one after the peak reads a copy, computed again from what
//! is there anyway. What is given up first is what costs the least to compute again for each byte. The rewritten graph is planned like any
//! other; its peak may lie elsewhere, so this goes on until the plan fits, or until nothing is gained any more.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use kiln_ir::plan::{Plan, Recomputed, Source};
use kiln_ir::{Code, Diagnostic, Graph, GraphBuilder, NodeId, Op, Value};

use crate::classify::{Class, class, weight};
use crate::trace::Traced;

/// Rounds without gain before another part is tried.
const PATIENCE: usize = 4;
/// Rounds for each part, at most.
const ROUNDS: usize = 32;
/// Which part of what is missing is gained by a round.
const PARTS: [usize; 5] = [1, 2, 4, 8, 32];
/// Tensors that a refusal names.
const NAMED: usize = 5;

/// The plan of the graph, or of one that computes values again, with at most `budget` bytes beside the arguments.
///
/// Errors: K0704 where none is found, with the tensors that take the most; whatever planning raises.
pub(crate) fn within(
    first: Traced,
    budget: usize,
    plan: &dyn Fn(Graph) -> Result<Traced, Diagnostic>,
) -> Result<Traced, Diagnostic> {
    let whole = first.plan.peak_bytes();
    let mut best = Rc::new(Rewritten { traced: first, recomputed: Vec::new() });
    // What is given up all at once may have to be there all at once when it is wanted: then less of it is, and more in the next round.
    for part in PARTS {
        if best.peak() <= budget {
            break;
        }
        let (mut current, mut idle) = (best.clone(), 0);
        for _ in 0..ROUNDS {
            if best.peak() <= budget || idle == PATIENCE {
                break;
            }
            let Some(next) = current.round(budget, part, plan)?.map(Rc::new) else { break };
            idle = if next.peak() < best.peak() { 0 } else { idle + 1 };
            if idle == 0 {
                best = next.clone();
            }
            current = next;
        }
    }
    let best = Rc::into_inner(best).expect("other plans on the way are gone");
    let Rewritten { traced: mut best, recomputed } = best;
    if best.plan.peak_bytes() > budget {
        return Err(refusal(&best.plan, whole, budget));
    }
    best.plan.recomputed = recomputed;
    Ok(best)
}

/// A graph on the way, planned.
struct Rewritten {
    traced: Traced,
    recomputed: Vec<Recomputed>,
}

impl Rewritten {
    fn peak(&self) -> usize {
        self.traced.plan.peak_bytes()
    }

    /// Gives up values that lie idle at the peak; `None` where there are none.
    fn round(
        &self,
        budget: usize,
        part: usize,
        plan: &dyn Fn(Graph) -> Result<Traced, Diagnostic>,
    ) -> Result<Option<Rewritten>, Diagnostic> {
        let graph = &self.traced.graph;
        let lives = Lives::of(&self.traced);
        let Some(cut) = lives.cut(graph) else { return Ok(None) };
        let given_up = choose(graph, &lives, cut, self.peak().saturating_sub(budget).div_ceil(part));
        if given_up.is_empty() {
            return Ok(None);
        }
        let mut values: Vec<Value> = given_up.iter().copied().collect();
        values.sort_unstable();
        let line = |value: Value| Recomputed { ty: graph.ty(value).clone(), loc: graph.node(value).loc };
        let recomputed = self.recomputed.iter().cloned().chain(values.into_iter().map(line)).collect();
        let traced = plan(rewrite(graph, &lives, cut, &given_up)?)?;
        Ok(Some(Rewritten { traced, recomputed }))
    }
}

/// When values in slots live, in launches.
struct Lives {
    /// Made at, and read last at.
    of: HashMap<Value, (usize, usize)>,
    /// The launch during which the most is alive.
    peak: usize,
    /// The values that launch writes.
    made_at_peak: Vec<Value>,
    /// Results of the graph.
    results: HashSet<Value>,
}

impl Lives {
    fn of(traced: &Traced) -> Lives {
        let mut of: HashMap<Value, (usize, usize)> = HashMap::new();
        let launches: Vec<_> = traced.plan.launches().collect();
        for (time, (launch, bound)) in launches.iter().zip(&traced.bound).enumerate() {
            for (buffer, bound) in launch.buffers.iter().zip(bound) {
                let in_slot = matches!(traced.plan.buffers[buffer.0 as usize].source, Source::Slot(_));
                for value in [bound.before, bound.after].into_iter().flatten().filter(|_| in_slot) {
                    of.entry(value).or_insert((time, time)).1 = time;
                }
            }
        }
        let mut changes = vec![0i64; launches.len() + 1];
        for (value, &(made, last)) in &of {
            let bytes = traced.graph.ty(*value).num_bytes() as i64;
            changes[made] += bytes;
            changes[last + 1] -= bytes;
        }
        let alive = changes.iter().scan(0, |alive, change| {
            *alive += change;
            Some(*alive)
        });
        // Of equal ones the first: what is given up there is not there later either.
        let (peak, _) = alive.enumerate().fold((0, i64::MIN), |best, now| if now.1 > best.1 { now } else { best });
        let made_at_peak = traced.bound.get(peak).into_iter().flatten().filter_map(|bound| bound.after).collect();
        let results = traced.graph.outputs.iter().map(|output| output.value).collect();
        Lives { of, peak, made_at_peak, results }
    }

    /// The last node that runs at the peak: who comes after it in the graph reads late.
    fn cut(&self, graph: &Graph) -> Option<usize> {
        let made = self.made_at_peak.iter().map(|value| value.node.index());
        made.max().filter(|&cut| cut + 1 < graph.nodes.len())
    }

    /// Whether a value is in memory after the peak without anyone's doing: an argument, a constant, a result, or what is read later anyway.
    fn has(&self, graph: &Graph, value: Value) -> bool {
        class(&graph.node(value).op) == Class::Leaf
            || self.results.contains(&value)
            || self.of.get(&value).is_some_and(|&(_, last)| last > self.peak)
    }
}

/// The idle values to give up: the cheapest for each byte, until as many bytes are gained as are missing.
fn choose(graph: &Graph, lives: &Lives, cut: usize, over: usize) -> HashSet<Value> {
    let idle = lives.of.iter().filter(|(value, (made, last))| {
        let custom = matches!(graph.node(**value).op, Op::Custom(_));
        *made < lives.peak && *last > lives.peak && value.node.index() <= cut && !custom
    });
    let mut candidates: Vec<(f64, Value)> = idle
        .map(|(&value, _)| {
            let bytes = graph.ty(value).num_bytes().max(1) as f64;
            (cost(graph, lives, value) / bytes, value)
        })
        .collect();
    candidates.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut gained = 0;
    let mut chosen = HashSet::new();
    for (_, value) in candidates {
        if gained >= over {
            break;
        }
        gained += graph.ty(value).num_bytes();
        chosen.insert(value);
    }
    chosen
}

/// Operations that computing a value again takes, from what stays in memory.
fn cost(graph: &Graph, lives: &Lives, value: Value) -> f64 {
    let again = closure(graph, &[value], &|other| other != value && lives.has(graph, other));
    again.into_iter().map(|node| work(graph, node)).sum()
}

/// Operations of one node.
fn work(graph: &Graph, node: usize) -> f64 {
    let node = &graph.nodes[node];
    let elements = node.types.first().map_or(0, |ty| ty.shape.num_elements()) as f64;
    let operand = node.operands.first().map_or(0, |&operand| graph.ty(operand).shape.num_elements()) as f64;
    match &node.op {
        Op::MatMul { .. } => {
            let depth = node.operands.first().map_or(1, |&lhs| graph.ty(lhs).shape.last().copied().unwrap_or(1));
            2.0 * elements * depth as f64
        }
        op if class(op) == Class::Reduce => operand,
        op => elements * f64::from(weight(op)),
    }
}

/// The nodes that make some values, back to what `there` says is there.
fn closure(graph: &Graph, values: &[Value], there: &dyn Fn(Value) -> bool) -> Vec<usize> {
    let mut seen: HashSet<usize> = HashSet::new();
    let mut open: Vec<Value> = values.to_vec();
    while let Some(value) = open.pop() {
        if !there(value) && seen.insert(value.node.index()) {
            open.extend(graph.node(value).operands.iter().copied());
        }
    }
    let mut nodes: Vec<usize> = seen.into_iter().collect();
    nodes.sort_unstable();
    nodes
}

/// The graph in which nodes after `cut` read copies of what is given up, made just before the first of them.
fn rewrite(graph: &Graph, lives: &Lives, cut: usize, given_up: &HashSet<Value>) -> Result<Graph, Diagnostic> {
    let there = |value: Value| !given_up.contains(&value) && lives.has(graph, value);
    // What is made of something given up by way of registers alone is read late as a copy too.
    let given_up_nodes: HashSet<usize> = given_up.iter().map(|value| value.node.index()).collect();
    let mut gone = vec![false; graph.nodes.len()];
    for index in 0..=cut {
        let value = Value::first(index);
        let reads_gone = graph.nodes[index].operands.iter().any(|operand| gone[operand.node.index()]);
        gone[index] = given_up_nodes.contains(&index) || (reads_gone && !there(value));
    }
    let mut builder = GraphBuilder::new(graph.name.clone());
    let mut kept: Vec<Option<NodeId>> = vec![None; graph.nodes.len()];
    let mut copies: HashMap<usize, NodeId> = HashMap::new();
    for &input in &graph.inputs {
        let node = graph.node(input);
        kept[input.node.index()] = Some(builder.add(node.op.clone(), &[], node.loc)?);
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        if kept[index].is_some() {
            continue;
        }
        let reads_copy = |read: &Value| index > cut && read.node.index() <= cut && gone[read.node.index()];
        let wanted: Vec<Value> = node.operands.iter().copied().filter(reads_copy).collect();
        for again in closure(graph, &wanted, &|value| there(value) || copies.contains_key(&value.node.index())) {
            let own = &graph.nodes[again];
            let read = |&read: &Value| match copies.get(&read.node.index()) {
                Some(&copy) if !there(read) => Value { node: copy, ..read },
                _ => renamed(read, &kept),
            };
            let operands: Vec<Value> = own.operands.iter().map(read).collect();
            copies.insert(again, builder.add(own.op.clone(), &operands, own.loc)?);
        }
        let read = |read: &Value| match copies.get(&read.node.index()) {
            Some(&copy) if reads_copy(read) => Value { node: copy, ..*read },
            _ => renamed(*read, &kept),
        };
        let operands: Vec<Value> = node.operands.iter().map(read).collect();
        kept[index] = Some(builder.add(node.op.clone(), &operands, node.loc)?);
    }
    builder.finish(graph.outputs.iter().map(|output| (output.name.clone(), renamed(output.value, &kept))))
}

/// The same value in the new graph.
fn renamed(value: Value, nodes: &[Option<NodeId>]) -> Value {
    Value { node: nodes[value.node.index()].expect("operands come before their readers"), ..value }
}

/// K0704, with the least that was reached and the largest tensors of that plan.
fn refusal(plan: &Plan, whole: usize, budget: usize) -> Diagnostic {
    let peak = plan.peak_bytes();
    let message =
        format!("out of memory: `{}` needs {peak} bytes beside its arguments, at most {budget} are allowed", plan.name);
    let label = format!("{whole} bytes with every value kept, {peak} where values are computed again");
    let mut diagnostic = Diagnostic::new(Code::K0704, message).label(label);
    for (buffer, role) in plan.largest(NAMED) {
        let text = format!("{} ({} bytes)", buffer.ty, buffer.ty.num_bytes());
        diagnostic = diagnostic.note(role, text, "made", buffer.loc);
    }
    diagnostic.help(
        "allow more with `.max_bytes(bytes)`, or make the largest tensors smaller: a smaller batch, a narrower dtype",
    )
}
