//! Memory of one tensor on a GPU: a whole buffer from the device's pool, and the copy of it that was last read.

use std::sync::{Arc, OnceLock};

use kiln_ir::Diagnostic;

use super::Gpu;
use crate::buffer::Contents;
use crate::pool::{Origin, OutOfMemory};

/// A buffer of a pool; returned to it when dropped. What is recorded later runs later, so that memory may be given to others while work on
/// it is still under way.
pub(crate) struct GpuStorage {
    buffer: Option<wgpu::Buffer>,
    bytes: usize,
    class: usize,
    gpu: Arc<Gpu>,
    /// What was read. Nobody writes to memory that an array shares, so it stays right as long as this handle does.
    seen: OnceLock<Box<[u64]>>,
}

impl GpuStorage {
    /// Memory for `bytes`.
    pub(crate) fn new(gpu: &Arc<Gpu>, bytes: usize, contents: Contents) -> Result<GpuStorage, OutOfMemory> {
        let taken = gpu.pool.take(bytes, |class| gpu.make_buffer(class));
        let (buffer, class, origin) = match taken {
            Ok(taken) => taken,
            // What is kept for reuse may be in the way.
            Err(_) if gpu.pool.statistics().cached > 0 => {
                gpu.pool.clear();
                gpu.wait();
                gpu.pool.take(bytes, |class| gpu.make_buffer(class))?
            }
            Err(refused) => return Err(refused),
        };
        if contents == Contents::Zero && origin == Origin::Reused {
            let mut encoder = gpu.encoder("zeros");
            encoder.clear_buffer(&buffer, 0, None);
            gpu.queue.submit([encoder.finish()]);
        }
        Ok(GpuStorage { buffer: Some(buffer), bytes, class, gpu: gpu.clone(), seen: OnceLock::new() })
    }

    /// Writes all of it.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.seen = OnceLock::new();
        write_words(&self.gpu.queue, self.buffer(), bytes);
    }

    /// The buffer, which may be larger than the tensor.
    pub(crate) fn buffer(&self) -> &wgpu::Buffer {
        self.buffer.as_ref().expect("the buffer is there until the storage is dropped")
    }

    /// To be called before the memory is written to by a run: what was read of it is no longer so.
    pub(crate) fn forget_seen(&mut self) {
        self.seen = OnceLock::new();
    }

    /// The bytes, which the caller waits for. K0702 where the device is at fault.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn read(&self) -> Result<&[u8], Diagnostic> {
        pollster::block_on(self.fetch())?;
        Ok(self.seen_bytes())
    }

    /// The bytes, if they were fetched: a page in a browser cannot wait.
    #[cfg(target_arch = "wasm32")]
    pub(crate) fn read(&self) -> Result<&[u8], Diagnostic> {
        match self.seen.get() {
            Some(_) => Ok(self.seen_bytes()),
            None => Err(crate::fault::not_fetched()),
        }
    }

    fn seen_bytes(&self) -> &[u8] {
        let seen = self.seen.get().map(|seen| &**seen).unwrap_or_default();
        &bytemuck::cast_slice(seen)[..self.bytes]
    }

    /// Fetches the bytes to the host. K0702 where the device is at fault.
    pub(crate) async fn fetch(&self) -> Result<(), Diagnostic> {
        self.gpu.health.check()?;
        if self.seen.get().is_some() {
            return Ok(());
        }
        let mut seen = vec![0u64; self.bytes.div_ceil(8)].into_boxed_slice();
        if self.bytes > 0 {
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut seen);
            self.gpu.copy_to_host(self.buffer(), &mut bytes[..self.bytes]).await?;
        }
        // Somebody else may have been as quick, with the same bytes.
        let _ = self.seen.set(seen);
        Ok(())
    }
}

/// Writes bytes to the start of a buffer, the last word filled up with zeros.
pub(crate) fn write_words(queue: &wgpu::Queue, buffer: &wgpu::Buffer, bytes: &[u8]) {
    let (whole, rest) = bytes.split_at(bytes.len() / 4 * 4);
    if !whole.is_empty() {
        queue.write_buffer(buffer, 0, whole);
    }
    if !rest.is_empty() {
        let mut word = [0; 4];
        word[..rest.len()].copy_from_slice(rest);
        queue.write_buffer(buffer, whole.len() as u64, &word);
    }
}

impl Drop for GpuStorage {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.gpu.pool.give_back(buffer, self.class, self.bytes);
        }
    }
}
