//! Indexed updates: each walked by the one thread whose elements they go to, or sorted by element first.
//!
//! What is sorted are numbers of 64 bits: where an update goes, above which one it is. So equal places keep their order, and what is made of them
//! is the same run after run. A block sorts as many as it has threads; runs are then merged, some at a time: a number's place is its place in its
//! own run and, by binary search, how many of each other run come before it. Places of all ones stand for updates that go nowhere.

use kiln_ir::cuda::{CudaProgram, CudaStep, CudaText};
use kiln_ir::gpu::{GpuMemory, ScatterSchedule};
use kiln_ir::kernel::ScatterKernel;
use kiln_ir::{DType, Diagnostic, ScalarOp, ScatterKind};

use super::block::{Scope, block};
use super::builder::{Builder, Term, Ty};
use super::loops::{bind, blocks, width_for};
use super::memory::{self, Bound};
use super::scalar;
use super::space::{Point, coordinates, sum};
use super::types::Number;

/// The texts of indexed updates.
pub(super) fn program(
    kernel: &ScatterKernel,
    schedule: &ScatterSchedule,
    entry: &str,
) -> Result<CudaProgram, Diagnostic> {
    match schedule {
        ScatterSchedule::Walk { workgroup } => {
            let text = Updates { kernel, entry, threads: *workgroup, axes: &[] }.walk()?;
            Ok(CudaProgram { steps: vec![CudaStep::Text(text)], scratch: Vec::new() })
        }
        ScatterSchedule::Sort { workgroup, ways, axes } => {
            let updates = Updates { kernel, entry, threads: *workgroup, axes };
            let mut steps = vec![CudaStep::Text(updates.keys()?)];
            let (mut run, mut from, all) = (*workgroup as usize, 0, updates.padded());
            while run < all {
                steps.push(CudaStep::Text(updates.merge(from, run, *ways as usize)?));
                run *= *ways as usize;
                from = 1 - from;
            }
            steps.push(CudaStep::Text(updates.apply(from)?));
            let buffers = if all > *workgroup as usize { 2 } else { 1 };
            Ok(CudaProgram { steps, scratch: vec![8 * all; buffers] })
        }
    }
}

struct Updates<'a> {
    kernel: &'a ScatterKernel,
    entry: &'a str,
    threads: u32,
    /// Axes outside of the ordered ones that the index depends on.
    axes: &'a [usize],
}

