//! Local rewrites, each named, each with the reason why it changes no value that SEMANTICS fixes.
//!
//! Nothing here may remove a NaN, an infinity or the sign of a zero: `x * 0`, `x - x`, `x / x`, `log(exp(x))` and `x + 0.0` stay.
//! A node is seen after its operands have been rewritten, so one sweep reaches the end of most chains; the pass runs until a sweep
//! changes nothing, a few times at most.

use kiln_ir::{
    DType, Diagnostic, Exactness, Graph, GraphBuilder, Literal, Node, Op, ReduceKind, ScalarOp, ScatterKind, Value,
    rebuild,
};
use smallvec::{SmallVec, smallvec};

/// More operands than this are concatenated in several steps.
const WIDEST_CONCAT: usize = 8;
/// Sweeps after which the pass ends whatever it still finds.
const MOST_SWEEPS: usize = 4;

type Rewritten = Result<Option<Value>, Diagnostic>;

/// A named local rewrite: gives the value that stands in for a node, if it applies.
pub struct Rewrite {
    /// Its name.
    pub name: &'static str,
    /// Why it is safe.
    pub why: &'static str,
    apply: fn(&mut GraphBuilder, &Node, &[Value]) -> Rewritten,
}

/// All rewrites, in the order in which they are tried.
pub static REWRITES: &[Rewrite] = &[
    Rewrite { name: "drop-marks", why: "gradients have been taken; the value is the operand", apply: drop_marks },
    Rewrite { name: "drop-identities", why: "the result is the operand, element by element", apply: drop_identities },
    Rewrite { name: "lone-sums", why: "a sum starts from +0, so over one element it is x + 0", apply: lone_sums },
    Rewrite { name: "compose-views", why: "two index maps in a row are one", apply: compose_views },
    Rewrite { name: "fold-literals", why: "IEEE 754 or integer arithmetic fixes the result", apply: fold_literals },
    Rewrite {
        name: "neutral-operands",
        why: "x*1, x/1, x-0, x+(-0) keep every bit of x, NaN and zeros included",
        apply: neutral,
    },
    Rewrite { name: "double-negation", why: "-(-x) and !!x flip the same bits twice", apply: double_negation },
    Rewrite {
        name: "same-operands",
        why: "max(x, x), min(x, x), x & x, x | x and select(c, x, x) are x",
        apply: same_operands,
    },
    Rewrite { name: "decided-select", why: "the condition is one literal", apply: decided_select },
    Rewrite { name: "small-powers", why: "x^1 is x, and x*x is x^2 rounded once", apply: small_powers },
    Rewrite { name: "wide-scatter", why: "16-bit sums accumulate in f32 and round once", apply: wide_scatter },
    Rewrite { name: "narrow-concat", why: "concatenation is associative", apply: narrow_concat },
];

/// Applies all rewrites until nothing changes.
pub fn simplify(graph: &Graph) -> Result<Graph, Diagnostic> {
    let mut graph = graph.clone();
    for _ in 0..MOST_SWEEPS {
        let next = rebuild(&graph, |builder, node, operands| {
            for rewrite in REWRITES {
                if let Some(value) = (rewrite.apply)(builder, node, operands)? {
                    return Ok(Some(smallvec![value]));
                }
            }
            Ok(None)
        })?;
        if next == graph {
            break;
        }
        graph = next;
    }
    Ok(graph)
}

fn drop_marks(_: &mut GraphBuilder, node: &Node, operands: &[Value]) -> Rewritten {
    Ok(matches!(node.op, Op::Mark | Op::StopGradient).then(|| operands[0]))
}

