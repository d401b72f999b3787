//! Turning values into instructions: the element of a value at an index, computed from what is in memory.
//!
//! Pointwise ops become instructions; views only change the index; what is in memory is loaded. Registers that do not depend on the
//! kernel's inner axes are hoisted out of its inner loops. Equal work at equal indices is emitted once.

use std::collections::HashMap;

use kiln_ir::kernel::{Access, Address, Affine, Block, Bound, Buffer, BufferIndex, Instruction, Operation, Reg};
use kiln_ir::{Code, DType, Diagnostic, Graph, Literal, Op, ScalarOp, Shape, Value};
use smallvec::{SmallVec, smallvec};

use crate::index::{Coord, Index, Level, Split};

/// Why an evaluation ended early.
pub(crate) enum Stop {
    /// The kernel's space must have this axis split, with this inner extent; then it will go.
    Refine { axis: usize, inner: usize },
    /// A broken invariant of ours.
    Fault(Box<Diagnostic>),
}

impl Stop {
    pub(crate) fn fault(message: String) -> Stop {
        Stop::Fault(Box::new(Diagnostic::new(Code::K0901, message)))
    }
}

/// Where a kernel takes a value from.
pub(crate) enum Source {
    /// Computed in place, from its operands.
    Inline,
    /// Loaded.
    Memory,
    /// Held in a register, for the element at this index.
    Register(Reg, Index),
}

/// What a kernel is given: buffers and the values behind them; and the next free register.
#[derive(Default)]
pub(crate) struct Binding {
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) values: Vec<Value>,
    known: HashMap<Value, BufferIndex>,
    next: u32,
}

impl Binding {
    pub(crate) fn bind(&mut self, graph: &Graph, value: Value, access: Access) -> BufferIndex {
        *self.known.entry(value).or_insert_with(|| {
            let ty = graph.ty(value);
            self.buffers.push(Buffer { dtype: ty.dtype, len: ty.shape.num_elements(), access });
            self.values.push(value);
            BufferIndex(self.values.len() as u32 - 1)
        })
    }

    pub(crate) fn register(&mut self) -> Reg {
        self.next += 1;
        Reg(self.next - 1)
    }
}

/// Instructions of one level, with what is known to be computed there.
#[derive(Default)]
struct Section {
    instructions: Vec<Instruction>,
    operations: HashMap<(DType, Operation), Reg>,
    values: HashMap<(Value, Index, Vec<Bound>), Reg>,
}

/// Emits the instructions of one kernel space.
pub(crate) struct Evaluator<'a> {
    graph: &'a Graph,
    source: &'a dyn Fn(Value) -> Source,
    pub(crate) binding: &'a mut Binding,
    /// Extents of the kernel's axes.
    extents: SmallVec<[usize; 6]>,
    /// How many of them are outer.
    outer: usize,
    /// Whether the space may have its axes split.
    refine: Refinement,
    point: Section,
    body: Section,
    inner_registers: std::collections::HashSet<Reg>,
    guards: Vec<Bound>,
    /// Every read from memory: value and index.
    pub(crate) reads: Vec<(Value, Index)>,
}

/// Whether a kernel's axes may be split in two.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refinement {
    Allowed,
    /// Of so many axes, the first ones.
    Leading(usize),
    Fixed,
}

impl Refinement {
    fn allows(self, axis: usize) -> bool {
        match self {
            Refinement::Allowed => true,
            Refinement::Leading(axes) => axis < axes,
            Refinement::Fixed => false,
        }
    }
}

