//! What a GPU reaches through wgpu, beside what it copies in the same run: `cargo bench --features wgpu --bench wgpu`.
//!
//! One line a workload: milliseconds a call (the median of rounds of calls that are handed over together and waited for once), bytes or flops a
//! second, and for what only moves bytes, the part of the device's copy bandwidth.

#![allow(clippy::print_stdout)]

use std::time::Instant;

use kiln::nn::Linear;
use kiln::optim::Adam;
use kiln::prelude::*;
use kiln::random::Random;

#[path = "wgpu/copy.rs"]
mod copy;

const ROUNDS: usize = 7;

/// Milliseconds a call.
fn measured(device: &Device, calls: usize, mut call: impl FnMut() -> kiln::Result<()>) -> kiln::Result<f64> {
    call()?;
    device.synchronize()?;
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        device.synchronize()?;
        rounds.push(begun.elapsed().as_secs_f64() * 1e3 / calls as f64);
    }
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[ROUNDS / 2])
}

#[derive(Tree, Clone)]
struct Mlp<T> {
    first: Linear<T>,
    second: Linear<T>,
    out: Linear<T>,
}

impl Mlp<Tensor> {
    fn forward(&self, x: &Tensor) -> Tensor {
        self.out.forward(&self.second.forward(&self.first.forward(x).relu()).relu())
    }
}

fn main() -> kiln::Result<()> {
    let device = Device::wgpu()?;
    let whole = [16_384, 4096];
    let bytes = 2.0 * 4.0 * (whole[0] * whole[1]) as f64;
    let mut copied = f64::INFINITY;
    if let Some(adapter) = device.adapter() {
        println!("{adapter}, driver {}", adapter.driver);
        let copies = copy::Copies::new(&adapter.name, bytes as u64 / 2);
        for copy::Copied { name, ms } in copies.iter().flat_map(copy::Copies::measured) {
            println!("{name:<28} {ms:9.3} ms  {:8.0} GB/s", bytes / ms / 1e6);
            copied = copied.min(ms);
        }
    }
    // Of both signs, and on both sides of where functions change their ways.
    let numbers: Vec<f32> = (0..whole[0] * whole[1]).map(|i| (i * 7919 % 65_521) as f32 / 8192.0 - 4.0).collect();
    let x = Array::from_slice(&device, &numbers, whole)?;
    let row = Array::ones(&device, DType::F32, [whole[1]])?;

    let moved = |name: &str, ms: f64| {
        println!(
            "{name:<28} {ms:9.3} ms  {:8.0} GB/s  {:4.0} % of the best copy",
            bytes / ms / 1e6,
            100.0 * copied / ms
        );
    };
    let negate = jit(&device, |x: Tensor| -x);
    moved("negation", measured(&device, 20, || negate.call(&x).map(drop))?);
    let gelu = jit(&device, |x: Tensor| (&x * 1.5 + 0.25).gelu() * x.sigmoid());
    moved("gelu chain", measured(&device, 20, || gelu.call(&x).map(drop))?);
    let softmax = jit(&device, |x: Tensor| x.softmax(-1));
    moved("softmax", measured(&device, 20, || softmax.call(&x).map(drop))?);
    let norm = jit(&device, |(x, w, b): (Tensor, Tensor, Tensor)| layer_norm(&x, Some(&w), Some(&b), 1e-5));
    moved("layer norm", measured(&device, 20, || norm.call((&x, &row, &row)).map(drop))?);

    let read = |name: &str, ms: f64| {
        println!("{name:<28} {ms:9.3} ms  {:8.0} GB/s read", bytes / 2.0 / ms / 1e6);
    };
    let rows = jit(&device, |x: Tensor| x.sum(-1));
    read("sum of rows", measured(&device, 20, || rows.call(&x).map(drop))?);
    let columns = jit(&device, |x: Tensor| x.sum(0));
    read("sum of columns", measured(&device, 20, || columns.call(&x).map(drop))?);
    let all = jit(&device, |x: Tensor| x.sum(..));
    read("sum of all", measured(&device, 20, || all.call(&x).map(drop))?);

    for size in [1024, 2048, 4096] {
        let a = Array::ones(&device, DType::F32, [size, size])?;
        let product = jit(&device, |(a, b): (Tensor, Tensor)| a.matmul(&b));
        let ms = measured(&device, 20, || product.call((&a, &a)).map(drop))?;
        let flops = 2.0 * (size as f64).powi(3) / ms / 1e9;
        println!("{:<28} {ms:9.3} ms  {flops:8.1} TFLOP/s", format!("matmul f32 {size}^3"));
    }

    for [input, hidden, batch] in [[784, 512, 128], [784, 2048, 4096]] {
        let mut random = Random::new(1);
        let model = Mlp {
            first: Linear::new(&device, input, hidden, &mut random)?,
            second: Linear::new(&device, hidden, hidden, &mut random)?,
            out: Linear::new(&device, hidden, 10, &mut random)?,
        };
        let adam = Adam::new(&model)?;
        let mut state = (model, adam);
        let train = step(&device, |(model, adam): (Mlp<Tensor>, Adam<Mlp<Tensor>>), (x, y): (Tensor, Tensor)| {
            let (loss, gradients) = value_and_grad(&model, |model| cross_entropy(&model.forward(&x), &y));
            let lr = x.scope().constant(1e-3f32);
            (adam.step(model, gradients, &lr), loss)
        });
        let x = Array::ones(&device, DType::F32, [batch, input])?;
        let y = Array::zeros(&device, DType::I32, [batch])?;
        let begun = Instant::now();
        train.call(&mut state, (&x, &y))?;
        device.synchronize()?;
        let first = begun.elapsed().as_secs_f64() * 1e3;
        let ms = measured(&device, 50, || train.call(&mut state, (&x, &y)).map(drop))?;
        let launches = train.report().launches();
        let name = format!("step {input}-{hidden}-{hidden}-10, {batch}");
        println!("{name:<28} {ms:9.3} ms  {launches} launches, one submission; first call {first:.0} ms");
    }
    Ok(())
}
