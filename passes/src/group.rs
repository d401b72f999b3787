//! Grouping: which roots are computed by one kernel.
//!
//! Roots are taken in graph order. Each first looks at the groups that make what it reads, the latest one first, and joins the first one
//! that it fits: its axes are the group's, it reads the group's values at exactly the element that a point makes, and no value would
//! have to leave the group and come back. Otherwise it starts a group. What kept it from joining is remembered for the ledger.
//!
//! A group iterates a full space, of which it may reduce some axes. Its members live at the full level (an element for each point) or at
//! the outer level (one for each point of the axes that are not reduced: results of reductions, and what is computed from them). A group
//! that walks its rows more than once is only made where rows stay in cache and there are enough of them.
//!
//! Attention is found before, and comes with all its results. What is computed from one of them joins it as the epilogue, and so does a
//! result in another order of axes.

use std::collections::HashMap;

use kiln_ir::plan::Blocked;
use kiln_ir::{Axes, Diagnostic, Graph, Op, Value, live_nodes};
use smallvec::SmallVec;

use crate::attention::{Attention, Attentions, Epilogues};
use crate::classify::{Class, class};
use crate::index::{Coord, Domain, Index, Level};
use crate::lower;
use crate::lower::evaluate::{Binding, Evaluator, Refinement, Source, Stop};
use crate::options::{Fusion, Limits, Options};
use crate::roots::Roots;

/// How many roots that read the same value a new one is compared with.
const FELLOWS: usize = 4;
/// Rows across memory that are walked together.
const NEIGHBOURS: usize = 64;

/// The form that a group will be lowered to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shell {
    /// Map, reduce or row.
    Loop,
    /// A matrix product with what is computed from it.
    MatMul,
    /// Attention in one direction, with what is computed from its results: which one of the graph's.
    Attention(usize),
    /// A scan, a scatter or a custom op by itself.
    Single,
}

/// A root in a group.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) value: Value,
    pub(crate) level: Level,
    /// For reductions, the fold stage that computes it; for others, the first stage in which all they read is there.
    pub(crate) phase: usize,
    /// Values read from memory or from other members, with where.
    pub(crate) reads: Vec<(Value, Index)>,
}

/// Roots that one kernel computes.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) shell: Shell,
    pub(crate) domain: Domain,
    pub(crate) members: Vec<Member>,
    /// Of attention, how its members come from its results.
    pub(crate) epilogues: Option<Box<Epilogues>>,
    /// Instructions, as far as known.
    size: usize,
}

/// The groups of a graph.
pub(crate) struct Groups {
    pub(crate) groups: Vec<Group>,
    /// The group that makes each root.
    pub(crate) group_of: HashMap<Value, usize>,
    /// Why a root (second) did not join the group of a root that it reads (first).
    pub(crate) blocked: HashMap<(Value, Value), Blocked>,
    /// For each group, all groups that it needs, directly or not.
    needs: Vec<Bits>,
    /// The roots that read a value, as far as they are placed.
    readers: HashMap<Value, Vec<Value>>,
}

pub(crate) fn form(
    graph: &Graph,
    roots: &Roots,
    attentions: &Attentions,
    options: &Options,
) -> Result<Groups, Diagnostic> {
    let live = live_nodes(graph);
    let mut groups = Groups {
        groups: Vec::new(),
        group_of: HashMap::new(),
        blocked: HashMap::new(),
        needs: Vec::new(),
        readers: HashMap::new(),
    };
    for (index, node) in graph.nodes.iter().enumerate() {
        if !roots.is_root[index] || !live[index] {
            continue;
        }
        let value = Value::first(index);
        if attentions.of.contains_key(&value) {
            if let Some(kernel) = attentions.made_at(value) {
                let (reads, size) = lower::attention::reads(graph, roots, &attentions.kernels[kernel])?;
                groups.found(graph, Shell::Attention(kernel), &attentions.kernels[kernel], reads, size);
            }
            continue;
        }
        let (shell, domain) = (shell_of(&node.op), own_domain(graph, value));
        let (reads, size) = reads(graph, roots, value, &domain)?;
        groups.place(graph, value, shell, domain, reads, size, options);
        if shell == Shell::Loop {
            groups.remember(value);
        }
    }
    Ok(groups)
}

