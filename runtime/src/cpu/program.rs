//! A block as steps over strips.
//!
//! A tile is a rectangle of points: rows along one axis, columns along another, lanes row after row. A register holds one number for the
//! whole tile ([`Class::Uniform`]), one per row, or one per lane, as its inputs vary; uniform ones fill one block, so that loops can read
//! them again and again. Steps that vary only with the outer point stand in `before`, which runs once per tile; the rest is the `body`.

use smallvec::SmallVec;

use super::ahead::Ahead;
use super::fused::{Fused, Runnable};
use super::lanes::{BLOCK, IndexLoop, Mover, RandomLoop, Shape, Work, fill};
use super::space::Map;
use super::vmath::{self, Isa};

/// Memory handed over at launch: a dense array of a kernel's buffer's elements, bools as one byte 0 or 1.
///
/// Who makes one promises that the memory is there and initialised while kernels run on it, aligned for its element type, and, where a
/// kernel writes it, nobody else's meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawBuffer {
    /// The first element.
    pub(crate) data: *mut u8,
    /// How many bytes there are.
    pub(crate) bytes: usize,
}

// SAFETY: a raw buffer is an address; what may be done with it is its maker's promise.
unsafe impl Send for RawBuffer {}
// SAFETY: as above.
unsafe impl Sync for RawBuffer {}

/// A strip of scratch memory.
pub(super) type Slot = usize;

/// How a register's value varies over a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Class {
    /// One value, in every lane of one block.
    Uniform,
    /// One value per row.
    Row,
    /// One value per lane.
    Full,
}

/// The extents of a tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl Tile {
    /// Lanes of a register of a class that count.
    pub(super) fn lanes(self, class: Class) -> usize {
        match class {
            Class::Uniform => 1,
            Class::Row => self.rows,
            Class::Full => self.rows * self.columns,
        }
    }
}

/// An affine map with its strides along a tile's rows and columns.
#[derive(Clone, Debug)]
pub(super) struct TileMap {
    pub(super) map: Map,
    pub(super) row: i64,
    pub(super) column: i64,
}

impl TileMap {
    /// The lanes of a class; a uniform one fills a block.
    fn shape(&self, class: Class, tile: Tile) -> Shape {
        match class {
            Class::Uniform => Shape::row(BLOCK, 0),
            Class::Row => Shape::row(tile.rows, self.row as isize),
            Class::Full => Shape {
                rows: tile.rows,
                row_stride: self.row as isize,
                columns: tile.columns,
                column_stride: self.column as isize,
            },
        }
    }
}

/// A load.
pub(super) struct Load {
    pub(super) buffer: usize,
    /// Elements of the buffer.
    pub(super) len: usize,
    pub(super) at: TileMap,
    /// Registers of indices, whether they are uniform, and their strides.
    pub(super) computed: SmallVec<[(Slot, Class, i64); 1]>,
    pub(super) bounds: Vec<(TileMap, usize)>,
    pub(super) mover: Mover,
    /// Whether lanes may be read in place, because nobody writes the buffer.
    pub(super) in_place: bool,
}

/// What a step does.
pub(super) enum Action {
    /// An elementwise instruction.
    Work(Work),
    /// From memory.
    Load(Box<Load>),
    /// Indices from the point.
    Index(IndexLoop, Box<TileMap>),
    /// Whether bounds hold.
    Within(Vec<(TileMap, usize)>),
    /// Random words of a stream.
    Random(RandomLoop, u32),
    /// Many instructions as machine code.
    Fused(Box<Fused>),
    /// The first operand's value in every lane that belongs to it; its class and bytes per lane.
    Expand(Class, usize),
}

/// One instruction over a strip.
pub(super) struct Step {
    pub(super) class: Class,
    pub(super) result: Slot,
    pub(super) operands: [Slot; 3],
    /// Bytes from block to block of each operand.
    pub(super) steps: [usize; 3],
    pub(super) action: Action,
    /// The store that may be spared: its result is written to where it goes at once.
    pub(super) direct: Option<usize>,
}

/// A store; its value varies as the tile does.
pub(super) struct StoreStep {
    pub(super) value: Slot,
    pub(super) class: Class,
    pub(super) buffer: usize,
    pub(super) at: TileMap,
    pub(super) mover: Mover,
    /// Whether nobody reads the buffer, and what is written is so much that it had better not go through the caches.
    pub(super) write: Write,
}

/// How a buffer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Write {
    /// It is read too: after all loads.
    Last,
    /// It is only written, at any time.
    Any,
    /// As `Any`, and past the caches where that is possible.
    Stream,
}

/// The steps of a block.
#[derive(Default)]
pub(super) struct Program {
    pub(super) before: Vec<Step>,
    pub(super) body: Vec<Step>,
    pub(super) stores: Vec<StoreStep>,
}

