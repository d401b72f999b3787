//! Points of a kernel's space as terms: coordinates, affine maps of them, bounds.
//!
//! Maps are computed in the kernel's index type, which wraps: what lies outside on the way comes out right, and a bound is one comparison.

use kiln_ir::kernel::{Affine, Bound};

use super::builder::{Builder, Term, Ty};

/// Neighbouring points that one thread computes side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lanes {
    /// Along which axis. The point's coordinate there is a multiple of the width, and so is the extent.
    pub(super) axis: usize,
    /// How many.
    pub(super) width: u32,
}

/// A point, or several neighbours.
#[derive(Clone, Debug)]
pub(super) struct Point {
    /// An index for each axis.
    pub(super) axes: Vec<Term>,
    /// The extent of each axis.
    pub(super) extents: Vec<usize>,
    /// The neighbours, where there is more than one point.
    pub(super) lanes: Option<Lanes>,
}

impl Point {
    /// A single point.
    pub(super) fn new(axes: Vec<Term>, extents: Vec<usize>) -> Point {
        Point { axes, extents, lanes: None }
    }

    /// `width` neighbours along an axis, of which this is the first.
    pub(super) fn with_lanes(mut self, axis: usize, width: u32) -> Point {
        self.lanes = (width > 1).then_some(Lanes { axis, width });
        self
    }

    /// How many points.
    pub(super) fn width(&self) -> u32 {
        self.lanes.map_or(1, |lanes| lanes.width)
    }

    /// Change of a map from one neighbour to the next.
    pub(super) fn lane_stride(&self, affine: &Affine) -> i64 {
        self.lanes.map_or(0, |lanes| affine.stride(lanes.axis))
    }

    /// The value of a map at a neighbour.
    pub(super) fn affine(&self, b: &mut Builder, affine: &Affine, lane: u32) -> Term {
        self.sum(b, affine, lane, &[])
    }

    /// As [`Point::affine`], with further terms, each times a stride.
    pub(super) fn sum(&self, b: &mut Builder, affine: &Affine, lane: u32, more: &[(Term, i64)]) -> Term {
        let offset = affine.offset + self.lane_stride(affine) * i64::from(lane);
        let own = self.axes.iter().enumerate().map(|(axis, at)| (at.clone(), affine.stride(axis)));
        let terms: Vec<(Term, i64)> = own.chain(more.iter().cloned()).collect();
        sum(b, offset, &terms)
    }

    /// Whether all bounds hold at a neighbour; `None` where they hold at every point.
    pub(super) fn bounds(&self, b: &mut Builder, bounds: &[Bound], lane: u32) -> Option<Term> {
        let open: Vec<&Bound> = bounds.iter().filter(|bound| !self.always(bound)).collect();
        if open.is_empty() {
            return None;
        }
        let mut tests = Vec::new();
        for bound in open {
            let at = self.affine(b, &bound.at, lane);
            let inside = match &at {
                Term::Constant(text) => text.parse::<i64>().ok().map(|at| (0..bound.extent as i64).contains(&at)),
                Term::Value(_) => None,
            };
            match inside {
                Some(true) => {}
                Some(false) => return Some(Term::constant("false")),
                None => tests.push(b.expression(Ty::Bool, &format!("$0 < {}", bound.extent), &[at])),
            }
        }
        let first = tests.first().cloned().unwrap_or_else(|| Term::constant("true"));
        Some(tests.iter().skip(1).fold(first, |all, test| b.expression(Ty::Bool, "$0 && $1", &[all, test.clone()])))
    }

    /// Whether a bound holds at every point of the space.
    fn always(&self, bound: &Bound) -> bool {
        if self.extents.contains(&0) {
            return true;
        }
        let (low, high) = bound.at.range(&self.extents);
        low >= 0 && high < bound.extent as i64
    }

    /// Whether any bound that may fail differs between neighbours.
    pub(super) fn bounds_vary(&self, bounds: &[Bound]) -> bool {
        bounds.iter().any(|bound| !self.always(bound) && self.lane_stride(&bound.at) != 0)
    }
}

/// `offset` and terms times strides; a constant where all are.
pub(super) fn sum(b: &mut Builder, offset: i64, terms: &[(Term, i64)]) -> Term {
    let mut offset = offset;
    let mut text = String::new();
    let mut used = Vec::new();
    for (term, stride) in terms.iter().filter(|(_, stride)| *stride != 0) {
        if let Term::Constant(constant) = term {
            offset += constant.parse::<i64>().expect("a constant index is a number") * stride;
            continue;
        }
        let place = used.len();
        used.push(term.clone());
        let size = match stride.unsigned_abs() {
            1 => format!("${place}"),
            size => format!("${place} * {size}"),
        };
        let sign = match (text.is_empty(), *stride < 0) {
            (true, false) => "",
            (true, true) => "0 - ",
            (false, false) => " + ",
            (false, true) => " - ",
        };
        text.push_str(sign);
        text.push_str(&size);
    }
    match (used.len(), offset) {
        (0, _) => return Term::constant(offset.to_string()),
        (1, 0) if text == "$0" => return used[0].clone(),
        (_, 0) => {}
        (_, 1..) => text.push_str(&format!(" + {offset}")),
        (_, _) => text.push_str(&format!(" - {}", -offset)),
    }
    b.expression(Ty::Index, &text, &used)
}

/// The coordinates of a point from its row-major number, which counts the last axis by `width`.
pub(super) fn coordinates(b: &mut Builder, number: &Term, extents: &[usize], width: usize) -> Vec<Term> {
    let last = extents.len().saturating_sub(1);
    let units: Vec<usize> =
        extents.iter().enumerate().map(|(axis, &extent)| if axis == last { extent / width } else { extent }).collect();
    let first = units.iter().position(|&unit| unit != 1);
    let mut all = vec![Term::constant("0"); extents.len()];
    let mut rest = number.clone();
    for axis in (0..extents.len()).rev().filter(|&axis| units[axis] != 1) {
        let is_first = Some(axis) == first;
        let unit = units[axis];
        let mut at =
            if is_first { rest.clone() } else { b.expression(Ty::Index, &format!("$0 % {unit}"), &[rest.clone()]) };
        if axis == last && width > 1 {
            at = sum(b, 0, &[(at, width as i64)]);
        }
        all[axis] = at;
        if !is_first {
            rest = b.expression(Ty::Index, &format!("$0 / {unit}"), &[rest]);
        }
    }
    all
}
