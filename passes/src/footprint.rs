//! How many distinct elements of a buffer some loads touch.
//!
//! A load over a space touches the image of an affine map: a start and, per axis, a stride and a count. Bounds that speak of one axis cut its
//! range. Axes are brought into one form first (positive strides, axes that continue or overlap each other merged), so that an image is a box
//! in a system of digits: the number of its elements is a product. Several loads of one buffer are boxes in one common system, of which
//! the union is counted. What has no such form is counted point by point where it is small, and bounded from above where it is not: nothing
//! here depends on the size of a tensor.

use kiln_ir::kernel::{Affine, Bound};
use smallvec::SmallVec;

/// Irregular loads are walked point by point up to so many points.
const MOST_POINTS: u64 = 1 << 16;
/// Unions of more boxes are bounded rather than counted.
const MOST_BOXES: usize = 512;

/// An axis of an image: elements between neighbours, and how many there are.
type Axis = (i64, i64);

/// The elements that one load touches, all different.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Image {
    start: i64,
    /// Sorted by stride, the largest first; none overlaps with those after it.
    axes: SmallVec<[Axis; 6]>,
}

/// One load from a buffer: where it is in it, over which space, under which conditions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Load<'a> {
    pub(crate) address: &'a Affine,
    pub(crate) bounds: &'a [Bound],
    pub(crate) space: &'a [usize],
}

