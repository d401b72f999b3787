//! Kiln's decisions: from a captured graph to a plan of kernels in planned memory.
//!
//! A straight list of passes, no framework. Each graph pass is a function from graph to graph; none mutates what it was given.
//!
//! 1. `inline`: custom ops without a kernel of their own become their bodies. First, so that every later pass sees ops that it knows.
//! 2. `simplify`: named local rewrites; equal nodes merge and dead nodes go with every rebuild.
//! 3. `narrow`: concats of more parts than a device can bind become several.
//! 4. `attention`: which parts are attention, whose scores never stand in memory. Before roots, since nothing inside may become one.
//! 5. `roots`: which values are candidates for memory.
//! 6. `group`: which roots share a kernel.
//! 7. `schedule`: in which order kernels run.
//! 8. `lower`: each group becomes a kernel.
//! 9. `horizontal`: independent kernels are launched together.
//! 10. `memory`: each value between kernels gets a place.
//!
//! Where a plan must fit a budget of bytes, `checkpoint` rewrites the graph and the list is gone through again from `attention` on.
//!
//! In tests and debug builds the verifier runs after each graph pass.

mod attention;
mod checkpoint;
mod classify;
mod fault;
mod footprint;
pub mod gpu;
mod group;
mod horizontal;
mod index;
mod inline;
mod isolate;
mod ledger;
mod lower;
mod memory;
mod mixed_precision;
mod narrow;
mod options;
mod roots;
mod schedule;
mod simplify;
mod trace;
mod traffic;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kiln_ir::kernel::Kernel;
use kiln_ir::plan::Plan;
use kiln_ir::{Backend, Code, Diagnostic, Graph, Op, Value, verify};

pub use inline::inline;
pub use isolate::Isolated;
pub use mixed_precision::{Policy, mixed_precision};
pub use options::{AttentionKernels, Fusion, Limits, Options, Reuse};
pub use simplify::{REWRITES, Rewrite, simplify};
pub use trace::{Bound, Traced};

use group::Groups;
use memory::Placed;

/// A pass from graph to graph.
pub struct Pass {
    /// Its name, as `kiln opt --pass` takes it.
    pub name: &'static str,
    /// What it does.
    pub run: fn(&Graph, &Options) -> Result<Graph, Diagnostic>,
}

/// The graph passes, in the order in which they run.
pub static PASSES: &[Pass] = &[
    Pass { name: "inline", run: inline },
    Pass { name: "simplify", run: |graph, _| simplify(graph) },
    Pass { name: "narrow", run: narrow::narrow },
];

/// Runs all graph passes. `observe` sees the graph after each, with the pass's name.
pub fn optimize(graph: &Graph, options: &Options, observe: &mut dyn FnMut(&str, &Graph)) -> Result<Graph, Diagnostic> {
    let mut graph = graph.clone();
    for pass in PASSES {
        let next = (pass.run)(&graph, options)?;
        // Seen before it is judged: who reproduces a mistake shows what broke the rule.
        observe(pass.name, &next);
        if cfg!(debug_assertions) {
            verify(&next).map_err(|diagnostic| broke(pass.name, &diagnostic))?;
        }
        graph = next;
    }
    Ok(graph)
}

fn broke(pass: &str, found: &Diagnostic) -> Diagnostic {
    Diagnostic::new(Code::K0901, format!("internal: pass `{pass}` broke a rule of the IR: {}", found.message))
}

/// Compiles a graph that lives on one backend, or on a GPU's and the CPU.
///
/// Errors: K0208 where nodes live on other backends together, K0209 for a custom op with neither a body nor a kernel, K0603 for a buffer that the device
/// does not take, K0901 for mistakes of ours.
///
/// ```
/// use kiln_ir::{Backend, DType, GraphBuilder, Loc, ScalarOp, TensorType};
/// use kiln_passes::{compile, Options};
/// let mut b = GraphBuilder::new("f");
/// let x = b.input("x", TensorType::new(DType::F32, [1000], Backend::Cpu), Loc::Unknown)?;
/// let y = b.scalar(ScalarOp::Exp, &[x], Loc::Unknown)?;
/// let z = b.scalar(ScalarOp::Mul, &[x, y], Loc::Unknown)?;
/// let plan = compile(&b.finish([("z", z)])?, &Options::default())?;
/// assert_eq!(plan.launches().count(), 1);
/// # Ok::<(), kiln_ir::Diagnostic>(())
/// ```
pub fn compile(graph: &Graph, options: &Options) -> Result<Plan, Diagnostic> {
    compile_observed(graph, options, &mut |_, _| {})
}

/// As [`compile`]; `observe` sees the graph after each graph pass.
pub fn compile_observed(
    graph: &Graph,
    options: &Options,
    observe: &mut dyn FnMut(&str, &Graph),
) -> Result<Plan, Diagnostic> {
    compile_traced(graph, options, observe).map(|traced| traced.plan)
}

