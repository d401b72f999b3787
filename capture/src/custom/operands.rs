//! The operands of a call: their names, how the arguments hold them, and whether they are where they should be.

use std::sync::Arc;

use kiln_ir::tree::{Held, Plain, Structure};
use kiln_ir::{Attribute, Backend, Code, DType, Diagnostic, GraphBuilder, Literal, Value, strays};

use crate::Tensor;

/// An operand by name.
#[derive(Clone, Debug)]
pub(super) struct Operand {
    /// The path to it in the arguments.
    pub(super) name: String,
    pub(super) held: Held,
}

impl Operand {
    /// What messages call it: `bias`, or ``element 2 of `parts` ``.
    fn role(&self) -> String {
        match (self.held, self.name.rsplit_once('.')) {
            (Held::InList(index), Some((list, _))) => format!("element {index} of `{list}`"),
            (Held::InList(index), None) => format!("element {index}"),
            (Held::InStruct, _) => format!("field `{}`", self.name),
            (Held::Plainly | Held::Optionally, _) => format!("`{}`", self.name),
        }
    }

    /// Whether its name, or that of what holds it, is among some.
    pub(super) fn is_among(&self, names: &[String]) -> bool {
        names
            .iter()
            .any(|name| self.name == *name || self.name.strip_prefix(&**name).is_some_and(|rest| rest.starts_with('.')))
    }
}

/// The operands of arguments of this structure. `names` stand for the parts that have none of their own.
pub(super) fn operands(structure: &Structure, names: &[String]) -> Vec<Operand> {
    let places = structure.places().into_iter();
    places.map(|place| Operand { name: renamed(&place.path, names), held: place.held }).collect()
}

/// A path with its first part by name: `1.weight` is `layer.weight` where the second part is named `layer`.
fn renamed(path: &str, names: &[String]) -> String {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let index = if path.is_empty() { Some(0) } else { first.parse::<usize>().ok() };
    let named = index.and_then(|index| names.get(index)).map_or(first, String::as_str);
    let named = if named.is_empty() { "input" } else { named };
    rest.map_or_else(|| named.to_owned(), |rest| format!("{named}.{rest}"))
}

/// The attributes that arguments of this structure give: a number or a text for each value of plain data, and where options, lists or maps
/// decide which operands there are, the whole structure.
pub(super) fn attributes(structure: &Structure, names: &[String]) -> Vec<(Arc<str>, Attribute)> {
    let mut attributes: Vec<(Arc<str>, Attribute)> = Vec::new();
    for (path, value) in structure.values() {
        attributes.push((renamed(&path, names).into(), attribute(&value)));
    }
    if structure.is_variable() {
        attributes.push(("arguments".into(), Attribute::Text(structure.to_string().into())));
    }
    attributes
}

fn attribute(value: &Plain) -> Attribute {
    match value {
        Plain::Bool(value) => Attribute::Number(Literal::from_i128(DType::Bool, i128::from(*value))),
        Plain::Signed(value) => Attribute::Number(Literal::from_i128(DType::I64, i128::from(*value))),
        Plain::F32(bits) => Attribute::Number(Literal::from_bits(DType::F32, u64::from(*bits))),
        Plain::F64(bits) => Attribute::Number(Literal::from_bits(DType::F64, *bits)),
        Plain::Unsigned(value) if i64::try_from(*value).is_ok() => {
            Attribute::Number(Literal::from_i128(DType::I64, i128::from(*value)))
        }
        Plain::Str(text) => Attribute::Text((*text).into()),
        Plain::Text(text) => Attribute::Text((&**text).into()),
        other => Attribute::Text(other.to_string().into()),
    }
}

/// All operands in a diagnostic, under their names.
pub(super) fn noted(
    diagnostic: Diagnostic,
    builder: &GraphBuilder,
    operands: &[Operand],
    values: &[Value],
) -> Diagnostic {
    let operands = operands.iter().zip(values);
    operands.fold(diagnostic, |diagnostic, (operand, &value)| builder.note(diagnostic, &operand.name, value))
}

/// One backend for all operands, or the diagnostic of the first that is elsewhere than most: K0204 for a named one, K0205 for an optional
/// one, K0202 (K0203 if tracked) for an element of a list, K0206 for a tensor in a struct.
pub(super) fn one_backend(
    op: &str,
    builder: &GraphBuilder,
    operands: &[Operand],
    tensors: &[&Tensor],
    values: &[Value],
) -> Result<(), Diagnostic> {
    let backends: Vec<Backend> = values.iter().map(|&value| builder.ty(value).backend).collect();
    let Some(strays) = strays(&backends) else { return Ok(()) };
    let expected = strays.expected;
    // An operand that the op knows by name alone says more than a field somewhere in its arguments.
    let named = |&&place: &&usize| operands[place].held == Held::Plainly;
    let blamed = strays.places.iter().find(named).copied().unwrap_or(strays.places[0]);
    let name = &operands[blamed].name;
    let (code, message) = match operands[blamed].held {
        Held::Plainly => (Code::K0204, format!("input tensor `{name}` is on the wrong backend")),
        Held::Optionally => (Code::K0205, format!("optional tensor `{name}` is on the wrong backend")),
        Held::InList(_) if tensors[blamed].is_tracked() => {
            (Code::K0203, format!("Autodiff float tensor is on the wrong backend (expected {expected})."))
        }
        Held::InList(_) => (Code::K0202, format!("Tensor is on the wrong backend (expected {expected}).")),
        Held::InStruct => (Code::K0206, "backend extension input is on the wrong backend".to_owned()),
    };
    let roles: Vec<String> = operands.iter().map(Operand::role).collect();
    let diagnostic =
        Diagnostic::new(code, message).in_op(op).label(strays.label(op, &roles, &backends)).help(strays.help());
    Err(noted(diagnostic, builder, operands, values))
}

/// K0509: a tracked tensor where the op says that no gradient passes.
pub(super) fn untracked(
    op: &str,
    builder: &GraphBuilder,
    operands: &[Operand],
    tensors: &[&Tensor],
    values: &[Value],
    untracked: &[String],
) -> Result<(), Diagnostic> {
    let stray =
        operands.iter().zip(tensors).find(|(operand, tensor)| operand.is_among(untracked) && tensor.is_tracked());
    let Some((operand, _)) = stray else { return Ok(()) };
    let diagnostic = Diagnostic::new(Code::K0509, "autodiff float input reached concrete dispatch")
        .in_op(op)
        .label(format!("`{}` of `{op}` is declared untracked, and this tensor is tracked", operand.name))
        .help("where no gradient is meant to pass, hand it over with `.detach()`");
    Err(noted(diagnostic, builder, operands, values))
}
