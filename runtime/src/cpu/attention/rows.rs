//! What happens to a block of rows between two products: from scores to factors, and to the gradients of scores, as row kernels over scratch
//! memory.
//!
//! The queries of each batch point are cut into blocks of so many rows that their scores stay in the second-level cache; what is left over
//! is a block of its own. Both are [`Band`]s: each block of a band is a part of its row kernel.

use kiln_ir::kernel::{
    Access, Address, Affine, AttentionGradient, AttentionKernel, AttentionPass, Block, Buffer, BufferIndex, Fold,
    GradientZeros, Instruction, LoopKernel, MatrixOperand, Operation, Reg, Stage, Store,
};
use kiln_ir::{DType, Literal, ReduceKind, ScalarOp};
use smallvec::{SmallVec, smallvec};

use super::super::loops::Loops;
use super::super::matmul::{cut, wide};

/// Bytes of a block's matrices of scores, at most, unless there are very many keys.
const BLOCK_BYTES: usize = 384 << 10;
/// Rows of a block, at least and at most.
const BLOCK_ROWS: std::ops::RangeInclusive<usize> = 8..=128;

/// Blocks of rows of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Band {
    /// The first row.
    pub(super) first: usize,
    /// Rows of a block.
    pub(super) rows: usize,
    /// How many blocks follow each other.
    pub(super) blocks: usize,
}

impl Band {
    /// The bands of a kernel, by its extents alone: then results do not depend on the number of threads.
    pub(super) fn of(kernel: &AttentionKernel, scratch: &Scratch) -> Vec<Band> {
        let row = scratch.matrices.iter().map(|(dtype, _)| kernel.keys * dtype.size()).sum::<usize>();
        let rows = (BLOCK_BYTES / row.max(1)).clamp(*BLOCK_ROWS.start(), *BLOCK_ROWS.end()) / 8 * 8;
        let (blocks, rest) = (kernel.queries / rows, kernel.queries % rows);
        let whole = Band { first: 0, rows, blocks };
        let rest = Band { first: kernel.queries - rest, rows: rest, blocks: 1 };
        [whole, rest].into_iter().filter(|band| band.rows * band.blocks > 0).collect()
    }

    /// Moves the maps of a block over `[..batch, rows, ..]` to one over `[..batch, blocks, rows of a block, ..]`.
    pub(super) fn cut(&self, block: &mut Block, axis: usize) {
        for affine in block.affines_mut() {
            affine.offset += affine.stride(axis) * self.first as i64;
            cut(affine, axis, self.rows);
        }
    }
}

/// Scratch memory of a block of rows, behind the kernel's own buffers. What is read is never written, so that exponentials can be kept from
/// stage to stage of a row.
#[derive(Clone, Debug)]
pub(super) struct Scratch {
    /// Dtype and access of each.
    pub(super) matrices: SmallVec<[(DType, Access); 4]>,
    /// Which of them holds scores, then factors, gradients of factors, gradients of scores.
    pub(super) scores: usize,
    pub(super) factors: usize,
    pub(super) of_factors: usize,
    pub(super) of_scores: usize,
}

impl Scratch {
    pub(super) fn of(kernel: &AttentionKernel) -> Scratch {
        let (scores, values) = (wide(kernel.dtype), wide(kernel.values));
        let through = match &kernel.pass {
            AttentionPass::Forward(_) => false,
            AttentionPass::Backward(backward) => backward.through.is_some(),
        };
        let mut matrices: SmallVec<[(DType, Access); 4]> = smallvec![(scores, Access::Read), (values, Access::Write)];
        if through {
            matrices.extend([(values, Access::Read), (scores, Access::Write)]);
        }
        Scratch { matrices, scores: 0, factors: 1, of_factors: 2, of_scores: 3 }
    }
}

