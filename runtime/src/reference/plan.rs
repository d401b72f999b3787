//! The meaning of a plan: its kernels run one point at a time, on memory that knows what it holds.
//!
//! The CPU backend and the emitters are tested against this, and so are the passes: a plan that is right here and wrong there is a fault of
//! the backend, one that is wrong here is a fault of the passes. What a plan may not do is found, not computed past:
//!
//! - a load or store outside its buffer, or of an element that another value has overwritten or nobody has written;
//! - two points of a launch that store to one element, or one that loads what another has stored (points may run in any order);
//! - two buffers of one launch in one place, unless both are only read.
//!
//! Such plans are K0901. Floats are accumulated in `f64` and rounded to the kernel's accumulator, then to the result.
//!
//! Every access goes through here, so this is also where a launch's traffic is seen: [`run_plan_counted`] tells how many different elements
//! it loaded and stored, which is what [`Launch::bytes`] is to say beforehand.

mod attention;
mod memory;
mod space;

use kiln_ir::kernel::{
    Access, Block, BufferIndex, Fold, HorizontalKernel, Kernel, LoopKernel, MatMulKernel, MatrixOperand, Operation,
    Reg, ScanKernel, ScatterKernel, Stage,
};
use kiln_ir::plan::{Launch, Plan, Step, Traffic};
use kiln_ir::{
    Code, DType, Diagnostic, Direction, HostData, Literal, ReduceKind, ScalarOp, ScanKind, ScatterKind, philox,
};

use super::reduce::{Combine, Running, arg};
use memory::Memory;
use space::points;

/// In which order the points of a launch run. Right plans give the same either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// First to last.
    Forward,
    /// Last to first.
    Backward,
}

/// What the caller does with arguments that the plan may write over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arguments {
    /// They are kept: results get memory of their own.
    Lent,
    /// They are given up.
    Donated,
}

/// Runs a plan on inputs that fit its signature, and gives its results in order.
///
/// Errors: K0701 where the inputs do not fit, K0901 where the plan breaks a rule of plans.
pub fn run_plan(
    plan: &Plan,
    inputs: &[HostData],
    walk: Walk,
    arguments: Arguments,
) -> Result<Vec<HostData>, Diagnostic> {
    run_plan_counted(plan, inputs, walk, arguments).map(|(results, _)| results)
}

/// As [`run_plan`], and for each launch the bytes of the different elements that it loaded and stored, buffer by buffer.
pub fn run_plan_counted(
    plan: &Plan,
    inputs: &[HostData],
    walk: Walk,
    arguments: Arguments,
) -> Result<(Vec<HostData>, Vec<Traffic>), Diagnostic> {
    let mut seen = Vec::new();
    let fits = inputs.len() == plan.inputs.len()
        && inputs.iter().zip(&plan.inputs).all(|(x, (_, ty))| (x.dtype(), x.shape()) == (ty.dtype, &ty.shape));
    if !fits {
        return Err(Diagnostic::new(Code::K0701, format!("the arguments do not fit the plan `{}`", plan.name)));
    }
    let mut memory = Memory::new(plan, inputs, arguments);
    for (index, step) in plan.steps.iter().enumerate() {
        let done = match step {
            Step::Launch(launch) => Run::new(plan, launch, walk, &mut memory).and_then(|mut run| {
                run.kernel(&launch.kernel)?;
                seen.push(run.traffic());
                Ok(())
            }),
            Step::Copy { from, to } => memory.copy(plan, *from, *to),
        };
        done.map_err(|broken| {
            let message = format!("internal: step {index} of plan `{}` {broken}", plan.name);
            Diagnostic::new(Code::K0901, message).label(format!("{step:?}"))
        })?;
    }
    let results = plan.results.iter().map(|&buffer| memory.contents(plan, buffer)).collect::<Result<_, _>>();
    results
        .map(|results| (results, seen))
        .map_err(|broken| Diagnostic::new(Code::K0901, format!("internal: a result of plan `{}` {broken}", plan.name)))
}

