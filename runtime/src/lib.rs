//! placeholder

pub mod cpu;
