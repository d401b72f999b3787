//! The loops over lanes: one per kernel and instruction set.
//!
//! A strip is cut into blocks of a fixed number of lanes. A last block that is not full is filled up and run through the
//! same code, so that a lane's bits depend neither on its place in the strip nor on the strip's length, and no scalar
//! remainder loop is compiled.

use super::isa::{Isa, Level};
#[cfg(target_arch = "x86_64")]
use super::lane::Fused;
use super::lane::{MulAdd, Native};

/// Lanes per block: enough independent vectors to fill the pipelines with even the longest chain of multiply-adds.
const LANES: usize = 64;
/// Fills up a last block: no kernel is slow or raises a flag there.
const FILLER: f32 = 1.0;
/// Lanes copied aside at a time when a strip is overwritten in place: 2 KiB of stack.
const COPIED: usize = 8 * LANES;

type Block = [f32; LANES];

/// A function of one lane, written once for all instruction sets.
pub(super) trait Unary {
    /// Lanes of a larger finite magnitude are given to `beyond`.
    const LIMIT: f32 = f32::INFINITY;
    /// The function; without branches and always inlined, so that a loop over it becomes vector code.
    fn lane<M: MulAdd>(x: f32) -> f32;
    /// The function beyond `LIMIT`, lane by lane and the same on all instruction sets.
    fn beyond(x: f32) -> f32 {
        Self::lane::<Native>(x)
    }
}

/// A function of two lanes, written once for all instruction sets.
pub(super) trait Binary {
    /// The function; without branches and always inlined.
    fn lane<M: MulAdd>(left: f32, right: f32) -> f32;
}

/// A block of lanes through one kernel, compiled for one instruction set: to be called only where the machine has it.
type UnaryBlock = unsafe fn(&Block, &mut Block);
/// The same for two operands.
type BinaryBlock = unsafe fn(&Block, &Block, &mut Block);

/// `output[i] = K(input[i])`. Panics where the lengths differ.
pub(super) fn unary<K: Unary>(isa: Isa, input: &[f32], output: &mut [f32]) {
    let block: UnaryBlock = match isa.0 {
        Level::Baseline => unary_block::<K, Native>,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unary_avx2::<K>,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unary_avx512::<K>,
    };
    // SAFETY: the block is compiled for the level of `isa`, and an `Isa` is only made where the machine has its level.
    unsafe { unary_strip(block, input, output) }
}

/// `output[i] = K(left[i], right[i])`. Panics where the lengths differ.
pub(super) fn binary<K: Binary>(isa: Isa, left: &[f32], right: &[f32], output: &mut [f32]) {
    let block: BinaryBlock = match isa.0 {
        Level::Baseline => binary_block::<K, Native>,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => binary_avx2::<K>,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => binary_avx512::<K>,
    };
    // SAFETY: the block is compiled for the level of `isa`, and an `Isa` is only made where the machine has its level.
    unsafe { binary_strip(block, left, right, output) }
}

/// Runs `apply(start, copy, values)` over parts of `values`, with `copy` holding what the part from `start` on held.
pub(super) fn in_place(values: &mut [f32], mut apply: impl FnMut(usize, &[f32], &mut [f32])) {
    let mut copy = [0.0; COPIED];
    for (index, part) in values.chunks_mut(COPIED).enumerate() {
        let copy = &mut copy[..part.len()];
        copy.copy_from_slice(part);
        apply(index * COPIED, copy, part);
    }
}

/// # Safety
///
/// The machine has the instructions that `block` is compiled for.
unsafe fn unary_strip(block: UnaryBlock, input: &[f32], output: &mut [f32]) {
    assert_eq!(input.len(), output.len(), "a strip's operand and result have the same lanes");
    let (inputs, input_rest) = input.as_chunks();
    let (outputs, output_rest) = output.as_chunks_mut();
    for (x, y) in inputs.iter().zip(outputs) {
        // SAFETY: as the caller promises.
        unsafe { block(x, y) };
    }
    if !input_rest.is_empty() {
        let mut last = [0.0; LANES];
        // SAFETY: as the caller promises.
        unsafe { block(&fill(input_rest), &mut last) };
        output_rest.copy_from_slice(&last[..output_rest.len()]);
    }
}

/// # Safety
///
/// The machine has the instructions that `block` is compiled for.
unsafe fn binary_strip(block: BinaryBlock, left: &[f32], right: &[f32], output: &mut [f32]) {
    assert_eq!(left.len(), output.len(), "a strip's left operand and result have the same lanes");
    assert_eq!(right.len(), output.len(), "a strip's right operand and result have the same lanes");
    let (lefts, left_rest) = left.as_chunks();
    let (rights, right_rest) = right.as_chunks();
    let (outputs, output_rest) = output.as_chunks_mut();
    for ((x, y), z) in lefts.iter().zip(rights).zip(outputs) {
        // SAFETY: as the caller promises.
        unsafe { block(x, y, z) };
    }
    if !left_rest.is_empty() {
        let mut last = [0.0; LANES];
        // SAFETY: as the caller promises.
        unsafe { block(&fill(left_rest), &fill(right_rest), &mut last) };
        output_rest.copy_from_slice(&last[..output_rest.len()]);
    }
}

fn fill(rest: &[f32]) -> Block {
    let mut block = [FILLER; LANES];
    block[..rest.len()].copy_from_slice(rest);
    block
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn unary_avx2<K: Unary>(input: &Block, output: &mut Block) {
    unary_block::<K, Fused>(input, output);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,fma")]
fn unary_avx512<K: Unary>(input: &Block, output: &mut Block) {
    unary_block::<K, Fused>(input, output);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn binary_avx2<K: Binary>(left: &Block, right: &Block, output: &mut Block) {
    binary_block::<K, Fused>(left, right, output);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,fma")]
fn binary_avx512<K: Binary>(left: &Block, right: &Block, output: &mut Block) {
    binary_block::<K, Fused>(left, right, output);
}

#[inline(always)]
fn unary_block<K: Unary, M: MulAdd>(input: &Block, output: &mut Block) {
    for (y, x) in output.iter_mut().zip(input) {
        *y = K::lane::<M>(*x);
    }
    if K::LIMIT < f32::INFINITY && input.iter().fold(false, |any, x| any | is_beyond::<K>(*x)) {
        unary_beyond::<K>(input, output);
    }
}

#[inline(always)]
fn is_beyond<K: Unary>(x: f32) -> bool {
    (x.abs() > K::LIMIT) & (x.abs() < f32::INFINITY)
}

#[cold]
#[inline(never)]
fn unary_beyond<K: Unary>(input: &Block, output: &mut Block) {
    for (y, x) in output.iter_mut().zip(input).filter(|(_, x)| is_beyond::<K>(**x)) {
        *y = K::beyond(*x);
    }
}

#[inline(always)]
fn binary_block<K: Binary, M: MulAdd>(left: &Block, right: &Block, output: &mut Block) {
    for ((z, x), y) in output.iter_mut().zip(left).zip(right) {
        *z = K::lane::<M>(*x, *y);
    }
}
