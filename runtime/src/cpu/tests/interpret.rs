//! Kernels evaluated point by point, straight from their definition: what the strips are compared with.

use std::collections::HashMap;

use kiln_ir::kernel::{
    Block, Bound, Fold, Kernel, LoopKernel, MatMulKernel, MatrixOperand, Operation, Reg, ScanKernel, ScatterKernel,
    Stage,
};
use kiln_ir::{DType, Direction, Literal, ReduceKind, ScalarOp, ScanKind, ScatterKind, philox};

/// A buffer's elements.
pub(super) type Elements = Vec<Literal>;

type Registers = HashMap<Reg, Literal>;

/// Runs a kernel on buffers.
pub(super) fn interpret(kernel: &Kernel, buffers: &mut [Elements]) {
    match kernel {
        Kernel::Loop(kernel) => run_loop(kernel, buffers),
        Kernel::Horizontal(kernel) => {
            for part in &kernel.parts {
                let mut own: Vec<Elements> =
                    part.buffers.iter().map(|buffer| buffers[buffer.0 as usize].clone()).collect();
                run_loop(&part.kernel, &mut own);
                for (buffer, elements) in part.buffers.iter().zip(own) {
                    buffers[buffer.0 as usize] = elements;
                }
            }
        }
        Kernel::MatMul(kernel) => run_matmul(kernel, buffers),
        Kernel::Scan(kernel) => run_scan(kernel, buffers),
        Kernel::Attention(_) => panic!("attention is tested against whole graphs"),
        Kernel::Scatter(kernel) => run_scatter(kernel, buffers),
        Kernel::Custom(kernel) => panic!("`{}` is a function, which the executor calls", kernel.name),
    }
}

/// All points of a space, in row-major order.
fn points(extents: &[usize]) -> Vec<Vec<usize>> {
    extents.iter().fold(vec![Vec::new()], |points, &extent| {
        let grown = |point: Vec<usize>| (0..extent).map(move |index| [point.as_slice(), &[index]].concat());
        points.into_iter().flat_map(grown).collect()
    })
}

fn holds(bounds: &[Bound], point: &[usize]) -> bool {
    bounds.iter().all(|bound| (0..bound.extent as i64).contains(&bound.at.at(point)))
}

fn evaluate(block: &Block, point: &[usize], buffers: &[Elements], registers: &mut Registers) {
    for instruction in &block.instructions {
        let dtype = instruction.dtype;
        let get = |reg: &Reg| registers[reg];
        let value = match &instruction.operation {
            Operation::Literal(literal) => *literal,
            Operation::Index(affine) => Literal::from_i128(dtype, i128::from(affine.at(point))),
            Operation::Load { buffer, address, bounds } => {
                if holds(bounds, point) {
                    let computed = address.computed.iter().map(|(reg, stride)| get(reg).to_i128() as i64 * stride);
                    buffers[buffer.0 as usize][(address.affine.at(point) + computed.sum::<i64>()) as usize]
                } else {
                    Literal::zero(dtype)
                }
            }
            Operation::Within(bounds) => Literal::from_i128(DType::Bool, i128::from(holds(bounds, point))),
            Operation::Scalar(op, operands) => {
                let operands: Vec<Literal> = operands.iter().map(get).collect();
                op.eval(&operands).unwrap()
            }
            Operation::Fma(a, b, c) => fma(dtype, get(a), get(b), get(c)),
            Operation::Cast(operand) => get(operand).cast(dtype),
            Operation::Bitcast(operand) => Literal::from_bits(dtype, get(operand).bits()),
            Operation::Select { condition, then, otherwise } => {
                if get(condition).bits() != 0 {
                    get(then)
                } else {
                    get(otherwise)
                }
            }
            Operation::Random { key, stream, index } => {
                let key = [get(&key[0]).bits() as u32, get(&key[1]).bits() as u32];
                Literal::from_bits(DType::U32, u64::from(philox::element(key, *stream, get(index).bits())))
            }
        };
        assert_eq!(value.dtype(), dtype);
        registers.insert(instruction.result, value);
    }
}

