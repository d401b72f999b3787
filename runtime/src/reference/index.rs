//! Gather and scatter.
//!
//! Both speak of places `outer ++ [i] ++ inner` of `x`, where `i` comes from the indices: the indexed part of a gather's result (and of a
//! scatter's updates) has shape `x[..axis] ++ indices[batch..] ++ x[axis + 1..]`.

use kiln_ir::{Literal, ScalarOp, ScatterKind};
use ndarray::Dimension;
use smallvec::SmallVec;

use super::tensor::Tensor;

type Place = SmallVec<[usize; 8]>;

/// Elements of `x` along `axis`; indices outside are clamped.
pub(super) fn gather(x: &Tensor, indices: &Tensor, axis: usize, batch: usize) -> Tensor {
    let middle = &indices.shape()[batch..];
    let shape: Vec<usize> = [&x.shape()[..axis], middle, &x.shape()[axis + 1..]].concat();
    let extent = x.shape()[axis] as i128;
    Tensor::from_fn(x.dtype, &shape, |place| {
        let index = indices.at(&index_place(place, axis, batch, middle.len())).to_i128();
        x.at(&indexed_place(place, axis, middle.len(), index.clamp(0, extent - 1) as usize))
    })
}

/// The target with updates combined in, in row-major order of the updates; those whose index is outside are dropped.
///
/// Floats are added in `f64` and rounded once.
pub(super) fn scatter(
    kind: ScatterKind,
    target: &Tensor,
    indices: &Tensor,
    updates: &Tensor,
    axis: usize,
    batch: usize,
) -> Tensor {
    let middle = indices.shape().len() - batch;
    let landings = updates.bits.indexed_iter().filter_map(|(place, &update)| {
        let place = place.slice();
        let index = indices.at(&index_place(place, axis, batch, middle)).to_i128();
        let inside = (0..target.shape()[axis] as i128).contains(&index);
        inside.then(|| (indexed_place(place, axis, middle, index as usize), Literal::from_bits(target.dtype, update)))
    });
    match kind {
        ScatterKind::Add if target.dtype.is_float() => add_floats(target, landings),
        ScatterKind::Add => combine(target, landings, |old, new| eval(ScalarOp::Add, old, new)),
        ScatterKind::Set => combine(target, landings, |_, new| new),
        ScatterKind::Max => combine(target, landings, |old, new| eval(ScalarOp::Max, old, new)),
    }
}

fn add_floats(target: &Tensor, landings: impl Iterator<Item = (Place, Literal)>) -> Tensor {
    let mut sums = target.bits.mapv(|bits| Literal::from_bits(target.dtype, bits).to_f64());
    for (place, update) in landings {
        sums[&place[..]] += update.to_f64();
    }
    Tensor::new(target.dtype, sums.mapv(|sum| Literal::from_f64(target.dtype, sum).bits()))
}

fn combine(
    target: &Tensor,
    landings: impl Iterator<Item = (Place, Literal)>,
    meet: impl Fn(Literal, Literal) -> Literal,
) -> Tensor {
    let mut bits = target.bits.clone();
    for (place, update) in landings {
        let there = &mut bits[&place[..]];
        *there = meet(Literal::from_bits(target.dtype, *there), update).bits();
    }
    Tensor::new(target.dtype, bits)
}

fn eval(op: ScalarOp, x: Literal, y: Literal) -> Literal {
    op.eval(&[x, y]).expect("numbers of one dtype")
}

/// Where in the indices the index for `place` stands: the batch axes, then the middle ones.
fn index_place(place: &[usize], axis: usize, batch: usize, middle: usize) -> Place {
    place[..batch].iter().chain(&place[axis..axis + middle]).copied().collect()
}

