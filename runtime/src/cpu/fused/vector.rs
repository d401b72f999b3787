//! Straight-line programs on vectors of 32-bit lanes: what a run of instructions is before it becomes machine code.
//!
//! Values are named by the operation that makes them; equal operations are one value. Each operation is an instruction of the machine or
//! nearly one, and rounds as that does: what is not written as a multiply-add is none.

use std::collections::HashMap;

/// A value of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct V(pub(super) u32);

/// Operations on two vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Two {
    Add,
    Sub,
    Mul,
    Div,
    /// The second where the first is not larger: where either is NaN, or both are zero.
    Max,
    /// The second where the first is not smaller.
    Min,
    And,
    /// Bits of the second where the first has none.
    AndNot,
    Or,
    Xor,
    IntAdd,
    IntSub,
}

impl Two {
    /// Whether the operands may change places.
    pub(super) fn commutes(self) -> bool {
        match self {
            Two::Add | Two::Mul | Two::And | Two::Or | Two::Xor | Two::IntAdd => true,
            Two::Sub | Two::Div | Two::Max | Two::Min | Two::AndNot | Two::IntSub => false,
        }
    }
}

/// Operations on one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum One {
    Sqrt,
    /// To an integer, in the direction that the instruction's constant says.
    Round(Direction),
    /// From `i32`.
    ToFloat,
    ShiftLeft(u8),
    /// With copies of the sign.
    ShiftRight(u8),
}

/// Where numbers between integers go; the discriminant is the instruction's constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Direction {
    Nearest = 0,
    Down = 1,
    Up = 2,
    Zero = 3,
}

/// Comparisons; the discriminant is the instruction's constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Predicate {
    Equal = 0,
    Unordered = 3,
    /// Or unordered.
    NotEqual = 4,
    /// Or unordered.
    EqualOrNot = 8,
    Less = 17,
    LessOrEqual = 18,
    GreaterOrEqual = 29,
    Greater = 30,
}

/// What makes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Operation {
    /// Lanes of the operand with this number, so many vectors on.
    Input(usize, u8),
    /// Bools of the operand with this number, so many vectors on, as a mask: all bits or none.
    Flags(usize, u8),
    /// The same bits in every lane.
    Constant(u32),
    One(One, V),
    Two(Two, V, V),
    /// `a * b + c`, rounded once.
    MulAdd(V, V, V),
    /// `c - a * b`, rounded once.
    NegMulAdd(V, V, V),
    /// As a mask.
    Compare(Predicate, V, V),
    Blend {
        mask: V,
        yes: V,
        no: V,
    },
}

impl Operation {
    /// The values that it reads.
    pub(super) fn reads(&self) -> impl Iterator<Item = V> {
        let (count, reads) = match *self {
            Operation::Input(..) | Operation::Flags(..) | Operation::Constant(_) => (0, [V(0); 3]),
            Operation::One(_, a) => (1, [a; 3]),
            Operation::Two(_, a, b) | Operation::Compare(_, a, b) => (2, [a, b, b]),
            Operation::MulAdd(a, b, c) | Operation::NegMulAdd(a, b, c) => (3, [a, b, c]),
            Operation::Blend { mask, yes, no } => (3, [mask, yes, no]),
        };
        reads.into_iter().take(count)
    }
}

/// How lanes of an operand lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Lies {
    /// One block, the same in every lane.
    Uniform,
    /// Lane after lane.
    Along,
}

/// How a result is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kept {
    /// Lane after lane.
    Lanes,
    /// The same, past the caches: 32-byte aligned.
    Streamed,
    /// A mask as bools.
    Flags,
    /// Added up: eight sums of as many lanes each, joined as the loops over rows join them, and of that the first vector.
    Summed,
}

/// A program: operations, operands first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Program {
    pub(super) operations: Vec<Operation>,
    pub(super) operands: Vec<Lies>,
    /// Values with the numbers of their results, and so many vectors on.
    pub(super) results: Vec<(V, Kept, usize, u8)>,
}

/// Values that one copy of a program may hold at a time for there to be two copies, and for there to be four. Two copies may be more than 16 registers
/// hold: what spills costs less than waiting does.
const FOR_TWO: usize = 13;
const FOR_FOUR: usize = 3;
/// The same beside eight sums.
const FOR_TWO_SUMMED: usize = 4;
const FOR_FOUR_SUMMED: usize = 2;
/// Values that a program may hold at a time for sums beside them to be worth their registers.
const SUMMED: usize = 7;
/// Vectors that are summed side by side.
pub(super) const SUMS: usize = 8;

impl Program {
    /// The program for several vectors at a time, operation by operation: one waits for its operands while the others compute.
    pub(super) fn interleaved(&self) -> (Program, usize) {
        let alive = self.most_alive();
        let copies =
            [(FOR_FOUR, 4), (FOR_TWO, 2)].into_iter().find(|&(most, _)| alive <= most).map_or(1, |(_, copies)| copies);
        (self.copied(0, copies), copies)
    }

    /// The program for as many vectors as are summed side by side, part after part.
    pub(super) fn summed(&self) -> Vec<Program> {
        let alive = self.most_alive();
        let copies = [(FOR_FOUR_SUMMED, 4), (FOR_TWO_SUMMED, 2)].into_iter().find(|&(most, _)| alive <= most);
        let copies = copies.map_or(1, |(_, copies)| copies);
        (0..SUMS).step_by(copies).map(|first| self.copied(first, copies)).collect()
    }

    /// Whether sums are worth their registers.
    pub(super) fn leaves_room_for_sums(&self) -> bool {
        self.most_alive() <= SUMMED
    }

