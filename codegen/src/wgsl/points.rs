//! What attention does at each point of a block of scores, and with what that makes for each row.
//!
//! A row of a block is shared by a few invocations, each of which takes every so-manieth key. What a point computes, from the score to what is
//! wanted of it, is one straight block, put together here from the kernel's own.

use kiln_ir::kernel::{AttentionSpace, Block, GradientZeros, Instruction, MatrixOperand, Operation, Reg};
use kiln_ir::{DType, Diagnostic, Literal, ScalarOp};

use super::attention::{Task, Text};
use super::block::{Scope, Value, block, stores};
use super::module::Module;
use super::operand::{dtype_of, fresh};
use super::ranges::Ranges;
use super::scalar;
use super::space::Point;
use super::types::{Held, literal};
use super::writer::Writer;

/// What is computed at points, and what of it a dispatch wants.
pub(super) struct Points {
    /// From sums to what is wanted.
    made: MatrixOperand,
    /// The register of the score before it is rounded.
    score: Reg,
    /// The register of the gradient of a factor before it is rounded.
    factor: Reg,
    /// The register of a row's sum of products.
    delta: Reg,
    /// The row block.
    row: Block,
}

/// A block that grows.
struct Chain {
    block: Block,
    next: u32,
}

impl Chain {
    fn push(&mut self, dtype: DType, operation: Operation) -> Reg {
        let result = Reg(self.next);
        self.next += 1;
        self.push_as(result, dtype, operation);
        result
    }

    fn push_as(&mut self, result: Reg, dtype: DType, operation: Operation) {
        self.block.instructions.push(Instruction { result, dtype, operation });
    }

    fn scalar(&mut self, op: ScalarOp, dtype: DType, operands: &[Reg]) -> Reg {
        self.push(dtype, Operation::Scalar(op, operands.iter().copied().collect()))
    }

    fn follow(&mut self, block: &Block) {
        self.block.instructions.extend(block.instructions.iter().cloned());
    }

    /// `a * b`, where zeros that stand for branches not taken stay zeros.
    fn product(&mut self, zeros: GradientZeros, dtype: DType, a: Reg, b: Reg) -> Reg {
        let product = self.scalar(ScalarOp::Mul, dtype, &[a, b]);
        match zeros {
            GradientZeros::Arithmetic => product,
            GradientZeros::Masked => {
                let zero = self.push(dtype, Operation::Literal(Literal::zero(dtype)));
                let condition =
                    self.push(DType::Bool, Operation::Scalar(ScalarOp::Eq, [b, zero].into_iter().collect()));
                self.push(dtype, Operation::Select { condition, then: zero, otherwise: product })
            }
        }
    }
}

impl Points {
    /// What a text computes at its points.
    pub(super) fn of(text: &Text<'_>) -> Points {
        let kernel = text.kernel;
        let all: Vec<&Block> = kernel.blocks().into_iter().map(|(block, ..)| block).collect();
        let named = [kernel.score, kernel.maximum, kernel.sum, kernel.weight];
        let free = named.iter().map(|reg| reg.0 + 1).max().unwrap_or(0).max(fresh(&all, 0).0) + 16;
        let (score, factor, delta) = (Reg(free), Reg(free + 1), Reg(free + 2));
        let mut chain = Chain { block: Block::default(), next: free + 3 };
        chain.push_as(kernel.score, kernel.dtype, Operation::Cast(score));
        chain.follow(&kernel.logit.block);
        let mut value = kernel.logit.value;
        if !matches!(text.task, Task::Statistics) {
            let shifted = chain.scalar(ScalarOp::Sub, kernel.softmax, &[value, kernel.maximum]);
            let exponential = chain.scalar(ScalarOp::Exp, kernel.softmax, &[shifted]);
            let quotient = Operation::Scalar(ScalarOp::Div, [exponential, kernel.sum].into_iter().collect());
            chain.push_as(kernel.weight, kernel.softmax, quotient);
        }
        match text.task {
            Task::Statistics => {}
            Task::Product(_) | Task::Value(..) => {
                chain.follow(&kernel.factor.block);
                value = kernel.factor.value;
            }
            Task::RowSums(_, through) | Task::Query(_, through, _) | Task::Key(_, through, _) => {
                chain.push_as(through.factor, kernel.values, Operation::Cast(factor));
                chain.follow(&through.weight.block);
                let own = through.weight.value;
                if matches!(text.task, Task::RowSums(..)) {
                    value = chain.product(through.zeros, kernel.softmax, kernel.weight, own);
                } else {
                    let less = chain.scalar(ScalarOp::Sub, kernel.softmax, &[own, delta]);
                    let logit = chain.product(through.zeros, kernel.softmax, kernel.weight, less);
                    chain.push_as(through.logit, kernel.softmax, Operation::Cast(logit));
                    chain.follow(&through.score.block);
                    value = through.score.value;
                }
            }
        }
        let made = MatrixOperand { block: chain.block, value };
        Points { made, score, factor, delta, row: kernel.row.clone() }
    }

