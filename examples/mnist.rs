//! Trains a network on 10,000 handwritten digits of MNIST: `cargo run --release --example mnist`. On a GPU:
//! `cargo run --release --features wgpu --example mnist -- --backend wgpu`, or `cuda` in both places.
//!
//! `training` holds the network and the compiled step. The images stay on the device as bytes; the step turns the rows of a batch into numbers from
//! 0 to 1 as it reads them. One image in ten is held out for the test.

#![allow(clippy::print_stdout)]

mod training;

use std::error::Error;
use std::io::Read;

use clap::Parser;
use flate2::read::GzDecoder;
use kiln::prelude::*;
use kiln::random::Random;
use training::{Digits, Training, backend, new_state};

const PIXELS: usize = 28 * 28;
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
    /// Where to compute: cpu, wgpu, cuda or ndarray.
    #[arg(long, default_value = "cpu", value_parser = backend)]
    backend: Backend,
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
    let labels = idx(LABELS, &[10_000])?.into_iter().map(i32::from).collect();
    let digits = Digits { pixels: PIXELS, images: idx(IMAGES, &[10_000, 28, 28])?, labels };
    let mut state = new_state(&device, [PIXELS, hidden], 255.0, &mut random)?;
    Training { epochs, batch, learning_rate: 2e-3, held_out: 10 }.run(&device, &mut state, &digits, &mut random)
}
