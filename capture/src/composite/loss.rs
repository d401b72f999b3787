//! Losses: scalars, the mean over all rows or elements.

use kiln_ir::{Code, Diagnostic, Kind};

use super::{floats, mistake, named, wide, widely};
use crate::Tensor;
use crate::backends::Named;

/// The mean cross entropy between rows of logits (along the last axis) and labels: class indices `[..]`, or probabilities `[.., classes]`.
///
/// The softmax is never formed, so a logit of -inf does no harm where its label is not asked for.
///
/// ```
/// # use kiln_capture::{CaptureDevice, cross_entropy}; use kiln_ir::{Backend, DType};
/// # CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
/// let logits = scope.input("logits", DType::F32, [32, 10]);
/// let labels = scope.input("labels", DType::I32, [32]);
/// assert_eq!(cross_entropy(&logits, &labels).rank(), 0);
/// # })?; Ok::<(), kiln_ir::Diagnostics>(())
/// ```
#[track_caller]
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Tensor {
    named("cross_entropy", &operands(["logits", "labels"], [logits, labels]), || {
        widely(logits, |logits| rows(logits, labels).mean(..))
    })
}

/// [`cross_entropy`] of each row, without the mean.
#[track_caller]
pub fn cross_entropy_rows(logits: &Tensor, labels: &Tensor) -> Tensor {
    named("cross_entropy", &operands(["logits", "labels"], [logits, labels]), || {
        widely(logits, |logits| rows(logits, labels))
    })
}

fn rows(logits: &Tensor, labels: &Tensor) -> Tensor {
    let named = operands(["logits", "labels"], [logits, labels]);
    let Some((&classes, batch)) = logits.shape().split_last() else {
        let diagnostic = Diagnostic::new(Code::K0309, "expected rank 1 or more, got 0");
        return mistake(&named, diagnostic.label("logits have a last axis of classes"));
    };
    if !logits.dtype().is_float() {
        let diagnostic = Diagnostic::new(Code::K0401, format!("Should be float, got {}", logits.dtype().kind()));
        return mistake(&named, diagnostic.label(format!("logits are {}", logits.dtype())));
    }
    let wanted = match labels.dtype().kind() {
        Kind::Int => batch,
        Kind::Float => &logits.shape()[..],
        Kind::Bool => {
            let diagnostic = Diagnostic::new(Code::K0404, "Should be int, got bool");
            return mistake(&named, diagnostic.label("labels are class indices (int) or probabilities (float)"));
        }
    };
    if labels.dtype().is_float() && labels.shape()[..] == *batch {
        let diagnostic = Diagnostic::new(Code::K0404, "Should be int, got float")
            .label(format!("labels of shape {} are class indices", labels.shape()))
            .help(format!("cast them with `.cast(DType::I32)`; probabilities would have shape {}", logits.shape()));
        return mistake(&named, diagnostic);
    }
    if labels.shape()[..] != *wanted {
        let message = format!("labels {} do not fit logits {}", labels.shape(), logits.shape());
        let label = format!("class indices would have shape {:?}, probabilities {}", batch, logits.shape());
        return mistake(&named, Diagnostic::new(Code::K0312, message).label(label));
    }
    let shifted = logits - logits.max_keepdim(-1).detach();
    let normalizer = shifted.exp().sum(-1).log();
    match labels.dtype().kind() {
        // Comparing and summing keeps to the row, where a gather would leave it, and its gradient needs no scatter.
        Kind::Int | Kind::Bool => normalizer - labels.matches_class(classes).select(&shifted, 0.0).sum(-1),
        Kind::Float => {
            let labels = wide(labels).cast(logits.dtype());
            let log = &shifted - normalizer.unsqueeze(-1);
            // 0 * -inf is 0 here: what has no probability adds nothing.
            -labels.eq(0).select(0.0, &labels * log).sum(-1)
        }
    }
}

/// The mean squared difference of two tensors of one shape. Shapes are not broadcast: `[n]` against `[n, 1]` is a mistake.
#[track_caller]
pub fn mse(prediction: &Tensor, target: &Tensor) -> Tensor {
    let named = operands(["prediction", "target"], [prediction, target]);
    floats("mse", &named, || {
        if let Some(poison) = shapes_differ(&named) {
            return poison;
        }
        widely(prediction, |prediction| {
            let difference = prediction - wide(target);
            (&difference * &difference).mean(..)
        })
    })
}

/// The mean binary cross entropy between logits and targets from 0 to 1, of one shape.
#[track_caller]
pub fn binary_cross_entropy(logits: &Tensor, targets: &Tensor) -> Tensor {
    let named = operands(["logits", "targets"], [logits, targets]);
    floats("binary_cross_entropy", &named, || {
        if let Some(poison) = shapes_differ(&named) {
            return poison;
        }
        widely(logits, |logits| (super::activation::softplus(logits) - logits * wide(targets)).mean(..))
    })
}

fn operands<'a>(names: [&'a str; 2], [a, b]: [&'a Tensor; 2]) -> [Named<'a>; 2] {
    [Named::required(names[0], a), Named::required(names[1], b)]
}

fn shapes_differ(operands: &[Named; 2]) -> Option<Tensor> {
    let [Named { name: a_name, tensor: a, .. }, Named { name: b_name, tensor: b, .. }] = operands;
    (a.shape() != b.shape()).then(|| {
        let message = format!("shapes {} and {} differ", a.shape(), b.shape());
        let label = format!("{a_name} and {b_name} have one shape: nothing is broadcast in a loss");
        let help = format!("reshape one of them: `.reshape({})`", a.shape());
        mistake(operands, Diagnostic::new(Code::K0302, message).label(label).help(help))
    })
}
