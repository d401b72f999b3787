//! The elementwise ops: one table row each.
//!
//! A row gives the name, the number of operands, the dtype rule, what the simplifier may assume, the value on floats and on integers,
//! the gradient, and one line of documentation. Values are computed wide (`f64`, `i128`) and rounded or wrapped to the op's dtype by the caller:
//! for `f32` and narrower this is the correctly rounded result of `+ - * / sqrt`. The table is the definition of each op; backends are
//! tested against it.

use std::fmt;

use std::f64::consts::{FRAC_2_SQRT_PI, LN_2};

use crate::grad::scalar as rules;
use crate::grad::scalar::ScalarGradient::{self, Each, Zero};
use crate::{DType, Literal};

/// Which dtypes an elementwise op takes and what it gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DTypeRule {
    /// Floats, all of one dtype, giving that dtype.
    Float,
    /// Floats or integers, all of one dtype, giving that dtype.
    Number,
    /// Integers of one dtype, giving that dtype.
    Int,
    /// Integers or bools of one dtype, giving that dtype.
    IntOrBool,
    /// Floats or integers of one dtype, giving bool.
    CompareNumber,
    /// Any one dtype, giving bool.
    CompareAny,
    /// Floats, giving bool.
    TestFloat,
}

/// Whether IEEE 754 (or integer arithmetic) fixes every bit of the result, so that a host may compute it in a target's stead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exactness {
    /// The same bits on every conforming machine.
    Exact,
    /// A transcendental function: right within a tolerance, never folded on the host.
    Approximate,
}

/// Whether the first two operands may change places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Symmetry {
    /// `f(a, b) = f(b, a)`.
    Commutative,
    /// The order counts.
    Ordered,
}

/// The value of an op on up to three floats.
pub type FloatValue = fn(f64, f64, f64) -> f64;

/// The value of an op on up to three integers of a dtype.
pub type IntValue = fn(DType, i128, i128, i128) -> i128;

/// One row of the table of elementwise ops.
#[derive(Debug)]
pub struct ScalarRow {
    /// The op of this row.
    pub op: ScalarOp,
    /// Its name in the text form.
    pub name: &'static str,
    /// Number of operands.
    pub arity: usize,
    /// Dtypes taken and given.
    pub rule: DTypeRule,
    /// May a host compute it?
    pub exactness: Exactness,
    /// May operands be swapped?
    pub symmetry: Symmetry,
    /// The value on floats; comparisons give 0 or 1.
    pub float: Option<FloatValue>,
    /// The value on integers and bools (0 or 1) of a dtype, before wrapping.
    pub int: Option<IntValue>,
    /// The gradient of each operand: a formula in the arriving gradient `g`, the operands `a b c` and the result `y`.
    pub(crate) gradient: ScalarGradient,
    /// What it computes, in one line.
    pub doc: &'static str,
}

macro_rules! scalar_ops {
    ($($variant:ident $name:literal $arity:literal $rule:ident $exactness:ident $symmetry:ident
        float $float:expr, int $int:expr, gradient $gradient:expr, $doc:literal;)*) => {
        /// An elementwise op. `ScalarOp::row` gives its row of the table.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ScalarOp {
            $(#[doc = $doc] $variant,)*
        }

        impl ScalarOp {
            /// Every elementwise op, in table order.
            pub const ALL: &'static [ScalarOp] = &[$(ScalarOp::$variant),*];
        }

        static TABLE: &[ScalarRow] = &[$(ScalarRow {
            op: ScalarOp::$variant,
            name: $name,
            arity: $arity,
            rule: DTypeRule::$rule,
            exactness: Exactness::$exactness,
            symmetry: Symmetry::$symmetry,
            float: $float,
            int: $int,
            gradient: $gradient,
            doc: $doc,
        },)*];
    };
}

