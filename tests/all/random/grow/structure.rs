//! Steps that move elements: views, indexing, custom ops.

use kiln_ir::{Attribute, Custom};

use super::*;

impl Garden<'_> {
    pub(super) fn reshape(&mut self, choices: &mut Choices<'_>) -> Option<Value> {
        let x = self.pick(choices, |_| true)?;
        let count = self.ty(x).shape.num_elements();
        let factor = (2..=count).find(|factor| count.is_multiple_of(*factor)).unwrap_or(1);
        let rest = count / factor;
        let shapes: [Shape; 6] = [
            [count].into(),
            [count, 1].into(),
            [1, count].into(),
            [factor, rest].into(),
            [rest, 1, factor].into(),
            if count == 1 { Shape::scalar() } else { [1, rest, factor, 1].into() },
        ];
        let choice = choices.below(shapes.len());
        self.add(Op::Reshape(shapes[choice].clone()), &[x])
    }

    pub(super) fn permute(&mut self, choices: &mut Choices<'_>) -> Option<Value> {
        let x = self.pick(choices, |_| true)?;
        let rank = self.ty(x).shape.rank();
        let mut permutation: Vec<usize> = (0..rank).rev().collect();
        for axis in 1..rank {
            permutation.swap(axis, choices.below(axis + 1));
        }
        self.add(Op::Permute(permutation.into()), &[x])
    }

    pub(super) fn broadcast(&mut self, choices: &mut Choices<'_>) -> Option<Value> {
        let x = self.pick(choices, |_| true)?;
        let shape = self.ty(x).shape;
        let new_axes = choices.below(3);
        let mut extents: Vec<usize> = (0..new_axes).map(|_| choices.of(&[2, 1, 3, 0, 5])).collect();
        extents.extend(shape.iter().map(|&extent| if extent == 1 { choices.of(&[1, 2, 3, 7]) } else { extent }));
        self.add(Op::Broadcast(extents.into()), &[x])
    }

    pub(super) fn slice(&mut self, choices: &mut Choices<'_>) -> Option<Value> {
        let x = self.pick(choices, |_| true)?;
        let (mut starts, mut sizes, mut steps) = (Vec::new(), Vec::new(), Vec::new());
        for &extent in self.ty(x).shape.iter() {
            let step: i64 = choices.of(&[1, -1, 2, 1, -2, 3]);
            let stride = step.unsigned_abs() as usize;
            let most = extent.div_ceil(stride);
            let size = most - choices.below(most + 1).min(choices.below(most + 1));
            let span = if size == 0 { 0 } else { (size - 1) * stride + 1 };
            let offset = choices.below(extent - span + 1);
            starts.push(if step < 0 { offset + span.saturating_sub(1) } else { offset });
            sizes.push(size);
            steps.push(step);
        }
        self.add(Op::Slice { starts: starts.into(), sizes: sizes.into(), steps: steps.into() }, &[x])
    }

    pub(super) fn pad(&mut self, choices: &mut Choices<'_>) -> Option<Value> {
        let x = self.pick(choices, |_| true)?;
        let ty = self.ty(x);
        let low = (0..ty.shape.rank()).map(|_| choices.below(3)).collect();
        let high = (0..ty.shape.rank()).map(|_| choices.below(3)).collect();
        let value = self.number(ty.dtype, choices);
        self.add(Op::Pad { low, high, value }, &[x])
    }

    pub(super) fn concat(&mut self, choices: &mut Choices<'_>) -> Option<Value> {
        let first = self.pick(choices, |ty| ty.shape.rank() > 0)?;
        let ty = self.ty(first);
        let axis = choices.below(ty.shape.rank());
        let mut operands = vec![first];
        for _ in 0..choices.below(3) {
            let other = self.pick(choices, |_| true)?;
            let extent = choices.of(&[1, 2, 0, 3]);
            let wanted = ty.with_shape(ty.shape.with_extent(axis, extent));
            operands.push(self.conform(other, &wanted, choices)?);
        }
        self.add(Op::Concat { axis }, &operands)
    }

    /// Indices for axis `axis` of a tensor, with some leading axes in common: mostly inside, some outside.
    fn indices(&mut self, x: &TensorType, batch: usize, choices: &mut Choices<'_>) -> Option<Value> {
        let ints: Vec<DType> = self.config.dtypes.iter().copied().filter(|dtype| dtype.is_int()).collect();
        if batch == 0
            && let Some(found) = self.pick(choices, |ty| ty.dtype.is_int() && ty.shape.rank() < 3)
        {
            let ty = TensorType { backend: x.backend, ..self.ty(found) };
            return self.conform(found, &ty, choices);
        }
        let dtype = if ints.is_empty() { DType::I32 } else { choices.of(&ints) };
        let mut extents: Vec<usize> = x.shape[..batch].to_vec();
        extents.extend((0..choices.below(3)).map(|_| choices.of(&[2, 1, 3, 5, 0])));
        self.make(&TensorType::new(dtype, extents, x.backend), choices)
    }

    pub(super) fn gather(&mut self, choices: &mut Choices<'_>) -> Option<Value> {
        let x = self.pick(choices, |ty| ty.shape.rank() > 0)?;
        let ty = self.ty(x);
        let axis = choices.below(ty.shape.rank());
        let batch = choices.below(axis + 1);
        let indices = self.indices(&ty, batch, choices)?;
        self.add(Op::Gather { axis, batch }, &[x, indices])
    }

    pub(super) fn scatter(&mut self, kind: ScatterKind, choices: &mut Choices<'_>) -> Option<Value> {
        let any = kind == ScatterKind::Set;
        let target = self.pick(choices, |ty| ty.shape.rank() > 0 && (any || ty.dtype != DType::Bool))?;
        let ty = self.ty(target);
        let axis = choices.below(ty.shape.rank());
        let batch = choices.below(axis + 1);
        let indices = self.indices(&ty, batch, choices)?;
        let places = self.ty(indices).shape;
        let shape: Vec<usize> =
            ty.shape[..axis].iter().chain(&places[batch..]).chain(&ty.shape[axis + 1..]).copied().collect();
        if shape.iter().product::<usize>() > self.config.max_elements {
            return None;
        }
        let updates = self.pick(choices, |_| true)?;
        let updates = self.conform(updates, &ty.with_shape(shape), choices)?;
        self.add(Op::Scatter { kind, axis, batch }, &[target, indices, updates])
    }

    /// A custom op over one or two values; with a body it gives each of them, negated or not, and flat.
    pub(super) fn custom(&mut self, choices: &mut Choices<'_>) -> Option<Value> {
        let first = self.pick(choices, |_| true)?;
        let mut operands = vec![first];
        if choices.below(2) == 1 {
            let backend = self.ty(first).backend;
            operands.extend(self.pick(choices, |ty| ty.backend == backend));
        }
        let types: Vec<TensorType> = operands.iter().map(|&operand| self.ty(operand)).collect();
        let body = body(&types, choices);
        let results = body.outputs.iter().map(|output| body.ty(output.value).clone()).collect();
        let named_only = self.config.customs == Customs::Any && choices.below(3) == 0;
        let attributes = vec![
            ("é \"quoted\"\n".into(), Attribute::Text("line\nbreak \\ \u{202e}".into())),
            ("".into(), Attribute::Number(self.number(types[0].dtype, choices))),
            ("axes".into(), Attribute::Ints(vec![-1, i64::MIN, choices.next() as i64])),
        ];
        let count = choices.below(attributes.len() + 1);
        let custom = Custom {
            name: choices.of(&["negate", "fn", "a b", ""]).into(),
            attributes: attributes.into_iter().take(count).collect(),
            results,
            body: if named_only { None } else { Some(Arc::new(body)) },
        };
        let value = self.add(Op::Custom(custom), &operands)?;
        let others = 1..self.builder.node(value).types.len();
        self.pool.extend(others.map(|result| Value { result: result as u32, ..value }));
        Some(value)
    }
}

fn body(types: &[TensorType], choices: &mut Choices<'_>) -> Graph {
    let mut b = GraphBuilder::new("body of it");
    let loc = Loc::Unknown;
    let mut argument = |(index, ty): (usize, &TensorType)| b.input(format!("operand {index}"), ty.clone(), loc);
    let arguments: Vec<Value> = types.iter().enumerate().map(|each| argument(each).expect("names differ")).collect();
    let mut outputs = Vec::new();
    for (index, (ty, x)) in types.iter().zip(arguments).enumerate() {
        let op = if ty.dtype == DType::Bool { ScalarOp::Not } else { ScalarOp::Neg };
        let y = if choices.below(2) == 0 { b.scalar(op, &[x], loc).expect("takes its dtype") } else { x };
        outputs.push((format!("result {index}"), y));
        let flat = b.reshape(y, &[ty.shape.num_elements()].into(), loc).expect("keeps the count");
        outputs.push((format!("flat {index}"), flat));
    }
    b.finish(outputs).expect("names differ")
}