impl<'a> Evaluator<'a> {
    pub(crate) fn new(
        graph: &'a Graph,
        source: &'a dyn Fn(Value) -> Source,
        binding: &'a mut Binding,
        outer: &[usize],
        inner: &[usize],
        refine: Refinement,
    ) -> Evaluator<'a> {
        Evaluator {
            graph,
            source,
            binding,
            extents: outer.iter().chain(inner).copied().collect(),
            outer: outer.len(),
            refine,
            point: Section::default(),
            body: Section::default(),
            inner_registers: Default::default(),
            guards: Vec::new(),
            reads: Vec::new(),
        }
    }

    /// The instructions that run once per outer point, emitted since the last call.
    pub(crate) fn take_point(&mut self) -> Block {
        Block { instructions: std::mem::take(&mut self.point.instructions), stores: Vec::new() }
    }

    /// The instructions that run for every inner point, emitted since the last call; their registers end here.
    pub(crate) fn take_body(&mut self) -> Block {
        Block { instructions: std::mem::take(&mut self.body).instructions, stores: Vec::new() }
    }

    /// The element of `value` at `index`.
    pub(crate) fn value(&mut self, value: Value, index: &Index) -> Result<Reg, Stop> {
        let key = (value, index.clone(), self.guards.clone());
        if let Some(&reg) = self.point.values.get(&key).or_else(|| self.body.values.get(&key)) {
            return Ok(reg);
        }
        let reg = match (self.source)(value) {
            // Without elements it is never read; a stand-in keeps index arithmetic on extents of 0 out of the kernel.
            Source::Inline if self.graph.ty(value).shape.contains(&0) => {
                self.literal(Literal::zero(self.graph.ty(value).dtype))
            }
            Source::Inline => self.inline(value, index)?,
            Source::Memory => self.load(value, index),
            Source::Register(reg, held) => {
                let shape = &self.graph.ty(value).shape;
                if held.linear(shape) != index.linear(shape) {
                    return Err(Stop::fault(format!("{value} is held at another element than its reader wants")));
                }
                reg
            }
        };
        let section = if self.inner_registers.contains(&reg) { &mut self.body } else { &mut self.point };
        section.values.insert(key, reg);
        Ok(reg)
    }

    fn load(&mut self, value: Value, index: &Index) -> Reg {
        let ty = self.graph.ty(value);
        self.reads.push((value, index.clone()));
        let buffer = self.binding.bind(self.graph, value, Access::Read);
        let Coord { affine, computed } = index.linear(&ty.shape);
        let bounds = self.guards.clone();
        self.emit(ty.dtype, Operation::Load { buffer, address: Address { affine, computed }, bounds })
    }

    fn inline(&mut self, value: Value, index: &Index) -> Result<Reg, Stop> {
        let graph = self.graph;
        let node = graph.node(value);
        let ty = graph.ty(value);
        match &node.op {
            Op::Literal { value, .. } => Ok(self.literal(*value)),
            Op::Scalar(op) => {
                let operands = self.operands(&node.operands, index)?;
                Ok(self.emit(ty.dtype, Operation::Scalar(*op, operands)))
            }
            Op::Cast(dtype) => {
                let operand = self.value(node.operands[0], index)?;
                Ok(self.emit(*dtype, Operation::Cast(operand)))
            }
            Op::Bitcast(dtype) => {
                let operand = self.value(node.operands[0], index)?;
                Ok(self.emit(*dtype, Operation::Bitcast(operand)))
            }
            Op::Select => {
                let operands = self.operands(&node.operands, index)?;
                let (condition, then, otherwise) = (operands[0], operands[1], operands[2]);
                Ok(self.emit(ty.dtype, Operation::Select { condition, then, otherwise }))
            }
            Op::Iota { axis, .. } => {
                let coord = self.axes(index, &ty.shape)?[*axis].clone();
                Ok(self.number(&coord, ty.dtype))
            }
            Op::RandomBits { stream, .. } => {
                let word = |at| Index::Axes(vec![Coord::constant(at)]);
                let key = [self.value(node.operands[0], &word(0))?, self.value(node.operands[0], &word(1))?];
                let index = self.number(&index.linear(&ty.shape), DType::I64);
                Ok(self.emit(DType::U32, Operation::Random { key, stream: *stream, index }))
            }
            Op::Gather { axis, batch } => {
                self.gather(node.operands[0], node.operands[1], *axis, *batch, index, &ty.shape)
            }
            Op::Reshape(_) => self.reshape(node.operands[0], index, &ty.shape),
            Op::Permute(permutation) => {
                let coords = self.axes(index, &ty.shape)?;
                let mut moved = coords.clone();
                for (coord, &axis) in coords.into_iter().zip(permutation) {
                    moved[axis] = coord;
                }
                self.value(node.operands[0], &Index::Axes(moved))
            }
            Op::Broadcast(_) => {
                let coords = self.axes(index, &ty.shape)?;
                let from = &graph.ty(node.operands[0]).shape;
                let own = &coords[coords.len() - from.rank()..];
                let coords = from.iter().zip(own);
                let coords =
                    coords.map(|(&extent, coord)| if extent == 1 { Coord::constant(0) } else { coord.clone() });
                self.value(node.operands[0], &Index::Axes(coords.collect()))
            }
            Op::Slice { starts, steps, .. } => {
                let mut coords = self.axes(index, &ty.shape)?;
                for (axis, coord) in coords.iter_mut().enumerate() {
                    *coord = coord.times(steps[axis]).shifted(starts[axis] as i64);
                }
                self.value(node.operands[0], &Index::Axes(coords))
            }
            Op::Pad { low, value, .. } => self.pad(node.operands[0], low, *value, index, &ty.shape),
            Op::Concat { axis } => self.concat(&node.operands, *axis, index, &ty.shape),
            Op::StopGradient | Op::Mark | Op::Barrier => self.value(node.operands[0], index),
            Op::Input { .. }
            | Op::Constant { .. }
            | Op::Reduce { .. }
            | Op::Scan { .. }
            | Op::MatMul { .. }
            | Op::Scatter { .. }
            | Op::Transfer(_)
            | Op::Custom(_) => Err(Stop::fault(format!("{} cannot be computed inline", node.op.name()))),
        }
    }

    fn operands(&mut self, operands: &[Value], index: &Index) -> Result<SmallVec<[Reg; 3]>, Stop> {
        operands.iter().map(|&operand| self.value(operand, index)).collect()
    }

    fn reshape(&mut self, operand: Value, index: &Index, shape: &Shape) -> Result<Reg, Stop> {
        let from = &self.graph.ty(operand).shape;
        let longer = |extent: &&usize| **extent != 1;
        let index = match index {
            // Only axes of extent 1 come or go: the coordinates stay as they are.
            Index::Axes(coords) if from.iter().filter(longer).eq(shape.iter().filter(longer)) => {
                let mut kept = coords.iter().zip(shape.iter()).filter(|(_, extent)| **extent != 1);
                let coords = from.iter().map(|&extent| match extent {
                    1 => Coord::constant(0),
                    _ => kept.next().map_or_else(Coord::default, |(coord, _)| coord.clone()),
                });
                Index::Axes(coords.collect())
            }
            _ => Index::Linear(index.linear(shape)),
        };
        self.value(operand, &index)
    }

    fn gather(
        &mut self,
        x: Value,
        indices: Value,
        axis: usize,
        batch: usize,
        index: &Index,
        shape: &Shape,
    ) -> Result<Reg, Stop> {
        let coords = self.axes(index, shape)?;
        let own = self.graph.ty(indices).shape.rank() - batch;
        let at = coords[..batch].iter().chain(&coords[axis..axis + own]).cloned().collect();
        let taken = self.value(indices, &Index::Axes(at))?;
        let wide = self.emit(DType::I64, Operation::Cast(taken));
        let clamped = self.clamp(wide, self.graph.ty(x).shape[axis]);
        let before = coords[..axis].iter().cloned();
        let after = coords[axis + own..].iter().cloned();
        let at = before.chain([Coord::register(clamped)]).chain(after).collect();
        self.value(x, &Index::Axes(at))
    }

    fn pad(
        &mut self,
        operand: Value,
        low: &[usize],
        value: Literal,
        index: &Index,
        shape: &Shape,
    ) -> Result<Reg, Stop> {
        let from = self.graph.ty(operand).shape.clone();
        let around = self.literal(value);
        if from.contains(&0) {
            return Ok(around);
        }
        let mut coords = self.axes(index, shape)?;
        let mut inside = Inside::default();
        for (axis, coord) in coords.iter_mut().enumerate() {
            *coord = coord.shifted(-(low[axis] as i64));
            *coord = self.check(&mut inside, coord, from[axis]);
        }
        let then = self.guarded(&inside, operand, &Index::Axes(coords))?;
        Ok(self.choose(inside, value.dtype(), then, around))
    }

    fn concat(&mut self, operands: &[Value], axis: usize, index: &Index, shape: &Shape) -> Result<Reg, Stop> {
        let dtype = self.graph.ty(operands[0]).dtype;
        let coords = self.axes(index, shape)?;
        let mut end = shape[axis];
        let mut result = None;
        for &operand in operands.iter().rev() {
            let extent = self.graph.ty(operand).shape[axis];
            if extent == 0 {
                continue;
            }
            end -= extent;
            let mut inside = Inside::default();
            let mut own = coords.clone();
            own[axis] = self.check(&mut inside, &coords[axis].shifted(-(end as i64)), extent);
            let value = self.guarded(&inside, operand, &Index::Axes(own))?;
            result = Some(match result {
                None => value,
                Some(rest) => self.choose(inside, dtype, value, rest),
            });
        }
        result.ok_or_else(|| Stop::fault("concat of nothing has no elements to compute".to_owned()))
    }

    /// Adds `0 <= coord < extent` to `inside` and gives a coordinate that is safe to use: itself, or clamped where it is computed.
    fn check(&mut self, inside: &mut Inside, coord: &Coord, extent: usize) -> Coord {
        if coord.is_affine() {
            let (least, most) = coord.affine.range(&self.extents);
            if least < 0 || most >= extent as i64 {
                inside.bounds.push(Bound { at: coord.affine.clone(), extent });
            }
            return coord.clone();
        }
        let reg = self.number(coord, DType::I64);
        let (zero, end) = (self.integer(0), self.integer(extent as i64));
        let above = self.emit(DType::Bool, Operation::Scalar(ScalarOp::Ge, smallvec![reg, zero]));
        let below = self.emit(DType::Bool, Operation::Scalar(ScalarOp::Lt, smallvec![reg, end]));
        inside.conditions.push(self.emit(DType::Bool, Operation::Scalar(ScalarOp::And, smallvec![above, below])));
        Coord::register(self.clamp(reg, extent))
    }

    /// The value, with nothing read where the affine bounds do not hold.
    fn guarded(&mut self, inside: &Inside, value: Value, index: &Index) -> Result<Reg, Stop> {
        let before = self.guards.len();
        self.guards.extend(inside.bounds.iter().cloned());
        let result = self.value(value, index);
        self.guards.truncate(before);
        result
    }

    fn choose(&mut self, inside: Inside, dtype: DType, then: Reg, otherwise: Reg) -> Reg {
        let Inside { bounds, mut conditions } = inside;
        if !bounds.is_empty() {
            conditions.push(self.emit(DType::Bool, Operation::Within(bounds)));
        }
        let Some(first) = conditions.pop() else { return then };
        let condition = conditions
            .into_iter()
            .fold(first, |all, next| self.emit(DType::Bool, Operation::Scalar(ScalarOp::And, smallvec![all, next])));
        self.emit(dtype, Operation::Select { condition, then, otherwise })
    }

    fn clamp(&mut self, reg: Reg, extent: usize) -> Reg {
        let (zero, last) = (self.integer(0), self.integer(extent.max(1) as i64 - 1));
        self.emit(DType::I64, Operation::Scalar(ScalarOp::Clamp, smallvec![reg, zero, last]))
    }

    /// The coordinates of an index along each axis of `shape`.
    fn axes(&mut self, index: &Index, shape: &Shape) -> Result<Vec<Coord>, Stop> {
        let mut rest = match index {
            Index::Axes(coords) => return Ok(coords.clone()),
            Index::Linear(position) => position.clone(),
        };
        let mut coords = vec![Coord::constant(0); shape.rank()];
        let longer: Vec<usize> = (0..shape.rank()).filter(|&axis| shape[axis] != 1).collect();
        for (position, &axis) in longer.iter().enumerate().rev() {
            if position == 0 {
                coords[axis] = rest;
                break;
            }
            let (high, low) = self.divide(&rest, shape[axis].max(1))?;
            coords[axis] = low;
            rest = high;
        }
        Ok(coords)
    }

    fn divide(&mut self, coord: &Coord, divisor: usize) -> Result<(Coord, Coord), Stop> {
        match coord.split(divisor, &self.extents) {
            Split::Exact(high, low) => return Ok((high, low)),
            Split::Refine { axis, inner } if self.refine.allows(axis) => {
                return Err(Stop::Refine { axis, inner });
            }
            Split::Refine { .. } | Split::Computed => {}
        }
        let (reg, by) = (self.number(coord, DType::I64), self.integer(divisor as i64));
        let high = self.emit(DType::I64, Operation::Scalar(ScalarOp::Div, smallvec![reg, by]));
        let low = self.emit(DType::I64, Operation::Scalar(ScalarOp::Rem, smallvec![reg, by]));
        Ok((Coord::register(high), Coord::register(low)))
    }

    /// A coordinate as a number of a dtype.
    fn number(&mut self, coord: &Coord, dtype: DType) -> Reg {
        if coord.is_affine() {
            return self.emit(dtype, Operation::Index(coord.affine.clone()));
        }
        let mut sum = None;
        if coord.affine != Affine::default() {
            sum = Some(self.emit(DType::I64, Operation::Index(coord.affine.clone())));
        }
        for &(reg, stride) in &coord.computed {
            let term = if stride == 1 {
                reg
            } else {
                let stride = self.integer(stride);
                self.emit(DType::I64, Operation::Scalar(ScalarOp::Mul, smallvec![reg, stride]))
            };
            sum = Some(match sum {
                None => term,
                Some(sum) => self.emit(DType::I64, Operation::Scalar(ScalarOp::Add, smallvec![sum, term])),
            });
        }
        let sum = sum.unwrap_or_else(|| self.integer(0));
        if dtype == DType::I64 { sum } else { self.emit(dtype, Operation::Cast(sum)) }
    }

    fn integer(&mut self, value: i64) -> Reg {
        self.literal(Literal::from_i128(DType::I64, i128::from(value)))
    }

    fn literal(&mut self, value: Literal) -> Reg {
        self.emit(value.dtype(), Operation::Literal(value))
    }

    /// The register of an operation, emitted where it is first needed: outside the inner loop if nothing in it varies there.
    pub(crate) fn emit(&mut self, dtype: DType, operation: Operation) -> Reg {
        let key = (dtype, operation);
        if let Some(&reg) = self.point.operations.get(&key).or_else(|| self.body.operations.get(&key)) {
            return reg;
        }
        let level = self.level(&key.1);
        let result = self.binding.register();
        if level == Level::Full {
            self.inner_registers.insert(result);
        }
        let section = if level == Level::Full { &mut self.body } else { &mut self.point };
        section.instructions.push(Instruction { result, dtype, operation: key.1.clone() });
        section.operations.insert(key, result);
        result
    }

    fn level(&self, operation: &Operation) -> Level {
        let varies = |affine: &Affine| (self.outer..self.extents.len()).any(|axis| affine.stride(axis) != 0);
        let inner = |reg: &Reg| self.inner_registers.contains(reg);
        let full = match operation {
            Operation::Literal(_) => false,
            Operation::Index(affine) => varies(affine),
            Operation::Load { address, bounds, .. } => {
                varies(&address.affine)
                    || address.computed.iter().any(|(reg, _)| inner(reg))
                    || bounds.iter().any(|bound| varies(&bound.at))
            }
            Operation::Within(bounds) => bounds.iter().any(|bound| varies(&bound.at)),
            Operation::Scalar(_, operands) => operands.iter().any(inner),
            Operation::Fma(a, b, c) => [a, b, c].into_iter().any(inner),
            Operation::Cast(operand) | Operation::Bitcast(operand) => inner(operand),
            Operation::Select { condition, then, otherwise } => [condition, then, otherwise].into_iter().any(inner),
            Operation::Random { key, index, .. } => key.iter().chain([index]).any(inner),
        };
        if full { Level::Full } else { Level::Outer }
    }
}

/// Conditions for an element to be inside an operand.
#[derive(Default)]
struct Inside {
    bounds: Vec<Bound>,
    conditions: Vec<Reg>,
}
