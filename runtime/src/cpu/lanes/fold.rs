//! Reductions as loops.
//!
//! An accumulator has one lane per outer point. Sums and products of floats are held in `f64`; extremes and integer sums in the type
//! itself; arg reductions hold the best value and its `i64` index. Sums of `f32` add up to [`PARTIAL`] numbers per lane in `f32` before
//! they go to `f64`, so that a sum of any length is as good as its last rounding.
//!
//! The order of additions depends on the row's length alone, neither on its place in a strip nor on the instruction set's name, so a row
//! summed again gives the same bits.

use std::marker::PhantomData;
use std::ops::Range;

use kiln_ir::{DType, Direction, Literal, ReduceKind};

#[cfg(target_arch = "x86_64")]
use super::row::Vectors;
use super::row::{Add, KeepLarger, KeepSmaller, Single, WideJoin, Width, joined, two_joined};
use super::{Repr, by_repr, versions};
use crate::cpu::vmath::{Isa, Level};

/// Numbers of a row that are summed in single precision before they go to the accumulator.
const PARTIAL: usize = 2048;

/// The parts of a row, or of a strip of one, that are summed in single precision.
pub(in crate::cpu) fn row_parts(columns: usize) -> impl Iterator<Item = Range<usize>> {
    (0..columns).step_by(PARTIAL).map(move |start| start..columns.min(start + PARTIAL))
}

/// Reduces each of `rows` rows of `columns` dense lanes into its accumulator: values, rows, columns, accumulators, their indices, the
/// index of the first column, the step of the index per column.
///
/// Safety: all lanes, accumulators and (for arg reductions) indices are there, apart from each other.
pub(in crate::cpu) type RowsLoop = unsafe fn(*const u8, usize, usize, *mut u8, *mut i64, i64, i64);
/// Combines one value per lane into one accumulator per lane: values, lanes, accumulators, indices, the index of all these values.
///
/// Safety: as [`RowsLoop`].
pub(in crate::cpu) type LanesLoop = unsafe fn(*const u8, usize, *mut u8, *mut i64, i64);
/// Combines later accumulators into earlier ones: lanes, accumulators, indices, later accumulators, their indices.
///
/// Safety: as [`RowsLoop`].
pub(in crate::cpu) type MergeLoop = unsafe fn(usize, *mut u8, *mut i64, *const u8, *const i64);

/// Writes running values: values, rows, columns, one accumulator per row, from which end, running values.
///
/// Safety: as [`RowsLoop`].
pub(in crate::cpu) type ScanRowsLoop = unsafe fn(*const u8, usize, usize, *mut u8, Direction, *mut u8);
/// Takes one step of a running reduction in every lane: values, lanes, accumulators, running values.
///
/// Safety: as [`RowsLoop`].
pub(in crate::cpu) type ScanLanesLoop = unsafe fn(*const u8, usize, *mut u8, *mut u8);

/// The loops of one reduction of one representation.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct FoldLoops {
    pub(in crate::cpu) rows: RowsLoop,
    pub(in crate::cpu) lanes: LanesLoop,
    pub(in crate::cpu) merge: MergeLoop,
    /// As `lanes`, of few values per lane into single precision; their sums go to the accumulators by `lanes`.
    pub(in crate::cpu) partial: Option<LanesLoop>,
    pub(in crate::cpu) scan_rows: ScanRowsLoop,
    pub(in crate::cpu) scan_lanes: ScanLanesLoop,
    /// What an accumulator holds.
    pub(in crate::cpu) accumulator: DType,
    /// What it holds at first.
    pub(in crate::cpu) start: Literal,
}

