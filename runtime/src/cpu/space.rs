//! The axes of a kernel, merged where all of its affine maps allow it.
//!
//! Neighbouring axes are one where every map steps along the outer one exactly as far as along the whole inner one: then small inner axes
//! still give long strips. Axes of extent 1 vanish. Outer and inner axes stay apart.

use std::ops::Range;

use kiln_ir::kernel::{Affine, Block, Operation};
use smallvec::SmallVec;

/// Coordinates along the merged axes.
pub(super) type Point = SmallVec<[i64; 8]>;

/// Merged axes, outer ones first.
#[derive(Clone, Debug)]
pub(super) struct Space {
    /// Extent of each axis.
    pub(super) extents: SmallVec<[usize; 8]>,
    /// How many of them are outer axes.
    pub(super) outer: usize,
    /// How many of these, the first ones, no tile covers: each of their points is a part of the space that may be run alone.
    pub(super) parts: usize,
    /// For each axis, the innermost original axis it stands for: its stride is the merged one.
    origins: SmallVec<[usize; 8]>,
    /// Whether there is no point at all, in the outer or in the inner space.
    pub(super) empty_outer: bool,
    pub(super) empty_inner: bool,
}

/// An affine map over merged axes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Map {
    pub(super) offset: i64,
    pub(super) strides: SmallVec<[i64; 8]>,
}

impl Map {
    /// The value at a point.
    pub(super) fn at(&self, point: &[i64]) -> i64 {
        self.strides.iter().zip(point).fold(self.offset, |sum, (stride, index)| sum + stride * index)
    }

    /// The stride along an axis, 0 where there is none.
    pub(super) fn along(&self, axis: Option<usize>) -> i64 {
        axis.and_then(|axis| self.strides.get(axis)).copied().unwrap_or(0)
    }

    /// Whether the value changes along any of these axes.
    pub(super) fn varies(&self, axes: Range<usize>) -> bool {
        self.strides[axes].iter().any(|&stride| stride != 0)
    }
}

impl Space {
    /// Merges axes for these maps.
    pub(super) fn new(outer: &[usize], inner: &[usize], maps: &[&Affine]) -> Space {
        Space::in_parts(outer, inner, maps, 0)
    }

    /// Merges axes for these maps, but the first `parts` outer ones, which stay as they are.
    pub(super) fn in_parts(outer: &[usize], inner: &[usize], maps: &[&Affine], parts: usize) -> Space {
        let mut space = Space {
            extents: outer[..parts].iter().copied().collect(),
            outer: 0,
            parts,
            origins: (0..parts).collect(),
            empty_outer: outer.contains(&0),
            empty_inner: inner.contains(&0),
        };
        space.merge(&outer[parts..], parts, maps);
        space.outer = space.extents.len();
        space.merge(inner, outer.len(), maps);
        space
    }

    fn merge(&mut self, extents: &[usize], first: usize, maps: &[&Affine]) {
        let start = self.extents.len();
        for (axis, &extent) in extents.iter().enumerate().map(|(axis, extent)| (axis + first, extent)) {
            if extent == 1 {
                continue;
            }
            let previous = self.origins.last().copied().filter(|_| self.extents.len() > start);
            let fits = |previous: usize| {
                maps.iter().all(|map| Some(map.stride(previous)) == map.stride(axis).checked_mul(extent as i64))
            };
            match previous {
                Some(previous) if fits(previous) => {
                    let last = self.extents.len() - 1;
                    self.extents[last] *= extent;
                    self.origins[last] = axis;
                }
                _ => {
                    self.extents.push(extent);
                    self.origins.push(axis);
                }
            }
        }
    }

    /// A map over the original axes as one over the merged ones.
    pub(super) fn map(&self, affine: &Affine) -> Map {
        Map { offset: affine.offset, strides: self.origins.iter().map(|&axis| affine.stride(axis)).collect() }
    }

    /// How many parts there are.
    pub(super) fn num_parts(&self) -> usize {
        self.extents[..self.parts].iter().product()
    }

