//! Slices: regular parts of a tensor, in Rust's own range notation, with negative indices counted from the end.

use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use kiln_ir::{Code, Diagnostic, Literal, Op, Shape, normalize_axis};
use smallvec::SmallVec;

use crate::Tensor;
use crate::data::Scalar;
use crate::session::{record, record_as};

/// Part of an axis: a range and a step. Made from ranges; negative bounds count from the end.
///
/// With a negative step the range is walked from its end: `Part::from(..).by(-1)` reverses an axis.
///
/// ```
/// # use kiln_capture::{CaptureDevice, Part}; use kiln_ir::{Backend, DType};
/// # CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
/// let x = scope.input("x", DType::F32, [10]);
/// assert_eq!(x.slice(0, 2..5).shape()[..], [3]);
/// assert_eq!(x.slice(0, ..-1).shape()[..], [9]);
/// assert_eq!(x.slice(0, Part::from(1..).by(2)).shape()[..], [5]);
/// # })?; Ok::<(), kiln_ir::Diagnostics>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    start: isize,
    /// `None`: to the end.
    end: Option<isize>,
    /// Whether the end belongs to the part.
    last: Last,
    step: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    Included,
    Excluded,
}

impl Part {
    fn new(start: isize, end: Option<isize>, last: Last) -> Part {
        Part { start, end, last, step: 1 }
    }

    /// Every `step`th element of the range; from its end where the step is negative.
    pub fn by(self, step: i64) -> Part {
        Part { step, ..self }
    }

    /// First index, number of elements and step in an axis of this extent.
    fn resolve(self, extent: usize, axis: usize) -> Result<(usize, usize, i64), Diagnostic> {
        let index = |index: isize| if index < 0 { index + extent as isize } else { index };
        let start = index(self.start);
        let end = match (self.end, self.last) {
            (None, _) => extent as isize,
            (Some(end), Last::Excluded) => index(end),
            (Some(end), Last::Included) => index(end) + 1,
        };
        let inside =
            0 <= start && start <= end.max(start) && end <= extent as isize && start <= extent as isize && end >= 0;
        if !inside {
            let message = format!("slice {self} of axis {axis} leaves its extent {extent}");
            return Err(Diagnostic::new(Code::K0308, message).label("negative indices count from the end"));
        }
        if self.step == 0 {
            let message = format!("slice {self} of axis {axis} never moves on");
            return Err(Diagnostic::new(Code::K0308, message).label("a step is not 0"));
        }
        let length = (end - start).max(0) as usize;
        let size = length.div_ceil(self.step.unsigned_abs() as usize);
        let first = if self.step > 0 || length == 0 { start as usize } else { end as usize - 1 };
        // An empty part may begin at the end; the IR wants an index all the same.
        Ok((if size == 0 { 0 } else { first }, size, if size == 0 { 1 } else { self.step }))
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let equals = if self.last == Last::Included { "=" } else { "" };
        let end = self.end.map(|end| end.to_string()).unwrap_or_default();
        write!(f, "{}..{equals}{end}", self.start)?;
        if self.step == 1 { Ok(()) } else { write!(f, " by {}", self.step) }
    }
}

impl From<RangeFull> for Part {
    fn from(_: RangeFull) -> Part {
        Part::new(0, None, Last::Excluded)
    }
}

macro_rules! ranges {
    ($($integer:ty)*) => {$(
        impl From<Range<$integer>> for Part {
            fn from(range: Range<$integer>) -> Part {
                Part::new(range.start as isize, Some(range.end as isize), Last::Excluded)
            }
        }

        impl From<RangeInclusive<$integer>> for Part {
            fn from(range: RangeInclusive<$integer>) -> Part {
                Part::new(*range.start() as isize, Some(*range.end() as isize), Last::Included)
            }
        }

        impl From<RangeFrom<$integer>> for Part {
            fn from(range: RangeFrom<$integer>) -> Part {
                Part::new(range.start as isize, None, Last::Excluded)
            }
        }

        impl From<RangeTo<$integer>> for Part {
            fn from(range: RangeTo<$integer>) -> Part {
                Part::new(0, Some(range.end as isize), Last::Excluded)
            }
        }

        impl From<RangeToInclusive<$integer>> for Part {
            fn from(range: RangeToInclusive<$integer>) -> Part {
                Part::new(0, Some(range.end as isize), Last::Included)
            }
        }
    )*};
}

