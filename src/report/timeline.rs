//! Memory over time as SVG: how much is alive at each launch, and which buffer is in which slot from when to when.

use std::fmt::Write;

use super::html::escape;
use super::{Lifetime, Place, Report, size};

/// Pixels left of the launches, for names.
const NAMES: f64 = 150.0;
/// Pixels of the curve.
const CURVE: f64 = 130.0;
/// Pixels of a row where there are few of them, and where there are many.
const ROW: [f64; 2] = [17.0, 11.0];
/// More rows than this are many.
const FEW_ROWS: usize = 60;
/// Results and constants beyond so many are told in one line.
const MOST_ROWS: usize = 16;

/// One row below the curve.
struct Row<'a> {
    name: String,
    class: &'static str,
    bars: Vec<&'a Lifetime>,
}

/// The bytes of planned memory whose contents matter at each launch.
pub(crate) fn live(report: &Report) -> Vec<u64> {
    let mut live = vec![0u64; report.launches()];
    for buffer in report.memory.iter().filter(|buffer| buffer.is_planned()) {
        for bytes in live.iter_mut().take(buffer.last + 1).skip(buffer.first) {
            *bytes += buffer.bytes() as u64;
        }
    }
    // Operands and the results written over them are one piece of memory.
    for (index, bytes) in live.iter_mut().enumerate() {
        let at = |buffer: &&Lifetime| buffer.first <= index && index <= buffer.last;
        let mut slots = std::collections::HashMap::new();
        for buffer in report.memory.iter().filter(at) {
            if let Place::Slot(slot) = buffer.place {
                let most: &mut u64 = slots.entry(slot).or_default();
                let own = buffer.bytes() as u64;
                *bytes -= own.min(*most);
                *most = own.max(*most);
            }
        }
    }
    live
}

/// The timeline. Empty where nothing is launched.
pub(super) fn timeline(report: &Report) -> String {
    let launches = report.launches();
    if launches == 0 {
        return String::new();
    }
    let live = live(report);
    let (rows, left_out) = rows(report);
    let step = (1040.0 / launches as f64).clamp(3.2, 150.0);
    let high = ROW[usize::from(rows.len() > FEW_ROWS)];
    let width = NAMES + step * launches as f64 + 24.0;
    let height = CURVE + 44.0 + high * rows.len() as f64;
    let mut svg = format!(
        r#"<svg class="time" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.0} {height:.0}" role="img" aria-label="memory over time">"#
    );
    curve(&mut svg, report, &live, step);
    for (index, row) in rows.iter().enumerate() {
        let y = CURVE + 40.0 + high * index as f64;
        let _ = write!(
            svg,
            r#"<text x="{}" y="{:.1}" text-anchor="end" style="font-size:{}px">{}</text><g>"#,
            NAMES - 10.0,
            y + high * 0.66,
            (high * 0.8).min(11.0),
            escape(&row.name)
        );
        for buffer in &row.bars {
            let (x, w) = (NAMES + step * buffer.first as f64, step * (buffer.last - buffer.first + 1) as f64);
            let told = format!(
                "{} ({}), launches {} to {}, made at {}",
                buffer.ty,
                size(buffer.bytes() as u64),
                buffer.first,
                buffer.last,
                report.place(buffer.loc)
            );
            let _ = write!(
                svg,
                r#"<rect class="{}" x="{:.1}" y="{y:.1}" width="{:.1}" height="{}" rx="2"><title>{}</title></rect>"#,
                row.class,
                x + 0.5,
                (w - 1.0).max(1.5),
                high - if high > 12.0 { 4.0 } else { 2.0 },
                escape(&told)
            );
        }
        svg += "</g>";
    }
    svg += "</svg>";
    if !left_out.is_empty() {
        let _ = write!(
            svg,
            r#"<ul class="plain at">{}</ul>"#,
            left_out.iter().map(|line| format!("<li>{}</li>", escape(line))).collect::<String>()
        );
    }
    svg
}

