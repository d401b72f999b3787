//! Keeping values tame: bounds of magnitudes, and what is put before a function so that it is asked inside its domain only.

use super::*;

impl Garden<'_> {
    fn limit(&self) -> f64 {
        if self.config.ops == Ops::Smooth { 8.0 } else { 64.0 }
    }

    /// The value, through a `tanh` where it is a float that may have grown too large.
    pub(super) fn kept(&mut self, value: Value) -> Value {
        self.within(value, self.limit()).unwrap_or(value)
    }

    /// The value, through a `tanh` where it is a float that may pass a limit; as it is in wild graphs.
    fn within(&mut self, value: Value, limit: f64) -> Option<Value> {
        let known = self.bounds.get(&value).is_some_and(|&bound| bound <= limit);
        if known || self.config.values == Values::Wild || !self.ty(value).dtype.is_float() {
            return Some(value);
        }
        self.add(Op::Scalar(ScalarOp::Tanh), &[value])
    }

    /// `x * x + low`, at least `low`.
    fn above(&mut self, value: Value, low: f64) -> Option<Value> {
        let value = self.within(value, 2.0)?;
        let square = self.add(Op::Scalar(ScalarOp::Mul), &[value, value])?;
        let ty = self.ty(value);
        let low = self.add(Op::Literal { value: Literal::from_f64(ty.dtype, low), backend: ty.backend }, &[])?;
        let low = if ty.shape.rank() == 0 { low } else { self.add(Op::Broadcast(ty.shape), &[low])? };
        self.add(Op::Scalar(ScalarOp::Add), &[square, low])
    }

    /// `tanh(x) / 2`, away from -1 and 1.
    fn half(&mut self, value: Value) -> Option<Value> {
        let value = self.add(Op::Scalar(ScalarOp::Tanh), &[value])?;
        let ty = self.ty(value);
        let half = self.add(Op::Literal { value: Literal::from_f64(ty.dtype, 0.5), backend: ty.backend }, &[])?;
        let half = if ty.shape.rank() == 0 { half } else { self.add(Op::Broadcast(ty.shape), &[half])? };
        self.add(Op::Scalar(ScalarOp::Mul), &[value, half])
    }

    /// Operands of an elementwise op, kept inside its domain in tame graphs.
    pub(super) fn guarded(&mut self, op: ScalarOp, mut operands: Vec<Value>) -> Option<Vec<Value>> {
        use ScalarOp::*;
        if self.config.values == Values::Wild || !self.ty(operands[0]).dtype.is_float() {
            return Some(operands);
        }
        match op {
            Sqrt | Rsqrt | Recip | Log | Log2 | Log1p => operands[0] = self.above(operands[0], 0.5)?,
            Acosh => operands[0] = self.above(operands[0], 1.5)?,
            Asin | Acos | Atanh => operands[0] = self.half(operands[0])?,
            Exp | Exp2 | Expm1 | Sinh | Cosh => operands[0] = self.within(operands[0], 4.0)?,
            Tan => operands[0] = self.within(operands[0], 1.0)?,
            Div | Rem | Atan2 => operands[1] = self.above(operands[1], 0.5)?,
            Pow => {
                operands[0] = self.above(operands[0], 0.5)?;
                operands[1] = self.within(operands[1], 2.0)?;
            }
            Neg | Abs | Sign | Floor | Ceil | Round | Trunc | Sin | Cos | Atan | Tanh | Asinh | Erf | Sigmoid | Not
            | IsNan | IsInf | IsFinite | Add | Sub | Mul | Max | Min | And | Or | Xor | Shl | Shr | Eq | Ne | Lt
            | Le | Gt | Ge | Clamp => {}
        }
        Some(operands)
    }

    /// The largest magnitude of a new value, from those of its operands.
    pub(super) fn bound(&self, op: &Op, operands: &[Value], ty: Option<&TensorType>) -> f64 {
        let Some(ty) = ty else { return f64::INFINITY };
        let bound = |index: usize| {
            operands.get(index).map_or(0.0, |value| self.bounds.get(value).copied().unwrap_or(f64::INFINITY))
        };
        let largest = (0..operands.len()).map(bound).fold(0.0, f64::max);
        let count = operands.first().map_or(1, |&value| self.ty(value).shape.num_elements()) as f64;
        let product = |bound: f64| if bound <= 1.0 { 1.0 } else { bound.powf(count) };
        let magnitude = match op {
            Op::Scalar(op) => scalar_bound(*op, bound(0), bound(1), largest, ty.dtype),
            Op::Literal { value, .. } => value.to_f64().abs(),
            Op::Constant { data, .. } => data.elements().map(|x| x.to_f64().abs()).fold(0.0, f64::max),
            Op::Iota { ty, axis } => ty.shape[*axis] as f64,
            Op::Pad { value, .. } => largest.max(value.to_f64().abs()),
            Op::Reduce { kind: ReduceKind::Sum, .. } | Op::Scan { kind: ScanKind::Sum, .. } => largest * count,
            Op::Reduce { kind: ReduceKind::Prod, .. } | Op::Scan { kind: ScanKind::Prod, .. } => product(largest),
            Op::Reduce { kind: ReduceKind::Max | ReduceKind::Min, .. }
            | Op::Scan { kind: ScanKind::Max | ScanKind::Min, .. } => largest,
            Op::Reduce { kind: ReduceKind::ArgMax | ReduceKind::ArgMin, .. } => count,
            Op::MatMul { .. } => bound(0) * bound(1) * self.ty(operands[0]).shape.last().copied().unwrap_or(1) as f64,
            Op::Scatter { kind: ScatterKind::Add, .. } => {
                bound(0) + bound(2) * self.ty(operands[2]).shape.num_elements() as f64
            }
            Op::Scatter { kind: ScatterKind::Set | ScatterKind::Max, .. } => bound(0).max(bound(2)),
            Op::Gather { .. } => bound(0),
            Op::Cast(_)
            | Op::Select
            | Op::Reshape(_)
            | Op::Permute(_)
            | Op::Broadcast(_)
            | Op::Slice { .. }
            | Op::Concat { .. }
            | Op::Transfer(_)
            | Op::StopGradient
            | Op::Mark
            | Op::Barrier => largest,
            Op::Input { .. } | Op::RandomBits { .. } | Op::Bitcast(_) | Op::Custom(_) => f64::INFINITY,
        };
        let wraps = ty.dtype.int_range().is_some_and(|(_, high)| magnitude > high as f64);
        if ty.dtype == DType::Bool {
            1.0
        } else if magnitude.is_nan() || wraps {
            f64::INFINITY
        } else {
            magnitude
        }
    }
}

/// As [`Garden::bound`], for guarded operands of an elementwise op.
fn scalar_bound(op: ScalarOp, a: f64, b: f64, largest: f64, dtype: DType) -> f64 {
    use ScalarOp::*;
    match op {
        Neg | Sub if !dtype.is_signed() => f64::INFINITY,
        Neg | Abs => a,
        Sign | Sin | Cos | Tanh | Erf | Sigmoid | Atanh => 1.0,
        Floor | Ceil | Round | Trunc => a + 1.0,
        Sqrt | Log | Log2 | Log1p | Asinh | Acosh => a.max(1.0),
        Rsqrt | Recip | Tan | Asin | Atan => 2.0,
        Acos | Atan2 => 4.0,
        Exp | Exp2 | Expm1 | Sinh | Cosh => a.exp(),
        Add | Sub => a + b,
        Mul => a * b,
        Div => 2.0 * a,
        Rem | Shr => a,
        Pow => a.max(2.0).powf(b),
        Max | Min | Clamp => largest,
        Not | And | Or | Xor | Shl => f64::INFINITY,
        IsNan | IsInf | IsFinite | Eq | Ne | Lt | Le | Gt | Ge => 1.0,
    }
}
