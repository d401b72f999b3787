//! What a compiled function is made of: kernels, the fusion ledger, memory over time. As data, as text, as JSON, as a page.
//!
//! A [`Report`] is plain data read off a plan; nothing runs for it. `Display` prints it for people (`text.rs`), [`Report::to_json`] for
//! programs (`json.rs`), [`Report::to_html`] as one page that needs nothing beside it (`html.rs`). [`Explain`] gives the report of anything
//! that was compiled, [`assert_kernels!`](crate::assert_kernels) and [`assert_bytes!`](crate::assert_bytes) hold it to numbers.
//!
//! - Launches are numbered from 0 in the order in which they run; a copy of a whole buffer is told by the launch that follows it.
//! - Bytes are those of [`Launch::bytes`](kiln_ir::plan::Launch): distinct elements loaded and distinct elements stored.
//! - Every value between kernels stands in the ledger, with one reason for each edge.

mod arcs;
mod counts;
mod html;
mod json;
mod lifetime;
mod rows;
mod text;
mod timeline;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kiln_capture::{Baked, Notice, source_text};
use kiln_ir::gpu::Schedule;
use kiln_ir::kernel::{Form, Kernel};
use kiln_ir::plan::{Blocked, Edge, Launch, Plan, Recomputed, Step};
use kiln_ir::{Backend, Loc, TensorType};
use kiln_runtime::Device;

use crate::cache::CacheStatistics;
use crate::compiled::Entry;

pub use counts::{Explain, Holds, Quantity};
pub use json::SCHEMA_VERSION;
pub use lifetime::{Lifetime, Place};
pub(crate) use timeline::live;

/// One launch of a compiled function.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelReport {
    /// What it computes. Launches that run equal kernels share it.
    pub kernel: Arc<Kernel>,
    /// Which of the function's different kernels it runs, from 0 in order of first launch.
    pub distinct: usize,
    /// Its form.
    pub form: Form,
    /// The user's lines that it computes.
    pub lines: Vec<Loc>,
    /// Bytes it loads.
    pub read: u64,
    /// Bytes it stores.
    pub written: u64,
    /// Its floating-point operations.
    pub flops: u64,
    /// How it is spread over the device, for kernels that Kiln prints for a GPU of wgpu.
    pub schedule: Option<Schedule>,
}

impl KernelReport {
    /// Bytes loaded and stored.
    pub fn bytes(&self) -> u64 {
        self.read + self.written
    }
}

/// A buffer that is copied as it is: a scatter's target, or an argument that is itself a result.
#[derive(Clone, Debug, PartialEq)]
pub struct CopyReport {
    /// The launch that follows.
    pub before: usize,
    /// What is copied.
    pub ty: TensorType,
    /// The line that made it.
    pub loc: Loc,
}

/// How a compiled function stands: the capture that was used last, and the cache. `Display` prints it for people.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The function's name.
    pub name: String,
    /// Its launches, in order. Empty on the reference interpreter, which has none.
    pub kernels: Vec<KernelReport>,
    /// Copies of whole buffers between them.
    pub copies: Vec<CopyReport>,
    /// How many different kernels the launches run; equal ones are compiled once.
    pub distinct_kernels: usize,
    /// Bytes of slots, constants and results; arguments belong to the caller.
    pub peak_bytes: usize,
    /// Values that stay in memory between kernels, each with the reason.
    pub ledger: Vec<Edge>,
    /// Values that are computed more than once, so that the capture fits its budget of bytes.
    pub recomputed: Vec<Recomputed>,
    /// Every buffer with the launches between which its contents matter.
    pub memory: Vec<Lifetime>,
    /// Bytes of each slot.
    pub slots: Vec<usize>,
    /// Numbers and tensors that the capture took in as they were: other values need another capture.
    pub baked: Vec<Baked>,
    /// What else there is to know about the capture.
    pub notices: Vec<Notice>,
    /// How long recording took.
    pub capture_time: Duration,
    /// How long compiling took.
    pub compile_time: Duration,
    /// Completed runs of this capture.
    pub runs: u64,
    /// Leaves of the state that could not be updated in place because another handle lived, with how often.
    pub copied: Vec<(String, u64)>,
    /// How the cache has done.
    pub cache: CacheStatistics,
    /// The text of the IR that the graph was read from, and its name.
    pub(crate) text: Option<(String, Arc<str>)>,
}

