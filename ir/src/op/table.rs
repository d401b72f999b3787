//! The table of all ops: what `kiln ops` prints, what `docs/ir.md` must name, what the parser suggests for an unknown name.

use std::borrow::Cow;

use smallvec::{SmallVec, smallvec};

use super::{
    Axes, Custom, DTypeRule, Direction, Op, Precision, ReduceKind, ScalarOp, ScalarRow, ScanKind, ScatterKind,
};
use crate::{Backend, DType, HostData, Literal, Shape, TensorType};

/// One row of the table: an op by its name in the text form.
#[derive(Clone, Debug)]
pub struct OpRow {
    /// The op with some attributes: whatever depends on the name alone can be asked of it ([`Op::name`], [`Op::arity`],
    /// [`crate::grad::differentiability`]).
    pub sample: Op,
    /// Its attributes as the text form writes them between name and operands; empty where it has none.
    pub attributes: &'static str,
    /// The dtypes it takes and gives.
    pub dtypes: &'static str,
    /// What it computes, in one line.
    pub doc: &'static str,
}

impl OpRow {
    /// The name in the text form.
    pub fn name(&self) -> Cow<'static, str> {
        self.sample.name()
    }

    /// Number of operands; `None` where any number will do.
    pub fn arity(&self) -> Option<usize> {
        self.sample.arity()
    }
}

/// Every op of the text form, a row each, arguments of the graph included.
///
/// ```
/// let rows = kiln_ir::op_rows();
/// let gather = rows.iter().find(|row| row.name() == "gather").expect("there is a gather");
/// assert_eq!((gather.arity(), gather.attributes), (Some(2), "axis=N [batch=N]"));
/// ```
pub fn op_rows() -> Vec<OpRow> {
    samples()
        .into_iter()
        .map(|sample| {
            let (attributes, dtypes, doc) = describe(&sample);
            OpRow { sample, attributes, dtypes, doc }
        })
        .collect()
}

/// One op of each name.
fn samples() -> Vec<Op> {
    let ty = TensorType::new(DType::F32, [1], Backend::Cpu);
    let zero = Literal::zero(DType::F32);
    let data = HostData::from_literals(DType::F32, [1], &[zero]).expect("one element of one");
    let one: SmallVec<[usize; 4]> = smallvec![1];
    let custom = Custom { name: "name".into(), attributes: Vec::new(), results: smallvec![ty.clone()], body: None };
    let mut samples = vec![
        Op::Input { name: "x".into(), ty: ty.clone() },
        Op::Literal { value: zero, backend: Backend::Cpu },
        Op::Constant { data, backend: Backend::Cpu },
        Op::Iota { ty, axis: 0 },
        Op::RandomBits { shape: Shape::from([1]), stream: 0 },
    ];
    samples.extend(ScalarOp::ALL.iter().copied().map(Op::Scalar));
    samples.extend([Op::Cast(DType::F32), Op::Bitcast(DType::F32), Op::Select]);
    samples.extend(ReduceKind::ALL.map(|kind| Op::Reduce { kind, axes: Axes::one(0) }));
    samples.extend(ScanKind::ALL.map(|kind| Op::Scan { kind, axis: 0, direction: Direction::Forward }));
    samples.extend([
        Op::Reshape(Shape::from([1])),
        Op::Permute(smallvec![0]),
        Op::Broadcast(Shape::from([1])),
        Op::Slice { starts: smallvec![0], sizes: Shape::from([1]), steps: smallvec![1] },
        Op::Pad { low: one.clone(), high: one, value: zero },
        Op::Concat { axis: 0 },
        Op::MatMul { precision: Precision::Full },
        Op::Gather { axis: 0, batch: 0 },
    ]);
    samples.extend(ScatterKind::ALL.map(|kind| Op::Scatter { kind, axis: 0, batch: 0 }));
    samples.extend([Op::Transfer(Backend::Cpu), Op::StopGradient, Op::Mark, Op::Barrier, Op::Custom(custom)]);
    samples
}

