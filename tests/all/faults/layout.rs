//! Views and layouts: what is read through strides, steps, repeats and indices.

use kiln_ir::{Axes, DType, Direction, Op, ReduceKind, ScalarOp, ScanKind, ScatterKind};

use super::{INF, Program};

#[test]
fn u_a6_a_narrow_batched_head_is_right_in_every_row() {
    let mut p = Program::new();
    let a = p.f32(&[5, 2], &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 0.0, 0.0, 2.0]);
    let w = p.f32(&[2, 1], &[1.0, 2.0]);
    let bias = p.vector(&[0.5]);
    let product = p.matmul(a, w);
    let shifted = p.add(product, bias);
    let two = p.number(shifted, 2.0);
    let head = p.binary(ScalarOp::Max, shifted, two);
    p.expect(head, &[2.0, 2.5, 3.5, 2.5, 4.5]);
    p.check();
}

#[test]
fn u_a6_a_flat_head_and_a_head_of_one_are_right() {
    let mut p = Program::new();
    let a = p.f32(&[1, 2], &[1.0, 2.0]);
    let w = p.f32(&[2, 3], &[1.0, 0.0, 1.0, 0.0, 1.0, 1.0]);
    let bias = p.vector(&[0.5]);
    let product = p.matmul(a, w);
    let flat = p.add(product, bias);
    p.expect(flat, &[1.5, 2.5, 3.5]);
    let column = p.f32(&[2, 1], &[1.0, 2.0]);
    let one = p.matmul(a, column);
    let one = p.add(one, bias);
    p.expect(one, &[5.5]);
    p.check();
}

#[test]
fn a8_argmax_of_a_strided_reduction_sees_the_strides() {
    let mut p = Program::new();
    let x = p.f32(&[2, 3], &[1.0, 5.0, 2.0, 9.0, 0.0, 4.0]);
    let transposed = p.permute(x, &[1, 0]);
    let sums = p.sum(transposed, 1);
    p.expect(sums, &[10.0, 5.0, 6.0]);
    let place = p.reduce(ReduceKind::ArgMax, sums, 0);
    p.expect_ints(place, &[0]);
    let skipping = p.slice(x, &[0, 0], &[2, 2], &[1, 2]);
    let sums = p.sum(skipping, 1);
    p.expect(sums, &[3.0, 13.0]);
    let place = p.reduce(ReduceKind::ArgMax, sums, 0);
    p.expect_ints(place, &[1]);
    let flipped = p.slice(x, &[1, 2], &[2, 3], &[-1, -1]);
    let sums = p.sum(flipped, 1);
    p.expect(sums, &[13.0, 8.0]);
    let place = p.reduce(ReduceKind::ArgMax, sums, 0);
    p.expect_ints(place, &[0]);
    p.check();
}

#[test]
fn a9_two_gathers_in_a_row_take_rows_then_columns() {
    for (indices, right) in [
        ([1, 2, 3], [5.0, 6.0, 7.0, 9.0, 10.0, 11.0, 13.0, 14.0, 15.0]),
        ([3, 3, 0], [15.0, 15.0, 12.0, 15.0, 15.0, 12.0, 3.0, 3.0, 0.0]),
    ] {
        let mut p = Program::new();
        let x = p.counting(&[1, 1, 4, 4]);
        let indices = p.ints(DType::I32, &[3], &indices);
        let rows = p.gather(x, indices, 2);
        let both = p.gather(rows, indices, 3);
        p.expect(both, &right);
        p.check();
    }
}

#[test]
fn a10_different_slices_of_one_tensor_meet_in_one_kernel() {
    let mut p = Program::new();
    let t = p.counting(&[4]);
    let (middle, pair, low, high) = (p.range(t, 1, 4), p.range(t, 1, 3), p.range(t, 0, 2), p.range(t, 2, 4));
    let most = p.reduce(ReduceKind::Max, middle, 0);
    let least = p.reduce(ReduceKind::Min, pair, 0);
    let difference = p.sub(most, least);
    p.expect(difference, &[2.0]);
    let sum = p.sum(low, 0);
    let top = p.reduce(ReduceKind::Max, high, 0);
    let product = p.mul(sum, top);
    p.expect(product, &[3.0]);
    p.check();
}

#[test]
fn a11_a_repeated_target_takes_each_row_on_its_own() {
    let mut p = Program::new();
    let base = p.f32(&[1, 2], &[0.0, 0.0]);
    let rows = p.broadcast(base, &[3, 2]);
    let indices = p.ints(DType::I32, &[3], &[0, 0, 2]);
    let updates = p.f32(&[3, 2], &[1.0, 1.0, 1.0, 1.0, 3.0, 3.0]);
    let added = p.scatter(ScatterKind::Add, rows, indices, updates);
    p.expect(added, &[2.0, 2.0, 0.0, 0.0, 3.0, 3.0]);
    let zero = p.ints(DType::I32, &[1], &[0]);
    let zeros = p.broadcast(zero, &[3]);
    let one = p.f32(&[1, 2], &[1.0, 2.0]);
    let ones = p.broadcast(one, &[3, 2]);
    let stacked = p.scatter(ScatterKind::Add, rows, zeros, ones);
    p.expect(stacked, &[3.0, 6.0, 0.0, 0.0, 0.0, 0.0]);
    p.check();
}

