//! When each buffer of a plan is needed: from the launch that first touches it to the last.

use kiln_ir::plan::{BufferId, Plan, PlanBuffer, Source, Step};
use kiln_ir::{Loc, TensorType};

/// What stands behind a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The argument of this name, which is the caller's memory.
    Argument(String),
    /// A baked-in tensor.
    Constant,
    /// The result of this name in memory of its own.
    Result(String),
    /// The result `name`, written over the argument `argument` where that was donated.
    InPlace {
        /// The result.
        name: String,
        /// The argument.
        argument: String,
    },
    /// A slot of the plan, by its number.
    Slot(usize),
}

/// A buffer and the launches during which its contents matter.
#[derive(Clone, Debug, PartialEq)]
pub struct Lifetime {
    /// Where it is.
    pub place: Place,
    /// Its type.
    pub ty: TensorType,
    /// The line that made it.
    pub loc: Loc,
    /// The first launch that touches it.
    pub first: usize,
    /// The last launch that touches it, or the last launch of all where the contents outlive the run.
    pub last: usize,
}

impl Lifetime {
    /// Bytes of the buffer.
    pub fn bytes(&self) -> usize {
        self.ty.num_bytes()
    }

    /// Whether the plan brings the memory: arguments, and results that are written over them, lie in the caller's.
    pub fn is_planned(&self) -> bool {
        match self.place {
            Place::Argument(_) | Place::InPlace { .. } => false,
            Place::Constant | Place::Result(_) | Place::Slot(_) => true,
        }
    }
}

/// The lifetime of every buffer that is touched or outlives the run, in the order of the plan's buffers.
pub(super) fn lifetimes(plan: &Plan) -> Vec<Lifetime> {
    let mut touched: Vec<Option<(usize, usize)>> = vec![None; plan.buffers.len()];
    let mut touch = |BufferId(buffer): BufferId, launch: usize| {
        let (first, _) = touched[buffer as usize].unwrap_or((launch, launch));
        touched[buffer as usize] = Some((first, launch));
    };
    let mut launches = 0;
    for step in &plan.steps {
        match step {
            Step::Launch(launch) => {
                launch.buffers.iter().for_each(|&buffer| touch(buffer, launches));
                launches += 1;
            }
            Step::Copy { from, to } => [from, to].into_iter().for_each(|&buffer| touch(buffer, launches)),
        }
    }
    let end = launches.saturating_sub(1);
    let lifetime = |(index, buffer): (usize, &PlanBuffer)| {
        let (first, last) = match (&buffer.source, touched[index]) {
            (Source::Slot(_), None) => return None,
            (Source::Slot(_), Some((first, last))) => (first, last),
            (Source::Output(_), touched) => (touched.map_or(end, |(first, _)| first), end),
            (Source::Input(_) | Source::Constant(_), _) => (0, end),
        };
        let (ty, loc) = (buffer.ty.clone(), buffer.loc);
        Some(Lifetime { place: place(plan, buffer), ty, loc, first: first.min(end), last: last.min(end) })
    };
    plan.buffers.iter().enumerate().filter_map(lifetime).collect()
}

fn place(plan: &Plan, buffer: &PlanBuffer) -> Place {
    match buffer.source {
        Source::Input(input) => Place::Argument(plan.inputs[input].0.to_string()),
        Source::Constant(_) => Place::Constant,
        Source::Slot(slot) => Place::Slot(slot),
        Source::Output(output) => {
            let name = plan.outputs[output].0.to_string();
            let lender = plan.buffers.iter().find(|other| other.donated_to == Some(output));
            match lender.map(|lender| &lender.source) {
                Some(Source::Input(input)) => Place::InPlace { name, argument: plan.inputs[*input].0.to_string() },
                Some(Source::Constant(_) | Source::Output(_) | Source::Slot(_)) | None => Place::Result(name),
            }
        }
    }
}
