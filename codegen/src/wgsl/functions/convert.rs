//! Conversions: 16-bit floats to and from their bits, rounding to them, floats to integers.

use super::Function;

pub(super) const TABLE: &[Function] = &[
    Function {
        name: "from_bits",
        calls: &[],
        text: "
fn from_bits(bits: u32) -> f32 {
    return bitcast<f32>(bits);
}
",
    },
    Function {
        name: "wrap_i8",
        calls: &[],
        text: "
fn wrap_i8(x: i32) -> i32 {
    return (x << 24u) >> 24u;
}
",
    },
    Function {
        name: "round_f16",
        calls: &[],
        text: "
fn round_f16(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let size = bits & 0x7fffffffu;
    // Ten bits stay; below the smallest normal number, multiples of 2^-24.
    let normal = (size + 0xfffu + ((size >> 13u) & 1u)) & 0xffffe000u;
    let small = bitcast<u32>(round(bitcast<f32>(size) * 0x1p24f) * 0x1p-24f);
    var rounded = select(normal, small, size < 0x38800000u);
    rounded = select(rounded, 0x7f800000u, rounded > 0x477fe000u);
    rounded = select(rounded, 0x7fc00000u, size > 0x7f800000u);
    return bitcast<f32>(rounded | (bits & 0x80000000u));
}
",
    },
    Function {
        name: "round_bf16",
        calls: &[],
        text: "
fn round_bf16(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let rounded = (bits + 0x7fffu + ((bits >> 16u) & 1u)) & 0xffff0000u;
    return bitcast<f32>(select(rounded, (bits & 0x80000000u) | 0x7fc00000u, (bits & 0x7fffffffu) > 0x7f800000u));
}
",
    },
    Function {
        name: "f16_of_bits",
        calls: &[],
        text: "
fn f16_of_bits(bits: u32) -> f32 {
    let size = bits & 0x7fffu;
    let normal = (size << 13u) + select(0x38000000u, 0x70000000u, size >= 0x7c00u);
    let small = bitcast<u32>(f32(size) * 0x1p-24f);
    return bitcast<f32>(select(normal, small, size < 0x400u) | ((bits & 0x8000u) << 16u));
}
",
    },
    Function {
        name: "bits_of_f16",
        calls: &[],
        text: "
fn bits_of_f16(x: f32) -> u32 {
    // Of a number that is rounded to 16 bits already.
    let bits = bitcast<u32>(x);
    let size = bits & 0x7fffffffu;
    var half = select((size - 0x38000000u) >> 13u, u32(bitcast<f32>(size & 0x3fffffffu) * 0x1p24f), size < 0x38800000u);
    half = select(half, 0x7c00u, size == 0x7f800000u);
    half = select(half, 0x7e00u, size > 0x7f800000u);
    return half | ((bits >> 16u) & 0x8000u);
}
",
    },
    Function {
        name: "odd_f32_of_u32",
        calls: &[],
        text: "
fn odd_f32_of_u32(x: u32) -> f32 {
    // Exact, or cut to 24 bits of which the last says that there was more.
    let cut = (x >> 8u) | u32((x & 0xffu) != 0u);
    return select(f32(x), f32(cut) * 256.0f, x >= 0x1000000u);
}
",
    },
    Function {
        name: "odd_f32_of_i32",
        calls: &["odd_f32_of_u32"],
        text: "
fn odd_f32_of_i32(x: i32) -> f32 {
    let size = odd_f32_of_u32(u32(abs(x)));
    return select(size, -size, x < 0i);
}
",
    },
    Function {
        name: "odd_f32_of_i64",
        calls: &[],
        text: "
fn odd_f32_of_i64(x: i64) -> f32 {
    // Exact, or cut to 24 bits of which the last says that there was more.
    let size = select(u64(x), ~u64(x) + 1lu, x < 0li);
    let cut = u32(size >> 40u) | u32((size & 0xfffffffffflu) != 0lu);
    let middle = u32(size >> 16u) | u32((size & 0xfffflu) != 0lu);
    let low = u32(size >> 8u) | u32((size & 0xfflu) != 0lu);
    let near = select(f32(low) * 0x1p8f, f32(u32(size)), size < 0x1000000lu);
    let far = select(f32(cut) * 0x1p40f, f32((middle >> 8u) | u32((middle & 0xffu) != 0u)) * 0x1p24f, size < 0x1000000000000lu);
    let found = select(far, near, size < 0x100000000lu);
    return select(found, -found, x < 0li);
}
",
    },
    Function {
        name: "odd_f32_of_f64",
        calls: &[],
        text: "
fn odd_f32_of_f64(x: f64) -> f32 {
    // Exact, or the neighbour whose last bit is set: rounding that again rounds once.
    let near = f32(x);
    let back = f64(near);
    let beyond = abs(back) > abs(x);
    let bits = bitcast<u32>(near);
    let odd = bitcast<f32>(select(bits, bits - 1u, beyond) | 1u);
    let size = bits & 0x7fffffffu;
    return select(odd, near, back == x || size > 0x7f800000u);
}
",
    },
    Function {
        name: "truth_f32",
        calls: &[],
        text: "
fn truth_f32(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) != 0u;
}
",
    },
    Function {
        name: "i32_of_f32",
        calls: &["is_nan_f32"],
        text: "
fn i32_of_f32(x: f32) -> i32 {
    let inside = i32(clamp(x, -0x1p31f, 0x1.fffffep30f));
    let whole = select(inside, 0x7fffffffi, x >= 0x1p31f);
    return select(whole, 0i, is_nan_f32(x));
}
",
    },
    Function {
        name: "u32_of_f32",
        calls: &["is_nan_f32"],
        text: "
fn u32_of_f32(x: f32) -> u32 {
    let inside = u32(clamp(x, 0.0f, 0x1.fffffep31f));
    let whole = select(inside, 0xffffffffu, x >= 0x1p32f);
    return select(whole, 0u, is_nan_f32(x));
}
",
    },
    Function {
        name: "i8_of_f32",
        calls: &["is_nan_f32"],
        text: "
fn i8_of_f32(x: f32) -> i32 {
    return select(i32(clamp(x, -128.0f, 127.0f)), 0i, is_nan_f32(x));
}
",
    },
    Function {
        name: "u8_of_f32",
        calls: &["is_nan_f32"],
        text: "
fn u8_of_f32(x: f32) -> u32 {
    return select(u32(clamp(x, 0.0f, 255.0f)), 0u, is_nan_f32(x));
}
",
    },
    Function {
        name: "i64_of_f32",
        calls: &["is_nan_f32"],
        text: "
fn i64_of_f32(x: f32) -> i64 {
    let inside = i64(clamp(x, -0x1p63f, 0x1.fffffep62f));
    let whole = select(inside, 0x7fffffffffffffffli, x >= 0x1p63f);
    return select(whole, 0li, is_nan_f32(x));
}
",
    },
    Function {
        name: "i32_of_f64",
        calls: &["is_nan_f64"],
        text: "
fn i32_of_f64(x: f64) -> i32 {
    return select(i32(clamp(x, -2147483648.0lf, 2147483647.0lf)), 0i, is_nan_f64(x));
}
",
    },
    Function {
        name: "u32_of_f64",
        calls: &["is_nan_f64"],
        text: "
fn u32_of_f64(x: f64) -> u32 {
    return select(u32(clamp(x, 0.0lf, 4294967295.0lf)), 0u, is_nan_f64(x));
}
",
    },
    Function {
        name: "i8_of_f64",
        calls: &["is_nan_f64"],
        text: "
fn i8_of_f64(x: f64) -> i32 {
    return select(i32(clamp(x, -128.0lf, 127.0lf)), 0i, is_nan_f64(x));
}
",
    },
    Function {
        name: "u8_of_f64",
        calls: &["is_nan_f64"],
        text: "
fn u8_of_f64(x: f64) -> u32 {
    return select(u32(clamp(x, 0.0lf, 255.0lf)), 0u, is_nan_f64(x));
}
",
    },
    Function {
        name: "i64_of_f64",
        calls: &["is_nan_f64"],
        text: "
fn i64_of_f64(x: f64) -> i64 {
    let inside = i64(clamp(x, -9223372036854775808.0lf, 9223372036854774784.0lf));
    let whole = select(inside, 0x7fffffffffffffffli, x >= 9223372036854775808.0lf);
    return select(whole, 0li, is_nan_f64(x));
}
",
    },
];
