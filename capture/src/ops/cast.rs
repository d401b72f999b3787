//! Conversions between dtypes.

use kiln_ir::{DType, Op};

use crate::Tensor;

impl Tensor {
    /// Each element converted: floats truncate toward 0 and saturate as integers (NaN is 0), integers wrap, `x != 0` as `bool`. The tensor
    /// itself where it has the dtype already.
    #[track_caller]
    pub fn cast(&self, dtype: DType) -> Tensor {
        if !self.is_poisoned() && self.session.is_open() && self.dtype() == dtype {
            return self.clone();
        }
        self.node(Op::Cast(dtype))
    }

    /// [`Tensor::cast`] by the field's other name.
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) -> Tensor {
        self.cast(dtype)
    }

    /// Each element's bits read as another dtype of the same width.
    #[track_caller]
    pub fn bitcast(&self, dtype: DType) -> Tensor {
        self.node(Op::Bitcast(dtype))
    }
}
