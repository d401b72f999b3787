//! Backends: where a tensor lives and which kernels compute it.

use std::fmt;

/// A backend, a plain closed enum. A device's ordinal is no part of it: that belongs to an `Array` and to a compiled step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Backend {
    /// The reference interpreter: op by op on host arrays, the oracle for every other backend.
    NdArray,
    /// Fused native kernels on the CPU.
    Cpu,
    /// WGSL kernels through wgpu.
    Wgpu,
    /// CUDA kernels.
    Cuda,
}

impl Backend {
    /// Every backend.
    pub const ALL: [Backend; 4] = [Backend::NdArray, Backend::Cpu, Backend::Wgpu, Backend::Cuda];

    /// The name in messages, as a user writes it in Rust: `Cpu`, `NdArray`, ...
    pub const fn name(self) -> &'static str {
        match self {
            Backend::NdArray => "NdArray",
            Backend::Cpu => "Cpu",
            Backend::Wgpu => "Wgpu",
            Backend::Cuda => "Cuda",
        }
    }

    /// The name in the text form and on the command line: `cpu`, `ndarray`, ...
    pub const fn keyword(self) -> &'static str {
        match self {
            Backend::NdArray => "ndarray",
            Backend::Cpu => "cpu",
            Backend::Wgpu => "wgpu",
            Backend::Cuda => "cuda",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reads the keyword form (`cpu`).
impl std::str::FromStr for Backend {
    type Err = ();

    fn from_str(text: &str) -> Result<Backend, ()> {
        Backend::ALL.into_iter().find(|backend| backend.keyword() == text).ok_or(())
    }
}
