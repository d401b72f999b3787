//! A report as JSON, for programs. The schema is written down in `docs/report.md`; a change that readers could notice raises its version.

use kiln_ir::Loc;
use kiln_ir::plan::Edge;
use serde_json::{Value, json};

use super::{KernelReport, Lifetime, Place, Report};

/// The version of the JSON that [`Report::to_json`] writes, under the key `version`. Keys may be added within a version; none is taken away,
/// and none changes its meaning.
pub const SCHEMA_VERSION: u32 = 1;

impl Report {
    /// The report as JSON, keys in a fixed order. `docs/report.md` describes them.
    ///
    /// ```
    /// use kiln::prelude::*;
    /// let double = jit(&Device::cpu(), |x: Tensor| x * 2.0);
    /// double.call(1.5)?;
    /// let json = double.report().to_json();
    /// let read: serde_json::Value = serde_json::from_str(&json).unwrap();
    /// assert_eq!(read["schema"], "kiln-report");
    /// assert_eq!(read["version"], kiln::SCHEMA_VERSION);
    /// assert_eq!(read["kernels"][0]["form"], "map");
    /// assert_eq!(read["totals"]["read_bytes"], 4);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(&self.json()).expect("plain data is JSON")
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "schema": "kiln-report",
            "version": SCHEMA_VERSION,
            "name": self.name,
            "totals": {
                "launches": self.launches(),
                "distinct_kernels": self.distinct_kernels,
                "copies": self.copies.len(),
                "read_bytes": self.read(),
                "written_bytes": self.written(),
                "flops": self.flops(),
                "peak_bytes": self.peak_bytes,
                "ledger_bytes": self.ledger_bytes(),
            },
            "kernels": self.kernels.iter().enumerate().map(|(index, kernel)| self.kernel(index, kernel)).collect::<Vec<_>>(),
            "copies": self.copies.iter().map(|copy| json!({
                "before_launch": copy.before,
                "type": copy.ty.to_string(),
                "bytes": copy.ty.num_bytes(),
                "line": self.line(copy.loc),
            })).collect::<Vec<_>>(),
            "recomputed": self.recomputed.iter().map(|value| json!({
                "type": value.ty.to_string(),
                "line": self.line(value.loc),
            })).collect::<Vec<_>>(),
            "ledger": self.ledger.iter().map(|edge| self.edge(edge)).collect::<Vec<_>>(),
            "memory": {
                "slot_bytes": self.slots,
                "buffers": self.memory.iter().map(|lifetime| self.lifetime(lifetime)).collect::<Vec<_>>(),
            },
            "baked": self.baked.iter().map(|baked| json!({
                "type": baked.ty.to_string(),
                "value": baked.text,
                "line": self.line(baked.loc),
            })).collect::<Vec<_>>(),
            "notices": self.notices.iter().map(|notice| json!({
                "text": notice.text,
                "line": self.line(notice.loc),
            })).collect::<Vec<_>>(),
            "copied_leaves": self.copied.iter().map(|(name, times)| json!({ "name": name, "times": times })).collect::<Vec<_>>(),
            "capture_seconds": self.capture_time.as_secs_f64(),
            "compile_seconds": self.compile_time.as_secs_f64(),
            "runs": self.runs,
            "cache": {
                "entries": self.cache.entries,
                "hits": self.cache.hits,
                "misses": self.cache.misses,
                "evictions": self.cache.evictions,
                "reasons": self.cache.reasons,
                "warning": self.cache.warning,
            },
        })
    }

    pub(crate) fn kernel(&self, index: usize, kernel: &KernelReport) -> Value {
        let mut told = json!({
            "launch": index,
            "kernel": kernel.distinct,
            "form": kernel.form.name(),
            "lines": kernel.lines.iter().map(|&loc| self.line(loc)).collect::<Vec<_>>(),
            "read_bytes": kernel.read,
            "written_bytes": kernel.written,
            "flops": kernel.flops,
        });
        if let Some(schedule) = &kernel.schedule {
            told["schedule"] = json!(schedule.to_string());
        }
        told
    }

    fn edge(&self, edge: &Edge) -> Value {
        let readers = edge.readers.iter();
        json!({
            "type": edge.ty.to_string(),
            "bytes": edge.bytes(),
            "reason": edge.blocked.code(),
            "because": edge.blocked.reason(),
            "made_at": self.line(edge.loc),
            "made_by": edge.made_by,
            "readers": readers
                .map(|reader| json!({ "launch": reader.launch, "line": self.line(reader.loc) }))
                .collect::<Vec<_>>(),
        })
    }

    fn lifetime(&self, lifetime: &Lifetime) -> Value {
        let (place, slot, name, argument) = match &lifetime.place {
            Place::Argument(name) => ("argument", None, Some(name), None),
            Place::Constant => ("constant", None, None, None),
            Place::Result(name) => ("result", None, Some(name), None),
            Place::InPlace { name, argument } => ("in-place", None, Some(name), Some(argument)),
            Place::Slot(slot) => ("slot", Some(slot), None, None),
        };
        json!({
            "place": place,
            "slot": slot,
            "name": name,
            "argument": argument,
            "type": lifetime.ty.to_string(),
            "bytes": lifetime.bytes(),
            "line": self.line(lifetime.loc),
            "first_launch": lifetime.first,
            "last_launch": lifetime.last,
        })
    }

    /// A line, or null where none is known.
    fn line(&self, loc: Loc) -> Option<String> {
        (!loc.is_unknown()).then(|| self.place(loc))
    }
}
