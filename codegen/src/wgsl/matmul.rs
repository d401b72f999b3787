//! Matrix products: tiles in workgroup memory, thin ones straight from memory, long sums in parts.

use kiln_ir::Diagnostic;
use kiln_ir::gpu::{Along, Dispatch, Fill, GpuProgram, GpuTarget, MatMulSchedule, MatMulSpread, MatrixAxis, Tile};
use kiln_ir::kernel::{Block, Instruction, MatMulKernel, Operation};

use super::block::{Scope, Value, block, stores};
use super::module::{Module, Scratch, Subgroups};
use super::operand::{Fetch, Guards, axis_of, dtype_of, fresh};
use super::product::{Declared, Left, PARTS, Product, Sum, quotient, remainder, times};
use super::ranges::Ranges;
use super::space::{Lanes, Point};
use super::types::Held;
use super::writer::Writer;

/// Invocations of a workgroup that adds up parts.
const WORKGROUP: u32 = 64;

/// The texts of a matrix product.
pub(super) fn program(
    kernel: &MatMulKernel,
    schedule: &MatMulSchedule,
    entry: &str,
    target: &GpuTarget,
) -> Result<GpuProgram, Diagnostic> {
    let form = MatMul { kernel, schedule, entry, target, held: Held::of(kernel.accumulate) };
    form.held.check(target)?;
    let mut scratch = Scratch::default();
    if schedule.splits > 1 {
        scratch.add(form.held, form.points() * schedule.splits as usize);
    }
    let products = match &schedule.spread {
        MatMulSpread::Tiles { tile } => form.tiles(*tile)?,
        MatMulSpread::Thin { long, points, lanes } => form.thin(*long, *points, *lanes)?,
    };
    let mut dispatches = vec![products];
    if schedule.splits > 1 {
        dispatches.push(form.total()?);
    }
    Ok(GpuProgram { dispatches, scratch: scratch.bytes })
}

struct MatMul<'a> {
    kernel: &'a MatMulKernel,
    schedule: &'a MatMulSchedule,
    entry: &'a str,
    target: &'a GpuTarget,
    /// How sums are held.
    held: Held,
}

