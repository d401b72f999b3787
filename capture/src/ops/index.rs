//! Reading and writing by index.
//!
//! Two families. *Take* reads whole slices by a list of indices (`index_*` writes them); *take_along* reads one element for each index of a
//! tensor of the same rank (`scatter_*` writes them). Indices known at capture are checked (K0311), and negative ones count from the
//! end. Indices of run time are clamped when read and dropped when written if they are out of range; negative ones are out of range.

use kiln_ir::{
    Code, Diagnostic, GraphBuilder, HostData, Literal, Loc, Op, ScatterKind, Shape, Value, infer, normalize_axis,
};
use smallvec::SmallVec;

use crate::Tensor;
use crate::data::data_of;
use crate::operand::{Operand, join, literal};
use crate::session::{record, record_as};

/// Indices ready for use: constants checked against the extent, negative ones counted from the end.
fn checked(
    builder: &mut GraphBuilder,
    indices: Value,
    extent: usize,
    of: impl FnOnce() -> String,
    loc: Loc,
) -> Result<Value, Diagnostic> {
    let Some(data) = data_of(&builder.node(indices).op) else { return Ok(indices) };
    if !data.dtype().is_int() {
        return Ok(indices);
    }
    let outside = |index: &i128| !(-(extent as i128)..extent as i128).contains(index);
    if let Some((place, index)) = data.elements().map(Literal::to_i128).enumerate().find(|(_, index)| outside(index)) {
        let message = format!("index {index} is out of range for {}", of());
        return Err(Diagnostic::new(Code::K0311, message)
            .label(format!("element {place} of the indices"))
            .help(format!("indices run from -{extent} to {}", extent as i128 - 1)));
    }
    if data.elements().all(|index| index.to_i128() >= 0) {
        return Ok(indices);
    }
    let counted = |index: Literal| match index.to_i128() {
        index if index < 0 => index + extent as i128,
        index => index,
    };
    let elements: Vec<Literal> =
        data.elements().map(|index| Literal::from_i128(data.dtype(), counted(index))).collect();
    let backend = builder.ty(indices).backend;
    let data = HostData::from_literals(data.dtype(), data.shape().clone(), &elements).expect("as many elements");
    builder.constant(data, backend, loc)
}

/// [`checked`] indices along an axis of the first operand.
fn along(
    builder: &mut GraphBuilder,
    op: &Op,
    values: &[Value],
    extent: usize,
    axis: usize,
    loc: Loc,
) -> Result<Value, Diagnostic> {
    checked(builder, values[1], extent, || format!("axis {axis} of extent {extent}"), loc)
        .map_err(|diagnostic| builder.explain(diagnostic, op, values, loc))
}

/// The axis an index op works on.
fn indexed_axis(
    builder: &GraphBuilder,
    op: &Op,
    values: &[Value],
    axis: isize,
    loc: Loc,
) -> Result<(usize, usize), Diagnostic> {
    let shape = &builder.ty(values[0]).shape;
    let axis = normalize_axis(axis, shape.rank()).map_err(|diagnostic| builder.explain(diagnostic, op, values, loc))?;
    Ok((axis, shape[axis]))
}

/// The order of axes that puts `axis` last, and the one that undoes it.
fn last(axis: usize, rank: usize) -> (SmallVec<[usize; 4]>, SmallVec<[usize; 4]>) {
    let there: SmallVec<[usize; 4]> = (0..rank).filter(|&other| other != axis).chain([axis]).collect();
    let mut back: SmallVec<[usize; 4]> = SmallVec::from_elem(0, rank);
    for (place, &from) in there.iter().enumerate() {
        back[from] = place;
    }
    (there, back)
}

/// Shapes of tensor and indices with all axes but the indexed one broadcast together. K0312 where they do not.
fn aligned(
    builder: &GraphBuilder,
    op: &Op,
    values: &[Value],
    axis: usize,
    loc: Loc,
) -> Result<(Shape, Shape), Diagnostic> {
    let (x, indices) = (&builder.ty(values[0]).shape, &builder.ty(values[1]).shape);
    let fits = (x.rank() == indices.rank()).then(|| join(&x.with_extent(axis, 1), &indices.with_extent(axis, 1)));
    match fits.flatten() {
        Some(shape) => Ok((shape.with_extent(axis, x[axis]), shape.with_extent(axis, indices[axis]))),
        None => {
            let message = format!("indices {indices} do not go along axis {axis} of {x}");
            let diagnostic = Diagnostic::new(Code::K0312, message)
                .label("indices have the tensor's rank, and its extents (or 1) but along the axis")
                .help("`.take(axis, &indices)` takes whole slices by indices of any shape");
            Err(builder.explain(diagnostic, op, values, loc))
        }
    }
}

