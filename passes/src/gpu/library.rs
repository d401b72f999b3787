//! Matrix products by a library: what of a kernel the library makes, and which loops go before and after.
//!
//! An operand that lies in memory with one dense axis is read where it is. Any other is first written out by a loop of its own. What becomes of the
//! product is the library's where it is a plain store, or (of `f32` and `f64`) a bias added along the rows; else it is a loop over the product.

use kiln_ir::DType;
use kiln_ir::cuda::{Activation, Matrix, Product, ProductEpilogue};
use kiln_ir::gpu::GpuMemory;
use kiln_ir::kernel::{
    Access, Address, Affine, Block, Buffer, BufferIndex, Instruction, LoopKernel, MatMulKernel, MatrixOperand,
    Operation, Reg, Stage, Store,
};
use kiln_ir::{Precision, ScalarOp};
use smallvec::SmallVec;

/// A step of a kernel that a library has a part in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Piece {
    /// A map over buffers that are, by their number in it, these.
    Map {
        /// What it computes.
        kernel: LoopKernel,
        /// Its buffers.
        memory: Vec<GpuMemory>,
    },
    /// The product.
    Product(Product),
}

/// The steps of a kernel, in order, and the memory between them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pieces {
    /// What runs.
    pub pieces: Vec<Piece>,
    /// Bytes of each buffer that only these see.
    pub scratch: Vec<usize>,
}

/// How a library has a part in a product; `None` where it multiplies no such numbers, or where there is nothing to multiply.
pub fn pieces(kernel: &MatMulKernel) -> Option<Pieces> {
    let floats = match kernel.dtype {
        DType::F32 | DType::F64 | DType::F16 | DType::BF16 => kernel.precision != Precision::Wide,
        DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => false,
    };
    let extents = [kernel.m, kernel.n, kernel.k, kernel.batch.iter().product()];
    if !floats || extents.contains(&0) || extents.iter().any(|&extent| extent > i32::MAX as usize) {
        return None;
    }
    let mut planner = Planner { kernel, pieces: Vec::new(), scratch: Vec::new() };
    let lhs = planner.operand(&kernel.lhs, [kernel.m, kernel.k]);
    let rhs = planner.operand(&kernel.rhs, [kernel.k, kernel.n]);
    let (result, epilogue, after) = planner.result();
    planner.pieces.push(Piece::Product(Product {
        batch: extents[3],
        m: kernel.m,
        n: kernel.n,
        k: kernel.k,
        accumulate: if kernel.dtype == DType::F64 { DType::F64 } else { DType::F32 },
        precision: kernel.precision,
        lhs,
        rhs,
        result,
        epilogue,
    }));
    planner.pieces.extend(after);
    Some(Pieces { pieces: planner.pieces, scratch: planner.scratch })
}

struct Planner<'a> {
    kernel: &'a MatMulKernel,
    pieces: Vec<Piece>,
    scratch: Vec<usize>,
}

