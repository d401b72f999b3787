//! A kernel of any form, ready to run.

use kiln_ir::kernel::{Access, Affine, Block, Buffer, Kernel, LoopKernel, Operation, Stage};

use super::attention::Attention;
use super::horizontal::Horizontal;
use super::loops::Loops;
use super::matmul::MatMul;
use super::program::RawBuffer;
use super::scan::Scan;
use super::scatter::Scatter;

/// A kernel with all decisions made that do not depend on the data. May be run from several threads at once.
pub(crate) struct Prepared {
    form: Form,
    /// Bytes of each buffer.
    sizes: Vec<usize>,
    /// How each buffer is touched.
    access: Vec<Access>,
}

enum Form {
    Loop(Box<Loops>),
    Horizontal(Horizontal),
    MatMul(Box<MatMul>),
    Attention(Box<Attention>),
    Scan(Box<Scan>),
    Scatter(Box<Scatter>),
}

impl Prepared {
    /// Prepares a kernel for this machine.
    ///
    /// # Panics
    ///
    /// Where the kernel is a custom op's own, or malformed: an address outside its buffer, a register read before it is defined, an op on a dtype it does not
    /// take. No plan of a checked graph holds such a kernel.
    pub(crate) fn new(kernel: &Kernel) -> Prepared {
        check_addresses(kernel);
        let form = match kernel {
            Kernel::Loop(kernel) => Form::Loop(Box::new(Loops::new(kernel))),
            Kernel::Horizontal(kernel) => Form::Horizontal(Horizontal::new(kernel)),
            Kernel::MatMul(kernel) => Form::MatMul(Box::new(MatMul::new(kernel))),
            Kernel::Attention(kernel) => Form::Attention(Box::new(Attention::new(kernel))),
            Kernel::Scan(kernel) => Form::Scan(Box::new(Scan::new(kernel))),
            Kernel::Scatter(kernel) => Form::Scatter(Box::new(Scatter::new(kernel))),
            Kernel::Custom(kernel) => panic!("`{}` is a function of the user's, which the executor calls", kernel.name),
        };
        let sizes = kernel.buffers().iter().map(|buffer| buffer.len * buffer.dtype.size()).collect();
        let access = kernel.buffers().iter().map(|buffer| buffer.access).collect();
        Prepared { form, sizes, access }
    }

    /// Runs the kernel on its buffers, in order. Returns when all results are written.
    ///
    /// # Panics
    ///
    /// Where a buffer is missing or too small.
    pub(crate) fn run(&self, buffers: &[RawBuffer]) {
        assert_eq!(buffers.len(), self.sizes.len(), "a launch binds all buffers of its kernel");
        for (buffer, &size) in buffers.iter().zip(&self.sizes) {
            assert!(buffer.bytes >= size, "a bound buffer has at least the kernel's bytes");
        }
        debug_assert!(self.written_alone(buffers), "what a kernel only writes lies in none of its other buffers");
        // SAFETY: there are as many buffers as the kernel has, each large enough; the rest is the promise of who made them.
        unsafe {
            match &self.form {
                Form::Loop(kernel) => kernel.run(buffers),
                Form::Horizontal(kernel) => kernel.run(buffers),
                Form::MatMul(kernel) => kernel.run(buffers),
                Form::Attention(kernel) => kernel.run(buffers),
                Form::Scan(kernel) => kernel.run(buffers),
                Form::Scatter(kernel) => kernel.run(buffers),
            }
        }
    }
}

impl Prepared {
    /// Lanes are read where they lie while results are written: only a `ReadWrite` buffer may be both.
    fn written_alone(&self, buffers: &[RawBuffer]) -> bool {
        let range = |index: usize| {
            let start = buffers[index].data as usize;
            start..start + self.sizes[index]
        };
        let apart = |a: usize, b: usize| range(a).end <= range(b).start || range(b).end <= range(a).start;
        (0..buffers.len()).filter(|&index| self.access[index] != Access::Read).all(|written| {
            (0..buffers.len()).all(|other| other == written || self.sizes[other] == 0 || apart(written, other))
        })
    }
}

/// Holds every affine address that no bound guards inside its buffer. Guarded and computed ones are checked when they are used.
fn check_addresses(kernel: &Kernel) {
    let buffers = kernel.buffers();
    let join = |axes: &[&[usize]]| axes.concat();
    match kernel {
        Kernel::Loop(kernel) => check_loops(kernel),
        Kernel::Horizontal(kernel) => {
            for part in &kernel.parts {
                let bound = part.buffers.iter().map(|buffer| &buffers[buffer.0 as usize]);
                let same = |(own, bound): (&Buffer, &Buffer)| own.len <= bound.len && own.dtype == bound.dtype;
                assert!(part.kernel.buffers.iter().zip(bound).all(same), "a part's buffers are the launch's");
                check_loops(&part.kernel);
            }
        }
        Kernel::MatMul(kernel) => {
            check_block(&kernel.lhs.block, buffers, &join(&[&kernel.batch, &[kernel.m, kernel.k]]));
            check_block(&kernel.rhs.block, buffers, &join(&[&kernel.batch, &[kernel.k, kernel.n]]));
            check_block(&kernel.epilogue, buffers, &join(&[&kernel.batch, &[kernel.m, kernel.n]]));
        }
        Kernel::Attention(kernel) => {
            for (block, space, _) in kernel.blocks() {
                check_block(block, buffers, &kernel.extents(space));
            }
        }
        Kernel::Scan(kernel) => {
            let space = join(&[&kernel.outer, &[kernel.extent]]);
            check_block(&kernel.block, buffers, &space);
            check(&kernel.address, &buffers[kernel.output.0 as usize], &space);
        }
        Kernel::Scatter(kernel) => check_block(&kernel.block, buffers, &kernel.space),
        // It is given whole tensors and no addresses.
        Kernel::Custom(_) => {}
    }
}

fn check_loops(kernel: &LoopKernel) {
    let points = [&kernel.outer[..], &kernel.inner].concat();
    let per_outer = [&kernel.outer[..], &vec![1; kernel.inner.len()]].concat();
    for stage in &kernel.stages {
        match stage {
            Stage::Point(block) => check_block(block, &kernel.buffers, &per_outer),
            Stage::Fold { block, .. } | Stage::Each(block) => check_block(block, &kernel.buffers, &points),
        }
    }
}

fn check_block(block: &Block, buffers: &[Buffer], space: &[usize]) {
    for instruction in &block.instructions {
        if let Operation::Load { buffer, address, bounds } = &instruction.operation
            && bounds.is_empty()
            && address.computed.is_empty()
        {
            check(&address.affine, &buffers[buffer.0 as usize], space);
        }
    }
    for store in &block.stores {
        check(&store.address, &buffers[store.buffer.0 as usize], space);
    }
}

fn check(affine: &Affine, buffer: &Buffer, space: &[usize]) {
    if space.contains(&0) {
        return;
    }
    let (low, high) = affine.range(space);
    assert!(low >= 0 && high < buffer.len as i64, "address {affine:?} leaves its buffer of {} elements", buffer.len);
}
