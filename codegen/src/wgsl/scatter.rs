//! Indexed updates: each walked by the one invocation whose elements they go to, or sorted by element first (`sort.rs`).

use kiln_ir::gpu::{Dispatch, GpuProgram, GpuTarget, ScatterSchedule};
use kiln_ir::kernel::ScatterKernel;
use kiln_ir::{DType, Diagnostic, ScalarOp, ScatterKind};

use super::block::{Scope, Value, block};
use super::matmul::digits;
use super::module::{Module, Scratch, Subgroups};
use super::product::times;
use super::ranges::Ranges;
use super::scalar;
use super::sort;
use super::space::Point;
use super::types::Held;
use super::writer::Writer;

/// The texts of indexed updates.
pub(super) fn program(
    kernel: &ScatterKernel,
    schedule: &ScatterSchedule,
    entry: &str,
    target: &GpuTarget,
) -> Result<GpuProgram, Diagnostic> {
    let text = Text { kernel, entry, target };
    match schedule {
        ScatterSchedule::Walk { workgroup } => {
            Ok(GpuProgram { dispatches: vec![text.walk(*workgroup)?], scratch: Vec::new() })
        }
        ScatterSchedule::Sort { workgroup, ways, axes } => {
            let mut scratch = Scratch::default();
            let updates: usize = kernel.space[kernel.ordered.clone()].iter().product();
            let groups: usize = axes.iter().map(|&axis| kernel.space[axis]).product();
            let entries = sort::Entries { updates, groups, workgroup: *workgroup };
            let mut dispatches = vec![text.keys(axes, &entries)?];
            let (merges, sorted) = sort::merges(entry, target, &entries, *ways, &mut scratch)?;
            dispatches.extend(merges);
            dispatches.push(text.apply(axes, &entries, sorted)?);
            Ok(GpuProgram { dispatches, scratch: scratch.bytes })
        }
    }
}

struct Text<'a> {
    kernel: &'a ScatterKernel,
    entry: &'a str,
    target: &'a GpuTarget,
}

