//! Gradients as a graph transform: reverse mode, appended to the open graph.
//!
//! [`vjp`] takes outputs, the gradient that arrives at each ("seed"), and the values whose gradients are wanted; it appends nodes and
//! gives one value per wanted gradient. [`grad`] is the same for one number, [`append`] for a closed graph. The rules are written with
//! ordinary ops, so gradients can be differentiated again, to any order.
//!
//! - Wanted values may be any floats of the graph: arguments, marks, what was computed on the way. A gradient counts every path from
//!   the value to the outputs.
//! - Only nodes on such a path are differentiated; an op without a rule is an error (K0505, K0501 for custom ops) only there.
//! - What the outputs do not depend on has gradient zero.
//! - A gradient has exactly the type of its value. Its nodes carry the line of the node that they differentiate.
//! - Ties: of a maximum or minimum over an axis, running or scattered, split evenly; of `max(a, b)`, half to each. `clamp` passes at its
//!   bounds, `abs` has 0 at 0, `sqrt` has infinity at 0, `pow(0, y)` has 0 in `y` from 0 up, `atan2(0, 0)` has NaN.
//! - A branch that a selection did not take, and an element that nothing reads, has gradient exactly 0, also where it is infinite or
//!   NaN, and so has what it was computed from (`cotangent.rs` says how, and that a matrix product in between is the exception).
//! - Indices: a gather's gradient is added at the clamped index; an update that a scatter dropped or overwrote has gradient 0.
//!
//! The elementwise rules are a column of the table of elementwise ops, the others stand in one file per family, and `rule.rs` says
//! which op has which.

mod contract;
mod cotangent;
mod index;
mod reduce;
mod rule;
pub(crate) mod scalar;
mod scan;
mod sweep;
mod tape;
mod view;

#[cfg(test)]
mod tests;

use cotangent::{Cotangent, Zeros};
use tape::Tape;

use crate::{Code, Diagnostic, Graph, GraphBuilder, Loc, Op, Value};

/// What becomes of a gradient that is asked for through an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Differentiability {
    /// It has a rule.
    Differentiable,
    /// It is 0: the op is piecewise constant, gives no floats, or stops gradients by its meaning.
    Zero,
    /// It is an error, K0505 or K0501.
    Missing,
}

/// Whether gradients pass through an op: what its rule says.
///
/// ```
/// use kiln_ir::grad::{differentiability, Differentiability};
/// use kiln_ir::{DType, Op, ScalarOp};
/// assert_eq!(differentiability(&Op::Scalar(ScalarOp::Exp)), Differentiability::Differentiable);
/// assert_eq!(differentiability(&Op::Scalar(ScalarOp::Floor)), Differentiability::Zero);
/// assert_eq!(differentiability(&Op::Bitcast(DType::I32)), Differentiability::Missing);
/// ```
pub fn differentiability(op: &Op) -> Differentiability {
    match rule::gradient(op) {
        rule::Gradient::Zero => Differentiability::Zero,
        rule::Gradient::Rule(_) | rule::Gradient::Body(_) => Differentiability::Differentiable,
        rule::Gradient::Missing => Differentiability::Missing,
    }
}

