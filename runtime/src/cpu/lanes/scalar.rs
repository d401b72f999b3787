//! The elementwise ops as loops: which loop an op runs on which representation.
//!
//! On `f16` and `bf16` an op runs in `f32` and is rounded by a second loop ([`rounds`] says where that is not needed). For `+ - * / sqrt`
//! rounding twice gives the same bits as rounding once, as `f32` has more than twice the digits.

use std::hint::select_unpredictable as pick;
use std::marker::PhantomData;

use kiln_ir::{DType, ScalarOp};

use super::{Lane, LaneLoop, Repr, Work, by_repr, lane_loop, wide_loop};
use crate::cpu::vmath::{BinaryMath, Isa, UnaryMath};

/// What all numbers can do; integers wrap.
trait Number: Copy + PartialOrd {
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn sign(self) -> Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn rem(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn fma(self, factor: Self, term: Self) -> Self;
}

/// What floats can do besides.
trait Float: Number {
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn round(self) -> Self;
    fn trunc(self) -> Self;
    fn sqrt(self) -> Self;
    fn recip(self) -> Self;
    fn infinite(self) -> bool;
    fn finite(self) -> bool;
}

/// What integers can do besides.
trait Int: Number {
    fn not(self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    fn shl(self, count: Self) -> Self;
    fn shr(self, count: Self) -> Self;
}

macro_rules! floats {
    ($($float:ident)*) => {$(
        impl Number for $float {
            #[inline(always)]
            fn neg(self) -> Self { -self }
            #[inline(always)]
            fn abs(self) -> Self { $float::abs(self) }
            #[inline(always)]
            fn sign(self) -> Self { pick(self == 0.0 || self.is_nan(), self, (1.0 as $float).copysign(self)) }
            #[inline(always)]
            fn add(self, other: Self) -> Self { self + other }
            #[inline(always)]
            fn sub(self, other: Self) -> Self { self - other }
            #[inline(always)]
            fn mul(self, other: Self) -> Self { self * other }
            #[inline(always)]
            fn div(self, other: Self) -> Self { self / other }
            #[inline(always)]
            fn rem(self, other: Self) -> Self { self % other }
            // Of two zeros the signs meet: only -0 and -0 have -0 as the larger one, only +0 and +0 have +0 as the smaller one.
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                let zeros = $float::from_bits(self.to_bits() & other.to_bits());
                let larger = pick(self > other, self, other);
                pick(self.is_nan(), self, pick(self == other, zeros, larger))
            }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                let zeros = $float::from_bits(self.to_bits() | other.to_bits());
                let smaller = pick(self < other, self, other);
                pick(self.is_nan(), self, pick(self == other, zeros, smaller))
            }
            #[inline(always)]
            fn fma(self, factor: Self, term: Self) -> Self { self.mul_add(factor, term) }
        }

        impl Float for $float {
            #[inline(always)]
            fn floor(self) -> Self { $float::floor(self) }
            #[inline(always)]
            fn ceil(self) -> Self { $float::ceil(self) }
            #[inline(always)]
            fn round(self) -> Self { self.round_ties_even() }
            #[inline(always)]
            fn trunc(self) -> Self { $float::trunc(self) }
            #[inline(always)]
            fn sqrt(self) -> Self { $float::sqrt(self) }
            #[inline(always)]
            fn recip(self) -> Self { 1.0 / self }
            #[inline(always)]
            fn infinite(self) -> bool { self.is_infinite() }
            #[inline(always)]
            fn finite(self) -> bool { self.is_finite() }
        }
    )*};
}

floats! { f32 f64 }

