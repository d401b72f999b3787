//! Matrix products: through `gemm` for floats, a plain loop for integers, `quantized` for wide products of 8-bit ones.
//!
//! An operand that is a plain load is read where it lies, with its strides; any other is evaluated into dense scratch memory first. A
//! product that is merely stored is written straight to the result; any other goes to scratch memory, where the epilogue picks it up as
//! an ordinary map. The 16-bit floats are widened to `f32` on the way in and rounded in the epilogue.

use gemm::Parallelism;
use kiln_ir::kernel::{
    Access, Address, Affine, Block, Buffer, BufferIndex, Instruction, LoopKernel, MatMulKernel, MatrixOperand,
    Operation, Reg, Stage, Store,
};
use kiln_ir::{DType, Precision};
use rayon::prelude::*;
use smallvec::SmallVec;

use super::loops::Loops;
use super::program::RawBuffer;
use super::quantized;
use super::scratch::Pool;

/// Multiplications below which a product stays on the calling thread.
const PARALLEL: usize = 1 << 20;

/// A prepared matrix product.
pub(super) struct MatMul {
    batch: SmallVec<[usize; 6]>,
    extents: [usize; 3],
    /// The dtype of what is multiplied.
    dtype: DType,
    /// The dtype of the sums.
    sums: DType,
    buffers: usize,
    lhs: Operand,
    rhs: Operand,
    product: Place,
    /// From scratch memory to the results.
    epilogue: Option<Loops>,
    pool: Pool,
}

/// Where an operand comes from.
struct Operand {
    place: Place,
    /// Evaluates it into scratch memory.
    pack: Option<Loops>,
    bytes: usize,
}

/// A batch of matrices in memory.
#[derive(Clone)]
struct Place {
    /// Which buffer; `None` for scratch memory.
    buffer: Option<usize>,
    offset: i64,
    batch: SmallVec<[i64; 6]>,
    row: isize,
    column: isize,
}

impl Place {
    fn of(buffer: Option<usize>, affine: &Affine, batch: usize) -> Place {
        Place {
            buffer,
            offset: affine.offset,
            batch: (0..batch).map(|axis| affine.stride(axis)).collect(),
            row: affine.stride(batch) as isize,
            column: affine.stride(batch + 1) as isize,
        }
    }

    /// The element at the origin of matrix number `index`, in row-major order of the batch.
    fn origin(&self, extents: &[usize], mut index: usize) -> isize {
        let mut offset = self.offset;
        for (&stride, &extent) in self.batch.iter().zip(extents).rev() {
            offset += stride * (index % extent) as i64;
            index /= extent;
        }
        offset as isize
    }
}

/// The row-major map over an operand's or the product's space.
fn dense(batch: &[usize], rows: usize, columns: usize) -> Affine {
    let mut strides: SmallVec<[i64; 6]> = SmallVec::from_elem(0, batch.len() + 2);
    let mut step = 1;
    let matrix = [rows, columns];
    let extents = batch.iter().chain(&matrix).rev();
    for (stride, &extent) in strides.iter_mut().rev().zip(extents) {
        *stride = step;
        step *= extent as i64;
    }
    Affine { offset: 0, strides }
}

/// A register that no kernel uses: they are numbered from 0.
const SPARE: Reg = Reg(u32::MAX);

impl MatMul {
    pub(super) fn new(kernel: &MatMulKernel) -> MatMul {
        let dtype = match kernel.dtype {
            DType::F16 | DType::BF16 => DType::F32,
            DType::F32 | DType::F64 | DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => {
                kernel.dtype
            }
        };
        let sums = match kernel.precision {
            Precision::Full | Precision::Tf32 => dtype,
            Precision::Wide => kernel.accumulate,
        };
        let (product, epilogue) = epilogue(kernel, sums);
        MatMul {
            batch: kernel.batch.clone(),
            extents: [kernel.m, kernel.n, kernel.k],
            dtype,
            sums,
            buffers: kernel.buffers.len(),
            lhs: operand(kernel, &kernel.lhs, [kernel.m, kernel.k], dtype),
            rhs: operand(kernel, &kernel.rhs, [kernel.k, kernel.n], dtype),
            product,
            epilogue,
            pool: Pool::default(),
        }
    }