/// How a plan broke the rules.
type Broken = String;

/// One launch under way.
struct Run<'a> {
    launch: &'a Launch,
    walk: Walk,
    memory: &'a mut Memory,
    /// For each buffer of the kernel, which elements this launch has stored.
    stored: Vec<Vec<bool>>,
    /// Which it has loaded.
    loaded: Vec<Vec<bool>>,
    /// In a horizontal kernel, the launch's buffer for each of the part's.
    part: Option<&'a [BufferIndex]>,
    registers: Vec<Option<Literal>>,
}

impl<'a> Run<'a> {
    fn new(plan: &Plan, launch: &'a Launch, walk: Walk, memory: &'a mut Memory) -> Result<Run<'a>, Broken> {
        memory.bind(plan, launch)?;
        let none = || launch.kernel.buffers().iter().map(|buffer| vec![false; buffer.len]).collect();
        Ok(Run { launch, walk, memory, stored: none(), loaded: none(), part: None, registers: Vec::new() })
    }

    /// The bytes of the elements that were touched.
    fn traffic(&self) -> Traffic {
        let bytes = |touched: &[Vec<bool>]| -> u64 {
            let buffers = touched.iter().zip(self.launch.kernel.buffers());
            let of_one = |(touched, buffer): (&Vec<bool>, &kiln_ir::kernel::Buffer)| {
                touched.iter().filter(|&&element| element).count() * buffer.dtype.size()
            };
            buffers.map(of_one).sum::<usize>() as u64
        };
        Traffic { read: bytes(&self.loaded), written: bytes(&self.stored) }
    }

    fn kernel(&mut self, kernel: &'a Kernel) -> Result<(), Broken> {
        match kernel {
            Kernel::Loop(kernel) => self.loops(kernel),
            Kernel::Horizontal(kernel) => self.horizontal(kernel),
            Kernel::MatMul(kernel) => self.matmul(kernel),
            Kernel::Attention(kernel) => self.attention(kernel),
            Kernel::Scan(kernel) => self.scan(kernel),
            Kernel::Scatter(kernel) => self.scatter(kernel),
            Kernel::Custom(kernel) => Err(format!("runs `{}`, whose function is no part of the plan", kernel.name)),
        }
    }

    fn points(&self, extents: &[usize]) -> Vec<Vec<usize>> {
        let mut all: Vec<Vec<usize>> = points(extents).collect();
        if self.walk == Walk::Backward {
            all.reverse();
        }
        all
    }

    fn horizontal(&mut self, kernel: &'a HorizontalKernel) -> Result<(), Broken> {
        let mut parts: Vec<_> = kernel.parts.iter().collect();
        if self.walk == Walk::Backward {
            parts.reverse();
        }
        parts.into_iter().try_for_each(|part| {
            self.part = Some(&part.buffers);
            self.loops(&part.kernel)
        })
    }

    fn loops(&mut self, kernel: &LoopKernel) -> Result<(), Broken> {
        let inner = self.points(&kernel.inner);
        for outer in self.points(&kernel.outer) {
            self.registers.clear();
            let at = |inner: &[usize]| [&outer, inner].concat();
            for stage in &kernel.stages {
                match stage {
                    Stage::Point(block) => self.block(block, &outer)?,
                    Stage::Each(block) => {
                        for inner in &inner {
                            self.block(block, &at(inner))?;
                        }
                    }
                    Stage::Fold { block, folds } => self.folds(block, folds, &outer, &kernel.inner)?,
                }
            }
        }
        Ok(())
    }

    fn folds(&mut self, block: &Block, folds: &[Fold], outer: &[usize], inner: &[usize]) -> Result<(), Broken> {
        let mut lines: Vec<Vec<Literal>> = vec![Vec::new(); folds.len()];
        // Arg reductions need the row-major order, and no other can tell.
        for inner in points(inner) {
            self.block(block, &[outer, &inner].concat())?;
            for (line, fold) in lines.iter_mut().zip(folds) {
                line.push(self.register(fold.value)?);
            }
        }
        for (line, fold) in lines.into_iter().zip(folds) {
            let result = folded(fold, line)?;
            self.set(fold.result, result);
        }
        Ok(())
    }

    fn matmul(&mut self, kernel: &MatMulKernel) -> Result<(), Broken> {
        let lhs = self.operand(&kernel.lhs, kernel, &[kernel.m, kernel.k])?;
        let rhs = self.operand(&kernel.rhs, kernel, &[kernel.k, kernel.n])?;
        let (m, n, k) = (kernel.m, kernel.n, kernel.k);
        for point in self.points(&[&kernel.batch[..], &[m, n]].concat()) {
            let (batch, row, column) = (flat(&kernel.batch, &point), point[point.len() - 2], point[point.len() - 1]);
            let mut sum = Running::new(Combine::Sum, kernel.accumulate);
            for inner in 0..k {
                let (x, y) = (lhs[(batch * m + row) * k + inner], rhs[(batch * k + inner) * n + column]);
                sum.take_product(x, y);
            }
            self.registers.clear();
            self.set(kernel.product, sum.value().cast(kernel.product_dtype()));
            self.block(&kernel.epilogue, &point)?;
        }
        Ok(())
    }

    fn operand(
        &mut self,
        operand: &MatrixOperand,
        kernel: &MatMulKernel,
        matrix: &[usize],
    ) -> Result<Vec<Literal>, Broken> {
        let updated = |buffer: &kiln_ir::kernel::BufferIndex| kernel.buffers[buffer.0 as usize].access != Access::Read;
        let loads = operand.block.instructions.iter().filter_map(|instruction| match &instruction.operation {
            Operation::Load { buffer, .. } => Some(buffer),
            _ => None,
        });
        if loads.into_iter().any(updated) || !operand.block.stores.is_empty() {
            return Err("has a matrix operand in a buffer that it writes".to_owned());
        }
        points(&[&kernel.batch, matrix].concat())
            .map(|point| {
                self.registers.clear();
                self.block(&operand.block, &point)?;
                self.register(operand.value)
            })
            .collect()
    }

    fn scan(&mut self, kernel: &ScanKernel) -> Result<(), Broken> {
        let combine = match kernel.kind {
            ScanKind::Sum => Combine::Sum,
            ScanKind::Prod => Combine::Product,
            ScanKind::Max => Combine::Largest,
            ScanKind::Min => Combine::Smallest,
        };
        for outer in self.points(&kernel.outer) {
            let mut running = Running::new(combine, kernel.accumulate);
            for step in 0..kernel.extent {
                let place = match kernel.direction {
                    Direction::Forward => step,
                    Direction::Reverse => kernel.extent - 1 - step,
                };
                let point = [&outer[..], &[place]].concat();
                self.registers.clear();
                self.block(&kernel.block, &point)?;
                running.take(self.register(kernel.value)?.cast(kernel.accumulate));
                self.store(kernel.output.0, kernel.address.at(&point), running.value().cast(kernel.dtype))?;
            }
        }
        Ok(())
    }

    /// Points meet at elements in row-major order; sums are kept wide until all have met.
    fn scatter(&mut self, kernel: &ScatterKernel) -> Result<(), Broken> {
        let dtype = kernel.buffers[kernel.output.0 as usize].dtype;
        let mut sums = std::collections::BTreeMap::new();
        for point in points(&kernel.space) {
            self.registers.clear();
            self.block(&kernel.block, &point)?;
            let index = self.register(kernel.index)?.to_i128();
            let update = self.register(kernel.update)?;
            if !(0..kernel.extent as i128).contains(&index) {
                continue;
            }
            let element = kernel.address.at(&point) + index as i64 * kernel.stride;
            if kernel.kind == ScatterKind::Set {
                self.overwrite(kernel.output.0, element, update)?;
                continue;
            }
            let there = self.load(kernel.output.0, element)?;
            let met = match kernel.kind {
                ScatterKind::Set => update,
                ScatterKind::Max => scalar(ScalarOp::Max, &[there, update])?,
                ScatterKind::Add if dtype.is_float() => {
                    *sums.entry(element).or_insert(there.to_f64()) += update.to_f64();
                    continue;
                }
                ScatterKind::Add => scalar(ScalarOp::Add, &[there, update])?,
            };
            self.overwrite(kernel.output.0, element, met)?;
        }
        for (element, sum) in sums {
            self.overwrite(kernel.output.0, element, Literal::from_f64(dtype, sum))?;
        }
        Ok(())
    }

    fn block(&mut self, block: &Block, point: &[usize]) -> Result<(), Broken> {
        for instruction in &block.instructions {
            let value = self.operation(&instruction.operation, instruction.dtype, point)?;
            if value.dtype() != instruction.dtype {
                return Err(format!("computes {value:?} where it says {}", instruction.dtype));
            }
            self.set(instruction.result, value);
        }
        for store in &block.stores {
            let value = self.register(store.value)?;
            self.store(self.bound(store.buffer), store.address.at(point), value)?;
        }
        Ok(())
    }

    /// The launch's number of a buffer that a block names.
    fn bound(&self, buffer: BufferIndex) -> u32 {
        self.part.map_or(buffer, |part| part[buffer.0 as usize]).0
    }

    fn operation(&mut self, operation: &Operation, dtype: DType, point: &[usize]) -> Result<Literal, Broken> {
        let holds = |bounds: &[kiln_ir::kernel::Bound]| {
            bounds.iter().all(|bound| (0..bound.extent as i64).contains(&bound.at.at(point)))
        };
        Ok(match operation {
            Operation::Literal(value) => *value,
            Operation::Index(affine) => Literal::from_i128(dtype, i128::from(affine.at(point))),
            Operation::Load { bounds, .. } if !holds(bounds) => Literal::zero(dtype),
            Operation::Load { buffer, address, .. } => {
                let mut element = address.affine.at(point);
                for &(index, stride) in &address.computed {
                    element += self.register(index)?.to_i128() as i64 * stride;
                }
                self.load(self.bound(*buffer), element)?
            }
            Operation::Within(bounds) => Literal::from_i128(DType::Bool, i128::from(holds(bounds))),
            Operation::Scalar(op, operands) => {
                let values: Vec<Literal> = operands.iter().map(|&reg| self.register(reg)).collect::<Result<_, _>>()?;
                scalar(*op, &values)?
            }
            Operation::Fma(a, b, c) => fma(dtype, self.register(*a)?, self.register(*b)?, self.register(*c)?),
            Operation::Cast(from) => self.register(*from)?.cast(dtype),
            Operation::Bitcast(from) => Literal::from_bits(dtype, self.register(*from)?.bits()),
            Operation::Select { condition, then, otherwise } => {
                let holds = self.register(*condition)? == Literal::one(DType::Bool);
                self.register(if holds { *then } else { *otherwise })?
            }
            Operation::Random { key, stream, index } => {
                let key = [self.register(key[0])?.bits() as u32, self.register(key[1])?.bits() as u32];
                let index = self.register(*index)?.to_i128() as u64;
                Literal::from_bits(DType::U32, u64::from(philox::element(key, *stream, index)))
            }
        })
    }

    fn register(&self, reg: Reg) -> Result<Literal, Broken> {
        let value = self.registers.get(reg.0 as usize).copied().flatten();
        value.ok_or_else(|| format!("reads register {} before it is set", reg.0))
    }

    fn set(&mut self, reg: Reg, value: Literal) {
        let index = reg.0 as usize;
        if self.registers.len() <= index {
            self.registers.resize(index + 1, None);
        }
        self.registers[index] = Some(value);
    }

    fn load(&mut self, buffer: u32, element: i64) -> Result<Literal, Broken> {
        let element = self.inside(buffer, element)?;
        if self.stored[buffer as usize][element] && !matches!(*self.launch.kernel, Kernel::Scatter(_)) {
            return Err(format!("loads element {element} of its buffer {buffer} after another point has stored it"));
        }
        self.loaded[buffer as usize][element] = true;
        self.memory.load(
            self.launch.buffers[buffer as usize],
            element,
            self.launch.kernel.buffers()[buffer as usize].dtype,
        )
    }

    fn store(&mut self, buffer: u32, element: i64, value: Literal) -> Result<(), Broken> {
        let place = self.inside(buffer, element)?;
        if self.stored[buffer as usize][place] {
            return Err(format!("stores element {place} of its buffer {buffer} twice"));
        }
        self.overwrite(buffer, element, value)
    }

    fn overwrite(&mut self, buffer: u32, element: i64, value: Literal) -> Result<(), Broken> {
        let element = self.inside(buffer, element)?;
        let described = &self.launch.kernel.buffers()[buffer as usize];
        if described.access == Access::Read || described.dtype != value.dtype() {
            return Err(format!("stores {value:?} in its buffer {buffer}, {described:?}"));
        }
        self.stored[buffer as usize][element] = true;
        self.memory.store(self.launch.buffers[buffer as usize], element, value);
        Ok(())
    }

    fn inside(&self, buffer: u32, element: i64) -> Result<usize, Broken> {
        let len = self.launch.kernel.buffers()[buffer as usize].len;
        let index = usize::try_from(element).ok().filter(|&index| index < len);
        index.ok_or_else(|| format!("goes to element {element} of its buffer {buffer}, which has {len}"))
    }
}

