//! From a recipe to a graph: each step picks an op from the menu, operands from what there is, and makes the rest fit.
//!
//! A step whose result would be too large, or would have no value (the maximum of nothing), makes no node.

use std::collections::HashMap;
use std::sync::Arc;

use kiln_ir::{
    Axes, Backend, DType, Direction, Graph, GraphBuilder, Literal, Loc, Op, Precision, ReduceKind, ScalarOp, ScanKind,
    ScatterKind, Shape, TensorType, Value, infer,
};

use super::numbers::{Numbers, Source, number, tensor};
use super::{Config, Customs, Ops, Outputs, Recipe, Values};

mod guard;
mod structure;

/// What a step may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    Scalar(ScalarOp),
    Reduce(ReduceKind),
    Scan(ScanKind),
    Scatter(ScatterKind),
    Literal,
    Constant,
    Iota,
    RandomBits,
    Cast,
    Bitcast,
    Select,
    Reshape,
    Permute,
    Broadcast,
    Slice,
    Pad,
    Concat,
    MatMul,
    Gather,
    Transfer,
    StopGradient,
    Mark,
    Barrier,
    Custom,
}

/// The moves of a configuration; those that stand twice are twice as likely.
fn menu(config: &Config) -> Vec<Move> {
    let mut menu: Vec<Move> = ScalarOp::ALL.iter().copied().map(Move::Scalar).collect();
    for _ in 0..2 {
        menu.extend(ReduceKind::ALL.map(Move::Reduce));
        menu.extend(ScanKind::ALL.map(Move::Scan));
        menu.extend(ScatterKind::ALL.map(Move::Scatter));
        menu.extend([Move::Literal, Move::Constant, Move::Iota, Move::RandomBits, Move::Cast, Move::Bitcast]);
        menu.extend([Move::Select, Move::Reshape, Move::Permute, Move::Broadcast, Move::Slice, Move::Pad]);
        menu.extend([Move::Concat, Move::MatMul, Move::MatMul, Move::Gather, Move::Transfer, Move::Custom]);
    }
    menu.extend([Move::StopGradient, Move::Mark, Move::Barrier]);
    menu.retain(|&step| is_allowed(config, step));
    menu
}

fn is_allowed(config: &Config, step: Move) -> bool {
    let by_gradient = matches!(config.ops, Ops::Differentiable | Ops::Smooth);
    let kinks = config.ops != Ops::Smooth;
    match step {
        Move::Scalar(op) => DType::ALL.into_iter().any(|dtype| takes(config, op, dtype)),
        Move::Reduce(kind) => match kind {
            ReduceKind::Sum | ReduceKind::Prod => true,
            ReduceKind::Max | ReduceKind::Min => kinks,
            ReduceKind::ArgMax | ReduceKind::ArgMin => !by_gradient,
        },
        Move::Scan(kind) => kinks || matches!(kind, ScanKind::Sum | ScanKind::Prod),
        Move::Scatter(kind) => kinks || kind != ScatterKind::Max,
        Move::RandomBits | Move::Bitcast => !by_gradient,
        Move::StopGradient => kinks,
        Move::Transfer => config.backends.len() > 1,
        Move::Custom => config.customs != Customs::Excluded,
        Move::Cast => config.dtypes.len() > 1,
        Move::Literal
        | Move::Constant
        | Move::Iota
        | Move::Select
        | Move::Reshape
        | Move::Permute
        | Move::Broadcast
        | Move::Slice
        | Move::Pad
        | Move::Concat
        | Move::MatMul
        | Move::Gather
        | Move::Mark
        | Move::Barrier => true,
    }
}

/// Whether an elementwise op may be applied to a dtype.
fn takes(config: &Config, op: ScalarOp, dtype: DType) -> bool {
    use ScalarOp::{Abs, Ceil, Clamp, Floor, Max, Min, Rem, Round, Sign, Trunc};
    let Some(result) = op.result_dtype(dtype) else { return false };
    let jumps = matches!(op, Floor | Ceil | Round | Trunc | Sign | Rem) || result == DType::Bool;
    match config.ops {
        Ops::All => true,
        Ops::Continuous => !dtype.is_float() || !jumps,
        Ops::Differentiable => dtype.is_float() && result.is_float(),
        Ops::Smooth => dtype.is_float() && !jumps && !matches!(op, Abs | Max | Min | Clamp),
    }
}

