//! The README's twenty lines: a line fitted to noisy points.
#![allow(clippy::print_stdout)]

use kiln::optim::Adam;
use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let device = Device::cpu();
    let fit = step(&device, |(line, adam): ([Tensor; 2], Adam<[Tensor; 2]>), (x, y): (Tensor, Tensor)| {
        let (loss, gradients) = value_and_grad(&line, |[slope, offset]| mse(&(&x * slope + offset), &y));
        (adam.step(line, gradients, 0.05), loss)
    });
    let x: Vec<f32> = (0..100).map(|i| i as f32 / 100.0).collect();
    let y: Vec<f32> = x.iter().map(|x| 3.0 * x - 1.0 + 0.01 * (50.0 * x).sin()).collect();
    let (x, y) = (Array::new(&device, x)?, Array::new(&device, y)?);
    let line = [Array::new(&device, 0.0f32)?, Array::new(&device, 0.0f32)?];
    let mut state = (line.clone(), Adam::new(&line)?);
    for i in 0..500 {
        let loss = fit.call(&mut state, (&x, &y))?;
        if i % 100 == 0 {
            println!("loss {:.4}", loss.item::<f32>()?);
        }
    }
    println!("y = {:.2} x + {:.2}", state.0[0].item::<f32>()?, state.0[1].item::<f32>()?);
    println!("{}", fit.report());
    Ok(())
}