/// Appends the gradients of `outputs`, weighted by `seeds`, with regard to each of `wrt`: the vector-Jacobian product.
///
/// `seeds` has one value per output, of the output's type. The result has one value per `wrt`, of its type.
///
/// # Errors
/// K0502 for an output or `wrt` that is not a float, K0312 where the seeds do not fit, K0505 and K0501 for an op on the way that has
/// no rule, with the path to it.
///
/// ```
/// use kiln_ir::{grad, Backend, DType, GraphBuilder, Loc, ScalarOp, TensorType};
/// let mut b = GraphBuilder::new("cubes");
/// let x = b.input("x", TensorType::new(DType::F32, [3], Backend::Cpu), Loc::Unknown)?;
/// let square = b.scalar(ScalarOp::Mul, &[x, x], Loc::Unknown)?;
/// let cube = b.scalar(ScalarOp::Mul, &[square, x], Loc::Unknown)?;
/// let seed = b.full_like(cube, 1.0, Loc::Unknown)?;
/// let dx = grad::vjp(&mut b, &[cube], &[seed], &[x])?[0];
/// let ddx = grad::vjp(&mut b, &[dx], &[seed], &[x])?[0];
/// assert_eq!(b.ty(ddx), b.ty(x));
/// # Ok::<(), kiln_ir::Diagnostic>(())
/// ```
pub fn vjp(
    builder: &mut GraphBuilder,
    outputs: &[Value],
    seeds: &[Value],
    wrt: &[Value],
) -> Result<Vec<Value>, Diagnostic> {
    for &value in wrt {
        float(builder, value, "a gradient with regard to this value is asked for")?;
    }
    for &value in outputs {
        float(builder, value, "its gradient is asked for")?;
    }
    fits(builder, outputs, seeds)?;
    on_tape(builder, |tape| {
        let seeds: Vec<_> = (outputs.iter().zip(seeds))
            .map(|(&output, &seed)| (output, Cotangent::new(tape.term(seed), Zeros::Arithmetic)))
            .collect();
        let gradients = sweep::sweep(tape, 0, &seeds, wrt)?;
        let given = wrt.iter().zip(gradients).map(|(&value, gradient)| match gradient {
            Some(gradient) => gradient.term().value(),
            None => {
                tape.set_loc(tape.node(value.node.index()).loc);
                tape.term(value).full(0.0).value()
            }
        });
        Ok(given.collect())
    })
}

/// Appends the gradient of one number with regard to each of `wrt`; `loc` is the line that asks for it.
///
/// # Errors
/// K0309 where `of` is not a scalar, and those of [`vjp`].
///
/// ```
/// use kiln_ir::{grad, Axes, Backend, DType, GraphBuilder, Loc, ReduceKind, TensorType};
/// let mut b = GraphBuilder::new("sum");
/// let x = b.input("x", TensorType::new(DType::F32, [3], Backend::Cpu), Loc::Unknown)?;
/// let kept = b.reduce(ReduceKind::Sum, Axes::all(1), x, Loc::Unknown)?;
/// let loss = b.reshape(kept, &[].into(), Loc::Unknown)?;
/// let dx = grad::grad(&mut b, loss, &[x], Loc::Unknown)?;
/// assert_eq!(b.ty(dx[0]), b.ty(x));
/// assert_eq!(grad::grad(&mut b, x, &[x], Loc::Unknown).unwrap_err().code.name(), "K0309");
/// # Ok::<(), kiln_ir::Diagnostic>(())
/// ```
pub fn grad(builder: &mut GraphBuilder, of: Value, wrt: &[Value], loc: Loc) -> Result<Vec<Value>, Diagnostic> {
    float(builder, of, "its gradient is asked for").map_err(|diagnostic| diagnostic.at(loc))?;
    let ty = builder.ty(of);
    if ty.shape.rank() != 0 {
        return Err(Diagnostic::new(Code::K0309, format!("a gradient is taken of a scalar, got shape {}", ty.shape))
            .at(loc)
            .in_op("grad")
            .label("which of its elements is meant?")
            .note("of", ty.to_string(), "made", builder.node(of).loc)
            .help("sum it first with `.sum()`, or give each element a weight with `vjp`"));
    }
    let seed = builder.full_like(of, 1.0, loc)?;
    vjp(builder, &[of], &[seed], wrt).map_err(|diagnostic| match diagnostic.loc {
        Loc::Unknown => diagnostic.at(loc),
        Loc::Caller(_) | Loc::Text { .. } => diagnostic,
    })
}

