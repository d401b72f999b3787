//! Loops over the lanes of a strip: one small monomorphic loop per operation, element type and instruction set.
//!
//! A strip is an array of lanes in scratch memory that stays in the first-level cache. Loops run over whole blocks of [`BLOCK`] lanes, so
//! no remainder loop is compiled: strips are padded, and lanes past the end hold numbers nobody reads. An operand that is the same in
//! every lane is one block that is read again and again (its step from block to block is 0).
//!
//! - `scalar.rs`: the elementwise ops; `pair.rs`: two of them at once; `convert.rs`: casts and bitcasts; `half_floats.rs`: the 16-bit floats' bits
//! - `memory.rs`: from memory into lanes and back; `update.rs`: single elements; `fold.rs`: reductions, whole and running, `row.rs`: a whole row; `index.rs`: lanes made from the point alone

mod convert;
mod fold;
pub(super) mod half_floats;
mod index;
mod memory;
mod pair;
mod row;
mod scalar;
mod update;

use kiln_ir::DType;

use super::vmath::{BinaryMath, UnaryMath};

pub(super) use convert::{Conversion, bitcast, cast};
pub(super) use fold::{FoldLoops, LanesLoop, fold_loops, row_parts};
pub(super) use index::{IndexLoop, RandomLoop, index_loop, random_loop};
pub(super) use memory::{Mover, Shape, fill, mover, set};
pub(super) use pair::{Arithmetic, Stands, pair};
pub(super) use row::{LAST, joined_sums};
pub(super) use scalar::{fma, rounds, scalar, select};
pub(super) use update::{Place, UpdateLoop, update_loop};

/// Lanes per block. With fewer, the compiler unrolls a block's loop before it gets to make vector code of it.
pub(super) const BLOCK: usize = 64;

/// How a register's lanes are held. The 16-bit floats live as `f32` that are rounded after every instruction, bools as 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repr {
    F32,
    F64,
    I8,
    U8,
    I32,
    U32,
    I64,
}

impl Repr {
    pub(super) const fn of(dtype: DType) -> Repr {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 => Repr::F32,
            DType::F64 => Repr::F64,
            DType::I8 => Repr::I8,
            DType::U8 | DType::Bool => Repr::U8,
            DType::I32 => Repr::I32,
            DType::U32 => Repr::U32,
            DType::I64 => Repr::I64,
        }
    }

    /// Bytes per lane.
    pub(super) const fn size(self) -> usize {
        match self {
            Repr::I8 | Repr::U8 => 1,
            Repr::F32 | Repr::I32 | Repr::U32 => 4,
            Repr::F64 | Repr::I64 => 8,
        }
    }
}

/// A loop over lanes: number of blocks, operands, each operand's bytes from block to block (0 where all lanes are alike), result.
///
/// Safety: every operand has that many blocks (one where its step is 0), the result too and apart from the operands.
pub(super) type LaneLoop = unsafe fn(usize, [*const u8; 3], [usize; 3], *mut u8);

/// What an elementwise instruction runs.
#[derive(Clone, Copy)]
pub(super) enum Work {
    /// A loop compiled here.
    Lanes(LaneLoop),
    /// A function of vector mathematics, on `f32` lanes.
    Unary32(UnaryMath),
    /// The same of two operands.
    Binary32(BinaryMath),
    /// On `f64` lanes.
    Unary64(UnaryMath),
    /// The same of two operands.
    Binary64(BinaryMath),
}

/// A function of one lane, written once for all instruction sets. Operands that it does not have are `()`.
pub(super) trait Lane {
    type A: Copy;
    type B: Copy;
    type C: Copy;
    type Out: Copy;
    /// Without branches where it can be, and always inlined, so that a loop over it becomes vector code.
    fn lane(a: Self::A, b: Self::B, c: Self::C) -> Self::Out;
}