ranges! { i32 isize usize }

/// Parts of the leading axes: a tuple, an array or a slice of ranges.
pub trait Parts {
    /// One part for each leading axis.
    fn parts(self) -> Vec<Part>;
}

impl<const N: usize> Parts for [Part; N] {
    fn parts(self) -> Vec<Part> {
        self.to_vec()
    }
}

impl Parts for &[Part] {
    fn parts(self) -> Vec<Part> {
        self.to_vec()
    }
}

macro_rules! tuples {
    ($(($($part:ident)+))*) => {$(
        impl<$($part: Into<Part>),+> Parts for ($($part,)+) {
            fn parts(self) -> Vec<Part> {
                #[allow(non_snake_case)]
                let ($($part,)+) = self;
                vec![$($part.into()),+]
            }
        }
    )*};
}

tuples! { (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) }

fn slice_op(parts: &[(usize, Part)], shape: &Shape) -> Result<Op, Diagnostic> {
    let mut starts: SmallVec<[usize; 4]> = SmallVec::from_elem(0, shape.rank());
    let mut steps: SmallVec<[i64; 4]> = SmallVec::from_elem(1, shape.rank());
    let mut sizes = shape.clone();
    for &(axis, part) in parts {
        let (start, size, step) = part.resolve(shape[axis], axis)?;
        (starts[axis], steps[axis]) = (start, step);
        sizes = sizes.with_extent(axis, size);
    }
    Ok(Op::Slice { starts, sizes, steps })
}

fn whole() -> Op {
    Op::Slice { starts: SmallVec::new(), sizes: Shape::scalar(), steps: SmallVec::new() }
}

impl Tensor {
    /// Part of one axis: `x.slice(1, 2..5)`, `x.slice(0, -3..)`, `x.slice(-1, Part::from(..).by(2))`. K0308 where it leaves the axis.
    #[track_caller]
    pub fn slice(&self, axis: isize, part: impl Into<Part>) -> Tensor {
        let part = part.into();
        record(&[self], |state, values, loc| {
            let shape = state.builder.ty(values[0]).shape.clone();
            let op = normalize_axis(axis, shape.rank()).and_then(|axis| slice_op(&[(axis, part)], &shape));
            let op = op.map_err(|diagnostic| state.builder.explain(diagnostic, &whole(), values, loc))?;
            state.builder.value(op, values, loc)
        })
    }

    /// Parts of the leading axes at once: `x.slices((1..3, .., ..-1))`.
    #[track_caller]
    pub fn slices(&self, parts: impl Parts) -> Tensor {
        let parts = parts.parts();
        record_as("slices", &[self], |state, values, loc| {
            let shape = state.builder.ty(values[0]).shape.clone();
            let placed: Vec<(usize, Part)> = parts.iter().copied().enumerate().collect();
            let op = if parts.len() > shape.rank() {
                let message = format!("expected at most {} ranges, got {}", shape.rank(), parts.len());
                Err(Diagnostic::new(Code::K0309, message).label("one range for each leading axis"))
            } else {
                slice_op(&placed, &shape)
            };
            let op = op.map_err(|diagnostic| state.builder.explain(diagnostic, &whole(), values, loc))?;
            state.builder.value(op, values, loc)
        })
    }

    /// `length` elements of an axis from `start` on.
    #[track_caller]
    pub fn narrow(&self, axis: isize, start: usize, length: usize) -> Tensor {
        self.slice(axis, start..start.saturating_add(length))
    }

