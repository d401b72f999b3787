//! Matrix products and attention: every dtype, odd extents, each way of fetching, with and without features.

use super::*;
use kiln_ir::Precision;
use kiln_ir::gpu::{Along, AttentionSchedule, Fill, Fills, MatMulSchedule, MatMulSpread, MatrixAxis, Tile};
use kiln_ir::kernel::{
    AttentionGradient, AttentionKernel, AttentionPass, AttentionResult, GradientZeros, MatMulKernel, MatrixOperand,
    SoftmaxGradient,
};

/// A load of one element.
fn loaded(result: u32, dtype: DType, buffer: u32, strides: &[i64]) -> MatrixOperand {
    let address = Address { affine: affine(0, strides), ..Address::default() };
    let operation = Operation::Load { buffer: BufferIndex(buffer), address, bounds: Vec::new() };
    let instructions = vec![Instruction { result: Reg(result), dtype, operation }];
    MatrixOperand { block: Block { instructions, stores: Vec::new() }, value: Reg(result) }
}

/// A register taken as it is, but for a cast.
pub(crate) fn cast(result: u32, dtype: DType, from: Reg) -> MatrixOperand {
    let instructions = vec![Instruction { result: Reg(result), dtype, operation: Operation::Cast(from) }];
    MatrixOperand { block: Block { instructions, stores: Vec::new() }, value: Reg(result) }
}

fn stored(value: Reg, buffer: u32, strides: &[i64]) -> Block {
    let store = Store { buffer: BufferIndex(buffer), address: affine(0, strides), value };
    Block { instructions: Vec::new(), stores: vec![store] }
}

fn buffer(dtype: DType, len: usize, access: Access) -> Buffer {
    Buffer { dtype, len, access }
}

/// Whether an operand lies row after row, or column after column.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lies {
    ByRows,
    ByColumns,
}

/// A product of matrices that lie so, in a batch of 2.
pub(crate) fn matmul(dtype: DType, [m, n, k]: [usize; 3], lies: [Lies; 2]) -> MatMulKernel {
    let strides = |lies: Lies, rows: usize, columns: usize| match lies {
        Lies::ByRows => [(rows * columns) as i64, columns as i64, 1],
        Lies::ByColumns => [(rows * columns) as i64, 1, rows as i64],
    };
    let product = Reg(2);
    MatMulKernel {
        buffers: vec![
            buffer(dtype, 2 * m * k, Access::Read),
            buffer(dtype, 2 * k * n, Access::Read),
            buffer(dtype, 2 * m * n, Access::Write),
        ],
        batch: [2].into_iter().collect(),
        m,
        n,
        k,
        dtype,
        accumulate: dtype.accumulator(),
        precision: Precision::Full,
        lhs: loaded(0, dtype, 0, &strides(lies[0], m, k)),
        rhs: loaded(1, dtype, 1, &strides(lies[1], k, n)),
        product,
        epilogue: stored(product, 2, &[(m * n) as i64, n as i64, 1]),
    }
}

fn fill(along: Along, extent: usize) -> Fill {
    Fill { along, width: if extent.is_multiple_of(4) { 4 } else { 1 } }
}

/// A schedule for matrices that lie so.
pub(crate) fn schedule(kernel: &MatMulKernel, spread: MatMulSpread, splits: u32, lies: [Lies; 2]) -> MatMulSchedule {
    let lhs = if lies[0] == Lies::ByRows { Along::Summed } else { Along::Kept };
    let rhs = if lies[1] == Lies::ByRows { Along::Kept } else { Along::Summed };
    let extent = |along: Along, kept: usize| if along == Along::Kept { kept } else { kernel.k };
    let (lhs, rhs) = (fill(lhs, extent(lhs, kernel.m)), fill(rhs, extent(rhs, kernel.n)));
    let together = matches!(spread, MatMulSpread::Tiles { .. }) && (rhs.along == Along::Kept || splits > 1);
    let width = if together && kernel.n.is_multiple_of(4) { 4 } else { 1 };
    let part = kernel.k.div_ceil(splits as usize).next_multiple_of(32).max(32) as u32;
    MatMulSchedule { spread, splits, part, lhs, rhs, width }
}

pub(crate) const TILES: [Tile; 4] = [
    Tile { extents: [16, 16], registers: [1, 4], depth: 16 },
    Tile { extents: [32, 64], registers: [2, 4], depth: 8 },
    Tile { extents: [64, 64], registers: [4, 4], depth: 16 },
    Tile { extents: [128, 128], registers: [8, 8], depth: 8 },
];

pub(crate) const WAYS: [[Lies; 2]; 4] = [
    [Lies::ByRows, Lies::ByRows],
    [Lies::ByColumns, Lies::ByRows],
    [Lies::ByRows, Lies::ByColumns],
    [Lies::ByColumns, Lies::ByColumns],
];

/// A device with everything, and one with nothing that is not needed for a dtype.
fn targets(dtype: DType) -> [GpuTarget; 2] {
    let support = |own: DType| Support::of(dtype == own);
    [FULL, GpuTarget { f64: support(DType::F64), i64: support(DType::I64), ..GpuTarget::WEBGPU }]
}