/// `place` with its middle axes replaced by the one index they stand for.
fn indexed_place(place: &[usize], axis: usize, middle: usize, index: usize) -> Place {
    place[..axis].iter().copied().chain([index]).chain(place[axis + middle..].iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{apply, assert_floats, assert_ints, floats, ints, vector};
    use super::*;
    use kiln_ir::{DType, HostData, Op};

    fn at(values: &[i128]) -> HostData {
        ints(DType::I32, &[values.len()], values)
    }

    fn scatter_into(kind: ScatterKind, target: HostData, indices: &[i128], updates: HostData) -> HostData {
        apply(Op::Scatter { kind, axis: 0, batch: 0 }, &[target, at(indices), updates])
    }

    #[test]
    fn two_gathers_in_a_row_take_rows_then_columns() {
        let counting: Vec<i128> = (0..16).collect();
        let x = ints(DType::I32, &[1, 1, 4, 4], &counting);
        let take = |indices: &[i128]| {
            let rows = apply(Op::Gather { axis: 2, batch: 0 }, &[x.clone(), at(indices)]);
            apply(Op::Gather { axis: 3, batch: 0 }, &[rows, at(indices)])
        };
        assert_ints(&take(&[1, 2, 3]), &[5, 6, 7, 9, 10, 11, 13, 14, 15]);
        assert_ints(&take(&[3, 3, 0]), &[15, 15, 12, 15, 15, 12, 3, 3, 0]);
    }

    #[test]
    fn a_gather_clamps_what_is_outside() {
        let x = vector(&[10.0, 20.0, 30.0]);
        assert_floats(&apply(Op::Gather { axis: 0, batch: 0 }, &[x, at(&[-1, 3, 1])]), &[10.0, 30.0, 20.0]);
        let wide = ints(DType::I64, &[1], &[i128::from(i64::MAX)]);
        assert_floats(&apply(Op::Gather { axis: 0, batch: 0 }, &[vector(&[1.0, 2.0]), wide]), &[2.0]);
    }

    #[test]
    fn batch_axes_pair_rows_with_their_indices() {
        let x = ints(DType::I32, &[2, 3], &[0, 1, 2, 3, 4, 5]);
        let indices = ints(DType::U8, &[2, 2], &[2, 0, 1, 1]);
        assert_ints(&apply(Op::Gather { axis: 1, batch: 1 }, &[x.clone(), indices.clone()]), &[2, 0, 4, 4]);
        let updates = ints(DType::I32, &[2, 2], &[10, 20, 30, 40]);
        let added = apply(Op::Scatter { kind: ScatterKind::Add, axis: 1, batch: 1 }, &[x, indices, updates]);
        assert_ints(&added, &[20, 1, 12, 3, 74, 5]);
    }

    #[test]
    fn indices_of_rank_zero_and_two_give_their_axes() {
        let x = ints(DType::I32, &[3, 2], &[0, 1, 2, 3, 4, 5]);
        let row = apply(Op::Gather { axis: 0, batch: 0 }, &[x.clone(), ints(DType::I32, &[], &[2])]);
        assert_ints(&row, &[4, 5]);
        let square = apply(Op::Gather { axis: 0, batch: 0 }, &[x, ints(DType::I32, &[1, 2], &[1, 0])]);
        assert_eq!(square.shape().to_string(), "[1, 2, 2]");
        assert_ints(&square, &[2, 3, 0, 1]);
    }

    #[test]
    fn every_duplicate_of_a_scatter_add_counts() {
        let zeros = || vector(&[0.0; 3]);
        let updates = || vector(&[1.0, 2.0, 3.0]);
        assert_floats(&scatter_into(ScatterKind::Add, zeros(), &[0, 0, 2], updates()), &[3.0, 0.0, 3.0]);
        let base = floats(DType::F32, &[3, 2], &[0.0; 6]);
        let rows = floats(DType::F32, &[3, 2], &[1.0, 1.0, 1.0, 1.0, 3.0, 3.0]);
        assert_floats(&scatter_into(ScatterKind::Add, base, &[0, 0, 2], rows), &[2.0, 2.0, 0.0, 0.0, 3.0, 3.0]);
        let many = floats(DType::F16, &[4096], &[1.0; 4096]);
        assert_floats(&scatter_into(ScatterKind::Add, floats(DType::F16, &[1], &[0.0]), &[0; 4096], many), &[4096.0]);
        let bytes = ints(DType::U8, &[1], &[200]);
        assert_ints(&scatter_into(ScatterKind::Add, bytes, &[0, 0], ints(DType::U8, &[2], &[100, 1])), &[45]);
    }

    #[test]
    fn the_last_duplicate_of_a_scatter_set_wins() {
        let x = vector(&[10.0, 20.0]);
        assert_floats(&scatter_into(ScatterKind::Set, x, &[0, 0], vector(&[1.0, 2.0])), &[2.0, 20.0]);
        let bools = ints(DType::Bool, &[2], &[0, 1]);
        assert_ints(&scatter_into(ScatterKind::Set, bools, &[1, 0], ints(DType::Bool, &[2], &[0, 1])), &[1, 0]);
    }

    #[test]
    fn a_scatter_max_keeps_the_largest_and_nan() {
        let zeros = || vector(&[0.0; 3]);
        let max = |updates: &[f64]| scatter_into(ScatterKind::Max, zeros(), &[0, 0, 2], vector(updates));
        assert_floats(&max(&[1.0, 5.0, 3.0]), &[5.0, 0.0, 3.0]);
        assert_floats(&max(&[f64::NAN, 5.0, -3.0]), &[f64::NAN, 0.0, 0.0]);
    }

    #[test]
    fn a_scatter_drops_what_is_outside() {
        for outside in [-1, 4, i128::from(i32::MIN)] {
            for kind in ScatterKind::ALL {
                let result = scatter_into(kind, vector(&[0.0; 4]), &[0, outside], vector(&[1.0, 1.0]));
                assert_floats(&result, &[1.0, 0.0, 0.0, 0.0]);
            }
        }
    }
}
