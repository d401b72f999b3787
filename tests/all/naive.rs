//! A naive interpreter of plans: every kernel point by point, on literals, by the words of the kernel's documentation.
//!
//! It knows nothing of strips, threads or lanes, so it tells whether a plan is right apart from any target that runs it. Folds
//! accumulate in `f64`, as the reference does, so that results agree to the bit wherever the order of a sum does not show.

use std::collections::HashMap;

use kiln_ir::kernel::{Address, Affine, Block, Bound, BufferIndex, Kernel, LoopKernel, Operation, Reg, Stage};
use kiln_ir::plan::{Plan, Source, Step};
use kiln_ir::{DType, Direction, HostData, Literal, ReduceKind, ScalarOp, ScanKind, ScatterKind, philox};

/// Whether donated arguments are given up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Donation {
    /// Results are written over them.
    Given,
    /// Results get memory of their own.
    Kept,
}

/// Runs a plan on host data.
pub(crate) fn run(plan: &Plan, inputs: &[HostData], donation: Donation) -> Vec<HostData> {
    let mut memory = Memory::new(plan, inputs, donation);
    for step in &plan.steps {
        match step {
            Step::Copy { from, to } => {
                let data = memory.read(from.0 as usize);
                memory.write(to.0 as usize, &data);
            }
            Step::Launch(launch) => {
                let homes = launch.buffers.iter().map(|buffer| buffer.0 as usize).collect();
                Run { memory: &mut memory, homes }.kernel(&launch.kernel);
            }
        }
    }
    let results = plan.results.iter().zip(&plan.outputs);
    results
        .map(|(buffer, (_, ty))| {
            let elements = memory.read(buffer.0 as usize);
            HostData::from_literals(ty.dtype, ty.shape.clone(), &elements).unwrap()
        })
        .collect()
}

/// Storage of a plan: slots are bytes, so that a slot may hold values of several dtypes one after another.
struct Memory<'a> {
    plan: &'a Plan,
    storage: Vec<Vec<u8>>,
    home: Vec<usize>,
}

