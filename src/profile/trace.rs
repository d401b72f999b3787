//! A run as trace events: the format that `chrome://tracing` and Perfetto read. Times are in microseconds.

use std::time::Duration;

use serde_json::{Value, json};

use super::Profile;
use crate::report::live;

/// The number of the process in the trace; there is one.
const PROCESS: u32 = 1;
/// The number of the thread on which kernels are launched.
const THREAD: u32 = 1;

pub(super) fn trace(profile: &Profile) -> Value {
    let report = &profile.report;
    let name = |what: &str, name: String| json!({ "name": what, "ph": "M", "pid": PROCESS, "tid": THREAD, "args": { "name": name } });
    let mut events =
        vec![name("process_name", format!("kiln: {}", report.name)), name("thread_name", "kernels".to_owned())];
    let live = live(report);
    for (index, (span, (kernel, time))) in
        profile.spans.iter().zip(report.kernels.iter().zip(&profile.kernels)).enumerate()
    {
        let lines = report.lines(&kernel.lines);
        let mut args = report.kernel(index, kernel);
        args["bytes_per_second"] = json!(time.bytes_per_second);
        args["bottleneck"] = json!(time.bottleneck.name());
        args["of_ceiling"] = json!(time.of_ceiling);
        events.push(json!({
            "name": format!("{} {lines}", kernel.form.name()).trim_end(),
            "cat": kernel.form.name(),
            "ph": "X",
            "ts": microseconds(span.begin),
            "dur": microseconds(span.end - span.begin),
            "pid": PROCESS,
            "tid": THREAD,
            "args": args,
        }));
        events.push(json!({
            "name": "bytes alive",
            "ph": "C",
            "ts": microseconds(span.begin),
            "pid": PROCESS,
            "args": { "bytes": live[index] },
        }));
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ns" })
}

fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}
