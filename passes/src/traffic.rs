//! Counting what a kernel moves and computes, from its loads, stores and instructions.

use std::collections::HashSet;

use kiln_ir::kernel::{Block, Buffer, CustomTensor, Kernel, Operation, Stage};
use kiln_ir::plan::Traffic;

/// Bytes moved and floating-point operations of a launch. An element that one kernel loads at the same place in several stages is moved
/// once; a load that repeats along an axis moves its elements once.
pub(crate) fn count(kernel: &Kernel) -> (Traffic, u64) {
    let mut counter =
        Counter { buffers: kernel.buffers(), seen: HashSet::new(), traffic: Traffic::default(), flops: 0 };
    match kernel {
        Kernel::Loop(kernel) => {
            let outer = product(&kernel.outer);
            let space: Vec<usize> = kernel.outer.iter().chain(&kernel.inner).copied().collect();
            for stage in &kernel.stages {
                match stage {
                    Stage::Point(block) => counter.block(block, &kernel.outer, outer),
                    Stage::Each(block) => counter.block(block, &space, product(&space)),
                    Stage::Fold { block, folds } => {
                        counter.block(block, &space, product(&space));
                        counter.flops += folds.len() as u64 * product(&space);
                    }
                }
            }
        }
        Kernel::MatMul(kernel) => {
            let (batch, m, n, k) = (&kernel.batch[..], kernel.m, kernel.n, kernel.k);
            let space = |a: usize, b: usize| [batch, &[a, b]].concat();
            let points = |space: &[usize]| product(space);
            counter.block(&kernel.lhs.block, &space(m, k), points(&space(m, k)));
            counter.block(&kernel.rhs.block, &space(k, n), points(&space(k, n)));
            counter.block(&kernel.epilogue, &space(m, n), points(&space(m, n)));
            counter.flops += 2 * points(&space(m, n)) * k as u64;
        }
        Kernel::Scan(kernel) => {
            let space: Vec<usize> = kernel.outer.iter().copied().chain([kernel.extent]).collect();
            counter.block(&kernel.block, &space, product(&space));
            counter.traffic.written += product(&space) * kernel.dtype.size() as u64;
            counter.flops += product(&space);
        }
        Kernel::Scatter(kernel) => {
            let points = product(&kernel.space);
            counter.block(&kernel.block, &kernel.space, points);
            let size = kernel.buffers[kernel.output.0 as usize].dtype.size() as u64;
            counter.traffic.read += points * size;
            counter.traffic.written += points * size;
            counter.flops += points;
        }
        Kernel::Custom(kernel) => {
            let bytes = |tensors: &[CustomTensor]| -> u64 {
                tensors.iter().map(|tensor| (tensor.shape.num_elements() * tensor.dtype.size()) as u64).sum()
            };
            counter.traffic = Traffic { read: bytes(&kernel.operands), written: bytes(&kernel.results) };
        }
    }
    (counter.traffic, counter.flops)
}

fn product(extents: &[usize]) -> u64 {
    extents.iter().map(|&extent| extent as u64).product()
}

struct Counter<'a> {
    buffers: &'a [Buffer],
    seen: HashSet<(Operation, kiln_ir::DType)>,
    traffic: Traffic,
    flops: u64,
}

impl Counter<'_> {
    fn block(&mut self, block: &Block, space: &[usize], points: u64) {
        for instruction in &block.instructions {
            match &instruction.operation {
                Operation::Load { buffer, address, .. } => {
                    if !self.seen.insert((instruction.operation.clone(), instruction.dtype)) {
                        continue;
                    }
                    let buffer = &self.buffers[buffer.0 as usize];
                    let varying = |axis: usize| !address.computed.is_empty() || address.affine.stride(axis) != 0;
                    let axes = space.iter().enumerate().filter(|(axis, _)| varying(*axis));
                    let elements = axes.map(|(_, &extent)| extent as u64).product::<u64>().min(buffer.len as u64);
                    self.traffic.read += elements * buffer.dtype.size() as u64;
                }
                Operation::Scalar(..) => self.flops += points,
                Operation::Fma(..) => self.flops += 2 * points,
                Operation::Literal(_)
                | Operation::Index(_)
                | Operation::Within(_)
                | Operation::Cast(_)
                | Operation::Bitcast(_)
                | Operation::Select { .. }
                | Operation::Random { .. } => {}
            }
        }
        for store in &block.stores {
            self.traffic.written += points * self.buffers[store.buffer.0 as usize].dtype.size() as u64;
        }
    }
}
