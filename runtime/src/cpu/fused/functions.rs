//! Instructions of kernels as vector operations.
//!
//! Everything gives the bits that the loops over strips give (`lanes/scalar.rs`, `vmath`): the same steps in the same order, on vectors
//! instead of lanes. What a function of many steps is made of is told there.

use kiln_ir::kernel::{Instruction, Operation as Kernel};
use kiln_ir::{DType, Literal, ScalarOp};

use super::vector::{Direction, One, Predicate, Two, V, Writer};
use crate::cpu::vmath::coefficients::*;
use crate::cpu::vmath::{Isa, Level};

/// Bits of the sign.
const SIGN: u32 = 1 << 31;

/// Whether an instruction had better be part of a vector program. `of` gives the dtypes of its operands.
///
/// Vectors are AVX2's. Where the machine has wider ones, functions of many steps are faster in loops of their own, which take all of them.
pub(in crate::cpu) fn fits(instruction: &Instruction, isa: Isa, of: impl Fn(kiln_ir::kernel::Reg) -> DType) -> bool {
    let floats = instruction.dtype == DType::F32;
    match &instruction.operation {
        Kernel::Scalar(op, operands) => match of(operands[0]) {
            DType::F32 => float_op(*op) && (!is_function(*op) || isa.0 == Level::Avx2),
            DType::Bool => matches!(op, ScalarOp::Not | ScalarOp::And | ScalarOp::Or | ScalarOp::Xor),
            DType::F16 | DType::BF16 | DType::F64 => false,
            DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 => false,
        },
        Kernel::Fma(..) | Kernel::Select { .. } => floats,
        Kernel::Cast(operand) => floats && matches!(of(*operand), DType::F32 | DType::I32 | DType::Bool),
        Kernel::Literal(_)
        | Kernel::Index(_)
        | Kernel::Load { .. }
        | Kernel::Within(_)
        | Kernel::Bitcast(_)
        | Kernel::Random { .. } => false,
    }
}

/// Whether an op is a function of many steps.
fn is_function(op: ScalarOp) -> bool {
    matches!(op, ScalarOp::Exp | ScalarOp::Exp2 | ScalarOp::Log | ScalarOp::Tanh | ScalarOp::Erf | ScalarOp::Sigmoid)
}

/// Whether an op on `f32` has vector operations here.
fn float_op(op: ScalarOp) -> bool {
    use ScalarOp::*;
    match op {
        Neg | Abs | Sign | Floor | Ceil | Round | Trunc | Sqrt | Rsqrt | Recip | IsNan | IsInf | IsFinite => true,
        Exp | Exp2 | Log | Tanh | Erf | Sigmoid => true,
        Add | Sub | Mul | Div | Max | Min | Clamp | Eq | Ne | Lt | Le | Gt | Ge => true,
        Expm1 | Log2 | Log1p | Sin | Cos | Tan | Asin | Acos | Atan | Sinh | Cosh | Asinh | Acosh | Atanh => false,
        Rem | Pow | Atan2 | Not | And | Or | Xor | Shl | Shr => false,
    }
}

impl Writer {
    /// An instruction that [`fits`], of operands that are values already; bools are masks.
    pub(in crate::cpu) fn instruction(&mut self, instruction: &Instruction, from: DType, operands: &[V]) -> V {
        match &instruction.operation {
            Kernel::Scalar(op, _) if from == DType::Bool => self.logic(*op, operands),
            Kernel::Scalar(op, _) => self.scalar(*op, operands),
            Kernel::Fma(..) => self.mul_add(operands[0], operands[1], operands[2]),
            Kernel::Select { .. } => self.select(operands[0], operands[1], operands[2]),
            Kernel::Cast(_) => match from {
                DType::I32 => self.one(One::ToFloat, operands[0]),
                DType::Bool => {
                    let one = self.number(1.0);
                    self.two(Two::And, operands[0], one)
                }
                _ => operands[0],
            },
            Kernel::Literal(_)
            | Kernel::Index(_)
            | Kernel::Load { .. }
            | Kernel::Within(_)
            | Kernel::Bitcast(_)
            | Kernel::Random { .. } => unreachable!("only what fits is written"),
        }
    }

