//! Devices: a backend, an ordinal and the memory that belongs to it.

use std::fmt;
use std::sync::Arc;

use kiln_ir::gpu::GpuTarget;
use kiln_ir::{Backend, Code, Diagnostic, Result};

use crate::Ceilings;
use crate::buffer::{Contents, HostPool};
#[cfg(feature = "cuda")]
use crate::cuda::{Cuda, CudaStorage};
use crate::fault::Health;
use crate::memory::Memory;
use crate::pool::{OutOfMemory, PoolStatistics};
#[cfg(feature = "wgpu")]
use crate::wgpu::{Adapter, Gpu, GpuStorage, WgpuOptions};

/// Where arrays live and plans run; a cheap handle, `clone` shares.
///
/// Two handles are equal where they mean the same hardware, even if each has a memory pool of its own.
///
/// ```
/// use kiln_runtime::Device;
/// let device = Device::cpu();
/// assert_eq!(device, Device::cpu());
/// assert_ne!(device, Device::reference());
/// assert_eq!(device.to_string(), "cpu");
/// ```
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    backend: Backend,
    ordinal: usize,
    home: Home,
}

/// What stands behind a device.
enum Home {
    /// Memory of the host.
    Host { pool: Arc<HostPool>, health: Health },
    /// A GPU.
    #[cfg(feature = "wgpu")]
    Wgpu(Arc<Gpu>),
    /// A GPU of NVIDIA's.
    #[cfg(feature = "cuda")]
    Cuda(Arc<Cuda>),
}

impl Device {
    /// The CPU, by fused native kernels.
    pub fn cpu() -> Device {
        Device::host(Backend::Cpu)
    }

    /// The reference interpreter: op by op on host arrays, slow and by the book.
    pub fn reference() -> Device {
        Device::host(Backend::NdArray)
    }

    /// The best GPU that wgpu finds: through Vulkan, Metal or DX12. A driver that computes on the CPU counts, if there is nothing else. As long
    /// as a handle to it lives, opening it again gives the same device.
    ///
    /// # Errors
    ///
    /// K0208 without the feature `wgpu`, K0708 where nothing is found, K0702 where it does not open.
    ///
    /// ```no_run
    /// use kiln_runtime::{Array, Device};
    /// let device = Device::wgpu()?;
    /// let array = Array::new(&device, [1.0f32, 2.0])?;
    /// assert_eq!(array.to_vec::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), kiln_ir::Diagnostics>(())
    /// ```
    #[track_caller]
    pub fn wgpu() -> Result<Device, Diagnostic> {
        Device::nth(Backend::Wgpu, 0)
    }

    /// A GPU of NVIDIA's by its number. As long as a handle to it lives, opening it again gives the same device.
    ///
    /// # Errors
    ///
    /// K0208 without the feature `cuda`, K0708 where the driver or the device is not found, K0702 where it does not open.
    ///
    /// ```no_run
    /// use kiln_runtime::{Array, Device};
    /// let device = Device::cuda(0)?;
    /// let array = Array::new(&device, [1.0f32, 2.0])?;
    /// assert_eq!(array.to_vec::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), kiln_ir::Diagnostics>(())
    /// ```
    #[track_caller]
    pub fn cuda(ordinal: usize) -> Result<Device, Diagnostic> {
        Device::nth(Backend::Cuda, ordinal)
    }

    /// A GPU by its number among [`Adapter::all`], with as much of it as `options` say. Errors as [`Device::wgpu`].
    #[cfg(all(feature = "wgpu", not(target_arch = "wasm32")))]
    #[track_caller]
    pub fn wgpu_with(options: WgpuOptions) -> Result<Device, Diagnostic> {
        let loc = kiln_ir::Loc::caller();
        pollster::block_on(Device::open_wgpu(options)).map_err(|diagnostic| diagnostic.at(loc))
    }

    /// [`Device::wgpu_with`] for those who may not wait. Errors as [`Device::wgpu`].
    #[cfg(feature = "wgpu")]
    pub async fn open_wgpu(options: WgpuOptions) -> Result<Device, Diagnostic> {
        let ordinal = options.ordinal;
        let gpu = Gpu::open(options).await?;
        Ok(Device(Arc::new(Inner { backend: Backend::Wgpu, ordinal, home: Home::Wgpu(gpu) })))
    }

