//! Operators between tensors, and between tensors and numbers on either side.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Shl, Shr, Sub};

use kiln_ir::ScalarOp;

use crate::Tensor;
use crate::operand::binary;

macro_rules! between_tensors {
    ($($trait:ident $method:ident $op:ident;)*) => {$(
        between_tensors!(@one $trait $method $op, Tensor, Tensor);
        between_tensors!(@one $trait $method $op, Tensor, &Tensor);
        between_tensors!(@one $trait $method $op, &Tensor, Tensor);
        between_tensors!(@one $trait $method $op, &Tensor, &Tensor);
    )*};
    (@one $trait:ident $method:ident $op:ident, $lhs:ty, $rhs:ty) => {
        impl $trait<$rhs> for $lhs {
            type Output = Tensor;

            #[track_caller]
            fn $method(self, rhs: $rhs) -> Tensor {
                binary(ScalarOp::$op, self, rhs)
            }
        }
    };
}

between_tensors! {
    Add add Add;
    Sub sub Sub;
    Mul mul Mul;
    Div div Div;
    Rem rem Rem;
    BitAnd bitand And;
    BitOr bitor Or;
    BitXor bitxor Xor;
    Shl shl Shl;
    Shr shr Shr;
}

macro_rules! with_numbers {
    ($($trait:ident $method:ident $op:ident: $($number:ty)*;)*) => {$($(
        with_numbers!(@one $trait $method $op, Tensor, $number);
        with_numbers!(@one $trait $method $op, &Tensor, $number);
        with_numbers!(@one $trait $method $op, $number, Tensor);
        with_numbers!(@one $trait $method $op, $number, &Tensor);
    )*)*};
    (@one $trait:ident $method:ident $op:ident, $lhs:ty, $rhs:ty) => {
        impl $trait<$rhs> for $lhs {
            type Output = Tensor;

            #[track_caller]
            fn $method(self, rhs: $rhs) -> Tensor {
                binary(ScalarOp::$op, self, rhs)
            }
        }
    };
}

with_numbers! {
    Add add Add: f32 f64 i32 i64;
    Sub sub Sub: f32 f64 i32 i64;
    Mul mul Mul: f32 f64 i32 i64;
    Div div Div: f32 f64 i32 i64;
    Rem rem Rem: f32 f64 i32 i64;
    BitAnd bitand And: i32 i64 bool;
    BitOr bitor Or: i32 i64 bool;
    BitXor bitxor Xor: i32 i64 bool;
    Shl shl Shl: i32 i64;
    Shr shr Shr: i32 i64;
}

impl Neg for Tensor {
    type Output = Tensor;

    #[track_caller]
    fn neg(self) -> Tensor {
        Tensor::neg(&self)
    }
}

impl Neg for &Tensor {
    type Output = Tensor;

    #[track_caller]
    fn neg(self) -> Tensor {
        Tensor::neg(self)
    }
}

impl Not for Tensor {
    type Output = Tensor;

    #[track_caller]
    fn not(self) -> Tensor {
        self.logical_not()
    }
}

impl Not for &Tensor {
    type Output = Tensor;

    #[track_caller]
    fn not(self) -> Tensor {
        self.logical_not()
    }
}
