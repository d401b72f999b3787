//! Random loop kernels, of every dtype, shape and access, against the interpreter.

use kiln_ir::kernel::{Affine, Bound, Buffer, Operation, Reg, Stage};
use kiln_ir::{DType, ReduceKind, ScalarOp};

use super::build::{Numbers, Writer, affine, both, filled, input, loops, output};
use super::check;

/// Ops whose bits are fixed, and few of the others: those have tests of their own.
fn takes(op: ScalarOp, dtype: DType) -> bool {
    let curious = matches!(op, ScalarOp::Exp | ScalarOp::Tanh | ScalarOp::Sigmoid);
    let exact = op.row().exactness == kiln_ir::Exactness::Exact;
    op.result_dtype(dtype).is_some() && (exact || curious)
}

struct Generator {
    numbers: Numbers,
    buffers: Vec<Buffer>,
    next: u32,
}

impl Generator {
    fn extents(&mut self, rank: usize, budget: usize) -> Vec<usize> {
        let mut budget = budget;
        let mut extents = Vec::new();
        for _ in 0..rank {
            let extent = self.numbers.pick(&[1, 2, 3, 5, 8, 31, 32, 33, 40, 64, 100, 257, 600]).min(budget);
            budget /= extent;
            extents.push(extent.max(1));
        }
        let shift = if rank == 0 { 0 } else { self.numbers.below(rank) };
        extents.rotate_left(shift);
        extents
    }

    /// A map over axes, each used or not, in any order and direction, and the length of a buffer that holds it.
    fn map(&mut self, extents: &[usize], first: usize, keep_all: bool) -> (Affine, usize) {
        let mut order: Vec<usize> = (0..extents.len()).collect();
        if self.numbers.below(2) == 0 {
            for index in (1..order.len()).rev() {
                order.swap(index, self.numbers.below(index + 1));
            }
        }
        let mut strides = vec![0; first + extents.len()];
        let (mut offset, mut step) = (0, if self.numbers.below(6) == 0 { 2 } else { 1 });
        for &axis in order.iter().rev() {
            if !keep_all && self.numbers.below(4) == 0 {
                continue;
            }
            let backwards = self.numbers.below(6) == 0;
            strides[first + axis] = if backwards { -step } else { step };
            offset += if backwards { step * (extents[axis] as i64 - 1) } else { 0 };
            step *= extents[axis] as i64;
        }
        (affine(offset, &strides), (step.max(1)) as usize)
    }

    fn dtype(&mut self) -> DType {
        if self.numbers.below(2) == 0 { DType::F32 } else { self.numbers.pick(&DType::ALL) }
    }

    fn buffer(&mut self, buffer: Buffer) -> u32 {
        self.buffers.push(buffer);
        self.buffers.len() as u32 - 1
    }

    /// Instructions on top of what is seen from outside; what can be used afterwards.
    fn block(&mut self, writer: &mut Writer, extents: &[usize], seen: &[(Reg, DType)]) -> Vec<(Reg, DType)> {
        let mut values = seen.to_vec();
        for _ in 0..2 + self.numbers.below(3) {
            let dtype = self.dtype();
            let value = match self.numbers.below(6) {
                0 => {
                    let literal = self.numbers.literal(dtype);
                    writer.push(dtype, Operation::Literal(literal))
                }
                1 => {
                    let (map, _) = self.map(extents, 0, false);
                    writer.push(dtype, Operation::Index(map))
                }
                2 => {
                    // An element of a table by a computed index.
                    let (map, len) = self.map(extents, 0, false);
                    let table = self.buffer(input(dtype, len + 9));
                    let index = writer.push(DType::I64, Operation::Index(self.map(extents, 0, false).0));
                    let ten = writer.number(DType::I64, 10.0);
                    let rest = writer.scalar(DType::I64, ScalarOp::Rem, &[index, ten]);
                    writer.gather(dtype, table, map, &[(rest, 1)])
                }
                bounded => {
                    let (map, len) = self.map(extents, 0, false);
                    let buffer = self.buffer(input(dtype, len));
                    if bounded == 3 && !extents.is_empty() {
                        let axis = self.numbers.below(extents.len());
                        let mut strides = vec![0; extents.len()];
                        strides[axis] = self.numbers.pick(&[1, -1, 2]);
                        let at = affine(self.numbers.below(extents[axis] + 3) as i64 - 2, &strides);
                        let bounds = [Bound { at, extent: extents[axis] }];
                        let inside = writer.push(DType::Bool, Operation::Within(bounds.to_vec()));
                        values.push((inside, DType::Bool));
                        writer.guarded(dtype, buffer, map, &bounds)
                    } else {
                        writer.load(dtype, buffer, map)
                    }
                }
            };
            values.push((value, dtype));
        }
        for _ in 0..3 + self.numbers.below(8) {
            let (value, dtype) = self.numbers.pick(&values);
            let same: Vec<Reg> = values.iter().filter(|(_, other)| *other == dtype).map(|&(reg, _)| reg).collect();
            let made = match self.numbers.below(8) {
                0 => {
                    let to = self.dtype();
                    (writer.push(to, Operation::Cast(value)), to)
                }
                1 => {
                    let other = self.numbers.pick(&same);
                    match values.iter().rev().find(|(_, dtype)| *dtype == DType::Bool) {
                        Some(&(condition, _)) => {
                            let select = Operation::Select { condition, then: value, otherwise: other };
                            (writer.push(dtype, select), dtype)
                        }
                        None => continue,
                    }
                }
                2 if dtype.is_float() => {
                    let (b, c) = (self.numbers.pick(&same), self.numbers.pick(&same));
                    (writer.push(dtype, Operation::Fma(value, b, c)), dtype)
                }
                _ => {
                    let op = self.numbers.pick(ScalarOp::ALL);
                    if !takes(op, dtype) {
                        continue;
                    }
                    let operands: Vec<Reg> = (0..op.arity()).map(|_| self.numbers.pick(&same)).collect();
                    let result = op.result_dtype(dtype).unwrap();
                    (writer.scalar(result, op, &operands), result)
                }
            };
            values.push(made);
        }
        values
    }