impl Report {
    /// The report of a plan that has not run.
    ///
    /// ```
    /// use kiln::prelude::*;
    /// use kiln::Report;
    /// let captured = CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
    ///     scope.input("x", DType::F32, [8, 100]).softmax(1)
    /// })?;
    /// let report = Report::of_plan(&kiln::passes::compile(&captured.graph, &Default::default())?);
    /// assert_eq!(report.launches(), 1);
    /// assert_eq!((report.read(), report.written()), (3200, 3200));
    /// # Ok::<(), kiln::Error>(())
    /// ```
    pub fn of_plan(plan: &Plan) -> Report {
        let mut report = Report { name: plan.name.to_string(), ..Report::default() };
        report.describe_plan(plan);
        report
    }

    /// Launches per call. Copies of whole buffers are counted apart.
    pub fn launches(&self) -> usize {
        self.kernels.len()
    }

    /// Bytes loaded per call, by kernels and by copies.
    pub fn read(&self) -> u64 {
        self.kernels.iter().map(|kernel| kernel.read).sum::<u64>() + self.copied_bytes()
    }

    /// Bytes stored per call, by kernels and by copies.
    pub fn written(&self) -> u64 {
        self.kernels.iter().map(|kernel| kernel.written).sum::<u64>() + self.copied_bytes()
    }

    /// Bytes loaded and stored per call.
    pub fn bytes(&self) -> u64 {
        self.read() + self.written()
    }

    fn copied_bytes(&self) -> u64 {
        self.copies.iter().map(|copy| copy.ty.num_bytes() as u64).sum()
    }

    /// Floating-point operations per call.
    pub fn flops(&self) -> u64 {
        self.kernels.iter().map(|kernel| kernel.flops).sum()
    }

    /// Bytes of values that one kernel leaves for another, each counted once.
    pub fn ledger_bytes(&self) -> u64 {
        let mut seen = std::collections::HashSet::new();
        let between = self.ledger.iter().filter(|edge| edge.blocked != Blocked::Output);
        let values = between.filter(|edge| seen.insert((edge.made_by, edge.loc, edge.ty.clone())));
        values.map(|edge| edge.bytes() as u64).sum()
    }

    /// Names the IR text that the graph was read from: lines in it are then shown by this name and with their text.
    #[must_use]
    pub fn with_text(mut self, name: impl Into<String>, text: &str) -> Report {
        self.text = Some((name.into(), text.into()));
        self
    }

    pub(crate) fn describe<T>(&mut self, entry: &Entry<T>) {
        if let Some(plan) = entry.executable.plan() {
            self.describe_plan(plan);
            self.describe_schedules(plan, entry.executable.device());
        }
        let statistics = entry.executable.statistics();
        self.runs = statistics.runs;
        self.copied = statistics.copied.into_iter().map(|(name, times)| (name.to_string(), times)).collect();
        self.baked = entry.baked.clone();
        self.notices = entry.notices.clone();
        self.capture_time = entry.captured_in;
        self.compile_time = entry.compiled_in;
    }

