//! Which rule an op has: the one place where gradients ask which op it is.

use std::sync::Arc;

use smallvec::SmallVec;

use super::cotangent::Cotangent;
use super::scalar::{Point, ScalarGradient};
use super::tape::Term;
use super::{contract, index, reduce, scan, view};
use crate::{Graph, Op};

/// How an op is differentiated.
pub(super) enum Gradient<'op> {
    /// Every gradient is 0: the op is piecewise constant, gives no floats, or stops gradients by its meaning.
    Zero,
    /// The gradient of one operand, or `None` where it is 0.
    Rule(Rule<'op>),
    /// The gradient of these nodes, put in the op's place.
    Body(&'op Arc<Graph>),
    /// Asked for, it is an error.
    Missing,
}

pub(super) type Rule<'op> = Box<dyn for<'t> Fn(&Arrival<'t>) -> Option<Cotangent<'t>> + 'op>;

/// What a rule sees when a gradient arrives at its node.
pub(super) struct Arrival<'t> {
    /// The gradient of the result.
    pub(super) g: Cotangent<'t>,
    /// The result.
    pub(super) y: Term<'t>,
    /// The operands.
    pub(super) operands: SmallVec<[Term<'t>; 3]>,
    /// The operand whose gradient is asked for; a float.
    pub(super) operand: usize,
}

impl<'t> Arrival<'t> {
    /// The operand whose gradient is asked for.
    pub(super) fn x(&self) -> Term<'t> {
        self.operands[self.operand]
    }
}

/// The rule of an op.
pub(super) fn gradient(op: &Op) -> Gradient<'_> {
    match op {
        Op::Input { .. } | Op::Literal { .. } | Op::Constant { .. } | Op::Iota { .. } | Op::RandomBits { .. } => {
            Gradient::Zero
        }
        Op::Scalar(scalar) => match scalar.row().gradient {
            ScalarGradient::Zero => Gradient::Zero,
            ScalarGradient::Each(partials) => rule(move |at| Some(partials[at.operand](&point(at)))),
        },
        Op::Cast(dtype) if dtype.is_float() => rule(|at| Some(at.g.map(|g| g.cast(at.x().dtype())))),
        Op::Cast(_) | Op::StopGradient => Gradient::Zero,
        // A float as a function of its bits, or the other way round, is smooth nowhere: 0 would be a silent wrong answer.
        Op::Bitcast(_) => Gradient::Missing,
        Op::Select => rule(|at| {
            let condition = at.operands[0];
            Some(if at.operand == 1 { at.g.keep_where(condition) } else { at.g.drop_where(condition) })
        }),
        Op::Reduce { kind, axes } => match kind {
            crate::ReduceKind::Sum => rule(reduce::sum),
            crate::ReduceKind::Prod => rule(|at| reduce::prod(at, axes)),
            crate::ReduceKind::Max => rule(|at| reduce::extreme(at, axes, crate::ScalarOp::Lt)),
            crate::ReduceKind::Min => rule(|at| reduce::extreme(at, axes, crate::ScalarOp::Gt)),
            crate::ReduceKind::ArgMax | crate::ReduceKind::ArgMin => Gradient::Zero,
        },
        Op::Scan { kind, axis, direction } => rule(move |at| scan::scan(at, *kind, *axis, *direction)),
        Op::Reshape(_) => rule(|at| Some(at.g.map(|g| g.reshape(&at.x().shape())))),
        Op::Permute(permutation) => rule(|at| Some(view::permute(at, permutation))),
        Op::Broadcast(_) => rule(|at| Some(view::broadcast(at))),
        Op::Slice { starts, sizes, steps } => rule(|at| view::slice(at, starts, sizes, steps)),
        Op::Pad { low, .. } => rule(|at| Some(view::pad(at, low))),
        Op::Concat { axis } => rule(|at| Some(view::concat(at, *axis))),
        Op::MatMul { precision } => rule(|at| Some(contract::matmul(at, *precision))),
        Op::Gather { axis, batch } => rule(|at| index::gather(at, *axis, *batch)),
        Op::Scatter { kind, axis, batch } => rule(|at| index::scatter(at, *kind, *axis, *batch)),
        Op::Transfer(_) => rule(|at| Some(at.g.map(|g| g.op(Op::Transfer(at.x().ty().backend), &[])))),
        Op::Mark | Op::Barrier => rule(|at| Some(at.g)),
        Op::Custom(custom) => custom.body.as_ref().map_or(Gradient::Missing, Gradient::Body),
    }
}

fn rule<'op>(rule: impl for<'t> Fn(&Arrival<'t>) -> Option<Cotangent<'t>> + 'op) -> Gradient<'op> {
    Gradient::Rule(Box::new(rule))
}

fn point<'t>(at: &Arrival<'t>) -> Point<'t> {
    let operand = |index: usize| at.operands.get(index).copied().unwrap_or(at.operands[0]);
    Point { g: at.g, a: operand(0), b: operand(1), c: operand(2), y: at.y }
}
