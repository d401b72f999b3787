//! Values of a row that a later stage needs again.
//!
//! A softmax takes the exponential of every element to sum them up, and again to divide by the sum: a kernel says so twice, since what an
//! inner point computes is seen by its own stage only. Where the points of a row come in the same order in both stages and a strip as long
//! as the row stays in the cache, the first stage's value is kept and the second stage reads it.
//!
//! What holds: a kept value is the same instruction on the same values, so not one bit changes; loads count as the same only from buffers
//! that the kernel never writes.

use std::collections::{HashMap, HashSet};

use kiln_ir::DType;
use kiln_ir::kernel::{Access, Affine, Block, Instruction, LoopKernel, Operation, Reg, Stage};

use super::compile::operands;
use super::tiling::instruction_cost;

/// Estimated nanoseconds per element from which on a value is rather kept than computed again.
const WORTH: f64 = 0.5;

/// A kernel's stages with what is kept read where it was computed again.
pub(super) struct Reuse {
    pub(super) stages: Vec<Stage>,
    /// Registers of inner stages that later stages read.
    pub(super) kept: HashSet<Reg>,
}

/// What is known of the registers so far.
#[derive(Default)]
struct Known {
    /// The first register that holds the same, for each register of an inner stage.
    first: HashMap<Reg, Reg>,
    /// The stage of each such first register.
    stage: HashMap<Reg, usize>,
    /// First registers by what they compute.
    computed: HashMap<(DType, Operation), Reg>,
    /// Registers that differ from inner point to inner point.
    varying: HashSet<Reg>,
}

impl Reuse {
    /// Nothing kept.
    pub(super) fn none(kernel: &LoopKernel) -> Reuse {
        Reuse { stages: kernel.stages.clone(), kept: HashSet::new() }
    }

    /// Finds what is worth keeping.
    pub(super) fn of(kernel: &LoopKernel) -> Reuse {
        let mut known = Known::default();
        let mut kept = HashSet::new();
        let stages = kernel.stages.iter().enumerate().map(|(index, stage)| match stage {
            Stage::Point(block) => Stage::Point(block.clone()),
            Stage::Fold { block, folds } => {
                known.learn(kernel, index, block);
                let ends: Vec<Reg> = folds.iter().map(|fold| fold.value).collect();
                let (block, renamed) = known.shortened(index, block, &ends, &mut kept);
                let mut folds = folds.clone();
                for fold in &mut folds {
                    fold.value = renamed.get(&fold.value).copied().unwrap_or(fold.value);
                }
                Stage::Fold { block, folds }
            }
            Stage::Each(block) => {
                known.learn(kernel, index, block);
                Stage::Each(known.shortened(index, block, &[], &mut kept).0)
            }
        });
        let stages = stages.collect();
        Reuse { stages, kept }
    }
}

impl Known {
    /// Finds the first register that holds the same as each register of a block.
    fn learn(&mut self, kernel: &LoopKernel, stage: usize, block: &Block) {
        for instruction in &block.instructions {
            let operation = with_operands(&instruction.operation, |reg| self.first.get(&reg).copied().unwrap_or(reg));
            let pure = match &operation {
                Operation::Load { buffer, .. } => kernel.buffers[buffer.0 as usize].access == Access::Read,
                Operation::Literal(_)
                | Operation::Index(_)
                | Operation::Within(_)
                | Operation::Scalar(..)
                | Operation::Fma(..)
                | Operation::Cast(_)
                | Operation::Bitcast(_)
                | Operation::Select { .. }
                | Operation::Random { .. } => true,
            };
            let result = instruction.result;
            if self.varies(kernel, &operation) {
                self.varying.insert(result);
            }
            let own = (instruction.dtype, operation);
            let first = if pure { *self.computed.entry(own).or_insert(result) } else { result };
            self.first.insert(result, first);
            self.stage.entry(first).or_insert(stage);
        }
    }

    fn varies(&self, kernel: &LoopKernel, operation: &Operation) -> bool {
        let inner = |affine: &Affine| (kernel.outer.len()..affine.strides.len()).any(|axis| affine.stride(axis) != 0);
        let own = match operation {
            Operation::Index(affine) => inner(affine),
            Operation::Load { address, bounds, .. } => {
                inner(&address.affine) || bounds.iter().any(|bound| inner(&bound.at))
            }
            Operation::Within(bounds) => bounds.iter().any(|bound| inner(&bound.at)),
            Operation::Literal(_)
            | Operation::Scalar(..)
            | Operation::Fma(..)
            | Operation::Cast(_)
            | Operation::Bitcast(_)
            | Operation::Select { .. }
            | Operation::Random { .. } => false,
        };
        own || operands(operation).iter().any(|reg| self.varying.contains(reg))
    }