fn running(p: &mut Program, x: kiln_ir::Value, axis: usize, direction: Direction) -> kiln_ir::Value {
    p.op(Op::Scan { kind: ScanKind::Sum, axis, direction }, &[x])
}

#[test]
fn a32_running_sums_keep_infinity_and_cross_blocks() {
    let mut p = Program::new();
    let x = p.vector(&[INF; 4]);
    let sums = running(&mut p, x, 0, Direction::Forward);
    p.expect(sums, &[INF; 4]);
    p.check();
    for length in [1usize, 127, 128, 129, 1025] {
        let mut p = Program::new();
        let x = p.counting(&[length]);
        let from_one = p.shift(x, 1.0);
        let ahead = running(&mut p, from_one, 0, Direction::Forward);
        let back = running(&mut p, from_one, 0, Direction::Reverse);
        let total = (length * (length + 1) / 2) as f64;
        let right: Vec<f64> = (1..=length).map(|n| (n * (n + 1) / 2) as f64).collect();
        p.expect(ahead, &right);
        p.expect(back, &(0..length).map(|n| total - (n * (n + 1) / 2) as f64).collect::<Vec<_>>());
        p.check();
    }
}

#[test]
fn a32_a_running_sum_goes_along_a_middle_axis() {
    let mut p = Program::new();
    let ones = p.f32(&[2, 3, 4, 5], &[1.0; 120]);
    let sums = running(&mut p, ones, 1, Direction::Forward);
    p.expect(sums, &(0..120).map(|index| f64::from(index / 20 % 3 + 1)).collect::<Vec<_>>());
    p.check();
}

#[test]
fn a33_gather_change_and_put_back_differs_from_adding() {
    let mut p = Program::new();
    let x = p.vector(&[10.0, 20.0]);
    let twice = p.ints(DType::I32, &[2], &[0, 0]);
    let taken = p.gather(x, twice, 0);
    let doubled = p.add(taken, taken);
    let put = p.scatter(ScatterKind::Set, x, twice, doubled);
    p.expect(put, &[20.0, 20.0]);
    let zeros = p.vector(&[0.0; 3]);
    let indices = p.ints(DType::I32, &[3], &[0, 0, 2]);
    let updates = p.vector(&[1.0, 2.0, 3.0]);
    let added = p.scatter(ScatterKind::Add, zeros, indices, updates);
    p.expect(added, &[3.0, 0.0, 3.0]);
    let updates = p.vector(&[1.0, 5.0, 3.0]);
    let most = p.scatter(ScatterKind::Max, zeros, indices, updates);
    p.expect(most, &[5.0, 0.0, 3.0]);
    p.check();
}

#[test]
fn a34_what_is_out_of_range_is_dropped_and_leaves_its_neighbours_alone() {
    let mut p = Program::new();
    let before = p.vector(&[7.0; 4]);
    let zeros = p.vector(&[0.0; 4]);
    let after = p.vector(&[8.0; 4]);
    let ones = p.vector(&[1.0; 2]);
    let below = p.ints(DType::I32, &[2], &[0, -1]);
    let above = p.ints(DType::I32, &[2], &[0, 4]);
    for indices in [below, above] {
        let added = p.scatter(ScatterKind::Add, zeros, indices, ones);
        p.expect(added, &[1.0, 0.0, 0.0, 0.0]);
    }
    let guard = p.add(before, after);
    p.expect(guard, &[15.0; 4]);
    p.check();
}

#[test]
fn a43_long_sums_do_not_stall() {
    let mut p = Program::new();
    let ones = p.full(&[1 << 25], kiln_ir::Literal::one(DType::F32));
    let sum = p.sum_all(ones);
    p.expect(sum, &[33_554_432.0]);
    let column = p.reshape(ones, &[1 << 25, 1]);
    let down = p.sum(column, 0);
    p.expect(down, &[33_554_432.0]);
    p.check_once();

    let mut p = Program::new();
    let data = vec![1.0; 1 << 21];
    let x = p.f32(&[1 << 20, 2], &data);
    let every_second = p.slice(x, &[0, 0], &[1 << 20, 1], &[1, 1]);
    let sum = p.sum_all(every_second);
    let mean = p.mean(every_second, 0);
    p.expect(sum, &[1_048_576.0]);
    p.expect(mean, &[1.0]);
    p.check_once();
}

#[test]
fn a43_a_long_running_sum_does_not_drift() {
    let mut p = Program::new();
    let x = p.vector(&[0.01; 72_000]);
    let sums = running(&mut p, x, 0, Direction::Forward);
    let last = p.range(sums, 71_999, 72_000);
    p.expect_near(last, &[720.0], 1e-4);
    p.check_once();
}

