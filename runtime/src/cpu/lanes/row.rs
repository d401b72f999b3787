//! A row of floats joined into one, in lanes side by side.
//!
//! Whole blocks of lanes are joined lane by lane, then the lanes pair by pair, then what is left of the row. The order depends on the row's
//! length alone: vectors of AVX2 and single numbers give the same bits. Vectors are written out here because the compiler finds them in a
//! loop over so many lanes only by luck, and takes minutes to look.

use super::uncounted;

/// Vectors of AVX2 in a block: enough to keep additions going while the first one is still under way.
const VECTORS: usize = 8;

/// Blocks that are joined of one row before some of another, where two are joined at a time.
#[cfg(target_arch = "x86_64")]
const TURN: usize = 8;

/// Lanes that are joined one by one in the end.
pub(in crate::cpu) const LAST: usize = 8;

/// A way to join two numbers into one.
pub(super) trait Join<T> {
    fn join(a: T, b: T) -> T;
}

pub(super) struct Add;
/// The larger one; a NaN stays. Which of two zeros stays is open.
pub(super) struct KeepLarger;
/// The smaller one, as [`KeepLarger`].
pub(super) struct KeepSmaller;

macro_rules! joins {
    ($($float:ident)*) => {$(
        impl Join<$float> for Add {
            #[inline(always)]
            fn join(a: $float, b: $float) -> $float { a + b }
        }
        impl Join<$float> for KeepLarger {
            #[inline(always)]
            fn join(a: $float, b: $float) -> $float { if (a >= b) | a.is_nan() { a } else { b } }
        }
        impl Join<$float> for KeepSmaller {
            #[inline(always)]
            fn join(a: $float, b: $float) -> $float { if (a <= b) | a.is_nan() { a } else { b } }
        }
    )*};
}

joins! { f32 f64 }

/// How whole blocks are joined.
pub(super) trait Width<T> {
    /// The lanes of all blocks, joined, and then halves with halves until there are [`LAST`]. Safety: the machine has this width.
    unsafe fn blocks<J: WideJoin<T>, const N: usize>(blocks: &[[T; N]], start: T) -> [T; LAST];

    /// The same of two rows with as many blocks. Memory that is read in two places at a time comes faster. Safety: as for one.
    unsafe fn two<J: WideJoin<T>, const N: usize>(rows: [&[[T; N]]; 2], start: T) -> [[T; LAST]; 2];
}

/// One number after the other.
pub(super) struct Single;

impl<T: Copy> Width<T> for Single {
    #[inline(always)]
    unsafe fn blocks<J: WideJoin<T>, const N: usize>(blocks: &[[T; N]], start: T) -> [T; LAST] {
        let mut lanes = [start; N];
        let count = uncounted(N);
        for block in blocks {
            for (lane, &value) in lanes.iter_mut().zip(block).take(count) {
                *lane = J::join(*lane, value);
            }
        }
        let mut width = count / 2;
        while width >= LAST {
            let (low, high) = lanes.split_at_mut(width);
            for (low, &high) in low.iter_mut().zip(&*high) {
                *low = J::join(*low, high);
            }
            width /= 2;
        }
        std::array::from_fn(|lane| lanes[lane])
    }

