//! Runs of instructions as one loop of machine code.
//!
//! A strip interpreter writes and reads a strip for every instruction. Most of what networks compute between memory and memory is arithmetic
//! on `f32`: such instructions, as many as follow one another, become one loop in which values stay in registers. The code is written when a
//! kernel is prepared, in microseconds, and gives the very bits that the strips would.
//!
//! - `vector.rs`: what a run is in between, `functions.rs`: how instructions become that; `machine.rs`: machine code of it
//!
//! Where the machine is another one, or the system lets no memory be executed, kernels run on strips alone.

mod functions;
#[cfg(target_arch = "x86_64")]
mod machine;
mod vector;

use std::ops::Range;

use kiln_ir::kernel::{Instruction, Reg};
use kiln_ir::{DType, Literal};
use smallvec::SmallVec;

pub(super) use functions::fits;
use vector::{Kept, Lies, Operation, V, Writer};

use super::lanes::{BLOCK, LAST, joined_sums, row_parts};
use super::program::{Class, Frame, Slot, StoreStep, Tile, Write};
use super::vmath::{Isa, Level};

/// Whether loops ask for what the next tile reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Ahead,
    Not,
}

/// Machine code of one kernel under way.
pub(super) struct Fuser {
    used: bool,
    look: Look,
    #[cfg(target_arch = "x86_64")]
    assembler: machine::Assembler,
}

/// Machine code of one kernel.
pub(super) struct Code {
    pub(super) look: Look,
    #[cfg(target_arch = "x86_64")]
    code: machine::Code,
}

/// A run of instructions: where its code begins, and the slots that it reads and writes.
pub(super) struct Fused {
    entry: usize,
    /// The same where every result that is to be written past the caches can be.
    streamed: Option<usize>,
    /// The same where one result is summed instead of written, and the slot of that.
    summed: Option<(usize, Slot)>,
    operands: SmallVec<[Slot; 8]>,
    results: SmallVec<[Made; 2]>,
}

/// A result of a run.
pub(super) struct Made {
    slot: Slot,
    /// The store that may be spared.
    pub(super) direct: Option<usize>,
    /// Whether it is written past the caches.
    streamed: bool,
}

/// What a run of instructions reads from outside.
#[derive(Clone, Copy)]
pub(super) enum Outside {
    /// A slot of this class.
    Slot(Slot, Class),
    Literal(Literal),
}

impl Fuser {
    /// `None` where this machine runs no such code.
    pub(super) fn new(isa: Isa, look: Look) -> Option<Fuser> {
        match isa.0 {
            Level::Baseline => None,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 | Level::Avx512 => Some(Fuser { used: false, look, assembler: machine::Assembler::new() }),
        }
    }

    /// The code of all runs, where the system lets memory be executed.
    pub(super) fn finish(self) -> Option<Code> {
        #[cfg(target_arch = "x86_64")]
        return self.assembler.finish().map(|code| Code { look: self.look, code });
        #[cfg(not(target_arch = "x86_64"))]
        return None;
    }

    /// Whether there is any code.
    pub(super) fn is_used(&self) -> bool {
        self.used
    }

    fn add(&mut self, program: &vector::Program) -> usize {
        self.used = true;
        #[cfg(target_arch = "x86_64")]
        return self.assembler.add(program, self.look);
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("there is no fuser for {program:?}");
    }

    fn add_summed(&mut self, program: &vector::Program) -> usize {
        #[cfg(target_arch = "x86_64")]
        return self.assembler.add_summed(program, self.look);
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("there is no fuser for {program:?}");
    }
}

/// A run of instructions while it is put together.
#[derive(Default)]
pub(super) struct Run {
    writer: Writer,
    values: Vec<(Reg, DType, V)>,
    operands: SmallVec<[Slot; 8]>,
    outside: Vec<((Slot, bool), V)>,
}

impl Run {
    /// The value of a register of the run, with its dtype.
    fn own(&self, reg: Reg) -> Option<V> {
        self.values.iter().rev().find(|(own, ..)| *own == reg).map(|&(.., value)| value)
    }

    /// Adds an instruction that [`fits`]; `outside` finds what the run does not make itself.
    pub(super) fn add(
        &mut self,
        instruction: &Instruction,
        reads: &[Reg],
        dtype_of: impl Fn(Reg) -> DType,
        mut outside: impl FnMut(Reg) -> Outside,
    ) {
        let operands: SmallVec<[V; 3]> = reads
            .iter()
            .map(|&reg| match self.own(reg) {
                Some(value) => value,
                None => self.take(dtype_of(reg), outside(reg)),
            })
            .collect();
        let from = match &instruction.operation {
            kiln_ir::kernel::Operation::Select { .. } => instruction.dtype,
            _ => dtype_of(reads[0]),
        };
        let value = self.writer.instruction(instruction, from, &operands);
        self.values.push((instruction.result, instruction.dtype, value));
    }

    fn take(&mut self, dtype: DType, outside: Outside) -> V {
        match outside {
            Outside::Literal(literal) => self.writer.literal(literal),
            Outside::Slot(slot, class) => {
                let flags = dtype == DType::Bool;
                if let Some(&(_, value)) = self.outside.iter().find(|(known, _)| *known == (slot, flags)) {
                    return value;
                }
                let lies = if class == Class::Uniform { Lies::Uniform } else { Lies::Along };
                let make = if flags { Operation::Flags } else { Operation::Input };
                let value = self.writer.operand(lies, make);
                self.operands.push(slot);
                self.outside.push(((slot, flags), value));
                value
            }
        }
    }

