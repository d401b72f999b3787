//! Running reductions: one thread for a line, or a team of them, step by step.
//!
//! In a step each thread of a team combines a few neighbours; what the team has is then scanned in shared memory, and every thread goes through
//! its neighbours once more, from what stands before them.

use kiln_ir::cuda::{CudaProgram, CudaStep};
use kiln_ir::gpu::ScanSchedule;
use kiln_ir::kernel::ScanKernel;
use kiln_ir::{Diagnostic, Direction, ReduceKind, ScanKind};

use super::block::{Scope, block, stores};
use super::builder::{Builder, Term, Ty, Variable};
use super::fold::Rule;
use super::loops::{self, blocks};
use super::memory::{self, Bound};
use super::scalar;
use super::space::{Point, coordinates, sum};

/// The text of a running reduction.
pub(super) fn program(kernel: &ScanKernel, schedule: &ScanSchedule, entry: &str) -> Result<CudaProgram, Diagnostic> {
    let kind = match kernel.kind {
        ScanKind::Sum => ReduceKind::Sum,
        ScanKind::Prod => ReduceKind::Prod,
        ScanKind::Max => ReduceKind::Max,
        ScanKind::Min => ReduceKind::Min,
    };
    let lines: usize = kernel.outer.iter().product();
    let extents = [&kernel.outer[..], &[kernel.extent]].concat();
    let teams = schedule.teams.max(1);
    let groups = lines.div_ceil(teams as usize);
    let mut b = Builder::new(entry, schedule.lanes * teams, loops::width_for(&kernel.buffers, &extents));
    let bounds = loops::bind(&mut b, &kernel.buffers);
    let thread = b.expression(Ty::Index, "threadIdx.x", &[]);
    let lanes = schedule.lanes;
    let (team, lane) = (
        b.expression(Ty::Index, &format!("$0 / {lanes}"), std::slice::from_ref(&thread)),
        b.expression(Ty::Index, &format!("$0 % {lanes}"), std::slice::from_ref(&thread)),
    );
    let group = b.expression(Ty::Index, "blockIdx.x", &[]);
    let line = sum(&mut b, 0, &[(group, i64::from(teams)), (team, 1)]);
    let inside = (!lines.is_multiple_of(teams as usize))
        .then(|| b.expression(Ty::Bool, &format!("$0 < {lines}"), std::slice::from_ref(&line)));
    let outer = coordinates(&mut b, &line, &kernel.outer, 1);
    let rule = Rule::new(kind, kernel.accumulate);
    let scan = Scan { kernel, bounds: &bounds, extents, outer, rule, inside };
    if lanes == 1 {
        scan.alone(&mut b)?;
    } else {
        scan.team(&mut b, schedule, &thread, &lane)?;
    }
    Ok(CudaProgram { steps: vec![CudaStep::Text(b.finish([blocks(groups as u64)?, 1, 1])?)], scratch: Vec::new() })
}

struct Scan<'a> {
    kernel: &'a ScanKernel,
    bounds: &'a [Bound],
    extents: Vec<usize>,
    outer: Vec<Term>,
    rule: Rule,
    /// Whether the line is one, where it may not be.
    inside: Option<Term>,
}