/// How many different elements of a buffer of `len` the loads touch; at most as many, where they are large and irregular.
pub(crate) fn elements(loads: &[Load<'_>], len: usize) -> u64 {
    let mut images: Vec<Image> = Vec::with_capacity(loads.len());
    let mut regular = true;
    for load in loads {
        match Image::of(load) {
            Touched::Nothing => {}
            Touched::Image(image) if image.count() as u64 >= len as u64 => return len as u64,
            Touched::Image(image) if images.contains(&image) => {}
            Touched::Image(image) => images.push(image),
            Touched::Irregular => regular = false,
        }
    }
    if regular {
        match images.as_slice() {
            [] => return 0,
            [image] => return image.count() as u64,
            several => {
                if let Some(count) = union(several) {
                    return count;
                }
            }
        }
    }
    let points: u64 = loads.iter().map(|load| product(load.space)).sum();
    if points <= MOST_POINTS { walked(loads, len) } else { points.min(len as u64) }
}

fn product(extents: &[usize]) -> u64 {
    extents.iter().map(|&extent| extent as u64).product()
}

/// What a load touches.
enum Touched {
    Nothing,
    Image(Image),
    /// Elements that are no box.
    Irregular,
}

impl Image {
    fn of(load: &Load<'_>) -> Touched {
        let mut ranges: SmallVec<[(i64, i64); 6]> = load.space.iter().map(|&extent| (0, extent as i64)).collect();
        let mut regular = true;
        let is_empty = |ranges: &[(i64, i64)]| ranges.iter().any(|(from, to)| from >= to);
        for bound in load.bounds {
            if is_empty(&ranges) {
                return Touched::Nothing;
            }
            match cut(&mut ranges, bound) {
                Cut::Range => {}
                Cut::Nothing => return Touched::Nothing,
                Cut::Irregular => regular = false,
            }
        }
        if is_empty(&ranges) {
            return Touched::Nothing;
        }
        if !regular {
            return Touched::Irregular;
        }
        let mut image = Image { start: load.address.offset, axes: SmallVec::new() };
        for (axis, &(from, to)) in ranges.iter().enumerate() {
            let stride = load.address.stride(axis);
            image.start += stride * from;
            if stride < 0 {
                image.start += stride * (to - from - 1);
            }
            if stride != 0 && to - from > 1 {
                image.axes.push((stride.abs(), to - from));
            }
        }
        image.merge();
        let mut reach = 0;
        for &(stride, count) in image.axes.iter().rev() {
            if stride <= reach {
                return Touched::Irregular;
            }
            reach += stride * (count - 1);
        }
        Touched::Image(image)
    }

    /// Merges axes of which one goes on where the other ends, or earlier.
    fn merge(&mut self) {
        self.axes.sort_by_key(|&(stride, _)| std::cmp::Reverse(stride));
        let mut at = self.axes.len();
        while at >= 2 {
            at -= 1;
            let ((outer, n), (inner, m)) = (self.axes[at - 1], self.axes[at]);
            if outer % inner == 0 && outer / inner <= m {
                self.axes[at - 1] = (inner, outer / inner * (n - 1) + m);
                self.axes.remove(at);
                at = self.axes.len();
            }
        }
    }

    fn count(&self) -> i64 {
        self.axes.iter().map(|&(_, count)| count).product()
    }
}

/// Where a bound holds.
enum Cut {
    /// On ranges of axes.
    Range,
    /// Nowhere.
    Nothing,
    /// Where several axes together say so.
    Irregular,
}

/// Cuts ranges to where a bound holds.
fn cut(ranges: &mut [(i64, i64)], bound: &Bound) -> Cut {
    let (mut least, mut most) = (bound.at.offset, bound.at.offset);
    let mut moving = None;
    let mut several = false;
    for (axis, &(from, to)) in ranges.iter().enumerate() {
        let stride = bound.at.stride(axis);
        let ends = (stride * from, stride * (to - 1));
        least += ends.0.min(ends.1);
        most += ends.0.max(ends.1);
        if stride != 0 && to - from > 1 {
            several |= moving.is_some();
            moving = Some(axis);
        }
    }
    let extent = bound.extent as i64;
    if least >= 0 && most < extent {
        return Cut::Range;
    }
    let Some(axis) = moving.filter(|_| most >= 0 && least < extent) else { return Cut::Nothing };
    if several {
        return Cut::Irregular;
    }
    let (from, to) = ranges[axis];
    let stride = bound.at.stride(axis);
    // The bound at the start of the range, and from there by the stride for each step.
    let origin = if stride > 0 { least } else { most };
    let holds = |step: i64| (0..extent).contains(&(origin + stride * step));
    let (below, above) = if stride > 0 { (-origin, extent - origin) } else { (origin - extent + 1, origin + 1) };
    let width = stride.abs();
    let first = (below.max(0) + width - 1) / width;
    let last = (above + width - 1) / width;
    debug_assert!(first >= last || holds(first) && holds(last.min(to - from) - 1));
    ranges[axis] = (from + first, from + last.min(to - from));
    Cut::Range
}

/// A box: for each digit, the smallest first, from where to where it goes.
type Digits = SmallVec<[(i64, i64); 6]>;

/// How many elements are in at least one image. `None` where they have no common system of digits.
fn union(images: &[Image]) -> Option<u64> {
    let mut radices: SmallVec<[i64; 8]> = SmallVec::from_slice(&[1]);
    radices.extend(images.iter().flat_map(|image| image.axes.iter().map(|&(stride, _)| stride)));
    radices.sort_unstable();
    radices.dedup();
    if radices.windows(2).any(|pair| pair[1] % pair[0] != 0) {
        return None;
    }
    let mut apart: Vec<Digits> = Vec::new();
    for image in images {
        let mut fresh = boxes(image, &radices)?;
        for known in &apart {
            fresh = fresh.into_iter().flat_map(|part| without(part, known)).collect();
        }
        apart.extend(fresh);
        if apart.len() > MOST_BOXES {
            return None;
        }
    }
    Some(apart.iter().map(|part| part.iter().map(|(from, to)| (to - from) as u64).product::<u64>()).sum())
}

/// An image as boxes. The last digit has no end.
fn boxes(image: &Image, radices: &[i64]) -> Option<Vec<Digits>> {
    let mut done: Vec<Digits> = vec![Digits::new()];
    // What is still to be said of the digits from the current one on: for each box the number that has been carried.
    let mut carried: Vec<i64> = vec![0];
    // A range that went over the end of its digit, and what of it is left for the next one.
    let mut spread: Vec<Option<i64>> = vec![None];
    for (digit, &radix) in radices.iter().enumerate() {
        let next = radices.get(digit + 1).map_or(i64::MAX, |next| next / radix);
        let own = if next == i64::MAX { image.start / radix } else { image.start / radix % next };
        let axis = image.axes.iter().find(|&&(stride, _)| stride == radix).map_or(1, |&(_, count)| count);
        let (mut boxes, mut carries, mut spreads) = (Vec::new(), Vec::new(), Vec::new());
        for ((known, carry), left) in done.into_iter().zip(carried).zip(spread) {
            let count = match left {
                None => axis,
                Some(count) if axis == 1 => count,
                Some(_) => return None,
            };
            let (from, to) = (own + carry, own + carry + count);
            let mut part = |from: i64, to: i64, carry: i64, left: Option<i64>| {
                let mut digits: Digits = known.clone();
                digits.push((from, to));
                boxes.push(digits);
                carries.push(carry);
                spreads.push(left.filter(|&count| count > 1));
            };
            if to <= next {
                part(from, to, 0, None);
            } else {
                let (first, rest) = (from / next, from % next);
                let (last, tail) = (to / next, to % next);
                if first == last {
                    part(rest, tail, first, None);
                    continue;
                }
                let whole = if rest == 0 { first } else { first + 1 };
                if rest != 0 {
                    part(rest, next, first, None);
                }
                if last > whole {
                    part(0, next, whole, Some(last - whole));
                }
                if tail != 0 {
                    part(0, tail, last, None);
                }
            }
        }
        (done, carried, spread) = (boxes, carries, spreads);
        if done.len() > MOST_BOXES {
            return None;
        }
    }
    Some(done)
}

/// What of a box is not in another one.
fn without(part: Digits, other: &Digits) -> Vec<Digits> {
    let apart = part.iter().zip(other).any(|(a, b)| a.1 <= b.0 || b.1 <= a.0);
    if apart {
        return vec![part];
    }
    let (mut rest, mut pieces) = (part, Vec::new());
    for digit in 0..rest.len() {
        let ((from, to), (low, high)) = (rest[digit], other[digit]);
        for piece in [(from, low.min(to)), (high.max(from), to)] {
            if piece.0 < piece.1 {
                let mut outside = rest.clone();
                outside[digit] = piece;
                pieces.push(outside);
            }
        }
        rest[digit] = (from.max(low), to.min(high));
    }
    pieces
}

/// Counts point by point.
fn walked(loads: &[Load<'_>], len: usize) -> u64 {
    let mut touched = vec![false; len];
    for load in loads {
        let mut point: SmallVec<[usize; 8]> = SmallVec::from_elem(0, load.space.len());
        for _ in 0..product(load.space) {
            let holds = |bound: &Bound| (0..bound.extent as i64).contains(&bound.at.at(&point));
            if load.bounds.iter().all(holds)
                && let Some(touched) = usize::try_from(load.address.at(&point)).ok().and_then(|at| touched.get_mut(at))
            {
                *touched = true;
            }
            for (index, &extent) in point.iter_mut().zip(load.space).rev() {
                *index += 1;
                if *index < extent {
                    break;
                }
                *index = 0;
            }
        }
    }
    touched.iter().filter(|&&touched| touched).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, limit: u64) -> i64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 33) % limit) as i64
        }
    }

    /// Where an offset and strides go at least, and at most.
    fn ends(affine: &Affine, space: &[usize]) -> (i64, i64) {
        affine.range(space)
    }

    fn affine(offset: i64, strides: &[i64]) -> Affine {
        Affine { offset, strides: strides.into() }
    }

    #[test]
    fn random_loads_are_counted_as_walking_them_does() {
        let mut numbers = Numbers(5);
        let mut regular = 0;
        for _ in 0..3000 {
            let space: Vec<usize> = (0..numbers.below(4)).map(|_| 1 + numbers.below(5) as usize).collect();
            let strides: Vec<i64> =
                space.iter().map(|_| [0, 1, 1, 2, 3, 4, 6, 12, -1, -3][numbers.below(10) as usize]).collect();
            let bounds: Vec<Bound> = (0..numbers.below(3))
                .map(|_| {
                    let mut strides = vec![0; space.len()];
                    if let Some(stride) = strides.get_mut(numbers.below(4) as usize) {
                        *stride = [1, -1, 2, -3][numbers.below(4) as usize];
                    }
                    if let Some(stride) = strides.first_mut().filter(|_| numbers.below(4) == 0) {
                        *stride = 1;
                    }
                    Bound { at: affine(numbers.below(7) - 3, &strides), extent: 1 + numbers.below(5) as usize }
                })
                .collect();
            let addresses: Vec<Affine> = (0..1 + numbers.below(3))
                .map(|_| {
                    let address = affine(0, &strides);
                    let offset = numbers.below(14) - ends(&address, &space).0;
                    affine(offset, &strides)
                })
                .collect();
            let load = |address| Load { address, bounds: &bounds, space: &space };
            let loads: Vec<Load<'_>> = addresses.iter().map(load).collect();
            let len = 1 + addresses.iter().map(|address| ends(address, &space).1).max().unwrap() as usize;
            assert_eq!(elements(&loads, len), walked(&loads, len), "{loads:?}");
            regular += usize::from(loads.iter().all(|load| !matches!(Image::of(load), Touched::Irregular)));
        }
        assert!(regular > 2000, "{regular}");
    }

    #[test]
    fn large_slices_are_counted_without_walking() {
        // Three slices of the rows of [2^20, 3 * 64], of which two overlap by half.
        let space = [1 << 20, 64];
        let addresses = [affine(0, &[192, 1]), affine(64, &[192, 1]), affine(96, &[192, 1])];
        let loads: Vec<Load<'_>> =
            addresses.iter().map(|address| Load { address, bounds: &[], space: &space }).collect();
        assert_eq!(elements(&loads[..2], 192 << 20), 128 << 20);
        assert_eq!(elements(&loads, 192 << 20), 160 << 20);
    }

    #[test]
    fn images_whose_axes_are_split_otherwise_have_common_digits() {
        // The first half of every row of [1024, 8, 16], and whole rows from the second on.
        let halves = Load { address: &affine(0, &[128, 1]), bounds: &[], space: &[1024, 64] };
        let rows = Load { address: &affine(128, &[1]), bounds: &[], space: &[128 * 1023] };
        assert_eq!(elements(&[halves, rows], 128 * 1024), 64 + 128 * 1023);
    }

    #[test]
    fn overlapping_windows_touch_each_element_once() {
        let windows = Load { address: &affine(0, &[1, 1]), bounds: &[], space: &[1 << 20, 5] };
        assert_eq!(elements(&[windows], 2 << 20), (1 << 20) + 4);
    }
}
