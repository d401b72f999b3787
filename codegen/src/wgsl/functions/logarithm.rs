//! log, log2, log1p, the inverse hyperbolic functions, pow.
//!
//! `x = m 2^e` with m in `[sqrt(1/2), sqrt(2)]`, so that `ln x = e ln 2 + ln m`. Exponents are taken off by integers, so subnormal numbers are right
//! on devices that flush them. Where a logarithm's argument is a rounded sum, its high bits are cut off by a mask and the rest, which is
//! exact then, joins as a correction.

use super::Function;

pub(super) const TABLE: &[Function] = &[
    Function {
        name: "log_split",
        calls: &[],
        text: "
fn log_split(x: f32) -> vec2<f32> {
    // m - 1 and e of a positive finite x = m * 2^e.
    var bits = bitcast<u32>(x);
    let shift = max(i32(countLeadingZeros(bits)) - 8i, 0i);
    let is_small = bits < 0x00800000u;
    bits = select(bits, (bits << u32(shift)) & 0x7fffffu, is_small);
    let exponent = select(i32(bits >> 23u), 1i - shift, is_small);
    let fraction = bits & 0x7fffffu;
    let large = fraction > 0x3504f3u;
    let m = bitcast<f32>(fraction | select(0x3f800000u, 0x3f000000u, large));
    return vec2<f32>(m - 1.0f, f32(exponent - select(127i, 126i, large)));
}
",
    },
    Function {
        name: "log_tail",
        calls: &[],
        text: "
fn log_tail(f: f32) -> f32 {
    // ln(1 + f) - f for 1 + f in [sqrt(1/2), sqrt(2)].
    var p = fma(fma(-0.0763463f, f, 0.12761648f), f, -0.13160162f);
    p = fma(fma(fma(p, f, 0.14201745f), f, -0.16623354f), f, 0.20001228f);
    p = fma(fma(fma(p, f, -0.2500082f), f, 0.3333333f), f, -0.5f);
    return f * f * p;
}
",
    },
    Function {
        name: "log_edges",
        calls: &["from_bits", "is_nan_f32"],
        text: "
fn log_edges(x: f32, inside: f32) -> f32 {
    // What the logarithm is where x is not positive and finite.
    let bits = bitcast<u32>(x);
    var result = select(inside, x, bits >= 0x7f800000u);
    result = select(result, from_bits(0x7fc00000u), bits > 0x80000000u);
    return select(result, from_bits(0xff800000u), (bits & 0x7fffffffu) == 0u);
}
",
    },
    Function {
        name: "log_f32",
        calls: &["log_edges", "log_split", "log_tail"],
        text: "
fn log_f32(x: f32) -> f32 {
    let parts = log_split(x);
    let sum = parts.x + fma(parts.y, 1.4286068e-6f, log_tail(parts.x));
    return log_edges(x, fma(parts.y, 0.69314575f, sum));
}
",
    },
    Function {
        name: "log2_f32",
        calls: &["log_edges", "log_split", "log_tail"],
        text: "
fn log2_f32(x: f32) -> f32 {
    let parts = log_split(x);
    let tail = log_tail(parts.x);
    // Twelve bits of ln m times twelve bits of log2(e) are exact; what they leave off joins the small terms.
    let high = bitcast<f32>(bitcast<u32>(parts.x + tail) & 0xfffff000u);
    let low = (parts.x - high) + tail;
    let small = fma(high, 0.0003122284f, low * 1.4426950408889634f);
    return log_edges(x, fma(high, 1.4423828f, small) + parts.y);
}
",
    },
    Function {
        name: "log_sum",
        calls: &["log_split", "log_tail"],
        text: "
fn log_sum(high: f32, low: f32, doublings: f32) -> f32 {
    // ln((high + low) * 2^doublings), for a low part of 2^-11 of the high one at most, and a sum that is not near 1.
    let parts = log_split(high);
    // Divided where it is not so large that a device's division fails.
    let steps = select(0u, 64u << 23u, high > 0x1p64f);
    let low_bits = bitcast<u32>(low);
    let low_scaled = select(0.0f, bitcast<f32>(low_bits - steps), (low_bits & 0x7fffffffu) >= steps);
    let d = low_scaled / bitcast<f32>(bitcast<u32>(high) - steps);
    let small = fma(d * d, fma(d, 0.33333334f, -0.5f), d);
    let e = parts.y + doublings;
    return fma(e, 0.69314575f, parts.x + fma(e, 1.4286068e-6f, log_tail(parts.x) + small));
}
",
    },
    Function {
        name: "log1p_f32",
        calls: &["from_bits", "is_nan_f32", "log_sum", "log_tail"],
        text: "
fn log1p_f32(x: f32) -> f32 {
    let near = x + log_tail(x);
    let sum = bitcast<f32>(bitcast<u32>(1.0f + x) & 0xfffff000u);
    let far = log_sum(sum, x - (sum - 1.0f), 0.0f);
    var result = select(far, near, x > -0.29f && x < 0.41f);
    let bits = bitcast<u32>(x);
    result = select(result, from_bits(0xff800000u), bits == 0xbf800000u);
    result = select(result, from_bits(0x7fc00000u), bits > 0xbf800000u);
    // Infinity, NaN, and what is so small that it stays itself, the sign of zero too.
    return select(result, x, (bits >= 0x7f800000u && bits < 0x80000000u) || is_nan_f32(x) || (bits & 0x7fffffffu) < 0x33000000u);
}
",
    },
    Function {
        name: "asinh_f32",
        calls: &["is_nan_f32", "log_sum", "sqrt_f32", "with_sign_of"],
        text: "
fn asinh_f32(x: f32) -> f32 {
    let square = x * x;
    var p = fma(fma(fma(-0.0049118097f, square, 0.013232152f), square, -0.02128265f), square, 0.030215956f);
    p = fma(fma(fma(p, square, -0.04462902f), square, 0.07499944f), square, -0.16666666f);
    let near = fma(x * square, p, x);
    // ln(a + root) with the root in two parts, of which the first has few bits.
    let a = min(abs(x), 0x1p13f);
    let a_high = bitcast<f32>(bitcast<u32>(a) & 0xfffff000u);
    let root = sqrt_f32(fma(a, a, 1.0f));
    let root_high = bitcast<f32>(bitcast<u32>(root) & 0xfffff000u);
    let rest = (a_high * a_high - root_high * root_high) + (1.0f + (a - a_high) * (a + a_high));
    let root_low = rest / (root + root_high);
    let sum = bitcast<f32>(bitcast<u32>(a + root) & 0xfffff000u);
    let middle = log_sum(sum, (a - (sum - root_high)) + root_low, 0.0f);
    let size = abs(x);
    let high = bitcast<f32>(bitcast<u32>(size) & 0xfffff000u);
    let far = log_sum(high, size - high, 1.0f);
    let result = with_sign_of(select(select(middle, near, size < 0.6f), far, size > 0x1p13f), x);
    return select(result, x, (bitcast<u32>(x) & 0x7fffffffu) >= 0x7f800000u);
}
",
    },
    Function {
        name: "acosh_f32",
        calls: &["from_bits", "is_nan_f32", "log_f32", "log_sum", "sqrt_f32"],
        text: "
fn acosh_f32(x: f32) -> f32 {
    let t = x - 1.0f;
    var p = fma(fma(fma(0.00011291512f, t, -0.0005749792f), t, 0.0018456191f), t, -0.0055681583f);
    p = fma(fma(fma(p, t, 0.018748645f), t, -0.083333276f), t, 1.0f);
    let near = sqrt_f32(t + t) * p;
    let middle = log_f32(x + sqrt_f32(t * (x + 1.0f)));
    let high = bitcast<f32>(bitcast<u32>(x) & 0xfffff000u);
    let far = log_sum(high, x - high, 1.0f);
    let result = select(select(middle, near, t < 0.7f), far, x > 0x1p13f);
    let bits = bitcast<u32>(x);
    return select(select(result, from_bits(0x7fc00000u), bits < 0x3f800000u || bits >= 0x80000000u), x, bits == 0x7f800000u || is_nan_f32(x));
}
",
    },
    Function {
        name: "atanh_f32",
        calls: &["div_f32", "is_nan_f32", "log1p_f32", "with_sign_of"],
        text: "
fn atanh_f32(x: f32) -> f32 {
    let a = abs(x);
    let twice = a + a;
    let near = twice + div_f32(twice * a, 1.0f - a);
    let ratio = select(div_f32(twice, 1.0f - a), near, a < 0.5f);
    let size = 0.5f * log1p_f32(ratio);
    // Beyond 1 the ratio is negative: the logarithm is NaN, whose sign does not count.
    let result = with_sign_of(size, x);
    return select(result, x, is_nan_f32(x) || (bitcast<u32>(x) & 0x7fffffffu) < 0x33000000u);
}
",
    },
    Function {
        name: "log2_eighths",
        calls: &[],
        text: "
fn log2_eighths(n: i32) -> vec2<f32> {
    // log2(n / 8) in two parts, the first a multiple of 2^-12.
    switch n {
        case 6: { return vec2<f32>(-0.4150390625f, 1.5632212e-6f); }
        case 7: { return vec2<f32>(-0.192626953125f, -1.8124818e-5f); }
        case 9: { return vec2<f32>(0.169921875f, 3.1264424e-6f); }
        case 10: { return vec2<f32>(0.322021484375f, -9.338949e-5f); }
        case 11: { return vec2<f32>(0.45947265625f, -4.1037612e-5f); }
        default: { return vec2<f32>(0.0f, 0.0f); }
    }
}
",
    },
    Function {
        name: "pow_f32",
        calls: &["exp2_fraction", "from_bits", "is_nan_f32", "log2_eighths", "log_split", "scale"],
        text: "
fn pow_f32(x: f32, y: f32) -> f32 {
    let base = abs(x);
    // log2 of the base in two parts, the first of 12 bits. m is c (1 + d) with c = eighths / 8 near it, and ln(1 + d) = 2 atanh(s) with
    // s = (m - c) / (m + c), small enough for two terms and a bit, in two parts as well.
    let parts = log_split(base);
    let eighths = round(fma(parts.x, 8.0f, 8.0f));
    let c = log2_eighths(i32(eighths));
    let over = parts.x - (eighths * 0.125f - 1.0f);
    let below = over + eighths * 0.25f;
    let below_high = bitcast<f32>(bitcast<u32>(below) & 0xfffff000u);
    let below_low = over - (below_high - eighths * 0.25f);
    let s = over / below;
    let s_high = bitcast<f32>(bitcast<u32>(s) & 0xfffff000u);
    let s_low = ((over - s_high * below_high) - s_high * below_low) / below;
    let square = s * s;
    let tail = s * square * fma(fma(0.28571429f, square, 0.4f), square, 0.6666667f);
    let ln_high = s_high + s_high;
    let ln_low = (s_low + s_low) + tail;
    let first = ln_high * 1.4423828f;
    let rest = fma(ln_high, 0.0003122284f, ln_low * 1.4426950408889634f) + c.y;
    let whole = parts.y + c.x;
    let log_high = bitcast<f32>(bitcast<u32>(whole + (first + rest)) & 0xfffff000u);
    let log_low = ((whole - log_high) + first) + rest;
    // Times y, which is as good as infinite beyond 2^40.
    let limited = clamp(y, -0x1p40f, 0x1p40f);
    let y_high = bitcast<f32>(bitcast<u32>(limited) & 0xfffff000u);
    let product = y_high * log_high;
    let correction = fma(y_high, log_low, (limited - y_high) * (log_high + log_low));
    let exponent = clamp(product + correction, -160.0f, 140.0f);
    let k = round(exponent);
    let is_inside = abs(product) < 512.0f;
    let fraction = select(0.0f, clamp((product - k) + correction, -0.5f, 0.5f), is_inside);
    var size = scale(exp2_fraction(fraction), i32(k));
    let is_zero = (bitcast<u32>(base)) == 0u;
    let is_infinite = bitcast<u32>(base) == 0x7f800000u;
    let infinity = from_bits(0x7f800000u);
    size = select(size, select(infinity, 0.0f, is_zero == (y > 0.0f)), is_zero || is_infinite);
    // An odd y keeps the sign of x; one that is not whole has no power of a negative number.
    let is_whole = round(limited) == limited;
    let is_odd = is_whole && abs(limited) < 0x1p24f && (i32(clamp(limited, -0x1p24f, 0x1p24f)) & 1i) == 1i;
    let is_negative = bitcast<u32>(x) >= 0x80000000u;
    var result = select(size, -size, is_negative && is_odd);
    result = select(result, from_bits(0x7fc00000u), is_negative && !is_whole && !is_zero && !is_infinite);
    result = select(result, from_bits(0x7fc00000u), is_nan_f32(x) || is_nan_f32(y));
    let is_one = bitcast<u32>(x) == 0x3f800000u || (bitcast<u32>(y) & 0x7fffffffu) == 0u;
    return select(result, 1.0f, is_one);
}
",
    },
];