/// The space that a root is computed over.
fn own_domain(graph: &Graph, root: Value) -> Domain {
    let node = graph.node(root);
    if let Op::Reduce { axes, .. } = &node.op {
        return Domain { shape: graph.ty(node.operands[0]).shape.clone(), reduced: axes.clone() };
    }
    Domain::map(graph.ty(root).shape.clone())
}

/// The form that a root starts.
fn shell_of(op: &Op) -> Shell {
    match class(op) {
        Class::Leaf | Class::View | Class::Point | Class::Reduce => Shell::Loop,
        Class::Anchor if matches!(op, Op::MatMul { .. }) => Shell::MatMul,
        Class::Anchor => Shell::Single,
    }
}

/// Reads from memory, and a number of instructions.
type Reads = (Vec<(Value, Index)>, usize);

/// What a root reads from memory, as indices in its own domain, and how many instructions it takes.
fn reads(graph: &Graph, roots: &Roots, root: Value, domain: &Domain) -> Result<Reads, Diagnostic> {
    let node = graph.node(root);
    let source = |value: Value| {
        let in_memory = roots.is_root[value.node.index()] || class(&graph.node(value).op) == Class::Leaf;
        if value != root && in_memory { Source::Memory } else { Source::Inline }
    };
    let (outer, inner) = domain.extents();
    let axes: SmallVec<[Coord; 6]> = (0..outer.len() + inner.len()).map(Coord::axis).collect();
    let in_domain = |value: Value| {
        let index = domain.index_of(&graph.ty(value).shape, Level::Full, &axes);
        walk(graph, &source, value, &index, &outer, &inner)
    };
    match class(&node.op) {
        Class::Reduce => in_domain(node.operands[0]),
        Class::Leaf | Class::View | Class::Point => in_domain(root),
        // Their operands are evaluated over spaces of their own; only what they read matters here.
        Class::Anchor => {
            let (mut reads, mut size) = (Vec::new(), 0);
            for &operand in &node.operands {
                let shape = &graph.ty(operand).shape;
                let index = Index::Axes((0..shape.rank()).map(Coord::axis).collect());
                let (part, more) = walk(graph, &source, operand, &index, shape, &[])?;
                reads.extend(part);
                size += more;
            }
            Ok((reads, size))
        }
    }
}

/// What computing one value at an index reads, and how many instructions it takes.
fn walk(
    graph: &Graph,
    source: &dyn Fn(Value) -> Source,
    value: Value,
    index: &Index,
    outer: &[usize],
    inner: &[usize],
) -> Result<Reads, Diagnostic> {
    let mut binding = Binding::default();
    let mut evaluator = Evaluator::new(graph, source, &mut binding, outer, inner, Refinement::Fixed);
    evaluator.value(value, index).map_err(|stop| match stop {
        Stop::Fault(diagnostic) => *diagnostic,
        Stop::Refine { .. } => Diagnostic::new(kiln_ir::Code::K0901, "a fixed space asked to be refined"),
    })?;
    let size = evaluator.take_point().instructions.len() + evaluator.take_body().instructions.len();
    let mut reads = evaluator.reads;
    reads.dedup();
    Ok((reads, size))
}

