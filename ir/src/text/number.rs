//! Reading literals: the inverse of [`Literal`]'s `Display`, exact to the bit.

use crate::{Code, DType, Diagnostic, Literal};

impl Literal {
    /// Reads a number of a dtype as the text form writes it: `-0.0`, `1e-7`, `inf`, `nan`, `nan:0x7fc00001`, `true`.
    ///
    /// Decimals are rounded to nearest even. K0406 where the text is no number of that dtype or lies outside its range.
    ///
    /// ```
    /// use kiln_ir::{DType, Literal};
    /// let third = Literal::from_f64(DType::F32, 1.0 / 3.0);
    /// assert_eq!(Literal::parse(DType::F32, &third.to_string()).unwrap(), third);
    /// assert!(Literal::parse(DType::U8, "256").is_err());
    /// ```
    pub fn parse(dtype: DType, text: &str) -> Result<Literal, Diagnostic> {
        let literal = match dtype {
            DType::Bool => match text {
                "true" => Some(Literal::one(dtype)),
                "false" => Some(Literal::zero(dtype)),
                _ => None,
            },
            DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 => integer(dtype, text),
            DType::F32 | DType::F16 | DType::BF16 | DType::F64 => float(dtype, text),
        };
        literal.ok_or_else(|| {
            let shown: String = text.chars().take(40).collect();
            Diagnostic::new(Code::K0406, format!("`{shown}` is no {dtype}")).help(expected(dtype))
        })
    }
}

fn integer(dtype: DType, text: &str) -> Option<Literal> {
    let (low, high) = dtype.int_range()?;
    let value: i128 = text.parse().ok()?;
    (!text.starts_with('+') && (low..=high).contains(&value)).then(|| Literal::from_i128(dtype, value))
}

fn float(dtype: DType, text: &str) -> Option<Literal> {
    match text {
        "inf" => return Some(Literal::from_f64(dtype, f64::INFINITY)),
        "-inf" => return Some(Literal::from_f64(dtype, f64::NEG_INFINITY)),
        "nan" => return Some(Literal::from_f64(dtype, f64::NAN)),
        _ => {}
    }
    if let Some(digits) = text.strip_prefix("nan:0x") {
        let plain = !digits.starts_with('+');
        let bits = u64::from_str_radix(digits, 16).ok().filter(|_| plain)?;
        let literal = Literal::from_bits(dtype, bits);
        return (literal.bits() == bits && literal.to_f64().is_nan()).then_some(literal);
    }
    if !text.strip_prefix('-').unwrap_or(text).starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let literal = match dtype {
        // Through f64 a decimal would be rounded twice.
        DType::F32 => Literal::from_bits(dtype, u64::from(text.parse::<f32>().ok()?.to_bits())),
        DType::F16 | DType::BF16 | DType::F64 => Literal::from_f64(dtype, text.parse().ok()?),
        DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => return None,
    };
    literal.to_f64().is_finite().then_some(literal)
}

fn expected(dtype: DType) -> String {
    match dtype.int_range() {
        Some((low, high)) => format!("{dtype} holds the integers from {low} to {high}"),
        None if dtype == DType::Bool => "a bool is `true` or `false`".to_owned(),
        None => {
            format!("{dtype} is written as a decimal it can hold (`1.5`, `-2e-3`), `inf`, `-inf`, `nan` or `nan:0x..`")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sixteen_bit_float_reads_back() {
        for dtype in [DType::F16, DType::BF16] {
            for bits in 0..=0xffff {
                let literal = Literal::from_bits(dtype, bits);
                assert_eq!(Literal::parse(dtype, &literal.to_string()), Ok(literal), "{literal:?}");
            }
        }
    }

    #[test]
    fn edges_of_each_dtype_read_back() {
        for dtype in DType::ALL {
            let width = 8 * dtype.size() as u32;
            for bits in (0..width).flat_map(|bit| [1u64 << bit, (1u64 << bit).wrapping_neg(), (1 << bit) - 1]) {
                let literal = Literal::from_bits(dtype, bits);
                assert_eq!(Literal::parse(dtype, &literal.to_string()), Ok(literal), "{literal:?}");
            }
        }
    }

    #[test]
    fn a_decimal_is_rounded_once() {
        // Each lies a little beyond the middle of two neighbours, less than f32 can tell.
        let cases = [
            (DType::F16, "1.000488281250001", 1.0 + 1.0 / 1024.0),
            (DType::F16, "1.001464843749999", 1.0 + 1.0 / 1024.0),
            (DType::BF16, "1.003906250000001", 1.0 + 1.0 / 128.0),
            (DType::BF16, "1.011718749999999", 1.0 + 1.0 / 128.0),
        ];
        for (dtype, text, expected) in cases {
            assert_eq!(Literal::parse(dtype, text).unwrap().to_f64(), expected, "{text} as {dtype}");
        }
    }

    #[test]
    fn what_a_dtype_cannot_hold_is_refused() {
        let cases = [
            (DType::U8, "256"),
            (DType::U8, "-1"),
            (DType::I32, "1.5"),
            (DType::I32, "+1"),
            (DType::I64, ""),
            (DType::Bool, "1"),
            (DType::F16, "70000.0"),
            (DType::F32, "1e39"),
            (DType::F64, "1e999"),
            (DType::F32, "infinity"),
            (DType::F32, "NaN"),
            (DType::F32, "nan:0x0"),
            (DType::F16, "nan:0x17e00"),
            (DType::F32, "nan:0x+7fc00000"),
            (DType::F32, "true"),
            (DType::F32, "1_0"),
            (DType::F32, ".5"),
        ];
        for (dtype, text) in cases {
            let code = Literal::parse(dtype, text).map_err(|diagnostic| diagnostic.code);
            assert_eq!(code, Err(Code::K0406), "{text} as {dtype}");
        }
    }
}
