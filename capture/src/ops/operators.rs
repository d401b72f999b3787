//! Operators between tensors, and between tensors and numbers on either side.
//!
//! On the right any number will do. On the left the types are `f64` and `i32`, those of unsuffixed numbers, and no others: were there two
//! float types to choose from, the compiler could not tell the type of `(1.0 - &x)` before a method is called on it.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Shl, Shr, Sub};

use kiln_ir::ScalarOp;

use crate::Tensor;
use crate::operand::{Operand, binary};

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident: $($number:ty)*;)*) => {$(
        operators!(@right $trait $method $op, Tensor);
        operators!(@right $trait $method $op, &Tensor);
        $(
            operators!(@left $trait $method $op, $number, Tensor);
            operators!(@left $trait $method $op, $number, &Tensor);
        )*
    )*};
    (@right $trait:ident $method:ident $op:ident, $lhs:ty) => {
        impl<R: Into<Operand>> $trait<R> for $lhs {
            type Output = Tensor;

            #[track_caller]
            fn $method(self, rhs: R) -> Tensor {
                binary(ScalarOp::$op, self, rhs)
            }
        }
    };
    (@left $trait:ident $method:ident $op:ident, $lhs:ty, $rhs:ty) => {
        impl $trait<$rhs> for $lhs {
            type Output = Tensor;

            #[track_caller]
            fn $method(self, rhs: $rhs) -> Tensor {
                binary(ScalarOp::$op, self, rhs)
            }
        }
    };
}

operators! {
    Add add Add: f64 i32;
    Sub sub Sub: f64 i32;
    Mul mul Mul: f64 i32;
    Div div Div: f64 i32;
    Rem rem Rem: f64 i32;
    BitAnd bitand And: i32 bool;
    BitOr bitor Or: i32 bool;
    BitXor bitxor Xor: i32 bool;
    Shl shl Shl: i32;
    Shr shr Shr: i32;
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
