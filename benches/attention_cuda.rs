//! Causal attention on an NVIDIA GPU, written as its parts: `cargo bench --features cuda --bench attention_cuda`.
//!
//! One line a direction: milliseconds a call (the median of rounds of calls that are handed over together and waited for once), and operations
//! a second as the field counts them: of the two products forward, of five in the gradients, halved by the mask.

#![allow(clippy::print_stdout)]

use std::time::Instant;

use kiln::HostData;
use kiln::prelude::*;

const ROUNDS: usize = 9;
const CALLS: usize = 20;

/// Milliseconds a call.
fn measured(device: &Device, mut call: impl FnMut() -> kiln::Result<()>) -> kiln::Result<f64> {
    call()?;
    device.synchronize()?;
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        for _ in 0..CALLS {
            call()?;
        }
        device.synchronize()?;
        rounds.push(begun.elapsed().as_secs_f64() * 1e3 / CALLS as f64);
    }
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[ROUNDS / 2])
}

fn attended(q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
    let [.., rows, width] = q.shape()[..] else { panic!("queries are [.., rows, width]") };
    let scores = q.matmul(&k.transpose()) * (1.0 / (width as f64).sqrt());
    let allowed = scores.scope().tril_mask(rows, rows, 0);
    allowed.select(scores, f64::NEG_INFINITY).softmax(-1).matmul(v)
}

fn main() -> kiln::Result<()> {
    let device = Device::cuda(0)?;
    println!("{}", device.hardware().unwrap_or_default());
    for [batch, heads, rows, width] in [[8, 16, 2048, 64], [4, 16, 4096, 64], [8, 8, 2048, 128]] {
        let shape = [batch, heads, rows, width];
        let numbers = |seed: usize| -> kiln::Result<Array> {
            let number = |at: usize| ((at.wrapping_mul(7919) + seed * 104_729) % 1009) as f64 / 252.25 - 2.0;
            let all: Vec<_> = (0..batch * heads * rows * width)
                .map(|at| kiln::ir::Literal::from_f64(DType::BF16, number(at)))
                .collect();
            let data = HostData::from_literals(DType::BF16, shape, &all).expect("there are as many as the shape has");
            Ok(Array::new(&device, &data)?)
        };
        let (q, k, v, g) = (numbers(1)?, numbers(2)?, numbers(3)?, numbers(4)?);
        let product = 2.0 * (batch * heads * width) as f64 * (rows as f64).powi(2) / 2.0;
        let name = format!("bf16 {batch}x{heads}x{rows}x{width}");

        let forward = jit(&device, |(q, k, v): (Tensor, Tensor, Tensor)| attended(&q, &k, &v));
        let time = measured(&device, || forward.call((&q, &k, &v)).map(drop))?;
        println!("{name:<24} forward            {time:8.3} ms  {:7.1} TFLOP/s", 2.0 * product / time / 1e9);

        let both = jit(&device, |(q, k, v, g): (Tensor, Tensor, Tensor, Tensor)| {
            value_and_grad(&vec![q, k, v], |p: &Vec<Tensor>| {
                (attended(&p[0], &p[1], &p[2]) * &g).cast(DType::F32).sum(..)
            })
        });
        let time = measured(&device, || both.call((&q, &k, &v, &g)).map(drop))?;
        println!("{name:<24} forward, gradients {time:8.3} ms  {:7.1} TFLOP/s", 7.0 * product / time / 1e9);
    }
    Ok(())
}
