//! How long each kernel takes, and how near it is to what the device can do.
//!
//! A [`Profile`] is a [`Report`] with times: the median over a few runs for each launch, and what follows from it and from the bytes and
//! flops that the report counts. `Display` prints it, [`Profile::to_json`] gives it to programs, [`Profile::to_trace`] to the trace viewers
//! of browsers (`trace.rs`).
//!
//! - Runs are timed on the caller's own data. A step runs on a copy of its state, which goes from run to run as it does in training; the state
//!   itself stays as it is.
//! - A launch's time is from the end of the step before it to its own end.
//! - The ceilings are measured on the device, once per process: the speed of a large copy and of a matrix product. A kernel whose data stay in
//!   a cache from run to run may well be faster than a copy.

mod trace;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use kiln_ir::plan::Step;
use kiln_ir::{Diagnostics, HostData};
use kiln_runtime::{Argument, Array, Ceilings, Executable, IntoArray};
use serde_json::{Value, json};
use web_time::Instant;

use crate::graph_file::unwritable;
use crate::report::count;
use crate::{Explain, Report, Result};

/// What keeps a kernel from being faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bottleneck {
    /// Its bytes take longer to move than its operations to compute.
    Memory,
    /// Its operations take longer.
    Compute,
}

impl Bottleneck {
    /// `memory` or `compute`.
    pub const fn name(self) -> &'static str {
        match self {
            Bottleneck::Memory => "memory",
            Bottleneck::Compute => "compute",
        }
    }
}

/// The time of one launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelTime {
    /// The median over the runs.
    pub median: Duration,
    /// The shortest.
    pub fastest: Duration,
    /// Bytes read and written in a second, at the median.
    pub bytes_per_second: f64,
    /// Floating-point operations in a second, at the median.
    pub flops_per_second: f64,
    /// Which of the device's ceilings it comes up against first.
    pub bottleneck: Bottleneck,
    /// Which part of that ceiling it reaches: 1 is as fast as the device's own copy or product.
    pub of_ceiling: f64,
}

/// When a launch ran within one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// From the start of the first step.
    pub begin: Duration,
    /// Likewise.
    pub end: Duration,
}

/// Times of a compiled function, launch by launch. Made by [`Jit::profile`](crate::Jit::profile), [`Step::profile`](crate::Step::profile)
/// and [`profile`].
#[derive(Clone, Debug)]
pub struct Profile {
    /// What was timed.
    pub report: Report,
    /// How many runs were timed.
    pub runs: usize,
    /// The median time of a whole run, binding of arguments and memory included.
    pub call: Duration,
    /// One entry for each of the report's kernels.
    pub kernels: Vec<KernelTime>,
    /// When each launch ran in the run whose time is the median.
    pub spans: Vec<Span>,
    /// What the device can do at best; `None` where no kernels run.
    pub ceilings: Option<Ceilings>,
}

/// Times an executable on these arguments, in declared order: the median of `runs` runs after one that is not counted. None is given away, so
/// nothing is updated in place.
///
/// # Errors
///
/// Those of [`Executable::run`].
///
/// ```
/// use kiln::prelude::*;
/// let captured = CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
///     scope.input("x", DType::F32, [64, 64]).softmax(1)
/// })?;
/// let device = Device::cpu();
/// let executable = kiln::compile(&captured, &device)?;
/// let profile = kiln::profile(&executable, &[Array::from_vec(&device, vec![1.0f32; 64 * 64], [64, 64])?], 5)?;
/// assert_eq!(profile.kernels.len(), 1);
/// println!("{profile}");
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn profile(executable: &Executable, arguments: &[Array], runs: usize) -> Result<Profile> {
    measure(executable, executable.report(), runs, || {
        Ok(executable
            .try_run_timed(arguments.iter().map(Argument::from).collect())
            .map_err(|error| error.diagnostics)?
            .1)
    })
}

