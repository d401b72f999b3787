//! The gradients of attention: scores are made again block of rows by block of rows, each of which adds to the gradients of all keys and
//! values, and makes its own rows of the queries'.
//!
//! Rows of one matrix of the batch are walked in order by one task. Where the batch is small, they are cut into a few pieces, each with sums
//! of its own, which are added up in order: the cut depends on extents alone.

use std::ops::Range;

use kiln_ir::DType;
use kiln_ir::kernel::{AttentionGradient, AttentionKernel, AttentionResult, Operation, Reg};

use super::super::matmul::{Layout, Operand, wide};
use super::super::product::{Into, Matrix, add, multiply};
use super::super::program::RawBuffer;
use super::output::Output;
use super::rows::Band;
use super::seen::largest;
use super::{Attention, Given, Keys, Task, split};

/// Tasks that keep a machine busy, at least.
const TASKS: usize = 8;

/// What the backward direction has beside the forward one.
pub(super) struct Backward {
    gradient: Operand,
    /// Keys, row after row.
    key_rows: Operand,
    /// Whether gradients go through the softmax.
    through: Through,
    /// The queries' output for each band.
    query: Option<Vec<Output>>,
    key: Option<Sums>,
    value: Option<Sums>,
    /// Pieces of the blocks of each matrix of the batch.
    pieces: usize,
    /// Buffers of the rows' maxima and sums, with their dtypes, where they are loaded as they are.
    statistics: [Option<(usize, DType)>; 2],
    /// Half the largest number of the values' dtype.
    range: f64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Through {
    Softmax,
    ValuesOnly,
}

/// A result over keys, which every block of rows adds to.
struct Sums {
    output: Output,
    dtype: DType,
    columns: usize,
}

impl Backward {
    pub(super) fn new(kernel: &AttentionKernel, backward: &AttentionGradient, bands: &[Band]) -> Backward {
        let gradient = Operand::new(
            &kernel.buffers,
            &kernel.batch,
            [kernel.queries, kernel.width],
            &backward.gradient,
            kernel.values,
            Layout::AsItLies,
        );
        let extents = [kernel.keys, kernel.depth];
        let key_rows =
            Operand::new(&kernel.buffers, &kernel.batch, extents, &kernel.key, kernel.dtype, Layout::AsItLies);
        let over_queries = |result: &AttentionResult| {
            let extents = [kernel.queries, kernel.depth];
            bands.iter().map(|&band| Output::new(kernel, result, kernel.dtype, extents, Some(band))).collect()
        };
        let over_keys = |result: &AttentionResult, dtype: DType, columns: usize| Sums {
            output: Output::new(kernel, result, dtype, [kernel.keys, columns], None),
            dtype: wide(dtype),
            columns,
        };
        let through = backward.through.as_ref();
        let key = through.and_then(|through| through.key.as_ref());
        let key = key.map(|result| over_keys(result, kernel.dtype, kernel.depth));
        let value = backward.value.as_ref().map(|result| over_keys(result, kernel.values, kernel.width));
        let blocks: usize = bands.iter().map(|band| band.blocks).sum();
        let count = kernel.batch.iter().product::<usize>().max(1);
        // Without sums to share, every block may go alone.
        let pieces = if key.is_none() && value.is_none() { blocks } else { TASKS.div_ceil(count).min(blocks) };
        Backward {
            gradient,
            key_rows,
            through: if through.is_some() { Through::Softmax } else { Through::ValuesOnly },
            query: through.and_then(|through| through.query.as_ref()).map(over_queries),
            key,
            value,
            pieces: pieces.max(1),
            statistics: [kernel.maximum, kernel.sum].map(|reg| loaded(kernel, reg)),
            range: largest_number(kernel.values) / 2.0,
        }
    }

    /// Runs the kernel. Safety: as for [`Attention::run`].
    pub(super) unsafe fn run(&self, kernel: &Attention, given: Given<'_>) {
        // SAFETY: the caller's.
        unsafe {
            self.gradient.with(&kernel.pool, given.buffers, kernel.buffers, |gradient| {
                self.key_rows.with(&kernel.pool, given.buffers, kernel.buffers, |rows_of_key| {
                    let given = Given { gradient, rows_of_key, ..given };
                    let keys = if self.may_leave_out(kernel, given) { Keys::Seen } else { Keys::All };
                    self.run_on(kernel, Given { keys, ..given });
                });
            });
        }
    }

