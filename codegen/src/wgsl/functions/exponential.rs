//! exp, exp2, expm1, the logistic function, the hyperbolic functions, erf.
//!
//! `e^x = 2^k e^r` with k the integer nearest to `x / ln 2` and `|r| <= ln 2 / 2`, where a short polynomial is exact enough. The high part of ln 2
//! has 15 bits, so that its product with any k is exact whether or not a compiler fuses it. Polynomials are those of the CPU's vector functions.

use super::Function;

pub(super) const TABLE: &[Function] = &[
    Function {
        name: "power_of_two",
        calls: &[],
        text: "
fn power_of_two(k: i32) -> f32 {
    // For -126 <= k <= 127.
    return bitcast<f32>((k + 127i) << 23u);
}
",
    },
    Function {
        name: "scale",
        calls: &["power_of_two"],
        text: "
fn scale(m: f32, k: i32) -> f32 {
    // m * 2^k in two steps, so that it may become infinite or subnormal by itself.
    let half = k >> 1u;
    return m * power_of_two(half) * power_of_two(k - half);
}
",
    },
    Function {
        name: "exp_parts",
        calls: &[],
        text: "
fn exp_parts(x: f32) -> vec2<f32> {
    // m and k of e^x = m * 2^k, for |x| <= 104.
    let k = round(x * 1.4426950408889634f);
    let first = fma(-k, 0.69314575f, x);
    let second = k * 1.4286068e-6f;
    let r = first - second;
    let p = fma(fma(fma(fma(0.001395147f, r, 0.008369036f), r, 0.04166619f), r, 0.16666518f), r, 0.5f);
    return vec2<f32>(1.0f + (first + fma(r * r, p, -second)), k);
}
",
    },
    Function {
        name: "exp_f32",
        calls: &["exp_parts", "is_nan_f32", "scale"],
        text: "
fn exp_f32(x: f32) -> f32 {
    let parts = exp_parts(clamp(x, -104.0f, 89.0f));
    return select(scale(parts.x, i32(parts.y)), x, is_nan_f32(x));
}
",
    },
    Function {
        name: "exp2_fraction",
        calls: &[],
        text: "
fn exp2_fraction(r: f32) -> f32 {
    // 2^r for |r| <= 1/2.
    let p = fma(fma(fma(fma(0.00015473209f, r, 0.0013390689f), r, 0.009618019f), r, 0.05550361f), r, 0.2402265f);
    return fma(r, fma(r, p, 0.6931472f), 1.0f);
}
",
    },
    Function {
        name: "exp2_f32",
        calls: &["exp2_fraction", "is_nan_f32", "scale"],
        text: "
fn exp2_f32(x: f32) -> f32 {
    let limited = clamp(x, -151.0f, 129.0f);
    let k = round(limited);
    return select(scale(exp2_fraction(limited - k), i32(k)), x, is_nan_f32(x));
}
",
    },
    Function {
        name: "expm1_f32",
        calls: &["is_nan_f32", "power_of_two", "scale"],
        text: "
fn expm1_f32(x: f32) -> f32 {
    let limited = clamp(x, -30.0f, 89.0f);
    let k = round(limited * 1.4426950408889634f);
    let r = fma(-k, 1.4286068e-6f, fma(-k, 0.69314575f, limited));
    let p = fma(fma(fma(fma(0.001395147f, r, 0.008369036f), r, 0.04166619f), r, 0.16666518f), r, 0.5f);
    let small = fma(r * r, p, r);
    let power = power_of_two(clamp(i32(k), -126i, 30i));
    let near = fma(power, small, power - 1.0f);
    let far = scale(1.0f + small, i32(k));
    let result = select(near, far, k > 25.0f);
    // The sign of zero is lost above.
    return select(result, x, is_nan_f32(x) || (bitcast<u32>(x) & 0x7fffffffu) < 0x33000000u);
}
",
    },
    Function {
        name: "sigmoid_f32",
        calls: &["div_f32", "exp_parts", "is_nan_f32", "scale"],
        text: "
fn sigmoid_f32(x: f32) -> f32 {
    // e^-|x| never overflows; left of zero it is the numerator as well.
    let parts = exp_parts(max(-abs(x), -104.0f));
    let small = scale(parts.x, i32(parts.y));
    let result = div_f32(select(1.0f, small, x < 0.0f), 1.0f + small);
    return select(result, x, is_nan_f32(x));
}
",
    },
    Function {
        name: "with_sign_of",
        calls: &[],
        text: "
fn with_sign_of(size: f32, x: f32) -> f32 {
    return bitcast<f32>((bitcast<u32>(size) & 0x7fffffffu) | (bitcast<u32>(x) & 0x80000000u));
}
",
    },
    Function {
        name: "tanh_f32",
        calls: &["div_f32", "exp_parts", "is_nan_f32", "power_of_two", "with_sign_of"],
        text: "
fn tanh_f32(x: f32) -> f32 {
    let square = x * x;
    let p = fma(fma(fma(fma(-0.005703085f, square, 0.020648912f), square, -0.05374806f), square, 0.13331643f), square, -0.33333296f);
    let near = fma(x * square, p, x);
    // 1 - 2 / (e^(2|x|) + 1); from 10 on it is 1 to the last bit.
    let parts = exp_parts(2.0f * min(abs(x), 10.0f));
    let far = 1.0f - div_f32(2.0f, fma(parts.x, power_of_two(i32(parts.y)), 1.0f));
    let result = with_sign_of(select(far, near, abs(x) < 0.6f), x);
    return select(result, x, is_nan_f32(x));
}
",
    },
    Function {
        name: "sinh_f32",
        calls: &["div_f32", "exp_parts", "is_nan_f32", "scale", "with_sign_of"],
        text: "
fn sinh_f32(x: f32) -> f32 {
    let square = x * x;
    let p = fma(fma(fma(2.8174395e-6f, square, 0.00019836066f), square, 0.00833335f), square, 0.16666667f);
    let near = fma(x * square, p, x);
    let parts = exp_parts(min(abs(x), 104.0f));
    let half = scale(parts.x, i32(parts.y) - 1i);
    let far = half - div_f32(0.25f, half);
    let result = with_sign_of(select(far, near, abs(x) < 1.0f), x);
    return select(result, x, is_nan_f32(x));
}
",
    },
    Function {
        name: "cosh_f32",
        calls: &["div_f32", "exp_parts", "is_nan_f32", "scale"],
        text: "
fn cosh_f32(x: f32) -> f32 {
    let parts = exp_parts(min(abs(x), 104.0f));
    let half = scale(parts.x, i32(parts.y) - 1i);
    return select(half + div_f32(0.25f, half), x, is_nan_f32(x));
}
",
    },
    Function {
        name: "erf_f32",
        calls: &["exp2_fraction", "is_nan_f32", "power_of_two", "with_sign_of"],
        text: "
fn erf_f32(x: f32) -> f32 {
    let square = x * x;
    var p = fma(fma(8.382388e-5f, square, -0.0008145597f), square, 0.005201286f);
    p = fma(fma(fma(fma(p, square, -0.0268595f), square, 0.11283697f), square, -0.37612635f), square, 0.12837916f);
    let near = fma(x, p, x);
    // 1 - erfc(|x|), of which a polynomial gives the logarithm; from 4 on erf is 1 to the last bit.
    let a = min(abs(x), 4.0f);
    var q = fma(fma(fma(-7.5383423e-7f, a, -2.0634814e-5f), a, 0.00057226012f), a, -0.005847757f);
    q = fma(fma(fma(q, a, 0.035915956f), a, -0.15582804f), a, -0.91401017f);
    q = fma(fma(q, a, -1.629429f), a, 0.00023140531f);
    let k = round(q);
    let far = 1.0f - exp2_fraction(q - k) * power_of_two(i32(k));
    let result = select(with_sign_of(far, x), near, abs(x) < 0.92f);
    return select(result, x, is_nan_f32(x));
}
",
    },
];