impl Planner<'_> {
    /// Where the library finds an operand of `[rows, columns]`.
    fn operand(&mut self, operand: &MatrixOperand, [rows, columns]: [usize; 2]) -> Matrix {
        let kernel = self.kernel;
        let dtype = kernel.dtype;
        if let Some((buffer, affine)) = operand.plain()
            && kernel.buffers[buffer.0 as usize].dtype == dtype
            && let Some(matrix) =
                placed(GpuMemory::Buffer(buffer), dtype, affine, &kernel.batch, [rows, columns], Overlap::Allowed)
        {
            return matrix;
        }
        let (memory, dense) = self.dense([rows, columns], dtype);
        let mut block = operand.block.clone();
        let space = self.space([rows, columns]);
        let mut map = Map::new(kernel, &mut block);
        let to = map.add(Buffer { dtype, len: space.iter().product(), access: Access::Write }, memory);
        block.stores.push(Store { buffer: to, address: row_major(&space), value: operand.value });
        let piece = map.piece(block, space);
        self.pieces.push(piece);
        dense
    }

    /// Where the library writes the product, what it makes of it, and the loop that goes after, if one does.
    fn result(&mut self) -> (Matrix, ProductEpilogue, Option<Piece>) {
        let kernel = self.kernel;
        let (dtype, sides) = (kernel.product_dtype(), [kernel.m, kernel.n]);
        if let [Store { buffer, address, value }] = kernel.epilogue.stores.as_slice()
            && kernel.buffers[buffer.0 as usize].dtype == dtype
            && let Some(epilogue) = self.epilogue(*value)
            && let Some(matrix) =
                placed(GpuMemory::Buffer(*buffer), dtype, address, &kernel.batch, sides, Overlap::Refused)
            && matrix.column_stride == 1
        {
            return (matrix, epilogue, None);
        }
        let (memory, dense) = self.dense(sides, dtype);
        let mut block = kernel.epilogue.clone();
        let space = self.space(sides);
        let mut map = Map::new(kernel, &mut block);
        let from = map.add(Buffer { dtype, len: space.iter().product(), access: Access::Read }, memory);
        let address = Address { affine: row_major(&space), ..Address::default() };
        let operation = Operation::Load { buffer: from, address, bounds: Vec::new() };
        block.instructions.insert(0, Instruction { result: kernel.product, dtype, operation });
        let after = map.piece(block, space);
        (dense, ProductEpilogue::None, Some(after))
    }

    /// What the library makes of the product so that it is `value`.
    fn epilogue(&self, value: Reg) -> Option<ProductEpilogue> {
        let kernel = self.kernel;
        let instructions = kernel.epilogue.instructions.as_slice();
        if value == kernel.product {
            return instructions.is_empty().then_some(ProductEpilogue::None);
        }
        // The sum is rounded once by the library, as it is by us where products are not rounded before.
        let exact = match kernel.dtype {
            DType::F32 | DType::F64 => kernel.batch.iter().product::<usize>() == 1,
            DType::F16 | DType::BF16 | DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => {
                false
            }
        };
        let [
            Instruction { result: bias, dtype, operation: Operation::Load { buffer, address, bounds } },
            Instruction { result: sum, operation: Operation::Scalar(ScalarOp::Add, operands), .. },
        ] = instructions
        else {
            return None;
        };
        let columns = kernel.batch.len() + 1;
        let along_columns = address.computed.is_empty()
            && bounds.is_empty()
            && address.affine.offset >= 0
            && (0..columns).all(|axis| address.affine.stride(axis) == 0)
            && address.affine.stride(columns) == 1;
        let both = operands.contains(bias) && operands.contains(&kernel.product);
        let read_only = kernel.buffers[buffer.0 as usize].access == Access::Read;
        (exact && *sum == value && both && along_columns && read_only && *dtype == kernel.dtype).then_some(
            ProductEpilogue::Bias {
                memory: GpuMemory::Buffer(*buffer),
                offset: address.affine.offset as usize,
                activation: Activation::Identity,
            },
        )
    }

    /// A dense matrix for each of the batch in memory of its own.
    fn dense(&mut self, [rows, columns]: [usize; 2], dtype: DType) -> (GpuMemory, Matrix) {
        let batch: usize = self.kernel.batch.iter().product();
        self.scratch.push(batch * rows * columns * dtype.size());
        let memory = GpuMemory::Scratch(self.scratch.len() as u32 - 1);
        let matrix =
            Matrix { memory, dtype, offset: 0, row_stride: columns, column_stride: 1, batch_stride: rows * columns };
        (memory, matrix)
    }

    fn space(&self, sides: [usize; 2]) -> SmallVec<[usize; 6]> {
        self.kernel.batch.iter().copied().chain(sides).collect()
    }
}

/// A map in the making, with only those of the kernel's buffers that its block names.
struct Map {
    buffers: Vec<Buffer>,
    memory: Vec<GpuMemory>,
}

impl Map {
    /// Gives the buffers of a block numbers of their own.
    fn new(kernel: &MatMulKernel, block: &mut Block) -> Map {
        let mut map = Map { buffers: Vec::new(), memory: Vec::new() };
        let mut number = |buffer: &mut BufferIndex| {
            let memory = GpuMemory::Buffer(*buffer);
            let known = map.memory.iter().position(|&known| known == memory);
            *buffer = match known {
                Some(known) => BufferIndex(known as u32),
                None => map.add(kernel.buffers[buffer.0 as usize].clone(), memory),
            };
        };
        for instruction in &mut block.instructions {
            if let Operation::Load { buffer, .. } = &mut instruction.operation {
                number(buffer);
            }
        }
        for store in &mut block.stores {
            number(&mut store.buffer);
        }
        map
    }

