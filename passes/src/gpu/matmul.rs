//! Matrix products: tiles in workgroup memory, or, where one extent of the result is short, a few points side by side.
//!
//! What is weighed:
//! - a tile of 128 by 128 reads each operand 128 times less often than its products need it, but there must be enough tiles for the
//!   processors of a large GPU;
//! - short extents must not waste most of a tile;
//! - neighbouring invocations are to read neighbouring elements: along the summed axis or along the kept one, as the operand lies;
//! - where there is much to sum and little to keep, the summed extent is split over workgroups.

use kiln_ir::DType;
use kiln_ir::gpu::{Along, Fill, GpuTarget, MatMulSchedule, MatMulSpread, MatrixAxis, Tile};
use kiln_ir::kernel::{Affine, Buffer, MatMulKernel, MatrixOperand, Operation};

/// Workgroups that keep a large GPU busy; fewer are too few, whatever the device.
const WORKGROUPS: usize = 256;

/// The same of thin products, which wait for memory most of the time.
const THIN_WORKGROUPS: usize = 1024;

/// The shorter extent of a result up to which it is thin.
const THIN: usize = 4;

/// How much of the summed extent a split is worth at least.
const SPLIT: usize = 256;

/// How a matrix product is spread.
pub(super) fn schedule(kernel: &MatMulKernel, target: &GpuTarget) -> MatMulSchedule {
    let batch = kernel.batch.len();
    let (row, column) = (batch, batch + 1);
    let operand = |operand, kept: (usize, usize), summed: (usize, usize)| {
        fill(&Operand { buffers: &kernel.buffers, operand, kept, summed })
    };
    let mut lhs = operand(&kernel.lhs, (row, kernel.m), (column, kernel.k));
    let mut rhs = operand(&kernel.rhs, (column, kernel.n), (row, kernel.k));
    let matrices: usize = kernel.batch.iter().product();
    let (spread, workgroups, step) = if kernel.m.min(kernel.n) <= THIN {
        let long = if kernel.m >= kernel.n { MatrixAxis::Rows } else { MatrixAxis::Columns };
        let along = if long == MatrixAxis::Rows { lhs.along } else { rhs.along };
        // Elements are multiplied four by four along the summed axis; which axis neighbouring invocations follow is the longer operand's.
        let summed = fill_along(Along::Summed, kernel.k);
        let followed = Fill { along, ..summed };
        (lhs, rhs) = match long {
            MatrixAxis::Rows => (followed, summed),
            MatrixAxis::Columns => (summed, followed),
        };
        thin(kernel, long, along, target)
    } else {
        let tile = tile(kernel, matrices, target);
        let [rows, columns] = tile.extents.map(|extent| extent as usize);
        let tiles = kernel.m.div_ceil(rows) * kernel.n.div_ceil(columns);
        (MatMulSpread::Tiles { tile }, tiles, tile.depth as usize)
    };
    let workgroups = (workgroups * matrices).max(1);
    let enough = if matches!(spread, MatMulSpread::Thin { .. }) { THIN_WORKGROUPS } else { WORKGROUPS };
    // The dispatch that adds up parts may see all buffers, and their scratch memory.
    let scratch = kernel.buffers.len() < target.bindings as usize;
    let wanted = if scratch { (enough / workgroups).min(splits(kernel)) } else { 1 }.max(1);
    let part = kernel.k.div_ceil(wanted).next_multiple_of(step).max(step);
    let splits = kernel.k.div_ceil(part).max(1) as u32;
    let neighbours = matches!(spread, MatMulSpread::Tiles { .. }) && (rhs.along == Along::Kept || splits > 1);
    let width = if neighbours && kernel.n.is_multiple_of(4) { 4 } else { 1 };
    MatMulSchedule { spread, splits, part: part as u32, lhs, rhs, width }
}

/// Into how many parts the summed extent may be split.
fn splits(kernel: &MatMulKernel) -> usize {
    (kernel.k / SPLIT).clamp(1, 256)
}

/// Points of a workgroup, and invocations for each: those that lie side by side read side by side.
fn thin(kernel: &MatMulKernel, long: MatrixAxis, along: Along, target: &GpuTarget) -> (MatMulSpread, usize, usize) {
    let (extent, short) = match long {
        MatrixAxis::Rows => (kernel.m, kernel.n),
        MatrixAxis::Columns => (kernel.n, kernel.m),
    };
    let size = bytes(kernel.accumulate);
    let memory = target.workgroup_memory / (size * short.max(1) as u32);
    let workgroup = power(target.workgroup_size.min(256).min(memory));
    let steps = power(kernel.k.div_ceil(4).clamp(1, 256) as u32);
    let places = (extent.clamp(1, 256) as u32).next_power_of_two().min(workgroup);
    let (points, lanes) = match along {
        Along::Summed => {
            let lanes = steps.min(32).min(workgroup);
            let points = (workgroup / lanes).min(places);
            (points, (workgroup / points).min(steps))
        }
        Along::Kept => {
            let points = places.min(64);
            (points, (workgroup / points).min(steps))
        }
    };
    (MatMulSpread::Thin { long, points, lanes }, extent.div_ceil(points as usize), 4 * lanes as usize)
}

