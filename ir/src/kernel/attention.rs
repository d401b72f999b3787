//! Attention as one kernel, forward and backward: scores are made, used and forgotten block by block, and never stand in memory.
//!
//! What is computed, for every batch point and every query `i`, with `j` over the keys:
//!
//! ```text
//! score[i, j]  = query[i] . key[j]                       summed in the accumulator, rounded to `dtype`
//! logit[i, j]  = the logit block of score[i, j]          scale, mask, casts; of dtype `softmax`
//! maximum[i]   = max over j of logit[i, j]
//! e[i, j]      = exp(logit[i, j] - maximum[i])
//! sum[i]       = sum over j of e[i, j]
//! weight[i, j] = e[i, j] / sum[i]
//! factor[i, j] = the factor block of weight[i, j]        casts, dropout; of dtype `values`
//! ```
//!
//! Forward: `product[i] = sum over j of factor[i, j] * value[j]`, then the epilogue. Backward: maximum and sum are loaded, weights are made
//! again from them, and with `gradient` the gradient of the product,
//!
//! ```text
//! d_factor[i, j] = gradient[i] . value[j]
//! d_weight[i, j] = the weight block of d_factor[i, j]
//! d_logit[i, j]  = weight[i, j] * (d_weight[i, j] - sum over k of weight[i, k] * d_weight[i, k])
//! d_score[i, j]  = the score block of d_logit[i, j]
//! d_query[i] = sum over j of d_score[i, j] * key[j]
//! d_key[j]   = sum over i of d_score[i, j] * query[i]
//! d_value[j] = sum over i of factor[i, j] * gradient[i]
//! ```
//!
//! Freedom of a target: the order of sums, and rescaling by a running maximum (`online softmax`). Between two products, 16-bit floats may stay
//! as wide as they are summed, casts that stand in a logit or weight block excepted. Where the factor block is linear, exponentials may be
//! rounded in the place of weights and the product divided by their sum; else weights are whole before they are rounded. A row of which
//! every logit is -inf is NaN, as subtracting an infinity from itself makes it. Blocks may be left out where all their weights are 0 and what
//! they would be multiplied with is finite.

use smallvec::SmallVec;

use super::{Block, Buffer, MatrixOperand, Reg};
use crate::{DType, Precision};

/// Attention over a batch, in one direction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttentionKernel {
    /// What is given at launch.
    pub buffers: Vec<Buffer>,
    /// Batch extents, heads among them.
    pub batch: SmallVec<[usize; 6]>,
    /// Rows of queries.
    pub queries: usize,
    /// Rows of keys and values.
    pub keys: usize,
    /// Elements of a query and of a key.
    pub depth: usize,
    /// Elements of a value.
    pub width: usize,
    /// Dtype of queries, keys and scores.
    pub dtype: DType,
    /// Dtype of logits and of all the softmax.
    pub softmax: DType,
    /// Dtype of factors, values and their product.
    pub values: DType,
    /// How exact the products must be.
    pub precision: Precision,
    /// Queries, over `[..batch, queries, depth]`.
    pub query: MatrixOperand,
    /// Keys, over `[..batch, keys, depth]`.
    pub key: MatrixOperand,
    /// Values, over `[..batch, keys, width]`.
    pub value: MatrixOperand,
    /// The register that holds the score in the logit block.
    pub score: Reg,
    /// From score to logit, over `[..batch, queries, keys]`.
    pub logit: MatrixOperand,
    /// The register that holds a row's largest logit.
    pub maximum: Reg,
    /// The register that holds a row's sum of exponentials.
    pub sum: Reg,
    /// Over `[..batch, queries]`. Forward, it may store `maximum` and `sum`; backward, it defines them.
    pub row: Block,
    /// The register that holds the weight in the factor block.
    pub weight: Reg,
    /// From weight to factor, over `[..batch, queries, keys]`.
    pub factor: MatrixOperand,
    /// In which direction.
    pub pass: AttentionPass,
}

/// The direction of an attention kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AttentionPass {
    /// The product, over `[..batch, queries, width]`.
    Forward(AttentionResult),
    /// The gradients.
    Backward(Box<AttentionGradient>),
}

/// A product and what is made of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttentionResult {
    /// The register that holds the product, rounded to its dtype, in the epilogue.
    pub product: Reg,
    /// Evaluated at every element of the product; stores the results.
    pub epilogue: Block,
}

/// What the backward direction has beside the forward one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttentionGradient {
    /// The gradient of the forward product, over `[..batch, queries, width]`.
    pub gradient: MatrixOperand,
    /// The way through the softmax, where the gradients of queries or keys are wanted.
    pub through: Option<SoftmaxGradient>,
    /// The gradient of values, over `[..batch, keys, width]`.
    pub value: Option<AttentionResult>,
}

