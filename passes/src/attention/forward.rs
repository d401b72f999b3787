//! The forward direction: from a product down to its softmax, and from there to the scores.

use std::collections::HashSet;

use kiln_ir::plan::Blocked;
use kiln_ir::{Graph, Op, Precision, ReduceKind, ScalarOp, Value};
use smallvec::SmallVec;

use super::path::{Scores, behind_views, below, between};
use super::{Lattice, Matrix, Miss, Orientation};

/// `softmax(query @ key^T) @ value`, in values of the graph.
#[derive(Clone, Debug)]
pub(crate) struct Forward {
    /// Batch extents.
    pub(crate) batch: SmallVec<[usize; 6]>,
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    pub(crate) depth: usize,
    pub(crate) width: usize,
    pub(crate) precision: Precision,
    /// Over queries and depth.
    pub(crate) query: Matrix,
    /// Over keys and depth.
    pub(crate) key: Matrix,
    /// Over keys and width.
    pub(crate) value: Matrix,
    /// Over queries and keys, as are all until the product.
    pub(crate) score: Matrix,
    pub(crate) logit: Matrix,
    pub(crate) exponential: Matrix,
    pub(crate) weight: Matrix,
    pub(crate) factor: Matrix,
    /// One element for each query.
    pub(crate) maximum: Value,
    pub(crate) sum: Value,
    /// Over queries and width.
    pub(crate) product: Value,
    /// What is computed inside: from the score to the factor.
    pub(crate) interior: HashSet<usize>,
}

/// `exp(logit - maximum) / sum`.
struct Softmax {
    weight: Value,
    exponential: Value,
    logit: Value,
    /// `None` where nothing, or something else, is subtracted.
    maximum: Option<Value>,
    sum: Value,
}

/// The attention that ends in a product, if there is one; a miss where all is there but for one thing.
pub(super) fn find(graph: &Graph, product: Value) -> Result<Option<Forward>, Miss> {
    let node = graph.node(product);
    let Op::MatMul { precision: precision @ (Precision::Full | Precision::Tf32) } = node.op else { return Ok(None) };
    let ty = graph.ty(product);
    let (factor, value) = (node.operands[0], node.operands[1]);
    let keys = graph.ty(factor).shape.last().copied().unwrap_or(0);
    let [batch @ .., queries, width] = &ty.shape[..] else { return Ok(None) };
    if !ty.dtype.is_float() || ty.shape.contains(&0) || keys == 0 {
        return Ok(None);
    }
    let Some(softmax) = below(graph, factor).into_iter().find_map(|value| softmax(graph, value)) else {
        return Ok(None);
    };
    // Batch axes may be joined here and apart there: the kernel has them apart.
    let shapes = below(graph, factor).into_iter().map(|value| &graph.ty(value).shape[..]);
    let apart = shapes.filter_map(|shape| shape.strip_suffix(&[*queries, keys])).max_by_key(|own| own.len());
    let matrices = |batch: &[usize]| batch.iter().product::<usize>();
    let batch = apart.filter(|own| own.len() > batch.len() && matrices(own) == matrices(batch)).unwrap_or(batch);
    let lattice = Lattice::new(batch);
    let scores = Scores { lattice: &lattice, queries: *queries, keys };
    let products = below(graph, softmax.logit).into_iter().filter(|&value| is_score(graph, value, &scores, precision));
    for score in products {
        let path = between(graph, factor, score);
        let nearly =
            |blocked| Miss { values: path.iter().map(|&node| Value::first(node)).chain([score]).collect(), blocked };
        let factor = Matrix { value: factor, at: Orientation::Straight };
        let reached = |value| scores.reached(graph, factor, value, &path);
        let found = (reached(score), reached(softmax.logit), reached(softmax.exponential), reached(softmax.weight));
        let (Some(score), Some(logit), Some(exponential), Some(weight)) = found else { continue };
        let Some(maximum) = softmax.maximum else { return Err(nearly(Blocked::NoMaximum)) };
        let rows = [(maximum, logit), (softmax.sum, exponential)];
        if !rows.iter().all(|&(reduction, over)| over_keys(graph, reduction, over, keys))
            || !read_by_row(graph, &scores, factor, &path, [maximum, softmax.sum])
        {
            return Err(nearly(Blocked::SoftmaxAxis));
        }
        let (query, key) = operands(graph, score);
        return Ok(Some(Forward {
            batch: batch.into(),
            queries: *queries,
            keys,
            depth: depth(graph, score),
            width: *width,
            precision,
            query,
            key,
            value: Matrix { value, at: Orientation::Straight },
            logit,
            exponential,
            weight,
            factor,
            maximum,
            sum: softmax.sum,
            product,
            interior: path.iter().copied().chain([score.value.node.index()]).collect(),
            score,
        }));
    }
    Ok(None)
}

