//! Normalisations over the last axis.

use super::{floats, wide, widely};
use crate::Tensor;
use crate::backends::Named;

/// Operands under their names, those that are given.
fn operands<'a>(input: &'a Tensor, weight: Option<&'a Tensor>, bias: Option<&'a Tensor>) -> Vec<Named<'a>> {
    let optional = [Named::optional("weight", weight), Named::optional("bias", bias)];
    std::iter::once(Named::required("input", input)).chain(optional.into_iter().flatten()).collect()
}

fn affine(x: Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>) -> Tensor {
    let x = weight.map_or_else(|| x.clone(), |weight| &x * wide(weight));
    bias.map_or_else(|| x.clone(), |bias| &x + wide(bias))
}

/// Each row along the last axis shifted and scaled to mean 0 and variance 1, then `* weight + bias`.
///
/// `eps` is added to the variance; 16-bit inputs are computed in `f32`, where it does not vanish.
///
/// ```
/// # use kiln_capture::{CaptureDevice, layer_norm}; use kiln_ir::{Backend, DType};
/// # CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
/// let x = scope.input("x", DType::BF16, [8, 64]);
/// let weight = scope.input("weight", DType::BF16, [64]);
/// assert_eq!(layer_norm(&x, Some(&weight), None, 1e-5).ty(), x.ty());
/// # })?; Ok::<(), kiln_ir::Diagnostics>(())
/// ```
#[track_caller]
pub fn layer_norm(x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> Tensor {
    floats("layer_norm", &operands(x, weight, bias), || {
        widely(x, |x| {
            let distance = x - x.mean_keepdim(-1);
            let variance = (&distance * &distance).mean_keepdim(-1);
            affine(distance * (variance + eps).rsqrt(), weight, bias)
        })
    })
}

/// Each row along the last axis scaled to a mean square of 1, then `* weight`.
#[track_caller]
pub fn rms_norm(x: &Tensor, weight: Option<&Tensor>, eps: f64) -> Tensor {
    floats("rms_norm", &operands(x, weight, None), || {
        widely(x, |x| affine(x * ((x * x).mean_keepdim(-1) + eps).rsqrt(), weight, None))
    })
}
