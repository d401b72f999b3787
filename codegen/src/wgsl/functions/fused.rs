//! Quotients on devices whose `fma` rounds once: what a quotient lacks is then known exactly after one instruction.
//!
//! `1 / y`, which may be off by 2.5 units in the last place, is corrected twice: it is the nearest float then, but where all bits of `y` are set.
//! So is the quotient by it, after which it is rounded as IEEE 754 asks (Markstein's theorem), as long as nothing on the way is so small or so large
//! that it leaves the normal numbers.

use super::{Function, calls};

/// These stand for functions of the same names.
pub(super) const TABLE: &[Function] = &[
    Function {
        name: "quotient",
        calls: &[],
        text: "
fn quotient(x: f32, y: f32) -> f32 {
    // For operands of middle size, and not all bits of y set. The sign of 1 / y is set anew, so that no compiler takes y * (1 / y) for 1.
    let guess = bitcast<f32>((bitcast<u32>(1.0f / y) & 0x7fffffffu) | (bitcast<u32>(y) & 0x80000000u));
    let near = fma(fma(-y, guess, 1.0f), guess, guess);
    let inverse = fma(fma(-y, near, 1.0f), near, near);
    let first = x * inverse;
    let second = fma(fma(-y, first, x), inverse, first);
    return fma(fma(-y, second, x), inverse, second);
}
",
    },
    Function {
        name: "div_f32",
        calls: &["div_far", "quotient"],
        text: "
fn div_f32(x: f32, y: f32) -> f32 {
    // |x| from 2^-60 to 2^60, |y| from 2^-40 to 2^40.
    let middle_x = (bitcast<u32>(x) << 1u) - 0x43000000u < 0x78000000u;
    let middle_y = (bitcast<u32>(y) << 1u) - 0x57000000u < 0x50000000u;
    if middle_x && middle_y && (bitcast<u32>(y) & 0x7fffffu) != 0x7fffffu {
        return quotient(x, y);
    }
    return div_far(x, y);
}
",
    },
    Function {
        name: "sigmoid_f32",
        calls: &["exp_parts", "is_nan_f32", "quotient", "scale"],
        text: "
fn sigmoid_f32(x: f32) -> f32 {
    // e^-|x| never overflows; left of zero it is the numerator as well. One unit in the last place may be lost here.
    let parts = exp_parts(max(-abs(x), -104.0f));
    let small = scale(parts.x, i32(parts.y));
    let result = quotient(select(1.0f, small, x < 0.0f), 1.0f + small);
    return select(result, x, is_nan_f32(x));
}
",
    },
];

/// The function for neighbours, where it is more than a call for each: one branch for all of them.
pub(super) fn wide(name: &str, width: u32) -> Option<String> {
    if name != "div_f32" {
        return None;
    }
    let (float, bits) = (format!("vec{width}<f32>"), format!("vec{width}<u32>"));
    let middle = |operand: &str, low: &str, span: &str| {
        format!("((bitcast<{bits}>({operand}) << {bits}(1u)) - {bits}({low})) < {bits}({span})")
    };
    Some(format!(
        "fn div_f32_x{width}(x: {float}, y: {float}) -> {float} {{
    let middle_x = {};
    let middle_y = {};
    let whole_y = (bitcast<{bits}>(y) & {bits}(0x7fffffu)) == {bits}(0x7fffffu);
    if all(middle_x & middle_y) && !any(whole_y) {{
        return {float}({});
    }}
    return {float}({});
}}
",
        middle("x", "0x43000000u", "0x78000000u"),
        middle("y", "0x57000000u", "0x50000000u"),
        calls("quotient", &["x", "y"], width),
        calls("div_f32", &["x", "y"], width),
    ))
}

#[cfg(test)]
mod tests {
    /// The text's own steps, from a guess that is off by so many units in the last place.
    fn quotient(x: f32, y: f32, off: i32) -> f32 {
        let guess = f32::from_bits((1.0 / y).to_bits().wrapping_add_signed(off));
        let near = (-y).mul_add(guess, 1.0).mul_add(guess, guess);
        let inverse = (-y).mul_add(near, 1.0).mul_add(near, near);
        let first = x * inverse;
        let second = (-y).mul_add(first, x).mul_add(inverse, first);
        (-y).mul_add(second, x).mul_add(inverse, second)
    }

    fn with_mantissa(mantissa: u32) -> f32 {
        f32::from_bits(0x3f80_0000 | mantissa)
    }

    #[test]
    fn quotients_are_rounded_once_however_the_device_guesses() {
        let last = 0x7f_ffff;
        // Divisors near a power of two are the hard ones.
        let hard = (0..200).chain(last - 200..last);
        for y in hard.chain((0..last).step_by(997)).map(with_mantissa) {
            for x in [0, 1, 0x55_5553, last].map(with_mantissa) {
                for off in -3..=3 {
                    assert_eq!(quotient(x, y, off), x / y, "{x:e} / {y:e}, a guess off by {off}");
                }
            }
        }
    }

    #[test]
    fn a_divisor_with_all_bits_set_is_left_to_long_division() {
        let y = with_mantissa(0x7f_ffff);
        assert!((-3..=3).any(|off| quotient(1.0, y, off) != 1.0 / y));
        assert!(super::TABLE.iter().any(|entry| entry.name == "div_f32" && entry.text.contains("!= 0x7fffffu")));
    }
}
