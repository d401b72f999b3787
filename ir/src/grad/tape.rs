//! Gradient rules as formulas: a [`Term`] is a value of the open graph on which `+ - * /` and the ops record nodes.
//!
//! Every rule is written in terms of ordinary ops on values that already have checked types, so recording cannot fail for a user's
//! mistake, save for a tensor that grows too large to address. The first such failure is kept by the [`Tape`], later ops then record
//! nothing, and whoever owns the tape asks for it at the end: rules stay free of error handling.

use std::cell::{Cell, RefCell};
use std::ops::{Add, Div, Mul, Neg, Sub};

use smallvec::{SmallVec, smallvec};

use crate::custom::GradientRule;
use crate::{
    Axes, DType, Diagnostic, Direction, Graph, GraphBuilder, Literal, Loc, Node, Op, Operands, ReduceKind, ScalarOp,
    ScanKind, Shape, TensorType, Value,
};

/// The open graph while gradients are appended to it.
pub(crate) struct Tape {
    builder: RefCell<GraphBuilder>,
    loc: Cell<Loc>,
    failure: RefCell<Option<Diagnostic>>,
}

impl Tape {
    pub(super) fn new(builder: GraphBuilder) -> Tape {
        Tape { builder: RefCell::new(builder), loc: Cell::new(Loc::Unknown), failure: RefCell::new(None) }
    }

    /// The builder back, and what went wrong first.
    pub(super) fn close(self) -> (GraphBuilder, Option<Diagnostic>) {
        (self.builder.into_inner(), self.failure.into_inner())
    }

    pub(super) fn failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// The line that nodes recorded from now on belong to.
    pub(super) fn set_loc(&self, loc: Loc) {
        self.loc.set(loc);
    }

    pub(super) fn term(&self, value: Value) -> Term<'_> {
        Term { tape: self, value }
    }

    /// A copy of the node at `index`.
    pub(super) fn node(&self, index: usize) -> Node {
        self.builder.borrow().nodes()[index].clone()
    }

    pub(super) fn ty(&self, value: Value) -> TensorType {
        self.builder.borrow().ty(value).clone()
    }

    /// The gradient rule of a custom op that was set for operands of these types.
    pub(super) fn rule(&self, node: &Node) -> Option<GradientRule> {
        let Op::Custom(custom) = &node.op else { return None };
        let builder = self.builder.borrow();
        let operands: Vec<TensorType> = node.operands.iter().map(|&operand| builder.ty(operand).clone()).collect();
        builder.gradient_rule(custom, &operands).cloned()
    }

    /// Reads the nodes so far.
    pub(super) fn with_nodes<R>(&self, read: impl FnOnce(&[Node]) -> R) -> R {
        read(self.builder.borrow().nodes())
    }

    /// Puts the nodes of a closed graph here, on `arguments` in the place of its inputs. Gives the values of its outputs.
    pub(super) fn inline(&self, body: &Graph, arguments: &[Value]) -> Result<Vec<Value>, Diagnostic> {
        let mut builder = self.builder.borrow_mut();
        let mut results: Vec<Option<Value>> = vec![None; body.nodes.len()];
        for (input, &argument) in body.inputs.iter().zip(arguments) {
            results[input.node.index()] = Some(argument);
        }
        for (index, node) in body.nodes.iter().enumerate() {
            if results[index].is_none() {
                let operands: Operands = node.operands.iter().map(|&operand| moved(&results, operand)).collect();
                let node = builder.add(node.op.clone(), &operands, self.loc.get())?;
                results[index] = Some(Value { node, result: 0 });
            }
        }
        Ok(body.outputs.iter().map(|output| moved(&results, output.value)).collect())
    }

    /// Records with the builder itself; after a failure nothing is recorded and `stand_in` is given.
    fn record(
        &self,
        stand_in: Value,
        record: impl FnOnce(&mut GraphBuilder, Loc) -> Result<Value, Diagnostic>,
    ) -> Term<'_> {
        if self.failed() {
            return self.term(stand_in);
        }
        match record(&mut self.builder.borrow_mut(), self.loc.get()) {
            Ok(value) => self.term(value),
            Err(diagnostic) => {
                *self.failure.borrow_mut() = Some(diagnostic);
                self.term(stand_in)
            }
        }
    }

    /// A tensor of one number, of the number's dtype.
    pub(super) fn full(&self, like: Value, ty: &TensorType, number: Literal) -> Term<'_> {
        self.record(like, |builder, loc| builder.full(ty, number, loc))
    }

    /// Each element's index along `axis`.
    pub(super) fn iota(&self, like: Value, ty: TensorType, axis: usize) -> Term<'_> {
        self.record(like, |builder, loc| builder.value(Op::Iota { ty, axis }, &[], loc))
    }
}

