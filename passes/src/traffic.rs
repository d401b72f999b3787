//! Counting what a kernel moves and computes, from its loads, stores and instructions.
//!
//! - Bytes read are the distinct elements loaded, buffer by buffer; bytes written the distinct elements stored. They are what a run that
//!   notes every access sees (the tests have one).
//! - Where an index is computed from data (gather, scatter) no two points are taken to meet, as far as the buffer has elements: then
//!   the count is what is moved at most.
//! - Flops are floating-point instructions at every point where they run, additions of folds and scans, and two for each product of a sum.

use std::collections::HashMap;

use kiln_ir::ScatterKind;
use kiln_ir::kernel::{Block, Buffer, BufferIndex, CustomTensor, Kernel, LoopKernel, Operation, Reg, Stage};
use kiln_ir::plan::Traffic;

use crate::footprint::{Load, elements};

/// Bytes moved and floating-point operations of a launch.
pub(crate) fn count(kernel: &Kernel) -> (Traffic, u64) {
    let mut counter = Counter::of(kernel.buffers());
    match kernel {
        Kernel::Loop(kernel) => counter.loops(kernel),
        Kernel::Horizontal(kernel) => {
            for part in &kernel.parts {
                counter.part = Some(&part.buffers);
                counter.loops(&part.kernel);
            }
        }
        Kernel::MatMul(kernel) => {
            let (batch, m, n, k) = (&kernel.batch[..], kernel.m, kernel.n, kernel.k);
            let space = |a: usize, b: usize| [batch, &[a, b]].concat();
            counter.block(&kernel.lhs.block, &space(m, k), &mut HashMap::new());
            counter.block(&kernel.rhs.block, &space(k, n), &mut HashMap::new());
            let mut axes = HashMap::from([(kernel.product, Axes::first(kernel.batch.len() + 2))]);
            counter.block(&kernel.epilogue, &space(m, n), &mut axes);
            counter.flops += 2 * product(&space(m, n)) * k as u64;
        }
        Kernel::Attention(kernel) => {
            for (block, space, _) in kernel.blocks() {
                let space = kernel.extents(space);
                counter.block(block, &space, &mut HashMap::new());
            }
            counter.flops += kernel.flops();
        }
        Kernel::Scan(kernel) => {
            let space: Vec<usize> = kernel.outer.iter().copied().chain([kernel.extent]).collect();
            counter.block(&kernel.block, &space, &mut HashMap::new());
            counter.store(kernel.output, product(&space));
            counter.flops += product(&space);
        }
        Kernel::Scatter(kernel) => {
            let points = product(&kernel.space);
            counter.block(&kernel.block, &kernel.space, &mut HashMap::new());
            match kernel.kind {
                ScatterKind::Add | ScatterKind::Max => {
                    *counter.computed.entry(kernel.output).or_default() += points;
                    counter.flops += points;
                }
                ScatterKind::Set => {}
            }
            counter.store(kernel.output, points);
        }
        Kernel::Custom(kernel) => {
            let bytes = |tensors: &[CustomTensor]| -> u64 {
                tensors.iter().map(|tensor| (tensor.shape.num_elements() * tensor.dtype.size()) as u64).sum()
            };
            return (Traffic { read: bytes(&kernel.operands), written: bytes(&kernel.results) }, 0);
        }
    }
    counter.finish()
}

fn product(extents: &[usize]) -> u64 {
    extents.iter().map(|&extent| extent as u64).product()
}

/// The axes of a space that something depends on, a bit each.
#[derive(Clone, Copy, Default)]
struct Axes(u64);

impl Axes {
    fn first(count: usize) -> Axes {
        Axes((1 << count) - 1)
    }

    fn moving(affine: &kiln_ir::kernel::Affine) -> Axes {
        let moving = affine.strides.iter().enumerate().filter(|(_, stride)| **stride != 0);
        Axes(moving.fold(0, |bits, (axis, _)| bits | 1 << axis))
    }

    fn and(self, other: Axes) -> Axes {
        Axes(self.0 | other.0)
    }

    /// How many points of a space differ in these axes.
    fn points(self, space: &[usize]) -> u64 {
        let moving = space.iter().enumerate().filter(|(axis, _)| self.0 & 1 << axis != 0);
        moving.map(|(_, &extent)| extent as u64).product()
    }
}

struct Counter<'a> {
    buffers: &'a [Buffer],
    /// Loads from each buffer whose addresses are known from the point alone, with their spaces.
    loads: HashMap<BufferIndex, Vec<(&'a Operation, Vec<usize>)>>,
    /// How many more elements of a buffer are touched at most, by computed indices.
    computed: HashMap<BufferIndex, u64>,
    stored: HashMap<BufferIndex, u64>,
    flops: u64,
    /// In a horizontal kernel, the launch's buffer for each of the part's.
    part: Option<&'a [BufferIndex]>,
}

