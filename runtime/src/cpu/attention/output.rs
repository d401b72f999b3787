//! Where products go: straight to a result that is nothing but the product, or through an epilogue over scratch memory.

use kiln_ir::DType;
use kiln_ir::kernel::{
    Access, Address, Affine, AttentionKernel, AttentionResult, Block, Buffer, BufferIndex, Instruction, LoopKernel,
    Operation, Reg, Stage,
};
use smallvec::{SmallVec, smallvec};

use super::super::loops::Loops;
use super::super::matmul::{Place, wide};
use super::super::program::RawBuffer;
use super::rows::Band;

/// A register that no kernel uses: they are numbered from 0.
const SPARE: Reg = Reg(u32::MAX);

/// A result of the kernel, over `[..batch, rows, columns]`.
pub(super) enum Output {
    /// The product is the result, and lies where it goes.
    Direct(Place),
    /// The product of a part of the space lies in scratch memory, behind the kernel's buffers.
    Epilogue(Box<Loops>),
}

impl Output {
    /// The output of a product of `dtype`. Parts are blocks of the band where there is one, else the matrices of the batch.
    pub(super) fn new(
        kernel: &AttentionKernel,
        result: &AttentionResult,
        dtype: DType,
        [rows, columns]: [usize; 2],
        band: Option<Band>,
    ) -> Output {
        let batch = kernel.batch.len();
        if let ([], [store]) = (&result.epilogue.instructions[..], &result.epilogue.stores[..])
            && store.value == result.product
            && wide(dtype) == dtype
            && kernel.buffers[store.buffer.0 as usize].access == Access::Write
        {
            return Output::Direct(Place::of(Some(store.buffer.0 as usize), &store.address, batch));
        }
        let mut own = result.epilogue.clone();
        let mut outer: SmallVec<[usize; 6]> = kernel.batch.clone();
        let mut parts = batch;
        let mut held = rows;
        if let Some(band) = band {
            band.cut(&mut own, batch);
            outer.push(band.blocks);
            parts += 1;
            held = band.rows;
        }
        outer.extend([held, columns]);
        let mut strides: SmallVec<[i64; 6]> = smallvec![0; parts];
        strides.extend([columns as i64, 1]);
        let address = Address { affine: Affine { offset: 0, strides }, computed: SmallVec::new() };
        let scratch = BufferIndex(kernel.buffers.len() as u32);
        let load = Operation::Load { buffer: scratch, address, bounds: Vec::new() };
        let mut block = Block::default();
        if wide(dtype) == dtype {
            block.instructions.push(Instruction { result: result.product, dtype, operation: load });
        } else {
            block.instructions.push(Instruction { result: SPARE, dtype: wide(dtype), operation: load });
            let rounded = Operation::Cast(SPARE);
            block.instructions.push(Instruction { result: result.product, dtype, operation: rounded });
        }
        block.instructions.append(&mut own.instructions);
        block.stores = own.stores;
        let product = Buffer { dtype: wide(dtype), len: held * columns, access: Access::Read };
        let buffers = kernel.buffers.iter().cloned().chain([product]).collect();
        let kernel = LoopKernel { buffers, outer, inner: SmallVec::new(), stages: vec![Stage::Point(block)] };
        Output::Epilogue(Box::new(Loops::in_parts(&kernel, parts)))
    }

    /// Runs the epilogue of one part, if there is one.
    ///
    /// # Safety
    ///
    /// As for [`Loops::run_part`], and `product` holds the part's product.
    pub(super) unsafe fn finish(&self, buffers: &[RawBuffer], product: RawBuffer, part: usize) {
        match self {
            Output::Direct(_) => {}
            Output::Epilogue(epilogue) => {
                let given: SmallVec<[RawBuffer; 8]> = buffers.iter().copied().chain([product]).collect();
                // SAFETY: the caller's.
                unsafe { epilogue.run_part(&given, part) };
            }
        }
    }
}