    /// The program for so many vectors from number `first` on.
    fn copied(&self, first: usize, copies: usize) -> Program {
        let mut writer = Writer::default();
        writer.program.operands.clone_from(&self.operands);
        let mut values = vec![Vec::with_capacity(self.operations.len()); copies];
        for operation in &self.operations {
            for (copy, values) in values.iter_mut().enumerate() {
                let on =
                    |operand: usize| if self.operands[operand] == Lies::Uniform { 0 } else { (first + copy) as u8 };
                let own = |value: V| -> V { values[value.0 as usize] };
                let operation = match *operation {
                    Operation::Input(operand, _) => Operation::Input(operand, on(operand)),
                    Operation::Flags(operand, _) => Operation::Flags(operand, on(operand)),
                    Operation::Constant(bits) => Operation::Constant(bits),
                    Operation::One(one, a) => Operation::One(one, own(a)),
                    Operation::Two(two, a, b) => Operation::Two(two, own(a), own(b)),
                    Operation::MulAdd(a, b, c) => Operation::MulAdd(own(a), own(b), own(c)),
                    Operation::NegMulAdd(a, b, c) => Operation::NegMulAdd(own(a), own(b), own(c)),
                    Operation::Compare(predicate, a, b) => Operation::Compare(predicate, own(a), own(b)),
                    Operation::Blend { mask, yes, no } => {
                        Operation::Blend { mask: own(mask), yes: own(yes), no: own(no) }
                    }
                };
                let value = writer.push(operation);
                values.push(value);
            }
        }
        for &(value, kept, result, _) in &self.results {
            for (copy, values) in values.iter().enumerate() {
                writer.program.results.push((values[value.0 as usize], kept, result, (first + copy) as u8));
            }
        }
        writer.program
    }

    /// Values in registers at a time, at most; constants are read from memory.
    fn most_alive(&self) -> usize {
        let mut last = vec![0; self.operations.len()];
        for (position, operation) in self.operations.iter().enumerate() {
            operation.reads().for_each(|read| last[read.0 as usize] = position);
        }
        self.results.iter().for_each(|result| last[result.0.0 as usize] = self.operations.len());
        let counts = |position: usize| !matches!(self.operations[position], Operation::Constant(_));
        let mut ends = vec![0usize; self.operations.len() + 1];
        let (mut alive, mut most) = (0usize, 0);
        for position in (0..self.operations.len()).filter(|&position| counts(position)) {
            alive += 1;
            most = most.max(alive);
            ends[last[position].max(position)] += 1;
            alive -= ends[..=position].iter_mut().map(std::mem::take).sum::<usize>();
        }
        most
    }
}

/// A program while it is written.
#[derive(Default)]
pub(super) struct Writer {
    pub(super) program: Program,
    known: HashMap<Operation, V>,
}

impl Writer {
    pub(super) fn push(&mut self, operation: Operation) -> V {
        let next = V(self.program.operations.len() as u32);
        *self.known.entry(operation).or_insert_with(|| {
            self.program.operations.push(operation);
            next
        })
    }

    /// A new operand.
    pub(super) fn operand(&mut self, lies: Lies, make: fn(usize, u8) -> Operation) -> V {
        self.program.operands.push(lies);
        self.push(make(self.program.operands.len() - 1, 0))
    }

    /// The bits of a constant.
    pub(super) fn constant(&self, value: V) -> Option<u32> {
        match self.program.operations[value.0 as usize] {
            Operation::Constant(bits) => Some(bits),
            Operation::Input(..) | Operation::Flags(..) | Operation::One(..) | Operation::Two(..) => None,
            Operation::MulAdd(..) | Operation::NegMulAdd(..) | Operation::Compare(..) | Operation::Blend { .. } => None,
        }
    }

    pub(super) fn bits(&mut self, bits: u32) -> V {
        self.push(Operation::Constant(bits))
    }

    pub(super) fn number(&mut self, number: f32) -> V {
        self.bits(number.to_bits())
    }

    pub(super) fn one(&mut self, one: One, a: V) -> V {
        self.push(Operation::One(one, a))
    }

    pub(super) fn two(&mut self, two: Two, a: V, b: V) -> V {
        self.push(Operation::Two(two, a, b))
    }

    pub(super) fn add(&mut self, a: V, b: V) -> V {
        self.two(Two::Add, a, b)
    }

    pub(super) fn sub(&mut self, a: V, b: V) -> V {
        self.two(Two::Sub, a, b)
    }

    pub(super) fn mul(&mut self, a: V, b: V) -> V {
        self.two(Two::Mul, a, b)
    }

    pub(super) fn max(&mut self, a: V, b: V) -> V {
        self.two(Two::Max, a, b)
    }

    pub(super) fn min(&mut self, a: V, b: V) -> V {
        self.two(Two::Min, a, b)
    }

    pub(super) fn div(&mut self, a: V, b: V) -> V {
        self.two(Two::Div, a, b)
    }

    /// `a * b + c`.
    pub(super) fn mul_add(&mut self, a: V, b: V, c: V) -> V {
        self.push(Operation::MulAdd(a, b, c))
    }

    /// `c - a * b`.
    pub(super) fn neg_mul_add(&mut self, a: V, b: V, c: V) -> V {
        self.push(Operation::NegMulAdd(a, b, c))
    }

    pub(super) fn compare(&mut self, predicate: Predicate, a: V, b: V) -> V {
        self.push(Operation::Compare(predicate, a, b))
    }

    pub(super) fn select(&mut self, mask: V, yes: V, no: V) -> V {
        self.push(Operation::Blend { mask, yes, no })
    }
}