/// The largest power of two up to a number, at least 1.
fn power(number: u32) -> u32 {
    number.checked_ilog2().map_or(1, |log| 1 << log)
}

/// The largest tile of which there are enough.
fn tile(kernel: &MatMulKernel, matrices: usize, target: &GpuTarget) -> Tile {
    let most = |extent: usize| (extent as u32).next_power_of_two().clamp(16, 128);
    let mut extents = [most(kernel.m), most(kernel.n)];
    let count =
        |[rows, columns]: [u32; 2]| matrices * kernel.m.div_ceil(rows as usize) * kernel.n.div_ceil(columns as usize);
    let mut halve_while = |too_few: &dyn Fn([u32; 2]) -> bool, least: u32| {
        while too_few(extents) && extents.iter().any(|&extent| extent > least) {
            let longer = usize::from(extents[1] >= extents[0]);
            extents[longer] /= 2;
        }
    };
    halve_while(&|extents| count(extents) < WORKGROUPS, 64);
    // Long sums in parts waste less than small tiles.
    halve_while(&|extents| count(extents) * splits(kernel) < WORKGROUPS, 32);
    while shape(extents, kernel.accumulate, target).is_none() && extents != [16, 16] {
        let longer = usize::from(extents[1] >= extents[0]);
        extents[longer] /= 2;
    }
    shape(extents, kernel.accumulate, target).unwrap_or(Tile { extents: [16, 16], registers: [4, 4], depth: 4 })
}

/// How a tile is shared out, where the device can.
fn shape(extents: [u32; 2], accumulate: DType, target: &GpuTarget) -> Option<Tile> {
    // Registers of 64-bit numbers count twice.
    let most = if bytes(accumulate) == 8 { 4 } else { 8 };
    let rows = (extents[0] / 16).clamp(1, most);
    let columns = (extents[1] / 16).clamp(4, most);
    let fits = |depth: u32| {
        let tile = Tile { extents, registers: [rows, columns], depth };
        let vectors: u32 = extents.iter().map(|extent| extent * ((depth / 4) | 1)).sum();
        let memory = vectors * 4 * bytes(accumulate);
        (tile.invocations() <= target.workgroup_size && memory <= target.workgroup_memory).then_some(tile)
    };
    [32, 16, 8, 4].into_iter().find_map(fits)
}

/// Bytes of an element in workgroup memory.
pub(super) fn bytes(dtype: DType) -> u32 {
    (dtype.size() as u32).max(4)
}

/// An operand with where its axes are, and their extents.
pub(super) struct Operand<'a> {
    /// The kernel's.
    pub(super) buffers: &'a [Buffer],
    /// What makes an element.
    pub(super) operand: &'a MatrixOperand,
    /// The axis that the result keeps, with its extent.
    pub(super) kept: (usize, usize),
    /// The axis that is summed over, with its extent.
    pub(super) summed: (usize, usize),
}

/// How the elements of an operand are fetched: along the axis where its largest load goes in the smaller steps.
pub(super) fn fill(operand: &Operand<'_>) -> Fill {
    let step = |affine: &Affine, axis: usize| affine.stride(axis).unsigned_abs();
    let loads = operand.operand.block.instructions.iter().filter_map(|instruction| match &instruction.operation {
        Operation::Load { buffer, address, .. } => Some((operand.buffers[buffer.0 as usize].len, &address.affine)),
        Operation::Literal(_)
        | Operation::Index(_)
        | Operation::Within(_)
        | Operation::Scalar(..)
        | Operation::Fma(..)
        | Operation::Cast(_)
        | Operation::Bitcast(_)
        | Operation::Select { .. }
        | Operation::Random { .. } => None,
    });
    let (kept, summed) = (operand.kept.0, operand.summed.0);
    let largest = loads.filter(|(_, at)| step(at, kept) + step(at, summed) > 0).max_by_key(|(len, _)| *len);
    let is_kept = |at: &Affine| step(at, kept) > 0 && (step(at, summed) == 0 || step(at, kept) < step(at, summed));
    match largest {
        Some((_, at)) if is_kept(at) => fill_along(Along::Kept, operand.kept.1),
        _ => fill_along(Along::Summed, operand.summed.1),
    }
}

