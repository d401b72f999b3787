//! Activations.

use crate::{Tensor, composite};

impl Tensor {
    /// `max(x, 0)`; NaN stays NaN, the gradient at 0 is 0.
    #[track_caller]
    pub fn relu(&self) -> Tensor {
        composite("relu", &[self], || self.le(0).select(0, self))
    }
}
