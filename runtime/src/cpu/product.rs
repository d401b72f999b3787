//! Products of matrices that lie anywhere in memory, on the calling thread.

use gemm::Parallelism;
use kiln_ir::DType;

/// A matrix in memory: its first element, and elements from row to row and from column to column.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub(super) data: *mut u8,
    pub(super) row: isize,
    pub(super) column: isize,
}

impl Matrix {
    /// Row after row.
    pub(super) fn dense(data: *mut u8, columns: usize) -> Matrix {
        Matrix { data, row: columns as isize, column: 1 }
    }

    /// The matrix without the rows before `row`.
    ///
    /// # Safety
    ///
    /// It has that many rows.
    pub(super) unsafe fn rows_after(self, row: usize, dtype: DType) -> Matrix {
        let bytes = row as isize * self.row * dtype.size() as isize;
        // SAFETY: the caller's.
        Matrix { data: unsafe { self.data.offset(bytes) }, ..self }
    }

    /// Copies another matrix of these extents.
    ///
    /// # Safety
    ///
    /// Both have them, are of `dtype`, and lie apart; nobody else touches this one.
    pub(super) unsafe fn copy_from(self, from: Matrix, [rows, columns]: [usize; 2], dtype: DType) {
        let size = dtype.size();
        let at = |matrix: Matrix, row: usize, column: usize| {
            let element = row as isize * matrix.row + column as isize * matrix.column;
            matrix.data.wrapping_offset(element * size as isize)
        };
        for row in 0..rows {
            for column in 0..columns {
                // SAFETY: the caller's.
                unsafe { std::ptr::copy_nonoverlapping(at(from, row, column), at(self, row, column), size) };
            }
        }
    }

    /// Sets some rows to 0.
    ///
    /// # Safety
    ///
    /// The matrix has them, of so many columns of `dtype`, and nobody else touches them.
    pub(super) unsafe fn clear(self, rows: std::ops::Range<usize>, columns: usize, dtype: DType) {
        let size = dtype.size();
        for row in rows {
            for column in 0..columns {
                let element = row as isize * self.row + column as isize * self.column;
                // SAFETY: the caller's; bytes of 0 are the number 0.
                unsafe { std::ptr::write_bytes(self.data.wrapping_offset(element * size as isize), 0, size) };
            }
        }
    }

    /// Sets some columns of the first row of a dense matrix to -inf.
    ///
    /// # Safety
    ///
    /// The matrix has them, of `dtype`, `f32` or `f64`, one after another, and nobody else touches them.
    pub(super) unsafe fn fill_lowest(self, columns: std::ops::Range<usize>, dtype: DType) {
        // SAFETY: the caller's.
        unsafe {
            match dtype {
                DType::F64 => {
                    let start = self.data.cast::<f64>().add(columns.start);
                    std::slice::from_raw_parts_mut(start, columns.len()).fill(f64::NEG_INFINITY);
                }
                DType::F32 => {
                    let start = self.data.cast::<f32>().add(columns.start);
                    std::slice::from_raw_parts_mut(start, columns.len()).fill(f32::NEG_INFINITY);
                }
                DType::F16
                | DType::BF16
                | DType::I8
                | DType::U8
                | DType::I32
                | DType::U32
                | DType::I64
                | DType::Bool => unreachable!("16-bit floats are widened, and nothing else is attended to"),
            }
        }
    }

    pub(super) fn transposed(self) -> Matrix {
        Matrix { row: self.column, column: self.row, ..self }
    }
}

/// What a product does to what is there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Into {
    /// It takes its place, unread.
    Fresh,
    /// It is added.
    Sum,
}

/// `to = from x by`, or `to += from x by`, for `[m, k]` and `[k, n]`.
///
/// # Safety
///
/// The matrices have these extents and are of `dtype`, `f32` or `f64`; nobody else touches `to`, nobody writes to the others.
pub(super) unsafe fn multiply(dtype: DType, [m, n, k]: [usize; 3], to: Matrix, into: Into, from: Matrix, by: Matrix) {
    macro_rules! through_gemm {
        ($T:ident) => {
            // SAFETY: the caller's. Where the product takes the place, nothing is read from there.
            unsafe {
                gemm::gemm::<$T>(
                    m,
                    n,
                    k,
                    to.data.cast::<$T>(),
                    to.column,
                    to.row,
                    into == Into::Sum,
                    from.data.cast::<$T>().cast_const(),
                    from.column,
                    from.row,
                    by.data.cast::<$T>().cast_const(),
                    by.column,
                    by.row,
                    if into == Into::Sum { 1.0 } else { 0.0 },
                    1.0,
                    false,
                    false,
                    false,
                    Parallelism::None,
                )
            }
        };
    }
    match dtype {
        DType::F32 => through_gemm!(f32),
        DType::F64 => through_gemm!(f64),
        DType::F16 | DType::BF16 | DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => {
            unreachable!("16-bit floats are widened, and nothing else is attended to")
        }
    }
}

/// `to += from`, element by element.
///
/// # Safety
///
/// Both hold that many elements of `dtype`, `f32` or `f64`, apart from each other; nobody else touches them.
pub(super) unsafe fn add(dtype: DType, count: usize, to: *mut u8, from: *const u8) {
    macro_rules! add {
        ($T:ident) => {{
            // SAFETY: the caller's.
            let (to, from) = unsafe {
                (
                    std::slice::from_raw_parts_mut(to.cast::<$T>(), count),
                    std::slice::from_raw_parts(from.cast::<$T>(), count),
                )
            };
            to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        }};
    }
    match dtype {
        DType::F32 => add!(f32),
        DType::F64 => add!(f64),
        DType::F16 | DType::BF16 | DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => {
            unreachable!("16-bit floats are widened, and nothing else is attended to")
        }
    }
}
