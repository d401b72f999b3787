//! Matrix products: through `gemm` for floats, a plain loop for integers, `quantized` for wide products of 8-bit ones.
//!
//! An operand that is a plain load is read where it lies, with its strides; any other is evaluated into dense scratch memory first. A
//! product that is merely stored is written straight to the result; any other goes to scratch memory, where the epilogue picks it up as
//! an ordinary map: block of rows by block of rows while they are in the cache, where the product can be cut into such, else as a whole. The 16-bit floats are widened to `f32` on the way in and rounded in the epilogue.

use std::ops::Range;

use gemm::Parallelism;
use kiln_ir::kernel::{
    Access, Address, Affine, Block, Buffer, BufferIndex, Instruction, LoopKernel, MatMulKernel, MatrixOperand,
    Operation, Reg, Stage, Store,
};
use kiln_ir::{DType, Precision};
use rayon::prelude::*;
use smallvec::SmallVec;

use super::crew;
use super::loops::Loops;
use super::product::Matrix;
use super::program::RawBuffer;
use super::quantized;
use super::scratch::Pool;

/// Multiplications below which a product stays on the calling thread.
pub(super) const PARALLEL: usize = 1 << 20;
/// Bytes of a block of rows, at most: it stays in the second-level cache until the epilogue has done with it.
const BLOCK_BYTES: usize = 256 << 10;
/// Rows of a block, at least and at most. Every block goes through the whole right operand, so there should be few.
const BLOCK_ROWS: std::ops::RangeInclusive<usize> = 32..=128;
/// Bytes of a right operand that every block may go through: from here on it is better shared by all rows.
const SHARED_BYTES: usize = 2 << 20;

/// Multiplications from which on the product of a matrix is cut in two directions.
const CUT_FINER: usize = 1 << 27;
/// Blocks of rows that a smaller one is cut into, and rows of such a block, at least.
const CUTS: usize = 4;
const CUT_ROWS: usize = 32;

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
    /// Rows per block where the epilogue is run block by block.
    block: Option<usize>,
    /// Rows of a product that is cut into a few, each multiplied on one thread.
    alone: Option<usize>,
    pool: Pool,
}

/// Where an operand comes from.
pub(super) struct Operand {
    pub(super) place: Place,
    /// Evaluates it into scratch memory.
    pack: Option<Loops>,
    pub(super) bytes: usize,
}

/// A batch of matrices in memory.
#[derive(Clone)]
pub(super) struct Place {
    /// Which buffer; `None` for scratch memory.
    pub(super) buffer: Option<usize>,
    offset: i64,
    batch: SmallVec<[i64; 6]>,
    row: isize,
    column: isize,
}

impl Place {
    pub(super) fn of(buffer: Option<usize>, affine: &Affine, batch: usize) -> Place {
        Place {
            buffer,
            offset: affine.offset,
            batch: (0..batch).map(|axis| affine.stride(axis)).collect(),
            row: affine.stride(batch) as isize,
            column: affine.stride(batch + 1) as isize,
        }
    }

    /// Matrix number `index` of a batch of `dtype`.
    ///
    /// # Safety
    ///
    /// `data` is the memory that this is a place in.
    pub(super) unsafe fn matrix(&self, data: *const u8, batch: &[usize], index: usize, dtype: DType) -> Matrix {
        let origin = self.origin(batch, index) * dtype.size() as isize;
        // SAFETY: the caller's.
        Matrix { data: unsafe { data.cast_mut().offset(origin) }, row: self.row, column: self.column }
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
        let dtype = wide(kernel.dtype);
        let sums = match kernel.precision {
            Precision::Full | Precision::Tf32 => dtype,
            Precision::Wide => kernel.accumulate,
        };
        let block = block(kernel, sums);
        let (product, epilogue) = epilogue(kernel, sums, block);
        MatMul {
            batch: kernel.batch.clone(),
            extents: [kernel.m, kernel.n, kernel.k],
            dtype,
            sums,
            buffers: kernel.buffers.len(),
            lhs: Operand::new(
                &kernel.buffers,
                &kernel.batch,
                [kernel.m, kernel.k],
                &kernel.lhs,
                kernel.dtype,
                Layout::AsItLies,
            ),
            rhs: Operand::new(
                &kernel.buffers,
                &kernel.batch,
                [kernel.k, kernel.n],
                &kernel.rhs,
                kernel.dtype,
                Layout::AsItLies,
            ),
            product,
            block: block.filter(|_| epilogue.is_some()),
            epilogue,
            alone: cut_rows(kernel, sums),
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
            self.lhs.with(&self.pool, buffers, self.buffers, |lhs| {
                self.rhs.with(&self.pool, buffers, self.buffers, |rhs| match &self.epilogue {
                    None => self.multiply(lhs, rhs, buffers[self.product.buffer.unwrap_or(0)].data),
                    Some(epilogue) if self.block.is_some() => self.in_blocks(lhs, rhs, buffers, epilogue),
                    Some(epilogue) => self.pool.with(count * self.sums.size(), |product| {
                        self.multiply(lhs, rhs, product.data);
                        epilogue.run(&with_extra(buffers, self.buffers, product));
                    }),
                });
            });
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
        } else if let Some(rows) = self.alone {
            let [m, ..] = self.extents;
            let blocks = m.div_ceil(rows);
            crew::share(count * blocks, |part| {
                let (index, first) = (part / blocks, part % blocks * rows);
                let Memory { lhs, rhs, product } = *memory.get();
                // SAFETY: the caller's; blocks are disjoint rows, which lie where the whole product's do.
                unsafe {
                    let origin = self.product.origin(&self.batch, index) + first as isize * self.product.row;
                    let product = Product { memory: product, origin, place: &self.product };
                    self.rows(lhs, rhs, product, index, first..m.min(first + rows), Parallelism::None);
                }
            });
        } else {
            let parallelism = if work < PARALLEL { Parallelism::None } else { Parallelism::Rayon(0) };
            for index in 0..count {
                // SAFETY: the caller's.
                unsafe { self.one(&memory, index, parallelism) };
            }
        }
    }

