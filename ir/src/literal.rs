//! One typed number, kept as bits so that equality and hashing are exact.

use std::fmt;

use half::{bf16, f16};

use crate::DType;

/// A scalar of a given element type, stored as its bits: NaN equals itself, `-0.0` differs from `0.0`.
///
/// ```
/// use kiln_ir::{DType, Literal};
/// let half = Literal::from_f64(DType::F16, 1.001);
/// assert_eq!(half.to_f64(), 1.0009765625);
/// assert_eq!(half.to_string(), "1.001");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Literal {
    dtype: DType,
    bits: u64,
}

impl Literal {
    /// A literal from raw bits; bits above the type's width are dropped, and any nonzero bool becomes 1.
    pub fn from_bits(dtype: DType, bits: u64) -> Literal {
        let bits = match dtype {
            DType::Bool => u64::from(bits != 0),
            DType::I8 | DType::U8 => bits & 0xff,
            DType::F16 | DType::BF16 => bits & 0xffff,
            DType::F32 | DType::I32 | DType::U32 => bits & 0xffff_ffff,
            DType::F64 | DType::I64 => bits,
        };
        Literal { dtype, bits }
    }

    /// The number rounded to `dtype` by the rules of a cast: floats round to nearest even, integers truncate and saturate (NaN is 0), bool is `x != 0`.
    pub fn from_f64(dtype: DType, value: f64) -> Literal {
        let bits = match dtype {
            DType::F64 => value.to_bits(),
            DType::F32 => u64::from((value as f32).to_bits()),
            DType::F16 => u64::from(f16::from_f32(round_to_odd(value)).to_bits()),
            DType::BF16 => u64::from(bf16::from_f32(round_to_odd(value)).to_bits()),
            DType::I8 => value as i8 as u64,
            DType::U8 => u64::from(value as u8),
            DType::I32 => value as i32 as u64,
            DType::U32 => u64::from(value as u32),
            DType::I64 => value as i64 as u64,
            DType::Bool => u64::from(value != 0.0),
        };
        Literal::from_bits(dtype, bits)
    }

    /// The integer in `dtype`: integers wrap at the type's width, floats round to nearest even, bool is `x != 0`.
    pub fn from_i128(dtype: DType, value: i128) -> Literal {
        let bits = match dtype {
            DType::F64 => (value as f64).to_bits(),
            DType::F32 => u64::from((value as f32).to_bits()),
            // Beyond 2^53 the conversion to f64 rounds; a last bit that says "and something more" keeps the second rounding right.
            DType::F16 | DType::BF16 => {
                let near = value as f64;
                let inexact = near as i128 != value;
                let odd = if inexact { f64::from_bits(toward_zero(near, value).to_bits() | 1) } else { near };
                return Literal::from_f64(dtype, odd);
            }
            DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 => value as u64,
            DType::Bool => u64::from(value != 0),
        };
        Literal::from_bits(dtype, bits)
    }

    /// Zero of a type (`false` for bool).
    pub fn zero(dtype: DType) -> Literal {
        Literal::from_i128(dtype, 0)
    }

    /// One of a type (`true` for bool).
    pub fn one(dtype: DType) -> Literal {
        Literal::from_i128(dtype, 1)
    }

    /// The element type.
    pub fn dtype(self) -> DType {
        self.dtype
    }

    /// The bits, in the low end of the word.
    pub fn bits(self) -> u64 {
        self.bits
    }

    /// The value as `f64`: exact for floats, bool and all integers up to 2^53.
    pub fn to_f64(self) -> f64 {
        match self.dtype {
            DType::F64 => f64::from_bits(self.bits),
            DType::F32 => f64::from(f32::from_bits(self.bits as u32)),
            DType::F16 => f16::from_bits(self.bits as u16).to_f64(),
            DType::BF16 => bf16::from_bits(self.bits as u16).to_f64(),
            DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => self.to_i128() as f64,
        }
    }

    /// The value as an integer: exact for integers and bool; floats truncate and saturate, NaN is 0.
    pub fn to_i128(self) -> i128 {
        match self.dtype {
            DType::I8 => i128::from(self.bits as i8),
            DType::I32 => i128::from(self.bits as i32),
            DType::I64 => i128::from(self.bits as i64),
            DType::U8 | DType::U32 | DType::Bool => i128::from(self.bits),
            DType::F32 | DType::F16 | DType::BF16 | DType::F64 => self.to_f64() as i128,
        }
    }

