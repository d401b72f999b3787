//! What a run relies on, checked once per plan (K0901: a plan that breaks it is a mistake of ours).
//!
//! - Every index is in range, and a launch's buffers have the sizes that its kernel declares.
//! - Slots are as large as what is put there; both sides of a copy are of one size.
//! - An argument lends its memory to a result of its size, at most one argument to each, and is itself no result.
//! - Every result has memory: its own, an argument's or a constant's, of its size.

use kiln_ir::plan::{BufferId, Launch, Plan, Source, Step};
use kiln_ir::{Code, Diagnostic, Result};

/// Checks everything that the module lists.
pub(super) fn check(plan: &Plan) -> Result<()> {
    let broken = buffers(plan).or_else(|| steps(plan)).or_else(|| results(plan));
    match broken {
        None => Ok(()),
        Some(what) => Err(Diagnostic::new(Code::K0901, format!("internal: plan `{}`: {what}", plan.name)).into()),
    }
}

fn bytes(plan: &Plan, id: BufferId) -> Option<usize> {
    plan.buffers.get(id.0 as usize).map(|buffer| buffer.ty.num_bytes())
}

fn buffers(plan: &Plan) -> Option<String> {
    let mut own = vec![None; plan.outputs.len()];
    for buffer in &plan.buffers {
        if let Source::Output(output) = buffer.source {
            match own.get_mut(output) {
                Some(size @ None) => *size = Some(buffer.ty.num_bytes()),
                Some(Some(_)) | None => return Some(format!("result {output} is unknown or has two buffers")),
            }
        }
    }
    let mut lent = vec![false; plan.outputs.len()];
    for (index, buffer) in plan.buffers.iter().enumerate() {
        let size = buffer.ty.num_bytes();
        match &buffer.source {
            Source::Input(input) if *input >= plan.inputs.len() => {
                return Some(format!("there is no argument {input}"));
            }
            Source::Input(input) => {
                let Some(output) = buffer.donated_to else { continue };
                if own.get(output) != Some(&Some(size)) || std::mem::replace(&mut lent[output], true) {
                    return Some(format!("argument {input} cannot be lent to result {output}"));
                }
                if plan.results.contains(&BufferId(index as u32)) {
                    return Some(format!("argument {input} is lent away and is a result"));
                }
            }
            Source::Slot(slot) if plan.slots.get(*slot).is_none_or(|&room| room < size) => {
                return Some(format!("slot {slot} is too small for {}", buffer.ty));
            }
            Source::Constant(data) if data.bytes().len() != size => {
                return Some(format!("a constant is not {}", buffer.ty));
            }
            Source::Slot(_) | Source::Constant(_) | Source::Output(_) => {}
        }
    }
    None
}

fn steps(plan: &Plan) -> Option<String> {
    plan.steps.iter().find_map(|step| match step {
        Step::Copy { from, to } => {
            let fit = bytes(plan, *from).is_some() && bytes(plan, *from) == bytes(plan, *to);
            (!fit).then(|| format!("a copy from buffer {} to {}", from.0, to.0))
        }
        Step::Launch(Launch { kernel, buffers, .. }) => {
            let declared = kernel.buffers().iter().map(|buffer| buffer.len * buffer.dtype.size());
            let fit = declared.zip(buffers).all(|(size, &id)| bytes(plan, id) == Some(size));
            (!fit || buffers.len() != kernel.buffers().len())
                .then(|| "a launch's buffers do not fit its kernel".to_owned())
        }
    })
}

fn results(plan: &Plan) -> Option<String> {
    if plan.results.len() != plan.outputs.len() {
        return Some("there are not as many results as outputs".to_owned());
    }
    plan.results.iter().zip(&plan.outputs).find_map(|(&id, (name, ty))| {
        let slot = plan.buffers.get(id.0 as usize).is_none_or(|buffer| matches!(buffer.source, Source::Slot(_)));
        (slot || bytes(plan, id) != Some(ty.num_bytes())).then(|| format!("result `{name}` has no memory of its size"))
    })
}
