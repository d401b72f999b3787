//! Mixed precision: matrix products in a narrow float or in TF32, everything else of a graph as it was.
//!
//! Not a pass: it changes what is computed, so it is asked for, and what runs, the reference interpreter included, runs the graph that it gives.
//!
//! - Products of `f32` read their operands rounded to the policy's dtype and give a result rounded to it, which is cast back at once. Their sums are
//!   kept in `f32` by every backend. Gradients' products are products like any other.
//! - All else stays in `f32`: elementwise functions, reductions (of norms, softmax and losses as well), optimizers, and the graph's inputs and outputs, so
//!   weights are masters of which a rounded copy is made once a run. Casts fuse, so what one product hands to the next is narrow in memory.
//! - A value that is a narrow one cast to `f32`, seen through views, is not rounded again: the view is taken of the narrow one.
//! - Products of other dtypes, of 8-bit integers kept wide, and those within custom ops are left alone.

use std::collections::HashMap;

use kiln_ir::{DType, Diagnostic, Graph, GraphBuilder, Loc, Node, Op, Precision, Value, rebuild};
use smallvec::SmallVec;

/// What products of `f32` are computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    products: Products,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Products {
    /// Operands and results of this dtype.
    Narrow(DType),
    /// Operands rounded to TF32 where the device has it.
    Tf32,
}

impl Policy {
    /// Products of `bf16`: half the memory, the exponents of `f32`, 8 bits of precision.
    pub const fn bf16() -> Policy {
        Policy { products: Products::Narrow(DType::BF16) }
    }

    /// Products of `f16`: half the memory, 11 bits of precision, and numbers up to 65504. Gradients want a loss scale.
    pub const fn f16() -> Policy {
        Policy { products: Products::Narrow(DType::F16) }
    }

    /// Products of `f32` whose operands may be rounded to TF32, which has 11 bits of precision; a device without it computes true `f32`.
    pub const fn tf32() -> Policy {
        Policy { products: Products::Tf32 }
    }
}

/// A graph whose products of `f32` are computed as a policy says. Inputs and outputs keep their types.
///
/// ```
/// use kiln_ir::{Backend, DType, GraphBuilder, Loc, Op, Precision, TensorType};
/// use kiln_passes::{Policy, mixed_precision};
/// let mut b = GraphBuilder::new("f");
/// let x = b.input("x", TensorType::new(DType::F32, [4, 4], Backend::Cpu), Loc::Unknown)?;
/// let y = b.value(Op::MatMul { precision: Precision::Full }, &[x, x], Loc::Unknown)?;
/// let graph = mixed_precision(&b.finish([("y", y)])?, Policy::bf16())?;
/// // x, x rounded, the product, and the product as f32.
/// assert_eq!(graph.nodes.len(), 4);
/// assert_eq!(graph.ty(graph.outputs[0].value).dtype, DType::F32);
/// # Ok::<(), kiln_ir::Diagnostic>(())
/// ```
pub fn mixed_precision(graph: &Graph, policy: Policy) -> Result<Graph, Diagnostic> {
    let mut rounded = Rounded::new();
    let mixed = rebuild(graph, |builder, node, operands| {
        let wide = node.types.first().is_some_and(|ty| ty.dtype == DType::F32);
        if !wide || !matches!(node.op, Op::MatMul { precision: Precision::Full | Precision::Tf32 }) {
            return Ok(None);
        }
        let product = match policy.products {
            Products::Tf32 => builder.value(Op::MatMul { precision: Precision::Tf32 }, operands, node.loc)?,
            Products::Narrow(dtype) => {
                let mut narrow = SmallVec::<[Value; 2]>::new();
                for &operand in operands {
                    narrow.push(round(builder, operand, dtype, &mut rounded, node.loc)?);
                }
                let product = builder.value(Op::MatMul { precision: Precision::Full }, &narrow, node.loc)?;
                builder.cast(product, DType::F32, node.loc)?
            }
        };
        Ok(Some([product].into_iter().collect()))
    })?;
    // Views of which only the narrow ones are read go.
    rebuild(&mixed, |_, _, _| Ok(None))
}

/// Values of the new graph, rounded.
type Rounded = HashMap<Value, Value>;

/// A value in a narrower dtype: what it was made of where that was narrow, else cast.
fn round(
    builder: &mut GraphBuilder,
    value: Value,
    dtype: DType,
    rounded: &mut Rounded,
    loc: Loc,
) -> Result<Value, Diagnostic> {
    if let Some(&known) = rounded.get(&value) {
        return Ok(known);
    }
    let node = builder.node(value).clone();
    // Of a part the whole is rounded only where that costs nothing.
    let through = is_view(&node.op) && (!matches!(node.op, Op::Slice { .. }) || was_narrow(builder, value, dtype));
    let narrow = if is_widened(builder, &node, dtype) {
        node.operands[0]
    } else if through {
        let operand = round(builder, node.operands[0], dtype, rounded, loc)?;
        builder.value(node.op, &[operand], node.loc)?
    } else {
        builder.cast(value, dtype, loc)?
    };
    rounded.insert(value, narrow);
    Ok(narrow)
}

/// Whether a value is a view of a narrow one that was cast.
fn was_narrow(builder: &GraphBuilder, value: Value, dtype: DType) -> bool {
    let node = builder.node(value);
    is_widened(builder, node, dtype) || is_view(&node.op) && was_narrow(builder, node.operands[0], dtype)
}

/// Whether a node casts a value of `dtype`.
fn is_widened(builder: &GraphBuilder, node: &Node, dtype: DType) -> bool {
    matches!(node.op, Op::Cast(_)) && builder.ty(node.operands[0]).dtype == dtype
}

/// Whether an op gives elements of its operand as they are, so that it may as well be given them rounded.
fn is_view(op: &Op) -> bool {
    match op {
        Op::Slice { .. } | Op::Reshape(_) | Op::Permute(_) | Op::Broadcast(_) | Op::StopGradient | Op::Mark => true,
        Op::Input { .. }
        | Op::Literal { .. }
        | Op::Constant { .. }
        | Op::Iota { .. }
        | Op::RandomBits { .. }
        | Op::Scalar(_)
        | Op::Cast(_)
        | Op::Bitcast(_)
        | Op::Select
        | Op::Reduce { .. }
        | Op::Scan { .. }
        | Op::Pad { .. }
        | Op::Concat { .. }
        | Op::MatMul { .. }
        | Op::Gather { .. }
        | Op::Scatter { .. }
        | Op::Transfer(_)
        | Op::Barrier
        | Op::Custom(_) => false,
    }
}
