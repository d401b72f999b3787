//! Instructions that run two at a time.
//!
//! An addition, subtraction or product of `f32` whose result is read by one other of them, and by nobody else, runs in that one's loop: a
//! strip that is written and read once costs as much as the arithmetic. A pair is made of neighbours in the flow of data, not in the block:
//! the first one waits for the second one's turn.

use std::collections::{HashMap, HashSet};

use kiln_ir::DType;
use kiln_ir::kernel::{Block, Instruction, Operation, Reg};
use smallvec::SmallVec;

use super::compile::operands;
use super::lanes::Arithmetic;

/// Which instructions of a block run two at a time.
#[derive(Default)]
pub(super) struct Pairs<'b> {
    instructions: &'b [Instruction],
    parts: Vec<Part>,
}

/// What an instruction is in a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Alone,
    /// It runs with the one that reads it.
    First,
    /// With the first one's index.
    Second(usize),
}

/// An instruction's part in a pair, if it may have one, and its operands.
pub(super) fn arithmetic(instruction: &Instruction) -> Option<(Arithmetic, [Reg; 2])> {
    match &instruction.operation {
        Operation::Scalar(op, operands) if instruction.dtype == DType::F32 => {
            Some((Arithmetic::of(*op)?, [operands[0], operands[1]]))
        }
        Operation::Scalar(..)
        | Operation::Literal(_)
        | Operation::Index(_)
        | Operation::Load { .. }
        | Operation::Within(_)
        | Operation::Fma(..)
        | Operation::Cast(_)
        | Operation::Bitcast(_)
        | Operation::Select { .. }
        | Operation::Random { .. } => None,
    }
}

impl<'b> Pairs<'b> {
    /// Pairs up arithmetic of which the first result is read by the second alone. `whole` are registers that others read too.
    pub(super) fn of(block: &'b Block, whole: &HashSet<Reg>) -> Pairs<'b> {
        let instructions = &block.instructions;
        let mut readers: HashMap<Reg, (usize, Vec<usize>)> = HashMap::new();
        for (index, instruction) in instructions.iter().enumerate() {
            readers.insert(instruction.result, (index, Vec::new()));
            for reg in operands(&instruction.operation) {
                if let Some((_, readers)) = readers.get_mut(&reg) {
                    readers.push(index);
                }
            }
        }
        let stored: HashSet<Reg> = block.stores.iter().map(|store| store.value).collect();
        let mut parts = vec![Part::Alone; instructions.len()];
        for (index, instruction) in instructions.iter().enumerate() {
            let Some((second, both)) = arithmetic(instruction) else { continue };
            let twice = both[0] == both[1];
            let first = both.into_iter().find_map(|reg| {
                let (first, readers) = readers.get(&reg)?;
                let own =
                    readers.iter().all(|&reader| reader == index) && !whole.contains(&reg) && !stored.contains(&reg);
                let fits = !twice || second == Arithmetic::Mul;
                let free = parts[*first] == Part::Alone && arithmetic(&instructions[*first]).is_some();
                (own && fits && free).then_some(*first)
            });
            if let Some(first) = first {
                parts[first] = Part::First;
                parts[index] = Part::Second(first);
            }
        }
        Pairs { instructions, parts }
    }

    /// No pairs at all.
    pub(super) fn none(block: &'b Block) -> Pairs<'b> {
        Pairs { instructions: &block.instructions, parts: vec![Part::Alone; block.instructions.len()] }
    }

    pub(super) fn part(&self, index: usize) -> Part {
        self.parts[index]
    }

    /// The registers that are read when an instruction's turn comes.
    pub(super) fn reads(&self, index: usize) -> SmallVec<[Reg; 3]> {
        let own = operands(&self.instructions[index].operation);
        match self.parts[index] {
            Part::Alone => own,
            Part::First => SmallVec::new(),
            Part::Second(first) => {
                let first = &self.instructions[first];
                let others = own.into_iter().filter(|&reg| reg != first.result);
                operands(&first.operation).into_iter().chain(others).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kiln_ir::ScalarOp;

    use super::*;

    fn scalar(result: u32, op: ScalarOp, operands: [u32; 2]) -> Instruction {
        let operation = Operation::Scalar(op, operands.iter().map(|&reg| Reg(reg)).collect());
        Instruction { result: Reg(result), dtype: DType::F32, operation }
    }

    fn parts(instructions: Vec<Instruction>, whole: &[u32]) -> Vec<Part> {
        let block = Block { instructions, stores: Vec::new() };
        Pairs::of(&block, &whole.iter().map(|&reg| Reg(reg)).collect()).parts
    }

    #[test]
    fn a_product_runs_with_the_sum_that_reads_it() {
        let chain = vec![scalar(2, ScalarOp::Mul, [0, 1]), scalar(3, ScalarOp::Add, [2, 0])];
        assert_eq!(parts(chain.clone(), &[]), [Part::First, Part::Second(0)]);
        assert_eq!(parts(chain, &[2]), [Part::Alone, Part::Alone]);
    }

    #[test]
    fn a_chain_is_cut_into_pairs() {
        let sum = |result: u32| scalar(result, ScalarOp::Add, [result - 1, 0]);
        let expected = [Part::First, Part::Second(0), Part::First, Part::Second(2), Part::Alone];
        assert_eq!(parts((2..7).map(sum).collect(), &[]), expected);
    }

    #[test]
    fn what_two_read_is_computed_alone() {
        let both =
            vec![scalar(2, ScalarOp::Mul, [0, 1]), scalar(3, ScalarOp::Add, [2, 0]), scalar(4, ScalarOp::Add, [2, 1])];
        assert_eq!(parts(both, &[]), [Part::Alone, Part::Alone, Part::Alone]);
    }

    #[test]
    fn a_difference_is_squared_in_its_own_loop() {
        let square = vec![scalar(2, ScalarOp::Sub, [0, 1]), scalar(3, ScalarOp::Mul, [2, 2])];
        assert_eq!(parts(square, &[]), [Part::First, Part::Second(0)]);
        let double = vec![scalar(2, ScalarOp::Sub, [0, 1]), scalar(3, ScalarOp::Add, [2, 2])];
        assert_eq!(parts(double, &[]), [Part::Alone, Part::Alone]);
    }
}
