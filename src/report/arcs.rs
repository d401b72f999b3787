//! The graph of kernels beside their list: each value that stays in memory is a line from the launch that makes it to those that read it.
//!
//! Launches stand below each other in running order, so every line goes down; lines that are open at the same row run in lanes of their own,
//! the shortest next to the list. All values of one launch share a line. A reader that is far away gets no line, which would say nothing
//! among many: both ends have a dot, which names the other end.

use std::collections::BTreeMap;
use std::fmt::Write;

use kiln_ir::plan::Blocked;

use super::html::{ROW, escape};
use super::{Report, size};

/// Pixels between lanes.
const LANE: usize = 9;
/// Pixels beside the outermost lane.
const MARGIN: usize = 16;
/// Lines beyond so many lanes share the outermost one.
const MOST_LANES: usize = 28;
/// Readers beyond so many launches are far.
const FAR: usize = 24;

/// What one launch makes for others.
struct Bus {
    from: usize,
    /// Readers, each with the bytes that it reads and the reason for most of them.
    to: BTreeMap<usize, (u64, Blocked)>,
    lane: usize,
}

impl Bus {
    fn is_near(&self, reader: usize) -> bool {
        reader - self.from <= FAR
    }

    /// The last reader that a line is drawn to.
    fn end(&self) -> usize {
        self.to.keys().rev().copied().find(|&reader| self.is_near(reader)).unwrap_or(self.from)
    }
}

/// The lines as SVG, for rows at these heights. Empty where no kernel reads what another makes.
pub(super) fn arcs(report: &Report, row_of: &[usize], rows: usize) -> String {
    let buses = laned(buses(report));
    let lanes = buses.iter().map(|bus| bus.lane + 1).max().unwrap_or(0);
    let (width, height) = (MARGIN + lanes * LANE, rows * ROW);
    let middle = |launch: usize| row_of[launch] * ROW + ROW / 2;
    let mut svg = format!(r#"<svg width="{width}" height="{height}" role="img" aria-label="values between kernels">"#);
    for bus in &buses {
        let readers: Vec<String> = bus.to.keys().map(usize::to_string).collect();
        let _ = write!(svg, r#"<g data-from="{}" data-to="{}">"#, bus.from, readers.join(" "));
        let x = width - MARGIN / 2 - (bus.lane + 1) * LANE;
        let near: Vec<usize> = bus.to.keys().copied().filter(|&reader| bus.is_near(reader)).collect();
        if !near.is_empty() {
            let hue = bus.to.values().max_by_key(|(bytes, _)| *bytes).map_or("", |(_, reason)| reason.code());
            let (top, bottom) = (middle(bus.from) + 3, middle(bus.end()) - 3);
            let told = near.iter().map(|&reader| told(bus, reader)).collect::<Vec<_>>().join("\n");
            let _ = write!(
                svg,
                r#"<path class="arc hue hue-{hue}" d="M{width} {top}H{}Q{x} {top} {x} {}V{}"><title>{}</title></path>"#,
                x + 5,
                top + 5,
                bottom - 5,
                escape(&told),
            );
        }
        for (&reader, (_, reason)) in &bus.to {
            let (y, tip, hue) = (middle(reader) - 3, width - 5, reason.code());
            if bus.is_near(reader) {
                let _ = write!(
                    svg,
                    r#"<g class="hue hue-{hue}"><path class="arc" d="M{x} {}Q{x} {y} {} {y}H{tip}"/><path class="tip" d="M{width} {y}l-6 -3.2v6.4z"/></g>"#,
                    y - 5,
                    x + 5,
                );
            } else {
                let dot = |y: usize| {
                    let told = escape(&told(bus, reader));
                    format!(
                        r#"<circle class="far hue hue-{hue}" cx="{tip}" cy="{y}" r="3"><title>{told}</title></circle>"#
                    )
                };
                svg += &dot(middle(bus.from) + 8);
                svg += &dot(middle(reader) - 9);
            }
        }
        svg += "</g>";
    }
    svg + "</svg>"
}

fn told(bus: &Bus, reader: usize) -> String {
    let (bytes, reason) = bus.to[&reader];
    format!("kernel {} to {reader}: {}, {}", bus.from, size(bytes), reason.code())
}

fn buses(report: &Report) -> Vec<Bus> {
    let mut buses: BTreeMap<usize, Bus> = BTreeMap::new();
    let mut largest: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    for edge in &report.ledger {
        let Some(from) = edge.made_by else { continue };
        for reader in edge.readers.iter().filter(|reader| reader.launch > from) {
            let bus = buses.entry(from).or_insert_with(|| Bus { from, to: BTreeMap::new(), lane: 0 });
            let bytes = edge.bytes() as u64;
            let end = bus.to.entry(reader.launch).or_insert((0, edge.blocked));
            let most = largest.entry((from, reader.launch)).or_default();
            if bytes > *most {
                (*most, end.1) = (bytes, edge.blocked);
            }
            end.0 += bytes;
        }
    }
    buses.into_values().collect()
}

/// Gives every line its lane.
fn laned(mut buses: Vec<Bus>) -> Vec<Bus> {
    buses.sort_by_key(|bus| (bus.end() - bus.from, bus.from));
    let mut lanes: Vec<Vec<(usize, usize)>> = Vec::new();
    for bus in &mut buses {
        let (from, to) = (bus.from, bus.end());
        let free = |taken: &Vec<(usize, usize)>| taken.iter().all(|&(first, last)| last <= from || first >= to);
        let lane = lanes.iter().position(free).unwrap_or(lanes.len()).min(MOST_LANES - 1);
        if lane == lanes.len() {
            lanes.push(Vec::new());
        }
        lanes[lane].push((from, to));
        bus.lane = lane;
    }
    buses
}
