//! One instruction on registers as an expression: elementwise ops, casts, bitcasts, random words.
//!
//! Results are rounded or wrapped to their dtype where the op can leave it. Signed integers are computed as unsigned ones: they wrap.

use kiln_ir::{DType, ScalarOp};

use super::builder::{Builder, Term, Ty};
use super::types::{held, in_memory};

/// The call of a function of the prelude.
pub(super) fn call(b: &mut Builder, name: &str, result: Ty, terms: &[Term]) -> Term {
    let name = b.functions.need(name).expect("the function is in the table");
    let places: Vec<String> = (0..terms.len()).map(|place| format!("${place}")).collect();
    b.expression(result, &format!("{name}({})", places.join(", ")), terms)
}

/// A value of 32 bits as one of a narrower dtype.
pub(super) fn narrow(b: &mut Builder, term: Term, dtype: DType) -> Term {
    match dtype {
        DType::F16 => call(b, "f16_round", Ty::F32, &[term]),
        DType::BF16 => call(b, "bf16_round", Ty::F32, &[term]),
        DType::I8 => b.expression(Ty::I32, "int(int8_t($0))", &[term]),
        DType::U8 => b.expression(Ty::U32, "$0 & 255u", &[term]),
        DType::F32 | DType::F64 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => term,
    }
}

/// The op on operands of one dtype.
pub(super) fn apply(b: &mut Builder, op: ScalarOp, terms: &[Term], operand: DType, dtype: DType) -> Term {
    let ty = held(operand);
    let term = match ty {
        Ty::F32 | Ty::F64 => float(b, op, terms, ty, held(dtype)),
        Ty::I32 | Ty::U32 | Ty::I64 => integer(b, op, terms, operand, held(dtype)),
        Ty::Bool => truth(b, op, terms),
        Ty::U8 | Ty::U16 | Ty::U64 | Ty::Index => unreachable!("no register is held so"),
    };
    if leaves_alone(op) { term } else { narrow(b, term, dtype) }
}

/// Whether a result needs no rounding or wrapping: it is one of the operands, an integer that stays, or a bool.
fn leaves_alone(op: ScalarOp) -> bool {
    matches!(
        op,
        ScalarOp::Max
            | ScalarOp::Min
            | ScalarOp::Clamp
            | ScalarOp::Sign
            | ScalarOp::And
            | ScalarOp::Or
            | ScalarOp::Xor
            | ScalarOp::Shr
            | ScalarOp::Floor
            | ScalarOp::Ceil
            | ScalarOp::Round
            | ScalarOp::Trunc
    ) || compares(op)
}

fn compares(op: ScalarOp) -> bool {
    matches!(
        op,
        ScalarOp::Eq
            | ScalarOp::Ne
            | ScalarOp::Lt
            | ScalarOp::Le
            | ScalarOp::Gt
            | ScalarOp::Ge
            | ScalarOp::IsNan
            | ScalarOp::IsInf
            | ScalarOp::IsFinite
    )
}

fn comparison(op: ScalarOp) -> Option<&'static str> {
    const TEMPLATES: [(ScalarOp, &str); 6] = [
        (ScalarOp::Eq, "$0 == $1"),
        (ScalarOp::Ne, "$0 != $1"),
        (ScalarOp::Lt, "$0 < $1"),
        (ScalarOp::Le, "$0 <= $1"),
        (ScalarOp::Gt, "$0 > $1"),
        (ScalarOp::Ge, "$0 >= $1"),
    ];
    TEMPLATES.iter().find(|(known, _)| *known == op).map(|(_, template)| *template)
}

