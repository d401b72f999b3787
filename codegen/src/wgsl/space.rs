//! Points of a kernel's space as text: coordinates, affine maps of them, bounds.
//!
//! Maps are computed in `i32`, which wraps: an element index up to 2^32 comes out right once it is read as `u32`.

use kiln_ir::kernel::{Affine, Bound};

/// Neighbouring points that one invocation computes side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lanes {
    /// Along which axis. The point's coordinate there is a multiple of the width, and so is the extent.
    pub(super) axis: usize,
    /// How many: 2 or 4.
    pub(super) width: u32,
}

/// A point, or several neighbours.
#[derive(Clone, Debug)]
pub(super) struct Point {
    /// A WGSL expression of type `i32` for each axis: a name, a number or a parenthesised term.
    pub(super) axes: Vec<String>,
    /// The extent of each axis.
    pub(super) extents: Vec<usize>,
    /// The neighbours, where there is more than one point.
    pub(super) lanes: Option<Lanes>,
}

impl Point {
    /// A single point.
    pub(super) fn new(axes: impl Into<Vec<String>>, extents: impl Into<Vec<usize>>) -> Point {
        Point { axes: axes.into(), extents: extents.into(), lanes: None }
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

    /// The value of a map at the neighbour `lane`, as an `i32` expression.
    pub(super) fn affine(&self, affine: &Affine, lane: u32) -> String {
        self.sum(affine.offset + self.lane_stride(affine) * i64::from(lane), affine, &[])
    }

    /// As [`Point::affine`], with further terms: expressions times strides.
    pub(super) fn sum(&self, offset: i64, affine: &Affine, more: &[(String, i64)]) -> String {
        let mut offset = offset;
        let mut text = String::new();
        let own = self.axes.iter().enumerate().map(|(axis, name)| (name.clone(), affine.stride(axis)));
        for (name, stride) in own.chain(more.iter().cloned()) {
            if let Ok(number) = name.parse::<i64>() {
                offset += number * stride;
                continue;
            }
            if stride == 0 {
                continue;
            }
            let size = match stride.unsigned_abs() {
                1 => name,
                size => format!("{name} * {}", number(size as i64)),
            };
            match (text.is_empty(), stride < 0) {
                (true, false) => text.push_str(&size),
                (true, true) => text.push_str(&format!("-{size}")),
                (false, false) => text.push_str(&format!(" + {size}")),
                (false, true) => text.push_str(&format!(" - {size}")),
            }
        }
        match offset {
            0 if !text.is_empty() => text,
            _ if text.is_empty() => number(offset),
            1.. => format!("{text} + {}", number(offset)),
            _ => format!("{text} - {}", number(-offset)),
        }
    }

    /// Whether all bounds hold at the neighbour `lane`: `true` or `false` where that is known; `None` where they hold at every point.
    pub(super) fn bounds(&self, bounds: &[Bound], lane: u32) -> Option<String> {
        let tests = bounds.iter().filter(|bound| !self.always(bound)).map(|bound| {
            let at = self.affine(&bound.at, lane);
            // WGSL refuses constants that do not fit their type, so these are judged here.
            match at.parse::<i64>() {
                Ok(at) => (0..bound.extent as i64).contains(&at).to_string(),
                Err(_) => format!("u32({at}) < {}u", bound.extent),
            }
        });
        let tests: Vec<String> = tests.collect();
        if tests.iter().any(|test| test == "false") {
            return Some("false".to_owned());
        }
        let open: Vec<&str> = tests.iter().map(String::as_str).filter(|test| *test != "true").collect();
        let text = if open.is_empty() { "true".to_owned() } else { open.join(" && ") };
        (!tests.is_empty()).then_some(text)
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

/// A number in an index expression, wrapped to `i32`.
fn number(value: i64) -> String {
    match value as i32 {
        i32::MIN => format!("i32({})", i32::MIN),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn affine(offset: i64, strides: &[i64]) -> Affine {
        Affine { offset, strides: strides.iter().copied().collect() }
    }

    #[test]
    fn maps_read_as_one_would_write_them() {
        let point = Point::new(["i".to_owned(), "j".to_owned(), "3".to_owned()], [4, 5, 6]);
        assert_eq!(point.affine(&affine(0, &[5, 1]), 0), "i * 5 + j");
        assert_eq!(point.affine(&affine(7, &[-1, 0, 2]), 0), "-i + 13");
        assert_eq!(point.affine(&affine(-2, &[0, -4]), 0), "-j * 4 - 2");
        assert_eq!(point.affine(&affine(0, &[]), 0), "0");
    }

    #[test]
    fn bounds_that_always_hold_are_not_tested() {
        let point = Point::new(["i".to_owned()], [4]);
        let bound = |offset, extent| Bound { at: affine(offset, &[1]), extent };
        assert_eq!(point.bounds(&[bound(0, 4)], 0), None);
        assert_eq!(point.bounds(&[bound(-1, 4), bound(0, 3)], 0).as_deref(), Some("u32(i - 1) < 4u && u32(i) < 3u"));
    }

    #[test]
    fn bounds_at_a_known_point_are_judged() {
        let point = Point::new(["0".to_owned()], [2]);
        let bound = |offset, extent| Bound { at: affine(offset, &[1]), extent };
        assert_eq!(point.bounds(&[bound(-1, 4)], 0).as_deref(), Some("false"));
        assert_eq!(point.bounds(&[bound(1, 2)], 0).as_deref(), Some("true"));
    }
}
