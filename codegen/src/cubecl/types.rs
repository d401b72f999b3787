//! What numbers are: as registers hold them, and as they lie in memory.

use kiln_ir::{DType, Literal};
use smallvec::SmallVec;

use super::builder::{Builder, Term, Ty};

/// How registers of a dtype are held: 16-bit floats as `float` that is rounded after each instruction, 8-bit integers as wrapped 32-bit ones.
pub(super) fn held(dtype: DType) -> Ty {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => Ty::F32,
        DType::F64 => Ty::F64,
        DType::I8 | DType::I32 => Ty::I32,
        DType::U8 | DType::U32 => Ty::U32,
        DType::I64 => Ty::I64,
        DType::Bool => Ty::Bool,
    }
}

/// How elements of a dtype lie in memory.
pub(super) fn in_memory(dtype: DType) -> Ty {
    match dtype {
        DType::F16 | DType::BF16 => Ty::U16,
        DType::I8 | DType::U8 | DType::Bool => Ty::U8,
        DType::F32 | DType::F64 | DType::I32 | DType::U32 | DType::I64 => held(dtype),
    }
}

/// What stands for a register: one term where all neighbours have the same, else one for each.
#[derive(Clone, Debug)]
pub(super) struct Number {
    /// The terms.
    pub(super) lanes: SmallVec<[Term; 8]>,
    /// The dtype.
    pub(super) dtype: DType,
}

impl Number {
    /// The same at all neighbours.
    pub(super) fn one(term: Term, dtype: DType) -> Number {
        Number { lanes: SmallVec::from_iter([term]), dtype }
    }

    /// The term at a neighbour.
    pub(super) fn lane(&self, lane: usize) -> &Term {
        if self.lanes.len() == 1 { &self.lanes[0] } else { &self.lanes[lane] }
    }

    /// At each neighbour what `of` makes of the terms there; computed once where all operands are the same at all.
    pub(super) fn map(
        b: &mut Builder,
        operands: &[&Number],
        dtype: DType,
        mut of: impl FnMut(&mut Builder, &[Term]) -> Term,
    ) -> Number {
        let width = operands.iter().map(|operand| operand.lanes.len()).max().unwrap_or(1);
        let lanes = (0..width)
            .map(|lane| {
                let terms: SmallVec<[Term; 4]> = operands.iter().map(|operand| operand.lane(lane).clone()).collect();
                of(b, &terms)
            })
            .collect();
        Number { lanes, dtype }
    }
}

/// A constant as registers hold it.
pub(super) fn literal(value: Literal) -> Term {
    Term::constant(match value.dtype() {
        DType::Bool => (value.bits() != 0).to_string(),
        DType::I8 | DType::I32 => match value.to_i128() {
            least if least == i128::from(i32::MIN) => "(-2147483647 - 1)".to_owned(),
            below if below < 0 => format!("({below})"),
            number => number.to_string(),
        },
        DType::U8 | DType::U32 => format!("{}u", value.to_i128()),
        DType::I64 => match value.to_i128() {
            least if least == i128::from(i64::MIN) => "(-9223372036854775807ll - 1)".to_owned(),
            below if below < 0 => format!("({below}ll)"),
            number => format!("{number}ll"),
        },
        DType::F32 | DType::F16 | DType::BF16 => float(value.to_f64() as f32),
        DType::F64 => double(value.to_f64()),
    })
}

fn float(x: f32) -> String {
    if !x.is_finite() {
        return format!("__uint_as_float({:#010x}u)", x.to_bits());
    }
    let digits = format!("{x:?}f");
    if x.is_sign_negative() { format!("({digits})") } else { digits }
}

fn double(x: f64) -> String {
    if !x.is_finite() {
        return format!("__longlong_as_double({:#018x}ll)", x.to_bits());
    }
    let digits = format!("{x:?}");
    if x.is_sign_negative() { format!("({digits})") } else { digits }
}

/// A literal of what an accumulator is held as.
pub(super) fn zero(ty: Ty) -> Term {
    Term::constant(match ty {
        Ty::Bool => "false",
        Ty::F32 => "0.0f",
        Ty::F64 => "0.0",
        Ty::I32 => "0",
        Ty::I64 => "0ll",
        Ty::U8 | Ty::U16 | Ty::U32 => "0u",
        Ty::U64 => "0ull",
        Ty::Index => "0",
    })
}
