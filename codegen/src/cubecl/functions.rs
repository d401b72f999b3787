//! Functions that texts call, in CUDA C++: what neither an operator nor a function of CUDA's own says exactly.
//!
//! Only those that are called stand in a text, each after those that it calls itself. Sixteen-bit floats are converted by one instruction each,
//! so that no text includes a header.

use std::collections::BTreeSet;

/// The functions that a text calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Functions {
    needed: BTreeSet<usize>,
}

impl Functions {
    /// A function by its name in the table; the name in the text.
    pub(super) fn need(&mut self, name: &str) -> Option<&'static str> {
        let index = TABLE.iter().position(|(known, _)| *known == name)?;
        self.add(index);
        Some(TABLE[index].0)
    }

    fn add(&mut self, index: usize) {
        if !self.needed.insert(index) {
            return;
        }
        let body = TABLE[index].1;
        for (other, (name, _)) in TABLE.iter().enumerate().filter(|(other, _)| *other != index) {
            if calls(body, name) {
                self.add(other);
            }
        }
    }

    /// Those of another text as well.
    pub(super) fn join(&mut self, other: &Functions) {
        self.needed.extend(&other.needed);
    }

    /// All of them, in the order of the table.
    pub(super) fn text(&self) -> String {
        self.needed.iter().map(|&index| format!("static __device__ __forceinline__ {}\n", TABLE[index].1)).collect()
    }
}

