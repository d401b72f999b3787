//! Updates of single elements of memory, one after another: what a scatter does with its lanes.

use std::marker::PhantomData;

use kiln_ir::{DType, ScatterKind};

use super::Shape;
use super::half_floats::{bf16_bits, bf16_value, f16_bits, f16_value};

/// Where a rectangle of updates goes.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Place {
    /// The element of lane 0 at index 0.
    pub(in crate::cpu) first: i64,
    /// The lanes, with their strides in the target.
    pub(in crate::cpu) shape: Shape,
    /// Elements per index.
    pub(in crate::cpu) stride: i64,
    /// Indices from here on are dropped.
    pub(in crate::cpu) extent: i64,
    /// Elements of the target.
    pub(in crate::cpu) len: i64,
}

/// Combines values into a target at indices, lane after lane: values, indices, place, target.
///
/// Safety: lanes and target are there.
pub(in crate::cpu) type UpdateLoop = unsafe fn(*const u8, *const i64, Place, *mut u8);

/// An element of the target and its update.
trait Update {
    type Stored: Copy;
    type Lane: Copy;
    fn add(stored: Self::Stored, value: Self::Lane) -> Self::Stored;
    fn set(value: Self::Lane) -> Self::Stored;
    fn max(stored: Self::Stored, value: Self::Lane) -> Self::Stored;
}

/// One of the three ways to combine.
trait Combine {
    fn combine<U: Update>(stored: U::Stored, value: U::Lane) -> U::Stored;
}

struct Add;
struct Set;
struct Max;

impl Combine for Add {
    #[inline(always)]
    fn combine<U: Update>(stored: U::Stored, value: U::Lane) -> U::Stored {
        U::add(stored, value)
    }
}

impl Combine for Set {
    #[inline(always)]
    fn combine<U: Update>(_: U::Stored, value: U::Lane) -> U::Stored {
        U::set(value)
    }
}

impl Combine for Max {
    #[inline(always)]
    fn combine<U: Update>(stored: U::Stored, value: U::Lane) -> U::Stored {
        U::max(stored, value)
    }
}

struct Plain<T>(PhantomData<T>);
struct Half;
struct Brain;

macro_rules! ints {
    ($($int:ident)*) => {$(
        impl Update for Plain<$int> {
            type Stored = $int;
            type Lane = $int;
            fn add(stored: $int, value: $int) -> $int { stored.wrapping_add(value) }
            fn set(value: $int) -> $int { value }
            fn max(stored: $int, value: $int) -> $int { Ord::max(stored, value) }
        }
    )*};
}

macro_rules! floats {
    ($($float:ident)*) => {$(
        impl Update for Plain<$float> {
            type Stored = $float;
            type Lane = $float;
            fn add(stored: $float, value: $float) -> $float { stored + value }
            fn set(value: $float) -> $float { value }
            fn max(stored: $float, value: $float) -> $float {
                if stored.is_nan() || stored > value {
                    stored
                } else if stored == value {
                    $float::from_bits(stored.to_bits() & value.to_bits())
                } else {
                    value
                }
            }
        }
    )*};
}

macro_rules! narrow_floats {
    ($($float:ident from $value:ident to $bits:ident;)*) => {$(
        impl Update for $float {
            type Stored = u16;
            type Lane = f32;
            fn add(stored: u16, value: f32) -> u16 { $bits($value(stored) + value) }
            fn set(value: f32) -> u16 { $bits(value) }
            fn max(stored: u16, value: f32) -> u16 { $bits(Plain::<f32>::max($value(stored), value)) }
        }
    )*};
}

ints! { i8 u8 i32 u32 i64 }
floats! { f32 f64 }
narrow_floats! {
    Half from f16_value to f16_bits;
    Brain from bf16_value to bf16_bits;
}

unsafe fn update<U: Update, C: Combine>(values: *const u8, indices: *const i64, place: Place, target: *mut u8) {
    let (values, target) = (values.cast::<U::Lane>(), target.cast::<U::Stored>());
    let Shape { rows, row_stride, columns, column_stride } = place.shape;
    for row in 0..rows {
        for column in 0..columns {
            let lane = row * columns + column;
            // SAFETY: the caller vouches for the lanes; elements outside the target are left alone.
            unsafe {
                let index = *indices.add(lane);
                let base = place.first + row as i64 * row_stride as i64 + column as i64 * column_stride as i64;
                if (0..place.extent).contains(&index) {
                    let offset = base + index * place.stride;
                    debug_assert!((0..place.len).contains(&offset), "an update stays inside its target");
                    if (0..place.len).contains(&offset) {
                        let element = &mut *target.offset(offset as isize);
                        *element = C::combine::<U>(*element, *values.add(lane));
                    }
                }
            }
        }
    }
}

fn of<C: Combine>(dtype: DType) -> UpdateLoop {
    match dtype {
        DType::F32 => update::<Plain<f32>, C>,
        DType::F16 => update::<Half, C>,
        DType::BF16 => update::<Brain, C>,
        DType::F64 => update::<Plain<f64>, C>,
        DType::I8 => update::<Plain<i8>, C>,
        DType::U8 | DType::Bool => update::<Plain<u8>, C>,
        DType::I32 => update::<Plain<i32>, C>,
        DType::U32 => update::<Plain<u32>, C>,
        DType::I64 => update::<Plain<i64>, C>,
    }
}

/// The loop of a scatter on a target of a dtype.
pub(in crate::cpu) fn update_loop(kind: ScatterKind, dtype: DType) -> UpdateLoop {
    match kind {
        ScatterKind::Add => of::<Add>(dtype),
        ScatterKind::Set => of::<Set>(dtype),
        ScatterKind::Max => of::<Max>(dtype),
    }
}
