//! Integers in the order of floats, for the largest and the smallest of them: NaN stands at the end that is looked for, -0 below +0.
//!
//! Keys of arg reductions: integers in the order of the values. The key of NaN is above all, zeros have one key; for the smallest, the order is
//! reversed.

use super::Function;

pub(super) const TABLE: &[Function] = &[
    Function {
        name: "order_max_f32",
        calls: &[],
        text: "
fn order_max_f32(x: f32) -> i32 {
    let bits = bitcast<i32>(x);
    let size = bits & 0x7fffffffi;
    return select(bits ^ ((bits >> 31u) & 0x7fffffffi), size, size > 0x7f800000i);
}
",
    },
    Function {
        name: "order_min_f32",
        calls: &[],
        text: "
fn order_min_f32(x: f32) -> i32 {
    let bits = bitcast<i32>(x);
    let size = bits & 0x7fffffffi;
    return select(bits ^ ((bits >> 31u) & 0x7fffffffi), ~size, size > 0x7f800000i);
}
",
    },
    Function {
        name: "float_of_order",
        calls: &[],
        text: "
fn float_of_order(order: i32) -> f32 {
    return bitcast<f32>(order ^ ((order >> 31u) & 0x7fffffffi));
}
",
    },
    Function {
        name: "key_max_f32",
        calls: &[],
        text: "
fn key_max_f32(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let size = bits & 0x7fffffffu;
    let order = select(bits | 0x80000000u, ~bits, bits > 0x80000000u);
    return select(order, 0xffffffffu, size > 0x7f800000u);
}
",
    },
    Function {
        name: "key_min_f32",
        calls: &[],
        text: "
fn key_min_f32(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let size = bits & 0x7fffffffu;
    let order = select(bits | 0x80000000u, ~bits, bits > 0x80000000u);
    return select(~order, 0xffffffffu, size > 0x7f800000u);
}
",
    },
    Function {
        name: "key_max_i32",
        calls: &[],
        text: "
fn key_max_i32(x: i32) -> u32 {
    return bitcast<u32>(x) ^ 0x80000000u;
}
",
    },
    Function {
        name: "key_min_i32",
        calls: &[],
        text: "
fn key_min_i32(x: i32) -> u32 {
    return bitcast<u32>(x) ^ 0x7fffffffu;
}
",
    },
    Function {
        name: "key_max_u32",
        calls: &[],
        text: "
fn key_max_u32(x: u32) -> u32 {
    return x;
}
",
    },
    Function {
        name: "key_min_u32",
        calls: &[],
        text: "
fn key_min_u32(x: u32) -> u32 {
    return ~x;
}
",
    },
    Function {
        name: "key_max_bool",
        calls: &[],
        text: "
fn key_max_bool(x: bool) -> u32 {
    return u32(x);
}
",
    },
    Function {
        name: "key_min_bool",
        calls: &[],
        text: "
fn key_min_bool(x: bool) -> u32 {
    return u32(!x);
}
",
    },
    Function {
        name: "key_max_i64",
        calls: &[],
        text: "
fn key_max_i64(x: i64) -> i64 {
    return x;
}
",
    },
    Function {
        name: "key_min_i64",
        calls: &[],
        text: "
fn key_min_i64(x: i64) -> i64 {
    return ~x;
}
",
    },
    Function {
        name: "key_max_f64",
        calls: &["is_nan_f64"],
        text: "
fn key_max_f64(x: f64) -> i64 {
    let bits = bitcast<i64>(x);
    let order = select(bits, -(bits & 0x7fffffffffffffffli), bits < 0li);
    return select(order, 0x7fffffffffffffffli, is_nan_f64(x));
}
",
    },
    Function {
        name: "key_min_f64",
        calls: &["is_nan_f64"],
        text: "
fn key_min_f64(x: f64) -> i64 {
    let bits = bitcast<i64>(x);
    let order = select(bits, -(bits & 0x7fffffffffffffffli), bits < 0li);
    return select(-order, 0x7fffffffffffffffli, is_nan_f64(x));
}
",
    },
];