/// The typing rule's word on dtypes and backends, of the operands as the user gave them.
fn typed(builder: &GraphBuilder, op: &Op, values: &[Value], loc: Loc) -> Result<(), Diagnostic> {
    let alike = |value: Value| builder.ty(value).with_shape([1]);
    let types: SmallVec<[_; 3]> = values.iter().map(|&value| alike(value)).collect();
    let types: SmallVec<[_; 3]> = types.iter().collect();
    infer(op, &types).map(|_| ()).map_err(|diagnostic| builder.explain(diagnostic, op, values, loc))
}

impl Tensor {
    /// Class indices below a number, checked if they are known; K0404 where they are no integers.
    #[track_caller]
    pub(crate) fn known_indices(&self, classes: usize) -> Tensor {
        record(&[self], |state, values, loc| {
            let builder = &mut state.builder;
            let dtype = builder.ty(values[0]).dtype;
            if !dtype.is_int() {
                let diagnostic = Diagnostic::new(Code::K0404, format!("Should be int, got {}", dtype.kind()))
                    .label("class indices are integers")
                    .help("cast them with `.cast(DType::I32)`");
                return Err(builder.note(diagnostic, "indices", values[0]));
            }
            checked(builder, values[0], classes, || format!("{classes} classes"), loc)
                .map_err(|diagnostic| builder.note(diagnostic, "indices", values[0]))
        })
    }

    /// Slices of this tensor along an axis, by indices of any shape: the result has the indices' axes in the place of `axis`.
    ///
    /// ```
    /// # use kiln_capture::CaptureDevice; use kiln_ir::{Backend, DType};
    /// # CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
    /// let table = scope.input("table", DType::F32, [1000, 64]);
    /// let words = scope.input("words", DType::I32, [8, 20]);
    /// assert_eq!(table.take(0, &words).shape()[..], [8, 20, 64]);
    /// # })?; Ok::<(), kiln_ir::Diagnostics>(())
    /// ```
    #[track_caller]
    pub fn take(&self, axis: isize, indices: &Tensor) -> Tensor {
        record_as("take", &[self, indices], |state, values, loc| {
            let builder = &mut state.builder;
            let plain = Op::Gather { axis: 0, batch: 0 };
            typed(builder, &plain, values, loc)?;
            let (axis, extent) = indexed_axis(builder, &plain, values, axis, loc)?;
            let op = Op::Gather { axis, batch: 0 };
            let indices = along(builder, &op, values, extent, axis, loc)?;
            builder.value(op, &[values[0], indices], loc)
        })
    }

    /// [`Tensor::take`] by a list of indices.
    #[track_caller]
    pub fn index_select(&self, axis: isize, indices: &Tensor) -> Tensor {
        self.take(axis, indices)
    }

    /// One element for each index: `result[i][j] = self[i][indices[i][j]]` along axis 1. Indices have this tensor's rank; their other
    /// axes broadcast with this tensor's.
    #[track_caller]
    pub fn take_along(&self, axis: isize, indices: &Tensor) -> Tensor {
        record_as("take_along", &[self, indices], |state, values, loc| {
            let builder = &mut state.builder;
            let plain = Op::Gather { axis: 0, batch: 0 };
            typed(builder, &plain, values, loc)?;
            let (axis, extent) = indexed_axis(builder, &plain, values, axis, loc)?;
            let (x_shape, indices_shape) = aligned(builder, &plain, values, axis, loc)?;
            let indices = along(builder, &plain, values, extent, axis, loc)?;
            let (there, back) = last(axis, x_shape.rank());
            let batch = x_shape.rank() - 1;
            let x = builder.broadcast(values[0], &x_shape, loc)?;
            let x = builder.permute(x, &there, loc)?;
            let indices = builder.broadcast(indices, &indices_shape, loc)?;
            let indices = builder.permute(indices, &there, loc)?;
            let taken = builder.value(Op::Gather { axis: batch, batch }, &[x, indices], loc)?;
            builder.permute(taken, &back, loc)
        })
    }

    /// [`Tensor::take_along`] by the field's other name.
    #[track_caller]
    pub fn gather(&self, axis: isize, indices: &Tensor) -> Tensor {
        self.take_along(axis, indices)
    }

    #[track_caller]
    fn write_slices(&self, name: &str, kind: ScatterKind, axis: isize, indices: &Tensor, updates: Operand) -> Tensor {
        self.write(name, indices, updates, |builder, values, updates, loc| {
            let plain = Op::Scatter { kind, axis: 0, batch: 0 };
            let (axis, extent) = indexed_axis(builder, &plain, values, axis, loc)?;
            let op = Op::Scatter { kind, axis, batch: 0 };
            let (x, i) = (&builder.ty(values[0]).shape, &builder.ty(values[1]).shape);
            let wanted: Shape = x[..axis].iter().chain(&i[..]).chain(&x[axis + 1..]).copied().collect();
            let indices = along(builder, &op, values, extent, axis, loc)?;
            let updates = stretched(builder, &op, values, updates, &wanted, loc)?;
            builder.value(op, &[values[0], indices, updates], loc)
        })
    }

