//! Attention by warps: texts compile for old and new devices, and compute what the definition says, with warps on this machine.

use super::host::{ANY, SHIM, bytes, element, executed};
use super::*;
use crate::wgsl::tests::affine;
use crate::wgsl::tests::products::{Pass, attention};
use kiln_ir::cuda::{CudaArgument, CudaStep, CudaText};
use kiln_ir::gpu::{GpuMemory, WarpAttention, WarpTile, Weights};
use kiln_ir::kernel::{
    AttentionKernel, AttentionPass, GradientZeros, Instruction, KeyLimit, MatrixOperand, Operation, Reg,
};
use kiln_ir::{DType, Literal, ScalarOp};

/// Blocks of threads, and what the warps of one do together.
const WARPS: &str = include_str!("warps.cpp");

const SCALE: f64 = 0.375;

fn spread(kernel: &AttentionKernel, tiles: [[u32; 3]; 2]) -> WarpAttention {
    let [rows, keys] = tiles.map(|[warps, fragments, step]| WarpTile { warps, fragments, step });
    let limit = KeyLimit::of(kernel).filter(|limit| limit.shows_each(kernel.queries));
    WarpAttention { rows, keys, weights: Weights::Online, limit }
}

/// The block with these instructions in it, which number their registers from 100 on, before its own; the last of them takes the place of `given`.
fn through(made: &mut MatrixOperand, given: Reg, before: Vec<(DType, Operation)>) {
    let last = Reg(99 + before.len() as u32);
    made.block
        .instructions
        .iter_mut()
        .for_each(|own| own.operation.rename(&|reg| if reg == given { last } else { reg }));
    let before = before.into_iter().enumerate().map(|(at, (dtype, operation))| Instruction {
        result: Reg(100 + at as u32),
        dtype,
        operation,
    });
    made.block.instructions.splice(0..0, before);
}

/// Hides later keys, and scales.
fn masked(kernel: &mut AttentionKernel) {
    let dtype = kernel.dtype;
    let later = Literal::from_i128(DType::I32, kernel.keys as i128 - kernel.queries as i128);
    let causal = |number: Reg, dtype: DType, masked: f64| {
        vec![
            (DType::I32, Operation::Index(affine(0, &[0, 0, 1]))),
            (DType::I32, Operation::Index(affine(0, &[0, 1, 0]))),
            (DType::I32, Operation::Literal(later)),
            (DType::I32, Operation::Scalar(ScalarOp::Add, [Reg(101), Reg(102)].into_iter().collect())),
            (DType::Bool, Operation::Scalar(ScalarOp::Le, [Reg(100), Reg(103)].into_iter().collect())),
            (dtype, Operation::Literal(Literal::from_f64(dtype, SCALE))),
            (dtype, Operation::Scalar(ScalarOp::Mul, [number, Reg(105)].into_iter().collect())),
            (dtype, Operation::Literal(Literal::from_f64(dtype, masked))),
            (dtype, Operation::Select { condition: Reg(104), then: Reg(106), otherwise: Reg(107) }),
        ]
    };
    through(&mut kernel.logit, kernel.score, causal(kernel.score, dtype, f64::NEG_INFINITY));
    if let AttentionPass::Backward(backward) = &mut kernel.pass
        && let Some(gradient) = &mut backward.through
    {
        gradient.zeros = GradientZeros::Arithmetic;
        through(&mut gradient.score, gradient.logit, causal(gradient.logit, DType::F32, 0.0));
    }
    assert!(KeyLimit::of(kernel).is_some(), "the mask is one by place");
}

