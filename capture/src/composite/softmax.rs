//! Softmax and its kin: the largest element is subtracted first, so that nothing overflows, and is held constant for gradients, which it
//! does not change.

use super::{floats, widely};
use crate::Tensor;
use crate::backends::Named;

/// Distances from the largest element along an axis.
fn shifted(x: &Tensor, axis: isize) -> Tensor {
    x - x.max_keepdim(axis).detach()
}

impl Tensor {
    /// `exp(x) / sum(exp(x))` along an axis. A row of which every element is -inf is NaN.
    #[track_caller]
    pub fn softmax(&self, axis: isize) -> Tensor {
        floats("softmax", &[Named::required("input", self)], || {
            widely(self, |x| {
                let exp = shifted(x, axis).exp();
                &exp / exp.sum_keepdim(axis)
            })
        })
    }

    /// `log(softmax(x))` along an axis, without forming the softmax: finite wherever the result is.
    #[track_caller]
    pub fn log_softmax(&self, axis: isize) -> Tensor {
        floats("log_softmax", &[Named::required("input", self)], || {
            widely(self, |x| {
                let shifted = shifted(x, axis);
                &shifted - shifted.exp().sum_keepdim(axis).log()
            })
        })
    }

    /// `log(sum(exp(x)))` along an axis, which is dropped; -inf where every element is.
    #[track_caller]
    pub fn logsumexp(&self, axis: isize) -> Tensor {
        floats("logsumexp", &[Named::required("input", self)], || {
            widely(self, |x| {
                let largest = x.max_keepdim(axis).detach();
                // Subtracting an infinity from itself would give NaN.
                let largest = largest.is_finite().select(&largest, 0);
                (x - &largest).exp().sum(axis).log() + largest.squeeze(axis)
            })
        })
    }
}