fn float(b: &mut Builder, op: ScalarOp, terms: &[Term], ty: Ty, result: Ty) -> Term {
    let single = ty == Ty::F32;
    let pick = |narrow: &'static str, wide: &'static str| if single { narrow } else { wide };
    if let Some(template) = comparison(op) {
        return b.expression(result, template, terms);
    }
    let template = match op {
        ScalarOp::Neg => "-$0",
        ScalarOp::Add => "$0 + $1",
        ScalarOp::Sub => "$0 - $1",
        ScalarOp::Mul => "$0 * $1",
        ScalarOp::Div => "$0 / $1",
        ScalarOp::Recip => pick("1.0f / $0", "1.0 / $0"),
        ScalarOp::Rem => pick("fmodf($0, $1)", "fmod($0, $1)"),
        ScalarOp::Abs => pick("fabsf($0)", "fabs($0)"),
        ScalarOp::Floor => pick("floorf($0)", "floor($0)"),
        ScalarOp::Ceil => pick("ceilf($0)", "ceil($0)"),
        ScalarOp::Round => pick("rintf($0)", "rint($0)"),
        ScalarOp::Trunc => pick("truncf($0)", "trunc($0)"),
        ScalarOp::Sqrt => pick("sqrtf($0)", "sqrt($0)"),
        ScalarOp::Rsqrt => pick("rsqrtf($0)", "rsqrt($0)"),
        ScalarOp::Exp => pick("expf($0)", "exp($0)"),
        ScalarOp::Exp2 => pick("exp2f($0)", "exp2($0)"),
        ScalarOp::Expm1 => pick("expm1f($0)", "expm1($0)"),
        ScalarOp::Log => pick("logf($0)", "log($0)"),
        ScalarOp::Log2 => pick("log2f($0)", "log2($0)"),
        ScalarOp::Log1p => pick("log1pf($0)", "log1p($0)"),
        ScalarOp::Sin => pick("sinf($0)", "sin($0)"),
        ScalarOp::Cos => pick("cosf($0)", "cos($0)"),
        ScalarOp::Tan => pick("tanf($0)", "tan($0)"),
        ScalarOp::Asin => pick("asinf($0)", "asin($0)"),
        ScalarOp::Acos => pick("acosf($0)", "acos($0)"),
        ScalarOp::Atan => pick("atanf($0)", "atan($0)"),
        ScalarOp::Sinh => pick("sinhf($0)", "sinh($0)"),
        ScalarOp::Cosh => pick("coshf($0)", "cosh($0)"),
        ScalarOp::Tanh => pick("tanhf($0)", "tanh($0)"),
        ScalarOp::Asinh => pick("asinhf($0)", "asinh($0)"),
        ScalarOp::Acosh => pick("acoshf($0)", "acosh($0)"),
        ScalarOp::Atanh => pick("atanhf($0)", "atanh($0)"),
        ScalarOp::Erf => pick("erff($0)", "erf($0)"),
        ScalarOp::Pow => pick("powf($0, $1)", "pow($0, $1)"),
        ScalarOp::Atan2 => pick("atan2f($0, $1)", "atan2($0, $1)"),
        ScalarOp::IsNan => "$0 != $0",
        ScalarOp::IsInf => pick(
            "(__float_as_uint($0) & 0x7fffffffu) == 0x7f800000u",
            "(__double_as_longlong($0) & 0x7fffffffffffffffll) == 0x7ff0000000000000ll",
        ),
        ScalarOp::IsFinite => pick(
            "(__float_as_uint($0) & 0x7fffffffu) < 0x7f800000u",
            "(__double_as_longlong($0) & 0x7fffffffffffffffll) < 0x7ff0000000000000ll",
        ),
        ScalarOp::Sign => return call(b, pick("sign_f32", "sign_f64"), ty, terms),
        ScalarOp::Sigmoid => return call(b, pick("sigmoid_f32", "sigmoid_f64"), ty, terms),
        ScalarOp::Max => return call(b, pick("max_f32", "max_f64"), ty, terms),
        ScalarOp::Min => return call(b, pick("min_f32", "min_f64"), ty, terms),
        ScalarOp::Clamp => {
            let least = call(b, pick("max_f32", "max_f64"), ty, &terms[..2]);
            return call(b, pick("min_f32", "min_f64"), ty, &[least, terms[2].clone()]);
        }
        ScalarOp::Not
        | ScalarOp::And
        | ScalarOp::Or
        | ScalarOp::Xor
        | ScalarOp::Shl
        | ScalarOp::Shr
        | ScalarOp::Eq
        | ScalarOp::Ne
        | ScalarOp::Lt
        | ScalarOp::Le
        | ScalarOp::Gt
        | ScalarOp::Ge => unreachable!("the op does not take floats"),
    };
    b.expression(result, template, terms)
}