fn folded(fold: &Fold, line: Vec<Literal>) -> Result<Literal, Broken> {
    let combine = match fold.kind {
        ReduceKind::Sum => Combine::Sum,
        ReduceKind::Prod => Combine::Product,
        ReduceKind::Max => Combine::Largest,
        ReduceKind::Min => Combine::Smallest,
        ReduceKind::ArgMax | ReduceKind::ArgMin if line.is_empty() => {
            return Err("finds the place of nothing".to_owned());
        }
        ReduceKind::ArgMax => return Ok(arg(ScalarOp::Gt, line.into_iter())),
        ReduceKind::ArgMin => return Ok(arg(ScalarOp::Lt, line.into_iter())),
    };
    let mut running = Running::new(combine, fold.accumulate);
    if line.is_empty() && running.is_nothing() {
        return Err("takes the largest or smallest of nothing".to_owned());
    }
    line.into_iter().for_each(|element| running.take(element.cast(fold.accumulate)));
    Ok(running.value().cast(fold.dtype))
}

fn scalar(op: ScalarOp, operands: &[Literal]) -> Result<Literal, Broken> {
    op.eval(operands).ok_or_else(|| format!("applies {op} to {operands:?}"))
}

/// `a * b + c`, rounded once. Products of 32-bit and narrower floats are exact in `f64`; what the sum loses there is far below their ulp.
fn fma(dtype: DType, a: Literal, b: Literal, c: Literal) -> Literal {
    if dtype.is_float() {
        Literal::from_f64(dtype, a.to_f64().mul_add(b.to_f64(), c.to_f64()))
    } else {
        let product = (a.to_i128() as i64).wrapping_mul(b.to_i128() as i64);
        Literal::from_i128(dtype, i128::from(product.wrapping_add(c.to_i128() as i64)))
    }
}

/// Row-major number of the leading axes of a point.
fn flat(extents: &[usize], point: &[usize]) -> usize {
    extents.iter().zip(point).fold(0, |number, (&extent, &index)| number * extent + index)
}
