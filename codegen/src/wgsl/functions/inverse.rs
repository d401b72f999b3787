//! asin, acos, atan, atan2.
//!
//! Near 1, `asin(x) = pi/2 - 2 asin(sqrt((1 - x) / 2))`; the root is taken in two parts, of which the first has 12 bits and an exact square. The
//! arctangent's argument is a quotient, turned back by 0, pi/4 or pi/2 so that its angle is within pi/8.

use super::Function;

pub(super) const TABLE: &[Function] = &[
    Function {
        name: "asin_tail",
        calls: &[],
        text: "
fn asin_tail(z: f32) -> f32 {
    // (asin(s) / s - 1) for z = s^2 up to 1/4.
    var p = fma(fma(0.037565257f, z, 0.014402563f), z, 0.031817622f);
    p = fma(fma(fma(p, z, 0.044515718f), z, 0.07500511f), z, 0.1666666f);
    return z * p;
}
",
    },
    Function {
        name: "asin_root",
        calls: &["asin_tail", "sqrt_f32"],
        text: "
fn asin_root(a: f32) -> vec2<f32> {
    // asin(sqrt((1 - a) / 2)) in two parts, for a in [1/2, 1].
    let z = 0.5f * (1.0f - a);
    let s = sqrt_f32(z);
    let high = bitcast<f32>(bitcast<u32>(s) & 0xfffff000u);
    let low = select((z - high * high) / (s + high), 0.0f, z == 0.0f);
    return vec2<f32>(high, fma(s, asin_tail(z), low));
}
",
    },
    Function {
        name: "asin_f32",
        calls: &["asin_root", "asin_tail", "from_bits", "is_nan_f32", "with_sign_of"],
        text: "
fn asin_f32(x: f32) -> f32 {
    let a = abs(x);
    let near = fma(x, asin_tail(x * x), x);
    let root = asin_root(a);
    let far = (1.5707964f - 2.0f * root.x) - fma(2.0f, root.y, 4.371139e-8f);
    var result = with_sign_of(select(far, near, a <= 0.5f), x);
    result = select(result, from_bits(0x7fc00000u), a > 1.0f);
    return select(result, x, is_nan_f32(x));
}
",
    },
    Function {
        name: "acos_f32",
        calls: &["asin_root", "asin_tail", "from_bits", "is_nan_f32"],
        text: "
fn acos_f32(x: f32) -> f32 {
    let a = abs(x);
    let near = 1.5707964f - (x + fma(x, asin_tail(x * x), 4.371139e-8f));
    let root = asin_root(a);
    let right = 2.0f * (root.x + root.y);
    let left = (3.1415927f - 2.0f * root.x) - fma(2.0f, root.y, 8.742278e-8f);
    var result = select(select(right, left, x < 0.0f), near, a <= 0.5f);
    result = select(result, from_bits(0x7fc00000u), a > 1.0f);
    return select(result, x, is_nan_f32(x));
}
",
    },
    Function {
        name: "angle",
        calls: &["div_f32"],
        text: "
fn angle(rise: f32, run: f32) -> f32 {
    // Of the point (run, rise), neither of them negative, neither both zero nor both infinite.
    let low = rise <= run * 0.41421357f;
    let high = rise > run * 2.4142137f;
    let above = select(select(rise - run, -run, high), rise, low);
    let below = select(select(rise + run, rise, high), run, low);
    let t = div_f32(above, below);
    let square = t * t;
    var p = fma(fma(-0.0608309f, square, 0.105958655f), square, -0.1424383f);
    p = fma(fma(p, square, 0.1999849f), square, -0.33333316f);
    let small = fma(t * square, p, t);
    let start = select(select(0.7853982f, 1.5707964f, high), 0.0f, low);
    let more = select(select(-2.1855694e-8f, -4.371139e-8f, high), 0.0f, low);
    return start + (small + more);
}
",
    },
    Function {
        name: "atan_f32",
        calls: &["angle", "is_nan_f32", "with_sign_of"],
        text: "
fn atan_f32(x: f32) -> f32 {
    let result = with_sign_of(angle(abs(x), 1.0f), x);
    return select(result, x, is_nan_f32(x));
}
",
    },
    Function {
        name: "grown",
        calls: &[],
        text: "
fn grown(x: f32) -> f32 {
    // |x| * 2^60, of numbers that a device may flush as well.
    let bits = bitcast<u32>(x) & 0x7fffffffu;
    return select(abs(x) * 0x1p60f, f32(bits) * 0x1p-89f, bits < 0x800000u);
}
",
    },
    Function {
        name: "atan2_f32",
        calls: &["angle", "from_bits", "grown", "is_nan_f32", "with_sign_of"],
        text: "
fn atan2_f32(y: f32, x: f32) -> f32 {
    // Both scaled alike, so that neither their sum overflows nor their products vanish. Large ones are by integers: a compiler may factor
    // a multiplication out of the sum.
    let largest = max(abs(y), abs(x));
    let is_small = largest < 0x1p-60f;
    let steps = select(0u, 30u << 23u, largest > 0x1p100f);
    let rise_bits = bitcast<u32>(select(abs(y), grown(y), is_small));
    let run_bits = bitcast<u32>(select(abs(x), grown(x), is_small));
    let rise = bitcast<f32>(select(select(0u, rise_bits - steps, rise_bits >= steps), rise_bits, rise_bits == 0x7f800000u));
    let run = bitcast<f32>(select(select(0u, run_bits - steps, run_bits >= steps), run_bits, run_bits == 0x7f800000u));
    let is_zero = ((bitcast<u32>(x) | bitcast<u32>(y)) & 0x7fffffffu) == 0u;
    let both_infinite = (bitcast<u32>(x) & bitcast<u32>(y) & 0x7f800000u) == 0x7f800000u;
    var turn = select(angle(rise, run), 0.0f, is_zero);
    turn = select(turn, 0.7853982f, both_infinite);
    let is_left = bitcast<u32>(x) >= 0x80000000u;
    let result = with_sign_of(select(turn, 3.1415927f - (turn + 8.742278e-8f), is_left), y);
    return select(result, from_bits(0x7fc00000u), is_nan_f32(x) || is_nan_f32(y));
}
",
    },
];
