//! Views: the same elements in another arrangement.

use kiln_ir::{Code, Diagnostic, GraphBuilder, Loc, Op, Shape, Value, normalize_axis};
use smallvec::SmallVec;

use super::IntoAxes;
use crate::Tensor;
use crate::session::{record, record_as};

/// A shape as a user gives it to [`Tensor::reshape`] and [`Tensor::expand`]: extents, of which `-1` means "what is left".
pub trait IntoExtents {
    /// The extents as given.
    fn extents(&self) -> SmallVec<[isize; 4]>;
}

macro_rules! extents {
    ($($integer:ty)*) => {$(
        impl IntoExtents for &[$integer] {
            fn extents(&self) -> SmallVec<[isize; 4]> {
                // An extent beyond isize is more than any tensor has, and stays so.
                self.iter().map(|&extent| isize::try_from(extent).unwrap_or(isize::MAX)).collect()
            }
        }

        impl<const N: usize> IntoExtents for [$integer; N] {
            fn extents(&self) -> SmallVec<[isize; 4]> {
                self.as_slice().extents()
            }
        }

        impl IntoExtents for Vec<$integer> {
            fn extents(&self) -> SmallVec<[isize; 4]> {
                self.as_slice().extents()
            }
        }
    )*};
}

extents! { i32 isize usize i64 }

impl IntoExtents for Shape {
    fn extents(&self) -> SmallVec<[isize; 4]> {
        (&**self).extents()
    }
}

impl IntoExtents for &Shape {
    fn extents(&self) -> SmallVec<[isize; 4]> {
        (&***self).extents()
    }
}

/// Normalises axes with the op and the operand named in the error.
fn normalized(
    builder: &GraphBuilder,
    op: Op,
    axes: &[isize],
    rank: usize,
    operand: Value,
    loc: Loc,
) -> Result<SmallVec<[usize; 4]>, Diagnostic> {
    let axes: Result<_, Diagnostic> = axes.iter().map(|&axis| normalize_axis(axis, rank)).collect();
    axes.map_err(|diagnostic| builder.explain(diagnostic, &op, &[operand], loc))
}

impl Tensor {
    /// The same elements in row-major order under another shape. One extent may be -1: it takes what is left.
    ///
    /// ```
    /// # use kiln_capture::CaptureDevice; use kiln_ir::{Backend, DType};
    /// # CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
    /// let x = scope.input("x", DType::F32, [2, 3, 4]);
    /// assert_eq!(x.reshape([-1, 4]).shape()[..], [6, 4]);
    /// # })?; Ok::<(), kiln_ir::Diagnostics>(())
    /// ```
    #[track_caller]
    pub fn reshape(&self, shape: impl IntoExtents) -> Tensor {
        let extents = shape.extents();
        record(&[self], |state, values, loc| {
            let builder = &mut state.builder;
            let shape = resolve(&builder.ty(values[0]).shape, &extents);
            let shape =
                shape.map_err(|diagnostic| builder.explain(diagnostic, &Op::Reshape(Shape::scalar()), values, loc))?;
            builder.reshape(values[0], &shape, loc)
        })
    }

    /// The axes in another order: result axis `i` is this tensor's axis `axes[i]`.
    #[track_caller]
    pub fn permute<const N: usize>(&self, axes: [isize; N]) -> Tensor {
        self.permute_slice(&axes)
    }

    #[track_caller]
    pub(crate) fn permute_slice(&self, axes: &[isize]) -> Tensor {
        record(&[self], |state, values, loc| {
            let rank = state.builder.ty(values[0]).shape.rank();
            let op = Op::Permute(SmallVec::new());
            let permutation = normalized(&state.builder, op, axes, rank, values[0], loc)?;
            state.builder.permute(values[0], &permutation, loc)
        })
    }

    /// The last two axes exchanged: the transpose of a matrix, or of each matrix of a batch.
    #[track_caller]
    pub fn transpose(&self) -> Tensor {
        self.swap_axes(-2, -1)
    }

    /// Two axes exchanged.
    #[track_caller]
    pub fn swap_axes(&self, a: isize, b: isize) -> Tensor {
        record_as("swap_axes", &[self], |state, values, loc| {
            let rank = state.builder.ty(values[0]).shape.rank();
            let swapped = normalized(&state.builder, Op::Permute(SmallVec::new()), &[a, b], rank, values[0], loc)?;
            let mut permutation: SmallVec<[usize; 4]> = (0..rank).collect();
            permutation.swap(swapped[0], swapped[1]);
            state.builder.permute(values[0], &permutation, loc)
        })
    }