    /// The register of an earlier stage that holds the same.
    fn earlier(&self, stage: usize, reg: Reg) -> Option<Reg> {
        let first = *self.first.get(&reg)?;
        let varying = self.varying.contains(&first);
        (varying && self.stage[&first] < stage).then_some(first)
    }

    /// A block without what earlier stages have computed and keep from now on, and the new names of its registers.
    fn shortened(
        &self,
        stage: usize,
        block: &Block,
        ends: &[Reg],
        kept: &mut HashSet<Reg>,
    ) -> (Block, HashMap<Reg, Reg>) {
        let by_result: HashMap<Reg, &Instruction> =
            block.instructions.iter().map(|instruction| (instruction.result, instruction)).collect();
        // What would still be computed here, if all that is known were kept, reads these.
        let unknown = block.instructions.iter().filter(|instruction| self.earlier(stage, instruction.result).is_none());
        let read = unknown.flat_map(|instruction| operands(&instruction.operation));
        let read = read.chain(block.stores.iter().map(|store| store.value)).chain(ends.iter().copied());
        let mut renamed = HashMap::new();
        for reg in read {
            let Some(first) = self.earlier(stage, reg).filter(|_| by_result.contains_key(&reg)) else {
                continue;
            };
            if kept.contains(&first) || cost(reg, &by_result) >= WORTH {
                kept.insert(first);
                renamed.insert(reg, first);
            }
        }
        if renamed.is_empty() {
            return (block.clone(), renamed);
        }
        let name = |reg: Reg| renamed.get(&reg).copied().unwrap_or(reg);
        let mut block = block.clone();
        block.stores.iter_mut().for_each(|store| store.value = name(store.value));
        let mut needed: HashSet<Reg> = block.stores.iter().map(|store| store.value).collect();
        needed.extend(ends.iter().map(|&end| name(end)));
        let mut instructions = Vec::with_capacity(block.instructions.len());
        for instruction in block.instructions.into_iter().rev() {
            if needed.contains(&instruction.result) {
                let operation = with_operands(&instruction.operation, name);
                needed.extend(operands(&operation));
                instructions.push(Instruction { operation, ..instruction });
            }
        }
        instructions.reverse();
        block.instructions = instructions;
        (block, renamed)
    }
}

/// Estimated nanoseconds per element of a register and all that it is computed from in its block.
fn cost(reg: Reg, block: &HashMap<Reg, &Instruction>) -> f64 {
    let (mut seen, mut open, mut sum) = (HashSet::new(), vec![reg], 0.0);
    while let Some(reg) = open.pop() {
        if let Some(instruction) = block.get(&reg).filter(|_| seen.insert(reg)) {
            sum += instruction_cost(instruction);
            open.extend(operands(&instruction.operation));
        }
    }
    sum
}

/// An operation on other registers.
fn with_operands(operation: &Operation, name: impl Fn(Reg) -> Reg) -> Operation {
    match operation {
        Operation::Literal(_) | Operation::Index(_) | Operation::Within(_) => operation.clone(),
        Operation::Load { buffer, address, bounds } => {
            let mut address = address.clone();
            address.computed.iter_mut().for_each(|(reg, _)| *reg = name(*reg));
            Operation::Load { buffer: *buffer, address, bounds: bounds.clone() }
        }
        Operation::Scalar(op, operands) => Operation::Scalar(*op, operands.iter().map(|&reg| name(reg)).collect()),
        Operation::Fma(a, b, c) => Operation::Fma(name(*a), name(*b), name(*c)),
        Operation::Cast(operand) => Operation::Cast(name(*operand)),
        Operation::Bitcast(operand) => Operation::Bitcast(name(*operand)),
        Operation::Select { condition, then, otherwise } => {
            Operation::Select { condition: name(*condition), then: name(*then), otherwise: name(*otherwise) }
        }
        Operation::Random { key, stream, index } => {
            Operation::Random { key: key.map(&name), stream: *stream, index: name(*index) }
        }
    }
}