/// From the gradient of factors to those of queries and keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SoftmaxGradient {
    /// The register that holds the gradient of a factor, rounded to `values`, in the weight block.
    pub factor: Reg,
    /// From the gradient of a factor to that of a weight, of dtype `softmax`, over `[..batch, queries, keys]`.
    pub weight: MatrixOperand,
    /// What zeros in the gradients of weights and logits come to.
    pub zeros: GradientZeros,
    /// The register that holds the gradient of a logit in the score block.
    pub logit: Reg,
    /// From the gradient of a logit to that of a score, of dtype `dtype`, over `[..batch, queries, keys]`.
    pub score: MatrixOperand,
    /// The gradient of queries, over `[..batch, queries, depth]`.
    pub query: Option<AttentionResult>,
    /// The gradient of keys, over `[..batch, keys, depth]`.
    pub key: Option<AttentionResult>,
}

/// What a zero in a gradient comes to where it meets an infinity or NaN in a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GradientZeros {
    /// NaN, as in any arithmetic.
    Arithmetic,
    /// 0: it stands for a branch that was not taken (dropout). So `weight * d_weight` is 0 where `d_weight` is 0, and `d_logit` where what the
    /// weight is multiplied with is 0.
    Masked,
}

/// The points at which a block of an attention kernel is evaluated: batch extents, then these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionSpace {
    /// `[queries]`.
    Row,
    /// `[queries, keys]`.
    Score,
    /// `[queries, depth]`.
    Query,
    /// `[keys, depth]`.
    Key,
    /// `[keys, width]`.
    Value,
    /// `[queries, width]`.
    Output,
}

/// What a block of an attention kernel is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionRole {
    /// It makes elements that are multiplied, or what lies between score and factor.
    Operand,
    /// It takes a product and stores.
    Epilogue,
}

impl AttentionKernel {
    /// The extents of a space, batch first.
    pub fn extents(&self, space: AttentionSpace) -> Vec<usize> {
        let own: &[usize] = match space {
            AttentionSpace::Row => &[self.queries],
            AttentionSpace::Score => &[self.queries, self.keys],
            AttentionSpace::Query => &[self.queries, self.depth],
            AttentionSpace::Key => &[self.keys, self.depth],
            AttentionSpace::Value => &[self.keys, self.width],
            AttentionSpace::Output => &[self.queries, self.width],
        };
        [&self.batch[..], own].concat()
    }

    /// Every block with its space.
    pub fn blocks(&self) -> Vec<(&Block, AttentionSpace, AttentionRole)> {
        use AttentionRole::{Epilogue, Operand};
        use AttentionSpace::{Key, Output, Query, Row, Score, Value};
        let mut blocks = vec![
            (&self.query.block, Query, Operand),
            (&self.key.block, Key, Operand),
            (&self.value.block, Value, Operand),
            (&self.logit.block, Score, Operand),
            (&self.row, Row, Operand),
            (&self.factor.block, Score, Operand),
        ];
        match &self.pass {
            AttentionPass::Forward(result) => blocks.push((&result.epilogue, Output, Epilogue)),
            AttentionPass::Backward(backward) => {
                blocks.push((&backward.gradient.block, Output, Operand));
                if let Some(through) = &backward.through {
                    blocks.push((&through.weight.block, Score, Operand));
                    blocks.push((&through.score.block, Score, Operand));
                    blocks.extend(through.query.iter().map(|result| (&result.epilogue, Query, Epilogue)));
                    blocks.extend(through.key.iter().map(|result| (&result.epilogue, Key, Epilogue)));
                }
                blocks.extend(backward.value.iter().map(|result| (&result.epilogue, Value, Epilogue)));
            }
        }
        blocks
    }

    /// The buffers and every block, to be changed.
    pub fn parts_mut(&mut self) -> (&mut Vec<Buffer>, Vec<&mut Block>) {
        let AttentionKernel { buffers, query, key, value, logit, row, factor, pass, .. } = self;
        let operands = [query, key, value, logit, factor].map(|operand| &mut operand.block);
        let mut blocks: Vec<&mut Block> = operands.into_iter().chain([row]).collect();
        match pass {
            AttentionPass::Forward(result) => blocks.push(&mut result.epilogue),
            AttentionPass::Backward(backward) => {
                blocks.push(&mut backward.gradient.block);
                if let Some(through) = &mut backward.through {
                    blocks.push(&mut through.weight.block);
                    blocks.push(&mut through.score.block);
                    blocks.extend(through.query.iter_mut().map(|result| &mut result.epilogue));
                    blocks.extend(through.key.iter_mut().map(|result| &mut result.epilogue));
                }
                blocks.extend(backward.value.iter_mut().map(|result| &mut result.epilogue));
            }
        }
        (buffers, blocks)
    }

    /// Multiplications and additions of the products, and four operations of the softmax a score.
    pub fn flops(&self) -> u64 {
        let count = |space| self.extents(space).iter().map(|&extent| extent as u64).product::<u64>();
        let scores = count(AttentionSpace::Score);
        let (deep, wide) = (2 * scores * self.depth as u64, 2 * scores * self.width as u64);
        let made = deep + 4 * scores;
        match &self.pass {
            AttentionPass::Forward(_) => made + wide,
            AttentionPass::Backward(backward) => {
                let through = backward.through.as_ref().map_or(0, |through| {
                    let results = through.query.iter().len() + through.key.iter().len();
                    wide + 4 * scores + results as u64 * deep
                });
                made + through + backward.value.iter().len() as u64 * wide
            }
        }
    }
}