/// The row kernel of a band over the first `keys` keys: one part for each block of each batch point.
pub(super) fn rows(kernel: &AttentionKernel, band: Band, scratch: &Scratch, keys: usize) -> Loops {
    let batch = kernel.batch.len();
    let mut code = Code::new(kernel, band, scratch, keys);
    let mut stages = Vec::new();
    match &kernel.pass {
        AttentionPass::Forward(_) => {
            let (mut block, logit) = code.logit();
            stages.push(code.fold(&mut block, ReduceKind::Max, logit, kernel.maximum));
            let (mut block, e) = code.exponential();
            stages.push(code.fold(&mut block, ReduceKind::Sum, e, kernel.sum));
            let row = code.own(&kernel.row);
            if !row.stores.is_empty() {
                stages.push(Stage::Point(row));
            }
            let (mut block, weight) = code.weight();
            code.factor(&mut block, weight);
            stages.push(Stage::Each(block));
        }
        AttentionPass::Backward(backward) => {
            stages.push(Stage::Point(code.own(&kernel.row)));
            code.backward(backward, &mut stages);
        }
    }
    let outer: SmallVec<[usize; 6]> = kernel.batch.iter().copied().chain([band.blocks, band.rows]).collect();
    let len = band.rows * keys;
    let matrices = scratch.matrices.iter().map(|&(dtype, access)| Buffer { dtype, len, access });
    let buffers = kernel.buffers.iter().cloned().chain(matrices).collect();
    Loops::in_parts(&LoopKernel { buffers, outer, inner: smallvec![keys], stages }, batch + 1)
}

/// Writes the blocks of a row kernel.
struct Code<'a> {
    kernel: &'a AttentionKernel,
    band: Band,
    scratch: &'a Scratch,
    /// How many keys there are.
    keys: usize,
    /// The next free register.
    next: u32,
}