impl MatMul<'_> {
    fn matrices(&self) -> usize {
        self.kernel.batch.iter().product()
    }

    /// Elements of the result.
    fn points(&self) -> usize {
        self.matrices() * self.kernel.m * self.kernel.n
    }

    fn extents(&self, rows: usize, columns: usize) -> Vec<usize> {
        [&self.kernel.batch[..], &[rows, columns]].concat()
    }

    /// What fetches an operand, in steps of the tile's extents.
    fn fetch<'b>(&'b self, side: Operand, extents: &'b [usize], steps: [u32; 2]) -> Fetch<'b> {
        let (name, operand, fill, kept) = match side {
            Operand::Lhs => ("lhs", &self.kernel.lhs, self.schedule.lhs, 0),
            Operand::Rhs => ("rhs", &self.kernel.rhs, self.schedule.rhs, 1),
        };
        let (rows, columns) = (extents[extents.len() - 2], extents[extents.len() - 1]);
        let guard = |extent: usize, step: u32| extent == 0 || !extent.is_multiple_of(step as usize);
        Fetch {
            name,
            operand,
            dtype: self.kernel.dtype,
            held: self.held,
            extents,
            axis: axis_of(fill, kept),
            width: fill.width,
            guards: Guards { rows: guard(rows, steps[0]), columns: guard(columns, steps[1]) },
        }
    }

    fn tiles(&self, tile: Tile) -> Result<Dispatch, Diagnostic> {
        let kernel = self.kernel;
        let workgroup = tile.invocations();
        let product = Product::new(workgroup, Sum(self.held), tile, [self.schedule.lhs, self.schedule.rhs]);
        let [rows, columns] = tile.extents;
        let (lhs_extents, rhs_extents) = (self.extents(kernel.m, kernel.k), self.extents(kernel.k, kernel.n));
        let lhs = self.fetch(Operand::Lhs, &lhs_extents, [rows, tile.depth]);
        let rhs = self.fetch(Operand::Rhs, &rhs_extents, [tile.depth, columns]);
        let mut module = Module::new(&kernel.buffers, self.target)?;
        let finish = self.finish();
        let mut blocks = vec![(&kernel.lhs.block, lhs.lanes()), (&kernel.rhs.block, rhs.lanes())];
        if self.schedule.splits == 1 {
            blocks.push((&finish.block, self.epilogue_lanes()));
        }
        module.plan_vectors(&blocks);
        lhs.print(&mut module)?;
        rhs.print(&mut module)?;
        for side in [&product.lhs, &product.rhs] {
            module
                .workgroup(format!("{}_tile", side.name), format!("array<{}, {}>", self.held.wide(4), side.vectors()));
        }
        let mut w = Writer::body();
        let tiles = [kernel.m.div_ceil(rows as usize), kernel.n.div_ceil(columns as usize)];
        let batch = self.whereabouts(&mut w, tiles);
        w.line(format!("let first_row = {};", times("tile_row", rows)));
        w.line(format!("let first_column = {};", times("tile_column", columns)));
        product.ids(&mut w);
        product.declare(&mut w);
        let [first, last] = self.part(&mut w);
        let fetch = |w: &mut Writer, declared: Declared, at: &str| {
            product.fetch(w, &product.lhs, declared, &|kept, summed| {
                call("lhs", &batch, &format!("first_row + {kept}"), &added(at, summed))
            });
            product.fetch(w, &product.rhs, declared, &|kept, summed| {
                call("rhs", &batch, &added(at, summed), &format!("first_column + {kept}"))
            });
        };
        fetch(&mut w, Declared::Here, &first);
        w.open(format!("for (var at = {first}; at < {last}; at += {})", tile.depth));
        product.put(&mut w, &product.lhs);
        product.put(&mut w, &product.rhs);
        w.line("workgroupBarrier();");
        w.open(format!("if at + {} < {last}", tile.depth));
        fetch(&mut w, Declared::Before, &format!("at + {}", tile.depth));
        w.close();
        product.multiply(&mut w, Left::Pieces);
        w.line("workgroupBarrier();");
        w.close();
        let width = if self.schedule.splits > 1 { 1 } else { self.schedule.width };
        product.each(&mut w, width, |w| {
            let row_beyond = !kernel.m.is_multiple_of(rows as usize);
            let column_beyond = !kernel.n.is_multiple_of(columns as usize);
            w.line("let at_row = first_row + row;");
            w.line("let at_column = first_column + column;");
            let tests = [
                row_beyond.then(|| format!("at_row < {}", kernel.m)),
                column_beyond.then(|| format!("at_column < {}", kernel.n)),
            ];
            let tests: Vec<String> = tests.into_iter().flatten().collect();
            if !tests.is_empty() {
                w.open(format!("if {}", tests.join(" && ")));
            }
            self.result(&mut module, w, &finish, &batch, ["at_row", "at_column"], width)?;
            if !tests.is_empty() {
                w.close();
            }
            Ok(())
        })?;
        let groups = (self.matrices() * tiles[0] * tiles[1]) as u64 * u64::from(self.schedule.splits);
        module.dispatch(self.entry, workgroup, groups, Subgroups::Unused, &w)
    }

    /// Which tile, matrix and part a workgroup has; the matrix's coordinates.
    fn whereabouts(&self, w: &mut Writer, [rows, columns]: [usize; 2]) -> Vec<String> {
        let matrices = self.matrices();
        let mut radices = vec![(rows, "tile_row"), (columns, "tile_column")];
        if self.schedule.splits > 1 {
            radices.insert(0, (self.schedule.splits as usize, "split"));
        }
        radices.insert(radices.len() - 2, (matrices, "matrix"));
        digits(w, "group", &radices);
        coordinates(w, "matrix", &self.kernel.batch)
    }

    /// Where this workgroup's part of the summed extent begins and ends.
    fn part(&self, w: &mut Writer) -> [String; 2] {
        let (k, part) = (self.kernel.k, self.schedule.part);
        if self.schedule.splits == 1 {
            return ["0".to_owned(), k.to_string()];
        }
        w.line(format!("let begin = split * {part};"));
        w.line(format!("let end = min(begin + {part}, {k});"));
        ["begin".to_owned(), "end".to_owned()]
    }

    /// The epilogue, after the sum has been rounded.
    fn finish(&self) -> Finish {
        rounded(&self.kernel.epilogue, self.kernel.product, self.kernel.product_dtype())
    }

    fn epilogue_lanes(&self) -> Option<Lanes> {
        let axis = self.kernel.batch.len() + 1;
        (self.schedule.width == 4).then_some(Lanes { axis, width: 4 })
    }

    /// What becomes of a sum called `product` at a place of the result: through the epilogue, or into scratch memory where it is a part.
    fn result(
        &self,
        module: &mut Module<'_>,
        w: &mut Writer,
        finish: &Finish,
        batch: &[String],
        [row, column]: [&str; 2],
        width: u32,
    ) -> Result<(), Diagnostic> {
        let (m, n) = (self.kernel.m, self.kernel.n);
        if self.schedule.splits > 1 {
            let parts = module.scratch(0, self.held.in_scratch(), true);
            let matrix = format!("split * {} + matrix", self.matrices());
            w.line(format!("{parts}[(({matrix}) * {m} + {row}) * {n} + {column}] = product;"));
            return Ok(());
        }
        let axes = [batch, &[row.to_owned(), column.to_owned()]].concat();
        let point = Point::new(axes, self.extents(m, n)).with_lanes(batch.len() + 1, width);
        finish.print(module, w, "product", self.held, &point)
    }

    fn thin(&self, long: MatrixAxis, points: u32, lanes: u32) -> Result<Dispatch, Diagnostic> {
        let kernel = self.kernel;
        let (extent, short) = match long {
            MatrixAxis::Rows => (kernel.m, kernel.n),
            MatrixAxis::Columns => (kernel.n, kernel.m),
        };
        let number = Sum(self.held);
        let workgroup = points * lanes;
        // Steps along the shorter axis are single, so that it is never left.
        let (lhs_steps, rhs_steps) = match long {
            MatrixAxis::Rows => ([points, 4], [4, 1]),
            MatrixAxis::Columns => ([1, 4], [4, points]),
        };
        let (lhs_extents, rhs_extents) = (self.extents(kernel.m, kernel.k), self.extents(kernel.k, kernel.n));
        let summed = Fill { along: Along::Summed, width: self.schedule.lhs.width };
        let lhs = Fetch { axis: axis_of(summed, 0), ..self.fetch(Operand::Lhs, &lhs_extents, lhs_steps) };
        let rhs = Fetch { axis: axis_of(summed, 1), ..self.fetch(Operand::Rhs, &rhs_extents, rhs_steps) };
        let mut module = Module::new(&kernel.buffers, self.target)?;
        let finish = self.finish();
        let mut blocks = vec![(&kernel.lhs.block, lhs.lanes()), (&kernel.rhs.block, rhs.lanes())];
        if self.schedule.splits == 1 {
            blocks.push((&finish.block, None));
        }
        module.plan_vectors(&blocks);
        lhs.print(&mut module)?;
        rhs.print(&mut module)?;
        let all = points * short as u32;
        module.workgroup("sums", format!("array<{}, {}>", self.held.name(), all * lanes));
        let mut w = Writer::body();
        let strips = extent.div_ceil(points as usize);
        let mut radices = vec![(self.matrices(), "matrix"), (strips, "strip")];
        if self.schedule.splits > 1 {
            radices.insert(0, (self.schedule.splits as usize, "split"));
        }
        digits(&mut w, "group", &radices);
        let batch = coordinates(&mut w, "matrix", &kernel.batch);
        let along = match long {
            MatrixAxis::Rows => self.schedule.lhs.along,
            MatrixAxis::Columns => self.schedule.rhs.along,
        };
        let (point, lane) = match along {
            Along::Kept => (remainder("local", points), quotient("local", points)),
            Along::Summed => (quotient("local", lanes), remainder("local", lanes)),
        };
        w.line(format!("let point = {point};"));
        w.line(format!("let lane = {lane};"));
        w.line(format!("let first = {};", times("strip", points)));
        w.line("let long = first + point;");
        for other in 0..short {
            w.line(format!("var sum_{other} = {}();", self.held.name()));
        }
        let [begin, end] = self.part(&mut w);
        w.open(format!("for (var at = {begin} + lane * 4; at < {end}; at += {})", 4 * lanes));
        let both = |other: usize| match long {
            MatrixAxis::Rows => (call("lhs", &batch, "long", "at"), call("rhs", &batch, "at", &other.to_string())),
            MatrixAxis::Columns => (call("rhs", &batch, "at", "long"), call("lhs", &batch, &other.to_string(), "at")),
        };
        w.line(format!("let a = {};", both(0).0));
        for other in 0..short {
            w.line(format!("let b_{other} = {};", both(other).1));
        }
        for part in PARTS {
            for other in 0..short {
                let sum = format!("sum_{other}");
                let more = number.add(&sum, &format!("a.{part}"), &format!("b_{other}.{part}"));
                w.line(format!("{sum} = {more};"));
            }
        }
        w.close();
        for other in 0..short {
            w.line(format!("sums[(lane * {short} + {other}) * {points} + point] = sum_{other};"));
        }
        w.line("workgroupBarrier();");
        w.open(format!("for (var own = local; own < {all}; own += {workgroup})"));
        w.line("var product = sums[own];");
        if lanes > 1 {
            w.open(format!("for (var lane = 1; lane < {lanes}; lane++)"));
            w.line(format!("product += sums[lane * {all} + own];"));
            w.close();
        }
        w.line(format!("let at_long = first + {};", remainder("own", points)));
        w.line(format!("let at_short = {};", quotient("own", points)));
        let guarded = !extent.is_multiple_of(points as usize);
        if guarded {
            w.open(format!("if at_long < {extent}"));
        }
        let place = match long {
            MatrixAxis::Rows => ["at_long", "at_short"],
            MatrixAxis::Columns => ["at_short", "at_long"],
        };
        self.result(&mut module, &mut w, &finish, &batch, place, 1)?;
        if guarded {
            w.close();
        }
        w.close();
        let groups = (self.matrices() * strips) as u64 * u64::from(self.schedule.splits);
        module.dispatch(self.entry, workgroup, groups, Subgroups::Unused, &w)
    }

    /// Adds up parts in order, and goes through the epilogue.
    fn total(&self) -> Result<Dispatch, Diagnostic> {
        let kernel = self.kernel;
        let width = self.schedule.width;
        let mut module = Module::new(&kernel.buffers, self.target)?;
        let finish = self.finish();
        module.plan_vectors(&[(&finish.block, self.epilogue_lanes())]);
        let element = if width == 4 { self.held.wide(4) } else { self.held.in_scratch().to_owned() };
        let parts = module.scratch(0, &element, false);
        let count = self.points() / width as usize;
        let groups = count.div_ceil(WORKGROUP as usize);
        let mut w = Writer::body();
        w.line(format!("let number = group * {WORKGROUP} + local;"));
        if !count.is_multiple_of(WORKGROUP as usize) {
            w.line(format!("if number >= {count} {{ return; }}"));
        }
        let columns = kernel.n / width as usize;
        digits(&mut w, "number", &[(self.matrices(), "matrix"), (kernel.m, "row"), (columns, "columns")]);
        w.line(format!("let column = {};", times("columns", width)));
        let batch = coordinates(&mut w, "matrix", &kernel.batch);
        w.line(format!("var product = {parts}[number];"));
        w.open(format!("for (var split = 1; split < {}; split++)", self.schedule.splits));
        w.line(format!("product += {parts}[split * {count} + number];"));
        w.close();
        let axes = [&batch[..], &["row".to_owned(), "column".to_owned()]].concat();
        let point = Point::new(axes, self.extents(kernel.m, kernel.n)).with_lanes(batch.len() + 1, width);
        finish.print(&mut module, &mut w, "product", self.held, &point)?;
        module.dispatch(&format!("{}_total", self.entry), WORKGROUP, groups as u64, Subgroups::Unused, &w)
    }
}

