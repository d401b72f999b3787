//! Everything that needs several crates of the project at once: one binary, one module a subject.

#![allow(clippy::unwrap_used)]

mod check;
mod composites;
mod cpu;
mod data;
mod gradients;
mod ir_page;
mod mistakes;
mod ops;
mod random;
mod text;
mod tolerance;