    /// A literal in every lane, as a mask where it is a bool.
    pub(in crate::cpu) fn literal(&mut self, literal: Literal) -> V {
        match literal.dtype() {
            DType::Bool => self.bits(if literal.bits() != 0 { u32::MAX } else { 0 }),
            _ => self.bits(literal.bits() as u32),
        }
    }

    fn logic(&mut self, op: ScalarOp, operands: &[V]) -> V {
        match (op, operands) {
            (ScalarOp::And, &[a, b]) => self.two(Two::And, a, b),
            (ScalarOp::Or, &[a, b]) => self.two(Two::Or, a, b),
            (ScalarOp::Xor, &[a, b]) => self.two(Two::Xor, a, b),
            _ => {
                let all = self.bits(u32::MAX);
                self.two(Two::Xor, operands[0], all)
            }
        }
    }

    fn scalar(&mut self, op: ScalarOp, operands: &[V]) -> V {
        use ScalarOp::*;
        let (x, y) = (operands[0], operands.get(1).copied().unwrap_or(operands[0]));
        match op {
            Neg => {
                let sign = self.bits(SIGN);
                self.two(Two::Xor, x, sign)
            }
            Abs => self.abs(x),
            Sign => {
                let (zero, one) = (self.number(0.0), self.number(1.0));
                let (same, unit) = (self.compare(Predicate::EqualOrNot, x, zero), self.copy_sign(one, x));
                self.select(same, x, unit)
            }
            Floor => self.one(One::Round(Direction::Down), x),
            Ceil => self.one(One::Round(Direction::Up), x),
            Round => self.one(One::Round(Direction::Nearest), x),
            Trunc => self.one(One::Round(Direction::Zero), x),
            Sqrt => self.one(One::Sqrt, x),
            Rsqrt => {
                let (one, root) = (self.number(1.0), self.one(One::Sqrt, x));
                self.div(one, root)
            }
            Recip => {
                let one = self.number(1.0);
                self.div(one, x)
            }
            IsNan => self.compare(Predicate::Unordered, x, x),
            IsInf => {
                let (size, infinity) = (self.abs(x), self.number(f32::INFINITY));
                self.compare(Predicate::Equal, size, infinity)
            }
            IsFinite => {
                let (size, infinity) = (self.abs(x), self.number(f32::INFINITY));
                self.compare(Predicate::Less, size, infinity)
            }
            Exp => self.exp(x),
            Exp2 => self.exp2(x),
            Log => self.log(x),
            Tanh => self.tanh(x),
            Erf => self.erf(x),
            Sigmoid => self.sigmoid(x),
            Add => self.add(x, y),
            Sub => self.sub(x, y),
            Mul => self.mul(x, y),
            Div => self.div(x, y),
            Max => self.extreme(Predicate::Greater, Two::And, x, y),
            Min => self.extreme(Predicate::Less, Two::Or, x, y),
            Clamp => {
                let x = self.extreme(Predicate::Greater, Two::And, x, y);
                self.extreme(Predicate::Less, Two::Or, x, operands[2])
            }
            Eq => self.compare(Predicate::Equal, x, y),
            Ne => self.compare(Predicate::NotEqual, x, y),
            Lt => self.compare(Predicate::Less, x, y),
            Le => self.compare(Predicate::LessOrEqual, x, y),
            Gt => self.compare(Predicate::Greater, x, y),
            Ge => self.compare(Predicate::GreaterOrEqual, x, y),
            Expm1 | Log2 | Log1p | Sin | Cos | Tan | Asin | Acos | Atan | Sinh | Cosh | Asinh | Acosh | Atanh | Rem
            | Pow | Atan2 | Not | And | Or | Xor | Shl | Shr => unreachable!("only what fits is written"),
        }
    }

    fn abs(&mut self, x: V) -> V {
        let sign = self.bits(SIGN);
        self.two(Two::AndNot, sign, x)
    }

    fn copy_sign(&mut self, magnitude: V, of: V) -> V {
        let (sign, magnitude) = (self.bits(SIGN), self.abs(magnitude));
        let sign = self.two(Two::And, of, sign);
        self.two(Two::Or, magnitude, sign)
    }

