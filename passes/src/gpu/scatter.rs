//! Indexed updates: walked in order where there are few for each element, else sorted by where they go.

use std::collections::HashSet;

use kiln_ir::gpu::{GpuTarget, ScatterSchedule};
use kiln_ir::kernel::{Affine, Operation, Reg, ScatterKernel};
use kiln_ir::{Code, Diagnostic, ScatterKind};

/// Updates that one invocation may walk through, one after the other.
const WALKED: usize = 64;

/// Invocations of a workgroup.
const WORKGROUP: u32 = 256;

/// Sorted runs that one step merges.
const WAYS: u32 = 8;

/// How indexed updates are spread.
///
/// Errors: K0603 where there are more places to sort by than 32 bits count.
pub(super) fn schedule(kernel: &ScatterKernel, target: &GpuTarget) -> Result<ScatterSchedule, Diagnostic> {
    let workgroup = WORKGROUP.min(target.workgroup_size);
    let dtype = kernel.buffers[kernel.output.0 as usize].dtype;
    // Sums of 16-bit floats are rounded once: an invocation must see all that is added to an element.
    let narrow = kernel.kind == ScatterKind::Add && dtype.accumulator() != dtype;
    let updates: usize = kernel.space[kernel.ordered.clone()].iter().product();
    if updates <= WALKED && !narrow {
        return Ok(ScatterSchedule::Walk { workgroup: 64.min(workgroup) });
    }
    let axes = axes_of_index(kernel);
    let groups: usize = axes.iter().map(|&axis| kernel.space[axis]).product();
    let most = u32::MAX as usize;
    // Beside the kernel's own buffers, a dispatch sees what has been sorted.
    let fits = kernel.buffers.len() < target.bindings as usize
        // Updates of one index meet at one element.
        && kernel.ordered.clone().all(|axis| kernel.address.stride(axis) == 0)
        && groups.checked_mul(kernel.extent).is_some_and(|keys| keys < most)
        && groups.checked_mul(updates).is_some_and(|entries| entries < most / 2);
    if fits {
        return Ok(ScatterSchedule::Sort { workgroup, ways: WAYS, axes });
    }
    if narrow {
        let message = format!("{updates} updates of {dtype} are too many for one scatter");
        return Err(Diagnostic::new(Code::K0603, message).help("scatter in f32, or in several steps"));
    }
    Ok(ScatterSchedule::Walk { workgroup: 64.min(workgroup) })
}

/// The axes outside of the ordered ones that the index depends on.
fn axes_of_index(kernel: &ScatterKernel) -> Vec<usize> {
    let mut needed: HashSet<Reg> = HashSet::from([kernel.index]);
    let mut axes = HashSet::new();
    let mut depends = |affine: &Affine| axes.extend((0..kernel.space.len()).filter(|&axis| affine.stride(axis) != 0));
    for instruction in kernel.block.instructions.iter().rev() {
        if !needed.contains(&instruction.result) {
            continue;
        }
        match &instruction.operation {
            Operation::Literal(_) => {}
            Operation::Index(affine) => depends(affine),
            Operation::Load { address, bounds, .. } => {
                depends(&address.affine);
                bounds.iter().for_each(|bound| depends(&bound.at));
                needed.extend(address.computed.iter().map(|(reg, _)| *reg));
            }
            Operation::Within(bounds) => bounds.iter().for_each(|bound| depends(&bound.at)),
            Operation::Scalar(_, operands) => needed.extend(operands.iter().copied()),
            Operation::Fma(a, b, c) => needed.extend([*a, *b, *c]),
            Operation::Cast(from) | Operation::Bitcast(from) => {
                needed.insert(*from);
            }
            Operation::Select { condition, then, otherwise } => needed.extend([*condition, *then, *otherwise]),
            Operation::Random { key, index, .. } => needed.extend([key[0], key[1], *index]),
        }
    }
    let outside = |axis: &usize| !kernel.ordered.contains(axis) && kernel.space[*axis] > 1;
    (0..kernel.space.len()).filter(|axis| axes.contains(axis)).filter(outside).collect()
}
