//! Accumulators of reductions: what they start from, how they take a value, how threads combine theirs.
//!
//! Arg reductions accumulate a key, an integer in the order of the values with NaN above all and equal zeros, and the index that it stands at:
//! the largest key wins, and of equal ones the lowest index, in whatever order they come.

use kiln_ir::kernel::Fold;
use kiln_ir::{DType, Literal, ReduceKind, ScalarOp};

use super::builder::{Builder, Term, Ty, Variable};
use super::scalar;
use super::types::{held, literal, zero};

/// What a fold accumulates: one number, or a key and an index.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    /// How its numbers are held.
    pub(super) types: Vec<Ty>,
    starts: Vec<Term>,
    kind: ReduceKind,
    accumulate: DType,
}

/// The variables of one accumulator.
pub(super) type Numbers = Vec<Variable>;

impl Rule {
    /// Of a fold.
    pub(super) fn of(fold: &Fold) -> Rule {
        Rule::new(fold.kind, fold.accumulate)
    }

    /// Of a reduction in a dtype.
    pub(super) fn new(kind: ReduceKind, accumulate: DType) -> Rule {
        let ty = held(accumulate);
        let start = match kind {
            ReduceKind::Sum => literal(Literal::zero(accumulate)),
            ReduceKind::Prod => literal(Literal::one(accumulate)),
            ReduceKind::Max => literal(least(accumulate)),
            ReduceKind::Min => literal(greatest(accumulate)),
            ReduceKind::ArgMax | ReduceKind::ArgMin => {
                let key = if ty.size() == 8 { Ty::U64 } else { Ty::U32 };
                let starts = vec![zero(key), Term::constant("2147483647")];
                return Rule { types: vec![key, Ty::I32], starts, kind, accumulate };
            }
        };
        Rule { types: vec![ty], starts: vec![start], kind, accumulate }
    }

    /// Whether its rounding depends on how many values it has taken.
    pub(super) fn is_rounded(&self) -> bool {
        self.kind == ReduceKind::Sum && self.accumulate.is_float()
    }

    /// Fresh variables.
    pub(super) fn declare(&self, b: &mut Builder) -> Numbers {
        self.types.iter().zip(&self.starts).map(|(ty, start)| b.variable(*ty, start)).collect()
    }

    /// What it accumulates of a value at a point with this row-major index in the inner space.
    pub(super) fn taken(&self, b: &mut Builder, value: &Term, dtype: DType, index: &Term) -> Vec<Term> {
        if !self.kind.is_arg() {
            return vec![scalar::cast(b, value, dtype, self.accumulate)];
        }
        let largest = self.kind == ReduceKind::ArgMax;
        let value = scalar::cast(b, value, dtype, self.accumulate);
        let terms = std::slice::from_ref(&value);
        let not = if largest { "" } else { "~" };
        let key = match held(self.accumulate) {
            Ty::F32 => scalar::call(b, if largest { "key_max_f32" } else { "key_min_f32" }, Ty::U32, terms),
            Ty::F64 => scalar::call(b, if largest { "key_max_f64" } else { "key_min_f64" }, Ty::U64, terms),
            Ty::I32 => b.expression(Ty::U32, &format!("{not}(uint32_t($0) ^ 0x80000000u)"), terms),
            Ty::I64 => b.expression(Ty::U64, &format!("{not}(uint64_t($0) ^ 0x8000000000000000ull)"), terms),
            Ty::Bool | Ty::U8 | Ty::U16 | Ty::U32 | Ty::U64 | Ty::Index => {
                b.expression(Ty::U32, &format!("{not}uint32_t($0)"), terms)
            }
        };
        vec![key, b.expression(Ty::I32, "int($0)", std::slice::from_ref(index))]
    }

    /// Both as one.
    pub(super) fn both(&self, b: &mut Builder, mine: &[Term], other: &[Term]) -> Vec<Term> {
        if self.kind.is_arg() {
            let terms = [mine[0].clone(), other[0].clone(), mine[1].clone(), other[1].clone()];
            let better = b.expression(Ty::Bool, "$1 > $0 || ($1 == $0 && $3 < $2)", &terms);
            return (0..2)
                .map(|place| {
                    let terms = [better.clone(), other[place].clone(), mine[place].clone()];
                    b.expression(self.types[place], "$0 ? $1 : $2", &terms)
                })
                .collect();
        }
        let op = match self.kind {
            ReduceKind::Sum => ScalarOp::Add,
            ReduceKind::Prod => ScalarOp::Mul,
            ReduceKind::Max | ReduceKind::ArgMax => ScalarOp::Max,
            ReduceKind::Min | ReduceKind::ArgMin => ScalarOp::Min,
        };
        let terms = [mine[0].clone(), other[0].clone()];
        vec![scalar::apply(b, op, &terms, self.accumulate, self.accumulate)]
    }

    /// Takes numbers into variables, where a condition holds.
    pub(super) fn take(&self, b: &mut Builder, numbers: &Numbers, taken: &[Term], guard: Option<&Term>) {
        let mine: Vec<Term> = numbers.iter().map(|number| b.get(*number)).collect();
        let all = self.both(b, &mine, taken);
        for (place, number) in numbers.iter().enumerate() {
            let value = match guard {
                None => all[place].clone(),
                Some(guard) => {
                    let terms = [guard.clone(), all[place].clone(), mine[place].clone()];
                    b.expression(self.types[place], "$0 ? $1 : $2", &terms)
                }
            };
            b.set(*number, &value);
        }
    }

    /// What variables hold.
    pub(super) fn values(&self, b: &mut Builder, numbers: &Numbers) -> Vec<Term> {
        numbers.iter().map(|number| b.get(*number)).collect()
    }

    /// The result of the fold, of its dtype.
    pub(super) fn result(&self, b: &mut Builder, numbers: &[Term], dtype: DType) -> Term {
        if self.kind.is_arg() {
            return scalar::cast(b, &numbers[1], DType::I32, dtype);
        }
        scalar::cast(b, &numbers[0], self.accumulate, dtype)
    }
}

/// A number that no other is below.
pub(super) fn least(dtype: DType) -> Literal {
    match (dtype, dtype.int_range()) {
        (DType::Bool, _) => Literal::zero(dtype),
        (_, Some((low, _))) => Literal::from_i128(dtype, low),
        (_, None) => Literal::from_f64(dtype, f64::NEG_INFINITY),
    }
}

/// A number that no other is above.
pub(super) fn greatest(dtype: DType) -> Literal {
    match (dtype, dtype.int_range()) {
        (DType::Bool, _) => Literal::one(dtype),
        (_, Some((_, high))) => Literal::from_i128(dtype, high),
        (_, None) => Literal::from_f64(dtype, f64::INFINITY),
    }
}