impl Groups {
    #[allow(clippy::too_many_arguments)]
    fn place(
        &mut self,
        graph: &Graph,
        value: Value,
        shell: Shell,
        domain: Domain,
        reads: Vec<(Value, Index)>,
        size: usize,
        options: &Options,
    ) {
        let mut needed: Vec<usize> = reads.iter().filter_map(|(read, _)| self.group_of.get(read).copied()).collect();
        needed.sort_unstable();
        needed.dedup();
        if shell == Shell::Loop && options.fusion == Fusion::On {
            for &candidate in needed.iter().rev() {
                match self.fit(graph, candidate, value, &domain, &reads, &needed, size, &options.limits) {
                    Ok((joined, level, phase)) => {
                        let made = self.groups[candidate].epilogues.as_ref();
                        let made = made.and_then(|own| own.fit(graph, value, &domain, &reads).ok());
                        if let (Some(own), Some(made)) = (&mut self.groups[candidate].epilogues, made) {
                            own.join(value, made);
                            self.join(candidate, joined, Member { value, level, phase, reads }, &needed, size);
                            return;
                        }
                        self.join(candidate, joined, Member { value, level, phase, reads }, &needed, size);
                        self.merge_siblings(graph, candidate, &options.limits);
                        return;
                    }
                    Err(reason) => {
                        for (read, _) in reads.iter().filter(|(read, _)| self.group_of.get(read) == Some(&candidate)) {
                            self.blocked.insert((*read, value), reason);
                        }
                    }
                }
            }
            for candidate in self.fellow_readers(graph, &domain, &reads, &needed) {
                if let Ok((domain, level, phase)) =
                    self.fit(graph, candidate, value, &domain, &reads, &needed, size, &options.limits)
                {
                    return self.join(candidate, domain, Member { value, level, phase, reads }, &needed, size);
                }
            }
        }
        let level = if domain.reduced.is_empty() { Level::Full } else { Level::Outer };
        let mut needs = Bits::default();
        for &group in &needed {
            needs.insert(group);
            needs.union(&self.needs[group]);
        }
        for result in 0..graph.node(value).types.len() {
            self.group_of.insert(Value { result: result as u32, ..value }, self.groups.len());
        }
        let members = vec![Member { value, level, phase: 0, reads }];
        self.groups.push(Group { shell, domain, members, epilogues: None, size });
        self.needs.push(needs);
    }

    /// Starts the group of an attention, with all its results and statistics.
    fn found(&mut self, graph: &Graph, shell: Shell, attention: &Attention, reads: Vec<(Value, Index)>, size: usize) {
        let mut needs = Bits::default();
        for group in reads.iter().filter_map(|(read, _)| self.group_of.get(read).copied()) {
            needs.insert(group);
            needs.union(&self.needs[group]);
        }
        let results: Vec<Value> = attention.results().into_iter().map(|result| result.value).collect();
        let mut members: Vec<Member> = results
            .iter()
            .map(|&value| Member { value, level: Level::Full, phase: 0, reads: Vec::new() })
            .chain(attention.statistics().into_iter().map(|value| Member {
                value,
                level: Level::Outer,
                phase: 0,
                reads: Vec::new(),
            }))
            .collect();
        members[0].reads = reads;
        self.group_of.extend(members.iter().map(|member| (member.value, self.groups.len())));
        let domain = Domain::map(graph.ty(results[0]).shape.clone());
        let epilogues = Some(Box::new(Epilogues::of(attention)));
        self.groups.push(Group { shell, domain, members, epilogues, size });
        self.needs.push(needs);
    }

    /// Groups that walk the same space and read a whole tensor at the same elements, the latest first: what they read is then read once.
    fn fellow_readers(&self, graph: &Graph, own: &Domain, reads: &[(Value, Index)], needed: &[usize]) -> Vec<usize> {
        let mut found = Vec::new();
        for (read, index) in reads {
            let whole = graph.ty(*read).shape.num_elements() >= own.shape.num_elements();
            let known = self.readers.get(read).filter(|_| whole).into_iter().flatten();
            for &reader in known.rev().take(FELLOWS) {
                let group = self.group_of[&reader];
                let member = self.groups[group].members.iter().find(|member| member.value == reader);
                let alike = member.is_some_and(|member| {
                    let theirs = own_domain(graph, reader);
                    theirs.shape == own.shape
                        && (theirs.reduced == own.reduced || (theirs.reduces_last() && own.reduces_last()))
                        && member.reads.contains(&(*read, index.clone()))
                });
                if alike && !needed.contains(&group) && !found.contains(&group) {
                    found.push(group);
                }
            }
        }
        found
    }

    /// Notes what a placed root reads.
    fn remember(&mut self, value: Value) {
        let Some(members) = self.group_of.get(&value).map(|&group| &self.groups[group].members) else { return };
        let Some(member) = members.iter().find(|member| member.value == value) else { return };
        for (read, _) in &member.reads {
            let readers = self.readers.entry(*read).or_default();
            if readers.last() != Some(&value) {
                readers.push(value);
            }
        }
    }

