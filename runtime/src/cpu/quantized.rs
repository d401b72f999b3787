//! Products of 8-bit integer matrices with sums in `i32`.
//!
//! Both operands are widened to 16 bits once, the right one turned over, so that a sum runs along two contiguous rows: of 16-bit numbers the
//! machine multiplies and adds pairs in one instruction. Four columns are summed at a time, so that a row of the left operand is loaded once
//! for them. Sums wrap as `i32` does, in any order the same.

use gemm::Parallelism;
use rayon::prelude::*;

use super::program::RawBuffer;
use super::scratch::Pool;
use super::vmath::Isa;
use super::vmath::Level;

/// Rows of the left operand are padded to a multiple of this many numbers.
const LANES: usize = 32;
/// Columns that are summed together.
const COLUMNS: usize = 4;
/// Rows that a thread takes at a time.
const ROWS: usize = 16;

/// `product = lhs * rhs` for dense row-major `[m, k]` and `[k, n]`. The widened operands lie in memory of `pool`.
pub(super) fn multiply<T: Copy + Into<i16> + Sync>(
    lhs: &[T],
    rhs: &[T],
    product: &mut [i32],
    [m, n, k]: [usize; 3],
    parallelism: Parallelism,
    pool: &Pool,
) {
    if m * n == 0 {
        return;
    }
    let padded = k.next_multiple_of(LANES).max(LANES);
    pool.with(m * padded * 2, |rows| {
        pool.with(n * padded * 2, |columns| {
            // SAFETY: each is memory of its own, of at least so many bytes, aligned for any number, and lent until the end of this; it was
            // initialised, if with anything.
            let (rows, columns) = unsafe {
                let numbers =
                    |memory: RawBuffer, count| std::slice::from_raw_parts_mut(memory.data.cast::<i16>(), count);
                (numbers(rows, m * padded), numbers(columns, n * padded))
            };
            widen(lhs, rows, padded, |row, column| row * k + column, k);
            widen(rhs, columns, padded, |column, row| row * n + column, k);
            sum(rows, columns, product, n, padded, parallelism);
        });
    });
}

/// The sums of each row with every column.
fn sum(rows: &[i16], columns: &[i16], product: &mut [i32], n: usize, padded: usize, parallelism: Parallelism) {
    let isa = Isa::best();
    let some_rows = |(index, product): (usize, &mut [i32])| {
        for (offset, product) in product.chunks_exact_mut(n).enumerate() {
            let row = index * ROWS + offset;
            one_row(isa, &rows[row * padded..][..padded], columns, product);
        }
    };
    match parallelism {
        Parallelism::None => product.chunks_mut(ROWS * n).enumerate().for_each(some_rows),
        Parallelism::Rayon(_) => product.par_chunks_mut(ROWS * n).enumerate().for_each(some_rows),
    }
}

/// Rows of `k` numbers, each padded with zeros to `padded`.
fn widen<T: Copy + Into<i16>>(
    from: &[T],
    rows: &mut [i16],
    padded: usize,
    at: impl Fn(usize, usize) -> usize,
    k: usize,
) {
    for (index, row) in rows.chunks_exact_mut(padded).enumerate() {
        let (numbers, padding) = row.split_at_mut(k);
        numbers.iter_mut().enumerate().for_each(|(inner, number)| *number = from[at(index, inner)].into());
        padding.fill(0);
    }
}

/// A row of the product: the sums of one row with every column.
fn one_row(isa: Isa, row: &[i16], columns: &[i16], product: &mut [i32]) {
    match isa.0 {
        Level::Baseline => sums(row, columns, product),
        // SAFETY: an `Isa` is only had by asking the machine, which has these instructions.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { sums_avx2(row, columns, product) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { sums_avx512(row, columns, product) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn sums_avx2(row: &[i16], columns: &[i16], product: &mut [i32]) {
    sums(row, columns, product);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn sums_avx512(row: &[i16], columns: &[i16], product: &mut [i32]) {
    sums(row, columns, product);
}

#[inline(always)]
fn sums(row: &[i16], columns: &[i16], product: &mut [i32]) {
    let length = row.len();
    let mut whole = product.chunks_exact_mut(COLUMNS);
    let mut groups = columns.chunks_exact(COLUMNS * length);
    for (product, group) in whole.by_ref().zip(groups.by_ref()) {
        let (first, rest) = group.split_at(length);
        let (second, rest) = rest.split_at(length);
        let (third, fourth) = rest.split_at(length);
        product.copy_from_slice(&[dot(row, first), dot(row, second), dot(row, third), dot(row, fourth)]);
    }
    for (sum, column) in whole.into_remainder().iter_mut().zip(groups.remainder().chunks_exact(length)) {
        *sum = dot(row, column);
    }
}

#[inline(always)]
fn dot(a: &[i16], b: &[i16]) -> i32 {
    let products = a.iter().zip(b).map(|(&a, &b)| i32::from(a) * i32::from(b));
    products.fold(0, i32::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the definition, in i64.
    fn expected(lhs: &[i8], rhs: &[i8], [m, n, k]: [usize; 3]) -> Vec<i32> {
        let sum =
            |i: usize, j: usize| (0..k).map(|t| i64::from(lhs[i * k + t]) * i64::from(rhs[t * n + j])).sum::<i64>();
        (0..m * n).map(|at| sum(at / n, at % n) as i32).collect()
    }

    fn numbers(count: usize, seed: u32) -> Vec<i8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8 as i8
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn products_are_exact_for_every_remainder() {
        // Memory that has held other numbers serves as well as fresh memory.
        let pool = Pool::default();
        for (m, n, k) in [(1, 1, 1), (3, 5, 31), (16, 4, 32), (17, 9, 33), (2, 7, 0), (5, 3, 100), (40, 33, 65)] {
            let (lhs, rhs) = (numbers(m * k, 1), numbers(k * n, 2));
            for parallelism in [Parallelism::None, Parallelism::Rayon(0)] {
                let mut product = vec![7; m * n];
                multiply(&lhs, &rhs, &mut product, [m, n, k], parallelism, &pool);
                assert_eq!(product, expected(&lhs, &rhs, [m, n, k]), "{m} {n} {k}");
            }
        }
    }

    #[test]
    fn the_largest_products_do_not_overflow_where_8_bits_would() {
        let ((m, n, k), pool) = ((2, 3, 1000), Pool::default());
        let mut product = vec![0; m * n];
        multiply(&vec![-128i8; m * k], &vec![-128i8; k * n], &mut product, [m, n, k], Parallelism::None, &pool);
        assert_eq!(product, vec![16384 * 1000; m * n]);
        multiply(&vec![255u8; m * k], &vec![255u8; k * n], &mut product, [m, n, k], Parallelism::None, &pool);
        assert_eq!(product, vec![65025 * 1000; m * n]);
    }
}
