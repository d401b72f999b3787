//! Accumulators of reductions: what they start from, how they take a value, how invocations combine theirs.
//!
//! Arg reductions accumulate a key, an integer in the order of the values with NaN above all and equal zeros, and the index that it stands at:
//! the largest key wins, and of equal ones the lowest index, in whatever order they come. The largest and the smallest `f32` are found among
//! integers in the order of the values as well, which take one instruction to compare where floats with NaN and signed zeros take ten.

use kiln_ir::kernel::Fold;
use kiln_ir::{DType, Diagnostic, Literal, ReduceKind, ScalarOp};

use super::block::{Value, number};
use super::module::Module;
use super::scalar;
use super::types::{Held, unsupported};
use super::writer::Writer;

/// One number of an accumulator.
#[derive(Clone, Debug)]
pub(super) struct Number {
    /// The variable.
    pub(super) name: String,
    /// How it is held.
    pub(super) held: Held,
    start: String,
}

/// The accumulator of a fold: one number, or a key and an index.
#[derive(Clone, Debug)]
pub(super) struct Accumulator {
    /// Its numbers.
    pub(super) numbers: Vec<Number>,
    kind: ReduceKind,
    accumulate: DType,
    /// The function that makes keys.
    key: Option<&'static str>,
    /// The function that makes integers in the order of the values, where those are what is accumulated.
    order: Option<&'static str>,
    /// Of how many neighbours it has values.
    pub(super) width: u32,
}

impl Accumulator {
    /// Of a fold, in variables that begin with `prefix`.
    ///
    /// Errors: K0601 where the target has no such numbers.
    pub(super) fn new(
        module: &mut Module<'_>,
        fold: &Fold,
        prefix: &str,
        width: u32,
    ) -> Result<Accumulator, Diagnostic> {
        let held = Held::of(fold.accumulate);
        held.check(module.target)?;
        let name = format!("{prefix}{}", fold.result.0);
        let (kind, accumulate) = (fold.kind, fold.accumulate);
        if let Some((order, start)) = order(kind, held) {
            let numbers = vec![Number { name, held: Held::I32, start: start.to_owned() }];
            return Ok(Accumulator { numbers, kind, accumulate, key: None, order: Some(order), width });
        }
        let start = match kind {
            ReduceKind::Sum => Literal::zero(accumulate),
            ReduceKind::Prod => Literal::one(accumulate),
            ReduceKind::Max => least(accumulate),
            ReduceKind::Min => greatest(accumulate),
            ReduceKind::ArgMax | ReduceKind::ArgMin => {
                let (key, held) = key(kind, held).ok_or_else(|| unsupported(accumulate))?;
                held.check(module.target)?;
                let start = if held == Held::I64 { least(DType::I64) } else { Literal::zero(DType::U32) };
                let start = number(module, start, held);
                let at = Number { name: format!("{name}_at"), held: Held::I32, start: format!("{}", i32::MAX) };
                let numbers = vec![Number { name, held, start }, at];
                return Ok(Accumulator { numbers, kind, accumulate, key: Some(key), order: None, width });
            }
        };
        let start = number(module, start, held);
        let numbers = vec![Number { name, held, start }];
        Ok(Accumulator { numbers, kind, accumulate, key: None, order: None, width })
    }

    /// Whether its rounding depends on how many values it has taken.
    pub(super) fn is_rounded(&self) -> bool {
        self.kind == ReduceKind::Sum && self.accumulate.is_float()
    }

    /// One that takes some of the values in this one's stead: short sums of short sums lose less than a long one. Itself where it is exact.
    pub(super) fn partial(&self) -> Accumulator {
        let mut partial = self.clone();
        if self.is_rounded() {
            partial.numbers[0].name.push_str("_block");
        }
        partial
    }

    /// Takes what a partial one has taken.
    pub(super) fn take_partial(&self, w: &mut Writer, partial: &Accumulator) {
        let (name, other) = (&self.numbers[0].name, &partial.numbers[0].name);
        if name != other {
            w.line(format!("{name} = {name} + {other};"));
        }
    }

    /// Declares the variables.
    pub(super) fn declare(&self, w: &mut Writer) {
        for number in &self.numbers {
            let ty = number.held.wide(self.width);
            w.line(format!("var {}: {ty} = {ty}({});", number.name, number.start));
        }
    }

    /// What it accumulates of a value at a point with this row-major index in the inner space.
    pub(super) fn taken(
        &self,
        module: &mut Module<'_>,
        value: &Value,
        index: &Value,
    ) -> Result<Vec<Value>, Diagnostic> {
        let Some(key) = self.key else {
            let value = scalar::cast(module, value, self.accumulate, Held::of(self.accumulate))?;
            let ordered = self.order.map(|order| scalar::call(module, order, &[&value], Held::I32));
            return Ok(vec![ordered.unwrap_or(value)]);
        };
        let held = Held::of(self.accumulate);
        let value = value.held_as(if value.dtype == DType::I64 { held } else { value.held });
        Ok(vec![scalar::call(module, key, &[&value], self.numbers[0].held), index.clone()])
    }