    /// Multiplies block of rows by block of rows, each followed by its part of the epilogue.
    unsafe fn in_blocks(&self, lhs: *const u8, rhs: *const u8, buffers: &[RawBuffer], epilogue: &Loops) {
        let [m, n, _] = self.extents;
        let rows = self.block.unwrap_or(m);
        let blocks = m / rows;
        let operands = Memory { lhs, rhs, product: std::ptr::null_mut() };
        crew::share(self.batch.iter().product::<usize>() * blocks, |part| {
            self.pool.with(rows * n * self.sums.size(), |scratch| {
                let Memory { lhs, rhs, .. } = *operands.get();
                let place = Place { row: n as isize, column: 1, ..self.product.clone() };
                let first = part % blocks * rows;
                // SAFETY: the caller's; the scratch memory holds the block's rows, and parts of the epilogue store different elements.
                unsafe {
                    let product = Product { memory: scratch.data, origin: 0, place: &place };
                    self.rows(lhs, rhs, product, part / blocks, first..first + rows, Parallelism::None);
                    epilogue.run_part(&with_extra(buffers, self.buffers, scratch), part);
                }
            });
        });
    }

    unsafe fn one(&self, memory: &Memory, index: usize, parallelism: Parallelism) {
        let origin = self.product.origin(&self.batch, index);
        let product = Product { memory: memory.product, origin, place: &self.product };
        // SAFETY: the caller's.
        unsafe { self.rows(memory.lhs, memory.rhs, product, index, 0..self.extents[0], parallelism) }
    }

    /// Multiplies some rows of one matrix of the batch.
    unsafe fn rows(
        &self,
        lhs: *const u8,
        rhs: *const u8,
        product: Product<'_>,
        index: usize,
        rows: Range<usize>,
        parallelism: Parallelism,
    ) {
        let [_, n, k] = self.extents;
        let m = rows.len();
        let memory = Memory { lhs, rhs, product: product.memory };
        let origin = |place: &Place| place.origin(&self.batch, index);
        let l = origin(&self.lhs.place) + rows.start as isize * self.lhs.place.row;
        let (r, p) = (origin(&self.rhs.place), product.origin);
        let (lhs, rhs, product) = (&self.lhs.place, &self.rhs.place, product.place);
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
                    quantized::multiply(lhs, rhs, product, [m, n, k], parallelism, &self.pool)
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

/// Where rows of a product go.
struct Product<'p> {
    memory: *mut u8,
    origin: isize,
    place: &'p Place,
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

impl Operand {
    /// An operand of `stored` dtype, which is widened where it is a 16-bit float.
    pub(super) fn new(
        buffers: &[Buffer],
        batch: &[usize],
        [rows, columns]: [usize; 2],
        operand: &MatrixOperand,
        stored: DType,
        layout: Layout,
    ) -> Operand {
        if let (Some((buffer, affine)), true) = (operand.plain(), is_float(stored) && layout == Layout::AsItLies) {
            return Operand { place: Place::of(Some(buffer.0 as usize), affine, batch.len()), pack: None, bytes: 0 };
        }
        let affine = match layout {
            Layout::AsItLies => dense(batch, rows, columns),
            Layout::Across => {
                let mut affine = dense(batch, columns, rows);
                affine.strides.swap(batch.len(), batch.len() + 1);
                affine
            }
        };
        let place = Place::of(None, &affine, batch.len());
        let outer: SmallVec<[usize; 6]> = batch.iter().copied().chain([rows, columns]).collect();
        let len = outer.iter().product();
        if len == 0 {
            return Operand { place, pack: None, bytes: 0 };
        }
        let dtype = wide(stored);
        let mut block = operand.block.clone();
        let mut value = operand.value;
        if stored != dtype {
            block.instructions.push(Instruction { result: SPARE, dtype, operation: Operation::Cast(value) });
            value = SPARE;
        }
        let scratch = BufferIndex(buffers.len() as u32);
        block.stores.push(Store { buffer: scratch, address: affine, value });
        let pack = Loops::new(&map(buffers, outer, block, Buffer { dtype, len, access: Access::Write }));
        Operand { place, pack: Some(pack), bytes: len * dtype.size() }
    }

    /// Lends its memory to `body`, evaluated where it has to be. `count` is how many buffers the kernel has.
    ///
    /// # Safety
    ///
    /// As for [`Loops::run`].
    pub(super) unsafe fn with(&self, pool: &Pool, buffers: &[RawBuffer], count: usize, body: impl FnOnce(*const u8)) {
        match (&self.pack, self.place.buffer) {
            (None, Some(buffer)) => body(buffers[buffer].data),
            (None, None) => body(std::ptr::NonNull::<u64>::dangling().as_ptr().cast()),
            (Some(pack), _) => pool.with(self.bytes, |memory| {
                // SAFETY: the caller's; the memory holds the whole operand.
                unsafe { pack.run(&with_extra(buffers, count, memory)) };
                body(memory.data);
            }),
        }
    }
}

/// How an operand is to lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Where it is if it can be read there, else row after row.
    AsItLies,
    /// In scratch memory, column after column.
    Across,
}

/// The dtype in which elements are multiplied: 16-bit floats are widened.
pub(super) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        DType::F32 | DType::F64 | DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => dtype,
    }
}

