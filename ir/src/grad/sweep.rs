//! The reverse sweep: from the outputs back to the values that gradients are asked for.
//!
//! First *activity*: walking forward, which nodes depend on a wanted value through ops that pass gradients on. Then the nodes are
//! walked backward once; a node that is active and that some gradient has reached hands gradients to its active operands. Nodes the
//! sweep appends are never walked. Both walks are loops over the node list, so depth costs no stack and a value with many paths to
//! the outputs is visited once.

use smallvec::SmallVec;

use super::cotangent::{Cotangent, Zeros};
use super::rule::{Arrival, Gradient, gradient};
use super::tape::Tape;
use crate::custom::GradientRule;
use crate::{Code, Custom, Diagnostic, Graph, Node, Op, TensorType, Value};

/// An output of the differentiated part and the gradient that arrives there.
pub(super) type Seed<'t> = (Value, Cotangent<'t>);

/// The gradient of each of `wrt`, or `None` where the outputs don't depend on it. Nodes before `first` are taken for constants,
/// unless they are among `wrt`.
pub(super) fn sweep<'t>(
    tape: &'t Tape,
    first: usize,
    seeds: &[Seed<'t>],
    wrt: &[Value],
) -> Result<Vec<Option<Cotangent<'t>>>, Diagnostic> {
    let end = seeds.iter().map(|(output, _)| output.node.index() + 1).max().unwrap_or(first);
    let mut sweep = Sweep {
        tape,
        active: active(tape, first, end, wrt),
        arrivals: vec![Slots::new(); end],
        users: vec![None; end],
    };
    for &(output, cotangent) in seeds {
        sweep.arrive(output, cotangent, None);
    }
    for index in (first..end).rev() {
        if tape.failed() {
            break;
        }
        if sweep.active[index] && !sweep.arrivals[index].is_empty() {
            sweep.step(index)?;
        }
    }
    Ok(wrt.iter().map(|&value| sweep.arrived(value)).collect())
}

/// Which nodes before `end` depend on a value of `wrt` through ops that pass gradients on.
fn active(tape: &Tape, first: usize, end: usize, wrt: &[Value]) -> Vec<bool> {
    let mut active = vec![false; end];
    for value in wrt.iter().filter(|value| value.node.index() < end) {
        active[value.node.index()] = true;
    }
    tape.with_nodes(|nodes| {
        for (index, node) in nodes[..end].iter().enumerate().skip(first) {
            let has_rule = tape.rule(node).is_some();
            active[index] = active[index]
                || node.operands.iter().any(|operand| {
                    let ty = &nodes[operand.node.index()].types[operand.result as usize];
                    active[operand.node.index()] && if has_rule { ty.dtype.is_float() } else { passes(node, ty) }
                });
        }
    });
    active
}

/// Whether a node depends on an active operand of type `ty` in a way that has a gradient, or should have one.
///
/// The bits of a float that became integers by a bitcast stay active until they are floats again: there the missing rule is reported.
fn passes(node: &Node, ty: &TensorType) -> bool {
    let to_float = node.types.iter().any(|ty| ty.dtype.is_float());
    match gradient(&node.op) {
        Gradient::Zero => !ty.dtype.is_float() && !to_float && !matches!(node.op, Op::StopGradient),
        Gradient::Rule(_) | Gradient::Body(_) => ty.dtype.is_float() || !to_float,
        Gradient::Missing => true,
    }
}

/// The gradients that have arrived at a node's results.
type Slots<'t> = SmallVec<[Option<Cotangent<'t>>; 1]>;

struct Sweep<'t> {
    tape: &'t Tape,
    active: Vec<bool>,
    arrivals: Vec<Slots<'t>>,
    /// The node from which a gradient first came, for the path in a diagnostic.
    users: Vec<Option<usize>>,
}

