//! The order in which kernels run.
//!
//! - a kernel runs after those that make what it reads;
//! - one that writes a result over a donated argument runs after all others that read the argument, unless it cannot: then the result
//!   gets memory of its own;
//! - apart from that, kernels run in the order of the graph.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use kiln_ir::{Graph, Value};
use petgraph::algo::has_path_connecting;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;

use crate::group::Groups;

/// Group numbers in running order; groups that have been merged away are left out.
pub(crate) fn order(graph: &Graph, groups: &Groups, donate: &[(usize, usize)]) -> Vec<usize> {
    let mut dependencies: DiGraph<usize, ()> = DiGraph::new();
    let nodes: Vec<NodeIndex> = (0..groups.groups.len()).map(|group| dependencies.add_node(group)).collect();
    let mut readers: HashMap<Value, Vec<usize>> = HashMap::new();
    for (user, group) in groups.groups.iter().enumerate() {
        for (read, _) in group.members.iter().flat_map(|member| &member.reads) {
            match groups.group_of.get(read) {
                Some(&maker) if maker != user => {
                    dependencies.update_edge(nodes[maker], nodes[user], ());
                }
                Some(_) => {}
                None => readers.entry(*read).or_default().push(user),
            }
        }
    }
    for &(input, output) in donate {
        let Some(&writer) = groups.group_of.get(&graph.outputs[output].value) else { continue };
        for &reader in readers.get(&graph.inputs[input]).into_iter().flatten() {
            let possible = reader != writer
                && !groups.needs(reader, writer)
                && !has_path_connecting(&dependencies, nodes[writer], nodes[reader], None);
            if possible {
                dependencies.update_edge(nodes[reader], nodes[writer], ());
            }
        }
    }
    let key = |group: usize| groups.groups[group].members.first().map_or(Value::first(0), |member| member.value);
    let mut open: Vec<usize> =
        nodes.iter().map(|&node| dependencies.edges_directed(node, petgraph::Incoming).count()).collect();
    let mut ready: BinaryHeap<Reverse<(Value, usize)>> =
        (0..nodes.len()).filter(|&group| open[group] == 0).map(|group| Reverse((key(group), group))).collect();
    let mut order = Vec::new();
    while let Some(Reverse((_, group))) = ready.pop() {
        if !groups.groups[group].members.is_empty() {
            order.push(group);
        }
        for edge in dependencies.edges(nodes[group]) {
            let next = edge.target().index();
            open[next] -= 1;
            if open[next] == 0 {
                ready.push(Reverse((key(next), next)));
            }
        }
    }
    order
}
