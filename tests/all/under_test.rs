//! The backend that the tests run on: the CPU, or what `KILN_TEST_BACKEND` names (`wgpu`, of a build with that feature).
//!
//! Every test that is about what is computed takes its device from here, and so holds on every backend. Tests of one backend name it.

use std::sync::LazyLock;

use kiln_ir::Backend;
use kiln_runtime::Device;

static DEVICE: LazyLock<Device> = LazyLock::new(|| {
    let name = std::env::var("KILN_TEST_BACKEND").unwrap_or_else(|_| "cpu".to_owned());
    let backend: Backend = name.parse().unwrap_or_else(|()| panic!("KILN_TEST_BACKEND: no backend is called {name}"));
    // A backend that was asked for and is not there is a failure: nothing is skipped.
    opened(backend).unwrap_or_else(|error| panic!("KILN_TEST_BACKEND={name}: {error}"))
});

#[cfg(feature = "wgpu")]
fn opened(backend: Backend) -> Result<Device, kiln_ir::Diagnostic> {
    use kiln_runtime::{WgpuLimits, WgpuOptions};
    // `KILN_TEST_LIMITS=webgpu` holds a device to what every page in a browser can count on.
    match (backend, std::env::var("KILN_TEST_LIMITS").as_deref()) {
        (Backend::Wgpu, Ok("webgpu")) => {
            Device::wgpu_with(WgpuOptions { limits: WgpuLimits::WebGpu, ..WgpuOptions::default() })
        }
        _ => Device::of(backend),
    }
}

#[cfg(not(feature = "wgpu"))]
fn opened(backend: Backend) -> Result<Device, kiln_ir::Diagnostic> {
    Device::of(backend)
}

/// The device under test: a CPU of its own for each test, which may look at its memory, or one GPU for the whole process.
pub(crate) fn device() -> Device {
    match DEVICE.backend() {
        Backend::Cpu => Device::cpu(),
        Backend::Wgpu | Backend::Cuda | Backend::NdArray => DEVICE.clone(),
    }
}

/// Its backend.
pub(crate) fn backend() -> Backend {
    DEVICE.backend()
}

/// All of some variants of a check on the CPU. A GPU compiles a text for each, which takes a driver milliseconds: there it is one of them, and
/// another one for the next `subject`, so that over all subjects each has its turn.
pub(crate) fn each_or_one<T>(variants: Vec<T>, subject: &dyn std::fmt::Debug) -> Vec<T> {
    match backend() {
        Backend::NdArray | Backend::Cpu => variants,
        Backend::Wgpu | Backend::Cuda => {
            let turn =
                format!("{subject:?}").bytes().fold(7usize, |turn, byte| turn.wrapping_mul(31) + usize::from(byte));
            let count = variants.len().max(1);
            variants.into_iter().skip(turn % count).take(1).collect()
        }
    }
}

/// How many of `count` random cases are tried: a fraction on a GPU, for the same reason.
pub(crate) fn tried(count: u32) -> u32 {
    match backend() {
        Backend::NdArray | Backend::Cpu => count,
        Backend::Wgpu | Backend::Cuda => count.div_ceil(10),
    }
}
