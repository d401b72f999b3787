//! Element types: what one number of a tensor is.

use std::fmt;

/// The type of a tensor's elements.
///
/// ```
/// use kiln_ir::{DType, Kind};
/// assert_eq!(DType::BF16.size(), 2);
/// assert_eq!(DType::BF16.kind(), Kind::Float);
/// assert_eq!("bf16".parse(), Ok(DType::BF16));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an `f32`.
    BF16,
    /// IEEE double precision.
    F64,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 64-bit integer.
    I64,
    /// True or false; one byte in memory, 0 or 1.
    Bool,
}

/// The three kinds of element type that rules distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `f16`, `bf16`, `f32`, `f64`.
    Float,
    /// `i8`, `u8`, `i32`, `u32`, `i64`.
    Int,
    /// `bool`.
    Bool,
}

impl DType {
    /// Every element type, in the order of declaration.
    pub const ALL: [DType; 10] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::F64,
        DType::I8,
        DType::U8,
        DType::I32,
        DType::U32,
        DType::I64,
        DType::Bool,
    ];

    /// The name in the text form: `f32`, `bool`, ...
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F64 => "f64",
            DType::I8 => "i8",
            DType::U8 => "u8",
            DType::I32 => "i32",
            DType::U32 => "u32",
            DType::I64 => "i64",
            DType::Bool => "bool",
        }
    }

    /// Bytes of one element in memory.
    pub const fn size(self) -> usize {
        match self {
            DType::I8 | DType::U8 | DType::Bool => 1,
            DType::F16 | DType::BF16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F64 | DType::I64 => 8,
        }
    }

    /// Float, int or bool.
    pub const fn kind(self) -> Kind {
        match self {
            DType::F32 | DType::F16 | DType::BF16 | DType::F64 => Kind::Float,
            DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 => Kind::Int,
            DType::Bool => Kind::Bool,
        }
    }

    /// Whether this is a float type.
    pub const fn is_float(self) -> bool {
        matches!(self.kind(), Kind::Float)
    }

    /// Whether this is an integer type (`bool` is not).
    pub const fn is_int(self) -> bool {
        matches!(self.kind(), Kind::Int)
    }

    /// Whether negative numbers exist in this type.
    pub const fn is_signed(self) -> bool {
        match self {
            DType::F32 | DType::F16 | DType::BF16 | DType::F64 => true,
            DType::I8 | DType::I32 | DType::I64 => true,
            DType::U8 | DType::U32 | DType::Bool => false,
        }
    }

    /// The type in which sums and products over many elements are accumulated: `f32` for the 16-bit floats, else the type itself.
    pub const fn accumulator(self) -> DType {
        match self {
            DType::F16 | DType::BF16 => DType::F32,
            DType::F32 | DType::F64 => self,
            DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => self,
        }
    }

    /// The smallest and largest value of an integer type; `None` for floats and bool.
    pub const fn int_range(self) -> Option<(i128, i128)> {
        match self {
            DType::I8 => Some((i8::MIN as i128, i8::MAX as i128)),
            DType::U8 => Some((0, u8::MAX as i128)),
            DType::I32 => Some((i32::MIN as i128, i32::MAX as i128)),
            DType::U32 => Some((0, u32::MAX as i128)),
            DType::I64 => Some((i64::MIN as i128, i64::MAX as i128)),
            DType::F32 | DType::F16 | DType::BF16 | DType::F64 | DType::Bool => None,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for DType {
    type Err = ();

    fn from_str(text: &str) -> Result<DType, ()> {
        DType::ALL.into_iter().find(|dtype| dtype.name() == text).ok_or(())
    }
}

impl Kind {
    /// The word used in messages: `float`, `int`, `bool`.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Float => "float",
            Kind::Int => "int",
            Kind::Bool => "bool",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
