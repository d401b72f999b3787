//! What is computed from the results of an attention and stored with them.

use std::collections::HashMap;

use kiln_ir::plan::Blocked;
use kiln_ir::{Graph, Value};
use smallvec::SmallVec;

use super::{Attention, Lattice, Matrix, Orientation, moved};
use crate::index::{Coord, Domain, Index};

/// The results of a kernel, and what has joined them.
#[derive(Debug)]
pub(crate) struct Epilogues {
    lattice: Lattice,
    /// Rows and columns of each result.
    extents: HashMap<Value, [usize; 2]>,
    statistics: SmallVec<[Value; 2]>,
    /// Every member but the statistics.
    made: HashMap<Value, Made>,
}

/// How a member comes from a result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    /// The result that it is computed from, itself where it is one.
    pub(crate) result: Value,
    /// How it holds the result's matrix; of what is moved, how its base does.
    pub(crate) at: Orientation,
    /// The value that it is another order of, where it is nothing else.
    pub(crate) moved: Option<Value>,
}

impl Epilogues {
    pub(crate) fn of(attention: &Attention) -> Epilogues {
        let results = attention.results();
        Epilogues {
            lattice: Lattice::new(&attention.forward.batch),
            extents: results.iter().map(|result| (result.value, attention.extents_of(result.value))).collect(),
            statistics: attention.statistics(),
            made: results
                .iter()
                .map(|&Matrix { value, at }| (value, Made { result: value, at, moved: None }))
                .collect(),
        }
    }

    /// How a member comes from a result; `None` for statistics.
    pub(crate) fn made(&self, value: Value) -> Option<Made> {
        self.made.get(&value).copied()
    }

    pub(crate) fn join(&mut self, value: Value, made: Made) {
        self.made.insert(value, made);
    }

    /// How a root, whose own domain is `own` and which reads `reads`, would come from one of the results: element by element, or as one of
    /// the members in another order of axes.
    pub(crate) fn fit(
        &self,
        graph: &Graph,
        value: Value,
        own: &Domain,
        reads: &[(Value, Index)],
    ) -> Result<Made, Blocked> {
        if !own.reduced.is_empty() || reads.iter().any(|(read, _)| self.statistics.contains(read)) {
            return Err(Blocked::Complete);
        }
        let mut results = reads.iter().filter_map(|(read, _)| Some(self.made.get(read)?.result));
        let result = results.next().ok_or(Blocked::Complete)?;
        if results.any(|other| other != result) {
            return Err(Blocked::Complete);
        }
        let extents = self.extents[&result];
        if let Some(made) = self.moved(graph, value, extents) {
            return Ok(made);
        }
        let places = [Orientation::Straight, Orientation::Crossed].into_iter();
        let mut spaces = places.filter_map(|at| Some((at, self.axes(graph, value, extents, at)?))).peekable();
        if spaces.peek().is_none() {
            return Err(Blocked::Space);
        }
        let at = spaces.find(|(_, axes)| self.in_place(graph, reads, extents, axes)).ok_or(Blocked::Complete)?.0;
        Ok(Made { result, at, moved: None })
    }

    fn moved(&self, graph: &Graph, value: Value, extents: [usize; 2]) -> Option<Made> {
        let in_place = |value: Value| self.made.get(&value).is_some_and(|made| made.moved.is_none());
        let base = moved::base(graph, value, in_place)?;
        let made = self.made[&base];
        let index = self.lattice.matrix(extents, made.at, &graph.ty(base).shape);
        moved::place(graph, base, index, value, &self.lattice.extents(&extents))?;
        Some(Made { moved: Some(base), ..made })
    }

    /// The axes of a root's own domain as coordinates of the kernel, where it holds the result's matrix like this.
    fn axes(&self, graph: &Graph, value: Value, extents: [usize; 2], at: Orientation) -> Option<Vec<Coord>> {
        let shape = &graph.ty(value).shape;
        match self.lattice.matrix(extents, at, shape) {
            Index::Axes(coords) => {
                let longer = coords.into_iter().zip(shape.iter()).filter(|(_, extent)| **extent != 1);
                Some(longer.map(|(coord, _)| coord).collect())
            }
            Index::Linear(_) => None,
        }
    }

    /// Whether a root with these axes reads members at its own point.
    fn in_place(&self, graph: &Graph, reads: &[(Value, Index)], extents: [usize; 2], axes: &[Coord]) -> bool {
        reads.iter().all(|(read, index)| {
            let Some(made) = self.made.get(read) else { return true };
            let shape = &graph.ty(*read).shape;
            let expected = self.lattice.matrix(extents, made.at, shape).linear(shape);
            made.moved.is_none() && index.linear(shape).over(axes) == Some(expected)
        })
    }
}