macro_rules! ints {
    ($($int:ident abs $abs:ident sign $sign:ident;)*) => {$(
        impl Number for $int {
            #[inline(always)]
            fn neg(self) -> Self { self.wrapping_neg() }
            #[inline(always)]
            fn abs(self) -> Self { ints!(@$abs self) }
            #[inline(always)]
            fn sign(self) -> Self { ints!(@$sign self) }
            #[inline(always)]
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline(always)]
            fn sub(self, other: Self) -> Self { self.wrapping_sub(other) }
            #[inline(always)]
            fn mul(self, other: Self) -> Self { self.wrapping_mul(other) }
            #[inline(always)]
            fn div(self, other: Self) -> Self { if other == 0 { 0 } else { self.wrapping_div(other) } }
            #[inline(always)]
            fn rem(self, other: Self) -> Self { if other == 0 { self } else { self.wrapping_rem(other) } }
            #[inline(always)]
            fn larger(self, other: Self) -> Self { Ord::max(self, other) }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self { Ord::min(self, other) }
            #[inline(always)]
            fn fma(self, factor: Self, term: Self) -> Self { self.wrapping_mul(factor).wrapping_add(term) }
        }

        impl Int for $int {
            #[inline(always)]
            fn not(self) -> Self { !self }
            #[inline(always)]
            fn and(self, other: Self) -> Self { self & other }
            #[inline(always)]
            fn or(self, other: Self) -> Self { self | other }
            #[inline(always)]
            fn xor(self, other: Self) -> Self { self ^ other }
            // Widths are powers of two: the count modulo the width is its low bits, whatever its sign.
            #[inline(always)]
            fn shl(self, count: Self) -> Self { self.wrapping_shl(count as u32) }
            #[inline(always)]
            fn shr(self, count: Self) -> Self { self.wrapping_shr(count as u32) }
        }
    )*};
    (@wrapping $x:ident) => { $x.wrapping_abs() };
    (@same $x:ident) => { $x };
    (@signum $x:ident) => { $x.signum() };
    (@positive $x:ident) => { Ord::min($x, 1) };
}

ints! {
    i8 abs wrapping sign signum;
    i32 abs wrapping sign signum;
    i64 abs wrapping sign signum;
    u8 abs same sign positive;
    u32 abs same sign positive;
}

/// From rows `Op -> result: |operands| value` the lane types.
macro_rules! lanes {
    ($bound:ident: $($op:ident($a:ident) -> $out:ty = $value:expr;)*) => {$(
        struct $op<T>(PhantomData<T>);
        impl<T: $bound> Lane for $op<T> {
            type A = T;
            type B = ();
            type C = ();
            type Out = $out;
            #[inline(always)]
            fn lane($a: T, (): (), (): ()) -> $out { $value }
        }
    )*};
    ($bound:ident: $($op:ident($a:ident, $b:ident) -> $out:ty = $value:expr;)*) => {$(
        struct $op<T>(PhantomData<T>);
        impl<T: $bound> Lane for $op<T> {
            type A = T;
            type B = T;
            type C = ();
            type Out = $out;
            #[inline(always)]
            fn lane($a: T, $b: T, (): ()) -> $out { $value }
        }
    )*};
    ($bound:ident: $($op:ident($a:ident, $b:ident, $c:ident) -> $out:ty = $value:expr;)*) => {$(
        struct $op<T>(PhantomData<T>);
        impl<T: $bound> Lane for $op<T> {
            type A = T;
            type B = T;
            type C = T;
            type Out = $out;
            #[inline(always)]
            fn lane($a: T, $b: T, $c: T) -> $out { $value }
        }
    )*};
}

lanes! { Number:
    Neg(x) -> T = x.neg();
    Abs(x) -> T = x.abs();
    Sign(x) -> T = x.sign();
}
lanes! { Float:
    Floor(x) -> T = x.floor();
    Ceil(x) -> T = x.ceil();
    Round(x) -> T = x.round();
    Trunc(x) -> T = x.trunc();
    Sqrt(x) -> T = x.sqrt();
    Recip(x) -> T = x.recip();
    IsNan(x) -> u8 = u8::from(x.partial_cmp(&x).is_none());
    IsInf(x) -> u8 = u8::from(x.infinite());
    IsFinite(x) -> u8 = u8::from(x.finite());
}
lanes! { Int:
    Not(x) -> T = x.not();
}
lanes! { Number:
    Add(x, y) -> T = x.add(y);
    Sub(x, y) -> T = x.sub(y);
    Mul(x, y) -> T = x.mul(y);
    Div(x, y) -> T = x.div(y);
    Rem(x, y) -> T = x.rem(y);
    Max(x, y) -> T = x.larger(y);
    Min(x, y) -> T = x.smaller(y);
    Eq(x, y) -> u8 = u8::from(x == y);
    Ne(x, y) -> u8 = u8::from(x != y);
    Lt(x, y) -> u8 = u8::from(x < y);
    Le(x, y) -> u8 = u8::from(x <= y);
    Gt(x, y) -> u8 = u8::from(x > y);
    Ge(x, y) -> u8 = u8::from(x >= y);
}
lanes! { Int:
    And(x, y) -> T = x.and(y);
    Or(x, y) -> T = x.or(y);
    Xor(x, y) -> T = x.xor(y);
    Shl(x, y) -> T = x.shl(y);
    Shr(x, y) -> T = x.shr(y);
}
lanes! { Number:
    Clamp(x, low, high) -> T = x.larger(low).smaller(high);
    Fma(a, b, c) -> T = a.fma(b, c);
}

