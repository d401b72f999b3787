//! Gradient rules as graphs: recorded when a gradient is first asked for, so that a rule may call its own op, and ops may name each other.

use std::sync::Arc;

use kiln_ir::custom::{GradientFunction, GradientRule};
use kiln_ir::tree::{Fixed, Tree};
use kiln_ir::{Backend, Code, Custom, Diagnostic, Graph, Node, Op, Result, TensorType};

use super::operands::Operand;
use super::trace::{Subject, called_from, trace};
use super::{Template, filled, results};
use crate::{Tensor, frame};

/// Whose rule it is.
pub(super) struct Rule<'a> {
    pub(super) name: &'a str,
    pub(super) named: &'a [Operand],
    pub(super) untracked: &'a [String],
    pub(super) backend: Backend,
}

/// Records a rule on operands and results of these types.
pub(super) fn traced<A, O>(
    rule: &Rule,
    template: &Template<A>,
    gradient: &dyn Fn(&A, &O, &O) -> A,
    operands: &[TensorType],
    written: &[TensorType],
) -> Result<GradientRule>
where
    A: Tree<Tensor>,
    O: Tree<Tensor, Family: Fixed>,
{
    let mut inputs: Vec<(String, TensorType)> = Vec::new();
    inputs.extend(rule.named.iter().zip(operands).map(|(operand, ty)| (operand.name.clone(), ty.clone())));
    for part in ["result", "gradient"] {
        inputs.extend(written.iter().enumerate().map(|(index, ty)| (format!("the {part} {index}"), ty.clone())));
    }
    let wanted: Vec<usize> = (0..operands.len())
        .filter(|&index| operands[index].dtype.is_float() && !rule.named[index].is_among(rule.untracked))
        .collect();
    let record = |mut tickets: Vec<Tensor>| {
        let arriving = tickets.split_off(operands.len() + written.len());
        let made = tickets.split_off(operands.len());
        gradient(&filled::<A, Tensor>(template, tickets), &results::<O, _>(made), &results::<O, _>(arriving))
    };
    let outputs = |given: &A| {
        let given = given.leaves();
        let one = |&index: &usize| match given.get(index) {
            Some(tensor) if *tensor.ty() == operands[index] => Ok((index.to_string(), (*tensor).clone())),
            found => Err(misfit(rule, index, &operands[index], found.map(|tensor| tensor.ty()))),
        };
        wanted.iter().map(one).collect::<Result<Vec<_>, Diagnostic>>()
    };
    let subject = Subject { op: rule.name, part: "gradient rule", backend: rule.backend };
    let (_, captured) = trace(subject, &inputs, record, outputs)?;
    Ok(GradientRule { graph: Arc::new(captured.graph), operands: wanted, customs: captured.customs })
}

/// K0312: a gradient has the type of what it is the gradient of.
fn misfit(rule: &Rule, index: usize, operand: &TensorType, found: Option<&TensorType>) -> Diagnostic {
    let name = &rule.named[index].name;
    let found = found.map_or_else(|| "missing".to_owned(), |ty| format!("{}{}", ty.dtype, ty.shape));
    let message = format!("gradient of `{name}` is {found}, `{name}` is {}{}", operand.dtype, operand.shape);
    Diagnostic::new(Code::K0312, message)
        .in_op(rule.name)
        .label("a gradient has the type of its operand")
        .help("sum it over the axes along which the op repeats the operand")
}

/// A custom op whose rule is wanted, with the types that it is wanted for.
struct Wanted {
    custom: Custom,
    operands: Vec<TensorType>,
    function: GradientFunction,
}

/// Records the rules of all custom ops that `of` depends on, before its gradient is taken. Mistakes in rules are kept like all others; the
/// error says that there were some.
#[track_caller]
pub(crate) fn prepare(of: &Tensor) -> Result<(), ()> {
    let loc = frame::here();
    let Some(value) = of.value else { return Ok(()) };
    let wanted = {
        // Where the scope has ended, taking the gradient says so.
        let Some(state) = of.session.lock_open() else { return Ok(()) };
        let mut wanted = Vec::new();
        let nodes = &state.builder.nodes()[..=value.node.index()];
        find(nodes, &state.customs, &mut wanted);
        wanted.retain(|wanted: &Wanted| state.builder.gradient_rule(&wanted.custom, &wanted.operands).is_none());
        wanted
    };
    let mut sound = Ok(());
    for Wanted { custom, operands, function } in wanted {
        // User code: no lock is held.
        let rule = function(&operands, &custom.results);
        let subject = Subject { op: &custom.name, part: "gradient rule", backend: of.session.backend };
        let joined =
            rule.map_err(|mistakes| called_from(mistakes, subject, loc).collect::<Vec<_>>()).and_then(|rule| {
                let Some(mut state) = of.session.lock_open() else { return Ok(()) };
                state.customs.join(&rule.customs).map_err(|mistake| vec![mistake])?;
                state.builder.set_gradient_rule(custom.clone(), operands, rule);
                Ok(())
            });
        if let Err(mistakes) = joined {
            mistakes.into_iter().for_each(|mistake| of.session.fail(frame::named(mistake, loc)));
            sound = Err(());
        }
    }
    sound
}

/// The custom ops with rules among some nodes and in the bodies of those without.
fn find(nodes: &[Node], customs: &kiln_ir::CustomOps, wanted: &mut Vec<Wanted>) {
    for node in nodes {
        let Op::Custom(custom) = &node.op else { continue };
        let types = node.operands.iter().map(|value| nodes[value.node.index()].types[value.result as usize].clone());
        let operands: Vec<TensorType> = types.collect();
        let rule = customs.of(custom).and_then(|behaviour| behaviour.gradient.clone());
        let known = |known: &Wanted| known.custom == *custom && known.operands == operands;
        match (rule, &custom.body) {
            (Some(_), _) if wanted.iter().any(known) => {}
            (Some(function), _) => wanted.push(Wanted { custom: custom.clone(), operands, function }),
            (None, Some(body)) => in_body(body, customs, wanted),
            (None, None) => {}
        }
    }
}

fn in_body(body: &Graph, customs: &kiln_ir::CustomOps, wanted: &mut Vec<Wanted>) {
    find(&body.nodes, customs, wanted);
}
