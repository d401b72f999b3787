//! A report as people read it in a terminal.

use std::collections::HashMap;
use std::fmt;

use kiln_capture::Baked;
use kiln_ir::Loc;
use kiln_ir::plan::Edge;

use super::{KernelReport, Report, count, size};
use crate::cache::CacheStatistics;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (launches, kernels) = (self.launches(), self.distinct_kernels);
        let (read, written) = (size(self.read()), size(self.written()));
        writeln!(f, "`{}`: {launches} launches per call of {kernels} kernels, {}", self.name, size(self.bytes()))?;
        writeln!(f, "  {read} read, {written} written, {} flops", count(self.flops()))?;
        writeln!(f, "peak memory: {} beside the arguments", size(self.peak_bytes as u64))?;
        // A plan that was read off alone was neither timed nor run.
        if !(self.capture_time + self.compile_time).is_zero() {
            let (capture, compile) = (self.capture_time, self.compile_time);
            writeln!(f, "captured in {capture:.1?}, compiled in {compile:.1?}, run {} times", self.runs)?;
        }
        self.kernels(f)?;
        self.edges(f)?;
        if !self.recomputed.is_empty() {
            writeln!(f, "computed again to fit the budget:")?;
        }
        counted(f, self.recomputed.iter().map(|value| format!("{} made at {}", value.ty, self.place(value.loc))))?;
        if !self.baked.is_empty() {
            writeln!(f, "baked in:")?;
        }
        let baked = |baked: &Baked| format!("{} = {} at {}", baked.ty, baked.text, self.place(baked.loc));
        counted(f, self.baked.iter().map(baked))?;
        for notice in &self.notices {
            writeln!(f, "note: {} ({})", notice.text, self.place(notice.loc))?;
        }
        for (name, times) in &self.copied {
            let often = if *times == 1 { "once".to_owned() } else { format!("{times} times") };
            writeln!(f, "leaf `{name}` was copied {often}: another handle lives")?;
        }
        // A graph that was run as it stands has no cache.
        if self.cache == CacheStatistics::default() { Ok(()) } else { self.cache.fmt(f) }
    }
}

impl Report {
    /// One line for each launch, and for each copy before it.
    fn kernels(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.kernels.is_empty() {
            writeln!(f, "  {:>3}  {:9} {:>10} {:>10} {:>9}", "", "kernel", "read", "written", "flops")?;
        }
        let copies = |f: &mut fmt::Formatter<'_>, before: usize| {
            let mut copies = self.copies.iter().filter(|copy| copy.before == before);
            copies.try_for_each(|copy| {
                let bytes = size(copy.ty.num_bytes() as u64);
                writeln!(f, "       {:9} {bytes:>10} {bytes:>10} {:>9}  {}", "copy", 0, self.place(copy.loc))
            })
        };
        for (index, kernel) in self.kernels.iter().enumerate() {
            copies(f, index)?;
            let (read, written, flops) = (size(kernel.read), size(kernel.written), count(kernel.flops));
            let form = kernel.form.name();
            writeln!(f, "  {index:>3}  {form:9} {read:>10} {written:>10} {flops:>9}  {}", self.lines(&kernel.lines))?;
        }
        copies(f, self.kernels.len())?;
        let spread = |kernel: &KernelReport| kernel.schedule.as_ref().map(ToString::to_string);
        let spread: Vec<(usize, String)> =
            self.kernels.iter().enumerate().filter_map(|(index, kernel)| Some((index, spread(kernel)?))).collect();
        if !spread.is_empty() {
            writeln!(f, "spread over the GPU, by workgroup:")?;
        }
        spread.iter().try_for_each(|(index, schedule)| writeln!(f, "  {index:>3}  {schedule}"))
    }

    /// The ledger, values of one line and reason together.
    fn edges(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ledger.is_empty() {
            return Ok(());
        }
        writeln!(f, "left in memory, {} of it between kernels:", size(self.ledger_bytes()))?;
        let edge = |edge: &Edge| {
            let (made, bytes) = (self.place(edge.loc), size(edge.bytes() as u64));
            let mut readers: Vec<String> = Vec::new();
            for reader in &edge.readers {
                let place = self.place(reader.loc);
                if !readers.contains(&place) {
                    readers.push(place);
                }
            }
            let read = if readers.is_empty() { String::new() } else { format!(", read at {}", readers.join(", ")) };
            let (code, reason) = (edge.blocked.code(), edge.blocked.reason());
            format!("[{code}] {} ({bytes}) made at {made}{read}: {reason}", edge.ty)
        };
        counted(f, self.ledger.iter().map(edge))
    }

    /// The lines of one kernel: each file once, with its line numbers.
    pub(crate) fn lines(&self, locs: &[Loc]) -> String {
        let mut files: Vec<(String, Vec<String>)> = Vec::new();
        for &loc in locs {
            let (Some((line, _)), Some(file)) = (loc.line_column(), self.file(loc)) else { continue };
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
