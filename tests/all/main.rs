//! Everything that needs several crates of the project at once: one binary, one module a subject.

#![allow(clippy::unwrap_used)]
// Expected values are written as they come out of a definition, digit by digit.
#![allow(clippy::approx_constant)]

mod attention;
mod backends;
mod both_ways;
mod budget;
mod check;
mod codes;
mod command;
mod compiled;
mod composites;
mod counts;
#[cfg(feature = "cuda")]
mod cuda;
mod custom;
mod data;
mod documented;
mod ending;
mod faults;
mod files;
mod fusion;
mod gradients;
mod house;
mod ir_page;
mod jit;
mod memory;
mod mistakes;
mod mixed_precision;
mod ops;
mod pages;
mod plans;
mod planted;
mod profile;
mod quantized;
mod random;
mod random_cpu;
mod relaxed;
#[cfg(feature = "cuda")]
mod replay;
mod report;
mod seven;
mod shown;
mod state;
mod text;
mod thread_counts;
mod threads;
mod tracked;
mod traffic;
mod transformer;
mod under_test;
mod verify;
#[cfg(feature = "wgpu")]
mod wgpu;

/// A proptest configuration that draws the same cases in every run: a failure found once is found again. To look further, raise the
/// number of cases or change the seed.
pub(crate) fn seeded(cases: u32) -> proptest::test_runner::Config {
    let rng_seed = proptest::test_runner::RngSeed::Fixed(0x6b69_6c6e);
    proptest::test_runner::Config { cases, rng_seed, failure_persistence: None, ..Default::default() }
}