/// Times a function with a state, which is copied first: `leaves` of it come first among arguments and results.
pub(crate) fn profile_step(
    executable: &Executable,
    report: Report,
    state: &[&Array],
    arguments: &[Array],
    runs: usize,
) -> Result<Profile> {
    let copies: std::result::Result<Vec<HostData>, _> = state.iter().map(|leaf| leaf.to_host()).collect();
    let copies = copies?.into_iter().map(|leaf| leaf.into_array(executable.device()));
    let mut current = copies.collect::<std::result::Result<Vec<Array>, Diagnostics>>()?;
    measure(executable, report, runs, || {
        let donated = std::mem::take(&mut current).into_iter().map(Argument::Donated);
        let borrowed = arguments.iter().map(Argument::from);
        let (mut results, times) =
            executable.try_run_timed(donated.chain(borrowed).collect()).map_err(|error| error.diagnostics)?;
        results.truncate(state.len());
        current = results;
        Ok(times)
    })
}

/// Times `runs` runs after one that is not counted. `run` gives when each step was done.
fn measure(
    executable: &Executable,
    report: Report,
    runs: usize,
    mut run: impl FnMut() -> Result<Vec<Duration>>,
) -> Result<Profile> {
    run()?;
    let mut timed = Vec::new();
    for _ in 0..runs.max(1) {
        let begun = Instant::now();
        let done = run()?;
        timed.push((begun.elapsed(), done));
    }
    let ceilings = executable.plan().and_then(|_| executable.device().ceilings());
    timed.sort_by_key(|(call, _)| *call);
    let launches: Vec<usize> = executable.plan().map_or_else(Vec::new, |plan| {
        let steps = plan.steps.iter().enumerate();
        steps.filter(|(_, step)| matches!(step, Step::Launch(_))).map(|(index, _)| index).collect()
    });
    let span = |done: &[Duration], step: usize| {
        let begin = step.checked_sub(1).map_or(Duration::ZERO, |before| done[before]);
        Span { begin, end: done[step] }
    };
    let (call, middle) = &timed[timed.len() / 2];
    let spans = launches.iter().map(|&step| span(middle, step)).collect();
    let kernels = launches.iter().zip(&report.kernels).map(|(&step, kernel)| {
        let mut times: Vec<Duration> =
            timed.iter().map(|(_, done)| span(done, step)).map(|span| span.end - span.begin).collect();
        times.sort_unstable();
        KernelTime::new(times[times.len() / 2], times[0], kernel.bytes(), kernel.flops, ceilings)
    });
    Ok(Profile { runs: timed.len(), call: *call, kernels: kernels.collect(), spans, ceilings, report })
}

impl KernelTime {
    fn new(median: Duration, fastest: Duration, bytes: u64, flops: u64, ceilings: Option<Ceilings>) -> KernelTime {
        // A clock may not tell two moments apart.
        let seconds = median.as_secs_f64().max(1e-9);
        let (bytes_per_second, flops_per_second) = (bytes as f64 / seconds, flops as f64 / seconds);
        let of =
            |rate: f64, ceiling: fn(&Ceilings) -> f64| ceilings.as_ref().map_or(0.0, |known| rate / ceiling(known));
        let moved = of(bytes_per_second, |ceilings| ceilings.bytes_per_second);
        let computed = of(flops_per_second, |ceilings| ceilings.flops_per_second);
        let bottleneck = if computed > moved { Bottleneck::Compute } else { Bottleneck::Memory };
        KernelTime { median, fastest, bytes_per_second, flops_per_second, bottleneck, of_ceiling: moved.max(computed) }
    }
}

impl Profile {
    /// The medians of all launches together. What a call takes beyond that is spent between them.
    pub fn in_kernels(&self) -> Duration {
        self.kernels.iter().map(|kernel| kernel.median).sum()
    }