/// One reduction: a value is combined into an accumulator.
trait Reduction {
    type Value: Copy;
    type Acc: Copy;
    /// Whether an index goes with the accumulator.
    const INDEXED: bool = false;
    /// One value. `INDEXED` ones say whether the value takes the accumulator's place.
    fn step(acc: &mut Self::Acc, value: Self::Value) -> bool;
    /// A later accumulator.
    fn merge(acc: &mut Self::Acc, later: Self::Acc) -> bool;
    /// A whole row; the place of the value that took over, where one did. Safety: the machine has width `W`.
    unsafe fn row<W: Widths>(acc: &mut Self::Acc, values: &[Self::Value]) -> Option<usize>;
    /// All rows, of so many columns each, for reductions without indices. Safety: as for one.
    unsafe fn rows<W: Widths>(accs: &mut [Self::Acc], values: &[Self::Value], columns: usize) {
        for (acc, values) in accs.iter_mut().zip(values.chunks_exact(columns)) {
            // SAFETY: the caller's.
            unsafe { Self::row::<W>(acc, values) };
        }
    }
}

/// Parts of rows whose sums are kept before they are added.
const AT_HAND: usize = 64;

/// Both widths of floats.
trait Widths: Width<f32> + Width<f64> {}

impl<W: Width<f32> + Width<f64>> Widths for W {}

struct Sum<T>(PhantomData<T>);
struct Product<T>(PhantomData<T>);
struct Largest<T>(PhantomData<T>);
struct Smallest<T>(PhantomData<T>);
struct FirstLargest<T>(PhantomData<T>);
struct FirstSmallest<T>(PhantomData<T>);

macro_rules! float_totals {
    ($($float:ident in $lanes:literal;)*) => {$(
        impl Reduction for Sum<$float> {
            type Value = $float;
            type Acc = f64;
            #[inline(always)]
            fn step(acc: &mut f64, value: $float) -> bool {
                *acc += f64::from(value);
                false
            }
            #[inline(always)]
            fn merge(acc: &mut f64, later: f64) -> bool {
                *acc += later;
                false
            }
            #[inline(always)]
            unsafe fn row<W: Widths>(acc: &mut f64, values: &[$float]) -> Option<usize> {
                for part in values.chunks(PARTIAL) {
                    // -0 is what leaves every number as it is when added.
                    // SAFETY: the caller's.
                    *acc += f64::from(unsafe { joined::<W, Add, $float, $lanes>(part, -0.0) });
                }
                None
            }
            /// Two parts at a time, of the first half and of the second: so memory is read in two places. What comes out is that of one row
            /// after the other.
            #[inline(always)]
            unsafe fn rows<W: Widths>(accs: &mut [f64], values: &[$float], columns: usize) {
                let in_row = columns.div_ceil(PARTIAL);
                let count = accs.len() * in_row;
                let part = |index: usize| {
                    let (row, start) = (index / in_row * columns, index % in_row * PARTIAL);
                    &values[row + start..row + columns.min(start + PARTIAL)]
                };
                // -0 is what leaves every number as it is when added.
                // SAFETY: the caller's.
                let sum = |part: &[$float]| unsafe { joined::<W, Add, $float, $lanes>(part, -0.0) };
                let mut sums = [0.0; AT_HAND];
                for first in (0..count).step_by(AT_HAND) {
                    let count = AT_HAND.min(count - first);
                    let half = count / 2;
                    for index in 0..half {
                        let two = [part(first + index), part(first + half + index)];
                        [sums[index], sums[half + index]] = if two[0].len() == two[1].len() {
                            // SAFETY: the caller's.
                            unsafe { two_joined::<W, Add, $float, $lanes>(two, -0.0) }
                        } else {
                            two.map(sum)
                        };
                    }
                    if count % 2 == 1 {
                        sums[count - 1] = sum(part(first + count - 1));
                    }
                    for (index, &sum) in sums[..count].iter().enumerate() {
                        accs[(first + index) / in_row] += f64::from(sum);
                    }
                }
            }
        }

        impl Reduction for Product<$float> {
            type Value = $float;
            type Acc = f64;
            #[inline(always)]
            fn step(acc: &mut f64, value: $float) -> bool {
                *acc *= f64::from(value);
                false
            }
            #[inline(always)]
            fn merge(acc: &mut f64, later: f64) -> bool {
                *acc *= later;
                false
            }
            #[inline(always)]
            unsafe fn row<W: Widths>(acc: &mut f64, values: &[$float]) -> Option<usize> {
                for &value in values {
                    *acc *= f64::from(value);
                }
                None
            }
        }

        impl Reduction for Largest<$float> {
            type Value = $float;
            type Acc = $float;
            #[inline(always)]
            fn step(acc: &mut $float, value: $float) -> bool {
                *acc = $float::larger(*acc, value);
                false
            }
            #[inline(always)]
            fn merge(acc: &mut $float, later: $float) -> bool {
                Self::step(acc, later)
            }
            #[inline(always)]
            unsafe fn row<W: Widths>(acc: &mut $float, values: &[$float]) -> Option<usize> {
                // SAFETY: the caller's.
                *acc = $float::larger(*acc, unsafe { largest_of::<W, $float, $lanes>(values) });
                None
            }
        }

        impl Reduction for Smallest<$float> {
            type Value = $float;
            type Acc = $float;
            #[inline(always)]
            fn step(acc: &mut $float, value: $float) -> bool {
                *acc = $float::smaller(*acc, value);
                false
            }
            #[inline(always)]
            fn merge(acc: &mut $float, later: $float) -> bool {
                Self::step(acc, later)
            }
            #[inline(always)]
            unsafe fn row<W: Widths>(acc: &mut $float, values: &[$float]) -> Option<usize> {
                // SAFETY: the caller's.
                *acc = $float::smaller(*acc, unsafe { smallest_of::<W, $float, $lanes>(values) });
                None
            }
        }
    )*};
}

