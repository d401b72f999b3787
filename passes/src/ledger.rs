//! The fusion ledger: which lines a kernel computes, and why each value between kernels is in memory.

use std::collections::{HashMap, HashSet};

use kiln_ir::plan::{Blocked, Edge, Reader};
use kiln_ir::{Graph, Loc, Op, Value};

use crate::attention::Attentions;
use crate::classify::{Class, class};
use crate::group::Groups;
use crate::roots::Roots;

/// The user's lines behind some roots and what is computed inline for them, in graph order, without repeats.
pub(crate) fn lines(graph: &Graph, roots: &Roots, members: &[Value]) -> Vec<Loc> {
    let mut lines = Vec::new();
    for value in computed(graph, roots, members) {
        let loc = graph.node(value).loc;
        if !loc.is_unknown() && !lines.contains(&loc) {
            lines.push(loc);
        }
    }
    lines
}

/// Some roots and what is computed inline for them, in graph order.
fn computed(graph: &Graph, roots: &Roots, members: &[Value]) -> Vec<Value> {
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
    values
}

/// One edge for each value that stays in memory between kernels and each reason for which it does; between two launches a value has one
/// reason. `launch_of` gives a group its launch.
pub(crate) fn edges(
    graph: &Graph,
    roots: &Roots,
    groups: &Groups,
    attentions: &Attentions,
    stored: &HashSet<Value>,
    launch_of: &HashMap<usize, usize>,
) -> Vec<Edge> {
    let made_by = |value: &Value| groups.group_of.get(value).and_then(|group| launch_of.get(group)).copied();
    let mut edges: Vec<Edge> = Vec::new();
    let mut known: HashMap<(Value, Blocked), usize> = HashMap::new();
    let mut edge = |value: Value, blocked: Blocked, reader: Option<Reader>| {
        let at = *known.entry((value, blocked)).or_insert_with(|| {
            let (ty, loc) = (graph.ty(value).clone(), graph.node(value).loc);
            edges.push(Edge { ty, loc, blocked, made_by: made_by(&value), readers: Vec::new() });
            edges.len() - 1
        });
        let readers = &mut edges[at].readers;
        readers.extend(reader.filter(|reader| !readers.contains(reader)));
    };
    let mut read: HashSet<Value> = HashSet::new();
    for (user, group) in groups.groups.iter().enumerate() {
        // Of several members that read a value the first one tells why: had that one joined, the others could have.
        let mut told: HashSet<Value> = HashSet::new();
        for member in &group.members {
            let mut ends: Option<HashMap<Value, Loc>> = None;
            for (value, _) in &member.reads {
                if groups.group_of.get(value).is_none_or(|&maker| maker == user) || told.contains(value) {
                    continue;
                }
                // A kernel without points is not launched and reads nothing.
                let Some(&launch) = launch_of.get(&user) else {
                    if matches!(graph.node(member.value).op, Op::Transfer(_)) {
                        edge(*value, Blocked::Transfer, None);
                        read.insert(*value);
                    }
                    continue;
                };
                let ends = ends.get_or_insert_with(|| first_readers(graph, roots, member.value));
                let loc = ends.get(value).copied().unwrap_or(graph.node(member.value).loc);
                edge(*value, reason(graph, groups, attentions, *value, member.value), Some(Reader { launch, loc }));
                told.insert(*value);
                read.insert(*value);
            }
        }
    }
    let outputs: HashSet<Value> = graph.outputs.iter().map(|output| output.value).collect();
    let mut rest: Vec<Value> = stored.difference(&read).copied().filter(|value| outputs.contains(value)).collect();
    rest.sort_unstable();
    rest.into_iter().for_each(|value| edge(value, Blocked::Output, None));
    edges
}

/// Why a root and a root that reads it are not in one group.
fn reason(graph: &Graph, groups: &Groups, attentions: &Attentions, read: Value, reader: Value) -> Blocked {
    // Where attention was nearly there, that is the reason, whatever else kept the kernels apart.
    if let Some(&missed) = attentions.missed.get(&read) {
        return missed;
    }
    if matches!(graph.node(read).op, Op::Transfer(_)) {
        return Blocked::Transfer;
    }
    match groups.blocked.get(&(read, reader)) {
        Some(&reason) => reason,
        // Rows' statistics, and what one attention makes for another.
        None if attentions.of.contains_key(&read) && attentions.of.contains_key(&reader) => Blocked::Complete,
        None if matches!(graph.node(reader).op, Op::MatMul { .. }) => Blocked::MatMulOperand,
        None if class(&graph.node(reader).op) == Class::Anchor => Blocked::Complete,
        None => Blocked::Space,
    }
}

/// For each value that a root reads from memory, the line of the first op that reads it, the root's own or one computed inline.
fn first_readers(graph: &Graph, roots: &Roots, root: Value) -> HashMap<Value, Loc> {
    let mut first = HashMap::new();
    for value in computed(graph, roots, &[root]) {
        let node = graph.node(value);
        node.operands.iter().for_each(|&operand| {
            first.entry(operand).or_insert(node.loc);
        });
    }
    first
}