scalar_ops! {
    Neg "neg" 1 Number Exact Ordered float Some(|x, _, _| -x), int Some(|_, x, _, _| -x), gradient Each(&[|p| -p.g]), "`-x`; integers wrap.";
    Abs "abs" 1 Number Exact Ordered float Some(|x, _, _| x.abs()), int Some(|_, x, _, _| x.abs()), gradient Each(&[|p| p.g * p.a.map(ScalarOp::Sign)]), "`|x|`; the smallest integer stays itself.";
    Sign "sign" 1 Number Exact Ordered float Some(|x, _, _| sign(x)), int Some(|_, x, _, _| x.signum()), gradient Zero, "-1, 0 or 1 by the sign of `x`; zeros and NaN stay themselves.";
    Floor "floor" 1 Float Exact Ordered float Some(|x, _, _| x.floor()), int None, gradient Zero, "The largest integer not above `x`.";
    Ceil "ceil" 1 Float Exact Ordered float Some(|x, _, _| x.ceil()), int None, gradient Zero, "The smallest integer not below `x`.";
    Round "round" 1 Float Exact Ordered float Some(|x, _, _| x.round_ties_even()), int None, gradient Zero, "The nearest integer, ties to even.";
    Trunc "trunc" 1 Float Exact Ordered float Some(|x, _, _| x.trunc()), int None, gradient Zero, "`x` without its fraction.";
    Sqrt "sqrt" 1 Float Exact Ordered float Some(|x, _, _| x.sqrt()), int None, gradient Each(&[|p| p.g * (0.5 / p.y)]), "The square root; NaN below 0.";
    Rsqrt "rsqrt" 1 Float Approximate Ordered float Some(|x, _, _| 1.0 / x.sqrt()), int None, gradient Each(&[|p| p.g * (p.y * p.y * p.y * -0.5)]), "`1 / sqrt(x)`.";
    Recip "recip" 1 Float Exact Ordered float Some(|x, _, _| 1.0 / x), int None, gradient Each(&[|p| p.g * -(p.y * p.y)]), "`1 / x`.";
    Exp "exp" 1 Float Approximate Ordered float Some(|x, _, _| x.exp()), int None, gradient Each(&[|p| p.g * p.y]), "e to the `x`.";
    Exp2 "exp2" 1 Float Approximate Ordered float Some(|x, _, _| x.exp2()), int None, gradient Each(&[|p| p.g * (p.y * LN_2)]), "2 to the `x`.";
    Expm1 "expm1" 1 Float Approximate Ordered float Some(|x, _, _| x.exp_m1()), int None, gradient Each(&[|p| p.g * p.a.map(ScalarOp::Exp)]), "`exp(x) - 1`, accurate near 0.";
    Log "log" 1 Float Approximate Ordered float Some(|x, _, _| x.ln()), int None, gradient Each(&[|p| p.g / p.a]), "The natural logarithm.";
    Log2 "log2" 1 Float Approximate Ordered float Some(|x, _, _| x.log2()), int None, gradient Each(&[|p| p.g / (p.a * LN_2)]), "The logarithm to base 2.";
    Log1p "log1p" 1 Float Approximate Ordered float Some(|x, _, _| x.ln_1p()), int None, gradient Each(&[|p| p.g / (p.a + 1.0)]), "`log(1 + x)`, accurate near 0.";
    Sin "sin" 1 Float Approximate Ordered float Some(|x, _, _| x.sin()), int None, gradient Each(&[|p| p.g * p.a.map(ScalarOp::Cos)]), "The sine, in radians.";
    Cos "cos" 1 Float Approximate Ordered float Some(|x, _, _| x.cos()), int None, gradient Each(&[|p| p.g * -p.a.map(ScalarOp::Sin)]), "The cosine, in radians.";
    Tan "tan" 1 Float Approximate Ordered float Some(|x, _, _| x.tan()), int None, gradient Each(&[|p| p.g * (p.y * p.y + 1.0)]), "The tangent, in radians.";
    Asin "asin" 1 Float Approximate Ordered float Some(|x, _, _| x.asin()), int None, gradient Each(&[|p| p.g / ((1.0 - p.a) * (p.a + 1.0)).map(ScalarOp::Sqrt)]), "The inverse sine.";
    Acos "acos" 1 Float Approximate Ordered float Some(|x, _, _| x.acos()), int None, gradient Each(&[|p| -p.g / ((1.0 - p.a) * (p.a + 1.0)).map(ScalarOp::Sqrt)]), "The inverse cosine.";
    Atan "atan" 1 Float Approximate Ordered float Some(|x, _, _| x.atan()), int None, gradient Each(&[|p| p.g / (p.a * p.a + 1.0)]), "The inverse tangent.";
    Sinh "sinh" 1 Float Approximate Ordered float Some(|x, _, _| x.sinh()), int None, gradient Each(&[|p| p.g * p.a.map(ScalarOp::Cosh)]), "The hyperbolic sine.";
    Cosh "cosh" 1 Float Approximate Ordered float Some(|x, _, _| x.cosh()), int None, gradient Each(&[|p| p.g * p.a.map(ScalarOp::Sinh)]), "The hyperbolic cosine.";
    Tanh "tanh" 1 Float Approximate Ordered float Some(|x, _, _| x.tanh()), int None, gradient Each(&[|p| p.g * (1.0 - p.y * p.y)]), "The hyperbolic tangent.";
    Asinh "asinh" 1 Float Approximate Ordered float Some(|x, _, _| libm::asinh(x)), int None, gradient Each(&[rules::asinh]), "The inverse hyperbolic sine.";
    Acosh "acosh" 1 Float Approximate Ordered float Some(|x, _, _| acosh(x)), int None, gradient Each(&[|p| p.g / ((p.a - 1.0).map(ScalarOp::Sqrt) * (p.a + 1.0).map(ScalarOp::Sqrt))]), "The inverse hyperbolic cosine.";
    Atanh "atanh" 1 Float Approximate Ordered float Some(|x, _, _| libm::atanh(x)), int None, gradient Each(&[|p| p.g / ((1.0 - p.a) * (p.a + 1.0))]), "The inverse hyperbolic tangent.";
    Erf "erf" 1 Float Approximate Ordered float Some(|x, _, _| libm::erf(x)), int None, gradient Each(&[|p| p.g * ((-(p.a * p.a)).map(ScalarOp::Exp) * FRAC_2_SQRT_PI)]), "The error function.";
    Sigmoid "sigmoid" 1 Float Approximate Ordered float Some(|x, _, _| sigmoid(x)), int None, gradient Each(&[|p| p.g * (p.y * (1.0 - p.y))]), "The logistic function `1 / (1 + exp(-x))`, accurate on both sides.";
    Not "not" 1 IntOrBool Exact Ordered float None, int Some(|dtype, x, _, _| if dtype == DType::Bool { 1 - x } else { !x }), gradient Zero, "Logical not of bools, bitwise not of integers.";
    IsNan "is_nan" 1 TestFloat Exact Ordered float Some(|x, _, _| truth(x.is_nan())), int None, gradient Zero, "Whether `x` is NaN.";
    IsInf "is_inf" 1 TestFloat Exact Ordered float Some(|x, _, _| truth(x.is_infinite())), int None, gradient Zero, "Whether `x` is an infinity.";
    IsFinite "is_finite" 1 TestFloat Exact Ordered float Some(|x, _, _| truth(x.is_finite())), int None, gradient Zero, "Whether `x` is neither NaN nor an infinity.";
    Add "add" 2 Number Exact Commutative float Some(|x, y, _| x + y), int Some(|_, x, y, _| x + y), gradient Each(&[|p| p.g, |p| p.g]), "`x + y`; integers wrap.";
    Sub "sub" 2 Number Exact Ordered float Some(|x, y, _| x - y), int Some(|_, x, y, _| x - y), gradient Each(&[|p| p.g, |p| -p.g]), "`x - y`; integers wrap.";
    Mul "mul" 2 Number Exact Commutative float Some(|x, y, _| x * y), int Some(|_, x, y, _| x * y), gradient Each(&[|p| p.g * p.b, |p| p.g * p.a]), "`x * y`; integers wrap.";
    Div "div" 2 Number Exact Ordered float Some(|x, y, _| x / y), int Some(|_, x, y, _| if y == 0 { 0 } else { x / y }), gradient Each(&[|p| p.g / p.b, |p| p.g * -(p.y / p.b)]), "`x / y`; integers truncate toward 0, and give 0 where `y` is 0.";
    Rem "rem" 2 Number Exact Ordered float Some(|x, y, _| x % y), int Some(|_, x, y, _| if y == 0 { x } else { x % y }), gradient Each(&[|p| p.g, rules::rem_divisor]), "The remainder of truncating division, with the sign of `x`; integers give `x` where `y` is 0.";
    Max "max" 2 Number Exact Commutative float Some(|x, y, _| maximum(x, y)), int Some(|_, x, y, _| x.max(y)), gradient Each(&[|p| rules::larger(p.g, p.a, p.b), |p| rules::larger(p.g, p.b, p.a)]), "The larger one; NaN if either is, and +0 above -0.";
    Min "min" 2 Number Exact Commutative float Some(|x, y, _| -maximum(-x, -y)), int Some(|_, x, y, _| x.min(y)), gradient Each(&[|p| rules::smaller(p.g, p.a, p.b), |p| rules::smaller(p.g, p.b, p.a)]), "The smaller one; NaN if either is, and -0 below +0.";
    Pow "pow" 2 Float Approximate Ordered float Some(|x, y, _| x.powf(y)), int None, gradient Each(&[rules::pow_base, rules::pow_exponent]), "`x` to the `y`; `pow(x, 0)` is 1, NaN for a negative base with a fractional exponent.";
    Atan2 "atan2" 2 Float Approximate Ordered float Some(|x, y, _| x.atan2(y)), int None, gradient Each(&[|p| rules::angle(p, p.b), |p| -rules::angle(p, p.a)]), "The angle of the point (`y`, `x`): `atan2(sin, cos)`.";
    And "and" 2 IntOrBool Exact Commutative float None, int Some(|_, x, y, _| x & y), gradient Zero, "Logical and of bools, bitwise of integers.";
    Or "or" 2 IntOrBool Exact Commutative float None, int Some(|_, x, y, _| x | y), gradient Zero, "Logical or of bools, bitwise of integers.";
    Xor "xor" 2 IntOrBool Exact Commutative float None, int Some(|_, x, y, _| x ^ y), gradient Zero, "Logical exclusive or of bools, bitwise of integers.";
    Shl "shl" 2 Int Exact Ordered float None, int Some(|dtype, x, y, _| x << shift_count(dtype, y)), gradient Zero, "`x << y`, the count taken modulo the width.";
    Shr "shr" 2 Int Exact Ordered float None, int Some(|dtype, x, y, _| x >> shift_count(dtype, y)), gradient Zero, "`x >> y`, arithmetic on signed integers, the count taken modulo the width.";
    Eq "eq" 2 CompareAny Exact Commutative float Some(|x, y, _| truth(x == y)), int Some(|_, x, y, _| i128::from(x == y)), gradient Zero, "`x == y`; false for NaN.";
    Ne "ne" 2 CompareAny Exact Commutative float Some(|x, y, _| truth(x != y)), int Some(|_, x, y, _| i128::from(x != y)), gradient Zero, "`x != y`; true for NaN.";
    Lt "lt" 2 CompareNumber Exact Ordered float Some(|x, y, _| truth(x < y)), int Some(|_, x, y, _| i128::from(x < y)), gradient Zero, "`x < y`; false for NaN.";
    Le "le" 2 CompareNumber Exact Ordered float Some(|x, y, _| truth(x <= y)), int Some(|_, x, y, _| i128::from(x <= y)), gradient Zero, "`x <= y`; false for NaN.";
    Gt "gt" 2 CompareNumber Exact Ordered float Some(|x, y, _| truth(x > y)), int Some(|_, x, y, _| i128::from(x > y)), gradient Zero, "`x > y`; false for NaN.";
    Ge "ge" 2 CompareNumber Exact Ordered float Some(|x, y, _| truth(x >= y)), int Some(|_, x, y, _| i128::from(x >= y)), gradient Zero, "`x >= y`; false for NaN.";
    Clamp "clamp" 3 Number Exact Ordered float Some(|x, low, high| -maximum(-maximum(x, low), -high)), int Some(|_, x, low, high| x.max(low).min(high)), gradient Each(&[rules::clamp_input, rules::clamp_low, rules::clamp_high]), "`min(max(x, low), high)`; NaN stays NaN.";
}