/// Few numbers, in single precision.
struct PartialSum;

impl Reduction for PartialSum {
    type Value = f32;
    type Acc = f32;
    #[inline(always)]
    fn step(acc: &mut f32, value: f32) -> bool {
        *acc += value;
        false
    }
    fn merge(acc: &mut f32, later: f32) -> bool {
        Self::step(acc, later)
    }
    unsafe fn row<W: Widths>(acc: &mut f32, values: &[f32]) -> Option<usize> {
        values.iter().for_each(|value| *acc += value);
        None
    }
}

macro_rules! int_totals {
    ($($int:ident)*) => {$(
        int_totals! { @ $int Sum |acc, value| *acc = acc.wrapping_add(value) }
        int_totals! { @ $int Product |acc, value| *acc = acc.wrapping_mul(value) }
        int_totals! { @ $int Largest |acc, value| *acc = Ord::max(*acc, value) }
        int_totals! { @ $int Smallest |acc, value| *acc = Ord::min(*acc, value) }
    )*};
    (@ $int:ident $kind:ident |$acc:ident, $value:ident| $step:expr) => {
        impl Reduction for $kind<$int> {
            type Value = $int;
            type Acc = $int;
            #[inline(always)]
            fn step($acc: &mut $int, $value: $int) -> bool {
                $step;
                false
            }
            #[inline(always)]
            fn merge(acc: &mut $int, later: $int) -> bool {
                Self::step(acc, later)
            }
            #[inline(always)]
            unsafe fn row<W: Widths>(acc: &mut $int, values: &[$int]) -> Option<usize> {
                // Wrapping arithmetic and extremes may be done in any order: the compiler makes this a vector loop.
                let mut total = *acc;
                for &value in values {
                    Self::step(&mut total, value);
                }
                *acc = total;
                None
            }
        }
    };
}

/// An order in which a NaN comes before every number, as arg reductions need it.
trait Ordered: Copy + PartialOrd {
    fn is_nan(self) -> bool;
    /// The largest, NaN if any is.
    ///
    /// Safety: the machine has width `W`.
    unsafe fn largest<W: Widths>(values: &[Self]) -> Self;
    /// The smallest, NaN if any is.
    ///
    /// Safety: the machine has width `W`.
    unsafe fn smallest<W: Widths>(values: &[Self]) -> Self;
}

