//! Layers as functions: linear, embedding, dropout, one-hot.

use kiln_ir::DType;

use super::{floats, widely};
use crate::operand::Operand;
use crate::{Key, Tensor, composite};

/// `x @ weight + bias`, for a weight of shape `[inputs, outputs]`.
#[track_caller]
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
    let operands: Vec<&Tensor> = [x, weight].into_iter().chain(bias).collect();
    composite("linear", &operands, || {
        let product = x.matmul(weight);
        bias.map_or_else(|| product.clone(), |bias| &product + bias)
    })
}

/// Rows of a table by their indices: `[rows, width]` and `[..]` give `[.., width]`.
#[track_caller]
pub fn embedding(table: &Tensor, indices: &Tensor) -> Tensor {
    composite("embedding", &[table, indices], || table.take(0, indices))
}

/// Each element 0 with a probability, else divided by the probability that it stays. Without a key there is no dropout.
#[track_caller]
pub fn dropout(x: &Tensor, rate: impl Into<Operand>, key: Key) -> Tensor {
    let rate = rate.into();
    let bits = key.bits().clone();
    let body = || {
        widely(x, |wide| {
            let rate = bits.number_or(&rate, DType::F32);
            let kept = key.uniform(x.shape()).ge(&rate);
            let scale = (1.0 - rate).recip().cast(wide.dtype());
            kept.select(wide * scale, 0.0)
        })
    };
    composite("dropout", &[x, &bits], || floats("dropout", &[("input", x)], body))
}

impl Tensor {
    /// A last axis of `classes` elements that are 1 at the index and 0 elsewhere, of this dtype. An index that is out of range gives zeros;
    /// one known at capture K0311.
    #[track_caller]
    pub fn one_hot(&self, classes: usize, dtype: DType) -> Tensor {
        composite("one_hot", &[self], || self.matches_class(classes).cast(dtype))
    }

    /// For each class of a new last axis, whether the index is that class.
    pub(super) fn matches_class(&self, classes: usize) -> Tensor {
        let indices = self.known_indices(classes);
        if indices.is_poisoned() {
            return indices;
        }
        // Counting in i32 holds every class; narrower index types do not.
        let counted = if indices.dtype() == DType::I64 { DType::I64 } else { DType::I32 };
        indices.cast(counted).unsqueeze(-1).eq(self.scope().arange(classes, counted))
    }
}
