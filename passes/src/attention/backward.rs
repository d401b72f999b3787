//! The gradients: from the readers of exponentials and factors that are no part of the forward direction, up to the products they end in.

use std::collections::HashSet;

use kiln_ir::kernel::GradientZeros;
use kiln_ir::{Graph, Op, Value};
use smallvec::SmallVec;

use super::forward::over_keys;
use super::path::{Scores, below, between, is_inline};
use super::{Forward, Lattice, Matrix, Orientation, Readers, terms};
use crate::classify::{Class, class};
use crate::lower::evaluate::{Binding, Evaluator, Refinement, Source};

/// The gradients of an attention, in values of the graph.
#[derive(Debug)]
pub(crate) struct Backward {
    /// Of the forward product, over queries and width.
    pub(crate) gradient: Matrix,
    /// To queries and keys.
    pub(crate) through: Option<Through>,
    /// Of the values, over keys and width.
    pub(crate) value: Option<Matrix>,
    /// What is computed inside.
    pub(crate) interior: HashSet<usize>,
}

/// The way through the softmax.
#[derive(Debug)]
pub(crate) struct Through {
    /// `gradient @ value^T`, over queries and keys, as are the other matrices up to the results.
    pub(crate) factor: Matrix,
    /// The gradient of the weights.
    pub(crate) weight: Matrix,
    /// The gradient of the logits.
    pub(crate) logit: Matrix,
    /// Whether zeros in the gradient of the weights win against what is infinite or NaN.
    pub(crate) zeros: GradientZeros,
    /// The gradient of the scores, as it is multiplied.
    pub(crate) score: Matrix,
    /// The gradient of the queries, over queries and depth.
    pub(crate) query: Option<Matrix>,
    /// The gradient of the keys, over keys and depth.
    pub(crate) key: Option<Matrix>,
}

impl Backward {
    /// The products it ends in.
    pub(super) fn results(&self) -> SmallVec<[Matrix; 3]> {
        let through = self.through.iter().flat_map(|through| [through.query, through.key]);
        through.chain([self.value]).flatten().collect()
    }

    /// The nodes that its products and all inside read. Where they come late, views are looked through and numbers left out.
    pub(super) fn reads(&self, graph: &Graph, inside: &HashSet<usize>) -> Vec<usize> {
        let results: Vec<usize> = self.results().iter().map(|result| result.value.node.index()).collect();
        let first = results.iter().copied().min().unwrap_or(0);
        let mut reads = Vec::new();
        let mut open: Vec<usize> = self.interior.iter().copied().chain(results).collect();
        while let Some(node) = open.pop() {
            for operand in graph.nodes[node].operands.iter().map(|operand| operand.node.index()) {
                if inside.contains(&operand) {
                    continue;
                }
                let op = &graph.nodes[operand].op;
                let anywhere = matches!(op, Op::Literal { .. } | Op::Iota { .. });
                if operand > first && (anywhere || class(op) == Class::View) {
                    open.push(operand);
                } else {
                    reads.push(operand);
                }
            }
        }
        reads
    }
}

/// A product that one of the factors or gradients of scores is multiplied in.
struct Use {
    /// The product, in the orientation of the result it is.
    result: Matrix,
    /// What is multiplied, as an element for each score.
    this: Matrix,
    /// The other operand, as a matrix of rows that are summed over.
    other: Matrix,
    /// Over what it sums.
    over: Summed,
    /// What leads from the product down.
    path: HashSet<usize>,
}

/// What a way up to a product may lead through.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ways {
    Views,
    Pointwise,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Summed {
    Keys,
    Queries,
}

