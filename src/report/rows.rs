//! The list of kernels on the page, and what each shows when it is opened: the lines it computes, its values in memory, its text.

use std::fmt::Write;

use kiln_ir::Loc;
use kiln_ir::plan::Edge;

use super::arcs::arcs;
use super::html::{escape, located};
use super::{KernelReport, Report, Sources, count, size};

/// So many launches of the same kernel are named.
const MOST_LINKS: usize = 12;

/// The kernels with the values between them, below each other.
pub(super) fn kernels(report: &Report, sources: &mut Sources<'_>) -> String {
    let mut rows = String::new();
    let (mut row_of, mut number) = (Vec::new(), 0);
    let most = report.kernels.iter().map(KernelReport::bytes).max().unwrap_or(0).max(1) as f64;
    let copies = |before: usize, rows: &mut String| {
        let copies = report.copies.iter().filter(|copy| copy.before == before);
        copies.map(|copy| *rows += &copied(report, copy)).count()
    };
    for (index, kernel) in report.kernels.iter().enumerate() {
        number += copies(index, &mut rows);
        row_of.push(number);
        number += 1;
        rows += &row(report, sources, index, kernel, most);
    }
    number += copies(report.kernels.len(), &mut rows);
    format!(
        r#"<div class="sheet"><div class="flow">{}<div class="rows"><div class="head"><span class="number">#</span><span>form</span><span>computes</span><span class="num">read</span><span class="num">written</span><span class="num">flops</span><span>bytes</span></div>{rows}</div></div></div>"#,
        arcs(report, &row_of, number)
    )
}

fn row(report: &Report, sources: &mut Sources<'_>, index: usize, kernel: &KernelReport, most: f64) -> String {
    let form = kernel.form.name();
    // The last line is most often what the kernel is for; those before it only lead there.
    let shown = kernel.lines.last().and_then(|&loc| sources.line(loc));
    let code = shown.map(|line| format!("<code>{}</code>", escape(&line))).unwrap_or_default();
    let share = |bytes: u64| 100.0 * bytes as f64 / most;
    format!(
        r##"<a href="#kernel-{index}" data-launch="{index}"><span class="number">{index}</span><span><span class="chip hue hue-{form}">{form}</span></span><span class="source">{code}<span class="at">{}</span></span><span class="num">{}</span><span class="num">{}</span><span class="num">{}</span><span class="bar hue hue-{form}"><i style="width:{:.1}%"></i><i style="width:{:.1}%"></i></span></a>"##,
        escape(&report.lines(&kernel.lines)),
        size(kernel.read),
        size(kernel.written),
        count(kernel.flops),
        share(kernel.read),
        share(kernel.written),
    )
}

fn copied(report: &Report, copy: &super::CopyReport) -> String {
    let bytes = size(copy.ty.num_bytes() as u64);
    format!(
        r#"<div><span></span><span><span class="chip hue hue-copy">copy</span></span><span class="source"><code>{}</code><span class="at">{}</span></span><span class="num">{bytes}</span><span class="num">{bytes}</span><span class="num">0</span><span></span></div>"#,
        escape(&copy.ty.to_string()),
        escape(&report.place(copy.loc)),
    )
}

/// What each kernel shows when it is opened.
pub(super) fn details(report: &Report, sources: &mut Sources<'_>) -> String {
    let mut html = String::new();
    let mut same: Vec<Vec<usize>> = vec![Vec::new(); report.distinct_kernels];
    report.kernels.iter().enumerate().for_each(|(index, kernel)| same[kernel.distinct].push(index));
    for (index, kernel) in report.kernels.iter().enumerate() {
        let form = kernel.form.name();
        let _ = write!(
            html,
            r##"<section class="detail" id="kernel-{index}"><h3>Kernel {index} <span class="chip hue hue-{form}">{form}</span><a href="#kernels">close</a></h3>{} read, {} written, {} flops"##,
            size(kernel.read),
            size(kernel.written),
            count(kernel.flops),
        );
        let alike: Vec<usize> = same[kernel.distinct].iter().copied().filter(|&other| other != index).collect();
        if !alike.is_empty() {
            let links: Vec<String> = alike.iter().take(MOST_LINKS).map(|&other| launch(other)).collect();
            let more = alike.len() - links.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let _ = write!(html, "<h4>the same kernel runs as</h4>{}{more}", links.join(", "));
        }
        html += "<h4>computes</h4><pre>";
        for &loc in &kernel.lines {
            let code = sources.line(loc).unwrap_or_default();
            let _ = writeln!(html, "{}  <span class=\"at\">{}</span>", escape(&code), escape(&report.place(loc)));
        }
        html += "</pre>";
        let read = report.ledger.iter().filter(|edge| edge.readers.iter().any(|reader| reader.launch == index));
        section(&mut html, report, "reads from other kernels", read, |edge| {
            edge.made_by.map_or_else(|| "nobody".to_owned(), |maker| format!("from {}", launch(maker)))
        });
        let made = report.ledger.iter().filter(|edge| edge.made_by == Some(index));
        section(&mut html, report, "leaves in memory", made, |edge| {
            let mut readers: Vec<usize> = edge.readers.iter().map(|reader| reader.launch).collect();
            readers.dedup();
            let links: Vec<String> = readers.into_iter().map(launch).collect();
            if links.is_empty() { "for the caller".to_owned() } else { format!("for {}", links.join(", ")) }
        });
        let _ = write!(html, "<h4>kernel</h4><pre>{}</pre></section>", escape(&kernel.kernel.to_string()));
    }
    html
}

fn section<'a>(
    html: &mut String,
    report: &Report,
    title: &str,
    edges: impl Iterator<Item = &'a Edge>,
    end: impl Fn(&Edge) -> String,
) {
    let lines: Vec<String> = edges
        .map(|edge| {
            let code = edge.blocked.code();
            format!(
                r#"<div class="edge"><code>{}</code> {} {} <span class="chip hue hue-{code}">{code}</span> {}</div>"#,
                escape(&edge.ty.to_string()),
                size(edge.bytes() as u64),
                end(edge),
                located(report, edge.loc),
            )
        })
        .collect();
    if !lines.is_empty() {
        let _ = write!(html, "<h4>{title}</h4>{}", lines.concat());
    }
}

/// A link to a kernel.
pub(super) fn launch(index: usize) -> String {
    format!(r##"<a class="to" href="#kernel-{index}">kernel {index}</a>"##)
}

/// A line of the user's: its text, and where it stands.
pub(super) fn source(report: &Report, sources: &mut Sources<'_>, loc: Loc) -> String {
    let code = sources.line(loc).map(|line| format!(r#"<code class="source-line">{}</code>"#, escape(&line)));
    code.unwrap_or_default() + &located(report, loc)
}
