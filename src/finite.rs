//! Finding the first value that is not finite.
//!
//! [`Watch::add`] gives a graph one more result for each float value: whether all its elements are finite. After a run [`Watch::judge`]
//! walks the flags in the order of the nodes, which is the order in which values come from each other: the first op with a flag down and
//! all its operands' flags up is where the trouble began.

use std::sync::Arc;

use kiln_ir::{Axes, Code, Diagnostic, Graph, GraphBuilder, Loc, Op, ReduceKind, ScalarOp, Shape, Value};
use kiln_runtime::Array;

use crate::Result;

/// What is watched in one graph.
pub(crate) struct Watch {
    watched: Vec<Watched>,
}

/// A float value, and what is said if it is the first bad one.
struct Watched {
    /// Positions of its float operands in the list.
    operands: Vec<usize>,
    source: Source,
    ty: String,
    loc: Loc,
}

/// Where a value comes from.
enum Source {
    /// An op, as the text form names it, computed it.
    Computed(String),
    /// It was fed as the argument of this name.
    Fed(Arc<str>),
    /// It was written that way.
    Baked,
}

impl Source {
    fn of(op: &Op) -> Source {
        match op {
            Op::Input { name, .. } => Source::Fed(name.clone()),
            Op::Literal { .. } | Op::Constant { .. } => Source::Baked,
            Op::Pad { value, .. } if !value.to_f64().is_finite() => Source::Baked,
            Op::Iota { .. }
            | Op::RandomBits { .. }
            | Op::Scalar(_)
            | Op::Cast(_)
            | Op::Bitcast(_)
            | Op::Select
            | Op::Reduce { .. }
            | Op::Scan { .. }
            | Op::Reshape(_)
            | Op::Permute(_)
            | Op::Broadcast(_)
            | Op::Slice { .. }
            | Op::Pad { .. }
            | Op::Concat { .. }
            | Op::MatMul { .. }
            | Op::Gather { .. }
            | Op::Scatter { .. }
            | Op::Transfer(_)
            | Op::StopGradient
            | Op::Mark
            | Op::Barrier => Source::Computed(op.name().into_owned()),
            Op::Custom(custom) => Source::Computed(custom.name.to_string()),
        }
    }
}

impl Watch {
    /// Adds the flags to the graph's results.
    pub(crate) fn add(graph: &mut Graph) -> Result<Watch> {
        let mut builder = GraphBuilder::from_graph(graph);
        let mut positions = vec![None; graph.nodes.len()];
        let (mut watched, mut flags) = (Vec::new(), Vec::new());
        for (index, node) in graph.nodes.iter().enumerate() {
            let float = node.types.first().filter(|ty| ty.dtype.is_float() && ty.shape.num_elements() > 0);
            let Some(ty) = float else { continue };
            let operands = node.operands.iter().filter_map(|operand| positions[operand.node.index()]).collect();
            positions[index] = Some(watched.len());
            watched.push(Watched { operands, source: Source::of(&node.op), ty: ty.to_string(), loc: node.loc });
            flags.push(flag(&mut builder, Value::first(index))?);
        }
        let own = graph.outputs.iter().map(|output| (output.name.clone(), output.value));
        let flags = flags.into_iter().enumerate().map(|(index, flag)| (format!("finite.{index}").into(), flag));
        *graph = builder.finish(own.chain(flags))?;
        Ok(Watch { watched })
    }

    /// How many results were added.
    pub(crate) fn flags(&self) -> usize {
        self.watched.len()
    }

    /// K1004 for the first op that made something from finite numbers that is not.
    pub(crate) fn judge(&self, flags: &[Array]) -> Result<()> {
        let finite: std::result::Result<Vec<bool>, _> = flags.iter().map(Array::item::<bool>).collect();
        let finite = finite?;
        let bad = || self.watched.iter().zip(&finite).filter(|(_, finite)| !**finite).map(|(watched, _)| watched);
        let made = bad().find_map(|watched| match &watched.source {
            Source::Computed(op) if watched.operands.iter().all(|&operand| finite[operand]) => Some((watched, op)),
            Source::Computed(_) | Source::Fed(_) | Source::Baked => None,
        });
        if let Some((first, op)) = made {
            return Err(Diagnostic::new(Code::K1004, format!("`{op}` made a value that is not finite"))
                .at(first.loc)
                .in_op(op.clone())
                .label(format!("{} holds a NaN or an infinity; all its operands were finite", first.ty))
                .help("look at its operands with `.tap(\"name\")`")
                .into());
        }
        let fed = bad().find_map(|watched| match &watched.source {
            Source::Fed(name) => Some((watched, name)),
            Source::Computed(_) | Source::Baked => None,
        });
        match fed {
            None => Ok(()),
            Some((watched, name)) => {
                let message = format!("argument `{name}` holds a value that is not finite");
                Err(Diagnostic::new(Code::K1004, message).label(watched.ty.clone()).into())
            }
        }
    }
}

/// Whether all elements of a float value are finite, rank 0.
fn flag(builder: &mut GraphBuilder, value: Value) -> Result<Value> {
    let loc = Loc::Unknown;
    let finite = builder.scalar(ScalarOp::IsFinite, &[value], loc)?;
    let rank = builder.ty(finite).shape.rank();
    let all = if rank == 0 { finite } else { builder.reduce(ReduceKind::Min, Axes::all(rank), finite, loc)? };
    Ok(builder.reshape(all, &Shape::scalar(), loc)?)
}