    /// Whether keys that a block does not see may be left out: all that their zeros would be multiplied with is finite.
    unsafe fn may_leave_out(&self, kernel: &Attention, given: Given<'_>) -> bool {
        if kernel.limit.is_none() {
            return false;
        }
        // SAFETY: the caller's.
        unsafe {
            let of = |operand: &Operand, data: *const u8| kernel.largest(operand, given, data);
            let statistics = self.statistics.iter().all(|statistic| {
                statistic.is_some_and(|(buffer, dtype)| {
                    largest(given.buffers[buffer].data, given.buffers[buffer].bytes, dtype).is_some()
                })
            });
            let scores = of(&kernel.query, given.query).is_some() && of(&kernel.key, given.key).is_some();
            let products = of(&kernel.value, given.value).zip(of(&self.gradient, given.gradient));
            // No sum of so many products leaves the range of the dtype, in which they are rounded.
            let bounded = products.is_some_and(|(a, b)| a * b * (kernel.width as f64) < self.range);
            statistics && scores && bounded
        }
    }

    unsafe fn run_on(&self, kernel: &Attention, given: Given<'_>) {
        let count: usize = kernel.batch.iter().product();
        let tasks = kernel.tasks();
        let blocks = tasks.len() / count.max(1);
        let work = count * kernel.queries * kernel.keys * (3 * kernel.depth + 2 * kernel.width);
        let sizes = [&self.key, &self.value].map(|sums| sums.as_ref().map_or(0, |sums| sums.bytes(kernel)));
        let own: usize = sizes.iter().sum();
        let pieces = |run: &(dyn Fn(usize, usize, Range<usize>) + Sync)| {
            let all = (0..count).flat_map(|batch| (0..self.pieces).map(move |piece| (batch, piece))).collect();
            kernel.side_by_side(all, work, |(batch, piece)| {
                let cut = |piece: usize| batch * blocks + piece * blocks / self.pieces;
                run(batch, piece, cut(piece)..cut(piece + 1));
            });
        };
        // SAFETY: the caller's; sums hold a key's and a value's gradient each, for every piece where there are several.
        unsafe {
            if self.pieces == 1 {
                pieces(&|batch, _, range| {
                    kernel.pool.with(own, |memory| {
                        let sums = split(memory, &sizes);
                        let to = [(&self.key, sums[0]), (&self.value, sums[1])];
                        let to =
                            to.map(|(result, sums)| result.as_ref().map(|own| own.place(kernel, given, sums, batch)));
                        self.walk(kernel, given, &tasks[range], to);
                        for (result, sums) in [(&self.key, sums[0]), (&self.value, sums[1])] {
                            result.iter().for_each(|result| result.output.finish(given.buffers, sums, batch));
                        }
                    });
                });
                return;
            }
            kernel.pool.with(own * count * self.pieces, |memory| {
                let all = Shared(memory);
                let sums = |batch: usize, piece: usize| {
                    let offset = (batch * self.pieces + piece) * own;
                    split(RawBuffer { data: all.get().data.add(offset), bytes: own }, &sizes)
                };
                pieces(&|batch, piece, range| {
                    let sums = sums(batch, piece);
                    let to = [(&self.key, sums[0]), (&self.value, sums[1])];
                    let to = to.map(|(result, sums)| result.as_ref().map(|own| Matrix::dense(sums.data, own.columns)));
                    self.walk(kernel, given, &tasks[range], to);
                });
                kernel.side_by_side((0..count).collect(), work, |batch| {
                    for (index, result) in [&self.key, &self.value].into_iter().enumerate() {
                        let Some(result) = result else { continue };
                        let first = sums(batch, 0)[index];
                        for piece in 1..self.pieces {
                            let more = sums(batch, piece)[index];
                            add(result.dtype, kernel.keys * result.columns, first.data, more.data);
                        }
                        result.settle(kernel, given, first, batch);
                    }
                });
            });
        }
    }

    /// Walks blocks of rows of one matrix of the batch, adding to the gradients of keys and values.
    unsafe fn walk(&self, kernel: &Attention, given: Given<'_>, tasks: &[Task], to: [Option<Matrix>; 2]) {
        for (index, &task) in tasks.iter().enumerate() {
            let into = if index == 0 { Into::Fresh } else { Into::Sum };
            let band = kernel.bands[task.band].band;
            let sizes = kernel.matrices(band);
            let product = band.rows * kernel.depth * kernel.scores.size();
            kernel.pool.with(sizes.iter().sum::<usize>() + product, |memory| {
                // SAFETY: the caller's; the scratch memory holds the block's matrices and its product.
                unsafe {
                    let matrices = split(memory, &sizes);
                    let last = RawBuffer { data: memory.data.add(sizes.iter().sum()), bytes: product };
                    self.block(kernel, given, task, &matrices, last, to, into);
                }
            });
        }
    }

