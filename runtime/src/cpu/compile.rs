//! How a block becomes a program: registers get slots, instructions loops.
//!
//! Properties that the programs have, on which the loops' safety rests:
//!
//! - a result's slot is none of its operands' slots;
//! - a slot is given to another register only after the last step that reads it, and never while a walk over inner points runs that
//!   comes back to a reader;
//! - an operand of a lower class than its step is either uniform and read with step 0, or has been expanded.

mod run;

use std::collections::{HashMap, HashSet};

use kiln_ir::kernel::{Access, Affine, Block, Bound, Buffer, Instruction, Operation, Reg};
use kiln_ir::{DType, Literal};
use smallvec::SmallVec;

use super::fused::Fuser;
use super::lanes::{self, BLOCK, Conversion, Repr, Stands, Work};
use super::pairs::{Pairs, Part, arithmetic};
use super::program::{Action, Class, Load, Program, Slot, Step, StoreStep, TileMap, Write};
use super::space::Space;
use super::vmath::Isa;
use run::OpenRun;

/// The axes of a tile's rows and columns; without one there is one row or column.
#[derive(Clone, Copy, Debug)]
pub(super) struct TileAxes {
    pub(super) row: Option<usize>,
    pub(super) column: Option<usize>,
}

impl TileAxes {
    /// The class that varies with all of the tile's axes.
    pub(super) fn top(self) -> Class {
        match (self.column, self.row) {
            (Some(_), _) => Class::Full,
            (None, Some(_)) => Class::Row,
            (None, None) => Class::Uniform,
        }
    }
}

/// Whether a block is run once per tile, or again and again while inner points are walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    Once,
    Inner,
}

/// A register.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value {
    pub(super) slot: Slot,
    pub(super) class: Class,
    pub(super) dtype: DType,
    /// Whether it changes while inner points are walked.
    inner: bool,
}

/// What a slot holds: the class of its registers and bytes per lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotKind {
    pub(super) class: Class,
    pub(super) size: usize,
    pub(super) span: Span,
}

/// How much a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Span {
    /// One tile.
    Tile,
    /// Every tile of a walk over inner points, one after another.
    Walk,
}

/// Compiles the blocks of one kernel, stage by stage.
pub(super) struct Compiler<'k> {
    isa: Isa,
    buffers: &'k [Buffer],
    space: &'k Space,
    values: HashMap<Reg, Value>,
    literals: HashMap<Literal, Slot>,
    /// The slots so far.
    pub(super) slots: Vec<SlotKind>,
    free: Vec<Slot>,
    /// Uniform slots that are filled when a frame is set up, with the bits of a lane.
    pub(super) constants: Vec<(Slot, u64)>,
    /// Registers of inner stages that later stages read.
    kept: HashSet<Reg>,
    /// Writes runs of instructions as machine code, where the machine takes that.
    pub(super) fuser: Option<Fuser>,
    literal_of: HashMap<Reg, Literal>,
    /// Registers of inner stages whose lanes are summed, row by row.
    pub(super) summed: HashSet<Reg>,
}

/// The slot of a register that a run makes for itself.
const NOWHERE: Slot = Slot::MAX;

/// Results from this many bytes on are written past the caches: they would push out everything and be gone before they are read.
const STREAMED: usize = 32 << 20;

/// A block while it is compiled.
struct Builder<'b> {
    pairs: Pairs<'b>,
    tile: TileAxes,
    repeat: Repeat,
    program: Program,
    /// For each register of the block, the last instruction that reads it.
    last: HashMap<Reg, usize>,
    /// The same apart from stores.
    last_read: HashMap<Reg, usize>,
    /// Slots that this block took and that nobody reads after it.
    local: Vec<Slot>,
    /// Slots that steps of the body have done with. Steps that run before it must not take them: the body would overwrite them.
    done: Vec<Slot>,
    expanded: HashMap<(Slot, Class), Slot>,
    /// The run of instructions that is being put together.
    run: Option<OpenRun>,
}

/// The bits of a literal as a lane.
pub(super) fn lane_bits(literal: Literal) -> u64 {
    match literal.dtype() {
        DType::F16 | DType::BF16 => u64::from((literal.to_f64() as f32).to_bits()),
        DType::F32 | DType::F64 | DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => {
            literal.bits()
        }
    }
}

