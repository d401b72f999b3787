//! Runs of instructions that become machine code: opened by the first instruction that fits, closed where another one wants a result.

use std::collections::HashSet;

use kiln_ir::kernel::{Block, Instruction, Reg};
use smallvec::SmallVec;

use super::{Builder, Compiler, NOWHERE, Repeat, SlotKind, Span, Value, operands};
use crate::cpu::fused::{self, Outside, Run};
use crate::cpu::lanes::Repr;
use crate::cpu::program::{Action, Class, Step};

/// A run of instructions that may still take more.
pub(super) struct OpenRun {
    run: Run,
    /// Whether it changes while inner points are walked.
    pub(super) inner: bool,
    pub(super) reads: HashSet<Reg>,
    makes: Vec<Reg>,
}

impl Compiler<'_> {
    /// Whether an instruction can be part of a run: then whether it changes while inner points are walked.
    pub(super) fn may_run(&self, instruction: &Instruction) -> Option<bool> {
        self.fuser.as_ref()?;
        let reads = operands(&instruction.operation);
        let varies = reads.iter().any(|&reg| self.value(reg).class == Class::Full);
        let fits = varies && fused::fits(instruction, self.isa, |reg| self.value(reg).dtype);
        fits.then(|| reads.iter().any(|&reg| self.value(reg).inner))
    }

    pub(super) fn join_run(&mut self, builder: &mut Builder<'_>, instruction: &Instruction, inner: bool) {
        let reads = operands(&instruction.operation);
        // What a row has once is spread over its lanes before the run begins.
        let outside: SmallVec<[Outside; 3]> = reads
            .iter()
            .map(|&reg| match (self.literal_of.get(&reg), self.value(reg)) {
                (Some(&literal), _) => Outside::Literal(literal),
                (None, value) if value.class == Class::Uniform || value.slot == NOWHERE => {
                    Outside::Slot(value.slot, value.class)
                }
                (None, value) => {
                    let value = self.lift(builder, value, Class::Full);
                    Outside::Slot(value.slot, value.class)
                }
            })
            .collect();
        let fresh = || OpenRun { run: Run::default(), inner, reads: HashSet::new(), makes: Vec::new() };
        let open = builder.run.get_or_insert_with(fresh);
        let dtype_of = |reg: Reg| self.value(reg).dtype;
        let found = |reg: Reg| reads.iter().position(|&read| read == reg).map_or(outside[0], |index| outside[index]);
        open.run.add(instruction, &reads, dtype_of, found);
        open.reads.extend(reads.iter().copied().filter(|&reg| self.value(reg).slot != NOWHERE));
        open.makes.push(instruction.result);
        let value = Value { slot: NOWHERE, class: Class::Full, dtype: instruction.dtype, inner };
        self.values.insert(instruction.result, value);
    }

    /// Ends the run before instruction `index` of the block: what is read from there on gets a slot.
    pub(super) fn close_run(&mut self, builder: &mut Builder<'_>, block: &Block, index: usize) {
        let Some(OpenRun { run, inner, reads, makes }) = builder.run.take() else { return };
        let mut results = Vec::new();
        let mut sum = None;
        for reg in makes {
            let needed = builder.last.get(&reg).is_some_and(|&last| last >= index) || self.kept.contains(&reg);
            let Some(value) = self.values.get(&reg).copied().filter(|_| needed) else { continue };
            let size = Repr::of(value.dtype).size();
            let slot = if self.kept.contains(&reg) {
                self.slots.push(SlotKind { class: Class::Full, size, span: Span::Walk });
                self.slots.len() - 1
            } else {
                let slot = self.result_slot(builder, Class::Full, inner, size);
                builder.local.push(slot);
                slot
            };
            let is_read = builder.last_read.get(&reg).is_some_and(|&last| last >= index) || self.kept.contains(&reg);
            let store = block.stores.iter().find(|store| store.value == reg && !is_read);
            results.push((reg, slot, store.map(|store| self.write_of(store.buffer.0 as usize))));
            self.values.insert(reg, Value { slot, ..value });
            // What only a sum reads need not be anywhere.
            let stored = block.stores.iter().any(|store| store.value == reg);
            if self.summed.contains(&reg)
                && inner
                && !stored
                && index == block.instructions.len()
                && !self.kept.contains(&reg)
            {
                sum.get_or_insert(slot);
            }
        }
        if let Some(&(_, result, _)) = results.first() {
            let fuser = self.fuser.as_mut().expect("runs are made where there is a fuser");
            let action = Action::Fused(Box::new(run.finish(fuser, &results, sum)));
            let step = Step { class: Class::Full, result, operands: [result; 3], steps: [0; 3], action, direct: None };
            match builder.repeat {
                Repeat::Inner if !inner => builder.program.before.push(step),
                Repeat::Inner | Repeat::Once => builder.program.body.push(step),
            }
        }
        let over = |reg: &Reg| builder.last.get(reg).is_some_and(|&last| last < index);
        let over: Vec<Reg> = reads.into_iter().filter(over).collect();
        self.release_all(builder, &over, index.saturating_sub(1));
    }
}
