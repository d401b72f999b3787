//! `step`: state updated in place, shared handles respected, nothing lost on errors.

use kiln::optim::{Adam, Sgd};
use kiln::passes::Reuse;
use kiln::prelude::*;
use kiln::{Code, Options};

use crate::jit::devices;
use crate::under_test::device;

fn floats(array: &Array) -> Vec<f32> {
    array.to_vec().unwrap()
}

fn row(device: &Device, numbers: &[f32]) -> Array {
    Array::new(device, numbers).unwrap()
}

#[derive(Tree, Clone, Debug)]
struct Pair<T> {
    a: T,
    b: T,
}

#[test]
fn every_call_updates_the_state() {
    for device in devices() {
        let count = step(&device, |w: Tensor, (): ()| {
            let w = w + 1.0;
            (w.clone(), w * 10.0)
        });
        let mut w = row(&device, &[0.0]);
        let seen: Vec<f32> = (0..4).map(|_| count.call(&mut w, ()).unwrap().item().unwrap()).collect();
        assert_eq!(seen, [10.0, 20.0, 30.0, 40.0]);
        assert_eq!(floats(&w), [4.0]);
        assert_eq!(count.cache().misses, 1);
    }
}

#[test]
fn a_state_without_other_handles_stays_in_its_memory() {
    let device = Device::cpu();
    let add = step(&device, |w: Tensor, by: Tensor| (w + by, ()));
    let mut w = row(&device, &[0.0; 1000]);
    let place = w.as_slice::<f32>().unwrap().as_ptr();
    for _ in 0..5 {
        add.call(&mut w, 1.0).unwrap();
        assert_eq!(w.as_slice::<f32>().unwrap().as_ptr(), place);
    }
    assert_eq!(floats(&w), [5.0; 1000]);
    assert!(add.report().copied.is_empty());
}

#[test]
fn a_clone_keeps_its_values_and_is_named_in_the_report() {
    for device in devices() {
        let add = step(&device, |state: Pair<Tensor>, by: Tensor| {
            let Pair { a, b } = state;
            (Pair { a: a + &by, b: b - by }, ())
        });
        let mut state = Pair { a: row(&device, &[0.0; 100]), b: row(&device, &[0.0; 100]) };
        add.call(&mut state, 1.0).unwrap();
        let kept = state.a.clone();
        add.call(&mut state, 1.0).unwrap();
        assert_eq!(floats(&kept), [1.0; 100]);
        assert_eq!((floats(&state.a), floats(&state.b)), (vec![2.0; 100], vec![-2.0; 100]));
        if device == crate::under_test::device() {
            assert_eq!(add.report().copied, [("state.a".to_owned(), 1)]);
        }
    }
}

#[test]
fn one_array_in_two_places_of_the_state_is_two_values() {
    for device in devices() {
        let f = step(&device, |state: Pair<Tensor>, (): ()| (Pair { a: state.a * 2.0, b: state.b + 1.0 }, ()));
        let one = row(&device, &[1.0, 2.0]);
        let mut state = Pair { a: one.clone(), b: one };
        f.call(&mut state, ()).unwrap();
        assert_eq!((floats(&state.a), floats(&state.b)), (vec![2.0, 4.0], vec![2.0, 3.0]));
        f.call(&mut state, ()).unwrap();
        assert_eq!((floats(&state.a), floats(&state.b)), (vec![4.0, 8.0], vec![3.0, 4.0]));
    }
}

#[test]
fn a_state_array_passed_as_an_argument_too_is_read_before_it_changes() {
    for device in devices() {
        let f = step(&device, |x: Tensor, y: Tensor| (x * 10.0, y + 1.0));
        let mut x = row(&device, &[0.0, 1.0]);
        let alias = x.clone();
        let out = f.call(&mut x, &alias).unwrap();
        assert_eq!((floats(&x), floats(&out), floats(&alias)), (vec![0.0, 10.0], vec![1.0, 2.0], vec![0.0, 1.0]));
    }
}