    /// The first device of a backend. K0208 where this build has none, K0708 where this machine has none.
    ///
    /// ```
    /// use kiln_ir::{Backend, Code};
    /// use kiln_runtime::Device;
    /// assert_eq!(Device::of(Backend::Cpu)?, Device::cpu());
    /// assert_eq!(Device::of(Backend::Cuda).unwrap_err().code, Code::K0208);
    /// # Ok::<(), kiln_ir::Diagnostic>(())
    /// ```
    #[track_caller]
    pub fn of(backend: Backend) -> Result<Device, Diagnostic> {
        Device::nth(backend, 0)
    }

    /// A device of a backend by its number, from 0. K0208 where this build has none, K0708 where this machine has none of that number; it lists
    /// those that there are.
    ///
    /// ```
    /// use kiln_ir::{Backend, Code};
    /// use kiln_runtime::Device;
    /// let error = Device::nth(Backend::Cpu, 1).unwrap_err();
    /// assert_eq!(error.code, Code::K0708);
    /// ```
    #[track_caller]
    pub fn nth(backend: Backend, ordinal: usize) -> Result<Device, Diagnostic> {
        let loc = kiln_ir::Loc::caller();
        match backend {
            Backend::NdArray | Backend::Cpu if ordinal == 0 => Ok(Device::host(backend)),
            Backend::NdArray | Backend::Cpu => {
                Err(missing(backend.keyword(), ordinal, &["this machine's processor".to_owned()]).at(loc))
            }
            #[cfg(all(feature = "wgpu", not(target_arch = "wasm32")))]
            Backend::Wgpu => Device::wgpu_with(WgpuOptions { ordinal, ..WgpuOptions::default() }),
            #[cfg(not(all(feature = "wgpu", not(target_arch = "wasm32"))))]
            Backend::Wgpu => Err(unsupported(backend).at(loc)),
            #[cfg(feature = "cuda")]
            Backend::Cuda => {
                let cuda = Cuda::open(ordinal).map_err(|diagnostic| diagnostic.at(loc))?;
                Ok(Device(Arc::new(Inner { backend, ordinal, home: Home::Cuda(cuda) })))
            }
            #[cfg(not(feature = "cuda"))]
            Backend::Cuda => Err(unsupported(backend).at(loc)),
        }
    }

    fn host(backend: Backend) -> Device {
        let home = Home::Host { pool: HostPool::new(), health: Health::default() };
        Device(Arc::new(Inner { backend, ordinal: 0, home }))
    }

    /// Its backend.
    pub fn backend(&self) -> Backend {
        self.0.backend
    }

    /// Which of the backend's devices it is, from 0.
    pub fn ordinal(&self) -> usize {
        self.0.ordinal
    }

    /// How much memory it holds and how it came by it.
    pub fn memory(&self) -> PoolStatistics {
        match &self.0.home {
            Home::Host { pool, .. } => pool.statistics(),
            #[cfg(feature = "wgpu")]
            Home::Wgpu(gpu) => gpu.pool.statistics(),
            #[cfg(feature = "cuda")]
            Home::Cuda(cuda) => cuda.pool.statistics(),
        }
    }

    /// Gives memory that is kept for reuse back to the system.
    pub fn clear_cache(&self) {
        match &self.0.home {
            Home::Host { pool, .. } => pool.clear(),
            #[cfg(feature = "wgpu")]
            Home::Wgpu(gpu) => gpu.pool.clear(),
            #[cfg(feature = "cuda")]
            Home::Cuda(cuda) => cuda.pool.clear(),
        }
    }

    /// Sets how many bytes may be kept for reuse; half of the machine's memory at the start (of a GPU's, all that it has).
    pub fn set_cache_limit(&self, bytes: usize) {
        match &self.0.home {
            Home::Host { pool, .. } => pool.set_cache_limit(bytes),
            #[cfg(feature = "wgpu")]
            Home::Wgpu(gpu) => gpu.pool.set_cache_limit(bytes),
            #[cfg(feature = "cuda")]
            Home::Cuda(cuda) => cuda.pool.set_cache_limit(bytes),
        }
    }