/// Bytes of a text's workgroup memory.
fn workgroup_memory(dispatch: &Dispatch) -> u32 {
    let module = naga::front::wgsl::parse_str(&dispatch.source).expect("it is valid");
    let shared = module.global_variables.iter().filter(|(_, variable)| variable.space == naga::AddressSpace::WorkGroup);
    shared.map(|(_, variable)| module.types[variable.ty].inner.size(module.to_ctx())).sum()
}

#[test]
fn products_of_every_dtype_are_valid_under_every_tile() {
    for dtype in DType::ALL.into_iter().filter(|dtype| *dtype != DType::Bool) {
        for (extents, lies) in [[70, 33, 17], [64, 64, 64], [5, 7, 0]].into_iter().zip(WAYS.into_iter().cycle()) {
            for (tile, splits) in TILES.into_iter().zip([1, 3, 1, 2]) {
                let kernel = matmul(dtype, extents, lies);
                let schedule = schedule(&kernel, MatMulSpread::Tiles { tile }, splits, lies);
                for target in targets(dtype).into_iter().filter(|_| dtype.size() < 8 || tile.registers[0] < 8) {
                    program(&Kernel::MatMul(kernel.clone()), &Schedule::MatMul(schedule.clone()), &target);
                }
            }
        }
    }
}

#[test]
fn operands_are_fetched_along_either_axis() {
    for lies in WAYS {
        for extents in [[64, 128, 32], [61, 127, 31]] {
            for tile in TILES {
                let kernel = matmul(DType::F32, extents, lies);
                let schedule = schedule(&kernel, MatMulSpread::Tiles { tile }, 1, lies);
                let made = program(&Kernel::MatMul(kernel), &Schedule::MatMul(schedule), &GpuTarget::WEBGPU);
                assert!(workgroup_memory(&made.dispatches[0]) <= GpuTarget::WEBGPU.workgroup_memory);
            }
        }
    }
}

#[test]
fn thin_products_are_valid_along_both_axes() {
    for (long, extents) in [(MatrixAxis::Rows, [130, 3, 40]), (MatrixAxis::Columns, [1, 70, 33])] {
        for lies in WAYS {
            for splits in [1, 2] {
                let kernel = matmul(DType::BF16, extents, lies);
                let mut schedule = schedule(&kernel, MatMulSpread::Thin { long, points: 16, lanes: 8 }, splits, lies);
                let width = if kernel.k.is_multiple_of(4) { 4 } else { 1 };
                (schedule.lhs.width, schedule.rhs.width) = (width, width);
                program(&Kernel::MatMul(kernel), &Schedule::MatMul(schedule), &GpuTarget::WEBGPU);
            }
        }
    }
}

#[test]
fn parts_of_a_long_sum_go_through_scratch_memory() {
    let kernel = matmul(DType::F32, [8, 8, 1000], WAYS[0]);
    let schedule = schedule(&kernel, MatMulSpread::Tiles { tile: TILES[0] }, 4, WAYS[0]);
    let made = program(&Kernel::MatMul(kernel), &Schedule::MatMul(schedule), &GpuTarget::WEBGPU);
    assert_eq!(made.scratch, [4 * 2 * 8 * 8 * 4]);
    assert_eq!(made.dispatches.len(), 2);
    assert_eq!(made.dispatches[0].workgroups, [8, 1, 1]);
}

#[test]
fn a_product_reads_as_one_would_write_it() {
    let kernel = matmul(DType::F32, [64, 96, 32], WAYS[0]);
    let tile = Tile { extents: [32, 32], registers: [2, 4], depth: 8 };
    let schedule = schedule(&kernel, MatMulSpread::Tiles { tile }, 1, WAYS[0]);
    let made = program(&Kernel::MatMul(kernel), &Schedule::MatMul(schedule), &GpuTarget::WEBGPU);
    insta::assert_snapshot!(text(&made));
}

#[test]
fn a_matrix_times_a_vector_reads_as_one_would_write_it() {
    let kernel = matmul(DType::F32, [100, 1, 64], WAYS[0]);
    let spread = MatMulSpread::Thin { long: MatrixAxis::Rows, points: 16, lanes: 8 };
    let mut schedule = schedule(&kernel, spread, 1, WAYS[0]);
    schedule.rhs.width = 4;
    let made = program(&Kernel::MatMul(kernel), &Schedule::MatMul(schedule), &GpuTarget::WEBGPU);
    insta::assert_snapshot!(text(&made));
}

/// In which direction, and which gradients.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    Forward,
    Gradients,
    GradientOfValues,
}