    /// This value converted to another type by the rules of `cast`: float to int truncates and saturates with NaN as 0, int to int wraps,
    /// anything to bool is `x != 0`, bool to a number is 0 or 1.
    pub fn cast(self, dtype: DType) -> Literal {
        if self.dtype.is_float() {
            Literal::from_f64(dtype, self.to_f64())
        } else {
            Literal::from_i128(dtype, self.to_i128())
        }
    }

    /// The bytes in memory, little-endian.
    pub fn to_le_bytes(self) -> ([u8; 8], usize) {
        (self.bits.to_le_bytes(), self.dtype.size())
    }
}

/// The `f32` on the way to a 16-bit float: exact, or else the one of the two neighbours whose last bit is set. Rounding that to 16 bits
/// gives what rounding `value` itself would; rounding twice to nearest does not.
fn round_to_odd(value: f64) -> f32 {
    let near = value as f32;
    if f64::from(near) == value || value.is_nan() {
        return near;
    }
    let toward_zero = if f64::from(near).abs() > value.abs() { near.to_bits() - 1 } else { near.to_bits() };
    f32::from_bits(toward_zero | 1)
}

/// `near`, or its neighbour where it lies beyond `value`.
fn toward_zero(near: f64, value: i128) -> f64 {
    let beyond = (near as i128).unsigned_abs() > value.unsigned_abs();
    if beyond { f64::from_bits(near.to_bits() - 1) } else { near }
}

/// Prints the shortest decimal that reads back to the same bits; a NaN other than the canonical one prints as `nan:0xBITS`.
impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.dtype == DType::Bool {
            return write!(f, "{}", self.bits != 0);
        }
        if !self.dtype.is_float() {
            return write!(f, "{}", self.to_i128());
        }
        let value = self.to_f64();
        if value.is_nan() {
            return if *self == Literal::from_f64(self.dtype, f64::NAN) {
                f.write_str("nan")
            } else {
                write!(f, "nan:{:#x}", self.bits)
            };
        }
        match self.dtype {
            DType::F64 => write!(f, "{value:?}"),
            // The shortest decimal of the narrow type itself; f32's shortest is longer than needed but also exact, so try few digits first.
            DType::F16 | DType::BF16 => write!(f, "{}", shortest_narrow(*self)),
            DType::F32 | DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => {
                write!(f, "{:?}", value as f32)
            }
        }
    }
}

fn shortest_narrow(literal: Literal) -> String {
    let value = literal.to_f64();
    (0..=8)
        .map(|digits| format!("{value:.digits$e}"))
        .filter_map(|text| text.parse::<f64>().ok())
        .find(|&parsed| Literal::from_f64(literal.dtype, parsed) == literal)
        .map_or_else(|| format!("{value:?}"), |parsed| format!("{parsed:?}"))
}

impl fmt::Debug for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}{}", self.dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_16_bit_float_is_rounded_once_from_f64() {
        let tie = |bits: i32| 1.0 + f64::powi(2.0, -bits - 1);
        let more = f64::powi(2.0, -45);
        for (dtype, bits) in [(DType::F16, 10), (DType::BF16, 7)] {
            let above = 1.0 + f64::powi(2.0, -bits);
            assert_eq!(Literal::from_f64(dtype, tie(bits)).to_f64(), 1.0, "{dtype}: a tie goes to even");
            assert_eq!(Literal::from_f64(dtype, tie(bits) + more).to_f64(), above, "{dtype}");
            assert_eq!(Literal::from_f64(dtype, -tie(bits) - more).to_f64(), -above, "{dtype}");
            assert_eq!(Literal::from_f64(dtype, tie(bits) - more).to_f64(), 1.0, "{dtype}");
            assert_eq!(Literal::from_f64(dtype, 1e300).to_f64(), f64::INFINITY, "{dtype}");
            assert_eq!(Literal::from_f64(dtype, -1e-300).to_f64().to_bits(), (-0.0f64).to_bits(), "{dtype}");
            assert!(Literal::from_f64(dtype, f64::NAN).to_f64().is_nan(), "{dtype}");
        }
    }

    #[test]
    fn an_integer_is_rounded_once_to_bf16() {
        let tie = (1i128 << 62) + (1 << 54);
        let value = |x: i128| Literal::from_i128(DType::BF16, x).to_i128();
        assert_eq!(value(tie), 1 << 62);
        assert_eq!(value(tie + 1), (1 << 62) + (1 << 55));
        assert_eq!(value(-tie - 1), -(1 << 62) - (1 << 55));
        assert_eq!(value(tie - 1), 1 << 62);
        assert_eq!(value((1 << 24) + (1 << 16) + 1), (1 << 24) + (1 << 17));
    }
}
