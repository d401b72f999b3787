//! Graphs at the edges: no inputs, no outputs, scalars, long chains, odd names, odd sizes.

use kiln_ir::{Backend, DType, GraphBuilder, Literal, Loc, ReduceKind, ScalarOp, TensorType};
use kiln_runtime::reference::evaluate;

use super::{INF, NAN, Program, floats};
use crate::compiled::{Compiled, variants};
use crate::under_test::each_or_some;

#[test]
fn b1_infinities_and_nan_are_literals_like_others() {
    let mut p = Program::new();
    let x = p.vector(&[1.0, -1.0]);
    let (zero, low) = (p.number(x, 0.0), p.number(x, -INF));
    let positive = p.binary(ScalarOp::Gt, x, zero);
    let masked = p.select(positive, x, low);
    p.expect(masked, &[1.0, -INF]);
    let sum = p.sum(masked, 0);
    p.expect(sum, &[-INF]);
    let bottom = p.vector(&[-INF, -INF]);
    let most = p.reduce(ReduceKind::Max, bottom, 0);
    p.expect(most, &[-INF]);
    let top = p.vector(&[INF, INF]);
    let least = p.reduce(ReduceKind::Min, top, 0);
    p.expect(least, &[INF]);
    let nan = p.full(&[2], Literal::from_f64(DType::F32, NAN));
    p.expect(nan, &[NAN, NAN]);
    p.check();
}

#[test]
fn b2_constants_overflow_as_data_does() {
    let mut p = Program::new();
    let x = p.vector(&[1.0]);
    let large = p.number(x, 3e38);
    let larger = p.scale(large, 10.0);
    let sum = p.add(x, larger);
    p.expect(sum, &[INF]);
    let thousand = p.number(x, 1000.0);
    let power = p.unary(ScalarOp::Exp, thousand);
    let sum = p.add(x, power);
    p.expect(sum, &[INF]);
    let n = p.ints(DType::I32, &[1], &[10]);
    let most = p.full(&[1], Literal::from_i128(DType::I32, i32::MAX.into()));
    let wrapped = p.shift(most, 1.0);
    let sum = p.add(n, wrapped);
    p.expect_ints(sum, &[10 - (1 << 31)]);
    let zero = p.number(x, 0.0);
    let quotient = p.binary(ScalarOp::Div, x, zero);
    p.expect(quotient, &[INF]);
    let shift = p.full(&[1], Literal::from_i128(DType::I32, 33));
    let shifted = p.binary(ScalarOp::Shl, n, shift);
    p.expect_ints(shifted, &[20]);
    p.check();
}

#[test]
fn b4_many_elements_are_all_computed() {
    let mut p = Program::new();
    let n = 4_194_241;
    let ty = TensorType::new(DType::I32, [n], Backend::Cpu);
    let counted = p.op(kiln_ir::Op::Iota { ty, axis: 0 }, &[]);
    let seven = p.number(counted, 7.0);
    let x = p.binary(ScalarOp::Rem, counted, seven);
    let y = p.shift(x, 1.0);
    let (first, last) = (p.range(y, 0, 1), p.range(y, n - 2, n));
    p.expect_ints(first, &[1]);
    let right = |index: usize| (index % 7 + 1) as i128;
    p.expect_ints(last, &[right(n - 2), right(n - 1)]);
    let sum = p.sum(y, 0);
    p.expect_ints(sum, &[(0..n).map(right).sum()]);
    p.check_once();
}

#[test]
fn b4_many_rows_are_all_reduced() {
    let mut p = Program::new();
    let rows = p.f32(&[70_000, 3], &vec![1.0; 210_000]);
    let sums = p.sum(rows, 1);
    p.expect(sums, &vec![3.0; 70_000]);
    let pairs = p.counting(&[70_000, 2]);
    let turned = p.permute(pairs, &[1, 0]);
    let right: Vec<f64> = (0..2).flat_map(|column| (0..70_000).map(move |row| f64::from(2 * row + column))).collect();
    p.expect(turned, &right);
    let a = p.f32(&[70_000, 1, 1], &vec![2.0; 70_000]);
    let b = p.f32(&[70_000, 1, 1], &vec![3.0; 70_000]);
    let products = p.matmul(a, b);
    p.expect(products, &vec![6.0; 70_000]);
    p.check_once();
}