/// Attention over a batch of 2, with nothing between products and the softmax but casts.
pub(crate) fn attention(dtype: DType, [queries, keys, depth, width]: [usize; 4], pass: Pass) -> AttentionKernel {
    let softmax = dtype.accumulator();
    let matrix = |rows: usize, columns: usize| [(rows * columns) as i64, columns as i64, 1];
    let input = |rows: usize, columns: usize| buffer(dtype, 2 * rows * columns, Access::Read);
    let row = |access| buffer(softmax, 2 * queries, access);
    let mut buffers = vec![input(queries, depth), input(keys, depth), input(keys, width)];
    let (maximum, sum) = (Reg(10), Reg(11));
    let (row, pass) = match pass {
        Pass::Forward => {
            buffers.extend([row(Access::Write), row(Access::Write)]);
            buffers.push(buffer(dtype, 2 * queries * width, Access::Write));
            let mut block = stored(maximum, 3, &[queries as i64, 1]);
            block.stores.extend(stored(sum, 4, &[queries as i64, 1]).stores);
            let product = Reg(20);
            let epilogue = stored(product, 5, &matrix(queries, width));
            (block, AttentionPass::Forward(AttentionResult { product, epilogue }))
        }
        Pass::Gradients | Pass::GradientOfValues => {
            buffers.extend([row(Access::Read), row(Access::Read), input(queries, width)]);
            let mut block = loaded(10, softmax, 3, &[queries as i64, 1]).block;
            block.instructions.extend(loaded(11, softmax, 4, &[queries as i64, 1]).block.instructions);
            let mut result = |number: u32, rows: usize, columns: usize| {
                buffers.push(buffer(dtype, 2 * rows * columns, Access::Write));
                let epilogue = stored(Reg(number), buffers.len() as u32 - 1, &matrix(rows, columns));
                AttentionResult { product: Reg(number), epilogue }
            };
            let value = Some(result(20, keys, width));
            let through = (pass == Pass::Gradients).then(|| SoftmaxGradient {
                factor: Reg(21),
                weight: cast(22, softmax, Reg(21)),
                zeros: GradientZeros::Masked,
                logit: Reg(23),
                score: cast(24, dtype, Reg(23)),
                query: Some(result(25, queries, depth)),
                key: Some(result(26, keys, depth)),
            });
            let gradient = loaded(27, dtype, 5, &matrix(queries, width));
            (block, AttentionPass::Backward(Box::new(AttentionGradient { gradient, through, value })))
        }
    };
    AttentionKernel {
        buffers,
        batch: [2].into_iter().collect(),
        queries,
        keys,
        depth,
        width,
        dtype,
        softmax,
        values: dtype,
        precision: Precision::Full,
        query: loaded(0, dtype, 0, &matrix(queries, depth)),
        key: loaded(1, dtype, 1, &matrix(keys, depth)),
        value: loaded(2, dtype, 2, &matrix(keys, width)),
        score: Reg(3),
        logit: cast(4, softmax, Reg(3)),
        maximum,
        sum,
        row,
        weight: Reg(5),
        factor: cast(6, dtype, Reg(5)),
        pass,
    }
}

fn spread(kernel: &AttentionKernel) -> AttentionSchedule {
    let fills = |columns: usize| Fills { rows: fill(Along::Summed, columns), columns: fill(Along::Kept, columns) };
    let tile = |extents, registers| Tile { extents, registers, depth: 8 };
    AttentionSchedule {
        scores: tile([16, 16], [4, 4]),
        values: tile([16, 16], [4, 4]),
        depths: tile([16, 32], [4, 8]),
        query: fills(kernel.depth),
        key: fills(kernel.depth),
        value: fills(kernel.width),
        gradient: fills(kernel.width),
    }
}

#[test]
fn attention_of_every_float_is_valid_in_both_directions() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for extents in [[33, 17, 24, 40], [5, 7, 3, 9]] {
            for pass in [Pass::Forward, Pass::Gradients, Pass::GradientOfValues] {
                let kernel = attention(dtype, extents, pass);
                let schedule = Schedule::Attention(spread(&kernel));
                for target in targets(dtype) {
                    let made = program(&Kernel::Attention(Box::new(kernel.clone())), &schedule, &target);
                    let most = made.dispatches.iter().map(workgroup_memory).max();
                    assert!(most <= Some(target.workgroup_memory), "{most:?}");
                }
            }
        }
    }
}

#[test]
fn gradients_bind_no_more_than_they_touch() {
    let kernel = attention(DType::F32, [16, 16, 8, 8], Pass::Gradients);
    assert_eq!(kernel.buffers.len(), 9);
    let schedule = Schedule::Attention(spread(&kernel));
    let made = program(&Kernel::Attention(Box::new(kernel)), &schedule, &FULL);
    let bound: Vec<usize> = made.dispatches.iter().map(|dispatch| dispatch.bindings.len()).collect();
    // Sums of rows, then the gradients of queries, keys and values.
    assert_eq!(bound, [7, 6, 6, 5]);
}

#[test]
fn attention_reads_as_one_would_write_it() {
    let kernel = attention(DType::F32, [32, 48, 8, 16], Pass::Forward);
    let schedule = Schedule::Attention(spread(&kernel));
    let made = program(&Kernel::Attention(Box::new(kernel)), &schedule, &GpuTarget::WEBGPU);
    insta::assert_snapshot!(text(&made));
}