/// Logical not.
struct Negate;

impl Lane for Negate {
    type A = u8;
    type B = ();
    type C = ();
    type Out = u8;
    #[inline(always)]
    fn lane(x: u8, (): (), (): ()) -> u8 {
        x ^ 1
    }
}

/// `if condition { then } else { otherwise }` on lanes of some width.
struct Choose<T>(PhantomData<T>);

impl<T: Copy> Lane for Choose<T> {
    type A = u8;
    type B = T;
    type C = T;
    type Out = T;
    #[inline(always)]
    fn lane(condition: u8, then: T, otherwise: T) -> T {
        pick(condition != 0, then, otherwise)
    }
}

/// The loop of `select` on lanes of a representation.
pub(in crate::cpu) fn select(repr: Repr, isa: Isa) -> LaneLoop {
    by_repr!(repr, T => lane_loop::<Choose<T>>(isa))
}

/// The loop of `a * b + c`.
pub(in crate::cpu) fn fma(repr: Repr, isa: Isa) -> LaneLoop {
    by_repr!(repr, T => lane_loop::<Fma<T>>(isa), f32 => wide_loop::<Fma<f32>>(isa))
}

/// Whether the result on a 16-bit float must be rounded: not where it is one of the operands, an integer or a bool.
pub(in crate::cpu) fn rounds(op: ScalarOp) -> bool {
    use ScalarOp::*;
    match op {
        Neg | Abs | Sign | Floor | Ceil | Round | Trunc | Max | Min | Clamp => false,
        Not | And | Or | Xor | Shl | Shr | IsNan | IsInf | IsFinite | Eq | Ne | Lt | Le | Gt | Ge => false,
        Sqrt | Rsqrt | Recip | Exp | Exp2 | Expm1 | Log | Log2 | Log1p | Sin | Cos | Tan | Asin | Acos | Atan => true,
        Sinh | Cosh | Tanh | Asinh | Acosh | Atanh | Erf | Sigmoid | Add | Sub | Mul | Div | Rem | Pow | Atan2 => true,
    }
}