fn integer(b: &mut Builder, op: ScalarOp, terms: &[Term], dtype: DType, result: Ty) -> Term {
    let ty = held(dtype);
    if let Some(template) = comparison(op) {
        return b.expression(result, template, terms);
    }
    let (name, unsigned, suffix) = match ty {
        Ty::I32 => ("int", "uint32_t", "i32"),
        Ty::I64 => ("(long long)", "uint64_t", "i64"),
        Ty::U32 | Ty::Bool | Ty::F32 | Ty::F64 | Ty::U8 | Ty::U16 | Ty::U64 | Ty::Index => {
            ("uint32_t", "uint32_t", "u32")
        }
    };
    let signed = ty != Ty::U32;
    let count = 8 * dtype.size() - 1;
    let template = match op {
        ScalarOp::Neg => format!("{name}(0u - {unsigned}($0))"),
        ScalarOp::Abs if signed => format!("$0 < 0 ? {name}(0u - {unsigned}($0)) : $0"),
        ScalarOp::Abs => return terms[0].clone(),
        ScalarOp::Sign if signed => format!("{name}(($0 > 0) - ($0 < 0))"),
        ScalarOp::Sign => "$0 != 0u ? 1u : 0u".to_owned(),
        ScalarOp::Not => "~$0".to_owned(),
        ScalarOp::Add => format!("{name}({unsigned}($0) + {unsigned}($1))"),
        ScalarOp::Sub => format!("{name}({unsigned}($0) - {unsigned}($1))"),
        ScalarOp::Mul => format!("{name}({unsigned}($0) * {unsigned}($1))"),
        ScalarOp::Div => return call(b, &format!("div_{suffix}"), ty, terms),
        ScalarOp::Rem => return call(b, &format!("rem_{suffix}"), ty, terms),
        ScalarOp::Max => "$0 > $1 ? $0 : $1".to_owned(),
        ScalarOp::Min => "$0 < $1 ? $0 : $1".to_owned(),
        ScalarOp::Clamp => {
            let least = b.expression(ty, "$0 > $1 ? $0 : $1", &terms[..2]);
            return b.expression(ty, "$0 < $1 ? $0 : $1", &[least, terms[2].clone()]);
        }
        ScalarOp::And => "$0 & $1".to_owned(),
        ScalarOp::Or => "$0 | $1".to_owned(),
        ScalarOp::Xor => "$0 ^ $1".to_owned(),
        ScalarOp::Shl => format!("{name}({unsigned}($0) << (uint32_t($1) & {count}u))"),
        ScalarOp::Shr => format!("$0 >> (uint32_t($1) & {count}u)"),
        ScalarOp::Floor
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
        | ScalarOp::IsNan
        | ScalarOp::IsInf
        | ScalarOp::IsFinite
        | ScalarOp::Pow
        | ScalarOp::Atan2
        | ScalarOp::Eq
        | ScalarOp::Ne
        | ScalarOp::Lt
        | ScalarOp::Le
        | ScalarOp::Gt
        | ScalarOp::Ge => unreachable!("the op does not take integers"),
    };
    b.expression(result, &template, terms)
}

fn truth(b: &mut Builder, op: ScalarOp, terms: &[Term]) -> Term {
    const TEMPLATES: [(ScalarOp, &str); 8] = [
        (ScalarOp::Not, "!$0"),
        (ScalarOp::And, "$0 && $1"),
        (ScalarOp::Min, "$0 && $1"),
        (ScalarOp::Or, "$0 || $1"),
        (ScalarOp::Max, "$0 || $1"),
        (ScalarOp::Xor, "$0 != $1"),
        (ScalarOp::Ne, "$0 != $1"),
        (ScalarOp::Eq, "$0 == $1"),
    ];
    let known = TEMPLATES.iter().find(|(known, _)| *known == op);
    let (_, template) = known.expect("the op takes bools");
    b.expression(Ty::Bool, template, terms)
}

/// `a * b + c`, rounded once.
pub(super) fn fma(b: &mut Builder, terms: &[Term], dtype: DType) -> Term {
    match held(dtype) {
        Ty::F32 => {
            let term = b.expression(Ty::F32, "fmaf($0, $1, $2)", terms);
            narrow(b, term, dtype)
        }
        Ty::F64 => b.expression(Ty::F64, "fma($0, $1, $2)", terms),
        Ty::Bool | Ty::I32 | Ty::I64 | Ty::U8 | Ty::U16 | Ty::U32 | Ty::U64 | Ty::Index => {
            let product = apply(b, ScalarOp::Mul, &terms[..2], dtype, dtype);
            apply(b, ScalarOp::Add, &[product, terms[2].clone()], dtype, dtype)
        }
    }
}