    /// One index of an axis, which is dropped; negative indices count from the end. K0311 where it is out of range.
    #[track_caller]
    pub fn at(&self, axis: isize, index: isize) -> Tensor {
        record_as("at", &[self], |state, values, loc| {
            let shape = state.builder.ty(values[0]).shape.clone();
            let explain = |state: &crate::session::State, d| state.builder.explain(d, &whole(), values, loc);
            let axis = normalize_axis(axis, shape.rank()).map_err(|d| explain(state, d))?;
            let extent = shape[axis];
            let start = if index < 0 { index + extent as isize } else { index };
            if !(0..extent as isize).contains(&start) {
                let message = format!("index {index} is out of range for axis {axis} of extent {extent}");
                return Err(explain(state, Diagnostic::new(Code::K0311, message)));
            }
            let part = Part::from(start..start + 1);
            let op = slice_op(&[(axis, part)], &shape).map_err(|d| explain(state, d))?;
            let one = state.builder.value(op, values, loc)?;
            state.builder.reshape(one, &super::reduce::dropped(&shape, &kiln_ir::Axes::one(axis)), loc)
        })
    }

    /// The tensor surrounded by a number: so many elements before and after, for each axis.
    #[track_caller]
    pub fn pad(&self, widths: &[(usize, usize)], value: impl Into<Scalar>) -> Tensor {
        let value = value.into();
        record(&[self], |state, values, loc| {
            let ty = state.builder.ty(values[0]).clone();
            let low: SmallVec<[usize; 4]> = widths.iter().map(|&(low, _)| low).collect();
            let high: SmallVec<[usize; 4]> = widths.iter().map(|&(_, high)| high).collect();
            let op = |value: Literal| Op::Pad { low, high, value };
            match value.literal(ty.dtype) {
                Ok(value) => state.builder.value(op(value), values, loc),
                Err(diagnostic) => Err(state.builder.explain(diagnostic, &op(Literal::zero(ty.dtype)), values, loc)),
            }
        })
    }

    /// The tensor cut along an axis into pieces of `size`; the last one may be smaller. No pieces where the axis is empty.
    #[track_caller]
    pub fn chunks(&self, axis: isize, size: usize) -> Vec<Tensor> {
        let poison = |diagnostic: Diagnostic| {
            vec![record_as("chunks", &[self], |state, values, loc| {
                Err(state.builder.explain(diagnostic, &whole(), values, loc))
            })]
        };
        if size == 0 {
            return poison(Diagnostic::new(Code::K0312, "cannot cut into pieces of 0 elements"));
        }
        match normalize_axis(axis, self.rank()) {
            Err(diagnostic) => poison(diagnostic),
            Ok(index) => {
                let extent = self.shape()[index];
                let starts = (0..extent).step_by(size);
                starts.map(|start| self.slice(axis, start..extent.min(start + size))).collect()
            }
        }
    }

    /// The tensor cut along an axis into `N` equal pieces. K0312 where they would not be equal.
    #[track_caller]
    pub fn split<const N: usize>(&self, axis: isize) -> [Tensor; N] {
        if self.is_poisoned() {
            return std::array::from_fn(|_| self.clone());
        }
        let extent = match normalize_axis(axis, self.rank()) {
            Ok(index) => self.shape()[index],
            Err(diagnostic) => return self.split_mistake(diagnostic),
        };
        if N == 0 || extent % N != 0 {
            let message = format!("an axis of {extent} elements does not split into {N} equal pieces");
            let help = "`.chunks(axis, size)` allows a smaller last piece";
            return self.split_mistake(Diagnostic::new(Code::K0312, message).help(help));
        }
        let size = extent / N;
        let mut pieces = Vec::with_capacity(N);
        for piece in 0..N {
            pieces.push(self.slice(axis, piece * size..(piece + 1) * size));
        }
        pieces.try_into().expect("N pieces were cut")
    }

    #[track_caller]
    fn split_mistake<const N: usize>(&self, diagnostic: Diagnostic) -> [Tensor; N] {
        let poison = record_as("split", &[self], |state, values, loc| {
            Err(state.builder.explain(diagnostic, &whole(), values, loc))
        });
        std::array::from_fn(|_| poison.clone())
    }
}
