//! From memory into lanes and back: contiguous, strided, gathered; widening the 16-bit floats on the way.
//!
//! What is moved is a rectangle: rows of columns, each with a stride in elements of memory; lanes are dense, row after row.

use std::marker::PhantomData;

use kiln_ir::DType;

use super::half_floats::{bf16_bits, bf16_value, f16_bits, f16_value};
use super::{BLOCK, versions};
use crate::cpu::vmath::{Isa, Level};

/// A rectangle of elements in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cpu) struct Shape {
    pub(in crate::cpu) rows: usize,
    pub(in crate::cpu) row_stride: isize,
    pub(in crate::cpu) columns: usize,
    pub(in crate::cpu) column_stride: isize,
}

impl Shape {
    /// One row.
    pub(in crate::cpu) fn row(columns: usize, column_stride: isize) -> Shape {
        Shape { rows: 1, row_stride: 0, columns, column_stride }
    }

    /// The number of lanes.
    pub(in crate::cpu) fn lanes(&self) -> usize {
        self.rows * self.columns
    }

    /// The same elements in the same order as one row, where strides allow.
    pub(in crate::cpu) fn merged(self) -> Shape {
        if self.rows == 1 {
            return self;
        }
        if self.columns == 1 {
            return Shape::row(self.rows, self.row_stride);
        }
        if self.row_stride == self.columns as isize * self.column_stride {
            return Shape::row(self.rows * self.columns, self.column_stride);
        }
        self
    }

    /// Whether memory holds the lanes densely, in their order.
    pub(in crate::cpu) fn dense(self) -> bool {
        let merged = self.merged();
        merged.rows == 1 && (merged.column_stride == 1 || merged.columns == 1)
    }
}

/// Reads a rectangle into lanes. Safety: all of its elements and lanes are there.
pub(in crate::cpu) type LoadLoop = unsafe fn(*const u8, Shape, *mut u8);
/// Writes lanes to a rectangle. Safety: as [`LoadLoop`].
pub(in crate::cpu) type StoreLoop = unsafe fn(*const u8, Shape, *mut u8);
/// Reads elements at offsets into lanes. Safety: all of them are there.
pub(in crate::cpu) type GatherLoop = unsafe fn(*const u8, &[i64], *mut u8);

/// How elements of a dtype move.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Mover {
    pub(in crate::cpu) load: LoadLoop,
    pub(in crate::cpu) store: StoreLoop,
    /// As `store`, past the caches; for elements that are their lanes.
    pub(in crate::cpu) stream: StoreLoop,
    pub(in crate::cpu) gather: GatherLoop,
    /// Bytes of an element in memory.
    pub(in crate::cpu) element: usize,
    /// Bytes of a lane.
    pub(in crate::cpu) lane: usize,
}

impl Mover {
    /// Whether memory may be read as lanes without a copy.
    pub(in crate::cpu) fn same_bits(&self) -> bool {
        self.element == self.lane
    }
}

/// An element in memory and its lane.
trait Element {
    type Stored: Copy;
    type Lane: Copy;
    fn load(stored: Self::Stored) -> Self::Lane;
    fn store(lane: Self::Lane) -> Self::Stored;

    /// `SQUARE` columns of `SQUARE` neighbours each, into `SQUARE` rows. Safety: all of them are there.
    #[inline(always)]
    unsafe fn square(memory: *const Self::Stored, column_stride: isize, lanes: *mut Self::Lane, row_lanes: usize) {
        for i in 0..SQUARE {
            for j in 0..SQUARE {
                // SAFETY: the caller's square.
                unsafe {
                    *lanes.add(i * row_lanes + j) = Self::load(*memory.offset(j as isize * column_stride + i as isize));
                }
            }
        }
    }
}

struct Plain<T>(PhantomData<T>);
struct Half;
struct Brain;
/// 32-bit elements on a machine with AVX2.
#[cfg(target_arch = "x86_64")]
struct Words;

#[cfg(target_arch = "x86_64")]
impl Element for Words {
    type Stored = u32;
    type Lane = u32;
    #[inline(always)]
    fn load(stored: u32) -> u32 {
        stored
    }
    #[inline(always)]
    fn store(lane: u32) -> u32 {
        lane
    }
    #[inline(always)]
    unsafe fn square(memory: *const u32, column_stride: isize, lanes: *mut u32, row_lanes: usize) {
        // SAFETY: the caller's square; only `load_words_avx2` is compiled of this.
        unsafe { square_words(memory, column_stride, lanes, row_lanes) }
    }
}

impl<T: Copy> Element for Plain<T> {
    type Stored = T;
    type Lane = T;
    #[inline(always)]
    fn load(stored: T) -> T {
        stored
    }
    #[inline(always)]
    fn store(lane: T) -> T {
        lane
    }
}

impl Element for Half {
    type Stored = u16;
    type Lane = f32;
    #[inline(always)]
    fn load(stored: u16) -> f32 {
        f16_value(stored)
    }
    #[inline(always)]
    fn store(lane: f32) -> u16 {
        f16_bits(lane)
    }
}