/// Attributes, dtypes and doc line of an op.
fn describe(op: &Op) -> (&'static str, &'static str, &'static str) {
    match op {
        Op::Input { .. } => ("\"NAME\"", "any", "An argument of the graph; declared in its first line."),
        Op::Literal { .. } => ("NUMBER", "any", "A scalar."),
        Op::Constant { .. } => ("[NUMBER, ..] or #HASH", "any", "A tensor baked into the graph."),
        Op::Iota { .. } => ("axis=N", "number", "Each element's index along an axis."),
        Op::RandomBits { .. } => {
            ("[EXTENT, ..] stream=N", "u32", "Random words by Philox 4x32-10 from a key, which is `u32[2]`.")
        }
        Op::Scalar(op) => ("", rule(op.row()), op.row().doc),
        Op::Cast(_) => ("DTYPE", "any", "Each element converted to another dtype."),
        Op::Bitcast(_) => ("DTYPE", "number", "Each element's bits read as another dtype of the same width."),
        Op::Select => ("", "bool, any, any", "`then` where the condition holds, `otherwise` elsewhere."),
        Op::Reduce { kind, .. } => reduce(*kind),
        Op::Scan { kind, .. } => ("axis=N [reverse]", "number", scan(*kind)),
        Op::Reshape(_) => ("[EXTENT, ..]", "any", "The same elements in row-major order under another shape."),
        Op::Permute(_) => ("[AXIS, ..]", "any", "Result axis `i` is operand axis `permutation[i]`."),
        Op::Broadcast(_) => ("[EXTENT, ..]", "any", "Repeated along new axes in front and axes of extent 1."),
        Op::Slice { .. } => (
            "starts=[N, ..] sizes=[N, ..] [steps=[N, ..]]",
            "any",
            "A regular part: element `i` of an axis is element `start + i * step` of the operand.",
        ),
        Op::Pad { .. } => ("low=[N, ..] high=[N, ..] value=NUMBER", "any", "The operand surrounded by a value."),
        Op::Concat { .. } => ("axis=N", "any", "Operands one after another along an axis."),
        Op::MatMul { .. } => (
            "[tf32 or wide]",
            "number",
            "The matrix product over the last two axes; the others are a batch. `wide`: of `i8` or `u8`, with sums in `i32`.",
        ),
        Op::Gather { .. } => {
            ("axis=N [batch=N]", "any, int", "Elements along an axis by index; an index outside is clamped.")
        }
        Op::Scatter { kind, .. } => scatter(*kind),
        Op::Transfer(_) => ("@BACKEND", "any", "The operand on another backend; the only op that crosses."),
        Op::StopGradient => ("", "any", "The operand, with gradient 0."),
        Op::Mark => ("", "any", "The operand as a fresh value, to take gradients with regard to."),
        Op::Barrier => ("", "any", "The operand as a value that no rewrite looks through."),
        Op::Custom(_) => {
            ("\"NAME\" [{\"NAME\": VALUE, ..}]", "any", "An op from outside, by name, with or without a body.")
        }
    }
}

fn rule(row: &ScalarRow) -> &'static str {
    match row.rule {
        DTypeRule::Float => "float",
        DTypeRule::Number => "number",
        DTypeRule::Int => "int",
        DTypeRule::IntOrBool => "int or bool",
        DTypeRule::CompareNumber => "number -> bool",
        DTypeRule::CompareAny => "any -> bool",
        DTypeRule::TestFloat => "float -> bool",
    }
}

fn reduce(kind: ReduceKind) -> (&'static str, &'static str, &'static str) {
    match kind {
        ReduceKind::Sum => ("[AXIS, ..]", "number", "The sum over axes, which stay with extent 1; 0 over nothing."),
        ReduceKind::Prod => ("[AXIS, ..]", "number", "The product over axes; 1 over nothing."),
        ReduceKind::Max => ("[AXIS, ..]", "any", "The largest element over axes; NaN if any is. Of bools: any."),
        ReduceKind::Min => ("[AXIS, ..]", "any", "The smallest element over axes; NaN if any is. Of bools: all."),
        ReduceKind::ArgMax => {
            ("[AXIS]", "number -> i32", "The index of the first NaN, else of the first largest element.")
        }
        ReduceKind::ArgMin => {
            ("[AXIS]", "number -> i32", "The index of the first NaN, else of the first smallest element.")
        }
    }
}

fn scan(kind: ScanKind) -> &'static str {
    match kind {
        ScanKind::Sum => "The running sum along an axis, the element itself included.",
        ScanKind::Prod => "The running product along an axis.",
        ScanKind::Max => "The running maximum along an axis; NaN from the first NaN on.",
        ScanKind::Min => "The running minimum along an axis; NaN from the first NaN on.",
    }
}

fn scatter(kind: ScatterKind) -> (&'static str, &'static str, &'static str) {
    match kind {
        ScatterKind::Add => {
            ("axis=N [batch=N]", "number, int, number", "Updates added at their indices; every duplicate counts.")
        }
        ScatterKind::Set => {
            ("axis=N [batch=N]", "any, int, any", "Updates put at their indices; the last duplicate wins.")
        }
        ScatterKind::Max => ("axis=N [batch=N]", "number, int, number", "The larger of update and target; NaN wins."),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_name_stands_once() {
        let mut names = HashSet::new();
        for row in op_rows() {
            assert!(names.insert(row.name().into_owned()), "{}", row.name());
            assert!(row.doc.ends_with('.') && !row.dtypes.is_empty(), "{}", row.name());
        }
        assert_eq!(names.len(), ScalarOp::ALL.len() + 34);
    }
}