/// What an op runs on operands of a dtype.
///
/// # Panics
///
/// Where the op does not take the dtype: no checked graph lowers to that.
pub(in crate::cpu) fn scalar(op: ScalarOp, dtype: DType, isa: Isa) -> Work {
    let repr = Repr::of(dtype);
    let refuse = || -> ! { panic!("`{op}` does not take {dtype}") };
    macro_rules! number {
        ($lane:ident) => {
            Work::Lanes(by_repr!(repr, T => lane_loop::<$lane<T>>(isa), f32 => wide_loop::<$lane<f32>>(isa)))
        };
    }
    macro_rules! float {
        ($lane:ident) => {
            match repr {
                Repr::F32 => Work::Lanes(wide_loop::<$lane<f32>>(isa)),
                Repr::F64 => Work::Lanes(lane_loop::<$lane<f64>>(isa)),
                Repr::I8 | Repr::U8 | Repr::I32 | Repr::U32 | Repr::I64 => refuse(),
            }
        };
    }
    macro_rules! int {
        ($lane:ident) => {
            match repr {
                Repr::I8 => Work::Lanes(lane_loop::<$lane<i8>>(isa)),
                Repr::U8 => Work::Lanes(lane_loop::<$lane<u8>>(isa)),
                Repr::I32 => Work::Lanes(lane_loop::<$lane<i32>>(isa)),
                Repr::U32 => Work::Lanes(lane_loop::<$lane<u32>>(isa)),
                Repr::I64 => Work::Lanes(lane_loop::<$lane<i64>>(isa)),
                Repr::F32 | Repr::F64 => refuse(),
            }
        };
    }
    let unary = |function: UnaryMath| match repr {
        Repr::F32 => Work::Unary32(function),
        Repr::F64 => Work::Unary64(function),
        Repr::I8 | Repr::U8 | Repr::I32 | Repr::U32 | Repr::I64 => refuse(),
    };
    let binary = |function: BinaryMath| match repr {
        Repr::F32 => Work::Binary32(function),
        Repr::F64 => Work::Binary64(function),
        Repr::I8 | Repr::U8 | Repr::I32 | Repr::U32 | Repr::I64 => refuse(),
    };
    match op {
        ScalarOp::Neg => number!(Neg),
        ScalarOp::Abs => number!(Abs),
        ScalarOp::Sign => number!(Sign),
        ScalarOp::Floor => float!(Floor),
        ScalarOp::Ceil => float!(Ceil),
        ScalarOp::Round => float!(Round),
        ScalarOp::Trunc => float!(Trunc),
        ScalarOp::Sqrt => float!(Sqrt),
        ScalarOp::Rsqrt => unary(UnaryMath::Rsqrt),
        ScalarOp::Recip => float!(Recip),
        ScalarOp::Exp => unary(UnaryMath::Exp),
        ScalarOp::Exp2 => unary(UnaryMath::Exp2),
        ScalarOp::Expm1 => unary(UnaryMath::Expm1),
        ScalarOp::Log => unary(UnaryMath::Log),
        ScalarOp::Log2 => unary(UnaryMath::Log2),
        ScalarOp::Log1p => unary(UnaryMath::Log1p),
        ScalarOp::Sin => unary(UnaryMath::Sin),
        ScalarOp::Cos => unary(UnaryMath::Cos),
        ScalarOp::Tan => unary(UnaryMath::Tan),
        ScalarOp::Asin => unary(UnaryMath::Asin),
        ScalarOp::Acos => unary(UnaryMath::Acos),
        ScalarOp::Atan => unary(UnaryMath::Atan),
        ScalarOp::Sinh => unary(UnaryMath::Sinh),
        ScalarOp::Cosh => unary(UnaryMath::Cosh),
        ScalarOp::Tanh => unary(UnaryMath::Tanh),
        ScalarOp::Asinh => unary(UnaryMath::Asinh),
        ScalarOp::Acosh => unary(UnaryMath::Acosh),
        ScalarOp::Atanh => unary(UnaryMath::Atanh),
        ScalarOp::Erf => unary(UnaryMath::Erf),
        ScalarOp::Sigmoid => unary(UnaryMath::Sigmoid),
        ScalarOp::Not if dtype == DType::Bool => Work::Lanes(lane_loop::<Negate>(isa)),
        ScalarOp::Not => int!(Not),
        ScalarOp::IsNan => float!(IsNan),
        ScalarOp::IsInf => float!(IsInf),
        ScalarOp::IsFinite => float!(IsFinite),
        ScalarOp::Add => number!(Add),
        ScalarOp::Sub => number!(Sub),
        ScalarOp::Mul => number!(Mul),
        ScalarOp::Div => number!(Div),
        ScalarOp::Rem => number!(Rem),
        ScalarOp::Max => number!(Max),
        ScalarOp::Min => number!(Min),
        ScalarOp::Pow => binary(BinaryMath::Pow),
        ScalarOp::Atan2 => binary(BinaryMath::Atan2),
        ScalarOp::And => int!(And),
        ScalarOp::Or => int!(Or),
        ScalarOp::Xor => int!(Xor),
        ScalarOp::Shl => int!(Shl),
        ScalarOp::Shr => int!(Shr),
        ScalarOp::Eq => number!(Eq),
        ScalarOp::Ne => number!(Ne),
        ScalarOp::Lt => number!(Lt),
        ScalarOp::Le => number!(Le),
        ScalarOp::Gt => number!(Gt),
        ScalarOp::Ge => number!(Ge),
        ScalarOp::Clamp => number!(Clamp),
    }
}