/// Runs a program over buffers, which it changes. `None` without a compiler.
fn run(program: &CudaProgram, dtype: DType, buffers: &mut [Vec<u8>], name: &str) -> Option<()> {
    let mut scratch: Vec<Vec<u8>> = program.scratch.iter().map(|&bytes| vec![0xff; bytes]).collect();
    for step in &program.steps {
        let CudaStep::Text(text) = step else { panic!("attention is texts alone") };
        let memories: Vec<GpuMemory> = text
            .arguments
            .iter()
            .map(|argument| match argument {
                CudaArgument::Memory(memory) => *memory,
                CudaArgument::Unused => panic!("attention reads all that it is given"),
            })
            .collect();
        let data = |memory: &GpuMemory| match memory {
            GpuMemory::Buffer(index) => &buffers[index.0 as usize],
            GpuMemory::Scratch(index) => &scratch[*index as usize],
        };
        let lens: Vec<usize> = memories.iter().map(|memory| data(memory).len()).collect();
        let input: Vec<u8> = memories.iter().flat_map(|memory| data(memory).clone()).collect();
        let output = executed(&source(text, dtype, &lens), &input, &format!("{name}-{}", text.entry))?;
        let mut rest = &output[..];
        for (memory, len) in memories.into_iter().zip(lens) {
            let (own, after) = rest.split_at(len);
            rest = after;
            match memory {
                GpuMemory::Buffer(index) => buffers[index.0 as usize] = own.to_vec(),
                GpuMemory::Scratch(index) => scratch[index as usize] = own.to_vec(),
            }
        }
    }
    Some(())
}

/// A text as a program for this machine.
fn source(text: &CudaText, dtype: DType, lens: &[usize]) -> String {
    let given = |line: &&str| {
        let types = line.starts_with("typedef unsigned") || line.starts_with("typedef signed");
        !types
            && !line.starts_with("extern __shared__")
            && !line.contains("asm(\"")
            && !line.contains("asm volatile(\"")
    };
    let body: Vec<&str> = text.source.lines().filter(given).collect();
    let mut program = format!(
        "{SHIM}#define IS_F16 {}\n#define SHARED_BYTES {}\n{WARPS}{}\n{ANY}",
        u32::from(dtype == DType::F16),
        text.shared_bytes,
        body.join("\n")
    );
    for (index, len) in lens.iter().enumerate() {
        program.push_str(&format!("alignas(16) static unsigned char b{index}[{len}];\n"));
    }
    program.push_str("int main() {\n");
    for (index, len) in lens.iter().enumerate() {
        program.push_str(&format!("if (fread(b{index}, 1, {len}, stdin) != {len}) return 1;\n"));
    }
    let pointers: Vec<String> = (0..lens.len()).map(|index| format!("Any{{b{index}}}")).collect();
    let (entry, pointers) = (&text.entry, pointers.join(", "));
    program.push_str(&format!("run_blocks([] {{ {entry}({pointers}); }}, {}, {});\n", text.blocks[0], text.threads[0]));
    for (index, len) in lens.iter().enumerate() {
        program.push_str(&format!("fwrite(b{index}, 1, {len}, stdout);\n"));
    }
    program.push_str("return 0; }\n");
    program
}

/// Matrices of a batch of 2, row-major.
struct Matrices {
    numbers: Vec<f64>,
    rows: usize,
    columns: usize,
}

impl Matrices {
    fn zeros(rows: usize, columns: usize) -> Matrices {
        Matrices { numbers: vec![0.0; 2 * rows * columns], rows, columns }
    }

    /// Numbers between -1 and 1 that a dtype has, others for another `seed`.
    fn some(rows: usize, columns: usize, dtype: DType, seed: usize) -> Matrices {
        let number = |at: usize| Literal::from_f64(dtype, ((at * 7919 + seed * 104_729) % 1009) as f64 / 504.5 - 1.0);
        Matrices { numbers: (0..2 * rows * columns).map(|at| number(at).to_f64()).collect(), rows, columns }
    }

    fn of(data: &[u8], dtype: DType, rows: usize, columns: usize) -> Matrices {
        let numbers = (0..2 * rows * columns).map(|at| element(data, dtype, at).to_f64()).collect();
        Matrices { numbers, rows, columns }
    }

    fn bytes(&self, dtype: DType) -> Vec<u8> {
        bytes(&self.numbers.iter().map(|&number| Literal::from_f64(dtype, number)).collect::<Vec<_>>())
    }

    fn place(&self, batch: usize, row: usize, column: usize) -> usize {
        (batch * self.rows + row) * self.columns + column
    }

    fn at(&self, batch: usize, row: usize, column: usize) -> f64 {
        self.numbers[self.place(batch, row, column)]
    }

