//! Optimizers: plain functions of tensors over a whole model, whose state is a tree.
//!
//! An optimizer is made from a model of arrays ([`Adam::new`]) and travels with it in a step's state; inside the step its `step` method
//! takes model and gradients and gives both anew. Weights of 16-bit types are updated in `f32`, in which their moments are kept, and
//! rounded once. Learning rates may be numbers or tensors; fed as arguments, they change without another compilation.

mod adam;
mod clip;
mod loss_scale;
mod sgd;

use kiln_capture::Tensor;
use kiln_ir::tree::{Tree, With};
use kiln_ir::{DType, Result};
use kiln_runtime::Array;

pub use adam::Adam;
pub use clip::{clip_by_global_norm, global_norm};
pub use loss_scale::{LossScale, select_tree};
pub use sgd::Sgd;

/// The dtype in which a parameter is updated: `f32` for the 16-bit floats, else its own.
fn wide(dtype: DType) -> DType {
    dtype.accumulator()
}

/// A tree of zeros like a model's leaves, in the dtype in which they are updated.
fn zeros_like<M: Tree<Array>>(model: &M) -> Result<M> {
    let zeros = model.try_map_ref(&mut |leaf| Array::zeros(leaf.device(), wide(leaf.dtype()), leaf.shape()))?;
    Ok(zeros)
}

/// A tree with other leaves of the same number.
fn rebuilt<M: Tree<Tensor>>(tree: &M, leaves: Vec<Tensor>) -> With<M, Tensor, Tensor> {
    tree.with_leaves(leaves).expect("every leaf is replaced by one")
}
