//! What texts compute, without a GPU: compiled as C++ for this machine, a thread after the other, and compared with the table of ops.
//!
//! The few functions that are an instruction of the device each are written out for the host. Where no C++ compiler is found nothing is
//! computed, unless `KILN_REQUIRE` names `c++`.

use std::process::Command;

use super::ops::all_ops;
use super::*;
use crate::wgsl::tests::{Build, points};
use kiln_ir::cuda::CudaText;
use kiln_ir::kernel::{Access, Buffer, Operation};
use kiln_ir::{DType, Exactness, Literal, ScalarOp};

pub(super) const SHIM: &str = r#"
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(n)
#define __restrict__
struct Place { unsigned x; };
static Place blockIdx, threadIdx;
template <typename To, typename From> static To bits_as(From x) { To to; memcpy(&to, &x, sizeof to); return to; }
static float __uint_as_float(uint32_t x) { return bits_as<float>(x); }
static float __int_as_float(int x) { return bits_as<float>(x); }
static uint32_t __float_as_uint(float x) { return bits_as<uint32_t>(x); }
static int __float_as_int(float x) { return bits_as<int>(x); }
static long long __double_as_longlong(double x) { return bits_as<long long>(x); }
static double __longlong_as_double(long long x) { return bits_as<double>(x); }
static int min(int x, int y) { return x < y ? x : y; }
static int max(int x, int y) { return x > y ? x : y; }
static uint32_t min(uint32_t x, uint32_t y) { return x < y ? x : y; }
static uint32_t __umulhi(uint32_t x, uint32_t y) { return uint32_t(uint64_t(x) * y >> 32); }
template <typename F> static int to_i32(F x) { return x >= F(2147483648.0) ? 2147483647 : x <= F(-2147483648.0) ? -2147483647 - 1 : int(x); }
template <typename F> static uint32_t to_u32(F x) { return x >= F(4294967296.0) ? 4294967295u : x <= F(0) ? 0u : uint32_t(x); }
template <typename F> static long long to_i64(F x) { return x >= F(9223372036854775808.0) ? 9223372036854775807ll : x <= F(-9223372036854775808.0) ? -9223372036854775807ll - 1 : (long long)x; }
static int __float2int_rz(float x) { return to_i32(x); }
static uint32_t __float2uint_rz(float x) { return to_u32(x); }
static long long __float2ll_rz(float x) { return to_i64(x); }
static int __double2int_rz(double x) { return to_i32(x); }
static uint32_t __double2uint_rz(double x) { return to_u32(x); }
static long long __double2ll_rz(double x) { return to_i64(x); }
static float __double2float_rz(double x) { float r = float(x); return std::fabs(double(r)) > std::fabs(x) ? std::nextafterf(r, 0.0f) : r; }
static double __ll2double_rz(long long x) { double r = double(x); return r >= 9223372036854775808.0 || (r > 0 ? (long long)r > x : (long long)r < x) ? std::nextafter(r, 0.0) : r; }
static float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static double rsqrt(double x) { return 1.0 / sqrt(x); }
static uint16_t f16_bits(float x) { return bits_as<uint16_t>(_Float16(x)); }
static float f16_load(uint16_t x) { return float(bits_as<_Float16>(x)); }
static uint16_t bf16_bits(float x) { uint32_t u = __float_as_uint(x); return x != x ? 0x7fff : uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16); }
static uint32_t bf16_pair(float low, float high) { return bf16_bits(low) | uint32_t(bf16_bits(high)) << 16; }
static uint32_t f16_pair(float low, float high) { return f16_bits(low) | uint32_t(f16_bits(high)) << 16; }
static float max_f32(float x, float y) { return x != x || y != y ? NAN : x > y || (x == y && !std::signbit(x)) ? x : y; }
static float min_f32(float x, float y) { return x != x || y != y ? NAN : x < y || (x == y && std::signbit(x)) ? x : y; }
"#;