impl ScalarOp {
    /// This op's row of the table.
    pub fn row(self) -> &'static ScalarRow {
        &TABLE[self as usize]
    }

    /// The name in the text form.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Number of operands.
    pub fn arity(self) -> usize {
        self.row().arity
    }

    /// The dtype of the result where the operands have dtype `operand`, or `None` where the op does not take it.
    pub fn result_dtype(self, operand: DType) -> Option<DType> {
        let (float, int) = (operand.is_float(), operand.is_int());
        match self.row().rule {
            DTypeRule::Float => float.then_some(operand),
            DTypeRule::Number => (float || int).then_some(operand),
            DTypeRule::Int => int.then_some(operand),
            DTypeRule::IntOrBool => (!float).then_some(operand),
            DTypeRule::CompareNumber => (float || int).then_some(DType::Bool),
            DTypeRule::CompareAny => Some(DType::Bool),
            DTypeRule::TestFloat => float.then_some(DType::Bool),
        }
    }

    /// The value on operands of one dtype, rounded or wrapped to the result's dtype. `None` where the op does not take the dtype or
    /// the number of operands is wrong.
    ///
    /// ```
    /// use kiln_ir::{DType, Literal, ScalarOp};
    /// let big = Literal::from_i128(DType::U8, 200);
    /// assert_eq!(ScalarOp::Add.eval(&[big, big]), Some(Literal::from_i128(DType::U8, 144)));
    /// ```
    pub fn eval(self, operands: &[Literal]) -> Option<Literal> {
        let row = self.row();
        let dtype = operands.first()?.dtype();
        let result = self.result_dtype(dtype)?;
        if operands.len() != row.arity || operands.iter().any(|operand| operand.dtype() != dtype) {
            return None;
        }
        let operand = |index: usize| operands.get(index).copied().unwrap_or(operands[0]);
        if dtype.is_float() {
            let value = row.float?(operand(0).to_f64(), operand(1).to_f64(), operand(2).to_f64());
            Some(Literal::from_f64(result, value))
        } else {
            let value = row.int?(dtype, operand(0).to_i128(), operand(1).to_i128(), operand(2).to_i128());
            Some(Literal::from_i128(result, value))
        }
    }
}

