//! What numbers are in WGSL: as registers hold them, and as they lie in memory.

use kiln_ir::gpu::GpuTarget;
use kiln_ir::{Code, DType, Diagnostic, Literal};

use super::functions::Functions;

/// How a register holds a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Held {
    /// `f32`; also 16-bit floats, which are rounded after each instruction.
    F32,
    /// `f64`.
    F64,
    /// `i32`; also `i8`, wrapped after each instruction, and `i64` whose value is known to be small.
    I32,
    /// `u32`; also `u8`, wrapped after each instruction.
    U32,
    /// `i64`.
    I64,
    /// `bool`.
    Bool,
}

impl Held {
    /// How numbers of a dtype are held.
    pub(super) fn of(dtype: DType) -> Held {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 => Held::F32,
            DType::F64 => Held::F64,
            DType::I8 | DType::I32 => Held::I32,
            DType::U8 | DType::U32 => Held::U32,
            DType::I64 => Held::I64,
            DType::Bool => Held::Bool,
        }
    }

    /// The name in WGSL.
    pub(super) fn name(self) -> &'static str {
        match self {
            Held::F32 => "f32",
            Held::F64 => "f64",
            Held::I32 => "i32",
            Held::U32 => "u32",
            Held::I64 => "i64",
            Held::Bool => "bool",
        }
    }

    /// The type of `width` neighbours: `f32`, `vec4<f32>`.
    pub(super) fn wide(self, width: u32) -> String {
        if width == 1 { self.name().to_owned() } else { format!("vec{width}<{}>", self.name()) }
    }

    /// Zero, or false.
    pub(super) fn zero(self) -> &'static str {
        match self {
            Held::F32 => "0.0f",
            Held::F64 => "0.0lf",
            Held::I32 => "0i",
            Held::U32 => "0u",
            Held::I64 => "0li",
            Held::Bool => "false",
        }
    }

    /// The type that scratch memory holds it in; bools are words there.
    pub(super) fn in_scratch(self) -> &'static str {
        match self {
            Held::Bool => "u32",
            Held::F32 | Held::F64 | Held::I32 | Held::U32 | Held::I64 => self.name(),
        }
    }

    /// Bytes of an element of scratch memory.
    pub(super) fn scratch_bytes(self) -> usize {
        match self {
            Held::F64 | Held::I64 => 8,
            Held::F32 | Held::I32 | Held::U32 | Held::Bool => 4,
        }
    }

    /// K0601 where the target has no such registers.
    pub(super) fn check(self, target: &GpuTarget) -> Result<(), Diagnostic> {
        match self {
            Held::F64 if !target.f64.is_present() => Err(unsupported(DType::F64)),
            Held::I64 if !target.i64.is_present() => Err(unsupported(DType::I64)),
            Held::F32 | Held::F64 | Held::I32 | Held::U32 | Held::I64 | Held::Bool => Ok(()),
        }
    }
}

/// How elements of a buffer lie in memory: always as the host has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lies {
    /// An array of this type.
    Native(&'static str),
    /// So many to a `u32`, the first one lowest.
    Packed(u32),
}

impl Lies {
    /// How a dtype's elements lie on a target. K0601 where it has no such numbers.
    pub(super) fn of(dtype: DType, target: &GpuTarget) -> Result<Lies, Diagnostic> {
        Held::of(dtype).check(target)?;
        Ok(match dtype {
            DType::F32 => Lies::Native("f32"),
            DType::I32 => Lies::Native("i32"),
            DType::U32 => Lies::Native("u32"),
            DType::F64 => Lies::Native("f64"),
            DType::I64 => Lies::Native("i64"),
            DType::F16 if target.f16.is_present() => Lies::Native("f16"),
            DType::F16 | DType::BF16 => Lies::Packed(2),
            DType::I8 | DType::U8 | DType::Bool => Lies::Packed(4),
        })
    }
}

/// K0601: the device has no numbers of this dtype.
pub(super) fn unsupported(dtype: DType) -> Diagnostic {
    Diagnostic::new(Code::K0601, format!("this GPU has no {dtype}"))
        .label(format!("a kernel computes in {dtype}, and the adapter does not offer the feature that it needs"))
        .help("cast to a 32-bit type, or run this part on the CPU")
}

/// K0601: the op has no implementation for this dtype on any GPU.
pub(super) fn unsupported_op(op: &str, dtype: DType) -> Diagnostic {
    Diagnostic::new(Code::K0601, format!("`{op}` has no {dtype} form on GPUs"))
        .label(format!("WGSL has `{op}` for f32 at most"))
        .help("cast to f32, or run this part on the CPU")
}

/// A constant as an expression. Floats that WGSL cannot write, or may flush, are made from bits by the function `from_bits`, so that
/// no compiler finds them in a constant expression and refuses them.
pub(super) fn literal(functions: &mut Functions, value: Literal) -> String {
    let bits = value.bits();
    match value.dtype() {
        DType::F32 | DType::F16 | DType::BF16 => float(functions, value.to_f64() as f32),
        DType::F64 => {
            let number = value.to_f64();
            if number.is_normal() || bits == 0 {
                format!("{number:?}lf")
            } else if number.is_nan() || number.is_infinite() || number == 0.0 {
                format!("f64({})", float(functions, number as f32))
            } else {
                // A subnormal: exact as a product of two normal numbers.
                format!("({:?}lf * {:?}lf)", number * f64::powi(2.0, 100), f64::powi(2.0, -100))
            }
        }
        DType::I8 | DType::I32 => integer(value.to_i128() as i64),
        DType::U8 | DType::U32 => format!("{bits}u"),
        DType::I64 if value.to_i128() == i128::from(i64::MIN) => format!("({}li - 1li)", i64::MIN + 1),
        DType::I64 => format!("{}li", value.to_i128()),
        DType::Bool => (bits != 0).to_string(),
    }
}

/// An `i32` constant.
pub(super) fn integer(value: i64) -> String {
    if value == i64::from(i32::MIN) { format!("i32({value})") } else { format!("{value}i") }
}

fn float(functions: &mut Functions, value: f32) -> String {
    if value.is_normal() || value.to_bits() == 0 {
        return format!("{value:?}f");
    }
    functions.need("from_bits");
    format!("from_bits({:#010x}u)", value.to_bits())
}
