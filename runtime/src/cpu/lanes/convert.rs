//! Casts and bitcasts as loops.
//!
//! Float to int truncates, saturates and makes NaN 0; int to int wraps; anything to bool is `x != 0`; every rounding happens once.

use std::marker::PhantomData;

use kiln_ir::DType;
use smallvec::{SmallVec, smallvec};

use super::half_floats::{bf16_bits, bf16_value, f16_bits, f16_value, round_bf16, round_f16, round_to_odd};
use super::{Lane, LaneLoop, Repr, by_repr, lane_loop};
use crate::cpu::vmath::Isa;

/// The loops of a conversion, one after another; none where the lanes stay as they are.
pub(in crate::cpu) type Conversion = SmallVec<[LaneLoop; 2]>;

/// Conversion by Rust's `as`, which is the semantics' own rule.
trait As<U> {
    fn convert(self) -> U;
}

macro_rules! conversions {
    ($($from:ident)*) => {$(conversions!(@ $from: f32 f64 i8 u8 i32 u32 i64);)*};
    (@ $from:ident: $($to:ident)*) => {$(
        impl As<$to> for $from {
            #[inline(always)]
            #[allow(clippy::unnecessary_cast)]
            fn convert(self) -> $to { self as $to }
        }
    )*};
}

conversions! { f32 f64 i8 u8 i32 u32 i64 }

/// A lane made of one other lane.
macro_rules! unary_lanes {
    ($($name:ident<$($T:ident: $bound:path),*>($x:ident: $from:ty) -> $to:ty = $value:expr;)*) => {$(
        struct $name<$($T),*>(PhantomData<($($T,)*)>);
        impl<$($T: $bound),*> Lane for $name<$($T),*> {
            type A = $from;
            type B = ();
            type C = ();
            type Out = $to;
            #[inline(always)]
            fn lane($x: $from, (): (), (): ()) -> $to { $value }
        }
    )*};
}

/// A number, zero if it equals its type's default.
trait Zeroable: Copy + PartialEq + Default {}

impl<T: Copy + PartialEq + Default> Zeroable for T {}

struct Convert<T, U>(PhantomData<(T, U)>);

impl<T: Copy + As<U>, U: Copy> Lane for Convert<T, U> {
    type A = T;
    type B = ();
    type C = ();
    type Out = U;
    #[inline(always)]
    fn lane(x: T, (): (), (): ()) -> U {
        x.convert()
    }
}

unary_lanes! {
    Truth<T: Zeroable>(x: T) -> u8 = u8::from(x != T::default());
    RoundF16<>(x: f32) -> f32 = round_f16(x);
    RoundBF16<>(x: f32) -> f32 = round_bf16(x);
    Narrow<>(x: f64) -> f32 = round_to_odd(x);
    F16AsBF16<>(x: f32) -> f32 = bf16_value(f16_bits(x));
    BF16AsF16<>(x: f32) -> f32 = f16_value(bf16_bits(x));
}

fn convert(from: Repr, to: Repr, isa: Isa) -> LaneLoop {
    by_repr!(from, T => by_repr!(to, U => lane_loop::<Convert<T, U>>(isa)))
}

/// The loops that convert lanes of a dtype to another.
pub(in crate::cpu) fn cast(from: DType, to: DType, isa: Isa) -> Conversion {
    let (held, wanted) = (Repr::of(from), Repr::of(to));
    if from == to {
        return Conversion::new();
    }
    match to {
        DType::Bool => smallvec![by_repr!(held, T => lane_loop::<Truth<T>>(isa))],
        DType::F16 | DType::BF16 => {
            let round = if to == DType::F16 { lane_loop::<RoundF16>(isa) } else { lane_loop::<RoundBF16>(isa) };
            let narrow = lane_loop::<Narrow>(isa);
            match held {
                Repr::F32 => smallvec![round],
                Repr::I8 | Repr::U8 => smallvec![convert(held, Repr::F32, isa), round],
                Repr::F64 => smallvec![narrow, round],
                Repr::I32 | Repr::U32 | Repr::I64 => smallvec![convert(held, Repr::F64, isa), narrow, round],
            }
        }
        DType::F32 | DType::F64 | DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 if held == wanted => {
            Conversion::new()
        }
        DType::F32 | DType::F64 | DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 => {
            smallvec![convert(held, wanted, isa)]
        }
    }
}

/// The loops that read lanes' bits as another dtype of the same width.
pub(in crate::cpu) fn bitcast(from: DType, to: DType, isa: Isa) -> Conversion {
    assert_eq!(from.size(), to.size(), "a bitcast keeps the width");
    if from == DType::F16 && to == DType::BF16 {
        smallvec![lane_loop::<F16AsBF16>(isa)]
    } else if from == DType::BF16 && to == DType::F16 {
        smallvec![lane_loop::<BF16AsF16>(isa)]
    } else {
        Conversion::new()
    }
}