    /// One axis moved to another place; the others keep their order.
    #[track_caller]
    pub fn move_axis(&self, from: isize, to: isize) -> Tensor {
        record_as("move_axis", &[self], |state, values, loc| {
            let rank = state.builder.ty(values[0]).shape.rank();
            let ends = normalized(&state.builder, Op::Permute(SmallVec::new()), &[from, to], rank, values[0], loc)?;
            let mut permutation: SmallVec<[usize; 4]> = (0..rank).filter(|&axis| axis != ends[0]).collect();
            permutation.insert(ends[1], ends[0]);
            state.builder.permute(values[0], &permutation, loc)
        })
    }

    /// All elements along one axis.
    #[track_caller]
    pub fn flatten(&self) -> Tensor {
        self.reshape([-1])
    }

    /// Axes `first..=last` made one.
    #[track_caller]
    pub fn flatten_axes(&self, first: isize, last: isize) -> Tensor {
        record_as("flatten_axes", &[self], |state, values, loc| {
            let shape = state.builder.ty(values[0]).shape.clone();
            let op = Op::Reshape(Shape::scalar());
            let ends = normalized(&state.builder, op.clone(), &[first, last], shape.rank(), values[0], loc)?;
            if ends[0] > ends[1] {
                let message = format!("axes {first} to {last} of {shape} are no range");
                let diagnostic = Diagnostic::new(Code::K0304, message).help("name the outer axis first");
                return Err(state.builder.explain(diagnostic, &op, values, loc));
            }
            let joined = shape[ends[0]..=ends[1]].iter().product();
            let flat: Shape = shape[..ends[0]].iter().chain([&joined]).chain(&shape[ends[1] + 1..]).copied().collect();
            state.builder.reshape(values[0], &flat, loc)
        })
    }

    /// Axes of extent 1 removed. K0303 where one has another extent.
    #[track_caller]
    pub fn squeeze(&self, axes: impl IntoAxes) -> Tensor {
        record_as("squeeze", &[self], |state, values, loc| {
            let shape = state.builder.ty(values[0]).shape.clone();
            let explain = |state: &crate::session::State, diagnostic| {
                state.builder.explain(diagnostic, &Op::Reshape(Shape::scalar()), values, loc)
            };
            let axes = axes.axes(shape.rank()).map_err(|diagnostic| explain(state, diagnostic))?;
            if let Some(&wide) = axes.iter().find(|&&axis| shape[axis] != 1) {
                let message = format!("cannot squeeze axis {wide} of {shape}: its extent is {}", shape[wide]);
                let diagnostic = Diagnostic::new(Code::K0303, message).label("only axes of extent 1 can go");
                return Err(explain(state, diagnostic.help("reduce it, or take one index with `.at(axis, index)`")));
            }
            state.builder.reshape(values[0], &super::reduce::dropped(&shape, &axes), loc)
        })
    }

    /// A new axis of extent 1, at this place of the result (-1: last).
    #[track_caller]
    pub fn unsqueeze(&self, axis: isize) -> Tensor {
        record_as("unsqueeze", &[self], |state, values, loc| {
            let shape = state.builder.ty(values[0]).shape.clone();
            let op = Op::Reshape(Shape::scalar());
            let axis = normalized(&state.builder, op, &[axis], shape.rank() + 1, values[0], loc)?[0];
            let wider: Shape = shape[..axis].iter().chain([&1]).chain(&shape[axis..]).copied().collect();
            state.builder.reshape(values[0], &wider, loc)
        })
    }

    /// Broadcast to a shape by the numpy rule: axes aligned at the end, each extent equal or 1.
    #[track_caller]
    pub fn broadcast_to(&self, shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        record_as("broadcast_to", &[self], |state, values, loc| state.builder.broadcast(values[0], &shape, loc))
    }

