//! Buffers: what may be written over what, and what a call leaves behind.

use kiln_ir::{DType, Graph, HostData, Literal, ScalarOp};
use kiln_passes::{Fusion, Options, Reuse, compile};
use kiln_runtime::reference::evaluate;

use super::{Program, floats};
use crate::compiled::{Compiled, variants};

/// The variants with every pair of equally typed argument and output of the same number given up.
fn donating(pairs: &[(usize, usize)]) -> Vec<(String, Options)> {
    let donate =
        |(name, options): (&str, Options)| (format!("{name}, donating"), Options { donate: pairs.to_vec(), ..options });
    variants().into_iter().map(donate).collect()
}

fn elements(data: &HostData) -> Vec<f64> {
    data.elements().map(Literal::to_f64).collect()
}

#[track_caller]
fn check_donating(graph: &Graph, inputs: &[HostData], pairs: &[(usize, usize)]) {
    let right = evaluate(graph, inputs).unwrap();
    for (variant, options) in donating(pairs) {
        let compiled = Compiled::new(graph, &options);
        assert_eq!(compiled.run_donating(inputs), right, "{variant}\n{graph}");
        assert_eq!(compiled.run(inputs), right, "{variant}, but kept\n{graph}");
    }
}

/// `cat(buffer[shift..], new)`, and the first element of the buffer.
fn shifting(length: usize, shift: usize, buffer: &[f64]) -> Program {
    let mut p = Program::new();
    let old = p.vector(buffer);
    let new = p.vector(&vec![9.0; shift]);
    let kept = p.range(old, shift, length);
    let next = p.concat(&[kept, new], 0);
    p.output(next);
    let first = p.range(old, 0, 1);
    p.output(first);
    p
}

#[test]
fn a2_a_shifting_buffer_does_not_overwrite_what_it_reads() {
    let p = shifting(4, 1, &[1.0, 2.0, 3.0, 4.0]);
    let (graph, inputs) = p.graph();
    check_donating(&graph, &inputs, &[(0, 0)]);
    for (variant, options) in donating(&[(0, 0)]) {
        let compiled = Compiled::new(&graph, &options);
        let mut buffer = inputs[0].clone();
        for new in [9.0, 10.0, 11.0] {
            buffer = compiled.run_donating(&[buffer, floats(DType::F32, &[1], &[new])]).remove(0);
        }
        assert_eq!(elements(&buffer), [4.0, 9.0, 10.0, 11.0], "{variant}");
    }
    p.check();
}

#[test]
fn a2_a_large_buffer_shifts_by_half() {
    let n = 1 << 12;
    let counting: Vec<f64> = (0..n).map(f64::from).collect();
    let (graph, inputs) = shifting(n as usize, n as usize / 2, &counting).graph();
    check_donating(&graph, &inputs, &[(0, 0)]);
}

#[test]
fn a3_a_read_before_a_write_sees_the_old_value() {
    let mut p = Program::new();
    let x = p.vector(&[3.0]);
    let y = p.unary(ScalarOp::Log, x);
    let next = p.unary(ScalarOp::Log, x);
    p.expect_near(y, &[1.098_612_3], 1e-6);
    p.expect_near(next, &[1.098_612_3], 1e-6);
    let (graph, inputs) = p.graph();
    for (variant, options) in donating(&[(0, 1)]) {
        let outputs = Compiled::new(&graph, &options).run_donating(&inputs);
        assert!((outputs[0].element(0).to_f64() - 1.098_612_3).abs() < 1e-6, "{variant}");
    }
    p.check();

    let mut p = Program::new();
    let x = p.vector(&[1.0, 2.0]);
    let y = p.scale(x, 10.0);
    let next = p.shift(x, 100.0);
    let z = p.add(y, next);
    p.expect(z, &[111.0, 122.0]);
    p.expect(next, &[101.0, 102.0]);
    let (graph, inputs) = p.graph();
    check_donating(&graph, &inputs, &[(0, 1)]);
    check_donating(&graph, &inputs, &[(0, 0)]);
    p.check();
}

