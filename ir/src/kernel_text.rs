//! Kernels and plans as text, for snapshots, reports and people. There is no parser for it.
//!
//! ```text
//! row [32] x [10] (b0: read f32[320], b1: write f32[320])
//!   fold
//!     r0: f32 = load b0[10*i0 + j0]
//!     r1: f32 = fold.max r0
//! ```

use std::fmt::{self, Display, Formatter};

use crate::kernel::{
    Access, Address, Affine, AttentionKernel, AttentionPass, AttentionResult, Block, Bound, Buffer, CustomKernel,
    CustomTensor, GradientZeros, HorizontalKernel, Kernel, LoopKernel, MatMulKernel, Operation, Reg, ScanKernel,
    ScatterKernel, Stage,
};
use crate::plan::{Plan, Source, Step};

impl Display for Reg {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// Names of the axes of a space: `i0 i1 ..` outer, `j0 j1 ..` inner.
#[derive(Clone, Copy)]
struct Axis {
    outer: usize,
}

impl Axis {
    fn name(self, axis: usize) -> String {
        if axis < self.outer { format!("i{axis}") } else { format!("j{}", axis - self.outer) }
    }

    fn affine(self, affine: &Affine) -> String {
        let mut terms: Vec<String> = Vec::new();
        for (axis, &stride) in affine.strides.iter().enumerate().filter(|(_, stride)| **stride != 0) {
            let name = self.name(axis);
            terms.push(if stride == 1 { name } else { format!("{stride}*{name}") });
        }
        if affine.offset != 0 || terms.is_empty() {
            terms.push(affine.offset.to_string());
        }
        terms.join(" + ")
    }

    fn address(self, address: &Address) -> String {
        let mut text = self.affine(&address.affine);
        for (reg, stride) in &address.computed {
            text += &if *stride == 1 { format!(" + {reg}") } else { format!(" + {stride}*{reg}") };
        }
        text
    }

    fn bounds(self, bounds: &[Bound]) -> String {
        let parts: Vec<String> =
            bounds.iter().map(|bound| format!("0 <= {} < {}", self.affine(&bound.at), bound.extent)).collect();
        parts.join(", ")
    }

    fn operation(self, operation: &Operation) -> String {
        match operation {
            Operation::Literal(value) => value.to_string(),
            Operation::Index(affine) => format!("index {}", self.affine(affine)),
            Operation::Load { buffer, address, bounds } => {
                let guard = if bounds.is_empty() { String::new() } else { format!(" if {}", self.bounds(bounds)) };
                format!("load b{}[{}]{guard}", buffer.0, self.address(address))
            }
            Operation::Within(bounds) => format!("within {}", self.bounds(bounds)),
            Operation::Scalar(op, operands) => {
                let operands: Vec<String> = operands.iter().map(Reg::to_string).collect();
                format!("{op} {}", operands.join(", "))
            }
            Operation::Fma(a, b, c) => format!("fma {a}, {b}, {c}"),
            Operation::Cast(operand) => format!("cast {operand}"),
            Operation::Bitcast(operand) => format!("bitcast {operand}"),
            Operation::Select { condition, then, otherwise } => format!("select {condition}, {then}, {otherwise}"),
            Operation::Random { key, stream, index } => {
                format!("random key {} {}, stream {stream}, element {index}", key[0], key[1])
            }
        }
    }

    fn block(self, f: &mut Formatter<'_>, block: &Block, indent: &str) -> fmt::Result {
        for instruction in &block.instructions {
            let operation = self.operation(&instruction.operation);
            writeln!(f, "{indent}{}: {} = {operation}", instruction.result, instruction.dtype)?;
        }
        for store in &block.stores {
            writeln!(f, "{indent}store b{}[{}] = {}", store.buffer.0, self.affine(&store.address), store.value)?;
        }
        Ok(())
    }
}

fn buffers(buffers: &[Buffer]) -> String {
    let parts: Vec<String> = buffers
        .iter()
        .enumerate()
        .map(|(index, buffer)| {
            let access = match buffer.access {
                Access::Read => "read",
                Access::Write => "write",
                Access::ReadWrite => "update",
            };
            format!("b{index}: {access} {}[{}]", buffer.dtype, buffer.len)
        })
        .collect();
    parts.join(", ")
}

impl Display for Kernel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Kernel::Loop(kernel) => loops(f, kernel),
            Kernel::Horizontal(kernel) => horizontal(f, kernel),
            Kernel::MatMul(kernel) => matmul(f, kernel),
            Kernel::Attention(kernel) => attention(f, kernel),
            Kernel::Scan(kernel) => scan(f, kernel),
            Kernel::Scatter(kernel) => scatter(f, kernel),
            Kernel::Custom(kernel) => custom(f, kernel),
        }
    }
}