    /// The blocks that will be printed.
    pub(super) fn blocks(&self) -> Vec<&Block> {
        vec![&self.made.block, &self.row]
    }

    /// What stands before the walk.
    pub(super) fn begin(&self, text: &Text<'_>, module: &mut Module<'_>, w: &mut Writer) -> Result<(), Diagnostic> {
        let block = text.block();
        w.line(format!("let own_row = local % {block};"));
        w.line(format!("let share = local / {block};"));
        let (softmax, sums) = types(text);
        match text.task {
            Task::Statistics => {
                let lowest = lowest(module, text.kernel.softmax);
                w.line(format!("var largest: {} = {lowest};", softmax.name()));
                w.line(format!("var total = {}();", sums.name()));
            }
            Task::RowSums(..) => w.line(format!("var total = {}();", sums.name())),
            Task::Product(_) | Task::Query(..) | Task::Key(..) | Task::Value(..) => {}
        }
        Ok(())
    }

    /// Goes through a block.
    pub(super) fn each(
        &self,
        text: &Text<'_>,
        module: &mut Module<'_>,
        w: &mut Writer,
        batch: &[String],
    ) -> Result<(), Diagnostic> {
        let (block, pitch, sharers) = (text.block(), text.pitch(), text.sharers());
        let kernel = text.kernel;
        let walk = format!("for (var place = share; place < {block}; place += {sharers})");
        w.line("let row = first_row + own_row;");
        match text.task {
            Task::Statistics => {
                w.line("var most = largest;");
                w.open(format!("if row < {}", kernel.queries));
                w.line(format!("let keys = min({block}, {} - first_key);", kernel.keys));
                let walk = format!("for (var place = share; place < keys; place += {sharers})");
                w.open(&walk);
                let logit = self.point(text, module, w, batch)?;
                w.line(format!("scores[own_row * {pitch} + place] = {};", text.as_kept(&logit.text, logit.held)));
                let most = self.larger(text, module, "most", &logit.text)?;
                w.line(format!("most = {most};"));
                w.close();
                let lowest = lowest(module, kernel.softmax);
                // True of NaN as well.
                w.open(format!("if !(most == {lowest})"));
                let rescale = self.exp(text, module, "largest - most")?;
                w.line(format!("total *= {rescale};"));
                w.open(&walk);
                let logit = self.kept(text, &format!("scores[own_row * {pitch} + place]"));
                let more = self.exp(text, module, &format!("{logit} - most"))?;
                w.line(format!("total += {more};"));
                w.close();
                w.line("largest = most;");
                w.close();
                w.close();
            }
            Task::RowSums(..) => {
                self.rows_of_points(text, w);
                w.open(walk);
                w.line("let key = first_key + place;");
                w.open(format!("if row < {} && key < {}", kernel.queries, kernel.keys));
                let term = self.point(text, module, w, batch)?;
                w.line(format!("total += {};", term.text));
                w.close();
                w.close();
            }
            Task::Product(_) | Task::Query(..) | Task::Key(..) | Task::Value(..) => {
                self.rows_of_points(text, w);
                w.open(walk);
                w.line("let key = first_key + place;");
                w.line(format!("var made = {}();", text.held().name()));
                w.open(format!("if row < {} && key < {}", kernel.queries, kernel.keys));
                let value = self.point(text, module, w, batch)?;
                w.line(format!("made = {};", text.as_kept(&value.text, value.held)));
                w.close();
                w.line(format!("scores[own_row * {pitch} + place] = made;"));
                w.close();
            }
        }
        Ok(())
    }

