//! Map, reduce and row kernels: stages in the order of their phases.
//!
//! Each phase is one fold stage with all reductions whose operands are there; what does not vary along the inner axes is computed once
//! per outer point, before the stage that wants it. Last come the stores: of full-level values in an `Each` stage, of outer-level values
//! in a `Point` stage.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use kiln_ir::kernel::{Access, Fold, Kernel, LoopKernel, Reg, Stage, Store};
use kiln_ir::{DType, Graph, Op, Value};

use super::evaluate::{Binding, Evaluator, Refinement, Source, Stop};
use super::{Space, push_point};
use crate::group::{Group, Member};
use crate::index::{Index, Level};

pub(super) fn lower(
    graph: &Graph,
    group: &Group,
    stored: &HashSet<Value>,
    in_memory: &dyn Fn(Value) -> bool,
    space: &Space,
    binding: &mut Binding,
) -> Result<Kernel, Stop> {
    let folded: RefCell<HashMap<Value, (Reg, Index)>> = RefCell::default();
    let source = |value: Value| match folded.borrow().get(&value) {
        Some((reg, index)) => Source::Register(*reg, index.clone()),
        None if in_memory(value) => Source::Memory,
        None => Source::Inline,
    };
    let mut kernel =
        LoopKernel { buffers: Vec::new(), outer: space.outer.clone(), inner: space.inner.clone(), stages: Vec::new() };
    let mut evaluator = Evaluator::new(graph, &source, binding, &space.outer, &space.inner, Refinement::Allowed);
    let index = |value: Value, level: Level| group.domain.index_of(&graph.ty(value).shape, level, &space.axes);
    let reductions: Vec<&Member> =
        group.members.iter().filter(|member| matches!(graph.node(member.value).op, Op::Reduce { .. })).collect();
    let phases = reductions.iter().map(|member| member.phase + 1).max().unwrap_or(0);
    for phase in 0..phases {
        let mut folds = Vec::new();
        let mut results = Vec::new();
        for member in reductions.iter().filter(|member| member.phase == phase) {
            let fold = fold(graph, member.value, &mut evaluator, &index)?;
            results.push((member.value, (fold.result, index(member.value, Level::Outer))));
            folds.push(fold);
        }
        push_point(&mut kernel, evaluator.take_point());
        kernel.stages.push(Stage::Fold { block: evaluator.take_body(), folds });
        folded.borrow_mut().extend(results);
    }
    let mut stores = (Vec::new(), Vec::new());
    for member in group.members.iter().filter(|member| stored.contains(&member.value)) {
        let at = index(member.value, member.level);
        let value = evaluator.value(member.value, &at)?;
        let buffer = evaluator.binding.bind(graph, member.value, Access::Write);
        let address = at.linear(&graph.ty(member.value).shape).affine;
        let list = if member.level == Level::Full && !space.inner.is_empty() { &mut stores.1 } else { &mut stores.0 };
        list.push(Store { buffer, address, value });
    }
    let mut point = evaluator.take_point();
    let mut each = evaluator.take_body();
    (point.stores, each.stores) = stores;
    push_point(&mut kernel, point);
    if !each.stores.is_empty() {
        kernel.stages.push(Stage::Each(each));
    }
    kernel.buffers = std::mem::take(&mut evaluator.binding.buffers);
    Ok(Kernel::Loop(kernel))
}

fn fold(
    graph: &Graph,
    value: Value,
    evaluator: &mut Evaluator<'_>,
    index: &dyn Fn(Value, Level) -> Index,
) -> Result<Fold, Stop> {
    let node = graph.node(value);
    let Op::Reduce { kind, .. } = node.op else {
        return Err(Stop::fault(format!("{} is not a reduction", node.op.name())));
    };
    let operand = node.operands[0];
    let folded = evaluator.value(operand, &index(operand, Level::Full))?;
    let dtype = graph.ty(operand).dtype;
    let accumulate = if kind.is_arg() { dtype } else { dtype.accumulator() };
    let dtype = if kind.is_arg() { DType::I32 } else { dtype };
    Ok(Fold { kind, value: folded, accumulate, result: evaluator.binding.register(), dtype })
}
