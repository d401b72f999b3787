//! Kernels in normal form: registers numbered by first appearance, neighbouring axes merged where every map allows it.
//!
//! Equal work then has equal kernels whatever shapes it was written in: `[4, 6]` and `[24]` elementwise are one kernel.

use std::collections::HashMap;

use kiln_ir::kernel::{Affine, Block, Kernel, LoopKernel, Operation, Reg, Stage};
use smallvec::SmallVec;

pub(super) fn kernel(mut kernel: Kernel) -> Kernel {
    if let Kernel::Loop(kernel) = &mut kernel {
        coalesce(kernel);
        renumber_loop(kernel);
    }
    kernel
}

fn coalesce(kernel: &mut LoopKernel) {
    let mut axis = 0;
    while axis + 1 < kernel.outer.len() + kernel.inner.len() {
        let outer = kernel.outer.len();
        let extent = |axis: usize| if axis < outer { kernel.outer[axis] } else { kernel.inner[axis - outer] };
        let (first, second) = (extent(axis), extent(axis + 1));
        let mut merges = axis + 1 != outer;
        for_each_affine(kernel, &mut |affine| {
            merges &= affine.stride(axis) == affine.stride(axis + 1) * second as i64;
        });
        if !merges {
            axis += 1;
            continue;
        }
        for_each_affine(kernel, &mut |affine| {
            if affine.strides.len() > axis {
                // Where the second stride is not stored it is 0, and so is the first one's.
                affine.strides.remove(axis);
            }
        });
        let (part, at) = if axis < outer { (&mut kernel.outer, axis) } else { (&mut kernel.inner, axis - outer) };
        part.remove(at + 1);
        part[at] = first * second;
    }
}

fn for_each_affine(kernel: &mut LoopKernel, visit: &mut dyn FnMut(&mut Affine)) {
    for stage in &mut kernel.stages {
        let block = match stage {
            Stage::Point(block) | Stage::Each(block) | Stage::Fold { block, .. } => block,
        };
        block.affines_mut().for_each(&mut *visit);
    }
}

fn renumber_loop(kernel: &mut LoopKernel) {
    let mut names: HashMap<Reg, Reg> = HashMap::new();
    for stage in &mut kernel.stages {
        match stage {
            Stage::Point(block) | Stage::Each(block) => renumber(block, &mut names),
            Stage::Fold { block, folds } => {
                renumber(block, &mut names);
                for fold in folds {
                    fold.value = named(&mut names, fold.value);
                    fold.result = named(&mut names, fold.result);
                }
            }
        }
    }
}

fn named(names: &mut HashMap<Reg, Reg>, reg: Reg) -> Reg {
    let next = Reg(names.len() as u32);
    *names.entry(reg).or_insert(next)
}

fn renumber(block: &mut Block, names: &mut HashMap<Reg, Reg>) {
    for instruction in &mut block.instructions {
        let mut rename = |reg: &mut Reg| *reg = named(names, *reg);
        match &mut instruction.operation {
            Operation::Literal(_) | Operation::Index(_) | Operation::Within(_) => {}
            Operation::Load { address, .. } => address.computed.iter_mut().for_each(|(reg, _)| rename(reg)),
            Operation::Scalar(_, operands) => operands.iter_mut().for_each(rename),
            Operation::Fma(a, b, c) => [a, b, c].into_iter().for_each(rename),
            Operation::Cast(operand) | Operation::Bitcast(operand) => rename(operand),
            Operation::Select { condition, then, otherwise } => {
                [condition, then, otherwise].into_iter().for_each(rename);
            }
            Operation::Random { key, index, .. } => key.iter_mut().chain([index]).for_each(rename),
        }
        instruction.result = named(names, instruction.result);
    }
    for store in &mut block.stores {
        store.value = named(names, store.value);
    }
    debug_assert!(
        block
            .instructions
            .iter()
            .map(|instruction| instruction.result)
            .collect::<SmallVec<[Reg; 8]>>()
            .windows(2)
            .all(|pair| pair[0] < pair[1])
    );
}
