//! Attention: blocks of scores that fit into workgroup memory, beside the pieces of what they are made of.
//!
//! What is weighed: larger blocks read queries, keys and values less often; there must be enough of them; the gradients hold two matrices of a
//! block at once, the forward direction one.

use std::collections::HashSet;

use kiln_ir::gpu::{AttentionSchedule, Fill, Fills, GpuTarget, Tile};
use kiln_ir::kernel::{AttentionKernel, AttentionPass, Block, MatrixOperand, Operation};
use kiln_ir::{Code, Diagnostic};

use super::matmul::{Operand, bytes, fill};

/// Blocks that keep a large GPU busy.
const BLOCKS: usize = 128;

/// How attention is spread.
///
/// Errors: K0603 where not even the smallest blocks fit.
pub(super) fn schedule(kernel: &AttentionKernel, target: &GpuTarget) -> Result<AttentionSchedule, Diagnostic> {
    let matrices: usize = kernel.batch.iter().product();
    let longer = kernel.queries.max(kernel.keys);
    let shorter = kernel.queries.min(kernel.keys);
    let enough = |rows: u32| match rows {
        64 => matrices * shorter.div_ceil(64) >= BLOCKS,
        32 => longer > 16,
        _ => true,
    };
    let found = [64, 32, 16, 8].into_iter().filter(|&rows| enough(rows)).find_map(|rows| blocks(kernel, rows, target));
    let Some([scores, values, depths]) = found else {
        let message = "no block of this attention fits into a workgroup's memory";
        return Err(Diagnostic::new(Code::K0603, message).label(format!("it has {} bytes", target.workgroup_memory)));
    };
    let axis = kernel.batch.len();
    let fills = |operand: &MatrixOperand, [rows, columns]: [usize; 2]| -> Fills {
        let fetched = |kept, summed| -> Fill { fill(&Operand { buffers: &kernel.buffers, operand, kept, summed }) };
        let (rows, columns) = ((axis, rows), (axis + 1, columns));
        Fills { rows: fetched(rows, columns), columns: fetched(columns, rows) }
    };
    let gradient = match &kernel.pass {
        AttentionPass::Forward(_) => &kernel.value,
        AttentionPass::Backward(backward) => &backward.gradient,
    };
    let of_gradient = match &kernel.pass {
        AttentionPass::Forward(_) => kernel.keys,
        AttentionPass::Backward(_) => kernel.queries,
    };
    Ok(AttentionSchedule {
        scores,
        values,
        depths,
        query: fills(&kernel.query, [kernel.queries, kernel.depth]),
        key: fills(&kernel.key, [kernel.keys, kernel.depth]),
        value: fills(&kernel.value, [kernel.keys, kernel.width]),
        gradient: fills(gradient, [of_gradient, kernel.width]),
    })
}

/// How many buffers the dispatch sees that sees the most, scratch memory among them: one makes numbers of rows, then there is one for each result.
pub(super) fn bindings(kernel: &AttentionKernel) -> usize {
    let scores = [&kernel.query.block, &kernel.key.block, &kernel.logit.block];
    let factors = [&scores[..], &[&kernel.factor.block]].concat();
    let mut dispatches = vec![[&scores[..], &[&kernel.row]].concat()];
    match &kernel.pass {
        AttentionPass::Forward(result) => {
            dispatches.push([&factors[..], &[&kernel.value.block, &result.epilogue]].concat());
        }
        AttentionPass::Backward(backward) => {
            let gradient = &backward.gradient.block;
            if let Some(through) = &backward.through {
                let made = [&scores[..], &[gradient, &kernel.value.block, &through.weight.block]].concat();
                dispatches = vec![[&made[..], &[&kernel.row]].concat()];
                let results = through.query.iter().chain(&through.key);
                dispatches
                    .extend(results.map(|result| [&made[..], &[&through.score.block, &result.epilogue]].concat()));
            }
            let row = if backward.through.is_some() { None } else { Some(&kernel.row) };
            let of_value = backward.value.iter();
            dispatches.extend(of_value.map(|result| {
                factors.iter().copied().chain([gradient, &result.epilogue]).chain(row).collect::<Vec<_>>()
            }));
        }
    }
    dispatches.iter().map(|blocks| 1 + buffers(blocks)).max().unwrap_or(0)
}

/// How many buffers blocks load from and store to.
fn buffers(blocks: &[&Block]) -> usize {
    let instructions = blocks.iter().flat_map(|block| &block.instructions);
    let loads = instructions.filter_map(|instruction| match &instruction.operation {
        Operation::Load { buffer, .. } => Some(*buffer),
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
    let stores = blocks.iter().flat_map(|block| &block.stores).map(|store| store.buffer);
    loads.chain(stores).collect::<HashSet<_>>().len()
}

/// Tiles for blocks of so many rows and keys, where they fit: of scores, of what is made with values, of what is made with queries or keys.
fn blocks(kernel: &AttentionKernel, rows: u32, target: &GpuTarget) -> Option<[Tile; 3]> {
    let size = [kernel.dtype, kernel.softmax, kernel.values].into_iter().map(bytes).max().unwrap_or(4);
    // Small blocks are small altogether: a text that is written out for few elements compiles sooner.
    let own = match rows {
        64.. => [4, 4],
        32.. => [2, 4],
        _ => [1, 4],
    };
    let matrices = match &kernel.pass {
        AttentionPass::Forward(_) => 1,
        AttentionPass::Backward(backward) => 1 + u32::from(backward.through.is_some()),
    };
    let workgroup = (rows / own[0]) * (rows / own[1]);
    let fits = |depth: u32, most: u32| {
        let scores = Tile { extents: [rows, rows], registers: own, depth };
        let values = product(rows, kernel.width, workgroup, depth, most);
        let depths = product(rows, kernel.depth, workgroup, depth, most);
        let piece = rows * ((depth / 4) | 1) * 4;
        let pieces = [values, depths].map(|tile| (tile.extents[1] * ((depth / 4) | 1) * 4).max(piece));
        let statistics = 3 * rows + 2 * workgroup;
        let elements = matrices * rows * (rows + 1) + piece + pieces[0].max(pieces[1]) + statistics;
        let fits = elements * size <= target.workgroup_memory && workgroup <= target.workgroup_size;
        fits.then_some([scores, values, depths])
    };
    [(16, 64), (8, 64), (8, 32), (4, 16)].into_iter().find_map(|(depth, most)| fits(depth, most))
}

/// How `rows` by `extent` elements are shared out, or so many columns of them that an invocation has no more than `most`.
fn product(rows: u32, extent: usize, workgroup: u32, depth: u32, most: u32) -> Tile {
    let least = (4 * workgroup / rows).max(4);
    let columns = (extent.min(1 << 12) as u32).next_power_of_two().clamp(least, most * workgroup / rows);
    let own = rows * columns / workgroup;
    let across = if own >= 32 { 8 } else { 4 };
    Tile { extents: [rows, columns], registers: [own / across, across], depth }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_shared_out_among_all_invocations() {
        for (rows, workgroup) in [(64, 256), (32, 128), (16, 64), (8, 16)] {
            for extent in [1, 8, 24, 64, 200, 1000] {
                for most in [16, 32, 64] {
                    let tile = product(rows, extent, workgroup, 16, most);
                    assert_eq!(tile.invocations(), workgroup, "{tile:?}");
                    assert!(tile.registers[0] * tile.registers[1] <= most.max(4), "{tile:?}");
                    assert!((0..2).all(|axis| tile.extents[axis].is_multiple_of(tile.registers[axis])), "{tile:?}");
                }
            }
        }
    }
}
