//! Lowering: each group of roots becomes one kernel.
//!
//! In: a group, and which of its values must be stored. Out: a [`Kernel`] and the values behind its buffers. What a group computes but
//! nobody outside reads stays in registers.

pub(crate) mod attention;
mod custom;
pub(crate) mod evaluate;
mod loops;
mod single;
mod tidy;

use std::collections::HashSet;
use std::sync::Arc;

use kiln_ir::kernel::{Kernel, LoopKernel, Stage};
use kiln_ir::{Diagnostic, Graph, Value};
use smallvec::SmallVec;

use crate::attention::Attentions;
use crate::classify::{Class, class};
use crate::group::{Group, Shell};
use crate::index::Coord;
use crate::roots::Roots;
use evaluate::{Binding, Source, Stop};

/// A kernel and the values behind its buffers, in order.
pub(crate) struct Lowered {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) values: Vec<Value>,
}

/// Lowers a group; `None` where it has no points and so nothing to do.
pub(crate) fn group(
    graph: &Graph,
    roots: &Roots,
    attentions: &Attentions,
    group: &Group,
    stored: &HashSet<Value>,
) -> Result<Option<Lowered>, Diagnostic> {
    let own: HashSet<Value> = group.members.iter().map(|member| member.value).collect();
    let in_memory = |value: Value| {
        !own.contains(&value) && (roots.is_root[value.node.index()] || class(&graph.node(value).op) == Class::Leaf)
    };
    let (outer, inner) = group.domain.extents();
    let has_points = |&value: &Value| stored.contains(&value) && graph.ty(value).num_bytes() > 0;
    if !group.members.iter().flat_map(|member| results(graph, member.value)).any(|value| has_points(&value)) {
        return Ok(None);
    }
    let mut space = Space::new(outer, inner);
    loop {
        let mut binding = Binding::default();
        let attempt = match group.shell {
            Shell::Loop => loops::lower(graph, group, stored, &in_memory, &space, &mut binding),
            Shell::MatMul => single::matmul(graph, group, stored, &in_memory, &mut binding),
            Shell::Attention(kernel) => {
                let attention = &attentions.kernels[kernel];
                attention::lower(graph, attention, group, stored, &in_memory, &mut binding)
            }
            Shell::Single => single::single(graph, group.members[0].value, &in_memory, &mut binding),
        };
        match attempt {
            Ok(kernel) => {
                let kernel = Arc::new(tidy::kernel(kernel));
                return Ok(Some(Lowered { kernel, values: binding.values }));
            }
            Err(Stop::Refine { axis, inner }) => space.split(axis, inner),
            Err(Stop::Fault(diagnostic)) => {
                let name = graph.node(group.members[0].value).op.name().into_owned();
                return Err(diagnostic.in_op(name).at(graph.node(group.members[0].value).loc));
            }
        }
    }
}

/// All results of a node.
fn results(graph: &Graph, value: Value) -> impl Iterator<Item = Value> {
    let count = graph.node(value).types.len() as u32;
    (0..count).map(move |result| Value { result, ..value })
}

/// The space of a loop kernel while it is being found: some axes of the group may be split in two.
pub(crate) struct Space {
    pub(crate) outer: SmallVec<[usize; 6]>,
    pub(crate) inner: SmallVec<[usize; 6]>,
    /// Each axis of the group as a coordinate in the space.
    pub(crate) axes: Vec<Coord>,
}

impl Space {
    fn new(outer: SmallVec<[usize; 6]>, inner: SmallVec<[usize; 6]>) -> Space {
        let axes = (0..outer.len() + inner.len()).map(Coord::axis).collect();
        Space { outer, inner, axes }
    }

    /// Splits an axis of the space in two, the second one of extent `inner`.
    fn split(&mut self, axis: usize, inner: usize) {
        let outer = self.outer.len();
        let (part, at) = if axis < outer { (&mut self.outer, axis) } else { (&mut self.inner, axis - outer) };
        part[at] /= inner;
        part.insert(at + 1, inner);
        for coord in &mut self.axes {
            let mut strides = coord.affine.strides.clone();
            if strides.len() > axis {
                let stride = strides[axis];
                strides[axis] = stride * inner as i64;
                strides.insert(axis + 1, stride);
            }
            coord.affine.strides = strides;
        }
    }
}

/// An index source for kernels whose values all come from memory or inline.
pub(crate) fn source_of(in_memory: &dyn Fn(Value) -> bool, value: Value) -> Source {
    if in_memory(value) { Source::Memory } else { Source::Inline }
}

/// Adds a stage, unless it does nothing.
pub(crate) fn push_point(kernel: &mut LoopKernel, block: kiln_ir::kernel::Block) {
    if !block.instructions.is_empty() || !block.stores.is_empty() {
        kernel.stages.push(Stage::Point(block));
    }
}