impl<'a> Text<'a> {
    fn module(&self) -> Result<Module<'a>, Diagnostic> {
        Module::new(&self.kernel.buffers, self.target)
    }

    fn dtype(&self) -> DType {
        self.kernel.buffers[self.kernel.output.0 as usize].dtype
    }

    /// How updates are combined: sums of 16-bit floats in `f32`.
    fn combined(&self) -> DType {
        match self.kernel.kind {
            ScatterKind::Add => self.dtype().accumulator(),
            ScatterKind::Set | ScatterKind::Max => self.dtype(),
        }
    }

    fn names(&self) -> Vec<String> {
        (0..self.kernel.space.len()).map(|axis| format!("p{axis}")).collect()
    }

    /// Takes a number apart into coordinates along some axes.
    fn coordinates(&self, w: &mut Writer, number: &str, axes: &[usize]) {
        let names = self.names();
        let radices: Vec<(usize, &str)> =
            axes.iter().map(|&axis| (self.kernel.space[axis], names[axis].as_str())).collect();
        digits(w, number, &radices);
    }

    fn ordered(&self) -> Vec<usize> {
        self.kernel.ordered.clone().collect()
    }

    /// The axes along which points are independent, but for these.
    fn independent(&self, but: &[usize]) -> Vec<usize> {
        let own = |axis: &usize| !self.kernel.ordered.contains(axis) && !but.contains(axis);
        (0..self.kernel.space.len()).filter(own).collect()
    }

    fn count(&self, axes: &[usize]) -> usize {
        axes.iter().map(|&axis| self.kernel.space[axis]).product()
    }

    fn scope(&self) -> Scope {
        let blocks = [(&self.kernel.block, &self.kernel.space[..], &[][..])];
        Scope::new(Ranges::of(blocks.into_iter(), &[self.kernel.update]))
    }

    /// The element that an index leads to.
    fn element(&self, point: &Point, index: &str) -> String {
        point.sum(self.kernel.address.offset, &self.kernel.address, &[(index.to_owned(), self.kernel.stride)])
    }

    /// `there` and an update, as one.
    fn met(&self, module: &mut Module<'_>, there: &str, update: &Value) -> Result<String, Diagnostic> {
        let dtype = self.combined();
        let held = Held::of(dtype);
        let update = scalar::cast(module, update, dtype, held)?;
        let op = match self.kernel.kind {
            ScatterKind::Set => return Ok(update.text),
            ScatterKind::Add => ScalarOp::Add,
            ScatterKind::Max => ScalarOp::Max,
        };
        let there = Value::new(there, held, 1).of(dtype);
        Ok(scalar::apply(module, op, &[there, update], dtype, held)?.text)
    }

    /// The output's element as updates combine with it.
    fn load(&self, module: &mut Module<'_>, element: &str) -> Result<String, Diagnostic> {
        let (dtype, wide) = (self.dtype(), self.combined());
        let there = module.bound(self.kernel.output).load(element);
        let there = Value::new(there, Held::of(dtype), 1).of(dtype);
        Ok(scalar::cast(module, &there, wide, Held::of(wide))?.text)
    }

    /// Stores what has been combined.
    fn store(&self, module: &mut Module<'_>, w: &mut Writer, element: &str, value: &str) -> Result<(), Diagnostic> {
        let (dtype, wide) = (self.dtype(), self.combined());
        let value = Value::new(value, Held::of(wide), 1).of(wide);
        let value = scalar::cast(module, &value, dtype, Held::of(dtype))?;
        let statement = module.bound(self.kernel.output).store(element, &value.text);
        w.line(statement);
        Ok(())
    }

    /// One invocation for every independent point walks all updates that may meet there, in order.
    fn walk(&self, workgroup: u32) -> Result<Dispatch, Diagnostic> {
        let mut module = self.module()?;
        let independent = self.independent(&[]);
        let count = self.count(&independent);
        let groups = count.div_ceil(workgroup as usize);
        let mut w = Writer::body();
        w.line(format!("let number = {} + local;", times("group", workgroup)));
        if !count.is_multiple_of(workgroup as usize) {
            w.line(format!("if number >= {count} {{ return; }}"));
        }
        self.coordinates(&mut w, "number", &independent);
        let names = self.names();
        for &axis in &self.ordered() {
            let name = &names[axis];
            w.open(format!("for (var {name} = 0; {name} < {}; {name}++)", self.kernel.space[axis]));
        }
        let point = Point::new(names, &self.kernel.space[..]);
        let mut scope = self.scope();
        block(&mut module, &mut scope, &mut w, &self.kernel.block, &point)?;
        self.open_inside(&scope, &mut w)?;
        w.line(format!("let element = {};", self.element(&point, "at")));
        let there = match self.kernel.kind {
            ScatterKind::Set => String::new(),
            ScatterKind::Add | ScatterKind::Max => self.load(&mut module, "element")?,
        };
        let update = scope.value(self.kernel.update)?.clone();
        let met = self.met(&mut module, &there, &update)?;
        self.store(&mut module, &mut w, "element", &met)?;
        w.close();
        for _ in self.ordered() {
            w.close();
        }
        module.dispatch(self.entry, workgroup, groups as u64, Subgroups::Unused, &w)
    }

    /// Opens a block for an index that is in range, where it is called `at`.
    fn open_inside(&self, scope: &Scope, w: &mut Writer) -> Result<(), Diagnostic> {
        let index = scope.value(self.kernel.index)?;
        let zero = index.held.zero();
        let extent = Value::new(format!("{}", self.kernel.extent), Held::I32, 1).held_as(index.held).text;
        w.open(format!("if {0} >= {zero} && {0} < {extent}", index.text));
        w.line(format!("let at = {};", index.index(0)));
        Ok(())
    }

    /// Makes the key of every update, and sorts them, a workgroup at a time.
    fn keys(&self, axes: &[usize], entries: &sort::Entries) -> Result<Dispatch, Diagnostic> {
        let mut module = self.module()?;
        let mut w = Writer::body();
        entries.begin(&mut w);
        w.open(format!("if entry < {}", entries.count()));
        w.line(format!("let number = entry / {};", entries.updates.max(1)));
        w.line(format!("let update = entry % {};", entries.updates.max(1)));
        self.coordinates(&mut w, "number", axes);
        self.coordinates(&mut w, "update", &self.ordered());
        // No other axis changes the index.
        let own = |axis: usize| axes.contains(&axis) || self.kernel.ordered.contains(&axis);
        let names = self.names().into_iter().enumerate();
        let names: Vec<String> = names.map(|(axis, name)| if own(axis) { name } else { "0".to_owned() }).collect();
        let point = Point::new(names, &self.kernel.space[..]);
        let mut scope = self.scope();
        block(&mut module, &mut scope, &mut w, &sort::needed(&self.kernel.block, self.kernel.index), &point)?;
        self.open_inside(&scope, &mut w)?;
        w.line(format!("key = u32(number) * {}u + u32(at);", self.kernel.extent));
        w.close();
        w.close();
        entries.sort(&mut module, &mut w);
        let groups = entries.runs() as u64;
        module.dispatch(&format!("{}_sort", self.entry), entries.workgroup, groups, Subgroups::Unused, &w)
    }

    /// One invocation combines all updates of an element, in order: the one where their segment begins (of `set`, where it ends).
    fn apply(&self, axes: &[usize], entries: &sort::Entries, sorted: u32) -> Result<Dispatch, Diagnostic> {
        let mut module = self.module()?;
        let rest = self.independent(axes);
        let across = self.count(&rest);
        let count = entries.count() * across;
        let groups = count.div_ceil(entries.workgroup as usize);
        let pairs = module.scratch(sorted, "vec2<u32>", false);
        let mut w = Writer::body();
        w.line(format!("let number = {} + local;", times("group", entries.workgroup)));
        if !count.is_multiple_of(entries.workgroup as usize) {
            w.line(format!("if number >= {count} {{ return; }}"));
        }
        digits(&mut w, "number", &[(entries.count(), "first"), (across, "other")]);
        w.line(format!("let key = {pairs}[first].x;"));
        w.line("if key == 0xffffffffu { return; }");
        let last = entries.count().saturating_sub(1);
        match self.kernel.kind {
            ScatterKind::Set => {
                w.open(format!("if first < {last}"));
                w.line(format!("if {pairs}[first + 1].x == key {{ return; }}"));
            }
            ScatterKind::Add | ScatterKind::Max => {
                w.open("if first > 0");
                w.line(format!("if {pairs}[first - 1].x == key {{ return; }}"));
            }
        }
        w.close();
        self.coordinates(&mut w, "other", &rest);
        w.line(format!("let at = i32(key % {}u);", self.kernel.extent.max(1)));
        w.line(format!("let outside = i32(key / {}u);", self.kernel.extent.max(1)));
        self.coordinates(&mut w, "outside", axes);
        let space = &self.kernel.space[..];
        let own = |axis: usize| !self.kernel.ordered.contains(&axis);
        let fixed = self.names().into_iter().enumerate();
        let fixed: Vec<String> = fixed.map(|(axis, name)| if own(axis) { name } else { "0".to_owned() }).collect();
        w.line(format!("let element = {};", self.element(&Point::new(fixed, space), "at")));
        let point = Point::new(self.names(), space);
        let mut scope = self.scope();
        let wanted = sort::needed(&self.kernel.block, self.kernel.update);
        let held = Held::of(self.combined());
        let one = |module: &mut Module<'_>, w: &mut Writer, scope: &mut Scope, entry: &str| {
            w.line(format!("let update = i32({pairs}[{entry}].y) % {};", entries.updates.max(1)));
            self.coordinates(w, "update", &self.ordered());
            block(module, scope, w, &wanted, &point)?;
            let update = scope.value(self.kernel.update)?.clone();
            self.met(module, "met", &update)
        };
        if self.kernel.kind == ScatterKind::Set {
            let met = one(&mut module, &mut w, &mut scope, "first")?;
            self.store(&mut module, &mut w, "element", &met)?;
        } else {
            let there = self.load(&mut module, "element")?;
            w.line(format!("var met: {} = {there};", held.name()));
            w.open(format!("for (var entry = first; entry <= {last}; entry++)"));
            w.line(format!("if {pairs}[entry].x != key {{ break; }}"));
            let met = one(&mut module, &mut w, &mut scope, "entry")?;
            w.line(format!("met = {met};"));
            w.close();
            self.store(&mut module, &mut w, "element", "met")?;
        }
        module.dispatch(self.entry, entries.workgroup, groups as u64, Subgroups::Unused, &w)
    }
}