#[test]
fn a44_matrix_products_read_flipped_and_repeated_rows() {
    let mut p = Program::new();
    let a = p.f32(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let flipped = p.slice(a, &[1, 0], &[2, 2], &[-1, 1]);
    let v = p.f32(&[2, 1], &[1.0, 10.0]);
    let product = p.matmul(flipped, v);
    p.expect(product, &[43.0, 21.0]);
    let row = p.f32(&[1, 2], &[1.0, 10.0]);
    let rows = p.broadcast(row, &[2, 2]);
    let ones = p.f32(&[2, 1], &[1.0, 1.0]);
    let product = p.matmul(rows, ones);
    p.expect(product, &[11.0, 11.0]);
    p.check();
}

#[test]
fn a44_negative_axes_are_normalised_or_refused() {
    let mut p = Program::new();
    let x = p.f32(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    for (axis, right) in [(-1, vec![6.0, 15.0]), (-2, vec![5.0, 7.0, 9.0])] {
        let axes = Axes::new(&[axis], 2).unwrap();
        let sum = p.op(Op::Reduce { kind: ReduceKind::Sum, axes }, &[x]);
        p.expect(sum, &right);
    }
    p.check();
    assert!(Axes::new(&[2], 2).is_err());
    assert!(Axes::new(&[-3], 2).is_err());
}

#[test]
fn a46_a_full_slice_of_a_permuted_reshape_keeps_its_strides() {
    for channels in [3, 1] {
        let mut p = Program::new();
        let x = p.counting(&[12]);
        let x = p.reshape(x, &[1, 2, 2, 3]);
        let x = p.permute(x, &[0, 3, 1, 2]);
        let x = p.slice(x, &[0; 4], &[1, channels, 2, 2], &[1; 4]);
        p.expect(x, &[0.0, 3.0, 6.0, 9.0, 1.0, 4.0, 7.0, 10.0, 2.0, 5.0, 8.0, 11.0][..4 * channels]);
        let doubled = p.scale(x, 2.0);
        let sums = p.sum(doubled, 1);
        let right = if channels == 3 { [6.0, 24.0, 42.0, 60.0] } else { [0.0, 6.0, 12.0, 18.0] };
        p.expect(sums, &right);
        p.check();
    }
}

#[test]
fn b11_channel_normalisation_of_an_image() {
    let mut p = Program::new();
    let x = p.counting(&[1, 2, 2, 2]);
    let flat = p.reshape(x, &[1, 2, 4]);
    let swapped = p.permute(flat, &[0, 2, 1]);
    let mean = p.mean(swapped, 2);
    let distance = p.sub(swapped, mean);
    let variance = p.variance(swapped, 2);
    let deviation = p.unary(ScalarOp::Sqrt, variance);
    let normal = p.binary(ScalarOp::Div, distance, deviation);
    let back = p.permute(normal, &[0, 2, 1]);
    let image = p.reshape(back, &[1, 2, 2, 2]);
    p.expect(image, &[-1.0, -1.0, -1.0, -1.0, 1.0, 1.0, 1.0, 1.0]);
    p.check();
}

#[test]
fn b12_indices_may_come_from_the_same_kernel() {
    let mut p = Program::new();
    let x = p.ints(DType::I32, &[4], &[3, 0, 1, 2]);
    let once = p.gather(x, x, 0);
    p.expect_ints(once, &[2, 3, 0, 1]);
    let nested = p.gather(x, once, 0);
    p.expect_ints(nested, &[1, 2, 3, 0]);
    let one = p.number(x, 1.0);
    let next = p.add(x, one);
    let computed = p.gather(x, next, 0);
    p.expect_ints(computed, &[2, 0, 1, 2]);
    let sum = p.sum(computed, 0);
    p.expect_ints(sum, &[5]);
    let odd = p.binary(ScalarOp::Eq, computed, one);
    let chosen = p.select(odd, nested, computed);
    p.expect_ints(chosen, &[2, 0, 3, 2]);
    p.check();
}

#[test]
fn b15_any_rank_works() {
    let mut p = Program::new();
    let x = p.counting(&[2, 1, 1, 1, 1, 1, 1, 1, 3]);
    let reversed = p.permute(x, &[8, 7, 6, 5, 4, 3, 2, 1, 0]);
    p.expect(reversed, &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    let sum = p.sum_all(x);
    p.expect(sum, &[15.0]);
    p.check();
    for rank in 0..=12 {
        let mut shape = vec![1; rank];
        if let Some(last) = shape.last_mut() {
            *last = 3;
        }
        let mut p = Program::new();
        let x = p.counting(&shape);
        let y = p.shift(x, 1.0);
        let back: Vec<usize> = (0..rank).rev().collect();
        let turned = p.permute(y, &back);
        let sum = p.sum_all(turned);
        p.expect(sum, if rank == 0 { &[1.0] } else { &[6.0] });
        p.output(turned);
        p.check();
    }
}
