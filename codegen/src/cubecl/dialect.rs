//! Ops of our own in CubeCL's IR, for what its own ops do not say.
//!
//! CubeCL folds constants on the host (transcendental functions too), contracts nothing but promises nothing, drops NaN in `max`, and leaves
//! out-of-range casts and shifts to C++. What a number is, here is Kiln's business: arithmetic is an [`ExpressionOp`], a template in C++ that
//! CubeCL carries, names, shares and prints, but does not look into. Buffers, vectors, variables, branches and loops are CubeCL's ops.

// Pliron's macros expand to what Rust has since 1.91: this feature needs it, as CubeCL does.
#![allow(clippy::incompatible_msrv)]

use cubecl_core::ir::interfaces::side_effects::{MemoryEffect, MemoryEffectsOp};
use cubecl_core::ir::prelude::*;
use cubecl_core::ir::{AlwaysSpeculatable, NoMemoryEffect, NoSideEffects};
use cubecl_cpp::shared::{CppValue, OpToCPP};
use cubecl_cpp::target::Shared;
use pliron::builtin::attributes::StringAttr;
use pliron::printable::Printable as _;

/// A C++ expression without effects: equal ones are computed once, unused ones not at all.
#[pliron_op(name = "kiln.expression", format, attributes = (kiln_expression_template: StringAttr), verifier = "succ")]
#[op_interfaces(NResultsInterface<1>, OneResultInterface)]
pub(super) struct ExpressionOp;

NoSideEffects!(ExpressionOp);
NoMemoryEffect!(ExpressionOp);
AlwaysSpeculatable!(ExpressionOp);

impl ExpressionOp {
    /// `$i` in the template stands for an operand.
    pub(super) fn new(ctx: &mut Context, ty: TypeHandle, template: &str, operands: Vec<Value>) -> ExpressionOp {
        let op = Operation::new(ctx, Self::get_concrete_op_info(), vec![ty], operands, vec![], 0);
        let op = ExpressionOp { op };
        op.set_attr_kiln_expression_template(ctx, StringAttr::new(template.to_owned()));
        op
    }
}

#[op_interface_impl]
impl OpToCPP<Shared> for ExpressionOp {
    fn to_cpp(&self, ctx: &Context) -> String {
        let template = self.get_attr_kiln_expression_template(ctx).expect("set when it was made");
        format!("{} = {};\n", self.get_result(ctx).fmt_left(ctx), filled(ctx, template.as_str(), self.get_operation()))
    }
}

/// A C++ expression that reads what others write, or meets other threads: it stays where it stands.
#[pliron_op(name = "kiln.observation", format, attributes = (kiln_observation_template: StringAttr), verifier = "succ")]
#[op_interfaces(NResultsInterface<1>, OneResultInterface)]
pub(super) struct ObservationOp;

impl ObservationOp {
    /// `$i` in the template stands for an operand.
    pub(super) fn new(ctx: &mut Context, ty: TypeHandle, template: &str, operands: Vec<Value>) -> ObservationOp {
        let op = Operation::new(ctx, Self::get_concrete_op_info(), vec![ty], operands, vec![], 0);
        let op = ObservationOp { op };
        op.set_attr_kiln_observation_template(ctx, StringAttr::new(template.to_owned()));
        op
    }
}

#[op_interface_impl]
impl OpToCPP<Shared> for ObservationOp {
    fn to_cpp(&self, ctx: &Context) -> String {
        let template = self.get_attr_kiln_observation_template(ctx).expect("set when it was made");
        format!("{} = {};\n", self.get_result(ctx).fmt_left(ctx), filled(ctx, template.as_str(), self.get_operation()))
    }
}

/// A C++ statement, or one that says nothing and tells CubeCL which buffers are written.
#[pliron_op(name = "kiln.statement", format, attributes = (kiln_statement_template: StringAttr), verifier = "succ")]
#[op_interfaces(NResultsInterface<0>)]
pub(super) struct StatementOp;

impl StatementOp {
    /// `$i` in the template stands for an operand.
    pub(super) fn new(ctx: &mut Context, template: &str, operands: Vec<Value>) -> StatementOp {
        let op = Operation::new(ctx, Self::get_concrete_op_info(), vec![], operands, vec![], 0);
        let op = StatementOp { op };
        op.set_attr_kiln_statement_template(ctx, StringAttr::new(template.to_owned()));
        op
    }
}

#[op_interface_impl]
impl OpToCPP<Shared> for StatementOp {
    fn to_cpp(&self, ctx: &Context) -> String {
        let template = self.get_attr_kiln_statement_template(ctx).expect("set when it was made");
        let text = filled(ctx, template.as_str(), self.get_operation());
        if text.is_empty() { text } else { format!("{text}\n") }
    }
}

/// Says that buffers are read and written through pointers that CubeCL does not follow.
#[pliron_op(name = "kiln.touch", format, verifier = "succ")]
#[op_interfaces(NResultsInterface<0>)]
pub(super) struct TouchOp;

impl TouchOp {
    /// Of these buffers.
    pub(super) fn new(ctx: &mut Context, buffers: Vec<Value>) -> TouchOp {
        TouchOp { op: Operation::new(ctx, Self::get_concrete_op_info(), vec![], buffers, vec![], 0) }
    }
}

#[op_interface_impl]
impl MemoryEffectsOp for TouchOp {
    fn memory_effects(&self, ctx: &Context) -> Vec<MemoryEffect> {
        let buffers: Vec<Value> = self.get_operation().deref(ctx).operands().collect();
        buffers.into_iter().flat_map(|buffer| [MemoryEffect::Read(buffer), MemoryEffect::Write(buffer)]).collect()
    }
}

#[op_interface_impl]
impl OpToCPP<Shared> for TouchOp {
    fn to_cpp(&self, _: &Context) -> String {
        String::new()
    }
}

/// The template with the names of an op's operands in it.
fn filled(ctx: &Context, template: &str, op: Ptr<Operation>) -> String {
    let op = op.deref(ctx);
    let mut text = String::with_capacity(template.len() + 16);
    let mut pieces = template.split('$');
    text.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let digits = piece.find(|c: char| !c.is_ascii_digit()).unwrap_or(piece.len());
        let index: usize = piece[..digits].parse().expect("a number follows each $");
        text.push_str(&op.get_operand(index).name(ctx).disp(ctx).to_string());
        text.push_str(&piece[digits..]);
    }
    text
}
