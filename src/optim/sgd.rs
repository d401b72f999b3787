//! Stochastic gradient descent, with or without momentum.

use kiln_capture::{Operand, Tensor};
use kiln_ir::Result;
use kiln_ir::tree::Tree;
use kiln_runtime::Array;

use super::{rebuilt, wide, zeros_like};

/// `weight -= lr * velocity`, where `velocity = momentum * velocity + gradient`.
///
/// ```
/// use kiln::optim::Sgd;
/// use kiln::prelude::*;
/// let device = Device::reference();
/// let train = step(&device, |(w, sgd): (Tensor, Sgd<Tensor>), lr: Tensor| {
///     let (loss, gradient) = value_and_grad(&w, |w| w.square().sum(..));
///     (sgd.step(w, gradient, &lr), loss)
/// });
/// let w = Array::new(&device, [1.0f32, -2.0])?;
/// let mut state = (w.clone(), Sgd::new(&w)?);
/// train.call(&mut state, 0.1)?;
/// assert_eq!(state.0.to_vec::<f32>()?, [0.8, -1.6]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(kiln_derive::Tree, Clone, Debug)]
pub struct Sgd<M> {
    velocity: Option<M>,
    momentum: f64,
}

impl<M: Tree<Array>> Sgd<M> {
    /// Without momentum; keeps nothing.
    pub fn new(_model: &M) -> Result<Sgd<M>> {
        Ok(Sgd { velocity: None, momentum: 0.0 })
    }

    /// With momentum, 0.9 as a rule. K0704 where there is no memory for the velocities.
    pub fn with_momentum(model: &M, momentum: f64) -> Result<Sgd<M>> {
        Ok(Sgd { velocity: Some(zeros_like(model)?), momentum })
    }
}

impl<M: Tree<Tensor>> Sgd<M> {
    /// The updated model and the optimizer for the next step.
    #[track_caller]
    pub fn step(self, model: M, gradients: M, lr: impl Into<Operand>) -> (M, Sgd<M>) {
        let lr = lr.into();
        let Some(velocity) = self.velocity else {
            let gradients = gradients.into_leaves();
            let weights = model.leaves().into_iter().zip(&gradients).map(|(w, g)| descend(w, &widened(g), &lr));
            let weights = rebuilt(&model, weights.collect());
            return (weights, Sgd { velocity: None, momentum: self.momentum });
        };
        let (mut weights, mut velocities) = (Vec::new(), Vec::new());
        let leaves = model.leaves().into_iter().zip(gradients.leaves()).zip(velocity.leaves());
        for ((weight, gradient), velocity) in leaves {
            let velocity = velocity * self.momentum + widened(gradient);
            weights.push(descend(weight, &velocity, &lr));
            velocities.push(velocity);
        }
        let velocity = Some(rebuilt(&velocity, velocities));
        (rebuilt(&model, weights), Sgd { velocity, momentum: self.momentum })
    }
}

#[track_caller]
fn widened(gradient: &Tensor) -> Tensor {
    gradient.cast(wide(gradient.dtype()))
}

#[track_caller]
fn descend(weight: &Tensor, direction: &Tensor, lr: &Operand) -> Tensor {
    (widened(weight) - scaled(direction, lr)).cast(weight.dtype())
}

/// A direction times a learning rate, in the direction's dtype.
#[track_caller]
pub(super) fn scaled(direction: &Tensor, lr: &Operand) -> Tensor {
    match lr {
        Operand::Tensor(lr) => direction * lr.cast(direction.dtype()),
        Operand::Scalar(lr) => direction * Operand::Scalar(*lr),
    }
}
