//! What a compiled function is made of, as data and as text.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use kiln_capture::{Baked, Notice};
use kiln_ir::Loc;
use kiln_ir::kernel::Form;
use kiln_ir::plan::{Edge, Plan};

use crate::cache::CacheStatistics;
use crate::compiled::Entry;

/// One launch of a compiled function.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelReport {
    /// Its form.
    pub form: Form,
    /// The user's lines that it computes.
    pub lines: Vec<Loc>,
    /// Bytes it loads and stores.
    pub bytes: u64,
    /// Its floating-point operations.
    pub flops: u64,
}

/// How a compiled function stands: the capture that was used last, and the cache. `Display` prints it for people.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The function's name.
    pub name: String,
    /// Its launches, in order. Empty on the reference interpreter, which has none.
    pub kernels: Vec<KernelReport>,
    /// How many different kernels the launches run; equal ones are compiled once.
    pub distinct_kernels: usize,
    /// Bytes of slots, constants and results; arguments belong to the caller.
    pub peak_bytes: usize,
    /// Values that stay in memory between kernels, each with the reason.
    pub ledger: Vec<Edge>,
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
}

impl Report {
    /// Launches per call.
    pub fn launches(&self) -> usize {
        self.kernels.len()
    }

    /// Bytes loaded and stored per call.
    pub fn bytes(&self) -> u64 {
        self.kernels.iter().map(|kernel| kernel.bytes).sum()
    }

    /// Floating-point operations per call.
    pub fn flops(&self) -> u64 {
        self.kernels.iter().map(|kernel| kernel.flops).sum()
    }

    pub(crate) fn describe<T>(&mut self, entry: &Entry<T>) {
        if let Some(plan) = entry.executable.plan() {
            self.describe_plan(plan);
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
        self.peak_bytes = plan.peak_bytes();
        self.distinct_kernels = plan.launches().map(|launch| &launch.kernel).collect::<HashSet<_>>().len();
        self.ledger = plan.ledger.clone();
        self.kernels = plan
            .launches()
            .map(|launch| KernelReport {
                form: launch.kernel.form(),
                lines: launch.locs.clone(),
                bytes: launch.bytes.read + launch.bytes.written,
                flops: launch.flops,
            })
            .collect();
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (launches, kernels) = (self.launches(), self.distinct_kernels);
        writeln!(f, "`{}`: {launches} launches per call of {kernels} kernels, {}", self.name, size(self.bytes()))?;
        writeln!(f, "peak memory: {} beside the arguments", size(self.peak_bytes as u64))?;
        writeln!(
            f,
            "captured in {:.1?}, compiled in {:.1?}, run {} times",
            self.capture_time, self.compile_time, self.runs
        )?;
        for (index, kernel) in self.kernels.iter().enumerate() {
            writeln!(f, "  {index:>3}  {:8} {:>10}  {}", kernel.form.name(), size(kernel.bytes), lines(&kernel.lines))?;
        }
        if !self.ledger.is_empty() {
            writeln!(f, "in memory between kernels:")?;
        }
        let edge = |edge: &Edge| format!("{} made at {} {}", edge.ty, edge.loc, edge.blocked.reason());
        counted(f, self.ledger.iter().map(edge))?;
        if !self.baked.is_empty() {
            writeln!(f, "baked in:")?;
        }
        let baked = |baked: &Baked| format!("{} = {} at {}", baked.ty, baked.text, baked.loc);
        counted(f, self.baked.iter().map(baked))?;
        for notice in &self.notices {
            writeln!(f, "note: {} ({})", notice.text, notice.loc)?;
        }
        for (name, times) in &self.copied {
            let often = if *times == 1 { "once".to_owned() } else { format!("{times} times") };
            writeln!(f, "leaf `{name}` was copied {often}: another handle lives")?;
        }
        // A graph that was run as it stands has no cache.
        if self.cache == CacheStatistics::default() { Ok(()) } else { self.cache.fmt(f) }
    }
}

/// Lines in the order of their first appearance, each once, with how often it came.
fn counted(f: &mut fmt::Formatter<'_>, lines: impl Iterator<Item = String>) -> fmt::Result {
    let mut known: Vec<(String, usize)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for line in lines {
        match places.get(&line) {
            Some(&place) => known[place].1 += 1,
            None => {
                places.insert(line.clone(), known.len());
                known.push((line, 1));
            }
        }
    }
    known.into_iter().try_for_each(|(line, count)| match count {
        1 => writeln!(f, "  {line}"),
        _ => writeln!(f, "  {line} ({count} times)"),
    })
}

/// The lines of one kernel: each file once, with its line numbers.
fn lines(locs: &[Loc]) -> String {
    let mut files: Vec<(String, Vec<String>)> = Vec::new();
    for loc in locs {
        let Some((line, _)) = loc.line_column() else { continue };
        let file = match loc {
            Loc::Caller(location) => location.file().to_owned(),
            Loc::Text { .. } => "<text>".to_owned(),
            Loc::Unknown => continue,
        };
        let line = line.to_string();
        match files.iter_mut().find(|(known, _)| *known == file) {
            Some((_, known)) if known.contains(&line) => {}
            Some((_, known)) => known.push(line),
            None => files.push((file, vec![line])),
        }
    }
    let files: Vec<String> = files.into_iter().map(|(file, lines)| format!("{file}:{}", lines.join(","))).collect();
    files.join(" ")
}

/// Bytes in the unit that suits them.
fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}
