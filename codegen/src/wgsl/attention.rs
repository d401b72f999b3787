//! Attention: block by block of scores, in workgroup memory.
//!
//! Every dispatch is the same walk. A workgroup has a block of rows and walks the keys, or a block of keys and walks the rows. For each block of
//! scores it
//!
//! 1. multiplies queries with keys (and, on the way back, gradients of the product with values), into workgroup memory;
//! 2. goes through the block point by point, each invocation along a row: from the score to what is wanted (`attention_points.rs`);
//! 3. multiplies what came out with values, keys, queries or gradients, and adds that to its sums in registers.
//!
//! What a dispatch is for says [`Task`]. Forward there are two: rows' maxima and sums, then the product. Backward, the sums of weights times their
//! gradients come first, then one dispatch for each gradient. Maxima and sums go from one to the next in scratch memory, one after the other:
//! maxima, sums, and (backward) sums of products.

use kiln_ir::gpu::{Along, AttentionSchedule, Dispatch, Fill, Fills, GpuProgram, GpuTarget, Tile};
use kiln_ir::kernel::{
    AttentionGradient, AttentionKernel, AttentionPass, AttentionResult, AttentionSpace, Block, MatrixOperand,
    SoftmaxGradient,
};
use kiln_ir::{DType, Diagnostic};

use super::matmul::{Finish, added, call, coordinates, digits, rounded};
use super::module::{Module, Scratch, Subgroups};
use super::operand::{Fetch, Guards, axis_of};
use super::points::Points;
use super::product::{Declared, Left, PARTS, Product, Sum, times};
use super::space::{Lanes, Point};
use super::types::Held;
use super::writer::Writer;

/// The texts of an attention kernel.
pub(super) fn program(
    kernel: &AttentionKernel,
    schedule: &AttentionSchedule,
    entry: &str,
    target: &GpuTarget,
) -> Result<GpuProgram, Diagnostic> {
    let mut tasks = Vec::new();
    match &kernel.pass {
        AttentionPass::Forward(result) => tasks.extend([Task::Statistics, Task::Product(result)]),
        AttentionPass::Backward(backward) => {
            if let Some(through) = &backward.through {
                tasks.push(Task::RowSums(backward, through));
                tasks.extend(through.query.iter().map(|result| Task::Query(backward, through, result)));
                tasks.extend(through.key.iter().map(|result| Task::Key(backward, through, result)));
            }
            tasks.extend(backward.value.iter().map(|result| Task::Value(backward, result)));
        }
    }
    let rows = kernel.batch.iter().product::<usize>() * kernel.queries;
    let (from, kept) = match &kernel.pass {
        AttentionPass::Forward(_) => (Statistics::Scratch, 2),
        AttentionPass::Backward(backward) if backward.through.is_some() => (Statistics::Scratch, 3),
        AttentionPass::Backward(_) => (Statistics::Rows, 0),
    };
    let mut scratch = Scratch::default();
    if kept > 0 {
        scratch.add(Held::of(kernel.softmax), kept * rows);
    }
    let dispatches = tasks.into_iter().map(|task| {
        let text = Text { kernel, schedule, target, task, rows, from };
        text.dispatch(entry)
    });
    Ok(GpuProgram { dispatches: dispatches.collect::<Result<_, _>>()?, scratch: scratch.bytes })
}

/// What a dispatch is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Task<'a> {
    /// Maximum and sum of each row.
    Statistics,
    /// The product of factors and values.
    Product(&'a AttentionResult),
    /// The sum of each row's weights times their gradients.
    RowSums(&'a AttentionGradient, &'a SoftmaxGradient),
    /// The gradient of queries.
    Query(&'a AttentionGradient, &'a SoftmaxGradient, &'a AttentionResult),
    /// The gradient of keys.
    Key(&'a AttentionGradient, &'a SoftmaxGradient, &'a AttentionResult),
    /// The gradient of values.
    Value(&'a AttentionGradient, &'a AttentionResult),
}

/// Where a dispatch has rows' maxima and sums from, if it does not make them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Statistics {
    /// Scratch memory.
    Scratch,
    /// The kernel's row block.
    Rows,
}

/// What a workgroup has of its own, and does not walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Own {
    Rows,
    Keys,
}

/// A matrix that is fetched, in one of the two ways.
struct Source<'a> {
    name: &'static str,
    operand: &'a MatrixOperand,
    space: AttentionSpace,
    dtype: DType,
    fill: Fill,
    /// The axis that the product keeps: 0 for rows.
    kept: usize,
}