fn fma(dtype: DType, a: Literal, b: Literal, c: Literal) -> Literal {
    match dtype {
        DType::F64 => Literal::from_f64(dtype, a.to_f64().mul_add(b.to_f64(), c.to_f64())),
        DType::F32 | DType::F16 | DType::BF16 => {
            let [a, b, c] = [a, b, c].map(|value| value.to_f64() as f32);
            Literal::from_f64(dtype, f64::from(a.mul_add(b, c)))
        }
        _ => ScalarOp::Add.eval(&[ScalarOp::Mul.eval(&[a, b]).unwrap(), c]).unwrap(),
    }
}

fn store(block: &Block, point: &[usize], buffers: &mut [Elements], registers: &Registers) {
    for store in &block.stores {
        buffers[store.buffer.0 as usize][store.address.at(point) as usize] = registers[&store.value];
    }
}

/// A running reduction of literals; floats in `f64`.
#[derive(Clone, Copy)]
struct Running {
    kind: ReduceKind,
    total: f64,
    value: Option<Literal>,
    place: usize,
}

impl Running {
    fn new(kind: ReduceKind) -> Running {
        let total = if kind == ReduceKind::Prod { 1.0 } else { 0.0 };
        Running { kind, total, value: None, place: 0 }
    }

    fn take(&mut self, value: Literal, place: usize) {
        let float = value.dtype().is_float();
        let merged = |op: ScalarOp, old: Literal| {
            if value.dtype() == DType::Bool {
                let op = if op == ScalarOp::Max { ScalarOp::Or } else { ScalarOp::And };
                return op.eval(&[old, value]).unwrap();
            }
            op.eval(&[old, value]).unwrap()
        };
        let nan = |value: Literal| float && value.to_f64().is_nan();
        self.value = Some(match (self.kind, self.value) {
            (ReduceKind::Sum, _) if float => {
                self.total += value.to_f64();
                value
            }
            (ReduceKind::Prod, _) if float => {
                self.total *= value.to_f64();
                value
            }
            (_, None) => {
                self.place = place;
                value
            }
            (ReduceKind::Sum, Some(old)) => merged(ScalarOp::Add, old),
            (ReduceKind::Prod, Some(old)) => merged(ScalarOp::Mul, old),
            (ReduceKind::Max, Some(old)) => merged(ScalarOp::Max, old),
            (ReduceKind::Min, Some(old)) => merged(ScalarOp::Min, old),
            (ReduceKind::ArgMax | ReduceKind::ArgMin, Some(old)) => {
                let beats = if self.kind == ReduceKind::ArgMax { ScalarOp::Gt } else { ScalarOp::Lt };
                let better = beats.eval(&[value, old]).unwrap().bits() != 0;
                if !nan(old) && (better || nan(value)) {
                    self.place = place;
                    value
                } else {
                    old
                }
            }
        });
    }

    fn result(&self, accumulate: DType, dtype: DType) -> Literal {
        match self.kind {
            ReduceKind::Sum | ReduceKind::Prod if accumulate.is_float() => Literal::from_f64(dtype, self.total),
            ReduceKind::Prod => self.value.unwrap_or(Literal::one(accumulate)).cast(dtype),
            ReduceKind::Sum | ReduceKind::Max | ReduceKind::Min => {
                self.value.unwrap_or(Literal::zero(accumulate)).cast(dtype)
            }
            ReduceKind::ArgMax | ReduceKind::ArgMin => Literal::from_i128(dtype, self.place as i128),
        }
    }
}

fn run_loop(kernel: &LoopKernel, buffers: &mut [Elements]) {
    for outer in points(&kernel.outer) {
        let mut registers = Registers::new();
        let inner_points = points(&kernel.inner);
        for stage in &kernel.stages {
            match stage {
                Stage::Point(block) => {
                    let point = [outer.as_slice(), &vec![0; kernel.inner.len()]].concat();
                    evaluate(block, &point, buffers, &mut registers);
                    store(block, &point, buffers, &registers);
                }
                Stage::Fold { block, folds } => {
                    let mut running: Vec<Running> = folds.iter().map(|fold| Running::new(fold.kind)).collect();
                    for (place, inner) in inner_points.iter().enumerate() {
                        let mut own = registers.clone();
                        evaluate(block, &[outer.as_slice(), inner].concat(), buffers, &mut own);
                        for (fold, running) in folds.iter().zip(&mut running) {
                            running.take(own[&fold.value].cast(fold.accumulate), place);
                        }
                    }
                    for (Fold { result, accumulate, dtype, .. }, running) in folds.iter().zip(&running) {
                        registers.insert(*result, running.result(*accumulate, *dtype));
                    }
                }
                Stage::Each(block) => {
                    for inner in &inner_points {
                        let point = [outer.as_slice(), inner].concat();
                        let mut own = registers.clone();
                        evaluate(block, &point, buffers, &mut own);
                        store(block, &point, buffers, &own);
                    }
                }
            }
        }
    }
}