/// The memory that programs run on.
pub(super) struct Frame<'a> {
    pub(super) isa: Isa,
    pub(super) buffers: &'a [RawBuffer],
    /// Scratch memory.
    pub(super) base: *mut u8,
    /// Each slot's own memory.
    pub(super) home: &'a mut [*mut u8],
    /// Where each slot's lanes are now: at home, or in a buffer.
    pub(super) at: &'a mut [*mut u8],
    /// What the next tile reads.
    pub(super) ahead: Ahead,
    /// The kernel's own machine code.
    pub(super) code: Runnable<'a>,
    /// The sums of the parts of a row, where the last run of machine code took them.
    pub(super) sums: SmallVec<[f32; 4]>,
}

impl Program {
    /// Runs the steps that vary only with the outer point.
    ///
    /// # Safety
    ///
    /// The frame has the slots and buffers of the kernel the program was compiled from; the tile lies inside its space.
    pub(super) unsafe fn prepare(&self, frame: &mut Frame<'_>, point: &[i64], tile: Tile) {
        for step in &self.before {
            // SAFETY: the caller's.
            unsafe { step.run(frame, point, tile, &[]) };
        }
    }

    /// Lets the steps that make stored values write them to where they go, where memory holds lanes as they are and `spared` agrees.
    pub(super) fn spare_stores(&mut self, spared: impl Fn(Slot) -> bool) {
        for (index, store) in self.stores.iter().enumerate() {
            if !store.mover.same_bits() || !spared(store.value) {
                continue;
            }
            for step in self.body.iter_mut().rev() {
                if let Action::Fused(fused) = &mut step.action {
                    let Some(result) = fused.result_mut(store.value) else { continue };
                    if matches!(store.write, Write::Any | Write::Stream) && result.direct.is_none() {
                        result.direct = Some(index);
                    }
                } else if step.result == store.value {
                    let makes = matches!(step.action, Action::Work(_) | Action::Random(..));
                    if makes && store.write == Write::Any && step.direct.is_none() {
                        step.direct = Some(index);
                    }
                } else {
                    continue;
                }
                break;
            }
        }
    }

    /// Runs the body and stores its results. Safety: as [`Program::prepare`].
    pub(super) unsafe fn run(&self, frame: &mut Frame<'_>, point: &[i64], tile: Tile) {
        for step in &self.body {
            frame.ahead.ask();
            // SAFETY: the caller's.
            unsafe { step.run(frame, point, tile, &self.stores) };
        }
        for store in &self.stores {
            // SAFETY: the caller's; addresses of stores were checked when the kernel was prepared.
            unsafe {
                store.run(frame, point, tile);
            }
        }
    }
}

impl StoreStep {
    /// Where lanes that are dense in memory go, and how they lie there.
    pub(super) unsafe fn place(&self, frame: &Frame<'_>, point: &[i64], tile: Tile) -> (*mut u8, Shape) {
        let shape = match self.class {
            Class::Uniform => Shape::row(1, 0),
            Class::Row | Class::Full => self.at.shape(self.class, tile).merged(),
        };
        let offset = self.at.map.at(point) as isize * self.mover.element as isize;
        // SAFETY: addresses of stores were checked when the kernel was prepared.
        (unsafe { frame.buffers[self.buffer].data.offset(offset) }, shape)
    }

    /// Writes the value's lanes to memory. Safety: as [`Program::prepare`].
    pub(super) unsafe fn run(&self, frame: &Frame<'_>, point: &[i64], tile: Tile) {
        // SAFETY: the caller's.
        unsafe {
            let (memory, shape) = self.place(frame, point, tile);
            let lanes = frame.at[self.value];
            if std::ptr::eq(lanes, memory) {
                return;
            }
            match self.write {
                Write::Stream => (self.mover.stream)(lanes, shape, memory),
                Write::Last | Write::Any => (self.mover.store)(lanes, shape, memory),
            }
        }
    }
}

impl Step {
    /// Whether it is a loop that reads or writes strips of scratch memory.
    pub(super) fn works_on_strips(&self) -> bool {
        match &self.action {
            Action::Fused(_) => false,
            Action::Load(load) => !load.lies_in_lanes(|at| at.column == 1),
            Action::Work(_) | Action::Index(..) | Action::Within(_) | Action::Random(..) | Action::Expand(..) => true,
        }
    }

