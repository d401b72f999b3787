//! What the examples on handwritten digits share: a network of one hidden layer, and training it on a set that lies on the device.
//!
//! One compiled step takes the rows of a batch out of the training set, runs the network forward and backward, and lets Adam update every
//! weight in place. The device works while the next step is handed over: it is waited for once an epoch.

use std::error::Error;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use kiln::nn::Linear;
use kiln::optim::Adam;
use kiln::prelude::*;
use kiln::random::Random;

const CLASSES: usize = 10;

/// A backend by its name, for the command line.
pub(crate) fn backend(name: &str) -> Result<Backend, String> {
    name.parse().map_err(|()| format!("no backend is called {name}"))
}

/// Pixels, hidden numbers, 10 digits.
#[derive(Tree, Clone)]
pub(crate) struct Mlp<T> {
    hidden: Linear<T>,
    out: Linear<T>,
    /// What stands for white.
    white: f64,
}

impl Mlp<Tensor> {
    /// Images `[n, pixels]` of numbers from 0 to `white` to logits `f32[n, 10]`.
    fn forward(&self, images: &Tensor) -> Tensor {
        let x = images.cast(DType::F32) / self.white;
        self.out.forward(&self.hidden.forward(&x).relu())
    }
}

/// A network and its optimizer.
pub(crate) type State<T> = (Mlp<T>, Adam<Mlp<T>, T>);

/// A new network and its optimizer.
pub(crate) fn new_state(
    device: &Device,
    [pixels, hidden]: [usize; 2],
    white: f64,
    random: &mut Random,
) -> kiln::Result<State<Array>> {
    let hidden_layer = Linear::new(device, pixels, hidden, random)?;
    let model = Mlp { hidden: hidden_layer, out: Linear::new(device, hidden, CLASSES, random)?, white };
    let adam = Adam::new(&model)?;
    Ok((model, adam))
}

/// Images `u8[n, pixels]` and their digits `i32[n]`, of which a part is held out for the test.
pub(crate) struct Digits {
    pub(crate) pixels: usize,
    pub(crate) images: Vec<u8>,
    pub(crate) labels: Vec<i32>,
}

impl Digits {
    /// The images at `rows`, on a device.
    fn take(&self, rows: &[usize], device: &Device) -> kiln::Result<(Array, Array)> {
        let row = |&row: &usize| &self.images[row * self.pixels..][..self.pixels];
        let images: Vec<u8> = rows.iter().flat_map(row).copied().collect();
        let labels: Vec<i32> = rows.iter().map(|&row| self.labels[row]).collect();
        Ok((Array::from_vec(device, images, [rows.len(), self.pixels])?, Array::new(device, labels)?))
    }
}

/// How to train.
pub(crate) struct Training {
    pub(crate) epochs: usize,
    pub(crate) batch: usize,
    /// At the start; steps become smaller towards the end.
    pub(crate) learning_rate: f64,
    /// One image in so many is held out for the test.
    pub(crate) held_out: usize,
}

impl Training {
    /// Trains a network, and tells how it goes.
    pub(crate) fn run(
        &self,
        device: &Device,
        state: &mut State<Array>,
        digits: &Digits,
        random: &mut Random,
    ) -> Result<(), Box<dyn Error>> {
        let mut rows: Vec<usize> = (0..digits.labels.len()).collect();
        random.shuffle(&mut rows);
        let (test, train) = rows.split_at(rows.len() / self.held_out);
        let (images, labels) = digits.take(train, device)?;
        let (test_images, test_labels) = digits.take(test, device)?;

        let train_step = step(
            device,
            |(model, adam): State<Tensor>, (images, labels, rows, lr): (Tensor, Tensor, Tensor, Tensor)| {
                let (x, y) = (images.take(0, &rows), labels.take(0, &rows));
                let (loss, gradients) = value_and_grad(&model, |model| cross_entropy(&model.forward(&x), &y));
                (adam.step(model, gradients, &lr), loss)
            },
        )
        .named("train");
        let accuracy = jit(device, |(model, x, y): (Mlp<Tensor>, Tensor, Tensor)| {
            model.forward(&x).argmax(1).eq(&y).cast(DType::F32).mean(..)
        })
        .named("accuracy");
        let tested = |model: &Mlp<Array>| -> kiln::Result<f32> {
            Ok(accuracy.call((model, &test_images, &test_labels))?.item::<f32>()? * 100.0)
        };

        let mut order: Vec<i32> = (0..train.len() as i32).collect();
        let bar = ProgressBar::new((self.epochs * (order.len() / self.batch)) as u64);
        bar.set_style(ProgressStyle::with_template("{bar:40} {pos}/{len} steps  {msg}")?);
        let mut inside = Duration::ZERO;
        for epoch in 0..self.epochs {
            let lr = self.learning_rate * (1.0 - epoch as f64 / self.epochs as f64);
            random.shuffle(&mut order);
            let begun = Instant::now();
            let mut losses = Vec::new();
            for batch in order.chunks_exact(self.batch) {
                let batch = Array::new(device, batch)?;
                losses.push(train_step.call(state, (&images, &labels, &batch, lr))?);
                bar.inc(1);
            }
            device.synchronize()?;
            inside += begun.elapsed();
            let total: f32 = losses.iter().map(|loss| loss.item::<f32>()).sum::<Result<f32, _>>()?;
            let right = tested(&state.0)?;
            bar.suspend(|| {
                let loss = total / losses.len() as f32;
                println!("epoch {:>2}  loss {loss:.4}  test accuracy {right:.1} %", epoch + 1);
            });
        }
        bar.finish_and_clear();
        let report = train_step.report();
        if report.runs > 0 {
            println!(
                "on {device}: {} launches of {} kernels a step, {:.1} KiB moved, peak memory {:.1} KiB, {:.0?} each; compiled in {:.1?}",
                report.launches(),
                report.distinct_kernels,
                report.bytes() as f64 / 1024.0,
                report.peak_bytes as f64 / 1024.0,
                inside / report.runs as u32,
                report.capture_time + report.compile_time,
            );
        }
        println!("test accuracy: {:.1} %", tested(&state.0)?);
        Ok(())
    }
}