    /// Sets how many bytes may be in use and kept together; all of the machine's (or GPU's) memory at the start. Beyond it K0704 is raised.
    pub fn set_memory_limit(&self, bytes: usize) {
        match &self.0.home {
            Home::Host { pool, .. } => pool.set_limit(bytes),
            #[cfg(feature = "wgpu")]
            Home::Wgpu(gpu) => gpu.pool.set_limit(bytes),
            #[cfg(feature = "cuda")]
            Home::Cuda(cuda) => cuda.pool.set_limit(bytes),
        }
    }

    /// How fast it copies and multiplies at best. Measured at the first call, which takes about a tenth of a second; `None` for the reference
    /// interpreter, which is not meant to be fast, in a browser, and where a GPU has no memory left to measure it with.
    pub fn ceilings(&self) -> Option<Ceilings> {
        match &self.0.home {
            Home::Host { .. } => (self.backend() == Backend::Cpu).then(Ceilings::of_cpu),
            #[cfg(feature = "wgpu")]
            Home::Wgpu(gpu) => gpu.ceilings(),
            #[cfg(feature = "cuda")]
            Home::Cuda(cuda) => cuda.ceilings(),
        }
    }

    /// Waits until all work on the device is done. Calls on the CPU return when they are.
    ///
    /// # Errors
    ///
    /// K0702 where something went wrong on the device.
    pub fn synchronize(&self) -> Result<()> {
        #[cfg(feature = "wgpu")]
        if let Home::Wgpu(gpu) = &self.0.home {
            gpu.wait();
        }
        #[cfg(feature = "cuda")]
        if let Home::Cuda(cuda) = &self.0.home {
            cuda.wait();
        }
        Ok(self.healthy()?)
    }

    /// What kernels may use of a GPU; `None` for devices that are none.
    pub fn target(&self) -> Option<&GpuTarget> {
        match &self.0.home {
            Home::Host { .. } => None,
            #[cfg(feature = "wgpu")]
            Home::Wgpu(gpu) => Some(gpu.target()),
            #[cfg(feature = "cuda")]
            Home::Cuda(cuda) => Some(cuda.target()),
        }
    }

    /// What the driver calls a GPU; `None` for devices that are none.
    pub fn hardware(&self) -> Option<&str> {
        match &self.0.home {
            Home::Host { .. } => None,
            #[cfg(feature = "wgpu")]
            Home::Wgpu(gpu) => Some(&gpu.adapter().name),
            #[cfg(feature = "cuda")]
            Home::Cuda(cuda) => Some(cuda.name()),
        }
    }

    /// The hardware behind a wgpu device; `None` for any other.
    #[cfg(feature = "wgpu")]
    pub fn adapter(&self) -> Option<&Adapter> {
        self.gpu().map(|gpu| gpu.adapter())
    }

    /// Has the device tell of a fault, as its driver would: for tests of what a program does then. It stays broken, as after a real one.
    ///
    /// ```
    /// use kiln_ir::Code;
    /// use kiln_runtime::{Array, Device};
    /// let device = Device::cpu();
    /// let array = Array::new(&device, 1.0f32)?;
    /// device.fail("the driver was reset");
    /// assert_eq!(array.item::<f32>().unwrap_err().codes(), [Code::K0702]);
    /// # Ok::<(), kiln_ir::Diagnostics>(())
    /// ```
    pub fn fail(&self, what: &str) {
        self.health().fail(what);
    }

    fn health(&self) -> &Health {
        match &self.0.home {
            Home::Host { health, .. } => health,
            #[cfg(feature = "wgpu")]
            Home::Wgpu(gpu) => &gpu.health,
            #[cfg(feature = "cuda")]
            Home::Cuda(cuda) => &cuda.health,
        }
    }

    /// K0702 once something went wrong on it.
    pub fn check(&self) -> Result<()> {
        Ok(self.healthy()?)
    }

    /// K0702 once something went wrong on it.
    pub(crate) fn healthy(&self) -> Result<(), Diagnostic> {
        self.health().check()
    }

    /// Whether something went wrong on it.
    pub(crate) fn is_broken(&self) -> bool {
        self.health().is_broken()
    }