    /// The run as code. `results` are the registers that are read outside, with their slots and how they are stored if they are; `sum` is the
    /// slot of one that nobody reads but a sum over its lanes.
    pub(super) fn finish(
        mut self,
        fuser: &mut Fuser,
        results: &[(Reg, Slot, Option<Write>)],
        sum: Option<Slot>,
    ) -> Fused {
        let results = results.iter().enumerate().map(|(index, &(reg, slot, write))| {
            let at = self.values.iter().rposition(|(own, ..)| *own == reg).expect("a result is made by the run");
            let (_, dtype, value) = self.values[at];
            let kept = match write {
                _ if dtype == DType::Bool => Kept::Flags,
                Some(Write::Stream) => Kept::Streamed,
                Some(Write::Last | Write::Any) | None => Kept::Lanes,
            };
            self.writer.program.results.push((value, kept, index, 0));
            Made { slot, direct: None, streamed: kept == Kept::Streamed }
        });
        let results: SmallVec<[Made; 2]> = results.collect();
        let mut program = self.writer.program;
        let streams = results.iter().any(|result| result.streamed);
        let streamed = streams.then(|| fuser.add(&program));
        for (_, kept, ..) in &mut program.results {
            *kept = if *kept == Kept::Streamed { Kept::Lanes } else { *kept };
        }
        let entry = fuser.add(&program);
        let sum = sum.filter(|_| !streams && program.leaves_room_for_sums());
        let summed = sum.map(|slot| {
            let is_sum = |index: usize| results[index].slot == slot;
            for (_, kept, result, _) in &mut program.results {
                *kept = if is_sum(*result) { Kept::Summed } else { *kept };
            }
            (fuser.add_summed(&program), slot)
        });
        Fused { entry, streamed, summed, operands: self.operands, results }
    }
}

/// Alignment of what goes past the caches.
const ALIGNED: usize = 32;

impl Fused {
    /// The result in a slot.
    pub(super) fn result_mut(&mut self, slot: Slot) -> Option<&mut Made> {
        self.results.iter_mut().find(|result| result.slot == slot)
    }

    /// The slots of its results, and whether they are written to where they go in memory, or not at all.
    pub(super) fn made(&self) -> impl Iterator<Item = (Slot, bool)> {
        self.results.iter().map(|result| (result.slot, result.direct.is_some() || self.sums(result.slot)))
    }

    /// Whether it can sum the lanes of a slot.
    pub(super) fn sums(&self, slot: Slot) -> bool {
        self.summed.is_some_and(|(_, summed)| summed == slot)
    }

    /// Runs the loop over a tile.
    ///
    /// # Safety
    ///
    /// The frame has the slots, buffers and code of the kernel that the run is of; the tile lies inside its space.
    pub(super) unsafe fn run(&self, frame: &mut Frame<'_>, point: &[i64], tile: Tile, stores: &[StoreStep]) {
        let lanes = tile.lanes(Class::Full).next_multiple_of(BLOCK);
        let mut addresses: SmallVec<[*mut u8; 12]> = self.operands.iter().map(|&slot| frame.at[slot]).collect();
        let mut entry = self.streamed.unwrap_or(self.entry);
        for result in &self.results {
            let mut to = frame.home[result.slot];
            let mut streams = !result.streamed;
            if let Some(store) = result.direct.map(|index| &stores[index]) {
                // SAFETY: the caller's.
                let (memory, shape) = unsafe { store.place(frame, point, tile) };
                if shape.dense() && shape.lanes() % BLOCK == 0 {
                    to = memory;
                    streams |= memory.addr() % ALIGNED == 0;
                }
            }
            if !streams {
                entry = self.entry;
            }
            addresses.push(to);
            frame.at[result.slot] = to;
        }
        if frame.code.look() == Look::Ahead {
            // Where there is nothing to ask for, what is read anyway will do.
            let ahead = frame.ahead.take(lanes * size_of::<f32>());
            addresses.push(ahead.map_or(addresses[0], <*const u8>::cast_mut));
        }
        if let Some((entry, slot)) = self.summed {
            frame.sums.clear();
            if tile.columns.is_multiple_of(BLOCK) {
                let part_of = |row: usize| {
                    move |part: Range<usize>| row * tile.columns + part.start..row * tile.columns + part.end
                };
                for part in (0..tile.rows).flat_map(|row| row_parts(tile.columns).map(part_of(row))) {
                    // SAFETY: as below; a slot of `f32` holds more than the sums of one vector.
                    unsafe {
                        frame.code.run(entry, &addresses, part);
                        frame.sums.push(joined_sums(&*frame.home[slot].cast::<[f32; LAST]>()));
                    }
                }
                return;
            }
        }
        // SAFETY: every operand has these lanes, or one block if it is uniform, and so has every result.
        unsafe { frame.code.run(entry, &addresses, 0..lanes) };
    }
}

/// The code that a frame's programs run.
#[derive(Clone, Copy)]
pub(super) struct Runnable<'a>(pub(super) Option<&'a Code>);

impl Runnable<'_> {
    fn look(self) -> Look {
        self.0.map_or(Look::Not, |code| code.look)
    }

    /// Safety: the entry is one of this code's functions, whose addresses and lanes these are.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
    unsafe fn run(self, entry: usize, addresses: &[*mut u8], lanes: Range<usize>) {
        let code = self.0.expect("a kernel with fused runs has its code");
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's.
        unsafe {
            code.code.entry(entry)(addresses.as_ptr(), lanes.end, lanes.start);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = code;
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