impl<'t> Sweep<'t> {
    fn arrived(&self, value: Value) -> Option<Cotangent<'t>> {
        self.arrivals.get(value.node.index())?.get(value.result as usize).copied().flatten()
    }

    fn arrive(&mut self, value: Value, cotangent: Cotangent<'t>, user: Option<usize>) {
        let (index, result) = (value.node.index(), value.result as usize);
        let slots = &mut self.arrivals[index];
        if slots.len() <= result {
            slots.resize(result + 1, None);
        }
        slots[result] = Some(slots[result].map_or(cotangent, |there| there.plus(cotangent)));
        self.users[index] = self.users[index].or(user);
    }

    /// Hands the gradients that arrived at a node to its active operands.
    fn step(&mut self, index: usize) -> Result<(), Diagnostic> {
        let node = self.tape.node(index);
        if let Some(rule) = self.tape.rule(&node) {
            self.tape.set_loc(node.loc);
            for (operand, cotangent) in self.through_rule(index, &rule, &node)? {
                self.arrive(node.operands[operand], cotangent, Some(index));
            }
            return Ok(());
        }
        let wanted: SmallVec<[usize; 3]> = (0..node.operands.len())
            .filter(|&operand| self.active[node.operands[operand].node.index()])
            .filter(|&operand| passes(&node, &self.tape.ty(node.operands[operand])))
            .collect();
        if wanted.is_empty() {
            return Ok(());
        }
        self.tape.set_loc(node.loc);
        match gradient(&node.op) {
            Gradient::Zero => {}
            Gradient::Rule(rule) => {
                let y = Value::first(index);
                let Some(g) = self.arrived(y) else { return Ok(()) };
                let operands = node.operands.iter().map(|&operand| self.tape.term(operand)).collect();
                let mut arrival = Arrival { g, y: self.tape.term(y), operands, operand: 0 };
                for operand in wanted {
                    arrival.operand = operand;
                    if let Some(cotangent) = rule(&arrival) {
                        self.arrive(node.operands[operand], cotangent, Some(index));
                    }
                }
            }
            Gradient::Body(body) => {
                for (operand, cotangent) in self.through_body(index, body, &node, &wanted)? {
                    self.arrive(node.operands[operand], cotangent, Some(index));
                }
            }
            Gradient::Missing => return Err(self.missing(index, &node)),
        }
        Ok(())
    }

    /// The gradients of a custom op's operands by its own rule, whose graph is put here. Results that no gradient has reached have zeros.
    fn through_rule(
        &self,
        index: usize,
        rule: &GradientRule,
        node: &Node,
    ) -> Result<Vec<(usize, Cotangent<'t>)>, Diagnostic> {
        let tape = self.tape;
        let results = (0..node.types.len()).map(|result| Value { result: result as u32, ..Value::first(index) });
        let results: Vec<Value> = results.collect();
        let arrived: Vec<Option<Cotangent<'t>>> = results.iter().map(|&result| self.arrived(result)).collect();
        let zeros = match arrived.iter().flatten().all(|cotangent| cotangent.zeros() == Zeros::Masked) {
            true => Zeros::Masked,
            false => Zeros::Arithmetic,
        };
        let seeds = results.iter().zip(&arrived);
        let seeds = seeds.map(|(&result, cotangent)| match cotangent {
            Some(cotangent) => cotangent.term().value(),
            None => tape.term(result).full(0.0).value(),
        });
        let seeds: Vec<Value> = seeds.collect();
        let arguments: Vec<Value> = node.operands.iter().copied().chain(results).chain(seeds).collect();
        let gradients = tape.inline(&rule.graph, &arguments)?;
        let wanted = rule.operands.iter().zip(gradients).filter(|&(&operand, _)| {
            self.active[node.operands[operand].node.index()] && tape.ty(node.operands[operand]).dtype.is_float()
        });
        Ok(wanted.map(|(&operand, gradient)| (operand, Cotangent::new(tape.term(gradient), zeros))).collect())
    }

    /// The gradients of a custom op's operands: its body is put in place, on fresh copies of the operands, and swept.
    fn through_body(
        &self,
        index: usize,
        body: &Graph,
        node: &Node,
        wanted: &[usize],
    ) -> Result<Vec<(usize, Cotangent<'t>)>, Diagnostic> {
        let tape = self.tape;
        let marks: Vec<Value> =
            node.operands.iter().map(|&operand| tape.term(operand).op(Op::Mark, &[]).value()).collect();
        let outputs = match node.types.first() {
            Some(ty) if body.backends() != [ty.backend] => tape.inline(&body.retarget(ty.backend)?, &marks)?,
            _ => tape.inline(body, &marks)?,
        };
        let seeds: Vec<Seed<'t>> = outputs
            .iter()
            .enumerate()
            .filter_map(|(result, &output)| {
                let result = Value { result: result as u32, ..Value::first(index) };
                Some((output, self.arrived(result)?))
            })
            .collect();
        // A builder that merges equal nodes makes one mark for an operand given twice: its gradient is handed over once.
        let wanted = wanted.iter().copied().filter(|&operand| !marks[..operand].contains(&marks[operand]));
        let wanted: SmallVec<[usize; 3]> = wanted.collect();
        let wrt: Vec<Value> = wanted.iter().map(|&operand| marks[operand]).collect();
        // Such a builder may also give nodes of an earlier, equal body: all that depends on the marks comes after them.
        let first = marks.iter().map(|mark| mark.node.index()).min().unwrap_or(0);
        let cotangents = sweep(tape, first, &seeds, &wrt)?;
        Ok(wanted.into_iter().zip(cotangents).filter_map(|(operand, found)| Some((operand, found?))).collect())
    }

    /// K0501 or K0505, with the way from the outputs to the op.
    fn missing(&self, index: usize, node: &Node) -> Diagnostic {
        let diagnostic = match &node.op {
            Op::Custom(Custom { name, .. }) => {
                Diagnostic::new(Code::K0501, format!("Autodiff not supported for custom op `{name}`"))
                    .label(
                        "a gradient is asked for through this op, which has neither a rule nor a body to differentiate",
                    )
                    .help("give the custom op a gradient rule, or a body made of differentiable ops")
            }
            op => Diagnostic::new(Code::K0505, format!("Can't differentiate {}.", op.name()))
                .label("a gradient is asked for through this op, which has none"),
        };
        let diagnostic = diagnostic
            .at(node.loc)
            .in_op(shown(&node.op))
            .help("where no gradient is meant to pass, put `.detach()` before it");
        let mut path: Vec<usize> = std::iter::successors(Some(index), |&index| self.users[index]).collect();
        path.reverse();
        self.tape.with_nodes(|nodes| noted(diagnostic, nodes, &path))
    }
}

/// What the user calls an op: a custom one by its own name.
fn shown(op: &Op) -> std::borrow::Cow<'_, str> {
    match op {
        Op::Custom(custom) => std::borrow::Cow::Borrowed(&custom.name),
        op => op.name(),
    }
}

/// At most this many nodes at either end of a path are printed.
const PATH_END: usize = 8;

/// The diagnostic with one note for each node of a path; the middle of a long one is left out.
fn noted(mut diagnostic: Diagnostic, nodes: &[Node], path: &[usize]) -> Diagnostic {
    let left_out = PATH_END..path.len().saturating_sub(PATH_END);
    for (position, &index) in path.iter().enumerate() {
        if left_out.contains(&position) {
            if position == left_out.start {
                let count = left_out.len();
                diagnostic = diagnostic.note("from", "...", format!("{count} more nodes"), crate::Loc::Unknown);
            }
            continue;
        }
        let node = &nodes[index];
        let role = if position == 0 { "gradient of" } else { "from" };
        let ty = node.types.first().map(TensorType::to_string).unwrap_or_default();
        diagnostic = diagnostic.note(role, format!("`{}` {ty}", shown(&node.op)), "made", node.loc);
    }
    diagnostic
}
