//! Which 64-bit integers are small.
//!
//! Kernels compute indices in `i64`. GPUs rarely have such numbers, and those that do are slow with them, but nearly every index is bounded:
//! it comes from a point of the space, a narrower number, a clamp. Intervals find these; they are held as `i32`, exactly.
//!
//! An index that is loaded as `u32`, or cast from a float, may be too large until it is clamped or compared with its extent. Where that is
//! all that is done with it, it is held as the nearest `i32`, which clamps and compares alike.

use std::collections::{HashMap, HashSet};

use kiln_ir::kernel::{Block, Fold, Instruction, Operation, Reg};
use kiln_ir::{DType, ScalarOp};

/// How a register of dtype `i64` is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// As `i32`: it always fits.
    Narrow,
    /// As the `i32` nearest to it.
    Saturated,
    /// As `i64`.
    Wide,
}

/// Smallest and largest value.
type Range = (i128, i128);

const I32: Range = (i32::MIN as i128, i32::MAX as i128);

/// What is known of the integer registers of a kernel.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges {
    ranges: HashMap<Reg, Range>,
    saturated: HashSet<Reg>,
}

impl Ranges {
    /// Looks at blocks, in the order in which they run, each with the extents of its space. Registers in `compared` are also compared with
    /// bounds that an `i32` holds, outside of any block; those in `kept` are wanted with their exact value.
    pub(super) fn of<'b>(
        blocks: impl Iterator<Item = (&'b Block, &'b [usize], &'b [Fold])> + Clone,
        kept: &[Reg],
    ) -> Ranges {
        let mut ranges = Ranges::default();
        let mut dtypes = HashMap::new();
        let mut candidates = HashSet::new();
        for (block, extents, folds) in blocks.clone() {
            for instruction in &block.instructions {
                dtypes.insert(instruction.result, instruction.dtype);
                if let Some(range) = ranges.range(instruction, extents, &dtypes) {
                    ranges.ranges.insert(instruction.result, range);
                }
                if instruction.dtype == DType::I64
                    && !ranges.fits(instruction.result)
                    && ranges.clamps(instruction, &dtypes, &candidates)
                {
                    candidates.insert(instruction.result);
                }
            }
            for fold in folds {
                dtypes.insert(fold.result, fold.dtype);
            }
        }
        loop {
            let before = candidates.len();
            for &reg in kept {
                candidates.remove(&reg);
            }
            for (block, _, folds) in blocks.clone() {
                for instruction in &block.instructions {
                    ranges.keep_exact(instruction, &mut candidates);
                }
                let stored = block.stores.iter().map(|store| store.value);
                let folded = folds.iter().map(|fold| fold.value);
                for reg in stored.chain(folded) {
                    candidates.remove(&reg);
                }
            }
            if candidates.len() == before {
                break;
            }
        }
        ranges.saturated = candidates;
        ranges
    }

    /// How a register of dtype `i64` is held.
    pub(super) fn width(&self, reg: Reg) -> Width {
        if self.fits(reg) {
            Width::Narrow
        } else if self.saturated.contains(&reg) {
            Width::Saturated
        } else {
            Width::Wide
        }
    }

    fn fits(&self, reg: Reg) -> bool {
        self.ranges.get(&reg).is_some_and(|range| inside(*range, I32))
    }

    /// Whether the register may be held as the nearest `i32`, as far as its own instruction goes.
    fn clamps(&self, instruction: &Instruction, dtypes: &HashMap<Reg, DType>, candidates: &HashSet<Reg>) -> bool {
        match &instruction.operation {
            Operation::Cast(from) => {
                matches!(dtypes.get(from), Some(DType::U32 | DType::F32 | DType::F16 | DType::BF16))
            }
            Operation::Scalar(ScalarOp::Max | ScalarOp::Min | ScalarOp::Clamp, operands) => {
                operands.iter().all(|reg| self.fits(*reg) || candidates.contains(reg))
            }
            Operation::Scalar(..)
            | Operation::Literal(_)
            | Operation::Index(_)
            | Operation::Load { .. }
            | Operation::Within(_)
            | Operation::Fma(..)
            | Operation::Bitcast(_)
            | Operation::Select { .. }
            | Operation::Random { .. } => false,
        }
    }