/// Four elements are fetched together where no four of them are cut by the end of the axis.
pub(super) fn fill_along(along: Along, extent: usize) -> Fill {
    Fill { along, width: if extent.is_multiple_of(4) { 4 } else { 1 } }
}

#[cfg(test)]
mod tests {
    use kiln_ir::gpu::Support;
    use kiln_ir::kernel::{Access, BufferIndex, Instruction, Reg};
    use kiln_ir::{Precision, kernel};

    use super::*;

    /// A device with more of everything.
    const LARGE: GpuTarget = GpuTarget {
        f64: Support::Present,
        bindings: 64,
        workgroup_size: 1024,
        workgroup_memory: 48 << 10,
        ..GpuTarget::WEBGPU
    };

    /// A product of dense matrices.
    fn product(dtype: DType, [m, n, k]: [usize; 3]) -> MatMulKernel {
        let operand = |result: u32, stride: usize| {
            let affine = Affine { offset: 0, strides: [stride as i64, 1].into_iter().collect() };
            let address = kernel::Address { affine, ..kernel::Address::default() };
            let operation = Operation::Load { buffer: BufferIndex(result), address, bounds: Vec::new() };
            let instructions = vec![Instruction { result: Reg(result), dtype, operation }];
            MatrixOperand { block: kernel::Block { instructions, stores: Vec::new() }, value: Reg(result) }
        };
        let buffer = |len, access| Buffer { dtype, len, access };
        let address = Affine { offset: 0, strides: [n as i64, 1].into_iter().collect() };
        let store = kernel::Store { buffer: BufferIndex(2), address, value: Reg(2) };
        MatMulKernel {
            buffers: vec![buffer(m * k, Access::Read), buffer(k * n, Access::Read), buffer(m * n, Access::Write)],
            batch: Default::default(),
            m,
            n,
            k,
            dtype,
            accumulate: dtype.accumulator(),
            precision: Precision::Full,
            lhs: operand(0, k),
            rhs: operand(1, n),
            product: Reg(2),
            epilogue: kernel::Block { instructions: Vec::new(), stores: vec![store] },
        }
    }

    fn tile_of(schedule: &MatMulSchedule) -> Option<Tile> {
        match schedule.spread {
            MatMulSpread::Tiles { tile } => Some(tile),
            MatMulSpread::Thin { .. } => None,
        }
    }

    #[test]
    fn tiles_keep_the_limits_and_share_themselves_out() {
        for target in [GpuTarget::WEBGPU, LARGE] {
            for dtype in [DType::F32, DType::F64, DType::BF16] {
                for extents in [[5, 7, 9], [33, 2000, 1], [2048, 2048, 2048], [64, 4096, 4096], [100, 100, 0]] {
                    let schedule = schedule(&product(dtype, extents), &target);
                    let tile = tile_of(&schedule).expect("neither extent is short");
                    assert!(tile.invocations() <= target.workgroup_size);
                    assert!((0..2).all(|axis| tile.extents[axis].is_multiple_of(tile.registers[axis])), "{tile:?}");
                    let vectors: u32 = tile.extents.iter().map(|extent| extent * ((tile.depth / 4) | 1)).sum();
                    assert!(vectors * 4 * bytes(dtype) <= target.workgroup_memory, "{tile:?}");
                    let (k, part) = (extents[2], schedule.part as usize);
                    assert!(part.is_multiple_of(tile.depth as usize) && part * schedule.splits as usize >= k);
                }
            }
        }
    }

    #[test]
    fn large_products_have_large_tiles_and_long_sums_are_split() {
        let large = schedule(&product(DType::F32, [2048, 2048, 2048]), &LARGE);
        let tile = Tile { extents: [128, 128], registers: [8, 8], depth: 32 };
        assert_eq!((tile_of(&large), large.splits), (Some(tile), 1));
        let long = schedule(&product(DType::F32, [64, 64, 1 << 16]), &LARGE);
        assert_eq!((tile_of(&long).map(|tile| tile.extents), long.splits), (Some([64, 64]), 256));
    }

    #[test]
    fn a_vector_times_a_matrix_wastes_no_tile() {
        let schedule = schedule(&product(DType::F32, [1, 4096, 4096]), &GpuTarget::WEBGPU);
        assert_eq!(schedule.spread, MatMulSpread::Thin { long: MatrixAxis::Columns, points: 64, lanes: 4 });
        assert_eq!(schedule.splits, 16);
    }
}
