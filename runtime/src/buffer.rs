//! Memory of the host: 64-byte-aligned buffers from a pool.
//!
//! A tensor's bytes live in a [`Storage`]. Dropping one hands its memory back to the device's [`Pool`]: a warm step asks the system for nothing
//! and touches no fresh page.

use std::ptr::NonNull;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use crate::pool::{GRANULE, Origin, OutOfMemory, Pool};

/// Bytes of a cache line and of the widest vector register: the alignment of every buffer.
pub(crate) const ALIGNMENT: usize = GRANULE;

/// From this many bytes on, memory is asked for in large pages: a stream of small ones waits for the next page's address again and again.
#[cfg(target_os = "linux")]
const LARGE: usize = 4 << 20;

/// One aligned unit of memory.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Chunk([u8; ALIGNMENT]);

/// The memory of a device whose tensors lie on the host.
pub(crate) type HostPool = Pool<Vec<Chunk>>;

/// Memory of one tensor (or of a plan's slots). Contents are whatever was there before, unless asked for zeroed.
pub(crate) struct Storage {
    chunks: Vec<Chunk>,
    bytes: usize,
    pool: Arc<HostPool>,
}

impl Storage {
    /// The bytes in use, which may be fewer than the buffer has.
    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.chunks)[..self.bytes]
    }

    /// The bytes in use, to be written.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.chunks)[..self.bytes]
    }

    /// The first byte, of memory that has no other handle.
    pub(crate) fn pointer(&mut self) -> NonNull<u8> {
        NonNull::from(self.chunks.as_mut_slice()).cast()
    }

    /// The first byte, of memory that may have other handles: never to be written through.
    pub(crate) fn shared_pointer(&self) -> NonNull<u8> {
        NonNull::from(self.chunks.as_slice()).cast()
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        let chunks = std::mem::take(&mut self.chunks);
        let class = chunks.len() * ALIGNMENT;
        self.pool.give_back(chunks, class, self.bytes);
    }
}

/// What a new buffer must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    /// Anything: all of it is written before it is read.
    Any,
    /// Zeros.
    Zero,
}

/// Asks for large pages under memory that nobody has touched yet. It is advice: without them everything works as well, only slower.
#[cfg(target_os = "linux")]
fn in_large_pages(chunks: &mut Vec<Chunk>) {
    const PAGE: usize = 4096;
    let bytes = chunks.capacity() * ALIGNMENT;
    if bytes < LARGE {
        return;
    }
    let start = chunks.as_mut_ptr().cast::<u8>();
    let skipped = start.align_offset(PAGE);
    let whole = (bytes - skipped) / PAGE * PAGE;
    // SAFETY: whole pages inside the allocation; the advice changes no contents.
    let _ = unsafe { libc::madvise(start.add(skipped).cast(), whole, libc::MADV_HUGEPAGE) };
}

/// Large pages come by themselves, or not at all.
#[cfg(not(target_os = "linux"))]
fn in_large_pages(_: &mut Vec<Chunk>) {}

impl HostPool {
    /// A pool that may take all of the machine's memory and keep half of it for reuse.
    pub(crate) fn new() -> Arc<HostPool> {
        Arc::new(Pool::with_limit(machine_memory()))
    }

    /// A buffer of at least `bytes`.
    pub(crate) fn acquire(self: &Arc<HostPool>, bytes: usize, contents: Contents) -> Result<Storage, OutOfMemory> {
        let (mut chunks, _, origin) = self.take(bytes, fresh)?;
        if contents == Contents::Zero && origin == Origin::Reused {
            chunks.fill(Chunk::zeroed());
        }
        Ok(Storage { chunks, bytes, pool: self.clone() })
    }
}

/// Zeroed memory from the system.
fn fresh(class: usize) -> Option<Vec<Chunk>> {
    let mut chunks = Vec::new();
    chunks.try_reserve_exact(class / ALIGNMENT).ok()?;
    in_large_pages(&mut chunks);
    chunks.resize(class / ALIGNMENT, Chunk::zeroed());
    Some(chunks)
}

/// Bytes of physical memory where the system tells (Linux), else all that a pointer can address.
fn machine_memory() -> usize {
    let kibibytes = |text: String| -> Option<usize> {
        let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    let total = std::fs::read_to_string("/proc/meminfo").ok().and_then(kibibytes);
    total.and_then(|total| total.checked_mul(1024)).unwrap_or(isize::MAX as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_hold_what_was_asked_for() {
        let pool = HostPool::new();
        for bytes in [0, 1, 63, 64, 65, 1000, 4097] {
            let storage = pool.acquire(bytes, Contents::Zero).unwrap();
            assert_eq!(storage.shared_pointer().addr().get() % ALIGNMENT, 0);
            assert_eq!(storage.bytes(), vec![0; bytes]);
        }
    }

    #[test]
    fn a_dropped_buffer_serves_the_next_of_its_class() {
        let pool = HostPool::new();
        let first = pool.acquire(1000, Contents::Any).unwrap();
        let place = first.shared_pointer();
        drop(first);
        assert_eq!(pool.statistics().cached, 1024);
        let second = pool.acquire(990, Contents::Any).unwrap();
        assert_eq!(second.shared_pointer(), place);
        let statistics = pool.statistics();
        assert_eq!((statistics.allocations, statistics.reuses, statistics.cached), (1, 1, 0));
    }

    #[test]
    fn a_reused_buffer_is_zeroed_where_zeros_are_asked_for() {
        let pool = HostPool::new();
        let mut first = pool.acquire(100, Contents::Any).unwrap();
        first.bytes_mut().fill(7);
        drop(first);
        assert_eq!(pool.acquire(100, Contents::Zero).unwrap().bytes(), [0; 100]);
    }

    #[test]
    fn too_much_is_refused_with_what_could_be_had() {
        let pool = HostPool::new();
        pool.set_limit(10_000);
        let held = pool.acquire(4096, Contents::Any).unwrap();
        let refused = pool.acquire(8000, Contents::Any).err();
        assert_eq!(refused, Some(OutOfMemory { asked: 8000, available: 10_000 - 4096 }));
        assert!(pool.acquire(usize::MAX, Contents::Any).is_err());
        assert!(pool.acquire(1 << 50, Contents::Any).is_err());
        drop(held);
        assert!(pool.acquire(8000, Contents::Any).is_ok(), "the cached buffer gives way");
    }

    #[test]
    fn clearing_gives_every_cached_byte_back() {
        let pool = HostPool::new();
        let buffers: Vec<Storage> = (0..10).map(|i| pool.acquire(i * 100, Contents::Any).unwrap()).collect();
        drop(buffers);
        assert!(pool.statistics().cached > 0 && pool.statistics().live == 0);
        pool.clear();
        assert_eq!(pool.statistics().cached, 0);
    }

    #[test]
    fn the_cache_is_bounded() {
        let pool = HostPool::new();
        pool.set_cache_limit(1024);
        let buffers: Vec<Storage> = (0..10).map(|_| pool.acquire(512, Contents::Any).unwrap()).collect();
        drop(buffers);
        assert_eq!(pool.statistics().cached, 1024);
    }
}
