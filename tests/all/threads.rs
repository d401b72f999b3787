//! Threads, panics and scopes left early: whatever happens in a capture, its device and its thread go on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::thread;

use kiln::{Device, jit};
use kiln_capture::{CaptureDevice, CapturedGraph, Scope, Tensor, composite, concat, linear, value_and_grad};
use kiln_ir::{Backend, Code, DType, Diagnostics, Result};

use crate::shown::cpu;

const THREADS: usize = 8;

type Program = fn(&Scope) -> Tensor;

/// A capture with gradients by both ways.
fn sound(scope: &Scope) -> Tensor {
    let (x, w) = (scope.input("x", DType::F32, [4, 3]), scope.input("w", DType::F32, [3, 2]).require_grad());
    let loss = linear(&x, &w, None).square().sum(..);
    w.grad(&loss.backward()) + value_and_grad(&w.inner(), |w| x.matmul(w).exp().mean(..)).1
}

/// The device captures, nothing is left open on this thread, and no composite's name sticks.
#[track_caller]
fn works(device: &CaptureDevice) {
    assert!(Scope::try_current().is_err(), "a scope is still open on this thread");
    let captured = device.capture_scope(sound).expect("the device is usable");
    assert_eq!(captured.graph.to_string(), cpu().capture_scope(sound).expect("sound").graph.to_string());
    let errors = device.capture_scope(|scope| scope.input("x", DType::Bool, [2]).sum(..)).map(|_| ());
    assert_eq!(errors.expect_err("bools are not summed").first().op.as_deref(), Some("sum"));
}

/// Runs something that panics in the user's own words.
fn panics<R>(body: impl FnOnce() -> R) {
    let payload = catch_unwind(AssertUnwindSafe(body)).map(|_| ()).expect_err("it panics");
    assert_eq!(payload.downcast_ref(), Some(&"the user's own"));
}

fn panic() -> Tensor {
    std::panic::panic_any("the user's own")
}

#[test]
fn captures_on_many_threads_at_once_tell_their_own_mistakes_each() {
    let mistakes: [(Code, Program); 4] = [
        (Code::K0201, |scope| scope.input("a", DType::F32, [2]) + scope.on(Backend::Cuda).input("b", DType::F32, [2])),
        (Code::K0302, |scope| scope.input("a", DType::F32, [2]) + scope.input("b", DType::F32, [3])),
        (Code::K0503, |scope| scope.input("a", DType::F32, [2]).inner()),
        (Code::K0304, |scope| scope.input("a", DType::F32, [2]).softmax(1)),
    ];
    let barrier = Barrier::new(THREADS);
    thread::scope(|threads| {
        for index in 0..THREADS {
            let barrier = &barrier;
            threads.spawn(move || {
                let device = cpu();
                barrier.wait();
                for round in 0..50 {
                    let (code, mistake) = mistakes[(index + round) % mistakes.len()];
                    let errors = device.capture_scope(|scope| (sound(scope), mistake(scope))).map(|_| ());
                    assert_eq!(errors.expect_err("one is planted").codes(), [code]);
                    assert!(device.capture_scope(sound).is_ok());
                }
                works(&device);
            });
        }
    });
}

#[test]
fn one_device_is_lent_to_one_thread_at_a_time() {
    let device = cpu();
    let barrier = Barrier::new(THREADS);
    let capture = || {
        barrier.wait();
        let outcome = device.capture_scope(|scope| {
            // Everybody has tried before the first of them is done.
            barrier.wait();
            sound(scope)
        });
        if outcome.is_err() {
            barrier.wait();
        }
        outcome
    };
    let outcomes: Vec<Result<CapturedGraph>> = thread::scope(|threads| {
        let running: Vec<_> = (0..THREADS).map(|_| threads.spawn(capture)).collect();
        running.into_iter().map(|thread| thread.join().expect("nothing panics")).collect()
    });
    let refused = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).map(Diagnostics::codes);
    assert_eq!(refused.collect::<Vec<_>>(), vec![vec![Code::K0104]; THREADS - 1]);
    works(&device);
}

#[test]
fn mistakes_of_many_threads_in_one_scope_are_all_collected() {
    let device = cpu();
    let errors = device.capture_scope(|scope| {
        let x = scope.input("x", DType::F32, [2, 3]).require_grad();
        thread::scope(|threads| {
            for _ in 0..THREADS {
                threads.spawn(|| {
                    for _ in 0..50 {
                        let gradients = x.square().sum(..).backward();
                        x.matmul(&x);
                        x.grad(&gradients);
                    }
                });
            }
        });
        x
    });
    assert_eq!(errors.map(|_| ()).expect_err("they are").codes(), vec![Code::K0301; THREADS * 50]);
    works(&device);
}

#[test]
fn a_panic_in_a_closure_leaves_the_device_usable() {
    let device = cpu();
    panics(|| device.capture_scope(|_| panic()));
    panics(|| device.capture_scope(|scope| (sound(scope), panic())));
    panics(|| device.capture_scope(|scope| composite("mine", &[&scope.input("x", DType::F32, [2])], panic)));
    panics(|| device.capture_scope(|scope| value_and_grad(&scope.input("x", DType::F32, [2]), |_| panic()).0));
    panics(|| device.capture_scope(|_| cpu().capture_scope(|_| panic()).map(|_| ()).expect("never")));
    works(&device);
}