#[test]
fn b6_any_text_is_a_name() {
    let long = "n".repeat(300);
    let names = ["fn", "loop", "sampler", "override", "a b", "é", "__x", "_", "0x", "", long.as_str()];
    let mut b = GraphBuilder::new("fn");
    let ty = TensorType::new(DType::F32, [2], Backend::Cpu);
    let values: Vec<_> = names.iter().map(|&name| b.input(name, ty.clone(), Loc::Unknown).unwrap()).collect();
    let again = b.input("loop", ty, Loc::Unknown).unwrap_err();
    assert_eq!(again.message, "duplicate graph input tensor loop");
    let doubled: Vec<_> =
        values.iter().map(|&value| b.scalar(ScalarOp::Add, &[value, value], Loc::Unknown).unwrap()).collect();
    let graph = b.finish(names.into_iter().zip(doubled)).unwrap();
    let inputs: Vec<_> = (0..names.len()).map(|index| floats(DType::F32, &[2], &[index as f64, 0.5])).collect();
    let outputs = Compiled::new(&graph, &variants()[0].1).run(&inputs);
    assert_eq!(outputs, evaluate(&graph, &inputs).unwrap());
    assert_eq!(kiln_ir::parse(&graph.to_string()).unwrap(), graph);
}

fn chain(length: usize) -> Program {
    let mut p = Program::new();
    let start = p.f32(&[], &[0.0]);
    let one = p.number(start, 1.0);
    let end = (0..length).fold(start, |z, _| p.add(z, one));
    p.expect(end, &[length as f64]);
    p
}

