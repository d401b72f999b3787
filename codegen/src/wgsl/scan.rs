//! Running reductions: one invocation for a line, or a team of them, step by step.
//!
//! In a step each invocation of a team combines a few neighbours; what the team has is then scanned in workgroup memory, and every invocation
//! goes through its neighbours once more, from what stands before them.

use kiln_ir::gpu::{GpuProgram, GpuTarget, ScanSchedule};
use kiln_ir::kernel::{Block, Instruction, Operation, Reg, ScanKernel, Store};
use kiln_ir::{Diagnostic, Direction, Literal, ScalarOp, ScanKind};

use super::block::{Scope, Value, block, number, stores};
use super::fold::{greatest, least};
use super::matmul::coordinates;
use super::module::{Module, Subgroups};
use super::operand::fresh;
use super::product::{quotient, remainder, times};
use super::ranges::Ranges;
use super::scalar;
use super::space::Point;
use super::types::Held;
use super::writer::Writer;

/// The text of a running reduction.
pub(super) fn program(
    kernel: &ScanKernel,
    schedule: &ScanSchedule,
    entry: &str,
    target: &GpuTarget,
) -> Result<GpuProgram, Diagnostic> {
    let held = Held::of(kernel.accumulate);
    held.check(target)?;
    let running = fresh(&[&kernel.block], 0);
    let rounded = fresh(&[&kernel.block], 1);
    let result = Block {
        instructions: vec![Instruction { result: rounded, dtype: kernel.dtype, operation: Operation::Cast(running) }],
        stores: vec![Store { buffer: kernel.output, address: kernel.address.clone(), value: rounded }],
    };
    let mut module = Module::new(&kernel.buffers, target)?;
    let start = match kernel.kind {
        ScanKind::Sum => Literal::zero(kernel.accumulate),
        ScanKind::Prod => Literal::one(kernel.accumulate),
        ScanKind::Max => least(kernel.accumulate),
        ScanKind::Min => greatest(kernel.accumulate),
    };
    let start = number(&mut module, start, held);
    let extents = [&kernel.outer[..], &[kernel.extent]].concat();
    let lines: usize = kernel.outer.iter().product();
    let teams = if schedule.lanes == 1 { schedule.teams } else { schedule.teams.max(1) };
    let groups = lines.div_ceil(teams as usize);
    let mut scan = Scan { kernel, held, start, extents, running, result, module, w: Writer::body() };
    scan.w.line(format!("let line = {} + {};", times("group", teams), quotient("local", schedule.lanes)));
    let guarded = !lines.is_multiple_of(teams as usize);
    let inside = guarded.then(|| format!("line < {lines}"));
    let coordinates = {
        let outer = coordinates(&mut scan.w, "line", &kernel.outer);
        [outer, vec!["at".to_owned()]].concat()
    };
    if schedule.lanes == 1 {
        scan.alone(inside.as_deref(), &coordinates)?;
    } else {
        scan.team(schedule, inside.as_deref(), &coordinates)?;
    }
    let Scan { module, w, .. } = scan;
    let dispatch = module.dispatch(entry, schedule.lanes * teams, groups as u64, Subgroups::Unused, &w)?;
    Ok(GpuProgram { dispatches: vec![dispatch], scratch: Vec::new() })
}

struct Scan<'a> {
    kernel: &'a ScanKernel,
    /// How running values are held.
    held: Held,
    /// What is combined with nothing yet.
    start: String,
    extents: Vec<usize>,
    /// The running value, in what stores it.
    running: Reg,
    result: Block,
    module: Module<'a>,
    w: Writer,
}