    /// The inner axes.
    pub(super) fn inner(&self) -> Range<usize> {
        self.outer..self.extents.len()
    }

    /// Points of the inner space.
    pub(super) fn inner_points(&self) -> usize {
        if self.empty_inner { 0 } else { self.extents[self.outer..].iter().product() }
    }
}

/// Every affine map of a block.
pub(super) fn maps_of(block: &Block) -> Vec<&Affine> {
    let mut maps = Vec::new();
    for instruction in &block.instructions {
        match &instruction.operation {
            Operation::Index(map) => maps.push(map),
            Operation::Load { address, bounds, .. } => {
                maps.push(&address.affine);
                maps.extend(bounds.iter().map(|bound| &bound.at));
            }
            Operation::Within(bounds) => maps.extend(bounds.iter().map(|bound| &bound.at)),
            Operation::Literal(_)
            | Operation::Scalar(..)
            | Operation::Fma(..)
            | Operation::Cast(_)
            | Operation::Bitcast(_)
            | Operation::Select { .. }
            | Operation::Random { .. } => {}
        }
    }
    maps.extend(block.stores.iter().map(|store| &store.address));
    maps
}

/// A walk over some axes in steps, in row-major order: the tiles of a space.
#[derive(Clone, Debug, Default)]
pub(super) struct Walk {
    /// For each axis walked, outermost first: which one, its extent, the step.
    axes: SmallVec<[(usize, usize, usize); 8]>,
}

impl Walk {
    /// A walk over axes; steps are the extents of a tile.
    pub(super) fn new(axes: impl IntoIterator<Item = (usize, usize, usize)>) -> Walk {
        Walk { axes: axes.into_iter().collect() }
    }

    /// How many steps it takes.
    pub(super) fn len(&self) -> usize {
        self.axes.iter().map(|&(_, extent, step)| extent.div_ceil(step)).product()
    }

    /// Moves a point to a step.
    pub(super) fn seek(&self, mut index: usize, point: &mut [i64]) {
        if index == 0 {
            // Where most walks begin and all end: no division.
            return self.axes.iter().for_each(|&(axis, ..)| point[axis] = 0);
        }
        for &(axis, extent, step) in self.axes.iter().rev() {
            let steps = extent.div_ceil(step);
            point[axis] = ((index % steps) * step) as i64;
            index /= steps;
        }
    }

    /// Moves a point to the next step.
    pub(super) fn advance(&self, point: &mut [i64]) {
        for &(axis, extent, step) in self.axes.iter().rev() {
            point[axis] += step as i64;
            if (point[axis] as usize) < extent {
                return;
            }
            point[axis] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn affine(strides: &[i64]) -> Affine {
        Affine { offset: 0, strides: strides.iter().copied().collect() }
    }

    #[test]
    fn axes_merge_where_every_map_runs_through() {
        let (dense, bias) = (affine(&[12, 4, 1]), affine(&[0, 4, 1]));
        let space = Space::new(&[2, 3, 4], &[], &[&dense]);
        assert_eq!(space.extents[..], [24]);
        let space = Space::new(&[2, 3, 4], &[], &[&dense, &bias]);
        assert_eq!(space.extents[..], [2, 12]);
        assert_eq!(space.map(&bias).strides[..], [0, 1]);
    }

    #[test]
    fn axes_of_extent_one_vanish_and_inner_axes_stay_apart() {
        let space = Space::new(&[5, 1], &[1, 7], &[&affine(&[7, 99, 99, 1])]);
        assert_eq!((&space.extents[..], space.outer), (&[5, 7][..], 1));
    }

    #[test]
    fn a_walk_visits_tiles_in_row_major_order() {
        let walk = Walk::new([(0, 3, 2), (2, 5, 3)]);
        let mut point = [0; 3];
        let mut seen = Vec::new();
        for _ in 0..walk.len() {
            seen.push((point[0], point[2]));
            walk.advance(&mut point);
        }
        assert_eq!(seen, [(0, 0), (0, 3), (2, 0), (2, 3)]);
        walk.seek(3, &mut point);
        assert_eq!(point, [2, 0, 3]);
    }
}
