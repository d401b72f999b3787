//! One instruction on registers as an expression: elementwise ops, casts, random words.
//!
//! What WGSL's own operators do right is printed as such. All else calls a function of `functions`, which is named for the op and for how its
//! operands are held. Results are then rounded or wrapped to their dtype where the op can leave it.

use kiln_ir::{DType, Diagnostic, ScalarOp};

use super::block::Value;
use super::module::Module;
use super::types::{Held, unsupported, unsupported_op};

/// An elementwise op on operands of one dtype.
///
/// Errors: K0601 where the op has no form for numbers held so.
pub(super) fn apply(
    module: &mut Module<'_>,
    op: ScalarOp,
    operands: &[Value],
    dtype: DType,
    held: Held,
) -> Result<Value, Diagnostic> {
    let from = operands[0].dtype;
    let wide = operands.iter().any(|value| value.held == Held::I64);
    // 64-bit integers that are known to be small meet others that are not.
    let computed = if from == DType::I64 && (wide || held == Held::I64) { Held::I64 } else { operands[0].held };
    computed.check(module.target)?;
    let operands: Vec<Value> = operands.iter().map(|value| value.held_as(computed)).collect();
    let result = if op.result_dtype(from) == Some(DType::Bool) { Held::Bool } else { computed };
    let value = expression(module, op, &operands, from, result)?;
    let value = if leaves_dtype(op) { narrow(module, value, dtype) } else { value };
    Ok(value.held_as(held).of(dtype))
}

/// Whether the result of an op on numbers of a narrow dtype may be none itself.
fn leaves_dtype(op: ScalarOp) -> bool {
    match op {
        ScalarOp::Abs | ScalarOp::Neg | ScalarOp::Not | ScalarOp::Shl => true,
        ScalarOp::Add | ScalarOp::Sub | ScalarOp::Mul | ScalarOp::Div => true,
        ScalarOp::Sqrt
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
        | ScalarOp::Pow
        | ScalarOp::Atan2 => true,
        ScalarOp::Sign | ScalarOp::Floor | ScalarOp::Ceil | ScalarOp::Round | ScalarOp::Trunc => false,
        ScalarOp::Rem | ScalarOp::Max | ScalarOp::Min | ScalarOp::Clamp => false,
        ScalarOp::And | ScalarOp::Or | ScalarOp::Xor | ScalarOp::Shr => false,
        ScalarOp::IsNan | ScalarOp::IsInf | ScalarOp::IsFinite => false,
        ScalarOp::Eq | ScalarOp::Ne | ScalarOp::Lt | ScalarOp::Le | ScalarOp::Gt | ScalarOp::Ge => false,
    }
}

/// Rounds or wraps what has been computed in 32 bits to a narrower dtype.
pub(super) fn narrow(module: &mut Module<'_>, value: Value, dtype: DType) -> Value {
    match dtype {
        DType::F16 => call(module, "round_f16", &[&value], Held::F32),
        DType::BF16 => call(module, "round_bf16", &[&value], Held::F32),
        DType::I8 => call(module, "wrap_i8", &[&value], Held::I32),
        DType::U8 => {
            let mask = Value::new("0xffu", Held::U32, 1);
            Value::new(format!("({} & {})", value.text, mask.splat(value.width)), Held::U32, value.width)
        }
        DType::F32 | DType::F64 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => value,
    }
    .of(dtype)
}

/// The call of a function of the prelude, for each of the neighbours where operands differ between them.
pub(super) fn call(module: &mut Module<'_>, name: &'static str, operands: &[&Value], held: Held) -> Value {
    let width = operands.iter().map(|value| value.width).max().unwrap_or(1);
    let arguments: Vec<String> = operands.iter().map(|value| value.splat(width)).collect();
    let name = module.functions.need_wide(name, width);
    Value::new(format!("{name}({})", arguments.join(", ")), held, width)
}

fn operator(symbol: &str, operands: &[Value], held: Held) -> Value {
    let width = operands.iter().map(|value| value.width).max().unwrap_or(1);
    let parts: Vec<String> = operands.iter().map(|value| value.splat(width)).collect();
    Value::new(format!("({})", parts.join(&format!(" {symbol} "))), held, width)
}

fn builtin(name: &str, operands: &[Value], held: Held) -> Value {
    let width = operands.iter().map(|value| value.width).max().unwrap_or(1);
    let parts: Vec<String> = operands.iter().map(|value| value.splat(width)).collect();
    Value::new(format!("{name}({})", parts.join(", ")), held, width)
}