/// Compiles a program for this machine, and gives what it writes of an input. `None` without a compiler.
pub(super) fn executed(source: &str, input: &[u8], name: &str) -> Option<Vec<u8>> {
    let compiler =
        ["c++", "g++", "clang++"].into_iter().find(|name| Command::new(name).arg("--version").output().is_ok());
    let Some(compiler) = compiler else {
        assert!(!is_required("c++"), "a C++ compiler is required and not found");
        return None;
    };
    let folder = std::env::temp_dir().join(format!("kiln-host-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for what is compiled");
    let (file, program, given) = (folder.join("text.cpp"), folder.join("text"), folder.join("input"));
    std::fs::write(&file, source).expect("the text is written");
    std::fs::write(&given, input).expect("the input is written");
    let flags = ["-O1", "-std=c++17", "-ffp-contract=off", "-fno-strict-aliasing", "-w", "-o"];
    let output = Command::new(compiler).args(flags).arg(&program).arg(&file).output().expect("the compiler runs");
    assert!(output.status.success(), "{}\n{source}", String::from_utf8_lossy(&output.stderr));
    let given = std::fs::File::open(&given).expect("the input is there");
    let output = Command::new(&program).stdin(given).output().expect("the program runs");
    assert!(output.status.success(), "{name}: {} {}", output.status, String::from_utf8_lossy(&output.stderr));
    std::fs::remove_dir_all(&folder).expect("the folder is removed");
    Some(output.stdout)
}

/// A pointer to bytes that is taken for one to anything.
pub(super) const ANY: &str = "struct Any { unsigned char *p; template <typename T> operator T *() const { return reinterpret_cast<T *>(p); } };\n";

/// Runs a text over buffers, the read ones of which are given; what becomes of the others. `None` without a compiler.
fn run(text: &CudaText, buffers: &[Buffer], given: &[Vec<u8>], name: &str) -> Option<Vec<Vec<u8>>> {
    let own = |line: &&str| !line.starts_with("typedef") && !line.contains("asm(\"");
    let body: Vec<&str> = text.source.lines().filter(own).collect();
    let bytes = |buffer: &Buffer| buffer.len * buffer.dtype.size();
    let mut main = String::new();
    for (index, buffer) in buffers.iter().enumerate() {
        main.push_str(&format!("alignas(16) static unsigned char b{index}[{}];\n", bytes(buffer)));
    }
    main.push_str("int main() {\n");
    for (index, data) in given.iter().enumerate() {
        main.push_str(&format!("if (fread(b{index}, 1, {0}, stdin) != {0}) return 1;\n", data.len()));
    }
    let pointers: Vec<String> = (0..buffers.len()).map(|index| format!("Any{{b{index}}}")).collect();
    main.push_str(&format!(
        "for (blockIdx.x = 0; blockIdx.x < {}; blockIdx.x++) for (threadIdx.x = 0; threadIdx.x < {}; threadIdx.x++) {}({});\n",
        text.blocks[0],
        text.threads[0],
        text.entry,
        pointers.join(", ")
    ));
    for (index, buffer) in buffers.iter().enumerate().skip(given.len()) {
        main.push_str(&format!("fwrite(b{index}, 1, {}, stdout);\n", bytes(buffer)));
    }
    main.push_str("return 0; }\n");
    let source = format!("{SHIM}{ANY}{}\n{main}", body.join("\n"));
    let output = executed(&source, &given.concat(), name)?;
    let mut rest = &output[..];
    let results = buffers[given.len()..].iter().map(|buffer| {
        let (own, after) = rest.split_at(bytes(buffer));
        rest = after;
        own.to_vec()
    });
    Some(results.collect())
}

/// Numbers at which ops go wrong.
fn specials(dtype: DType) -> Vec<Literal> {
    if let (true, Some((low, high))) = (dtype.is_int(), dtype.int_range()) {
        let near = [low, low + 1, high, high - 1, 0, 1, 2, 3, 7, 8, 31, 33, 100, high / 3, -1, -2, -7, -128];
        return near.map(|value| Literal::from_i128(dtype, value)).to_vec();
    }
    if dtype == DType::Bool {
        return vec![Literal::zero(dtype), Literal::one(dtype)];
    }
    [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -2.5,
        3.7,
        -0.3,
        1e-3,
        300.0,
        -129.5,
        60000.0,
        3e9,
        -3e9,
        1e19,
        3.3e38,
        -3.3e38,
        1e-39,
        1.0 + 1.0 / 256.0,
        65519.0,
    ]
    .map(|value| Literal::from_f64(dtype, value))
    .to_vec()
}

pub(super) fn bytes(all: &[Literal]) -> Vec<u8> {
    all.iter()
        .flat_map(|value| {
            let (bytes, size) = value.to_le_bytes();
            bytes[..size].to_vec()
        })
        .collect()
}

pub(super) fn element(data: &[u8], dtype: DType, index: usize) -> Literal {
    let size = dtype.size();
    let mut bits = [0; 8];
    bits[..size].copy_from_slice(&data[index * size..(index + 1) * size]);
    Literal::from_bits(dtype, u64::from_le_bytes(bits))
}

/// Whether a result is right: to the bit where IEEE says so, else nearly.
fn agrees(found: Literal, wanted: Literal, exactness: Exactness) -> bool {
    let (x, y) = (found.to_f64(), wanted.to_f64());
    if found == wanted || (wanted.dtype().is_float() && x.is_nan() && y.is_nan()) {
        return true;
    }
    let (relative, least) = match wanted.dtype() {
        DType::F32 => (4e-6, 1e-37),
        DType::F64 => (1e-13, 1e-300),
        DType::BF16 => (1.0 / 128.0, 1e-37),
        DType::F16 => (1.0 / 1024.0, 1e-7),
        DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => return false,
    };
    exactness == Exactness::Approximate && (x - y).abs() <= relative * y.abs() + least
}

#[test]
fn every_op_computes_what_the_table_says() {
    for dtype in DType::ALL {
        let special = specials(dtype);
        let pairs: Vec<[Literal; 3]> = special
            .iter()
            .flat_map(|&x| special.iter().enumerate().map(move |(at, &y)| (x, y, at)))
            .map(|(x, y, at)| [x, y, special[(at + 3) % special.len()]])
            .collect();
        let len = pairs.len();
        let (kernel, results) = all_ops(dtype, len);
        let given: Vec<Vec<u8>> =
            (0..3).map(|place| bytes(&pairs.iter().map(|all| all[place]).collect::<Vec<_>>())).collect();
        let program = printed(&kernel, &Schedule::Loop(points(32, 1)));
        let text = program.texts().next().expect("a map is one text");
        let Some(found) = run(text, kernel.buffers(), &given, &format!("ops-{dtype}")) else { return };
        for ((op, result), data) in results.iter().zip(&found) {
            for (index, operands) in pairs.iter().enumerate() {
                let wanted = op.eval(&operands[..op.arity()]).expect("the op takes the dtype");
                let got = element(data, *result, index);
                // At the edge of overflow, `f64` and `float` may differ.
                let edge = *op == ScalarOp::Rem && operands[0].to_f64().abs() > 1e30;
                assert!(agrees(got, wanted, op.row().exactness) || edge, "{op} {operands:?}: {got:?}, not {wanted:?}");
            }
        }
    }
}

#[test]
fn every_cast_computes_what_literals_do() {
    for from in DType::ALL {
        let special = specials(from);
        let mut b = Build::new(&[special.len()], &[]);
        let x = b.buffer(from, special.len(), Access::Read);
        let value = b.load(x, &[1]);
        for to in DType::ALL {
            let cast = b.emit(to, Operation::Cast(value));
            let y = b.buffer(to, special.len(), Access::Write);
            b.store(y, &[1], cast);
        }
        b.point();
        let kernel = b.kernel();
        let program = printed(&kernel, &Schedule::Loop(points(32, 1)));
        let text = program.texts().next().expect("a map is one text");
        let Some(found) = run(text, kernel.buffers(), &[bytes(&special)], &format!("casts-{from}")) else { return };
        for (to, data) in DType::ALL.into_iter().zip(&found) {
            for (index, value) in special.iter().enumerate() {
                let (got, wanted) = (element(data, to, index), value.cast(to));
                assert!(agrees(got, wanted, Exactness::Exact), "{value:?} to {to}: {got:?}, not {wanted:?}");
            }
        }
    }
}

#[test]
fn random_words_are_those_of_philox() {
    let len = 64;
    let mut b = Build::new(&[len], &[]);
    let key = b.buffer(DType::U32, 2, Access::Read);
    let words = [0, 1].map(|word| {
        let address = kiln_ir::kernel::Address {
            affine: kiln_ir::kernel::Affine::constant(word),
            ..kiln_ir::kernel::Address::default()
        };
        b.emit(DType::U32, Operation::Load { buffer: key, address, bounds: Vec::new() })
    });
    let index = b.emit(DType::I64, Operation::Index(crate::wgsl::tests::affine(0, &[1])));
    let word = b.emit(DType::U32, Operation::Random { key: words, stream: 5, index });
    let y = b.buffer(DType::U32, len, Access::Write);
    b.store(y, &[1], word);
    b.point();
    let kernel = b.kernel();
    let program = printed(&kernel, &Schedule::Loop(points(32, 4)));
    let text = program.texts().next().expect("a map is one text");
    let given = [[7u32, 0xdead_beef].iter().flat_map(|word| word.to_le_bytes()).collect()];
    let Some(found) = run(text, kernel.buffers(), &given, "philox") else { return };
    for index in 0..len {
        let wanted = kiln_ir::philox::element([7, 0xdead_beef], 5, index as u64);
        assert_eq!(element(&found[0], DType::U32, index).to_i128(), i128::from(wanted), "{index}");
    }
}

#[test]
fn reductions_of_a_thread_give_what_they_should() {
    use crate::wgsl::tests::forms::reduction;
    use kiln_ir::ReduceKind;
    let (rows, columns) = (12, 300);
    for dtype in [DType::F32, DType::BF16, DType::I8, DType::U32, DType::I64, DType::F64] {
        // Small numbers with ties, whose sums are exact; the third row has a NaN where there are any.
        let number = |row: usize, column: usize| match (row, column) {
            (2, 77 | 200) if dtype.is_float() => Literal::from_f64(dtype, f64::NAN),
            _ => Literal::from_i128(dtype, ((row * 31 + column * 17) % 5) as i128),
        };
        let all: Vec<Vec<Literal>> =
            (0..rows).map(|row| (0..columns).map(|column| number(row, column)).collect()).collect();
        for kind in [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min, ReduceKind::ArgMax, ReduceKind::ArgMin] {
            let kernel = reduction(kind, dtype, rows, &[columns]);
            let program = printed(&kernel, &Schedule::Loop(points(32, 4)));
            let text = program.texts().next().expect("a reduction by points is one text");
            let name = format!("reduce-{dtype}-{kind:?}");
            let Some(found) = run(text, kernel.buffers(), &[bytes(&all.concat())], &name) else { return };
            for (row, numbers) in all.iter().enumerate() {
                let both = |op: ScalarOp| {
                    numbers[1..].iter().fold(numbers[0], |x, y| op.eval(&[x, *y]).expect("the op takes the dtype"))
                };
                let first = |most: Literal| {
                    let same = |x: &Literal| {
                        let (x, most) = (x.to_f64(), most.to_f64());
                        x == most || (x.is_nan() && most.is_nan())
                    };
                    let at = numbers.iter().position(same).expect("the extreme is one of them");
                    Literal::from_i128(DType::I32, at as i128)
                };
                let wanted = match kind {
                    // Sums are taken wide and rounded once.
                    ReduceKind::Sum if dtype.is_float() => {
                        Literal::from_f64(dtype, numbers.iter().map(|x| x.to_f64()).sum())
                    }
                    ReduceKind::Sum | ReduceKind::Prod => both(ScalarOp::Add),
                    ReduceKind::Max => both(ScalarOp::Max),
                    ReduceKind::Min => both(ScalarOp::Min),
                    ReduceKind::ArgMax => first(both(ScalarOp::Max)),
                    ReduceKind::ArgMin => first(both(ScalarOp::Min)),
                };
                let got = element(&found[0], wanted.dtype(), row);
                assert!(agrees(got, wanted, Exactness::Exact), "{kind:?} {dtype} {row}: {got:?}, not {wanted:?}");
            }
        }
    }
}
