//! GPUs through wgpu: Vulkan, Metal, DX12, and WebGPU in a browser.
//!
//! - `adapter`: which hardware there is, which of it is taken, what it offers;
//! - `probe`: what it does where WGSL leaves that open;
//! - `ceiling`: how fast it copies and computes at best;
//! - `storage`: memory of tensors, from a pool of whole buffers;
//! - `pipeline`: texts compiled once, layouts and bind groups kept;
//! - `times`: how long each step of a run took, by timestamps.
//!
//! What takes time on a device is asynchronous: opening it, and bringing bytes back. Outside a browser the public functions wait for that; in a
//! browser, where nobody may wait, their `async` forms are to be awaited. Nothing here needs threads or files.

mod adapter;
#[cfg(not(target_arch = "wasm32"))]
mod ceiling;
mod pipeline;
mod probe;
mod storage;
mod times;

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use kiln_ir::Diagnostic;
use kiln_ir::gpu::GpuTarget;

pub use adapter::{Adapter, WgpuLimits, WgpuOpening, WgpuOptions};
pub(crate) use pipeline::{Groups, Pipeline, Trust};
pub(crate) use storage::{GpuStorage, write_words};
pub(crate) use times::Timer;

use crate::ceiling::Ceilings;
use crate::fault::Health;
use crate::pool::Pool;
use pipeline::Pipelines;

/// An opened device with everything that belongs to it.
pub(crate) struct Gpu {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) pool: Pool<wgpu::Buffer>,
    pub(crate) pipelines: Pipelines,
    adapter: Adapter,
    options: WgpuOptions,
    target: GpuTarget,
    pub(crate) health: Arc<Health>,
    ceilings: OnceLock<Option<Ceilings>>,
}

/// The devices that are open and shared. Opening one again gives the same as long as somebody holds it: buffers of two openings cannot meet in a kernel,
/// although they lie on the same hardware.
static OPEN: Mutex<Vec<Weak<Gpu>>> = Mutex::new(Vec::new());