    /// [`Tensor::broadcast_to`] in which -1 keeps an axis as it is.
    #[track_caller]
    pub fn expand(&self, shape: impl IntoExtents) -> Tensor {
        let extents = shape.extents();
        record_as("expand", &[self], |state, values, loc| {
            let from = state.builder.ty(values[0]).shape.clone();
            let missing = extents.len().saturating_sub(from.rank());
            let shape: Option<Shape> = extents
                .iter()
                .enumerate()
                .map(|(axis, &extent)| match usize::try_from(extent) {
                    Ok(extent) => Some(extent),
                    Err(_) if extent == -1 && axis >= missing => from.get(axis - missing).copied(),
                    Err(_) => None,
                })
                .collect();
            match shape {
                Some(shape) => state.builder.broadcast(values[0], &shape, loc),
                None => {
                    let message = format!("{from} does not expand to {extents:?}");
                    let diagnostic = Diagnostic::new(Code::K0302, message)
                        .label("extents are not negative, but for -1 at an axis that the tensor has");
                    Err(state.builder.explain(diagnostic, &Op::Broadcast(Shape::scalar()), values, loc))
                }
            }
        })
    }

    /// The elements along an axis in reverse order.
    #[track_caller]
    pub fn flip(&self, axes: impl IntoAxes) -> Tensor {
        record_as("flip", &[self], |state, values, loc| {
            let shape = state.builder.ty(values[0]).shape.clone();
            let axes = axes.axes(shape.rank()).map_err(|diagnostic| {
                let op = Op::Slice { starts: SmallVec::new(), sizes: Shape::scalar(), steps: SmallVec::new() };
                state.builder.explain(diagnostic, &op, values, loc)
            })?;
            let flipped = |axis: usize| axes.contains(&axis) && shape[axis] > 0;
            let op = Op::Slice {
                starts: (0..shape.rank()).map(|axis| if flipped(axis) { shape[axis] - 1 } else { 0 }).collect(),
                steps: (0..shape.rank()).map(|axis| if flipped(axis) { -1 } else { 1 }).collect(),
                sizes: shape.clone(),
            };
            state.builder.value(op, values, loc)
        })
    }

    /// The tensor `times` over along an axis.
    #[track_caller]
    pub fn repeat(&self, axis: isize, times: usize) -> Tensor {
        record_as("repeat", &[self], |state, values, loc| {
            let shape = state.builder.ty(values[0]).shape.clone();
            let op = Op::Broadcast(Shape::scalar());
            let axis = normalized(&state.builder, op.clone(), &[axis], shape.rank(), values[0], loc)?[0];
            let Some(extent) = shape[axis].checked_mul(times) else {
                let message = format!("axis {axis} of {shape}, {times} times over, is too large to address");
                return Err(state.builder.explain(Diagnostic::new(Code::K0310, message), &op, values, loc));
            };
            let lead = &shape[..axis];
            let with = |extent: usize| -> Shape {
                lead.iter().copied().chain([extent]).chain(shape[axis..].iter().copied()).collect()
            };
            let single = state.builder.reshape(values[0], &with(1), loc)?;
            let many = state.builder.broadcast(single, &with(times), loc)?;
            state.builder.reshape(many, &shape.with_extent(axis, extent), loc)
        })
    }
}

/// The shape meant by extents of which one may be -1.
fn resolve(from: &Shape, extents: &[isize]) -> Result<Shape, Diagnostic> {
    let text = || format!("cannot reshape {from} ({} elements) to {extents:?}", from.num_elements());
    let open = extents.iter().filter(|&&extent| extent == -1).count();
    if open > 1 || extents.iter().any(|&extent| extent < -1) {
        return Err(Diagnostic::new(Code::K0303, text()).label("one extent may be -1, no other negative"));
    }
    let known: Option<usize> =
        extents.iter().filter(|&&extent| extent != -1).try_fold(1usize, |product, &e| product.checked_mul(e as usize));
    let rest = match known {
        Some(known) if known > 0 && from.num_elements().is_multiple_of(known) => from.num_elements() / known,
        _ if open == 0 => 0,
        Some(0) => {
            return Err(Diagnostic::new(Code::K0303, text()).label("-1 beside an extent of 0 could be anything"));
        }
        _ => {
            let label = format!(
                "{} elements do not divide by {}",
                from.num_elements(),
                known.map_or_else(|| "that many".to_owned(), |n| n.to_string())
            );
            return Err(Diagnostic::new(Code::K0303, text()).label(label));
        }
    };
    Ok(extents.iter().map(|&extent| if extent == -1 { rest } else { extent as usize }).collect())
}
