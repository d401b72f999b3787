//! What tells the gradient of a softmax: sums of products, written out.
//!
//! With exponentials `e`, their row sum `s` and the gradient `g` of the weights `e / s`, the gradient of the logits is
//! `e g / s - e row(e g) / s^2`, where `row` sums over the keys. However it is spelled, it comes to these two terms.

use std::collections::HashSet;

use kiln_ir::kernel::GradientZeros;
use kiln_ir::{Graph, Op, ReduceKind, ScalarOp, Value};
use smallvec::{SmallVec, smallvec};

use super::Forward;
use super::path::{behind_views, below};

/// `sign * e^exponential * s^sum * g^gradient * row(..)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Term {
    negative: bool,
    exponential: i8,
    sum: i8,
    gradient: i8,
    /// Powers of `e` and `g` in a sum over the keys.
    row: Option<(i8, i8)>,
}

type Terms = SmallVec<[Term; 2]>;

const ONE: Term = Term { negative: false, exponential: 0, sum: 0, gradient: 0, row: None };

impl Term {
    fn times(self, other: Term) -> Option<Term> {
        let row = match (self.row, other.row) {
            (Some(_), Some(_)) => return None,
            (row, None) | (None, row) => row,
        };
        Some(Term {
            negative: self.negative != other.negative,
            exponential: self.exponential + other.exponential,
            sum: self.sum + other.sum,
            gradient: self.gradient + other.gradient,
            row,
        })
    }

    fn inverse(self) -> Option<Term> {
        let Term { negative, exponential, sum, gradient, row: None } = self else { return None };
        Some(Term { negative, exponential: -exponential, sum: -sum, gradient: -gradient, row: None })
    }

    fn negated(self) -> Term {
        Term { negative: !self.negative, ..self }
    }
}

/// A gradient of logits that was read as such.
pub(super) struct Read {
    /// The gradient of the weights.
    pub(super) gradient: Value,
    /// Sums over the keys that it was computed with, each with what is summed.
    pub(super) rows: Vec<(Value, Value)>,
    /// Whether zeros in it win against what is infinite or NaN.
    pub(super) zeros: GradientZeros,
    /// The nodes that it is computed by, from the gradient of the weights on; those rows included.
    pub(super) interior: HashSet<usize>,
}

/// Reads a value as the gradient of a softmax's logits.
pub(super) fn read(graph: &Graph, forward: &Forward, value: Value) -> Option<Read> {
    let mut reader = Reader { graph, forward, gradient: None, rows: Vec::new(), guards: 0, interior: HashSet::new() };
    let mut terms = reader.expand(value)?;
    terms.sort_unstable();
    let direct = Term { exponential: 1, gradient: 1, sum: -1, ..ONE };
    let row = Term { negative: true, exponential: 1, sum: -2, row: Some((1, 1)), ..ONE };
    if terms[..] != [direct, row] {
        return None;
    }
    // Guards stand at all three products with what may be infinite, or at none.
    let zeros = match reader.guards {
        0 => GradientZeros::Arithmetic,
        3 => GradientZeros::Masked,
        _ => return None,
    };
    let Reader { gradient, rows, interior, .. } = reader;
    Some(Read { gradient: gradient?, rows, zeros, interior })
}

struct Reader<'a> {
    graph: &'a Graph,
    forward: &'a Forward,
    gradient: Option<Value>,
    rows: Vec<(Value, Value)>,
    /// Products that are 0 where a factor is.
    guards: u32,
    interior: HashSet<usize>,
}

