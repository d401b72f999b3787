//! The functions there are: one table row each, with name, bound, f32 kernel and f64 function.

use super::isa::Isa;
use super::lane::MulAdd;
use super::strip::{self, Binary, Unary};
use super::{double, error_function, exponential, hyperbolic, inverse_trigonometric, logarithm, power, trigonometric};

/// From rows `/// doc` `Name: "name", bound, kernel [beyond limit => kernel], f64 function;` the enum, its tables and its dispatch.
macro_rules! unary {
    ($($(#[$doc:meta])* $op:ident: $name:literal, $ulp:literal, $family:ident :: $kernel:ident $(beyond $limit:path => $beyond:ident)?, $double:path;)*) => {
        /// A function of one number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum UnaryMath { $($(#[$doc])* $op,)* }

        impl UnaryMath {
            /// Every function, in the order of the enum.
            pub const ALL: &[UnaryMath] = &[$(UnaryMath::$op),*];

            /// The name in lower case: `exp`, `log1p`.
            pub const fn name(self) -> &'static str {
                match self { $(UnaryMath::$op => $name),* }
            }

            /// The largest error of the f32 form, in units of the last place of the exact result (of the least
            /// subnormal where the result is subnormal), over all f32 and on every [`Isa`].
            pub const fn max_ulp(self) -> f64 {
                match self { $(UnaryMath::$op => $ulp),* }
            }
        }

        $(struct $op;

        impl Unary for $op {
            #[inline(always)]
            fn lane<M: MulAdd>(x: f32) -> f32 { $family::$kernel::<M>(x) }
            $(const LIMIT: f32 = $limit;
            fn beyond(x: f32) -> f32 { $family::$beyond(x) })?
        })*

        pub(super) fn unary_f32(isa: Isa, op: UnaryMath, input: &[f32], output: &mut [f32]) {
            match op { $(UnaryMath::$op => strip::unary::<$op>(isa, input, output)),* }
        }

        pub(super) fn unary_f64(op: UnaryMath) -> fn(f64) -> f64 {
            match op { $(UnaryMath::$op => $double),* }
        }
    };
}

macro_rules! binary {
    ($($(#[$doc:meta])* $op:ident: $name:literal, $ulp:literal, $family:ident :: $kernel:ident, $double:path;)*) => {
        /// A function of two numbers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum BinaryMath { $($(#[$doc])* $op,)* }

        impl BinaryMath {
            /// Every function, in the order of the enum.
            pub const ALL: &[BinaryMath] = &[$(BinaryMath::$op),*];

            /// The name in lower case: `pow`, `atan2`.
            pub const fn name(self) -> &'static str {
                match self { $(BinaryMath::$op => $name),* }
            }

            /// The largest error of the f32 form, as [`UnaryMath::max_ulp`].
            pub const fn max_ulp(self) -> f64 {
                match self { $(BinaryMath::$op => $ulp),* }
            }
        }

        $(struct $op;

        impl Binary for $op {
            #[inline(always)]
            fn lane<M: MulAdd>(left: f32, right: f32) -> f32 { $family::$kernel::<M>(left, right) }
        })*

        pub(super) fn binary_f32(isa: Isa, op: BinaryMath, left: &[f32], right: &[f32], output: &mut [f32]) {
            match op { $(BinaryMath::$op => strip::binary::<$op>(isa, left, right, output)),* }
        }

        pub(super) fn binary_f64(op: BinaryMath) -> fn(f64, f64) -> f64 {
            match op { $(BinaryMath::$op => $double),* }
        }
    };
}

unary! {
    /// e^x.
    Exp: "exp", 1.1, exponential::exp, f64::exp;
    /// 2^x.
    Exp2: "exp2", 1.2, exponential::exp2, f64::exp2;
    /// e^x - 1, with all its digits near 0.
    Expm1: "expm1", 0.51, exponential::expm1, f64::exp_m1;
    /// The natural logarithm.
    Log: "log", 1.0, logarithm::log, f64::ln;
    /// The logarithm to base 2.
    Log2: "log2", 1.0, logarithm::log2, f64::log2;
    /// ln(1 + x), with all its digits near 0.
    Log1p: "log1p", 1.1, logarithm::log1p, f64::ln_1p;
    /// The square root.
    Sqrt: "sqrt", 0.5, power::sqrt, f64::sqrt;
    /// 1 / sqrt(x).
    Rsqrt: "rsqrt", 1.5, power::rsqrt, double::rsqrt;
    /// The sine of x radians.
    Sin: "sin", 1.75, trigonometric::sin beyond trigonometric::LIMIT => sin_beyond, f64::sin;
    /// The cosine of x radians.
    Cos: "cos", 1.75, trigonometric::cos beyond trigonometric::LIMIT => cos_beyond, f64::cos;
    /// The tangent of x radians.
    Tan: "tan", 0.51, trigonometric::tan beyond trigonometric::LIMIT => tan_beyond, f64::tan;
    /// The angle in `[-pi/2, pi/2]` whose sine is x.
    Asin: "asin", 0.51, inverse_trigonometric::asin, f64::asin;
    /// The angle in `[0, pi]` whose cosine is x.
    Acos: "acos", 0.51, inverse_trigonometric::acos, f64::acos;
    /// The angle in `[-pi/2, pi/2]` whose tangent is x.
    Atan: "atan", 0.51, inverse_trigonometric::atan, f64::atan;
    /// The hyperbolic sine.
    Sinh: "sinh", 0.51, hyperbolic::sinh, f64::sinh;
    /// The hyperbolic cosine.
    Cosh: "cosh", 0.51, hyperbolic::cosh, f64::cosh;
    /// The hyperbolic tangent.
    Tanh: "tanh", 1.5, hyperbolic::tanh, f64::tanh;
    /// The inverse hyperbolic sine.
    Asinh: "asinh", 0.51, hyperbolic::asinh, libm::asinh;
    /// The inverse hyperbolic cosine.
    Acosh: "acosh", 0.51, hyperbolic::acosh, double::acosh;
    /// The inverse hyperbolic tangent.
    Atanh: "atanh", 0.51, hyperbolic::atanh, libm::atanh;
    /// The error function.
    Erf: "erf", 1.5, error_function::erf, libm::erf;
    /// 1 - erf(x), with all its digits where it is small.
    Erfc: "erfc", 0.51, error_function::erfc, libm::erfc;
    /// The logistic function 1 / (1 + e^-x).
    Sigmoid: "sigmoid", 2.0, exponential::sigmoid, double::sigmoid;
}

binary! {
    /// Left to the power of right, special cases as in C.
    Pow: "pow", 0.51, power::pow, f64::powf;
    /// The angle in `[-pi, pi]` of the point `(right, left)`, special cases as in C.
    Atan2: "atan2", 0.51, inverse_trigonometric::atan2, f64::atan2;
}