    /// At each row of these and row of those what `of` makes of both.
    fn with(&self, rows: usize, of: impl Fn(usize, usize, usize) -> f64) -> Matrices {
        let mut made = Matrices::zeros(self.rows, rows);
        for batch in 0..2 {
            for row in 0..self.rows {
                for other in 0..rows {
                    let place = made.place(batch, row, other);
                    made.numbers[place] = of(batch, row, other);
                }
            }
        }
        made
    }

    /// These times those, row by row.
    fn times_rows(&self, other: &Matrices) -> Matrices {
        self.with(other.rows, |batch, row, at| {
            (0..self.columns).map(|k| self.at(batch, row, k) * other.at(batch, at, k)).sum()
        })
    }

    fn turned(&self) -> Matrices {
        let turned = Matrices::zeros(self.columns, self.rows);
        turned.with(self.rows, |batch, row, column| self.at(batch, column, row))
    }

    #[track_caller]
    fn is(&self, wanted: &Matrices, dtype: DType, what: &str) {
        let most = wanted.numbers.iter().filter(|x| x.is_finite()).fold(1e-3, |most: f64, x| most.max(x.abs()));
        let slack = most * if dtype == DType::F32 { 1e-4 } else { 0.012 };
        for (at, (x, y)) in self.numbers.iter().zip(&wanted.numbers).enumerate() {
            let same = x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= slack;
            assert!(same, "{what} [{at}]: {x}, not {y}");
        }
    }
}

/// What attention comes to.
struct Expected {
    weights: Matrices,
    maxima: Matrices,
    sums: Matrices,
    product: Matrices,
}

fn expected(query: &Matrices, key: &Matrices, value: &Matrices, is_masked: bool) -> Expected {
    let (queries, keys) = (query.rows, key.rows);
    let scores = query.times_rows(key);
    let logits = scores.with(keys, |batch, row, column| match is_masked {
        true if column + queries > row + keys => f64::NEG_INFINITY,
        true => scores.at(batch, row, column) * SCALE,
        false => scores.at(batch, row, column),
    });
    let row = |batch: usize, row: usize| (0..keys).map(move |column| (batch, row, column));
    let maxima = logits.with(1, |batch, at, _| {
        row(batch, at).map(|(batch, row, column)| logits.at(batch, row, column)).fold(f64::NEG_INFINITY, f64::max)
    });
    let exponentials =
        logits.with(keys, |batch, row, column| (logits.at(batch, row, column) - maxima.at(batch, row, 0)).exp());
    let sums = logits
        .with(1, |batch, at, _| row(batch, at).map(|(batch, row, column)| exponentials.at(batch, row, column)).sum());
    let weights = logits.with(keys, |batch, row, column| exponentials.at(batch, row, column) / sums.at(batch, row, 0));
    let product = weights.times_rows(&value.turned());
    Expected { weights, maxima, sums, product }
}

