//! The loops over lanes: one per kernel and instruction set.
//!
//! A strip is cut into blocks of a fixed number of lanes. A last block that is not full is filled up and run through the
//! same code, so that a lane's bits depend neither on its place in the strip nor on the strip's length, and no scalar
//! remainder loop is compiled.

use super::isa::{Isa, Level};
use super::lane::{Fused, MulAdd, Unfused};

/// Lanes per block: enough independent vectors to fill the pipelines with even the longest chain of multiply-adds.
const LANES: usize = 64;
/// Fills up a last block: no kernel is slow or raises a flag there.
const FILLER: f32 = 1.0;
/// Lanes copied aside at a time when a strip is overwritten in place: 2 KiB of stack.
const COPIED: usize = 8 * LANES;

type Block = [f32; LANES];

#[cfg(target_arch = "aarch64")]
type Native = Fused;
#[cfg(not(target_arch = "aarch64"))]
type Native = Unfused;

/// A function of one lane, written once for all instruction sets.
pub(super) trait Unary {
    /// Lanes of a larger finite magnitude are given to `beyond`.
    const LIMIT: f32 = f32::INFINITY;
    /// The function; without branches and always inlined, so that a loop over it becomes vector code.
    fn lane<M: MulAdd>(x: f32) -> f32;
    /// The function beyond `LIMIT`, lane by lane.
    fn beyond<M: MulAdd>(x: f32) -> f32 {
        Self::lane::<M>(x)
    }
}

/// A function of two lanes, written once for all instruction sets.
pub(super) trait Binary {
    /// The function; without branches and always inlined.
    fn lane<M: MulAdd>(left: f32, right: f32) -> f32;
}

/// `output[i] = K(input[i])`. Panics where the lengths differ.
pub(super) fn unary<K: Unary>(isa: Isa, input: &[f32], output: &mut [f32]) {
    assert_eq!(input.len(), output.len(), "a strip's operand and result have the same lanes");
    match isa.0 {
        Level::Baseline => unary_strip::<K, Native>(input, output),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this level is only made where the machine has AVX2 and FMA.
        Level::Avx2 => unsafe { unary_avx2::<K>(input, output) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this level is only made where the machine has these parts of AVX-512.
        Level::Avx512 => unsafe { unary_avx512::<K>(input, output) },
    }
}

/// `output[i] = K(left[i], right[i])`. Panics where the lengths differ.
pub(super) fn binary<K: Binary>(isa: Isa, left: &[f32], right: &[f32], output: &mut [f32]) {
    assert_eq!(left.len(), output.len(), "a strip's left operand and result have the same lanes");
    assert_eq!(right.len(), output.len(), "a strip's right operand and result have the same lanes");
    match isa.0 {
        Level::Baseline => binary_strip::<K, Native>(left, right, output),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this level is only made where the machine has AVX2 and FMA.
        Level::Avx2 => unsafe { binary_avx2::<K>(left, right, output) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this level is only made where the machine has these parts of AVX-512.
        Level::Avx512 => unsafe { binary_avx512::<K>(left, right, output) },
    }
}

/// Runs `apply(copy, values)` over parts of `values`, with `copy` holding what the part held.
pub(super) fn in_place(values: &mut [f32], mut apply: impl FnMut(usize, &[f32], &mut [f32])) {
    let mut copy = [0.0; COPIED];
    for (index, part) in values.chunks_mut(COPIED).enumerate() {
        let copy = &mut copy[..part.len()];
        copy.copy_from_slice(part);
        apply(index * COPIED, copy, part);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn unary_avx2<K: Unary>(input: &[f32], output: &mut [f32]) {
    unary_strip::<K, Fused>(input, output);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,fma")]
fn unary_avx512<K: Unary>(input: &[f32], output: &mut [f32]) {
    unary_strip::<K, Fused>(input, output);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn binary_avx2<K: Binary>(left: &[f32], right: &[f32], output: &mut [f32]) {
    binary_strip::<K, Fused>(left, right, output);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,fma")]
fn binary_avx512<K: Binary>(left: &[f32], right: &[f32], output: &mut [f32]) {
    binary_strip::<K, Fused>(left, right, output);
}

#[inline(always)]
fn unary_strip<K: Unary, M: MulAdd>(input: &[f32], output: &mut [f32]) {
    let (inputs, input_rest) = input.as_chunks::<LANES>();
    let (outputs, output_rest) = output.as_chunks_mut::<LANES>();
    let (filled, mut last) = (fill(input_rest), [0.0; LANES]);
    // One loop over the full blocks and the filled one: a kernel's code exists once per instruction set.
    let mut full = inputs.iter().zip(outputs);
    for _ in 0..input.len().div_ceil(LANES) {
        let (x, y) = full.next().unwrap_or((&filled, &mut last));
        unary_block::<K, M>(x, y);
    }
    output_rest.copy_from_slice(&last[..output_rest.len()]);
}

#[inline(always)]
fn unary_block<K: Unary, M: MulAdd>(input: &Block, output: &mut Block) {
    for (y, x) in output.iter_mut().zip(input) {
        *y = K::lane::<M>(*x);
    }
    if K::LIMIT < f32::INFINITY && input.iter().fold(false, |any, x| any | is_beyond::<K>(*x)) {
        unary_beyond::<K, M>(input, output);
    }
}

#[inline(always)]
fn is_beyond<K: Unary>(x: f32) -> bool {
    (x.abs() > K::LIMIT) & (x.abs() < f32::INFINITY)
}

#[cold]
#[inline(never)]
fn unary_beyond<K: Unary, M: MulAdd>(input: &Block, output: &mut Block) {
    for (y, x) in output.iter_mut().zip(input).filter(|(_, x)| is_beyond::<K>(**x)) {
        *y = K::beyond::<M>(*x);
    }
}

#[inline(always)]
fn binary_strip<K: Binary, M: MulAdd>(left: &[f32], right: &[f32], output: &mut [f32]) {
    let (lefts, left_rest) = left.as_chunks::<LANES>();
    let (rights, right_rest) = right.as_chunks::<LANES>();
    let (outputs, output_rest) = output.as_chunks_mut::<LANES>();
    let (filled_left, filled_right, mut last) = (fill(left_rest), fill(right_rest), [0.0; LANES]);
    let mut full = lefts.iter().zip(rights).zip(outputs);
    for _ in 0..left.len().div_ceil(LANES) {
        let ((x, y), z) = full.next().unwrap_or(((&filled_left, &filled_right), &mut last));
        binary_block::<K, M>(x, y, z);
    }
    output_rest.copy_from_slice(&last[..output_rest.len()]);
}

#[inline(always)]
fn binary_block<K: Binary, M: MulAdd>(left: &Block, right: &Block, output: &mut Block) {
    for ((z, x), y) in output.iter_mut().zip(left).zip(right) {
        *z = K::lane::<M>(*x, *y);
    }
}

fn fill(rest: &[f32]) -> Block {
    let mut block = [FILLER; LANES];
    block[..rest.len()].copy_from_slice(rest);
    block
}