/// Reads the outside readers of a forward direction as its gradients. `None` where they are something else; readers that are no part of
/// what was found are left to the caller.
pub(super) fn find(graph: &Graph, readers: &Readers, forward: &Forward, outside: &[usize]) -> Option<Backward> {
    let lattice = Lattice::new(&forward.batch);
    let scores = Scores { lattice: &lattice, queries: forward.queries, keys: forward.keys };
    let search = Search { graph, readers, forward, scores };
    let mut interior = HashSet::new();
    let of_value = search.uses_of_factor().into_iter().find(|found| found.over == Summed::Queries);
    let mut gradient = None;
    if let Some(found) = &of_value {
        gradient = Some(found.other);
        interior.extend(&found.path);
        interior.retain(|node| !forward.interior.contains(node));
    }
    let mut through = None;
    if let Some((logit, read)) = search.logit(outside) {
        let (found, of, inside) = search.through(logit, read)?;
        if gradient.is_some_and(|known| !search.same(known, of, [forward.queries, forward.width])) {
            return None;
        }
        gradient = gradient.or(Some(of));
        interior.extend(inside);
        through = Some(found);
    }
    let value = of_value.map(|found| found.result);
    Some(Backward { gradient: gradient?, through, value, interior })
}

struct Search<'a> {
    graph: &'a Graph,
    readers: &'a Readers,
    forward: &'a Forward,
    scores: Scores<'a>,
}

