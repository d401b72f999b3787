//! Out of memory, told so that its reader knows what to make smaller.

use kiln_ir::plan::Plan;
use kiln_ir::{Code, Diagnostic};

use crate::pool::OutOfMemory;

/// How many of a plan's buffers are named.
const NAMED: usize = 5;

/// K0704 with what was asked for, what could be had, the plan's peak and its largest buffers.
pub(super) fn out_of_memory(plan: &Plan, what: &str, refused: OutOfMemory) -> Diagnostic {
    let asked = match refused.asked {
        usize::MAX => "more bytes than can be addressed".to_owned(),
        asked => format!("{asked} bytes"),
    };
    let message = format!("out of memory: asked for {asked} for {what}, {} available", refused.available);
    let (peak, most) = (plan.peak_bytes(), plan.most_bytes());
    let kept = if most > peak { format!(", {most} where no argument is given up") } else { String::new() };
    let needs = format!("`{}` needs {peak} bytes beside its arguments{kept}", plan.name);
    let mut diagnostic = Diagnostic::new(Code::K0704, message).label(needs);
    for (buffer, role) in plan.largest(NAMED) {
        let text = format!("{} ({} bytes)", buffer.ty, buffer.ty.num_bytes());
        diagnostic = diagnostic.note(role, text, "made", buffer.loc);
    }
    diagnostic.help("make the largest of them smaller, or raise the limit with `device.set_memory_limit(bytes)`")
}