    /// Takes from the candidates what an instruction wants exactly.
    fn keep_exact(&self, instruction: &Instruction, candidates: &mut HashSet<Reg>) {
        let strictly_inside =
            |reg: &Reg| self.ranges.get(reg).is_some_and(|range| inside(*range, (I32.0 + 1, I32.1 - 1)));
        if let Operation::Scalar(op, operands) = &instruction.operation {
            let clamps = matches!(op, ScalarOp::Max | ScalarOp::Min | ScalarOp::Clamp)
                && (self.fits(instruction.result) || candidates.contains(&instruction.result))
                && operands.iter().all(|reg| self.fits(*reg) || candidates.contains(reg));
            let compares =
                matches!(op, ScalarOp::Lt | ScalarOp::Le | ScalarOp::Gt | ScalarOp::Ge | ScalarOp::Eq | ScalarOp::Ne)
                    && operands.iter().filter(|reg| strictly_inside(reg)).count() + 1 >= operands.len();
            if clamps || compares {
                return;
            }
        }
        operands(&instruction.operation, &mut |reg| {
            candidates.remove(&reg);
        });
    }

    /// What the result of an integer instruction lies between.
    fn range(&self, instruction: &Instruction, extents: &[usize], dtypes: &HashMap<Reg, DType>) -> Option<Range> {
        let full = match instruction.dtype {
            DType::Bool => (0, 1),
            DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 => instruction.dtype.int_range()?,
            DType::F32 | DType::F16 | DType::BF16 | DType::F64 => return None,
        };
        let of = |reg: &Reg| self.ranges.get(reg).copied();
        let exact = match &instruction.operation {
            Operation::Literal(value) => Some((value.to_i128(), value.to_i128())),
            Operation::Index(affine) if extents.contains(&0) => Some((affine.offset.into(), affine.offset.into())),
            Operation::Index(affine) => {
                let (low, high) = affine.range(extents);
                Some((low.into(), high.into()))
            }
            Operation::Cast(from) if dtypes.get(from).is_some_and(|dtype| !dtype.is_float()) => of(from),
            Operation::Select { then, otherwise, .. } => of(then).zip(of(otherwise)).map(|(x, y)| union(x, y)),
            Operation::Scalar(op, operands) => {
                let ranges: Option<Vec<Range>> = operands.iter().map(of).collect();
                ranges.and_then(|ranges| scalar(*op, &ranges))
            }
            Operation::Cast(_)
            | Operation::Load { .. }
            | Operation::Within(_)
            | Operation::Fma(..)
            | Operation::Bitcast(_)
            | Operation::Random { .. } => None,
        };
        Some(exact.filter(|range| inside(*range, full)).unwrap_or(full))
    }
}

