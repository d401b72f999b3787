//! Attention: every block of its kernel is the part of the graph between two of its values, evaluated with the first one in a register.

use std::collections::HashSet;

use kiln_ir::kernel::{
    Access, AttentionGradient, AttentionKernel, AttentionPass, AttentionResult, Block, Kernel, MatrixOperand, Reg,
    SoftmaxGradient, Store,
};
use kiln_ir::{Code, Diagnostic, Graph, Value};

use super::evaluate::{Binding, Evaluator, Refinement, Source, Stop};
use crate::attention::{Attention, Backward, Forward, Lattice, Matrix, Through, moved};
use crate::classify::{Class, class};
use crate::group::Group;
use crate::index::Index;
use crate::roots::Roots;

/// What the kernel of an attention reads, apart from what its epilogues do, and how many instructions it takes.
pub(crate) fn reads(
    graph: &Graph,
    roots: &Roots,
    attention: &Attention,
) -> Result<(Vec<(Value, Index)>, usize), Diagnostic> {
    let in_memory = |value: Value| roots.is_root[value.node.index()] || class(&graph.node(value).op) == Class::Leaf;
    let nothing = HashSet::new();
    let mut binding = Binding::default();
    let lattice = Lattice::new(&attention.forward.batch);
    let mut builder = Builder {
        graph,
        attention,
        members: None,
        stored: &nothing,
        in_memory: &in_memory,
        lattice: &lattice,
        refine: Refinement::Fixed,
        binding: &mut binding,
        reads: Vec::new(),
    };
    let kernel = builder.kernel().map_err(|stop| match stop {
        Stop::Fault(diagnostic) => *diagnostic,
        Stop::Refine { .. } => Diagnostic::new(Code::K0901, "a fixed space asked to be refined"),
    })?;
    let size = kernel.blocks().iter().map(|(block, ..)| block.instructions.len()).sum();
    Ok((builder.reads, size))
}

pub(super) fn lower(
    graph: &Graph,
    attention: &Attention,
    group: &Group,
    stored: &HashSet<Value>,
    in_memory: &dyn Fn(Value) -> bool,
    binding: &mut Binding,
) -> Result<Kernel, Stop> {
    let mut lattice = Lattice::new(&attention.forward.batch);
    let mut refine = Refinement::Leading(lattice.batch.len());
    loop {
        *binding = Binding::default();
        let members = Some(group);
        let reads = Vec::new();
        let mut builder =
            Builder { graph, attention, members, stored, in_memory, lattice: &lattice, refine, binding, reads };
        match builder.kernel() {
            Ok(kernel) => return Ok(Kernel::Attention(Box::new(kernel))),
            Err(Stop::Refine { axis, inner }) => {
                lattice.split(axis, inner);
                refine = Refinement::Leading(lattice.batch.len());
            }
            // What is stored in another order of axes may need them whole.
            Err(Stop::Fault(_)) if refine != Refinement::Fixed => {
                lattice = Lattice::new(&attention.forward.batch);
                refine = Refinement::Fixed;
            }
            Err(fault) => return Err(fault),
        }
    }
}

struct Builder<'a> {
    graph: &'a Graph,
    attention: &'a Attention,
    /// What else is stored; `None` where only reads are asked for.
    members: Option<&'a Group>,
    stored: &'a HashSet<Value>,
    in_memory: &'a dyn Fn(Value) -> bool,
    lattice: &'a Lattice,
    refine: Refinement,
    binding: &'a mut Binding,
    reads: Vec<(Value, Index)>,
}

