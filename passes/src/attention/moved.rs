//! Results in another order of axes: a kernel that makes `[b, h, s, d]` may store it as `[b, s, h * d]`.

use kiln_ir::{Graph, Op, Value};

use crate::index::{Coord, Index, Split};

/// The value that `value` shows in another order, through permutations and reshapes alone, if `is_made` says that a kernel makes it.
pub(crate) fn base(graph: &Graph, value: Value, is_made: impl Fn(Value) -> bool) -> Option<Value> {
    let mut base = value;
    while matches!(graph.node(base).op, Op::Permute(_) | Op::Reshape(_)) {
        base = graph.node(base).operands[0];
        if is_made(base) {
            return Some(base);
        }
    }
    None
}

/// Where in `value` the element is that stands at `index` of `base`, of which it is another order. `None` where that is no affine map of the
/// axes of a space of these extents.
pub(crate) fn place(graph: &Graph, base: Value, index: Index, value: Value, extents: &[usize]) -> Option<Coord> {
    let mut chain = vec![value];
    while let Some(&last) = chain.last()
        && last != base
    {
        chain.push(graph.node(last).operands[0]);
    }
    let mut index = index;
    for pair in chain.windows(2).rev() {
        let (next, from) = (pair[0], &graph.ty(pair[1]).shape);
        index = match &graph.node(next).op {
            Op::Permute(permutation) => {
                let coords = coordinates(&index, from, extents)?;
                Index::Axes(permutation.iter().map(|&axis| coords[axis].clone()).collect())
            }
            _ => Index::Linear(index.linear(from)),
        };
    }
    let place = index.linear(&graph.ty(value).shape);
    place.is_affine().then_some(place)
}

fn coordinates(index: &Index, shape: &[usize], extents: &[usize]) -> Option<Vec<Coord>> {
    let mut rest = match index {
        Index::Axes(coords) => return Some(coords.clone()),
        Index::Linear(position) => position.clone(),
    };
    let mut coords = vec![Coord::constant(0); shape.len()];
    let longer: Vec<usize> = (0..shape.len()).filter(|&axis| shape[axis] != 1).collect();
    for (position, &axis) in longer.iter().enumerate().rev() {
        if position == 0 {
            coords[axis] = rest;
            break;
        }
        let Split::Exact(high, low) = rest.split(shape[axis], extents) else { return None };
        coords[axis] = low;
        rest = high;
    }
    Some(coords)
}