impl Scan<'_> {
    /// One thread walks a line.
    fn alone(&self, b: &mut Builder) -> Result<(), Diagnostic> {
        if let Some(inside) = &self.inside {
            b.open_if(inside);
        }
        let running = self.rule.declare(b);
        let ends = ["0".to_owned(), self.kernel.extent.to_string(), "1".to_owned()].map(Term::constant);
        let step = b.open_loop(&ends[0], &ends[1], &ends[2]);
        let point = self.point(b, &step);
        self.take(b, running[0], &point, true)?;
        self.store(b, running[0], &point);
        b.close();
        if self.inside.is_some() {
            b.close();
        }
        Ok(())
    }

    /// A team walks a line, so many elements at a time.
    fn team(&self, b: &mut Builder, schedule: &ScanSchedule, thread: &Term, lane: &Term) -> Result<(), Diagnostic> {
        let ScanSchedule { lanes, width, .. } = *schedule;
        let ty = self.rule.types[0];
        let totals = b.share(b.threads() * ty.size() as u32);
        let carry = self.rule.declare(b)[0];
        let all = lanes * width;
        let ends = ["0".to_owned(), self.kernel.extent.to_string(), all.to_string()].map(Term::constant);
        let first = b.open_loop(&ends[0], &ends[1], &ends[2]);
        let own = self.rule.declare(b)[0];
        self.neighbours(b, schedule, &first, lane, &mut |b, point| self.take(b, own, point, false))?;
        let mut mine = b.get(own);
        b.shared_store(totals, ty, thread, &mine);
        b.barrier();
        let mut reach = 1;
        while reach < lanes {
            let has = b.expression(Ty::Bool, &format!("$0 >= {reach}"), std::slice::from_ref(lane));
            let terms = [has.clone(), thread.clone()];
            let at = b.expression(Ty::Index, &format!("$0 ? $1 - {reach} : $1"), &terms);
            let before = b.shared_load(totals, ty, &at);
            b.barrier();
            let both = self.both(b, &before, &mine);
            mine = b.expression(ty, "$0 ? $1 : $2", &[has, both, mine]);
            b.shared_store(totals, ty, thread, &mine);
            b.barrier();
            reach *= 2;
        }
        let carried = b.get(carry);
        let has = b.expression(Ty::Bool, "$0 > 0", std::slice::from_ref(lane));
        let at = b.expression(Ty::Index, "$0 ? $1 - 1 : $1", &[has.clone(), thread.clone()]);
        let before = b.shared_load(totals, ty, &at);
        let both = self.both(b, &carried, &before);
        let start = b.expression(ty, "$0 ? $1 : $2", &[has, both, carried.clone()]);
        let running = b.variable(ty, &start);
        self.neighbours(b, schedule, &first, lane, &mut |b, point| {
            self.take(b, running, point, true)?;
            self.store(b, running, point);
            Ok(())
        })?;
        let last = b.expression(Ty::Index, &format!("$0 - $1 + {}", lanes - 1), &[thread.clone(), lane.clone()]);
        let last = b.shared_load(totals, ty, &last);
        let carried = self.both(b, &carried, &last);
        b.set(carry, &carried);
        b.barrier();
        b.close();
        Ok(())
    }

    /// What a thread does at each of its neighbours.
    fn neighbours(
        &self,
        b: &mut Builder,
        schedule: &ScanSchedule,
        first: &Term,
        lane: &Term,
        body: &mut dyn FnMut(&mut Builder, &Point) -> Result<(), Diagnostic>,
    ) -> Result<(), Diagnostic> {
        let ScanSchedule { lanes, width, .. } = *schedule;
        let extent = self.kernel.extent;
        for neighbour in 0..width {
            let step = sum(b, i64::from(neighbour), &[(first.clone(), 1), (lane.clone(), i64::from(width))]);
            let within = (!extent.is_multiple_of((lanes * width) as usize))
                .then(|| b.expression(Ty::Bool, &format!("$0 < {extent}"), std::slice::from_ref(&step)));
            let guard = match (self.inside.clone(), within) {
                (Some(inside), Some(within)) => Some(b.expression(Ty::Bool, "$0 && $1", &[inside, within])),
                (inside, within) => inside.or(within),
            };
            if let Some(guard) = &guard {
                b.open_if(guard);
            }
            let point = self.point(b, &step);
            body(b, &point)?;
            if guard.is_some() {
                b.close();
            }
        }
        Ok(())
    }

    /// The point of a step along the scanned axis.
    fn point(&self, b: &mut Builder, step: &Term) -> Point {
        let at = match self.kernel.direction {
            Direction::Forward => step.clone(),
            Direction::Reverse => sum(b, self.kernel.extent as i64 - 1, &[(step.clone(), -1)]),
        };
        let axes = self.outer.iter().cloned().chain([at]).collect();
        Point::new(axes, self.extents.clone())
    }

    fn both(&self, b: &mut Builder, earlier: &Term, later: &Term) -> Term {
        self.rule.both(b, std::slice::from_ref(earlier), std::slice::from_ref(later)).remove(0)
    }

    /// Takes the element at a point into a running value. What the block stores is stored where a point is visited for the last time.
    fn take(&self, b: &mut Builder, running: Variable, point: &Point, last: bool) -> Result<(), Diagnostic> {
        let kernel = self.kernel;
        let mut scope = Scope::default();
        block(b, self.bounds, &mut scope, &kernel.block, point)?;
        if last {
            stores(b, self.bounds, &scope, &kernel.block, point)?;
        }
        let value = scope.value(kernel.value)?.clone();
        let value = scalar::cast(b, value.lane(0), value.dtype, kernel.accumulate);
        let before = b.get(running);
        let both = self.both(b, &before, &value);
        b.set(running, &both);
        Ok(())
    }

    /// Stores a running value at a point.
    fn store(&self, b: &mut Builder, running: Variable, point: &Point) {
        let value = b.get(running);
        let rounded = scalar::cast(b, &value, self.kernel.accumulate, self.kernel.dtype);
        let index = point.affine(b, &self.kernel.address, 0);
        memory::store_one(b, self.bounds[self.kernel.output.0 as usize], &index, &rounded);
    }
}
