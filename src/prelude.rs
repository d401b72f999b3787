//! Everything a user types: `use kiln::prelude::*;`.

pub use kiln_capture::*;
pub use kiln_derive::{ExtensionType, Tree};
pub use kiln_ir::custom::{CudaKernel, KernelResult, View, ViewMut, WgslKernel};
pub use kiln_ir::tree::{LeafOf, Tree, With};
pub use kiln_ir::{Backend, DType, HostData, Shape, TensorType};
pub use kiln_passes::Policy;
pub use kiln_runtime::{Array, Device, Element};

pub use crate::{Feed, Jit, Step, jit, step};
