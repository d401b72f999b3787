//! One backend for all operands, in the words of the op the user called.
//!
//! The typing rule of a node knows operands by their place in the node. A composite knows more: which operand has which name, which one is
//! optional, which stands in a list; and a ticket knows whether it is tracked. Composites and list ops are therefore checked here, on entry,
//! before any node is recorded, so that the more specific of two documented errors is the one that is raised:
//!
//! - a named operand: K0204, before the K0201 of an op inside; an optional one: K0205;
//! - an element of a list: K0202 with its position; K0203 if it is tracked for gradients.

use kiln_ir::{Backend, Code, Diagnostic, GraphBuilder, Value, strays};
use smallvec::SmallVec;

use crate::Tensor;
use crate::session::{Lists, State};

/// An operand of an op that knows its operands by name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named<'a> {
    pub(crate) name: &'a str,
    pub(crate) tensor: &'a Tensor,
    pub(crate) presence: Presence,
}

/// Whether an op can do without an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// It always has it.
    Required,
    /// It was given, and need not have been: a bias, a mask.
    Optional,
}

impl<'a> Named<'a> {
    /// An operand that is always there.
    pub(crate) fn required(name: &'a str, tensor: &'a Tensor) -> Named<'a> {
        Named { name, tensor, presence: Presence::Required }
    }

    /// An operand that may be missing: none, or one.
    pub(crate) fn optional(name: &'a str, tensor: Option<&'a Tensor>) -> Option<Named<'a>> {
        Some(Named { name, tensor: tensor?, presence: Presence::Optional })
    }
}

fn backends_of(builder: &GraphBuilder, values: &[Value]) -> SmallVec<[Backend; 4]> {
    values.iter().map(|&value| builder.ty(value).backend).collect()
}

/// The diagnostic with every operand under its role.
fn noted(builder: &GraphBuilder, diagnostic: Diagnostic, op: &str, roles: &[String], values: &[Value]) -> Diagnostic {
    let operands = roles.iter().zip(values);
    operands.fold(diagnostic.in_op(op), |diagnostic, (role, &value)| builder.note(diagnostic, role, value))
}

/// K0204 where a named operand is elsewhere than most, K0205 where it is an optional one. Of several strays the first required one counts.
pub(crate) fn check_named(
    builder: &GraphBuilder,
    op: &str,
    operands: &[Named],
    values: &[Value],
) -> Result<(), Diagnostic> {
    let backends = backends_of(builder, values);
    let Some(strays) = strays(&backends) else { return Ok(()) };
    let presence = |place: usize| operands[place].presence;
    let required = strays.places.iter().copied().find(|&place| presence(place) == Presence::Required);
    let blamed = required.unwrap_or(strays.places[0]);
    let (code, what) = match presence(blamed) {
        Presence::Required => (Code::K0204, "input"),
        Presence::Optional => (Code::K0205, "optional"),
    };
    let roles: Vec<String> = operands.iter().map(|operand| operand.name.to_owned()).collect();
    let message = format!("{what} tensor `{}` is on the wrong backend", operands[blamed].name);
    let diagnostic = Diagnostic::new(code, message).label(strays.label(op, &roles, &backends)).help(strays.help());
    Err(noted(builder, diagnostic, op, &roles, values))
}

/// K0202 where an element of a list is elsewhere than most, K0203 where it is tracked; in a strict capture K0506 for an element that is not
/// tracked beside one that is.
pub(crate) fn check_list(state: &State, op: &str, elements: &[&Tensor], values: &[Value]) -> Result<(), Diagnostic> {
    let builder = &state.builder;
    let roles: Vec<String> = (0..elements.len()).map(|place| format!("element {place}")).collect();
    let backends = backends_of(builder, values);
    if let Some(strays) = strays(&backends) {
        let mut diagnostic = strays.of_elements(op, &roles, &backends);
        if strays.places.iter().any(|&place| elements[place].is_tracked()) {
            diagnostic.code = Code::K0203;
            diagnostic.message =
                format!("Autodiff float tensor is on the wrong backend (expected {}).", strays.expected);
        }
        return Err(noted(builder, diagnostic, op, &roles, values));
    }
    check_promoted(state, op, &roles, elements, values)
}

/// K0506 where a strict capture joins floats that are tracked with one that is not. `roles` names the elements.
pub(crate) fn check_promoted(
    state: &State,
    op: &str,
    roles: &[String],
    elements: &[&Tensor],
    values: &[Value],
) -> Result<(), Diagnostic> {
    let stray = elements.iter().position(|element| !element.is_tracked() && element.dtype().is_float());
    match (state.lists, stray) {
        (Lists::Strict, Some(stray)) if elements.iter().any(|element| element.is_tracked()) => {
            let backend = state.builder.ty(values[stray]).backend;
            let message = format!("Expected autodiff-wrapped float tensor for backend {backend}.");
            let diagnostic = Diagnostic::new(Code::K0506, message)
                .label(format!("{} of `{op}` is not tracked for gradients, others are", roles[stray]))
                .help("promote it with `Tensor::from_inner(..)`, or do not ask for `device.strict()`");
            Err(noted(&state.builder, diagnostic, op, roles, values))
        }
        (Lists::Strict | Lists::Promote, _) => Ok(()),
    }
}

/// K0210: an op whose operands are lists or optional was given none of them, and no scope says which backend is meant.
pub(crate) fn nothing_to_select_from(op: &str) -> Diagnostic {
    Diagnostic::new(Code::K0210, "dispatched operation received no tensor input to select a backend from")
        .in_op(op)
        .label(format!("`{op}` was given no tensors, and no scope is open"))
        .help("give it a tensor, or call it inside `device.capture_scope(|scope| ..)`")
}