#[test]
fn a4_inputs_of_one_shape_are_not_taken_for_each_other() {
    for shape in [[1, 2], [2, 1]] {
        let mut p = Program::new();
        let (a, b, c) = (p.f32(&shape, &[1.0, 2.0]), p.f32(&shape, &[10.0, 20.0]), p.f32(&shape, &[100.0, 200.0]));
        let sum = p.add(a, b);
        let product = p.mul(sum, c);
        let rest = p.sub(product, a);
        p.expect(sum, &[11.0, 22.0]);
        p.expect(product, &[1100.0, 4400.0]);
        p.expect(rest, &[1099.0, 4398.0]);
        for value in [a, b, c] {
            p.output(value);
        }
        let (graph, inputs) = p.graph();
        for pair in (0..3).flat_map(|input| (0..3).map(move |output| (input, output))) {
            check_donating(&graph, &inputs, &[pair]);
        }
        p.check();
    }
}

#[test]
fn a5_a_value_that_is_read_later_keeps_its_slot() {
    let mut p = Program::new();
    let (m, g, w) = (p.vector(&[0.0, 0.0]), p.vector(&[2.0, 4.0]), p.vector(&[1.0, 1.0]));
    let distance = p.sub(g, m);
    let half = p.scale(distance, 0.5);
    let moved = p.add(m, half);
    let step = p.scale(moved, 0.1);
    let stepped = p.sub(w, step);
    p.expect(moved, &[1.0, 2.0]);
    p.expect_near(stepped, &[0.9, 0.8], 1e-6);
    for (dtype, factor) in [(DType::I32, 3.0), (DType::U32, 5.0), (DType::F32, 7.0)] {
        let cast = p.cast(g, dtype);
        let scaled = p.scale(cast, factor);
        let sums = p.sum(scaled, 0);
        p.output(sums);
    }
    let (graph, inputs) = p.graph();
    check_donating(&graph, &inputs, &[(0, 0)]);
    check_donating(&graph, &inputs, &[(1, 0)]);
    p.check();
}

#[test]
fn a12_a_counter_that_is_broadcast_counts_once() {
    let mut p = Program::new();
    let count = p.vector(&[0.0]);
    let x = p.f32(&[100_000], &vec![1.0; 100_000]);
    let next = p.shift(count, 1.0);
    let scaled = p.mul(x, next);
    p.output(next);
    p.output(scaled);
    let (graph, inputs) = p.graph();
    for (variant, options) in donating(&[(0, 0), (1, 1)]) {
        let compiled = Compiled::new(&graph, &options);
        let mut count = inputs[0].clone();
        for round in 1..=3 {
            let outputs = compiled.run_donating(&[count, inputs[1].clone()]);
            assert!(outputs[1].elements().all(|element| element.to_f64() == f64::from(round)), "{variant}");
            count = outputs[0].clone();
        }
        assert_eq!(elements(&count), [3.0], "{variant}");
    }
}

#[test]
fn a45_a_value_joined_with_the_argument_it_comes_from() {
    let mut p = Program::new();
    let b = p.vector(&[1.0, 2.0]);
    let square = p.mul(b, b);
    let a = p.add(square, b);
    let joined = p.concat(&[a, b], 0);
    p.expect(joined, &[2.0, 6.0, 1.0, 2.0]);
    let three = p.concat(&[b, a, b], 0);
    p.expect(three, &[1.0, 2.0, 2.0, 6.0, 1.0, 2.0]);
    let weights = p.vector(&[1.0, 10.0, 100.0, 1000.0]);
    let weighted = p.mul(joined, weights);
    let sum = p.sum_all(weighted);
    p.expect(sum, &[2162.0]);
    p.check();
}