    /// Runs the kernel. Safety: as for [`Loops::run`].
    pub(super) unsafe fn run(&self, buffers: &[RawBuffer]) {
        let [m, n, _] = self.extents;
        let count = self.batch.iter().product::<usize>() * m * n;
        if count == 0 {
            return;
        }
        // SAFETY: the caller's; scratch memory has the size of what is written to it.
        unsafe {
            self.packed(&self.lhs, buffers, |lhs| {
                self.packed(&self.rhs, buffers, |rhs| match &self.epilogue {
                    None => self.multiply(lhs, rhs, buffers[self.product.buffer.unwrap_or(0)].data),
                    Some(epilogue) => self.pool.with(count * self.sums.size(), |product| {
                        self.multiply(lhs, rhs, product.data);
                        epilogue.run(&with_extra(buffers, self.buffers, product));
                    }),
                });
            });
        }
    }

    /// Lends an operand's memory to `body`, evaluated where it has to be.
    unsafe fn packed(&self, operand: &Operand, buffers: &[RawBuffer], body: impl FnOnce(*const u8)) {
        match (&operand.pack, operand.place.buffer) {
            (None, Some(buffer)) => body(buffers[buffer].data),
            (None, None) => body(std::ptr::NonNull::<u64>::dangling().as_ptr().cast()),
            (Some(pack), _) => self.pool.with(operand.bytes, |memory| {
                // SAFETY: the caller's; the memory holds the whole operand.
                unsafe { pack.run(&with_extra(buffers, self.buffers, memory)) };
                body(memory.data);
            }),
        }
    }

    unsafe fn multiply(&self, lhs: *const u8, rhs: *const u8, product: *mut u8) {
        let count: usize = self.batch.iter().product();
        let work: usize = self.extents.iter().product();
        let memory = Memory { lhs, rhs, product };
        if count > 1 && work < PARALLEL && work * count >= PARALLEL {
            (0..count).into_par_iter().with_min_len((PARALLEL / work.max(1) / 4).max(1)).for_each(|index| {
                // SAFETY: the caller's; products of a batch are disjoint.
                unsafe { self.one(memory.get(), index, Parallelism::None) };
            });
        } else {
            let parallelism = if work < PARALLEL { Parallelism::None } else { Parallelism::Rayon(0) };
            for index in 0..count {
                // SAFETY: the caller's.
                unsafe { self.one(&memory, index, parallelism) };
            }
        }
    }

    unsafe fn one(&self, memory: &Memory, index: usize, parallelism: Parallelism) {
        let [m, n, k] = self.extents;
        let origin = |place: &Place| place.origin(&self.batch, index);
        let (l, r, p) = (origin(&self.lhs.place), origin(&self.rhs.place), origin(&self.product));
        let (lhs, rhs, product) = (&self.lhs.place, &self.rhs.place, &self.product);
        macro_rules! through_gemm {
            ($T:ident) => {
                // SAFETY: the caller's; strides reach the operand's own elements. The product is not read.
                unsafe {
                    gemm::gemm::<$T>(
                        m,
                        n,
                        k,
                        memory.product.cast::<$T>().offset(p),
                        product.column,
                        product.row,
                        false,
                        memory.lhs.cast::<$T>().offset(l),
                        lhs.column,
                        lhs.row,
                        memory.rhs.cast::<$T>().offset(r),
                        rhs.column,
                        rhs.row,
                        0.0,
                        1.0,
                        false,
                        false,
                        false,
                        parallelism,
                    )
                }
            };
        }
        macro_rules! integers {
            ($T:ident) => {
                // SAFETY: integers' operands and product are dense scratch memory.
                unsafe {
                    let lhs = std::slice::from_raw_parts(memory.lhs.cast::<$T>().offset(l), m * k);
                    let rhs = std::slice::from_raw_parts(memory.rhs.cast::<$T>().offset(r), k * n);
                    let product = std::slice::from_raw_parts_mut(memory.product.cast::<$T>().offset(p), m * n);
                    for (i, row) in product.chunks_exact_mut(n).enumerate() {
                        row.fill(0);
                        for (factor, other) in lhs[i * k..(i + 1) * k].iter().zip(rhs.chunks_exact(n)) {
                            for (sum, term) in row.iter_mut().zip(other) {
                                *sum = sum.wrapping_add(factor.wrapping_mul(*term));
                            }
                        }
                    }
                }
            };
        }
        macro_rules! wide {
            ($T:ident) => {
                // SAFETY: integers' operands and product are dense scratch memory.
                unsafe {
                    let lhs = std::slice::from_raw_parts(memory.lhs.cast::<$T>().offset(l), m * k);
                    let rhs = std::slice::from_raw_parts(memory.rhs.cast::<$T>().offset(r), k * n);
                    let product = std::slice::from_raw_parts_mut(memory.product.cast::<i32>().offset(p), m * n);
                    quantized::multiply(lhs, rhs, product, self.extents, parallelism)
                }
            };
        }
        match self.dtype {
            DType::I8 if self.sums == DType::I32 => wide!(i8),
            DType::U8 if self.sums == DType::I32 => wide!(u8),
            DType::F32 => through_gemm!(f32),
            DType::F64 => through_gemm!(f64),
            DType::I8 => integers!(i8),
            DType::U8 => integers!(u8),
            DType::I32 => integers!(i32),
            DType::U32 => integers!(u32),
            DType::I64 => integers!(i64),
            DType::F16 | DType::BF16 | DType::Bool => unreachable!("16-bit floats are widened, bools have no product"),
        }
    }
}

