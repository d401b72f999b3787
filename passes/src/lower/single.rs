//! Kernels round one op: matrix products with what is computed from them, scans, scatters, transfers.

use std::collections::HashSet;

use kiln_ir::kernel::{
    Access, Kernel, LoopKernel, MatMulKernel, MatrixOperand, ScanKernel, ScatterKernel, Stage, Store,
};
use kiln_ir::{DType, Graph, Op, ScanKind, Value};
use smallvec::SmallVec;

use super::evaluate::{Binding, Evaluator, Refinement, Source, Stop};
use super::source_of;
use crate::group::Group;
use crate::index::{Coord, Index};

pub(super) fn matmul(
    graph: &Graph,
    group: &Group,
    stored: &HashSet<Value>,
    in_memory: &dyn Fn(Value) -> bool,
    binding: &mut Binding,
) -> Result<Kernel, Stop> {
    let product = group.members.iter().find_map(|member| match graph.node(member.value).op {
        Op::MatMul { precision } => Some((member.value, precision)),
        _ => None,
    });
    let Some((product_value, precision)) = product else {
        return Err(Stop::fault("a matrix product's group holds none".to_owned()));
    };
    let node = graph.node(product_value);
    let ty = graph.ty(product_value);
    let shape = ty.shape.clone();
    let rank = shape.rank();
    let k = graph.ty(node.operands[0]).shape[rank - 1];
    let (batch, m, n) = (&shape[..rank - 2], shape[rank - 2], shape[rank - 1]);
    let lhs = operand(graph, node.operands[0], [batch, &[m, k]].concat(), in_memory, binding)?;
    let rhs = operand(graph, node.operands[1], [batch, &[k, n]].concat(), in_memory, binding)?;

    let product = binding.register();
    let canonical = |shape: &kiln_ir::Shape| {
        // A member's axes of extent other than 1 are the product's, in order.
        let mut own = (0..rank).filter(|&axis| group.domain.shape[axis] != 1);
        let coords = shape.iter().map(|&extent| match extent {
            1 => Coord::constant(0),
            _ => own.next().map_or_else(Coord::default, Coord::axis),
        });
        Index::Axes(coords.collect())
    };
    let source = |value: Value| {
        if value == product_value { Source::Register(product, canonical(&shape)) } else { source_of(in_memory, value) }
    };
    let mut evaluator = Evaluator::new(graph, &source, binding, &shape, &[], Refinement::Fixed);
    let mut stores = Vec::new();
    for member in group.members.iter().filter(|member| stored.contains(&member.value)) {
        let at = canonical(&graph.ty(member.value).shape);
        let value = evaluator.value(member.value, &at)?;
        let buffer = evaluator.binding.bind(graph, member.value, Access::Write);
        stores.push(Store { buffer, address: at.linear(&graph.ty(member.value).shape).affine, value });
    }
    let mut epilogue = evaluator.take_point();
    epilogue.stores = stores;
    Ok(Kernel::MatMul(MatMulKernel {
        buffers: std::mem::take(&mut binding.buffers),
        batch: batch.into(),
        m,
        n,
        k,
        dtype: graph.ty(node.operands[0]).dtype,
        accumulate: ty.dtype.accumulator(),
        precision,
        lhs,
        rhs,
        product,
        epilogue,
    }))
}

fn operand(
    graph: &Graph,
    value: Value,
    space: Vec<usize>,
    in_memory: &dyn Fn(Value) -> bool,
    binding: &mut Binding,
) -> Result<MatrixOperand, Stop> {
    let source = |value: Value| source_of(in_memory, value);
    let mut evaluator = Evaluator::new(graph, &source, binding, &space, &[], Refinement::Fixed);
    let index = own_index(graph, value);
    let value = evaluator.value(value, &index)?;
    Ok(MatrixOperand { block: evaluator.take_point(), value })
}

/// Every axis of a value as the kernel axis of the same number.
fn own_index(graph: &Graph, value: Value) -> Index {
    let shape = &graph.ty(value).shape;
    let coord = |(axis, &extent): (usize, &usize)| if extent == 1 { Coord::constant(0) } else { Coord::axis(axis) };
    Index::Axes(shape.iter().enumerate().map(coord).collect())
}