#[test]
fn states_may_trade_places() {
    for device in devices() {
        let swap = step(&device, |state: Pair<Tensor>, (): ()| {
            let Pair { a, b } = state;
            (Pair { a: b.clone(), b: a + b }, ())
        });
        let mut state = Pair { a: row(&device, &[0.0; 20]), b: row(&device, &[1.0; 20]) };
        for _ in 0..10 {
            swap.call(&mut state, ()).unwrap();
        }
        assert_eq!((floats(&state.a), floats(&state.b)), (vec![55.0; 20], vec![89.0; 20]));
    }
}

#[test]
fn an_unchanged_state_is_the_same_array() {
    for device in devices() {
        let read = step(&device, |x: Tensor, (): ()| (x.clone(), x.sum(0)));
        let mut x = row(&device, &[1.0, 2.0, 3.0]);
        for _ in 0..3 {
            assert_eq!(read.call(&mut x, ()).unwrap().item::<f32>().unwrap(), 6.0);
        }
        assert_eq!(floats(&x), [1.0, 2.0, 3.0]);
    }
}

#[test]
fn a_shifted_buffer_stays_right_on_every_call() {
    for device in devices() {
        let shift = step(&device, |buffer: Tensor, new: Tensor| {
            let oldest = buffer.slice(0, 0..1);
            (concat(&[&buffer.slice(0, 1..), &new.unsqueeze(0)], 0), oldest)
        });
        let mut buffer = row(&device, &[1.0, 2.0, 3.0, 4.0]);
        let oldest: Vec<f32> = [9.0, 10.0, 11.0]
            .into_iter()
            .map(|new| shift.call(&mut buffer, new).unwrap().item::<f32>().unwrap())
            .collect();
        assert_eq!(floats(&buffer), [4.0, 9.0, 10.0, 11.0]);
        assert_eq!(oldest, [1.0, 2.0, 3.0]);
        let half = step(&device, |x: Tensor, (): ()| {
            let n = x.shape()[0] as isize;
            (concat(&[&x.slice(0, n / 2..), &x.slice(0, ..n / 2)], 0), ())
        });
        let numbers: Vec<f32> = (0..1 << 16).map(|i| i as f32).collect();
        let mut x = row(&device, &numbers);
        half.call(&mut x, ()).unwrap();
        assert_eq!(floats(&x)[..2], [32768.0, 32769.0]);
        half.call(&mut x, ()).unwrap();
        assert_eq!(floats(&x), numbers);
    }
}

#[test]
fn reads_of_the_old_state_come_before_its_update() {
    for device in devices() {
        let f = step(&device, |x: Tensor, (): ()| {
            let y = &x * 10.0;
            let new = &x + 100.0;
            let z = y + &new;
            (new, z)
        });
        let mut x = row(&device, &[1.0, 2.0]);
        assert_eq!(floats(&f.call(&mut x, ()).unwrap()), [111.0, 122.0]);
        assert_eq!(floats(&x), [101.0, 102.0]);
        let bits = step(&device, |x: Tensor, (): ()| (x.log(), x.bitcast(DType::I32)));
        let mut x = row(&device, &[3.0]);
        let before = bits.call(&mut x, ()).unwrap();
        assert_eq!(before.to_vec::<i32>().unwrap(), [3.0f32.to_bits() as i32]);
        assert!((floats(&x)[0] - 1.098_612_3).abs() < 1e-6);
    }
}

#[test]
fn a_counter_that_is_broadcast_counts_once() {
    for device in devices() {
        let f = step(&device, |count: Tensor, x: Tensor| {
            let count = count + 1.0;
            (count.clone(), x * count)
        });
        let mut count = row(&device, &[0.0]);
        let x = row(&device, &[1.0; 10_000]);
        let mut out = None;
        for _ in 0..3 {
            out = Some(f.call(&mut count, &x).unwrap());
        }
        assert_eq!(floats(&count), [3.0]);
        assert_eq!(floats(&out.unwrap()), [3.0; 10_000]);
    }
}

