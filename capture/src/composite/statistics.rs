//! Mean, variance and standard deviation.

use kiln_ir::{Axes, DType, Kind};

use super::{floats, widely};
use crate::backends::Named;
use crate::ops::Keep;
use crate::{IntoAxes, Tensor, composite};

/// What is divided by beside the number of elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Correction {
    /// Nothing: the variance of the elements themselves.
    #[default]
    Biased,
    /// One less than their number: an estimate from a sample.
    Unbiased,
}

/// Over which axes, once they are known to be there. Axes that are not are an op's mistake.
fn axes_of(x: &Tensor, axes: &impl IntoAxes) -> Option<(Axes, f64)> {
    let axes = axes.axes(x.rank()).ok()?;
    let count: f64 = axes.iter().map(|&axis| x.shape()[axis] as f64).product();
    Some((axes, count))
}

fn mean(x: &Tensor, axes: &impl IntoAxes, keep: Keep) -> Tensor {
    let (x, dtype) = match x.dtype().kind() {
        Kind::Bool => (x.cast(DType::F32), DType::F32),
        Kind::Float | Kind::Int => (x.clone(), x.dtype()),
    };
    widely(&x, |x| match axes_of(x, axes) {
        Some((axes, count)) => x.reduce(kiln_ir::ReduceKind::Sum, axes, keep) / count,
        // Summing says what is wrong with them.
        None => x.sum(AsGiven(axes)),
    })
    .cast(dtype)
}

struct AsGiven<'a, A>(&'a A);

impl<A: IntoAxes> IntoAxes for AsGiven<'_, A> {
    fn axes(&self, rank: usize) -> Result<Axes, kiln_ir::Diagnostic> {
        self.0.axes(rank)
    }
}

/// Two passes: the mean first, then the squared distances from it. One pass loses all digits where the mean is large.
fn variance(x: &Tensor, axes: &impl IntoAxes, correction: Correction, keep: Keep) -> Tensor {
    widely(x, |x| {
        let distance = x - mean(x, axes, Keep::Keep);
        let Some((axes, count)) = axes_of(x, axes) else { return distance };
        let divisor = match correction {
            Correction::Biased => count,
            Correction::Unbiased => count - 1.0,
        };
        (&distance * &distance).reduce(kiln_ir::ReduceKind::Sum, axes, keep) / divisor
    })
}

impl Tensor {
    #[track_caller]
    fn mean_of(&self, axes: impl IntoAxes, keep: Keep) -> Tensor {
        if !self.is_poisoned() && self.dtype().kind() == Kind::Bool {
            return composite("mean", &[self], || mean(self, &axes, keep));
        }
        floats("mean", &[Named::required("input", self)], || mean(self, &axes, keep))
    }

    #[track_caller]
    fn variance_of(&self, axes: impl IntoAxes, correction: Correction, keep: Keep) -> Tensor {
        floats("var", &[Named::required("input", self)], || variance(self, &axes, correction, keep))
    }

    /// The mean over axes (`1`, `[0, -1]`, `..`), which are dropped; of bools, the share that is true, as `f32`.
    #[track_caller]
    pub fn mean(&self, axes: impl IntoAxes) -> Tensor {
        self.mean_of(axes, Keep::Drop)
    }

    /// [`Tensor::mean`] whose axes stay with extent 1.
    #[track_caller]
    pub fn mean_keepdim(&self, axes: impl IntoAxes) -> Tensor {
        self.mean_of(axes, Keep::Keep)
    }

    /// The mean over everything.
    #[track_caller]
    pub fn mean_all(&self) -> Tensor {
        self.mean_of(.., Keep::Drop)
    }

    /// The variance over axes, which are dropped: the mean squared distance from the mean, in two passes.
    #[track_caller]
    pub fn var(&self, axes: impl IntoAxes) -> Tensor {
        self.variance_of(axes, Correction::Biased, Keep::Drop)
    }

    /// [`Tensor::var`] whose axes stay with extent 1.
    #[track_caller]
    pub fn var_keepdim(&self, axes: impl IntoAxes) -> Tensor {
        self.variance_of(axes, Correction::Biased, Keep::Keep)
    }

    /// [`Tensor::var`] with a choice of the divisor.
    #[track_caller]
    pub fn var_with(&self, axes: impl IntoAxes, correction: Correction) -> Tensor {
        self.variance_of(axes, correction, Keep::Drop)
    }

    /// The standard deviation over axes, which are dropped: the root of [`Tensor::var`].
    #[track_caller]
    pub fn std(&self, axes: impl IntoAxes) -> Tensor {
        self.std_with(axes, Correction::Biased)
    }

    /// [`Tensor::std`] with a choice of the divisor.
    #[track_caller]
    pub fn std_with(&self, axes: impl IntoAxes, correction: Correction) -> Tensor {
        floats("std", &[Named::required("input", self)], || {
            widely(self, |x| variance(x, &axes, correction, Keep::Drop).sqrt())
        })
    }
}