/// The random numbers of one step; 0 when they have run out.
struct Choices<'r> {
    numbers: &'r [u16],
}

impl Choices<'_> {
    fn next(&mut self) -> usize {
        match self.numbers.split_first() {
            Some((&first, rest)) => {
                self.numbers = rest;
                usize::from(first)
            }
            None => 0,
        }
    }

    fn below(&mut self, count: usize) -> usize {
        self.next() % count.max(1)
    }

    fn of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// The graph of a recipe.
pub(super) fn graph(config: &Config, recipe: &Recipe) -> Graph {
    let mut garden = Garden { config, builder: GraphBuilder::new("random"), pool: Vec::new(), bounds: HashMap::new() };
    for (index, numbers) in recipe.arguments.iter().enumerate() {
        garden.argument(index, &mut Choices { numbers });
    }
    let menu = menu(config);
    for numbers in &recipe.steps {
        let mut choices = Choices { numbers };
        let step = choices.of(&menu);
        if let Some(value) = garden.step(step, &mut choices) {
            let value = garden.kept(value);
            garden.pool.push(value);
        }
    }
    garden.finish()
}

/// A graph while it grows.
struct Garden<'c> {
    config: &'c Config,
    builder: GraphBuilder,
    /// What later steps may use.
    pool: Vec<Value>,
    /// The largest magnitude of each value, where it is known.
    bounds: HashMap<Value, f64>,
}