#[test]
fn a_state_may_change_its_shape() {
    for device in devices() {
        let grow = step(&device, |x: Tensor, (): ()| (concat(&[&x, &x], 0), ()));
        let mut x = row(&device, &[1.0, 2.0]);
        grow.call(&mut x, ()).unwrap();
        grow.call(&mut x, ()).unwrap();
        assert_eq!(floats(&x), [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
        assert_eq!(grow.cache().reasons, ["argument `state`: f32[4] was f32[2]"]);
    }
}

#[test]
fn errors_before_the_launch_leave_the_state_as_it_was() {
    let device = Device::cpu();
    let f = step(&device, |x: Tensor, y: Tensor| {
        let wrong = y.rank() == 2;
        let next = if wrong { x.matmul(&y) } else { &x + 1.0 };
        (next, y.broadcast_to([y.shape()[0] << 38]))
    });
    let mut x = row(&device, &[1.0, 2.0]);
    let place = x.as_slice::<f32>().unwrap().as_ptr();
    let mut unchanged = |y: &Array, code: Code| {
        assert_eq!(f.call(&mut x, y).unwrap_err().first().code, code);
        assert!(!x.is_lost());
        assert_eq!(x.as_slice::<f32>().unwrap().as_ptr(), place);
        assert_eq!(floats(&x), [1.0, 2.0]);
    };
    unchanged(&Array::zeros(&device, DType::F32, [5, 5]).unwrap(), Code::K0301);
    unchanged(&row(&Device::reference(), &[1.0]), Code::K0701);
    unchanged(&row(&device, &[1.0]), Code::K0704);
}

#[test]
fn a_lost_state_is_refused_by_name() {
    let device = device();
    let f = step(&device, |state: Pair<Tensor>, (): ()| (state, ()));
    let mut state = Pair { a: row(&device, &[1.0]), b: Array::placeholder(&device).unwrap() };
    let error = f.call(&mut state, ()).unwrap_err();
    assert_eq!(error.codes(), [Code::K0703]);
    assert!(error.first().message.contains("`state.b`"));
    assert_eq!(floats(&state.a), [1.0]);
}

#[test]
fn a_value_that_is_not_finite_is_not_committed() {
    for device in devices() {
        let f = step(&device, |x: Tensor, by: Tensor| {
            let next = x / by;
            (next.clone(), next.sum(0))
        })
        .check_finite();
        let mut x = row(&device, &[1.0, 2.0]);
        f.call(&mut x, 2.0).unwrap();
        let error = f.call(&mut x, 0.0).unwrap_err();
        assert_eq!(error.codes(), [Code::K1004]);
        assert!(error.to_string().contains("let next = x / by;"), "{error}");
        assert_eq!(floats(&x), [0.5, 1.0]);
    }
}

#[test]
fn keep_previous_never_writes_over_the_state() {
    // Of a GPU's memory only a copy has an address here.
    let device = Device::cpu();
    let f = step(&device, |x: Tensor, (): ()| (x + 1.0, ())).keep_previous();
    let mut x = row(&device, &[1.0; 100]);
    let place = x.as_slice::<f32>().unwrap().as_ptr();
    f.call(&mut x, ()).unwrap();
    assert_ne!(x.as_slice::<f32>().unwrap().as_ptr(), place);
    assert_eq!(floats(&x), [2.0; 100]);
}

#[test]
fn donated_memory_may_change_its_rank() {
    for device in devices() {
        let f = step(&device, |x: Tensor, (): ()| {
            let y = x.reshape([1, 2, 3, 1]) * 2.0;
            let z = y.sum_keepdim(2);
            (y, z)
        });
        let mut x = Array::new(&device, [[0.0f32, 1.0, 2.0], [3.0, 4.0, 5.0]]).unwrap();
        let z = f.call(&mut x, ()).unwrap();
        assert_eq!(x.shape().to_vec(), [1, 2, 3, 1]);
        assert_eq!(floats(&x), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!((z.shape().to_vec(), floats(&z)), (vec![1, 2, 1, 1], vec![6.0, 24.0]));
    }
}

#[test]
fn a_warm_step_asks_the_system_for_no_memory() {
    let device = Device::cpu();
    let train = step(&device, |(w, sgd): (Tensor, Sgd<Tensor>), (x, lr): (Tensor, Tensor)| {
        let (loss, gradient) = value_and_grad(&w, |w| x.matmul(w).tanh().square().mean(..));
        (sgd.step(w, gradient, &lr), loss)
    });
    let w = Array::ones(&device, DType::F32, [64, 32]).unwrap();
    let x = Array::ones(&device, DType::F32, [128, 64]).unwrap();
    let mut state = (w.clone(), Sgd::with_momentum(&w, 0.9).unwrap());
    drop(w);
    for _ in 0..3 {
        train.call(&mut state, (&x, 0.01)).unwrap();
    }
    let warm = device.memory().allocations;
    for i in 0..50 {
        train.call(&mut state, (&x, 0.01 / f64::from(i + 1))).unwrap();
    }
    assert_eq!(device.memory().allocations, warm);
}

#[test]
fn evaluation_in_a_loop_keeps_memory_flat() {
    let device = Device::cpu();
    let evaluate = jit(&device, |(w, b, x): (Tensor, Tensor, Tensor)| (x.matmul(&w) + b).relu());
    let w = Array::ones(&device, DType::F32, [16, 16]).unwrap();
    let b = Array::ones(&device, DType::F32, [16]).unwrap();
    let x = Array::ones(&device, DType::F32, [8, 16]).unwrap();
    for _ in 0..10 {
        evaluate.call((&w, &b, &x)).unwrap();
    }
    let before = device.memory();
    for _ in 0..500 {
        evaluate.call((&w, &b, &x)).unwrap();
    }
    assert_eq!((device.memory().live, device.memory().peak), (before.live, before.peak));
}

#[test]
fn a_part_taken_from_a_large_array_does_not_keep_it() {
    let device = Device::cpu();
    let take = jit(&device, |(x, rows): (Tensor, Tensor)| x.take(0, &rows));
    let big = Array::ones(&device, DType::F32, [1000, 100]).unwrap();
    let rows = Array::new(&device, [1i32, 500, 999]).unwrap();
    let part = take.call((&big, &rows)).unwrap();
    let held = device.memory().live;
    drop(big);
    assert!(device.memory().live <= held - 400_000);
    assert_eq!(floats(&part), [1.0; 300]);
}

#[test]
fn calls_between_other_allocations_read_what_they_are_given() {
    let device = device();
    let f = jit(&device, |x: Tensor| x * 2.0 + 1.0);
    let first = row(&device, &[1.0, 2.0]);
    assert_eq!(floats(&f.call(&first).unwrap()), [3.0, 5.0]);
    drop(first);
    let nines: Vec<Array> = (0..100).map(|_| row(&device, &[9.0, 9.0])).collect();
    assert_eq!(floats(&f.call(row(&device, &[3.0, 4.0])).unwrap()), [7.0, 9.0]);
    drop(nines);
    let elsewhere = std::thread::scope(|scope| scope.spawn(|| f.call(row(&device, &[5.0, 6.0])).unwrap()).join());
    assert_eq!(floats(&elsewhere.unwrap()), [11.0, 13.0]);
}

#[test]
fn adam_follows_the_published_update() {
    for device in devices() {
        let train =
            step(&device, |(w, adam): (Tensor, Adam<Tensor>), (g, lr): (Tensor, Tensor)| (adam.step(w, g, &lr), ()));
        let w = row(&device, &[1.0, -2.0, 0.5]);
        let mut state = (w.clone(), Adam::new(&w).unwrap().weight_decay(0.1));
        let (mut expected, mut m, mut v) = ([1.0f64, -2.0, 0.5], [0.0f64; 3], [0.0f64; 3]);
        for t in 1..=10 {
            let gradient = [0.5 * f64::from(t), -0.1, 3.0];
            let g = row(&device, &gradient.map(|g| g as f32));
            train.call(&mut state, (&g, 0.05)).unwrap();
            for i in 0..3 {
                m[i] = 0.9 * m[i] + 0.1 * gradient[i];
                v[i] = 0.999 * v[i] + 0.001 * gradient[i] * gradient[i];
                let (mean, square) = (m[i] / (1.0 - 0.9f64.powi(t)), v[i] / (1.0 - 0.999f64.powi(t)));
                expected[i] -= 0.05 * (mean / (square.sqrt() + 1e-8) + 0.1 * expected[i]);
            }
        }
        for (found, expected) in floats(&state.0).iter().zip(expected) {
            assert!((f64::from(*found) - expected).abs() < 2e-5, "{found} {expected}");
        }
        assert_eq!(train.cache().misses, 1);
    }
}

#[test]
fn sixteen_bit_weights_keep_wide_moments() {
    for device in devices() {
        let train = step(&device, |(w, sgd): (Tensor, Sgd<Tensor>), g: Tensor| (sgd.step(w, g, 0.1), ()));
        let w = Array::ones(&device, DType::BF16, [2]).unwrap();
        let g = Array::ones(&device, DType::BF16, [2]).unwrap();
        let mut state = (w.clone(), Sgd::with_momentum(&w, 0.5).unwrap());
        train.call(&mut state, &g).unwrap();
        assert_eq!(state.0.dtype(), DType::BF16);
        assert_eq!(state.1.leaves()[0].dtype(), DType::F32);
        assert!(state.0.to_vec::<half::bf16>().unwrap().iter().all(|w| (w.to_f32() - 0.9).abs() < 0.004));
    }
}

#[test]
fn memory_reuse_changes_no_bit_on_any_replay() {
    let device = device();
    let run = |reuse: Reuse| {
        let train = step(&device, |w: Tensor, x: Tensor| {
            let losses = |w: &Tensor| (x.permute([0, 2, 3, 1]) * w).tanh().square().sum([1, 2, 3]);
            let (loss, first) = value_and_grad(&w, |w| losses(w).sum(..));
            let (_, second) = value_and_grad(&w, |w| losses(w).sum(..) * 0.5);
            (w - (first + second) * 0.1, loss)
        })
        .options(Options { reuse, ..Options::default() });
        let mut w = row(&device, &[0.5, -1.5]);
        let mut seen = Vec::new();
        for replay in 0..5 {
            let x: Vec<f32> = (0..8).map(|i| (i + replay) as f32 * 0.3 - 1.0).collect();
            let x = Array::from_vec(&device, x, [1, 2, 2, 2]).unwrap();
            seen.push(train.call(&mut w, &x).unwrap().item::<f32>().unwrap().to_bits());
            seen.extend(floats(&w).iter().map(|w| w.to_bits()));
        }
        seen
    };
    assert_eq!(run(Reuse::On), run(Reuse::Off));
}

#[test]
fn reading_between_steps_changes_no_bit() {
    for device in devices() {
        let grow = step(&device, |x: Tensor, (): ()| (x * 1.001 + 0.001, ()));
        let run = |every: usize| {
            let mut x = row(&device, &[1.0, 2.0]);
            for i in 1..=300 {
                grow.call(&mut x, ()).unwrap();
                if i % every == 0 {
                    floats(&x);
                }
            }
            floats(&x).iter().map(|x| x.to_bits()).collect::<Vec<u32>>()
        };
        assert_eq!(run(1), run(7));
        assert_eq!(run(1), run(1000));
    }
}

#[test]
fn only_the_leaves_that_were_shared_are_named() {
    let device = device();
    let f = step(&device, |state: (Pair<Tensor>, Tensor), (): ()| {
        let (Pair { a, b }, c) = state;
        ((Pair { a: a + 1.0, b: b + 1.0 }, c + 1.0), ())
    });
    let mut state = (Pair { a: row(&device, &[0.0; 10]), b: row(&device, &[0.0; 10]) }, row(&device, &[0.0; 10]));
    let kept = state.1.clone();
    f.call(&mut state, ()).unwrap();
    f.call(&mut state, ()).unwrap();
    assert_eq!(f.report().copied, [("state.1".to_owned(), 1)]);
    assert_eq!((floats(&kept), floats(&state.1)), (vec![0.0; 10], vec![2.0; 10]));
}
