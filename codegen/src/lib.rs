//! Printing kernels: text out of [`kiln_ir::kernel::Kernel`], and the names that the text is known by.
//!
//! This crate decides nothing: the same kernel in, the same text out. The emitters (WGSL, and CUDA C++ through CubeCL) stand behind
//! features of their own; what every emitter shares is how an entry point is called.

#[cfg(feature = "cuda")]
pub mod cubecl;
pub mod wgsl;

use std::hash::{Hash, Hasher};

use kiln_ir::kernel::Kernel;

#[cfg(feature = "wgpu")]
pub use wgsl::check_wgsl;

/// The name of a kernel's entry point: its form and a hash of its content. It holds no user name and no source line, and is the same on
/// every machine and in every run, so that it can key caches on disk.
///
/// ```
/// use kiln_ir::kernel::{Kernel, LoopKernel};
/// let kernel = Kernel::Loop(LoopKernel {
///     buffers: Vec::new(),
///     outer: [4].into_iter().collect(),
///     inner: Default::default(),
///     stages: Vec::new(),
/// });
/// assert!(kiln_codegen::entry_name(&kernel).starts_with("map_"));
/// assert_eq!(kiln_codegen::entry_name(&kernel), kiln_codegen::entry_name(&kernel.clone()));
/// ```
pub fn entry_name(kernel: &Kernel) -> String {
    let mut hasher = StableHasher(0xcbf2_9ce4_8422_2325);
    kernel.hash(&mut hasher);
    format!("{}_{:016x}", kernel.form().name(), hasher.finish())
}

/// FNV-1a: unlike the standard library's hashers, fixed for all time. Numbers are fed little-endian and `usize` as 64 bits, so that
/// word size and byte order do not show.
struct StableHasher(u64);

impl Hasher for StableHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write(&value.to_le_bytes());
    }

    fn write_u64(&mut self, value: u64) {
        self.write(&value.to_le_bytes());
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    fn write_i64(&mut self, value: i64) {
        self.write(&value.to_le_bytes());
    }

    fn write_isize(&mut self, value: isize) {
        self.write_i64(value as i64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