fn drop_identities(builder: &mut GraphBuilder, node: &Node, operands: &[Value]) -> Rewritten {
    let Some(&operand) = operands.first() else { return Ok(None) };
    let from = builder.ty(operand);
    let same_type = node.types.len() == 1 && node.types[0] == *from;
    let identity = match &node.op {
        Op::Cast(_) | Op::Bitcast(_) | Op::Transfer(_) | Op::Reshape(_) | Op::Broadcast(_) => same_type,
        Op::Permute(permutation) => permutation.iter().enumerate().all(|(index, &axis)| index == axis),
        Op::Slice { steps, .. } => {
            same_type && steps.iter().zip(from.shape.iter()).all(|(&step, &extent)| step == 1 || extent == 1)
        }
        Op::Pad { .. } => same_type,
        Op::Concat { .. } => operands.len() == 1,
        // Over one element each; a float sum starts from +0, which a lone -0 shows.
        Op::Reduce { kind, .. } => same_type && !kind.is_arg() && !(*kind == ReduceKind::Sum && from.dtype.is_float()),
        Op::Input { .. }
        | Op::Literal { .. }
        | Op::Constant { .. }
        | Op::Iota { .. }
        | Op::RandomBits { .. }
        | Op::Scalar(_)
        | Op::Select
        | Op::Scan { .. }
        | Op::MatMul { .. }
        | Op::Gather { .. }
        | Op::Scatter { .. }
        | Op::StopGradient
        | Op::Mark
        | Op::Barrier
        | Op::Custom(_) => false,
    };
    Ok(identity.then_some(operand))
}

fn lone_sums(builder: &mut GraphBuilder, node: &Node, operands: &[Value]) -> Rewritten {
    let Op::Reduce { kind: ReduceKind::Sum, axes } = &node.op else { return Ok(None) };
    if axes.iter().any(|&axis| builder.ty(operands[0]).shape[axis] != 1) {
        return Ok(None);
    }
    let zero = builder.full_like(operands[0], 0.0, node.loc)?;
    builder.scalar(ScalarOp::Add, &[operands[0], zero], node.loc).map(Some)
}

fn compose_views(builder: &mut GraphBuilder, node: &Node, operands: &[Value]) -> Rewritten {
    let Some(&operand) = operands.first() else { return Ok(None) };
    let inner = builder.node(operand);
    let composed = match (&node.op, &inner.op) {
        (Op::Reshape(shape), Op::Reshape(_)) => Op::Reshape(shape.clone()),
        (Op::Broadcast(shape), Op::Broadcast(_)) => Op::Broadcast(shape.clone()),
        (Op::Permute(second), Op::Permute(first)) => Op::Permute(second.iter().map(|&axis| first[axis]).collect()),
        (Op::Slice { starts, sizes, steps }, Op::Slice { starts: first_starts, steps: first_steps, .. }) => {
            let axes = starts.iter().zip(first_starts.iter().zip(first_steps));
            let starts: Option<SmallVec<_>> = axes
                .map(|(&start, (&first, &step))| usize::try_from(first as i64 + start as i64 * step).ok())
                .collect();
            let Some(starts) = starts else { return Ok(None) };
            let steps = steps.iter().zip(first_steps).map(|(&second, &first)| second * first).collect();
            Op::Slice { starts, sizes: sizes.clone(), steps }
        }
        _ => return Ok(None),
    };
    let from = inner.operands.clone();
    builder.value(composed, &from, node.loc).map(Some)
}

/// The one number a value consists of, if it is a literal behind broadcasts and the like.
fn splat(builder: &GraphBuilder, value: Value) -> Option<Literal> {
    let mut node = builder.node(value);
    loop {
        match &node.op {
            Op::Literal { value, .. } => return Some(*value),
            Op::Broadcast(_) | Op::Reshape(_) | Op::Permute(_) => node = builder.node(node.operands[0]),
            _ => return None,
        }
    }
}

fn fold_literals(builder: &mut GraphBuilder, node: &Node, operands: &[Value]) -> Rewritten {
    let literals: Option<SmallVec<[Literal; 3]>> = operands.iter().map(|&operand| splat(builder, operand)).collect();
    let Some(literals) = literals.filter(|literals| !literals.is_empty()) else { return Ok(None) };
    let folded = match &node.op {
        Op::Scalar(op) if op.row().exactness == Exactness::Exact => op.eval(&literals),
        Op::Cast(dtype) => Some(literals[0].cast(*dtype)),
        Op::Bitcast(dtype) => Some(Literal::from_bits(*dtype, literals[0].bits())),
        Op::Reshape(_) | Op::Permute(_) | Op::Slice { .. } => Some(literals[0]),
        _ => None,
    };
    match folded {
        Some(literal) => builder.full(&node.types[0], literal, node.loc).map(Some),
        None => Ok(None),
    }
}