/// Computes attention and what it should be, forward and, if asked for, the gradients, and compares.
#[track_caller]
fn check(dtype: DType, extents: [usize; 4], is_masked: bool, tiles: [[u32; 3]; 2]) {
    let [queries, keys, depth, width] = extents;
    let given = [(queries, depth, 1), (keys, depth, 2), (keys, width, 3)]
        .map(|(rows, columns, seed)| Matrices::some(rows, columns, dtype, seed));
    let [query, key, value] = &given;
    let wanted = expected(query, key, value, is_masked);
    let name = format!("{dtype}-{queries}-{keys}-{depth}-{width}-{is_masked}");
    let kernel_of = |pass| {
        let mut kernel = attention(dtype, extents, pass);
        if is_masked {
            masked(&mut kernel);
        }
        kernel
    };
    let programmed = |kernel: &AttentionKernel| {
        program(&Kernel::Attention(Box::new(kernel.clone())), &Schedule::WarpAttention(spread(kernel, tiles)))
    };
    let empty = |kernel: &AttentionKernel, given: &[Vec<u8>]| -> Vec<Vec<u8>> {
        let rest = kernel.buffers.iter().skip(given.len()).map(|buffer| vec![0; buffer.len * buffer.dtype.size()]);
        given.iter().cloned().chain(rest).collect()
    };
    let operands = [query.bytes(dtype), key.bytes(dtype), value.bytes(dtype)];
    let kernel = kernel_of(Pass::Forward);
    let mut buffers = empty(&kernel, &operands);
    let Some(()) = run(&programmed(&kernel), dtype, &mut buffers, &name) else { return };
    Matrices::of(&buffers[3], DType::F32, queries, 1).is(&wanted.maxima, DType::F32, "maximum");
    Matrices::of(&buffers[4], DType::F32, queries, 1).is(&wanted.sums, DType::F32, "sum");
    Matrices::of(&buffers[5], dtype, queries, width).is(&wanted.product, dtype, "product");

    let gradient = Matrices::some(queries, width, dtype, 9);
    let kernel = kernel_of(Pass::Gradients);
    let more = [buffers[3].clone(), buffers[4].clone(), gradient.bytes(dtype)];
    let mut buffers = empty(&kernel, &[&operands[..], &more].concat());
    let Some(()) = run(&programmed(&kernel), dtype, &mut buffers, &name) else { return };
    let of_weights = gradient.times_rows(value);
    let totals = gradient.with(1, |batch, row, _| {
        (0..keys).map(|column| wanted.weights.at(batch, row, column) * of_weights.at(batch, row, column)).sum()
    });
    let scale = if is_masked { SCALE } else { 1.0 };
    let of_scores = of_weights.with(keys, |batch, row, column| {
        let sees = !is_masked || column + queries <= row + keys;
        let weighed =
            wanted.weights.at(batch, row, column) * (of_weights.at(batch, row, column) - totals.at(batch, row, 0));
        if sees { scale * weighed } else { 0.0 }
    });
    let found = |number: usize, rows: usize, columns: usize| Matrices::of(&buffers[number], dtype, rows, columns);
    found(6, keys, width).is(&wanted.weights.turned().times_rows(&gradient.turned()), dtype, "gradient of values");
    found(7, queries, depth).is(&of_scores.times_rows(&key.turned()), dtype, "gradient of queries");
    found(8, keys, depth).is(&of_scores.turned().times_rows(&query.turned()), dtype, "gradient of keys");
}

const SMALL: [[u32; 3]; 2] = [[2, 1, 32], [2, 1, 32]];
const LARGE: [[u32; 3]; 2] = [[2, 2, 32], [2, 2, 32]];

#[test]
fn attention_computes_what_it_is_defined_as_in_both_directions() {
    check(DType::BF16, [70, 90, 32, 16], true, LARGE);
    check(DType::F16, [33, 45, 24, 40], false, SMALL);
    // Odd extents are made element by element, and keys run out within a step.
    check(DType::F16, [5, 7, 9, 3], true, SMALL);
    check(DType::BF16, [1, 1, 1, 1], false, SMALL);
}

#[test]
fn a_row_that_sees_nothing_is_nan_and_one_that_sees_an_infinity_is_too() {
    // More queries than keys: the first rows see none.
    check(DType::BF16, [80, 40, 16, 16], true, SMALL);
}

#[test]
fn keys_are_not_left_out_where_their_values_are_infinite() {
    // A weight of 0 times an infinity is NaN, though the mask hides it from every row but the last.
    check_forward_of_infinity(DType::BF16);
    check_forward_of_infinity(DType::F16);
}

/// As [`check`], with an infinity in the last value, forward alone.
fn check_forward_of_infinity(dtype: DType) {
    let extents = [96, 96, 16, 16];
    let mut kernel = attention(dtype, extents, Pass::Forward);
    masked(&mut kernel);
    let [query, key, mut value] = [1, 2, 3].map(|seed| Matrices::some(96, 16, dtype, seed));
    let place = value.place(1, 95, 7);
    value.numbers[place] = f64::INFINITY;
    let wanted = expected(&query, &key, &value, true);
    let schedule = Schedule::WarpAttention(spread(&kernel, SMALL));
    let made = printed(&Kernel::Attention(Box::new(kernel.clone())), &schedule);
    let given = [query.bytes(dtype), key.bytes(dtype), value.bytes(dtype)];
    let rest = kernel.buffers.iter().skip(3).map(|buffer| vec![0; buffer.len * buffer.dtype.size()]);
    let mut buffers: Vec<Vec<u8>> = given.into_iter().chain(rest).collect();
    let Some(()) = run(&made, dtype, &mut buffers, &format!("infinity-{dtype}")) else { return };
    let found = Matrices::of(&buffers[5], dtype, 96, 16);
    assert!(found.at(1, 0, 7).is_nan() && found.at(1, 0, 6).is_finite());
    found.is(&wanted.product, dtype, "product");
}