    unsafe fn run(&self, frame: &mut Frame<'_>, point: &[i64], tile: Tile, stores: &[StoreStep]) {
        let mut result = frame.home[self.result];
        if let Some(store) = self.direct.map(|index| &stores[index]) {
            // SAFETY: the caller's.
            let (memory, shape) = unsafe { store.place(frame, point, tile) };
            if shape.dense() && shape.lanes() % BLOCK == 0 {
                result = memory;
            }
        }
        let blocks = tile.lanes(self.class).div_ceil(BLOCK);
        // SAFETY: the caller's; the compiler gave every operand and the result their own lanes.
        unsafe {
            match &self.action {
                Action::Work(work) => {
                    let operands = self.operands.map(|slot| frame.at[slot].cast_const());
                    work.run(frame.isa, blocks, operands, self.steps, result);
                }
                Action::Load(load) => {
                    frame.at[self.result] = load.run(frame, self.class, point, tile, result);
                    return;
                }
                Action::Index(index, at) => index(at.shape(self.class, tile), at.map.at(point), result),
                Action::Within(bounds) => within(bounds, self.class, point, tile, result),
                Action::Random(random, stream) => {
                    let operands = self.operands.map(|slot| frame.at[slot].cast_const());
                    random(blocks, operands, self.steps, result, *stream);
                }
                Action::Fused(fused) => return fused.run(frame, point, tile, stores),
                Action::Expand(class, size) => {
                    expand(*class, *size, self.class, tile, frame.at[self.operands[0]], result)
                }
            }
        }
        frame.at[self.result] = result;
    }
}

impl Work {
    unsafe fn run(&self, isa: Isa, blocks: usize, operands: [*const u8; 3], steps: [usize; 3], result: *mut u8) {
        let lanes = blocks * BLOCK;
        // SAFETY: the caller's; functions of vector mathematics have operands of the result's class.
        unsafe {
            use std::slice::{from_raw_parts as strip, from_raw_parts_mut as strip_mut};
            match *self {
                Work::Lanes(run) => run(blocks, operands, steps, result),
                Work::Unary32(op) => {
                    vmath::unary_f32(isa, op, strip(operands[0].cast(), lanes), strip_mut(result.cast(), lanes));
                }
                Work::Binary32(op) => {
                    let (left, right) = (strip(operands[0].cast(), lanes), strip(operands[1].cast(), lanes));
                    vmath::binary_f32(isa, op, left, right, strip_mut(result.cast(), lanes));
                }
                Work::Unary64(op) => {
                    vmath::unary_f64(op, strip(operands[0].cast(), lanes), strip_mut(result.cast(), lanes));
                }
                Work::Binary64(op) => {
                    let (left, right) = (strip(operands[0].cast(), lanes), strip(operands[1].cast(), lanes));
                    vmath::binary_f64(op, left, right, strip_mut(result.cast(), lanes));
                }
            }
        }
    }
}

impl Load {
    /// Whether lanes are read where they lie, if their map is dense.
    pub(super) fn lies_in_lanes(&self, is_dense: impl Fn(&TileMap) -> bool) -> bool {
        self.in_place && self.computed.is_empty() && self.bounds.is_empty() && is_dense(&self.at)
    }

    /// Loads into `home`, or finds the lanes in place; where they are.
    unsafe fn run(&self, frame: &Frame<'_>, class: Class, point: &[i64], tile: Tile, home: *mut u8) -> *mut u8 {
        let memory = frame.buffers[self.buffer].data;
        let shape = self.at.shape(class, tile);
        let first = self.at.map.at(point);
        // SAFETY: affine addresses without bounds were checked when the kernel was prepared, others are checked here.
        unsafe {
            if self.computed.is_empty() && self.bounds.is_empty() {
                let source = memory.offset(first as isize * self.mover.element as isize);
                let padded = shape.lanes().next_multiple_of(BLOCK);
                if self.in_place && class != Class::Uniform && first as usize + padded <= self.len && shape.dense() {
                    return source;
                }
                (self.mover.load)(source, shape, home);
                return home;
            }
            for row in 0..shape.rows {
                let lanes = home.add(row * shape.columns * self.mover.lane);
                let (low, high) = interval(&self.bounds, class, point, tile, row);
                if (low, high) != (0, shape.columns) {
                    std::ptr::write_bytes(lanes, 0, shape.columns * self.mover.lane);
                }
                if low < high {
                    let first = first + row as i64 * shape.row_stride as i64;
                    self.run_row(frame, memory, shape, row, (low, high), first, lanes);
                }
            }
        }
        home
    }

