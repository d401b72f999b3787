//! A report as one page that needs nothing beside it: no script, font or picture from elsewhere.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use kiln_ir::plan::{Blocked, Edge};
use kiln_ir::{Diagnostics, Loc};

use super::rows::{details, kernels, launch, source};
use super::timeline::{live, timeline};
use super::{Report, Sources, count, size};
use crate::graph_file::unwritable;

/// Pixels of a row in the list of kernels.
pub(super) const ROW: usize = 34;

impl Report {
    /// The report as a page: totals, kernels and the values between them, the ledger, memory over time. Source lines are shown where their
    /// files are found, as in errors.
    ///
    /// ```
    /// use kiln::prelude::*;
    /// let double = jit(&Device::cpu(), |x: Tensor| x * 2.0).named("double");
    /// double.call(1.5)?;
    /// let page = double.report().to_html();
    /// assert!(page.starts_with("<!doctype html>") && page.contains("<title>double · kiln report</title>"));
    /// assert!(!page.contains("http"));
    /// # Ok::<(), kiln::Error>(())
    /// ```
    pub fn to_html(&self) -> String {
        let mut sources = Sources::new(self);
        let name = escape(&self.name);
        let style = include_str!("page.css");
        let script = include_str!("page.js");
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><meta name=\"color-scheme\" content=\"light dark\"><title>{name} · kiln report</title><style>\n{style}</style></head><body>\n"
        );
        let _ = writeln!(
            page,
            r##"<nav><b>{name}</b><a href="#kernels">Kernels</a><a href="#memory">Memory</a><a href="#ledger">Ledger</a><a href="#capture">Capture</a></nav><main><div class="cards">{}</div>"##,
            self.cards()
        );
        let _ = writeln!(
            page,
            r#"<h2 id="kernels">Kernels</h2><p class="about">In running order. A line on the left is a value that stays in memory, from the kernel that makes it down to those that read it; its colour is the reason. Open a kernel to see what it computes.</p>{}"#,
            kernels(self, &mut sources)
        );
        let _ = writeln!(
            page,
            r#"<h2 id="memory">Memory</h2><p class="about">What is alive at each launch, beside the arguments, and below it which slot holds what from when to when. Memory for all of it is taken before the first launch.</p><div class="sheet">{}</div>"#,
            timeline(self)
        );
        let _ = writeln!(
            page,
            r#"<h2 id="ledger">Ledger</h2><p class="about">Every value that stays in memory between kernels, and why it does.</p>{}"#,
            self.ledger_table(&mut sources)
        );
        let _ = writeln!(
            page,
            r#"<h2 id="capture">Capture</h2><div class="sheet"><ul class="plain">{}</ul></div>"#,
            self.capture(&mut sources)
        );
        let _ = writeln!(page, "<footer>written by kiln {}</footer></main>", env!("CARGO_PKG_VERSION"));
        page += &details(self, &mut sources);
        page + "<script>\n" + script + "</script></body></html>\n"
    }

    /// Writes [`Report::to_html`] to a file. K1001 where it cannot be written.
    pub fn save_html(&self, path: impl AsRef<Path>) -> Result<(), Diagnostics> {
        std::fs::write(&path, self.to_html()).map_err(|error| unwritable(path.as_ref(), &error).into())
    }

    fn cards(&self) -> String {
        let card = |what: &str, value: String, more: String| {
            format!(
                r#"<div class="card"><div class="what">{what}</div><div class="value">{value}</div><div class="more">{more}</div></div>"#
            )
        };
        let alive = live(self).into_iter().max().unwrap_or(0);
        let edges = self.ledger.iter().filter(|edge| edge.blocked != Blocked::Output).count();
        let values = format!("in {edges} edges");
        let per_byte = self.flops() as f64 / self.bytes().max(1) as f64;
        [
            card("launches per call", self.launches().to_string(), format!("of {} kernels", self.distinct_kernels)),
            card(
                "bytes moved",
                size(self.bytes()),
                format!("{} read, {} written", size(self.read()), size(self.written())),
            ),
            card("kept between kernels", size(self.ledger_bytes()), values),
            card("floating-point operations", count(self.flops()), format!("{per_byte:.1} for each byte")),
            card("peak memory", size(self.peak_bytes as u64), format!("{} alive at once", size(alive))),
        ]
        .concat()
    }

    fn ledger_table(&self, sources: &mut Sources<'_>) -> String {
        if self.ledger.is_empty() {
            return r#"<div class="sheet"><ul class="plain"><li>Nothing stays in memory between kernels.</li></ul></div>"#.to_owned();
        }
        let mut edges: Vec<&Edge> = self.ledger.iter().collect();
        // Results are in memory whatever is fused.
        edges.sort_by_key(|edge| (edge.blocked == Blocked::Output, std::cmp::Reverse(edge.bytes())));
        let mut rows = String::new();
        for edge in edges {
            let code = edge.blocked.code();
            let made = edge.made_by.map(launch).unwrap_or_default();
            let _ = write!(
                rows,
                r#"<tr><td><code>{}</code></td><td class="num">{}</td><td><span class="chip hue hue-{code}">{code}</span></td><td>{made} {}</td><td>{}</td></tr>"#,
                escape(&edge.ty.to_string()),
                size(edge.bytes() as u64),
                source(self, sources, edge.loc),
                self.readers(edge, sources),
            );
        }
        format!(
            r#"{}<div class="sheet"><table><thead><tr><th>value</th><th class="num">bytes</th><th>reason</th><th>made by</th><th>read by</th></tr></thead><tbody>{rows}</tbody></table></div>"#,
            self.reasons()
        )
    }

    fn readers(&self, edge: &Edge, sources: &mut Sources<'_>) -> String {
        if edge.readers.is_empty() {
            return "the caller".to_owned();
        }
        // Kernels that read it at one line stand together.
        let mut lines: Vec<(Loc, Vec<String>)> = Vec::new();
        for reader in &edge.readers {
            match lines.iter_mut().find(|(loc, _)| *loc == reader.loc) {
                Some((_, launches)) => launches.push(launch(reader.launch)),
                None => lines.push((reader.loc, vec![launch(reader.launch)])),
            }
        }
        let lines = lines
            .into_iter()
            .map(|(loc, launches)| format!("<div>{} {}</div>", launches.join(", "), source(self, sources, loc)));
        lines.collect()
    }

    /// The reasons with the bytes that each keeps in memory.
    fn reasons(&self) -> String {
        let mut bytes: BTreeMap<Blocked, (u64, usize)> = BTreeMap::new();
        for edge in &self.ledger {
            let (sum, count) = bytes.entry(edge.blocked).or_default();
            *sum += edge.bytes() as u64;
            *count += 1;
        }
        let (mut share, mut legend) = (String::new(), String::new());
        for (reason, (bytes, edges)) in bytes {
            let code = reason.code();
            // Results are in memory whatever is fused.
            if reason != Blocked::Output {
                let _ = write!(
                    share,
                    r#"<i class="hue hue-{code}" style="flex:{}" title="{code}: {}"></i>"#,
                    bytes.max(1),
                    size(bytes)
                );
            }
            let _ = write!(
                legend,
                r#"<span><span class="chip hue hue-{code}">{code}</span> {} in {edges}: {}</span>"#,
                size(bytes),
                reason.reason()
            );
        }
        format!(r#"<div class="share">{share}</div><div class="reasons">{legend}</div>"#)
    }

    fn capture(&self, sources: &mut Sources<'_>) -> String {
        let mut lines = vec![format!(
            "captured in {:.1?}, compiled in {:.1?}, run {} times",
            self.capture_time, self.compile_time, self.runs
        )];
        let cache = self.cache.to_string();
        lines.extend(cache.lines().map(escape));
        for baked in &self.baked {
            lines.push(format!(
                "baked in: <code>{} = {}</code> {}",
                escape(&baked.ty.to_string()),
                escape(&baked.text),
                source(self, sources, baked.loc)
            ));
        }
        for notice in &self.notices {
            lines.push(format!("{} {}", escape(&notice.text), located(self, notice.loc)));
        }
        for (name, times) in &self.copied {
            lines.push(format!("leaf <code>{}</code> was copied {times} times: another handle lives", escape(name)));
        }
        lines.into_iter().map(|line| format!("<li>{line}</li>")).collect()
    }
}

/// Where a line stands.
pub(super) fn located(report: &Report, loc: Loc) -> String {
    format!(r#"<span class="at">{}</span>"#, escape(&report.place(loc)))
}

/// A text with nothing in it that HTML would take for markup.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            other => escaped.push(other),
        }
    }
    escaped
}

#[test]
fn every_reason_has_a_colour() {
    let style = include_str!("page.css");
    for reason in Blocked::ALL {
        let class = format!(".hue-{}", reason.code());
        assert!(style.contains(&format!("{class} ")) || style.contains(&format!("{class},")), "{class}");
    }
}