#[test]
fn weights_that_are_squared_are_whole_before_they_are() {
    let extents = [40, 70, 16, 16];
    let mut kernel = attention(DType::BF16, extents, Pass::Forward);
    let squared = vec![(DType::F32, Operation::Scalar(ScalarOp::Mul, [Reg(5), Reg(5)].into_iter().collect()))];
    through(&mut kernel.factor, Reg(5), squared);
    let [query, key, value] =
        [(40, 1), (70, 2), (70, 3)].map(|(rows, seed)| Matrices::some(rows, 16, DType::BF16, seed));
    let wanted = expected(&query, &key, &value, false).weights;
    let wanted =
        wanted.with(70, |batch, row, column| wanted.at(batch, row, column).powi(2)).times_rows(&value.turned());
    let schedule = WarpAttention { weights: Weights::Whole, ..spread(&kernel, SMALL) };
    let made = program(&Kernel::Attention(Box::new(kernel.clone())), &Schedule::WarpAttention(schedule));
    let given = [query.bytes(DType::BF16), key.bytes(DType::BF16), value.bytes(DType::BF16)];
    let rest = kernel.buffers.iter().skip(3).map(|buffer| vec![0; buffer.len * buffer.dtype.size()]);
    let mut buffers: Vec<Vec<u8>> = given.into_iter().chain(rest).collect();
    let Some(()) = run(&made, DType::BF16, &mut buffers, "squared") else { return };
    Matrices::of(&buffers[5], DType::BF16, 40, 16).is(&wanted, DType::BF16, "product");
}

#[test]
fn every_direction_compiles_with_and_without_a_mask_short_and_long() {
    for dtype in [DType::F16, DType::BF16] {
        for (extents, tiles) in [
            ([2048, 2048, 64, 64], [[4, 2, 64], [4, 2, 32]]),
            ([300, 200, 128, 96], [[4, 2, 64], [4, 1, 32]]),
            ([33, 17, 24, 40], [[4, 1, 64], [4, 1, 32]]),
        ] {
            for pass in [Pass::Forward, Pass::Gradients, Pass::GradientOfValues] {
                let mut kernel = attention(dtype, extents, pass);
                if extents[0] != 33 {
                    masked(&mut kernel);
                }
                let schedule = Schedule::WarpAttention(spread(&kernel, tiles));
                let made = program(&Kernel::Attention(Box::new(kernel)), &schedule);
                let texts: Vec<&str> =
                    made.texts().map(|text| text.entry.rsplit_once('_').expect("a purpose").1).collect();
                let own: &[&str] = match pass {
                    Pass::Forward => &["forward"],
                    Pass::Gradients => &["query", "key"],
                    Pass::GradientOfValues => &["key"],
                };
                assert!(texts.ends_with(own), "{texts:?}");
            }
        }
    }
}

#[test]
fn causal_attention_reads_as_one_would_write_it() {
    let mut kernel = attention(DType::BF16, [256, 256, 64, 64], Pass::Forward);
    masked(&mut kernel);
    let schedule = Schedule::WarpAttention(spread(&kernel, [[4, 2, 64], [4, 2, 32]]));
    insta::assert_snapshot!(text(&program(&Kernel::Attention(Box::new(kernel)), &schedule)));
}

#[test]
fn its_gradients_read_as_one_would_write_them() {
    let kernel = attention(DType::F16, [256, 256, 64, 64], Pass::Gradients);
    let schedule = Schedule::WarpAttention(spread(&kernel, [[4, 2, 32], [4, 2, 32]]));
    insta::assert_snapshot!(text(&program(&Kernel::Attention(Box::new(kernel)), &schedule)));
}