impl fmt::Display for ScalarOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for ScalarOp {
    type Err = ();

    fn from_str(text: &str) -> Result<ScalarOp, ()> {
        TABLE.iter().find(|row| row.name == text).map(|row| row.op).ok_or(())
    }
}

fn truth(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

fn sign(x: f64) -> f64 {
    if x == 0.0 || x.is_nan() { x } else { 1f64.copysign(x) }
}

fn maximum(x: f64, y: f64) -> f64 {
    if x.is_nan() || y.is_nan() {
        f64::NAN
    } else if x > y || (x == y && x.is_sign_positive()) {
        x
    } else {
        y
    }
}

/// NaN below 1, where some libraries go astray.
fn acosh(x: f64) -> f64 {
    if x < 1.0 { f64::NAN } else { libm::acosh(x) }
}

fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 {
        1.0 / (1.0 + (-x).exp())
    } else {
        let e = x.exp();
        e / (1.0 + e)
    }
}

fn shift_count(dtype: DType, count: i128) -> u32 {
    count.rem_euclid(8 * dtype.size() as i128) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_stands_in_the_order_of_the_enum() {
        for (index, &op) in ScalarOp::ALL.iter().enumerate() {
            assert_eq!(op as usize, index);
            assert_eq!(op.row().op, op);
            assert_eq!(op.name().parse(), Ok(op));
        }
    }

    #[test]
    fn a_row_has_a_value_for_each_kind_its_rule_takes() {
        for &op in ScalarOp::ALL {
            let row = op.row();
            assert_eq!(row.float.is_some(), op.result_dtype(DType::F32).is_some(), "{op}");
            let ints = op.result_dtype(DType::I32).is_some() || op.result_dtype(DType::Bool).is_some();
            assert_eq!(row.int.is_some(), ints, "{op}");
        }
    }

    #[test]
    fn integer_edges_follow_the_semantics() {
        let eval = |op: ScalarOp, a: i128, b: i128| {
            let args = [Literal::from_i128(DType::I32, a), Literal::from_i128(DType::I32, b)];
            op.eval(&args[..op.arity()]).map(Literal::to_i128)
        };
        let min = i128::from(i32::MIN);
        assert_eq!(eval(ScalarOp::Div, min, -1), Some(min));
        assert_eq!(eval(ScalarOp::Rem, min, -1), Some(0));
        assert_eq!(eval(ScalarOp::Div, 7, 0), Some(0));
        assert_eq!(eval(ScalarOp::Rem, 7, 0), Some(7));
        assert_eq!(eval(ScalarOp::Div, -7, 2), Some(-3));
        assert_eq!(eval(ScalarOp::Neg, min, 0), Some(min));
        assert_eq!(eval(ScalarOp::Abs, min, 0), Some(min));
        assert_eq!(eval(ScalarOp::Mul, 65536, 65536), Some(0));
        assert_eq!(eval(ScalarOp::Shl, 1, 33), Some(2));
        assert_eq!(eval(ScalarOp::Shr, -8, 1), Some(-4));
    }

    #[test]
    fn minimum_and_maximum_keep_nan_and_order_zeros() {
        let eval = |op: ScalarOp, a: f64, b: f64| {
            op.eval(&[Literal::from_f64(DType::F32, a), Literal::from_f64(DType::F32, b)]).map(Literal::to_f64)
        };
        assert!(eval(ScalarOp::Max, f64::NAN, 1.0).is_some_and(f64::is_nan));
        assert!(eval(ScalarOp::Min, 1.0, f64::NAN).is_some_and(f64::is_nan));
        assert!(eval(ScalarOp::Max, -0.0, 0.0).is_some_and(f64::is_sign_positive));
        assert!(eval(ScalarOp::Min, 0.0, -0.0).is_some_and(f64::is_sign_negative));
    }
}