/// The registers an operation reads.
pub(super) fn operands(operation: &Operation) -> SmallVec<[Reg; 3]> {
    operation.operands()
}

impl<'k> Compiler<'k> {
    pub(super) fn new(
        isa: Isa,
        buffers: &'k [Buffer],
        space: &'k Space,
        kept: HashSet<Reg>,
        fuser: Option<Fuser>,
    ) -> Compiler<'k> {
        Compiler {
            isa,
            buffers,
            space,
            values: HashMap::new(),
            literals: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            constants: Vec::new(),
            kept,
            fuser,
            literal_of: HashMap::new(),
            summed: HashSet::new(),
        }
    }

    /// A slot that is nobody's.
    pub(super) fn take(&mut self, class: Class, size: usize) -> Slot {
        let kind = SlotKind { class, size, span: Span::Tile };
        if let Some(index) = self.free.iter().position(|&slot| self.slots[slot] == kind) {
            return self.free.swap_remove(index);
        }
        self.slots.push(kind);
        self.slots.len() - 1
    }

    /// Makes a register known that no block defines.
    pub(super) fn define(&mut self, reg: Reg, slot: Slot, class: Class, dtype: DType) {
        self.values.insert(reg, Value { slot, class, dtype, inner: false });
    }

    /// Where a register is, and its dtype.
    pub(super) fn value(&self, reg: Reg) -> Value {
        self.values.get(&reg).copied().expect("a register is defined before it is read")
    }

    /// The same of a register that need not be anywhere: the first of a pair has no lanes of its own, and what a run of machine code keeps to
    /// itself is in no slot.
    pub(super) fn known(&self, reg: Reg) -> Option<Value> {
        self.values.get(&reg).copied().filter(|value| value.slot != NOWHERE)
    }

    /// A map with its strides along a tile's axes.
    pub(super) fn tile_map(&self, affine: &Affine, tile: TileAxes) -> TileMap {
        let map = self.space.map(affine);
        TileMap { row: map.along(tile.row), column: map.along(tile.column), map }
    }

    /// Compiles a block. `results` are registers that its runner reads, as `(register, dtype wanted)`; their slots come back, of the tile's
    /// top class. `later` are registers that later blocks read.
    pub(super) fn block(
        &mut self,
        block: &Block,
        tile: TileAxes,
        repeat: Repeat,
        results: &[(Reg, DType)],
        later: &HashSet<Reg>,
    ) -> (Program, Vec<Slot>) {
        let mut whole: HashSet<Reg> = later.union(&self.kept).copied().collect();
        whole.extend(results.iter().map(|&(reg, _)| reg));
        let pairs = if self.fuser.is_some() { Pairs::none(block) } else { Pairs::of(block, &whole) };
        let mut last = HashMap::new();
        for index in 0..block.instructions.len() {
            for reg in pairs.reads(index) {
                last.insert(reg, index);
            }
        }
        let outside = results.iter().map(|&(reg, _)| reg).chain(later.iter().copied());
        last.extend(outside.map(|reg| (reg, usize::MAX)));
        let last_read = last.clone();
        last.extend(block.stores.iter().map(|store| (store.value, usize::MAX)));
        let mut builder = Builder {
            pairs,
            tile,
            repeat,
            program: Program::default(),
            last,
            last_read,
            local: Vec::new(),
            done: Vec::new(),
            expanded: HashMap::new(),
            run: None,
        };
        for (index, instruction) in block.instructions.iter().enumerate() {
            if let Some(inner) = self.may_run(instruction) {
                if builder.run.as_ref().is_some_and(|run| run.inner != inner) {
                    self.close_run(&mut builder, block, index);
                }
                self.join_run(&mut builder, instruction, inner);
            } else {
                let reads = operands(&instruction.operation);
                if reads.iter().any(|reg| self.values.get(reg).is_some_and(|value| value.slot == NOWHERE)) {
                    self.close_run(&mut builder, block, index);
                }
                match builder.pairs.part(index) {
                    Part::Alone => self.instruction(&mut builder, instruction),
                    Part::First => continue,
                    Part::Second(first) => self.pair(&mut builder, &block.instructions[first], instruction),
                }
            }
            self.release(&mut builder, index);
        }
        self.close_run(&mut builder, block, block.instructions.len());
        let top = tile.top();
        for store in &block.stores {
            let value = self.value(store.value);
            let slot = self.lift(&mut builder, value, top).slot;
            let index = store.buffer.0 as usize;
            let buffer = &self.buffers[index];
            let mover = lanes::mover(buffer.dtype, self.isa);
            let at = self.tile_map(&store.address, tile);
            let write = self.write_of(index);
            builder.program.stores.push(StoreStep { value: slot, class: top, buffer: index, at, mover, write });
        }
        if top == Class::Full {
            builder.program.spare_stores(|slot| self.slots[slot].span == Span::Tile);
        }
        let slots = results
            .iter()
            .map(|&(reg, dtype)| {
                let value = self.value(reg);
                let value = self.convert(&mut builder, value, dtype, lanes::cast(value.dtype, dtype, self.isa));
                self.lift(&mut builder, value, top).slot
            })
            .collect();
        let kept: HashSet<Slot> = later.iter().filter_map(|reg| self.values.get(reg)).map(|value| value.slot).collect();
        builder.local.retain(|slot| !kept.contains(slot));
        builder.local.sort_unstable();
        builder.local.dedup();
        self.free.append(&mut builder.local);
        self.free.append(&mut builder.done);
        (builder.program, slots)
    }

    /// Conversion of a slot's lanes, as a program that is run once, and the value it makes.
    pub(super) fn conversion(&mut self, slot: Slot, class: Class, from: DType, to: DType) -> (Program, Value) {
        let mut builder = Builder {
            pairs: Pairs::default(),
            tile: TileAxes { row: None, column: None },
            repeat: Repeat::Once,
            program: Program::default(),
            last: HashMap::new(),
            last_read: HashMap::new(),
            local: Vec::new(),
            done: Vec::new(),
            expanded: HashMap::new(),
            run: None,
        };
        let value = Value { slot, class, dtype: from, inner: false };
        let value = self.convert(&mut builder, value, to, lanes::cast(from, to, self.isa));
        (builder.program, value)
    }

    /// How a buffer is written.
    fn write_of(&self, buffer: usize) -> Write {
        let Buffer { dtype, len, access } = self.buffers[buffer];
        match access {
            Access::ReadWrite | Access::Read => Write::Last,
            Access::Write if len * dtype.size() >= STREAMED && lanes::mover(dtype, self.isa).same_bits() => {
                Write::Stream
            }
            Access::Write => Write::Any,
        }
    }

    fn instruction(&mut self, builder: &mut Builder<'_>, instruction: &Instruction) {
        let (isa, dtype) = (self.isa, instruction.dtype);
        let value = match &instruction.operation {
            Operation::Literal(literal) => {
                self.literal_of.insert(instruction.result, *literal);
                self.literal(*literal)
            }
            Operation::Index(affine) => {
                let at = self.tile_map(affine, builder.tile);
                let (class, inner) = self.variation(&at, builder);
                let action = Action::Index(lanes::index_loop(dtype, isa), Box::new(at));
                self.push(builder, class, inner, dtype, &[], action)
            }
            Operation::Load { .. } => self.load(builder, instruction),
            Operation::Within(bounds) => {
                let bounds = self.bounds(bounds, builder.tile);
                let (class, inner) = self.variations(&bounds, builder);
                self.push(builder, class, inner, dtype, &[], Action::Within(bounds))
            }
            Operation::Scalar(op, operands) => {
                let operand = self.value(operands[0]).dtype;
                let work = lanes::scalar(*op, operand, isa);
                let value = self.work(builder, dtype, operands, work);
                if lanes::rounds(*op) { self.rounded(builder, value) } else { value }
            }
            Operation::Fma(a, b, c) => {
                let work = Work::Lanes(lanes::fma(Repr::of(dtype), isa));
                let value = self.work(builder, dtype, &[*a, *b, *c], work);
                self.rounded(builder, value)
            }
            Operation::Cast(operand) => {
                let value = self.value(*operand);
                self.convert(builder, value, dtype, lanes::cast(value.dtype, dtype, isa))
            }
            Operation::Bitcast(operand) => {
                let value = self.value(*operand);
                self.convert(builder, value, dtype, lanes::bitcast(value.dtype, dtype, isa))
            }
            Operation::Select { condition, then, otherwise } => {
                let work = Work::Lanes(lanes::select(Repr::of(dtype), isa));
                self.work(builder, dtype, &[*condition, *then, *otherwise], work)
            }
            Operation::Random { key, stream, index } => {
                let action = Action::Random(lanes::random_loop(isa), *stream);
                let operands = [key[0], key[1], *index].map(|reg| self.value(reg));
                self.elementwise(builder, dtype, &operands, action)
            }
        };
        let value = if self.kept.contains(&instruction.result) { self.keep(builder, value) } else { value };
        self.values.insert(instruction.result, value);
    }

    /// Two instructions as one step where they vary alike, else one after the other.
    fn pair(&mut self, builder: &mut Builder<'_>, first: &Instruction, second: &Instruction) {
        let (begin, end) = (arithmetic(first), arithmetic(second));
        let ((begin, [a, b]), (end, [left, right])) = begin.zip(end).expect("only arithmetic is paired");
        let (stands, other) = match (left == first.result, right == first.result) {
            (true, true) => (Stands::Both, None),
            (true, false) => (Stands::Left, Some(right)),
            (false, _) => (Stands::Right, Some(left)),
        };
        let mut values: SmallVec<[Value; 3]> = [a, b].into_iter().map(|reg| self.value(reg)).collect();
        let varies = |values: &[Value]| {
            let class = values.iter().map(|value| value.class).max();
            (class, values.iter().any(|value| value.inner))
        };
        let alone = varies(&values);
        values.extend(other.map(|reg| self.value(reg)));
        if varies(&values) != alone {
            self.instruction(builder, first);
            self.instruction(builder, second);
            let value = self.value(first.result);
            return self.drop_temporary(builder, value);
        }
        let run = lanes::pair(begin, end, stands, self.isa).expect("every pair that is made has its loop");
        let value = self.elementwise(builder, second.dtype, &values, Action::Work(Work::Lanes(run)));
        let value = if self.kept.contains(&second.result) { self.keep(builder, value) } else { value };
        self.values.insert(second.result, value);
    }

    /// Gives a value a slot of its own that holds it for every tile of the walk.
    fn keep(&mut self, builder: &mut Builder<'_>, value: Value) -> Value {
        let step = builder.program.body.last_mut().filter(|step| step.result == value.slot && value.inner);
        let step = step.expect("what is kept is computed anew for every inner point");
        self.slots.push(SlotKind { class: value.class, size: Repr::of(value.dtype).size(), span: Span::Walk });
        step.result = self.slots.len() - 1;
        for operand in &mut step.operands {
            if *operand == value.slot {
                *operand = step.result;
            }
        }
        let slot = step.result;
        self.drop_temporary(builder, value);
        Value { slot, ..value }
    }

    fn literal(&mut self, literal: Literal) -> Value {
        let slot = match self.literals.get(&literal) {
            Some(&slot) => slot,
            None => {
                // Never freed: it is filled once per frame.
                let size = Repr::of(literal.dtype()).size();
                self.slots.push(SlotKind { class: Class::Uniform, size, span: Span::Tile });
                let slot = self.slots.len() - 1;
                self.constants.push((slot, lane_bits(literal)));
                self.literals.insert(literal, slot);
                slot
            }
        };
        Value { slot, class: Class::Uniform, dtype: literal.dtype(), inner: false }
    }

    fn load(&mut self, builder: &mut Builder<'_>, instruction: &Instruction) -> Value {
        let Operation::Load { buffer, address, bounds } = &instruction.operation else {
            unreachable!("only called on loads")
        };
        let index = buffer.0 as usize;
        let buffer = &self.buffers[index];
        let at = self.tile_map(&address.affine, builder.tile);
        let bounds = self.bounds(bounds, builder.tile);
        let (mut class, mut inner) = self.variation(&at, builder);
        let (bounds_class, bounds_inner) = self.variations(&bounds, builder);
        (class, inner) = (class.max(bounds_class), inner | bounds_inner);
        for &(reg, _) in &address.computed {
            let value = self.value(reg);
            (class, inner) = (class.max(value.class), inner | value.inner);
        }
        let computed = address.computed.iter().map(|&(reg, stride)| {
            let mut value = self.value(reg);
            if value.class != Class::Uniform {
                value = self.lift(builder, value, class);
            }
            (value.slot, value.class, stride)
        });
        let computed = computed.collect();
        let mover = lanes::mover(buffer.dtype, self.isa);
        let in_place = match buffer.access {
            Access::Read => mover.same_bits(),
            Access::Write | Access::ReadWrite => false,
        };
        let load = Load { buffer: index, len: buffer.len, at, computed, bounds, mover, in_place };
        self.push(builder, class, inner, instruction.dtype, &[], Action::Load(Box::new(load)))
    }

    fn bounds(&self, bounds: &[Bound], tile: TileAxes) -> Vec<(TileMap, usize)> {
        bounds.iter().map(|bound| (self.tile_map(&bound.at, tile), bound.extent)).collect()
    }

    fn variation(&self, at: &TileMap, builder: &Builder<'_>) -> (Class, bool) {
        let class = match (at.column, at.row) {
            (0, 0) => Class::Uniform,
            (0, _) => Class::Row,
            _ => Class::Full,
        };
        (class, builder.repeat == Repeat::Inner && at.map.varies(self.space.inner()))
    }

    fn variations(&self, bounds: &[(TileMap, usize)], builder: &Builder<'_>) -> (Class, bool) {
        bounds.iter().fold((Class::Uniform, false), |(class, inner), (at, _)| {
            let (own, own_inner) = self.variation(at, builder);
            (class.max(own), inner | own_inner)
        })
    }

    fn work(&mut self, builder: &mut Builder<'_>, dtype: DType, operands: &[Reg], work: Work) -> Value {
        let operands: SmallVec<[Value; 3]> = operands.iter().map(|&reg| self.value(reg)).collect();
        self.elementwise(builder, dtype, &operands, Action::Work(work))
    }

    fn elementwise(&mut self, builder: &mut Builder<'_>, dtype: DType, operands: &[Value], action: Action) -> Value {
        let class = operands.iter().map(|value| value.class).max().unwrap_or(Class::Uniform);
        let inner = operands.iter().any(|value| value.inner);
        // Vector mathematics has no operand with step 0.
        let whole =
            matches!(action, Action::Work(Work::Unary32(_) | Work::Binary32(_) | Work::Unary64(_) | Work::Binary64(_)));
        let operands: SmallVec<[Value; 3]> = operands
            .iter()
            .map(|&value| match value.class {
                Class::Uniform if !whole => value,
                _ => self.lift(builder, value, class),
            })
            .collect();
        self.push(builder, class, inner, dtype, &operands, action)
    }

    /// A 16-bit float's `f32` lanes, rounded.
    fn rounded(&mut self, builder: &mut Builder<'_>, value: Value) -> Value {
        match value.dtype {
            DType::F16 | DType::BF16 => {
                let wide = Value { dtype: DType::F32, ..value };
                let rounded = self.convert(builder, wide, value.dtype, lanes::cast(DType::F32, value.dtype, self.isa));
                self.drop_temporary(builder, wide);
                rounded
            }
            DType::F32 | DType::F64 | DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => {
                value
            }
        }
    }

    /// The loops of a conversion after one another.
    fn convert(&mut self, builder: &mut Builder<'_>, value: Value, dtype: DType, conversion: Conversion) -> Value {
        let mut value = value;
        let count = conversion.len();
        for (index, work) in conversion.into_iter().enumerate() {
            // Between the loops lies a wider float: `f64` if there is yet a narrowing to come, else `f32`.
            let between = if count - index == 3 { DType::F64 } else { DType::F32 };
            let dtype = if index + 1 == count { dtype } else { between };
            let next = self.elementwise(builder, dtype, &[value], Action::Work(Work::Lanes(work)));
            if index > 0 {
                self.drop_temporary(builder, value);
            }
            value = next;
        }
        Value { dtype, ..value }
    }

    /// A value with a lane for every lane of a class.
    fn lift(&mut self, builder: &mut Builder<'_>, value: Value, class: Class) -> Value {
        if value.class >= class {
            return value;
        }
        if let Some(&slot) = builder.expanded.get(&(value.slot, class)) {
            return Value { slot, class, ..value };
        }
        let size = Repr::of(value.dtype).size();
        let lifted = self.push(builder, class, value.inner, value.dtype, &[value], Action::Expand(value.class, size));
        builder.expanded.insert((value.slot, class), lifted.slot);
        lifted
    }

    fn push(
        &mut self,
        builder: &mut Builder<'_>,
        class: Class,
        inner: bool,
        dtype: DType,
        operands: &[Value],
        action: Action,
    ) -> Value {
        let result = self.result_slot(builder, class, inner, Repr::of(dtype).size());
        builder.local.push(result);
        let mut step = Step { class, result, operands: [result; 3], steps: [0; 3], action, direct: None };
        for (index, operand) in operands.iter().enumerate() {
            step.operands[index] = operand.slot;
            if operand.class == class && class != Class::Uniform {
                step.steps[index] = BLOCK * Repr::of(operand.dtype).size();
            }
        }
        match builder.repeat {
            Repeat::Inner if !inner => builder.program.before.push(step),
            Repeat::Inner | Repeat::Once => builder.program.body.push(step),
        }
        Value { slot: result, class, dtype, inner }
    }

    /// A slot for a result that a block makes.
    fn result_slot(&mut self, builder: &mut Builder<'_>, class: Class, inner: bool, size: usize) -> Slot {
        let repeated = builder.repeat == Repeat::Once || inner;
        let kind = SlotKind { class, size, span: Span::Tile };
        let result = match builder.done.iter().position(|&slot| repeated && self.slots[slot] == kind) {
            Some(index) => builder.done.swap_remove(index),
            None => self.take(class, kind.size),
        };
        builder.expanded.retain(|&(slot, _), _| slot != result);
        result
    }

    /// Gives back the slot of a value that is no register and has been read.
    fn drop_temporary(&mut self, builder: &mut Builder<'_>, value: Value) {
        if builder.repeat == Repeat::Once || value.inner {
            builder.local.retain(|&taken| taken != value.slot);
            builder.done.push(value.slot);
        }
    }

    /// Gives back the slots of registers that instruction `index` was the last to read.
    fn release(&mut self, builder: &mut Builder<'_>, index: usize) {
        let used = builder.pairs.reads(index);
        // What an open run reads is wanted until it is closed.
        let waits = |reg: &Reg| builder.run.as_ref().is_some_and(|run| run.reads.contains(reg));
        let over: SmallVec<[Reg; 3]> =
            used.into_iter().filter(|reg| builder.last.get(reg) == Some(&index) && !waits(reg)).collect();
        self.release_all(builder, &over, index);
    }

    /// Gives back the slots of registers that nobody reads after instruction `index`.
    fn release_all(&mut self, builder: &mut Builder<'_>, over: &[Reg], index: usize) {
        let mut done: SmallVec<[Slot; 4]> = SmallVec::new();
        for &reg in over {
            let value = self.value(reg);
            let repeated = builder.repeat == Repeat::Inner && !value.inner;
            let local = builder.local.contains(&value.slot) && !done.contains(&value.slot);
            if !repeated && local {
                done.push(value.slot);
            }
        }
        for slot in done {
            // Another name of the same lanes, made by a conversion that changes no bits, may live on.
            let alive = |reg: &Reg| builder.last.get(reg).is_some_and(|&last| last > index);
            let waits = |reg: &Reg| builder.run.as_ref().is_some_and(|run| run.reads.contains(reg));
            let shared = self.values.iter().any(|(reg, value)| value.slot == slot && (alive(reg) || waits(reg)));
            if !shared {
                builder.local.retain(|&taken| taken != slot);
                builder.expanded.retain(|&(from, _), _| from != slot);
                builder.done.push(slot);
            }
        }
    }
}
