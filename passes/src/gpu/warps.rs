//! Attention of 16-bit floats by warps: as many rows for each block of warps as its memory and its registers hold.
//!
//! Registers decide: a warp holds a fragment of 16 rows of the product for each that it owns, and the scores of a step beside it. Two fragments
//! of rows share what is loaded of the other side, which is what memory shared by a block can deliver.

use std::collections::HashSet;

use kiln_ir::gpu::{GpuTarget, WarpAttention, WarpTile, Weights};
use kiln_ir::kernel::{AttentionKernel, AttentionPass, KeyLimit, MatrixOperand, Operation, Reg};
use kiln_ir::{Code, DType, Diagnostic, ScalarOp};

/// The longest queries, keys and values.
pub const EXTENT: usize = 128;

/// Whether warps compute attention in these dtypes: of scores, of the softmax, of values.
pub fn has(dtype: DType, softmax: DType, values: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16) && softmax == DType::F32 && values == dtype
}

/// How attention is spread over warps.
///
/// Errors: K0603 where it is not for warps, or not even the smallest blocks fit.
pub fn schedule(kernel: &AttentionKernel, target: &GpuTarget) -> Result<WarpAttention, Diagnostic> {
    let refused = |message: &str| Diagnostic::new(Code::K0603, message);
    if !has(kernel.dtype, kernel.softmax, kernel.values) || kernel.depth.max(kernel.width) > EXTENT {
        return Err(refused("warps compute attention of 16-bit floats over short queries alone"));
    }
    let longest = padded(kernel.depth.max(kernel.width));
    let pitches = padded(kernel.depth) + padded(kernel.width) + 16;
    let tiles = tiles(longest, &kernel.pass);
    // What is owned lies in memory once, what is walked twice: one half is filled while the other is used.
    let fits = |bytes: u32| bytes <= target.workgroup_memory;
    let owned = match &kernel.pass {
        AttentionPass::Forward(_) => padded(kernel.depth) + 8,
        AttentionPass::Backward(_) => pitches,
    };
    let rows = tiles.iter().find(|tile| fits(2 * (tile.own() * owned + 2 * tile.step * pitches)));
    // Beside them, three numbers for each row that is walked.
    let keys = tiles.iter().find(|tile| fits(2 * (tile.own() + 2 * tile.step) * pitches + 2 * 3 * 4 * tile.step));
    let (Some(&rows), Some(&keys)) = (rows, keys) else {
        return Err(refused("no block of this attention fits into a block's memory")
            .label(format!("it has {} bytes", target.workgroup_memory)));
    };
    let limit = KeyLimit::of(kernel).filter(|limit| limit.shows_each(kernel.queries));
    let weights = if is_linear(&kernel.factor, kernel.weight) { Weights::Online } else { Weights::Whole };
    Ok(WarpAttention { rows, keys, weights, limit })
}

/// An extent in whole fragments.
fn padded(extent: usize) -> u32 {
    extent.max(1).next_multiple_of(16) as u32
}

const fn tile(warps: u32, fragments: u32, step: u32) -> WarpTile {
    WarpTile { warps, fragments, step }
}

const SHORT: &[WarpTile] = &[tile(4, 2, 64), tile(4, 1, 64), tile(4, 1, 32)];
const LONG: &[WarpTile] = &[tile(4, 2, 64), tile(4, 1, 64), tile(4, 1, 32), tile(2, 1, 16)];
const SHORT_GRADIENTS: &[WarpTile] = &[tile(4, 2, 32), tile(4, 1, 32), tile(2, 1, 32)];
const LONG_GRADIENTS: &[WarpTile] = &[tile(4, 1, 32), tile(4, 1, 16), tile(2, 1, 16)];

/// Tiles for blocks, the best first: what a warp holds of long rows leaves registers for less beside it.
fn tiles(longest: u32, pass: &AttentionPass) -> &'static [WarpTile] {
    match (pass, longest) {
        (AttentionPass::Forward(_), ..=64) => SHORT,
        (AttentionPass::Forward(_), _) => LONG,
        (AttentionPass::Backward(_), ..=64) => SHORT_GRADIENTS,
        (AttentionPass::Backward(_), _) => LONG_GRADIENTS,
    }
}

/// Whether a block makes of a multiple of a number the same multiple: then it may be given exponentials in the place of weights.
fn is_linear(made: &MatrixOperand, given: Reg) -> bool {
    let (mut linear, mut zeros, mut seen) = (HashSet::from([given]), HashSet::new(), HashSet::from([given]));
    for instruction in &made.block.instructions {
        let operation = &instruction.operation;
        let is = |reg: &Reg| linear.contains(reg);
        let is_apart = |reg: &Reg| !seen.contains(reg);
        let branch = |reg: &Reg| linear.contains(reg) || zeros.contains(reg);
        let keeps = match operation {
            Operation::Cast(operand) => is(operand) && instruction.dtype.is_float(),
            Operation::Scalar(ScalarOp::Neg, operands) => is(&operands[0]),
            Operation::Scalar(ScalarOp::Mul, operands) => {
                let (x, y) = (&operands[0], &operands[1]);
                is(x) && is_apart(y) || is_apart(x) && is(y)
            }
            Operation::Scalar(ScalarOp::Div, operands) => is(&operands[0]) && is_apart(&operands[1]),
            Operation::Select { condition, then, otherwise } => {
                is_apart(condition) && branch(then) && branch(otherwise) && (is(then) || is(otherwise))
            }
            Operation::Literal(_)
            | Operation::Index(_)
            | Operation::Load { .. }
            | Operation::Within(_)
            | Operation::Scalar(..)
            | Operation::Fma(..)
            | Operation::Bitcast(_)
            | Operation::Random { .. } => false,
        };
        if keeps {
            linear.insert(instruction.result);
        }
        if operation.operands().iter().any(|reg| seen.contains(reg)) {
            seen.insert(instruction.result);
        }
        if matches!(operation, Operation::Literal(literal) if literal.to_f64() == 0.0) {
            zeros.insert(instruction.result);
        }
    }
    linear.contains(&made.value)
}