impl Reader<'_> {
    fn expand(&mut self, value: Value) -> Option<Terms> {
        if value == self.forward.exponential.value {
            return Some(smallvec![Term { exponential: 1, ..ONE }]);
        }
        let behind = behind_views(self.graph, value);
        if behind == self.forward.sum {
            return Some(smallvec![Term { sum: 1, ..ONE }]);
        }
        if !self.speaks_of_softmax(value) {
            let known = *self.gradient.get_or_insert(value);
            return (known == value).then(|| smallvec![Term { gradient: 1, ..ONE }]);
        }
        let node = self.graph.node(value);
        let operands = &node.operands;
        self.interior.insert(value.node.index());
        match &node.op {
            Op::Scalar(ScalarOp::Neg) => Some(self.expand(operands[0])?.into_iter().map(Term::negated).collect()),
            Op::Scalar(ScalarOp::Add) => Some(sum(self.expand(operands[0])?, self.expand(operands[1])?)),
            Op::Scalar(ScalarOp::Sub) => {
                let second = self.expand(operands[1])?.into_iter().map(Term::negated).collect();
                Some(sum(self.expand(operands[0])?, second))
            }
            Op::Scalar(ScalarOp::Mul) => product(&self.expand(operands[0])?, &self.expand(operands[1])?),
            Op::Scalar(ScalarOp::Div) => {
                let [by] = self.expand(operands[1])?[..] else { return None };
                product(&self.expand(operands[0])?, &[by.inverse()?])
            }
            Op::Broadcast(_) | Op::Reshape(_) | Op::Permute(_) => self.expand(operands[0]),
            Op::Select => {
                let inside = guarded(self.graph, operands)?;
                self.guards += 1;
                self.interior.extend(inside.iter().map(|value| value.node.index()));
                self.expand(operands[2])
            }
            Op::Reduce { kind: ReduceKind::Sum, .. } => {
                self.rows.push((value, operands[0]));
                let row = |term: Term| {
                    let Term { negative, exponential, sum, gradient, row: None } = term else { return None };
                    Some(Term { negative, sum, row: Some((exponential, gradient)), ..ONE })
                };
                self.expand(operands[0])?.into_iter().map(row).collect()
            }
            _ => None,
        }
    }

    /// Whether a value is computed from the exponentials or their sums, not far above them. What is not is the gradient, as it comes.
    fn speaks_of_softmax(&self, value: Value) -> bool {
        let own = [self.forward.exponential.value, self.forward.sum];
        let mut open = vec![value];
        let mut rows = 0;
        while let Some(top) = open.pop() {
            for below in below(self.graph, top) {
                if own.contains(&below) {
                    return true;
                }
                if let Op::Reduce { kind: ReduceKind::Sum, .. } = self.graph.node(below).op
                    && rows < 2
                {
                    rows += 1;
                    open.push(self.graph.node(below).operands[0]);
                }
            }
        }
        false
    }
}

/// The nodes of the condition of `select(factor == 0 && is_nan(product), 0, product)`, if that is what these are the operands of.
fn guarded(graph: &Graph, select: &[Value]) -> Option<[Value; 3]> {
    let (condition, zero, product) = (select[0], select[1], select[2]);
    let scalar = |value: Value, op: ScalarOp| {
        let node = graph.node(value);
        (node.op == Op::Scalar(op)).then_some(&node.operands[..])
    };
    let is_zero = |value: Value| matches!(graph.node(behind_views(graph, value)).op, Op::Literal { value, .. } if value.to_f64() == 0.0);
    let parts = scalar(condition, ScalarOp::And)?;
    let [(lost, equal)] = [(parts[0], parts[1]), (parts[1], parts[0])]
        .into_iter()
        .filter(|&(lost, _)| scalar(lost, ScalarOp::IsNan).is_some_and(|operand| operand[0] == product))
        .collect::<SmallVec<[_; 2]>>()[..]
    else {
        return None;
    };
    let compared = scalar(equal, ScalarOp::Eq)?;
    let factors = scalar(product, ScalarOp::Mul).or_else(|| Some(&scalar(product, ScalarOp::Div)?[..1]))?;
    let factor = compared.iter().any(|value| factors.contains(value)) && compared.iter().any(|&value| is_zero(value));
    (factor && is_zero(zero)).then_some([condition, lost, equal])
}

fn sum(mut first: Terms, second: Terms) -> Terms {
    first.extend(second);
    first
}

fn product(first: &[Term], second: &[Term]) -> Option<Terms> {
    first.iter().flat_map(|a| second.iter().map(|b| a.times(*b))).collect()
}
