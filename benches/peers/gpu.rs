//! The workloads for a GPU, with their data made on it.

use kiln::capture::Gelu;
use kiln::ir::Precision;
use kiln::prelude::*;
use kiln::random::Random;

use crate::{Call, gelu_chain, training};

/// How large the workloads are.
pub(crate) struct Sizes {
    chain: usize,
    /// Rows and columns of what is normalized or summed.
    rows: [usize; 2],
    /// Rows and classes of the logits.
    logits: [usize; 2],
    /// `m`, `k`, `n`.
    product: [usize; 3],
    /// Batch, heads, tokens, width.
    attention: [usize; 4],
    /// Layers and batch of the two networks.
    networks: [([usize; 4], usize); 2],
}

impl Sizes {
    /// As they are measured, or such that a CPU runs through them at once.
    pub(crate) fn of(small: bool) -> Sizes {
        if small {
            return Sizes {
                chain: 1 << 12,
                rows: [64, 32],
                logits: [32, 64],
                product: [64, 32, 32],
                attention: [2, 2, 32, 16],
                networks: [([16, 8, 8, 10], 8), ([16, 32, 32, 10], 16)],
            };
        }
        Sizes {
            chain: 1 << 27,
            rows: [16384, 4096],
            logits: [8192, 50304],
            product: [8192, 4096, 4096],
            attention: [8, 16, 2048, 64],
            networks: [([784, 512, 512, 10], 128), ([784, 2048, 2048, 10], 4096)],
        }
    }
}

/// Normal numbers; of large tensors the same again and again, so that few come from the host.
fn numbers(device: &Device, seed: u64, shape: &[usize], dtype: DType) -> Array {
    let count: usize = shape.iter().product();
    let drawn = if count <= 1 << 22 { count } else { 1 << count.trailing_zeros().min(20) };
    let mut random = Random::new(seed);
    let numbers: Vec<f32> = (0..drawn).map(|_| random.normal()).collect();
    let numbers = Array::from_vec(device, numbers, [1, drawn]).expect("as many numbers as the shape has");
    let shape = shape.to_vec();
    let spread = jit(device, move |x: Tensor| x.expand([count / drawn, drawn]).reshape(shape.clone()).cast(dtype));
    spread.call(&numbers).expect("the numbers fit")
}

/// A compiled function and what it is called with.
fn ready<A, O, I>(device: &Device, arguments: I, function: impl Fn(A) -> O + 'static) -> Call
where
    A: Tree<Tensor> + 'static,
    O: Tree<Tensor> + 'static,
    I: Feed<A> + Clone + 'static,
{
    let compiled = jit(device, function);
    Box::new(move || drop(compiled.call(arguments.clone()).expect("the workload is right")))
}

fn layer_norm_backward(device: &Device, [rows, columns]: [usize; 2], dtype: DType) -> Call {
    let [x, seed] = [0, 1].map(|seed| numbers(device, seed, &[rows, columns], dtype));
    let [weight, bias] = [2, 3].map(|seed| numbers(device, seed, &[columns], dtype));
    ready(device, (x, weight, bias, seed), |(x, weight, bias, seed): (Tensor, Tensor, Tensor, Tensor)| {
        let y = layer_norm(&x, Some(&weight), Some(&bias), 1e-5);
        let found = gradients(&(&y * seed).sum(..), &[&x, &weight, &bias]);
        (y, found)
    })
}

fn cross_entropy_backward(device: &Device, [rows, classes]: [usize; 2], dtype: DType) -> Call {
    let logits = numbers(device, 0, &[rows, classes], dtype);
    let labels: Vec<i32> = (0..rows).map(|row| (row * 7919 % classes) as i32).collect();
    let labels = Array::from_vec(device, labels, [rows]).expect("a label for each row");
    ready(device, (logits, labels), |(logits, labels): (Tensor, Tensor)| {
        value_and_grad(&logits, |logits| cross_entropy(&logits.cast(DType::F32), &labels))
    })
}

/// Attention as the formula says it.
fn written_out((query, key, value): (Tensor, Tensor, Tensor)) -> Tensor {
    let [tokens, width] = [query.shape()[2], query.shape()[3]];
    let scores = query.matmul(&key.transpose()) * (1.0 / (width as f64).sqrt());
    let allowed = scores.scope().tril_mask(tokens, tokens, 0);
    allowed.select(scores, f64::NEG_INFINITY).softmax(-1).matmul(&value)
}

/// A workload by its name; its dtype, or the precision of its products, is the last word.
pub(crate) fn workload(device: &Device, sizes: &Sizes, name: &str) -> Option<Call> {
    let (name, last) = name.rsplit_once(' ')?;
    let network = |at: usize, precision| {
        let (layers, batch) = &sizes.networks[at];
        training(device, layers, *batch, precision)
    };
    let precision = match last {
        "tf32" => Precision::Tf32,
        _ => Precision::Full,
    };
    let dtype = match last {
        "f32" | "tf32" => DType::F32,
        "bf16" => DType::BF16,
        _ => return None,
    };
    let [rows, columns] = sizes.rows;
    let table = |seed| numbers(device, seed, &[rows, columns], dtype);
    let vector = |seed| numbers(device, seed, &[columns], dtype);
    let [m, k, n] = sizes.product;
    let product = || (numbers(device, 0, &[m, k], dtype), numbers(device, 1, &[k, n], dtype));
    let heads = || {
        let [query, key, value] = [0, 1, 2].map(|seed| numbers(device, seed, &sizes.attention, dtype));
        (query, key, value)
    };
    Some(match name {
        "gelu chain" => {
            let [x, a, b] = [0, 1, 2].map(|seed| numbers(device, seed, &[sizes.chain], dtype));
            ready(device, (x, a, b), gelu_chain)
        }
        "softmax" => ready(device, table(0), |x: Tensor| x.softmax(-1)),
        "layer norm" => {
            ready(device, (table(0), vector(1), vector(2)), |(x, weight, bias): (Tensor, Tensor, Tensor)| {
                layer_norm(&x, Some(&weight), Some(&bias), 1e-5)
            })
        }
        "residual + rms norm" => {
            ready(device, (table(0), table(1), vector(2)), |(x, residual, weight): (Tensor, Tensor, Tensor)| {
                let sum = x + residual;
                (rms_norm(&sum, Some(&weight), 1e-6), sum)
            })
        }
        "layer norm backward" => layer_norm_backward(device, sizes.rows, dtype),
        "cross entropy backward" => cross_entropy_backward(device, sizes.logits, dtype),
        "sum rows" => ready(device, table(0), |x: Tensor| x.sum(1)),
        "sum columns" => ready(device, table(0), |x: Tensor| x.sum(0)),
        "sum all" => ready(device, table(0), |x: Tensor| x.sum(..)),
        "matmul" => ready(device, product(), |(a, b): (Tensor, Tensor)| a.matmul(&b)),
        "matmul + bias + gelu" => {
            let (a, b) = product();
            let bias = numbers(device, 2, &[n], dtype);
            ready(device, (a, b, bias), |(a, b, bias): (Tensor, Tensor, Tensor)| {
                (a.matmul(&b) + bias).gelu_with(Gelu::Tanh)
            })
        }
        "attention" => ready(device, heads(), |(query, key, value): (Tensor, Tensor, Tensor)| {
            attention(&query, &key, &value, Mask::Causal)
        }),
        "attention written out" => ready(device, heads(), written_out),
        "step 784-512-512-10" => network(0, precision),
        "step 784-2048-2048-10" => network(1, precision),
        _ => return None,
    })
}
