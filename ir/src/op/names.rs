//! How ops and their operands are called, in the text form and in messages.

use std::borrow::Cow;

use super::Op;

impl Op {
    /// The name in the text form and in messages: `add`, `reduce.max`, `matmul`.
    pub fn name(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Op::Input { .. } => "input",
            Op::Literal { .. } => "literal",
            Op::Constant { .. } => "constant",
            Op::Iota { .. } => "iota",
            Op::RandomBits { .. } => "random_bits",
            Op::Scalar(op) => op.name(),
            Op::Cast(_) => "cast",
            Op::Bitcast(_) => "bitcast",
            Op::Select => "select",
            Op::Reduce { kind, .. } => return Cow::Owned(format!("reduce.{}", kind.name())),
            Op::Scan { kind, .. } => return Cow::Owned(format!("scan.{}", kind.name())),
            Op::Reshape(_) => "reshape",
            Op::Permute(_) => "permute",
            Op::Broadcast(_) => "broadcast",
            Op::Slice { .. } => "slice",
            Op::Pad { .. } => "pad",
            Op::Concat { .. } => "concat",
            Op::MatMul { .. } => "matmul",
            Op::Gather { .. } => "gather",
            Op::Scatter { kind, .. } => return Cow::Owned(format!("scatter.{}", kind.name())),
            Op::Transfer(_) => "transfer",
            Op::StopGradient => "stop_gradient",
            Op::Mark => "mark",
            Op::Barrier => "barrier",
            Op::Custom(_) => "custom",
        })
    }

    /// Number of operands; `None` where any number will do.
    pub fn arity(&self) -> Option<usize> {
        match self {
            Op::Input { .. } | Op::Literal { .. } | Op::Constant { .. } | Op::Iota { .. } => Some(0),
            Op::Scalar(op) => Some(op.arity()),
            Op::RandomBits { .. }
            | Op::Cast(_)
            | Op::Bitcast(_)
            | Op::Reduce { .. }
            | Op::Scan { .. }
            | Op::Reshape(_)
            | Op::Permute(_)
            | Op::Broadcast(_)
            | Op::Slice { .. }
            | Op::Pad { .. }
            | Op::Transfer(_)
            | Op::StopGradient
            | Op::Mark
            | Op::Barrier => Some(1),
            Op::MatMul { .. } | Op::Gather { .. } => Some(2),
            Op::Select | Op::Scatter { .. } => Some(3),
            Op::Concat { .. } => None,
            Op::Custom(custom) => custom.body.as_ref().map(|body| body.inputs.len()),
        }
    }

    /// The part that operand `index` of `count` plays in this op: `lhs`, `indices`, `element 2`.
    pub fn role(&self, index: usize, count: usize) -> String {
        let roles: &[&str] = match self {
            Op::Select => &["condition", "then", "otherwise"],
            Op::Gather { .. } => &["input", "indices"],
            Op::Scatter { .. } => &["target", "indices", "updates"],
            Op::RandomBits { .. } => &["key"],
            Op::Scalar(super::ScalarOp::Clamp) => &["input", "low", "high"],
            Op::Concat { .. } => return format!("element {index}"),
            Op::Custom(custom) => {
                return match &custom.body {
                    Some(body) => body.input_name(index).map_or_else(|| format!("operand {index}"), str::to_owned),
                    None => format!("operand {index}"),
                };
            }
            Op::Scalar(_) | Op::MatMul { .. } if count == 2 => &["lhs", "rhs"],
            Op::Input { .. }
            | Op::Literal { .. }
            | Op::Constant { .. }
            | Op::Iota { .. }
            | Op::Scalar(_)
            | Op::Cast(_)
            | Op::Bitcast(_)
            | Op::Reduce { .. }
            | Op::Scan { .. }
            | Op::Reshape(_)
            | Op::Permute(_)
            | Op::Broadcast(_)
            | Op::Slice { .. }
            | Op::Pad { .. }
            | Op::MatMul { .. }
            | Op::Transfer(_)
            | Op::StopGradient
            | Op::Mark
            | Op::Barrier => &["input"],
        };
        roles.get(index).map_or_else(|| format!("operand {index}"), |role| (*role).to_owned())
    }
}
