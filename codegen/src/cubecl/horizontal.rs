//! Loop kernels side by side in one launch: each has blocks of its own.
//!
//! Parts that do the same over spaces of one size are one body: a block finds its part by its number, and the part's buffers by that. An
//! optimizer's step over hundreds of parameters is as many bodies as there are sizes.

use kiln_ir::cuda::{CudaProgram, CudaStep};
use kiln_ir::gpu::LoopSchedule;
use kiln_ir::kernel::{HorizontalKernel, Part};
use kiln_ir::{Code, Diagnostic};

use super::builder::{Builder, IndexWidth, Pointer, Ty};
use super::loops::{self, Mode, Shape};
use super::memory::Bound;

/// The program of a horizontal kernel, with one schedule for each part.
///
/// Errors: K0603 where a limit is exceeded, K0901 where parts want blocks of different sizes or two texts.
pub(super) fn program(
    kernel: &HorizontalKernel,
    schedules: &[LoopSchedule],
    entry: &str,
) -> Result<CudaProgram, Diagnostic> {
    let mut program = CudaProgram { steps: Vec::new(), scratch: Vec::new() };
    if schedules.len() != kernel.parts.len() {
        return Err(Diagnostic::new(Code::K0901, "internal: a horizontal kernel has a schedule for each part"));
    }
    let groups = alike(kernel, schedules);
    let Some((_, first)) = groups.first() else { return Ok(program) };
    let threads = loops::threads(first)?;
    if groups.iter().any(|(_, schedule)| loops::threads(schedule).ok() != Some(threads)) {
        return Err(Diagnostic::new(Code::K0901, "internal: parts of a kernel have blocks of one size"));
    }
    let wide = kernel.parts.iter().any(|part| loops::index_width(&part.kernel) == IndexWidth::Wide);
    let width = if wide { IndexWidth::Wide } else { IndexWidth::Narrow };
    let mut b = Builder::new(entry, threads, width);
    let buffers = loops::bind(&mut b, &kernel.buffers);
    let block = b.expression(Ty::Index, "blockIdx.x", &[]);
    let mut begin = 0;
    for (parts, schedule) in groups {
        let shape = Shape::of(&parts[0].kernel, schedule, &Mode::Whole)?;
        let end = begin + shape.groups * parts.len() as u64;
        let terms = std::slice::from_ref(&block);
        let test = if begin == 0 { format!("$0 < {end}") } else { format!("$0 >= {begin} && $0 < {end}") };
        let own = b.expression(Ty::Bool, &test, terms);
        b.open_if(&own);
        let number = super::space::sum(&mut b, -(begin as i64), &[(block.clone(), 1)]);
        let (which, group) = if parts.len() == 1 {
            (number.clone(), number)
        } else {
            let terms = std::slice::from_ref(&number);
            let which = b.expression(Ty::Index, &format!("$0 / {}", shape.groups), terms);
            (which, b.expression(Ty::Index, &format!("$0 % {}", shape.groups), terms))
        };
        let bounds: Vec<Bound> = (0..parts[0].buffers.len())
            .map(|place| {
                let among: Vec<Bound> = parts.iter().map(|part| buffers[part.buffers[place].0 as usize]).collect();
                let pointers: Vec<Pointer> = among.iter().map(|bound| bound.pointer).collect();
                Bound { pointer: b.choose(&which, &pointers), dtype: among[0].dtype }
            })
            .collect();
        loops::body(&mut b, &bounds, &parts[0].kernel, schedule, &Mode::Whole, &shape, &group)?;
        b.close();
        begin = end;
    }
    let blocks = loops::blocks(begin)?;
    program.steps.push(CudaStep::Text(b.finish([blocks, 1, 1])?));
    Ok(program)
}

/// Parts that do the same, in the order of the first of each.
fn alike<'k>(kernel: &'k HorizontalKernel, schedules: &'k [LoopSchedule]) -> Vec<(Vec<&'k Part>, &'k LoopSchedule)> {
    let mut groups: Vec<(Vec<&Part>, &LoopSchedule)> = Vec::new();
    for (part, schedule) in kernel.parts.iter().zip(schedules).filter(|(part, _)| !part.kernel.outer.contains(&0)) {
        match groups.iter_mut().find(|(known, how)| *how == schedule && known[0].kernel == part.kernel) {
            Some((known, _)) => known.push(part),
            None => groups.push((vec![part], schedule)),
        }
    }
    groups
}
