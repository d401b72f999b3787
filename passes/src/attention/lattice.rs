//! The axes of an attention kernel, and where on them the elements of matrices lie.
//!
//! A kernel has batch axes, then rows, then columns, whose extents differ from block to block. A value of the graph holds such a matrix for
//! each batch point *straight*, rows before columns, or *crossed*. Its shape may be any other with the same elements in the same order.

use kiln_ir::Shape;
use smallvec::SmallVec;

use crate::index::{Coord, Index};

/// Which of a matrix's two axes comes first in a value of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Orientation {
    /// Rows, then columns.
    Straight,
    /// Columns, then rows.
    Crossed,
}

/// The batch axes of a kernel: those of the graph's values, some of them split in two.
#[derive(Clone, Debug)]
pub(crate) struct Lattice {
    /// Batch extents of the graph's values.
    shape: SmallVec<[usize; 6]>,
    /// Batch extents of the kernel.
    pub(crate) batch: SmallVec<[usize; 6]>,
    /// Each batch axis of the values as a coordinate of the kernel.
    axes: Vec<Coord>,
}

impl Lattice {
    pub(crate) fn new(batch: &[usize]) -> Lattice {
        Lattice {
            shape: batch.into(),
            batch: batch.into(),
            axes: batch.iter().enumerate().map(|(axis, &extent)| along(axis, extent)).collect(),
        }
    }

    /// Splits a batch axis of the kernel in two, the second one of extent `inner`.
    pub(crate) fn split(&mut self, axis: usize, inner: usize) {
        self.batch[axis] /= inner;
        self.batch.insert(axis + 1, inner);
        for coord in &mut self.axes {
            let strides = &mut coord.affine.strides;
            if strides.len() > axis {
                let stride = strides[axis];
                strides[axis] = stride * inner as i64;
                strides.insert(axis + 1, stride);
            }
        }
    }

    /// The extents of a space of the kernel.
    pub(crate) fn extents(&self, own: &[usize]) -> SmallVec<[usize; 6]> {
        self.batch.iter().chain(own).copied().collect()
    }

    /// The element of a value of `shape` at the kernel's point, where it holds a matrix of these extents.
    pub(crate) fn matrix(&self, [rows, columns]: [usize; 2], orientation: Orientation, shape: &Shape) -> Index {
        let first = self.batch.len();
        let (row, column) = (along(first, rows), along(first + 1, columns));
        match orientation {
            Orientation::Straight => self.index(&[(row, rows), (column, columns)], shape),
            Orientation::Crossed => self.index(&[(column, columns), (row, rows)], shape),
        }
    }

    /// The element of a value of `shape` that belongs to the kernel's row.
    pub(crate) fn row(&self, rows: usize, shape: &Shape) -> Index {
        self.index(&[(along(self.batch.len(), rows), rows)], shape)
    }

    fn index(&self, own: &[(Coord, usize)], shape: &Shape) -> Index {
        let batch = self.axes.iter().cloned().zip(self.shape.iter().copied());
        let coords: Vec<(Coord, usize)> = batch.chain(own.iter().cloned()).collect();
        if coords.iter().map(|(_, extent)| extent).eq(shape.iter()) {
            return Index::Axes(coords.into_iter().map(|(coord, _)| coord).collect());
        }
        let position = coords
            .iter()
            .fold(Coord::constant(0), |position, (coord, extent)| position.times(*extent as i64).plus(coord));
        Index::Linear(position)
    }
}

/// A kernel axis as a coordinate; along an extent of 1 there is nowhere to go.
fn along(axis: usize, extent: usize) -> Coord {
    if extent == 1 { Coord::constant(0) } else { Coord::axis(axis) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crossed_matrix_is_read_column_by_column() {
        let lattice = Lattice::new(&[2]);
        let shape = Shape::from([2, 5, 3]);
        let index = lattice.matrix([3, 5], Orientation::Crossed, &shape);
        assert_eq!(index.linear(&shape), Coord::axis(0).times(15).plus(&Coord::axis(2).times(3)).plus(&Coord::axis(1)));
    }

    #[test]
    fn a_value_may_hold_batch_axes_in_one() {
        let lattice = Lattice::new(&[2, 4]);
        let (apart, joined) = (Shape::from([2, 4, 3, 5]), Shape::from([8, 3, 5]));
        let index = |shape| lattice.matrix([3, 5], Orientation::Straight, shape).linear(shape);
        assert_eq!(index(&apart), index(&joined));
    }

    #[test]
    fn a_split_axis_is_where_it_was() {
        let mut lattice = Lattice::new(&[6]);
        lattice.split(0, 3);
        assert_eq!(lattice.batch[..], [2, 3]);
        let shape = Shape::from([6, 7]);
        let expected = Coord::axis(0).times(21).plus(&Coord::axis(1).times(7)).plus(&Coord::axis(2));
        assert_eq!(lattice.row(7, &shape).linear(&shape), expected);
    }
}
