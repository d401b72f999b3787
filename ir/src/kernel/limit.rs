//! Keys that a query does not see: a causal mask makes half of all weights 0, which need not be computed.
//!
//! What a mask of -inf by place comes to is read from the logit block. Leaving keys out changes nothing where their weights are exactly 0
//! and all that they would be multiplied with is finite, which a target looks up in every run.

use std::collections::{HashMap, HashSet};

use super::{Affine, AttentionKernel, AttentionPass, Block, GradientZeros, Instruction, MatrixOperand, Operation, Reg};
use crate::{DType, Literal, ScalarOp};

/// A logit is -inf where `offset + row * query + column * key > 0`, whatever the score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyLimit {
    /// What the left side is at the origin.
    pub offset: i64,
    /// Its change from one query to the next.
    pub row: i64,
    /// Its change from one key to the next; above 0.
    pub column: i64,
    /// How many keys there are.
    pub keys: usize,
    /// Where -inf comes from.
    pub fill: LimitFill,
}

/// Where -inf comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimitFill {
    /// It is written in the place of scores: what follows keeps it.
    Scores,
    /// The logit block makes it.
    Logits,
}

impl KeyLimit {
    /// The limit of a kernel, if its mask has one and the kernel is such that 0 stays 0.
    pub fn of(kernel: &AttentionKernel) -> Option<KeyLimit> {
        if !zeros_stay(kernel) {
            return None;
        }
        let places = Places::of(&kernel.logit, kernel.batch.len());
        let (condition, masked) = places.masked(kernel.logit.value)?;
        let limit = places.limit(condition, masked, kernel.keys)?;
        let unmasked = limit.unmasked(&kernel.logit, f64::NEG_INFINITY, kernel.batch.len());
        let keeps = Places::of(&unmasked, kernel.batch.len()).keeps_lowest(unmasked.value, kernel.score);
        Some(KeyLimit { fill: if keeps { LimitFill::Scores } else { LimitFill::Logits }, ..limit })
    }

    /// The kernel without what masks where this limit does, for runs in which masked scores are -inf and all else is finite.
    pub fn without(&self, kernel: &AttentionKernel) -> AttentionKernel {
        let batch = kernel.batch.len();
        let mut without = kernel.clone();
        if self.fill == LimitFill::Scores {
            without.logit = self.unmasked(&kernel.logit, f64::NEG_INFINITY, batch);
        }
        if let AttentionPass::Backward(backward) = &mut without.pass
            && let Some(through) = &mut backward.through
        {
            through.score = self.unmasked(&through.score, 0.0, batch);
        }
        without
    }

    /// The logit block without what masks where this limit does.
    pub fn seen_logit(&self, kernel: &AttentionKernel) -> MatrixOperand {
        self.unmasked(&kernel.logit, f64::NEG_INFINITY, kernel.batch.len())
    }

    /// The score block of the backward direction without what masks where this limit does.
    pub fn seen_score(&self, kernel: &AttentionKernel, score: &MatrixOperand) -> MatrixOperand {
        self.unmasked(score, 0.0, kernel.batch.len())
    }

    /// A block without the selections of a number where this limit masks.
    fn unmasked(&self, made: &MatrixOperand, number: f64, batch: usize) -> MatrixOperand {
        let places = Places::of(made, batch);
        let is = |reg: Reg| places.literal(reg).is_some_and(|literal| literal.to_f64() == number);
        let same = |condition: Reg, masked: Masked| {
            let found = places.limit(condition, masked, self.keys);
            found.is_some_and(|found| KeyLimit { fill: self.fill, ..found } == *self)
        };
        let mut names: HashMap<Reg, Reg> = HashMap::new();
        let mut instructions = Vec::new();
        for instruction in &made.block.instructions {
            let mut operation = instruction.operation.clone();
            operation.rename(&|reg| names.get(&reg).copied().unwrap_or(reg));
            let kept = match &instruction.operation {
                Operation::Select { condition, then, otherwise } if is(*otherwise) => {
                    same(*condition, Masked::Otherwise).then_some(*then)
                }
                Operation::Select { condition, then, otherwise } if is(*then) => {
                    same(*condition, Masked::Then).then_some(*otherwise)
                }
                _ => None,
            };
            match kept {
                Some(kept) => {
                    names.insert(instruction.result, names.get(&kept).copied().unwrap_or(kept));
                }
                None => instructions.push(Instruction { operation, ..*instruction }),
            }
        }
        let value = names.get(&made.value).copied().unwrap_or(made.value);
        let mut needed = HashSet::from([value]);
        let mut block = Block::default();
        for instruction in instructions.into_iter().rev() {
            if needed.contains(&instruction.result) {
                needed.extend(instruction.operation.operands());
                block.instructions.push(instruction);
            }
        }
        block.instructions.reverse();
        MatrixOperand { block, value }
    }