    fn add(&mut self, buffer: Buffer, memory: GpuMemory) -> BufferIndex {
        self.buffers.push(buffer);
        self.memory.push(memory);
        BufferIndex(self.buffers.len() as u32 - 1)
    }

    fn piece(self, block: Block, space: SmallVec<[usize; 6]>) -> Piece {
        let kernel = LoopKernel {
            buffers: self.buffers,
            outer: space,
            inner: SmallVec::new(),
            stages: vec![Stage::Point(block)],
        };
        Piece::Map { kernel, memory: self.memory }
    }
}

/// Whether matrices of a batch may be one and the same.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Overlap {
    /// They are read.
    Allowed,
    /// They are written.
    Refused,
}

/// Where matrices lie in a buffer that an affine map finds; `None` where a library cannot be told.
fn placed(
    memory: GpuMemory,
    dtype: DType,
    affine: &Affine,
    batch: &[usize],
    [rows, columns]: [usize; 2],
    overlap: Overlap,
) -> Option<Matrix> {
    let offset = usize::try_from(affine.offset).ok()?;
    let [row_stride, column_stride] =
        [batch.len(), batch.len() + 1].map(|axis| usize::try_from(affine.stride(axis)).ok());
    let (row_stride, column_stride) = one_dense([rows, columns], row_stride?, column_stride?)?;
    if row_stride.max(column_stride) > i32::MAX as usize {
        return None;
    }
    // All axes of the batch must be one: each as far apart as all points of those within it.
    let mut batch_stride = None;
    let mut points = 1;
    for (axis, &extent) in batch.iter().enumerate().rev() {
        if extent == 1 {
            continue;
        }
        let stride = usize::try_from(affine.stride(axis)).ok()?;
        match batch_stride {
            None => batch_stride = Some(stride),
            Some(inner) if stride == inner * points => {}
            Some(_) => return None,
        }
        points *= extent;
    }
    let batch_stride = batch_stride.unwrap_or(0);
    if overlap == Overlap::Refused && points > 1 && batch_stride == 0 {
        return None;
    }
    Some(Matrix { memory, dtype, offset, row_stride, column_stride, batch_stride })
}

/// Strides of a matrix one axis of which is dense; an axis of one element has whichever stride fits.
fn one_dense([rows, columns]: [usize; 2], row_stride: usize, column_stride: usize) -> Option<(usize, usize)> {
    match (rows, columns) {
        (1, 1) => Some((1, 1)),
        (_, 1) => (row_stride >= 1).then_some((row_stride, 1)),
        (1, _) if column_stride == 1 => Some((columns, 1)),
        (1, _) => (column_stride > 1).then_some((1, column_stride)),
        _ if column_stride == 1 && row_stride >= columns => Some((row_stride, 1)),
        _ if row_stride == 1 && column_stride >= rows => Some((1, column_stride)),
        _ => None,
    }
}