pub(super) fn single(
    graph: &Graph,
    value: Value,
    in_memory: &dyn Fn(Value) -> bool,
    binding: &mut Binding,
) -> Result<Kernel, Stop> {
    let node = graph.node(value);
    let source = |value: Value| source_of(in_memory, value);
    if let Op::Scan { kind, axis, direction } = node.op {
        return scan(graph, value, kind, axis, direction, &source, binding);
    }
    if let Op::Custom(op) = &node.op {
        return Ok(super::custom::custom(graph, value, op, binding));
    }
    if let Op::Transfer(_) = node.op {
        return transfer(graph, value, &source, binding);
    }
    let Op::Scatter { kind, axis, batch } = node.op else {
        return Err(Stop::fault(format!("{} has no kernel form", node.op.name())));
    };
    let (indices, updates) = (node.operands[1], node.operands[2]);
    let space = graph.ty(updates).shape.clone();
    let own = graph.ty(indices).shape.rank() - batch;
    let mut evaluator = Evaluator::new(graph, &source, binding, &space, &[], Refinement::Fixed);
    let at = own_index(graph, updates);
    let Index::Axes(coords) = &at else { return Err(Stop::fault("an own index has coordinates".to_owned())) };
    let places = coords[..batch].iter().chain(&coords[axis..axis + own]).cloned().collect();
    let taken = evaluator.value(indices, &Index::Axes(places))?;
    let index = evaluator.emit(DType::I64, kiln_ir::kernel::Operation::Cast(taken));
    let update = evaluator.value(updates, &at)?;
    let block = evaluator.take_point();
    let target = &graph.ty(value).shape;
    let before = coords[..axis].iter().cloned();
    let after = coords[axis + own..].iter().cloned();
    let origin = Index::Axes(before.chain([Coord::constant(0)]).chain(after).collect());
    let output = binding.bind(graph, value, Access::ReadWrite);
    Ok(Kernel::Scatter(ScatterKernel {
        buffers: std::mem::take(&mut binding.buffers),
        space: space.iter().copied().collect::<SmallVec<_>>(),
        ordered: axis..axis + own,
        kind,
        block,
        index,
        update,
        extent: target[axis],
        output,
        address: origin.linear(target).affine,
        stride: target.strides()[axis] as i64,
    }))
}

/// A transfer as a kernel that copies: no launch runs it, for memory planning makes it a step of its own.
fn transfer(
    graph: &Graph,
    value: Value,
    source: &dyn Fn(Value) -> Source,
    binding: &mut Binding,
) -> Result<Kernel, Stop> {
    let at = own_index(graph, value);
    let shape = graph.ty(value).shape.clone();
    let mut evaluator = Evaluator::new(graph, source, binding, &shape, &[], Refinement::Fixed);
    let copied = evaluator.value(graph.node(value).operands[0], &at)?;
    let mut block = evaluator.take_point();
    let buffer = binding.bind(graph, value, Access::Write);
    block.stores.push(Store { buffer, address: at.linear(&shape).affine, value: copied });
    let buffers = std::mem::take(&mut binding.buffers);
    let outer = shape.iter().copied().collect();
    Ok(Kernel::Loop(LoopKernel { buffers, outer, inner: SmallVec::new(), stages: vec![Stage::Point(block)] }))
}

fn scan(
    graph: &Graph,
    value: Value,
    kind: ScanKind,
    axis: usize,
    direction: kiln_ir::Direction,
    source: &dyn Fn(Value) -> Source,
    binding: &mut Binding,
) -> Result<Kernel, Stop> {
    let ty = graph.ty(value).clone();
    let (mut outer, mut coords) = (SmallVec::<[usize; 6]>::new(), Vec::new());
    for (own, &extent) in ty.shape.iter().enumerate() {
        if own == axis {
            coords.push(Coord::axis(ty.shape.rank() - 1));
        } else {
            coords.push(Coord::axis(outer.len()));
            outer.push(extent);
        }
    }
    let at = Index::Axes(coords);
    let mut evaluator = Evaluator::new(graph, source, binding, &outer, &[ty.shape[axis]], Refinement::Fixed);
    let scanned = evaluator.value(graph.node(value).operands[0], &at)?;
    let mut block = evaluator.take_point();
    block.instructions.extend(evaluator.take_body().instructions);
    let output = binding.bind(graph, value, Access::Write);
    Ok(Kernel::Scan(ScanKernel {
        buffers: std::mem::take(&mut binding.buffers),
        outer,
        extent: ty.shape[axis],
        kind,
        direction,
        accumulate: ty.dtype.accumulator(),
        block,
        value: scanned,
        dtype: ty.dtype,
        output,
        address: at.linear(&ty.shape).affine,
    }))
}
