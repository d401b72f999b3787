//! The workloads that `benches/peers/run.py` times here and elsewhere, in turn: a workload's name per line in, one JSON line out.
//!
//! ```text
//! peers [--gpu [--device cuda] [--scale full|small]]
//! ```
//!
//! A workload is compiled at its first call, which is timed alone, and then called again and again with its arguments resident; each
//! result is dropped before the next call. `prepare` before a name makes the first call only. On the CPU calls are timed one by one, and
//! `floor copy` times what every workload is held to: one stream read and one written on all cores. On a GPU (`gpu.rs`) many calls are handed
//! over and then waited for together. What panics is told as `failed`, and the next name is read.

// A bench says what it saw.
#![allow(missing_docs, clippy::print_stdout)]

mod gpu;

use std::collections::HashMap;
use std::hint::black_box;
use std::io::BufRead;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use kiln::capture::Gelu;
use kiln::ir::Precision;
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

fn forward(layers: &Layers<Tensor>, x: &Tensor, precision: Precision) -> Tensor {
    let layer = |layer: &Linear<Tensor>, x: &Tensor| {
        let product = x.matmul_with(&layer.weight, precision);
        layer.bias.as_ref().map_or_else(|| product.clone(), |bias| &product + bias)
    };
    let (last, hidden) = layers.split_last().expect("a network has layers");
    layer(last, &hidden.iter().fold(x.clone(), |x, hidden| layer(hidden, &x).relu()))
}

fn training(device: &Device, sizes: &[usize], batch: usize, precision: Precision) -> Call {
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
    let train = step(
        device,
        move |(layers, adam): (Layers<Tensor>, Adam<Layers<Tensor>>), (x, y, lr): (Tensor, Tensor, Tensor)| {
            let (loss, gradients) =
                value_and_grad(&layers, |layers| cross_entropy(&forward(layers, &x, precision), &y));
            (adam.step(layers, gradients, &lr), loss)
        },
    );
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
        "step 784-512-512-10" => training(device, &[784, 512, 512, 10], 128, Precision::Full),
        "step 64-128-10" => training(device, &[64, 128, 10], 32, Precision::Full),
        _ => return None,
    })
}

/// How a workload is timed.
#[derive(Clone, Copy)]
enum Timing<'a> {
    /// Calls that return when they are done, one by one.
    Each,
    /// Calls that are handed over to a device.
    Queued(&'a Device),
}

impl Timing<'_> {
    /// Milliseconds of `count` calls until all of them are done, divided by it.
    fn time(self, count: usize, call: &mut Call) -> f64 {
        let start = Instant::now();
        (0..count).for_each(|_| call());
        self.finish();
        start.elapsed().as_secs_f64() * 1e3 / count as f64
    }

    fn finish(self) {
        match self {
            Timing::Each => {}
            Timing::Queued(device) => device.synchronize().expect("the device is well"),
        }
    }

    /// The median time of a call in milliseconds, and what the host spends on handing one over, in microseconds.
    fn measure(self, call: &mut Call) -> (f64, Option<f64>) {
        let (count, seconds) = match self {
            Timing::Each => {
                (0..2).for_each(|_| call());
                (1, 1.0)
            }
            Timing::Queued(_) => {
                self.time(5, call);
                ((20.0 / self.time(5, call)).clamp(5.0, 200.0) as usize, 0.25)
            }
        };
        let (mut times, begun) = (Vec::new(), Instant::now());
        while times.len() < 5 || (begun.elapsed().as_secs_f64() < seconds && times.len() < 2000) {
            times.push(self.time(count, call));
        }
        let host = match self {
            Timing::Each => None,
            Timing::Queued(_) => Some(median((0..9).map(|_| self.host(call)).collect())),
        };
        (median(times), host)
    }

    /// Few enough calls that no queue is full.
    fn host(self, call: &mut Call) -> f64 {
        let start = Instant::now();
        (0..16).for_each(|_| call());
        let taken = start.elapsed().as_secs_f64() * 1e6 / 16.0;
        self.finish();
        taken
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The words after an option of the command line.
fn option(name: &str) -> Option<String> {
    let mut words = std::env::args().skip_while(|word| word != name);
    words.next().and_then(|_| words.next())
}

fn main() {
    let gpu = std::env::args().any(|word| word == "--gpu");
    let device = match option("--device").as_deref() {
        None if !gpu => Device::cpu(),
        Some("cpu") => Device::cpu(),
        None | Some("cuda") => Device::cuda(0).expect("a device is there"),
        Some(other) => panic!("no such device: {other}"),
    };
    let sizes = gpu::Sizes::of(option("--scale").as_deref() == Some("small"));
    let timing = if gpu { Timing::Queued(&device) } else { Timing::Each };
    let hardware = device.hardware().map(|name| format!(" on {name}")).unwrap_or_default();
    println!("{}", serde_json::json!({"system": format!("kiln {}{hardware}", env!("CARGO_PKG_VERSION"))}));
    let mut prepared: HashMap<String, (Call, f64)> = HashMap::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("names are text");
        let (name, only) = match line.trim().strip_prefix("prepare ") {
            Some(name) => (name, true),
            None => (line.trim(), false),
        };
        let answer = catch_unwind(AssertUnwindSafe(|| {
            let known = prepared.remove(name).or_else(|| {
                let mut call = if gpu { gpu::workload(&device, &sizes, name) } else { workload(&device, name) }?;
                timing.finish();
                let first = timing.time(1, &mut call);
                Some((call, first))
            });
            let Some((mut call, first)) = known else { return serde_json::json!({"work": name}) };
            let answer = if only {
                serde_json::json!({"work": name, "first_ms": first})
            } else {
                let (ms, host) = timing.measure(&mut call);
                serde_json::json!({"work": name, "ms": ms, "host_us": host, "first_ms": first})
            };
            if gpu {
                prepared.insert(name.to_owned(), (call, first));
            }
            answer
        }));
        let answer = answer.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "it panicked".to_owned());
            serde_json::json!({"work": name, "failed": text})
        });
        println!("{answer}");
    }
}
