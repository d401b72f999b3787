//! Trains a network on 10,000 handwritten digits of MNIST: `cargo run --release --example mnist`. On a GPU:
//! `cargo run --release --features wgpu --example mnist -- --backend wgpu`.
//!
//! The images stay on the device as bytes; the compiled step turns the rows of a batch into numbers from 0 to 1 as it reads them. One image in ten
//! is held out for the test.

#![allow(clippy::print_stdout)]

use std::error::Error;
use std::io::Read;
use std::time::{Duration, Instant};

use clap::Parser;
use flate2::read::GzDecoder;
use kiln::nn::Linear;
use kiln::optim::Adam;
use kiln::prelude::*;
use kiln::random::Random;

const PIXELS: usize = 28 * 28;
const CLASSES: usize = 10;
const IMAGES: &[u8] = include_bytes!("data/mnist10k-images-idx3-ubyte.gz");
const LABELS: &[u8] = include_bytes!("data/mnist10k-labels-idx1-ubyte.gz");

/// Trains a network on 10,000 handwritten digits.
#[derive(Parser)]
struct Arguments {
    /// How often to go through the training set.
    #[arg(long, default_value_t = 12)]
    epochs: usize,
    /// Images in a batch.
    #[arg(long, default_value_t = 100)]
    batch: usize,
    /// Hidden numbers.
    #[arg(long, default_value_t = 256)]
    hidden: usize,
    /// Where to compute: cpu, wgpu or ndarray.
    #[arg(long, default_value = "cpu", value_parser = backend)]
    backend: Backend,
}

fn backend(name: &str) -> Result<Backend, String> {
    name.parse().map_err(|()| format!("no backend is called {name}"))
}

/// Pixels, hidden numbers, 10 digits.
#[derive(Tree, Clone)]
struct Mlp<T> {
    hidden: Linear<T>,
    out: Linear<T>,
}

impl Mlp<Tensor> {
    /// Images `u8[n, 784]` to logits `f32[n, 10]`.
    fn forward(&self, images: &Tensor) -> Tensor {
        let x = images.cast(DType::F32) / 255.0;
        self.out.forward(&self.hidden.forward(&x).relu())
    }
}

/// The bytes of an IDX file after its header, which must say `extents`.
fn idx(file: &[u8], extents: &[usize]) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut bytes = Vec::new();
    GzDecoder::new(file).read_to_end(&mut bytes)?;
    let header: Vec<u8> = [0, 0, 8, extents.len() as u8]
        .into_iter()
        .chain(extents.iter().flat_map(|&extent| (extent as u32).to_be_bytes()))
        .collect();
    let elements = bytes.strip_prefix(&*header).ok_or("the file is no IDX file of these extents")?;
    Ok(elements.to_vec())
}

fn main() -> Result<(), Box<dyn Error>> {
    let Arguments { epochs, batch, hidden, backend } = Arguments::parse();
    let device = Device::of(backend)?;
    let mut random = Random::new(3);

    let (images, labels) = (idx(IMAGES, &[10_000, 28, 28])?, idx(LABELS, &[10_000])?);
    let mut rows: Vec<usize> = (0..labels.len()).collect();
    random.shuffle(&mut rows);
    let on_device = |rows: &[usize]| -> kiln::Result<(Array, Array)> {
        let pixels: Vec<u8> = rows.iter().flat_map(|&row| &images[row * PIXELS..][..PIXELS]).copied().collect();
        let digits: Vec<i32> = rows.iter().map(|&row| i32::from(labels[row])).collect();
        Ok((Array::from_vec(&device, pixels, [rows.len(), PIXELS])?, Array::new(&device, digits)?))
    };
    let (test, train) = rows.split_at(rows.len() / 10);
    let ((test_images, test_labels), (images, labels)) = (on_device(test)?, on_device(train)?);

    let model = Mlp {
        hidden: Linear::new(&device, PIXELS, hidden, &mut random)?,
        out: Linear::new(&device, hidden, CLASSES, &mut random)?,
    };
    let adam = Adam::new(&model)?;
    let mut state = (model, adam);

    let train_step = step(
        &device,
        |(model, adam): (Mlp<Tensor>, Adam<Mlp<Tensor>>),
         (images, labels, rows, lr): (Tensor, Tensor, Tensor, Tensor)| {
            let (x, y) = (images.take(0, &rows), labels.take(0, &rows));
            let (loss, gradients) = value_and_grad(&model, |model| cross_entropy(&model.forward(&x), &y));
            (adam.step(model, gradients, &lr), loss)
        },
    )
    .named("train");
    let accuracy = jit(&device, |(model, x, y): (Mlp<Tensor>, Tensor, Tensor)| {
        model.forward(&x).argmax(1).eq(&y).cast(DType::F32).mean(..)
    })
    .named("accuracy");

    let mut order: Vec<i32> = (0..train.len() as i32).collect();
    let mut inside = Duration::ZERO;
    for epoch in 0..epochs {
        // Smaller steps towards the end.
        let lr = 2e-3 * (1.0 - epoch as f64 / epochs as f64);
        random.shuffle(&mut order);
        let begun = Instant::now();
        let mut losses = Vec::new();
        for batch in order.chunks_exact(batch) {
            let batch = Array::new(&device, batch)?;
            losses.push(train_step.call(&mut state, (&images, &labels, &batch, lr))?);
        }
        // The device works while the next step is handed over: it is waited for once an epoch.
        device.synchronize()?;
        inside += begun.elapsed();
        let total: f32 = losses.iter().map(|loss| loss.item::<f32>()).sum::<Result<f32, _>>()?;
        let right: f32 = accuracy.call((&state.0, &test_images, &test_labels))?.item()?;
        println!(
            "epoch {:>2}  loss {:.4}  test accuracy {:.1} %",
            epoch + 1,
            total / losses.len() as f32,
            right * 100.0
        );
    }
    let right: f32 = accuracy.call((&state.0, &test_images, &test_labels))?.item()?;
    let report = train_step.report();
    if report.runs > 0 {
        let each = inside / report.runs as u32;
        let compiled = report.capture_time + report.compile_time;
        println!("on {device}: {} launches a step, {each:.0?} each; compiled in {compiled:.1?}", report.launches());
    }
    println!("test accuracy: {:.1} %", right * 100.0);
    Ok(())
}
