//! Memory of a device on the host: 64-byte-aligned buffers from a pool.
//!
//! A tensor's bytes live in a [`Storage`]. Dropping one hands its memory back to the device's [`Pool`], which keeps it by size class
//! for the next tensor of about that size: a warm step asks the system for nothing and touches no fresh page. The pool is bounded
//! ([`PoolStatistics`] shows how full it is), refuses what the machine cannot hold, and gives everything back on `clear`.

use std::collections::HashMap;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::{Pod, Zeroable};

/// Bytes of a cache line and of the widest vector register: the alignment of every buffer.
pub(crate) const ALIGNMENT: usize = 64;

/// From this many bytes on, memory is asked for in large pages: a stream of small ones waits for the next page's address again and again.
#[cfg(target_os = "linux")]
const LARGE: usize = 4 << 20;

/// One aligned unit of memory.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Chunk([u8; ALIGNMENT]);

/// Memory of one tensor (or of a plan's slots). Contents are whatever was there before, unless asked for zeroed.
pub(crate) struct Storage {
    chunks: Vec<Chunk>,
    bytes: usize,
    pool: Arc<Pool>,
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
        self.pool.give_back(std::mem::take(&mut self.chunks), self.bytes);
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

/// Why memory was refused: how much was asked for, how much could have been had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfMemory {
    /// Bytes asked for.
    pub(crate) asked: usize,
    /// Bytes the pool could still have taken from the system.
    pub(crate) available: usize,
}

/// How much memory a device holds and how it came by it. All sizes are in bytes. Buffers come in size classes, up to an eighth larger than what
/// was asked for: `live`, `peak` and `cached` are what is held, `used` and `peak_used` what was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStatistics {
    /// Held by arrays and running plans now.
    pub live: usize,
    /// The most that was ever live.
    pub peak: usize,
    /// Asked for by those that are live now.
    pub used: usize,
    /// The most that was ever used.
    pub peak_used: usize,
    /// Kept for reuse.
    pub cached: usize,
    /// Buffers asked of the system so far.
    pub allocations: u64,
    /// Buffers served from the cache so far.
    pub reuses: u64,
}

/// The memory of one device.
pub(crate) struct Pool {
    state: Mutex<State>,
}

struct State {
    /// Free buffers by their size class in chunks.
    free: HashMap<usize, Vec<Vec<Chunk>>>,
    statistics: PoolStatistics,
    /// Live and cached bytes together stay below this.
    limit: usize,
    /// Cached bytes stay below this.
    cache_limit: usize,
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

impl Pool {
    /// A pool that may take all of the machine's memory and keep half of it for reuse.
    pub(crate) fn new() -> Arc<Pool> {
        let limit = machine_memory();
        let (free, statistics) = (HashMap::new(), PoolStatistics::default());
        Arc::new(Pool { state: Mutex::new(State { free, statistics, limit, cache_limit: limit / 2 }) })
    }

    /// A buffer of at least `bytes`.
    pub(crate) fn acquire(self: &Arc<Pool>, bytes: usize, contents: Contents) -> Result<Storage, OutOfMemory> {
        let class = size_class(bytes).ok_or_else(|| self.state().refusal(bytes))?;
        // Taken in a statement of its own, so that the lock is released before memory is cleared or asked for.
        let kept = self.state().take(class, bytes);
        let chunks = match kept {
            Some(mut kept) => {
                if contents == Contents::Zero {
                    kept.fill(Chunk::zeroed());
                }
                kept
            }
            None => self.allocate(bytes, class)?,
        };
        Ok(Storage { chunks, bytes, pool: self.clone() })
    }

    /// Takes fresh (zeroed) memory from the system; what is cached is given up first where both do not fit.
    fn allocate(&self, bytes: usize, class: usize) -> Result<Vec<Chunk>, OutOfMemory> {
        let wanted = class * ALIGNMENT;
        let mut unused = None;
        {
            let mut state = self.state();
            if !state.fits(wanted) {
                unused = Some(state.clear());
            }
            if !state.fits(wanted) {
                return Err(state.refusal(bytes));
            }
            state.statistics.allocations += 1;
            state.enter(wanted, bytes);
        }
        drop(unused);
        let mut chunks = Vec::new();
        if chunks.try_reserve_exact(class).is_err() {
            let mut state = self.state();
            state.statistics.live -= wanted;
            state.statistics.used -= bytes;
            return Err(state.refusal(bytes));
        }
        in_large_pages(&mut chunks);
        chunks.resize(class, Chunk::zeroed());
        Ok(chunks)
    }

    fn give_back(&self, chunks: Vec<Chunk>, used: usize) {
        let bytes = chunks.len() * ALIGNMENT;
        let mut state = self.state();
        state.statistics.live -= bytes;
        state.statistics.used -= used;
        if state.statistics.cached + bytes <= state.cache_limit {
            state.statistics.cached += bytes;
            state.free.entry(chunks.len()).or_default().push(chunks);
        }
    }