    /// A plan is handed over; what goes wrong from now on is told with its name.
    pub(crate) fn begin(&self, plan: &str) {
        self.health().begin(plan);
    }

    /// Memory for a tensor.
    pub(crate) fn acquire(&self, bytes: usize, contents: Contents) -> Result<Memory, OutOfMemory> {
        match &self.0.home {
            Home::Host { pool, .. } => pool.acquire(bytes, contents).map(Memory::Host),
            #[cfg(feature = "wgpu")]
            Home::Wgpu(gpu) => GpuStorage::new(gpu, bytes, contents).map(Memory::Wgpu),
            #[cfg(feature = "cuda")]
            Home::Cuda(cuda) => CudaStorage::new(cuda, bytes, contents).map(Memory::Cuda),
        }
    }

    /// The GPU behind it.
    #[cfg(feature = "wgpu")]
    pub(crate) fn gpu(&self) -> Option<&Arc<Gpu>> {
        match &self.0.home {
            Home::Host { .. } => None,
            Home::Wgpu(gpu) => Some(gpu),
            #[cfg(feature = "cuda")]
            Home::Cuda(_) => None,
        }
    }

    /// The GPU of NVIDIA's behind it.
    #[cfg(feature = "cuda")]
    pub(crate) fn cuda_gpu(&self) -> Option<&Arc<Cuda>> {
        match &self.0.home {
            Home::Cuda(cuda) => Some(cuda),
            Home::Host { .. } => None,
            #[cfg(feature = "wgpu")]
            Home::Wgpu(_) => None,
        }
    }
}

/// K0708: there is no device of this number.
pub(crate) fn missing(backend: &str, ordinal: usize, found: &[String]) -> Diagnostic {
    let found = match found {
        [] => "no device at all was found: is a driver installed (Vulkan, Metal or DX12)?".to_owned(),
        found => {
            let lines = found.iter().enumerate().map(|(ordinal, name)| format!("{backend}:{ordinal} is {name}"));
            format!("found: {}", lines.collect::<Vec<_>>().join("; "))
        }
    };
    Diagnostic::new(Code::K0708, format!("no such device: {backend}:{ordinal}")).help(found)
}

/// The backends on which something can run here.
pub fn available() -> &'static [Backend] {
    match (cfg!(feature = "wgpu"), cfg!(feature = "cuda")) {
        (true, true) => &[Backend::NdArray, Backend::Cpu, Backend::Wgpu, Backend::Cuda],
        (true, false) => &[Backend::NdArray, Backend::Cpu, Backend::Wgpu],
        (false, true) => &[Backend::NdArray, Backend::Cpu, Backend::Cuda],
        (false, false) => &[Backend::NdArray, Backend::Cpu],
    }
}

/// K0208: nothing runs on this backend here; lists what does.
pub fn unsupported(backend: Backend) -> Diagnostic {
    let names: Vec<&str> = available().iter().map(|backend| backend.name()).collect();
    Diagnostic::new(Code::K0208, "unsupported dispatch backend")
        .label(format!("{backend} is not compiled into this build, or this machine has no such device"))
        .help(format!("available here: {}", names.join(", ")))
}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        match (&self.0.home, &other.0.home) {
            (Home::Host { .. }, Home::Host { .. }) => self.backend() == other.backend(),
            #[cfg(feature = "wgpu")]
            (Home::Wgpu(own), Home::Wgpu(other)) => Arc::ptr_eq(own, other),
            #[cfg(feature = "cuda")]
            (Home::Cuda(own), Home::Cuda(other)) => Arc::ptr_eq(own, other),
            #[cfg(any(feature = "wgpu", feature = "cuda"))]
            (own, other) if std::mem::discriminant(own) != std::mem::discriminant(other) => false,
            #[cfg(any(feature = "wgpu", feature = "cuda"))]
            _ => unreachable!("two devices of one kind are compared above"),
        }
    }
}

impl Eq for Device {}

/// `cpu`, or `cuda:1` for a backend's second device.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ordinal() {
            0 => f.write_str(self.backend().keyword()),
            ordinal => write!(f, "{}:{ordinal}", self.backend().keyword()),
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({self})")
    }
}
