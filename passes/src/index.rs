//! Index algebra: where in a value a kernel reads, as a function of the kernel's point.
//!
//! A [`Coord`] is an affine map of the kernel's axes plus computed registers. An [`Index`] names one element of a value, either by a
//! coordinate for each of its axes or by its position in row-major order. Reshapes move between the two; going from a position to
//! coordinates needs division, which is exact on affine maps whose terms split, may split a kernel axis ([`Split::Refine`]), and is
//! otherwise done on registers.

use kiln_ir::kernel::{Affine, Reg};
use kiln_ir::{Axes, Shape};
use smallvec::{SmallVec, smallvec};

/// An integer at a point: an affine part plus registers (of dtype `i64`), each times a stride.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Coord {
    pub(crate) affine: Affine,
    pub(crate) computed: SmallVec<[(Reg, i64); 1]>,
}

/// What dividing a coordinate by a constant came to.
pub(crate) enum Split {
    /// Quotient and remainder.
    Exact(Coord, Coord),
    /// It would be exact if this kernel axis were two, the inner one of this extent.
    Refine { axis: usize, inner: usize },
    /// It needs arithmetic on registers.
    Computed,
}

impl Coord {
    pub(crate) fn constant(offset: i64) -> Coord {
        Coord { affine: Affine::constant(offset), computed: SmallVec::new() }
    }

    /// A kernel axis itself.
    pub(crate) fn axis(axis: usize) -> Coord {
        let mut strides = smallvec![0; axis + 1];
        strides[axis] = 1;
        Coord { affine: Affine { offset: 0, strides }, computed: SmallVec::new() }
    }

    pub(crate) fn register(reg: Reg) -> Coord {
        Coord { affine: Affine::default(), computed: smallvec![(reg, 1)] }
    }

    pub(crate) fn plus(&self, other: &Coord) -> Coord {
        let rank = self.affine.strides.len().max(other.affine.strides.len());
        let strides = (0..rank).map(|axis| self.affine.stride(axis) + other.affine.stride(axis)).collect();
        let mut computed = self.computed.clone();
        for &(reg, stride) in &other.computed {
            match computed.iter_mut().find(|(known, _)| *known == reg) {
                Some((_, sum)) => *sum += stride,
                None => computed.push((reg, stride)),
            }
        }
        Coord { affine: Affine { offset: self.affine.offset + other.affine.offset, strides }, computed }.normal()
    }

    pub(crate) fn times(&self, factor: i64) -> Coord {
        let strides = self.affine.strides.iter().map(|stride| stride * factor).collect();
        let computed = self.computed.iter().map(|&(reg, stride)| (reg, stride * factor)).collect();
        Coord { affine: Affine { offset: self.affine.offset * factor, strides }, computed }.normal()
    }

    pub(crate) fn shifted(&self, by: i64) -> Coord {
        let mut coord = self.clone();
        coord.affine.offset += by;
        coord
    }

    /// Trailing zero strides and registers with stride 0 dropped, so that equal maps are equal values.
    fn normal(mut self) -> Coord {
        while self.affine.strides.last() == Some(&0) {
            self.affine.strides.pop();
        }
        self.computed.retain(|(_, stride)| *stride != 0);
        self
    }

    /// The same with each axis given as a coordinate of another space. `None` where it is computed.
    pub(crate) fn over(&self, axes: &[Coord]) -> Option<Coord> {
        let start = self.is_affine().then(|| Coord::constant(self.affine.offset))?;
        let mut terms = self.affine.strides.iter().enumerate().filter(|(_, stride)| **stride != 0);
        terms.try_fold(start, |sum, (axis, &stride)| Some(sum.plus(&axes.get(axis)?.times(stride))))
    }

    pub(crate) fn is_affine(&self) -> bool {
        self.computed.is_empty()
    }

    /// Divides by `divisor`, over a space of the given extents.
    pub(crate) fn split(&self, divisor: usize, extents: &[usize]) -> Split {
        let d = divisor as i64;
        if d == 1 {
            return Split::Exact(self.clone(), Coord::constant(0));
        }
        if !self.is_affine() {
            return Split::Computed;
        }
        let (mut high, mut low) = (Affine::default(), Affine::default());
        high.strides = smallvec![0; self.affine.strides.len()];
        low.strides = high.strides.clone();
        high.offset = self.affine.offset.div_euclid(d);
        low.offset = self.affine.offset.rem_euclid(d);
        for (axis, &stride) in self.affine.strides.iter().enumerate() {
            if stride % d == 0 {
                high.strides[axis] = stride / d;
            } else {
                low.strides[axis] = stride;
            }
        }
        let (least, most) = low.range(extents);
        if least >= 0 && most < d {
            let coord = |affine| Coord { affine, computed: SmallVec::new() }.normal();
            return Split::Exact(coord(high), coord(low));
        }
        for (axis, &stride) in low.strides.iter().enumerate() {
            if stride > 0 && d % stride == 0 {
                let inner = (d / stride) as usize;
                if inner > 1 && inner < extents[axis] && extents[axis].is_multiple_of(inner) {
                    return Split::Refine { axis, inner };
                }
            }
        }
        Split::Computed
    }
}

