//! The CPU workloads that `benches/peers/run.py` times here and elsewhere, in turn: a workload's name per line in, one JSON line out.
//!
//! A workload is compiled at its first call, which is timed alone, and then called again and again with its arguments resident; each
//! result is dropped before the next call. `floor copy` and `floor product` time what every workload is held to: one stream read and one
//! written on all cores, and the best matrix product.

// A bench says what it saw.
#![allow(missing_docs, clippy::print_stdout)]

use std::hint::black_box;
use std::io::BufRead;
use std::time::Instant;

use kiln::capture::Gelu;
use kiln::nn::Linear;
use kiln::optim::Adam;
use kiln::prelude::*;
use kiln::random::Random;

const SIDE: usize = 4096;

/// What is timed.
type Call = Box<dyn FnMut()>;

fn numbers(device: &Device, seed: u64, shape: &[usize]) -> Array {
    let mut random = Random::new(seed);
    let numbers: Vec<f32> = (0..shape.iter().product()).map(|_| random.normal()).collect();
    Array::from_vec(device, numbers, shape).expect("as many numbers as the shape has")
}

/// The tanh form of gelu of `a x + b`, times a logistic gate.
fn gelu_chain((x, a, b): (Tensor, Tensor, Tensor)) -> Tensor {
    (a * x + &b).gelu_with(Gelu::Tanh) * b.sigmoid()
}

fn polynomial((x, a, b): (Tensor, Tensor, Tensor)) -> Tensor {
    ((&x * &a + &b) * &x + a) * x + b
}

fn chain(device: &Device, length: usize, function: fn((Tensor, Tensor, Tensor)) -> Tensor) -> Call {
    let [x, a, b] = [0, 1, 2].map(|seed| numbers(device, seed, &[length]));
    let compiled = jit(device, function);
    Box::new(move || drop(black_box(compiled.call((&x, &a, &b)).expect("the chain is right"))))
}

fn of_square(device: &Device, function: fn(Tensor) -> Tensor) -> Call {
    let x = numbers(device, 0, &[SIDE, SIDE]);
    let compiled = jit(device, function);
    Box::new(move || drop(black_box(compiled.call(&x).expect("the function is right"))))
}

fn layer_norm(device: &Device) -> Call {
    let x = numbers(device, 0, &[SIDE, SIDE]);
    let weight = Array::from_vec(device, vec![1f32; SIDE], [SIDE]).expect("the weight is small");
    let bias = Array::from_vec(device, vec![0f32; SIDE], [SIDE]).expect("the bias is small");
    let compiled = jit(device, |(x, weight, bias): (Tensor, Tensor, Tensor)| {
        let centred = &x - x.mean(-1).unsqueeze(-1);
        let variance = centred.square().mean(-1).unsqueeze(-1);
        centred * (variance + 1e-5).rsqrt() * weight + bias
    });
    Box::new(move || drop(black_box(compiled.call((&x, &weight, &bias)).expect("the norm is right"))))
}

fn product(device: &Device, side: usize) -> Call {
    let [a, b] = [0, 1].map(|seed| numbers(device, seed, &[side, side]));
    let compiled = jit(device, |(a, b): (Tensor, Tensor)| a.matmul(&b));
    Box::new(move || drop(black_box(compiled.call((&a, &b)).expect("the product is right"))))
}

type Layers<T> = Vec<Linear<T>>;

fn forward(layers: &Layers<Tensor>, x: &Tensor) -> Tensor {
    let (last, hidden) = layers.split_last().expect("a network has layers");
    last.forward(&hidden.iter().fold(x.clone(), |x, layer| layer.forward(&x).relu()))
}

fn training(device: &Device, sizes: &[usize], batch: usize) -> Call {
    let mut random = Random::new(1);
    let layers: Layers<Array> = sizes
        .windows(2)
        .map(|pair| Linear::new(device, pair[0], pair[1], &mut random).expect("the layer is small"))
        .collect();
    let adam = Adam::new(&layers).expect("the moments are small");
    let mut state = (layers, adam);
    let x = numbers(device, 9, &[batch, sizes[0]]);
    let labels: Vec<i32> = (0..batch as i32).map(|i| i % 10).collect();
    let y = Array::from_vec(device, labels, [batch]).expect("the batch is small");
    let train =
        step(device, |(layers, adam): (Layers<Tensor>, Adam<Layers<Tensor>>), (x, y, lr): (Tensor, Tensor, Tensor)| {
            let (loss, gradients) = value_and_grad(&layers, |layers| cross_entropy(&forward(layers, &x), &y));
            (adam.step(layers, gradients, &lr), loss)
        });
    Box::new(move || drop(black_box(train.call(&mut state, (&x, &y, 1e-3)).expect("the step is right"))))
}

/// One stream read and one written, by two threads or as many as there are.
fn copy() -> Call {
    let (from, mut to) = (vec![1f32; 1 << 24], vec![0f32; 1 << 24]);
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    let part = from.len().div_ceil(threads);
    Box::new(move || {
        std::thread::scope(|scope| {
            for (to, from) in to.chunks_mut(part).zip(from.chunks(part)) {
                scope.spawn(|| to.copy_from_slice(from));
            }
        });
        black_box(&to);
    })
}

fn workload(device: &Device, name: &str) -> Option<Call> {
    Some(match name {
        "floor copy" => copy(),
        "gelu chain 2^24" => chain(device, 1 << 24, gelu_chain),
        "gelu chain 2^16" => chain(device, 1 << 16, gelu_chain),
        "polynomial 2^24" => chain(device, 1 << 24, polynomial),
        "softmax" => of_square(device, |x| x.softmax(-1)),
        "layer norm" => layer_norm(device),
        "sum rows" => of_square(device, |x| x.sum(1)),
        "sum columns" => of_square(device, |x| x.sum(0)),
        "sum all" => of_square(device, |x| x.sum(..)),
        "transpose + 1" => of_square(device, |x| x.transpose() + 1.0),
        "matmul 256" => product(device, 256),
        "matmul 1024" => product(device, 1024),
        "step 784-512-512-10" => training(device, &[784, 512, 512, 10], 128),
        "step 64-128-10" => training(device, &[64, 128, 10], 32),
        _ => return None,
    })
}

fn main() {
    println!("{{\"system\": \"kiln {}\"}}", env!("CARGO_PKG_VERSION"));
    let device = Device::cpu();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("names are text");
        let name = line.trim();
        let Some(mut call) = workload(&device, name) else {
            println!("{{\"work\": \"{name}\"}}");
            continue;
        };
        let begun = Instant::now();
        call();
        let first = begun.elapsed().as_secs_f64() * 1e3;
        (0..2).for_each(|_| call());
        let mut times = Vec::new();
        let begun = Instant::now();
        while times.len() < 5 || (begun.elapsed().as_secs_f64() < 1.0 && times.len() < 2000) {
            let start = Instant::now();
            call();
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        println!("{{\"work\": \"{name}\", \"ms\": {}, \"first_ms\": {first}}}", times[times.len() / 2]);
    }
}