fn custom(f: &mut Formatter<'_>, kernel: &CustomKernel) -> fmt::Result {
    let tensors = |tensors: &[CustomTensor]| {
        let tensor = |tensor: &CustomTensor| format!("b{}: {}{}", tensor.buffer.0, tensor.dtype, tensor.shape);
        tensors.iter().map(tensor).collect::<Vec<_>>().join(", ")
    };
    let (operands, results) = (tensors(&kernel.operands), tensors(&kernel.results));
    write!(f, "custom {:?}", kernel.name)?;
    crate::text::custom_attributes(f, &kernel.attributes)?;
    writeln!(f, " ({})", buffers(&kernel.buffers))?;
    writeln!(f, "  ({operands}) -> ({results})")
}

fn loops(f: &mut Formatter<'_>, kernel: &LoopKernel) -> fmt::Result {
    let inner = if kernel.inner.is_empty() { String::new() } else { format!(" x {:?}", &kernel.inner[..]) };
    writeln!(f, "{} {:?}{inner} ({})", kernel.form().name(), &kernel.outer[..], buffers(&kernel.buffers))?;
    let axis = Axis { outer: kernel.outer.len() };
    for stage in &kernel.stages {
        match stage {
            Stage::Point(block) => {
                writeln!(f, "  point")?;
                axis.block(f, block, "    ")?;
            }
            Stage::Each(block) => {
                writeln!(f, "  each")?;
                axis.block(f, block, "    ")?;
            }
            Stage::Fold { block, folds } => {
                writeln!(f, "  fold")?;
                axis.block(f, block, "    ")?;
                for fold in folds {
                    let wide = if fold.accumulate == fold.dtype || fold.kind.is_arg() {
                        String::new()
                    } else {
                        format!(" in {}", fold.accumulate)
                    };
                    writeln!(
                        f,
                        "    {}: {} = fold.{} {}{wide}",
                        fold.result,
                        fold.dtype,
                        fold.kind.name(),
                        fold.value
                    )?;
                }
            }
        }
    }
    Ok(())
}

fn horizontal(f: &mut Formatter<'_>, kernel: &HorizontalKernel) -> fmt::Result {
    writeln!(f, "horizontal of {} ({})", kernel.parts.len(), buffers(&kernel.buffers))?;
    for part in &kernel.parts {
        let bound: Vec<String> = part.buffers.iter().map(|buffer| format!("b{}", buffer.0)).collect();
        write!(f, " {}: ", bound.join(", "))?;
        loops(f, &part.kernel)?;
    }
    Ok(())
}

fn matmul(f: &mut Formatter<'_>, kernel: &MatMulKernel) -> fmt::Result {
    let (m, n, k) = (kernel.m, kernel.n, kernel.k);
    writeln!(f, "matmul {} {:?} {m} x {n} x {k} ({})", kernel.dtype, &kernel.batch[..], buffers(&kernel.buffers))?;
    let axis = Axis { outer: kernel.batch.len() + 2 };
    for (name, operand) in [("lhs", &kernel.lhs), ("rhs", &kernel.rhs)] {
        writeln!(f, "  {name} {}", operand.value)?;
        axis.block(f, &operand.block, "    ")?;
    }
    writeln!(f, "  epilogue of {}", kernel.product)?;
    axis.block(f, &kernel.epilogue, "    ")
}