#[test]
fn a_panic_that_is_caught_inside_of_a_capture_lets_it_go_on() {
    let device = cpu();
    let captured = device.capture_scope(|scope| {
        let x = scope.input("half", DType::F32, [2]);
        panics(|| composite("mine", &[&x], panic));
        panics(|| value_and_grad(&x, |_| panic()));
        panics(|| cpu().capture_scope(|_| panic()));
        (x, sound(scope))
    });
    assert!(captured.is_ok());
    works(&device);
}

#[test]
fn a_thread_that_panics_while_it_records_leaves_the_scope_open() {
    let device = cpu();
    let captured = device.capture_scope(|scope| {
        let x = scope.input("half", DType::F32, [2]);
        let lost = thread::scope(|threads| {
            threads.spawn(|| composite("mine", &[&x], || x.exp() + panic())).join().map(|_| ()).expect_err("it panics")
        });
        assert_eq!(lost.downcast_ref(), Some(&"the user's own"));
        (x, sound(scope))
    });
    assert!(captured.is_ok());
    works(&device);
}

#[test]
fn a_scope_that_is_left_by_a_question_mark_is_closed() {
    fn left(device: &CaptureDevice, kept: &mut Option<Tensor>) -> Result<CapturedGraph> {
        let open = device.begin("left early")?;
        let x = open.input("x", DType::F32, [2]);
        *kept = Some(x.clone());
        // The inner capture fails, and ends the outer one with it.
        let inner = cpu().capture_scope(|scope| scope.input("y", DType::F32, [2]).sum(1))?;
        assert_eq!(inner.graph.nodes.len(), 0, "never reached");
        open.finish(&x)
    }
    let (device, mut kept) = (cpu(), None);
    assert_eq!(left(&device, &mut kept).map(|_| ()).expect_err("no such axis").codes(), [Code::K0304]);
    works(&device);
    let kept = kept.expect("it was declared");
    let again = device.capture_scope(|_| kept.exp()).map(|_| ());
    assert_eq!(again.expect_err("its scope is closed").codes(), [Code::K0105]);
    works(&device);
}

#[test]
fn a_scope_that_was_opened_by_hand_and_dropped_is_closed() {
    let device = cpu();
    drop(device.begin("dropped").expect("none is open"));
    works(&device);
    let open = device.begin("run half").expect("none is open");
    panics(|| open.run(|_| panic()));
    assert_eq!(device.begin("second").map(|_| ()).expect_err("the first is open").codes(), [Code::K0104]);
    drop(open);
    works(&device);
}

#[test]
fn scopes_of_two_devices_may_be_closed_in_any_order() {
    let (first, second) = (cpu(), cpu());
    let a = first.begin("a").expect("none is open");
    let b = second.begin("b").expect("none is open");
    drop(a);
    works_beside(&first);
    let x = Scope::current().input("x", DType::F32, [2]);
    assert_eq!(b.finish(&x).expect("`b` is the innermost").graph.inputs.len(), 1);
    works(&first);
    works(&second);
}

/// As [`works`], while a scope of another device is open.
fn works_beside(device: &CaptureDevice) {
    assert!(device.capture_scope(sound).is_ok());
}

#[test]
fn a_device_may_be_dropped_while_its_scope_is_open() {
    let open = cpu().begin("orphan").expect("none is open");
    let x = open.input("x", DType::F32, [2]).exp();
    let captured = open.finish(&x).expect("the scope holds what it needs");
    assert_eq!(captured.graph.nodes.len(), 2);
    assert!(Scope::try_current().is_err());
}

#[test]
fn a_capture_that_fails_fast_on_another_thread_leaves_both_usable() {
    let device = cpu();
    device.fail_fast();
    let failed = thread::scope(|threads| {
        let capture = || device.capture_scope(|scope| concat(&[&scope.input("x", DType::F32, [2])], 3)).map(|_| ());
        threads.spawn(capture).join().map(|_| ()).expect_err("it panics at once")
    });
    assert!(failed.downcast_ref::<String>().expect("a text").starts_with("error[K0304]"));
    assert!(device.capture_scope(sound).is_ok());
    assert!(Scope::try_current().is_err());
}

#[test]
fn a_compiled_function_whose_closure_panics_or_errs_can_be_called_again() {
    let device = Device::cpu();
    let f = jit(&device, |(x, what): (Tensor, i32)| match what {
        0 => x.exp(),
        1 => x.sum(1),
        2 => x.grad(&x.backward()),
        _ => panic(),
    });
    for _ in 0..2 {
        assert_eq!(f.call((0.0, 1)).expect_err("no such axis").diagnostics().codes(), [Code::K0304]);
        assert_eq!(f.call((0.0, 2)).expect_err("not tracked").diagnostics().codes(), [Code::K0503]);
        panics(|| f.call((0.0, 3)));
        assert_eq!(f.call((0.0, 0)).expect("this one is sound").item::<f32>().unwrap(), 1.0);
    }
    assert_eq!(f.cache().entries, 1, "a capture that fails leaves nothing behind");
}