/// Where a body's value went: an argument may be any result of its node.
fn moved(results: &[Option<Value>], value: Value) -> Value {
    let first = results[value.node.index()].expect("operands precede their node");
    Value { result: first.result + value.result, ..first }
}

/// A value of the open graph, with the ops as methods.
#[derive(Clone, Copy)]
pub(crate) struct Term<'t> {
    tape: &'t Tape,
    value: Value,
}

impl<'t> Term<'t> {
    pub(super) fn value(self) -> Value {
        self.value
    }

    pub(super) fn tape(self) -> &'t Tape {
        self.tape
    }

    pub(super) fn ty(self) -> TensorType {
        self.tape.ty(self.value)
    }

    pub(super) fn shape(self) -> Shape {
        self.ty().shape
    }

    pub(super) fn dtype(self) -> DType {
        self.ty().dtype
    }

    /// Any op on this term and others.
    pub(super) fn op(self, op: Op, others: &[Term<'t>]) -> Term<'t> {
        let mut operands: SmallVec<[Value; 4]> = smallvec![self.value];
        operands.extend(others.iter().map(|other| other.value));
        self.tape.record(self.value, |builder, loc| builder.value(op, &operands, loc))
    }

    /// An elementwise op of one operand.
    pub(crate) fn map(self, op: ScalarOp) -> Term<'t> {
        self.op(Op::Scalar(op), &[])
    }

    /// An elementwise op of two operands.
    pub(crate) fn zip(self, op: ScalarOp, other: Term<'t>) -> Term<'t> {
        self.op(Op::Scalar(op), &[other])
    }

    /// A tensor of this one's type filled with a number.
    pub(crate) fn full(self, number: f64) -> Term<'t> {
        let ty = self.ty();
        self.tape.full(self.value, &ty, Literal::from_f64(ty.dtype, number))
    }

    /// `select(self, then, otherwise)`, where this is a condition.
    pub(crate) fn select(self, then: Term<'t>, otherwise: Term<'t>) -> Term<'t> {
        self.op(Op::Select, &[then, otherwise])
    }

    pub(super) fn cast(self, dtype: DType) -> Term<'t> {
        self.tape.record(self.value, |builder, loc| builder.cast(self.value, dtype, loc))
    }

    pub(super) fn reshape(self, shape: &Shape) -> Term<'t> {
        self.tape.record(self.value, |builder, loc| builder.reshape(self.value, shape, loc))
    }

    pub(super) fn permute(self, permutation: &[usize]) -> Term<'t> {
        self.tape.record(self.value, |builder, loc| builder.permute(self.value, permutation, loc))
    }

    pub(super) fn broadcast(self, shape: &Shape) -> Term<'t> {
        self.tape.record(self.value, |builder, loc| builder.broadcast(self.value, shape, loc))
    }

    pub(super) fn reduce(self, kind: ReduceKind, axes: Axes) -> Term<'t> {
        self.op(Op::Reduce { kind, axes }, &[])
    }

    pub(super) fn scan(self, kind: ScanKind, axis: usize, direction: Direction) -> Term<'t> {
        self.op(Op::Scan { kind, axis, direction }, &[])
    }

    /// `sizes` elements from `starts`; this term itself where that is all of them.
    pub(super) fn window(self, starts: &[usize], sizes: &Shape) -> Term<'t> {
        if self.shape() == *sizes {
            return self;
        }
        let steps = SmallVec::from_elem(1, starts.len());
        self.op(Op::Slice { starts: starts.into(), sizes: sizes.clone(), steps }, &[])
    }

    /// `size` elements along one axis from `start`.
    pub(super) fn part(self, axis: usize, start: usize, size: usize) -> Term<'t> {
        let shape = self.shape();
        let starts: SmallVec<[usize; 4]> =
            (0..shape.rank()).map(|other| if other == axis { start } else { 0 }).collect();
        self.window(&starts, &shape.with_extent(axis, size))
    }

    /// Surrounded by a number; this term itself where nothing is added.
    pub(super) fn pad(self, low: &[usize], high: &[usize], number: f64) -> Term<'t> {
        if low.iter().chain(high).all(|&extent| extent == 0) {
            return self;
        }
        let value = Literal::from_f64(self.dtype(), number);
        self.op(Op::Pad { low: low.into(), high: high.into(), value }, &[])
    }

    /// Surrounded along one axis.
    pub(super) fn pad_axis(self, axis: usize, low: usize, high: usize, number: f64) -> Term<'t> {
        let rank = self.shape().rank();
        let along = |extent: usize| -> SmallVec<[usize; 4]> {
            (0..rank).map(|other| if other == axis { extent } else { 0 }).collect()
        };
        self.pad(&along(low), &along(high), number)
    }

    /// The order of elements reversed along some axes.
    pub(super) fn flip(self, axes: &[usize]) -> Term<'t> {
        let shape = self.shape();
        if axes.iter().all(|&axis| shape[axis] <= 1) {
            return self;
        }
        let flipped = |axis: usize| axes.contains(&axis) && shape[axis] > 0;
        let starts = (0..shape.rank()).map(|axis| if flipped(axis) { shape[axis] - 1 } else { 0 }).collect();
        let steps = (0..shape.rank()).map(|axis| if flipped(axis) { -1 } else { 1 }).collect();
        self.op(Op::Slice { starts, sizes: shape, steps }, &[])
    }

    /// The number that fills this tensor, where the graph says so: a literal, possibly broadcast or reshaped.
    pub(crate) fn number(self) -> Option<f64> {
        self.tape.with_nodes(|nodes| {
            let mut value = self.value;
            loop {
                let node = &nodes[value.node.index()];
                match &node.op {
                    Op::Literal { value, .. } => return Some(value.to_f64()),
                    Op::Broadcast(_) | Op::Reshape(_) => value = node.operands[0],
                    Op::Input { .. }
                    | Op::Constant { .. }
                    | Op::Iota { .. }
                    | Op::RandomBits { .. }
                    | Op::Scalar(_)
                    | Op::Cast(_)
                    | Op::Bitcast(_)
                    | Op::Select
                    | Op::Reduce { .. }
                    | Op::Scan { .. }
                    | Op::Permute(_)
                    | Op::Slice { .. }
                    | Op::Pad { .. }
                    | Op::Concat { .. }
                    | Op::MatMul { .. }
                    | Op::Gather { .. }
                    | Op::Scatter { .. }
                    | Op::Transfer(_)
                    | Op::StopGradient
                    | Op::Mark
                    | Op::Barrier
                    | Op::Custom(_) => return None,
                }
            }
        })
    }
}

macro_rules! arithmetic {
    ($($trait:ident $method:ident $op:ident)*) => {$(
        impl<'t> $trait for Term<'t> {
            type Output = Term<'t>;

            fn $method(self, other: Term<'t>) -> Term<'t> {
                self.zip(ScalarOp::$op, other)
            }
        }

        impl<'t> $trait<f64> for Term<'t> {
            type Output = Term<'t>;

            fn $method(self, number: f64) -> Term<'t> {
                self.zip(ScalarOp::$op, self.full(number))
            }
        }

        impl<'t> $trait<Term<'t>> for f64 {
            type Output = Term<'t>;

            fn $method(self, term: Term<'t>) -> Term<'t> {
                term.full(self).zip(ScalarOp::$op, term)
            }
        }
    )*};
}

arithmetic! { Add add Add  Sub sub Sub  Mul mul Mul  Div div Div }

impl<'t> Neg for Term<'t> {
    type Output = Term<'t>;

    fn neg(self) -> Term<'t> {
        self.map(ScalarOp::Neg)
    }
}
