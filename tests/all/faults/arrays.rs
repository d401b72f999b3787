//! Arrays and runs: donation, memory that comes back, errors that leave everything usable, threads.

use kiln_ir::{Code, DType, ScalarOp};
use kiln_passes::{Options, compile};
use kiln_runtime::{Argument, Array, Device, Executable};

use super::Program;

use crate::under_test::device;

fn executable(program: &Program, options: &Options, device: &Device) -> Executable {
    kiln::compile_with(&program.graph().0.retarget(device.backend()).unwrap(), options, device).unwrap().into()
}

/// `x * 2 + 1`.
fn affine(length: usize) -> Program {
    let mut p = Program::new();
    let x = p.f32(&[length], &vec![0.0; length]);
    let doubled = p.scale(x, 2.0);
    let y = p.shift(doubled, 1.0);
    p.output(y);
    p
}

fn vector(device: &Device, values: &[f32]) -> Array {
    Array::from_slice(device, values, [values.len()]).unwrap()
}

#[test]
fn u_d3_arguments_may_lie_anywhere_and_die_between_calls() {
    let device = device();
    let f = executable(&affine(2), &Options::default(), &device);
    for round in 0..5u8 {
        let mut noise: Vec<Array> = (0..100).map(|_| vector(&device, &[9.0, 9.0])).collect();
        noise.retain(|_| round % 2 == 0);
        let x = vector(&device, &[f32::from(round), 2.0]);
        let y = f.run(vec![Argument::Donated(x)]).unwrap();
        assert_eq!(y[0].to_vec::<f32>().unwrap(), [2.0 * f32::from(round) + 1.0, 5.0]);
    }
    let results = std::thread::scope(|scope| {
        let call = |start: f32| {
            let (f, device) = (&f, &device);
            scope.spawn(move || f.run(vec![vector(device, &[start, 2.0]).into()]).unwrap()[0].to_vec::<f32>().unwrap())
        };
        let calls: Vec<_> = (0..8u8).map(|start| call(f32::from(start))).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect::<Vec<_>>()
    });
    for (start, result) in (0..8u8).zip(results) {
        assert_eq!(result, [2.0 * f32::from(start) + 1.0, 5.0]);
    }
}

#[test]
fn d1_and_d2_many_calls_hold_no_more_memory_than_a_few() {
    let device = Device::cpu();
    let mut p = Program::new();
    let big = p.counting(&[200, 50]);
    let indices = p.ints(DType::I32, &[10], &[0; 10]);
    let batch = p.gather(big, indices, 0);
    let w = p.counting(&[50, 3]);
    let product = p.matmul(batch, w);
    let zero = p.number(product, 0.0);
    let y = p.binary(ScalarOp::Max, product, zero);
    p.output(y);
    p.output(batch);
    let f = executable(&p, &Options::default(), &device);
    let (_, inputs) = p.graph();
    let arguments: Vec<Array> = inputs.iter().map(|data| Array::new(&device, data).unwrap()).collect();
    let call = || f.run(arguments.iter().map(Argument::from).collect()).unwrap();
    (0..10).for_each(|_| drop(call()));
    let early = device.memory();
    (0..500).for_each(|_| drop(call()));
    let late = device.memory();
    assert_eq!((late.live, late.peak, late.cached), (early.live, early.peak, early.cached));
    assert_eq!(late.allocations, early.allocations, "a warm call takes no memory from the system");

    let kept = call().swap_remove(1);
    let with_arguments = device.memory().live;
    drop(arguments);
    assert!(device.memory().live < with_arguments, "the arguments' bytes come back while a part of them lives");
    assert_eq!(kept.shape()[..], [10, 50]);
    assert_eq!(kept.to_vec::<f32>().unwrap()[1], 1.0);
}

