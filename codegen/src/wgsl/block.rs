//! Blocks of instructions as text: one `let` an instruction, at one point or at several neighbours.
//!
//! Where a point has neighbours, what differs between them is a vector and what does not stays a scalar.

use std::collections::HashMap;
use std::rc::Rc;

use kiln_ir::kernel::{Affine, Block, Instruction, Operation, Reg};
use kiln_ir::{Code, DType, Diagnostic, Literal};

use super::memory;
use super::module::Module;
use super::ranges::{Ranges, Width, operands};
use super::scalar;
use super::space::Point;
use super::types::{Held, literal};
use super::writer::Writer;

/// What stands for a register in the text.
#[derive(Clone, Debug)]
pub(super) struct Value {
    /// A name or a constant, or (of loads) an expression.
    pub(super) text: String,
    /// How the number is held.
    pub(super) held: Held,
    /// How many neighbours it has values of its own for; 1 where all have the same.
    pub(super) width: u32,
    /// The dtype, where it is a register's.
    pub(super) dtype: DType,
    /// Whether the text is a constant.
    pub(super) constant: bool,
}

impl Value {
    /// A value that is no constant.
    pub(super) fn new(text: impl Into<String>, held: Held, width: u32) -> Value {
        let dtype = match held {
            Held::F32 => DType::F32,
            Held::F64 => DType::F64,
            Held::I32 => DType::I32,
            Held::U32 => DType::U32,
            Held::I64 => DType::I64,
            Held::Bool => DType::Bool,
        };
        Value { text: text.into(), held, width, dtype, constant: false }
    }

    /// The value as one of a dtype that is held so.
    pub(super) fn of(self, dtype: DType) -> Value {
        Value { dtype, ..self }
    }

    /// The value at one neighbour.
    pub(super) fn component(&self, lane: u32) -> String {
        if self.width == 1 {
            self.text.clone()
        } else {
            format!("{}.{}", self.text, ["x", "y", "z", "w"][lane as usize])
        }
    }

    /// The value at one neighbour as an `i32` index.
    pub(super) fn index(&self, lane: u32) -> String {
        match self.held {
            Held::I32 => self.component(lane),
            Held::I64 | Held::U32 | Held::F32 | Held::F64 | Held::Bool => format!("i32({})", self.component(lane)),
        }
    }

    /// The value as a vector of `width`.
    pub(super) fn splat(&self, width: u32) -> String {
        if self.width == width { self.text.clone() } else { format!("{}({})", self.held.wide(width), self.text) }
    }

    /// The same number held another way; between `i32` and `i64`.
    pub(super) fn held_as(&self, held: Held) -> Value {
        if self.held == held {
            return self.clone();
        }
        let text = match self.text.strip_suffix('i') {
            Some(digits) if self.constant && held == Held::I64 => format!("{digits}li"),
            // Some drivers take the sign of what has none where width and sign change at once.
            _ if self.held == Held::U32 && held == Held::I64 => {
                let unsigned = if self.width == 1 { "u64".to_owned() } else { format!("vec{}<u64>", self.width) };
                format!("{}({unsigned}({}))", held.wide(self.width), self.text)
            }
            _ => format!("{}({})", held.wide(self.width), self.text),
        };
        Value { text, held, ..self.clone() }
    }
}

/// The registers that are defined at a place of the text.
#[derive(Clone, Debug)]
pub(super) struct Scope {
    values: HashMap<Reg, Value>,
    ranges: Rc<Ranges>,
    /// Follows the names of registers, where a block is printed more than once in one WGSL scope.
    pub(super) suffix: String,
    /// What has been computed at this point before, by what it computes.
    known: Option<Known>,
}

type Known = HashMap<(DType, Operation), Value>;

impl Scope {
    /// No register yet.
    pub(super) fn new(ranges: Ranges) -> Scope {
        Scope { values: HashMap::new(), ranges: Rc::new(ranges), suffix: String::new(), known: None }
    }

    /// Sees what another scope has defined, besides its own.
    pub(super) fn adopt(&mut self, other: &Scope) {
        for (reg, value) in &other.values {
            self.values.entry(*reg).or_insert_with(|| value.clone());
        }
    }

    /// From here on, equal instructions are computed once: for blocks that are printed for the same point, in places that all see what those
    /// before have defined.
    pub(super) fn remember(&mut self) {
        self.known = Some(Known::new());
    }

    /// Sets what stands for a register.
    pub(super) fn define(&mut self, reg: Reg, value: Value) {
        self.values.insert(reg, value);
    }

    /// What stands for a register. K0901 where nothing does.
    pub(super) fn value(&self, reg: Reg) -> Result<&Value, Diagnostic> {
        self.values.get(&reg).ok_or_else(|| {
            Diagnostic::new(Code::K0901, format!("internal: register {} is read before it is set", reg.0))
        })
    }