/// Rows per block of a product that is cut into such, by its extents alone: then its sums do not depend on the number of threads.
fn block(kernel: &MatMulKernel, sums: DType) -> Option<usize> {
    let MatMulKernel { m, n, k, .. } = *kernel;
    let work = kernel.batch.iter().product::<usize>() * m * n * k;
    let size = sums.size();
    if !sums.is_float() || work < PARALLEL || k * n * size > SHARED_BYTES {
        return None;
    }
    let fits = |rows: &usize| m % rows == 0 && rows * n * size <= BLOCK_BYTES && 2 * rows <= m;
    // Two threads share an even number of blocks evenly.
    let even = BLOCK_ROWS.rev().filter(fits).find(|rows| (m / rows).is_multiple_of(2));
    even.or_else(|| BLOCK_ROWS.rev().find(fits))
}

/// Rows per block of a product that is merely written, or goes to scratch memory whole, and is too small to be worth cutting finer and sharing
/// what is packed; by its extents alone, as in [`block`].
fn cut_rows(kernel: &MatMulKernel, sums: DType) -> Option<usize> {
    let MatMulKernel { m, n, k, .. } = *kernel;
    let few = (PARALLEL..CUT_FINER).contains(&(m * n * k)) && k * n * sums.size() <= SHARED_BYTES;
    let rows = m.div_ceil(CUTS).next_multiple_of(8);
    (sums.is_float() && few && rows >= CUT_ROWS).then_some(rows)
}

/// Cuts an axis of an affine map's space in two: blocks of so many points.
pub(super) fn cut(affine: &mut Affine, axis: usize, points: usize) {
    if axis < affine.strides.len() {
        let stride = affine.strides[axis];
        affine.strides.insert(axis, stride * points as i64);
    }
}

/// Where the product goes, and what is made of it there; where it comes in blocks of rows, part by part.
fn epilogue(kernel: &MatMulKernel, dtype: DType, rows: Option<usize>) -> (Place, Option<Loops>) {
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
    let Some(rows) = rows else {
        let len = outer.iter().product();
        let loops = Loops::new(&map(&kernel.buffers, outer, block, Buffer { dtype, len, access: Access::Read }));
        return (place, Some(loops));
    };
    block.affines_mut().for_each(|affine| cut(affine, batch, rows));
    if let Some(Instruction { operation: Operation::Load { address, .. }, .. }) = block.instructions.first_mut() {
        // A block's scratch memory holds its own rows only.
        address.affine.strides[..=batch].fill(0);
    }
    let outer: SmallVec<[usize; 6]> = kernel.batch.iter().copied().chain([kernel.m / rows, rows, kernel.n]).collect();
    let len = rows * kernel.n;
    let kernel = map(&kernel.buffers, outer, block, Buffer { dtype, len, access: Access::Read });
    (place, Some(Loops::in_parts(&kernel, batch + 1)))
}

/// A map over the kernel's buffers and scratch memory.
fn map(buffers: &[Buffer], outer: SmallVec<[usize; 6]>, block: Block, scratch: Buffer) -> LoopKernel {
    let buffers = buffers.iter().cloned().chain([scratch]).collect();
    LoopKernel { buffers, outer, inner: SmallVec::new(), stages: vec![Stage::Point(block)] }
}
