//! Asking for what the next tile reads while this one is computed.
//!
//! A strip interpreter works in turns: a loop that reads from memory waits for it, the loops after it do not touch memory at all. The
//! hardware looks ahead along what is being read, so it idles in the meantime. Where a kernel's operands are larger than the caches, each
//! step therefore asks for a few lines of what the next tile will read; they arrive in the second-level cache while the step computes.

use kiln_ir::kernel::{LoopKernel, Operation, Stage};
use smallvec::SmallVec;

use super::program::RawBuffer;
use super::space::{Map, Space};
use super::tiling::{Order, Tiling, instruction_cost};

/// Buffers of fewer bytes are found in a cache anyway.
const LARGE: usize = 2 << 20;
/// Estimated nanoseconds per lane from which on an instruction is a function of many steps.
const FUNCTION: f64 = 0.5;
/// Bytes of a line of the cache.
const LINE: usize = 64;

/// The loads of a kernel whose tiles are runs in memory.
#[derive(Default)]
pub(super) struct Runs {
    loads: Vec<Run>,
}

/// What a tile reads by one load: elements one after another.
#[derive(PartialEq)]
struct Run {
    buffer: usize,
    map: Map,
    size: usize,
}

impl Runs {
    /// Finds them. `stages` are those that run, of `kernel`.
    pub(super) fn of(kernel: &LoopKernel, stages: &[Stage], space: &Space, tiling: &Tiling) -> Runs {
        let has_inner = space.extents.len() > space.outer;
        let fits = match tiling.order {
            Order::Lanes => !has_inner,
            Order::Rows => space.extents.len() == space.outer + 1,
            Order::Columns => false,
        };
        let mut loads: Vec<Run> = Vec::new();
        if !fits {
            return Runs { loads };
        }
        for stage in stages {
            let (Stage::Point(block) | Stage::Fold { block, .. } | Stage::Each(block)) = stage;
            for instruction in &block.instructions {
                let Operation::Load { buffer, address, bounds } = &instruction.operation else { continue };
                let index = buffer.0 as usize;
                let (dtype, len) = (kernel.buffers[index].dtype, kernel.buffers[index].len);
                if !bounds.is_empty() || !address.computed.is_empty() || len * dtype.size() < LARGE {
                    continue;
                }
                let run = Run { buffer: index, map: space.map(&address.affine), size: dtype.size() };
                if tiling.runs_along(&run.map.strides) && !loads.contains(&run) {
                    loads.push(run);
                }
            }
        }
        Runs { loads }
    }

    /// Whether a kernel walks what it reads from memory more than once, so that loops that find it in a cache have the time to ask for more:
    /// where they compute functions. Loops of mere arithmetic keep the memory busy as it is.
    pub(super) fn pay(kernel: &LoopKernel) -> bool {
        let large = |buffer: &kiln_ir::kernel::Buffer| buffer.len * buffer.dtype.size() >= LARGE;
        let computes = |stage: &Stage| match stage {
            Stage::Point(_) => false,
            Stage::Fold { block, .. } | Stage::Each(block) => {
                block.instructions.iter().map(instruction_cost).any(|cost| cost >= FUNCTION)
            }
        };
        kernel.stages.len() > 1 && kernel.buffers.iter().any(large) && kernel.stages.iter().any(computes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.loads.is_empty()
    }
}

/// What is to be asked for, and how much of it at a time.
#[derive(Default)]
pub(super) struct Ahead {
    ranges: SmallVec<[(*const u8, usize); 4]>,
    lines: usize,
}

impl Ahead {
    /// Takes up what `lanes` lanes from `point` on will read, to be asked for in so many steps.
    pub(super) fn plan(&mut self, runs: &Runs, buffers: &[RawBuffer], point: &[i64], lanes: usize, steps: usize) {
        self.ranges.clear();
        for run in &runs.loads {
            let first = buffers[run.buffer].data.wrapping_offset(run.map.at(point) as isize * run.size as isize);
            self.ranges.push((first.cast_const(), (lanes * run.size).div_ceil(LINE)));
        }
        let lines: usize = self.ranges.iter().map(|&(_, lines)| lines).sum();
        self.lines = lines.div_ceil(steps.max(1));
    }

    /// Leaves the asking to the loops of machine code, which [`Ahead::take`] what they ask for.
    pub(super) fn leave(&mut self) {
        self.lines = 0;
    }

    /// Where so many bytes lie that had better be asked for, if any do.
    pub(super) fn take(&mut self, bytes: usize) -> Option<*const u8> {
        let (from, lines) = self.ranges.last_mut()?;
        let (at, count) = (*from, bytes.div_ceil(LINE).min(*lines));
        *from = from.wrapping_add(count * LINE);
        *lines -= count;
        if *lines == 0 {
            self.ranges.pop();
        }
        Some(at)
    }

    /// Asks for the next few lines.
    #[inline]
    pub(super) fn ask(&mut self) {
        let mut left = self.lines;
        while let Some((from, lines)) = self.ranges.last_mut().filter(|_| left > 0) {
            let count = left.min(*lines);
            for line in 0..count {
                prefetch(from.wrapping_add(line * LINE));
            }
            *from = from.wrapping_add(count * LINE);
            *lines -= count;
            left -= count;
            if *lines == 0 {
                self.ranges.pop();
            }
        }
    }
}

/// A hint to bring a line into the second-level cache. Any address may be asked for.
#[inline(always)]
fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a hint reads nothing and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