impl Builder<'_> {
    fn kernel(&mut self) -> Result<AttentionKernel, Stop> {
        let Attention { forward, backward } = self.attention;
        let Forward { queries, keys, depth, width, .. } = *forward;
        let scores = [queries, keys];
        let query = self.operand(forward.query, [queries, depth], &[])?;
        let key = self.operand(forward.key, [keys, depth], &[])?;
        let value = self.operand(forward.value, [keys, width], &[])?;
        let (score, logit) = self.between(forward.score, forward.logit, scores)?;
        let (maximum, sum, row) = self.row(backward.is_none())?;
        let (weight, factor) = self.between(forward.weight, forward.factor, scores)?;
        let pass = match backward {
            None => {
                let product = Matrix { value: forward.product, at: crate::attention::Orientation::Straight };
                AttentionPass::Forward(self.result(product, [queries, width])?)
            }
            Some(backward) => AttentionPass::Backward(Box::new(self.gradient(backward)?)),
        };
        let dtype = |matrix: Matrix| self.graph.ty(matrix.value).dtype;
        Ok(AttentionKernel {
            buffers: std::mem::take(&mut self.binding.buffers),
            batch: self.lattice.batch.clone(),
            queries,
            keys,
            depth,
            width,
            dtype: dtype(forward.score),
            softmax: dtype(forward.logit),
            values: dtype(forward.factor),
            precision: forward.precision,
            query,
            key,
            value,
            score,
            logit,
            maximum,
            sum,
            row,
            weight,
            factor,
            pass,
        })
    }

    fn gradient(&mut self, backward: &Backward) -> Result<AttentionGradient, Stop> {
        let Forward { queries, keys, depth, width, .. } = self.attention.forward;
        let gradient = self.operand(backward.gradient, [queries, width], &[])?;
        let through = match backward.through.as_ref() {
            None => None,
            Some(&Through { factor, weight, logit, zeros, score, query, key }) => {
                let (factor, weight) = self.between(factor, weight, [queries, keys])?;
                let (logit, score) = self.between(logit, score, [queries, keys])?;
                let query = query.map(|result| self.result(result, [queries, depth])).transpose()?;
                let key = key.map(|result| self.result(result, [keys, depth])).transpose()?;
                Some(SoftmaxGradient { factor, weight, zeros, logit, score, query, key })
            }
        };
        let value = backward.value.map(|result| self.result(result, [keys, width])).transpose()?;
        Ok(AttentionGradient { gradient, through, value })
    }

    /// The part of the graph from one value over the scores to another; the register that holds the first.
    fn between(&mut self, from: Matrix, to: Matrix, extents: [usize; 2]) -> Result<(Reg, MatrixOperand), Stop> {
        let reg = self.binding.register();
        let made = self.operand(to, extents, &[(from, reg)])?;
        Ok((reg, made))
    }

    fn operand(&mut self, matrix: Matrix, extents: [usize; 2], held: &[(Matrix, Reg)]) -> Result<MatrixOperand, Stop> {
        let index = |matrix: Matrix| self.lattice.matrix(extents, matrix.at, &self.graph.ty(matrix.value).shape);
        let source = |value: Value| match held.iter().find(|(matrix, _)| matrix.value == value) {
            Some((matrix, reg)) => Source::Register(*reg, index(*matrix)),
            None => super::source_of(self.in_memory, value),
        };
        let space = self.lattice.extents(&extents);
        let mut evaluator = Evaluator::new(self.graph, &source, self.binding, &space, &[], self.refine);
        let value = evaluator.value(matrix.value, &index(matrix))?;
        let block = evaluator.take_point();
        self.reads.append(&mut evaluator.reads);
        Ok(MatrixOperand { block, value })
    }

    /// The rows' maxima and sums: made by the forward direction, which stores them if they are wanted, and loaded by the backward one.
    fn row(&mut self, forward: bool) -> Result<(Reg, Reg, Block), Stop> {
        let Forward { maximum, sum, queries, .. } = self.attention.forward;
        let index = |value: Value| self.lattice.row(queries, &self.graph.ty(value).shape);
        if forward {
            let regs = [maximum, sum].map(|value| (value, self.binding.register()));
            let mut row = Block::default();
            for (value, reg) in regs.into_iter().filter(|(value, _)| self.stored.contains(value)) {
                let buffer = self.binding.bind(self.graph, value, Access::Write);
                let address = index(value).linear(&self.graph.ty(value).shape).affine;
                row.stores.push(Store { buffer, address, value: reg });
            }
            return Ok((regs[0].1, regs[1].1, row));
        }
        let source = |value: Value| super::source_of(self.in_memory, value);
        let space = self.lattice.extents(&[queries]);
        let mut evaluator = Evaluator::new(self.graph, &source, self.binding, &space, &[], self.refine);
        let (maximum, sum) = (evaluator.value(maximum, &index(maximum))?, evaluator.value(sum, &index(sum))?);
        let block = evaluator.take_point();
        self.reads.append(&mut evaluator.reads);
        Ok((maximum, sum, block))
    }

    /// A product with what of the group is made of it and stored.
    fn result(&mut self, result: Matrix, extents: [usize; 2]) -> Result<AttentionResult, Stop> {
        let product = self.binding.register();
        let Some(group) = self.members else {
            return Ok(AttentionResult { product, epilogue: Block::default() });
        };
        let held = self.lattice.matrix(extents, result.at, &self.graph.ty(result.value).shape);
        let source = |value: Value| {
            if value == result.value {
                Source::Register(product, held.clone())
            } else {
                super::source_of(self.in_memory, value)
            }
        };
        let space = self.lattice.extents(&extents);
        let mut evaluator = Evaluator::new(self.graph, &source, self.binding, &space, &[], self.refine);
        let mut stores = Vec::new();
        let made = |value: Value| group.epilogues.as_ref()?.made(value).filter(|made| made.result == result.value);
        let members = group.members.iter().map(|member| member.value).filter(|value| self.stored.contains(value));
        for (member, made) in members.filter_map(|member| Some((member, made(member)?))) {
            let base = made.moved.unwrap_or(member);
            let at = self.lattice.matrix(extents, made.at, &self.graph.ty(base).shape);
            let value = evaluator.value(base, &at)?;
            let place = match made.moved {
                Some(base) => moved::place(self.graph, base, at, member, &space),
                None => Some(at.linear(&self.graph.ty(member).shape)).filter(|place| place.is_affine()),
            };
            let place = place.ok_or_else(|| Stop::fault(format!("{member} has no place in its kernel's space")))?;
            let buffer = evaluator.binding.bind(self.graph, member, Access::Write);
            stores.push(Store { buffer, address: place.affine, value });
        }
        let mut epilogue = evaluator.take_point();
        epilogue.stores = stores;
        Ok(AttentionResult { product, epilogue })
    }
}
