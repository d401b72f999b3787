//! Scaled dot-product attention.

use super::floats;
use crate::{Tensor, composite};

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
/// ```
/// # use kiln_capture::{CaptureDevice, Mask, attention}; use kiln_ir::{Backend, DType};
/// # CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
/// let [q, k, v] = ["q", "k", "v"].map(|name| scope.input(name, DType::F32, [2, 8, 16, 64]));
/// assert_eq!(attention(&q, &k, &v, Mask::Causal).shape()[..], [2, 8, 16, 64]);
/// # })?; Ok::<(), kiln_ir::Diagnostics>(())
/// ```
#[track_caller]
pub fn attention(query: &Tensor, key: &Tensor, value: &Tensor, mask: Mask) -> Tensor {
    let named = [("query", query), ("key", key), ("value", value)];
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
    let masks: Vec<&Tensor> = match &mask {
        Mask::None | Mask::Causal => Vec::new(),
        Mask::Allowed(tensor) | Mask::Added(tensor) => vec![tensor],
    };
    let operands: Vec<&Tensor> = [query, key, value].into_iter().chain(masks).collect();
    composite("attention", &operands, || floats("attention", &named, body))
}