    #[inline(always)]
    unsafe fn two<J: WideJoin<T>, const N: usize>(rows: [&[[T; N]]; 2], start: T) -> [[T; LAST]; 2] {
        // SAFETY: the caller's.
        rows.map(|blocks| unsafe { <Single as Width<T>>::blocks::<J, N>(blocks, start) })
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) use Join as WideJoin;

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Vectors, WideJoin};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Add, Join, KeepLarger, KeepSmaller, LAST, TURN, VECTORS, Width};

    /// Vectors of AVX2.
    pub(in crate::cpu::lanes) struct Vectors;

    /// A join of whole vectors too. Safety of all methods: the machine has AVX2.
    pub(in crate::cpu::lanes) trait WideJoin<T>: Join<T> + WideJoinOf<T> {}

    impl<T, J: Join<T> + WideJoinOf<T>> WideJoin<T> for J {}

    pub(in crate::cpu::lanes) trait WideJoinOf<T> {
        type Vector: Copy;
        unsafe fn splat(value: T) -> Self::Vector;
        unsafe fn load(values: *const T) -> Self::Vector;
        unsafe fn store(vector: Self::Vector, values: *mut T);
        unsafe fn join_all(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    }

    macro_rules! wide_joins {
        ($($join:ident of $float:ident in $vector:ident: $splat:ident $load:ident $store:ident |$a:ident, $b:ident| $value:expr;)*) => {$(
            impl WideJoinOf<$float> for $join {
                type Vector = $vector;
                #[inline]
                #[target_feature(enable = "avx2")]
                unsafe fn splat(value: $float) -> $vector { $splat(value) }
                #[inline]
                #[target_feature(enable = "avx2")]
                unsafe fn load(values: *const $float) -> $vector {
                    // SAFETY: the caller's.
                    unsafe { $load(values) }
                }
                #[inline]
                #[target_feature(enable = "avx2")]
                unsafe fn store(vector: $vector, values: *mut $float) {
                    // SAFETY: the caller's.
                    unsafe { $store(values, vector) }
                }
                #[inline]
                #[target_feature(enable = "avx2")]
                unsafe fn join_all($a: $vector, $b: $vector) -> $vector { $value }
            }
        )*};
    }

    wide_joins! {
        Add of f32 in __m256: _mm256_set1_ps _mm256_loadu_ps _mm256_storeu_ps |a, b| _mm256_add_ps(a, b);
        Add of f64 in __m256d: _mm256_set1_pd _mm256_loadu_pd _mm256_storeu_pd |a, b| _mm256_add_pd(a, b);
        KeepLarger of f32 in __m256: _mm256_set1_ps _mm256_loadu_ps _mm256_storeu_ps |a, b| {
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(a, a);
            _mm256_blendv_ps(b, a, _mm256_or_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(a, b), nan))
        };
        KeepLarger of f64 in __m256d: _mm256_set1_pd _mm256_loadu_pd _mm256_storeu_pd |a, b| {
            let nan = _mm256_cmp_pd::<_CMP_UNORD_Q>(a, a);
            _mm256_blendv_pd(b, a, _mm256_or_pd(_mm256_cmp_pd::<_CMP_GE_OQ>(a, b), nan))
        };
        KeepSmaller of f32 in __m256: _mm256_set1_ps _mm256_loadu_ps _mm256_storeu_ps |a, b| {
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(a, a);
            _mm256_blendv_ps(b, a, _mm256_or_ps(_mm256_cmp_ps::<_CMP_LE_OQ>(a, b), nan))
        };
        KeepSmaller of f64 in __m256d: _mm256_set1_pd _mm256_loadu_pd _mm256_storeu_pd |a, b| {
            let nan = _mm256_cmp_pd::<_CMP_UNORD_Q>(a, a);
            _mm256_blendv_pd(b, a, _mm256_or_pd(_mm256_cmp_pd::<_CMP_LE_OQ>(a, b), nan))
        };
    }

    impl<T: Copy> Width<T> for Vectors {
        #[inline]
        #[target_feature(enable = "avx2")]
        unsafe fn blocks<J: WideJoin<T>, const N: usize>(blocks: &[[T; N]], start: T) -> [T; LAST] {
            // SAFETY: the caller's.
            unsafe { halved::<J, T, N>(onto::<J, T, N>([J::splat(start); VECTORS], blocks), start) }
        }

        #[inline]
        #[target_feature(enable = "avx2")]
        unsafe fn two<J: WideJoin<T>, const N: usize>(rows: [&[[T; N]]; 2], start: T) -> [[T; LAST]; 2] {
            // SAFETY: the caller's.
            unsafe {
                let mut vectors = [[J::splat(start); VECTORS]; 2];
                for (first, second) in rows[0].chunks(TURN).zip(rows[1].chunks(TURN)) {
                    vectors = [onto::<J, T, N>(vectors[0], first), onto::<J, T, N>(vectors[1], second)];
                }
                [halved::<J, T, N>(vectors[0], start), halved::<J, T, N>(vectors[1], start)]
            }
        }
    }

    /// Joins blocks onto vectors of lanes.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn onto<J: WideJoin<T>, T: Copy, const N: usize>(
        mut vectors: [J::Vector; VECTORS],
        blocks: &[[T; N]],
    ) -> [J::Vector; VECTORS] {
        let width = N / VECTORS;
        for block in blocks {
            for (index, vector) in vectors.iter_mut().enumerate() {
                // SAFETY: the machine has AVX2, as the caller vouches; a block is `VECTORS` vectors of `width` numbers.
                *vector = unsafe { J::join_all(*vector, J::load(block.as_ptr().add(index * width))) };
            }
        }
        vectors
    }

    /// Joins halves with halves until [`LAST`] lanes are left.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn halved<J: WideJoin<T>, T: Copy, const N: usize>(
        mut vectors: [J::Vector; VECTORS],
        start: T,
    ) -> [T; LAST] {
        let width = N / VECTORS;
        let mut lanes = [start; LAST];
        let mut left = VECTORS;
        // SAFETY: the machine has AVX2, as the caller vouches; vectors have `width` numbers.
        unsafe {
            while left * width > LAST {
                left /= 2;
                for index in 0..left {
                    vectors[index] = J::join_all(vectors[index], vectors[index + left]);
                }
            }
            for (index, &vector) in vectors.iter().take(left).enumerate() {
                J::store(vector, lanes.as_mut_ptr().add(index * width));
            }
        }
        lanes
    }
}

/// The last lanes, joined pair by pair.
#[inline(always)]
fn last_joined<J: Join<T>, T: Copy>(mut lanes: [T; LAST]) -> T {
    let mut width = LAST / 2;
    while width > 0 {
        let (low, high) = lanes.split_at_mut(width);
        for (low, &high) in low.iter_mut().zip(&*high) {
            *low = J::join(*low, high);
        }
        width /= 2;
    }
    lanes[0]
}

/// The sum of a row of whole blocks, from what its last lanes have come to.
pub(in crate::cpu) fn joined_sums(lanes: &[f32; LAST]) -> f32 {
    last_joined::<Add, f32>(*lanes)
}