    /// Whether a root fits a group: the group's domain with it, its level and its phase there.
    #[allow(clippy::too_many_arguments)]
    fn fit(
        &self,
        graph: &Graph,
        candidate: usize,
        value: Value,
        own: &Domain,
        reads: &[(Value, Index)],
        needed: &[usize],
        size: usize,
        limits: &Limits,
    ) -> Result<(Domain, Level, usize), Blocked> {
        let group = &self.groups[candidate];
        let (domain, level) = match group.shell {
            Shell::Single => return Err(Blocked::Complete),
            Shell::MatMul | Shell::Loop => common_domain(group, own, graph, value, limits)?,
            Shell::Attention(_) => (group.domain.clone(), Level::Full),
        };
        if needed.iter().any(|&other| other != candidate && self.needs[other].contains(candidate)) {
            return Err(Blocked::Cycle);
        }
        if group.size + size > limits.instructions || group.buffers() + reads.len() + 1 > limits.buffers {
            return Err(Blocked::Limit);
        }
        if let Some(epilogues) = &group.epilogues {
            return epilogues.fit(graph, value, own, reads).map(|_| (domain, level, 0));
        }
        // Indices are compared in the root's own domain, whose axes are the group's at the level at which the root reads.
        let reading_level = if own.reduced.is_empty() { level } else { Level::Full };
        let mut phase = 0;
        for (read, index) in reads {
            let Some(member) = group.members.iter().find(|member| member.value == *read) else { continue };
            let expected =
                expected_index(&domain, own, reading_level, graph, member, *read).ok_or(Blocked::Complete)?;
            let shape = &graph.ty(*read).shape;
            if expected.linear(shape) != index.linear(shape) {
                return Err(Blocked::Complete);
            }
            phase = phase.max(member.available(graph));
        }
        Ok((domain, level, phase))
    }

    fn join(&mut self, group: usize, domain: Domain, member: Member, needed: &[usize], size: usize) {
        let mut added = Bits::default();
        for &other in needed.iter().filter(|&&other| other != group) {
            added.insert(other);
            added.union(&self.needs[other]);
        }
        self.needs[group].union(&added);
        for needs in self.needs.iter_mut().filter(|needs| needs.contains(group)) {
            needs.union(&added);
        }
        let joined = &mut self.groups[group];
        if joined.domain != domain {
            // A map takes on a reduction: what it made lives at the full level, as before.
            joined.domain = domain;
        }
        joined.size += size;
        self.group_of.insert(member.value, group);
        joined.members.push(member);
    }

    /// After a root has joined `group`, other groups of the same map domain that it reads at the same elements may come in as well.
    fn merge_siblings(&mut self, graph: &Graph, group: usize, limits: &Limits) {
        let Some(last) = self.groups[group].members.last() else { return };
        let level = last.level;
        let mut siblings: Vec<usize> =
            last.reads.iter().filter_map(|(read, _)| self.group_of.get(read).copied()).collect();
        siblings.sort_unstable();
        siblings.dedup();
        for sibling in siblings.into_iter().filter(|&sibling| sibling != group) {
            if self.may_merge(graph, group, sibling, level, limits) {
                self.merge(group, sibling);
            }
        }
    }

    fn may_merge(&self, graph: &Graph, group: usize, sibling: usize, level: Level, limits: &Limits) -> bool {
        let (into, from) = (&self.groups[group], &self.groups[sibling]);
        let Some(last) = into.members.last() else { return false };
        let plain = from.shell == Shell::Loop && from.domain.reduced.is_empty();
        let fits = plain
            && from.members.iter().all(|member| into.domain.level(&graph.ty(member.value).shape) == Some(level))
            && into.size + from.size <= limits.instructions
            && into.buffers() + from.buffers() <= limits.buffers;
        let independent = !self.needs[group].contains(sibling) || self.only_direct(group, sibling);
        let own = Domain::map(graph.ty(last.value).shape.clone());
        let aligned = last.reads.iter().all(|(read, index)| {
            let Some(member) = from.members.iter().find(|member| member.value == *read) else { return true };
            let shape = &graph.ty(*read).shape;
            expected_index(&into.domain, &own, level, graph, member, *read)
                .is_some_and(|expected| expected.linear(shape) == index.linear(shape))
        });
        // Members made at the outer level must not be needed by folds that have run before the last member's phase.
        fits && independent && !self.needs[sibling].contains(group) && aligned && last.phase == last.available(graph)
    }

