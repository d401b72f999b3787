//! Kernels for CUDA, as plain data: texts with all that a launch of them needs, and products that a library makes.
//!
//! `codegen` prints a [`Kernel`](crate::kernel::Kernel) and its [`Schedule`](crate::gpu::Schedule) as a [`CudaProgram`], `runtime` runs that. What a
//! device offers is a [`GpuTarget`](crate::gpu::GpuTarget), as for every GPU.

use std::sync::Arc;

use crate::gpu::GpuMemory;
use crate::{DType, Precision};

/// A kernel's steps: one after the other, each after all writes of those before it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CudaProgram {
    /// What runs, in order.
    pub steps: Vec<CudaStep>,
    /// Bytes of each buffer that only this launch uses. Contents are anything at the start.
    pub scratch: Vec<usize>,
}

impl CudaProgram {
    /// Bytes of all scratch buffers.
    pub fn scratch_bytes(&self) -> usize {
        self.scratch.iter().sum()
    }

    /// Its texts, in order.
    pub fn texts(&self) -> impl Iterator<Item = &CudaText> {
        self.steps.iter().filter_map(|step| match step {
            CudaStep::Text(text) => Some(text),
            CudaStep::Product(_) => None,
        })
    }
}

/// One step of a program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CudaStep {
    /// A text of ours.
    Text(CudaText),
    /// A matrix product by cuBLASLt.
    Product(Product),
}

/// A text and its launch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CudaText {
    /// CUDA C++ with one entry point; equal texts are compiled once.
    pub source: Arc<str>,
    /// The entry point's name.
    pub entry: Arc<str>,
    /// Blocks along each axis; nothing runs where one of them is 0.
    pub blocks: [u32; 3],
    /// Threads of a block, along each axis.
    pub threads: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
    /// The entry point's parameters.
    pub arguments: Vec<CudaArgument>,
}

/// A parameter of an entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CudaArgument {
    /// A pointer to the beginning of a buffer, which is aligned to 256 bytes.
    Memory(GpuMemory),
    /// A pointer that the text never reads through.
    Unused,
}

/// `result = epilogue(lhs · rhs)` for every batch, summed in `accumulate` and rounded once to the result's dtype.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Product {
    /// How many products; 1 for one.
    pub batch: usize,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// The summed extent.
    pub k: usize,
    /// Dtype of the sums.
    pub accumulate: DType,
    /// How exact products of `f32` must be.
    pub precision: Precision,
    /// `[m, k]`.
    pub lhs: Matrix,
    /// `[k, n]`.
    pub rhs: Matrix,
    /// `[m, n]`; rows are dense.
    pub result: Matrix,
    /// What becomes of the sums before they are rounded.
    pub epilogue: ProductEpilogue,
}

/// A matrix, or one for each of a batch, in a buffer. One of its two strides is 1. In elements throughout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// The buffer.
    pub memory: GpuMemory,
    /// Its elements' type.
    pub dtype: DType,
    /// Where the first matrix begins.
    pub offset: usize,
    /// Between rows.
    pub row_stride: usize,
    /// Between columns.
    pub column_stride: usize,
    /// Between matrices of the batch; 0 where all are one.
    pub batch_stride: usize,
}

/// What a library makes of a product's sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProductEpilogue {
    /// Nothing.
    None,
    /// Adds a vector along the rows, then applies a function.
    Bias {
        /// Where the vector is, of the result's dtype and of `n` elements.
        memory: GpuMemory,
        /// Its first element.
        offset: usize,
        /// The function.
        activation: Activation,
    },
    /// Applies a function.
    Activation(Activation),
}

/// A function that a library applies to a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// None.
    Identity,
    /// The larger of 0 and it.
    Relu,
}
