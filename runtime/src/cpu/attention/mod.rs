//! Attention: block of rows by block of rows, while their scores are in the cache.
//!
//! A task takes the scores of a block of queries through: a product into scratch memory, a row kernel over it (the softmax, as the strip
//! interpreter runs any other), a product out of it. Scratch memory is a few rows of scores per thread. The cut into blocks depends on
//! extents alone and each task works on its own thread, so that results do not depend on how many there are.
//!
//! - `rows.rs`: blocks of rows, and what happens to them between products; `output.rs`: where products go; `backward.rs`: the gradients;
//!   `seen.rs`: keys that a causal mask leaves out

mod backward;
mod output;
mod rows;
mod seen;

use kiln_ir::DType;
use kiln_ir::kernel::{AttentionKernel, AttentionPass, AttentionResult, KeyLimit, LimitFill, MatrixOperand};
use rayon::prelude::*;
use smallvec::SmallVec;

use super::loops::Loops;
use super::matmul::{Layout, Operand, PARALLEL, wide};
use super::product::{Into, Matrix, multiply};
use super::program::RawBuffer;
use super::scratch::Pool;
use backward::Backward;
use output::Output;
use rows::{Band, Scratch};
use seen::largest;

/// A prepared attention kernel.
pub(super) struct Attention {
    batch: SmallVec<[usize; 6]>,
    queries: usize,
    keys: usize,
    depth: usize,
    width: usize,
    /// Dtypes in which scores, and products with values, are summed.
    scores: DType,
    values: DType,
    /// How many buffers the kernel has.
    buffers: usize,
    query: Operand,
    /// Keys as they are multiplied with queries: column after column where there are several blocks to do so.
    key: Operand,
    value: Operand,
    scratch: Scratch,
    limit: Option<KeyLimit>,
    bands: Vec<Rows>,
    pass: Pass,
    pool: Pool,
}

/// Blocks of rows of one size, with their row kernels.
struct Rows {
    band: Band,
    /// Over all keys.
    all: Loops,
    /// Over those that blocks see, so many each.
    seen: Vec<(usize, Loops)>,
}

impl Rows {
    fn new(kernel: &AttentionKernel, band: Band, scratch: &Scratch, limit: Option<KeyLimit>) -> Rows {
        let all = rows::rows(kernel, band, scratch, kernel.keys);
        let Some(limit) = limit else { return Rows { band, all, seen: Vec::new() } };
        let first = |block: usize| band.first + block * band.rows;
        let mut keys: Vec<usize> =
            (0..band.blocks).map(|block| seen::seen(&limit, first(block), first(block) + band.rows)).collect();
        keys.sort_unstable();
        keys.dedup();
        let unmasked = limit.without(kernel);
        let seen = keys.into_iter().map(|keys| (keys, rows::rows(&unmasked, band, scratch, keys))).collect();
        Rows { band, all, seen }
    }

    fn over(&self, keys: usize) -> &Loops {
        let found = self.seen.iter().find(|(own, _)| *own == keys);
        &found.expect("there is a row kernel for every number of keys that a block sees").1
    }
}

/// Which keys a run takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keys {
    All,
    /// Those that some query of a block sees.
    Seen,
}

enum Pass {
    /// An output for each band.
    Forward(Vec<Output>),
    Backward(Box<Backward>),
}

/// The operands of one run, where they lie.
#[derive(Clone, Copy)]
struct Given<'a> {
    buffers: &'a [RawBuffer],
    query: *const u8,
    key: *const u8,
    value: *const u8,
    /// The backward direction's: the gradient of the result, and keys as they are multiplied with gradients of scores.
    gradient: *const u8,
    rows_of_key: *const u8,
    keys: Keys,
}

// SAFETY: operands are only read while the kernel runs, and tasks store different elements.
unsafe impl Sync for Given<'_> {}

/// One block of rows of one matrix of the batch.
#[derive(Clone, Copy)]
struct Task {
    batch: usize,
    band: usize,
    block: usize,
}

