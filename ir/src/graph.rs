//! Graphs: a list of nodes in which every operand comes before its user.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::op::Types;
use crate::{Backend, Loc, Op, TensorType};

/// Index of a node in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    /// As an index into `Graph::nodes`.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One result of a node: what an operand refers to. Prints `%7`, or `%7.1` for a second result.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    /// The node.
    pub node: NodeId,
    /// Which of its results.
    pub result: u32,
}

impl Value {
    /// The first result of the node at `index`.
    pub fn first(index: usize) -> Value {
        Value { node: NodeId(index as u32), result: 0 }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.result {
            0 => write!(f, "%{}", self.node.0),
            result => write!(f, "%{}.{result}", self.node.0),
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Operands of a node.
pub type Operands = SmallVec<[Value; 3]>;

/// An op applied to operands. Equality and hashing leave `loc` out.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it computes.
    pub op: Op,
    /// From what.
    pub operands: Operands,
    /// Types of its results; at least one, but for custom ops.
    pub types: Types,
    /// The user's line.
    pub loc: Loc,
}

impl PartialEq for Node {
    fn eq(&self, other: &Node) -> bool {
        self.op == other.op && self.operands == other.operands && self.types == other.types
    }
}

impl Eq for Node {}

impl Hash for Node {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.op.hash(state);
        self.operands.hash(state);
    }
}

/// A named result of a graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Output {
    /// The user's name for it.
    pub name: Arc<str>,
    /// The value.
    pub value: Value,
}

/// A captured program. Passes rebuild a graph and never mutate one.
///
/// Invariants (held by [`crate::GraphBuilder`], checked by [`crate::verify`]): operands come before their users; `types` is what
/// [`crate::infer`] gives; `inputs` lists all [`Op::Input`] nodes, in declared order, whose names are unique.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Graph {
    /// Its name, printed after `graph @`.
    pub name: Arc<str>,
    /// The nodes, operands first.
    pub nodes: Vec<Node>,
    /// The arguments, in order; each is the first result of an [`Op::Input`] node.
    pub inputs: Vec<Value>,
    /// The results, in order.
    pub outputs: Vec<Output>,
}

impl Graph {
    /// The node that makes a value. Panics on a value of another graph.
    pub fn node(&self, value: Value) -> &Node {
        &self.nodes[value.node.index()]
    }

    /// The type of a value. Panics on a value of another graph.
    pub fn ty(&self, value: Value) -> &TensorType {
        &self.node(value).types[value.result as usize]
    }

    /// The name of argument `index`.
    pub fn input_name(&self, index: usize) -> Option<&str> {
        match &self.node(*self.inputs.get(index)?).op {
            Op::Input { name, .. } => Some(name),
            _ => None,
        }
    }

    /// How often each node's results are used, outputs of the graph included.
    pub fn use_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.nodes.len()];
        let operands = self.nodes.iter().flat_map(|node| &node.operands);
        for value in operands.copied().chain(self.outputs.iter().map(|output| output.value)) {
            counts[value.node.index()] += 1;
        }
        counts
    }

    /// The backends its nodes live on, in order of first use.
    pub fn backends(&self) -> Vec<Backend> {
        let mut backends = Vec::new();
        for ty in self.nodes.iter().flat_map(|node| &node.types) {
            if !backends.contains(&ty.backend) {
                backends.push(ty.backend);
            }
        }
        backends
    }
}
