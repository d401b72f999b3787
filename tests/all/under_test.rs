//! The backend that the tests run on: the CPU, or what `KILN_TEST_BACKEND` names (`wgpu`, of a build with that feature).
//!
//! Every test that is about what is computed takes its device from here, and so holds on every backend. Tests of one backend name it.

use std::sync::{LazyLock, Mutex, PoisonError};

use kiln_ir::Backend;
use kiln_runtime::Device;

static BACKEND: LazyLock<Backend> = LazyLock::new(|| {
    let name = std::env::var("KILN_TEST_BACKEND").unwrap_or_else(|_| "cpu".to_owned());
    name.parse().unwrap_or_else(|()| panic!("KILN_TEST_BACKEND: no backend is called {name}"))
});

/// Devices that were opened and that no thread has.
static FREE: Mutex<Vec<Device>> = Mutex::new(Vec::new());

/// A thread's device, free again when the thread ends.
struct Lent(Device);

impl Lent {
    fn new() -> Lent {
        // Another thread's failure is no reason to open one more.
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // A backend that was asked for and is not there is a failure: nothing is skipped.
        Lent(free.unwrap_or_else(|| opened(backend()).unwrap_or_else(|error| panic!("{}: {error}", backend()))))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.0.clone());
    }
}

thread_local! {
    static LENT: Lent = Lent::new();
}

#[cfg(feature = "wgpu")]
fn opened(backend: Backend) -> Result<Device, kiln_ir::Diagnostic> {
    use kiln_runtime::{WgpuLimits, WgpuOpening, WgpuOptions};
    // `KILN_TEST_LIMITS=webgpu` holds a device to what every page in a browser can count on.
    let limits = match std::env::var("KILN_TEST_LIMITS").as_deref() {
        Ok("webgpu") => WgpuLimits::WebGpu,
        _ => WgpuLimits::Device,
    };
    match backend {
        // A driver that computes on the CPU compiles texts in a queue's own thread: with a queue each, tests use all cores.
        Backend::Wgpu => Device::wgpu_with(WgpuOptions { limits, opening: WgpuOpening::Own, ..WgpuOptions::default() }),
        Backend::Cuda | Backend::Cpu | Backend::NdArray => Device::of(backend),
    }
}

#[cfg(not(feature = "wgpu"))]
fn opened(backend: Backend) -> Result<Device, kiln_ir::Diagnostic> {
    Device::of(backend)
}

/// The device under test: a CPU of its own for each test, which may look at its memory, or what this thread has of a GPU. Devices of other threads
/// may be others: what a test gives to threads of its own is passed to them.
pub(crate) fn device() -> Device {
    match backend() {
        Backend::Cpu => Device::cpu(),
        Backend::Wgpu | Backend::Cuda | Backend::NdArray => LENT.with(|lent| lent.0.clone()),
    }
}

/// Its backend.
pub(crate) fn backend() -> Backend {
    *BACKEND
}

/// All of some variants of a check on the CPU. A GPU compiles a text for each, which takes a driver milliseconds: there it is `most` of them, and
/// others for the next `subject`, so that over all subjects each has its turn.
pub(crate) fn each_or_some<T>(most: usize, variants: Vec<T>, subject: &dyn std::fmt::Debug) -> Vec<T> {
    match backend() {
        Backend::NdArray | Backend::Cpu => variants,
        Backend::Wgpu | Backend::Cuda => {
            let turn =
                format!("{subject:?}").bytes().fold(7usize, |turn, byte| turn.wrapping_mul(31) + usize::from(byte));
            let count = variants.len().max(1);
            let turn = turn % count;
            // Those after the first are spread over the others.
            let step = count.div_ceil(most.max(1));
            let is_taken = |index: &usize| ((index + turn) % count).is_multiple_of(step);
            variants.into_iter().enumerate().filter(|(index, _)| is_taken(index)).map(|(_, variant)| variant).collect()
        }
    }
}

/// [`each_or_some`] of which a GPU has one.
pub(crate) fn each_or_one<T>(variants: Vec<T>, subject: &dyn std::fmt::Debug) -> Vec<T> {
    each_or_some(1, variants, subject)
}

/// How many of `count` random cases are tried: a fraction on a GPU, and three at least, for the same reason.
pub(crate) fn tried(count: u32) -> u32 {
    match backend() {
        Backend::NdArray | Backend::Cpu => count,
        Backend::Wgpu | Backend::Cuda => count.div_ceil(20).max(3.min(count)),
    }
}