impl Attention {
    pub(super) fn new(kernel: &AttentionKernel) -> Attention {
        let operand = |operand: &MatrixOperand, extents: [usize; 2], dtype: DType, layout: Layout| {
            Operand::new(&kernel.buffers, &kernel.batch, extents, operand, dtype, layout)
        };
        let scratch = Scratch::of(kernel);
        let bands = Band::of(kernel, &scratch);
        let limit = seen::limit(kernel);
        // What every block multiplies by its columns is turned round once.
        let blocks: usize = bands.iter().map(|band| band.blocks).sum();
        let across = if blocks > 1 { Layout::Across } else { Layout::AsItLies };
        let values = match &kernel.pass {
            AttentionPass::Forward(_) => Layout::AsItLies,
            AttentionPass::Backward(_) => across,
        };
        let forward = |result: &AttentionResult| {
            let extents = [kernel.queries, kernel.width];
            bands.iter().map(|&band| Output::new(kernel, result, kernel.values, extents, Some(band))).collect()
        };
        let pass = match &kernel.pass {
            AttentionPass::Forward(result) => Pass::Forward(forward(result)),
            AttentionPass::Backward(backward) => Pass::Backward(Box::new(Backward::new(kernel, backward, &bands))),
        };
        Attention {
            batch: kernel.batch.clone(),
            queries: kernel.queries,
            keys: kernel.keys,
            depth: kernel.depth,
            width: kernel.width,
            scores: wide(kernel.dtype),
            values: wide(kernel.values),
            buffers: kernel.buffers.len(),
            query: operand(&kernel.query, [kernel.queries, kernel.depth], kernel.dtype, Layout::AsItLies),
            key: operand(&kernel.key, [kernel.keys, kernel.depth], kernel.dtype, across),
            value: operand(&kernel.value, [kernel.keys, kernel.width], kernel.values, values),
            bands: bands.iter().map(|&band| Rows::new(kernel, band, &scratch, limit)).collect(),
            limit,
            scratch,
            pass,
            pool: Pool::default(),
        }
    }

    /// Runs the kernel. Safety: as for [`Loops::run`].
    pub(super) unsafe fn run(&self, buffers: &[RawBuffer]) {
        // SAFETY: the caller's.
        unsafe {
            self.query.with(&self.pool, buffers, self.buffers, |query| {
                self.key.with(&self.pool, buffers, self.buffers, |key| {
                    self.value.with(&self.pool, buffers, self.buffers, |value| {
                        let (gradient, rows_of_key, keys) = (std::ptr::null(), std::ptr::null(), Keys::All);
                        let given = Given { buffers, query, key, value, gradient, rows_of_key, keys };
                        match &self.pass {
                            Pass::Forward(outputs) => {
                                let finite = self.limit.is_some() && self.largest(&self.value, given, value).is_some();
                                let keys = if finite { Keys::Seen } else { Keys::All };
                                self.forward(Given { keys, ..given }, outputs);
                            }
                            Pass::Backward(backward) => backward.run(self, given),
                        }
                    });
                });
            });
        }
    }

    /// Runs tasks of `work` multiplications altogether, side by side where that is worth it.
    fn side_by_side<T: Send>(&self, tasks: Vec<T>, work: usize, run: impl Fn(T) + Send + Sync) {
        if work < PARALLEL || tasks.len() < 2 {
            tasks.into_iter().for_each(run);
        } else {
            tasks.into_par_iter().with_max_len(1).for_each(run);
        }
    }

    /// Every block of rows of every matrix of the batch, in order.
    fn tasks(&self) -> Vec<Task> {
        let count = self.batch.iter().product();
        let blocks = self
            .bands
            .iter()
            .enumerate()
            .flat_map(|(band, rows)| (0..rows.band.blocks).map(move |block| Task { batch: 0, band, block }));
        let blocks: Vec<Task> = blocks.collect();
        (0..count).flat_map(|batch| blocks.iter().map(move |task| Task { batch, ..*task })).collect()
    }

    /// How many keys a task takes: the first ones.
    fn keys_of(&self, given: Given<'_>, task: Task) -> usize {
        let first = self.first_row(task);
        match (given.keys, self.limit) {
            (Keys::Seen, Some(limit)) => seen::seen(&limit, first, first + self.bands[task.band].band.rows),
            (Keys::All, _) | (Keys::Seen, None) => self.keys,
        }
    }

    /// The largest magnitude of an operand, or of what lies around it; `None` where one is no finite number.
    unsafe fn largest(&self, operand: &Operand, given: Given<'_>, data: *const u8) -> Option<f64> {
        let dtype = if std::ptr::eq(operand, &self.query) || std::ptr::eq(operand, &self.key) {
            self.scores
        } else {
            self.values
        };
        // SAFETY: the caller's; an operand that is read where it lies has a whole buffer, another one its scratch memory.
        unsafe {
            match operand.place.buffer {
                Some(buffer) => largest(given.buffers[buffer].data, given.buffers[buffer].bytes, dtype),
                None => largest(data, operand.bytes, dtype),
            }
        }
    }

    /// Bytes of the scratch matrices of a block, one after another.
    fn matrices(&self, band: Band) -> SmallVec<[usize; 4]> {
        let bytes = |dtype: DType| (band.rows * self.keys * dtype.size()).next_multiple_of(64);
        self.scratch.matrices.iter().map(|&(dtype, _)| bytes(dtype)).collect()
    }