/// One of the two operands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operand {
    Lhs,
    Rhs,
}

/// A block that takes a sum which is not rounded yet.
#[derive(Clone, Debug)]
pub(super) struct Finish {
    /// The block, which rounds first.
    pub(super) block: Block,
    /// The register of the sum.
    raw: kiln_ir::kernel::Reg,
}

/// An epilogue that reads `product`, a number of a dtype, as one that takes the sum.
pub(super) fn rounded(epilogue: &Block, product: kiln_ir::kernel::Reg, dtype: kiln_ir::DType) -> Finish {
    let raw = kiln_ir::kernel::Reg(fresh(&[epilogue], 0).0.max(product.0 + 1));
    let mut block = epilogue.clone();
    block.instructions.insert(0, Instruction { result: product, dtype, operation: Operation::Cast(raw) });
    Finish { block, raw }
}

impl Finish {
    /// The block at a point, where `sum` is the sum.
    pub(super) fn print(
        &self,
        module: &mut Module<'_>,
        w: &mut Writer,
        sum: &str,
        held: Held,
        point: &Point,
    ) -> Result<(), Diagnostic> {
        let ranges = Ranges::of([(&self.block, &point.extents[..], &[][..])].into_iter(), &[]);
        let mut scope = Scope::new(ranges);
        scope.define(self.raw, Value::new(sum, held, point.width()).of(dtype_of(held)));
        block(module, &mut scope, w, &self.block, point)?;
        stores(module, &scope, w, &self.block, point)
    }
}

