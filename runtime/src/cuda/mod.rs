//! NVIDIA GPUs through CUDA's driver.
//!
//! - `library`: the driver, NVRTC and cuBLASLt, found at run time;
//! - `storage`: memory of tensors, from a pool of blocks;
//! - `module`: texts compiled, kept on disk, loaded;
//! - `product`: matrix products by cuBLASLt;
//! - `graph`: launches that are handed over together;
//! - `event`, `ceiling`: times on the device, and what it can do at best;
//! - `ranges`: what profilers of NVIDIA's call the steps of a plan.
//!
//! All work of a device is in one stream: it runs in the order in which it was handed over. What goes wrong on the device is told at the next call
//! or read.

mod ceiling;
mod event;
mod graph;
mod library;
mod module;
mod product;
mod ranges;
mod storage;

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use cudarc::driver::{CudaContext, CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg, result, sys};
use kiln_ir::cuda::CudaText;
use kiln_ir::gpu::{GpuTarget, Support};
use kiln_ir::{Code, Diagnostic};

pub(crate) use event::Marks;
pub(crate) use graph::{Node, Recorded, Recording};
use library::Needed;
use module::Modules;
pub(crate) use product::{PreparedProduct, ProductPointers, Products};
pub(crate) use ranges::Ranges;
pub(crate) use storage::{Block, CudaStorage};

use crate::Ceilings;
use crate::fault::Health;
use crate::pool::Pool;

/// An opened device with everything that belongs to it.
pub(crate) struct Cuda {
    // The pool's blocks and the functions go before the context that they belong to.
    pub(crate) pool: Pool<Block>,
    modules: Modules,
    pub(crate) products: Products,
    stream: Arc<CudaStream>,
    context: Arc<CudaContext>,
    name: String,
    target: GpuTarget,
    ceilings: OnceLock<Option<Ceilings>>,
    pub(crate) health: Health,
}

/// The devices that are open. Opening one again gives the same as long as somebody holds it.
static OPEN: Mutex<Vec<(usize, Weak<Cuda>)>> = Mutex::new(Vec::new());

