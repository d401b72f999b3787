//! Layers as functions: linear, embedding, dropout, one-hot.

use kiln_ir::DType;

use super::{floats, named, widely};
use crate::backends::Named;
use crate::operand::Operand;
use crate::{Key, Tensor, composite};

/// `x @ weight + bias`, for a weight of shape `[inputs, outputs]`. K0204 names the operand that is on another backend than the others, K0205
/// the bias.
#[track_caller]
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
    let required = [("input", x), ("weight", weight)].map(|(name, tensor)| Named::required(name, tensor));
    let operands: Vec<Named> = required.into_iter().chain(Named::optional("bias", bias)).collect();
    named("linear", &operands, || {
        let product = x.matmul(weight);
        bias.map_or_else(|| product.clone(), |bias| &product + bias)
    })
}

/// Rows of a table by their indices: `[rows, width]` and `[..]` give `[.., width]`.
#[track_caller]
pub fn embedding(table: &Tensor, indices: &Tensor) -> Tensor {
    let operands = [("table", table), ("indices", indices)].map(|(name, tensor)| Named::required(name, tensor));
    named("embedding", &operands, || table.take(0, indices))
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
    let tensor_rate = match &rate {
        Operand::Tensor(tensor) => Some(tensor),
        Operand::Scalar(_) => None,
    };
    let input = Named::required("input", x);
    let rate_operand = tensor_rate.map(|tensor| Named::required("rate", tensor));
    let operands: Vec<Named> = [input].into_iter().chain(rate_operand).chain([Named::required("key", &bits)]).collect();
    named("dropout", &operands, || floats("dropout", &[input], body))
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
