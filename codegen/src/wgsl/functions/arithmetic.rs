//! Arithmetic that must be exact: maxima, signs, tests, division, roots, remainders.

use super::Function;

pub(super) const TABLE: &[Function] = &[
    Function {
        name: "is_nan_f32",
        calls: &[],
        text: "
fn is_nan_f32(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
",
    },
    Function {
        name: "is_inf_f32",
        calls: &[],
        text: "
fn is_inf_f32(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u;
}
",
    },
    Function {
        name: "is_finite_f32",
        calls: &[],
        text: "
fn is_finite_f32(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) < 0x7f800000u;
}
",
    },
    Function {
        name: "order_f32",
        calls: &[],
        text: "
fn order_f32(x: f32) -> i32 {
    // Integers in the order of the floats, -0 below +0.
    let bits = bitcast<i32>(x);
    return bits ^ ((bits >> 31u) & 0x7fffffffi);
}
",
    },
    Function {
        name: "max_f32",
        calls: &["is_nan_f32", "order_f32"],
        text: "
fn max_f32(x: f32, y: f32) -> f32 {
    let larger = select(y, x, order_f32(x) > order_f32(y));
    return select(select(larger, y, is_nan_f32(y)), x, is_nan_f32(x));
}
",
    },
    Function {
        name: "min_f32",
        calls: &["is_nan_f32", "order_f32"],
        text: "
fn min_f32(x: f32, y: f32) -> f32 {
    let smaller = select(y, x, order_f32(x) < order_f32(y));
    return select(select(smaller, y, is_nan_f32(y)), x, is_nan_f32(x));
}
",
    },
    Function {
        name: "sign_f32",
        calls: &[],
        text: "
fn sign_f32(x: f32) -> f32 {
    // Zeros and NaN stay themselves.
    let bits = bitcast<u32>(x);
    let size = bits & 0x7fffffffu;
    return bitcast<f32>(select((bits & 0x80000000u) | 0x3f800000u, bits, size == 0u || size > 0x7f800000u));
}
",
    },
    Function {
        name: "div_f32",
        calls: &["div_far"],
        text: "
fn div_f32(x: f32, y: f32) -> f32 {
    // The quotient's own error is taken off: correctly rounded. Products of halves of 12 bits are exact, and so are all differences.
    // Its sign is set anew, so that no compiler sees that it is x / y and takes `q + rest / y` for `(x + rest) / y`.
    let sign = (bitcast<u32>(x) ^ bitcast<u32>(y)) & 0x80000000u;
    let q = bitcast<f32>((bitcast<u32>(x / y) & 0x7fffffffu) | sign);
    let ex = (bitcast<u32>(x) >> 23u) & 0xffu;
    let ey = (bitcast<u32>(y) >> 23u) & 0xffu;
    if ex - 67u < 120u && ey - 87u < 80u {
        let q_high = bitcast<f32>(bitcast<u32>(q) & 0xfffff000u);
        let y_high = bitcast<f32>(bitcast<u32>(y) & 0xfffff000u);
        let q_low = q - q_high;
        let y_low = y - y_high;
        let rest = (((x - q_high * y_high) - q_high * y_low) - q_low * y_high) - q_low * y_low;
        return q + rest / y;
    }
    return div_far(x, y);
}
",
    },
    Function {
        name: "div_far",
        calls: &[],
        text: "
fn div_far(x: f32, y: f32) -> f32 {
    // Very large or very small operands, zeros, infinities, NaN: long division of whole numbers, rounded at the end.
    let sign = (bitcast<u32>(x) ^ bitcast<u32>(y)) & 0x80000000u;
    let a = bitcast<u32>(x) & 0x7fffffffu;
    let b = bitcast<u32>(y) & 0x7fffffffu;
    if a > 0x7f800000u || b > 0x7f800000u || (a == b && (a == 0u || a == 0x7f800000u)) {
        return bitcast<f32>(0x7fc00000u | sign);
    }
    if a == 0x7f800000u || b == 0u {
        return bitcast<f32>(0x7f800000u | sign);
    }
    if b == 0x7f800000u || a == 0u {
        return bitcast<f32>(sign);
    }
    let shift_a = select(0u, countLeadingZeros(a) - 8u, a < 0x800000u);
    let shift_b = select(0u, countLeadingZeros(b) - 8u, b < 0x800000u);
    var rest = select((a & 0x7fffffu) | 0x800000u, a << shift_a, a < 0x800000u);
    let divisor = select((b & 0x7fffffu) | 0x800000u, b << shift_b, b < 0x800000u);
    var exponent = i32(max(a >> 23u, 1u)) - i32(shift_a) - i32(max(b >> 23u, 1u)) + i32(shift_b) + 127i;
    if rest < divisor {
        rest = rest << 1u;
        exponent -= 1i;
    }
    // 26 bits of the quotient, the last of which says whether there is more.
    var quotient = 0u;
    for (var step = 0; step < 25; step++) {
        let fits = rest >= divisor;
        quotient = (quotient << 1u) | u32(fits);
        rest = (rest - select(0u, divisor, fits)) << 1u;
    }
    quotient = (quotient << 1u) | u32(rest != 0u);
    if exponent >= 255i {
        return bitcast<f32>(0x7f800000u | sign);
    }
    // Below the normal numbers more bits are cut off.
    let cut = u32(clamp(1i - exponent, 0i, 28i));
    let lost = u32((quotient & ((1u << cut) - 1u)) != 0u);
    quotient = (quotient >> cut) | lost;
    let rounded = (quotient + 1u + ((quotient >> 2u) & 1u)) >> 2u;
    let base = u32(max(exponent, 1i) - 1i) << 23u;
    return bitcast<f32>(sign | (base + rounded));
}
",
    },
    Function {
        name: "recip_f32",
        calls: &["div_f32"],
        text: "
fn recip_f32(x: f32) -> f32 {
    return div_f32(1.0f, x);
}
",
    },
    Function {
        name: "rsqrt_f32",
        calls: &["div_f32", "sqrt_f32"],
        text: "
fn rsqrt_f32(x: f32) -> f32 {
    return div_f32(1.0f, sqrt_f32(x));
}
",
    },
    Function {
        name: "sqrt_f32",
        calls: &[],
        text: "
fn sqrt_f32(x: f32) -> f32 {
    // As for quotients. Numbers whose error would vanish are scaled by a power of 4.
    let bits = bitcast<u32>(x);
    let is_small = bits < 0x20000000u;
    let scaled = select(select(x, x * 0x1p80f, is_small), f32(bits) * 0x1p-69f, bits < 0x800000u);
    let s = sqrt(scaled);
    let high = bitcast<f32>(bitcast<u32>(s) & 0xfffff000u);
    let low = s - high;
    let rest = ((scaled - high * high) - 2.0f * high * low) - low * low;
    let corrected = s + rest * (0.5f / s);
    let result = select(corrected, corrected * 0x1p-40f, is_small);
    let edge = select(x, bitcast<f32>(0x7fc00000u | (bits & 1u)), bits > 0x80000000u);
    return select(result, edge, bits >= 0x7f800000u || bits == 0u);
}
",
    },
    Function {
        name: "rem_f32",
        calls: &[],
        text: "
fn rem_f32(x: f32, y: f32) -> f32 {
    // Long division in whole numbers: exact for quotients of any size.
    let sign = bitcast<u32>(x) & 0x80000000u;
    let a = bitcast<u32>(x) & 0x7fffffffu;
    let b = bitcast<u32>(y) & 0x7fffffffu;
    if a >= 0x7f800000u || b > 0x7f800000u || b == 0u {
        return bitcast<f32>(0x7fc00000u | sign);
    }
    if a < b {
        return x;
    }
    let ea = max(a >> 23u, 1u);
    let eb = max(b >> 23u, 1u);
    var rest = (a & 0x7fffffu) | select(0u, 0x800000u, (a >> 23u) != 0u);
    let divisor = (b & 0x7fffffu) | select(0u, 0x800000u, (b >> 23u) != 0u);
    rest = rest % divisor;
    for (var step = ea - eb; step > 0u;) {
        let bits = min(step, 8u);
        rest = (rest << bits) % divisor;
        step -= bits;
    }
    if rest == 0u {
        return bitcast<f32>(sign);
    }
    // `rest` times 2^(eb - 150).
    let shift = countLeadingZeros(rest) - 8u;
    if eb > shift {
        return bitcast<f32>(sign | (((eb - shift - 1u) << 23u) + (rest << shift)));
    }
    return bitcast<f32>(sign | (rest << (eb - 1u)));
}
",
    },
    Function {
        name: "div_i32",
        calls: &[],
        text: "
fn div_i32(x: i32, y: i32) -> i32 {
    return select(x / y, 0i, y == 0i);
}
",
    },
    Function {
        name: "rem_i32",
        calls: &[],
        text: "
fn rem_i32(x: i32, y: i32) -> i32 {
    return select(x % y, x, y == 0i);
}
",
    },
    Function {
        name: "div_u32",
        calls: &[],
        text: "
fn div_u32(x: u32, y: u32) -> u32 {
    return select(x / y, 0u, y == 0u);
}
",
    },
    Function {
        name: "rem_u32",
        calls: &[],
        text: "
fn rem_u32(x: u32, y: u32) -> u32 {
    return select(x % y, x, y == 0u);
}
",
    },
    Function {
        name: "div_i64",
        calls: &[],
        text: "
fn div_i64(x: i64, y: i64) -> i64 {
    return select(x / y, 0li, y == 0li);
}
",
    },
    Function {
        name: "rem_i64",
        calls: &[],
        text: "
fn rem_i64(x: i64, y: i64) -> i64 {
    return select(x % y, x, y == 0li);
}
",
    },
    Function {
        name: "is_nan_f64",
        calls: &["is_nan_f32"],
        text: "
fn is_nan_f64(x: f64) -> bool {
    // NaN, and only NaN, is NaN in f32 as well.
    return is_nan_f32(f32(x));
}
",
    },
    Function {
        name: "is_finite_f64",
        calls: &[],
        text: "
fn is_finite_f64(x: f64) -> bool {
    return abs(x) <= 1.7976931348623157e308lf;
}
",
    },
    Function {
        name: "is_inf_f64",
        calls: &[],
        text: "
fn is_inf_f64(x: f64) -> bool {
    return abs(x) > 1.7976931348623157e308lf;
}
",
    },
    Function {
        name: "max_f64",
        calls: &["is_nan_f64"],
        text: "
fn max_f64(x: f64, y: f64) -> f64 {
    // Of two zeros the sum is +0 if either is.
    let larger = select(select(y, x, x > y), x + y, x == 0.0lf && y == 0.0lf);
    return select(larger, x + y, is_nan_f64(x) || is_nan_f64(y));
}
",
    },
    Function {
        name: "min_f64",
        calls: &["max_f64"],
        text: "
fn min_f64(x: f64, y: f64) -> f64 {
    return -max_f64(-x, -y);
}
",
    },
    Function {
        name: "sign_f64",
        calls: &[],
        text: "
fn sign_f64(x: f64) -> f64 {
    return select(select(x, 1.0lf, x > 0.0lf), -1.0lf, x < 0.0lf);
}
",
    },
    Function {
        name: "trunc_f64",
        calls: &[],
        text: "
fn trunc_f64(x: f64) -> f64 {
    return select(floor(x), ceil(x), x < 0.0lf);
}
",
    },
    Function {
        name: "round_f64",
        calls: &[],
        text: "
fn round_f64(x: f64) -> f64 {
    let size = abs(x);
    let below = floor(size);
    let rest = size - below;
    let is_odd = floor(below * 0.5lf) * 2.0lf != below;
    let rounded = select(below, below + 1.0lf, rest > 0.5lf || (rest == 0.5lf && is_odd));
    return select(select(rounded, -rounded, x < 0.0lf), x, x == 0.0lf);
}
",
    },
    Function {
        name: "rem_f64",
        calls: &["is_finite_f64"],
        text: "
fn rem_f64(x: f64, y: f64) -> f64 {
    // Multiples of `y` by powers of two are taken off, largest first: each difference is exact.
    var rest = abs(x);
    let least = abs(y);
    if !(is_finite_f64(x) && least > 0.0lf) {
        return (x - x) / (y - y);
    }
    if rest < least {
        return x;
    }
    var step = least;
    while step <= rest * 0.5lf {
        step *= 2.0lf;
    }
    while step >= least {
        if rest >= step {
            rest -= step;
        }
        step *= 0.5lf;
    }
    return select(rest, -rest, x < 0.0lf);
}
",
    },
];