    /// Whether each of several queries sees a key: all weights of one that sees none are NaN, and none is 0.
    pub fn shows_each(&self, queries: usize) -> bool {
        self.masked_from(0).min(self.masked_from(queries.saturating_sub(1))) > 0
    }

    /// The first key that a query does not see.
    pub fn masked_from(&self, query: usize) -> usize {
        let from = (-(self.offset + self.row * query as i64)).div_euclid(self.column) + 1;
        usize::try_from(from).unwrap_or(0).min(self.keys)
    }
}

/// Which branch of a selection is -inf.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Masked {
    Then,
    Otherwise,
}

/// A whole number that is known from query and key alone.
#[derive(Clone, Copy)]
struct Place {
    offset: i64,
    row: i64,
    column: i64,
}

impl Place {
    fn minus(self, other: Place) -> Place {
        Place { offset: self.offset - other.offset, row: self.row - other.row, column: self.column - other.column }
    }

    fn negative(self) -> Place {
        Place { offset: 0, row: 0, column: 0 }.minus(self)
    }

    fn plus(self, number: i64) -> Place {
        Place { offset: self.offset + number, ..self }
    }
}

/// A block's instructions by their results.
struct Places<'a> {
    made: HashMap<Reg, &'a Instruction>,
    batch: usize,
}

impl<'a> Places<'a> {
    fn of(made: &'a MatrixOperand, batch: usize) -> Places<'a> {
        let made = made.block.instructions.iter().map(|instruction| (instruction.result, instruction)).collect();
        Places { made, batch }
    }

    fn operation(&self, reg: Reg) -> Option<&'a Operation> {
        self.made.get(&reg).map(|instruction| &instruction.operation)
    }

    fn literal(&self, reg: Reg) -> Option<Literal> {
        match self.operation(reg) {
            Some(Operation::Literal(literal)) => Some(*literal),
            _ => None,
        }
    }

    /// The condition of a selection with -inf that a register is, but for casts and a positive scale.
    fn masked(&self, reg: Reg) -> Option<(Reg, Masked)> {
        let lowest = |reg: Reg| self.literal(reg).is_some_and(|literal| literal.to_f64() == f64::NEG_INFINITY);
        let scale = |reg: Reg| self.literal(reg).is_some_and(|literal| literal.to_f64() > 0.0);
        match self.operation(reg)? {
            Operation::Cast(operand) => self.masked(*operand),
            Operation::Scalar(ScalarOp::Mul, operands) if scale(operands[0]) => self.masked(operands[1]),
            Operation::Scalar(ScalarOp::Mul | ScalarOp::Div, operands) if scale(operands[1]) => {
                self.masked(operands[0])
            }
            Operation::Select { condition, otherwise, .. } if lowest(*otherwise) => {
                Some((*condition, Masked::Otherwise))
            }
            Operation::Select { condition, then, .. } if lowest(*then) => Some((*condition, Masked::Then)),
            _ => None,
        }
    }

    /// The limit that a comparison of places is.
    fn limit(&self, condition: Reg, masked: Masked, keys: usize) -> Option<KeyLimit> {
        let Operation::Scalar(op, operands) = self.operation(condition)? else { return None };
        let below = self.place(*operands.first()?)?.minus(self.place(*operands.get(1)?)?);
        // Masked where a number is above 0.
        let Place { offset, row, column } = match (op, masked) {
            (ScalarOp::Le, Masked::Otherwise) | (ScalarOp::Gt, Masked::Then) => below,
            (ScalarOp::Lt, Masked::Otherwise) | (ScalarOp::Ge, Masked::Then) => below.plus(1),
            (ScalarOp::Ge, Masked::Otherwise) | (ScalarOp::Lt, Masked::Then) => below.negative(),
            (ScalarOp::Gt, Masked::Otherwise) | (ScalarOp::Le, Masked::Then) => below.negative().plus(1),
            _ => return None,
        };
        (column > 0).then_some(KeyLimit { offset, row, column, keys, fill: LimitFill::Logits })
    }

