//! Attention: which parts of a graph are `softmax(query @ key^T) @ value`, and its gradients.
//!
//! Recognition is local. It starts from a matrix product whose left operand turns out to be the weights of a softmax, and goes down from
//! there: softmax, logits, the product that is the scores. Nothing is matched by its spelling: what lies between the parts may be any
//! pointwise ops and views (scale, mask, casts, permuted heads), since the parts are held to each other by *where* they read, which the
//! evaluator of lowering tells. What was found stands in [`Attention`], and what it computes inside belongs to it alone: every reader of
//! scores and weights must be part of the same attention, forward or backward, else all stays as it is and the ledger says why.
//!
//! - `forward.rs`: the forward direction; `backward.rs`: the gradients, `terms.rs`: what tells that of a softmax
//! - `lattice.rs`: the axes of such a kernel; `path.rs`: which nodes lead from one value to another, and where they read it
//! - `epilogues.rs`: what is computed from results and stored with them; `moved.rs`: results in another order of axes
//!
//! What must hold for an attention to become kernels:
//! - the maximum is subtracted from the logits before `exp`: without it, large logits overflow, and a kernel that is safe would compute
//!   something else;
//! - the softmax runs over the keys;
//! - scores, weights and their gradients are no results of the graph and have no other reader;
//! - what a kernel reads is made before its first result in the graph;
//! - the device takes so many buffers and instructions in one kernel, and has kernels for attention in these dtypes.

mod backward;
mod epilogues;
mod forward;
mod lattice;
pub(crate) mod moved;
mod path;
mod terms;

use std::collections::{HashMap, HashSet};

use kiln_ir::plan::Blocked;
use kiln_ir::{Graph, Op, Value, live_nodes};
use smallvec::SmallVec;

use crate::gpu::warps;
use crate::options::{AttentionKernels, Fusion, Limits, Options};

pub(crate) use backward::{Backward, Through};
pub(crate) use epilogues::Epilogues;
pub(crate) use forward::Forward;
pub(crate) use lattice::{Lattice, Orientation};
pub(crate) use path::behind_views;

/// A value of the graph that holds a matrix for each batch point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matrix {
    pub(crate) value: Value,
    pub(crate) at: Orientation,
}

/// One kernel to be.
#[derive(Debug)]
pub(crate) struct Attention {
    pub(crate) forward: Forward,
    /// The gradients, where this is the backward direction.
    pub(crate) backward: Option<Backward>,
}

impl Attention {
    /// The products it ends in.
    pub(crate) fn results(&self) -> SmallVec<[Matrix; 3]> {
        match &self.backward {
            None => SmallVec::from_slice(&[Matrix { value: self.forward.product, at: Orientation::Straight }]),
            Some(backward) => backward.results(),
        }
    }

    /// Rows and columns of a result.
    fn extents_of(&self, result: Value) -> [usize; 2] {
        let Forward { queries, keys, depth, width, .. } = self.forward;
        let is = |matrix: Option<Matrix>| matrix.is_some_and(|matrix| matrix.value == result);
        match &self.backward {
            None => [queries, width],
            Some(backward) if is(backward.value) => [keys, width],
            Some(Backward { through: Some(through), .. }) if is(through.key) => [keys, depth],
            Some(_) => [queries, depth],
        }
    }

    /// What a forward kernel leaves for the backward one: the rows' maxima and sums.
    pub(crate) fn statistics(&self) -> SmallVec<[Value; 2]> {
        match &self.backward {
            None => SmallVec::from_slice(&[self.forward.maximum, self.forward.sum]),
            Some(_) => SmallVec::new(),
        }
    }
}

/// The attentions of a graph.
#[derive(Debug, Default)]
pub(crate) struct Attentions {
    pub(crate) kernels: Vec<Attention>,
    /// The kernel that ends in a value, or leaves it as a statistic.
    pub(crate) of: HashMap<Value, usize>,
    /// Nodes that are computed inside of such kernels and nowhere else.
    pub(crate) interior: HashSet<usize>,
    /// Values that would be inside, were it not for this.
    pub(crate) missed: HashMap<Value, Blocked>,
}