impl<'a> Memory<'a> {
    fn new(plan: &'a Plan, inputs: &[HostData], donation: Donation) -> Memory<'a> {
        let mut storage: Vec<Vec<u8>> = plan.slots.iter().map(|&bytes| vec![0xa5; bytes]).collect();
        let mut home = vec![usize::MAX; plan.buffers.len()];
        for (index, buffer) in plan.buffers.iter().enumerate() {
            let bytes = match &buffer.source {
                Source::Slot(slot) => {
                    assert!(buffer.ty.num_bytes() <= plan.slots[*slot], "slot {slot} is too small");
                    home[index] = *slot;
                    continue;
                }
                Source::Input(input) => inputs[*input].bytes().to_vec(),
                Source::Constant(data) => data.bytes().to_vec(),
                Source::Output(_) => vec![0x5a; buffer.ty.num_bytes()],
            };
            home[index] = storage.len();
            storage.push(bytes);
        }
        for (index, buffer) in plan.buffers.iter().enumerate() {
            let Some(output) = buffer.donated_to else { continue };
            let result = plan.buffers.iter().position(|other| other.source == Source::Output(output)).unwrap();
            match donation {
                Donation::Given => home[result] = home[index],
                Donation::Kept => storage[home[result]] = storage[home[index]].clone(),
            }
        }
        Memory { plan, storage, home }
    }

    fn read(&self, buffer: usize) -> Vec<Literal> {
        let count = self.plan.buffers[buffer].ty.shape.num_elements();
        (0..count).map(|index| self.element(buffer, index)).collect()
    }

    fn write(&mut self, buffer: usize, data: &[Literal]) {
        for (index, &element) in data.iter().enumerate() {
            self.set(buffer, index, element);
        }
    }

    fn element(&self, buffer: usize, index: usize) -> Literal {
        let dtype = self.plan.buffers[buffer].ty.dtype;
        assert!(index < self.plan.buffers[buffer].ty.shape.num_elements(), "load past the end of buffer {buffer}");
        let mut word = [0; 8];
        let at = index * dtype.size();
        word[..dtype.size()].copy_from_slice(&self.storage[self.home[buffer]][at..at + dtype.size()]);
        Literal::from_bits(dtype, u64::from_le_bytes(word))
    }

    fn set(&mut self, buffer: usize, index: usize, element: Literal) {
        let dtype = self.plan.buffers[buffer].ty.dtype;
        assert_eq!(element.dtype(), dtype, "a store has the buffer's dtype");
        assert!(index < self.plan.buffers[buffer].ty.shape.num_elements(), "store past the end of buffer {buffer}");
        let (word, size) = element.to_le_bytes();
        self.storage[self.home[buffer]][index * size..(index + 1) * size].copy_from_slice(&word[..size]);
    }
}

/// One launch.
struct Run<'a, 'b> {
    memory: &'a mut Memory<'b>,
    homes: Vec<usize>,
}

type Registers = HashMap<Reg, Literal>;

impl Run<'_, '_> {
    fn kernel(&mut self, kernel: &Kernel) {
        match kernel {
            Kernel::Loop(kernel) => {
                for outer in points(&kernel.outer) {
                    self.row(kernel, &outer);
                }
            }
            Kernel::MatMul(kernel) => {
                for batch in points(&kernel.batch) {
                    for (row, column) in points(&[kernel.m, kernel.n]).map(|point| (point[0], point[1])) {
                        let mut sum = Accumulator::new(ReduceKind::Sum, kernel.dtype);
                        for k in 0..kernel.k {
                            let operand = |run: &mut Self, operand: &kiln_ir::kernel::MatrixOperand, a, b| {
                                let mut registers = Registers::new();
                                run.block(&operand.block, &[&batch[..], &[a, b]].concat(), &mut registers);
                                registers[&operand.value]
                            };
                            let (lhs, rhs) =
                                (operand(self, &kernel.lhs, row, k), operand(self, &kernel.rhs, k, column));
                            sum.add_product(lhs, rhs);
                        }
                        let mut registers = Registers::from([(kernel.product, sum.finish(kernel.dtype))]);
                        self.block(&kernel.epilogue, &[&batch[..], &[row, column]].concat(), &mut registers);
                    }
                }
            }
            Kernel::Scan(kernel) => {
                let kind = match kernel.kind {
                    ScanKind::Sum => ReduceKind::Sum,
                    ScanKind::Prod => ReduceKind::Prod,
                    ScanKind::Max => ReduceKind::Max,
                    ScanKind::Min => ReduceKind::Min,
                };
                for outer in points(&kernel.outer) {
                    let mut running = Accumulator::new(kind, kernel.dtype);
                    let order: Vec<usize> = match kernel.direction {
                        Direction::Forward => (0..kernel.extent).collect(),
                        Direction::Reverse => (0..kernel.extent).rev().collect(),
                    };
                    for index in order {
                        let point = [&outer[..], &[index]].concat();
                        let mut registers = Registers::new();
                        self.block(&kernel.block, &point, &mut registers);
                        running.add(registers[&kernel.value], index);
                        let place = kernel.address.at(&point) as usize;
                        self.store(kernel.output, place, running.clone().finish(kernel.dtype));
                    }
                }
            }
            Kernel::Scatter(kernel) => {
                for point in points(&kernel.space) {
                    let mut registers = Registers::new();
                    self.block(&kernel.block, &point, &mut registers);
                    let index = registers[&kernel.index].to_i128();
                    if !(0..kernel.extent as i128).contains(&index) {
                        continue;
                    }
                    let place = (kernel.address.at(&point) + kernel.stride * index as i64) as usize;
                    let (there, update) = (self.load(kernel.output, place), registers[&kernel.update]);
                    let combined = match kernel.kind {
                        ScatterKind::Add => ScalarOp::Add.eval(&[there, update]).unwrap(),
                        ScatterKind::Max => ScalarOp::Max.eval(&[there, update]).unwrap(),
                        ScatterKind::Set => update,
                    };
                    self.store(kernel.output, place, combined);
                }
            }
        }
    }

