//! The gradients: a text that owns rows, for their sums and the gradients of queries, and one that owns keys, for those of keys and values.
//! Each adds up what it owns by itself, in order: there are no atomics, and the same bits in every run.

use kiln_ir::cuda::{CudaProgram, CudaStep};
use kiln_ir::gpu::WarpAttention;
use kiln_ir::kernel::{
    AttentionGradient, AttentionKernel, AttentionSpace, GradientZeros, MatrixOperand, SoftmaxGradient,
};
use kiln_ir::{DType, Diagnostic};

use super::forward::{SCORES, at_scores, epilogue, scores};
use super::function::{Numbers, function};
use super::marks::Marks;
use super::operand::copy;
use super::text::{Owned, Text, padded};
use super::wide::{Casts, wide};

const QUERY: &str = include_str!("query.cu");
const KEY: &str = include_str!("key.cu");

/// The texts of the gradients.
pub(super) fn program(
    kernel: &AttentionKernel,
    schedule: &WarpAttention,
    backward: &AttentionGradient,
    entry: &str,
) -> Result<CudaProgram, Diagnostic> {
    let mut marks = Marks::new(kernel, entry);
    if schedule.limit.is_some() {
        marks.add("queries", &kernel.query, AttentionSpace::Query)?;
        marks.add("keys", &kernel.key, AttentionSpace::Key)?;
        marks.add("values", &kernel.value, AttentionSpace::Value)?;
        marks.add("gradients", &backward.gradient, AttentionSpace::Output)?;
    }
    let totals = marks.program.scratch.len() as u32;
    let mut texts = Vec::new();
    if let Some(through) = &backward.through {
        texts.push(query(kernel, schedule, (backward, through), (&marks, totals), entry)?);
    }
    if backward.value.is_some() || backward.through.as_ref().is_some_and(|through| through.key.is_some()) {
        texts.push(key(kernel, schedule, backward, (&marks, totals), entry)?);
    }
    let mut program = marks.program;
    program.scratch.push(4 * kernel.batch.iter().product::<usize>() * kernel.queries);
    program.steps.extend(texts);
    Ok(program)
}

/// The text that owns rows.
fn query(
    kernel: &AttentionKernel,
    schedule: &WarpAttention,
    (backward, through): (&AttentionGradient, &SoftmaxGradient),
    (marks, totals): (&Marks<'_>, u32),
    entry: &str,
) -> Result<CudaStep, Diagnostic> {
    let tile = schedule.rows;
    let mut text = Text::new(kernel, entry, "query", tile.warps);
    text.tile(tile, Owned::Rows, schedule.limit);
    text.push(&format!("#define HAS_QUERY {}\n", u32::from(through.query.is_some())));
    text.constant("QUERY_DEPTH", kernel.depth);
    marks.seen_by(&mut text);
    text.scratch(totals, "float *const __restrict__ totals");
    let along = kernel.batch.len() + 1;
    operands(&mut text, backward)?;
    scores(&mut text, schedule, along)?;
    gradients(&mut text, schedule, through, along)?;
    if let Some(result) = &through.query {
        epilogue(&mut text, "epilogue", result, (AttentionSpace::Query, kernel.dtype))?;
    }
    text.push(SCORES);
    text.shared_bytes = 2 * (tile.own() + 2 * tile.step) * pitches(kernel);
    let groups = kernel.batch.iter().product::<usize>() * kernel.queries.div_ceil(tile.own() as usize);
    Ok(CudaStep::Text(text.finish(QUERY, groups)?))
}

/// The text that owns keys.
fn key(
    kernel: &AttentionKernel,
    schedule: &WarpAttention,
    backward: &AttentionGradient,
    (marks, totals): (&Marks<'_>, u32),
    entry: &str,
) -> Result<CudaStep, Diagnostic> {
    let tile = schedule.keys;
    let mut text = Text::new(kernel, entry, "key", tile.warps);
    text.tile(tile, Owned::Keys, schedule.limit);
    let through = backward.through.as_ref().filter(|through| through.key.is_some());
    let (has_key, has_value) = (u32::from(through.is_some()), u32::from(backward.value.is_some()));
    text.push(&format!("#define HAS_KEY {has_key}\n#define HAS_VALUE {has_value}\n"));
    text.constant("QUERY_DEPTH", kernel.depth);
    text.constant("VALUE_WIDTH", kernel.width);
    marks.seen_by(&mut text);
    text.scratch(totals, "float const *const __restrict__ totals");
    let along = kernel.batch.len();
    operands(&mut text, backward)?;
    scores(&mut text, schedule, along)?;
    if let Some(through) = through {
        gradients(&mut text, schedule, through, along)?;
        if let Some(result) = &through.key {
            epilogue(&mut text, "key_epilogue", result, (AttentionSpace::Key, kernel.dtype))?;
        }
    }
    if let Some(result) = &backward.value {
        epilogue(&mut text, "value_epilogue", result, (AttentionSpace::Value, kernel.values))?;
    }
    text.push(SCORES);
    text.shared_bytes = 2 * (tile.own() + 2 * tile.step) * pitches(kernel) + 2 * 3 * 4 * tile.step;
    let groups = kernel.batch.iter().product::<usize>() * kernel.keys.div_ceil(tile.own() as usize);
    Ok(CudaStep::Text(text.finish(KEY, groups)?))
}

/// What is copied, and rows' maxima and sums.
fn operands(text: &mut Text<'_>, backward: &AttentionGradient) -> Result<(), Diagnostic> {
    let kernel = text.kernel;
    copy(text, "query", &kernel.query, AttentionSpace::Query)?;
    copy(text, "key", &kernel.key, AttentionSpace::Key)?;
    copy(text, "value", &kernel.value, AttentionSpace::Value)?;
    copy(text, "gradient", &backward.gradient, AttentionSpace::Output)?;
    let extents = kernel.extents(AttentionSpace::Row);
    let made = Numbers::MadeRow([kernel.maximum, kernel.sum]);
    text.add(function("row", &kernel.row, made, &kernel.buffers, &extents, text.width())?);
    Ok(())
}

/// The way through the softmax, at two neighbours along an axis.
fn gradients(
    text: &mut Text<'_>,
    schedule: &WarpAttention,
    through: &SoftmaxGradient,
    along: usize,
) -> Result<(), Diagnostic> {
    let kernel = text.kernel;
    let weighed = match through.zeros {
        GradientZeros::Arithmetic => "weight * gradient",
        GradientZeros::Masked => "gradient == 0.0f ? 0.0f : weight * gradient",
    };
    text.push(&format!(
        "static __device__ __forceinline__ float weighed(float weight, float gradient) {{ return {weighed}; }}\n"
    ));
    let factor = (through.factor, kernel.values);
    at_scores(text, "gradient_of_weight", wide(&through.weight, factor, Casts::Kept), along)?;
    let seen =
        |score: &MatrixOperand| schedule.limit.map_or_else(|| score.clone(), |limit| limit.seen_score(kernel, score));
    let logit = (through.logit, DType::F32);
    at_scores(text, "gradient_of_score", wide(&through.score, logit, Casts::Left), along)?;
    at_scores(text, "gradient_of_score_seen", wide(&seen(&through.score), logit, Casts::Left), along)
}

/// Elements of a row in shared memory of what is as long as a query, and of what is as long as a value.
fn pitches(kernel: &AttentionKernel) -> u32 {
    padded(kernel.depth) + padded(kernel.width) + 16
}
