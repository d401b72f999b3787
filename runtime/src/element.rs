//! Rust types that are elements of arrays.

use bytemuck::{CheckedBitPattern, NoUninit};
use half::{bf16, f16};
use kiln_ir::{DType, Literal};

/// A Rust type that stands for an element type: `f32`, `f64`, `f16`, `bf16`, `i8`, `u8`, `i32`, `u32`, `i64`, `bool`.
///
/// ```
/// use kiln_ir::DType;
/// use kiln_runtime::Element;
/// assert_eq!(f32::DTYPE, DType::F32);
/// assert_eq!(true.literal().to_string(), "true");
/// ```
pub trait Element: NoUninit + CheckedBitPattern + std::fmt::Debug + PartialEq + Send + Sync {
    /// The element type it stands for.
    const DTYPE: DType;

    /// The number as a literal of that type.
    fn literal(self) -> Literal;
}

macro_rules! elements {
    ($($ty:ty => $dtype:ident, $value:ident => $bits:expr;)*) => {$(
        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;

            fn literal(self) -> Literal {
                let $value = self;
                Literal::from_bits(DType::$dtype, $bits)
            }
        }
    )*};
}

elements! {
    f32 => F32, x => u64::from(x.to_bits());
    f64 => F64, x => x.to_bits();
    f16 => F16, x => u64::from(x.to_bits());
    bf16 => BF16, x => u64::from(x.to_bits());
    i8 => I8, x => x as u64;
    u8 => U8, x => u64::from(x);
    i32 => I32, x => x as u64;
    u32 => U32, x => u64::from(x);
    i64 => I64, x => x as u64;
    bool => Bool, x => u64::from(x);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_keep_the_number() {
        assert_eq!((-3i8).literal().to_i128(), -3);
        assert_eq!(i64::MIN.literal().to_i128(), i128::from(i64::MIN));
        assert_eq!(u32::MAX.literal().to_i128(), i128::from(u32::MAX));
        assert_eq!(f16::from_f32(1.5).literal().to_f64(), 1.5);
        assert_eq!((-0.0f32).literal().bits(), 0x8000_0000);
        assert!(bf16::NAN.literal().to_f64().is_nan());
    }
}