/// The numbers of a row joined, beginning with `start`, in `N` lanes: 64 of `f32`, 32 of `f64`.
///
/// Safety: the machine has width `W`.
#[inline(always)]
pub(super) unsafe fn joined<W: Width<T>, J: WideJoin<T>, T: Copy, const N: usize>(values: &[T], start: T) -> T {
    const { assert!(N * size_of::<T>() == VECTORS * 32, "a block is whole vectors") };
    let (blocks, rest) = values.as_chunks::<N>();
    let mut total = start;
    if !blocks.is_empty() {
        // SAFETY: the caller's.
        total = last_joined::<J, T>(unsafe { W::blocks::<J, N>(blocks, start) });
    }
    with_rest::<J, T>(total, rest, start)
}

/// The same of two rows of one length.
///
/// Safety: as for [`joined`].
#[inline(always)]
pub(super) unsafe fn two_joined<W: Width<T>, J: WideJoin<T>, T: Copy, const N: usize>(
    rows: [&[T]; 2],
    start: T,
) -> [T; 2] {
    const { assert!(N * size_of::<T>() == VECTORS * 32, "a block is whole vectors") };
    let [(first, first_rest), (second, second_rest)] = rows.map(|row| row.as_chunks::<N>());
    let mut totals = [start; 2];
    if !first.is_empty() {
        // SAFETY: the caller's.
        totals = unsafe { W::two::<J, N>([first, second], start) }.map(last_joined::<J, T>);
    }
    [with_rest::<J, T>(totals[0], first_rest, start), with_rest::<J, T>(totals[1], second_rest, start)]
}

/// What whole blocks came to, joined with the numbers behind them.
#[inline(always)]
fn with_rest<J: Join<T>, T: Copy>(mut total: T, rest: &[T], start: T) -> T {
    let (blocks, rest) = rest.as_chunks::<8>();
    if !blocks.is_empty() {
        let mut lanes = [start; 8];
        for block in blocks {
            for lane in 0..8 {
                lanes[lane] = J::join(lanes[lane], block[lane]);
            }
        }
        for lane in lanes {
            total = J::join(total, lane);
        }
    }
    rest.iter().fold(total, |total, &value| J::join(total, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::vmath::Isa;

    /// Numbers whose sum depends on the order of additions.
    fn row(length: usize) -> Vec<f32> {
        (0..length).map(|i| ((i * 7919) % 1013) as f32 * 0.37 - 180.0).collect()
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn vectors_and_single_numbers_give_the_same_bits() {
        if Isa::available().len() < 2 {
            return;
        }
        for length in [0, 1, 7, 8, 63, 64, 65, 200, 1000] {
            let mut values = row(length);
            // SAFETY: the machine has AVX2: it lies next after the baseline.
            let both = |values: &[f32]| unsafe {
                let pair = |a: f32, b: f32| assert_eq!(a.to_bits(), b.to_bits(), "{length} numbers");
                pair(joined::<Single, Add, f32, 64>(values, -0.0), joined::<Vectors, Add, f32, 64>(values, -0.0));
                pair(
                    joined::<Single, KeepLarger, f32, 64>(values, f32::NEG_INFINITY),
                    joined::<Vectors, KeepLarger, f32, 64>(values, f32::NEG_INFINITY),
                );
                pair(
                    joined::<Single, KeepSmaller, f32, 64>(values, f32::INFINITY),
                    joined::<Vectors, KeepSmaller, f32, 64>(values, f32::INFINITY),
                );
            };
            both(&values);
            if let Some(value) = values.get_mut(length / 3) {
                *value = f32::NAN;
                both(&values);
            }
        }
    }

    #[test]
    fn two_rows_at_a_time_give_the_bits_of_each() {
        for length in [0, 1, 8, 63, 64, 65, 512, 513, 2048, 2100] {
            let both = row(2 * length);
            let (first, second) = both.split_at(length);
            // SAFETY: every machine has single numbers; vectors are used where there is AVX2.
            unsafe {
                let alone = [first, second].map(|row| joined::<Single, Add, f32, 64>(row, -0.0).to_bits());
                let two = two_joined::<Single, Add, f32, 64>([first, second], -0.0);
                assert_eq!(two.map(f32::to_bits), alone, "{length} numbers");
                #[cfg(target_arch = "x86_64")]
                if Isa::available().len() > 1 {
                    let two = two_joined::<Vectors, Add, f32, 64>([first, second], -0.0);
                    assert_eq!(two.map(f32::to_bits), alone, "{length} numbers in vectors");
                }
            }
        }
    }

    #[test]
    fn a_nan_anywhere_takes_over() {
        for place in [0, 70, 99] {
            let mut values = row(100);
            values[place] = f32::NAN;
            // SAFETY: every machine has single numbers.
            unsafe {
                assert!(joined::<Single, KeepLarger, f32, 64>(&values, f32::NEG_INFINITY).is_nan());
                assert!(joined::<Single, KeepSmaller, f32, 64>(&values, f32::INFINITY).is_nan());
            }
        }
    }
}