impl<'a> Counter<'a> {
    fn of(buffers: &'a [Buffer]) -> Counter<'a> {
        Counter {
            buffers,
            loads: HashMap::new(),
            computed: HashMap::new(),
            stored: HashMap::new(),
            flops: 0,
            part: None,
        }
    }

    fn loops(&mut self, kernel: &'a LoopKernel) {
        let space: Vec<usize> = kernel.outer.iter().chain(&kernel.inner).copied().collect();
        // What a stage computes is seen by later ones, so what it depends on is too.
        let mut axes = HashMap::new();
        for stage in &kernel.stages {
            match stage {
                Stage::Point(block) => self.block(block, &space[..kernel.outer.len()], &mut axes),
                Stage::Each(block) => self.block(block, &space, &mut axes),
                Stage::Fold { block, folds } => {
                    self.block(block, &space, &mut axes);
                    let outer = Axes::first(kernel.outer.len());
                    axes.extend(folds.iter().map(|fold| (fold.result, outer)));
                    let floats = folds.iter().filter(|fold| fold.accumulate.is_float()).count();
                    self.flops += floats as u64 * product(&space);
                }
            }
        }
    }

    /// The launch's number of a buffer that a block names.
    fn bound(&self, buffer: BufferIndex) -> BufferIndex {
        self.part.map_or(buffer, |part| part[buffer.0 as usize])
    }

    /// Counts a block that runs at every point of a space. `axes` tells what registers depend on, and learns it of the block's own.
    fn block(&mut self, block: &'a Block, space: &[usize], axes: &mut HashMap<Reg, Axes>) {
        let points = product(space);
        let mut computed: HashMap<&Operation, u64> = HashMap::new();
        for instruction in &block.instructions {
            let of = |reg: &Reg| axes.get(reg).copied().unwrap_or_default();
            let all = |bounds: &[kiln_ir::kernel::Bound]| {
                bounds.iter().fold(Axes::default(), |sum, bound| sum.and(Axes::moving(&bound.at)))
            };
            let float = instruction.dtype.is_float();
            let own = match &instruction.operation {
                Operation::Literal(_) => Axes::default(),
                Operation::Index(affine) => Axes::moving(affine),
                Operation::Load { buffer, address, bounds } => {
                    let bound = self.bound(*buffer);
                    let index =
                        address.computed.iter().fold(Axes::moving(&address.affine), |sum, (reg, _)| sum.and(of(reg)));
                    if address.computed.is_empty() {
                        let loads = self.loads.entry(bound).or_default();
                        let known = |(operation, known): &(&Operation, Vec<usize>)| {
                            *operation == &instruction.operation && known == space
                        };
                        if !loads.iter().any(known) {
                            loads.push((&instruction.operation, space.to_vec()));
                        }
                    } else if points > 0 && computed.insert(&instruction.operation, points).is_none() {
                        *self.computed.entry(bound).or_default() += index.points(space);
                    }
                    index.and(all(bounds))
                }
                Operation::Within(bounds) => all(bounds),
                Operation::Scalar(_, operands) => {
                    self.flops += if float { points } else { 0 };
                    operands.iter().fold(Axes::default(), |sum, reg| sum.and(of(reg)))
                }
                Operation::Fma(a, b, c) => {
                    self.flops += if float { 2 * points } else { 0 };
                    of(a).and(of(b)).and(of(c))
                }
                Operation::Cast(from) | Operation::Bitcast(from) => of(from),
                Operation::Select { condition, then, otherwise } => of(condition).and(of(then)).and(of(otherwise)),
                Operation::Random { key, index, .. } => of(&key[0]).and(of(&key[1])).and(of(index)),
            };
            axes.insert(instruction.result, own);
        }
        for store in &block.stores {
            self.store(self.bound(store.buffer), points);
        }
    }

    /// Counts stores to as many different elements.
    fn store(&mut self, buffer: BufferIndex, elements: u64) {
        *self.stored.entry(buffer).or_default() += elements;
    }

    fn finish(self) -> (Traffic, u64) {
        let mut traffic = Traffic::default();
        for (index, buffer) in self.buffers.iter().enumerate() {
            let (at, len, size) = (BufferIndex(index as u32), buffer.len as u64, buffer.dtype.size() as u64);
            let loads: Vec<Load<'_>> = self.loads.get(&at).into_iter().flatten().filter_map(load).collect();
            let known = if loads.is_empty() { 0 } else { elements(&loads, buffer.len) };
            let computed = self.computed.get(&at).copied().unwrap_or_default();
            traffic.read += (known + computed).min(len) * size;
            traffic.written += self.stored.get(&at).copied().unwrap_or_default().min(len) * size;
        }
        (traffic, self.flops)
    }
}

fn load<'a>((operation, space): &'a (&Operation, Vec<usize>)) -> Option<Load<'a>> {
    match operation {
        Operation::Load { address, bounds, .. } => Some(Load { address: &address.affine, bounds, space }),
        Operation::Literal(_)
        | Operation::Index(_)
        | Operation::Within(_)
        | Operation::Scalar(..)
        | Operation::Fma(..)
        | Operation::Cast(_)
        | Operation::Bitcast(_)
        | Operation::Select { .. }
        | Operation::Random { .. } => None,
    }
}