fn run_matmul(kernel: &MatMulKernel, buffers: &mut [Elements]) {
    let element = |operand: &MatrixOperand, point: &[usize], buffers: &[Elements]| {
        let mut registers = Registers::new();
        evaluate(&operand.block, point, buffers, &mut registers);
        registers[&operand.value]
    };
    let mut results = Vec::new();
    for batch in points(&kernel.batch) {
        for m in 0..kernel.m {
            for n in 0..kernel.n {
                let mut sum = Running::new(ReduceKind::Sum);
                let mut total = 0.0;
                for k in 0..kernel.k {
                    let left = element(&kernel.lhs, &[batch.as_slice(), &[m, k]].concat(), buffers);
                    let right = element(&kernel.rhs, &[batch.as_slice(), &[k, n]].concat(), buffers);
                    if kernel.dtype.is_float() {
                        total += left.to_f64() * right.to_f64();
                    } else {
                        sum.take(ScalarOp::Mul.eval(&[left, right]).unwrap(), k);
                    }
                }
                sum.total = total;
                let point = [batch.as_slice(), &[m, n]].concat();
                let mut registers = Registers::from([(kernel.product, sum.result(kernel.accumulate, kernel.dtype))]);
                evaluate(&kernel.epilogue, &point, buffers, &mut registers);
                results.push((point, registers));
            }
        }
    }
    for (point, registers) in results {
        store(&kernel.epilogue, &point, buffers, &registers);
    }
}

fn run_scan(kernel: &ScanKernel, buffers: &mut [Elements]) {
    let kind = match kernel.kind {
        ScanKind::Sum => ReduceKind::Sum,
        ScanKind::Prod => ReduceKind::Prod,
        ScanKind::Max => ReduceKind::Max,
        ScanKind::Min => ReduceKind::Min,
    };
    for outer in points(&kernel.outer) {
        let mut running = Running::new(kind);
        let mut order: Vec<usize> = (0..kernel.extent).collect();
        if kernel.direction == Direction::Reverse {
            order.reverse();
        }
        for index in order {
            let point = [outer.as_slice(), &[index]].concat();
            let mut registers = Registers::new();
            evaluate(&kernel.block, &point, buffers, &mut registers);
            running.take(registers[&kernel.value].cast(kernel.accumulate), index);
            let place = kernel.address.at(&point) as usize;
            buffers[kernel.output.0 as usize][place] = running.result(kernel.accumulate, kernel.dtype);
        }
    }
}

fn run_scatter(kernel: &ScatterKernel, buffers: &mut [Elements]) {
    let output = kernel.output.0 as usize;
    let mut wide: Vec<f64> = buffers[output].iter().map(|element| element.to_f64()).collect();
    for point in points(&kernel.space) {
        let mut registers = Registers::new();
        evaluate(&kernel.block, &point, buffers, &mut registers);
        let (index, update) = (registers[&kernel.index].to_i128() as i64, registers[&kernel.update]);
        if !(0..kernel.extent as i64).contains(&index) {
            continue;
        }
        let place = (kernel.address.at(&point) + index * kernel.stride) as usize;
        let old = buffers[output][place];
        buffers[output][place] = match kernel.kind {
            ScatterKind::Add if update.dtype().is_float() => {
                wide[place] += update.to_f64();
                Literal::from_f64(update.dtype(), wide[place])
            }
            ScatterKind::Add => ScalarOp::Add.eval(&[old, update]).unwrap(),
            ScatterKind::Set => update,
            ScatterKind::Max => ScalarOp::Max.eval(&[old, update]).unwrap(),
        };
    }
}
