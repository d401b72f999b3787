//! The README's line again, in the style of Burn: tensors are marked with `require_grad`, and `backward` gives their gradients.
#![allow(clippy::print_stdout)]

use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let device = Device::cpu();
    let fit = step(&device, |line: [Tensor; 2], (x, y, rate): (Tensor, Tensor, Tensor)| {
        let [slope, offset] = line.map_ref(|tensor| tensor.require_grad());
        let loss = mse(&(&x * &slope + &offset), &y);
        let mut gradients = loss.backward();
        // A long gradient is cut down before it is used.
        let clipped = slope.grad(&gradients).clamp(-0.5, 0.5);
        slope.grad_replace(&mut gradients, clipped);
        let next = [slope, offset].map(|tensor| tensor.inner() - tensor.grad_remove(&mut gradients) * &rate);
        (next, loss.inner())
    });
    let x: Vec<f32> = (0..100).map(|i| i as f32 / 100.0).collect();
    let y: Vec<f32> = x.iter().map(|x| 3.0 * x - 1.0 + 0.01 * (50.0 * x).sin()).collect();
    let (x, y) = (Array::new(&device, x)?, Array::new(&device, y)?);
    let mut line = [Array::new(&device, 0.0f32)?, Array::new(&device, 0.0f32)?];
    for i in 0..500 {
        let loss = fit.call(&mut line, (&x, &y, 0.5))?;
        if i % 100 == 0 {
            println!("loss {:.4}", loss.item::<f32>()?);
        }
    }
    println!("y = {:.2} x + {:.2}", line[0].item::<f32>()?, line[1].item::<f32>()?);
    Ok(())
}