#[test]
fn u_a39_a_long_loop_gives_the_same_bits_however_often_it_is_read() {
    let device = device();
    let mut p = Program::new();
    let x = p.vector(&[1.0, 2.0]);
    let scaled = p.scale(x, 1.001);
    let y = p.shift(scaled, 0.001);
    p.output(y);
    let f = executable(&p, &Options { donate: vec![(0, 0)], ..Options::default() }, &device);
    let looped = |read_every: usize| {
        let mut x = vector(&device, &[1.0, 2.0]);
        for step in 1..=1000 {
            let kept = (step % read_every == 0).then(|| x.clone());
            x = f.run(vec![Argument::Donated(x)]).unwrap().remove(0);
            drop(kept);
        }
        x.to_vec::<f32>().unwrap()
    };
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let never_read = bits(looped(1000));
    assert_eq!(bits(looped(1)), never_read);
    assert_eq!(bits(looped(7)), never_read);
}

fn increment(device: &Device) -> Executable {
    let mut p = Program::new();
    let (x, y) = (p.vector(&[0.0, 0.0]), p.vector(&[0.0, 0.0]));
    let next = p.shift(x, 1.0);
    let sum = p.add(next, y);
    p.output(next);
    p.output(sum);
    executable(&p, &Options { donate: vec![(0, 0)], ..Options::default() }, device)
}

#[test]
fn d5_an_array_given_up_and_lent_in_one_call_is_read_before_it_is_written() {
    let device = device();
    let f = increment(&device);
    let a = vector(&device, &[0.0, 1.0]);
    let results = f.run(vec![Argument::Donated(a.clone()), Argument::Borrowed(a)]).unwrap();
    assert_eq!(results[0].to_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(results[1].to_vec::<f32>().unwrap(), [1.0, 3.0]);
}

#[test]
fn d5_a_clone_and_a_view_keep_their_values_when_the_array_is_given_up() {
    let device = device();
    let f = increment(&device);
    let a = vector(&device, &[0.0, 1.0]);
    let (b, view) = (a.clone(), a.reshape([2, 1]).unwrap());
    let zeros = vector(&device, &[0.0, 0.0]);
    let results = f.run(vec![Argument::Donated(a), (&zeros).into()]).unwrap();
    assert_eq!(results[0].to_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(b.to_vec::<f32>().unwrap(), [0.0, 1.0]);
    assert_eq!(view.to_vec::<f32>().unwrap(), [0.0, 1.0]);
    assert_eq!(f.statistics().copied.values().sum::<u64>(), 1);
}

#[test]
fn d5_a_refused_call_leaves_the_given_up_array_as_it_was() {
    let device = device();
    let f = increment(&device);
    let a = vector(&device, &[0.0, 1.0]);
    let wrong = vector(&device, &[0.0]);
    let error = f.try_run(vec![Argument::Donated(a), wrong.into()]).unwrap_err();
    assert_eq!(error.diagnostics.codes(), [Code::K0701]);
    assert_eq!(error.arguments[0].array().to_vec::<f32>().unwrap(), [0.0, 1.0]);
}

#[test]
fn d9_what_does_not_fit_is_an_error_and_the_next_call_works() {
    let device = device();
    let error = Array::zeros(&device, DType::F32, [1 << 20, 1 << 20]).unwrap_err();
    assert_eq!(error.codes(), [Code::K0704]);

    let f = executable(&affine(100_000), &Options::default(), &device);
    let x = Array::zeros(&device, DType::F32, [100_000]).unwrap();
    device.clear_cache();
    device.set_memory_limit(device.memory().live + 1000);
    let error = f.run(vec![(&x).into()]).unwrap_err();
    assert_eq!(error.codes(), [Code::K0704]);
    device.set_memory_limit(1 << 30);
    assert_eq!(f.run(vec![(&x).into()]).unwrap()[0].to_vec::<f32>().unwrap()[99_999], 1.0);
}

#[test]
fn c20_a_graph_compiles_to_the_same_plan_in_every_thread() {
    let mut p = Program::new();
    let x = p.counting(&[8, 8]);
    let soft = p.softmax(x, 1);
    let product = p.matmul(soft, x);
    let sums = p.sum(product, 0);
    p.output(sums);
    p.output(soft);
    let (graph, _) = p.graph();
    let first = compile(&graph, &Options::default()).unwrap();
    let plans = std::thread::scope(|scope| {
        let compiling: Vec<_> = (0..8).map(|_| scope.spawn(|| compile(&graph, &Options::default()).unwrap())).collect();
        compiling.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(plans.iter().all(|plan| *plan == first));
    assert_eq!(graph.to_string(), p.graph().0.to_string());
}