    #[track_caller]
    fn write_elements(&self, name: &str, kind: ScatterKind, axis: isize, indices: &Tensor, updates: Operand) -> Tensor {
        self.write(name, indices, updates, |builder, values, updates, loc| {
            let plain = Op::Scatter { kind, axis: 0, batch: 0 };
            let (axis, extent) = indexed_axis(builder, &plain, values, axis, loc)?;
            let (x_shape, indices_shape) = aligned(builder, &plain, values, axis, loc)?;
            if x_shape != builder.ty(values[0]).shape {
                let message = format!("the target {} would have to grow to {x_shape}", builder.ty(values[0]).shape);
                let diagnostic = Diagnostic::new(Code::K0312, message).label("indices go along the axes of the target");
                return Err(builder.explain(diagnostic, &plain, values, loc));
            }
            let indices = along(builder, &plain, values, extent, axis, loc)?;
            let updates = stretched(builder, &plain, values, updates, &indices_shape, loc)?;
            let (there, back) = last(axis, x_shape.rank());
            let batch = x_shape.rank() - 1;
            let x = builder.permute(values[0], &there, loc)?;
            let indices = builder.broadcast(indices, &indices_shape, loc)?;
            let indices = builder.permute(indices, &there, loc)?;
            let updates = builder.permute(updates, &there, loc)?;
            let written = builder.value(Op::Scatter { kind, axis: batch, batch }, &[x, indices, updates], loc)?;
            builder.permute(written, &back, loc)
        })
    }

    /// Records a scatter: `build` gets the user's operands, and the updates as a value of the target's dtype.
    #[track_caller]
    fn write(
        &self,
        name: &str,
        indices: &Tensor,
        updates: Operand,
        build: impl FnOnce(&mut GraphBuilder, &[Value], Value, Loc) -> Result<Value, Diagnostic>,
    ) -> Tensor {
        let tensors: SmallVec<[&Tensor; 3]> = match &updates {
            Operand::Tensor(updates) => SmallVec::from_slice(&[self, indices, updates]),
            Operand::Scalar(_) => SmallVec::from_slice(&[self, indices]),
        };
        record_as(name, &tensors, |state, values, loc| {
            let builder = &mut state.builder;
            let op = Op::Scatter { kind: ScatterKind::Set, axis: 0, batch: 0 };
            let updates = match updates {
                Operand::Tensor(_) => values[2],
                Operand::Scalar(scalar) => {
                    let like = builder.ty(values[0]).clone();
                    literal(builder, scalar, &like, loc)
                        .map_err(|diagnostic| builder.explain(diagnostic, &op, values, loc))?
                }
            };
            typed(builder, &op, &[values[0], values[1], updates], loc)?;
            build(builder, &[values[0], values[1], updates], updates, loc)
        })
    }
}

/// Updates broadcast to the shape of the places they go to. K0312 where they do not fit.
fn stretched(
    builder: &mut GraphBuilder,
    op: &Op,
    values: &[Value],
    updates: Value,
    wanted: &Shape,
    loc: Loc,
) -> Result<Value, Diagnostic> {
    if join(&builder.ty(updates).shape, wanted).as_ref() == Some(wanted) {
        return builder.broadcast(updates, wanted, loc);
    }
    let message = format!("updates have shape {}, the places they go to {wanted}", builder.ty(updates).shape);
    let label = format!("target {}, indices {}", builder.ty(values[0]).shape, builder.ty(values[1]).shape);
    Err(builder.explain(Diagnostic::new(Code::K0312, message).label(label), op, values, loc))
}

macro_rules! writes {
    ($($elements:ident $slices:ident $kind:ident $doc:literal;)*) => {
        impl Tensor {$(
            #[doc = concat!("This tensor with one update for each index of a tensor of its rank ", $doc, ": writes where [`Tensor::take_along`] reads.")]
            #[track_caller]
            pub fn $elements(&self, axis: isize, indices: &Tensor, updates: impl Into<Operand>) -> Tensor {
                self.write_elements(stringify!($elements), ScatterKind::$kind, axis, indices, updates.into())
            }

            #[doc = concat!("This tensor with whole slices along an axis ", $doc, ": writes where [`Tensor::take`] reads.")]
            #[track_caller]
            pub fn $slices(&self, axis: isize, indices: &Tensor, updates: impl Into<Operand>) -> Tensor {
                self.write_slices(stringify!($slices), ScatterKind::$kind, axis, indices, updates.into())
            }
        )*}
    };
}

writes! {
    scatter_add index_add Add "added (every duplicate counts)";
    scatter_set index_set Set "replaced (the last duplicate wins)";
    scatter_max index_max Max "raised to at least the update";
}
