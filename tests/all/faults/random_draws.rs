//! Draws depend on key, stream and place alone.

use kiln_ir::{DType, Literal, Op, ScalarOp, Value};
use kiln_runtime::reference::evaluate;

use super::{Program, ints};
use crate::compiled::{Compiled, variants};

fn draw(p: &mut Program, key: Value, stream: u32, count: usize) -> Value {
    p.op(Op::RandomBits { shape: [count].into(), stream }, &[key])
}

/// `u32` words as numbers from 0 up to 1.
fn unit(p: &mut Program, words: Value) -> Value {
    let eight = p.number(words, 8.0);
    let high = p.binary(ScalarOp::Shr, words, eight);
    let float = p.cast(high, DType::F32);
    p.scale(float, f64::powi(2.0, -24))
}

fn key(p: &mut Program) -> Value {
    p.ints(DType::U32, &[2], &[42, 7])
}

#[test]
fn a35_two_draws_differ_and_do_not_depend_on_each_other() {
    let mut both = Program::new();
    let k = key(&mut both);
    let (first, second) = (draw(&mut both, k, 0, 4), draw(&mut both, k, 1, 4));
    both.output(second);
    both.output(first);
    let (graph, inputs) = both.graph();
    let outputs = evaluate(&graph, &inputs).unwrap();
    assert_ne!(outputs[0], outputs[1]);
    both.check();

    let mut alone = Program::new();
    let k = key(&mut alone);
    let _unused = draw(&mut alone, k, 0, 4);
    let second = draw(&mut alone, k, 1, 4);
    alone.output(second);
    let (graph, inputs) = alone.graph();
    for (variant, options) in variants() {
        assert_eq!(Compiled::new(&graph, &options).run(&inputs)[0], outputs[0], "{variant}");
    }
}

#[test]
fn a35_another_key_gives_other_words_and_the_same_key_the_same() {
    let mut p = Program::new();
    let k = key(&mut p);
    let words = draw(&mut p, k, 0, 64);
    let number = unit(&mut p, words);
    p.output(number);
    let (graph, inputs) = p.graph();
    let compiled = Compiled::new(&graph, &variants()[0].1);
    let first = compiled.run(&inputs);
    assert_eq!(compiled.run(&inputs), first);
    assert_ne!(compiled.run(&[ints(DType::U32, &[2], &[43, 7])]), first);
    p.check();
}

#[test]
fn a36_a_mask_recomputed_for_the_gradient_is_the_same_mask() {
    let mut p = Program::new();
    let k = key(&mut p);
    let x = p.f32(&[64], &[1.0; 64]);
    let words = draw(&mut p, k, 3, 64);
    let number = unit(&mut p, words);
    let half = p.number(number, 0.5);
    let kept = p.binary(ScalarOp::Gt, number, half);
    let mask = p.cast(kept, DType::F32);
    let dropped = p.mul(x, mask);
    let y = p.scale(dropped, 2.0);
    // The gradient of sum(y), written out: the mask again, reached by another path.
    let total = p.sum_all(y);
    let ones = p.number(x, 2.0);
    let gradient = p.mul(ones, mask);
    let difference = p.sub(y, gradient);
    p.expect(difference, &[0.0; 64]);
    p.output(total);
    p.output(gradient);
    p.check();
}

#[test]
fn words_fill_the_whole_range() {
    let mut p = Program::new();
    let k = key(&mut p);
    let words = draw(&mut p, k, 0, 4096);
    p.output(words);
    let (graph, inputs) = p.graph();
    let words: Vec<i128> = evaluate(&graph, &inputs).unwrap()[0].elements().map(Literal::to_i128).collect();
    let mean = words.iter().sum::<i128>() as f64 / 4096.0 / f64::powi(2.0, 32);
    assert!((mean - 0.5).abs() < 0.02, "{mean}");
}