    /// Whether a register is -inf where `score` is: nothing but casts and positive scales lies between.
    fn keeps_lowest(&self, reg: Reg, score: Reg) -> bool {
        let scale =
            |reg: Reg| self.literal(reg).is_some_and(|literal| literal.to_f64() > 0.0 && literal.to_f64().is_finite());
        reg == score
            || match self.operation(reg) {
                Some(Operation::Cast(operand)) => self.keeps_lowest(*operand, score),
                Some(Operation::Scalar(ScalarOp::Mul, operands)) if scale(operands[0]) => {
                    self.keeps_lowest(operands[1], score)
                }
                Some(Operation::Scalar(ScalarOp::Mul | ScalarOp::Div, operands)) if scale(operands[1]) => {
                    self.keeps_lowest(operands[0], score)
                }
                _ => false,
            }
    }

    fn place(&self, reg: Reg) -> Option<Place> {
        let instruction = self.made.get(&reg)?;
        if !matches!(instruction.dtype, DType::I32 | DType::I64) {
            return None;
        }
        match &instruction.operation {
            Operation::Index(affine) => self.affine(affine),
            Operation::Literal(number) => {
                i64::try_from(number.to_i128()).ok().map(|offset| Place { offset, row: 0, column: 0 })
            }
            Operation::Scalar(ScalarOp::Add, operands) => {
                Some(self.place(operands[0])?.minus(self.place(operands[1])?.negative()))
            }
            Operation::Scalar(ScalarOp::Sub, operands) => {
                Some(self.place(operands[0])?.minus(self.place(operands[1])?))
            }
            _ => None,
        }
    }

    fn affine(&self, affine: &Affine) -> Option<Place> {
        let same = (0..self.batch).all(|axis| affine.stride(axis) == 0);
        let (row, column) = (affine.stride(self.batch), affine.stride(self.batch + 1));
        same.then_some(Place { offset: affine.offset, row, column })
    }
}

/// Whether weights and gradients that are 0 make factors and gradients of scores that are 0.
fn zeros_stay(kernel: &AttentionKernel) -> bool {
    let through = match &kernel.pass {
        AttentionPass::Forward(_) => None,
        AttentionPass::Backward(backward) => backward.through.as_ref(),
    };
    stays_zero(&kernel.factor, kernel.weight)
        && through.is_none_or(|through| {
            // Nothing finite may become infinite on its way to the softmax.
            let plain = through.weight.block.instructions.iter().all(|instruction| {
                matches!(instruction.operation, Operation::Cast(_)) && instruction.dtype == kernel.softmax
            });
            plain && through.zeros == GradientZeros::Arithmetic && stays_zero(&through.score, through.logit)
        })
}

/// Whether a block makes 0 of 0.
fn stays_zero(made: &MatrixOperand, given: Reg) -> bool {
    let mut zeros = vec![given];
    let mut finite = Vec::new();
    for Instruction { result, operation, .. } in &made.block.instructions {
        let zero = |reg: &Reg| zeros.contains(reg);
        let stays = match operation {
            Operation::Literal(literal) => {
                if literal.to_f64().is_finite() {
                    finite.push(*result);
                }
                literal.to_f64() == 0.0
            }
            Operation::Cast(operand) => zero(operand),
            Operation::Scalar(ScalarOp::Neg, operands) => zero(&operands[0]),
            Operation::Scalar(ScalarOp::Mul, operands) => {
                let (a, b) = (&operands[0], &operands[1]);
                zero(a) && finite.contains(b) || zero(b) && finite.contains(a)
            }
            Operation::Select { then, otherwise, .. } => zero(then) && zero(otherwise),
            Operation::Scalar(..)
            | Operation::Index(_)
            | Operation::Load { .. }
            | Operation::Within(_)
            | Operation::Fma(..)
            | Operation::Bitcast(_)
            | Operation::Random { .. } => false,
        };
        if stays {
            zeros.push(*result);
        }
    }
    zeros.contains(&made.value)
}