/// Conversion to another dtype.
pub(super) fn cast(b: &mut Builder, term: &Term, from: DType, to: DType) -> Term {
    if from == to {
        return term.clone();
    }
    let terms = std::slice::from_ref(term);
    let (source, result) = (held(from), held(to));
    let plain = |b: &mut Builder| match result {
        same if same == source => term.clone(),
        Ty::I64 => b.expression(result, "(long long)($0)", terms),
        ty => b.expression(ty, &format!("{}($0)", ty.name()), terms),
    };
    match (source, to) {
        (Ty::F32 | Ty::F64, DType::Bool) => b.expression(Ty::Bool, "$0 != 0", terms),
        (Ty::F32, DType::F16 | DType::BF16) => narrow(b, term.clone(), to),
        (Ty::F32 | Ty::F64, DType::F32) | (Ty::F32, DType::F64) => plain(b),
        (Ty::F64, DType::F16 | DType::BF16) => {
            let odd = call(b, "odd_f32", Ty::F32, terms);
            narrow(b, odd, to)
        }
        (Ty::F32 | Ty::F64, DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64) => {
            let from = if source == Ty::F32 { "f32" } else { "f64" };
            call(b, &format!("{}_of_{from}", to.name()), result, terms)
        }
        (Ty::Bool, DType::Bool) => term.clone(),
        (Ty::Bool, _) => b.expression(result, &format!("{}($0 ? 1 : 0)", cast_name(result)), terms),
        (_, DType::Bool) => b.expression(Ty::Bool, "$0 != 0", terms),
        (_, DType::F16 | DType::BF16) if matches!(from, DType::I8 | DType::U8) => {
            let float = plain(b);
            narrow(b, float, to)
        }
        (Ty::I64, DType::F16 | DType::BF16) => {
            let double = call(b, "odd_f64", Ty::F64, terms);
            let odd = call(b, "odd_f32", Ty::F32, &[double]);
            narrow(b, odd, to)
        }
        (_, DType::F16 | DType::BF16) => {
            let odd = b.expression(Ty::F64, "double($0)", terms);
            let odd = call(b, "odd_f32", Ty::F32, &[odd]);
            narrow(b, odd, to)
        }
        (_, DType::F32 | DType::F64 | DType::I32 | DType::U32 | DType::I64) => plain(b),
        (_, DType::I8 | DType::U8) => {
            let word = plain(b);
            narrow(b, word, to)
        }
    }
}

fn cast_name(ty: Ty) -> &'static str {
    if ty == Ty::I64 { "(long long)" } else { ty.name() }
}

/// The bits as another dtype of the same size.
pub(super) fn bitcast(b: &mut Builder, term: &Term, from: DType, to: DType) -> Term {
    if from == to {
        return term.clone();
    }
    if matches!(in_memory(from), Ty::U8) {
        return cast(b, term, from, to);
    }
    let terms = std::slice::from_ref(term);
    let template = match (from, to) {
        (DType::F16, DType::BF16) => {
            let bits = call(b, "f16_bits_of_nan", Ty::U32, terms);
            return b.expression(Ty::F32, "__uint_as_float($0 << 16)", &[bits]);
        }
        (DType::BF16, DType::F16) => {
            let bits = b.expression(Ty::U32, "__float_as_uint($0) >> 16", terms);
            return call(b, "f16_load", Ty::F32, &[bits]);
        }
        (DType::F32, DType::I32) => "__float_as_int($0)",
        (DType::F32, DType::U32) => "__float_as_uint($0)",
        (DType::I32, DType::F32) => "__int_as_float($0)",
        (DType::U32, DType::F32) => "__uint_as_float($0)",
        (DType::F64, _) => "__double_as_longlong($0)",
        (_, DType::F64) => "__longlong_as_double($0)",
        (_, DType::I32) => "int($0)",
        _ => "uint32_t($0)",
    };
    b.expression(held(to), template, terms)
}

/// A word of a random draw.
pub(super) fn random(b: &mut Builder, stream: u32, terms: &[Term]) -> Term {
    let index = b.expression(Ty::U64, "uint64_t($0)", &terms[2..3]);
    let stream = Term::constant(format!("{stream}u"));
    call(b, "philox", Ty::U32, &[terms[0].clone(), terms[1].clone(), stream, index])
}