    fn stores(&mut self, writer: &mut Writer, extents: &[usize], values: &[(Reg, DType)]) {
        for _ in 0..1 + self.numbers.below(2) {
            let (value, dtype) = values[values.len() - 1 - self.numbers.below(values.len().min(4))];
            let (map, len) = self.map(extents, 0, true);
            let buffer = self.buffer(output(dtype, len));
            writer.store(buffer, map, value);
        }
    }

    fn kernel(&mut self) -> kiln_ir::kernel::Kernel {
        let has_inner = self.numbers.below(2) == 0;
        let rank = self.numbers.below(4);
        let outer = self.extents(rank, if has_inner { 100 } else { 2000 });
        let rank = 1 + self.numbers.below(2);
        let inner = if has_inner { self.extents(rank, 600) } else { Vec::new() };
        let space = [outer.as_slice(), &inner].concat();
        let mut seen = Vec::new();
        let mut stages: Vec<Stage> = Vec::new();
        let kinds: &[usize] = if has_inner { &[0, 1, 1, 2] } else { &[0] };
        for _ in 0..1 + self.numbers.below(4) {
            let mut writer = Writer::from(self.next);
            match self.numbers.pick(kinds) {
                0 => {
                    let values = self.block(&mut writer, &outer, &seen);
                    self.stores(&mut writer, &outer, &values);
                    seen.extend(values.iter().rev().take(3).copied());
                    self.next = writer.next;
                    stages.push(writer.point());
                }
                1 => {
                    let values = self.block(&mut writer, &space, &seen);
                    let mut folds = Vec::new();
                    for _ in 0..1 + self.numbers.below(2) {
                        let (value, dtype) = self.numbers.pick(&values);
                        let kind = self.numbers.pick(&ReduceKind::ALL);
                        if dtype == DType::Bool && !matches!(kind, ReduceKind::Max | ReduceKind::Min) {
                            continue;
                        }
                        let result = if kind.is_arg() { DType::I32 } else { dtype };
                        folds.push((kind, value, dtype.accumulator(), result));
                    }
                    let dtypes: Vec<DType> = folds.iter().map(|fold| fold.3).collect();
                    self.next = writer.next + folds.len() as u32;
                    let (stage, results) = writer.folds(&folds);
                    stages.push(stage);
                    seen.extend(results.into_iter().zip(dtypes));
                }
                _ => {
                    let values = self.block(&mut writer, &space, &seen);
                    self.stores(&mut writer, &space, &values);
                    self.next = writer.next;
                    stages.push(writer.each());
                }
            }
        }
        let mut writer = Writer::from(self.next);
        for &(value, dtype) in seen.iter().rev().take(2) {
            let (map, len) = self.map(&outer, 0, true);
            let buffer = self.buffer(output(dtype, len));
            writer.store(buffer, map, value);
        }
        stages.push(writer.point());
        loops(&self.buffers, &outer, &inner, stages)
    }
}

#[test]
fn random_loop_kernels_agree_with_the_interpreter() {
    for seed in 0..150 {
        let mut generator = Generator { numbers: Numbers(seed * 7919), buffers: Vec::new(), next: 0 };
        let kernel = generator.kernel();
        let buffers = filled(&kernel, &mut generator.numbers);
        check(&kernel, &buffers);
    }
}

#[test]
fn an_update_in_place_reads_before_it_writes() {
    for (seed, extent) in [(1, 5), (2, 64), (3, 1000)] {
        let mut writer = Writer::default();
        let (x, y) = (writer.load(DType::F32, 0, affine(0, &[1])), writer.load(DType::F32, 1, affine(0, &[1])));
        let sum = writer.scalar(DType::F32, ScalarOp::Add, &[x, y]);
        writer.store(0, affine(0, &[1]), y);
        writer.store(1, affine(0, &[1]), x);
        writer.store(2, affine(0, &[1]), sum);
        let buffers = [both(DType::F32, extent), both(DType::F32, extent), output(DType::F32, extent)];
        let kernel = loops(&buffers, &[extent], &[], vec![writer.point()]);
        check(&kernel, &filled(&kernel, &mut Numbers(seed)));
    }
}
