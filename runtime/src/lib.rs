//! Running: arrays, devices, the executor of plans, and the reference interpreter.
//!
//! A [`Device`] owns memory; an [`Array`] is data in it. An [`Executable`] runs a compiled [`kiln_ir::plan::Plan`] (or, by the book, a
//! graph) on a device: arrays in, arrays out. Nothing here decides how a graph is computed: that is settled in the plan.

mod array;
mod buffer;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod cache;
mod ceiling;
pub mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod custom;
mod device;
mod element;
mod executor;
mod fault;
mod memory;
mod pool;
pub mod reference;
#[cfg(feature = "wgpu")]
mod wgpu;

pub use array::{Array, IntoArray};
pub use ceiling::Ceilings;
pub use custom::run_cpu_function;
pub use device::{Device, available, unsupported};
pub use element::Element;
pub use executor::{Argument, Executable, Programs, RunError, RunStatistics};
pub use pool::PoolStatistics;
#[cfg(feature = "wgpu")]
pub use wgpu::{Adapter, WgpuLimits, WgpuOpening, WgpuOptions};