/// Which element of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Index {
    /// A coordinate for each axis; along axes of extent 1 it is 0.
    Axes(Vec<Coord>),
    /// The position in row-major order.
    Linear(Coord),
}

impl Index {
    /// The element's position in row-major order of `shape`.
    pub(crate) fn linear(&self, shape: &Shape) -> Coord {
        match self {
            Index::Linear(position) => position.clone(),
            Index::Axes(coords) => {
                let strides = shape.strides();
                let terms = coords.iter().zip(strides).map(|(coord, stride)| coord.times(stride as i64));
                terms.fold(Coord::constant(0), |sum, term| sum.plus(&term))
            }
        }
    }
}

/// The axes of a kernel that iterates `shape` and reduces `reduced`: those of extent other than 1, kept ones first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Domain {
    /// The full shape, with all its axes.
    pub(crate) shape: Shape,
    /// The reduced axes; empty for maps.
    pub(crate) reduced: Axes,
}

/// Whether a value of a kernel has an element for every point, or one for every outer point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Level {
    Outer,
    Full,
}

impl Domain {
    pub(crate) fn map(shape: Shape) -> Domain {
        Domain { shape, reduced: Axes::default() }
    }

    /// Outer extents, then inner extents, axes of extent 1 left out.
    pub(crate) fn extents(&self) -> (SmallVec<[usize; 6]>, SmallVec<[usize; 6]>) {
        let pick = |wanted: bool| {
            let axes = self.shape.iter().enumerate();
            axes.filter(|(axis, extent)| **extent != 1 && self.reduced.contains(axis) == wanted)
                .map(|(_, &e)| e)
                .collect()
        };
        (pick(false), pick(true))
    }

    /// The position among the kernel's axes of each axis of the full shape; `None` for extent 1.
    fn positions(&self) -> SmallVec<[Option<usize>; 4]> {
        let outer = self.extents().0.len();
        let (mut next_outer, mut next_inner) = (0, outer);
        let axes = self.shape.iter().enumerate();
        axes.map(|(axis, &extent)| {
            let next = if self.reduced.contains(&axis) { &mut next_inner } else { &mut next_outer };
            (extent != 1).then(|| {
                *next += 1;
                *next - 1
            })
        })
        .collect()
    }

    /// At which level a value of `shape` lives in this domain, if its axes are the domain's.
    pub(crate) fn level(&self, shape: &Shape) -> Option<Level> {
        let of =
            |shape: &[usize]| -> SmallVec<[usize; 4]> { shape.iter().copied().filter(|&extent| extent != 1).collect() };
        let outer: SmallVec<[usize; 4]> = self.extents().0.into_iter().collect();
        let wanted = of(shape);
        if wanted == of(&self.shape) {
            Some(Level::Full)
        } else if wanted == outer && !self.reduced.is_empty() {
            Some(Level::Outer)
        } else {
            None
        }
    }

    /// The kernel axis of each axis of a value of `shape` at `level`; `None` along extent 1.
    pub(crate) fn axes_of(&self, shape: &Shape, level: Level) -> SmallVec<[Option<usize>; 4]> {
        let positions = self.positions();
        let mut own = positions.iter().enumerate().filter_map(|(axis, position)| match level {
            Level::Full => *position,
            Level::Outer => position.filter(|_| !self.reduced.contains(&axis)),
        });
        shape.iter().map(|&extent| if extent == 1 { None } else { own.next() }).collect()
    }

    /// The element of a value of `shape` at `level` that belongs to a point, where `axes` gives each kernel axis as a coordinate.
    pub(crate) fn index_of(&self, shape: &Shape, level: Level, axes: &[Coord]) -> Index {
        let coords = self.axes_of(shape, level);
        Index::Axes(
            coords.iter().map(|axis| axis.map_or_else(|| Coord::constant(0), |axis| axes[axis].clone())).collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_of_two_axes_splits_exactly() {
        let merged = Coord::axis(0).times(6).plus(&Coord::axis(1));
        let Split::Exact(high, low) = merged.split(6, &[4, 6]) else { panic!("must split") };
        assert_eq!((high, low), (Coord::axis(0), Coord::axis(1)));
    }

    #[test]
    fn one_axis_asks_to_be_refined() {
        assert!(matches!(Coord::axis(0).split(6, &[24]), Split::Refine { axis: 0, inner: 6 }));
    }

    #[test]
    fn an_axis_that_does_not_divide_is_computed() {
        assert!(matches!(Coord::axis(0).split(5, &[24]), Split::Computed));
        assert!(matches!(Coord::axis(0).shifted(1).split(24, &[24]), Split::Computed));
    }

    #[test]
    fn a_reduced_shape_lives_at_the_outer_level() {
        let domain = Domain { shape: Shape::from([1, 5, 7]), reduced: Axes::one(2) };
        assert_eq!(domain.level(&Shape::from([5])), Some(Level::Outer));
        assert_eq!(domain.level(&Shape::from([5, 7])), Some(Level::Full));
        assert_eq!(domain.level(&Shape::from([7])), None);
    }
}
