//! Tensors from nothing: filled, counted, and what is made of counting.

use kiln_ir::{Code, DType, Diagnostic, Literal, Op, Shape, TensorType};

use crate::data::Scalar;
use crate::session::record;
use crate::tracking::Tracking;
use crate::{Scope, Tensor};

impl Scope {
    /// A tensor filled with one number, of this dtype. K0406 where the number does not fit.
    #[track_caller]
    pub fn full(&self, shape: impl Into<Shape>, value: impl Into<Scalar>, dtype: DType) -> Tensor {
        let (shape, value) = (shape.into(), value.into());
        let ty = TensorType::new(dtype, shape, self.backend());
        self.record(|state, loc| {
            let value = value.literal(dtype).map_err(|mut diagnostic| {
                (diagnostic.label, diagnostic.help) = (None, Vec::new());
                diagnostic.in_op("full").help("give a dtype that holds the number")
            })?;
            state.builder.full(&ty, value, loc)
        })
    }

    /// A tensor of zeros (`false` for bool).
    #[track_caller]
    pub fn zeros(&self, shape: impl Into<Shape>, dtype: DType) -> Tensor {
        self.filled(shape.into(), Literal::zero(dtype))
    }

    /// A tensor of ones (`true` for bool).
    #[track_caller]
    pub fn ones(&self, shape: impl Into<Shape>, dtype: DType) -> Tensor {
        self.filled(shape.into(), Literal::one(dtype))
    }

    #[track_caller]
    fn filled(&self, shape: Shape, value: Literal) -> Tensor {
        let ty = TensorType::new(value.dtype(), shape, self.backend());
        self.record(|state, loc| state.builder.full(&ty, value, loc))
    }

    /// Each element's index along an axis.
    #[track_caller]
    pub fn iota(&self, shape: impl Into<Shape>, axis: isize, dtype: DType) -> Tensor {
        let ty = TensorType::new(dtype, shape, self.backend());
        self.record(|state, loc| {
            let axis = kiln_ir::normalize_axis(axis, ty.shape.rank());
            let axis = axis.map_err(|diagnostic| diagnostic.in_op("iota"))?;
            state.builder.value(Op::Iota { ty, axis }, &[], loc)
        })
    }

    /// The numbers from 0 up to `length`.
    #[track_caller]
    pub fn arange(&self, length: usize, dtype: DType) -> Tensor {
        self.iota([length], 0, dtype)
    }

    /// The identity matrix.
    #[track_caller]
    pub fn eye(&self, size: usize, dtype: DType) -> Tensor {
        let rows = self.iota([size, size], 0, DType::I32);
        let columns = self.iota([size, size], 1, DType::I32);
        rows.eq(columns).cast(dtype)
    }

    /// A mask that is true on and below a diagonal of a matrix (`diagonal` 0: the main one; above it, positive).
    #[track_caller]
    pub fn tril_mask(&self, rows: usize, columns: usize, diagonal: i32) -> Tensor {
        let row = self.iota([rows, columns], 0, DType::I32);
        let column = self.iota([rows, columns], 1, DType::I32);
        if diagonal == 0 { column.le(row) } else { column.le(row + diagonal) }
    }
}

impl Tensor {
    /// A tensor of this one's type, filled with one number.
    #[track_caller]
    pub fn full_like(&self, value: impl Into<Scalar>) -> Tensor {
        let value = value.into();
        record(&[self], |state, values, loc| {
            let ty = state.builder.ty(values[0]).clone();
            let value = value.literal(ty.dtype).map_err(|diagnostic| diagnostic.in_op("full_like"))?;
            state.builder.full(&ty, value, loc)
        })
        .tracked_by(Tracking::default())
    }

    /// A tensor of zeros of this one's type.
    #[track_caller]
    pub fn zeros_like(&self) -> Tensor {
        record(&[self], |state, values, loc| {
            let ty = state.builder.ty(values[0]).clone();
            state.builder.full(&ty, Literal::zero(ty.dtype), loc)
        })
        .tracked_by(Tracking::default())
    }

    /// A tensor of ones of this one's type.
    #[track_caller]
    pub fn ones_like(&self) -> Tensor {
        record(&[self], |state, values, loc| {
            let ty = state.builder.ty(values[0]).clone();
            state.builder.full(&ty, Literal::one(ty.dtype), loc)
        })
        .tracked_by(Tracking::default())
    }

    /// The elements on and below a diagonal of each matrix, 0 elsewhere.
    #[track_caller]
    pub fn tril(&self, diagonal: i32) -> Tensor {
        crate::composite("tril", &[self], || match self.shape()[..] {
            [.., rows, columns] => self.scope().tril_mask(rows, columns, diagonal).select(self, self.zeros_like()),
            _ => self.too_flat("tril"),
        })
    }

    /// The elements on and above a diagonal of each matrix, 0 elsewhere.
    #[track_caller]
    pub fn triu(&self, diagonal: i32) -> Tensor {
        crate::composite("triu", &[self], || match self.shape()[..] {
            [.., rows, columns] => {
                let below = self.scope().tril_mask(rows, columns, diagonal - 1);
                below.select(self.zeros_like(), self)
            }
            _ => self.too_flat("triu"),
        })
    }

    #[track_caller]
    fn too_flat(&self, name: &str) -> Tensor {
        let message = format!("expected rank 2 or more, got {}", self.rank());
        let label = format!("`{name}` works on matrices");
        record(&[self], |state, values, _| {
            Err(state.builder.note(Diagnostic::new(Code::K0309, message).label(label), "input", values[0]))
        })
    }

    /// A number as a rank-0 tensor of a dtype, in this tensor's scope and on its backend.
    #[track_caller]
    pub(crate) fn number(&self, value: Scalar, dtype: DType) -> Tensor {
        record(&[self], |state, values, loc| {
            let like = state.builder.ty(values[0]).with_dtype(dtype);
            crate::operand::literal(&mut state.builder, value, &like, loc)
        })
        .tracked_by(Tracking::default())
    }

    /// A tensor as it is, a number as by [`Tensor::number`].
    #[track_caller]
    pub(crate) fn number_or(&self, operand: &crate::Operand, dtype: DType) -> Tensor {
        match operand {
            crate::Operand::Tensor(tensor) => tensor.cast(dtype),
            crate::Operand::Scalar(scalar) => self.number(*scalar, dtype),
        }
    }
}