    /// Kernels, memory and ledger of a plan.
    pub(crate) fn describe_plan(&mut self, plan: &Plan) {
        let mut distinct: HashMap<&Kernel, usize> = HashMap::new();
        self.peak_bytes = plan.peak_bytes();
        self.ledger = plan.ledger.clone();
        self.recomputed.clone_from(&plan.recomputed);
        self.memory = lifetime::lifetimes(plan);
        self.slots = plan.slots.clone();
        (self.kernels, self.copies) = (Vec::new(), Vec::new());
        for step in &plan.steps {
            match step {
                Step::Launch(launch) => {
                    let next = distinct.len();
                    let number = *distinct.entry(&launch.kernel).or_insert(next);
                    self.kernels.push(kernel(launch, number));
                }
                Step::Copy { from, .. } => {
                    let buffer = &plan.buffers[from.0 as usize];
                    let before = self.kernels.len();
                    self.copies.push(CopyReport { before, ty: buffer.ty.clone(), loc: buffer.loc });
                }
            }
        }
        self.distinct_kernels = distinct.len();
    }

    /// How the launches of this plan are spread over a device. Schedules are not kept: the same kernel and device always have the same.
    pub(crate) fn describe_schedules(&mut self, plan: &Plan, device: &Device) {
        let Some(target) = device.target().filter(|_| device.backend() == Backend::Wgpu) else { return };
        for (launch, kernel) in plan.launches().zip(&mut self.kernels) {
            let is_custom = matches!(&*launch.kernel, Kernel::Custom(_));
            if plan.backend_of(launch) == Backend::Wgpu && !is_custom {
                kernel.schedule = kiln_passes::gpu::schedule(&launch.kernel, target).ok();
            }
        }
    }

    /// A line as people read it: `src/model.rs:42:17`.
    fn place(&self, loc: Loc) -> String {
        match (loc, &self.text) {
            (Loc::Text { line, column }, Some((name, _))) => format!("{name}:{line}:{column}"),
            (Loc::Text { .. } | Loc::Caller(_) | Loc::Unknown, _) => loc.to_string(),
        }
    }

    /// The file of a line, if any is known.
    fn file(&self, loc: Loc) -> Option<String> {
        match loc {
            Loc::Caller(location) => Some(location.file().to_owned()),
            Loc::Text { .. } => Some(self.text.as_ref().map_or("<text>", |(name, _)| name).to_owned()),
            Loc::Unknown => None,
        }
    }
}

fn kernel(launch: &Launch, distinct: usize) -> KernelReport {
    KernelReport {
        kernel: launch.kernel.clone(),
        distinct,
        form: launch.kernel.form(),
        lines: launch.locs.clone(),
        read: launch.bytes.read,
        written: launch.bytes.written,
        flops: launch.flops,
        schedule: None,
    }
}

/// Source files that a report shows lines of, each read once.
struct Sources<'a> {
    report: &'a Report,
    files: HashMap<String, Option<Vec<String>>>,
}

impl<'a> Sources<'a> {
    fn new(report: &'a Report) -> Sources<'a> {
        Sources { report, files: HashMap::new() }
    }

    /// The text of a line, without the space around it.
    fn line(&mut self, loc: Loc) -> Option<String> {
        let (line, _) = loc.line_column()?;
        let file = self.report.file(loc)?;
        let report = self.report;
        let lines = self.files.entry(file).or_insert_with_key(|file| {
            let text = match (loc, &report.text) {
                (Loc::Text { .. }, Some((_, text))) => Some(text.to_string()),
                (Loc::Text { .. } | Loc::Unknown, _) => None,
                (Loc::Caller(_), _) => source_text(file),
            };
            text.map(|text| text.lines().map(|line| line.trim().to_owned()).collect())
        });
        lines.as_ref()?.get(line as usize - 1).cloned()
    }
}

/// Bytes in the unit that suits them.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

/// A count in the unit that suits it: `1.2 M`.
pub(crate) fn count(number: u64) -> String {
    match number {
        0..1000 => number.to_string(),
        1000..1_000_000 => format!("{:.1} k", number as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", number as f64 / 1e6),
        1_000_000_000..1_000_000_000_000 => format!("{:.1} G", number as f64 / 1e9),
        _ => format!("{:.1} T", number as f64 / 1e12),
    }
}