    /// How a register is held.
    pub(super) fn held(&self, reg: Reg, dtype: DType) -> Held {
        match (dtype, self.ranges.width(reg)) {
            (DType::I64, Width::Narrow | Width::Saturated) => Held::I32,
            (dtype, _) => Held::of(dtype),
        }
    }
}

/// The instructions of a block at a point. Stores are printed by [`stores`].
///
/// Errors: K0601 where the target lacks a dtype or an op.
pub(super) fn block(
    module: &mut Module<'_>,
    scope: &mut Scope,
    w: &mut Writer,
    block: &Block,
    point: &Point,
) -> Result<(), Diagnostic> {
    block.instructions.iter().try_for_each(|instruction| one(module, scope, w, instruction, point))
}

/// The stores of a block at a point.
pub(super) fn stores(
    module: &mut Module<'_>,
    scope: &Scope,
    w: &mut Writer,
    block: &Block,
    point: &Point,
) -> Result<(), Diagnostic> {
    for store in &block.stores {
        let bound = module.buffer(store.buffer);
        let value = scope.value(store.value)?;
        let value = value.held_as(if value.dtype == DType::I64 { Held::I64 } else { value.held });
        value.held.check(module.target)?;
        for line in memory::store(module.bound(bound), &store.address, &value, point) {
            w.line(line);
        }
    }
    Ok(())
}

fn one(
    module: &mut Module<'_>,
    scope: &mut Scope,
    w: &mut Writer,
    instruction: &Instruction,
    point: &Point,
) -> Result<(), Diagnostic> {
    let Instruction { result, dtype, operation } = instruction;
    let held = scope.held(*result, *dtype);
    held.check(module.target)?;
    if let Operation::Literal(value) = operation {
        let text = number(module, *value, held);
        scope.define(*result, Value { text, held, width: 1, dtype: *dtype, constant: true });
        return Ok(());
    }
    let key = scope.known.is_some().then(|| (*dtype, canonical(operation, scope)));
    if let Some(value) = key.as_ref().zip(scope.known.as_ref()).and_then(|(key, known)| known.get(key)).cloned() {
        scope.define(*result, value);
        return Ok(());
    }
    let name = format!("r{}{}", result.0, scope.suffix);
    let value = computed(module, scope, w, instruction, point, held, &name)?;
    if value.text != name {
        w.line(format!("let {name} = {};", value.text));
    }
    let value = Value { text: name, constant: false, dtype: *dtype, ..value };
    if let Some((key, known)) = key.zip(scope.known.as_mut()) {
        known.insert(key, value.clone());
    }
    scope.define(*result, value);
    Ok(())
}

/// The operation with the first register that stands for the same text in each place.
fn canonical(operation: &Operation, scope: &Scope) -> Operation {
    let mut operation = operation.clone();
    let first = |reg: &mut Reg| {
        let Some(value) = scope.values.get(reg) else { return };
        let same = scope.values.iter().filter(|(_, other)| other.text == value.text && other.dtype == value.dtype);
        if let Some((least, _)) = same.min_by_key(|(other, _)| **other) {
            *reg = *least;
        }
    };
    match &mut operation {
        Operation::Literal(_) | Operation::Index(_) | Operation::Within(_) => {}
        Operation::Load { address, .. } => address.computed.iter_mut().for_each(|(reg, _)| first(reg)),
        Operation::Scalar(_, operands) => operands.iter_mut().for_each(first),
        Operation::Fma(a, b, c) => [a, b, c].into_iter().for_each(first),
        Operation::Cast(from) | Operation::Bitcast(from) => first(from),
        Operation::Select { condition, then, otherwise } => {
            [condition, then, otherwise].into_iter().for_each(first);
        }
        Operation::Random { key, index, .. } => key.iter_mut().chain([index]).for_each(first),
    }
    operation
}

/// A constant, held as it is wanted.
pub(super) fn number(module: &mut Module<'_>, value: Literal, held: Held) -> String {
    let value = match (value.dtype(), held) {
        (DType::I64, Held::I32) => Literal::from_i128(DType::I32, value.to_i128()),
        _ => value,
    };
    literal(&mut module.functions, value)
}