macro_rules! ordered_floats {
    ($($float:ident in $lanes:literal;)*) => {$(
        impl Extreme for $float {
            const LOWEST: $float = $float::NEG_INFINITY;
            const HIGHEST: $float = $float::INFINITY;
            #[inline(always)]
            fn larger(self, other: $float) -> $float {
                if self > other || self.is_nan() {
                    self
                } else if self == other {
                    $float::from_bits(self.to_bits() & other.to_bits())
                } else {
                    other
                }
            }
            #[inline(always)]
            fn smaller(self, other: $float) -> $float {
                if self < other || self.is_nan() {
                    self
                } else if self == other {
                    $float::from_bits(self.to_bits() | other.to_bits())
                } else {
                    other
                }
            }
        }

        impl Ordered for $float {
            #[inline(always)]
            fn is_nan(self) -> bool { self != self }
            #[inline(always)]
            unsafe fn largest<W: Widths>(values: &[$float]) -> $float {
                // SAFETY: the caller's.
                unsafe { largest_of::<W, $float, $lanes>(values) }
            }
            #[inline(always)]
            unsafe fn smallest<W: Widths>(values: &[$float]) -> $float {
                // SAFETY: the caller's.
                unsafe { smallest_of::<W, $float, $lanes>(values) }
            }
        }
    )*};
}

/// Floats with the semantics' maximum and minimum.
trait Extreme: Copy + PartialOrd + Default + 'static {
    const LOWEST: Self;
    const HIGHEST: Self;
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
}

ordered_floats! { f32 in 64; f64 in 32; }
float_totals! { f32 in 64; f64 in 32; }
int_totals! { i8 u8 i32 u32 i64 }

macro_rules! ordered_ints {
    ($($int:ident)*) => {$(
        impl Ordered for $int {
            #[inline(always)]
            fn is_nan(self) -> bool { false }
            #[inline(always)]
            unsafe fn largest<W: Widths>(values: &[$int]) -> $int { values.iter().fold($int::MIN, |best, &value| Ord::max(best, value)) }
            #[inline(always)]
            unsafe fn smallest<W: Widths>(values: &[$int]) -> $int { values.iter().fold($int::MAX, |best, &value| Ord::min(best, value)) }
        }
    )*};
}

ordered_ints! { i8 u8 i32 u32 i64 }

/// The largest of a row. A few instructions per vector find it; signs of zeros are looked at only where they can matter.
///
/// Safety: the machine has width `W`.
#[inline(always)]
unsafe fn largest_of<W: Width<T>, T: Extreme, const N: usize>(values: &[T]) -> T
where
    KeepLarger: WideJoin<T>,
{
    // SAFETY: the caller's.
    let best = unsafe { joined::<W, KeepLarger, T, N>(values, T::LOWEST) };
    if best == T::default() {
        return values.iter().fold(T::LOWEST, |best, &value| best.larger(value));
    }
    best
}

/// The smallest of a row, as [`largest_of`].
///
/// Safety: the machine has width `W`.
#[inline(always)]
unsafe fn smallest_of<W: Width<T>, T: Extreme, const N: usize>(values: &[T]) -> T
where
    KeepSmaller: WideJoin<T>,
{
    // SAFETY: the caller's.
    let best = unsafe { joined::<W, KeepSmaller, T, N>(values, T::HIGHEST) };
    if best == T::default() {
        return values.iter().fold(T::HIGHEST, |best, &value| best.smaller(value));
    }
    best
}