#[test]
fn b10_a_chain_of_ten_thousand_needs_no_deep_stack() {
    let run = || {
        let (graph, inputs) = chain(10_000).graph();
        let outputs = Compiled::new(&graph, &variants()[0].1).run(&inputs);
        assert_eq!(outputs[0].element(0).to_f64(), 10_000.0);
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(run).unwrap().join().unwrap();
}

#[test]
fn b10_sharing_does_not_explode() {
    let mut p = Program::new();
    let mut z = p.f32(&[1], &[1.0]);
    for _ in 0..60 {
        z = p.add(z, z);
    }
    p.expect(z, &[f64::powi(2.0, 60)]);
    p.check();
}

#[test]
fn b10_a_stack_of_thousands_of_parts_is_joined() {
    let mut p = Program::new();
    let x = p.f32(&[1], &[1.0]);
    let parts: Vec<_> = (0..6131).map(|_| x).collect();
    let joined = p.concat(&parts, 0);
    let sum = p.sum(joined, 0);
    p.expect(sum, &[6131.0]);
    p.check_once();
}

#[test]
fn b13_rewrites_come_to_an_end() {
    let mut p = Program::new();
    let x = p.f32(&[2, 3], &[1.0, -2.0, NAN, 4.0, -0.0, INF]);
    let negative = p.unary(ScalarOp::Neg, x);
    let back = p.unary(ScalarOp::Neg, negative);
    p.expect(back, &[1.0, -2.0, NAN, 4.0, -0.0, INF]);
    let odd = p.unary(ScalarOp::IsNan, x);
    let not = p.unary(ScalarOp::Not, odd);
    let same = p.unary(ScalarOp::Not, not);
    p.expect_ints(same, &[0, 0, 1, 0, 0, 0]);
    let chosen = p.select(not, x, negative);
    p.expect(chosen, &[1.0, -2.0, NAN, 4.0, -0.0, INF]);
    let difference = p.sub(x, x);
    let sum = p.add(difference, x);
    p.expect(sum, &[1.0, -2.0, NAN, 4.0, 0.0, NAN]);
    let flat = p.reshape(x, &[6]);
    let tall = p.reshape(flat, &[3, 2]);
    let again = p.reshape(tall, &[2, 3]);
    let turned = p.permute(again, &[1, 0]);
    let returned = p.permute(turned, &[1, 0]);
    p.expect(returned, &[1.0, -2.0, NAN, 4.0, -0.0, INF]);
    let wide = p.cast(x, DType::F64);
    let narrow = p.cast(wide, DType::F32);
    p.expect(narrow, &[1.0, -2.0, NAN, 4.0, -0.0, INF]);
    p.check();
}

#[test]
fn b16_scalars_are_tensors_of_rank_0() {
    let mut p = Program::new();
    let v = p.vector(&[1.0, 2.0, 3.0]);
    let sum = p.sum_all(v);
    assert_eq!(p.shape(sum).rank(), 0);
    p.expect(sum, &[6.0]);
    let s = p.f32(&[], &[5.0]);
    let m = p.counting(&[2, 3]);
    let spread = p.add(s, m);
    p.expect(spread, &[5.0, 6.0, 7.0, 8.0, 9.0, 10.0]);
    let over_nothing = p.op(kiln_ir::Op::Reduce { kind: ReduceKind::Sum, axes: kiln_ir::Axes::default() }, &[s]);
    p.expect(over_nothing, &[5.0]);
    let square = p.reshape(s, &[1, 1]);
    p.expect(square, &[5.0]);
    let back = p.reshape(square, &[]);
    p.expect(back, &[5.0]);
    p.check();
    let mut p = Program::new();
    let s = p.f32(&[], &[5.0]);
    p.expect(s, &[5.0]);
    p.check();
}

#[test]
fn b18_programs_without_inputs_without_outputs_and_with_unused_inputs_run() {
    let mut p = Program::new();
    let zeros = p.full(&[2], Literal::zero(DType::F32));
    let ones = p.full(&[2], Literal::one(DType::F32));
    let (small, tenth) = (p.scale(zeros, 0.1), p.scale(ones, 0.1));
    p.expect(small, &[0.0, 0.0]);
    p.expect(tenth, &[0.1, 0.1]);
    p.check();

    let mut p = Program::new();
    let _unused = p.vector(&[1.0, 2.0]);
    let seven = p.full(&[], Literal::from_f64(DType::F32, 7.0));
    p.expect(seven, &[7.0]);
    p.check();

    let mut p = Program::new();
    let _unused = p.vector(&[1.0, 2.0]);
    p.check();

    Program::new().check();

    let mut p = Program::new();
    let data = floats(DType::F32, &[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let constant = p.op(kiln_ir::Op::Constant { data, backend: Backend::Cpu }, &[]);
    let turned = p.permute(constant, &[1, 0]);
    p.expect(turned, &[1.0, 3.0, 2.0, 4.0]);
    p.expect(constant, &[1.0, 2.0, 3.0, 4.0]);
    p.check();
}

#[test]
fn b20_one_function_may_be_used_many_times_in_one_kernel() {
    let mut p = Program::new();
    let x = p.vector(&[4.0, 9.0]);
    let (half, two) = (p.number(x, 0.5), p.number(x, 2.0));
    let (root, square) = (p.binary(ScalarOp::Pow, x, half), p.binary(ScalarOp::Pow, x, two));
    let sum = p.add(root, square);
    p.expect_near(sum, &[18.0, 84.0], 1e-6);
    for op in [ScalarOp::Erf, ScalarOp::Tanh, ScalarOp::IsNan] {
        let once = p.unary(op, x);
        let shifted = p.shift(x, 1.0);
        let twice = p.unary(op, shifted);
        let narrow = p.cast(x, DType::F16);
        let third = p.unary(op, narrow);
        p.output(once);
        p.output(twice);
        p.output(third);
    }
    let n = p.ints(DType::I32, &[2], &[-7, 9]);
    let d = p.number(n, 2.0);
    let quotient = p.binary(ScalarOp::Div, n, d);
    let again = p.binary(ScalarOp::Div, quotient, d);
    p.expect_ints(again, &[-1, 2]);
    p.check();
}

#[test]
fn d11_every_small_extent_has_a_way_to_run() {
    let extents = [0usize, 1, 2, 3, 5, 17];
    for m in extents {
        for k in each_or_some(2, extents.to_vec(), &m) {
            let mut p = Program::new();
            let x = p.counting(&[m, k]);
            let y = p.counting(&[k, m]);
            let product = p.matmul(x, y);
            let element = |row: usize, column: usize| (0..k).map(|i| ((row * k + i) * (i * m + column)) as f64).sum();
            let right: Vec<f64> = (0..m * m).map(|index| element(index / m, index % m)).collect();
            p.expect(product, &right);
            let sums = p.sum(x, 0);
            p.output(sums);
            let sums = p.sum(x, 1);
            p.output(sums);
            p.check();
        }
    }
}

#[test]
fn d12_tall_products_with_odd_extents_are_right_in_every_row() {
    for (m, k, n) in [(382usize, 10usize, 3usize), (4096, 14, 5)] {
        let mut p = Program::new();
        let x: Vec<f64> = (0..m * k).map(|index| (index % 11) as f64 - 5.0).collect();
        let y: Vec<f64> = (0..k * n).map(|index| (index % 7) as f64 - 3.0).collect();
        let right: Vec<f64> =
            (0..m * n).map(|index| (0..k).map(|i| x[index / n * k + i] * y[i * n + index % n]).sum()).collect();
        let (x, y) = (p.f32(&[m, k], &x), p.f32(&[k, n], &y));
        let product = p.matmul(x, y);
        p.expect(product, &right);
        p.check_once();
    }
}
