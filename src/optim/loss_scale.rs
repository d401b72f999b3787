//! Dynamic loss scaling, for gradients through `f16`.

use kiln_capture::{Tensor, value_and_grad_aux};
use kiln_ir::tree::Tree;
use kiln_ir::{DType, Result, Shape};
use kiln_runtime::{Array, Device};

use super::{rebuilt, wide};

/// A factor on the loss that keeps small gradients from vanishing in `f16`, and adapts (Micikevicius et al., 2018): where a gradient is no longer
/// finite it is halved, and the step is not taken; after 2000 steps without that it is doubled.
///
/// It travels in a step's state. Its factors are powers of two, so that scaling alone rounds nothing.
///
/// ```
/// use kiln::optim::{LossScale, select_tree};
/// use kiln::prelude::*;
/// let device = Device::cpu();
/// let train = step(&device, |(w, scale): (Tensor, LossScale<Tensor>), x: Tensor| {
///     let (loss, gradient, finite) = scale.value_and_grad(&w, |w| x.matmul(w).square().sum(..));
///     let next = &w - gradient * 0.1;
///     let w = select_tree(&finite, next, w);
///     ((w, scale.adjust(&finite)), loss)
/// })
/// .mixed_precision(Policy::f16());
/// let w = Array::new(&device, [[1.0f32], [2.0]])?;
/// let mut state = (w, LossScale::with_factor(&device, 1024.0)?);
/// let x = Array::new(&device, [[1.0f32, 0.5]])?;
/// assert_eq!(train.call(&mut state, &x)?.item::<f32>()?, 4.0);
/// assert_eq!(state.0.to_vec::<f32>()?, [0.6, 1.8]);
/// // 70000 is infinite in `f16`: the weights stay, the factor is halved.
/// train.call(&mut state, Array::new(&device, [[7e4f32, 0.0]])?)?;
/// assert_eq!(state.0.to_vec::<f32>()?, [0.6, 1.8]);
/// assert_eq!(state.1.factor().item::<f32>()?, 512.0);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(kiln_derive::Tree, Clone, Debug)]
pub struct LossScale<T> {
    /// `f32`.
    factor: T,
    /// Steps since it was last changed, `i32`.
    steady: T,
    /// Steps after which it is doubled.
    patience: f64,
}

impl LossScale<Array> {
    /// Beginning at 2^15. K0704 where there is no memory for two numbers.
    pub fn new(device: &Device) -> Result<LossScale<Array>> {
        LossScale::with_factor(device, 32768.0)
    }

    /// Beginning at another factor.
    pub fn with_factor(device: &Device, factor: f32) -> Result<LossScale<Array>> {
        let steady = Array::zeros(device, DType::I32, Shape::scalar())?;
        Ok(LossScale { factor: Array::new(device, factor)?, steady, patience: 2000.0 })
    }
}

impl<T> LossScale<T> {
    /// Sets after how many steps the factor is doubled.
    #[must_use]
    pub fn patience(self, steps: u32) -> Self {
        LossScale { patience: f64::from(steps), ..self }
    }

    /// The factor, rank 0.
    pub fn factor(&self) -> &T {
        &self.factor
    }
}

impl LossScale<Tensor> {
    /// [`value_and_grad`](kiln_capture::value_and_grad) through the scaled loss: the loss and its gradients, neither of them scaled, and whether all
    /// gradients are finite, a bool of rank 0.
    #[track_caller]
    pub fn value_and_grad<M: Tree<Tensor>>(&self, model: &M, loss: impl FnOnce(&M) -> Tensor) -> (Tensor, M, Tensor) {
        let ((_, loss), gradients) = value_and_grad_aux(model, |model| {
            let loss = loss(model);
            (loss.cast(DType::F32) * &self.factor, loss)
        });
        let gradients = self.unscale(gradients);
        let finite = gradients.leaves().into_iter().map(|leaf| leaf.is_finite().all(..));
        let finite = finite.reduce(|all, leaf| all.logical_and(leaf)).unwrap_or_else(|| self.factor.is_finite());
        (loss, gradients, finite)
    }

    /// Gradients of a loss that was multiplied by the factor, as they would be without it.
    #[track_caller]
    pub fn unscale<M: Tree<Tensor>>(&self, gradients: M) -> M {
        let inverse = self.factor.recip();
        let unscaled = gradients.leaves().into_iter().map(|leaf| {
            let dtype = wide(leaf.dtype());
            (leaf.cast(dtype) * inverse.cast(dtype)).cast(leaf.dtype())
        });
        rebuilt(&gradients, unscaled.collect())
    }

    /// The scale for the next step, where the gradients of this one were finite or not.
    #[track_caller]
    pub fn adjust(self, finite: &Tensor) -> LossScale<Tensor> {
        let steady = &self.steady + 1;
        let due = steady.cast(DType::F32).ge(self.patience);
        let grown = due.select(&self.factor * 2.0, &self.factor);
        // Neither infinite nor so small that it takes precision itself.
        let factor = finite.select(grown.minimum(2f64.powi(24)), (&self.factor * 0.5).maximum(1.0));
        let steady = finite.logical_and(due.logical_not()).select(steady, 0);
        LossScale { factor, steady, ..self }
    }
}

/// The leaves of one tree where a bool of rank 0 is true, of the other where it is not.
#[track_caller]
pub fn select_tree<M: Tree<Tensor>>(condition: &Tensor, then: M, otherwise: M) -> M {
    let pairs = then.leaves().into_iter().zip(otherwise.leaves());
    let chosen = pairs.map(|(then, otherwise)| condition.select(then, otherwise)).collect();
    rebuilt(&then, chosen)
}