/// As [`compile_observed`]; the plan comes with the graph that was lowered and the values behind its launches' buffers.
pub fn compile_traced(
    graph: &Graph,
    options: &Options,
    observe: &mut dyn FnMut(&str, &Graph),
) -> Result<Traced, Diagnostic> {
    one_backend(graph)?;
    let planned = lowered(optimize(graph, options, observe)?, options)?;
    match options.max_bytes {
        Some(budget) if planned.plan.peak_bytes() > budget => {
            checkpoint::within(planned, budget, &|graph| lowered(graph, options))
        }
        Some(_) | None => Ok(planned),
    }
}

/// The plan of a graph that has been through all graph passes.
fn lowered(graph: Graph, options: &Options) -> Result<Traced, Diagnostic> {
    let attentions = attention::find(&graph, options);
    let roots = roots::find(&graph, &attentions, options);
    let groups = group::form(&graph, &roots, &attentions, options)?;
    let stored = stored(&graph, &groups);
    let order = schedule::order(&graph, &groups, &options.donate);
    let mut shared: HashMap<Arc<Kernel>, Arc<Kernel>> = HashMap::new();
    let mut placed = Vec::with_capacity(order.len());
    let mut launch_of: HashMap<usize, usize> = HashMap::new();
    for index in order {
        let group = &groups.groups[index];
        let Some(mut lowered) = lower::group(&graph, &roots, &attentions, group, &stored)? else {
            continue;
        };
        lowered.kernel = shared.entry(lowered.kernel.clone()).or_insert(lowered.kernel).clone();
        let members: Vec<Value> = group.members.iter().map(|member| member.value).collect();
        let target = match &graph.node(members[0]).op {
            Op::Scatter { .. } => Some((members[0], graph.node(members[0]).operands[0])),
            _ => None,
        };
        launch_of.insert(index, placed.len());
        placed.push(Placed { lowered, locs: ledger::lines(&graph, &roots, &members), target, counted: None });
    }
    let (mut placed, joined) = horizontal::join(&graph, options, placed);
    if let Some(placed) = options.fault.and_then(|launch| placed.get_mut(launch)) {
        fault::inject(Arc::make_mut(&mut placed.lowered.kernel));
    }
    // Transfers are steps, and no launches.
    let mut launches = 0;
    let numbers = placed.iter().map(|placed| {
        launches += usize::from(placed.transfer(&graph).is_none());
        placed.transfer(&graph).is_none().then(|| launches - 1)
    });
    let numbers: Vec<Option<usize>> = numbers.collect();
    launch_of.retain(|_, launch| match numbers[joined[*launch]] {
        Some(number) => {
            *launch = number;
            true
        }
        None => false,
    });
    let (mut plan, bound) = memory::plan(&graph, options, placed);
    plan.ledger = ledger::edges(&graph, &roots, &groups, &attentions, &stored, &launch_of);
    within_limits(&plan, &options.limits)?;
    Ok(Traced { plan, graph, bound })
}

/// K0603 for the largest buffer, where the device does not take it. Kernels are split before they exceed a limit; a buffer cannot be.
fn within_limits(plan: &Plan, limits: &Limits) -> Result<(), Diagnostic> {
    let Some(largest) = plan.buffers.iter().max_by_key(|buffer| buffer.ty.num_bytes()) else { return Ok(()) };
    let (bytes, limit) = (largest.ty.num_bytes(), limits.buffer_bytes);
    if bytes <= limit {
        return Ok(());
    }
    Err(Diagnostic::new(
        Code::K0603,
        format!("device limit exceeded: a buffer of {bytes} bytes, `buffer_bytes` is {limit}"),
    )
    .at(largest.loc)
    .label(format!("{} in `{}`", largest.ty, plan.name))
    .help("compute it in parts, or in a narrower dtype"))
}

/// A graph lives on one backend, or on a GPU and the CPU beside it.
fn one_backend(graph: &Graph) -> Result<(), Diagnostic> {
    let backends = graph.backends();
    if backends.len() < 2 {
        return Ok(());
    }
    if backends.len() == 2 && backends.contains(&Backend::Cpu) && !backends.contains(&Backend::NdArray) {
        return Ok(());
    }
    let names: Vec<&str> = backends.iter().map(|backend| backend.name()).collect();
    Err(Diagnostic::new(Code::K0208, "unsupported dispatch backend")
        .label(format!("the graph has nodes on {}", names.join(" and ")))
        .help("compile it for one backend: `graph.retarget(Backend::Cpu)`"))
}

/// The values that must be in memory: results of the graph, and what another group reads.
fn stored(graph: &Graph, groups: &Groups) -> HashSet<Value> {
    let mut stored: HashSet<Value> = graph.outputs.iter().map(|output| output.value).collect();
    for (user, group) in groups.groups.iter().enumerate() {
        for (read, _) in group.members.iter().flat_map(|member| &member.reads) {
            if groups.group_of.get(read).is_some_and(|&maker| maker != user) {
                stored.insert(*read);
            }
        }
    }
    // A scatter's target is copied whole, by value.
    for group in &groups.groups {
        for member in &group.members {
            if let Op::Scatter { .. } = graph.node(member.value).op {
                stored.insert(graph.node(member.value).operands[0]);
            }
        }
    }
    stored
}
