//! Kiln: a lazy graph-capture tensor compiler with fusion.
//!
//! Ops on [`Tensor`]s are recorded, checked and compiled; [`Array`]s hold the data. [`jit`] compiles a function of tensors, [`step`] one
//! that updates a state in place.
//!
//! ```
//! use kiln::prelude::*;
//!
//! let device = Device::reference();
//! let normalize = jit(&device, |x: Tensor| &x / x.sum(1).unsqueeze(1));
//! let x = Array::new(&device, [[1.0f32, 3.0], [2.0, 2.0]])?;
//! assert_eq!(normalize.call(&x)?.to_vec::<f32>()?, [0.25, 0.75, 0.5, 0.5]);
//! # Ok::<(), kiln::Error>(())
//! ```

// The derive names this crate by its own name.
extern crate self as kiln;

mod cache;
mod compiled;
#[cfg(feature = "cuda")]
mod cuda;
mod dump;
mod error;
pub mod errors;
mod feed;
pub mod files;
mod finite;
#[cfg(feature = "wgpu")]
mod gpu;
pub mod graph_file;
pub mod graph_run;
mod jit;
pub mod nn;
pub mod optim;
pub mod prelude;
mod profile;
pub mod random;
mod report;
mod reproduce;
mod step;
mod verify;

/// The page on custom ops: its snippets run.
#[cfg(doctest)]
#[doc = include_str!("../docs/custom-ops.md")]
struct CustomOpsPage;

/// The page on mixed precision: its snippets run.
#[cfg(doctest)]
#[doc = include_str!("../docs/mixed-precision.md")]
struct MixedPrecisionPage;

/// The page on reports: its snippets run.
#[cfg(doctest)]
#[doc = include_str!("../docs/report.md")]
struct ReportPage;

pub use cache::CacheStatistics;
pub use compiled::{Compiled, Program, compile, compile_with};
pub use error::{Error, Result, explain, main, render, render_colored};
pub use feed::Feed;
pub use jit::{Jit, jit};
pub use kiln_capture as capture;
pub use kiln_capture::*;
pub use kiln_derive::{ExtensionType, Tree};
pub use kiln_ir as ir;
pub use kiln_ir::custom::{CudaKernel, KernelResult, View, ViewMut, WgslKernel};
pub use kiln_ir::tree;
pub use kiln_ir::{Backend, Code, CustomOps, DType, HostData, Shape, TensorType};
pub use kiln_passes as passes;
pub use kiln_passes::{Options, Policy, mixed_precision};
pub use kiln_runtime as runtime;
pub use kiln_runtime::{Array, Ceilings, Device, Element, Executable, IntoArray};
pub use profile::{Bottleneck, KernelTime, Profile, Span, profile};
pub use report::{CopyReport, Explain, Holds, KernelReport, Lifetime, Place, Quantity, Report, SCHEMA_VERSION};
pub use step::{Step, step};
#[cfg(feature = "wgpu")]
pub use verify::check_kernels;
pub use verify::reproduction;
pub use verify::{Verified, verify};
