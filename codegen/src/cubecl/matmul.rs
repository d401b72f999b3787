//! Matrix products that no library makes: of integers, of operands that are computed as they are loaded, with any epilogue.
//!
//! A block makes a tile of the result, step by step along the summed extent: a step's operands are in shared memory, as sums are taken; each
//! thread has a few rows and columns of sums in registers. A schedule's parts of a long sum are taken one after the other here.

use kiln_ir::Diagnostic;
use kiln_ir::cuda::{CudaProgram, CudaStep};
use kiln_ir::gpu::{Along, MatMulSchedule, MatMulSpread, Tile};
use kiln_ir::kernel::{MatMulKernel, MatrixOperand};

use super::block::{Scope, block, stores};
use super::builder::{Builder, Term, Ty, Variable};
use super::loops::{bind, blocks, width_for};
use super::memory::Bound;
use super::scalar;
use super::space::{Point, coordinates, sum};
use super::types::{Number, held, zero};

/// Where one side of the result is short: a tile for it.
const THIN: Tile = Tile { extents: [16, 16], registers: [1, 1], depth: 16 };

/// The text of a matrix product.
pub(super) fn program(
    kernel: &MatMulKernel,
    schedule: &MatMulSchedule,
    entry: &str,
) -> Result<CudaProgram, Diagnostic> {
    let tile = match schedule.spread {
        MatMulSpread::Tiles { tile } => tile,
        MatMulSpread::Thin { .. } => THIN,
    };
    let tiles = [kernel.m.div_ceil(tile.extents[0] as usize), kernel.n.div_ceil(tile.extents[1] as usize)];
    let batches: usize = kernel.batch.iter().product();
    let groups = tiles[0] * tiles[1] * batches;
    if groups == 0 {
        return Ok(CudaProgram { steps: Vec::new(), scratch: Vec::new() });
    }
    let extents = [&kernel.batch[..], &[kernel.m, kernel.n]].concat();
    let mut b = Builder::new(entry, tile.invocations(), width_for(&kernel.buffers, &extents));
    let bounds = bind(&mut b, &kernel.buffers);
    let thread = b.expression(Ty::Index, "threadIdx.x", &[]);
    let group = b.expression(Ty::Index, "blockIdx.x", &[]);
    let places = coordinates(&mut b, &group, &[batches, tiles[0], tiles[1]], 1);
    let batch = coordinates(&mut b, &places[0], &kernel.batch, 1);
    let first = [0, 1].map(|side| sum(&mut b, 0, &[(places[side + 1].clone(), i64::from(tile.extents[side]))]));
    let product = Product { kernel, bounds: &bounds, tile, thread, batch, first };
    product.text(&mut b, schedule)?;
    Ok(CudaProgram { steps: vec![CudaStep::Text(b.finish([blocks(groups as u64)?, 1, 1])?)], scratch: Vec::new() })
}

struct Product<'a> {
    kernel: &'a MatMulKernel,
    bounds: &'a [Bound],
    tile: Tile,
    thread: Term,
    batch: Vec<Term>,
    /// First row and column of the tile.
    first: [Term; 2],
}

