//! Layers: structs of weights, as tensors in a capture and as arrays outside.
//!
//! Each is a tree, made on a device from host random numbers and used inside a compiled function by `forward`. They hold no behaviour
//! beyond that: a model is a struct of layers with a `forward` of its own.

use kiln_capture::{Tensor, embedding, layer_norm, linear};
use kiln_ir::{DType, Result, Shape};
use kiln_runtime::{Array, Device};

use crate::random::Random;

/// `x . weight + bias`; weight `[inputs, outputs]`, bias `[outputs]`.
///
/// ```
/// use kiln::nn::Linear;
/// use kiln::prelude::*;
/// use kiln::random::Random;
/// let device = Device::reference();
/// let layer = Linear::new(&device, 4, 3, &mut Random::new(0))?;
/// let apply = jit(&device, |(layer, x): (Linear<Tensor>, Tensor)| layer.forward(&x));
/// let x = Array::zeros(&device, DType::F32, [2, 4])?;
/// assert_eq!(apply.call((&layer, &x))?.to_vec::<f32>()?, [0.0; 6]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(kiln_derive::Tree, Clone, Debug)]
pub struct Linear<T> {
    /// `[inputs, outputs]`.
    pub weight: T,
    /// `[outputs]`.
    pub bias: Option<T>,
}

/// How initial weights are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Init {
    /// Normal with variance `2 / inputs`: keeps the size of activations through `relu` (He et al., 2015).
    #[default]
    Kaiming,
    /// Uniform with variance `2 / (inputs + outputs)` (Glorot and Bengio, 2010).
    Xavier,
}

impl Linear<Array> {
    /// With a bias of zeros and weights by [`Init::Kaiming`], `f32`.
    pub fn new(device: &Device, inputs: usize, outputs: usize, random: &mut Random) -> Result<Linear<Array>> {
        Linear::with_init(device, inputs, outputs, Init::Kaiming, random)
    }

    /// [`Linear::new`] with weights drawn as told.
    pub fn with_init(
        device: &Device,
        inputs: usize,
        outputs: usize,
        init: Init,
        random: &mut Random,
    ) -> Result<Linear<Array>> {
        let draw = |random: &mut Random| match init {
            Init::Kaiming => random.normal() * (2.0 / inputs as f32).sqrt(),
            Init::Xavier => (random.uniform() * 2.0 - 1.0) * (6.0 / (inputs + outputs) as f32).sqrt(),
        };
        let weights: Vec<f32> = (0..inputs * outputs).map(|_| draw(random)).collect();
        let weight = Array::from_vec(device, weights, [inputs, outputs])?;
        Ok(Linear { weight, bias: Some(Array::zeros(device, DType::F32, [outputs])?) })
    }

    /// The same layer without its bias.
    #[must_use]
    pub fn without_bias(self) -> Linear<Array> {
        Linear { bias: None, ..self }
    }
}

impl Linear<Tensor> {
    /// `[.., inputs]` to `[.., outputs]`.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        linear(x, &self.weight, self.bias.as_ref())
    }
}

/// Each row brought to mean 0 and variance 1, then scaled and shifted per feature.
#[derive(kiln_derive::Tree, Clone, Debug)]
pub struct LayerNorm<T> {
    /// `[features]`.
    pub weight: T,
    /// `[features]`.
    pub bias: T,
    /// Added to the variance.
    pub eps: f64,
}

impl LayerNorm<Array> {
    /// With scale 1, shift 0 and eps 1e-5, `f32`.
    pub fn new(device: &Device, features: usize) -> Result<LayerNorm<Array>> {
        let shape = || Shape::from([features]);
        let (weight, bias) = (Array::ones(device, DType::F32, shape())?, Array::zeros(device, DType::F32, shape())?);
        Ok(LayerNorm { weight, bias, eps: 1e-5 })
    }
}

impl LayerNorm<Tensor> {
    /// `[.., features]` to the same shape.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        layer_norm(x, Some(&self.weight), Some(&self.bias), self.eps)
    }
}

/// A row of weights for each index.
#[derive(kiln_derive::Tree, Clone, Debug)]
pub struct Embedding<T> {
    /// `[indices, features]`.
    pub table: T,
}

impl Embedding<Array> {
    /// With normal weights, `f32`.
    pub fn new(device: &Device, indices: usize, features: usize, random: &mut Random) -> Result<Embedding<Array>> {
        let weights: Vec<f32> = (0..indices * features).map(|_| random.normal()).collect();
        Ok(Embedding { table: Array::from_vec(device, weights, [indices, features])? })
    }
}

impl Embedding<Tensor> {
    /// Integer indices `[..]` to `[.., features]`.
    #[track_caller]
    pub fn forward(&self, indices: &Tensor) -> Tensor {
        embedding(&self.table, indices)
    }
}
