//! Adam, and AdamW with decoupled weight decay.

use kiln_capture::{Operand, Tensor};
use kiln_ir::tree::{LeafOf, Tree};
use kiln_ir::{DType, Result, Shape};
use kiln_runtime::Array;

use super::sgd::scaled;
use super::{rebuilt, wide, zeros_like};

/// Adam (Kingma and Ba, 2015); with [`Adam::weight_decay`] AdamW (Loshchilov and Hutter, 2019).
///
/// ```
/// use kiln::optim::Adam;
/// use kiln::prelude::*;
/// let device = Device::reference();
/// let train = step(&device, |(w, adam): (Tensor, Adam<Tensor>), lr: Tensor| {
///     let (loss, gradient) = value_and_grad(&w, |w| w.square().sum(..));
///     (adam.step(w, gradient, &lr), loss)
/// });
/// let w = Array::new(&device, [1.0f32, -2.0])?;
/// let mut state = (w.clone(), Adam::new(&w)?);
/// train.call(&mut state, 0.1)?;
/// // The first step has the size of the learning rate, whatever the gradient's.
/// let w = state.0.to_vec::<f32>()?;
/// assert!((w[0] - 0.9).abs() < 1e-6 && (w[1] + 1.9).abs() < 1e-6);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(kiln_derive::Tree, Clone, Debug)]
pub struct Adam<M, T = LeafOf<M>> {
    mean: M,
    square: M,
    /// Steps taken, `i32`.
    count: T,
    beta1: f64,
    beta2: f64,
    eps: f64,
    decay: f64,
}

impl<M: Tree<Array>> Adam<M, Array> {
    /// With the usual settings: betas 0.9 and 0.999, eps 1e-8, no weight decay. K0704 where there is no memory for the moments.
    pub fn new(model: &M) -> Result<Adam<M, Array>> {
        let mut device = None;
        model.visit(&mut |leaf| device = device.clone().or_else(|| Some(leaf.device().clone())));
        let device = device.unwrap_or_else(kiln_runtime::Device::cpu);
        let count = Array::zeros(&device, DType::I32, Shape::scalar())?;
        let (mean, square) = (zeros_like(model)?, zeros_like(model)?);
        Ok(Adam { mean, square, count, beta1: 0.9, beta2: 0.999, eps: 1e-8, decay: 0.0 })
    }
}

impl<M, T> Adam<M, T> {
    /// Sets how slowly the running means of gradients and of their squares change.
    #[must_use]
    pub fn betas(self, beta1: f64, beta2: f64) -> Self {
        Adam { beta1, beta2, ..self }
    }

    /// Sets what is added to the root in the denominator.
    #[must_use]
    pub fn eps(self, eps: f64) -> Self {
        Adam { eps, ..self }
    }

    /// Makes it AdamW: each step also takes `lr * decay * weight` off every weight.
    #[must_use]
    pub fn weight_decay(self, decay: f64) -> Self {
        Adam { decay, ..self }
    }
}

impl<M: Tree<Tensor>> Adam<M, Tensor> {
    /// The updated model and the optimizer for the next step.
    #[track_caller]
    pub fn step(self, model: M, gradients: M, lr: impl Into<Operand>) -> (M, Adam<M, Tensor>) {
        let lr = lr.into();
        let count = &self.count + 1;
        let (mut weights, mut means, mut squares) = (Vec::new(), Vec::new(), Vec::new());
        let moments = self.mean.leaves().into_iter().zip(self.square.leaves());
        for ((weight, gradient), (mean, square)) in model.leaves().into_iter().zip(gradients.leaves()).zip(moments) {
            let dtype = wide(weight.dtype());
            let gradient = gradient.cast(dtype);
            let mean = mean * self.beta1 + &gradient * (1.0 - self.beta1);
            let square = square * self.beta2 + gradient.square() * (1.0 - self.beta2);
            let root = (&square / correction(&count, self.beta2, dtype)).sqrt() + self.eps;
            let mut direction = &mean / correction(&count, self.beta1, dtype) / root;
            let wide_weight = weight.cast(dtype);
            if self.decay != 0.0 {
                direction = direction + &wide_weight * self.decay;
            }
            weights.push((wide_weight - scaled(&direction, &lr)).cast(weight.dtype()));
            means.push(mean);
            squares.push(square);
        }
        let (mean, square) = (rebuilt(&self.mean, means), rebuilt(&self.square, squares));
        (rebuilt(&model, weights), Adam { mean, square, count, ..self })
    }
}

/// `1 - beta^count`: what a running mean that began at zero is short of.
#[track_caller]
fn correction(count: &Tensor, beta: f64, dtype: DType) -> Tensor {
    let log = beta.ln();
    1.0 - (count.cast(dtype) * log).exp()
}