    fn row(&mut self, kernel: &LoopKernel, outer: &[usize]) {
        let mut registers = Registers::new();
        for stage in &kernel.stages {
            match stage {
                Stage::Point(block) => self.block(block, outer, &mut registers),
                Stage::Each(block) => {
                    for inner in points(&kernel.inner) {
                        self.block(block, &[outer, &inner].concat(), &mut registers.clone());
                    }
                }
                Stage::Fold { block, folds } => {
                    let mut sums: Vec<Accumulator> =
                        folds.iter().map(|fold| Accumulator::new(fold.kind, fold.accumulate)).collect();
                    for (index, inner) in points(&kernel.inner).enumerate() {
                        let mut own = registers.clone();
                        self.block(block, &[outer, &inner].concat(), &mut own);
                        for (sum, fold) in sums.iter_mut().zip(folds) {
                            sum.add(own[&fold.value], index);
                        }
                    }
                    for (sum, fold) in sums.into_iter().zip(folds) {
                        registers.insert(fold.result, sum.finish(fold.dtype));
                    }
                }
            }
        }
    }

    fn block(&mut self, block: &Block, point: &[usize], registers: &mut Registers) {
        for instruction in &block.instructions {
            let value = self.operation(&instruction.operation, instruction.dtype, point, registers);
            assert_eq!(value.dtype(), instruction.dtype, "{:?}", instruction.operation);
            assert!(registers.insert(instruction.result, value).is_none(), "a register is defined once");
        }
        for store in &block.stores {
            self.store(store.buffer, store.address.at(point) as usize, registers[&store.value]);
        }
    }

    fn operation(&self, operation: &Operation, dtype: DType, point: &[usize], registers: &Registers) -> Literal {
        match operation {
            Operation::Literal(value) => *value,
            Operation::Index(affine) => Literal::from_i128(dtype, i128::from(affine.at(point))),
            Operation::Load { buffer, address, bounds } => {
                if within(bounds, point) {
                    self.load(*buffer, place(address, point, registers))
                } else {
                    Literal::zero(dtype)
                }
            }
            Operation::Within(bounds) => Literal::from_i128(DType::Bool, i128::from(within(bounds, point))),
            Operation::Scalar(op, operands) => {
                let operands: Vec<Literal> = operands.iter().map(|operand| registers[operand]).collect();
                op.eval(&operands).unwrap()
            }
            Operation::Fma(a, b, c) => {
                let [a, b, c] = [a, b, c].map(|reg| registers[reg].to_f64());
                Literal::from_f64(dtype, a.mul_add(b, c))
            }
            Operation::Cast(operand) => registers[operand].cast(dtype),
            Operation::Bitcast(operand) => Literal::from_bits(dtype, registers[operand].bits()),
            Operation::Select { condition, then, otherwise } => {
                if registers[condition].bits() != 0 {
                    registers[then]
                } else {
                    registers[otherwise]
                }
            }
            Operation::Random { key, stream, index } => {
                let key = key.map(|word| registers[&word].bits() as u32);
                let element = philox::element(key, *stream, registers[index].bits());
                Literal::from_bits(DType::U32, u64::from(element))
            }
        }
    }

    fn load(&self, buffer: BufferIndex, place: usize) -> Literal {
        self.memory.element(self.homes[buffer.0 as usize], place)
    }