/// What an op gives on integers between these, before it wraps; `None` where nothing is known.
fn scalar(op: ScalarOp, ranges: &[Range]) -> Option<Range> {
    let corners = |f: &dyn Fn(i128, i128) -> Option<i128>| -> Option<Range> {
        let (x, y) = (ranges[0], ranges[1]);
        let all = [f(x.0, y.0)?, f(x.0, y.1)?, f(x.1, y.0)?, f(x.1, y.1)?];
        Some((*all.iter().min()?, *all.iter().max()?))
    };
    match op {
        ScalarOp::Neg => Some((-ranges[0].1, -ranges[0].0)),
        ScalarOp::Abs => {
            let (low, high) = ranges[0];
            let least = if low <= 0 && high >= 0 { 0 } else { low.abs().min(high.abs()) };
            Some((least, low.abs().max(high.abs())))
        }
        ScalarOp::Sign => Some((-1, 1)),
        ScalarOp::Add => corners(&|x, y| x.checked_add(y)),
        ScalarOp::Sub => corners(&|x, y| x.checked_sub(y)),
        ScalarOp::Mul => corners(&|x, y| x.checked_mul(y)),
        ScalarOp::Div if ranges[1].0 > 0 => corners(&|x, y| x.checked_div(y)),
        ScalarOp::Rem if ranges[1].0 > 0 => {
            let most = ranges[1].1 - 1;
            Some((ranges[0].0.max(-most).min(0), ranges[0].1.min(most).max(0)))
        }
        ScalarOp::Max => Some((ranges[0].0.max(ranges[1].0), ranges[0].1.max(ranges[1].1))),
        ScalarOp::Min => Some((ranges[0].0.min(ranges[1].0), ranges[0].1.min(ranges[1].1))),
        ScalarOp::Clamp => {
            let limit = |x: i128, low: i128, high: i128| x.max(low).min(high);
            Some((limit(ranges[0].0, ranges[1].0, ranges[2].0), limit(ranges[0].1, ranges[1].1, ranges[2].1)))
        }
        ScalarOp::And if ranges[0].0 >= 0 && ranges[1].0 >= 0 => Some((0, ranges[0].1.min(ranges[1].1))),
        ScalarOp::Div
        | ScalarOp::Rem
        | ScalarOp::And
        | ScalarOp::Floor
        | ScalarOp::Ceil
        | ScalarOp::Round
        | ScalarOp::Trunc
        | ScalarOp::Sqrt
        | ScalarOp::Rsqrt
        | ScalarOp::Recip
        | ScalarOp::Exp
        | ScalarOp::Exp2
        | ScalarOp::Expm1
        | ScalarOp::Log
        | ScalarOp::Log2
        | ScalarOp::Log1p
        | ScalarOp::Sin
        | ScalarOp::Cos
        | ScalarOp::Tan
        | ScalarOp::Asin
        | ScalarOp::Acos
        | ScalarOp::Atan
        | ScalarOp::Sinh
        | ScalarOp::Cosh
        | ScalarOp::Tanh
        | ScalarOp::Asinh
        | ScalarOp::Acosh
        | ScalarOp::Atanh
        | ScalarOp::Erf
        | ScalarOp::Sigmoid
        | ScalarOp::Not
        | ScalarOp::IsNan
        | ScalarOp::IsInf
        | ScalarOp::IsFinite
        | ScalarOp::Pow
        | ScalarOp::Atan2
        | ScalarOp::Or
        | ScalarOp::Xor
        | ScalarOp::Shl
        | ScalarOp::Shr
        | ScalarOp::Eq
        | ScalarOp::Ne
        | ScalarOp::Lt
        | ScalarOp::Le
        | ScalarOp::Gt
        | ScalarOp::Ge => None,
    }
}

/// The registers that an operation reads.
pub(super) fn operands(operation: &Operation, visit: &mut dyn FnMut(Reg)) {
    match operation {
        Operation::Literal(_) | Operation::Index(_) | Operation::Within(_) => {}
        Operation::Load { address, .. } => address.computed.iter().for_each(|(reg, _)| visit(*reg)),
        Operation::Scalar(_, operands) => operands.iter().for_each(|reg| visit(*reg)),
        Operation::Fma(a, b, c) => [a, b, c].into_iter().for_each(|reg| visit(*reg)),
        Operation::Cast(from) | Operation::Bitcast(from) => visit(*from),
        Operation::Select { condition, then, otherwise } => {
            [condition, then, otherwise].into_iter().for_each(|reg| visit(*reg));
        }
        Operation::Random { key, index, .. } => key.iter().chain([index]).for_each(|reg| visit(*reg)),
    }
}

fn inside(range: Range, limits: Range) -> bool {
    limits.0 <= range.0 && range.1 <= limits.1
}

fn union(x: Range, y: Range) -> Range {
    (x.0.min(y.0), x.1.max(y.1))
}