    /// Takes numbers of an accumulator's: one value, or what another has accumulated.
    pub(super) fn take(&self, module: &mut Module<'_>, w: &mut Writer, taken: &[Value]) -> Result<(), Diagnostic> {
        let name = &self.numbers[0].name;
        if self.key.is_some() {
            let at = &self.numbers[1].name;
            let (key, index) = (taken[0].splat(self.width), taken[1].splat(self.width));
            let better = w.fresh("better");
            w.line(format!("let {better} = ({key} > {name}) | (({key} == {name}) & ({index} < {at}));"));
            w.line(format!("{name} = select({name}, {key}, {better});"));
            w.line(format!("{at} = select({at}, {index}, {better});"));
            return Ok(());
        }
        let value = taken[0].splat(self.width);
        let simple = match (self.kind, self.numbers[0].held) {
            (ReduceKind::Sum, _) => Some("+"),
            (ReduceKind::Prod, _) => Some("*"),
            (ReduceKind::Max, Held::Bool) => Some("|"),
            (ReduceKind::Min, Held::Bool) => Some("&"),
            (
                ReduceKind::Max | ReduceKind::Min | ReduceKind::ArgMax | ReduceKind::ArgMin,
                Held::F32 | Held::F64 | Held::I32 | Held::U32 | Held::I64 | Held::Bool,
            ) => None,
        };
        if let Some(symbol) = simple {
            w.line(format!("{name} = {name} {symbol} {value};"));
            return Ok(());
        }
        let op = if self.kind == ReduceKind::Max { ScalarOp::Max } else { ScalarOp::Min };
        let held = self.numbers[0].held;
        let dtype = if self.order.is_some() { DType::I32 } else { self.accumulate };
        let mine = Value::new(name.as_str(), held, self.width).of(dtype);
        let other = Value::new(value, held, self.width).of(dtype);
        let result = scalar::apply(module, op, &[mine, other], dtype, held)?;
        w.line(format!("{name} = {};", result.text));
        Ok(())
    }

    /// Its numbers, as another accumulator takes them.
    pub(super) fn values(&self) -> Vec<Value> {
        self.numbers.iter().map(|number| Value::new(number.name.as_str(), number.held, self.width)).collect()
    }

    /// The same accumulator of one value a point, in other variables, which have taken what the neighbours of this one have.
    pub(super) fn across(
        &self,
        module: &mut Module<'_>,
        w: &mut Writer,
        suffix: &str,
    ) -> Result<Accumulator, Diagnostic> {
        let mut one = self.clone();
        one.width = 1;
        for number in &mut one.numbers {
            let from = number.name.clone();
            number.name = format!("{from}{suffix}");
            w.line(format!("var {} = {from}.x;", number.name));
        }
        for lane in 1..self.width {
            let taken: Vec<Value> =
                self.values().iter().map(|value| Value::new(value.component(lane), value.held, 1)).collect();
            one.take(module, w, &taken)?;
        }
        Ok(one)
    }

    /// The result of the fold, of its dtype.
    pub(super) fn result(&self, module: &mut Module<'_>, fold: &Fold, held: Held) -> Result<Value, Diagnostic> {
        if self.key.is_some() {
            let at = Value::new(self.numbers[1].name.as_str(), Held::I32, self.width).of(DType::I32);
            return scalar::cast(module, &at, fold.dtype, held);
        }
        let number = &self.numbers[0];
        let mut whole = Value::new(number.name.as_str(), number.held, self.width);
        if self.order.is_some() {
            whole = scalar::call(module, "float_of_order", &[&whole], Held::F32);
        }
        // Sums and products of narrow integers have been taken in 32 bits.
        let value = match self.accumulate {
            DType::I8 | DType::U8 => scalar::narrow(module, whole, self.accumulate),
            DType::F32 | DType::F16 | DType::BF16 | DType::F64 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => {
                whole.of(self.accumulate)
            }
        };
        let from = Value { dtype: self.accumulate, ..value };
        scalar::cast(module, &from, fold.dtype, held)
    }
}

/// The function that makes an integer of a value in the order of a fold, and the integer of what no value is below or above.
fn order(kind: ReduceKind, held: Held) -> Option<(&'static str, &'static str)> {
    match (kind, held) {
        (ReduceKind::Max, Held::F32) => Some(("order_max_f32", "-2139095041i")),
        (ReduceKind::Min, Held::F32) => Some(("order_min_f32", "2139095040i")),
        (
            ReduceKind::Sum
            | ReduceKind::Prod
            | ReduceKind::Max
            | ReduceKind::Min
            | ReduceKind::ArgMax
            | ReduceKind::ArgMin,
            Held::F32 | Held::F64 | Held::I32 | Held::U32 | Held::I64 | Held::Bool,
        ) => None,
    }
}

/// The function that makes the key of a value held so, and how the key is held.
fn key(kind: ReduceKind, held: Held) -> Option<(&'static str, Held)> {
    let largest = kind == ReduceKind::ArgMax;
    let pick = |of_largest, of_smallest| if largest { of_largest } else { of_smallest };
    Some(match held {
        Held::F32 => (pick("key_max_f32", "key_min_f32"), Held::U32),
        Held::I32 => (pick("key_max_i32", "key_min_i32"), Held::U32),
        Held::U32 => (pick("key_max_u32", "key_min_u32"), Held::U32),
        Held::I64 => (pick("key_max_i64", "key_min_i64"), Held::I64),
        Held::F64 => (pick("key_max_f64", "key_min_f64"), Held::I64),
        Held::Bool => (pick("key_max_bool", "key_min_bool"), Held::U32),
    })
}

/// A number that no other is below.
pub(super) fn least(dtype: DType) -> Literal {
    match (dtype, dtype.int_range()) {
        (DType::Bool, _) => Literal::zero(dtype),
        (_, Some((low, _))) => Literal::from_i128(dtype, low),
        (_, None) => Literal::from_f64(dtype, f64::NEG_INFINITY),
    }
}

/// A number that no other is above.
pub(super) fn greatest(dtype: DType) -> Literal {
    match (dtype, dtype.int_range()) {
        (DType::Bool, _) => Literal::one(dtype),
        (_, Some((_, high))) => Literal::from_i128(dtype, high),
        (_, None) => Literal::from_f64(dtype, f64::INFINITY),
    }
}