impl Scan<'_> {
    /// One invocation walks a line.
    fn alone(&mut self, inside: Option<&str>, at: &[String]) -> Result<(), Diagnostic> {
        if let Some(inside) = inside {
            self.w.line(format!("if !({inside}) {{ return; }}"));
        }
        self.declare("running");
        self.w.open(format!("for (var step = 0; step < {}; step++)", self.kernel.extent));
        self.at("step");
        self.take("running", at)?;
        self.store("running", at)?;
        self.w.close();
        Ok(())
    }

    /// A team walks a line, so many elements at a time.
    fn team(&mut self, schedule: &ScanSchedule, inside: Option<&str>, at: &[String]) -> Result<(), Diagnostic> {
        let ScanSchedule { lanes, teams, width } = *schedule;
        let (extent, all) = (self.kernel.extent, lanes * width);
        self.module.workgroup("totals", format!("array<{}, {}>", self.held.in_scratch(), lanes * teams));
        self.w.line(format!("let lane = {};", remainder("local", lanes)));
        self.declare("carry");
        self.w.open(format!("for (var first = 0; first < {extent}; first += {all})"));
        self.declare("own");
        self.neighbours(schedule, inside, |scan| scan.take("own", at))?;
        self.w.line("totals[local] = own;");
        self.w.line("workgroupBarrier();");
        self.w.open(format!("for (var reach = 1; reach < {lanes}; reach *= 2)"));
        self.declare("before");
        self.w.line("if lane >= reach { before = totals[local - reach]; }");
        self.w.line("workgroupBarrier();");
        self.combine("own", "before", "own")?;
        self.w.line("totals[local] = own;");
        self.w.line("workgroupBarrier();");
        self.w.close();
        if width == 1 {
            self.declare("running");
            self.combine("running", "carry", "own")?;
            self.neighbours(schedule, inside, |scan| scan.store("running", at))?;
        } else {
            self.w.line("var running = carry;");
            self.w.open("if lane > 0");
            self.combine("running", "carry", "totals[local - 1]")?;
            self.w.close();
            self.neighbours(schedule, inside, |scan| {
                scan.take("running", at)?;
                scan.store("running", at)
            })?;
        }
        let last = format!("totals[local - lane + {}]", lanes - 1);
        self.combine("carry", "carry", &last)?;
        self.w.line("workgroupBarrier();");
        self.w.close();
        Ok(())
    }

    /// What an invocation does at each of its neighbours.
    fn neighbours(
        &mut self,
        schedule: &ScanSchedule,
        inside: Option<&str>,
        body: impl FnOnce(&mut Self) -> Result<(), Diagnostic>,
    ) -> Result<(), Diagnostic> {
        let ScanSchedule { lanes, width, .. } = *schedule;
        let extent = self.kernel.extent;
        if width > 1 {
            self.w.open(format!("for (var neighbour = 0; neighbour < {width}; neighbour++)"));
            self.w.line(format!("let step = first + lane * {width} + neighbour;"));
        } else {
            self.w.open("");
            self.w.line("let step = first + lane;");
        }
        let within = (!extent.is_multiple_of((lanes * width) as usize)).then(|| format!("step < {extent}"));
        let tests: Vec<String> = inside.map(str::to_owned).into_iter().chain(within).collect();
        if !tests.is_empty() {
            self.w.open(format!("if {}", tests.join(" && ")));
        }
        self.at("step");
        body(self)?;
        if !tests.is_empty() {
            self.w.close();
        }
        self.w.close();
        Ok(())
    }

    fn declare(&mut self, name: &str) {
        self.w.line(format!("var {name}: {} = {};", self.held.name(), self.start));
    }

    /// The place of a step along the scanned axis.
    fn at(&mut self, step: &str) {
        let at = match self.kernel.direction {
            Direction::Forward => step.to_owned(),
            Direction::Reverse => format!("{} - {step}", self.kernel.extent - 1),
        };
        self.w.line(format!("let at = {at};"));
    }

    /// `to = a and b`, `a` being the earlier.
    fn combine(&mut self, to: &str, a: &str, b: &str) -> Result<(), Diagnostic> {
        let op = match self.kernel.kind {
            ScanKind::Sum => ScalarOp::Add,
            ScanKind::Prod => ScalarOp::Mul,
            ScanKind::Max => ScalarOp::Max,
            ScanKind::Min => ScalarOp::Min,
        };
        let dtype = self.kernel.accumulate;
        let operands = [a, b].map(|text| Value::new(text, self.held, 1).of(dtype));
        let value = scalar::apply(&mut self.module, op, &operands, dtype, self.held)?;
        self.w.line(format!("{to} = {};", value.text));
        Ok(())
    }

    /// Takes the element at a place into a running value.
    fn take(&mut self, to: &str, at: &[String]) -> Result<(), Diagnostic> {
        let kernel = self.kernel;
        let blocks = [(&kernel.block, &self.extents[..], &[][..])];
        let mut scope = Scope::new(Ranges::of(blocks.into_iter(), &[kernel.value]));
        let point = Point::new(at, &self.extents[..]);
        block(&mut self.module, &mut scope, &mut self.w, &kernel.block, &point)?;
        stores(&mut self.module, &scope, &mut self.w, &kernel.block, &point)?;
        let value = scalar::cast(&mut self.module, scope.value(kernel.value)?, kernel.accumulate, self.held)?;
        self.combine(to, to, &value.text)
    }

    /// Stores a running value at a place.
    fn store(&mut self, running: &str, at: &[String]) -> Result<(), Diagnostic> {
        let blocks = [(&self.result, &self.extents[..], &[][..])];
        let mut scope = Scope::new(Ranges::of(blocks.into_iter(), &[]));
        scope.define(self.running, Value::new(running, self.held, 1).of(self.kernel.accumulate));
        let point = Point::new(at, &self.extents[..]);
        block(&mut self.module, &mut scope, &mut self.w, &self.result, &point)?;
        stores(&mut self.module, &scope, &mut self.w, &self.result, &point)
    }
}
