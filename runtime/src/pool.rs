//! Memory that is kept for reuse: blocks by size class, counted and bounded.
//!
//! Dropping a tensor hands its block back to its device's [`Pool`], which keeps it for the next tensor of about that size: a warm step asks the
//! system for nothing. The pool is bounded ([`PoolStatistics`] shows how full it is), refuses what the device cannot hold, and gives
//! everything back on `clear`. What a block is, host memory or a buffer of a GPU, is the caller's.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Sizes of blocks are multiples of so many bytes.
pub(crate) const GRANULE: usize = 64;

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

/// Where a block comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The system: its contents are zeros.
    Fresh,
    /// An earlier use: its contents are anything.
    Reused,
}

/// The memory of one device.
pub(crate) struct Pool<B> {
    state: Mutex<State<B>>,
}

struct State<B> {
    /// Free blocks by their size.
    free: HashMap<usize, Vec<B>>,
    statistics: PoolStatistics,
    /// Live and cached bytes together stay below this.
    limit: usize,
    /// Cached bytes stay below this.
    cache_limit: usize,
}

impl<B> Pool<B> {
    /// A pool that may take `limit` bytes and keep half of them for reuse.
    pub(crate) fn with_limit(limit: usize) -> Pool<B> {
        let (free, statistics) = (HashMap::new(), PoolStatistics::default());
        Pool { state: Mutex::new(State { free, statistics, limit, cache_limit: limit / 2 }) }
    }

    /// A block for `bytes` of the size of their class, which is given to `make` where none is kept.
    pub(crate) fn take(
        &self,
        bytes: usize,
        make: impl FnOnce(usize) -> Option<B>,
    ) -> Result<(B, usize, Origin), OutOfMemory> {
        let class = size_class(bytes).ok_or_else(|| self.state().refusal(bytes))?;
        // Taken in a statement of its own, so that the lock is released before memory is cleared or asked for.
        let kept = self.state().take(class, bytes);
        match kept {
            Some(kept) => Ok((kept, class, Origin::Reused)),
            None => Ok((self.allocate(bytes, class, make)?, class, Origin::Fresh)),
        }
    }

    /// Takes a block from the system; what is cached is given up first where both do not fit.
    fn allocate(&self, bytes: usize, class: usize, make: impl FnOnce(usize) -> Option<B>) -> Result<B, OutOfMemory> {
        let mut unused = None;
        {
            let mut state = self.state();
            if !state.fits(class) {
                unused = Some(state.clear());
            }
            if !state.fits(class) {
                return Err(state.refusal(bytes));
            }
            state.statistics.allocations += 1;
            state.enter(class, bytes);
        }
        drop(unused);
        make(class).ok_or_else(|| {
            let mut state = self.state();
            state.statistics.live -= class;
            state.statistics.used -= bytes;
            state.refusal(bytes)
        })
    }

    /// Takes a block of a class back that was asked for to hold `used` bytes.
    pub(crate) fn give_back(&self, block: B, class: usize, used: usize) {
        let mut state = self.state();
        state.statistics.live -= class;
        state.statistics.used -= used;
        let unused = if state.statistics.cached + class <= state.cache_limit {
            state.statistics.cached += class;
            state.free.entry(class).or_default().push(block);
            None
        } else {
            Some(block)
        };
        // Freed after the lock is released.
        drop(state);
        drop(unused);
    }

    /// Gives all cached memory back to the system.
    pub(crate) fn clear(&self) {
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
    fn state(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B> State<B> {
    fn take(&mut self, class: usize, used: usize) -> Option<B> {
        let kept = self.free.get_mut(&class)?.pop()?;
        self.statistics.cached -= class;
        self.statistics.reuses += 1;
        self.enter(class, used);
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

    fn clear(&mut self) -> HashMap<usize, Vec<B>> {
        self.statistics.cached = 0;
        std::mem::take(&mut self.free)
    }

    fn refusal(&self, asked: usize) -> OutOfMemory {
        OutOfMemory { asked, available: self.limit.saturating_sub(self.statistics.live) }
    }
}

impl<B> fmt::Debug for Pool<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.statistics(), f)
    }
}

/// The size of the smallest class that holds `bytes`: powers of two with seven steps between, so that at most an eighth is wasted. `None`
/// beyond what a pointer can address.
pub(crate) fn size_class(bytes: usize) -> Option<usize> {
    if isize::try_from(bytes).is_err() {
        return None;
    }
    let granules = bytes.div_ceil(GRANULE).max(1);
    let step = (granules.next_power_of_two() / 16).max(1);
    let class = granules.next_multiple_of(step).checked_mul(GRANULE)?;
    isize::try_from(class).ok().map(|_| class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_grow_and_waste_at_most_an_eighth() {
        let mut last = 0;
        for bytes in (1..100_000).step_by(7) {
            let class = size_class(bytes).unwrap();
            assert!(class >= last && class >= bytes);
            assert!(class - bytes < GRANULE.max(bytes / 8 + GRANULE), "{bytes} got {class}");
            assert_eq!(size_class(class), Some(class), "a class is its own class");
            last = class;
        }
    }

    #[test]
    fn what_cannot_be_made_leaves_the_counters_as_they_were() {
        let pool: Pool<()> = Pool::with_limit(10_000);
        assert_eq!(pool.take(4096, |_| None).err(), Some(OutOfMemory { asked: 4096, available: 10_000 }));
        let statistics = pool.statistics();
        assert_eq!((statistics.live, statistics.used, statistics.cached), (0, 0, 0));
    }
}