    /// Whether `group` needs `sibling` through its last member alone.
    fn only_direct(&self, group: usize, sibling: usize) -> bool {
        let members = &self.groups[group].members;
        let (last, before) = members.split_last().expect("a group has members");
        let reaches = |member: &Member| {
            member
                .reads
                .iter()
                .filter_map(|(read, _)| self.group_of.get(read))
                .any(|&other| other != group && (other == sibling || self.needs[other].contains(sibling)))
        };
        let indirectly = last
            .reads
            .iter()
            .filter_map(|(read, _)| self.group_of.get(read))
            .any(|&other| other != group && other != sibling && self.needs[other].contains(sibling));
        !before.iter().any(reaches) && !indirectly
    }

    fn merge(&mut self, group: usize, sibling: usize) {
        let from = std::mem::take(&mut self.groups[sibling].members);
        let level = self.groups[group].members.last().map_or(Level::Full, |member| member.level);
        let phase = self.groups[group].members.last().map_or(0, |member| member.phase);
        for member in &from {
            self.group_of.insert(member.value, group);
        }
        let size = self.groups[sibling].size;
        let into = &mut self.groups[group];
        into.size += size;
        into.members.extend(from.into_iter().map(|member| Member { level, phase, ..member }));
        into.members.sort_by_key(|member| member.value);
        let added = self.needs[sibling].clone();
        self.needs[group].union(&added);
        self.needs[group].remove(sibling);
        for needs in &mut self.needs {
            if needs.contains(sibling) {
                needs.remove(sibling);
                needs.insert(group);
            }
        }
        let own = self.needs[group].clone();
        for needs in self.needs.iter_mut().filter(|needs| needs.contains(group)) {
            needs.union(&own);
        }
    }

    /// Whether group `user` needs group `maker`, directly or not.
    pub(crate) fn needs(&self, user: usize, maker: usize) -> bool {
        self.needs[user].contains(maker)
    }
}

impl Member {
    /// The first phase in which the value is there.
    fn available(&self, graph: &Graph) -> usize {
        self.phase + usize::from(matches!(graph.node(self.value).op, Op::Reduce { .. }))
    }
}

impl Group {
    fn buffers(&self) -> usize {
        self.members.iter().map(|member| member.reads.len() + 1).sum()
    }
}

/// The domain of a group with one more root, and the root's level in it.
fn common_domain(
    group: &Group,
    own: &Domain,
    graph: &Graph,
    value: Value,
    limits: &Limits,
) -> Result<(Domain, Level), Blocked> {
    let has_full = group.members.iter().any(|member| member.level == Level::Full);
    if own.reduced.is_empty() {
        let level = group.domain.level(&graph.ty(value).shape).ok_or(Blocked::Space)?;
        if level == Level::Full && !group.domain.reduced.is_empty() && !has_full && !rows_fit(&group.domain, limits) {
            return Err(Blocked::Reread);
        }
        return Ok((group.domain.clone(), level));
    }
    if group.shell == Shell::MatMul {
        return Err(Blocked::Complete);
    }
    // Over axes of extent 1 alone there is nothing to fold: its outer level is the full one, which other folds of the group would break.
    if own.extents().1.is_empty() {
        return Err(Blocked::Space);
    }
    // A reduction joins a group that iterates the same full space, and that reduces nothing yet or the same axes.
    if group.domain.level(&own.shape) != Some(Level::Full) {
        return Err(Blocked::Space);
    }
    let reduced = Axes::from_indices(translate(own, &group.domain));
    let domain = Domain { shape: group.domain.shape.clone(), reduced };
    if !group.domain.reduced.is_empty() && group.domain.reduced_positions() != domain.reduced_positions() {
        return Err(Blocked::Space);
    }
    if !rows_fit(&domain, limits) {
        return Err(Blocked::Reread);
    }
    Ok((domain, Level::Outer))
}

