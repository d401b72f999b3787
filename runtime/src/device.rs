//! Devices: a backend, an ordinal and the memory that belongs to it.

use std::fmt;
use std::sync::Arc;

use kiln_ir::{Backend, Code, Diagnostic};

use crate::Ceilings;
use crate::buffer::{Pool, PoolStatistics};

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
    pool: Arc<Pool>,
}

impl Device {
    /// The CPU, by fused native kernels.
    pub fn cpu() -> Device {
        Device::with(Backend::Cpu)
    }

    /// The reference interpreter: op by op on host arrays, slow and by the book.
    pub fn reference() -> Device {
        Device::with(Backend::NdArray)
    }

    /// The first device of a backend. K0208 where this build or machine has none.
    ///
    /// ```
    /// use kiln_ir::{Backend, Code};
    /// use kiln_runtime::Device;
    /// assert_eq!(Device::of(Backend::Cpu)?, Device::cpu());
    /// assert_eq!(Device::of(Backend::Cuda).unwrap_err().code, Code::K0208);
    /// # Ok::<(), kiln_ir::Diagnostic>(())
    /// ```
    pub fn of(backend: Backend) -> Result<Device, Diagnostic> {
        match backend {
            Backend::NdArray | Backend::Cpu => Ok(Device::with(backend)),
            Backend::Wgpu | Backend::Cuda => Err(unsupported(backend)),
        }
    }

    fn with(backend: Backend) -> Device {
        Device(Arc::new(Inner { backend, ordinal: 0, pool: Pool::new() }))
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
        self.0.pool.statistics()
    }

    /// Gives memory that is kept for reuse back to the system.
    pub fn clear_cache(&self) {
        self.0.pool.clear();
    }

    /// Sets how many bytes may be kept for reuse; half of the machine's memory at the start.
    pub fn set_cache_limit(&self, bytes: usize) {
        self.0.pool.set_cache_limit(bytes);
    }

    /// Sets how many bytes may be in use and kept together; all of the machine's memory at the start. Beyond it K0704 is raised.
    pub fn set_memory_limit(&self, bytes: usize) {
        self.0.pool.set_limit(bytes);
    }

    /// How fast it copies and multiplies at best. Measured at the first call of the process, which takes about a tenth of a second; `None` for
    /// the reference interpreter, which is not meant to be fast.
    pub fn ceilings(&self) -> Option<Ceilings> {
        match self.backend() {
            Backend::Cpu => Some(Ceilings::of_cpu()),
            Backend::NdArray | Backend::Wgpu | Backend::Cuda => None,
        }
    }

    /// Waits until all work on the device is done. Calls on the CPU return when they are.
    pub fn synchronize(&self) {}

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.0.pool
    }
}

/// The backends on which something can run here.
pub fn available() -> &'static [Backend] {
    &[Backend::NdArray, Backend::Cpu]
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
        self.backend() == other.backend() && self.ordinal() == other.ordinal()
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
