//! The bits of `f16` and `bf16` as arithmetic on 32-bit lanes, without branches: loops over these become vector code on any machine.
//!
//! Rounding is to nearest even, subnormals count, NaN stays NaN.

use std::hint::select_unpredictable as pick;

/// The `f16` nearest to `x`, as bits.
#[inline(always)]
pub(in crate::cpu) fn f16_bits(x: f32) -> u16 {
    let (bits, magnitude) = (x.to_bits(), x.to_bits() & 0x7fff_ffff);
    // Normal: the exponent is rebiased from 127 to 15, half an ulp (less one at even) added, the low 13 bits dropped.
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_add(0xc800_0fff).wrapping_add(odd) >> 13;
    // Below 2^-14: an ulp of 0.5 is an f16 subnormal's ulp, so the adder rounds.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let finite = pick(magnitude < 0x3880_0000, subnormal, normal);
    let special = pick(magnitude > 0x7f80_0000, 0x7e00 | ((magnitude >> 13) & 0x3ff), 0x7c00);
    let result = pick(magnitude >= 0x4780_0000, special, finite);
    (((bits >> 16) & 0x8000) | result) as u16
}

/// The value of `f16` bits.
#[inline(always)]
pub(in crate::cpu) fn f16_value(bits: u16) -> f32 {
    let (sign, magnitude) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff) << 13);
    // Times 2^112 moves the exponent's bias from 15 to 127 and normalises subnormals.
    let finite = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
    f32::from_bits(sign | pick(magnitude >= 0x0f80_0000, magnitude | 0x7f80_0000, finite))
}

/// The `bf16` nearest to `x`, as bits.
#[inline(always)]
pub(in crate::cpu) fn bf16_bits(x: f32) -> u16 {
    (round_bf16(x).to_bits() >> 16) as u16
}

/// The value of `bf16` bits.
#[inline(always)]
pub(in crate::cpu) fn bf16_value(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// `x` rounded to `f16`, as `f32`.
#[inline(always)]
pub(in crate::cpu) fn round_f16(x: f32) -> f32 {
    f16_value(f16_bits(x))
}

/// `x` rounded to `bf16`, as `f32`.
#[inline(always)]
pub(in crate::cpu) fn round_bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) & 0xffff_0000;
    f32::from_bits(pick(bits & 0x7fff_ffff > 0x7f80_0000, (bits | 0x0040_0000) & 0xffff_0000, rounded))
}

/// `x` as an `f32` that rounds to any narrower format as `x` itself does: the inexact one of two neighbours whose last bit is 1.
#[inline(always)]
pub(in crate::cpu) fn round_to_odd(x: f64) -> f32 {
    let nearest = x as f32;
    let (back, bits) = (f64::from(nearest), nearest.to_bits());
    // Toward zero where the nearest is too large; infinity steps back to the largest finite number, which is odd.
    let toward_zero = bits.wrapping_sub(u32::from(back.abs() > x.abs()));
    let inexact = u32::from(back != x);
    pick(x.is_nan(), nearest, f32::from_bits(toward_zero | inexact))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_goes_through_f32_and_back() {
        for bits in 0..=u16::MAX {
            let value = half::f16::from_bits(bits);
            if value.is_nan() {
                assert!(f16_value(bits).is_nan() && f16_value(f16_bits(f16_value(bits))).is_nan());
            } else {
                assert_eq!(f16_value(bits).to_bits(), value.to_f32().to_bits());
                assert_eq!(f16_bits(f16_value(bits)), bits);
            }
        }
    }

    #[test]
    fn rounding_agrees_with_the_half_crate_between_all_neighbours() {
        for bits in (0..u32::MAX).step_by(997) {
            let x = f32::from_bits(bits);
            if x.is_nan() {
                assert!(round_f16(x).is_nan() && round_bf16(x).is_nan());
            } else {
                assert_eq!(f16_bits(x), half::f16::from_f32(x).to_bits(), "{x:e}");
                assert_eq!(bf16_bits(x), half::bf16::from_f32(x).to_bits(), "{x:e}");
            }
        }
        for bits in 0..0x7c00u16 {
            let (low, high) = (f16_value(bits), f16_value(bits + 1));
            let middle = if high.is_infinite() { 65520.0 } else { (low + high) / 2.0 };
            let even = if bits % 2 == 0 { bits } else { bits + 1 };
            assert_eq!(f16_bits(middle), even);
            assert_eq!(f16_bits(middle.next_up()), bits + 1);
            assert_eq!(f16_bits(-middle.next_down()), bits | 0x8000);
        }
    }

    #[test]
    fn a_double_just_above_a_tie_rounds_up() {
        let tie = 1.0 + f64::from(f32::EPSILON) * 4096.0;
        assert_eq!(round_f16(round_to_odd(tie)), 1.0);
        assert_eq!(round_f16(round_to_odd(tie.next_up())), 1.0 + 1.0 / 1024.0);
        assert_eq!(round_f16(round_to_odd(-tie.next_down())), -1.0);
        assert_eq!(round_f16(round_to_odd(1e300)), f32::INFINITY);
        assert_eq!(round_bf16(round_to_odd(f64::NEG_INFINITY)), f32::NEG_INFINITY);
        assert!(round_to_odd(f64::NAN).is_nan());
        assert_eq!(round_to_odd(1e-60).to_bits(), 1);
        assert_eq!(round_f16(round_to_odd(-0.0)).to_bits(), (-0.0f32).to_bits());
    }
}
