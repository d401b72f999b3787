//! Elementwise ops: one method for each row of the table of scalar ops, and what is made of a few of them.

use kiln_ir::{Kind, Op, ScalarOp};

use crate::data::Scalar;
use crate::operand::{Operand, binary, elementwise};
use crate::{Tensor, composite};

macro_rules! unary {
    ($($method:ident $op:ident;)*) => {
        impl Tensor {$(
            #[doc = concat!("[`ScalarOp::", stringify!($op), "`] of each element.")]
            #[track_caller]
            pub fn $method(&self) -> Tensor {
                self.node(Op::Scalar(ScalarOp::$op))
            }
        )*}
    };
}

unary! {
    neg Neg;
    abs Abs;
    sign Sign;
    floor Floor;
    ceil Ceil;
    round Round;
    trunc Trunc;
    sqrt Sqrt;
    rsqrt Rsqrt;
    recip Recip;
    exp Exp;
    exp2 Exp2;
    expm1 Expm1;
    log Log;
    log2 Log2;
    log1p Log1p;
    sin Sin;
    cos Cos;
    tan Tan;
    asin Asin;
    acos Acos;
    atan Atan;
    sinh Sinh;
    cosh Cosh;
    tanh Tanh;
    asinh Asinh;
    acosh Acosh;
    atanh Atanh;
    erf Erf;
    sigmoid Sigmoid;
    logical_not Not;
    is_nan IsNan;
    is_inf IsInf;
    is_finite IsFinite;
}

macro_rules! binary {
    ($($method:ident $op:ident;)*) => {
        impl Tensor {$(
            #[doc = concat!("[`ScalarOp::", stringify!($op), "`] of this and another tensor or number, broadcast to one shape.")]
            #[track_caller]
            pub fn $method(&self, other: impl Into<Operand>) -> Tensor {
                binary(ScalarOp::$op, self, other)
            }
        )*}
    };
}

binary! {
    add Add;
    sub Sub;
    mul Mul;
    div Div;
    rem Rem;
    maximum Max;
    minimum Min;
    pow Pow;
    atan2 Atan2;
    logical_and And;
    logical_or Or;
    logical_xor Xor;
    shl Shl;
    shr Shr;
    eq Eq;
    ne Ne;
    lt Lt;
    le Le;
    gt Gt;
    ge Ge;
}

impl Tensor {
    /// Each element held between two bounds, tensors or numbers; NaN stays NaN.
    #[track_caller]
    pub fn clamp(&self, low: impl Into<Operand>, high: impl Into<Operand>) -> Tensor {
        elementwise(Op::Scalar(ScalarOp::Clamp), &[self.into(), low.into(), high.into()])
    }

    /// Each element to a fixed power, by [`ScalarOp::Pow`].
    #[track_caller]
    pub fn powf(&self, exponent: f64) -> Tensor {
        self.pow(exponent)
    }

    /// Each element to a fixed integer power, by multiplication: exact on integers, and with gradients that are right at 0 and below.
    /// A negative power is the reciprocal, of floats only.
    ///
    /// ```
    /// # use kiln_capture::CaptureDevice; use kiln_ir::{Backend, DType};
    /// let captured = CaptureDevice::new(Backend::Cpu).capture_scope(|scope| scope.input("x", DType::I32, [3]).powi(5))?;
    /// assert_eq!(captured.graph.nodes.len(), 4); // x, x^2, x^4, x^5
    /// # Ok::<(), kiln_ir::Diagnostics>(())
    /// ```
    #[track_caller]
    pub fn powi(&self, exponent: i32) -> Tensor {
        composite("powi", &[self], || {
            let mut rest = exponent.unsigned_abs();
            if rest == 0 {
                return self.ones_like();
            }
            let mut square = self.clone();
            let mut product: Option<Tensor> = None;
            while rest > 0 {
                if rest & 1 == 1 {
                    product = Some(product.map_or_else(|| square.clone(), |product| &product * &square));
                }
                rest >>= 1;
                if rest > 0 {
                    square = &square * &square;
                }
            }
            let power = product.expect("a positive exponent has a highest bit");
            if exponent < 0 { power.recip() } else { power }
        })
    }

