//! Trains a small network on handwritten digits: `cargo run --release --example digits`. On a GPU:
//! `cargo run --release --features wgpu --example digits -- --backend wgpu`.
//!
//! One compiled step takes the rows of a batch out of the training set, runs the network forward and backward, and lets Adam update every
//! weight in place. A fifth of the images is held out for the test.

#![allow(clippy::print_stdout)]

use std::error::Error;
use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use flate2::read::GzDecoder;
use indicatif::{ProgressBar, ProgressStyle};
use kiln::files::{load, save};
use kiln::nn::Linear;
use kiln::optim::Adam;
use kiln::prelude::*;
use kiln::random::Random;

const PIXELS: usize = 64;
const HIDDEN: usize = 128;
const CLASSES: usize = 10;
const BATCH: usize = 32;
const LEARNING_RATE: f64 = 2e-3;
const DATA: &[u8] = include_bytes!("data/digits.csv.gz");

/// Trains a network on handwritten digits.
#[derive(Parser)]
struct Arguments {
    /// How often to go through the training set.
    #[arg(long, default_value_t = 25)]
    epochs: usize,
    /// Where to compute: cpu, wgpu or ndarray.
    #[arg(long, default_value = "cpu", value_parser = backend)]
    backend: Backend,
    /// Where to write model and optimizer in the end.
    #[arg(long)]
    save: Option<PathBuf>,
    /// Where to go on from.
    #[arg(long)]
    load: Option<PathBuf>,
}

fn backend(name: &str) -> Result<Backend, String> {
    name.parse().map_err(|()| format!("no backend is called {name}"))
}

/// 64 pixels, 128 hidden numbers, 10 digits.
#[derive(Tree, Clone)]
struct Mlp<T> {
    hidden: Linear<T>,
    out: Linear<T>,
}

impl Mlp<Tensor> {
    fn forward(&self, x: &Tensor) -> Tensor {
        self.out.forward(&self.hidden.forward(x).relu())
    }
}

/// Images `f32[n, 64]` from 0 to 1, and their digits `i32[n]`.
struct Digits {
    images: Vec<f32>,
    labels: Vec<i32>,
}

impl Digits {
    fn read() -> Result<Digits, Box<dyn Error>> {
        let mut text = String::new();
        GzDecoder::new(DATA).read_to_string(&mut text)?;
        let mut digits = Digits { images: Vec::new(), labels: Vec::new() };
        for line in text.lines() {
            let numbers = line.split(',').map(str::parse::<i32>).collect::<Result<Vec<i32>, _>>()?;
            let (label, pixels) = numbers.split_last().ok_or("an empty line")?;
            digits.images.extend(pixels.iter().map(|&shade| shade as f32 / 16.0));
            digits.labels.push(*label);
        }
        Ok(digits)
    }

    /// The images at `rows`, on a device.
    fn take(&self, rows: &[usize], device: &Device) -> kiln::Result<(Array, Array)> {
        let pixels = rows.iter().flat_map(|&row| &self.images[row * PIXELS..][..PIXELS]).copied().collect();
        let labels = rows.iter().map(|&row| self.labels[row]).collect();
        Ok((Array::from_vec(device, pixels, [rows.len(), PIXELS])?, Array::from_vec(device, labels, [rows.len()])?))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let device = Device::of(arguments.backend)?;
    let mut random = Random::new(17);

    let digits = Digits::read()?;
    let mut rows: Vec<usize> = (0..digits.labels.len()).collect();
    random.shuffle(&mut rows);
    let (test, train) = rows.split_at(rows.len() / 5);
    let (images, labels) = digits.take(train, &device)?;
    let (test_images, test_labels) = digits.take(test, &device)?;

    let model = Mlp {
        hidden: Linear::new(&device, PIXELS, HIDDEN, &mut random)?,
        out: Linear::new(&device, HIDDEN, CLASSES, &mut random)?,
    };
    let adam = Adam::new(&model)?;
    let mut state = (model, adam);
    if let Some(path) = &arguments.load {
        state = load(path, &state)?;
    }

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
    let batches = order.len() / BATCH;
    let bar = ProgressBar::new((arguments.epochs * batches) as u64);
    bar.set_style(ProgressStyle::with_template("{bar:40} {pos}/{len} steps  {msg}")?);
    let mut inside = Duration::ZERO;
    for epoch in 0..arguments.epochs {
        // Smaller steps towards the end.
        let lr = LEARNING_RATE * (1.0 - epoch as f64 / arguments.epochs as f64);
        random.shuffle(&mut order);
        let mut total = 0.0;
        for batch in order.chunks_exact(BATCH) {
            let batch = Array::new(&device, batch)?;
            let begun = Instant::now();
            let loss = train_step.call(&mut state, (&images, &labels, &batch, lr))?;
            inside += begun.elapsed();
            total += loss.item::<f32>()?;
            bar.inc(1);
        }
        let right: f32 = accuracy.call((&state.0, &test_images, &test_labels))?.item()?;
        bar.suspend(|| {
            let loss = total / batches as f32;
            println!("epoch {:>2}  loss {loss:.4}  test accuracy {:.1} %", epoch + 1, right * 100.0);
        });
    }
    bar.finish_and_clear();

    if let Some(path) = &arguments.save {
        save(path, &state)?;
        println!("saved {}", path.display());
    }
    let right: f32 = accuracy.call((&state.0, &test_images, &test_labels))?.item()?;
    let report = train_step.report();
    if report.runs > 0 {
        println!(
            "one step: {} launches of {} kernels, {:.1} KiB moved, peak memory {:.1} KiB, {:.0?} a step; compiled in {:.1?}",
            report.launches(),
            report.distinct_kernels,
            report.bytes() as f64 / 1024.0,
            report.peak_bytes as f64 / 1024.0,
            inside / report.runs as u32,
            report.capture_time + report.compile_time,
        );
    }
    println!("test accuracy: {:.1} %", right * 100.0);
    Ok(())
}
