//! Activations.

use super::{floats, widely};
use crate::Tensor;
use crate::backends::Named;
use crate::data::Scalar;

/// Which of the two functions known as GELU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gelu {
    /// `x * Phi(x)` by the error function.
    #[default]
    Erf,
    /// Its approximation by `tanh`.
    Tanh,
}

impl Tensor {
    /// `max(x, 0)`; NaN stays NaN, the gradient at 0 is 0.
    #[track_caller]
    pub fn relu(&self) -> Tensor {
        // Not `maximum`, whose gradient at 0 would be a half.
        crate::composite("relu", &[self], || self.le(0).select(0, self))
    }

    /// `x * Phi(x)`, where `Phi` is the normal distribution's, by the error function.
    #[track_caller]
    pub fn gelu(&self) -> Tensor {
        self.gelu_with(Gelu::Erf)
    }

    /// [`Tensor::gelu`] in the form that is wanted.
    #[track_caller]
    pub fn gelu_with(&self, form: Gelu) -> Tensor {
        floats("gelu", &[Named::required("input", self)], || {
            widely(self, |x| {
                let share = match form {
                    Gelu::Erf => (x * std::f64::consts::FRAC_1_SQRT_2).erf(),
                    Gelu::Tanh => {
                        let cube = x * x * x;
                        ((x + cube * 0.044715) * (std::f64::consts::FRAC_2_PI).sqrt()).tanh()
                    }
                };
                x * 0.5 * (share + 1.0)
            })
        })
    }

    /// `x * sigmoid(x)`, also known as swish.
    #[track_caller]
    pub fn silu(&self) -> Tensor {
        floats("silu", &[Named::required("input", self)], || widely(self, |x| x * x.sigmoid()))
    }

    /// `log(1 + exp(x))`, which neither overflows nor loses its tail.
    #[track_caller]
    pub fn softplus(&self) -> Tensor {
        floats("softplus", &[Named::required("input", self)], || widely(self, softplus))
    }

    /// `log(sigmoid(x))`, finite wherever `x` is.
    #[track_caller]
    pub fn log_sigmoid(&self) -> Tensor {
        floats("log_sigmoid", &[Named::required("input", self)], || widely(self, |x| -softplus(&-x)))
    }

    /// `x` from 0 up, `alpha * (exp(x) - 1)` below.
    #[track_caller]
    pub fn elu(&self, alpha: impl Into<Scalar>) -> Tensor {
        let alpha = alpha.into();
        floats("elu", &[Named::required("input", self)], || {
            // The minimum keeps the branch not taken finite.
            widely(self, |x| x.ge(0).select(x, x.minimum(0).expm1() * alpha))
        })
    }

    /// `x` above 0, `slope * x` below.
    #[track_caller]
    pub fn leaky_relu(&self, slope: impl Into<Scalar>) -> Tensor {
        let slope = slope.into();
        floats("leaky_relu", &[Named::required("input", self)], || self.ge(0).select(self, self * slope))
    }
}

pub(super) fn softplus(x: &Tensor) -> Tensor {
    // Selections on one condition: at 0 both parts follow one side, where `maximum` and `abs` would each take a middle and lose the
    // second derivative.
    let positive = x.gt(0);
    positive.select(x, 0) + positive.select(&-x, x).exp().log1p()
}
