//! Under a limit, keys are left out whose weights are 0, where all that those would be multiplied with is such that the products are 0 as well:
//! texts that look for what is not, and mark where it lies.

use kiln_ir::cuda::{CudaProgram, CudaStep};
use kiln_ir::kernel::{AttentionKernel, AttentionSpace, MatrixOperand};
use kiln_ir::{DType, Diagnostic};

use super::operand::copy;
use super::text::{Text, padded};

const MARKS: &str = include_str!("marks.cu");

/// Rows that a mark stands for.
const ROWS: usize = 64;

/// The texts that mark operands, and the memory of the marks: a number for each of several rows.
pub(super) struct Marks<'a> {
    kernel: &'a AttentionKernel,
    entry: &'a str,
    /// How many marks each matrix of an operand has.
    counts: Vec<usize>,
    /// Its scratch buffers are marks alone.
    pub(super) program: CudaProgram,
}

impl<'a> Marks<'a> {
    pub(super) fn new(kernel: &'a AttentionKernel, entry: &'a str) -> Marks<'a> {
        Marks { kernel, entry, counts: Vec::new(), program: CudaProgram { steps: Vec::new(), scratch: Vec::new() } }
    }

    /// Marks an operand.
    pub(super) fn add(&mut self, name: &str, operand: &MatrixOperand, space: AttentionSpace) -> Result<(), Diagnostic> {
        let extents = self.kernel.extents(space);
        let [.., rows, columns] = extents[..] else { unreachable!("a matrix has rows and columns") };
        let mut text = Text::new(self.kernel, self.entry, name, 4);
        text.constant("MARKED_ROWS", rows);
        text.constant("MARKED", ROWS);
        text.constant("MARKED_COLUMNS", padded(columns) as usize);
        // From 2^60 on, of what is below which sums of products are finite; of narrower floats, what is not finite itself.
        text.constant("WILD", if self.kernel.dtype == DType::BF16 { 0x5d80 } else { 0x7c00 });
        copy(&mut text, "marked", operand, space)?;
        text.scratch(self.counts.len() as u32, "uint32_t *const __restrict__ marks");
        text.shared_bytes = 2 * ROWS as u32 * (padded(columns) + 8);
        let (matrices, count) = (self.kernel.batch.iter().product::<usize>(), rows.div_ceil(ROWS));
        self.program.steps.push(CudaStep::Text(text.finish(MARKS, matrices * count)?));
        self.program.scratch.push(4 * matrices * count);
        self.counts.push(count);
        Ok(())
    }

    /// Defines, for a text that runs after, whether anything of its matrix is marked.
    pub(super) fn seen_by(&self, text: &mut Text<'_>) {
        let mut found = vec!["0".to_owned()];
        for (number, count) in self.counts.iter().enumerate() {
            text.scratch(number as u32, &format!("uint32_t const *const __restrict__ marks{number}"));
            found.push(format!("finds(marks{number}, matrix, {count})"));
        }
        text.push(&format!("#define IS_WILD (__syncthreads_or({}) != 0)\n", found.join(" | ")));
    }
}