impl Cuda {
    /// Opens a device by its number, or gives the one that is open.
    ///
    /// Errors: K0708 where the driver or the device is not there, K0702 where it does not open.
    pub(crate) fn open(ordinal: usize) -> Result<Arc<Cuda>, Diagnostic> {
        library::load(Needed::Driver)?;
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, cuda)| cuda.strong_count() > 0);
        let known = open.iter().filter(|(number, _)| *number == ordinal).find_map(|(_, cuda)| cuda.upgrade());
        if let Some(cuda) = known.filter(|cuda| !cuda.health.is_broken()) {
            return Ok(cuda);
        }
        let cuda = Arc::new(Cuda::new(ordinal)?);
        open.push((ordinal, Arc::downgrade(&cuda)));
        Ok(cuda)
    }

    fn new(ordinal: usize) -> Result<Cuda, Diagnostic> {
        let opening = |error| fault("opening the device", error);
        result::init().map_err(opening)?;
        let count = result::device::get_count().map_err(opening)?;
        if ordinal >= usize::try_from(count).unwrap_or(0) {
            return Err(crate::device::missing("cuda", ordinal, &names(count)));
        }
        let context = CudaContext::new(ordinal).map_err(opening)?;
        // SAFETY: all work of this context is in one stream, whose order is enough.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(opening)?;
        let capability = context.compute_capability().map_err(opening)?;
        let memory = context.total_mem().map_err(opening)?;
        Ok(Cuda {
            pool: Pool::with_limit(memory),
            modules: Modules::new(capability),
            products: Products::default(),
            name: context.name().map_err(opening)?,
            target: target(&context).map_err(opening)?,
            ceilings: OnceLock::new(),
            stream,
            context,
            health: Health::default(),
        })
    }

    /// The hardware's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// What kernels may use of it.
    pub(crate) fn target(&self) -> &GpuTarget {
        &self.target
    }

    pub(crate) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    fn make_block(&self, bytes: usize) -> Option<Block> {
        Block::new(&self.context, bytes)
    }

    /// The function of each text, in order. K0708, K0901, K0702.
    pub(crate) fn functions(&self, texts: &[&CudaText]) -> Result<Vec<CudaFunction>, Diagnostic> {
        self.modules.functions(texts, &self.context)
    }

    /// Hands a launch over. `pointers` are those of the text's arguments.
    pub(crate) fn launch(&self, function: &CudaFunction, text: &CudaText, pointers: &[u64]) -> Result<(), DriverError> {
        let [x, y, z] = text.blocks;
        if x == 0 || y == 0 || z == 0 {
            return Ok(());
        }
        let [tx, ty, tz] = text.threads;
        let config = LaunchConfig { grid_dim: (x, y, z), block_dim: (tx, ty, tz), shared_mem_bytes: text.shared_bytes };
        let mut launch = self.stream.launch_builder(function);
        for pointer in pointers {
            launch.arg(pointer);
        }
        // SAFETY: the text is ours and stays within its buffers, of which the caller holds the memory; as many arguments as it has parameters.
        unsafe { launch.launch(config) }.map(|_| ())
    }

    /// Copies within the device.
    pub(crate) fn copy(&self, from: u64, to: u64, bytes: usize) {
        if from == to || bytes == 0 {
            return;
        }
        // SAFETY: both are blocks of this device of at least so many bytes; work in a stream is in order.
        self.told(
            "copying",
            self.bound(|| unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream.cu_stream()) }),
        );
    }

    /// Writes zeros.
    pub(crate) fn clear(&self, at: u64, bytes: usize) {
        if bytes > 0 {
            // SAFETY: a block of this device of at least so many bytes.
            self.told(
                "clearing",
                self.bound(|| unsafe { result::memset_d8_async(at, 0, bytes, self.stream.cu_stream()) }),
            );
        }
    }

    /// Copies from the host; the bytes may change as soon as this returns.
    pub(crate) fn upload(&self, to: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            // SAFETY: a block of this device of at least so many bytes. Memory that is not pinned is staged before the call returns.
            self.told(
                "writing",
                self.bound(|| unsafe { result::memcpy_htod_async(to, bytes, self.stream.cu_stream()) }),
            );
        }
    }

    /// Copies to the host and waits for it. K0702 where the device is at fault.
    pub(crate) fn download(&self, from: u64, to: &mut [u8]) -> Result<(), Diagnostic> {
        if !to.is_empty() {
            // SAFETY: a block of this device of at least so many bytes; the host's bytes are borrowed until the copy is done, below.
            let copied = self.bound(|| unsafe { result::memcpy_dtoh_async(to, from, self.stream.cu_stream()) });
            self.told("reading", copied);
            self.wait();
        }
        self.health.check()
    }

    /// Waits until all work that was handed over is done.
    pub(crate) fn wait(&self) {
        self.told("running", self.stream.synchronize());
    }

    /// Does something with the device's context current on this thread.
    fn bound<T>(&self, work: impl FnOnce() -> Result<T, DriverError>) -> Result<T, DriverError> {
        self.context.bind_to_thread().and_then(|()| work())
    }

    /// Keeps what goes wrong for who asks next.
    pub(crate) fn told(&self, doing: &str, result: Result<(), DriverError>) {
        if let Err(error) = result {
            self.health.fail(format!("{doing}: {}", said(&error)));
        }
    }
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cuda").field("name", &self.name).field("target", &self.target).finish_non_exhaustive()
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // What is under way may still use what is freed next. An error has nobody left to tell.
        let _ = self.stream.synchronize();
        self.products.free();
    }
}

/// K0702 while a device is opened or given something.
fn fault(doing: &str, error: DriverError) -> Diagnostic {
    Diagnostic::new(Code::K0702, format!("device fault: {doing}: {}", said(&error)))
}

/// What the driver says, in its words.
fn said(error: &DriverError) -> String {
    let name = error.error_name().map(|name| name.to_string_lossy().into_owned());
    let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
    match (name, text) {
        (Ok(name), Ok(text)) => format!("{text} ({name})"),
        (Ok(text), Err(_)) | (Err(_), Ok(text)) => text,
        (Err(_), Err(_)) => format!("{:?}", error.0),
    }
}

/// The names of all devices.
fn names(count: i32) -> Vec<String> {
    let name = |ordinal| result::device::get(ordinal).and_then(result::device::get_name);
    (0..count).map(|ordinal| name(ordinal).unwrap_or_else(|error| said(&error))).collect()
}

fn target(context: &CudaContext) -> Result<GpuTarget, DriverError> {
    use sys::CUdevice_attribute as Attribute;
    let number = |attribute| context.attribute(attribute).map(|number| u32::try_from(number).unwrap_or(0));
    let memory = context.total_mem()? as u64;
    Ok(GpuTarget {
        f16: Support::Present,
        f64: Support::Present,
        i64: Support::Present,
        fma: Support::Present,
        subgroup: Some((32, 32)),
        // Parameters of a kernel are at most 4 KiB of pointers on every device.
        bindings: 500,
        binding_bytes: memory,
        buffer_bytes: memory,
        workgroup_size: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        workgroup_memory: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        workgroups: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
        widest: GpuTarget::CUDA.widest,
    })
}