    #[allow(clippy::too_many_arguments)]
    unsafe fn block(
        &self,
        kernel: &Attention,
        given: Given<'_>,
        task: Task,
        matrices: &[RawBuffer],
        last: RawBuffer,
        [to_key, to_value]: [Option<Matrix>; 2],
        into: Into,
    ) {
        let Attention { depth, width, scores, values, scratch, .. } = kernel;
        let rows = kernel.bands[task.band].band.rows;
        let keys = &kernel.keys_of(given, task);
        let matrix = |number: usize| Matrix::dense(matrices[number].data, *keys);
        // SAFETY: the caller's.
        unsafe {
            let gradient = kernel.rows_of(&self.gradient, given.gradient, task, *values);
            if self.through == Through::Softmax {
                let value = kernel.value.place.matrix(given.value, &kernel.batch, task.batch, *values);
                let of_factors = matrix(scratch.of_factors);
                multiply(*values, [rows, *keys, *width], of_factors, Into::Fresh, gradient, value.transposed());
            }
            kernel.block(given, task, matrices);
            if into == Into::Fresh {
                // What this block does not see, later ones may.
                let rest = *keys..kernel.keys;
                to_value.iter().for_each(|to| to.clear(rest.clone(), *width, *values));
                to_key.iter().for_each(|to| to.clear(rest.clone(), *depth, *scores));
            }
            if let Some(to) = to_value {
                let factors = matrix(scratch.factors).transposed();
                multiply(*values, [*keys, *width, rows], to, into, factors, gradient);
            }
            if let Some(to) = to_key {
                let query = kernel.rows_of(&kernel.query, given.query, task, *scores);
                let of_scores = matrix(scratch.of_scores).transposed();
                multiply(*scores, [*keys, *depth, rows], to, into, of_scores, query);
            }
            if let Some(outputs) = &self.query {
                let output = &outputs[task.band];
                let to = kernel.place(given, output, last.data, task, *scores, *depth);
                let key = self.key_rows.place.matrix(given.rows_of_key, &kernel.batch, task.batch, *scores);
                multiply(*scores, [rows, *depth, *keys], to, Into::Fresh, matrix(scratch.of_scores), key);
                output.finish(given.buffers, last, kernel.part(task));
            }
        }
    }
}

/// The buffer that a register of the rows is loaded from.
fn loaded(kernel: &AttentionKernel, reg: Reg) -> Option<(usize, DType)> {
    let load = kernel.row.instructions.iter().find(|instruction| instruction.result == reg)?;
    match &load.operation {
        Operation::Load { buffer, .. } => Some((buffer.0 as usize, load.dtype)),
        _ => None,
    }
}

fn largest_number(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => half::f16::MAX.to_f64(),
        DType::BF16 => half::bf16::MAX.to_f64(),
        DType::F32 => f64::from(f32::MAX),
        DType::F64 => f64::MAX,
        DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => 0.0,
    }
}

impl Sums {
    fn bytes(&self, kernel: &Attention) -> usize {
        (kernel.keys * self.columns * self.dtype.size()).next_multiple_of(64)
    }

    /// Where sums are made: in the result itself, or in scratch memory.
    unsafe fn place(&self, kernel: &Attention, given: Given<'_>, scratch: RawBuffer, batch: usize) -> Matrix {
        match &self.output {
            // SAFETY: the caller's.
            Output::Direct(place) => unsafe {
                place.matrix(given.buffers[place.buffer.unwrap_or(0)].data, &kernel.batch, batch, self.dtype)
            },
            Output::Epilogue(_) => Matrix::dense(scratch.data, self.columns),
        }
    }

    /// Brings sums in scratch memory to the result.
    unsafe fn settle(&self, kernel: &Attention, given: Given<'_>, sums: RawBuffer, batch: usize) {
        // SAFETY: the caller's; the result has the sums' extents.
        unsafe {
            match &self.output {
                Output::Direct(_) => {
                    let to = self.place(kernel, given, sums, batch);
                    to.copy_from(Matrix::dense(sums.data, self.columns), [kernel.keys, self.columns], self.dtype);
                }
                Output::Epilogue(_) => self.output.finish(given.buffers, sums, batch),
            }
        }
    }
}

/// Memory that tasks write different parts of.
struct Shared(RawBuffer);

impl Shared {
    fn get(&self) -> &RawBuffer {
        &self.0
    }
}
