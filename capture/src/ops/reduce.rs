//! Reductions and scans.
//!
//! A reduction over `axes` drops them; its `_keepdim` form keeps them with extent 1; its `_all` form reduces to a scalar (as `..` does).

use kiln_ir::{
    Axes, Code, Diagnostic, Direction, GraphBuilder, Kind, Loc, Op, ReduceKind, ScanKind, Shape, Value, normalize_axis,
};

use super::IntoAxes;
use crate::Tensor;
use crate::session::record_as;

/// Whether reduced axes stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// They are gone.
    Drop,
    /// They stay, with extent 1.
    Keep,
}

/// Adds a reduction.
fn reduce(
    builder: &mut GraphBuilder,
    kind: ReduceKind,
    axes: Axes,
    keep: Keep,
    x: Value,
    loc: Loc,
) -> Result<Value, Diagnostic> {
    let kept = builder.reduce(kind, axes.clone(), x, loc)?;
    match keep {
        Keep::Keep => Ok(kept),
        Keep::Drop => {
            let shape = dropped(&builder.ty(kept).shape, &axes);
            builder.reshape(kept, &shape, loc)
        }
    }
}

/// A shape without some of its axes.
pub(crate) fn dropped(shape: &Shape, axes: &Axes) -> Shape {
    shape.iter().enumerate().filter(|(axis, _)| !axes.contains(axis)).map(|(_, &extent)| extent).collect()
}

impl Tensor {
    #[track_caller]
    pub(crate) fn reduce(&self, kind: ReduceKind, axes: impl IntoAxes, keep: Keep) -> Tensor {
        record_as(kind.name(), &[self], |state, values, loc| {
            let op = |axes: Axes| Op::Reduce { kind, axes };
            let axes = axes.axes(state.builder.ty(values[0]).shape.rank());
            let axes =
                axes.map_err(|diagnostic| state.builder.explain(diagnostic, &op(Axes::default()), values, loc))?;
            reduce(&mut state.builder, kind, axes, keep, values[0], loc)
        })
    }

    #[track_caller]
    fn reduce_bool(&self, kind: ReduceKind, name: &str, axes: impl IntoAxes, keep: Keep) -> Tensor {
        if !self.is_poisoned() && self.dtype().kind() != Kind::Bool {
            return record_as(name, &[self], |state, values, _| {
                let diagnostic = Diagnostic::new(Code::K0403, format!("Should be bool, got {}", self.dtype().kind()))
                    .label(format!("`{name}` takes a bool tensor, this one is {}", self.dtype()))
                    .help("compare it first: `.ne(0)`");
                Err(state.builder.note(diagnostic, "input", values[0]))
            });
        }
        self.reduce(kind, axes, keep)
    }

    #[track_caller]
    fn scan(&self, kind: ScanKind, axis: isize, direction: Direction) -> Tensor {
        record_as(&format!("cum{}", kind.name()), &[self], |state, values, loc| {
            let axis = normalize_axis(axis, state.builder.ty(values[0]).shape.rank());
            let op = |axis| Op::Scan { kind, axis, direction };
            let axis = axis.map_err(|diagnostic| state.builder.explain(diagnostic, &op(0), values, loc))?;
            state.builder.value(op(axis), values, loc)
        })
    }
}

macro_rules! reductions {
    ($($method:ident $keepdim:ident $all:ident $kind:ident $doc:literal;)*) => {
        impl Tensor {$(
            #[doc = concat!($doc, " over axes (`1`, `[0, -1]`, `..`), which are dropped.")]
            #[track_caller]
            pub fn $method(&self, axes: impl IntoAxes) -> Tensor {
                self.reduce(ReduceKind::$kind, axes, Keep::Drop)
            }

            #[doc = concat!($doc, " over axes, which stay with extent 1.")]
            #[track_caller]
            pub fn $keepdim(&self, axes: impl IntoAxes) -> Tensor {
                self.reduce(ReduceKind::$kind, axes, Keep::Keep)
            }

            #[doc = concat!($doc, " over everything.")]
            #[track_caller]
            pub fn $all(&self) -> Tensor {
                self.reduce(ReduceKind::$kind, .., Keep::Drop)
            }
        )*}
    };
}

reductions! {
    sum sum_keepdim sum_all Sum "The sum, 0 over nothing,";
    prod prod_keepdim prod_all Prod "The product, 1 over nothing,";
    max max_keepdim max_all Max "The largest element, NaN if any is,";
    min min_keepdim min_all Min "The smallest element, NaN if any is,";
}

impl Tensor {
    /// `i32` index of the largest element along an axis, which is dropped: the first NaN, else the first of equals.
    #[track_caller]
    pub fn argmax(&self, axis: isize) -> Tensor {
        self.reduce(ReduceKind::ArgMax, axis, Keep::Drop)
    }

    /// [`Tensor::argmax`] that keeps the axis with extent 1.
    #[track_caller]
    pub fn argmax_keepdim(&self, axis: isize) -> Tensor {
        self.reduce(ReduceKind::ArgMax, axis, Keep::Keep)
    }

    /// `i32` index of the smallest element along an axis, which is dropped: the first NaN, else the first of equals.
    #[track_caller]
    pub fn argmin(&self, axis: isize) -> Tensor {
        self.reduce(ReduceKind::ArgMin, axis, Keep::Drop)
    }

    /// [`Tensor::argmin`] that keeps the axis with extent 1.
    #[track_caller]
    pub fn argmin_keepdim(&self, axis: isize) -> Tensor {
        self.reduce(ReduceKind::ArgMin, axis, Keep::Keep)
    }

    /// Whether any of a bool tensor's elements along the axes is true; false over nothing.
    #[track_caller]
    pub fn any(&self, axes: impl IntoAxes) -> Tensor {
        self.reduce_bool(ReduceKind::Max, "any", axes, Keep::Drop)
    }

    /// [`Tensor::any`] that keeps the axes with extent 1.
    #[track_caller]
    pub fn any_keepdim(&self, axes: impl IntoAxes) -> Tensor {
        self.reduce_bool(ReduceKind::Max, "any", axes, Keep::Keep)
    }

    /// Whether all of a bool tensor's elements along the axes are true; true over nothing.
    #[track_caller]
    pub fn all(&self, axes: impl IntoAxes) -> Tensor {
        self.reduce_bool(ReduceKind::Min, "all", axes, Keep::Drop)
    }

    /// [`Tensor::all`] that keeps the axes with extent 1.
    #[track_caller]
    pub fn all_keepdim(&self, axes: impl IntoAxes) -> Tensor {
        self.reduce_bool(ReduceKind::Min, "all", axes, Keep::Keep)
    }
}

macro_rules! scans {
    ($($method:ident $reverse:ident $kind:ident $doc:literal;)*) => {
        impl Tensor {$(
            #[doc = concat!("The running ", $doc, " along an axis, each element included.")]
            #[track_caller]
            pub fn $method(&self, axis: isize) -> Tensor {
                self.scan(ScanKind::$kind, axis, Direction::Forward)
            }

            #[doc = concat!("The running ", $doc, " along an axis from its end, each element included.")]
            #[track_caller]
            pub fn $reverse(&self, axis: isize) -> Tensor {
                self.scan(ScanKind::$kind, axis, Direction::Reverse)
            }
        )*}
    };
}

scans! {
    cumsum cumsum_reverse Sum "sum";
    cumprod cumprod_reverse Prod "product";
    cummax cummax_reverse Max "maximum";
    cummin cummin_reverse Min "minimum";
}