    /// The square of each element.
    #[track_caller]
    pub fn square(&self) -> Tensor {
        self * self
    }

    /// Division rounded down: the quotient that goes with [`Tensor::modulo`]. Integers give 0 where the divisor is 0.
    #[track_caller]
    pub fn floor_div(&self, divisor: impl Into<Operand>) -> Tensor {
        let divisor = self.beside(divisor);
        composite("floor_div", &[self, &divisor], || match self.dtype().kind() {
            Kind::Float => ((self - self.modulo(&divisor)) / &divisor).round(),
            Kind::Int | Kind::Bool => {
                let quotient = self / &divisor;
                let down = off_by_one(self, &divisor).logical_and(divisor.ne(0));
                quotient - down.cast(self.dtype())
            }
        })
    }

    /// The remainder of division rounded down: it has the sign of the divisor. Integers give the dividend where the divisor is 0.
    #[track_caller]
    pub fn modulo(&self, divisor: impl Into<Operand>) -> Tensor {
        let divisor = self.beside(divisor);
        composite("modulo", &[self, &divisor], || {
            let remainder = self % &divisor;
            off_by_one(self, &divisor).select(&remainder + &divisor, &remainder)
        })
    }

    /// `condition.select(then, otherwise)`: elements of one where this is true and of the other where it is not. Between two numbers an
    /// unsuffixed float means `f32` and an integer `i32`.
    #[track_caller]
    pub fn select(&self, then: impl Into<Operand>, otherwise: impl Into<Operand>) -> Tensor {
        let (then, otherwise) = match (then.into(), otherwise.into()) {
            (Operand::Scalar(a), Operand::Scalar(b)) => {
                let float = |scalar: Scalar| matches!(scalar, Scalar::Float(_));
                let like = if float(b) { b } else { a };
                let dtype = like.default_dtype();
                (self.number(a, dtype).into(), self.number(b, dtype).into())
            }
            (Operand::Scalar(a), Operand::Tensor(b)) => (b.beside(a).into(), b.into()),
            (Operand::Tensor(a), b) => (a.clone().into(), a.beside(b).into()),
        };
        elementwise(Op::Select, &[self.into(), then, otherwise])
    }

    /// This tensor where a condition holds, the other elsewhere: [`Tensor::select`] seen from the value.
    #[track_caller]
    pub fn where_(&self, condition: &Tensor, otherwise: impl Into<Operand>) -> Tensor {
        condition.select(self, otherwise)
    }

    /// A number where a mask holds, this tensor elsewhere.
    #[track_caller]
    pub fn mask_fill(&self, mask: &Tensor, value: impl Into<Operand>) -> Tensor {
        mask.select(value, self)
    }

    /// The logarithm to base 10.
    #[track_caller]
    pub fn log10(&self) -> Tensor {
        self.log() * std::f64::consts::LOG10_E
    }

    /// The operand as a tensor; a number takes the dtype and backend of this tensor, and stays rank 0.
    #[track_caller]
    pub(crate) fn beside(&self, operand: impl Into<Operand>) -> Tensor {
        match operand.into() {
            Operand::Tensor(tensor) => tensor,
            Operand::Scalar(scalar) if self.is_poisoned() => self.number(scalar, scalar.default_dtype()),
            Operand::Scalar(scalar) => self.number(scalar, self.dtype()),
        }
    }
}

/// Where truncating division of `a` by `b` leaves a remainder of the wrong sign.
fn off_by_one(a: &Tensor, b: &Tensor) -> Tensor {
    let remainder = a % b;
    remainder.ne(0).logical_and(remainder.lt(0).ne(b.lt(0)))
}
