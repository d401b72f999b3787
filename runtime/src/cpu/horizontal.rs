//! Loop kernels side by side: one parallel region over the tiles of all parts.

use kiln_ir::kernel::{HorizontalKernel, Part};
use smallvec::SmallVec;

use super::crew;
use super::loops::{Loops, Work};
use super::program::RawBuffer;

/// A prepared horizontal kernel.
pub(super) struct Horizontal {
    parts: Vec<(Loops, SmallVec<[usize; 8]>)>,
}

impl Horizontal {
    pub(super) fn new(kernel: &HorizontalKernel) -> Horizontal {
        let part = |part: &Part| {
            let buffers = part.buffers.iter().map(|buffer| buffer.0 as usize).collect();
            (Loops::new(&part.kernel), buffers)
        };
        Horizontal { parts: kernel.parts.iter().map(part).collect() }
    }

    /// Runs all parts. Safety: as for [`Loops::run`].
    pub(super) unsafe fn run(&self, buffers: &[RawBuffer]) {
        let bound: Vec<SmallVec<[RawBuffer; 8]>> =
            self.parts.iter().map(|(_, own)| own.iter().map(|&buffer| buffers[buffer]).collect()).collect();
        let total = self.parts.iter().map(|(part, _)| part.cost()).sum();
        let mut works: Vec<(usize, Work)> = Vec::new();
        for (index, (part, _)) in self.parts.iter().enumerate() {
            part.share(total, |work| works.push((index, work)));
        }
        let run = |(part, work): &(usize, Work)| {
            // SAFETY: the caller's; parts touch nothing that another writes, and the works of one are disjoint.
            unsafe { self.parts[*part].0.run_work(&bound[*part], work) };
        };
        if Loops::is_parallel(total) {
            crew::share(works.len(), |index| run(&works[index]));
        } else {
            works.iter().for_each(run);
        }
    }
}
