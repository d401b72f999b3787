//! Ways from one value of a graph down to another through pointwise ops and views, and where along them elements are read.

use std::collections::{HashMap, HashSet};

use kiln_ir::{Graph, Op, Value};

use super::{Lattice, Matrix, Orientation};
use crate::classify::{Class, class};
use crate::index::Index;
use crate::lower::evaluate::{Binding, Evaluator, Refinement, Source};

/// Nodes that a search goes through, at most: scale, mask, casts and views are few.
const LONGEST: usize = 64;

/// Whether an op is computed wherever it is read.
pub(super) fn is_inline(op: &Op) -> bool {
    match class(op) {
        Class::View | Class::Point => true,
        Class::Leaf | Class::Reduce | Class::Anchor => false,
    }
}

/// The value behind broadcasts and reshapes.
pub(crate) fn behind_views(graph: &Graph, mut value: Value) -> Value {
    while matches!(graph.node(value).op, Op::Broadcast(_) | Op::Reshape(_) | Op::Permute(_)) {
        value = graph.node(value).operands[0];
    }
    value
}

/// Values that `top` is computed from through pointwise ops and views, in the order in which they are met, itself first, those included
/// that are not computed inline. What lies deeper than a limit is left out.
pub(super) fn below(graph: &Graph, top: Value) -> Vec<Value> {
    let (mut met, mut open) = (Vec::new(), vec![top]);
    let mut seen = HashSet::new();
    while let Some(value) = open.pop() {
        if met.len() == LONGEST || !seen.insert(value) {
            continue;
        }
        met.push(value);
        let node = graph.node(value);
        if is_inline(&node.op) {
            open.extend(node.operands.iter().rev());
        }
    }
    met
}

/// The nodes on all ways from `top` down to `target`, `top` included and `target` not. Empty where there is no way.
pub(super) fn between(graph: &Graph, top: Value, target: Value) -> HashSet<usize> {
    let mut leads: HashMap<Value, bool> = HashMap::new();
    let near: HashSet<Value> = below(graph, top).into_iter().collect();
    leads_to(graph, top, target, &near, &mut leads);
    leads.into_iter().filter(|(value, leads)| *leads && *value != target).map(|(value, _)| value.node.index()).collect()
}

fn leads_to(
    graph: &Graph,
    value: Value,
    target: Value,
    near: &HashSet<Value>,
    known: &mut HashMap<Value, bool>,
) -> bool {
    if value == target {
        return true;
    }
    if let Some(&leads) = known.get(&value) {
        return leads;
    }
    let node = graph.node(value);
    let mut leads = false;
    if near.contains(&value) && is_inline(&node.op) {
        for &operand in &node.operands {
            // All ways count, so all operands are asked.
            leads |= leads_to(graph, operand, target, near, known);
        }
    }
    known.insert(value, leads);
    leads
}

/// A space in which values are read.
#[derive(Clone, Copy)]
pub(super) struct Scores<'a> {
    pub(super) lattice: &'a Lattice,
    pub(super) queries: usize,
    pub(super) keys: usize,
}

impl Scores<'_> {
    /// Where in a value of the graph the score's point is, if it holds one element for each.
    pub(super) fn index(&self, graph: &Graph, matrix: Matrix) -> Index {
        self.lattice.matrix([self.queries, self.keys], matrix.at, &graph.ty(matrix.value).shape)
    }

    /// The orientations that a value may have. Along extents of 1 both read the same elements; then its shape tells.
    pub(super) fn orientations(&self, graph: &Graph, value: Value) -> [Orientation; 2] {
        let shape = &graph.ty(value).shape;
        let crossed = shape.ends_with(&[self.keys, self.queries]) && !shape.ends_with(&[self.queries, self.keys]);
        match crossed {
            true => [Orientation::Crossed, Orientation::Straight],
            false => [Orientation::Straight, Orientation::Crossed],
        }
    }

    /// The orientation in which `value` is read at `index`.
    pub(super) fn orientation(&self, graph: &Graph, value: Value, index: &Index) -> Option<Orientation> {
        let shape = &graph.ty(value).shape;
        let found = index.linear(shape);
        self.orientations(graph, value).into_iter().find(|&at| {
            let own = self.index(graph, Matrix { value, at });
            own.linear(shape) == found
        })
    }

    /// Whether `value` has an element for each row and is read at the point's own.
    pub(super) fn is_row(&self, graph: &Graph, value: Value, index: &Index) -> bool {
        let shape = &graph.ty(value).shape;
        self.lattice.row(self.queries, shape).linear(shape) == index.linear(shape)
    }

    /// What computing `top` reads, if the nodes of `inline` are computed in place: each value with the place in it.
    pub(super) fn reads(
        &self,
        graph: &Graph,
        top: Matrix,
        inline: &dyn Fn(Value) -> bool,
    ) -> Option<Vec<(Value, Index)>> {
        let source = |value: Value| if inline(value) { Source::Inline } else { Source::Memory };
        let extents = self.lattice.extents(&[self.queries, self.keys]);
        let mut binding = Binding::default();
        let mut evaluator = Evaluator::new(graph, &source, &mut binding, &extents, &[], Refinement::Fixed);
        evaluator.value(top.value, &self.index(graph, top)).ok()?;
        Some(evaluator.reads)
    }

    /// The orientation in which `top` reads `target` along `path`, everywhere the same.
    pub(super) fn reached(&self, graph: &Graph, top: Matrix, target: Value, path: &HashSet<usize>) -> Option<Matrix> {
        let reads = self.reads(graph, top, &|value| value != target && path.contains(&value.node.index()))?;
        let mut found = None;
        for (_, index) in reads.iter().filter(|(value, _)| *value == target) {
            let at = self.orientation(graph, target, index)?;
            if found.is_some_and(|known| known != at) {
                return None;
            }
            found = Some(at);
        }
        found.map(|at| Matrix { value: target, at })
    }
}