fn attention(f: &mut Formatter<'_>, kernel: &AttentionKernel) -> fmt::Result {
    let AttentionKernel { queries, keys, depth, width, .. } = kernel;
    let direction = match &kernel.pass {
        AttentionPass::Forward(_) => "",
        AttentionPass::Backward(_) => ".backward",
    };
    let (batch, given) = (&kernel.batch[..], buffers(&kernel.buffers));
    writeln!(f, "attention{direction} {} {batch:?} {queries} x {keys} x {depth} -> {width} ({given})", kernel.dtype)?;
    let axis = Axis { outer: kernel.batch.len() + 2 };
    let made = |f: &mut Formatter<'_>, title: String, block: &Block| -> fmt::Result {
        writeln!(f, "  {title}")?;
        axis.block(f, block, "    ")
    };
    let result = |f: &mut Formatter<'_>, name: &str, result: &AttentionResult| {
        made(f, format!("{name} {}", result.product), &result.epilogue)
    };
    for (name, operand) in [("query", &kernel.query), ("key", &kernel.key), ("value", &kernel.value)] {
        made(f, format!("{name} {}", operand.value), &operand.block)?;
    }
    made(f, format!("logit {} of score {}", kernel.logit.value, kernel.score), &kernel.logit.block)?;
    made(f, format!("row with maximum {} and sum {} in {}", kernel.maximum, kernel.sum, kernel.softmax), &kernel.row)?;
    made(f, format!("factor {} of weight {}", kernel.factor.value, kernel.weight), &kernel.factor.block)?;
    match &kernel.pass {
        AttentionPass::Forward(product) => result(f, "epilogue of", product),
        AttentionPass::Backward(backward) => {
            made(f, format!("gradient {}", backward.gradient.value), &backward.gradient.block)?;
            if let Some(through) = &backward.through {
                let (weight, score) = (&through.weight, &through.score);
                made(f, format!("weight's {} of factor's {}", weight.value, through.factor), &weight.block)?;
                let zeros = match through.zeros {
                    GradientZeros::Arithmetic => "",
                    GradientZeros::Masked => ", zeros masked",
                };
                made(f, format!("score's {} of logit's {}{zeros}", score.value, through.logit), &score.block)?;
                through.query.iter().try_for_each(|product| result(f, "query's", product))?;
                through.key.iter().try_for_each(|product| result(f, "key's", product))?;
            }
            backward.value.iter().try_for_each(|product| result(f, "value's", product))
        }
    }
}

fn scan(f: &mut Formatter<'_>, kernel: &ScanKernel) -> fmt::Result {
    let (outer, extent) = (&kernel.outer[..], kernel.extent);
    writeln!(
        f,
        "scan.{} {outer:?} x [{extent}] {:?} ({})",
        kernel.kind.name(),
        kernel.direction,
        buffers(&kernel.buffers)
    )?;
    let axis = Axis { outer: kernel.outer.len() };
    axis.block(f, &kernel.block, "    ")?;
    writeln!(f, "    store b{}[{}] = scan {}", kernel.output.0, axis.affine(&kernel.address), kernel.value)
}

fn scatter(f: &mut Formatter<'_>, kernel: &ScatterKernel) -> fmt::Result {
    let (space, ordered) = (&kernel.space[..], &kernel.ordered);
    writeln!(f, "scatter.{} {space:?} ordered {ordered:?} ({})", kernel.kind.name(), buffers(&kernel.buffers))?;
    let axis = Axis { outer: kernel.space.len() };
    axis.block(f, &kernel.block, "    ")?;
    let (place, stride) = (axis.affine(&kernel.address), kernel.stride);
    let (index, update, extent) = (kernel.index, kernel.update, kernel.extent);
    writeln!(f, "    update b{}[{place} + {stride}*{index}] with {update} if 0 <= {index} < {extent}", kernel.output.0)
}

/// Buffers, kernels and results; no lines of the user.
impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "plan @{} on {}, {} bytes", self.name, self.backend.keyword(), self.peak_bytes())?;
        for (index, buffer) in self.buffers.iter().enumerate() {
            let source = match &buffer.source {
                Source::Input(input) => format!("input {input}"),
                Source::Constant(data) => format!("constant #{:016x}", data.content_hash()),
                Source::Output(output) => format!("output {output}"),
                Source::Slot(slot) => format!("slot {slot}"),
            };
            let donated = buffer.donated_to.map_or_else(String::new, |output| format!(", donated to output {output}"));
            writeln!(f, "  %{index}: {}{} = {source}{donated}", buffer.ty.dtype, buffer.ty.shape)?;
        }
        for step in &self.steps {
            match step {
                Step::Copy { from, to } => writeln!(f, "copy %{} -> %{}", from.0, to.0)?,
                Step::Launch(launch) => {
                    let bound: Vec<String> = launch.buffers.iter().map(|buffer| format!("%{}", buffer.0)).collect();
                    write!(f, "launch {}: {}", bound.join(", "), launch.kernel)?;
                }
            }
        }
        let results: Vec<String> = self.results.iter().map(|buffer| format!("%{}", buffer.0)).collect();
        writeln!(f, "results {}", results.join(", "))
    }
}