    unsafe fn forward(&self, given: Given<'_>, outputs: &[Output]) {
        let work = self.batch.iter().product::<usize>() * self.queries * self.keys * (self.depth + self.width);
        self.side_by_side(self.tasks(), work, |task| {
            let band = self.bands[task.band].band;
            let sizes = self.matrices(band);
            let product = band.rows * self.width * self.values.size();
            self.pool.with(sizes.iter().sum::<usize>() + product, |memory| {
                // SAFETY: the caller's; the scratch memory holds the block's matrices and its product.
                unsafe {
                    let matrices = split(memory, &sizes);
                    self.block(given, task, &matrices);
                    let last = RawBuffer { data: memory.data.add(sizes.iter().sum()), bytes: product };
                    let output = &outputs[task.band];
                    let to = self.place(given, output, last.data, task, self.values, self.width);
                    let value = self.value.place.matrix(given.value, &self.batch, task.batch, self.values);
                    let keys = self.keys_of(given, task);
                    let factors = Matrix::dense(matrices[self.scratch.factors].data, keys);
                    multiply(self.values, [band.rows, self.width, keys], to, Into::Fresh, factors, value);
                    output.finish(given.buffers, last, self.part(task));
                }
            });
        });
    }

    /// The number of a task among the parts of its band's kernels.
    fn part(&self, task: Task) -> usize {
        task.batch * self.bands[task.band].band.blocks + task.block
    }

    fn first_row(&self, task: Task) -> usize {
        let band = self.bands[task.band].band;
        band.first + task.block * band.rows
    }

    /// Makes the scores of a task and runs its row kernel over them.
    unsafe fn block(&self, given: Given<'_>, task: Task, matrices: &[RawBuffer]) {
        // SAFETY: the caller's.
        unsafe {
            let query = self.rows_of(&self.query, given.query, task, self.scores);
            let key = self.key.place.matrix(given.key, &self.batch, task.batch, self.scores);
            let rows = &self.bands[task.band];
            let keys = self.keys_of(given, task);
            let scores = Matrix::dense(matrices[self.scratch.scores].data, keys);
            let extents = [rows.band.rows, keys, self.depth];
            multiply(self.scores, extents, scores, Into::Fresh, query, key.transposed());
            let own = given.buffers[..self.buffers].iter();
            let bound: SmallVec<[RawBuffer; 16]> = own.chain(matrices).copied().collect();
            match (given.keys, self.limit) {
                (Keys::Seen, Some(limit)) => {
                    if limit.fill == LimitFill::Scores {
                        for row in 0..rows.band.rows {
                            let masked = limit.masked_from(self.first_row(task) + row).min(keys)..keys;
                            scores.rows_after(row, self.scores).fill_lowest(masked, self.scores);
                        }
                    }
                    rows.over(keys).run_part(&bound, self.part(task));
                }
                (Keys::All, _) | (Keys::Seen, None) => rows.all.run_part(&bound, self.part(task)),
            }
        }
    }

    /// The rows of a task in an operand over queries.
    unsafe fn rows_of(&self, operand: &Operand, data: *const u8, task: Task, dtype: DType) -> Matrix {
        // SAFETY: the caller's; the rows are inside the matrix.
        unsafe {
            let matrix = operand.place.matrix(data, &self.batch, task.batch, dtype);
            matrix.rows_after(self.first_row(task), dtype)
        }
    }

    /// Where a product of a task goes: to its rows of the result, or to scratch memory.
    unsafe fn place(
        &self,
        given: Given<'_>,
        output: &Output,
        scratch: *mut u8,
        task: Task,
        dtype: DType,
        columns: usize,
    ) -> Matrix {
        match output {
            // SAFETY: the caller's; the rows are inside the result.
            Output::Direct(place) => unsafe {
                let result = given.buffers[place.buffer.unwrap_or(0)].data;
                place.matrix(result, &self.batch, task.batch, dtype).rows_after(self.first_row(task), dtype)
            },
            Output::Epilogue(_) => Matrix::dense(scratch, columns),
        }
    }
}

/// Cuts memory into pieces of these sizes.
unsafe fn split(memory: RawBuffer, sizes: &[usize]) -> SmallVec<[RawBuffer; 4]> {
    let mut offset = 0;
    sizes
        .iter()
        .map(|&bytes| {
            // SAFETY: the caller's: the sizes sum up to no more than the memory.
            let data = unsafe { memory.data.add(offset) };
            offset += bytes;
            RawBuffer { data, bytes }
        })
        .collect()
}