/// Where a product's matrices start.
struct Memory {
    lhs: *const u8,
    rhs: *const u8,
    product: *mut u8,
}

// SAFETY: operands are only read, and products of a batch are disjoint.
unsafe impl Sync for Memory {}

impl Memory {
    fn get(&self) -> &Memory {
        self
    }
}

/// The kernel's buffers, and scratch memory as one more.
fn with_extra(buffers: &[RawBuffer], count: usize, extra: RawBuffer) -> SmallVec<[RawBuffer; 8]> {
    buffers[..count].iter().copied().chain([extra]).collect()
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64)
}

fn operand(kernel: &MatMulKernel, operand: &MatrixOperand, [rows, columns]: [usize; 2], dtype: DType) -> Operand {
    let batch = kernel.batch.len();
    if let (Some((buffer, affine)), true) = (operand.plain(), is_float(kernel.dtype)) {
        return Operand { place: Place::of(Some(buffer.0 as usize), affine, batch), pack: None, bytes: 0 };
    }
    let affine = dense(&kernel.batch, rows, columns);
    let place = Place::of(None, &affine, batch);
    let outer: SmallVec<[usize; 6]> = kernel.batch.iter().copied().chain([rows, columns]).collect();
    let len = outer.iter().product();
    if len == 0 {
        return Operand { place, pack: None, bytes: 0 };
    }
    let mut block = operand.block.clone();
    let mut value = operand.value;
    if kernel.dtype != dtype {
        block.instructions.push(Instruction { result: SPARE, dtype, operation: Operation::Cast(value) });
        value = SPARE;
    }
    let scratch = BufferIndex(kernel.buffers.len() as u32);
    block.stores.push(Store { buffer: scratch, address: affine, value });
    let pack = Loops::new(&map(kernel, outer, block, Buffer { dtype, len, access: Access::Write }));
    Operand { place, pack: Some(pack), bytes: len * dtype.size() }
}

/// Where the product goes, and what is made of it there.
fn epilogue(kernel: &MatMulKernel, dtype: DType) -> (Place, Option<Loops>) {
    let batch = kernel.batch.len();
    let Block { instructions, stores } = &kernel.epilogue;
    if let ([], [store]) = (instructions.as_slice(), stores.as_slice())
        && is_float(kernel.dtype)
        && store.value == kernel.product
        && kernel.buffers[store.buffer.0 as usize].access == Access::Write
    {
        return (Place::of(Some(store.buffer.0 as usize), &store.address, batch), None);
    }
    let affine = dense(&kernel.batch, kernel.m, kernel.n);
    let place = Place::of(None, &affine, batch);
    let outer: SmallVec<[usize; 6]> = kernel.batch.iter().copied().chain([kernel.m, kernel.n]).collect();
    let scratch = BufferIndex(kernel.buffers.len() as u32);
    let address = Address { affine, computed: SmallVec::new() };
    let load = Operation::Load { buffer: scratch, address, bounds: Vec::new() };
    let mut block = Block::default();
    if kernel.product_dtype() == dtype {
        block.instructions.push(Instruction { result: kernel.product, dtype, operation: load });
    } else {
        block.instructions.push(Instruction { result: SPARE, dtype, operation: load });
        let rounded = Operation::Cast(SPARE);
        block.instructions.push(Instruction { result: kernel.product, dtype: kernel.dtype, operation: rounded });
    }
    block.instructions.extend_from_slice(instructions);
    block.stores.extend_from_slice(stores);
    let len = outer.iter().product();
    let loops = Loops::new(&map(kernel, outer, block, Buffer { dtype, len, access: Access::Read }));
    (place, Some(loops))
}

/// A map over the kernel's buffers and scratch memory.
fn map(kernel: &MatMulKernel, outer: SmallVec<[usize; 6]>, block: Block, scratch: Buffer) -> LoopKernel {
    let buffers = kernel.buffers.iter().cloned().chain([scratch]).collect();
    LoopKernel { buffers, outer, inner: SmallVec::new(), stages: vec![Stage::Point(block)] }
}