/// The op on operands that are all held the same way.
fn expression(
    module: &mut Module<'_>,
    op: ScalarOp,
    operands: &[Value],
    dtype: DType,
    result: Held,
) -> Result<Value, Diagnostic> {
    let held = operands[0].held;
    let all: Vec<&Value> = operands.iter().collect();
    let signed = matches!(held, Held::I32 | Held::I64);
    let float = matches!(held, Held::F32 | Held::F64);
    Ok(match op {
        ScalarOp::Neg if held == Held::U32 => operator("-", &[Value::new("0u", held, 1), operands[0].clone()], result),
        ScalarOp::Neg => {
            let width = operands[0].width;
            Value::new(format!("(-{})", operands[0].text), result, width)
        }
        ScalarOp::Abs if held == Held::U32 => operands[0].clone(),
        ScalarOp::Abs => builtin("abs", operands, result),
        ScalarOp::Sign if held == Held::U32 => {
            builtin("min", &[operands[0].clone(), Value::new("1u", held, 1)], result)
        }
        ScalarOp::Floor if float => builtin("floor", operands, result),
        ScalarOp::Ceil if float => builtin("ceil", operands, result),
        ScalarOp::Round if held == Held::F32 => builtin("round", operands, result),
        ScalarOp::Trunc if held == Held::F32 => builtin("trunc", operands, result),
        ScalarOp::Sqrt if held == Held::F64 => builtin("sqrt", operands, result),
        ScalarOp::Recip if held == Held::F64 => {
            operator("/", &[Value::new("1.0lf", held, 1), operands[0].clone()], result)
        }
        ScalarOp::Div if held == Held::F64 => operator("/", operands, result),
        ScalarOp::Not if held == Held::Bool => Value::new(format!("!{}", operands[0].text), result, operands[0].width),
        ScalarOp::Not => Value::new(format!("(~{})", operands[0].text), result, operands[0].width),
        ScalarOp::Add => operator("+", operands, result),
        ScalarOp::Sub => operator("-", operands, result),
        ScalarOp::Mul => operator("*", operands, result),
        ScalarOp::Max if !float => builtin("max", operands, result),
        ScalarOp::Min if !float => builtin("min", operands, result),
        ScalarOp::Clamp if !float => {
            let least = builtin("max", &operands[..2], held);
            builtin("min", &[least, operands[2].clone()], result)
        }
        ScalarOp::Clamp => {
            let (max, min) = (named(ScalarOp::Max, held), named(ScalarOp::Min, held));
            let least = call(module, max.ok_or_else(|| unsupported(dtype))?, &all[..2], held);
            call(module, min.ok_or_else(|| unsupported(dtype))?, &[&least, &operands[2]], result)
        }
        ScalarOp::And => operator("&", operands, result),
        ScalarOp::Or => operator("|", operands, result),
        ScalarOp::Xor if held == Held::Bool => operator("!=", operands, result),
        ScalarOp::Xor => operator("^", operands, result),
        ScalarOp::Shl | ScalarOp::Shr => {
            let symbol = if op == ScalarOp::Shl { "<<" } else { ">>" };
            let bits = 8 * dtype.size() as i128;
            let constant = operands[1].text.trim_matches(|c: char| !c.is_ascii_digit() && c != '-').parse::<i128>();
            let count = match constant {
                Ok(count) if operands[1].constant => Value::new(format!("{}u", count.rem_euclid(bits)), Held::U32, 1),
                _ => {
                    let last = Value::new(format!("{}u", bits - 1), Held::U32, 1);
                    operator("&", &[operands[1].held_as(Held::U32), last], Held::U32)
                }
            };
            operator(symbol, &[operands[0].clone(), count], result)
        }
        // A compiler may take `x == x` for true; NaN is told by its bits.
        ScalarOp::Eq if float && operands[0].text == operands[1].text => {
            let nan = apply(module, ScalarOp::IsNan, &operands[..1], DType::Bool, Held::Bool)?;
            Value::new(format!("!{}", nan.text), result, nan.width)
        }
        ScalarOp::Ne if float && operands[0].text == operands[1].text => {
            apply(module, ScalarOp::IsNan, &operands[..1], DType::Bool, Held::Bool)?
        }
        ScalarOp::Eq => operator("==", operands, result),
        // Where one is NaN, `!=` of floats is false on some targets.
        ScalarOp::Ne if float => {
            let equal = operator("==", operands, result);
            Value { text: format!("!{}", equal.text), ..equal }
        }
        ScalarOp::Ne => operator("!=", operands, result),
        ScalarOp::Lt => operator("<", operands, result),
        ScalarOp::Le => operator("<=", operands, result),
        ScalarOp::Gt => operator(">", operands, result),
        ScalarOp::Ge => operator(">=", operands, result),
        ScalarOp::Sign if signed => builtin("sign", operands, result),
        ScalarOp::Sign
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
        | ScalarOp::IsNan
        | ScalarOp::IsInf
        | ScalarOp::IsFinite
        | ScalarOp::Div
        | ScalarOp::Rem
        | ScalarOp::Max
        | ScalarOp::Min
        | ScalarOp::Pow
        | ScalarOp::Atan2 => {
            let name = named(op, held).ok_or_else(|| unsupported_op(op.name(), dtype))?;
            call(module, name, &all, result)
        }
    })
}

