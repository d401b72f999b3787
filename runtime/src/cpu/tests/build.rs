//! Kernels built by hand.

use kiln_ir::kernel::{
    Access, Address, Affine, Block, Bound, Buffer, BufferIndex, Fold, Instruction, Kernel, LoopKernel, Operation, Reg,
    Stage, Store,
};
use kiln_ir::{DType, Literal, ReduceKind, ScalarOp};

use super::interpret::Elements;

/// A repeatable source of numbers.
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// A dyadic number of moderate size, or any integer.
    pub(super) fn literal(&mut self, dtype: DType) -> Literal {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 | DType::F64 => {
                Literal::from_f64(dtype, (self.below(33) as f64 - 16.0) / 8.0)
            }
            DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => {
                let wild = self.bits();
                let bits = if self.below(2) == 0 { wild } else { wild % 7 };
                Literal::from_bits(dtype, bits & if dtype == DType::Bool { 1 } else { u64::MAX })
            }
        }
    }

    pub(super) fn elements(&mut self, dtype: DType, len: usize) -> Elements {
        (0..len).map(|_| self.literal(dtype)).collect()
    }
}

pub(super) fn floats(values: &[f32]) -> Elements {
    values.iter().map(|&value| Literal::from_bits(DType::F32, u64::from(value.to_bits()))).collect()
}

pub(super) fn affine(offset: i64, strides: &[i64]) -> Affine {
    Affine { offset, strides: strides.iter().copied().collect() }
}

/// A block while it is written.
#[derive(Default)]
pub(super) struct Writer {
    pub(super) block: Block,
    pub(super) next: u32,
}

impl Writer {
    /// Numbers registers from `next` on.
    pub(super) fn from(next: u32) -> Writer {
        Writer { block: Block::default(), next }
    }

    pub(super) fn push(&mut self, dtype: DType, operation: Operation) -> Reg {
        let result = Reg(self.next);
        self.next += 1;
        self.block.instructions.push(Instruction { result, dtype, operation });
        result
    }

    pub(super) fn load(&mut self, dtype: DType, buffer: u32, at: Affine) -> Reg {
        self.guarded(dtype, buffer, at, &[])
    }

    pub(super) fn guarded(&mut self, dtype: DType, buffer: u32, at: Affine, bounds: &[Bound]) -> Reg {
        let address = Address { affine: at, computed: Default::default() };
        self.push(dtype, Operation::Load { buffer: BufferIndex(buffer), address, bounds: bounds.to_vec() })
    }

    pub(super) fn gather(&mut self, dtype: DType, buffer: u32, at: Affine, computed: &[(Reg, i64)]) -> Reg {
        let address = Address { affine: at, computed: computed.iter().copied().collect() };
        self.push(dtype, Operation::Load { buffer: BufferIndex(buffer), address, bounds: Vec::new() })
    }

    pub(super) fn number(&mut self, dtype: DType, value: f64) -> Reg {
        self.push(dtype, Operation::Literal(Literal::from_f64(dtype, value)))
    }

    pub(super) fn scalar(&mut self, dtype: DType, op: ScalarOp, operands: &[Reg]) -> Reg {
        self.push(dtype, Operation::Scalar(op, operands.iter().copied().collect()))
    }

    pub(super) fn store(&mut self, buffer: u32, at: Affine, value: Reg) {
        self.block.stores.push(Store { buffer: BufferIndex(buffer), address: at, value });
    }

    pub(super) fn point(self) -> Stage {
        Stage::Point(self.block)
    }

    pub(super) fn each(self) -> Stage {
        Stage::Each(self.block)
    }

    /// A fold stage; results get the registers after the block's.
    pub(super) fn folds(self, folds: &[(ReduceKind, Reg, DType, DType)]) -> (Stage, Vec<Reg>) {
        let first = self.next;
        let folds: Vec<Fold> = folds
            .iter()
            .enumerate()
            .map(|(index, &(kind, value, accumulate, dtype))| Fold {
                kind,
                value,
                accumulate,
                result: Reg(first + index as u32),
                dtype,
            })
            .collect();
        let results = folds.iter().map(|fold| fold.result).collect();
        (Stage::Fold { block: self.block, folds }, results)
    }
}

pub(super) fn input(dtype: DType, len: usize) -> Buffer {
    Buffer { dtype, len, access: Access::Read }
}

pub(super) fn output(dtype: DType, len: usize) -> Buffer {
    Buffer { dtype, len, access: Access::Write }
}

pub(super) fn both(dtype: DType, len: usize) -> Buffer {
    Buffer { dtype, len, access: Access::ReadWrite }
}

pub(super) fn loops(buffers: &[Buffer], outer: &[usize], inner: &[usize], stages: Vec<Stage>) -> Kernel {
    Kernel::Loop(LoopKernel {
        buffers: buffers.to_vec(),
        outer: outer.iter().copied().collect(),
        inner: inner.iter().copied().collect(),
        stages,
    })
}

/// Elements for every buffer of a kernel: numbers where it reads, zeros where it writes.
pub(super) fn filled(kernel: &Kernel, numbers: &mut Numbers) -> Vec<Elements> {
    kernel
        .buffers()
        .iter()
        .map(|buffer| match buffer.access {
            Access::Read | Access::ReadWrite => numbers.elements(buffer.dtype, buffer.len),
            Access::Write => vec![Literal::zero(buffer.dtype); buffer.len],
        })
        .collect()
}