/// The value of an instruction that is no literal: an expression, or `name` where statements have defined that.
fn computed(
    module: &mut Module<'_>,
    scope: &Scope,
    w: &mut Writer,
    instruction: &Instruction,
    point: &Point,
    held: Held,
    name: &str,
) -> Result<Value, Diagnostic> {
    let dtype = instruction.dtype;
    let mut read = Vec::new();
    let mut missing = None;
    operands(&instruction.operation, &mut |reg| match scope.value(reg) {
        Ok(value) => read.push(value.clone()),
        Err(broken) => missing = Some(broken),
    });
    if let Some(broken) = missing {
        return Err(broken);
    }
    let is_load = matches!(instruction.operation, Operation::Load { .. });
    if !is_load && !read.is_empty() && read.iter().all(|value| value.constant) {
        // A compiler may refuse what a constant expression comes to; a variable is not constant.
        let variable = w.fresh("constant");
        w.line(format!("var {variable} = {};", read[0].text));
        read[0] = Value { text: variable, constant: false, ..read[0].clone() };
    }
    Ok(match &instruction.operation {
        Operation::Literal(value) => Value::new(number(module, *value, held), held, 1),
        Operation::Index(affine) => index(module, affine, point, dtype, held)?,
        Operation::Load { buffer, address, bounds } => {
            let buffer = module.buffer(*buffer);
            let computed: Vec<&Value> = read.iter().collect();
            let varies = point.bounds_vary(bounds);
            let Some(inside) = point.bounds(bounds, 0) else {
                return Ok(memory::load(module.bound(buffer), address, &computed, point, None).held_as(held));
            };
            if varies {
                let width = point.width();
                w.line(format!("var {name}: {};", held.wide(width)));
                for lane in 0..width {
                    let inside = point.bounds(bounds, lane).unwrap_or_else(|| "true".to_owned());
                    if inside == "false" {
                        continue;
                    }
                    let value = memory::load(module.bound(buffer), address, &computed, point, Some(lane)).held_as(held);
                    let component = ["x", "y", "z", "w"][lane as usize];
                    w.line(format!("if {inside} {{ {name}.{component} = {}; }}", value.text));
                }
                return Ok(Value::new(name, held, width));
            }
            let value = memory::load(module.bound(buffer), address, &computed, point, None).held_as(held);
            w.line(format!("var {name}: {};", held.wide(value.width)));
            if inside == "false" {
                return Ok(Value::new(name, held, value.width));
            }
            w.line(format!("if {inside} {{ {name} = {}; }}", value.text));
            Value::new(name, held, value.width)
        }
        Operation::Within(bounds) => match point.bounds(bounds, 0) {
            None => Value::new("true", Held::Bool, 1),
            Some(_) if point.bounds_vary(bounds) => {
                let width = point.width();
                let lanes = (0..width).map(|lane| point.bounds(bounds, lane).unwrap_or_else(|| "true".to_owned()));
                let text = format!("vec{width}<bool>({})", lanes.collect::<Vec<_>>().join(", "));
                Value::new(text, Held::Bool, width)
            }
            Some(text) => Value::new(text, Held::Bool, 1),
        },
        Operation::Scalar(op, _) => scalar::apply(module, *op, &read, dtype, held)?,
        Operation::Fma(..) => scalar::fma(module, &read, dtype, held)?,
        Operation::Cast(_) => scalar::cast(module, &read[0], dtype, held)?,
        Operation::Bitcast(_) => scalar::bitcast(module, &read[0], dtype, held)?,
        Operation::Select { .. } => {
            let width = read.iter().map(|value| value.width).max().unwrap_or(1);
            let (then, otherwise) = (read[1].held_as(held), read[2].held_as(held));
            let text = if read[0].width == 1 && width > 1 {
                format!("select({}, {}, {})", otherwise.splat(width), then.splat(width), read[0].splat(width))
            } else {
                let arms = (otherwise.splat(width), then.splat(width));
                format!("select({}, {}, {})", arms.0, arms.1, read[0].splat(width))
            };
            Value::new(text, held, width)
        }
        Operation::Random { stream, .. } => scalar::random(module, *stream, &read)?,
    })
}

/// The value of a map as a number of a dtype.
fn index(
    module: &mut Module<'_>,
    affine: &Affine,
    point: &Point,
    dtype: DType,
    held: Held,
) -> Result<Value, Diagnostic> {
    let stride = point.lane_stride(affine);
    let first = point.affine(affine, 0);
    let value = match point.lanes.filter(|_| stride != 0) {
        None => Value::new(format!("i32({first})"), Held::I32, 1),
        Some(lanes) => {
            let steps: Vec<String> = (0..lanes.width).map(|lane| (i64::from(lane) * stride).to_string()).collect();
            let steps = format!("vec{0}<i32>({1})", lanes.width, steps.join(", "));
            Value::new(format!("({first} + {steps})"), Held::I32, lanes.width)
        }
    };
    // A map's values fit an i32, or they could not be coordinates; a narrower dtype wraps them as a cast does.
    if held == Held::I32 && matches!(dtype, DType::I32 | DType::I64) {
        return Ok(value);
    }
    scalar::cast(module, &value, dtype, held)
}
