//! What the kernels are made of: multiply-add, selects and the splitting of floats into exponent and fraction.
//!
//! Everything here acts on one lane, has no branch and no table, and is always inlined, so that a loop over lanes
//! becomes vector code of whatever instruction set the loop is compiled for.

/// How a kernel multiplies and adds.
///
/// Instruction sets with a fused instruction use it; the others round the product, for a fused multiply-add in software
/// costs a hundred times as much. Kernels keep their bound either way.
pub(super) trait MulAdd {
    /// Whether the product stays unrounded.
    const FUSED: bool;
    /// `a * b + c`.
    fn single(a: f32, b: f32, c: f32) -> f32;
    /// `a * b + c`.
    fn double(a: f64, b: f64, c: f64) -> f64;
}

/// What every machine of the target can do.
#[cfg(target_arch = "aarch64")]
pub(super) type Native = Fused;
/// What every machine of the target can do.
#[cfg(not(target_arch = "aarch64"))]
pub(super) type Native = Unfused;

/// One rounding: AVX2 with FMA, AVX-512, NEON.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) struct Fused;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl MulAdd for Fused {
    const FUSED: bool = true;
    #[inline(always)]
    fn single(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    #[inline(always)]
    fn double(a: f64, b: f64, c: f64) -> f64 {
        a.mul_add(b, c)
    }
}

/// Two roundings: SSE2 and any target without a fused instruction.
#[cfg(not(target_arch = "aarch64"))]
pub(super) struct Unfused;

#[cfg(not(target_arch = "aarch64"))]
impl MulAdd for Unfused {
    const FUSED: bool = false;
    #[inline(always)]
    fn single(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
    #[inline(always)]
    fn double(a: f64, b: f64, c: f64) -> f64 {
        a * b + c
    }
}

/// `yes` where `condition` holds, else `no`, without a branch: both sides are already computed.
#[inline(always)]
pub(super) fn select<T>(condition: bool, yes: T, no: T) -> T {
    std::hint::select_unpredictable(condition, yes, no)
}

/// `x` kept within `[low, high]`; a NaN stays.
#[inline(always)]
pub(super) fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = select(x < low, low, x);
    select(x > high, high, x)
}

/// As [`clamp`], in f64.
#[inline(always)]
pub(super) fn clamp_double(x: f64, low: f64, high: f64) -> f64 {
    let x = select(x < low, low, x);
    select(x > high, high, x)
}

/// The polynomial with the coefficients `c`, lowest power first, at `x`; `N >= 1`.
#[inline(always)]
pub(super) fn polynomial<M: MulAdd, const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut sum = c[N - 1];
    for i in (0..N - 1).rev() {
        sum = M::single(sum, x, c[i]);
    }
    sum
}

/// As [`polynomial`], in f64; `N >= 3`.
///
/// Even and odd powers are two chains, which halves the latency for one more product: the f64 kernels are long, and a
/// processor looks ahead over two or three of their vectors only, too few to hide a single chain.
#[inline(always)]
pub(super) fn polynomial_double<M: MulAdd, const N: usize>(x: f64, c: [f64; N]) -> f64 {
    let square = x * x;
    let (mut last, mut other) = (c[N - 1], c[N - 2]);
    for i in (0..N - 2).rev() {
        (last, other) = (other, M::double(last, square, c[i]));
    }
    // `last` now has the odd powers, less one x, and `other` the even ones.
    M::double(last, x, other)
}

/// Adding 1.5 * 2^23 leaves a small f32 rounded to an integer in the low bits of the sum.
pub(in crate::cpu) const ROUND: f32 = 12_582_912.0;
/// Adding 1.5 * 2^52 does the same for an f64.
const ROUND_DOUBLE: f64 = 6_755_399_441_055_744.0;

/// `x` rounded to an integer, as a float and as an integer; right for `|x| < 2^22`.
#[inline(always)]
pub(super) fn round(x: f32) -> (f32, i32) {
    let shifted = x + ROUND;
    (shifted - ROUND, (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32))
}

/// `x` rounded to an integer, as a float and as its low 51 bits in two's complement, what lies above being unspecified;
/// right for `|x| < 2^51`.
#[inline(always)]
pub(super) fn round_double(x: f64) -> (f64, u64) {
    let shifted = x + ROUND_DOUBLE;
    (shifted - ROUND_DOUBLE, shifted.to_bits())
}

/// `x * 2^k` for `|k| <= 250`, rounded once where the result is subnormal, infinite where it overflows.
///
/// Two factors, because 2^128 and 2^-150 are no f32.
#[inline(always)]
pub(super) fn scale(x: f32, k: i32) -> f32 {
    let half = k >> 1;
    x * power_of_two(half) * power_of_two(k.wrapping_sub(half))
}

/// 2^k for `-126 <= k <= 127`.
#[inline(always)]
pub(super) fn power_of_two(k: i32) -> f32 {
    f32::from_bits((k.wrapping_add(127) as u32) << 23)
}

/// 2^k for an integer from [`round_double`] with `|k| <= 1022`.
#[inline(always)]
pub(super) fn power_of_two_double(k: u64) -> f64 {
    f64::from_bits(k.wrapping_add(1023) << 52)
}

/// A positive normal `x` as `(m, e)` with `x = m * 2^e` and `m` in `[sqrt(1/2), sqrt(2))`.
#[inline(always)]
pub(super) fn split(x: f32) -> (f32, f32) {
    // Bits of sqrt(1/2): taking them off moves the step of the exponent from 1 to sqrt(1/2).
    const LOW: u32 = 0x3f35_04f3;
    let e = (x.to_bits().wrapping_sub(LOW) as i32) >> 23;
    let m = f32::from_bits(x.to_bits().wrapping_sub((e as u32) << 23));
    (m, e as f32)
}

/// As [`split`], in f64.
#[inline(always)]
pub(super) fn split_double(x: f64) -> (f64, f64) {
    const LOW: u64 = 0x3fe6_a09e_667f_3bcd;
    const ONE: u64 = 0x3ff0_0000_0000_0000;
    const TWO_52: f64 = 4_503_599_627_370_496.0;
    let biased = x.to_bits().wrapping_add(ONE - LOW) >> 52;
    let m = f64::from_bits(x.to_bits().wrapping_sub(biased.wrapping_sub(1023) << 52));
    // AVX2 has no conversion from 64-bit integers: the integer becomes the fraction of a float near 2^52 instead.
    let e = f64::from_bits(biased | TWO_52.to_bits()) - (TWO_52 + 1023.0);
    (m, e)
}

/// `magnitude` rounded to f32, with the sign of `x`.
#[inline(always)]
pub(super) fn with_sign_of(magnitude: f64, x: f32) -> f32 {
    (magnitude as f32).copysign(x)
}
