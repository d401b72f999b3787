//! Scaled dot-product attention.

use super::{floats, named};
use crate::Tensor;
use crate::backends::Named;

/// Which keys a query sees.
#[derive(Clone, Debug, Default)]
pub enum Mask {
    /// All of them.
    #[default]
    None,
    /// Those up to its own place; the last query sees all keys.
    Causal,
    /// Those where a bool tensor `[.., queries, keys]` is true. A query that sees none gives NaN.
    Allowed(Tensor),
    /// All of them, with a float tensor added to the scores.
    Added(Tensor),
}

/// `softmax(query @ key^T / sqrt(width)) @ value`, for `[.., queries, width]`, `[.., keys, width]` and `[.., keys, values]`.
///
/// A plain function over other ops, which compiles to one kernel, and one more for its gradients: scores are never held in memory, as long
/// as nothing else reads them. Other spellings of the same are recognised too.
///
/// Errors: K0401 for operands that are no floats, K0204 where they live on other backends, and what the shapes of the two products raise.
///
/// ```
/// # use kiln_capture::{CaptureDevice, Mask, attention}; use kiln_ir::{Backend, DType};
/// # CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
/// let [q, k, v] = ["q", "k", "v"].map(|name| scope.input(name, DType::F32, [2, 8, 16, 64]));
/// assert_eq!(attention(&q, &k, &v, Mask::Causal).shape()[..], [2, 8, 16, 64]);
/// # })?; Ok::<(), kiln_ir::Diagnostics>(())
/// ```
#[track_caller]
pub fn attention(query: &Tensor, key: &Tensor, value: &Tensor, mask: Mask) -> Tensor {
    let floating = [("query", query), ("key", key), ("value", value)].map(|(name, x)| Named::required(name, x));
    let mask_tensor = match &mask {
        Mask::None | Mask::Causal => None,
        Mask::Allowed(tensor) | Mask::Added(tensor) => Some(tensor),
    };
    let operands: Vec<Named> = floating.into_iter().chain(Named::optional("mask", mask_tensor)).collect();
    let body = || {
        let width = query.shape().last().copied().unwrap_or(1);
        let scores = query.matmul(&key.transpose()) * (1.0 / (width as f64).sqrt());
        if scores.is_poisoned() {
            return scores;
        }
        let scores = match &mask {
            Mask::None => scores,
            Mask::Causal => match scores.shape()[..] {
                [.., queries, keys] => {
                    let allowed = scores.scope().tril_mask(queries, keys, keys as i32 - queries as i32);
                    allowed.select(scores, f64::NEG_INFINITY)
                }
                _ => scores,
            },
            Mask::Allowed(allowed) => allowed.select(scores, f64::NEG_INFINITY),
            Mask::Added(bias) => scores + bias,
        };
        scores.softmax(-1).matmul(value)
    };
    named("attention", &operands, || floats("attention", &floating, body))
}