impl Updates<'_> {
    fn builder(&self, entry: &str) -> (Builder, Vec<Bound>) {
        let mut b = Builder::new(entry, self.threads, width_for(&self.kernel.buffers, &self.kernel.space));
        let bounds = bind(&mut b, &self.kernel.buffers);
        (b, bounds)
    }

    fn ordered(&self) -> Vec<usize> {
        self.kernel.ordered.clone().collect()
    }

    /// The axes along which points are independent, but for those that the index depends on.
    fn independent(&self) -> Vec<usize> {
        let own = |axis: &usize| !self.kernel.ordered.contains(axis) && !self.axes.contains(axis);
        (0..self.kernel.space.len()).filter(own).collect()
    }

    fn count(&self, axes: &[usize]) -> usize {
        axes.iter().map(|&axis| self.kernel.space[axis]).product()
    }

    /// Numbers that are sorted.
    fn entries(&self) -> usize {
        self.count(&self.ordered()) * self.count(self.axes)
    }

    /// As many, in whole blocks.
    fn padded(&self) -> usize {
        self.entries().next_multiple_of(self.threads as usize)
    }

    /// Sets the coordinates along some axes from a row-major number.
    fn coordinates(&self, b: &mut Builder, at: &mut [Term], number: &Term, axes: &[usize]) {
        let extents: Vec<usize> = axes.iter().map(|&axis| self.kernel.space[axis]).collect();
        for (axis, term) in axes.iter().zip(coordinates(b, number, &extents, 1)) {
            at[*axis] = term;
        }
    }

    fn origin(&self) -> Vec<Term> {
        vec![Term::constant("0"); self.kernel.space.len()]
    }

    fn point(&self, axes: Vec<Term>) -> Point {
        Point::new(axes, self.kernel.space.to_vec())
    }

    /// The number of this thread, and whether it is one of `count`.
    fn number(&self, b: &mut Builder, count: usize) -> (Term, Term) {
        let terms = [("blockIdx.x", i64::from(self.threads)), ("threadIdx.x", 1)]
            .map(|(text, stride)| (b.expression(Ty::Index, text, &[]), stride));
        let number = sum(b, 0, &terms);
        let inside = b.expression(Ty::Bool, &format!("$0 < {count}"), std::slice::from_ref(&number));
        (number, inside)
    }

    fn finish(&self, b: Builder, count: usize) -> Result<CudaText, Diagnostic> {
        let groups = count.div_ceil(self.threads as usize);
        b.finish([blocks(groups as u64)?, 1, 1])
    }

    /// How updates are combined: sums of 16-bit floats in `f32`.
    fn combined(&self) -> DType {
        let dtype = self.kernel.buffers[self.kernel.output.0 as usize].dtype;
        match self.kernel.kind {
            ScatterKind::Add => dtype.accumulator(),
            ScatterKind::Set | ScatterKind::Max => dtype,
        }
    }

    /// `there` and an update, as one.
    fn met(&self, b: &mut Builder, there: &Term, update: &Number) -> Term {
        let dtype = self.combined();
        let update = scalar::cast(b, update.lane(0), update.dtype, dtype);
        let op = match self.kernel.kind {
            ScatterKind::Set => return update,
            ScatterKind::Add => ScalarOp::Add,
            ScatterKind::Max => ScalarOp::Max,
        };
        scalar::apply(b, op, &[there.clone(), update], dtype, dtype)
    }

    fn output(&self, bounds: &[Bound]) -> Bound {
        bounds[self.kernel.output.0 as usize]
    }

    /// The output's element as updates combine with it.
    fn there(&self, b: &mut Builder, bounds: &[Bound], element: &Term) -> Term {
        let output = self.output(bounds);
        let loaded = memory::load_again(b, output, element);
        scalar::cast(b, &loaded, output.dtype, self.combined())
    }

    fn put(&self, b: &mut Builder, bounds: &[Bound], element: &Term, value: &Term) {
        let output = self.output(bounds);
        let value = scalar::cast(b, value, self.combined(), output.dtype);
        memory::store_one(b, output, element, &value);
    }

    /// Opens a branch for an index that is in range; gives it.
    fn open_inside(&self, b: &mut Builder, scope: &Scope) -> Result<Term, Diagnostic> {
        let index = scope.value(self.kernel.index)?.lane(0).clone();
        let test = format!("$0 >= 0 && $0 < {}", self.kernel.extent);
        let inside = b.expression(Ty::Bool, &test, std::slice::from_ref(&index));
        b.open_if(&inside);
        let name = b.type_name(Ty::Index);
        Ok(b.expression(Ty::Index, &format!("{name}($0)"), &[index]))
    }

    /// One thread for every independent point walks all updates that may meet there, in order.
    fn walk(&self) -> Result<CudaText, Diagnostic> {
        let (mut b, bounds) = self.builder(self.entry);
        let independent = self.independent();
        let count = self.count(&independent);
        let (number, live) = self.number(&mut b, count);
        b.open_if(&live);
        let mut at = self.origin();
        self.coordinates(&mut b, &mut at, &number, &independent);
        for axis in self.ordered() {
            let ends = ["0".to_owned(), self.kernel.space[axis].to_string(), "1".to_owned()].map(Term::constant);
            at[axis] = b.open_loop(&ends[0], &ends[1], &ends[2]);
        }
        let point = self.point(at);
        let mut scope = Scope::default();
        block(&mut b, &bounds, &mut scope, &self.kernel.block, &point)?;
        let index = self.open_inside(&mut b, &scope)?;
        let element = point.sum(&mut b, &self.kernel.address, 0, &[(index, self.kernel.stride)]);
        let update = scope.value(self.kernel.update)?.clone();
        let there = match self.kernel.kind {
            ScatterKind::Set => Term::constant("0"),
            ScatterKind::Add | ScatterKind::Max => self.there(&mut b, &bounds, &element),
        };
        let met = self.met(&mut b, &there, &update);
        self.put(&mut b, &bounds, &element, &met);
        (0..self.kernel.ordered.len() + 2).for_each(|_| b.close());
        self.finish(b, count)
    }

    /// Makes the number of every update, and sorts them, a block at a time.
    fn keys(&self) -> Result<CudaText, Diagnostic> {
        let (mut b, bounds) = self.builder(&format!("{}_sort", self.entry));
        let entries = self.entries();
        let (entry, live) = self.number(&mut b, entries);
        let terms = std::slice::from_ref(&entry);
        let key = b.variable(Ty::U32, &Term::constant("0xffffffffu"));
        b.open_if(&live);
        let updates = self.count(&self.ordered()).max(1);
        let group = b.expression(Ty::Index, &format!("$0 / {updates}"), terms);
        let update = b.expression(Ty::Index, &format!("$0 % {updates}"), terms);
        // No other axis changes the index.
        let mut at = self.origin();
        self.coordinates(&mut b, &mut at, &group, self.axes);
        self.coordinates(&mut b, &mut at, &update, &self.ordered());
        let point = self.point(at);
        let mut scope = Scope::default();
        block(&mut b, &bounds, &mut scope, &self.kernel.block, &point)?;
        let index = self.open_inside(&mut b, &scope)?;
        let template = format!("uint32_t($0 * {} + $1)", self.kernel.extent);
        let place = b.expression(Ty::U32, &template, &[group, index]);
        b.set(key, &place);
        b.close();
        b.close();
        let key = b.get(key);
        let own = b.expression(Ty::U64, "uint64_t($0) << 32 | uint64_t($1)", &[key, entry]);
        let thread = b.expression(Ty::Index, "threadIdx.x", &[]);
        let keys = b.share(8 * self.threads);
        b.shared_store(keys, Ty::U64, &thread, &own);
        b.barrier();
        let rank = b.variable(Ty::Index, &Term::constant("0"));
        let ends = ["0".to_owned(), self.threads.to_string(), "1".to_owned()].map(Term::constant);
        let other = b.open_loop(&ends[0], &ends[1], &ends[2]);
        let theirs = b.shared_load(keys, Ty::U64, &other);
        let before = b.get(rank);
        let more = b.expression(Ty::Index, "$0 + ($1 < $2 ? 1 : 0)", &[before, theirs, own.clone()]);
        b.set(rank, &more);
        b.close();
        let (group, rank) = (b.expression(Ty::Index, "blockIdx.x", &[]), b.get(rank));
        let at = sum(&mut b, 0, &[(group, i64::from(self.threads)), (rank, 1)]);
        let pairs = b.argument(GpuMemory::Scratch(0), Ty::U64);
        b.store(pairs, &at, &[own]);
        self.finish(b, self.padded())
    }

    /// Merges runs of so many numbers.
    fn merge(&self, from: u32, run: usize, ways: usize) -> Result<CudaText, Diagnostic> {
        let all = self.padded();
        let width = width_for(&self.kernel.buffers, &self.kernel.space);
        let mut b = Builder::new(&format!("{}_merge", self.entry), self.threads, width);
        let (source, to) =
            (b.argument(GpuMemory::Scratch(from), Ty::U64), b.argument(GpuMemory::Scratch(1 - from), Ty::U64));
        let (number, _) = self.number(&mut b, all);
        let own = b.load(source, &number, 1).remove(0);
        let terms = std::slice::from_ref(&number);
        let mine = b.expression(Ty::Index, &format!("$0 / {run}"), terms);
        let first = b.expression(Ty::Index, &format!("$0 / {ways} * {ways}"), std::slice::from_ref(&mine));
        let template = format!("$0 * {run} + $1 % {run}");
        let start = b.expression(Ty::Index, &template, &[first.clone(), number.clone()]);
        let place = b.variable(Ty::Index, &start);
        let ends = ["0".to_owned(), ways.to_string(), "1".to_owned()].map(Term::constant);
        let way = b.open_loop(&ends[0], &ends[1], &ends[2]);
        let other = sum(&mut b, 0, &[(first, 1), (way, 1)]);
        let test = format!("$0 != $1 && $0 * {run} < {all}");
        let differs = b.expression(Ty::Bool, &test, &[other.clone(), mine]);
        b.open_if(&differs);
        let begin = b.expression(Ty::Index, &format!("$0 * {run}"), &[other]);
        let template = format!("$0 + {run} < {all} ? $0 + {run} : {all}");
        let end = b.expression(Ty::Index, &template, std::slice::from_ref(&begin));
        let (low, high) = (b.variable(Ty::Index, &begin), b.variable(Ty::Index, &end));
        // As many halvings as a run can take.
        let halvings = Term::constant((usize::BITS - run.leading_zeros()).to_string());
        b.open_loop(&ends[0], &halvings, &ends[2]);
        let (at_low, at_high) = (b.get(low), b.get(high));
        let open = b.expression(Ty::Bool, "$0 < $1", &[at_low.clone(), at_high.clone()]);
        b.open_if(&open);
        let middle = b.expression(Ty::Index, "$0 + ($1 - $0) / 2", &[at_low.clone(), at_high.clone()]);
        let theirs = b.load(source, &middle, 1).remove(0);
        let less = b.expression(Ty::Bool, "$0 < $1", &[theirs, own.clone()]);
        let up = b.expression(Ty::Index, "$0 ? $1 + 1 : $2", &[less.clone(), middle.clone(), at_low]);
        let down = b.expression(Ty::Index, "$0 ? $2 : $1", &[less, middle, at_high]);
        b.set(low, &up);
        b.set(high, &down);
        b.close();
        b.close();
        let (so_far, found) = (b.get(place), b.get(low));
        let more = b.expression(Ty::Index, "$0 + ($1 - $2)", &[so_far, found, begin]);
        b.set(place, &more);
        b.close();
        b.close();
        let place = b.get(place);
        b.store(to, &place, &[own]);
        self.finish(b, all)
    }

    /// One thread combines all updates of an element, in order: the one where their segment begins (of `set`, where it ends).
    fn apply(&self, sorted: u32) -> Result<CudaText, Diagnostic> {
        let (mut b, bounds) = self.builder(self.entry);
        let rest = self.independent();
        let (entries, across) = (self.entries(), self.count(&rest));
        let pairs = b.argument(GpuMemory::Scratch(sorted), Ty::U64);
        let (number, live) = self.number(&mut b, entries * across);
        b.open_if(&live);
        let terms = std::slice::from_ref(&number);
        let first = b.expression(Ty::Index, &format!("$0 / {across}"), terms);
        let other = b.expression(Ty::Index, &format!("$0 % {across}"), terms);
        let key = self.key(&mut b, pairs, &first);
        let neighbour = match self.kernel.kind {
            ScatterKind::Set => format!("$0 + 1 < {entries} ? $0 + 1 : $0"),
            ScatterKind::Add | ScatterKind::Max => "$0 > 0 ? $0 - 1 : $0".to_owned(),
        };
        let beside = b.expression(Ty::Index, &neighbour, std::slice::from_ref(&first));
        let theirs = self.key(&mut b, pairs, &beside);
        let test = "$0 != 0xffffffffu && ($1 == $2 || $3 != $0)";
        let begins = b.expression(Ty::Bool, test, &[key.clone(), beside, first.clone(), theirs]);
        b.open_if(&begins);
        let extent = self.kernel.extent.max(1);
        let index = b.expression(Ty::Index, &format!("$0 % {extent}"), std::slice::from_ref(&key));
        let outside = b.expression(Ty::Index, &format!("$0 / {extent}"), std::slice::from_ref(&key));
        let mut at = self.origin();
        self.coordinates(&mut b, &mut at, &other, &rest);
        self.coordinates(&mut b, &mut at, &outside, self.axes);
        let fixed = self.point(at.clone());
        let element = fixed.sum(&mut b, &self.kernel.address, 0, &[(index, self.kernel.stride)]);
        let updates = self.count(&self.ordered()).max(1);
        let one = |b: &mut Builder, entry: &Term| -> Result<Number, Diagnostic> {
            let pair = b.load(pairs, entry, 1).remove(0);
            let update = b.expression(Ty::Index, &format!("uint32_t($0) % {updates}"), &[pair]);
            let mut at = at.clone();
            self.coordinates(b, &mut at, &update, &self.ordered());
            let mut scope = Scope::default();
            block(b, &bounds, &mut scope, &self.kernel.block, &self.point(at))?;
            scope.value(self.kernel.update).cloned()
        };
        if self.kernel.kind == ScatterKind::Set {
            let update = one(&mut b, &first)?;
            let met = self.met(&mut b, &Term::constant("0"), &update);
            self.put(&mut b, &bounds, &element, &met);
        } else {
            let there = self.there(&mut b, &bounds, &element);
            let met = b.variable(super::types::held(self.combined()), &there);
            let ends = [entries.to_string(), "1".to_owned()].map(Term::constant);
            let entry = b.open_loop(&first, &ends[0], &ends[1]);
            let theirs = self.key(&mut b, pairs, &entry);
            let differs = b.expression(Ty::Bool, "$0 != $1", &[theirs, key]);
            b.open_if(&differs);
            b.statement("break;", &[]);
            b.close();
            let update = one(&mut b, &entry)?;
            let before = b.get(met);
            let both = self.met(&mut b, &before, &update);
            b.set(met, &both);
            b.close();
            let met = b.get(met);
            self.put(&mut b, &bounds, &element, &met);
        }
        b.close();
        b.close();
        self.finish(b, entries * across)
    }

    /// Where the update of a sorted number goes.
    fn key(&self, b: &mut Builder, pairs: super::builder::Pointer, entry: &Term) -> Term {
        let pair = b.load(pairs, entry, 1).remove(0);
        b.expression(Ty::U32, "uint32_t($0 >> 32)", &[pair])
    }
}