/// A copy of a graph in which the gradients of output `of` with regard to `wrt`, inputs or outputs by name, are further outputs,
/// named `grad.<wrt>` (`grad.grad.<wrt>` where that name is taken, and so on).
///
/// # Errors
/// K0106 for a name that the graph does not have, and those of [`grad`].
///
/// ```
/// use kiln_ir::{grad, Backend, DType, GraphBuilder, Loc, ScalarOp, TensorType};
/// let mut b = GraphBuilder::new("square");
/// let x = b.input("x", TensorType::new(DType::F32, [], Backend::Cpu), Loc::Unknown)?;
/// let y = b.scalar(ScalarOp::Mul, &[x, x], Loc::Unknown)?;
/// let graph = b.finish([("y", y)])?;
/// let with_gradient = grad::append(&graph, "y", &["x"])?;
/// assert_eq!(&*with_gradient.outputs[1].name, "grad.x");
/// let twice = grad::append(&with_gradient, "grad.x", &["x"])?;
/// assert_eq!(&*twice.outputs[2].name, "grad.grad.x");
/// # Ok::<(), kiln_ir::Diagnostic>(())
/// ```
pub fn append(graph: &Graph, of: &str, wrt: &[&str]) -> Result<Graph, Diagnostic> {
    let output = |name: &str| graph.outputs.iter().find(|output| &*output.name == name).map(|output| output.value);
    let input = |name: &str| {
        (0..graph.inputs.len()).find(|&index| graph.input_name(index) == Some(name)).map(|index| graph.inputs[index])
    };
    let unknown = |name: &str, known: &str| {
        Diagnostic::new(Code::K0106, format!("unknown graph {} tensor {name}", graph.name)).in_op("grad").help(known)
    };
    let loss = output(of).ok_or_else(|| {
        let names: Vec<&str> = graph.outputs.iter().map(|output| &*output.name).collect();
        unknown(of, &format!("outputs of this graph: {}", names.join(", ")))
    })?;
    let wanted = wrt.iter().map(|&name| {
        input(name).or_else(|| output(name)).ok_or_else(|| {
            let names: Vec<&str> = (0..graph.inputs.len()).filter_map(|index| graph.input_name(index)).collect();
            unknown(name, &format!("inputs of this graph: {}", names.join(", ")))
        })
    });
    let wanted = wanted.collect::<Result<Vec<Value>, Diagnostic>>()?;
    let mut builder = GraphBuilder::from_graph(graph);
    let gradients = grad(&mut builder, loss, &wanted, graph.node(loss).loc)?;
    let mut outputs: Vec<(String, Value)> =
        graph.outputs.iter().map(|output| (output.name.to_string(), output.value)).collect();
    for (name, gradient) in wrt.iter().zip(gradients) {
        let mut name = format!("grad.{name}");
        while outputs.iter().any(|(taken, _)| *taken == name) {
            name.insert_str(0, "grad.");
        }
        outputs.push((name, gradient));
    }
    builder.finish(outputs)
}

/// K0502 unless the value is a float.
fn float(builder: &GraphBuilder, value: Value, label: &str) -> Result<(), Diagnostic> {
    let ty = builder.ty(value);
    if ty.dtype.is_float() {
        return Ok(());
    }
    let node = builder.node(value);
    let role = match &node.op {
        Op::Input { name, .. } => format!("input \"{name}\""),
        op => format!("`{}`", op.name()),
    };
    Err(Diagnostic::new(Code::K0502, "only float tensors may use an autodiff primitive")
        .at(node.loc)
        .in_op("grad")
        .label(format!("{label}, but it is {}", ty.dtype))
        .note(role, ty.to_string(), "made", node.loc)
        .help("cast it to a float first and differentiate with regard to the cast"))
}

/// K0312 unless there is one seed of the output's type per output.
fn fits(builder: &GraphBuilder, outputs: &[Value], seeds: &[Value]) -> Result<(), Diagnostic> {
    if outputs.len() != seeds.len() {
        let message = format!("{} outputs need as many seeds, got {}", outputs.len(), seeds.len());
        return Err(Diagnostic::new(Code::K0312, message).in_op("vjp"));
    }
    match outputs.iter().zip(seeds).find(|&(&output, &seed)| builder.ty(output) != builder.ty(seed)) {
        None => Ok(()),
        Some((&output, &seed)) => Err(Diagnostic::new(
            Code::K0312,
            format!("the seed of an output has its type, got {} for {}", builder.ty(seed), builder.ty(output)),
        )
        .at(builder.node(seed).loc)
        .in_op("vjp")
        .note("output", builder.ty(output).to_string(), "made", builder.node(output).loc)
        .note("seed", builder.ty(seed).to_string(), "made", builder.node(seed).loc)),
    }
}

/// Lends the builder to a tape. The builder keeps what was recorded up to a failure.
fn on_tape<R>(
    builder: &mut GraphBuilder,
    record: impl FnOnce(&Tape) -> Result<R, Diagnostic>,
) -> Result<R, Diagnostic> {
    let tape = Tape::new(std::mem::replace(builder, GraphBuilder::new("")));
    let result = record(&tape);
    let (lent, failure) = tape.close();
    *builder = lent;
    match failure {
        Some(diagnostic) => Err(diagnostic),
        None => result,
    }
}