impl Garden<'_> {
    fn argument(&mut self, index: usize, choices: &mut Choices<'_>) {
        let dtype = choices.of(&self.config.dtypes);
        let shape = self.some_shape(choices);
        let backend = choices.of(&self.config.backends);
        let ty = TensorType::new(dtype, shape, backend);
        let value = self.builder.input(format!("x{index}"), ty, Loc::Unknown).expect("names differ");
        self.bounds.insert(value, 12.0);
        let bound = if dtype.is_float() { 2.0 } else { 12.0 };
        self.bounds.insert(value, if self.config.numbers == Numbers::Edgy { f64::INFINITY } else { bound });
        self.pool.push(value);
    }

    fn some_shape(&self, choices: &mut Choices<'_>) -> Shape {
        let shapes: [&[usize]; 24] = [
            &[],
            &[1],
            &[2],
            &[3],
            &[2, 3],
            &[0],
            &[5],
            &[7],
            &[3, 1],
            &[1, 4],
            &[2, 3, 4],
            &[1, 1, 1],
            &[5, 7],
            &[3, 0],
            &[2, 1, 3, 2],
            &[13],
            &[31],
            &[17, 3],
            &[64],
            &[2, 67],
            &[257],
            &[33, 31],
            &[1009],
            &[3, 2, 2, 3, 2],
        ];
        let fitting: Vec<&[usize]> =
            shapes.into_iter().filter(|shape| shape.iter().product::<usize>() <= self.config.max_elements).collect();
        Shape::from(choices.of(&fitting))
    }

    fn ty(&self, value: Value) -> TensorType {
        self.builder.ty(value).clone()
    }

    /// Adds a node, unless it has no type or too many elements.
    fn add(&mut self, op: Op, operands: &[Value]) -> Option<Value> {
        let types: Vec<TensorType> = operands.iter().map(|&operand| self.ty(operand)).collect();
        let results = infer(&op, &types.iter().collect::<Vec<_>>()).ok()?;
        if results.iter().any(|ty| ty.shape.num_elements() > self.config.max_elements.max(1)) {
            return None;
        }
        let bound = self.bound(&op, operands, results.first());
        let value = self.builder.value(op, operands, Loc::Unknown).expect("it was inferred");
        self.bounds.insert(value, bound);
        Some(value)
    }

    /// One of the values that a test admits; the latest ones come up more often.
    fn pick(&self, choices: &mut Choices<'_>, admits: impl Fn(&TensorType) -> bool) -> Option<Value> {
        let found: Vec<Value> =
            self.pool.iter().rev().copied().filter(|&value| admits(self.builder.ty(value))).collect();
        let number = choices.next();
        let window = if number.is_multiple_of(2) { found.len().min(3) } else { found.len() };
        found.get((number / 2) % window.max(1)).copied()
    }

    /// One of the values whose dtype a test admits, or a fresh one.
    fn pick_or_make(&mut self, choices: &mut Choices<'_>, admits: impl Fn(DType) -> bool) -> Option<Value> {
        if let Some(value) = self.pick(choices, |ty| admits(ty.dtype)) {
            return Some(value);
        }
        let dtypes: Vec<DType> = self.config.dtypes.iter().copied().filter(|&dtype| admits(dtype)).collect();
        if dtypes.is_empty() {
            return None;
        }
        let shape = self.some_shape(choices);
        let ty = TensorType::new(choices.of(&dtypes), shape, choices.of(&self.config.backends));
        self.make(&ty, choices)
    }

    /// A fresh value of a type: a constant, or a literal broadcast.
    fn make(&mut self, ty: &TensorType, choices: &mut Choices<'_>) -> Option<Value> {
        if ty.shape.rank() > 0 && choices.below(3) == 0 {
            let literal = self.literal(ty.dtype, ty.backend, choices)?;
            return self.add(Op::Broadcast(ty.shape.clone()), &[literal]);
        }
        let mut source = Source::new(choices.next() as u64);
        let data = tensor(ty, self.constant_numbers(), &mut source);
        self.add(Op::Constant { data, backend: ty.backend }, &[])
    }

    fn literal(&mut self, dtype: DType, backend: Backend, choices: &mut Choices<'_>) -> Option<Value> {
        let value = self.number(dtype, choices);
        self.add(Op::Literal { value, backend }, &[])
    }

    fn number(&self, dtype: DType, choices: &mut Choices<'_>) -> Literal {
        number(dtype, self.constant_numbers(), &mut Source::new(choices.next() as u64))
    }

    fn constant_numbers(&self) -> Numbers {
        match (self.config.values, self.config.numbers) {
            (Values::Wild, _) => Numbers::Edgy,
            (Values::Tame, Numbers::Dyadic) => Numbers::Dyadic,
            (Values::Tame, Numbers::Plain | Numbers::Edgy) => Numbers::Plain,
        }
    }

    /// A value made to have a type: moved, cast, broadcast, reshaped, or summed up and spread out.
    fn conform(&mut self, value: Value, ty: &TensorType, choices: &mut Choices<'_>) -> Option<Value> {
        let mut value = value;
        if self.ty(value).backend != ty.backend {
            value = self.add(Op::Transfer(ty.backend), &[value])?;
        }
        if self.ty(value).dtype != ty.dtype {
            if !self.may_cast(self.ty(value).dtype, ty.dtype) {
                return self.make(ty, choices);
            }
            value = self.add(Op::Cast(ty.dtype), &[value])?;
        }
        let shape = self.ty(value).shape;
        if shape == ty.shape {
            return Some(value);
        }
        if let Some(broadcast) = self.add(Op::Broadcast(ty.shape.clone()), &[value]) {
            return Some(broadcast);
        }
        if shape.num_elements() != ty.shape.num_elements() {
            let kind = if ty.dtype == DType::Bool { ReduceKind::Max } else { ReduceKind::Sum };
            value = self.add(Op::Reduce { kind, axes: Axes::all(shape.rank()) }, &[value])?;
            value = self.add(Op::Reshape(Shape::scalar()), &[value])?;
            value = self.kept(value);
            return self.add(Op::Broadcast(ty.shape.clone()), &[value]);
        }
        self.add(Op::Reshape(ty.shape.clone()), &[value])
    }

    fn may_cast(&self, from: DType, to: DType) -> bool {
        match self.config.ops {
            Ops::All => true,
            Ops::Continuous => !from.is_float() || to.is_float(),
            Ops::Differentiable | Ops::Smooth => from.is_float() && to.is_float(),
        }
    }

    fn step(&mut self, step: Move, choices: &mut Choices<'_>) -> Option<Value> {
        match step {
            Move::Scalar(op) => self.elementwise(op, choices),
            Move::Reduce(kind) => self.reduce(kind, choices),
            Move::Scan(kind) => {
                let x = self.pick_or_make(choices, |dtype| dtype != DType::Bool)?;
                let axis = choices.below(self.ty(x).shape.rank());
                let direction = choices.of(&[Direction::Forward, Direction::Reverse]);
                self.add(Op::Scan { kind, axis, direction }, &[x])
            }
            Move::Scatter(kind) => self.scatter(kind, choices),
            Move::Literal => {
                let dtype = choices.of(&self.config.dtypes);
                self.literal(dtype, choices.of(&self.config.backends), choices)
            }
            Move::Constant => {
                let shape = self.some_shape(choices);
                let ty = TensorType::new(choices.of(&self.config.dtypes), shape, choices.of(&self.config.backends));
                self.make(&ty, choices)
            }
            Move::Iota => {
                let shape = self.some_shape(choices);
                let ty = TensorType::new(choices.of(&self.config.dtypes), shape, choices.of(&self.config.backends));
                let axis = choices.below(ty.shape.rank());
                self.add(Op::Iota { ty, axis }, &[])
            }
            Move::RandomBits => {
                let backend = choices.of(&self.config.backends);
                let key = TensorType::new(DType::U32, [2], backend);
                let found = self.pick(choices, |ty| *ty == key);
                let key = found.or_else(|| self.make(&key, choices))?;
                let shape = self.some_shape(choices);
                self.add(Op::RandomBits { shape, stream: choices.next() as u32 }, &[key])
            }
            Move::Cast => {
                let x = self.pick(choices, |_| true)?;
                let to = choices.of(&self.config.dtypes);
                if self.may_cast(self.ty(x).dtype, to) { self.add(Op::Cast(to), &[x]) } else { None }
            }
            Move::Bitcast => self.bitcast(choices),
            Move::Select => {
                let then = self.pick(choices, |_| true)?;
                let ty = self.ty(then);
                let otherwise = self.pick(choices, |_| true)?;
                let otherwise = self.conform(otherwise, &ty, choices)?;
                let condition = ty.with_dtype(DType::Bool);
                let found = self.pick(choices, |ty| ty.dtype == DType::Bool);
                let condition = match found {
                    Some(found) => self.conform(found, &condition, choices)?,
                    None => self.make(&condition, choices)?,
                };
                self.add(Op::Select, &[condition, then, otherwise])
            }
            Move::Reshape => self.reshape(choices),
            Move::Permute => self.permute(choices),
            Move::Broadcast => self.broadcast(choices),
            Move::Slice => self.slice(choices),
            Move::Pad => self.pad(choices),
            Move::Concat => self.concat(choices),
            Move::MatMul => self.matmul(choices),
            Move::Gather => self.gather(choices),
            Move::Transfer => {
                let x = self.pick(choices, |_| true)?;
                self.add(Op::Transfer(choices.of(&self.config.backends)), &[x])
            }
            Move::StopGradient => self.identity(Op::StopGradient, choices),
            Move::Mark => self.identity(Op::Mark, choices),
            Move::Barrier => self.identity(Op::Barrier, choices),
            Move::Custom => self.custom(choices),
        }
    }

    fn identity(&mut self, op: Op, choices: &mut Choices<'_>) -> Option<Value> {
        let x = self.pick(choices, |_| true)?;
        self.add(op, &[x])
    }

    fn elementwise(&mut self, op: ScalarOp, choices: &mut Choices<'_>) -> Option<Value> {
        let config = self.config;
        let first = self.pick_or_make(choices, |dtype| takes(config, op, dtype))?;
        let ty = self.ty(first);
        let mut operands = vec![first];
        while operands.len() < op.arity() {
            let other = self.pick(choices, |_| true)?;
            operands.push(self.conform(other, &ty, choices)?);
        }
        let operands = self.guarded(op, operands)?;
        self.add(Op::Scalar(op), &operands)
    }

    fn reduce(&mut self, kind: ReduceKind, choices: &mut Choices<'_>) -> Option<Value> {
        let sums = matches!(kind, ReduceKind::Sum | ReduceKind::Prod);
        let exact = kind.is_arg() && self.config.ops != Ops::All;
        let admits = |dtype: DType| !((sums || kind.is_arg()) && dtype == DType::Bool || exact && dtype.is_float());
        let x = self.pick_or_make(choices, admits)?;
        let rank = self.ty(x).shape.rank();
        let axes = if kind.is_arg() {
            Axes::one(choices.below(rank))
        } else {
            let mask = choices.next() + 1;
            Axes::from_indices((0..rank).filter(|axis| mask >> axis & 1 == 1))
        };
        self.add(Op::Reduce { kind, axes }, &[x])
    }

    fn bitcast(&mut self, choices: &mut Choices<'_>) -> Option<Value> {
        let continuous = self.config.ops == Ops::Continuous;
        let x = self.pick_or_make(choices, |dtype| dtype != DType::Bool && !(continuous && dtype.is_float()))?;
        let from = self.ty(x).dtype;
        let tame = self.config.values == Values::Tame;
        let fits = |to: &DType| to.size() == from.size() && *to != DType::Bool && !(tame && to.is_float());
        let dtypes: Vec<DType> = self.config.dtypes.iter().copied().filter(fits).collect();
        if dtypes.is_empty() { None } else { self.add(Op::Bitcast(choices.of(&dtypes)), &[x]) }
    }

    fn matmul(&mut self, choices: &mut Choices<'_>) -> Option<Value> {
        let lhs = self.pick_or_make(choices, |dtype| dtype != DType::Bool)?;
        let mut ty = self.ty(lhs);
        let lhs = match ty.shape.rank() {
            0 | 1 => {
                ty = ty.with_shape([1, ty.shape.num_elements()]);
                self.add(Op::Reshape(ty.shape.clone()), &[lhs])?
            }
            _ => lhs,
        };
        let rank = ty.shape.rank();
        let columns = choices.of(&[1, 2, 3, 5, 0, 7]);
        let shape = ty.shape.with_extent(rank - 2, ty.shape[rank - 1]).with_extent(rank - 1, columns);
        let found = self.pick(choices, |other| other.dtype == ty.dtype);
        let rhs = self.conform(found?, &ty.with_shape(shape), choices)?;
        let precision = choices.of(&[Precision::Full, Precision::Full, Precision::Tf32]);
        self.add(Op::MatMul { precision }, &[lhs, rhs])
    }

    fn finish(mut self) -> Graph {
        let mut used = std::collections::HashSet::new();
        used.extend(self.builder.nodes().iter().flat_map(|node| node.operands.iter().copied()));
        let all = self.builder.nodes().iter().enumerate().filter(|(_, node)| !matches!(node.op, Op::Input { .. }));
        let mut loose: Vec<Value> = all
            .flat_map(|(index, node)| {
                (0..node.types.len()).map(move |result| Value { result: result as u32, ..Value::first(index) })
            })
            .filter(|value| !used.contains(value))
            .collect();
        if loose.is_empty() {
            loose.push(self.pool[0]);
        }
        let outputs: Vec<(Arc<str>, Value)> = match self.config.outputs {
            Outputs::LooseEnds => {
                loose.into_iter().enumerate().map(|(index, value)| (format!("y{index}").into(), value)).collect()
            }
            Outputs::Loss => vec![("loss".into(), self.loss(&loose))],
        };
        self.builder.finish(outputs).expect("names differ")
    }

    /// The sum of the float values among some, each through a mean of sines.
    fn loss(&mut self, values: &[Value]) -> Value {
        let floats = values.iter().copied().filter(|&value| self.builder.ty(value).dtype.is_float());
        let mut floats: Vec<Value> = floats.collect();
        if floats.is_empty() {
            floats.push(self.pool[0]);
        }
        let dtype = self.config.dtypes[0];
        let mean = |b: &mut GraphBuilder, value: Value| {
            let loc = Loc::Unknown;
            let wave = b.scalar(ScalarOp::Sin, &[value], loc)?;
            let wave = b.cast(wave, dtype, loc)?;
            let shape = b.ty(wave).shape.clone();
            let sum = b.reduce(ReduceKind::Sum, Axes::all(shape.rank()), wave, loc)?;
            let sum = b.reshape(sum, &Shape::scalar(), loc)?;
            let share = b.literal_like(sum, 1.0 / shape.num_elements().max(1) as f64, loc)?;
            b.scalar(ScalarOp::Mul, &[sum, share], loc)
        };
        let mut total = None;
        for value in floats {
            let part = mean(&mut self.builder, value).expect("floats of one backend");
            total = Some(match total {
                None => part,
                Some(total) => {
                    self.builder.scalar(ScalarOp::Add, &[total, part], Loc::Unknown).expect("scalars of one dtype")
                }
            });
        }
        total.expect("there is at least one float")
    }
}