impl Attentions {
    /// Whether a product is part of an attention.
    pub(crate) fn is_part(&self, value: Value) -> bool {
        self.interior.contains(&value.node.index()) || self.of.contains_key(&value)
    }

    /// The kernel that is made when grouping comes to a value: at the first of its results in the graph.
    pub(crate) fn made_at(&self, value: Value) -> Option<usize> {
        let &kernel = self.of.get(&value)?;
        let first = self.kernels[kernel].results().into_iter().map(|result| result.value).min();
        (first == Some(value)).then_some(kernel)
    }

    /// The first reason stands: it is that of the forward direction.
    fn miss(&mut self, value: Value, blocked: Blocked) {
        self.missed.entry(value).or_insert(blocked);
    }

    fn add(&mut self, attention: Attention) {
        let index = self.kernels.len();
        let results = attention.results().into_iter().map(|result| result.value);
        self.of.extend(results.chain(attention.statistics()).map(|value| (value, index)));
        self.kernels.push(attention);
    }
}

/// Who reads what.
pub(crate) struct Readers {
    of: Vec<SmallVec<[u32; 4]>>,
    outputs: HashSet<usize>,
}

impl Readers {
    fn new(graph: &Graph) -> Readers {
        let live = live_nodes(graph);
        let mut of = vec![SmallVec::new(); graph.nodes.len()];
        for (index, node) in graph.nodes.iter().enumerate().filter(|(index, _)| live[*index]) {
            for operand in &node.operands {
                let readers: &mut SmallVec<[u32; 4]> = &mut of[operand.node.index()];
                if readers.last() != Some(&(index as u32)) {
                    readers.push(index as u32);
                }
            }
        }
        let outputs = graph.outputs.iter().map(|output| output.value.node.index()).collect();
        Readers { of, outputs }
    }

    /// The nodes that read a node, in graph order.
    pub(crate) fn of(&self, node: usize) -> impl Iterator<Item = usize> {
        self.of[node].iter().map(|&reader| reader as usize)
    }

    /// Whether it is a result of the graph.
    pub(crate) fn is_output(&self, node: usize) -> bool {
        self.outputs.contains(&node)
    }
}

/// Finds the attentions of a graph.
pub(crate) fn find(graph: &Graph, options: &Options) -> Attentions {
    let mut found = Attentions::default();
    let products = || graph.nodes.iter().enumerate().filter(|(_, node)| matches!(node.op, Op::MatMul { .. }));
    if options.fusion == Fusion::Off || products().count() < 2 {
        return found;
    }
    let readers = Readers::new(graph);
    for (index, _) in products() {
        let product = Value::first(index);
        if found.is_part(product) {
            continue;
        }
        match forward::find(graph, product) {
            Ok(None) => {}
            Ok(Some(forward)) => settle(graph, &readers, &options.limits, forward, &mut found),
            Err(miss) => miss.values.into_iter().for_each(|value| found.miss(value, miss.blocked)),
        }
    }
    found
}

/// What nearly was an attention.
pub(crate) struct Miss {
    pub(crate) values: Vec<Value>,
    pub(crate) blocked: Blocked,
}