impl Gpu {
    /// Opens a device, or gives the one that is open with these options where that may be shared.
    ///
    /// Errors: K0708 where there is no such adapter, K0702 where it does not open.
    pub(crate) async fn open(options: WgpuOptions) -> Result<Arc<Gpu>, Diagnostic> {
        if options.opening == WgpuOpening::Own {
            return Ok(Arc::new(Gpu::new(options).await?));
        }
        let find = || {
            let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
            open.retain(|gpu| gpu.strong_count() > 0);
            open.iter().filter_map(Weak::upgrade).find(|gpu| gpu.options == options && !gpu.health.is_broken())
        };
        if let Some(gpu) = find() {
            return Ok(gpu);
        }
        let gpu = Arc::new(Gpu::new(options.clone()).await?);
        // Somebody else may have been as quick.
        if let Some(other) = find() {
            return Ok(other);
        }
        OPEN.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&gpu));
        Ok(gpu)
    }

    async fn new(options: WgpuOptions) -> Result<Gpu, Diagnostic> {
        let opened = adapter::open(&options).await?;
        let health = Arc::new(Health::default());
        let told = health.clone();
        opened.device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| told.fail(error.to_string())));
        let told = health.clone();
        opened.device.set_device_lost_callback(move |reason, message| match reason {
            wgpu::DeviceLostReason::Destroyed => {}
            wgpu::DeviceLostReason::Unknown => told.fail(format!("the device is lost: {message}")),
        });
        let pipelines = Pipelines::new(&opened.device, &opened.adapter);
        let mut gpu = Gpu {
            pool: Pool::with_limit(isize::MAX as usize),
            pipelines,
            device: opened.device,
            queue: opened.queue,
            adapter: opened.adapter,
            target: opened.target,
            options,
            health,
            ceilings: OnceLock::new(),
        };
        if gpu.options.limits == WgpuLimits::Device {
            gpu.target.fma = probe::fma(&gpu).await;
        }
        Ok(gpu)
    }

    /// The hardware.
    pub(crate) fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// What kernels may use of it.
    pub(crate) fn target(&self) -> &GpuTarget {
        &self.target
    }

    /// What it does at best, measured at the first call. A page in a browser cannot wait for that.
    pub(crate) fn ceilings(&self) -> Option<Ceilings> {
        #[cfg(not(target_arch = "wasm32"))]
        return *self.ceilings.get_or_init(|| ceiling::measured(self));
        #[cfg(target_arch = "wasm32")]
        *self.ceilings.get_or_init(|| None)
    }

    pub(crate) fn encoder(&self, label: &str) -> wgpu::CommandEncoder {
        self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some(label) })
    }

    /// A buffer for tensors; `None` where the device does not give it.
    pub(crate) fn make_buffer(&self, bytes: usize) -> Option<wgpu::Buffer> {
        use wgpu::BufferUsages;
        if bytes as u64 > self.device.limits().max_buffer_size {
            return None;
        }
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        self.tried(|device| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: bytes as u64,
                usage,
                mapped_at_creation: false,
            })
        })
    }

    /// Makes something that may be refused for want of memory. In a browser the refusal comes later, as a fault.
    #[cfg(not(target_arch = "wasm32"))]
    fn tried<T>(&self, make: impl FnOnce(&wgpu::Device) -> T) -> Option<T> {
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let made = make(&self.device);
        pollster::block_on(scope.pop()).is_none().then_some(made)
    }

    #[cfg(target_arch = "wasm32")]
    fn tried<T>(&self, make: impl FnOnce(&wgpu::Device) -> T) -> Option<T> {
        Some(make(&self.device))
    }

    /// Waits until all work that was handed over is done. A page in a browser does not wait.
    pub(crate) fn wait(&self) {
        if let Err(error) = self.device.poll(wgpu::PollType::wait_indefinitely()) {
            self.health.fail(format!("waiting for the device: {error}"));
        }
    }

    /// [`Gpu::copy_to_host`], waited for. K0702 where the device is at fault, and in a page of a browser, where nobody can wait.
    pub(crate) fn read_now(&self, buffer: &wgpu::Buffer, to: &mut [u8]) -> Result<(), Diagnostic> {
        #[cfg(not(target_arch = "wasm32"))]
        return pollster::block_on(self.copy_to_host(buffer, to));
        #[cfg(target_arch = "wasm32")]
        {
            let _ = (buffer, to);
            Err(crate::fault::not_fetched())
        }
    }

    /// Copies the first bytes of a buffer to the host. K0702 where the device is at fault.
    pub(crate) async fn copy_to_host(&self, buffer: &wgpu::Buffer, to: &mut [u8]) -> Result<(), Diagnostic> {
        if to.is_empty() {
            return self.health.check();
        }
        let padded = to.len().next_multiple_of(4);
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let staging = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("read"),
            size: padded as u64,
            usage,
            mapped_at_creation: false,
        });
        let mut encoder = self.encoder("read");
        encoder.copy_buffer_to_buffer(buffer, 0, &staging, 0, padded as u64);
        self.queue.submit([encoder.finish()]);
        let (send, mapped) = oneshot();
        staging.map_async(wgpu::MapMode::Read, .., move |result| send.tell(result));
        #[cfg(not(target_arch = "wasm32"))]
        self.wait();
        if let Err(error) = mapped.await {
            self.health.fail(format!("reading from the device: {error}"));
        }
        self.health.check()?;
        match staging.get_mapped_range(..) {
            Ok(range) => to.copy_from_slice(&range[..to.len()]),
            Err(error) => self.health.fail(format!("reading from the device: {error}")),
        }
        staging.unmap();
        self.health.check()
    }
}

/// What was compiled is kept for the next process.
impl Drop for Gpu {
    fn drop(&mut self) {
        self.pipelines.save();
    }
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpu").field("adapter", &self.adapter).field("target", &self.target).finish_non_exhaustive()
    }
}

/// One value that a callback tells and a future waits for.
fn oneshot<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Mutex::new(Told { value: None, waker: None }));
    (Sender(shared.clone()), Receiver(shared))
}

struct Told<T> {
    value: Option<T>,
    waker: Option<std::task::Waker>,
}

struct Sender<T>(Arc<Mutex<Told<T>>>);

impl<T> Sender<T> {
    fn tell(self, value: T) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.value = Some(value);
        if let Some(waker) = told.waker.take() {
            waker.wake();
        }
    }
}

struct Receiver<T>(Arc<Mutex<Told<T>>>);

impl<T> Future for Receiver<T> {
    type Output = T;

    fn poll(self: std::pin::Pin<&mut Self>, context: &mut std::task::Context<'_>) -> std::task::Poll<T> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match told.value.take() {
            Some(value) => std::task::Poll::Ready(value),
            None => {
                told.waker = Some(context.waker().clone());
                std::task::Poll::Pending
            }
        }
    }
}