    /// The profile as JSON: the report's, with `"schema": "kiln-profile"`, what was timed under `profile`, and a key `time` in each kernel.
    ///
    /// ```
    /// use kiln::prelude::*;
    /// let double = jit(&Device::cpu(), |x: Tensor| x * 2.0);
    /// let profile = double.profile(1.5, 3)?;
    /// let read: serde_json::Value = serde_json::from_str(&profile.to_json()).unwrap();
    /// assert_eq!(read["schema"], "kiln-profile");
    /// assert_eq!(read["profile"]["runs"], 3);
    /// assert!(read["kernels"][0]["time"]["median_seconds"].as_f64().unwrap() >= 0.0);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    pub fn to_json(&self) -> String {
        let mut json = self.report.json();
        json["schema"] = json!("kiln-profile");
        json["profile"] = json!({
            "runs": self.runs,
            "call_seconds": self.call.as_secs_f64(),
            "kernel_seconds": self.in_kernels().as_secs_f64(),
            "ceiling_bytes_per_second": self.ceilings.map(|ceilings| ceilings.bytes_per_second),
            "ceiling_flops_per_second": self.ceilings.map(|ceilings| ceilings.flops_per_second),
        });
        for (index, kernel) in self.kernels.iter().enumerate() {
            json["kernels"][index]["time"] = kernel.json();
        }
        serde_json::to_string_pretty(&json).expect("plain data is JSON")
    }

    /// The run whose time is the median as a trace, which `chrome://tracing` and Perfetto show: a slice for each launch, with form, lines, bytes
    /// and flops, and the bytes alive meanwhile.
    pub fn to_trace(&self) -> String {
        trace::trace(self).to_string()
    }

    /// Writes [`Profile::to_trace`] to a file. K1001 where it cannot be written.
    pub fn save_trace(&self, path: impl AsRef<Path>) -> std::result::Result<(), Diagnostics> {
        std::fs::write(&path, self.to_trace()).map_err(|error| unwritable(path.as_ref(), &error).into())
    }
}

impl KernelTime {
    fn json(&self) -> Value {
        json!({
            "median_seconds": self.median.as_secs_f64(),
            "fastest_seconds": self.fastest.as_secs_f64(),
            "bytes_per_second": self.bytes_per_second,
            "flops_per_second": self.flops_per_second,
            "bottleneck": self.bottleneck.name(),
            "of_ceiling": self.of_ceiling,
        })
    }
}

/// A rate in a second: `12.3 G`.
fn rate(per_second: f64) -> String {
    count(per_second as u64)
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Profile { report, runs, call, .. } = self;
        let (launches, kernels) = (report.launches(), self.in_kernels());
        writeln!(
            f,
            "`{}`: {call:.1?} per call, {kernels:.1?} of it in {launches} kernels (medians of {runs} runs)",
            report.name
        )?;
        if let Some(ceilings) = self.ceilings {
            let (bytes, flops) = (rate(ceilings.bytes_per_second), rate(ceilings.flops_per_second));
            writeln!(f, "this device copies {bytes}B/s and multiplies {flops}flop/s")?;
        }
        if !self.kernels.is_empty() {
            writeln!(
                f,
                "  {:>3}  {:9} {:>9} {:>6} {:>9} {:>11}  {:8} {:>5}",
                "", "kernel", "time", "share", "bytes/s", "flops/s", "bound by", "of it"
            )?;
        }
        for (index, (time, kernel)) in self.kernels.iter().zip(&report.kernels).enumerate() {
            let share = 100.0 * time.median.as_secs_f64() / kernels.as_secs_f64().max(1e-12);
            writeln!(
                f,
                "  {index:>3}  {:9} {:>9} {share:>5.1}% {:>9} {:>11}  {:8} {:>4.0}%  {}",
                kernel.form.name(),
                format!("{:.1?}", time.median),
                rate(time.bytes_per_second),
                rate(time.flops_per_second),
                time.bottleneck.name(),
                100.0 * time.of_ceiling,
                report.lines(&kernel.lines),
            )?;
        }
        Ok(())
    }
}
