//! Trains a small network on handwritten digits: `cargo run --release --example digits`. On a GPU:
//! `cargo run --release --features wgpu --example digits -- --backend wgpu`, or `cuda` in both places.
//!
//! `training` holds the network and the compiled step. A fifth of the images is held out for the test.

#![allow(clippy::print_stdout)]

mod training;

use std::error::Error;
use std::io::Read;
use std::path::PathBuf;

use clap::Parser;
use flate2::read::GzDecoder;
use kiln::files::{load, save};
use kiln::prelude::*;
use kiln::random::Random;
use training::{Digits, Training, backend, new_state};

const PIXELS: usize = 64;
const HIDDEN: usize = 128;
const DATA: &[u8] = include_bytes!("data/digits.csv.gz");

/// Trains a network on handwritten digits.
#[derive(Parser)]
struct Arguments {
    /// How often to go through the training set.
    #[arg(long, default_value_t = 25)]
    epochs: usize,
    /// Where to compute: cpu, wgpu, cuda or ndarray.
    #[arg(long, default_value = "cpu", value_parser = backend)]
    backend: Backend,
    /// Where to write model and optimizer in the end.
    #[arg(long)]
    save: Option<PathBuf>,
    /// Where to go on from.
    #[arg(long)]
    load: Option<PathBuf>,
}

/// Images of 8 x 8 shades from 0 to 16, one a line, each with its digit at the end.
fn read() -> Result<Digits, Box<dyn Error>> {
    let mut text = String::new();
    GzDecoder::new(DATA).read_to_string(&mut text)?;
    let mut digits = Digits { pixels: PIXELS, images: Vec::new(), labels: Vec::new() };
    for line in text.lines() {
        let numbers = line.split(',').map(str::parse::<u8>).collect::<Result<Vec<u8>, _>>()?;
        let (label, pixels) = numbers.split_last().ok_or("an empty line")?;
        digits.images.extend(pixels);
        digits.labels.push(i32::from(*label));
    }
    Ok(digits)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let device = Device::of(arguments.backend)?;
    let mut random = Random::new(17);
    let mut state = new_state(&device, [PIXELS, HIDDEN], 16.0, &mut random)?;
    if let Some(path) = &arguments.load {
        state = load(path, &state)?;
    }
    let training = Training { epochs: arguments.epochs, batch: 32, learning_rate: 2e-3, held_out: 5 };
    training.run(&device, &mut state, &read()?, &mut random)?;
    if let Some(path) = &arguments.save {
        save(path, &state)?;
        println!("saved {}", path.display());
    }
    Ok(())
}