#[test]
fn c9_results_are_arguments_of_the_next_call() {
    let mut p = Program::new();
    let (x, y) = (p.vector(&[0.0]), p.vector(&[1.0]));
    let sum = p.add(x, y);
    p.output(y);
    p.output(sum);
    let (graph, inputs) = p.graph();
    for (variant, options) in donating(&[(0, 0), (1, 1)]) {
        let compiled = Compiled::new(&graph, &options);
        let last = (0..10).fold(inputs.clone(), |state, _| compiled.run_donating(&state));
        assert_eq!((elements(&last[0]), elements(&last[1])), (vec![55.0], vec![89.0]), "{variant}");
    }
    let mut p = Program::new();
    let (x, y) = (p.vector(&[1.0, 2.0]), p.vector(&[3.0, 4.0]));
    p.expect(y, &[3.0, 4.0]);
    p.expect(x, &[1.0, 2.0]);
    let (graph, inputs) = p.graph();
    check_donating(&graph, &inputs, &[(0, 0), (1, 1)]);
    check_donating(&graph, &inputs, &[(0, 1), (1, 0)]);
    p.check();
}

#[test]
fn d4_replays_are_the_same_with_and_without_reuse() {
    let mut p = Program::new();
    let x = p.counting(&[1, 2, 2, 2]);
    let turned = p.permute(x, &[0, 2, 3, 1]);
    let square = p.mul(turned, turned);
    let flat = p.reshape(square, &[1, 8]);
    let loss = p.sum(flat, 1);
    let half = p.scale(loss, 0.5);
    let (first, second) = (p.scale(turned, 2.0), p.scale(turned, 1.0));
    let total = p.add(first, second);
    p.expect(loss, &[140.0]);
    p.expect(half, &[70.0]);
    p.output(total);
    let (graph, inputs) = p.graph();
    let right = evaluate(&graph, &inputs).unwrap();
    for reuse in [Reuse::On, Reuse::Off] {
        let compiled = Compiled::new(&graph, &Options { reuse, ..Options::default() });
        for call in 1..=4 {
            assert_eq!(compiled.run(&inputs), right, "{reuse:?}, call {call}");
        }
    }
    p.check();
}

#[test]
fn d6_a_donated_argument_serves_a_result_of_another_shape() {
    let mut p = Program::new();
    let x = p.counting(&[2, 3]);
    let reshaped = p.reshape(x, &[1, 2, 3, 1]);
    let y = p.scale(reshaped, 2.0);
    let z = p.sum(y, 2);
    let swapped = p.permute(y, &[0, 2, 1, 3]);
    p.expect(y, &[0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
    p.expect(z, &[6.0, 24.0]);
    p.expect(swapped, &[0.0, 6.0, 2.0, 8.0, 4.0, 10.0]);
    let (graph, inputs) = p.graph();
    check_donating(&graph, &inputs, &[]);
    p.check();
}

#[test]
fn d10_branches_do_not_pile_up_in_memory() {
    let mut p = Program::new();
    let side = 64;
    let a = p.counting(&[side, side]);
    let x = p.matmul(a, a);
    let x = p.scale(x, 1e-9);
    let branches: Vec<_> = (0..8)
        .map(|index| {
            let shifted = p.shift(x, f64::from(index));
            let power = p.unary(ScalarOp::Exp, shifted);
            let doubled = p.scale(power, 2.0);
            p.sum_all(doubled)
        })
        .collect();
    for branch in branches {
        p.output(branch);
    }
    let (graph, _) = p.graph();
    let fused = compile(&graph, &Options::default()).unwrap();
    let apart = compile(&graph, &Options { fusion: Fusion::Off, ..Options::default() }).unwrap();
    let one = side * side * 4;
    assert!(
        fused.peak_bytes() <= apart.peak_bytes() + one,
        "{} bytes against {}",
        fused.peak_bytes(),
        apart.peak_bytes()
    );
}

#[test]
fn a_result_is_an_argument_a_constant_or_another_result() {
    let mut p = Program::new();
    let x = p.vector(&[1.0, 2.0]);
    let same = p.op(kiln_ir::Op::StopGradient, &[x]);
    let y = p.scale(x, 3.0);
    p.expect(x, &[1.0, 2.0]);
    p.expect(same, &[1.0, 2.0]);
    p.expect(y, &[3.0, 6.0]);
    p.expect(y, &[3.0, 6.0]);
    let (graph, inputs) = p.graph();
    check_donating(&graph, &inputs, &[(0, 2)]);
    check_donating(&graph, &inputs, &[(0, 3)]);
    p.check();
}