impl<'a> Code<'a> {
    fn new(kernel: &'a AttentionKernel, band: Band, scratch: &'a Scratch, keys: usize) -> Code<'a> {
        let defined = |block: &Block| block.instructions.iter().map(|instruction| instruction.result.0).max();
        let given = [kernel.score, kernel.maximum, kernel.sum, kernel.weight].map(|reg| reg.0);
        let own = kernel.blocks().into_iter().filter_map(|(block, ..)| defined(block));
        let more = match &kernel.pass {
            AttentionPass::Forward(result) => result.product.0,
            AttentionPass::Backward(backward) => {
                backward.through.as_ref().map_or(0, |through| through.factor.0.max(through.logit.0))
            }
        };
        let next = own.chain(given).chain([more]).max().unwrap_or(0) + 1;
        Code { kernel, band, scratch, keys, next }
    }

    fn fresh(&mut self) -> Reg {
        self.next += 1;
        Reg(self.next - 1)
    }

    /// A block of the kernel, moved to the band.
    fn own(&self, block: &Block) -> Block {
        let mut block = block.clone();
        self.band.cut(&mut block, self.kernel.batch.len());
        block
    }

    fn push(&mut self, block: &mut Block, dtype: DType, operation: Operation) -> Reg {
        let result = self.fresh();
        block.instructions.push(Instruction { result, dtype, operation });
        result
    }

    /// Where a block's scratch memory holds the point's element.
    fn address(&self) -> Affine {
        let mut strides: SmallVec<[i64; 6]> = smallvec![0; self.kernel.batch.len() + 1];
        strides.extend([self.keys as i64, 1]);
        Affine { offset: 0, strides }
    }

    fn buffer(&self, matrix: usize) -> BufferIndex {
        BufferIndex((self.kernel.buffers.len() + matrix) as u32)
    }

    /// An element of scratch memory, rounded to `dtype`.
    fn load(&mut self, block: &mut Block, matrix: usize, dtype: DType) -> Reg {
        let address = Address { affine: self.address(), computed: SmallVec::new() };
        let load = Operation::Load { buffer: self.buffer(matrix), address, bounds: Vec::new() };
        let stored = self.scratch.matrices[matrix].0;
        let loaded = self.push(block, stored, load);
        if stored == dtype { loaded } else { self.push(block, dtype, Operation::Cast(loaded)) }
    }

    fn store(&mut self, block: &mut Block, matrix: usize, value: Reg, dtype: DType) {
        let stored = self.scratch.matrices[matrix].0;
        let value = if stored == dtype { value } else { self.push(block, stored, Operation::Cast(value)) };
        block.stores.push(Store { buffer: self.buffer(matrix), address: self.address(), value });
    }

    /// Appends what leads from `given` to the value of `made`, in registers of its own.
    fn made(&mut self, block: &mut Block, made: &MatrixOperand, given: Reg, stands_for: Reg) -> Reg {
        let mut names = vec![(stands_for, given)];
        for mut instruction in self.own(&made.block).instructions {
            let named = |reg: Reg| names.iter().rev().find(|(own, _)| *own == reg).map_or(reg, |(_, new)| *new);
            instruction.operation.rename(&named);
            let result = self.fresh();
            names.push((instruction.result, result));
            block.instructions.push(Instruction { result, ..instruction });
        }
        names.iter().rev().find(|(own, _)| *own == made.value).map_or(made.value, |(_, new)| *new)
    }

    fn logit(&mut self) -> (Block, Reg) {
        let mut block = Block::default();
        let score = self.load(&mut block, self.scratch.scores, self.kernel.dtype);
        let logit = self.made(&mut block, &self.kernel.logit, score, self.kernel.score);
        (block, logit)
    }

    fn exponential(&mut self) -> (Block, Reg) {
        let (mut block, logit) = self.logit();
        let less = self.scalar(&mut block, ScalarOp::Sub, &[logit, self.kernel.maximum]);
        let e = self.scalar(&mut block, ScalarOp::Exp, &[less]);
        (block, e)
    }

    fn weight(&mut self) -> (Block, Reg) {
        let (mut block, e) = self.exponential();
        let weight = self.scalar(&mut block, ScalarOp::Div, &[e, self.kernel.sum]);
        (block, weight)
    }

    fn factor(&mut self, block: &mut Block, weight: Reg) {
        let factor = self.made(block, &self.kernel.factor, weight, self.kernel.weight);
        self.store(block, self.scratch.factors, factor, self.kernel.values);
    }

    fn backward(&mut self, backward: &AttentionGradient, stages: &mut Vec<Stage>) {
        let Some(through) = &backward.through else {
            let (mut block, weight) = self.weight();
            self.factor(&mut block, weight);
            stages.push(Stage::Each(block));
            return;
        };
        let both = |code: &mut Code<'_>| {
            let (mut block, weight) = code.weight();
            let of_factor = code.load(&mut block, code.scratch.of_factors, code.kernel.values);
            let of_weight = code.made(&mut block, &through.weight, of_factor, through.factor);
            (block, weight, of_weight)
        };
        let (mut block, weight, of_weight) = both(self);
        let part = self.times(&mut block, weight, of_weight, through.zeros);
        let sum = self.fresh();
        stages.push(self.fold(&mut block, ReduceKind::Sum, part, sum));
        let (mut block, weight, of_weight) = both(self);
        let less = self.scalar(&mut block, ScalarOp::Sub, &[of_weight, sum]);
        let of_logit = self.times(&mut block, weight, less, through.zeros);
        let of_score = self.made(&mut block, &through.score, of_logit, through.logit);
        if backward.value.is_some() {
            self.factor(&mut block, weight);
        }
        self.store(&mut block, self.scratch.of_scores, of_score, self.kernel.dtype);
        stages.push(Stage::Each(block));
    }

    /// A weight times a gradient.
    fn times(&mut self, block: &mut Block, weight: Reg, gradient: Reg, zeros: GradientZeros) -> Reg {
        let product = self.scalar(block, ScalarOp::Mul, &[weight, gradient]);
        match zeros {
            GradientZeros::Arithmetic => product,
            GradientZeros::Masked => {
                let zero =
                    self.push(block, self.kernel.softmax, Operation::Literal(Literal::zero(self.kernel.softmax)));
                let bool = |code: &mut Code<'_>, block: &mut Block, op: ScalarOp, operands: &[Reg]| {
                    let operands = operands.iter().copied().collect();
                    code.push(block, DType::Bool, Operation::Scalar(op, operands))
                };
                let none = bool(self, block, ScalarOp::Eq, &[gradient, zero]);
                let lost = bool(self, block, ScalarOp::IsNan, &[product]);
                let condition = bool(self, block, ScalarOp::And, &[none, lost]);
                let choice = Operation::Select { condition, then: zero, otherwise: product };
                self.push(block, self.kernel.softmax, choice)
            }
        }
    }

    fn scalar(&mut self, block: &mut Block, op: ScalarOp, operands: &[Reg]) -> Reg {
        self.push(block, self.kernel.softmax, Operation::Scalar(op, operands.iter().copied().collect()))
    }

    fn fold(&self, block: &mut Block, kind: ReduceKind, value: Reg, result: Reg) -> Stage {
        let (dtype, accumulate) = (self.kernel.softmax, self.kernel.softmax.accumulator());
        Stage::Fold { block: std::mem::take(block), folds: vec![Fold { kind, value, accumulate, result, dtype }] }
    }
}
