//! Attention by its definition, row by row: all logits of a query, then the softmax, then the products.

use kiln_ir::kernel::{
    AttentionGradient, AttentionKernel, AttentionPass, AttentionResult, AttentionRole, AttentionSpace, Block,
    GradientZeros, MatrixOperand, Operation, Reg, SoftmaxGradient,
};
use kiln_ir::{DType, Literal, ScalarOp};

use super::super::reduce::{Combine, Running};
use super::space::points;
use super::{Broken, Run, flat, scalar};

/// Elements of a matrix for each batch point, row-major.
struct Matrices {
    elements: Vec<Literal>,
    rows: usize,
    columns: usize,
}

impl Matrices {
    fn at(&self, batch: usize, row: usize, column: usize) -> Literal {
        self.elements[(batch * self.rows + row) * self.columns + column]
    }
}

/// What is multiplied.
struct Operands {
    query: Matrices,
    key: Matrices,
    value: Matrices,
    /// The backward direction's.
    gradient: Option<Matrices>,
}

/// Gradients of scores, and factors: one row for each query of a batch point.
type Rows = Vec<Vec<Literal>>;

impl Run<'_> {
    pub(super) fn attention(&mut self, kernel: &AttentionKernel) -> Result<(), Broken> {
        self.keeps_operands(kernel)?;
        let gradient = match &kernel.pass {
            AttentionPass::Forward(_) => None,
            AttentionPass::Backward(backward) => Some(&backward.gradient),
        };
        let operands = Operands {
            query: self.matrices(kernel, &kernel.query, AttentionSpace::Query)?,
            key: self.matrices(kernel, &kernel.key, AttentionSpace::Key)?,
            value: self.matrices(kernel, &kernel.value, AttentionSpace::Value)?,
            gradient: gradient.map(|gradient| self.matrices(kernel, gradient, AttentionSpace::Output)).transpose()?,
        };
        for batch in self.points(&kernel.batch) {
            match &kernel.pass {
                AttentionPass::Forward(result) => self.forward(kernel, result, &operands, &batch)?,
                AttentionPass::Backward(backward) => self.backward(kernel, backward, &operands, &batch)?,
            }
        }
        Ok(())
    }

    /// Only epilogues may load what the kernel writes, and only they and the rows store.
    fn keeps_operands(&self, kernel: &AttentionKernel) -> Result<(), Broken> {
        for (block, space, role) in kernel.blocks() {
            let updated = |operation: &Operation| match operation {
                Operation::Load { buffer, .. } => {
                    kernel.buffers[buffer.0 as usize].access != kiln_ir::kernel::Access::Read
                }
                _ => false,
            };
            let loads = block.instructions.iter().any(|instruction| updated(&instruction.operation));
            let stores = !block.stores.is_empty() && space != AttentionSpace::Row;
            if role == AttentionRole::Operand && (loads || stores) {
                return Err("has an operand of attention in a buffer that it writes".to_owned());
            }
        }
        Ok(())
    }

    fn matrices(
        &mut self,
        kernel: &AttentionKernel,
        operand: &MatrixOperand,
        space: AttentionSpace,
    ) -> Result<Matrices, Broken> {
        let extents = kernel.extents(space);
        let elements = points(&extents).map(|point| {
            self.registers.clear();
            self.block(&operand.block, &point)?;
            self.register(operand.value)
        });
        let elements = elements.collect::<Result<_, _>>()?;
        Ok(Matrices { elements, rows: extents[extents.len() - 2], columns: extents[extents.len() - 1] })
    }

    /// `made` of a number that `given` holds, at a point of the scores.
    fn through(
        &mut self,
        given: Reg,
        number: Literal,
        made: &MatrixOperand,
        point: &[usize],
    ) -> Result<Literal, Broken> {
        self.registers.clear();
        self.set(given, number);
        self.block(&made.block, point)?;
        self.register(made.value)
    }

    /// Logits of one query.
    fn logits(
        &mut self,
        kernel: &AttentionKernel,
        operands: &Operands,
        batch: &[usize],
        query: usize,
    ) -> Result<Vec<Literal>, Broken> {
        let number = flat(&kernel.batch, batch);
        (0..kernel.keys)
            .map(|key| {
                let terms = (0..kernel.depth)
                    .map(|at| (operands.query.at(number, query, at), operands.key.at(number, key, at)));
                let score = dot(kernel.dtype, terms);
                self.through(kernel.score, score, &kernel.logit, &[batch, &[query, key]].concat())
            })
            .collect()
    }

    fn factors(
        &mut self,
        kernel: &AttentionKernel,
        weights: &[Literal],
        batch: &[usize],
        query: usize,
    ) -> Result<Vec<Literal>, Broken> {
        let factor = |(key, &weight): (usize, &Literal)| {
            self.through(kernel.weight, weight, &kernel.factor, &[batch, &[query, key]].concat())
        };
        weights.iter().enumerate().map(factor).collect()
    }

    fn forward(
        &mut self,
        kernel: &AttentionKernel,
        result: &AttentionResult,
        operands: &Operands,
        batch: &[usize],
    ) -> Result<(), Broken> {
        let number = flat(&kernel.batch, batch);
        for query in self.order(kernel.queries) {
            let logits = self.logits(kernel, operands, batch, query)?;
            let mut maximum = Running::new(Combine::Largest, kernel.softmax);
            logits.iter().for_each(|&logit| maximum.take(logit));
            let maximum = maximum.value().cast(kernel.softmax);
            let exponentials = exponentials(&logits, maximum)?;
            let mut sum = Running::new(Combine::Sum, kernel.softmax.accumulator());
            exponentials.iter().for_each(|e| sum.take(e.cast(kernel.softmax.accumulator())));
            let sum = sum.value().cast(kernel.softmax);
            self.registers.clear();
            self.set(kernel.maximum, maximum);
            self.set(kernel.sum, sum);
            self.block(&kernel.row, &[batch, &[query]].concat())?;
            let weights = quotients(&exponentials, sum)?;
            let factors = self.factors(kernel, &weights, batch, query)?;
            for column in self.order(kernel.width) {
                let terms = factors.iter().enumerate();
                let terms = terms.map(|(key, &factor)| (factor, operands.value.at(number, key, column)));
                self.result(result, dot(kernel.values, terms), &[batch, &[query, column]].concat())?;
            }
        }
        Ok(())
    }

    fn backward(
        &mut self,
        kernel: &AttentionKernel,
        backward: &AttentionGradient,
        operands: &Operands,
        batch: &[usize],
    ) -> Result<(), Broken> {
        let number = flat(&kernel.batch, batch);
        let Some(gradient) = &operands.gradient else { return Err("has no gradient".to_owned()) };
        let (mut scores, mut factors) = (Rows::new(), Rows::new());
        for query in 0..kernel.queries {
            let logits = self.logits(kernel, operands, batch, query)?;
            self.registers.clear();
            self.block(&kernel.row, &[batch, &[query]].concat())?;
            let (maximum, sum) = (self.register(kernel.maximum)?, self.register(kernel.sum)?);
            let weights = quotients(&exponentials(&logits, maximum)?, sum)?;
            factors.push(self.factors(kernel, &weights, batch, query)?);
            if let Some(through) = &backward.through {
                scores.push(self.row_of_scores(kernel, through, operands, &weights, batch, query)?);
            }
        }
        let results = [
            backward.through.as_ref().and_then(|through| through.query.as_ref()),
            backward.through.as_ref().and_then(|through| through.key.as_ref()),
            backward.value.as_ref(),
        ];
        let [of_query, of_key, of_value] = results;
        self.product(of_query, kernel.dtype, [kernel.queries, kernel.keys, kernel.depth], batch, |row, at, column| {
            (scores[row][at], operands.key.at(number, at, column))
        })?;
        self.product(of_key, kernel.dtype, [kernel.keys, kernel.queries, kernel.depth], batch, |row, at, column| {
            (scores[at][row], operands.query.at(number, at, column))
        })?;
        self.product(of_value, kernel.values, [kernel.keys, kernel.queries, kernel.width], batch, |row, at, column| {
            (factors[at][row], gradient.at(number, at, column))
        })
    }

    /// The gradients of one query's scores.
    fn row_of_scores(
        &mut self,
        kernel: &AttentionKernel,
        through: &SoftmaxGradient,
        operands: &Operands,
        weights: &[Literal],
        batch: &[usize],
        query: usize,
    ) -> Result<Vec<Literal>, Broken> {
        let number = flat(&kernel.batch, batch);
        let Some(gradient) = &operands.gradient else { return Err("has no gradient".to_owned()) };
        let mut arriving = Vec::with_capacity(kernel.keys);
        let mut sum = Running::new(Combine::Sum, kernel.softmax.accumulator());
        for (key, &weight) in weights.iter().enumerate() {
            let terms =
                (0..kernel.width).map(|at| (gradient.at(number, query, at), operands.value.at(number, key, at)));
            let factor = dot(kernel.values, terms);
            let point = [batch, &[query, key]].concat();
            let own = self.through(through.factor, factor, &through.weight, &point)?;
            match through.zeros {
                GradientZeros::Masked if own.to_f64() == 0.0 => {}
                GradientZeros::Arithmetic | GradientZeros::Masked => sum.take_product(weight, own),
            }
            arriving.push(own);
        }
        let sum = sum.value().cast(kernel.softmax);
        let score = |(key, (&weight, own)): (usize, (&Literal, Literal))| {
            let less = scalar(ScalarOp::Sub, &[own, sum])?;
            let logit = match through.zeros {
                GradientZeros::Masked if less.to_f64() == 0.0 => Literal::zero(kernel.softmax),
                GradientZeros::Arithmetic | GradientZeros::Masked => scalar(ScalarOp::Mul, &[weight, less])?,
            };
            self.through(through.logit, logit, &through.score, &[batch, &[query, key]].concat())
        };
        weights.iter().zip(arriving).enumerate().map(score).collect()
    }

    /// A product whose element is the sum of `term(row, at, column)`, with what is made of it.
    fn product(
        &mut self,
        result: Option<&AttentionResult>,
        dtype: DType,
        [rows, inner, columns]: [usize; 3],
        batch: &[usize],
        term: impl Fn(usize, usize, usize) -> (Literal, Literal),
    ) -> Result<(), Broken> {
        let Some(result) = result else { return Ok(()) };
        for row in self.order(rows) {
            for column in self.order(columns) {
                let product = dot(dtype, (0..inner).map(|at| term(row, at, column)));
                self.result(result, product, &[batch, &[row, column]].concat())?;
            }
        }
        Ok(())
    }

    fn result(&mut self, result: &AttentionResult, product: Literal, point: &[usize]) -> Result<(), Broken> {
        self.registers.clear();
        self.set(result.product, product);
        let epilogue: &Block = &result.epilogue;
        self.block(epilogue, point)
    }

    /// Indices in the order in which this run walks points.
    fn order(&self, extent: usize) -> Vec<usize> {
        self.points(&[extent]).into_iter().map(|point| point[0]).collect()
    }
}

fn dot(dtype: DType, terms: impl Iterator<Item = (Literal, Literal)>) -> Literal {
    let mut sum = Running::new(Combine::Sum, dtype.accumulator());
    terms.for_each(|(a, b)| sum.take_product(a, b));
    sum.value().cast(dtype)
}

fn exponentials(logits: &[Literal], maximum: Literal) -> Result<Vec<Literal>, Broken> {
    let exp = |&logit: &Literal| scalar(ScalarOp::Exp, &[scalar(ScalarOp::Sub, &[logit, maximum])?]);
    logits.iter().map(exp).collect()
}

fn quotients(exponentials: &[Literal], sum: Literal) -> Result<Vec<Literal>, Broken> {
    exponentials.iter().map(|&e| scalar(ScalarOp::Div, &[e, sum])).collect()
}