/// Whether a text calls a function of this very name.
fn calls(body: &str, name: &str) -> bool {
    body.match_indices(&format!("{name}("))
        .any(|(at, _)| !body[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
}

/// Names and texts, callees first.
const TABLE: &[(&str, &str)] = &[
    // 16-bit floats.
    (
        "f16_bits",
        r#"uint16_t f16_bits(float x) { uint16_t r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r; }"#,
    ),
    // Where bits are read as another type's, NaN is the one that the host writes; the conversion's own has all bits set.
    (
        "f16_bits_of_nan",
        "uint32_t f16_bits_of_nan(float x) { return x != x ? (__float_as_uint(x) >> 16 & 0x8000u) | 0x7e00u : f16_bits(x); }",
    ),
    ("f16_load", r#"float f16_load(uint16_t x) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x)); return r; }"#),
    (
        "bf16_bits",
        r#"uint16_t bf16_bits(float x) { uint16_t r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r; }"#,
    ),
    ("bf16_load", "float bf16_load(uint16_t x) { return __uint_as_float(uint32_t(x) << 16); }"),
    (
        "f16_pair",
        r#"uint32_t f16_pair(float low, float high) { uint32_t r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r; }"#,
    ),
    (
        "bf16_pair",
        r#"uint32_t bf16_pair(float low, float high) { uint32_t r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r; }"#,
    ),
    ("f16_round", "float f16_round(float x) { return f16_load(f16_bits(x)); }"),
    ("bf16_round", "float bf16_round(float x) { return bf16_load(bf16_bits(x)); }"),
    // On the way to fewer bits: what is not exact keeps a last bit that says so, so that the second rounding is right.
    (
        "odd_f32",
        "float odd_f32(double x) { float const r = __double2float_rz(x); return double(r) == x || x != x ? r : __uint_as_float(__float_as_uint(r) | 1u); }",
    ),
    (
        "odd_f64",
        "double odd_f64(long long x) { double const r = __ll2double_rz(x); return __double2ll_rz(r) == x ? r : __longlong_as_double(__double_as_longlong(r) | 1ll); }",
    ),
    // Floats to integers truncate and saturate; NaN is 0.
    ("i32_of_f32", "int i32_of_f32(float x) { return x != x ? 0 : __float2int_rz(x); }"),
    ("u32_of_f32", "uint32_t u32_of_f32(float x) { return x != x ? 0u : __float2uint_rz(x); }"),
    ("i64_of_f32", "long long i64_of_f32(float x) { return x != x ? 0ll : __float2ll_rz(x); }"),
    ("i8_of_f32", "int i8_of_f32(float x) { return min(max(i32_of_f32(x), -128), 127); }"),
    ("u8_of_f32", "uint32_t u8_of_f32(float x) { return min(u32_of_f32(x), 255u); }"),
    ("i32_of_f64", "int i32_of_f64(double x) { return x != x ? 0 : __double2int_rz(x); }"),
    ("u32_of_f64", "uint32_t u32_of_f64(double x) { return x != x ? 0u : __double2uint_rz(x); }"),
    ("i64_of_f64", "long long i64_of_f64(double x) { return x != x ? 0ll : __double2ll_rz(x); }"),
    ("i8_of_f64", "int i8_of_f64(double x) { return min(max(i32_of_f64(x), -128), 127); }"),
    ("u8_of_f64", "uint32_t u8_of_f64(double x) { return min(u32_of_f64(x), 255u); }"),
    // NaN wins, and +0 is above -0.
    (
        "max_f32",
        r#"float max_f32(float x, float y) { float r; asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y)); return r; }"#,
    ),
    (
        "min_f32",
        r#"float min_f32(float x, float y) { float r; asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y)); return r; }"#,
    ),
    (
        "max_f64",
        "double max_f64(double x, double y) { return x != x || (y == y && (x > y || (x == y && __double_as_longlong(x) >= 0))) ? x : y; }",
    ),
    (
        "min_f64",
        "double min_f64(double x, double y) { return x != x || (y == y && (x < y || (x == y && __double_as_longlong(x) < 0))) ? x : y; }",
    ),
    ("sign_f32", "float sign_f32(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x; }"),
    ("sign_f64", "double sign_f64(double x) { return x > 0.0 ? 1.0 : x < 0.0 ? -1.0 : x; }"),
    (
        "sigmoid_f32",
        "float sigmoid_f32(float x) { float const e = expf(-fabsf(x)); return (x >= 0.0f ? 1.0f : e) / (1.0f + e); }",
    ),
    (
        "sigmoid_f64",
        "double sigmoid_f64(double x) { double const e = exp(-fabs(x)); return (x >= 0.0 ? 1.0 : e) / (1.0 + e); }",
    ),
    // Division by 0 gives 0 and leaves the dividend; the smallest integer by -1 is itself.
    ("div_i32", "int div_i32(int x, int y) { return y == 0 ? 0 : y == -1 ? int(0u - uint32_t(x)) : x / y; }"),
    ("rem_i32", "int rem_i32(int x, int y) { return y == 0 ? x : y == -1 ? 0 : x % y; }"),
    ("div_u32", "uint32_t div_u32(uint32_t x, uint32_t y) { return y == 0u ? 0u : x / y; }"),
    ("rem_u32", "uint32_t rem_u32(uint32_t x, uint32_t y) { return y == 0u ? x : x % y; }"),
    (
        "div_i64",
        "long long div_i64(long long x, long long y) { return y == 0 ? 0ll : y == -1 ? (long long)(0ull - uint64_t(x)) : x / y; }",
    ),
    ("rem_i64", "long long rem_i64(long long x, long long y) { return y == 0 ? x : y == -1 ? 0ll : x % y; }"),
    // Keys of arg reductions: the largest wins. NaN is above all, zeros are equal.
    (
        "key_f32",
        "uint32_t key_f32(float x) { uint32_t const b = __float_as_uint(x + 0.0f); return b >> 31 ? ~b : b | 0x80000000u; }",
    ),
    ("key_max_f32", "uint32_t key_max_f32(float x) { return x != x ? 0xffffffffu : key_f32(x); }"),
    ("key_min_f32", "uint32_t key_min_f32(float x) { return x != x ? 0xffffffffu : ~key_f32(x); }"),
    (
        "key_f64",
        "uint64_t key_f64(double x) { uint64_t const b = uint64_t(__double_as_longlong(x + 0.0)); return b >> 63 ? ~b : b | 0x8000000000000000ull; }",
    ),
    ("key_max_f64", "uint64_t key_max_f64(double x) { return x != x ? 0xffffffffffffffffull : key_f64(x); }"),
    ("key_min_f64", "uint64_t key_min_f64(double x) { return x != x ? 0xffffffffffffffffull : ~key_f64(x); }"),
    (
        "philox",
        "uint32_t philox(uint32_t k0, uint32_t k1, uint32_t stream, uint64_t index) { uint64_t const c = index / 4; uint32_t w0 = uint32_t(c), w1 = uint32_t(c >> 32), w2 = 0u, w3 = stream;\n\
#pragma unroll\n\
for (int i = 0; i < 10; i++) { uint32_t const h0 = __umulhi(w0, 0xd2511f53u), l0 = w0 * 0xd2511f53u, h1 = __umulhi(w2, 0xcd9e8d57u), l1 = w2 * 0xcd9e8d57u; w0 = h1 ^ w1 ^ k0; w2 = h0 ^ w3 ^ k1; w1 = l1; w3 = l0; k0 += 0x9e3779b9u; k1 += 0xbb67ae85u; } uint32_t const i = uint32_t(index % 4); return i == 0u ? w0 : i == 1u ? w1 : i == 2u ? w2 : w3; }",
    ),
];