    /// Loads columns `low..high` of one row, whose column 0 is at element `first` before computed indices are added.
    #[allow(clippy::too_many_arguments)]
    unsafe fn run_row(
        &self,
        frame: &Frame<'_>,
        memory: *const u8,
        shape: Shape,
        row: usize,
        (low, high): (usize, usize),
        first: i64,
        lanes: *mut u8,
    ) {
        let (stride, last) = (shape.column_stride as i64, self.len as i64 - 1);
        assert!(last >= 0, "an empty buffer is never loaded from");
        // SAFETY: every offset is clamped into, or asserted to be in, the buffer; lanes are the row's own.
        unsafe {
            if self.computed.iter().all(|&(_, class, _)| class == Class::Uniform) {
                let index = |slot: Slot| *frame.at[slot].cast::<i64>();
                let base = self.computed.iter().fold(first, |sum, &(slot, _, step)| sum + index(slot) * step);
                let (begin, end) = (base + low as i64 * stride, base + (high as i64 - 1) * stride);
                assert!(begin.min(end) >= 0 && begin.max(end) <= last, "a load stays inside its buffer");
                let source = memory.offset(begin as isize * self.mover.element as isize);
                let part = Shape::row(high - low, shape.column_stride);
                return (self.mover.load)(source, part, lanes.add(low * self.mover.lane));
            }
            let mut offsets = [0; BLOCK];
            for start in (low..high).step_by(BLOCK) {
                let count = BLOCK.min(high - start);
                for (lane, offset) in offsets[..count].iter_mut().enumerate() {
                    *offset = first + (start + lane) as i64 * stride;
                }
                for &(slot, class, step) in &self.computed {
                    let indices = frame.at[slot].cast::<i64>();
                    let (indices, move_on) = match class {
                        Class::Uniform => (indices, 0),
                        Class::Row | Class::Full => (indices.add(row * shape.columns + start), 1),
                    };
                    for (lane, offset) in offsets[..count].iter_mut().enumerate() {
                        *offset = offset.wrapping_add((*indices.add(lane * move_on)).wrapping_mul(step));
                    }
                }
                for offset in &mut offsets[..count] {
                    debug_assert!((0..=last).contains(offset), "computed indices are clamped by the kernel");
                    *offset = (*offset).clamp(0, last);
                }
                (self.mover.gather)(memory, &offsets[..count], lanes.add(start * self.mover.lane));
            }
        }
    }
}

/// The columns of a row where all bounds hold: a single range, because bounds are affine.
fn interval(bounds: &[(TileMap, usize)], class: Class, point: &[i64], tile: Tile, row: usize) -> (usize, usize) {
    let (mut low, mut high) = (0, i64::MAX);
    for (at, extent) in bounds {
        let shape = at.shape(class, tile);
        high = high.min(shape.columns as i64);
        let first = at.map.at(point) + row as i64 * shape.row_stride as i64;
        let (stride, extent) = (shape.column_stride as i64, *extent as i64);
        // first + stride * c >= 0 and extent - 1 - first - stride * c >= 0
        for (value, step) in [(first, stride), (extent - 1 - first, -stride)] {
            match step {
                0 if value < 0 => return (0, 0),
                0 => {}
                1.. => low = low.max(-value.div_euclid(step)),
                _ => high = high.min(value.div_euclid(-step) + 1),
            }
        }
    }
    if bounds.is_empty() {
        high = match class {
            Class::Uniform => BLOCK as i64,
            Class::Row => tile.rows as i64,
            Class::Full => tile.columns as i64,
        };
    }
    if low < high { (low as usize, high as usize) } else { (0, 0) }
}

unsafe fn within(bounds: &[(TileMap, usize)], class: Class, point: &[i64], tile: Tile, result: *mut u8) {
    let (rows, columns) = match class {
        Class::Uniform => (1, BLOCK),
        Class::Row => (1, tile.rows),
        Class::Full => (tile.rows, tile.columns),
    };
    for row in 0..rows {
        // SAFETY: the result has the class's lanes.
        let lanes = unsafe { std::slice::from_raw_parts_mut(result.add(row * columns), columns) };
        let (low, high) = interval(bounds, class, point, tile, row);
        lanes.fill(0);
        lanes[low..high].fill(1);
    }
}

/// Spreads a register of a lower class over the lanes of a higher one.
unsafe fn expand(from: Class, size: usize, to: Class, tile: Tile, source: *const u8, result: *mut u8) {
    let bits = |lane: usize| {
        // SAFETY: the source has this lane.
        unsafe {
            match size {
                1 => u64::from(*source.add(lane)),
                4 => u64::from(*source.cast::<u32>().add(lane)),
                _ => *source.cast::<u64>().add(lane),
            }
        }
    };
    // SAFETY: the result has the lanes of its class in whole blocks.
    unsafe {
        if from == Class::Uniform {
            return fill(result, size, bits(0), tile.lanes(to).div_ceil(BLOCK));
        }
        for row in 0..tile.rows {
            let lanes = result.add(row * tile.columns * size);
            match size {
                1 => std::slice::from_raw_parts_mut(lanes, tile.columns).fill(bits(row) as u8),
                4 => std::slice::from_raw_parts_mut(lanes.cast::<u32>(), tile.columns).fill(bits(row) as u32),
                _ => std::slice::from_raw_parts_mut(lanes.cast::<u64>(), tile.columns).fill(bits(row)),
            }
        }
    }
}