impl Search<'_> {
    /// The gradient of the logits: among the outside readers, or not far above them.
    fn logit(&self, outside: &[usize]) -> Option<(Value, terms::Read)> {
        let mut candidates: Vec<usize> = outside.to_vec();
        for &reader in outside {
            candidates.extend(self.readers.of(reader));
        }
        candidates.sort_unstable();
        candidates.dedup();
        let candidates = candidates.into_iter().filter(|&node| is_inline(&self.graph.nodes[node].op));
        candidates.map(Value::first).find_map(|value| Some((value, terms::read(self.graph, self.forward, value)?)))
    }

    /// From the gradient of the logits to both sides: down to the product that is the gradient of the factors, up to the results. Also gives
    /// the gradient of the forward product, and what is inside.
    fn through(&self, logit: Value, read: terms::Read) -> Option<(Through, Matrix, HashSet<usize>)> {
        let (logit, weight) = self.aligned(logit, &read)?;
        let zeros = read.zeros;
        let mut inside: HashSet<usize> = read.interior;
        inside.insert(logit.value.node.index());
        let (factor, path) = self.factor(weight)?;
        inside.extend(path);
        inside.insert(factor.value.node.index());
        let node = self.graph.node(factor.value);
        let left = Matrix { value: node.operands[0], at: Orientation::Straight };
        let right = Matrix { value: node.operands[1], at: Orientation::Crossed };
        let (gradient, value) = match factor.at {
            Orientation::Straight => (left, right),
            Orientation::Crossed => (right, left),
        };
        if !self.same(value, self.forward.value, [self.forward.keys, self.forward.width]) {
            return None;
        }
        let mut uses = self.uses(logit, &[logit.value], Ways::Pointwise);
        let first = uses.first()?.this;
        let known = [
            (Summed::Keys, self.forward.key, [self.forward.keys, self.forward.depth]),
            (Summed::Queries, self.forward.query, [self.forward.queries, self.forward.depth]),
        ];
        uses.retain(|found| {
            let other = known
                .iter()
                .any(|&(over, operand, extents)| over == found.over && self.same(found.other, operand, extents));
            other && self.same_score(found, first, logit)
        });
        inside.extend(uses.iter().flat_map(|found| &found.path));
        let result = |over| uses.iter().find(|found| found.over == over).map(|found| found.result);
        let (query, key) = (result(Summed::Keys), result(Summed::Queries));
        query.or(key)?;
        Some((Through { factor, weight, logit, zeros, score: first, query, key }, gradient, inside))
    }

    /// The orientations of the gradients of logits and weights, if exponentials, sums and rows are read at the point's own place.
    fn aligned(&self, logit: Value, read: &terms::Read) -> Option<(Matrix, Matrix)> {
        let sums: HashSet<Value> = read.rows.iter().map(|(row, _)| *row).chain([self.forward.sum]).collect();
        self.scores.orientations(self.graph, logit).into_iter().find_map(|at| {
            let logit = Matrix { value: logit, at };
            let weight = self.read_in_place(logit, read, &sums)?;
            for &(row, over) in &read.rows {
                // What is summed reads the gradient of the weights where the rest does.
                let places = self.scores.orientations(self.graph, over).into_iter();
                places.map(|at| Matrix { value: over, at }).find(|&over| {
                    self.read_in_place(over, read, &sums) == Some(weight)
                        && over_keys(self.graph, row, over, self.forward.keys)
                })?;
            }
            Some((logit, weight))
        })
    }

    /// Where the gradient of the weights is read, if all that is read is the point's own.
    fn read_in_place(&self, top: Matrix, read: &terms::Read, sums: &HashSet<Value>) -> Option<Matrix> {
        let e = self.forward.exponential;
        let inline = |value: Value| {
            let kept = value == e.value || value == read.gradient || sums.contains(&value);
            let view = matches!(self.graph.node(value).op, Op::Broadcast(_) | Op::Reshape(_) | Op::Permute(_));
            !kept && (view || read.interior.contains(&value.node.index()))
        };
        let mut found = None;
        for (value, index) in self.scores.reads(self.graph, top, &inline)? {
            if sums.contains(&value) {
                if !self.scores.is_row(self.graph, value, &index) {
                    return None;
                }
                continue;
            }
            // Numbers are the same anywhere.
            if value != e.value && value != read.gradient {
                continue;
            }
            let at = self.scores.orientation(self.graph, value, &index)?;
            if value == e.value && at != e.at {
                return None;
            }
            if value == read.gradient {
                if found.is_some_and(|known| known != at) {
                    return None;
                }
                found = Some(at);
            }
        }
        found.map(|at| Matrix { value: read.gradient, at })
    }

    /// The product below the gradient of the weights, and the way to it.
    fn factor(&self, weight: Matrix) -> Option<(Matrix, HashSet<usize>)> {
        let products = below(self.graph, weight.value).into_iter();
        let wanted = Op::MatMul { precision: self.forward.precision };
        products.filter(|&value| self.graph.node(value).op == wanted).find_map(|product| {
            let path = between(self.graph, weight.value, product);
            let factor = self.scores.reached(self.graph, weight, product, &path)?;
            let shape = &self.graph.ty(product).shape;
            let matrix = match factor.at {
                Orientation::Straight => [self.forward.queries, self.forward.keys],
                Orientation::Crossed => [self.forward.keys, self.forward.queries],
            };
            (shape.ends_with(&matrix) && self.graph.ty(product).dtype == self.graph.ty(self.forward.product).dtype)
                .then_some((factor, path))
        })
    }

    /// The products that factors are multiplied in: they may be read behind the views that the forward product sees them through.
    fn uses_of_factor(&self) -> Vec<Use> {
        let mut views = vec![self.forward.factor.value];
        while let Some(&last) = views.last()
            && let Op::Permute(_) | Op::Reshape(_) = self.graph.node(last).op
        {
            views.push(self.graph.node(last).operands[0]);
        }
        let path = views.iter().map(|value| value.node.index()).collect();
        let base = views[views.len() - 1];
        match self.scores.reached(self.graph, self.forward.factor, base, &path) {
            Some(base) => self.uses(base, &views, Ways::Views),
            None => Vec::new(),
        }
    }

    /// The products that `of` is multiplied in, on ways up from itself and other values that are made of it.
    fn uses(&self, of: Matrix, from: &[Value], ways: Ways) -> Vec<Use> {
        let mut uses = Vec::new();
        let mut open: Vec<usize> = from.iter().map(|value| value.node.index()).collect();
        let mut seen: HashSet<usize> = open.iter().copied().collect();
        while let Some(node) = open.pop() {
            for reader in self.readers.of(node) {
                let op = &self.graph.nodes[reader].op;
                let passes = match ways {
                    Ways::Views => class(op) == Class::View,
                    Ways::Pointwise => is_inline(op),
                };
                if passes && !self.forward.interior.contains(&reader) && seen.len() < 64 && seen.insert(reader) {
                    open.push(reader);
                } else if *op == (Op::MatMul { precision: self.forward.precision })
                    && reader != self.forward.product.node.index()
                {
                    uses.extend(self.in_product(of, Value::first(reader), node));
                }
            }
        }
        uses.sort_by_key(|found| found.result.value);
        uses
    }

    /// How a product multiplies `of`, which its operand at `node` is computed from.
    fn in_product(&self, of: Matrix, product: Value, node: usize) -> Option<Use> {
        let operands = &self.graph.node(product).operands;
        let position = operands.iter().position(|operand| operand.node.index() == node)?;
        let (value, other) = (operands[position], operands[1 - position]);
        let path = between(self.graph, value, of.value);
        let places = self.scores.orientations(self.graph, value).into_iter();
        let this = places.map(|at| Matrix { value, at }).find(|&this| {
            let shape = &self.graph.ty(value).shape;
            let matrix = match this.at {
                Orientation::Straight => [self.forward.queries, self.forward.keys],
                Orientation::Crossed => [self.forward.keys, self.forward.queries],
            };
            shape.ends_with(&matrix) && self.scores.reached(self.graph, this, of.value, &path) == Some(of)
        })?;
        // The left operand is summed over its last axis, the right one over its last but one.
        let (over, at) = match (position, this.at) {
            (0, Orientation::Straight) => (Summed::Keys, Orientation::Straight),
            (0, Orientation::Crossed) => (Summed::Queries, Orientation::Straight),
            (_, Orientation::Straight) => (Summed::Queries, Orientation::Crossed),
            (_, Orientation::Crossed) => (Summed::Keys, Orientation::Crossed),
        };
        Some(Use { result: Matrix { value: product, at }, this, other: Matrix { value: other, at }, over, path })
    }

    /// Whether two values hold the same matrix: the same elements behind their views.
    fn same(&self, first: Matrix, second: Matrix, extents: [usize; 2]) -> bool {
        let source = |value: Value| match class(&self.graph.node(value).op) {
            Class::View => Source::Inline,
            Class::Leaf | Class::Point | Class::Reduce | Class::Anchor => Source::Memory,
        };
        let space = self.scores.lattice.extents(&extents);
        let mut binding = Binding::default();
        let mut evaluator = Evaluator::new(self.graph, &source, &mut binding, &space, &[], Refinement::Fixed);
        let mut element = |matrix: Matrix| {
            let shape = &self.graph.ty(matrix.value).shape;
            evaluator.value(matrix.value, &self.scores.lattice.matrix(extents, matrix.at, shape)).ok()
        };
        let (first, second) = (element(first), element(second));
        first.is_some() && first == second
    }

    /// Whether two gradients of scores are the same.
    fn same_score(&self, found: &Use, first: Matrix, logit: Matrix) -> bool {
        let path: HashSet<usize> = &found.path | &between(self.graph, first.value, logit.value);
        let inline = |value: Value| value != logit.value && path.contains(&value.node.index());
        let source = |value: Value| if inline(value) { Source::Inline } else { Source::Memory };
        let space = self.scores.lattice.extents(&[self.forward.queries, self.forward.keys]);
        let mut binding = Binding::default();
        let mut evaluator = Evaluator::new(self.graph, &source, &mut binding, &space, &[], Refinement::Fixed);
        let mut element = |matrix: Matrix| evaluator.value(matrix.value, &self.scores.index(self.graph, matrix)).ok();
        let (this, first) = (element(found.this), element(first));
        this.is_some() && this == first
    }
}