impl Element for Brain {
    type Stored = u16;
    type Lane = f32;
    #[inline(always)]
    fn load(stored: u16) -> f32 {
        bf16_value(stored)
    }
    #[inline(always)]
    fn store(lane: f32) -> u16 {
        bf16_bits(lane)
    }
}

versions! { fn load_loop<E: Element>(memory: *const u8, shape: Shape, lanes: *mut u8) = load as LoadLoop; }
versions! { fn store_loop<E: Element>(lanes: *const u8, shape: Shape, memory: *mut u8) = store as StoreLoop; }
versions! { fn gather_loop<E: Element>(memory: *const u8, offsets: &[i64], lanes: *mut u8) = gather as GatherLoop; }

/// Side of the squares in which a transposed rectangle is read: its lines of memory stay in cache until all of them is used.
const SQUARE: usize = 8;

#[inline(always)]
unsafe fn load<E: Element>(memory: *const u8, shape: Shape, lanes: *mut u8) {
    let (memory, lanes) = (memory.cast::<E::Stored>(), lanes.cast::<E::Lane>());
    let shape = shape.merged();
    // SAFETY: the caller vouches for every element of the rectangle and for every lane.
    unsafe {
        if shape.rows >= SQUARE && shape.columns >= SQUARE && shape.row_stride == 1 {
            return load_transposed::<E>(memory, shape, lanes);
        }
        for row in 0..shape.rows {
            let memory = memory.offset(row as isize * shape.row_stride);
            let lanes = std::slice::from_raw_parts_mut(lanes.add(row * shape.columns), shape.columns);
            match shape.column_stride {
                1 => {
                    let memory = std::slice::from_raw_parts(memory, shape.columns);
                    for (lane, &stored) in lanes.iter_mut().zip(memory) {
                        *lane = E::load(stored);
                    }
                }
                0 => lanes.fill(E::load(*memory)),
                stride => {
                    for (column, lane) in lanes.iter_mut().enumerate() {
                        *lane = E::load(*memory.offset(column as isize * stride));
                    }
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn load_transposed<E: Element>(memory: *const E::Stored, shape: Shape, lanes: *mut E::Lane) {
    for column in (0..shape.columns).step_by(SQUARE) {
        let columns = SQUARE.min(shape.columns - column);
        for row in (0..shape.rows).step_by(SQUARE) {
            let rows = SQUARE.min(shape.rows - row);
            // SAFETY: a part of the rectangle.
            unsafe {
                let memory = memory.offset(column as isize * shape.column_stride + row as isize);
                let lanes = lanes.add(row * shape.columns + column);
                if rows == SQUARE && columns == SQUARE {
                    E::square(memory, shape.column_stride, lanes, shape.columns);
                } else {
                    for i in 0..rows {
                        for j in 0..columns {
                            *lanes.add(i * shape.columns + j) =
                                E::load(*memory.offset(j as isize * shape.column_stride + i as isize));
                        }
                    }
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn store<E: Element>(lanes: *const u8, shape: Shape, memory: *mut u8) {
    let (lanes, memory) = (lanes.cast::<E::Lane>(), memory.cast::<E::Stored>());
    let shape = shape.merged();
    for row in 0..shape.rows {
        // SAFETY: the caller vouches for every element of the rectangle and for every lane.
        unsafe {
            let memory = memory.offset(row as isize * shape.row_stride);
            let lanes = std::slice::from_raw_parts(lanes.add(row * shape.columns), shape.columns);
            if shape.column_stride == 1 {
                let memory = std::slice::from_raw_parts_mut(memory, shape.columns);
                for (stored, &lane) in memory.iter_mut().zip(lanes) {
                    *stored = E::store(lane);
                }
            } else {
                for (column, &lane) in lanes.iter().enumerate() {
                    *memory.offset(column as isize * shape.column_stride) = E::store(lane);
                }
            }
        }
    }
}

/// The loop that writes past the caches, where the machine has one.
fn stream_loop<E: Element>(isa: Isa) -> StoreLoop {
    match isa.0 {
        Level::Baseline => store_loop::<E>(isa),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => stream::<E>,
    }
}

/// Writes rows past the caches, all but their ends that are no whole vectors.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn stream<E: Element>(lanes: *const u8, shape: Shape, memory: *mut u8) {
    use std::arch::x86_64::{__m256i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};
    const VECTOR: usize = size_of::<__m256i>();
    let (size, bytes) = (size_of::<E::Stored>(), shape.columns * size_of::<E::Stored>());
    // SAFETY: the caller vouches for every element and lane, and elements are their lanes.
    unsafe {
        if shape.column_stride != 1 || bytes < 2 * VECTOR {
            return store::<E>(lanes, shape, memory);
        }
        for row in 0..shape.rows {
            let (from, to) = (lanes.add(row * bytes), memory.offset(row as isize * shape.row_stride * size as isize));
            let head = to.align_offset(VECTOR).min(bytes);
            std::ptr::copy_nonoverlapping(from, to, head);
            let vectors = (bytes - head) / VECTOR;
            for vector in 0..vectors {
                let at = head + vector * VECTOR;
                _mm256_stream_si256(to.add(at).cast(), _mm256_loadu_si256(from.add(at).cast()));
            }
            let tail = head + vectors * VECTOR;
            std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), bytes - tail);
        }
        // Whoever reads on another thread finds these writes done, as any others.
        _mm_sfence();
    }
}

#[inline(always)]
unsafe fn gather<E: Element>(memory: *const u8, offsets: &[i64], lanes: *mut u8) {
    for (lane, &offset) in offsets.iter().enumerate() {
        // SAFETY: the caller vouches for every offset and lane.
        unsafe { *lanes.cast::<E::Lane>().add(lane) = E::load(*memory.cast::<E::Stored>().offset(offset as isize)) };
    }
}

/// As [`load`] of 32-bit elements, with transposed squares in vectors.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn load_words_avx2(memory: *const u8, shape: Shape, lanes: *mut u8) {
    // SAFETY: as the caller's.
    unsafe { load::<Words>(memory, shape, lanes) }
}

/// Eight neighbours of each of eight columns, into eight rows.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn square_words(memory: *const u32, column_stride: isize, lanes: *mut u32, row_lanes: usize) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's square.
    let c: [__m256; 8] =
        std::array::from_fn(|j| unsafe { _mm256_loadu_ps(memory.offset(j as isize * column_stride).cast()) });
    // Pairs of columns, then fours, then all eight.
    let pairs: [__m256; 8] = std::array::from_fn(|i| match i % 2 {
        0 => _mm256_unpacklo_ps(c[i], c[i + 1]),
        _ => _mm256_unpackhi_ps(c[i - 1], c[i]),
    });
    let fours = [
        _mm256_shuffle_ps::<0x44>(pairs[0], pairs[2]),
        _mm256_shuffle_ps::<0xee>(pairs[0], pairs[2]),
        _mm256_shuffle_ps::<0x44>(pairs[1], pairs[3]),
        _mm256_shuffle_ps::<0xee>(pairs[1], pairs[3]),
        _mm256_shuffle_ps::<0x44>(pairs[4], pairs[6]),
        _mm256_shuffle_ps::<0xee>(pairs[4], pairs[6]),
        _mm256_shuffle_ps::<0x44>(pairs[5], pairs[7]),
        _mm256_shuffle_ps::<0xee>(pairs[5], pairs[7]),
    ];
    for i in 0..4 {
        // SAFETY: the caller's square.
        unsafe {
            let (low, high) = (lanes.add(i * row_lanes), lanes.add((i + 4) * row_lanes));
            _mm256_storeu_ps(low.cast(), _mm256_permute2f128_ps::<0x20>(fours[i], fours[i + 4]));
            _mm256_storeu_ps(high.cast(), _mm256_permute2f128_ps::<0x31>(fours[i], fours[i + 4]));
        }
    }
}

fn mover_of<E: Element>(isa: Isa) -> Mover {
    Mover {
        load: load_loop::<E>(isa),
        store: store_loop::<E>(isa),
        stream: stream_loop::<E>(isa),
        gather: gather_loop::<E>(isa),
        element: size_of::<E::Stored>(),
        lane: size_of::<E::Lane>(),
    }
}

fn words(isa: Isa) -> Mover {
    let mover = mover_of::<Plain<u32>>(isa);
    match isa.0 {
        Level::Baseline => mover,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => Mover { load: load_words_avx2, ..mover },
    }
}

/// How elements of a dtype move.
pub(in crate::cpu) fn mover(dtype: DType, isa: Isa) -> Mover {
    match dtype {
        DType::F16 => mover_of::<Half>(isa),
        DType::BF16 => mover_of::<Brain>(isa),
        DType::I8 | DType::U8 | DType::Bool => mover_of::<Plain<u8>>(isa),
        DType::F32 | DType::I32 | DType::U32 => words(isa),
        DType::F64 | DType::I64 => mover_of::<Plain<u64>>(isa),
    }
}

/// Writes one lane of `size` bytes.
///
/// Safety: it is there.
pub(in crate::cpu) unsafe fn set(lane: *mut u8, size: usize, bits: u64) {
    // SAFETY: the caller's.
    unsafe {
        match size {
            1 => *lane = bits as u8,
            4 => *lane.cast::<u32>() = bits as u32,
            _ => *lane.cast::<u64>() = bits,
        }
    }
}

/// Writes the low `size` bytes of `bits` to whole blocks of lanes.
///
/// Safety: the lanes of that size are there.
pub(in crate::cpu) unsafe fn fill(lanes: *mut u8, size: usize, bits: u64, blocks: usize) {
    let count = blocks * BLOCK;
    // SAFETY: the caller's.
    unsafe {
        match size {
            1 => std::slice::from_raw_parts_mut(lanes, count).fill(bits as u8),
            4 => std::slice::from_raw_parts_mut(lanes.cast::<u32>(), count).fill(bits as u32),
            _ => std::slice::from_raw_parts_mut(lanes.cast::<u64>(), count).fill(bits),
        }
    }
}
