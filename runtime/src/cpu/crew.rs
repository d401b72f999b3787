//! Pieces of work on all threads, the calling one among them.
//!
//! A thread that waits in the system's sleep for others to begin and to end loses tens of microseconds each time, as much as a small kernel
//! takes. So the caller begins at once; the pool's threads are told and take pieces as soon as they are awake. Who comes too late finds
//! nothing left to do.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};

use rayon::prelude::*;

/// How often the caller looks whether the last pieces are done before it sleeps: some hundred microseconds.
const LOOKS: usize = 20_000;

/// The pieces of one piece of work.
struct Pieces {
    run: Run,
    count: usize,
    /// The first that nobody has taken.
    next: AtomicUsize,
    /// How many are done.
    done: AtomicUsize,
    caller: Thread,
    /// What the first piece that panicked panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A borrowed function, whose borrow lasts until all pieces are done.
struct Run(*const (dyn Fn(usize) + Sync));

// SAFETY: the function may be called from any thread; when, is told where it is called.
unsafe impl Send for Run {}
// SAFETY: as above.
unsafe impl Sync for Run {}

impl Pieces {
    /// Runs pieces until none is left.
    fn help(&self) {
        loop {
            let piece = self.next.fetch_add(1, Ordering::Relaxed);
            if piece >= self.count {
                return;
            }
            // SAFETY: the piece is not done, so the caller still waits, and the function is borrowed.
            let run = unsafe { &*self.run.0 };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(piece))) {
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
            if self.done.fetch_add(1, Ordering::Release) + 1 == self.count {
                self.caller.unpark();
            }
        }
    }

    fn wait(&self) {
        let is_done = || self.done.load(Ordering::Acquire) == self.count;
        for _ in 0..LOOKS {
            if is_done() {
                return;
            }
            std::hint::spin_loop();
        }
        while !is_done() {
            thread::park();
        }
    }
}

/// Runs pieces `0..count`, each once, in any order and on any threads. Returns when all are done.
///
/// # Panics
///
/// With what a piece panicked with, when the others are done.
pub(super) fn share(count: usize, run: impl Fn(usize) + Sync) {
    if rayon::current_thread_index().is_some() {
        // A thread of a pool waits by working for others.
        return (0..count).into_par_iter().with_max_len(1).for_each(&run);
    }
    let helpers = rayon::current_num_threads().min(count).saturating_sub(1);
    if helpers == 0 {
        return (0..count).for_each(run);
    }
    let run: &(dyn Fn(usize) + Sync) = &run;
    // SAFETY: only the lifetime changes. The function is called for pieces alone, and this function returns when all of them are done.
    let run = Run(unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(run) });
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let pieces = Arc::new(Pieces { run, count, next, done, caller: thread::current(), panic: Mutex::new(None) });
    for _ in 0..helpers {
        let pieces = pieces.clone();
        rayon::spawn(move || pieces.help());
    }
    pieces.help();
    pieces.wait();
    let panic = pieces.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

/// What each piece gives, in order.
pub(super) fn gather<R: Send + Sync>(count: usize, run: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let results: Vec<OnceLock<R>> = (0..count).map(|_| OnceLock::new()).collect();
    share(count, |piece| _ = results[piece].set(run(piece)));
    results.into_iter().map(|result| result.into_inner().expect("every piece has run")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_runs_once_whoever_comes_first() {
        for count in [0, 1, 2, 3, 64, 1000] {
            for _ in 0..20 {
                let runs: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                share(count, |piece| _ = runs[piece].fetch_add(1, Ordering::Relaxed));
                assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 1), "{count} pieces");
            }
        }
    }

    #[test]
    fn results_come_in_order() {
        assert_eq!(gather(100, |piece| piece * piece), (0..100).map(|piece| piece * piece).collect::<Vec<_>>());
    }

    #[test]
    fn a_piece_within_a_piece_finds_its_threads() {
        let sums = gather(8, |piece| gather(8, |inner| piece * inner).into_iter().sum::<usize>());
        assert_eq!(sums, (0..8).map(|piece| piece * 28).collect::<Vec<_>>());
    }

    #[test]
    fn a_panic_comes_out_when_all_others_are_done() {
        let done = AtomicUsize::new(0);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            share(50, |piece| {
                assert!(piece != 7, "the seventh");
                done.fetch_add(1, Ordering::Relaxed);
            });
        }));
        let panic = caught.expect_err("a piece panicked");
        assert!(panic.downcast_ref::<&str>().is_some_and(|text| text.contains("seventh")));
        assert_eq!(done.load(Ordering::Relaxed), 49);
    }
}
