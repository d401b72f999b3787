//! Lanes made from the point alone: indices and random draws.

use kiln_ir::{DType, philox};

use super::half_floats::{round_bf16, round_f16, round_to_odd};
use super::{BLOCK, Shape, uncounted, versions};
use crate::cpu::vmath::Isa;

/// Writes `first + row * shape.row_stride + column * shape.column_stride` to every lane of a shape.
///
/// Safety: the result has that many lanes.
pub(in crate::cpu) type IndexLoop = unsafe fn(Shape, i64, *mut u8);

/// An index as a number of a dtype, in its representation.
trait FromIndex {
    type Out: Copy;
    fn from_index(index: i64) -> Self::Out;
}

macro_rules! from_index {
    ($($name:ident -> $out:ty = |$index:ident| $value:expr;)*) => {$(
        struct $name;
        impl FromIndex for $name {
            type Out = $out;
            #[inline(always)]
            fn from_index($index: i64) -> $out { $value }
        }
    )*};
}

from_index! {
    F32 -> f32 = |index| index as f32;
    F16 -> f32 = |index| round_f16(round_to_odd(index as f64));
    BF16 -> f32 = |index| round_bf16(round_to_odd(index as f64));
    F64 -> f64 = |index| index as f64;
    I8 -> i8 = |index| index as i8;
    U8 -> u8 = |index| index as u8;
    I32 -> i32 = |index| index as i32;
    U32 -> u32 = |index| index as u32;
    I64 -> i64 = |index| index;
    Bool -> u8 = |index| u8::from(index != 0);
}

versions! {
    fn index_version<T: FromIndex>(shape: Shape, first: i64, result: *mut u8) = index_lanes as IndexLoop;
}

#[inline(always)]
unsafe fn index_lanes<T: FromIndex>(shape: Shape, first: i64, result: *mut u8) {
    for row in 0..shape.rows {
        let first = first + row as i64 * shape.row_stride as i64;
        // SAFETY: the caller vouches for all lanes of the shape.
        let lanes =
            unsafe { std::slice::from_raw_parts_mut(result.cast::<T::Out>().add(row * shape.columns), shape.columns) };
        for (column, lane) in lanes.iter_mut().enumerate() {
            *lane = T::from_index(first + column as i64 * shape.column_stride as i64);
        }
    }
}

/// The loop that makes indices as numbers of a dtype.
pub(in crate::cpu) fn index_loop(dtype: DType, isa: Isa) -> IndexLoop {
    match dtype {
        DType::F32 => index_version::<F32>(isa),
        DType::F16 => index_version::<F16>(isa),
        DType::BF16 => index_version::<BF16>(isa),
        DType::F64 => index_version::<F64>(isa),
        DType::I8 => index_version::<I8>(isa),
        DType::U8 => index_version::<U8>(isa),
        DType::I32 => index_version::<I32>(isa),
        DType::U32 => index_version::<U32>(isa),
        DType::I64 => index_version::<I64>(isa),
        DType::Bool => index_version::<Bool>(isa),
    }
}

/// Random words: as a lane loop, with the stream besides. Operands: two key words and the index.
///
/// Safety: as for a lane loop.
pub(in crate::cpu) type RandomLoop = unsafe fn(usize, [*const u8; 3], [usize; 3], *mut u8, u32);

trait Draw {}

struct Philox;

impl Draw for Philox {}

versions! {
    fn random_version<K: Draw>(blocks: usize, operands: [*const u8; 3], steps: [usize; 3], result: *mut u8, stream: u32) = random_lanes as RandomLoop;
}

#[inline(always)]
unsafe fn random_lanes<K: Draw>(
    blocks: usize,
    operands: [*const u8; 3],
    steps: [usize; 3],
    result: *mut u8,
    stream: u32,
) {
    let lanes = uncounted(BLOCK);
    for block in 0..blocks {
        // SAFETY: the caller vouches for this many blocks.
        let (low, high, index, result) = unsafe {
            (
                &*operands[0].add(block * steps[0]).cast::<[u32; BLOCK]>(),
                &*operands[1].add(block * steps[1]).cast::<[u32; BLOCK]>(),
                &*operands[2].add(block * steps[2]).cast::<[i64; BLOCK]>(),
                &mut *result.cast::<[u32; BLOCK]>().add(block),
            )
        };
        for lane in 0..lanes.min(BLOCK) {
            result[lane] = philox::element([low[lane], high[lane]], stream, index[lane] as u64);
        }
    }
}

/// The loop of random draws.
pub(in crate::cpu) fn random_loop(isa: Isa) -> RandomLoop {
    random_version::<Philox>(isa)
}
