//! A mistake on purpose: what verification is tested with.

use kiln_ir::kernel::{Block, Buffer, Instruction, Kernel, LoopKernel, Operation, Reg, Stage, Store};
use kiln_ir::{DType, Literal, ScalarOp};

/// Makes a kernel store other values than it should: numbers that are 1 larger, bools that are the other one.
pub(crate) fn inject(kernel: &mut Kernel) {
    let mut next = spare(kernel);
    match kernel {
        Kernel::Loop(kernel) => wrong_loops(kernel, &mut next),
        Kernel::Horizontal(kernel) => kernel.parts.iter_mut().for_each(|part| wrong_loops(&mut part.kernel, &mut next)),
        Kernel::MatMul(kernel) => wrong_stores(&mut kernel.epilogue, &kernel.buffers, &mut next),
        Kernel::Attention(kernel) => {
            let (buffers, blocks) = kernel.parts_mut();
            blocks.into_iter().for_each(|block| wrong_stores(block, buffers, &mut next));
        }
        Kernel::Scan(kernel) => {
            let own = kernel.block.instructions.iter().find(|instruction| instruction.result == kernel.value);
            let dtype = own.map_or(kernel.dtype, |instruction| instruction.dtype);
            kernel.value = wrong(&mut kernel.block, kernel.value, dtype, &mut next);
        }
        Kernel::Scatter(kernel) => {
            let dtype = kernel.buffers[kernel.output.0 as usize].dtype;
            kernel.update = wrong(&mut kernel.block, kernel.update, dtype, &mut next);
        }
        // It is a function of the user's.
        Kernel::Custom(_) => {}
    }
}

fn wrong_loops(kernel: &mut LoopKernel, next: &mut u32) {
    for stage in &mut kernel.stages {
        match stage {
            Stage::Point(block) | Stage::Each(block) => wrong_stores(block, &kernel.buffers, next),
            Stage::Fold { .. } => {}
        }
    }
}

fn wrong_stores(block: &mut Block, buffers: &[Buffer], next: &mut u32) {
    for store in 0..block.stores.len() {
        let Store { value, buffer, .. } = block.stores[store];
        block.stores[store].value = wrong(block, value, buffers[buffer.0 as usize].dtype, next);
    }
}

/// A register that holds another value than this one.
fn wrong(block: &mut Block, value: Reg, dtype: DType, next: &mut u32) -> Reg {
    let mut add = |operation: Operation| {
        let result = Reg(*next);
        *next += 1;
        block.instructions.push(Instruction { result, dtype, operation });
        result
    };
    if dtype == DType::Bool {
        return add(Operation::Scalar(ScalarOp::Not, [value].into_iter().collect()));
    }
    let one = add(Operation::Literal(Literal::one(dtype)));
    add(Operation::Scalar(ScalarOp::Add, [value, one].into_iter().collect()))
}

/// The first register that a kernel has no use for.
fn spare(kernel: &Kernel) -> u32 {
    let of_block = |block: &Block| block.instructions.iter().map(|instruction| instruction.result.0).max();
    let of_stage = |stage: &Stage| match stage {
        Stage::Point(block) | Stage::Each(block) => of_block(block),
        Stage::Fold { block, folds } => of_block(block).max(folds.iter().map(|fold| fold.result.0).max()),
    };
    let used = match kernel {
        Kernel::Loop(kernel) => kernel.stages.iter().flat_map(of_stage).max(),
        Kernel::Horizontal(kernel) => kernel.parts.iter().flat_map(|part| &part.kernel.stages).flat_map(of_stage).max(),
        Kernel::MatMul(kernel) => [&kernel.lhs.block, &kernel.rhs.block, &kernel.epilogue]
            .into_iter()
            .filter_map(of_block)
            .chain([kernel.product.0])
            .max(),
        Kernel::Attention(kernel) => kernel.blocks().into_iter().filter_map(|(block, ..)| of_block(block)).max(),
        Kernel::Scan(kernel) => of_block(&kernel.block),
        Kernel::Scatter(kernel) => of_block(&kernel.block),
        Kernel::Custom(_) => None,
    };
    // Registers that no instruction defines (scores, products) are few and numbered among the others.
    used.map_or(0, |reg| reg + 64)
}
