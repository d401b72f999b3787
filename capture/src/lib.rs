//! Recording tensor programs: ops on [`Tensor`]s inside a capture scope become a typed graph.
//!
//! A [`CaptureDevice`] opens a [`Scope`]; ops on its [`Tensor`]s (tickets that stand for values, without data) are checked and recorded,
//! each with the user's line; the scope ends with a [`CapturedGraph`], or with every mistake that was made in it. Nothing is computed here:
//! the graph goes to the passes and the runtime.
//!
//! - `device`, `scope`, `session`, `frame`, `source`: opening, declaring, recording, whose line it is, and what stands in it;
//! - `tensor`, `operand`, `data`, `ops`, `create`: tickets and the ops on them, which are methods and operators;
//! - `random`: keys and draws;
//! - `gradient`, `tracked`, `backward`, `tracking`: gradients, which are more nodes of the same graph, and who tracks a ticket for them;
//! - `backends`: one backend for all operands, in the words of the op that the user called;
//! - `custom`: ops from outside, with bodies, kernels and gradients of their own;
//! - `composite`: layers, activations and losses as plain functions over the ops; adding one touches one place.
//!
//! Broadcasting and weak Rust numbers exist here only: the graph holds neither.

mod backends;
mod backward;
mod captured;
mod composite;
mod create;
mod custom;
mod data;
mod device;
mod frame;
mod gradient;
mod operand;
mod ops;
mod random;
mod scope;
mod session;
mod source;
mod tensor;
mod tracked;
mod tracking;

#[cfg(test)]
mod tests;

pub use backward::Gradients;
pub use captured::{Baked, CapturedGraph, Notice, Tap};
pub use composite::{
    Correction, Gelu, Mask, QTensor, attention, binary_cross_entropy, cross_entropy, cross_entropy_rows, dropout,
    embedding, layer_norm, linear, mse, q_matmul, q_matmul_values, rms_norm,
};
pub use custom::{Arguments, CustomOp, Types, custom_op, opaque_op};
pub use data::{IntoData, Nested, Scalar};
pub use device::{CaptureDevice, OpenScope};
pub use frame::composite;
pub use gradient::{grad, gradients, value_and_grad, value_and_grad_aux};
pub use operand::Operand;
pub use ops::{IntoAxes, IntoExtents, Part, Parts, concat, stack, try_concat, try_stack};
pub use random::Key;
pub use scope::Scope;
pub use source::source_text;
pub use tensor::Tensor;