/// Reads a value as a softmax's weights.
fn softmax(graph: &Graph, weight: Value) -> Option<Softmax> {
    let operands = scalar(graph, weight, ScalarOp::Div)?;
    let (exponential, sum) = (operands[0], behind_views(graph, operands[1]));
    let shifted = scalar(graph, exponential, ScalarOp::Exp)?[0];
    if reduced(graph, sum, ReduceKind::Sum)? != exponential {
        return None;
    }
    let (logit, maximum) = match scalar(graph, shifted, ScalarOp::Sub) {
        Some(operands) => {
            let maximum = behind_views(graph, operands[1]);
            let subtracted = reduced(graph, maximum, ReduceKind::Max) == Some(operands[0]);
            (operands[0], subtracted.then_some(maximum))
        }
        None => (shifted, None),
    };
    Some(Softmax { weight, exponential, logit, maximum, sum })
}

fn scalar(graph: &Graph, value: Value, op: ScalarOp) -> Option<&[Value]> {
    let node = graph.node(value);
    (node.op == Op::Scalar(op)).then_some(&node.operands[..])
}

fn reduced(graph: &Graph, value: Value, wanted: ReduceKind) -> Option<Value> {
    let node = graph.node(value);
    matches!(node.op, Op::Reduce { kind, .. } if kind == wanted).then(|| node.operands[0])
}

/// Whether a value is a product with an element for each score.
fn is_score(graph: &Graph, value: Value, scores: &Scores<'_>, wanted: Precision) -> bool {
    let shape = &graph.ty(value).shape;
    let elements = scores.lattice.batch.iter().product::<usize>() * scores.queries * scores.keys;
    matches!(graph.node(value).op, Op::MatMul { precision } if precision == wanted)
        && shape.num_elements() == elements
        && [[scores.queries, scores.keys], [scores.keys, scores.queries]]
            .contains(&[shape[shape.rank() - 2], shape[shape.rank() - 1]])
}

/// Whether a reduction runs over the keys, and over nothing else.
pub(super) fn over_keys(graph: &Graph, reduction: Value, over: Matrix, keys: usize) -> bool {
    let Op::Reduce { axes, .. } = &graph.node(reduction).op else { return false };
    let shape = &graph.ty(over.value).shape;
    let behind = match over.at {
        Orientation::Straight => 1,
        Orientation::Crossed => 2,
    };
    shape.rank() >= behind && axes[..] == [shape.rank() - behind] && shape[shape.rank() - behind] == keys
}

/// Whether the reductions are read at each point's own row, wherever the factor reads them.
fn read_by_row(
    graph: &Graph,
    scores: &Scores<'_>,
    factor: Matrix,
    path: &HashSet<usize>,
    reductions: [Value; 2],
) -> bool {
    let inline = |value: Value| {
        let view = !reductions.contains(&value) && reductions.contains(&behind_views(graph, value));
        view || path.contains(&value.node.index())
    };
    let Some(reads) = scores.reads(graph, factor, &inline) else { return false };
    reductions.iter().all(|&reduction| {
        let mut own = reads.iter().filter(|(value, _)| *value == reduction).peekable();
        own.peek().is_some() && own.all(|(value, index)| scores.is_row(graph, *value, index))
    })
}

/// Queries and keys of a score.
fn operands(graph: &Graph, score: Matrix) -> (Matrix, Matrix) {
    let node = graph.node(score.value);
    let left = Matrix { value: node.operands[0], at: Orientation::Straight };
    let right = Matrix { value: node.operands[1], at: Orientation::Crossed };
    match score.at {
        Orientation::Straight => (left, right),
        Orientation::Crossed => (right, left),
    }
}

fn depth(graph: &Graph, score: Matrix) -> usize {
    graph.ty(graph.node(score.value).operands[0]).shape.last().copied().unwrap_or(0)
}
