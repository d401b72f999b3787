//! Whole training steps of small networks with Adam, arguments and state resident: the digits' network (64-128-10, batch 32) and a larger one
//! (784-512-512-10, batch 128). `benches/peers` times the same work elsewhere; the first call of each step is timed too.

// A bench says what it saw.
#![allow(missing_docs, clippy::print_stderr)]

use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use kiln::nn::Linear;
use kiln::optim::Adam;
use kiln::prelude::*;
use kiln::random::Random;

type Layers<T> = Vec<Linear<T>>;

fn forward(layers: &Layers<Tensor>, x: &Tensor) -> Tensor {
    let (last, hidden) = layers.split_last().expect("a network has layers");
    last.forward(&hidden.iter().fold(x.clone(), |x, layer| layer.forward(&x).relu()))
}

fn training(c: &mut Criterion, name: &str, sizes: &[usize], batch: usize) {
    let device = Device::cpu();
    let mut random = Random::new(1);
    let layers: Layers<Array> = sizes
        .windows(2)
        .map(|pair| Linear::new(&device, pair[0], pair[1], &mut random).expect("the layer is small"))
        .collect();
    let adam = Adam::new(&layers).expect("the moments are small");
    let mut state = (layers, adam);
    let pixels: Vec<f32> = (0..batch * sizes[0]).map(|i| (i % 17) as f32 / 17.0).collect();
    let labels: Vec<i32> = (0..batch as i32).map(|i| i % 10).collect();
    let x = Array::from_vec(&device, pixels, [batch, sizes[0]]).expect("the batch is small");
    let y = Array::from_vec(&device, labels, [batch]).expect("the batch is small");
    let train = step(
        &device,
        |(layers, adam): (Layers<Tensor>, Adam<Layers<Tensor>>), (x, y, lr): (Tensor, Tensor, Tensor)| {
            let (loss, gradients) = value_and_grad(&layers, |layers| cross_entropy(&forward(layers, &x), &y));
            (adam.step(layers, gradients, &lr), loss)
        },
    );
    let begun = Instant::now();
    train.call(&mut state, (&x, &y, 1e-3)).expect("the step is right");
    let first = begun.elapsed();
    c.bench_function(name, |b| b.iter(|| train.call(&mut state, (&x, &y, 1e-3)).expect("the step is right")));
    eprintln!("{name}: first call {first:?}\n{}", train.report());
}

fn steps(c: &mut Criterion) {
    training(c, "step/64-128-10 batch 32", &[64, 128, 10], 32);
    training(c, "step/784-512-512-10 batch 128", &[784, 512, 512, 10], 128);
}

criterion_group!(benches, steps);
criterion_main!(benches);