    /// The numbers of an invocation's row.
    fn rows_of_points(&self, text: &Text<'_>, w: &mut Writer) {
        w.line("let maximum = maxima[own_row];");
        w.line("let sum = totals[own_row];");
        if matches!(text.task, Task::Query(..) | Task::Key(..)) {
            w.line("let delta = deltas[own_row];");
        }
    }

    /// What is made at one point.
    fn point(
        &self,
        text: &Text<'_>,
        module: &mut Module<'_>,
        w: &mut Writer,
        batch: &[String],
    ) -> Result<Value, Diagnostic> {
        let kernel = text.kernel;
        if matches!(text.task, Task::Statistics) {
            w.line("let key = first_key + place;");
        }
        let axes = [batch, &["row".to_owned(), "key".to_owned()]].concat();
        let extents = kernel.extents(AttentionSpace::Score);
        let mut scope =
            Scope::new(Ranges::of([(&self.made.block, &extents[..], &[][..])].into_iter(), &[self.made.value]));
        let at = format!("own_row * {} + place", text.pitch());
        let mut sum = |reg: Reg, name: &str, dtype: DType| {
            let dtype = dtype.accumulator();
            let kept = format!("{name}[{at}]");
            let value =
                if Held::of(dtype) == text.held() { kept } else { format!("{}({kept})", Held::of(dtype).name()) };
            scope.define(reg, Value::new(value, Held::of(dtype), 1).of(dtype));
        };
        sum(self.score, "scores", kernel.dtype);
        if matches!(text.task, Task::RowSums(..) | Task::Query(..) | Task::Key(..)) {
            sum(self.factor, "products", kernel.values);
        }
        let held = Held::of(kernel.softmax);
        for (reg, name) in [(kernel.maximum, "maximum"), (kernel.sum, "sum"), (self.delta, "delta")] {
            scope.define(reg, Value::new(name, held, 1).of(kernel.softmax));
        }
        block(module, &mut scope, w, &self.made.block, &Point::new(axes, extents))?;
        scope.value(self.made.value).cloned()
    }

    /// A number of a block in workgroup memory, as the softmax has it.
    fn kept(&self, text: &Text<'_>, kept: &str) -> String {
        let held = Held::of(text.kernel.softmax);
        if held == text.held() { kept.to_owned() } else { format!("{}({kept})", held.name()) }
    }

    fn larger(&self, text: &Text<'_>, module: &mut Module<'_>, a: &str, b: &str) -> Result<String, Diagnostic> {
        let (dtype, held) = (text.kernel.softmax, Held::of(text.kernel.softmax));
        let operands = [a, b].map(|text| Value::new(text, held, 1).of(dtype));
        Ok(scalar::apply(module, ScalarOp::Max, &operands, dtype, held)?.text)
    }

    /// e to a number of the softmax, as sums have it.
    fn exp(&self, text: &Text<'_>, module: &mut Module<'_>, of: &str) -> Result<String, Diagnostic> {
        let (_, held) = types(text);
        let dtype = dtype_of(held);
        Ok(scalar::apply(module, ScalarOp::Exp, &[Value::new(format!("({of})"), held, 1).of(dtype)], dtype, held)?.text)
    }

    /// A row's maximum and sum by the row block, into workgroup memory.
    pub(super) fn rows(
        &self,
        text: &Text<'_>,
        module: &mut Module<'_>,
        w: &mut Writer,
        batch: &[String],
    ) -> Result<(), Diagnostic> {
        let scope = self.row(text, module, w, batch, |_| {})?;
        let kernel = text.kernel;
        w.line(format!("maxima[local] = {};", scope.value(kernel.maximum)?.text));
        w.line(format!("totals[local] = {};", scope.value(kernel.sum)?.text));
        Ok(())
    }

