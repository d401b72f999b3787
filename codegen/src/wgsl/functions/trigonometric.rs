//! sin, cos, tan.
//!
//! The argument is brought into `[-pi/4, pi/4]` by taking off the nearest multiple of pi/2, of which two bits say what is wanted with which sign.
//! Moderate arguments take it off in three parts, the first two of 17 bits, whose products with k are exact. Large ones are multiplied in
//! integers with those of the first 256 bits of 2/pi that matter for them (Payne and Hanek).

use super::Function;

pub(super) const TABLE: &[Function] = &[
    Function {
        name: "turned",
        calls: &["turned_far"],
        text: "
fn turned(x: f32) -> vec3<f32> {
    // High and low part of the rest, and the multiple of pi/2 that was taken off.
    if abs(x) > 192.0f {
        return turned_far(x);
    }
    let k = round(x * 0.63661975f);
    let first = x - k * 1.5707855224609375f;
    let second = k * 1.0804273188114166e-5f;
    let high = bitcast<f32>(bitcast<u32>(first - second) & 0xfffff000u);
    return vec3<f32>(high, fma(-k, 6.077101e-11f, (first - high) - second), k);
}
",
    },
    Function {
        name: "two_over_pi",
        calls: &[],
        text: "
fn two_over_pi(word: i32) -> u32 {
    // Words of 2/pi, of which the first stands behind the binary point.
    switch word {
        case 0: { return 0xa2f9836eu; }
        case 1: { return 0x4e441529u; }
        case 2: { return 0xfc2757d1u; }
        case 3: { return 0xf534ddc0u; }
        case 4: { return 0xdb629599u; }
        case 5: { return 0x3c439041u; }
        case 6: { return 0xfe5163abu; }
        default: { return 0u; }
    }
}
",
    },
    Function {
        name: "two_over_pi_from",
        calls: &["two_over_pi"],
        text: "
fn two_over_pi_from(bit: i32) -> u32 {
    // The word of 2/pi that begins with this bit.
    let word = bit >> 5u;
    let shift = u32(bit & 31i);
    let next = two_over_pi(word + 1i);
    return (two_over_pi(word) << shift) | select(next >> (32u - max(shift, 1u)), 0u, shift == 0u);
}
",
    },
    Function {
        name: "turned_far",
        calls: &["from_bits", "multiply_wide", "two_over_pi_from"],
        text: "
fn turned_far(x: f32) -> vec3<f32> {
    let bits = bitcast<u32>(x) & 0x7fffffffu;
    if bits >= 0x7f800000u {
        return vec3<f32>(from_bits(0x7fc00000u), 0.0f, 0.0f);
    }
    // |x| = fraction * 2^exponent. Bits of 2/pi that weigh 4 or more when multiplied by 2^exponent add whole turns: what follows them, times
    // the fraction and modulo 2^96, has its binary point behind the second bit.
    let fraction = (bits & 0x7fffffu) | 0x800000u;
    let start = i32(bits >> 23u) - 152i;
    let skipped = max(-start, 0i);
    let first = two_over_pi_from(max(start, 0i)) >> u32(skipped);
    let second = select(two_over_pi_from(start + 32i), two_over_pi_from(32i - skipped), skipped > 0i);
    let third = select(two_over_pi_from(start + 64i), two_over_pi_from(64i - skipped), skipped > 0i);
    let low = multiply_wide(fraction, third);
    let middle = multiply_wide(fraction, second);
    let sum = middle.x + low.y;
    let top = fraction * first + middle.y + select(0u, 1u, sum < low.y);
    let k = (top + 0x20000000u) >> 30u;
    // What follows the point, read as signed, is the distance from the nearest quarter turn.
    var rest_high = (top << 2u) | (sum >> 30u);
    var rest_low = sum << 2u;
    let is_below = rest_high >= 0x80000000u;
    rest_high = select(rest_high, ~rest_high + select(0u, 1u, rest_low == 0u), is_below);
    rest_low = select(rest_low, ~rest_low + 1u, is_below);
    // Its leading 32 bits, times pi/2 in two parts.
    let shift = countLeadingZeros(rest_high);
    let leading = select((rest_high << (shift & 31u)) | select(rest_low >> (32u - max(shift, 1u)), 0u, shift == 0u), rest_low, shift > 31u);
    let weight = bitcast<f32>((127u - 32u - shift) << 23u);
    let leading_high = f32(leading & 0xfff00000u) * weight;
    let leading_low = f32(leading & 0x000fffffu) * weight;
    let high = leading_high * 1.5703125f;
    let small = fma(leading_high, 0.00048382679f, leading_low * 1.5707964f);
    let is_negative = is_below != (x < 0.0f);
    let multiple = f32(select(k & 3u, (4u - k) & 3u, x < 0.0f));
    return vec3<f32>(select(high, -high, is_negative), select(small, -small, is_negative), multiple);
}
",
    },
    Function {
        name: "sin_near",
        calls: &[],
        text: "
fn sin_near(high: f32, low: f32) -> f32 {
    let r = high + low;
    let square = r * r;
    let p = fma(fma(-0.00019503628f, square, 0.008332099f), square, -0.16666655f);
    return high + fma(r * square, p, low);
}
",
    },
    Function {
        name: "cos_near",
        calls: &[],
        text: "
fn cos_near(high: f32, low: f32) -> f32 {
    let r = high + low;
    let square = r * r;
    let p = fma(fma(2.4463501e-5f, square, -0.0013887652f), square, 0.041666653f);
    // The square of a multiple of 2^-11 is exact, and so is what it leaves of 1.
    let near = round(r * 2048.0f) * 0.00048828125f;
    let rest = (high - near) + low;
    return (1.0f - 0.5f * near * near) + (square * square * p - rest * fma(0.5f, rest, near));
}
",
    },
    Function {
        name: "sin_turned",
        calls: &["cos_near", "sin_near"],
        text: "
fn sin_turned(high: f32, low: f32, quadrant: i32) -> f32 {
    let size = select(sin_near(high, low), cos_near(high, low), (quadrant & 1i) == 1i);
    return bitcast<f32>(bitcast<u32>(size) ^ (u32(quadrant & 2i) << 30u));
}
",
    },
    Function {
        name: "sin_f32",
        calls: &["is_nan_f32", "sin_turned", "turned"],
        text: "
fn sin_f32(x: f32) -> f32 {
    let rest = turned(x);
    let result = sin_turned(rest.x, rest.y, i32(rest.z));
    // The sine of -0, and of what is so small that it stays itself.
    return select(result, x, is_nan_f32(x) || (bitcast<u32>(x) & 0x7fffffffu) < 0x39000000u);
}
",
    },
    Function {
        name: "cos_f32",
        calls: &["is_nan_f32", "sin_turned", "turned"],
        text: "
fn cos_f32(x: f32) -> f32 {
    let rest = turned(x);
    return select(sin_turned(rest.x, rest.y, i32(rest.z) + 1i), x, is_nan_f32(x));
}
",
    },
    Function {
        name: "tan_f32",
        calls: &["div_f32", "is_nan_f32", "turned"],
        text: "
fn tan_f32(x: f32) -> f32 {
    let rest = turned(x);
    let r = rest.x + rest.y;
    let square = r * r;
    var p = fma(fma(fma(0.0044294717f, square, -2.1534213e-5f), square, 0.01092642f), square, 0.02124586f);
    p = fma(fma(fma(p, square, 0.054067273f), square, 0.13332595f), square, 0.33333352f);
    let tangent = rest.x + fma(r * square, p, rest.y);
    let is_odd = (i32(rest.z) & 1i) == 1i;
    let result = select(tangent, div_f32(-1.0f, tangent), is_odd);
    return select(result, x, is_nan_f32(x) || (bitcast<u32>(x) & 0x7fffffffu) < 0x39000000u);
}
",
    },
];
