//! placeholder

pub mod cpu;
pub mod reference;
