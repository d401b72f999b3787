//! Gradient clipping.

use kiln_capture::{Operand, Tensor};
use kiln_ir::tree::Tree;

use super::{rebuilt, wide};

/// The Euclidean norm of all leaves together, rank 0; in `f32` where all leaves are of 16 bits.
///
/// A tree without leaves has no norm: `None`.
#[track_caller]
pub fn global_norm<M: Tree<Tensor>>(tree: &M) -> Option<Tensor> {
    let squares = tree.leaves().into_iter().map(|leaf| leaf.cast(wide(leaf.dtype())).square().sum(..));
    squares.reduce(|sum, square| &sum + square.cast(sum.dtype())).map(|sum| sum.sqrt())
}

/// The gradients, scaled down so that their [`global_norm`] is at most `limit`. Directions are kept.
///
/// ```
/// use kiln::optim::clip_by_global_norm;
/// use kiln::prelude::*;
/// let clip = jit(&Device::reference(), |g: Tensor| clip_by_global_norm(g, 1.0));
/// let device = Device::reference();
/// assert_eq!(clip.call(Array::new(&device, [3.0f32, 4.0])?)?.to_vec::<f32>()?, [0.6, 0.8]);
/// assert_eq!(clip.call(Array::new(&device, [0.3f32, 0.4])?)?.to_vec::<f32>()?, [0.3, 0.4]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[track_caller]
pub fn clip_by_global_norm<M: Tree<Tensor>>(gradients: M, limit: impl Into<Operand>) -> M {
    let Some(norm) = global_norm(&gradients) else { return gradients };
    let limit = match limit.into() {
        Operand::Tensor(limit) => limit.cast(norm.dtype()),
        Operand::Scalar(limit) => norm.full_like(limit),
    };
    // A norm of 0 is below any limit; dividing by the larger of the two keeps 0 / 0 out.
    let scale = &limit / norm.maximum(&limit);
    let scaled = gradients.leaves().into_iter().map(|leaf| {
        let dtype = wide(leaf.dtype());
        (leaf.cast(dtype) * scale.cast(dtype)).cast(leaf.dtype())
    });
    rebuilt(&gradients, scaled.collect())
}