/// The product that a dispatch ends in.
struct Ending<'a> {
    product: Product,
    source: Source<'a>,
    finish: Finish,
    dtype: DType,
    /// Over which its epilogue is evaluated.
    space: AttentionSpace,
    /// Neighbouring columns of the epilogue.
    width: u32,
}

pub(super) struct Text<'a> {
    pub(super) kernel: &'a AttentionKernel,
    schedule: &'a AttentionSchedule,
    target: &'a GpuTarget,
    pub(super) task: Task<'a>,
    /// Rows of all matrices.
    rows: usize,
    from: Statistics,
}

impl<'a> Text<'a> {
    fn own(&self) -> Own {
        match self.task {
            Task::Statistics | Task::Product(_) | Task::RowSums(..) | Task::Query(..) => Own::Rows,
            Task::Key(..) | Task::Value(..) => Own::Keys,
        }
    }

    /// The gradients of factors, where they are made.
    fn gradient(&self) -> Option<&'a AttentionGradient> {
        match self.task {
            Task::RowSums(gradient, _) | Task::Query(gradient, ..) | Task::Key(gradient, ..) => Some(gradient),
            Task::Statistics | Task::Product(_) | Task::Value(..) => None,
        }
    }

    fn workgroup(&self) -> u32 {
        self.schedule.scores.invocations()
    }

    /// Rows, or keys, of a block.
    pub(super) fn block(&self) -> u32 {
        self.schedule.scores.extents[0]
    }

    /// Elements from one row of a block in workgroup memory to the next: odd, for the banks.
    pub(super) fn pitch(&self) -> u32 {
        self.block() + 1
    }

    /// How blocks of scores, and of what is made of them, are held in workgroup memory.
    pub(super) fn held(&self) -> Held {
        let kernel = self.kernel;
        let wide = [kernel.dtype, kernel.softmax, kernel.values].contains(&DType::F64);
        if wide { Held::F64 } else { Held::F32 }
    }

    /// Invocations that share a row of a block.
    pub(super) fn sharers(&self) -> u32 {
        self.workgroup() / self.block()
    }

    fn source(&self, which: Which) -> Source<'a> {
        let (kernel, schedule) = (self.kernel, self.schedule);
        let of = |fills: &Fills, kept: usize| if kept == 0 { fills.rows } else { fills.columns };
        let (name, operand, space, dtype, fills, kept) = match which {
            Which::QueryRows => ("query_row", &kernel.query, AttentionSpace::Query, kernel.dtype, &schedule.query, 0),
            Which::QueryColumns => {
                ("query_column", &kernel.query, AttentionSpace::Query, kernel.dtype, &schedule.query, 1)
            }
            Which::KeyRows => ("key_row", &kernel.key, AttentionSpace::Key, kernel.dtype, &schedule.key, 0),
            Which::KeyColumns => ("key_column", &kernel.key, AttentionSpace::Key, kernel.dtype, &schedule.key, 1),
            Which::ValueRows => ("value_row", &kernel.value, AttentionSpace::Value, kernel.values, &schedule.value, 0),
            Which::ValueColumns => {
                ("value_column", &kernel.value, AttentionSpace::Value, kernel.values, &schedule.value, 1)
            }
        };
        Source { name, operand, space, dtype, fill: of(fills, kept), kept }
    }

    fn gradient_source(&self, gradient: &'a AttentionGradient, kept: usize) -> Source<'a> {
        let (name, fill) = match kept {
            0 => ("gradient_row", self.schedule.gradient.rows),
            _ => ("gradient_column", self.schedule.gradient.columns),
        };
        let (operand, space, dtype) = (&gradient.gradient, AttentionSpace::Output, self.kernel.values);
        Source { name, operand, space, dtype, fill, kept }
    }

    /// The product that the dispatch ends in, if it does not end in numbers of rows.
    fn ending(&self) -> Option<Ending<'a>> {
        let (source, tile, result, space) = match self.task {
            Task::Statistics | Task::RowSums(..) => return None,
            Task::Product(result) => {
                (self.source(Which::ValueColumns), self.schedule.values, result, AttentionSpace::Output)
            }
            Task::Query(_, _, result) => {
                (self.source(Which::KeyColumns), self.schedule.depths, result, AttentionSpace::Query)
            }
            Task::Key(_, _, result) => {
                (self.source(Which::QueryColumns), self.schedule.depths, result, AttentionSpace::Key)
            }
            Task::Value(gradient, result) => {
                (self.gradient_source(gradient, 1), self.schedule.values, result, AttentionSpace::Value)
            }
        };
        let left = Fill { along: Along::Summed, width: 1 };
        let mut product = self.product(source.dtype, tile, [left, source.fill]);
        product.sums = "made";
        (product.lhs.id, product.rhs.id) = ("below", "beside");
        let dtype = source.dtype;
        let finish = rounded(&result.epilogue, result.product, dtype);
        let width = if source.fill.along == Along::Kept { source.fill.width } else { 1 };
        Some(Ending { product, source, finish, dtype, space, width })
    }

    /// A product of blocks in a dtype; pieces of 64-bit numbers have memory of their own.
    fn product(&self, dtype: DType, tile: Tile, fills: [Fill; 2]) -> Product {
        let held = Held::of(dtype.accumulator());
        let mut product = Product::new(self.workgroup(), Sum(held), tile, fills);
        if held == Held::F64 {
            (product.lhs.name, product.rhs.name) = ("wide_lhs", "wide_rhs");
        }
        product
    }

    fn fetch<'b>(&self, source: &Source<'b>, extents: &'b [usize], steps: [u32; 2]) -> Fetch<'b> {
        let (rows, columns) = (extents[extents.len() - 2], extents[extents.len() - 1]);
        let guard = |extent: usize, step: u32| extent == 0 || !extent.is_multiple_of(step as usize);
        Fetch {
            name: source.name,
            operand: source.operand,
            dtype: source.dtype,
            held: Held::of(source.dtype.accumulator()),
            extents,
            axis: axis_of(source.fill, source.kept),
            width: source.fill.width,
            guards: Guards { rows: guard(rows, steps[0]), columns: guard(columns, steps[1]) },
        }
    }

    fn dispatch(&self, entry: &str) -> Result<Dispatch, Diagnostic> {
        let kernel = self.kernel;
        let (block, tile) = (self.block(), self.schedule.scores);
        // Both sides of a product of blocks of scores: what is multiplied, and where it goes.
        let mut scores = vec![("scores", self.source(Which::QueryRows), self.source(Which::KeyRows))];
        if let Some(gradient) = self.gradient() {
            scores.push(("products", self.gradient_source(gradient, 0), self.source(Which::ValueRows)));
        }
        let ending = self.ending();
        let points = Points::of(self);
        let mut module = Module::new(&kernel.buffers, self.target)?;

        let spaces: Vec<[Vec<usize>; 2]> =
            scores.iter().map(|(_, left, right)| [kernel.extents(left.space), kernel.extents(right.space)]).collect();
        let ending_extents = ending.as_ref().map(|ending| kernel.extents(ending.source.space));
        let mut fetches = Vec::new();
        for ((_, left, right), [lefts, rights]) in scores.iter().zip(&spaces) {
            fetches.push(self.fetch(left, lefts, [block, tile.depth]));
            fetches.push(self.fetch(right, rights, [block, tile.depth]));
        }
        if let (Some(ending), Some(extents)) = (&ending, &ending_extents) {
            let [_, columns] = [block, ending.product.rhs.extent];
            fetches.push(self.fetch(&ending.source, extents, [block, columns]));
        }
        let mut blocks: Vec<(&Block, Option<Lanes>)> =
            fetches.iter().map(|fetch| (&fetch.operand.block, fetch.lanes())).collect();
        blocks.extend(points.blocks().into_iter().map(|block| (block, None)));
        if let Some(ending) = &ending {
            let axis = kernel.batch.len() + 1;
            blocks.push((&ending.finish.block, (ending.width == 4).then_some(Lanes { axis, width: 4 })));
        }
        module.plan_vectors(&blocks);
        for fetch in &fetches {
            fetch.print(&mut module)?;
        }

        let mut w = Writer::body();
        let columns = ending.as_ref().map_or(1, |ending| {
            let extents = kernel.extents(ending.space);
            extents[extents.len() - 1].div_ceil(ending.product.rhs.extent as usize)
        });
        let (own, walked) = match self.own() {
            Own::Rows => (kernel.queries, kernel.keys),
            Own::Keys => (kernel.keys, kernel.queries),
        };
        let own_blocks = own.div_ceil(block as usize);
        let matrices: usize = kernel.batch.iter().product();
        digits(&mut w, "group", &[(matrices, "matrix"), (own_blocks, "block"), (columns, "strip")]);
        let batch = coordinates(&mut w, "matrix", &kernel.batch);
        let (first_own, first_walked) = match self.own() {
            Own::Rows => ("first_row", "first_key"),
            Own::Keys => ("first_key", "first_row"),
        };
        w.line(format!("let {first_own} = {};", times("block", block)));
        let products: Vec<Product> =
            scores.iter().map(|(_, left, right)| self.product(left.dtype, tile, [left.fill, right.fill])).collect();
        products[0].ids(&mut w);
        if let Some(ending) = &ending {
            w.line(format!("let first_column = {};", times("strip", ending.product.rhs.extent)));
            ending.product.ids(&mut w);
            ending.product.declare(&mut w);
        }
        points.begin(self, &mut module, &mut w)?;
        if self.own() == Own::Rows {
            self.statistics(&mut module, &mut w, &points, &batch)?;
        }
        w.open(format!("for (var {first_walked} = 0; {first_walked} < {walked}; {first_walked} += {block})"));
        if self.own() == Own::Keys {
            self.statistics(&mut module, &mut w, &points, &batch)?;
        }
        for ((name, left, right), product) in scores.iter().zip(&products) {
            let summed = kernel.extents(left.space).last().copied().unwrap_or(0);
            w.open("");
            self.multiply(&mut w, product, [left.name, right.name], summed, &batch);
            self.keep(&mut module, &mut w, product, name);
            w.close();
        }
        w.line("workgroupBarrier();");
        points.each(self, &mut module, &mut w, &batch)?;
        w.line("workgroupBarrier();");
        if let Some(ending) = &ending {
            self.accumulate(&mut w, ending, first_walked, &batch);
        }
        w.close();
        for product in products.iter().chain(ending.as_ref().map(|ending| &ending.product)) {
            self.pieces(&mut module, product);
        }
        match &ending {
            Some(ending) => self.end(&mut module, &mut w, ending, [first_own, &own.to_string()], &batch)?,
            None => points.end(self, &mut module, &mut w, &batch)?,
        }
        let groups = (matrices * own_blocks * columns) as u64;
        module.dispatch(entry, self.workgroup(), groups, Subgroups::Unused, &w)
    }

    /// Workgroup memory for a product's pieces: as much as the largest needs.
    fn pieces(&self, module: &mut Module<'_>, product: &Product) {
        let schedule = self.schedule;
        let tiles = [schedule.scores, schedule.values, schedule.depths];
        let most = tiles.iter().flat_map(|tile| tile.extents.map(|extent| extent * ((tile.depth / 4) | 1))).max();
        let four = product.number.0.wide(4);
        let (block, depth) = (schedule.scores.extents[0], schedule.scores.depth);
        module.workgroup(format!("{}_tile", product.lhs.name), format!("array<{four}, {}>", block * ((depth / 4) | 1)));
        module.workgroup(format!("{}_tile", product.rhs.name), format!("array<{four}, {}>", most.unwrap_or(1)));
    }

    /// Rows' maxima and sums, and sums of products, in workgroup memory.
    fn statistics(
        &self,
        module: &mut Module<'_>,
        w: &mut Writer,
        points: &Points,
        batch: &[String],
    ) -> Result<(), Diagnostic> {
        let kept: &[&str] = match self.task {
            Task::Statistics => return Ok(()),
            Task::Product(_) | Task::Value(..) | Task::RowSums(..) => &["maxima", "totals"],
            Task::Query(..) | Task::Key(..) => &["maxima", "totals", "deltas"],
        };
        let block = self.block();
        let held = Held::of(self.kernel.softmax);
        for name in kept {
            module.workgroup(*name, format!("array<{}, {block}>", held.name()));
        }
        w.open(format!("if local < {block} && first_row + local < {}", self.kernel.queries));
        w.line("let row = first_row + local;");
        let from = match self.task {
            Task::RowSums(..) => Statistics::Rows,
            Task::Statistics | Task::Product(_) | Task::Query(..) | Task::Key(..) | Task::Value(..) => self.from,
        };
        match from {
            Statistics::Scratch => {
                let scratch = module.scratch(0, held.in_scratch(), false);
                w.line(format!("let at = matrix * {} + row;", self.kernel.queries));
                for (number, name) in kept.iter().enumerate() {
                    let at = added("at", &(number * self.rows).to_string());
                    w.line(format!("{name}[local] = {scratch}[{at}];"));
                }
            }
            Statistics::Rows => points.rows(self, module, w, batch)?,
        }
        w.close();
        // The walk's own barriers come before anybody reads them.
        Ok(())
    }

    /// Multiplies rows with rows, over what both have of columns.
    fn multiply(&self, w: &mut Writer, product: &Product, [left, right]: [&str; 2], summed: usize, batch: &[String]) {
        product.declare(w);
        let depth = self.schedule.scores.depth;
        w.open(format!("for (var at = 0; at < {summed}; at += {depth})"));
        product.fetch(w, &product.lhs, Declared::Here, &|kept, summed| {
            call(left, batch, &format!("first_row + {kept}"), &added("at", summed))
        });
        product.fetch(w, &product.rhs, Declared::Here, &|kept, summed| {
            call(right, batch, &format!("first_key + {kept}"), &added("at", summed))
        });
        product.put(w, &product.lhs);
        product.put(w, &product.rhs);
        w.line("workgroupBarrier();");
        product.multiply(w, Left::Pieces);
        w.line("workgroupBarrier();");
        w.close();
    }

    /// Puts sums into a block in workgroup memory.
    fn keep(&self, module: &mut Module<'_>, w: &mut Writer, product: &Product, name: &str) {
        let (block, pitch, held) = (self.block(), self.pitch(), self.held());
        module.workgroup(name, format!("array<{}, {}>", held.name(), block * pitch));
        for row in 0..product.lhs.count {
            w.line(format!("let line_{row} = {};", times(&format!("({})", product.lhs.position(row)), pitch)));
        }
        for column in 0..product.rhs.count {
            w.line(format!("let place_{column} = {};", product.rhs.position(column)));
        }
        for (number, sum) in product.sums().iter().enumerate() {
            let fours = product.rhs.count as usize / 4;
            let (row, four) = (number / fours, number % fours);
            for (part, component) in PARTS.iter().enumerate() {
                let value = self.as_kept(&format!("{sum}.{component}"), product.number.0);
                w.line(format!("{name}[line_{row} + place_{}] = {value};", four * 4 + part));
            }
        }
    }

    /// A number as blocks in workgroup memory have it.
    pub(super) fn as_kept(&self, text: &str, held: Held) -> String {
        if held == self.held() { text.to_owned() } else { format!("{}({text})", self.held().name()) }
    }

    /// Adds what a block makes to the sums that the dispatch ends in.
    fn accumulate(&self, w: &mut Writer, ending: &Ending<'_>, first_walked: &str, batch: &[String]) {
        let product = &ending.product;
        let (kept, summed) = match self.own() {
            Own::Rows => (self.pitch(), 1),
            Own::Keys => (1, self.pitch()),
        };
        w.open(format!("for (var at = 0; at < {}; at += {})", self.block(), product.rhs.depth));
        product.fetch(w, &product.rhs, Declared::Here, &|kept, summed| {
            let row = format!("{first_walked} + {}", added("at", summed));
            call(ending.source.name, batch, &row, &format!("first_column + {kept}"))
        });
        product.put(w, &product.rhs);
        w.line("workgroupBarrier();");
        product.multiply(w, Left::Matrix { name: "scores", kept, summed, first: "at", held: self.held() });
        w.line("workgroupBarrier();");
        w.close();
    }

    /// What becomes of the sums.
    fn end(
        &self,
        module: &mut Module<'_>,
        w: &mut Writer,
        ending: &Ending<'_>,
        [first, rows]: [&str; 2],
        batch: &[String],
    ) -> Result<(), Diagnostic> {
        let extents = self.kernel.extents(ending.space);
        let columns = extents[extents.len() - 1];
        ending.product.each(w, ending.width, |w| {
            w.line(format!("let at_row = {first} + row;"));
            w.line("let at_column = first_column + column;");
            w.open(format!("if at_row < {rows} && at_column < {columns}"));
            let axes = [batch, &["at_row".to_owned(), "at_column".to_owned()]].concat();
            let point = Point::new(axes, &extents[..]).with_lanes(batch.len() + 1, ending.width);
            ending.finish.print(module, w, "product", Held::of(ending.dtype.accumulator()), &point)?;
            w.close();
            Ok(())
        })
    }

    /// The place of a row's number in scratch memory.
    pub(super) fn in_scratch(&self, number: usize) -> String {
        added(&format!("matrix * {} + row", self.kernel.queries), &(number * self.rows).to_string())
    }
}

/// An operand, and which of its axes a product keeps.
#[derive(Clone, Copy)]
enum Which {
    QueryRows,
    QueryColumns,
    KeyRows,
    KeyColumns,
    ValueRows,
    ValueColumns,
}
