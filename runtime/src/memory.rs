//! Memory of one tensor, wherever it lies.

use kiln_ir::Diagnostic;

use crate::buffer::Storage;
#[cfg(feature = "cuda")]
use crate::cuda::CudaStorage;
#[cfg(feature = "wgpu")]
use crate::wgpu::GpuStorage;

/// Memory of one tensor (or of a plan's slots).
pub(crate) enum Memory {
    /// On the host.
    Host(Storage),
    /// On a GPU.
    #[cfg(feature = "wgpu")]
    Wgpu(GpuStorage),
    /// On a GPU of NVIDIA's.
    #[cfg(feature = "cuda")]
    Cuda(CudaStorage),
}

impl Memory {
    /// The bytes. What lies on a GPU is fetched at the first reading, for which the caller waits.
    ///
    /// Errors: K0702 where the device is at fault.
    pub(crate) fn read(&self) -> Result<&[u8], Diagnostic> {
        match self {
            Memory::Host(storage) => Ok(storage.bytes()),
            #[cfg(feature = "wgpu")]
            Memory::Wgpu(storage) => storage.read(),
            #[cfg(feature = "cuda")]
            Memory::Cuda(storage) => storage.read(),
        }
    }

    /// Writes all of it, `bytes` in number.
    pub(crate) fn fill(&mut self, bytes: usize, fill: impl FnOnce(&mut [u8])) {
        match self {
            Memory::Host(storage) => fill(&mut storage.bytes_mut()[..bytes]),
            #[cfg(feature = "wgpu")]
            Memory::Wgpu(storage) => {
                let mut written = vec![0; bytes];
                fill(&mut written);
                storage.write(&written);
            }
            #[cfg(feature = "cuda")]
            Memory::Cuda(storage) => {
                let mut written = vec![0; bytes];
                fill(&mut written);
                storage.write(&written);
            }
        }
    }

    /// Has the bytes fetched, so that reading them does not wait. K0702 where the device is at fault.
    pub(crate) async fn fetch(&self) -> Result<(), Diagnostic> {
        match self {
            Memory::Host(_) => Ok(()),
            #[cfg(feature = "wgpu")]
            Memory::Wgpu(storage) => storage.fetch().await,
            #[cfg(feature = "cuda")]
            Memory::Cuda(storage) => storage.read().map(|_| ()),
        }
    }

    /// Memory of the host; who runs on the CPU only ever has that.
    pub(crate) fn host(&self) -> Option<&Storage> {
        match self {
            Memory::Host(storage) => Some(storage),
            #[cfg(feature = "wgpu")]
            Memory::Wgpu(_) => None,
            #[cfg(feature = "cuda")]
            Memory::Cuda(_) => None,
        }
    }

    /// Memory of the host, to be written.
    pub(crate) fn host_mut(&mut self) -> Option<&mut Storage> {
        match self {
            Memory::Host(storage) => Some(storage),
            #[cfg(feature = "wgpu")]
            Memory::Wgpu(_) => None,
            #[cfg(feature = "cuda")]
            Memory::Cuda(_) => None,
        }
    }

    /// Memory of a GPU.
    #[cfg(feature = "wgpu")]
    pub(crate) fn gpu(&self) -> Option<&GpuStorage> {
        match self {
            Memory::Host(_) => None,
            Memory::Wgpu(storage) => Some(storage),
            #[cfg(feature = "cuda")]
            Memory::Cuda(_) => None,
        }
    }

    /// Memory of a GPU of NVIDIA's.
    #[cfg(feature = "cuda")]
    pub(crate) fn cuda(&self) -> Option<&CudaStorage> {
        match self {
            Memory::Cuda(storage) => Some(storage),
            Memory::Host(_) => None,
            #[cfg(feature = "wgpu")]
            Memory::Wgpu(_) => None,
        }
    }
}