fn neutral(builder: &mut GraphBuilder, node: &Node, operands: &[Value]) -> Rewritten {
    let Op::Scalar(op) = &node.op else { return Ok(None) };
    let is = |value: Value, wanted: fn(DType) -> Literal| {
        splat(builder, value).is_some_and(|literal| literal == wanted(literal.dtype()))
    };
    let minus_zero =
        |dtype: DType| if dtype.is_float() { Literal::from_f64(dtype, -0.0) } else { Literal::zero(dtype) };
    let kept = match op {
        ScalarOp::Mul if is(operands[1], Literal::one) => Some(operands[0]),
        ScalarOp::Mul if is(operands[0], Literal::one) => Some(operands[1]),
        ScalarOp::Div if is(operands[1], Literal::one) => Some(operands[0]),
        ScalarOp::Add if is(operands[1], minus_zero) => Some(operands[0]),
        ScalarOp::Add if is(operands[0], minus_zero) => Some(operands[1]),
        ScalarOp::Sub if is(operands[1], Literal::zero) => Some(operands[0]),
        _ => None,
    };
    Ok(kept)
}

fn double_negation(builder: &mut GraphBuilder, node: &Node, operands: &[Value]) -> Rewritten {
    let Op::Scalar(op @ (ScalarOp::Neg | ScalarOp::Not)) = &node.op else { return Ok(None) };
    let inner = builder.node(operands[0]);
    Ok((inner.op == Op::Scalar(*op)).then(|| inner.operands[0]))
}

fn same_operands(_: &mut GraphBuilder, node: &Node, operands: &[Value]) -> Rewritten {
    let kept = match &node.op {
        Op::Scalar(ScalarOp::Max | ScalarOp::Min | ScalarOp::And | ScalarOp::Or) => {
            (operands[0] == operands[1]).then(|| operands[0])
        }
        Op::Select => (operands[1] == operands[2]).then(|| operands[1]),
        _ => None,
    };
    Ok(kept)
}

fn decided_select(builder: &mut GraphBuilder, node: &Node, operands: &[Value]) -> Rewritten {
    if node.op != Op::Select {
        return Ok(None);
    }
    let taken =
        splat(builder, operands[0]).map(|condition| if condition.bits() != 0 { operands[1] } else { operands[2] });
    Ok(taken)
}

fn small_powers(builder: &mut GraphBuilder, node: &Node, operands: &[Value]) -> Rewritten {
    if node.op != Op::Scalar(ScalarOp::Pow) {
        return Ok(None);
    }
    match splat(builder, operands[1]).map(Literal::to_f64) {
        Some(1.0) => Ok(Some(operands[0])),
        Some(2.0) => builder.scalar(ScalarOp::Mul, &[operands[0], operands[0]], node.loc).map(Some),
        _ => Ok(None),
    }
}

fn wide_scatter(builder: &mut GraphBuilder, node: &Node, operands: &[Value]) -> Rewritten {
    let dtype = node.types.first().map_or(DType::F32, |ty| ty.dtype);
    let sums = matches!(node.op, Op::Scatter { kind: ScatterKind::Add, .. });
    if !sums || dtype.accumulator() == dtype {
        return Ok(None);
    }
    let target = builder.cast(operands[0], dtype.accumulator(), node.loc)?;
    let updates = builder.cast(operands[2], dtype.accumulator(), node.loc)?;
    let wide = builder.value(node.op.clone(), &[target, operands[1], updates], node.loc)?;
    builder.cast(wide, dtype, node.loc).map(Some)
}

fn narrow_concat(builder: &mut GraphBuilder, node: &Node, operands: &[Value]) -> Rewritten {
    let Op::Concat { axis } = node.op else { return Ok(None) };
    if operands.len() <= WIDEST_CONCAT {
        return Ok(None);
    }
    let mut parts: Vec<Value> = operands.to_vec();
    while parts.len() > 1 {
        let joined: Result<Vec<Value>, Diagnostic> = parts
            .chunks(WIDEST_CONCAT)
            .map(|part| match part {
                [single] => Ok(*single),
                _ => builder.value(Op::Concat { axis }, part, node.loc),
            })
            .collect();
        parts = joined?;
    }
    Ok(parts.first().copied())
}
