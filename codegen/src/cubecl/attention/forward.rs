//! The forward direction: one text, and before it one that looks for values under which nothing may be left out.

use kiln_ir::cuda::{CudaProgram, CudaStep};
use kiln_ir::gpu::{WarpAttention, Weights};
use kiln_ir::kernel::{AttentionKernel, AttentionResult, AttentionSpace, MatrixOperand, Reg};
use kiln_ir::{DType, Diagnostic};

use super::function::{Numbers, function};
use super::marks::Marks;
use super::operand::copy;
use super::text::{Owned, Text, padded};
use super::wide::{Casts, wide};

const FORWARD: &str = include_str!("forward.cu");
pub(super) const SCORES: &str = include_str!("scores.cu");

/// The texts of attention forward.
pub(super) fn program(
    kernel: &AttentionKernel,
    schedule: &WarpAttention,
    result: &AttentionResult,
    entry: &str,
) -> Result<CudaProgram, Diagnostic> {
    let tile = schedule.rows;
    let matrices: usize = kernel.batch.iter().product();
    let mut marks = Marks::new(kernel, entry);
    if schedule.limit.is_some() {
        marks.add("values", &kernel.value, AttentionSpace::Value)?;
    }
    let mut text = Text::new(kernel, entry, "forward", tile.warps);
    text.tile(tile, Owned::Rows, schedule.limit);
    // Fragments of short queries stay in registers, those of long ones are loaded again in each step.
    text.constant("KEPT", usize::from(padded(kernel.depth) <= 64));
    text.constant("ONLINE", usize::from(schedule.weights == Weights::Online));
    text.constant("VALUE_WIDTH", kernel.width);
    // Exponentials that are up to 2^8 too large are as exact; in a narrower range, factors of them might overflow.
    let lag = if kernel.dtype == DType::BF16 { "5.5f" } else { "0.0f" };
    text.push(&format!("static constexpr float LAG = {lag};\n"));
    marks.seen_by(&mut text);
    copy(&mut text, "query", &kernel.query, AttentionSpace::Query)?;
    copy(&mut text, "key", &kernel.key, AttentionSpace::Key)?;
    copy(&mut text, "value", &kernel.value, AttentionSpace::Value)?;
    scores(&mut text, schedule, kernel.batch.len() + 1)?;
    let extents = kernel.extents(AttentionSpace::Row);
    let given = Numbers::GivenRow([kernel.maximum, kernel.sum]);
    text.add(function("row", &kernel.row, given, &kernel.buffers, &extents, text.width())?);
    epilogue(&mut text, "epilogue", result, (AttentionSpace::Output, kernel.values))?;
    text.push(SCORES);
    let (depth, width) = (padded(kernel.depth), padded(kernel.width));
    text.shared_bytes = 2 * (tile.own() * (depth + 8) + 2 * tile.step * (depth + width + 16));
    let blocks = kernel.queries.div_ceil(tile.own() as usize);
    let mut program = marks.program;
    program.steps.push(CudaStep::Text(text.finish(FORWARD, matrices * blocks)?));
    Ok(program)
}

/// What is made of scores and weights, at two neighbours along an axis.
pub(super) fn scores(text: &mut Text<'_>, schedule: &WarpAttention, along: usize) -> Result<(), Diagnostic> {
    let kernel = text.kernel;
    let seen = schedule.limit.map_or_else(|| kernel.logit.clone(), |limit| limit.seen_logit(kernel));
    let score = (kernel.score, kernel.dtype);
    at_scores(text, "logit", wide(&kernel.logit, score, Casts::Kept), along)?;
    at_scores(text, "logit_seen", wide(&seen, score, Casts::Kept), along)?;
    at_scores(text, "factor", wide(&kernel.factor, (kernel.weight, kernel.softmax), Casts::Left), along)
}

/// A block over scores as a function.
pub(super) fn at_scores(
    text: &mut Text<'_>,
    name: &str,
    (made, given): (MatrixOperand, (Reg, DType)),
    along: usize,
) -> Result<(), Diagnostic> {
    let kernel = text.kernel;
    let extents = kernel.extents(AttentionSpace::Score);
    let numbers = Numbers::Pair { given: Some(given), made: Some(made.value), along };
    text.add(function(name, &made.block, numbers, &kernel.buffers, &extents, text.width())?);
    Ok(())
}

/// What becomes of a product, as a function.
pub(super) fn epilogue(
    text: &mut Text<'_>,
    name: &str,
    result: &AttentionResult,
    (space, dtype): (AttentionSpace, DType),
) -> Result<(), Diagnostic> {
    let kernel = text.kernel;
    let extents = kernel.extents(space);
    let numbers = Numbers::Pair { given: Some((result.product, dtype)), made: None, along: extents.len() - 1 };
    text.add(function(name, &result.epilogue, numbers, &kernel.buffers, &extents, text.width())?);
    Ok(())
}
