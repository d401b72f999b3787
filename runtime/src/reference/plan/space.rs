//! Points of a space.

/// All points of a space, row-major. A space without axes has one.
pub(super) fn points(extents: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    let extents = extents.to_vec();
    let count = extents.iter().product();
    (0..count).map(move |number: usize| {
        let mut rest = number;
        let mut point = vec![0; extents.len()];
        for (index, &extent) in point.iter_mut().zip(&extents).rev() {
            *index = rest % extent;
            rest /= extent;
        }
        point
    })
}

#[test]
fn points_are_row_major_and_nothing_has_one() {
    assert_eq!(points(&[2, 2]).collect::<Vec<_>>(), [[0, 0], [0, 1], [1, 0], [1, 1]]);
    assert_eq!(points(&[]).count(), 1);
    assert_eq!(points(&[3, 0]).count(), 0);
}