/// Defines a function from an `Isa` to a pointer to `$body` compiled for that instruction set; with `wide` for AVX-512 too, which pays
/// only where little else is done than arithmetic on `f32`. What is not worth a version of its own runs that of AVX2.
macro_rules! versions {
    ($(#[$doc:meta])* $vis:vis fn $name:ident<$K:ident: $bound:path>($($arg:ident: $ty:ty),* $(,)?) = $body:ident as $pointer:ty;) => {
        versions! { @ $(#[$doc])* $vis fn $name<$K: $bound>($($arg: $ty),*) = $body as $pointer; [avx2 => "avx2,fma"] avx2 }
    };
    (wide $(#[$doc:meta])* $vis:vis fn $name:ident<$K:ident: $bound:path>($($arg:ident: $ty:ty),* $(,)?) = $body:ident as $pointer:ty;) => {
        versions! {
            @ $(#[$doc])* $vis fn $name<$K: $bound>($($arg: $ty),*) = $body as $pointer;
            [avx2 => "avx2,fma", avx512 => "avx512f,avx512dq,avx512bw,avx512vl,fma"] avx512
        }
    };
    (@ $(#[$doc:meta])* $vis:vis fn $name:ident<$K:ident: $bound:path>($($arg:ident: $ty:ty),*) = $body:ident as $pointer:ty;
        [$($version:ident => $features:literal),*] $widest:ident) => {
        $(#[$doc])*
        $vis fn $name<$K: $bound>(isa: $crate::cpu::vmath::Isa) -> $pointer {
            use $crate::cpu::vmath::Level;
            unsafe fn baseline<$K: $bound>($($arg: $ty),*) {
                // SAFETY: as the caller's.
                unsafe { $body::<$K>($($arg),*) }
            }
            versions! { # $K $bound, [$($version => $features),*] ($($arg: $ty),*) $body }
            // An `Isa` of a level exists only where the machine has it and what lies below: the pointer may be called here.
            match isa.0 {
                Level::Baseline => baseline::<$K>,
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => avx2::<$K>,
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => $widest::<$K>,
            }
        }
    };
    (# $K:ident $bound:path, [] $args:tt $body:ident) => {};
    (# $K:ident $bound:path, [$version:ident => $features:literal $(, $rest:ident => $others:literal)*] ($($arg:ident: $ty:ty),*) $body:ident) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        unsafe fn $version<$K: $bound>($($arg: $ty),*) {
            // SAFETY: as the caller's.
            unsafe { $body::<$K>($($arg),*) }
        }
        versions! { # $K $bound, [$($rest => $others),*] ($($arg: $ty),*) $body }
    };
}
pub(in crate::cpu::lanes) use versions;

versions! {
    /// The loop over `L`'s lanes.
    fn lane_loop<L: Lane>(blocks: usize, operands: [*const u8; 3], steps: [usize; 3], result: *mut u8) = run_blocks as LaneLoop;
}
versions! {
    wide
    /// The loop over `L`'s lanes, for `f32`.
    fn wide_loop<L: Lane>(blocks: usize, operands: [*const u8; 3], steps: [usize; 3], result: *mut u8) = run_blocks as LaneLoop;
}

#[inline(always)]
unsafe fn run_blocks<L: Lane>(blocks: usize, operands: [*const u8; 3], steps: [usize; 3], result: *mut u8) {
    let lanes = uncounted(BLOCK);
    for index in 0..blocks {
        // SAFETY: the caller vouches for this many blocks, and for a result apart from the operands.
        unsafe {
            let a = &*operands[0].add(index * steps[0]).cast::<[L::A; BLOCK]>();
            let b = &*operands[1].add(index * steps[1]).cast::<[L::B; BLOCK]>();
            let c = &*operands[2].add(index * steps[2]).cast::<[L::C; BLOCK]>();
            run_block::<L>(lanes, a, b, c, &mut *result.cast::<[L::Out; BLOCK]>().add(index));
        }
    }
}

/// A count that the compiler does not know: of loops over known counts it writes out every turn before it looks for vectors, and takes
/// minutes to put hundreds of such loops together again.
#[inline(always)]
pub(in crate::cpu::lanes) fn uncounted(count: usize) -> usize {
    std::hint::black_box(count)
}

#[inline(always)]
fn run_block<L: Lane>(
    lanes: usize,
    a: &[L::A; BLOCK],
    b: &[L::B; BLOCK],
    c: &[L::C; BLOCK],
    result: &mut [L::Out; BLOCK],
) {
    for lane in 0..lanes.min(BLOCK) {
        result[lane] = L::lane(a[lane], b[lane], c[lane]);
    }
}

/// Picks a generic loop by the lanes' representation.
macro_rules! by_repr {
    ($repr:expr, $T:ident => $loop:expr) => {
        by_repr!($repr, $T => $loop, f32 => { type $T = f32; $loop })
    };
    ($repr:expr, $T:ident => $loop:expr, f32 => $single:expr) => {
        match $repr {
            Repr::F32 => $single,
            Repr::F64 => {
                type $T = f64;
                $loop
            }
            Repr::I8 => {
                type $T = i8;
                $loop
            }
            Repr::U8 => {
                type $T = u8;
                $loop
            }
            Repr::I32 => {
                type $T = i32;
                $loop
            }
            Repr::U32 => {
                type $T = u32;
                $loop
            }
            Repr::I64 => {
                type $T = i64;
                $loop
            }
        }
    };
}
pub(in crate::cpu::lanes) use by_repr;