    /// The larger or smaller of two; NaN where the first is, zeros joined bit by bit.
    fn extreme(&mut self, wins: Predicate, zeros: Two, x: V, y: V) -> V {
        if let Some(known) = self.constant(y).map(f32::from_bits).filter(|known| !known.is_nan()) {
            let plain = if zeros == Two::And { Two::Max } else { Two::Min };
            // With a number other than zero, what is equal is the same, and a NaN is the second operand's.
            if known != 0.0 {
                return self.two(plain, y, x);
            }
            // The larger of a zero and +0 is +0, the smaller of a zero and -0 is -0.
            if known.is_sign_negative() == (zeros == Two::Or) {
                let (found, nan) = (self.two(plain, x, y), self.compare(Predicate::Unordered, x, x));
                return self.select(nan, x, found);
            }
        }
        let (first, equal, nan) =
            (self.compare(wins, x, y), self.compare(Predicate::Equal, x, y), self.compare(Predicate::Unordered, x, x));
        let (better, joined) = (self.select(first, x, y), self.two(zeros, x, y));
        let found = self.select(equal, joined, better);
        self.select(nan, x, found)
    }

    fn clamp(&mut self, x: V, low: f32, high: f32) -> V {
        // A NaN is the second operand's.
        let (low, high) = (self.number(low), self.number(high));
        let x = self.max(low, x);
        self.min(high, x)
    }

    fn polynomial(&mut self, x: V, coefficients: &[f32]) -> V {
        let (last, others) = coefficients.split_last().expect("a polynomial has coefficients");
        let mut sum = self.number(*last);
        for &coefficient in others.iter().rev() {
            let coefficient = self.number(coefficient);
            sum = self.mul_add(sum, x, coefficient);
        }
        sum
    }

    /// Rounded to an integer, as a float and as an integer.
    fn rounded(&mut self, x: V) -> (V, V) {
        let magic = self.number(ROUND);
        let shifted = self.add(x, magic);
        (self.sub(shifted, magic), self.two(Two::IntSub, shifted, magic))
    }

    fn power_of_two(&mut self, k: V) -> V {
        let bias = self.bits(127);
        let biased = self.two(Two::IntAdd, k, bias);
        self.one(One::ShiftLeft(23), biased)
    }

    fn scale(&mut self, x: V, k: V) -> V {
        let half = self.one(One::ShiftRight(1), k);
        let rest = self.two(Two::IntSub, k, half);
        let (half, rest) = (self.power_of_two(half), self.power_of_two(rest));
        let x = self.mul(x, half);
        self.mul(x, rest)
    }

    fn exp_parts(&mut self, x: V) -> (V, V) {
        let (log2_e, one) = (self.number(std::f32::consts::LOG2_E), self.number(1.0));
        let (high, low) = (self.number(LN_2_HIGH), self.number(LN_2_LOW));
        let scaled = self.mul(x, log2_e);
        let (k, exponent) = self.rounded(scaled);
        let r = self.neg_mul_add(k, high, x);
        let r = self.neg_mul_add(k, low, r);
        let (square, tail) = (self.mul(r, r), self.polynomial(r, &EXP));
        let tail = self.mul_add(square, tail, r);
        (self.add(one, tail), exponent)
    }

    fn exp(&mut self, x: V) -> V {
        let x = self.clamp(x, -104.0, 89.0);
        let (m, k) = self.exp_parts(x);
        self.scale(m, k)
    }

    fn exp2_fraction(&mut self, r: V) -> V {
        let (ln_2, one) = (self.number(std::f32::consts::LN_2), self.number(1.0));
        let tail = self.polynomial(r, &EXP2);
        let slope = self.mul_add(r, tail, ln_2);
        self.mul_add(r, slope, one)
    }

    fn exp2(&mut self, x: V) -> V {
        let x = self.clamp(x, -151.0, 129.0);
        let (k, exponent) = self.rounded(x);
        let r = self.sub(x, k);
        let fraction = self.exp2_fraction(r);
        self.scale(fraction, exponent)
    }