    /// Gives all cached memory back to the system.
    pub(crate) fn clear(&self) {
        // Freed after the lock is released.
        let unused = self.state().clear();
        drop(unused);
    }

    /// Sets how many bytes may be live and cached together.
    pub(crate) fn set_limit(&self, bytes: usize) {
        let mut state = self.state();
        state.limit = bytes;
        state.cache_limit = state.cache_limit.min(bytes);
    }

    /// Sets how many bytes may be cached; what is cached beyond it is given up.
    pub(crate) fn set_cache_limit(&self, bytes: usize) {
        let mut state = self.state();
        state.cache_limit = bytes;
        let unused = (state.statistics.cached > bytes).then(|| state.clear());
        drop(state);
        drop(unused);
    }

    /// How the pool stands.
    pub(crate) fn statistics(&self) -> PoolStatistics {
        self.state().statistics
    }

    /// The state; counters and lists stay whole even where a thread panicked while it held the lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take(&mut self, class: usize, used: usize) -> Option<Vec<Chunk>> {
        let kept = self.free.get_mut(&class)?.pop()?;
        self.statistics.cached -= class * ALIGNMENT;
        self.statistics.reuses += 1;
        self.enter(class * ALIGNMENT, used);
        Some(kept)
    }

    fn enter(&mut self, bytes: usize, used: usize) {
        let statistics = &mut self.statistics;
        statistics.live += bytes;
        statistics.peak = statistics.peak.max(statistics.live);
        statistics.used += used;
        statistics.peak_used = statistics.peak_used.max(statistics.used);
    }

    fn fits(&self, bytes: usize) -> bool {
        let held = self.statistics.live + self.statistics.cached;
        held.checked_add(bytes).is_some_and(|total| total <= self.limit)
    }

    fn clear(&mut self) -> HashMap<usize, Vec<Vec<Chunk>>> {
        self.statistics.cached = 0;
        std::mem::take(&mut self.free)
    }

    fn refusal(&self, asked: usize) -> OutOfMemory {
        OutOfMemory { asked, available: self.limit.saturating_sub(self.statistics.live) }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.statistics(), f)
    }
}

/// The number of chunks of the smallest class that holds `bytes`: powers of two with seven steps between, so that at most an eighth
/// is wasted. `None` beyond what a pointer can address.
fn size_class(bytes: usize) -> Option<usize> {
    if isize::try_from(bytes).is_err() {
        return None;
    }
    let chunks = bytes.div_ceil(ALIGNMENT).max(1);
    let step = (chunks.next_power_of_two() / 16).max(1);
    let class = chunks.next_multiple_of(step);
    isize::try_from(class.checked_mul(ALIGNMENT)?).ok().map(|_| class)
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
        let pool = Pool::new();
        for bytes in [0, 1, 63, 64, 65, 1000, 4097] {
            let storage = pool.acquire(bytes, Contents::Zero).unwrap();
            assert_eq!(storage.shared_pointer().addr().get() % ALIGNMENT, 0);
            assert_eq!(storage.bytes(), vec![0; bytes]);
        }
    }

    #[test]
    fn a_dropped_buffer_serves_the_next_of_its_class() {
        let pool = Pool::new();
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
        let pool = Pool::new();
        let mut first = pool.acquire(100, Contents::Any).unwrap();
        first.bytes_mut().fill(7);
        drop(first);
        assert_eq!(pool.acquire(100, Contents::Zero).unwrap().bytes(), [0; 100]);
    }

    #[test]
    fn size_classes_grow_and_waste_at_most_an_eighth() {
        let mut last = 0;
        for bytes in (1..100_000).step_by(7) {
            let class = size_class(bytes).unwrap();
            let size = class * ALIGNMENT;
            assert!(class >= last && size >= bytes);
            assert!(size - bytes < ALIGNMENT.max(bytes / 8 + ALIGNMENT), "{bytes} got {size}");
            assert_eq!(size_class(size), Some(class), "a class is its own class");
            last = class;
        }
    }

    #[test]
    fn too_much_is_refused_with_what_could_be_had() {
        let pool = Pool::new();
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
        let pool = Pool::new();
        let buffers: Vec<Storage> = (0..10).map(|i| pool.acquire(i * 100, Contents::Any).unwrap()).collect();
        drop(buffers);
        assert!(pool.statistics().cached > 0 && pool.statistics().live == 0);
        pool.clear();
        assert_eq!(pool.statistics().cached, 0);
    }

    #[test]
    fn the_cache_is_bounded() {
        let pool = Pool::new();
        pool.set_cache_limit(1024);
        let buffers: Vec<Storage> = (0..10).map(|_| pool.acquire(512, Contents::Any).unwrap()).collect();
        drop(buffers);
        assert_eq!(pool.statistics().cached, 1024);
    }
}
