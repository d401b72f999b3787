//! The memory of strips: per thread, reused from run to run.

use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

use smallvec::SmallVec;

use super::ahead::Ahead;
use super::compile::{SlotKind, Span};
use super::fused::{Code, Look, Runnable};
use super::lanes::{BLOCK, fill};
use super::program::{Class, Frame, RawBuffer, Slot};
use super::vmath::Isa;

/// Where each slot lies in scratch memory.
pub(super) struct Layout {
    offsets: Vec<usize>,
    bytes: usize,
    /// Slots that hold every tile of a walk, with their bytes per tile.
    walked: Vec<(Slot, usize)>,
    /// Uniform slots with their bytes per lane and bits.
    constants: Vec<(Slot, usize, u64)>,
    /// Machine code of the kernel.
    code: Option<Code>,
}

/// Slots lie this many bytes further apart than their size, so that neighbours do not share the same places of the cache.
const STAGGER: usize = 128;

impl Layout {
    /// For tiles of at most `rows` rows and `lanes` lanes, and walks of at most `steps` tiles.
    pub(super) fn new(
        slots: &[SlotKind],
        constants: &[(Slot, u64)],
        rows: usize,
        lanes: usize,
        steps: usize,
    ) -> Layout {
        let (mut bytes, mut walked) = (0, Vec::new());
        let offsets = slots
            .iter()
            .enumerate()
            .map(|(slot, kind)| {
                let offset = bytes;
                let count = match kind.class {
                    Class::Uniform => BLOCK,
                    Class::Row => rows.next_multiple_of(BLOCK),
                    Class::Full => lanes.next_multiple_of(BLOCK),
                };
                let tile = count * kind.size;
                let tiles = match kind.span {
                    Span::Tile => 1,
                    Span::Walk => {
                        walked.push((slot, tile));
                        steps
                    }
                };
                bytes += (tile * tiles).next_multiple_of(64) + STAGGER;
                offset
            })
            .collect();
        let constants = constants.iter().map(|&(slot, bits)| (slot, slots[slot].size, bits)).collect();
        Layout { offsets, bytes, walked, constants, code: None }
    }

    /// With the machine code that the kernel's programs run.
    pub(super) fn with_code(self, code: Option<Code>) -> Layout {
        Layout { code, ..self }
    }

    /// Whether that code asks for what the next tile reads.
    pub(super) fn looks_ahead(&self) -> bool {
        self.code.as_ref().is_some_and(|code| code.look == Look::Ahead)
    }

    /// Moves the slots that hold every tile of a walk to one of its steps.
    pub(super) fn turn_to(&self, frame: &mut Frame<'_>, step: usize) {
        for &(slot, bytes) in &self.walked {
            let lanes = self.place(frame.base, slot).wrapping_add(step * bytes);
            (frame.home[slot], frame.at[slot]) = (lanes, lanes);
        }
    }

    /// Where a slot lies in memory of this layout.
    fn place(&self, base: *mut u8, slot: Slot) -> *mut u8 {
        base.wrapping_add(self.offsets[slot])
    }
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

#[derive(Default)]
struct Scratch {
    memory: Vec<Line>,
    home: Vec<*mut u8>,
    at: Vec<*mut u8>,
}

thread_local! {
    /// More than one where a run waits for others on the same thread.
    static SCRATCHES: RefCell<Vec<Scratch>> = const { RefCell::new(Vec::new()) };
}

/// Runs `body` on a frame with this layout. Lanes hold anything at first, constants their values.
pub(super) fn with_frame<R>(
    layout: &Layout,
    isa: Isa,
    buffers: &[RawBuffer],
    body: impl FnOnce(&mut Frame<'_>) -> R,
) -> R {
    let mut scratch = SCRATCHES.with_borrow_mut(Vec::pop).unwrap_or_default();
    let lines = layout.bytes.div_ceil(64);
    if scratch.memory.len() < lines {
        scratch.memory.resize(lines, Line([0; 64]));
    }
    let base = scratch.memory.as_mut_ptr().cast::<u8>();
    scratch.home.clear();
    // The layout's offsets lie inside the memory.
    scratch.home.extend((0..layout.offsets.len()).map(|slot| layout.place(base, slot)));
    scratch.at.clear();
    scratch.at.extend_from_slice(&scratch.home);
    for &(slot, size, bits) in &layout.constants {
        // SAFETY: a uniform slot has one block of lanes of this size.
        unsafe { fill(scratch.home[slot], size, bits, 1) };
    }
    let result = body(&mut Frame {
        isa,
        buffers,
        base,
        home: &mut scratch.home,
        at: &mut scratch.at,
        ahead: Ahead::default(),
        code: Runnable(layout.code.as_ref()),
        sums: SmallVec::new(),
    });
    SCRATCHES.with_borrow_mut(|scratches| scratches.push(scratch));
    result
}

/// Memory for whole operands, kept between runs.
#[derive(Default)]
pub(super) struct Pool(Mutex<Vec<Vec<Line>>>);

impl Pool {
    /// Lends memory of at least that many bytes for `body`; what it holds is anything.
    pub(super) fn with<R>(&self, bytes: usize, body: impl FnOnce(RawBuffer) -> R) -> R {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut memory = lock().pop().unwrap_or_default();
        let lines = bytes.div_ceil(64);
        if memory.len() < lines {
            memory.resize(lines, Line([0; 64]));
        }
        let result = body(RawBuffer { data: memory.as_mut_ptr().cast(), bytes });
        lock().push(memory);
        result
    }
}
