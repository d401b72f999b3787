//! Loop kernels side by side in one dispatch: each has workgroups of its own, which run a function of its own.

use kiln_ir::gpu::{GpuProgram, GpuTarget, LoopSchedule};
use kiln_ir::kernel::{Block, BufferIndex, HorizontalKernel, Operation};
use kiln_ir::{Code, Diagnostic};

use super::loops::{Mode, body, planned};
use super::module::{Module, Subgroups};
use super::space::Lanes;
use super::writer::Writer;

/// The program of a horizontal kernel, with one schedule for each part.
///
/// Errors: K0601 where the target lacks a dtype or an op, K0603 where a limit is exceeded, K0901 where parts want workgroups of different
/// sizes or two dispatches.
pub(super) fn program(
    kernel: &HorizontalKernel,
    schedules: &[LoopSchedule],
    entry: &str,
    target: &GpuTarget,
) -> Result<GpuProgram, Diagnostic> {
    if schedules.len() != kernel.parts.len() {
        return Err(Diagnostic::new(Code::K0901, "internal: a horizontal kernel has a schedule for each part"));
    }
    let mut module = Module::new(&kernel.buffers, target)?;
    let pairs = || kernel.parts.iter().zip(schedules);
    let renamed: Vec<(Block, Option<Lanes>)> = pairs()
        .flat_map(|(part, schedule)| {
            let blocks = planned(&part.kernel, schedule, &Mode::Whole);
            blocks.into_iter().map(|(block, lanes)| (in_launch(block, &part.buffers), lanes))
        })
        .collect();
    module.plan_vectors(&renamed.iter().map(|(block, lanes)| (block, *lanes)).collect::<Vec<_>>());
    let mut w = Writer::body();
    let (mut first, mut size, mut subgroups) = (0, None, Subgroups::Unused);
    for (index, (part, schedule)) in pairs().enumerate() {
        if part.kernel.outer.contains(&0) {
            continue;
        }
        module.set_part(&part.buffers);
        let mut function = Writer::body();
        let shape = body(&mut module, &mut function, &part.kernel, schedule, &Mode::Whole, &format!("part{index}_"))?;
        if size.is_some_and(|size| size != shape.size) {
            return Err(Diagnostic::new(Code::K0901, "internal: parts of a kernel have workgroups of one size"));
        }
        size = Some(shape.size);
        let (parameters, arguments) = match shape.subgroups {
            Subgroups::Unused => ("", ""),
            Subgroups::Used => (
                ", subgroup_size: u32, subgroup_id: u32, subgroup_lane: u32",
                ", subgroup_size, subgroup_id, subgroup_lane",
            ),
        };
        if shape.subgroups == Subgroups::Used {
            subgroups = Subgroups::Used;
        }
        module.function(format!("fn part{index}(group: i32, local: i32{parameters}) {{\n{}}}\n", function.text()));
        let end = first + shape.groups;
        let own = if first == 0 { "group".to_owned() } else { format!("group - {first}") };
        let call = format!("part{index}({own}, local{arguments});");
        let test =
            if first == 0 { format!("if group < {end}") } else { format!("if group >= {first} && group < {end}") };
        w.open(test);
        w.line(call);
        w.close();
        first = end;
    }
    let dispatches = match size {
        None => Vec::new(),
        Some(size) => vec![module.dispatch(entry, size, first, subgroups, &w)?],
    };
    Ok(GpuProgram { dispatches, scratch: Vec::new() })
}

/// A part's block in the launch's numbers of buffers.
fn in_launch(block: &Block, buffers: &[BufferIndex]) -> Block {
    let mut block = block.clone();
    for instruction in &mut block.instructions {
        if let Operation::Load { buffer, .. } = &mut instruction.operation {
            *buffer = buffers[buffer.0 as usize];
        }
    }
    for store in &mut block.stores {
        store.buffer = buffers[store.buffer.0 as usize];
    }
    block
}