    fn store(&mut self, buffer: BufferIndex, place: usize, value: Literal) {
        self.memory.set(self.homes[buffer.0 as usize], place, value);
    }
}

fn within(bounds: &[Bound], point: &[usize]) -> bool {
    bounds.iter().all(|bound| (0..bound.extent as i64).contains(&bound.at.at(point)))
}

fn place(address: &Address, point: &[usize], registers: &Registers) -> usize {
    let affine: &Affine = &address.affine;
    let computed: i64 = address.computed.iter().map(|(reg, stride)| registers[reg].to_i128() as i64 * stride).sum();
    usize::try_from(affine.at(point) + computed).expect("an address is not negative")
}

fn points(extents: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<> {
    let extents = extents.to_vec();
    let count: usize = extents.iter().product();
    (0..count).map(move |mut index| {
        let mut point = vec![0; extents.len()];
        for (axis, &extent) in extents.iter().enumerate().rev() {
            point[axis] = index % extent;
            index /= extent;
        }
        point
    })
}

/// A fold in progress.
#[derive(Clone)]
enum Accumulator {
    Float(ReduceKind, f64),
    Int(ReduceKind, Option<Literal>),
    Arg(ReduceKind, Option<(Literal, usize)>),
}

impl Accumulator {
    fn new(kind: ReduceKind, dtype: DType) -> Accumulator {
        match kind {
            ReduceKind::ArgMax | ReduceKind::ArgMin => Accumulator::Arg(kind, None),
            ReduceKind::Sum if dtype.is_float() => Accumulator::Float(kind, 0.0),
            ReduceKind::Prod if dtype.is_float() => Accumulator::Float(kind, 1.0),
            ReduceKind::Sum | ReduceKind::Prod | ReduceKind::Max | ReduceKind::Min => Accumulator::Int(kind, None),
        }
    }

    fn add_product(&mut self, lhs: Literal, rhs: Literal) {
        match self {
            Accumulator::Float(_, sum) => *sum += lhs.to_f64() * rhs.to_f64(),
            Accumulator::Int(..) | Accumulator::Arg(..) => self.add(ScalarOp::Mul.eval(&[lhs, rhs]).unwrap(), 0),
        }
    }

    fn add(&mut self, value: Literal, index: usize) {
        match self {
            Accumulator::Float(ReduceKind::Sum, sum) => *sum += value.to_f64(),
            Accumulator::Float(_, product) => *product *= value.to_f64(),
            Accumulator::Int(kind, so_far) => {
                let op = match kind {
                    ReduceKind::Sum => ScalarOp::Add,
                    ReduceKind::Prod => ScalarOp::Mul,
                    ReduceKind::Max if value.dtype() == DType::Bool => ScalarOp::Or,
                    ReduceKind::Min if value.dtype() == DType::Bool => ScalarOp::And,
                    ReduceKind::Max => ScalarOp::Max,
                    ReduceKind::Min => ScalarOp::Min,
                    ReduceKind::ArgMax | ReduceKind::ArgMin => unreachable!("arg folds are their own"),
                };
                *so_far = Some(so_far.map_or(value, |so_far| op.eval(&[so_far, value]).unwrap()));
            }
            Accumulator::Arg(kind, best) => {
                let better = |held: Literal| {
                    if held.dtype().is_float() && held.to_f64().is_nan() {
                        return false;
                    }
                    let beats = if *kind == ReduceKind::ArgMax { ScalarOp::Gt } else { ScalarOp::Lt };
                    let nan = value.dtype().is_float() && value.to_f64().is_nan();
                    nan || beats.eval(&[value, held]).unwrap().bits() != 0
                };
                if best.is_none_or(|(held, _)| better(held)) {
                    *best = Some((value, index));
                }
            }
        }
    }

    fn finish(self, dtype: DType) -> Literal {
        match self {
            Accumulator::Float(_, sum) => Literal::from_f64(dtype, sum),
            Accumulator::Int(_, Some(value)) => value.cast(dtype),
            Accumulator::Int(ReduceKind::Prod | ReduceKind::Min, None) => Literal::one(dtype),
            Accumulator::Int(_, None) => Literal::zero(dtype),
            Accumulator::Arg(_, best) => Literal::from_i128(dtype, best.map_or(0, |(_, index)| index as i128)),
        }
    }
}
