//! Kiln's decisions: from a captured graph to a plan of kernels in planned memory.
//!
//! A straight list of passes, no framework. Each graph pass is a function from graph to graph; none mutates what it was given.
//!
//! 1. `inline`: custom ops without a kernel of their own become their bodies. First, so that every later pass sees ops that it knows.
//! 2. `simplify`: named local rewrites; equal nodes merge and dead nodes go with every rebuild.
//! 3. `roots`: which values are candidates for memory.
//! 4. `group`: which roots share a kernel.
//! 5. `schedule`: in which order kernels run.
//! 6. `lower`: each group becomes a kernel.
//! 7. `memory`: each value between kernels gets a place.
//!
//! In tests and debug builds the verifier runs after each graph pass.

mod classify;
mod group;
mod index;
mod inline;
mod lower;
mod memory;
mod options;
mod roots;
mod schedule;
mod simplify;
mod traffic;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kiln_ir::kernel::Kernel;
use kiln_ir::plan::{Blocked, Edge, Plan};
use kiln_ir::{Code, Diagnostic, Graph, Loc, Op, Value, verify};

pub use inline::inline;
pub use options::{Fusion, Limits, Options, Reuse};
pub use simplify::{REWRITES, Rewrite, simplify};

use classify::{Class, class};
use group::Groups;
use memory::Placed;
use roots::Roots;

/// A pass from graph to graph.
pub struct Pass {
    /// Its name, as `kiln opt --pass` takes it.
    pub name: &'static str,
    /// What it does.
    pub run: fn(&Graph, &Options) -> Result<Graph, Diagnostic>,
}

/// The graph passes, in the order in which they run.
pub static PASSES: &[Pass] =
    &[Pass { name: "inline", run: inline }, Pass { name: "simplify", run: |graph, _| simplify(graph) }];

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

/// Compiles a graph that lives on one backend.
///
/// Errors: K0208 where nodes live on several backends, K0209 for a custom op with neither a body nor a kernel, K0603 for a buffer that the device
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
    one_backend(graph)?;
    let graph = optimize(graph, options, observe)?;
    let roots = roots::find(&graph, options);
    let groups = group::form(&graph, &roots, options)?;
    let stored = stored(&graph, &groups);
    let order = schedule::order(&graph, &groups, &options.donate);
    let mut shared: HashMap<Arc<Kernel>, Arc<Kernel>> = HashMap::new();
    let mut placed = Vec::with_capacity(order.len());
    for index in order {
        let group = &groups.groups[index];
        let Some(mut lowered) = lower::group(&graph, &roots, group, &stored)? else {
            continue;
        };
        lowered.kernel = shared.entry(lowered.kernel.clone()).or_insert(lowered.kernel).clone();
        let members: Vec<Value> = group.members.iter().map(|member| member.value).collect();
        let target = match &graph.node(members[0]).op {
            Op::Scatter { .. } => Some((members[0], graph.node(members[0]).operands[0])),
            _ => None,
        };
        placed.push(Placed { lowered, locs: lines(&graph, &roots, &members), target });
    }
    let mut plan = memory::plan(&graph, options, placed);
    plan.ledger = ledger(&graph, &groups, &stored);
    within_limits(&plan, &options.limits)?;
    Ok(plan)
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

fn one_backend(graph: &Graph) -> Result<(), Diagnostic> {
    let backends = graph.backends();
    if backends.len() < 2 {
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

/// The user's lines behind some roots and what is computed inline for them, in graph order, without repeats.
fn lines(graph: &Graph, roots: &Roots, members: &[Value]) -> Vec<Loc> {
    let mut seen: HashSet<Value> = members.iter().copied().collect();
    let mut open: Vec<Value> = members.to_vec();
    while let Some(value) = open.pop() {
        for &operand in &graph.node(value).operands {
            let inline = !roots.is_root[operand.node.index()] && class(&graph.node(operand).op) != Class::Leaf;
            if inline && seen.insert(operand) {
                open.push(operand);
            }
        }
    }
    let mut values: Vec<Value> = seen.into_iter().collect();
    values.sort_unstable();
    let mut lines = Vec::new();
    for value in values {
        let loc = graph.node(value).loc;
        if !loc.is_unknown() && !lines.contains(&loc) {
            lines.push(loc);
        }
    }
    lines
}

/// One edge for each value that stays in memory between kernels.
fn ledger(graph: &Graph, groups: &Groups, stored: &HashSet<Value>) -> Vec<Edge> {
    let outputs: HashSet<Value> = graph.outputs.iter().map(|output| output.value).collect();
    let mut edges: Vec<(Value, Blocked)> = Vec::new();
    let mut seen: HashSet<(Value, Blocked)> = HashSet::new();
    for (user, group) in groups.groups.iter().enumerate() {
        for member in &group.members {
            for (read, _) in &member.reads {
                if groups.group_of.get(read).is_none_or(|&maker| maker == user) {
                    continue;
                }
                let blocked = match groups.blocked.get(&(*read, member.value)) {
                    Some(&reason) => reason,
                    None if matches!(graph.node(member.value).op, Op::MatMul { .. }) => Blocked::MatMulOperand,
                    None if class(&graph.node(member.value).op) == Class::Anchor => Blocked::Complete,
                    None => Blocked::Space,
                };
                if seen.insert((*read, blocked)) {
                    edges.push((*read, blocked));
                }
            }
        }
    }
    let read: HashSet<Value> = edges.iter().map(|(value, _)| *value).collect();
    let mut rest: Vec<Value> = stored.difference(&read).copied().filter(|value| outputs.contains(value)).collect();
    rest.sort_unstable();
    edges.extend(rest.into_iter().map(|value| (value, Blocked::Output)));
    let edge =
        |(value, blocked): (Value, Blocked)| Edge { ty: graph.ty(value).clone(), loc: graph.node(value).loc, blocked };
    edges.into_iter().map(edge).collect()
}