    fn sigmoid(&mut self, x: V) -> V {
        let (zero, one, half) = (self.number(0.0), self.number(1.0), self.number(-0.5));
        let (sign, lowest) = (self.bits(SIGN), self.number(-104.0));
        let negative = self.two(Two::Or, x, sign);
        let limited = self.max(lowest, negative);
        let (m, k) = self.exp_parts(limited);
        let small = self.scale(m, k);
        let sum = self.add(one, small);
        let left = self.compare(Predicate::Less, x, zero);
        let numerator = self.select(left, small, one);
        let quotient = self.div(numerator, sum);
        let back = self.sub(sum, one);
        let lost = self.sub(small, back);
        let inverse = self.mul_add(small, half, one);
        let lost = self.mul(lost, inverse);
        self.neg_mul_add(quotient, lost, quotient)
    }

    fn tanh(&mut self, x: V) -> V {
        let (one, two) = (self.number(1.0), self.number(2.0));
        let (twenty, border) = (self.number(20.0), self.number(0.6));
        let square = self.mul(x, x);
        let (cube, tail) = (self.mul(x, square), self.polynomial(square, &TANH));
        let near = self.mul_add(cube, tail, x);
        let size = self.abs(x);
        let twice = self.mul(size, two);
        let limited = self.min(twenty, twice);
        let (power, exponent) = self.exp_parts(limited);
        let scale = self.power_of_two(exponent);
        let sum = self.mul_add(power, scale, one);
        let part = self.div(two, sum);
        let far = self.sub(one, part);
        let is_near = self.compare(Predicate::Less, size, border);
        let result = self.select(is_near, near, far);
        self.copy_sign(result, x)
    }

    fn erf(&mut self, x: V) -> V {
        let (one, four, border) = (self.number(1.0), self.number(4.0), self.number(0.92));
        let square = self.mul(x, x);
        let tail = self.polynomial(square, &ERF_NEAR);
        let near = self.mul_add(x, tail, x);
        let size = self.abs(x);
        let limited = self.min(four, size);
        let logarithm = self.polynomial(limited, &ERF_FAR);
        let (k, exponent) = self.rounded(logarithm);
        let r = self.sub(logarithm, k);
        let (fraction, scale) = (self.exp2_fraction(r), self.power_of_two(exponent));
        let part = self.mul(fraction, scale);
        let far = self.sub(one, part);
        let far = self.copy_sign(far, x);
        let is_near = self.compare(Predicate::Less, size, border);
        self.select(is_near, near, far)
    }

    fn log(&mut self, x: V) -> V {
        let (zero, one, infinity) = (self.number(0.0), self.number(1.0), self.number(f32::INFINITY));
        let (least, raise, raised) = (self.number(f32::MIN_POSITIVE), self.number(8_388_608.0), self.number(23.0));
        let subnormal = self.compare(Predicate::Less, x, least);
        let larger = self.mul(x, raise);
        let normal = self.select(subnormal, larger, x);
        let low = self.bits(0x3f35_04f3);
        let exponent = self.two(Two::IntSub, normal, low);
        let exponent = self.one(One::ShiftRight(23), exponent);
        let shifted = self.one(One::ShiftLeft(23), exponent);
        let m = self.two(Two::IntSub, normal, shifted);
        let e = self.one(One::ToFloat, exponent);
        let f = self.sub(m, one);
        let (square, tail) = (self.mul(f, f), self.polynomial(f, &LOG));
        let tail = self.mul(square, tail);
        let off = self.two(Two::And, subnormal, raised);
        let e = self.sub(e, off);
        let (ln_2_high, ln_2_low) = (self.number(LN_2_HIGH), self.number(LN_2_LOW));
        let small = self.mul_add(e, ln_2_low, tail);
        let sum = self.add(f, small);
        let inside = self.mul_add(e, ln_2_high, sum);
        let below = self.compare(Predicate::Less, x, infinity);
        let result = self.select(below, inside, x);
        let (is_zero, lowest) = (self.compare(Predicate::Equal, x, zero), self.number(f32::NEG_INFINITY));
        let result = self.select(is_zero, lowest, result);
        let (negative, nan) = (self.compare(Predicate::Less, x, zero), self.number(f32::NAN));
        self.select(negative, nan, result)
    }
}