/// The reduced axes of `own` as axes of another domain's shape with the same extents other than 1.
fn translate(own: &Domain, other: &Domain) -> Vec<usize> {
    let longer =
        |domain: &Domain| -> Vec<usize> { (0..domain.shape.rank()).filter(|&axis| domain.shape[axis] != 1).collect() };
    longer(own)
        .iter()
        .zip(longer(other))
        .filter(|(axis, _)| own.reduced.contains(axis))
        .map(|(_, other)| other)
        .collect()
}

impl Domain {
    /// Whether kernel axes come in the order of the shape's: the reduced ones, if any, are the last.
    fn reduces_last(&self) -> bool {
        let longer = (0..self.shape.rank()).filter(|&axis| self.shape[axis] != 1);
        longer.map(|axis| self.reduced.contains(&axis)).is_sorted()
    }

    fn reduced_positions(&self) -> Vec<usize> {
        self.reduced.iter().copied().filter(|&axis| self.shape[axis] != 1).collect()
    }
}

/// Whether rows may be walked several times: they stay in cache and occupy the device, or all is small. Rows across memory stay there together
/// with as many neighbours as a line of the cache and a strip of lanes hold.
fn rows_fit(domain: &Domain, limits: &Limits) -> bool {
    let (outer, inner) = domain.extents();
    let (rows, row) = (outer.iter().product::<usize>(), inner.iter().product::<usize>());
    if rows * row <= limits.small {
        return true;
    }
    let last = (0..domain.shape.rank()).rev().take_while(|&axis| !domain.reduced.contains(&axis));
    let neighbours = match last.map(|axis| domain.shape[axis]).product::<usize>() {
        1 => 1,
        few if few < NEIGHBOURS / 4 => return false,
        many => many.min(NEIGHBOURS),
    };
    row * neighbours <= limits.row_elements && rows >= limits.row_count * neighbours
}

/// Where a root, seen from its own domain, must read a member for both to be at the same point.
fn expected_index(
    domain: &Domain,
    own: &Domain,
    reading_level: Level,
    graph: &Graph,
    member: &Member,
    read: Value,
) -> Option<Index> {
    if reading_level == Level::Outer && member.level == Level::Full {
        return None;
    }
    // Kernel axis -> the root's own axis: the root's axes at its level, in order.
    let (own_outer, own_inner) = own.extents();
    let own_map = own.axes_of(&own.shape, Level::Full);
    let group_map = domain.axes_of(&own.shape, reading_level);
    let mut own_axis = vec![None; domain.extents().0.len() + domain.extents().1.len()];
    for (own_position, group_position) in own_map.iter().zip(&group_map) {
        if let (Some(own_position), Some(group_position)) = (own_position, group_position) {
            own_axis[*group_position] = Some(*own_position);
        }
    }
    debug_assert!(own_outer.len() + own_inner.len() <= own_axis.len());
    let shape = &graph.ty(read).shape;
    let coords: Option<Vec<Coord>> = domain
        .axes_of(shape, member.level)
        .iter()
        .map(|axis| match axis {
            None => Some(Coord::constant(0)),
            Some(axis) => own_axis[*axis].map(Coord::axis),
        })
        .collect();
    coords.map(Index::Axes)
}

/// A set of group numbers.
#[derive(Clone, Debug, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn insert(&mut self, bit: usize) {
        if self.0.len() <= bit / 64 {
            self.0.resize(bit / 64 + 1, 0);
        }
        self.0[bit / 64] |= 1 << (bit % 64);
    }

    fn remove(&mut self, bit: usize) {
        if let Some(word) = self.0.get_mut(bit / 64) {
            *word &= !(1 << (bit % 64));
        }
    }

    fn contains(&self, bit: usize) -> bool {
        self.0.get(bit / 64).is_some_and(|word| word & (1 << (bit % 64)) != 0)
    }

    fn union(&mut self, other: &Bits) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (word, other) in self.0.iter_mut().zip(&other.0) {
            *word |= other;
        }
    }
}