macro_rules! first_extremes {
    ($($kind:ident by $beats:tt, $extreme:ident;)*) => {$(
        impl<T: Ordered> Reduction for $kind<T> {
            type Value = T;
            type Acc = T;
            const INDEXED: bool = true;
            #[inline(always)]
            fn step(acc: &mut T, value: T) -> bool {
                let takes = !acc.is_nan() & ((value $beats *acc) | value.is_nan());
                *acc = if takes { value } else { *acc };
                takes
            }
            #[inline(always)]
            fn merge(acc: &mut T, later: T) -> bool {
                Self::step(acc, later)
            }
            #[inline(always)]
            unsafe fn row<W: Widths>(acc: &mut T, values: &[T]) -> Option<usize> {
                if acc.is_nan() {
                    return None;
                }
                // SAFETY: the caller's.
                let best = unsafe { T::$extreme::<W>(values) };
                if !Self::step(acc, best) {
                    return None;
                }
                values.iter().position(|&value| value == best || value.is_nan())
            }
        }
    )*};
}

first_extremes! {
    FirstLargest by >, largest;
    FirstSmallest by <, smallest;
}

/// The loop over rows for an instruction set.
fn rows_version<R: Reduction>(isa: Isa) -> RowsLoop {
    // An `Isa` of a level exists only where the machine has it and what lies below: the pointer may be called here.
    match isa.0 {
        Level::Baseline => fold_rows::<R, Single>,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => fold_rows_avx2::<R>,
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn fold_rows_avx2<R: Reduction>(
    values: *const u8,
    rows: usize,
    columns: usize,
    accs: *mut u8,
    indices: *mut i64,
    first: i64,
    step: i64,
) {
    // SAFETY: as the caller's, and the machine has AVX2.
    unsafe { fold_rows::<R, Vectors>(values, rows, columns, accs, indices, first, step) }
}

versions! {
    fn lanes_version<R: Reduction>(values: *const u8, count: usize, accs: *mut u8, indices: *mut i64, index: i64) = fold_lanes as LanesLoop;
}

#[inline(always)]
unsafe fn fold_rows<R: Reduction, W: Widths>(
    values: *const u8,
    rows: usize,
    columns: usize,
    accs: *mut u8,
    indices: *mut i64,
    first: i64,
    step: i64,
) {
    if !R::INDEXED && columns > 0 {
        // SAFETY: the caller vouches for rows and accumulators.
        unsafe {
            let values = std::slice::from_raw_parts(values.cast::<R::Value>(), rows * columns);
            return R::rows::<W>(std::slice::from_raw_parts_mut(accs.cast::<R::Acc>(), rows), values, columns);
        }
    }
    for row in 0..rows {
        // SAFETY: the caller vouches for rows, accumulators and, where indexed, indices.
        unsafe {
            let values = std::slice::from_raw_parts(values.cast::<R::Value>().add(row * columns), columns);
            let place = R::row::<W>(&mut *accs.cast::<R::Acc>().add(row), values);
            if let (true, Some(place)) = (R::INDEXED, place) {
                *indices.add(row) = first + place as i64 * step;
            }
        }
    }
}

#[inline(always)]
unsafe fn fold_lanes<R: Reduction>(values: *const u8, count: usize, accs: *mut u8, indices: *mut i64, index: i64) {
    // SAFETY: the caller vouches for lanes, accumulators and, where indexed, indices.
    unsafe {
        let values = std::slice::from_raw_parts(values.cast::<R::Value>(), count);
        let accs = std::slice::from_raw_parts_mut(accs.cast::<R::Acc>(), count);
        if R::INDEXED {
            let indices = std::slice::from_raw_parts_mut(indices, count);
            for ((acc, place), &value) in accs.iter_mut().zip(indices).zip(values) {
                *place = if R::step(acc, value) { index } else { *place };
            }
        } else {
            for (acc, &value) in accs.iter_mut().zip(values) {
                R::step(acc, value);
            }
        }
    }
}

unsafe fn fold_merge<R: Reduction>(
    count: usize,
    accs: *mut u8,
    indices: *mut i64,
    later: *const u8,
    later_indices: *const i64,
) {
    for lane in 0..count {
        // SAFETY: the caller vouches for both accumulators and, where indexed, their indices.
        unsafe {
            let taken = R::merge(&mut *accs.cast::<R::Acc>().add(lane), *later.cast::<R::Acc>().add(lane));
            if R::INDEXED && taken {
                *indices.add(lane) = *later_indices.add(lane);
            }
        }
    }
}

unsafe fn scan_rows<R: Reduction>(
    values: *const u8,
    rows: usize,
    columns: usize,
    accs: *mut u8,
    direction: Direction,
    running: *mut u8,
) {
    for row in 0..rows {
        // SAFETY: the caller vouches for rows, accumulators and running values.
        unsafe {
            let values = std::slice::from_raw_parts(values.cast::<R::Value>().add(row * columns), columns);
            let running = std::slice::from_raw_parts_mut(running.cast::<R::Acc>().add(row * columns), columns);
            let acc = &mut *accs.cast::<R::Acc>().add(row);
            let mut step = |(&value, place): (&R::Value, &mut R::Acc)| {
                R::step(acc, value);
                *place = *acc;
            };
            match direction {
                Direction::Forward => values.iter().zip(running).for_each(&mut step),
                Direction::Reverse => values.iter().zip(running).rev().for_each(&mut step),
            }
        }
    }
}

unsafe fn scan_lanes<R: Reduction>(values: *const u8, count: usize, accs: *mut u8, running: *mut u8) {
    // SAFETY: the caller vouches for lanes, accumulators and running values.
    unsafe {
        let values = std::slice::from_raw_parts(values.cast::<R::Value>(), count);
        let accs = std::slice::from_raw_parts_mut(accs.cast::<R::Acc>(), count);
        let running = std::slice::from_raw_parts_mut(running.cast::<R::Acc>(), count);
        for ((acc, place), &value) in accs.iter_mut().zip(running).zip(values) {
            R::step(acc, value);
            *place = *acc;
        }
    }
}

fn loops_of<R: Reduction>(isa: Isa, accumulator: DType, start: Literal) -> FoldLoops {
    FoldLoops {
        rows: rows_version::<R>(isa),
        lanes: lanes_version::<R>(isa),
        partial: None,
        merge: fold_merge::<R>,
        scan_rows: scan_rows::<R>,
        scan_lanes: scan_lanes::<R>,
        accumulator,
        start,
    }
}

/// The loops of a reduction of values of a dtype.
pub(in crate::cpu) fn fold_loops(kind: ReduceKind, dtype: DType, isa: Isa) -> FoldLoops {
    let repr = Repr::of(dtype);
    let total = if dtype.is_float() { DType::F64 } else { dtype };
    match kind {
        ReduceKind::Sum => {
            let loops = by_repr!(repr, T => loops_of::<Sum<T>>(isa, total, Literal::zero(total)));
            let partial = (repr == Repr::F32).then(|| lanes_version::<PartialSum>(isa));
            FoldLoops { partial, ..loops }
        }
        ReduceKind::Prod => by_repr!(repr, T => loops_of::<Product<T>>(isa, total, Literal::one(total))),
        ReduceKind::Max => by_repr!(repr, T => loops_of::<Largest<T>>(isa, dtype, lowest(dtype))),
        ReduceKind::Min => by_repr!(repr, T => loops_of::<Smallest<T>>(isa, dtype, highest(dtype))),
        ReduceKind::ArgMax => by_repr!(repr, T => loops_of::<FirstLargest<T>>(isa, dtype, lowest(dtype))),
        ReduceKind::ArgMin => by_repr!(repr, T => loops_of::<FirstSmallest<T>>(isa, dtype, highest(dtype))),
    }
}

fn lowest(dtype: DType) -> Literal {
    match dtype.int_range() {
        Some((low, _)) => Literal::from_i128(dtype, low),
        None if dtype == DType::Bool => Literal::zero(dtype),
        None => Literal::from_f64(dtype, f64::NEG_INFINITY),
    }
}

fn highest(dtype: DType) -> Literal {
    match dtype.int_range() {
        Some((_, high)) => Literal::from_i128(dtype, high),
        None if dtype == DType::Bool => Literal::one(dtype),
        None => Literal::from_f64(dtype, f64::INFINITY),
    }
}
