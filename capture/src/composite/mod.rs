//! Composites: functions over the ops, each one readable as its definition. Fusion makes them fast; no op of the graph is special to them.
//!
//! 16-bit floats are computed in `f32` and rounded once at the end, in plain sight of the graph.

mod activation;
mod attention;
mod layer;
mod loss;
mod normalize;
mod quantize;
mod softmax;
mod statistics;
#[cfg(test)]
mod tests;

pub use activation::Gelu;
pub use attention::{Mask, attention};
pub use layer::{dropout, embedding, linear};
pub use loss::{binary_cross_entropy, cross_entropy, cross_entropy_rows, mse};
pub use normalize::{layer_norm, rms_norm};
pub use quantize::{QTensor, q_matmul, q_matmul_values};
pub use statistics::Correction;

use kiln_ir::{Code, DType, Diagnostic};

use crate::backends::{Named, check_named};
use crate::session::record;
use crate::{Tensor, composite};

/// A composite that knows its operands by name: they share one backend (K0204, K0205), which is checked before the body records anything.
#[track_caller]
fn named(name: &'static str, operands: &[Named], body: impl FnOnce() -> Tensor) -> Tensor {
    let tensors: Vec<&Tensor> = operands.iter().map(|operand| operand.tensor).collect();
    composite(name, &tensors, || {
        let checked = record(&tensors, |state, values, _| {
            check_named(&state.builder, name, operands, values)?;
            Ok(values[0])
        });
        if checked.is_poisoned() { checked } else { body() }
    })
}

/// [`named`] of which all operands are floats (K0401 names the one that is not).
#[track_caller]
fn floats(name: &'static str, operands: &[Named], body: impl FnOnce() -> Tensor) -> Tensor {
    named(name, operands, || match operands.iter().find(|operand| !operand.tensor.dtype().is_float()) {
        None => body(),
        Some(stray) => {
            let message = format!("Should be float, got {}", stray.tensor.dtype().kind());
            let diagnostic = Diagnostic::new(Code::K0401, message)
                .label(format!("{} of `{name}` is {}", stray.name, stray.tensor.dtype()))
                .help("cast it with `.cast(DType::F32)`");
            mistake(operands, diagnostic)
        }
    })
}

/// A composite's own diagnostic, with every operand under its name.
#[track_caller]
fn mistake(operands: &[Named], diagnostic: Diagnostic) -> Tensor {
    let tensors: Vec<&Tensor> = operands.iter().map(|operand| operand.tensor).collect();
    record(&tensors, |state, values, _| {
        let named = operands.iter().zip(values);
        Err(named.fold(diagnostic, |diagnostic, (operand, &value)| state.builder.note(diagnostic, operand.name, value)))
    })
}

/// The tensor in the dtype in which composites compute: `f32` for 16-bit floats, else its own.
fn wide(x: &Tensor) -> Tensor {
    x.cast(x.dtype().accumulator())
}

/// Computes in the wide dtype and rounds once to that of `x`.
fn widely(x: &Tensor, body: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
    let dtype: DType = x.dtype();
    body(&wide(x)).cast(dtype)
}
