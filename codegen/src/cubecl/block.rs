//! Blocks of instructions at a point, or at several neighbours.

use std::collections::HashMap;

use kiln_ir::kernel::{Affine, Block, Instruction, Operation, Reg};
use kiln_ir::{Code, DType, Diagnostic};
use smallvec::SmallVec;

use super::builder::{Builder, Term, Ty};
use super::memory::{self, Bound};
use super::scalar;
use super::space::Point;
use super::types::{Number, held, literal};

/// The registers that are defined at a place of the text.
#[derive(Clone, Debug, Default)]
pub(super) struct Scope {
    values: HashMap<Reg, Number>,
}

impl Scope {
    /// Sets what stands for a register.
    pub(super) fn define(&mut self, reg: Reg, value: Number) {
        self.values.insert(reg, value);
    }

    /// What stands for a register. K0901 where nothing does.
    pub(super) fn value(&self, reg: Reg) -> Result<&Number, Diagnostic> {
        self.values.get(&reg).ok_or_else(|| {
            Diagnostic::new(Code::K0901, format!("internal: register {} is read before it is set", reg.0))
        })
    }
}

/// The instructions of a block at a point.
pub(super) fn block(
    b: &mut Builder,
    bounds: &[Bound],
    scope: &mut Scope,
    block: &Block,
    point: &Point,
) -> Result<(), Diagnostic> {
    for instruction in &block.instructions {
        let number = one(b, bounds, scope, instruction, point)?;
        scope.define(instruction.result, Number { dtype: instruction.dtype, ..number });
    }
    Ok(())
}

/// The stores of a block at a point.
pub(super) fn stores(
    b: &mut Builder,
    bounds: &[Bound],
    scope: &Scope,
    block: &Block,
    point: &Point,
) -> Result<(), Diagnostic> {
    for store in &block.stores {
        let value = scope.value(store.value)?;
        memory::store(b, bounds[store.buffer.0 as usize], &store.address, value, point);
    }
    Ok(())
}

fn one(
    b: &mut Builder,
    buffers: &[Bound],
    scope: &Scope,
    instruction: &Instruction,
    point: &Point,
) -> Result<Number, Diagnostic> {
    let dtype = instruction.dtype;
    Ok(match &instruction.operation {
        Operation::Literal(value) => Number::one(literal(*value), dtype),
        Operation::Index(affine) => index(b, affine, point, dtype),
        Operation::Load { buffer, address, bounds } => {
            let bound = buffers[buffer.0 as usize];
            let computed: Result<Vec<Number>, Diagnostic> =
                address.computed.iter().map(|(reg, _)| scope.value(*reg).cloned()).collect();
            let computed = computed?;
            let Some(inside) = point.bounds(b, bounds, 0) else {
                return Ok(memory::load(b, bound, address, &computed, point));
            };
            let width = point.width();
            let ty = held(dtype);
            let zero = super::types::zero(ty);
            if !point.bounds_vary(bounds) {
                let shape = if memory_varies(address, &computed, point) { width } else { 1 };
                let variables: Vec<_> = (0..shape).map(|_| b.variable(ty, &zero)).collect();
                b.open_if(&inside);
                let loaded = memory::load(b, bound, address, &computed, point);
                for (variable, term) in variables.iter().zip(&loaded.lanes) {
                    b.set(*variable, term);
                }
                b.close();
                let lanes = variables.into_iter().map(|variable| b.get(variable)).collect();
                return Ok(Number { lanes, dtype });
            }
            let mut lanes = SmallVec::new();
            for lane in 0..width {
                let inside = point.bounds(b, bounds, lane).unwrap_or_else(|| Term::constant("true"));
                let variable = b.variable(ty, &zero);
                b.open_if(&inside);
                let loaded = memory::load_at(b, bound, address, &computed, point, lane);
                b.set(variable, &loaded.lanes[0]);
                b.close();
                lanes.push(b.get(variable));
            }
            Number { lanes, dtype }
        }
        Operation::Within(bounds) => {
            let lanes = if point.bounds_vary(bounds) { point.width() } else { 1 };
            let test = |b: &mut Builder, lane| point.bounds(b, bounds, lane).unwrap_or_else(|| Term::constant("true"));
            Number { lanes: (0..lanes).map(|lane| test(b, lane)).collect(), dtype }
        }
        Operation::Scalar(op, operands) => {
            let operands: Result<Vec<&Number>, Diagnostic> = operands.iter().map(|reg| scope.value(*reg)).collect();
            let operands = operands?;
            let from = operands[0].dtype;
            Number::map(b, &operands, dtype, |b, terms| scalar::apply(b, *op, terms, from, dtype))
        }
        Operation::Fma(x, y, z) => {
            let operands = [scope.value(*x)?, scope.value(*y)?, scope.value(*z)?];
            Number::map(b, &operands, dtype, |b, terms| scalar::fma(b, terms, dtype))
        }
        Operation::Cast(from) => {
            let from = scope.value(*from)?;
            Number::map(b, &[from], dtype, |b, terms| scalar::cast(b, &terms[0], from.dtype, dtype))
        }
        Operation::Bitcast(from) => {
            let from = scope.value(*from)?;
            Number::map(b, &[from], dtype, |b, terms| scalar::bitcast(b, &terms[0], from.dtype, dtype))
        }
        Operation::Select { condition, then, otherwise } => {
            let operands = [scope.value(*condition)?, scope.value(*then)?, scope.value(*otherwise)?];
            Number::map(b, &operands, dtype, |b, terms| b.expression(held(dtype), "$0 ? $1 : $2", terms))
        }
        Operation::Random { key, stream, index } => {
            let operands = [scope.value(key[0])?, scope.value(key[1])?, scope.value(*index)?];
            Number::map(b, &operands, dtype, |b, terms| scalar::random(b, *stream, terms))
        }
    })
}

fn memory_varies(address: &kiln_ir::kernel::Address, computed: &[Number], point: &Point) -> bool {
    point.lane_stride(&address.affine) != 0 || computed.iter().any(|index| index.lanes.len() > 1)
}

/// The value of a map as a number of a dtype: maps are signed.
fn index(b: &mut Builder, affine: &Affine, point: &Point, dtype: DType) -> Number {
    let lanes = if point.lane_stride(affine) == 0 { 1 } else { point.width() };
    let signed = match b.type_name(Ty::Index) {
        "uint32_t" => "int",
        _ => "(long long)",
    };
    let lanes = (0..lanes)
        .map(|lane| {
            let at = point.affine(b, affine, lane);
            let wide = b.expression(Ty::I64, &format!("{signed}($0)"), &[at]);
            scalar::cast(b, &wide, DType::I64, dtype)
        })
        .collect();
    Number { lanes, dtype }
}
