//! Memory of one tensor on a CUDA device: a block from the device's pool, and the copy of it that was last read.

use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaContext, result};
use kiln_ir::Diagnostic;

use super::Cuda;
use crate::buffer::Contents;
use crate::pool::{Origin, OutOfMemory};

/// Memory of the device, freed when dropped.
pub(crate) struct Block {
    pointer: u64,
    context: Arc<CudaContext>,
}

impl Block {
    /// `None` where the device does not give it.
    pub(super) fn new(context: &Arc<CudaContext>, bytes: usize) -> Option<Block> {
        context.bind_to_thread().ok()?;
        // SAFETY: the context is current; the memory is freed once, when the block is dropped.
        let pointer = unsafe { result::malloc_sync(bytes) }.ok()?;
        Some(Block { pointer, context: context.clone() })
    }

    /// Where it begins.
    pub(super) fn pointer(&self) -> u64 {
        self.pointer
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: taken in `new`, freed only here. The driver waits for work that uses it. A device at fault refuses, and has lost it anyway.
            let _ = unsafe { result::free_sync(self.pointer) };
        }
    }
}

/// A block of a pool; returned to it when dropped. All work on a device is in one order, so that memory may be given to others while work on it
/// is still under way.
pub(crate) struct CudaStorage {
    block: Option<Block>,
    bytes: usize,
    class: usize,
    cuda: Arc<Cuda>,
    /// What was read. Nobody writes to memory that an array shares, so it stays right as long as this handle does.
    seen: OnceLock<Box<[u64]>>,
}

impl CudaStorage {
    /// Memory for `bytes`.
    pub(crate) fn new(cuda: &Arc<Cuda>, bytes: usize, contents: Contents) -> Result<CudaStorage, OutOfMemory> {
        let taken = cuda.pool.take(bytes, |class| cuda.make_block(class));
        let (block, class, origin) = match taken {
            Ok(taken) => taken,
            // What is kept for reuse may be in the way.
            Err(_) if cuda.pool.statistics().cached > 0 => {
                cuda.pool.clear();
                cuda.pool.take(bytes, |class| cuda.make_block(class))?
            }
            Err(refused) => return Err(refused),
        };
        let storage = CudaStorage { block: Some(block), bytes, class, cuda: cuda.clone(), seen: OnceLock::new() };
        match (contents, origin) {
            (Contents::Zero, Origin::Fresh | Origin::Reused) => cuda.clear(storage.pointer(), bytes),
            (Contents::Any, Origin::Fresh | Origin::Reused) => {}
        }
        Ok(storage)
    }

    /// Writes all of it.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.seen = OnceLock::new();
        self.cuda.upload(self.pointer(), bytes);
    }

    /// Where it begins; aligned to 256 bytes.
    pub(crate) fn pointer(&self) -> u64 {
        self.block.as_ref().expect("the block is there until the storage is dropped").pointer
    }

    /// To be called before the memory is written to by a run: what was read of it is no longer so.
    pub(crate) fn forget_seen(&mut self) {
        self.seen = OnceLock::new();
    }

    /// The bytes, which the caller waits for. K0702 where the device is at fault.
    pub(crate) fn read(&self) -> Result<&[u8], Diagnostic> {
        self.cuda.health.check()?;
        if self.seen.get().is_none() {
            let mut seen = vec![0u64; self.bytes.div_ceil(8)].into_boxed_slice();
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut seen);
            self.cuda.download(self.pointer(), &mut bytes[..self.bytes])?;
            // Somebody else may have been as quick, with the same bytes.
            let _ = self.seen.set(seen);
        }
        let seen = self.seen.get().map(|seen| &**seen).unwrap_or_default();
        Ok(&bytemuck::cast_slice(seen)[..self.bytes])
    }
}

impl Drop for CudaStorage {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.cuda.pool.give_back(block, self.class, self.bytes);
        }
    }
}