/// Takes a forward direction in, with its gradients where the graph has them, if nobody else sees into it.
fn settle(graph: &Graph, readers: &Readers, limits: &Limits, forward: Forward, found: &mut Attentions) {
    let mut inside: HashSet<usize> = forward.interior.clone();
    let ends: HashSet<usize> =
        [forward.product, forward.maximum, forward.sum].iter().map(|value| value.node.index()).collect();
    let mut outside = outside_readers(readers, &inside, &ends);
    let mut blocked = seen(readers, &inside);
    let mut backward = None;
    if blocked.is_none() && !outside.is_empty() {
        backward = backward::find(graph, readers, &forward, &outside);
        if let Some(backward) = &backward {
            inside.extend(&backward.interior);
            let results = backward.results().into_iter().map(|result| result.value.node.index());
            outside = outside_readers(readers, &inside, &ends.into_iter().chain(results).collect());
            blocked = seen(readers, &inside);
        }
    }
    if blocked.is_none() && !outside.is_empty() {
        blocked = Some(Blocked::WeightsRead);
    }
    if blocked.is_none() && !in_order(graph, readers, &forward, backward.as_ref(), &inside) {
        blocked = Some(Blocked::Cycle);
    }
    if blocked.is_none() && !(within(graph, limits, &inside) && has_kernels(graph, limits, &forward)) {
        blocked = Some(Blocked::Limit);
    }
    if let Some(blocked) = blocked {
        let values = forward.interior.iter().map(|&node| Value::first(node));
        values.for_each(|value| found.miss(value, blocked));
        return;
    }
    found.interior.extend(inside);
    if let Some(backward) = backward {
        found.add(Attention { forward: forward.clone(), backward: Some(backward) });
    }
    found.add(Attention { forward, backward: None });
}

/// Whether a device takes kernels of all that is inside: operands, gradients, results and statistics, and masks beside them.
fn within(graph: &Graph, limits: &Limits, inside: &HashSet<usize>) -> bool {
    const OWN: usize = 9;
    let beside = inside.iter().flat_map(|&node| &graph.nodes[node].operands).filter(|operand| {
        let op = &graph.node(**operand).op;
        !inside.contains(&operand.node.index()) && !matches!(op, Op::Literal { .. } | Op::Broadcast(_))
    });
    let beside: HashSet<&Value> = beside.collect();
    // Queries, keys and values are among them, and weights' own gradients come twice.
    OWN + beside.len().saturating_sub(5) <= limits.attention_buffers && 2 * inside.len() + OWN <= limits.instructions
}

/// Whether a device has kernels for attention in these dtypes and extents.
fn has_kernels(graph: &Graph, limits: &Limits, forward: &Forward) -> bool {
    let dtype = |matrix: Matrix| graph.ty(matrix.value).dtype;
    match limits.attention {
        AttentionKernels::Any => true,
        AttentionKernels::Warps => {
            warps::has(dtype(forward.score), dtype(forward.logit), dtype(forward.factor))
                && forward.depth.max(forward.width) <= warps::EXTENT
        }
    }
}

/// Readers of what is inside that are neither inside nor an end.
fn outside_readers(readers: &Readers, inside: &HashSet<usize>, ends: &HashSet<usize>) -> Vec<usize> {
    let all = inside.iter().flat_map(|&node| readers.of(node));
    let mut outside: Vec<usize> = all.filter(|reader| !inside.contains(reader) && !ends.contains(reader)).collect();
    outside.sort_unstable();
    outside.dedup();
    outside
}

/// Whether the caller of the graph sees what is inside.
fn seen(readers: &Readers, inside: &HashSet<usize>) -> Option<Blocked> {
    inside.iter().any(|&node| readers.is_output(node)).then_some(Blocked::ScoresAreResult)
}

/// Whether kernels can stand where their first results are: what they read is made before, and nobody reads a row's statistics before the
/// product is there.
fn in_order(
    graph: &Graph,
    readers: &Readers,
    forward: &Forward,
    backward: Option<&Backward>,
    inside: &HashSet<usize>,
) -> bool {
    let statistics = [forward.maximum, forward.sum];
    let early = |node: usize| !inside.contains(&node) && node < forward.product.node.index();
    let mut open: Vec<usize> = statistics.iter().flat_map(|value| readers.of(value.node.index())).collect();
    while let Some(reader) = open.pop() {
        if early(reader) {
            if !matches!(graph.nodes[reader].op, Op::Broadcast(_) | Op::Reshape(_)) {
                return false;
            }
            open.extend(readers.of(reader));
        }
    }
    let Some(backward) = backward else { return true };
    let first = backward.results().into_iter().map(|result| result.value.node.index()).min();
    backward.reads(graph, inside).into_iter().all(|read| Some(read) < first)
}