    /// Prints the row block, for the row called `row`.
    fn row(
        &self,
        text: &Text<'_>,
        module: &mut Module<'_>,
        w: &mut Writer,
        batch: &[String],
        define: impl FnOnce(&mut Scope),
    ) -> Result<Scope, Diagnostic> {
        let extents = text.kernel.extents(AttentionSpace::Row);
        let mut scope = Scope::new(Ranges::of([(&self.row, &extents[..], &[][..])].into_iter(), &[]));
        define(&mut scope);
        let point = Point::new([batch, &["row".to_owned()]].concat(), extents);
        block(module, &mut scope, w, &self.row, &point)?;
        stores(module, &scope, w, &self.row, &point)?;
        Ok(scope)
    }

    /// What becomes of the numbers of rows, where a dispatch ends in them.
    pub(super) fn end(
        &self,
        text: &Text<'_>,
        module: &mut Module<'_>,
        w: &mut Writer,
        batch: &[String],
    ) -> Result<(), Diagnostic> {
        let (kernel, block, sharers) = (text.kernel, text.block(), text.sharers());
        let (softmax, sums) = types(text);
        let workgroup = block * sharers;
        let statistics = matches!(text.task, Task::Statistics);
        if statistics {
            module.workgroup("lane_largest", format!("array<{}, {workgroup}>", softmax.name()));
            w.line("lane_largest[local] = largest;");
        }
        module.workgroup("lane_totals", format!("array<{}, {workgroup}>", sums.name()));
        w.line("lane_totals[local] = total;");
        w.line("workgroupBarrier();");
        w.open(format!("if local < {block} && first_row + local < {}", kernel.queries));
        w.line("let row = first_row + local;");
        let scratch = module.scratch(0, softmax.in_scratch(), true);
        let walk = format!("for (var own = local; own < {workgroup}; own += {block})");
        w.line(format!("var all = {}();", sums.name()));
        if statistics {
            w.line("var most = lane_largest[local];");
            w.open(&walk);
            let most = self.larger(text, module, "most", "lane_largest[own]")?;
            w.line(format!("most = {most};"));
            w.close();
            let lowest = lowest(module, kernel.softmax);
            w.open(&walk);
            // An invocation that has seen nothing says nothing, unless none has: then the row is NaN.
            w.open(format!("if most == {lowest} || !(lane_largest[own] == {lowest})"));
            let scale = self.exp(text, module, "lane_largest[own] - most")?;
            w.line(format!("all += lane_totals[own] * {scale};"));
            w.close();
            w.close();
        } else {
            w.open(&walk);
            w.line("all += lane_totals[own];");
            w.close();
        }
        let all = Value::new("all", sums, 1).of(dtype_of(sums));
        let rounded = scalar::cast(module, &all, kernel.softmax, softmax)?;
        w.line(format!("let sum = {};", rounded.text));
        if statistics {
            w.line(format!("{scratch}[{}] = most;", text.in_scratch(0)));
            w.line(format!("{scratch}[{}] = sum;", text.in_scratch(1)));
            self.row(text, module, w, batch, |scope| {
                scope.define(kernel.maximum, Value::new("most", softmax, 1).of(kernel.softmax));
                scope.define(kernel.sum, Value::new("sum", softmax, 1).of(kernel.softmax));
            })?;
        } else {
            w.line(format!("{scratch}[{}] = maxima[local];", text.in_scratch(0)));
            w.line(format!("{scratch}[{}] = totals[local];", text.in_scratch(1)));
            w.line(format!("{scratch}[{}] = sum;", text.in_scratch(2)));
        }
        w.close();
        Ok(())
    }
}

/// How numbers of the softmax and their sums are held.
fn types(text: &Text<'_>) -> (Held, Held) {
    let softmax = text.kernel.softmax;
    (Held::of(softmax), Held::of(softmax.accumulator()))
}

/// Negative infinity.
fn lowest(module: &mut Module<'_>, dtype: DType) -> String {
    literal(&mut module.functions, Literal::from_f64(dtype, f64::NEG_INFINITY))
}