/// A call of a function that fetches from a matrix.
pub(super) fn call(name: &str, batch: &[String], row: &str, column: &str) -> String {
    let arguments: Vec<&str> = batch.iter().map(String::as_str).chain([row, column]).collect();
    format!("{name}({})", arguments.join(", "))
}

/// `a + b`, where 0 is nothing.
pub(super) fn added(a: &str, b: &str) -> String {
    match (a, b) {
        ("0", _) => b.to_owned(),
        (_, "0") => a.to_owned(),
        _ => format!("{a} + {b}"),
    }
}

/// Takes a number apart into digits, the most significant first; those of a radix of 1 are 0.
pub(super) fn digits(w: &mut Writer, number: &str, radices: &[(usize, &str)]) {
    let mut below = 1;
    let mut scales = Vec::new();
    for &(radix, _) in radices.iter().rev() {
        scales.push(below);
        below *= radix.max(1);
    }
    for (index, (&(radix, name), scale)) in radices.iter().zip(scales.into_iter().rev()).enumerate() {
        let digit = match (radix, index) {
            (0 | 1, _) => "0".to_owned(),
            (_, 0) => quotient(number, scale as u32),
            _ => remainder(&quotient(number, scale as u32), radix as u32),
        };
        w.line(format!("let {name} = {digit};"));
    }
}

/// The coordinates of a point by its row-major number: names, or 0 along axes of extent 1.
pub(super) fn coordinates(w: &mut Writer, number: &str, extents: &[usize]) -> Vec<String> {
    let names: Vec<String> = (0..extents.len()).map(|axis| format!("p{axis}")).collect();
    let radices: Vec<(usize, &str)> = extents.iter().copied().zip(names.iter().map(String::as_str)).collect();
    digits(w, number, &radices);
    names
}