impl Product<'_> {
    fn text(&self, b: &mut Builder, schedule: &MatMulSchedule) -> Result<(), Diagnostic> {
        let (kernel, tile) = (self.kernel, self.tile);
        let ty = held(kernel.accumulate);
        let depth = tile.depth;
        let memory = tile.extents.map(|extent| b.share(extent * depth * ty.size() as u32));
        let [rows, columns] = tile.registers;
        let across = tile.extents[1] / columns;
        let terms = std::slice::from_ref(&self.thread);
        let row = b.expression(Ty::Index, &format!("$0 / {across} * {rows}"), terms);
        let column = b.expression(Ty::Index, &format!("$0 % {across} * {columns}"), terms);
        let sums: Vec<Variable> = (0..rows * columns).map(|_| b.variable(ty, &zero(ty))).collect();
        let number = |value: usize| Term::constant(value.to_string());
        let step = b.open_loop(&number(0), &number(kernel.k), &number(depth as usize));
        self.fill(b, &kernel.lhs, memory[0], 0, &step, schedule.lhs.along)?;
        self.fill(b, &kernel.rhs, memory[1], 1, &step, schedule.rhs.along)?;
        b.barrier();
        let inner = b.open_loop(&number(0), &number(depth as usize), &number(1));
        let read = |b: &mut Builder, side: usize, own: &Term, count: u32| -> Vec<Term> {
            (0..count)
                .map(|place| {
                    let stride = i64::from(tile.extents[side]);
                    let at = sum(b, i64::from(place), &[(inner.clone(), stride), (own.clone(), 1)]);
                    b.shared_load(memory[side], ty, &at)
                })
                .collect()
        };
        let (left, right) = (read(b, 0, &row, rows), read(b, 1, &column, columns));
        for (place, variable) in sums.iter().enumerate() {
            let (x, y) = (&left[place / columns as usize], &right[place % columns as usize]);
            let before = b.get(*variable);
            let more = scalar::fma(b, &[x.clone(), y.clone(), before], kernel.accumulate);
            b.set(*variable, &more);
        }
        b.close();
        b.barrier();
        b.close();
        for (place, variable) in sums.iter().enumerate() {
            let (down, along) = (place as i64 / i64::from(columns), place as i64 % i64::from(columns));
            let at = [
                sum(b, down, &[(self.first[0].clone(), 1), (row.clone(), 1)]),
                sum(b, along, &[(self.first[1].clone(), 1), (column.clone(), 1)]),
            ];
            self.result(b, *variable, at)?;
        }
        Ok(())
    }

    /// Puts a step's elements of an operand into shared memory: what is summed over is the outer axis there.
    fn fill(
        &self,
        b: &mut Builder,
        operand: &MatrixOperand,
        memory: u32,
        side: usize,
        step: &Term,
        along: Along,
    ) -> Result<(), Diagnostic> {
        let (kernel, depth, extent) = (self.kernel, self.tile.depth, self.tile.extents[side]);
        let kept = [kernel.m, kernel.n][side];
        let ty = held(kernel.accumulate);
        let ends = [(depth * extent).to_string(), b.threads().to_string()].map(Term::constant);
        let element = b.open_loop(&self.thread, &ends[0], &ends[1]);
        let terms = std::slice::from_ref(&element);
        let [in_depth, in_extent] = match along {
            Along::Summed => [format!("$0 % {depth}"), format!("$0 / {depth}")],
            Along::Kept => [format!("$0 / {extent}"), format!("$0 % {extent}")],
        }
        .map(|template| b.expression(Ty::Index, &template, terms));
        let inner = sum(b, 0, &[(step.clone(), 1), (in_depth.clone(), 1)]);
        let outer = sum(b, 0, &[(self.first[side].clone(), 1), (in_extent.clone(), 1)]);
        let value = b.variable(ty, &zero(ty));
        let test = format!("$0 < {} && $1 < {kept}", kernel.k);
        let inside = b.expression(Ty::Bool, &test, &[inner.clone(), outer.clone()]);
        b.open_if(&inside);
        let own = if side == 0 { [outer, inner] } else { [inner, outer] };
        let sizes = if side == 0 { [kept, kernel.k] } else { [kernel.k, kept] };
        let axes = self.batch.iter().cloned().chain(own).collect();
        let point = Point::new(axes, [&kernel.batch[..], &sizes].concat());
        let mut scope = Scope::default();
        block(b, self.bounds, &mut scope, &operand.block, &point)?;
        let made = scope.value(operand.value)?.clone();
        let made = scalar::cast(b, made.lane(0), made.dtype, kernel.accumulate);
        b.set(value, &made);
        b.close();
        let at = sum(b, 0, &[(in_depth, i64::from(extent)), (in_extent, 1)]);
        let value = b.get(value);
        b.shared_store(memory, ty, &at, &value);
        b.close();
        Ok(())
    }

    /// The epilogue at a row and a column, if the result has them.
    fn result(&self, b: &mut Builder, variable: Variable, at: [Term; 2]) -> Result<(), Diagnostic> {
        let kernel = self.kernel;
        let test = format!("$0 < {} && $1 < {}", kernel.m, kernel.n);
        let inside = b.expression(Ty::Bool, &test, &at);
        b.open_if(&inside);
        let whole = b.get(variable);
        let dtype = kernel.product_dtype();
        let product = scalar::cast(b, &whole, kernel.accumulate, dtype);
        let mut scope = Scope::default();
        scope.define(kernel.product, Number::one(product, dtype));
        let axes = self.batch.iter().cloned().chain(at).collect();
        let point = Point::new(axes, [&kernel.batch[..], &[kernel.m, kernel.n]].concat());
        block(b, self.bounds, &mut scope, &kernel.epilogue, &point)?;
        stores(b, self.bounds, &scope, &kernel.epilogue, &point)?;
        b.close();
        Ok(())
    }
}