/// The function of the prelude that computes an op.
pub(super) fn named(op: ScalarOp, held: Held) -> Option<&'static str> {
    super::functions::name(&format!("{}_{}", op.name(), held.name()))
}

/// `a * b + c`.
pub(super) fn fma(module: &mut Module<'_>, operands: &[Value], dtype: DType, held: Held) -> Result<Value, Diagnostic> {
    let value = match held {
        Held::F32 | Held::F64 => builtin("fma", operands, held),
        Held::I32 | Held::U32 | Held::I64 | Held::Bool => {
            let operands: Vec<Value> = operands.iter().map(|value| value.held_as(held)).collect();
            let product = operator("*", &operands[..2], held);
            operator("+", &[product, operands[2].clone()], held)
        }
    };
    Ok(narrow(module, value, dtype))
}

/// Conversion to another dtype.
///
/// Errors: K0601 where the target lacks one of them.
pub(super) fn cast(module: &mut Module<'_>, from: &Value, dtype: DType, held: Held) -> Result<Value, Diagnostic> {
    held.check(module.target)?;
    let width = from.width;
    let plain = |from: &Value, to: Held| Value::new(format!("{}({})", to.wide(width), from.text), to, width);
    let to_bool = |zero: &str| {
        let zero = Value::new(zero, from.held, 1).splat(width);
        Value::new(format!("({} != {zero})", from.text), Held::Bool, width)
    };
    Ok(match (from.held, dtype) {
        // Numbers of 32 bits that stay what they are.
        (_, same) if same == from.dtype && held == from.held => from.clone(),
        (Held::F32, DType::F32) | (Held::F64, DType::F64) | (Held::Bool, DType::Bool) => from.clone(),
        (Held::F32, DType::F16 | DType::BF16) => narrow(module, from.clone(), dtype),
        (Held::F64, DType::F32) => plain(from, Held::F32),
        (Held::F64, DType::F16 | DType::BF16) => {
            let odd = call(module, "odd_f32_of_f64", &[from], Held::F32);
            narrow(module, odd, dtype)
        }
        (Held::F32 | Held::I32 | Held::U32 | Held::I64, DType::F64) => plain(from, Held::F64),
        // Integers to floats. What does not fit 24 bits keeps a last bit that says "and more", so that the second rounding is right.
        (Held::I32 | Held::U32 | Held::I64, DType::F32) => plain(from, Held::F32),
        (Held::I32 | Held::U32 | Held::I64, DType::F16 | DType::BF16) => {
            let small = matches!(from.dtype, DType::I8 | DType::U8);
            let float = match from.held {
                Held::U32 if !small && dtype == DType::BF16 => call(module, "odd_f32_of_u32", &[from], Held::F32),
                Held::I32 if !small && dtype == DType::BF16 => call(module, "odd_f32_of_i32", &[from], Held::F32),
                Held::I64 => call(module, "odd_f32_of_i64", &[from], Held::F32),
                Held::I32 | Held::U32 | Held::F32 | Held::F64 | Held::Bool => plain(from, Held::F32),
            };
            narrow(module, float, dtype)
        }
        (Held::Bool, DType::F32 | DType::F16 | DType::BF16) => plain(from, Held::F32),
        (Held::Bool, DType::F64) => plain(&plain(from, Held::F32), Held::F64),
        (Held::Bool, DType::I8 | DType::I32) => plain(from, Held::I32),
        (Held::Bool, DType::U8 | DType::U32) => plain(from, Held::U32),
        (Held::Bool, DType::I64) => plain(from, Held::I32).held_as(held),
        (Held::F32, DType::Bool) => call(module, "truth_f32", &[from], Held::Bool),
        (Held::F64, DType::Bool) => {
            let equal = to_bool("0.0lf");
            Value { text: format!("!{}", equal.text.replace("!=", "==")), ..equal }
        }
        (Held::I32 | Held::U32 | Held::I64, DType::Bool) => to_bool(from.held.zero()),
        // Floats to integers truncate and saturate; NaN is 0.
        (Held::F32, DType::I8) => call(module, "i8_of_f32", &[from], Held::I32),
        (Held::F32, DType::U8) => call(module, "u8_of_f32", &[from], Held::U32),
        (Held::F32, DType::I32) => call(module, "i32_of_f32", &[from], Held::I32),
        (Held::F32, DType::U32) => call(module, "u32_of_f32", &[from], Held::U32),
        (Held::F32, DType::I64) if held == Held::I32 => call(module, "i32_of_f32", &[from], Held::I32),
        (Held::F32, DType::I64) => call(module, "i64_of_f32", &[from], Held::I64),
        (Held::F64, DType::I8) => call(module, "i8_of_f64", &[from], Held::I32),
        (Held::F64, DType::U8) => call(module, "u8_of_f64", &[from], Held::U32),
        (Held::F64, DType::I32) => call(module, "i32_of_f64", &[from], Held::I32),
        (Held::F64, DType::U32) => call(module, "u32_of_f64", &[from], Held::U32),
        (Held::F64, DType::I64) => call(module, "i64_of_f64", &[from], Held::I64).held_as(held),
        // Integers to integers wrap.
        (Held::I32 | Held::U32 | Held::I64, DType::I32) => from.held_as(Held::I32),
        (Held::I32 | Held::U32 | Held::I64, DType::U32) => from.held_as(Held::U32),
        (Held::I32 | Held::U32 | Held::I64, DType::I8 | DType::U8) => {
            narrow(module, from.held_as(Held::of(dtype)), dtype)
        }
        (Held::I32 | Held::I64, DType::I64) => from.held_as(held),
        (Held::U32, DType::I64) if held == Held::I64 || from.dtype == DType::U8 => from.held_as(held),
        (Held::U32, DType::I64) => {
            let most = Value::new(format!("{}u", i32::MAX), Held::U32, 1);
            builtin("min", &[from.clone(), most], Held::U32).held_as(Held::I32)
        }
    }
    .of(dtype))
}