/// The curve of live bytes, with the most that is alive and what the plan takes in all.
fn curve(svg: &mut String, report: &Report, live: &[u64], step: f64) {
    let (at, most) =
        live.iter().copied().enumerate().max_by_key(|&(index, bytes)| (bytes, usize::MAX - index)).unwrap_or((0, 0));
    let top = (report.peak_bytes as u64).max(most).max(1) as f64;
    let (base, scale) = (CURVE + 16.0, (CURVE - 8.0) / top);
    let end = NAMES + step * live.len() as f64;
    let mut path = format!("M{NAMES} {base}");
    for (index, &bytes) in live.iter().enumerate() {
        let x = NAMES + step * index as f64;
        let _ = write!(path, "L{x:.1} {y:.1}L{:.1} {y:.1}", x + step, y = base - bytes as f64 * scale);
    }
    let planned = base - report.peak_bytes as f64 * scale;
    let (x, y) = (NAMES + step * (at as f64 + 0.5), base - most as f64 * scale);
    let _ = write!(
        svg,
        r#"<path class="live" d="{path}L{end:.1} {base}Z"/><line class="grid" x1="{NAMES}" x2="{end:.1}" y1="{base}" y2="{base}"/>
<line class="planned" x1="{NAMES}" x2="{end:.1}" y1="{planned:.1}" y2="{planned:.1}"/><text x="{}" y="{:.1}" text-anchor="end" class="label">{}</text>
<text x="{}" y="{:.1}" text-anchor="end">taken in all</text><circle class="peak" cx="{x:.1}" cy="{y:.1}" r="3.5"/>"#,
        NAMES - 10.0,
        planned + 4.0,
        size(report.peak_bytes as u64),
        NAMES - 10.0,
        planned + 18.0,
    );
    let (anchor, shift) = if x > end - 200.0 { ("end", -9.0) } else { ("start", 9.0) };
    let _ = write!(
        svg,
        r#"<text class="peak-text" x="{:.1}" y="{:.1}" text-anchor="{anchor}">{} alive at kernel {at}</text>"#,
        x + shift,
        if y > 34.0 { y - 7.0 } else { y + 16.0 },
        size(most),
    );
    let every =
        [1usize, 2, 5, 10, 20, 50, 100, 200, 500].into_iter().find(|&n| n as f64 * step >= 34.0).unwrap_or(1000);
    for index in (0..live.len()).step_by(every) {
        let x = NAMES + step * (index as f64 + 0.5);
        let _ = write!(svg, r#"<text x="{x:.1}" y="{:.1}" text-anchor="middle">{index}</text>"#, base + 14.0);
    }
}

/// A row for each slot, then results and constants, the largest first; and what is left out, in words.
fn rows(report: &Report) -> (Vec<Row<'_>>, Vec<String>) {
    let mut rows: Vec<Row<'_>> = report
        .slots
        .iter()
        .enumerate()
        .map(|(slot, &bytes)| {
            let bars = report.memory.iter().filter(|buffer| buffer.place == Place::Slot(slot)).collect();
            Row { name: format!("slot {slot} · {}", size(bytes as u64)), class: "slot", bars }
        })
        .collect();
    let mut left_out = Vec::new();
    let mut others = |class: &'static str, what: &str, chosen: &dyn Fn(&Place) -> Option<String>| {
        let mut found: Vec<(String, &Lifetime)> =
            report.memory.iter().filter_map(|buffer| Some((chosen(&buffer.place)?, buffer))).collect();
        found.sort_by_key(|(_, buffer)| std::cmp::Reverse(buffer.bytes()));
        let rest = found.split_off(found.len().min(MOST_ROWS));
        rows.extend(found.into_iter().map(|(name, buffer)| {
            let name = format!("{} · {}", shortened(&name), size(buffer.bytes() as u64));
            Row { name, class, bars: vec![buffer] }
        }));
        if !rest.is_empty() {
            let bytes = rest.iter().map(|(_, buffer)| buffer.bytes() as u64).sum();
            left_out.push(format!("{} smaller {what} of {} are not drawn", rest.len(), size(bytes)));
        }
    };
    others("result", "results", &|place| match place {
        Place::Result(name) => Some(name.clone()),
        Place::Argument(_) | Place::Constant | Place::InPlace { .. } | Place::Slot(_) => None,
    });
    others("constant", "constants", &|place| match place {
        Place::Constant => Some("constant".to_owned()),
        Place::Argument(_) | Place::Result(_) | Place::InPlace { .. } | Place::Slot(_) => None,
    });
    let in_place = report.memory.iter().filter(|buffer| matches!(buffer.place, Place::InPlace { .. }));
    let (count, bytes) = in_place.fold((0, 0), |(count, bytes), buffer| (count + 1, bytes + buffer.bytes() as u64));
    if count > 0 {
        let results = if count == 1 { "1 result is".to_owned() } else { format!("{count} results are") };
        left_out.push(format!(
            "{results} written over the arguments they replace ({}), which takes no memory",
            size(bytes)
        ));
    }
    (rows, left_out)
}

fn shortened(name: &str) -> String {
    let characters = name.chars().count();
    if characters <= 14 {
        name.to_owned()
    } else {
        format!("…{}", name.chars().skip(characters - 13).collect::<String>())
    }
}
