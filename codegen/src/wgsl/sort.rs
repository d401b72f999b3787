//! Sorting updates by where they go, stably: pairs of a key and a position, `vec2<u32>`.
//!
//! A workgroup sorts as many pairs as it has invocations, each of which counts how many come before its own. Runs are then merged, some at a
//! time: a pair's place is its place in its own run and, by binary search, how many of each other run come before it. Equal keys keep their
//! order, so that what is made of them is the same run after run. The largest key, `u32::MAX`, stands for updates that go nowhere.

use std::collections::HashSet;

use kiln_ir::Diagnostic;
use kiln_ir::gpu::{Dispatch, GpuTarget};
use kiln_ir::kernel::{Block, Reg};

use super::module::{Module, Scratch, Subgroups};
use super::ranges::operands;
use super::types::Held;
use super::writer::Writer;

/// What is sorted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entries {
    /// Updates of a group, in order.
    pub(super) updates: usize,
    /// Groups, whose updates never meet.
    pub(super) groups: usize,
    /// Invocations of a workgroup: pairs that are sorted at once.
    pub(super) workgroup: u32,
}

impl Entries {
    /// Pairs of updates.
    pub(super) fn count(&self) -> usize {
        self.updates * self.groups
    }

    /// Runs that workgroups sort; the last one is filled with pairs of no update.
    pub(super) fn runs(&self) -> usize {
        self.count().div_ceil(self.workgroup as usize)
    }

    /// Pairs in all.
    fn padded(&self) -> usize {
        self.runs() * self.workgroup as usize
    }

    /// Which pair an invocation has: `entry`, with a `key` to be set.
    pub(super) fn begin(&self, w: &mut Writer) {
        w.line(format!("let entry = group * {} + local;", self.workgroup));
        w.line("var key = 0xffffffffu;");
    }

    /// Sorts the pairs of a workgroup into scratch memory.
    pub(super) fn sort(&self, module: &mut Module<'_>, w: &mut Writer) {
        let pairs = module.scratch(0, "vec2<u32>", true);
        module.workgroup("keys", format!("array<u32, {}>", self.workgroup));
        w.line("keys[local] = key;");
        w.line("workgroupBarrier();");
        w.line("var rank = 0;");
        w.open(format!("for (var other = 0; other < {}; other++)", self.workgroup));
        w.line("let theirs = keys[other];");
        w.line("if theirs < key || (theirs == key && other < local) { rank++; }");
        w.close();
        w.line(format!("{pairs}[group * {} + rank] = vec2<u32>(key, u32(entry));", self.workgroup));
    }
}

/// The dispatches that merge sorted runs until there is one, and the scratch buffer that it is in. Takes scratch buffers 0 and 1.
pub(super) fn merges(
    entry: &str,
    target: &GpuTarget,
    entries: &Entries,
    ways: u32,
    scratch: &mut Scratch,
) -> Result<(Vec<Dispatch>, u32), Diagnostic> {
    let all = entries.padded();
    let mut dispatches = Vec::new();
    let mut from = scratch.add(Held::U32, 2 * all);
    let mut run = entries.workgroup as usize;
    if run < all {
        scratch.add(Held::U32, 2 * all);
    }
    while run < all {
        let to = 1 - from;
        dispatches.push(merge(entry, target, entries, [from, to], run, ways)?);
        run *= ways as usize;
        from = to;
    }
    Ok((dispatches, from))
}

/// Merges runs of so many pairs.
fn merge(
    entry: &str,
    target: &GpuTarget,
    entries: &Entries,
    [from, to]: [u32; 2],
    run: usize,
    ways: u32,
) -> Result<Dispatch, Diagnostic> {
    let mut module = Module::new(&[], target)?;
    let (from, to) = (module.scratch(from, "vec2<u32>", false), module.scratch(to, "vec2<u32>", true));
    let all = entries.padded();
    let mut w = Writer::body();
    w.line(format!("let number = group * {} + local;", entries.workgroup));
    w.line(format!("let pair = {from}[number];"));
    w.line(format!("let own = number / {run};"));
    w.line(format!("let first = own / {ways} * {ways};"));
    w.line(format!("var place = first * {run} + number % {run};"));
    w.open(format!("for (var other = first; other < first + {ways}; other++)"));
    w.open("if other != own");
    w.line(format!("let begin = min(other * {run}, {all});"));
    w.line("var low = begin;");
    w.line(format!("var high = min(begin + {run}, {all});"));
    w.open("while low < high");
    w.line("let middle = (low + high) / 2;");
    w.line(format!("let theirs = {from}[middle].x;"));
    w.open("if theirs < pair.x || (theirs == pair.x && other < own)");
    w.line("low = middle + 1;");
    w.reopen("else");
    w.line("high = middle;");
    w.close();
    w.close();
    w.line("place += low - begin;");
    w.close();
    w.close();
    w.line(format!("{to}[place] = pair;"));
    let name = format!("{entry}_merge");
    module.dispatch(&name, entries.workgroup, entries.runs() as u64, Subgroups::Unused, &w)
}

/// The instructions of a block that a register needs.
pub(super) fn needed(block: &Block, reg: Reg) -> Block {
    let mut needed = HashSet::from([reg]);
    let mut kept = Vec::new();
    for instruction in block.instructions.iter().rev() {
        if needed.contains(&instruction.result) {
            operands(&instruction.operation, &mut |reg| {
                needed.insert(reg);
            });
            kept.push(instruction.clone());
        }
    }
    kept.reverse();
    Block { instructions: kept, stores: Vec::new() }
}