/// The bits as another dtype of the same size.
pub(super) fn bitcast(module: &mut Module<'_>, from: &Value, dtype: DType, held: Held) -> Result<Value, Diagnostic> {
    held.check(module.target)?;
    if from.dtype == dtype {
        return Ok(from.clone());
    }
    let from = if from.dtype == DType::I64 { &from.held_as(Held::I64) } else { from };
    from.held.check(module.target)?;
    let plain =
        |from: &Value, to: Held| Value::new(format!("bitcast<{}>({})", to.wide(from.width), from.text), to, from.width);
    Ok(match (from.dtype, dtype) {
        (DType::F16, DType::BF16) => {
            let bits = call(module, "bits_of_f16", &[from], Held::U32);
            let shifted = operator("<<", &[bits, Value::new("16u", Held::U32, 1)], Held::U32);
            plain(&shifted, Held::F32)
        }
        (DType::BF16, DType::F16) => {
            let bits = plain(from, Held::U32);
            let shifted = operator(">>", &[bits, Value::new("16u", Held::U32, 1)], Held::U32);
            call(module, "f16_of_bits", &[&shifted], Held::F32)
        }
        (_, DType::I8 | DType::U8 | DType::Bool) => cast(module, from, dtype, held)?,
        (DType::Bool, _) => cast(module, from, dtype, held)?,
        (_, DType::F32 | DType::F64 | DType::I32 | DType::U32 | DType::I64) => {
            plain(from, Held::of(dtype)).held_as(held)
        }
        (_, DType::F16 | DType::BF16) => from.clone(),
    }
    .of(dtype))
}

/// A word of a random draw: operands are the two words of the key and the element's index.
pub(super) fn random(module: &mut Module<'_>, stream: u32, operands: &[Value]) -> Result<Value, Diagnostic> {
    let index = &operands[2];
    let stream = Value::new(format!("{stream}u"), Held::U32, 1);
    let (low, high) = match index.held {
        Held::I64 => {
            Held::I64.check(module.target)?;
            let shifted = operator(">>", &[index.clone(), Value::new("32u", Held::U32, 1)], Held::I64);
            (index.held_as(Held::U32), shifted.held_as(Held::U32))
        }
        Held::I32 | Held::U32 | Held::F32 | Held::F64 | Held::Bool => {
            (index.held_as(Held::U32), Value::new("0u", Held::U32, 1))
        }
    };
    Ok(call(module, "philox", &[&operands[0], &operands[1], &stream, &low, &high], Held::U32))
}