/// The map of a dense tensor.
fn row_major(extents: &[usize]) -> Affine {
    let mut strides: SmallVec<[i64; 6]> = SmallVec::from_elem(1, extents.len());
    for axis in (1..extents.len()).rev() {
        strides[axis - 1] = strides[axis] * extents[axis] as i64;
    }
    Affine { offset: 0, strides }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn affine(offset: i64, strides: &[i64]) -> Affine {
        Affine { offset, strides: strides.iter().copied().collect() }
    }

    fn loaded(buffer: u32, reg: u32, affine: Affine) -> Instruction {
        let address = Address { affine, ..Address::default() };
        let operation = Operation::Load { buffer: BufferIndex(buffer), address, bounds: Vec::new() };
        Instruction { result: Reg(reg), dtype: DType::F32, operation }
    }

    fn operand(buffer: u32, reg: u32, affine: Affine) -> MatrixOperand {
        let block = Block { instructions: vec![loaded(buffer, reg, affine)], stores: Vec::new() };
        MatrixOperand { block, value: Reg(reg) }
    }

    /// `[4, 6] x [6, 8]` in buffers 0, 1; bias in 2, result in 3.
    fn kernel() -> MatMulKernel {
        let buffer = |len, access| Buffer { dtype: DType::F32, len, access };
        MatMulKernel {
            buffers: vec![
                buffer(24, Access::Read),
                buffer(48, Access::Read),
                buffer(8, Access::Read),
                buffer(32, Access::Write),
            ],
            batch: SmallVec::new(),
            m: 4,
            n: 8,
            k: 6,
            dtype: DType::F32,
            accumulate: DType::F32,
            precision: Precision::Full,
            lhs: operand(0, 0, affine(0, &[6, 1])),
            rhs: operand(1, 1, affine(0, &[8, 1])),
            product: Reg(2),
            epilogue: Block {
                instructions: Vec::new(),
                stores: vec![Store { buffer: BufferIndex(3), address: affine(0, &[8, 1]), value: Reg(2) }],
            },
        }
    }

    fn forms(kernel: &MatMulKernel) -> String {
        let name = |piece: &Piece| match piece {
            Piece::Map { memory, .. } => format!("map of {}", memory.len()),
            Piece::Product(product) => match product.epilogue {
                ProductEpilogue::None => "product".to_owned(),
                ProductEpilogue::Bias { .. } => "product + bias".to_owned(),
                ProductEpilogue::Activation(_) => "activation".to_owned(),
            },
        };
        let pieces = pieces(kernel).expect("floats are multiplied");
        pieces.pieces.iter().map(name).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn a_plain_product_is_one_call() {
        assert_eq!(forms(&kernel()), "product");
        // A transposed operand is read where it is.
        let transposed = MatMulKernel { lhs: operand(0, 0, affine(0, &[1, 4])), ..kernel() };
        assert_eq!(forms(&transposed), "product");
    }

    #[test]
    fn a_bias_along_the_rows_is_the_librarys() {
        let mut kernel = kernel();
        let sum = Operation::Scalar(ScalarOp::Add, [Reg(2), Reg(3)].into_iter().collect());
        kernel.epilogue.instructions =
            vec![loaded(2, 3, affine(0, &[0, 1])), Instruction { result: Reg(4), dtype: DType::F32, operation: sum }];
        kernel.epilogue.stores[0].value = Reg(4);
        assert_eq!(forms(&kernel), "product + bias");
        // Down the columns it is a loop's.
        kernel.epilogue.instructions[0] = loaded(2, 3, affine(0, &[1, 0]));
        assert_eq!(forms(&kernel), "product, map of 3");
    }

    #[test]
    fn an_operand_without_a_dense_axis_is_written_out_first() {
        let kernel = MatMulKernel { rhs: operand(1, 1, affine(0, &[0, 2])), ..kernel() };
        assert_eq!(forms(&kernel), "map of 2, product");
        assert_eq!(pieces(&kernel).expect("floats are multiplied").scratch, [6 * 8 * 4]);
    }

    #[test]
    fn batches_are_one_axis_or_written_out() {
        let mut kernel = kernel();
        kernel.batch = [2, 3].into_iter().collect();
        kernel.lhs = operand(0, 0, affine(0, &[72, 24, 6, 1]));
        kernel.rhs = operand(1, 1, affine(0, &[0, 0, 8, 1]));
        kernel.epilogue.stores[0].address = affine(0, &[96, 32, 8, 1]);
        assert_eq!(forms(&kernel), "product");
        // The batch's axes the other way round.
        kernel.lhs = operand(0, 0, affine(0, &[24, 48, 6, 1]));
        assert_eq!(forms(&kernel), "map of 2, product");
    }

    #[test]
    fn integers_and_empty_products_are_not_a_librarys() {
        assert_eq!(pieces(&MatMulKernel { dtype: DType::I32, ..kernel() }), None);
        assert_eq!(pieces(&MatMulKernel { k: 0, ..kernel() }), None);
    }
}
