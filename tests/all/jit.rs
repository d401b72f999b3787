//! `jit`: signatures, the cache, fed numbers, failed captures, taps, checks. Every case runs on the CPU and on the reference.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use kiln::prelude::*;
use kiln::{Code, Options};

use crate::under_test::device;

pub(crate) fn devices() -> [Device; 2] {
    [device(), Device::reference()]
}

fn floats(array: &Array) -> Vec<f32> {
    array.to_vec().unwrap()
}

fn row(device: &Device, numbers: &[f32]) -> Array {
    Array::new(device, numbers).unwrap()
}

#[test]
fn optional_arguments_are_part_of_the_signature() {
    for device in devices() {
        for order in [[false, true, false], [true, false, true]] {
            let add = jit(&device, |(x, y): (Tensor, Option<Tensor>)| match y {
                None => x + 1.0,
                Some(y) => x + y,
            });
            let x = row(&device, &[1.0]);
            let y = row(&device, &[5.0]);
            for given in order {
                let sum = add.call((&x, given.then_some(&y))).unwrap();
                assert_eq!(floats(&sum), [if given { 6.0 } else { 2.0 }]);
            }
            assert_eq!(add.cache().misses, 2);
        }
    }
}

#[test]
fn the_number_of_results_may_follow_the_structure() {
    for device in devices() {
        let twice = jit(&device, |parts: Vec<Tensor>| parts.iter().map(|part| part * 2.0).collect::<Vec<Tensor>>());
        let x = row(&device, &[1.5]);
        for count in [1, 3, 2, 1] {
            let parts = vec![&x; count];
            let results = twice.call(parts).unwrap();
            assert_eq!(results.len(), count);
            assert!(results.iter().all(|result| floats(result) == [3.0]));
        }
        assert_eq!(twice.cache().misses, 3);
    }
}

#[test]
fn dtypes_are_part_of_the_signature() {
    for device in devices() {
        let square = jit(&device, |x: Tensor| &x * &x);
        for _ in 0..3 {
            let float = square.call(Array::new(&device, [65536.0f32]).unwrap()).unwrap();
            assert_eq!(floats(&float), [4_294_967_296.0]);
            let int = square.call(Array::new(&device, [65536i32]).unwrap()).unwrap();
            assert_eq!(int.to_vec::<i32>().unwrap(), [0]);
            let byte = square.call(Array::new(&device, [20u8]).unwrap()).unwrap();
            assert_eq!(byte.to_vec::<u8>().unwrap(), [144]);
        }
        assert_eq!(square.cache().misses, 3);
    }
}

#[test]
fn shapes_and_layouts_are_told_apart() {
    for device in devices() {
        let columns = jit(&device, |x: Tensor| x.sum(0));
        let wide = ndarray::array![[0.0f32, 1.0, 2.0], [3.0, 4.0, 5.0]];
        let tall = wide.clone().into_shape_with_order((3, 2)).unwrap();
        for _ in 0..2 {
            assert_eq!(floats(&columns.call(Array::new(&device, &wide).unwrap()).unwrap()), [3.0, 5.0, 7.0]);
            assert_eq!(floats(&columns.call(Array::new(&device, &tall).unwrap()).unwrap()), [6.0, 9.0]);
            assert_eq!(floats(&columns.call(Array::new(&device, wide.t()).unwrap()).unwrap()), [3.0, 12.0]);
        }
        assert_eq!(columns.cache().misses, 2);
    }
}

#[test]
fn numbers_taken_from_a_shape_follow_the_shape() {
    for device in devices() {
        let tail = jit(&device, |x: Tensor| x.slice(0, -2..) * x.shape()[0] as f64);
        assert_eq!(floats(&tail.call(row(&device, &[1.0, 2.0, 3.0])).unwrap()), [6.0, 9.0]);
        assert_eq!(floats(&tail.call(row(&device, &[1.0, 2.0, 3.0, 4.0, 5.0])).unwrap()), [20.0, 25.0]);
        let sum = jit(&device, |x: Tensor| (&x + row_of_ones(&x)).sum(0));
        for length in [1usize, 3, 0, 2] {
            assert_eq!(floats(&sum.call(row(&device, &vec![1.0; length])).unwrap()), [2.0 * length as f32]);
        }
    }
}

fn row_of_ones(like: &Tensor) -> Tensor {
    like.ones_like()
}

#[test]
fn the_cache_is_bounded_and_evicted_captures_come_back_right() {
    for device in devices() {
        let sum = jit(&device, |x: Tensor| (x * 2.0).sum(0));
        let call = |length: usize| sum.call(row(&device, &vec![1.0; length])).unwrap().item::<f32>().unwrap();
        for length in 1..=300 {
            assert_eq!(call(length), 2.0 * length as f32);
        }
        let cache = sum.cache();
        assert_eq!((cache.entries, cache.misses, cache.evictions), (64, 300, 236));
        let warning = cache.warning.unwrap();
        assert_eq!(warning, "recompiled 16 times; the last time because of argument `args`: f32[17] was f32[16]");
        assert_eq!(call(1), 2.0);
        sum.clear_cache();
        assert_eq!(sum.cache().entries, 0);
        assert_eq!(call(5), 10.0);
    }
}

#[test]
fn memory_stays_flat_over_many_lengths() {
    let device = device();
    let sum = jit(&device, |x: Tensor| (x * 2.0).sum(0)).cache_limit(8);
    let mut live = Vec::new();
    for length in 1..=400usize {
        sum.call(row(&device, &vec![1.0; length])).unwrap();
        live.push(device.memory().live);
    }
    assert!(live[399] <= live[20] + 64 * 1024, "{live:?}");
}

#[test]
fn an_unused_argument_is_part_of_the_signature_and_named_in_the_miss() {
    let device = device();
    let double = jit(&device, |(x, _y): (Tensor, Tensor)| x * 2.0);
    let x = row(&device, &[1.5]);
    for length in [4, 6, 8] {
        assert_eq!(floats(&double.call((&x, row(&device, &vec![0.0; length]))).unwrap()), [3.0]);
    }
    let reasons = double.cache().reasons;
    assert_eq!(reasons, ["argument `args.1`: f32[6] was f32[4]", "argument `args.1`: f32[8] was f32[6]"]);
}

#[test]
fn numbers_are_fed_and_never_stale() {
    for device in devices() {
        let descend = jit(&device, |(w, lr): (Tensor, Tensor)| w - lr * 2.0);
        let w = row(&device, &[1.0]);
        for (lr, expected) in [(0.1f32, 0.8f32), (0.2, 0.6), (0.3, 0.4), (0.0, 1.0), (1.0, -1.0)] {
            let result = floats(&descend.call((&w, lr)).unwrap());
            assert!((result[0] - expected).abs() < 1e-6);
        }
        assert!(floats(&descend.call((&w, f32::NAN)).unwrap())[0].is_nan());
        assert!((floats(&descend.call((&w, 0.25)).unwrap())[0] - 0.5).abs() < 1e-6);
        assert_eq!(descend.cache().misses, 1);
    }
}

#[test]
fn every_kind_of_number_can_be_fed() {
    let device = Device::reference();
    let same = jit(&device, |x: Tensor| x);
    assert_eq!(same.call(1.5f64).unwrap().item::<f32>().unwrap(), 1.5);
    assert_eq!(same.call(-7).unwrap().item::<i32>().unwrap(), -7);
    assert_eq!(same.call(-7i64).unwrap().item::<i32>().unwrap(), -7);
    assert_eq!(same.call(7u32).unwrap().item::<u32>().unwrap(), 7);
    assert!(same.call(true).unwrap().item::<bool>().unwrap());
    let error = same.call(1i64 << 40).unwrap_err();
    assert_eq!(error.codes(), [Code::K0406]);
    assert!(error.to_string().contains("1099511627776 does not fit i32"), "{error}");
    assert_eq!(same.call(1e300).unwrap_err().codes(), [Code::K0406]);
}

#[test]
fn plain_data_is_compiled_in_and_recaptured_when_it_changes() {
    let device = device();
    let scale = jit(&device, |(x, times): (Tensor, f32)| x * f64::from(times));
    let x = row(&device, &[2.0]);
    assert_eq!(floats(&scale.call((&x, 3.0)).unwrap()), [6.0]);
    assert_eq!(floats(&scale.call((&x, 4.0)).unwrap()), [8.0]);
    assert_eq!(floats(&scale.call((&x, 3.0)).unwrap()), [6.0]);
    assert_eq!(scale.cache().misses, 2);
    assert_eq!(scale.cache().reasons, ["argument `args.1`: 4.0 was 3.0"]);
}

#[test]
fn results_fed_back_are_ordinary_arguments() {
    for device in devices() {
        let next = jit(&device, |x: Tensor| x + 1.0);
        let mut x = row(&device, &[0.0]);
        for _ in 0..20 {
            x = next.call(x).unwrap();
        }
        assert_eq!(floats(&x), [20.0]);
        let fibonacci = jit(&device, |(x, y): (Tensor, Tensor)| (y.clone(), x + y));
        let mut pair = (row(&device, &[0.0]), row(&device, &[1.0]));
        for _ in 0..10 {
            pair = fibonacci.call(&pair).unwrap();
        }
        assert_eq!((floats(&pair.0), floats(&pair.1)), (vec![55.0], vec![89.0]));
        let swap = jit(&device, |(x, y): (Tensor, Tensor)| (y, x));
        pair = swap.call(&pair).unwrap();
        assert_eq!((floats(&pair.0), floats(&pair.1)), (vec![89.0], vec![55.0]));
    }
}

#[test]
fn results_are_never_overwritten_by_later_calls() {
    for device in devices() {
        let add = jit(&device, |x: Tensor| (x.clone(), &x + 1.0, (&x + 1.0).sum(0)));
        let kept: Vec<_> = (0..5).map(|i| add.call(row(&device, &[i as f32; 100])).unwrap()).collect();
        for (i, (same, more, sum)) in kept.iter().enumerate() {
            assert_eq!(floats(same), [i as f32; 100]);
            assert_eq!(floats(more), [i as f32 + 1.0; 100]);
            assert_eq!(floats(sum), [100.0 * (i as f32 + 1.0)]);
        }
    }
}

#[test]
fn a_ticket_that_escapes_is_refused_by_name() {
    let device = device();
    let escaped = Mutex::new(Vec::new());
    let add = jit(&device, |(x, y): (Tensor, Tensor)| {
        let z = x + y;
        escaped.lock().unwrap().push(z.clone());
        z
    });
    add.call((1.0, 2.0)).unwrap();
    add.call((1.0, 2.0)).unwrap();
    assert_eq!(escaped.lock().unwrap().len(), 1, "the closure runs once for each signature");
    let leaked = escaped.lock().unwrap().pop().unwrap();
    let error = jit(&device, move |x: Tensor| x + &leaked).call(1.0).unwrap_err();
    assert_eq!(error.codes(), [Code::K0105]);
    assert!(error.to_string().contains("tests/all/jit.rs"), "{error}");
}

#[test]
fn nested_functions_of_plain_arguments_capture_their_own_branch() {
    fn inner(flag: bool, x: &Tensor) -> Tensor {
        if flag { x.sin() } else { x.cos() }
    }
    for device in devices() {
        let layers = jit(&device, |(x, flags): (Tensor, Vec<bool>)| {
            flags.iter().map(|&flag| inner(flag, &x) + 1.0).reduce(|sum, layer| sum + layer).unwrap()
        });
        let sum = layers.call((0.0, vec![true, false, true, false])).unwrap();
        assert_eq!(sum.item::<f32>().unwrap(), 6.0);
        let sum = layers.call((0.0, vec![true, true, true, true])).unwrap();
        assert_eq!(sum.item::<f32>().unwrap(), 4.0);
    }
}

#[test]
fn captures_on_several_threads_do_not_meet() {
    let device = device();
    let slow = || {
        let slow = jit(&device, |x: Tensor| {
            let y = &x + 1.0;
            std::thread::sleep(std::time::Duration::from_millis(10));
            y * 2.0
        });
        assert_eq!(slow.call(1.0).unwrap().item::<f32>().unwrap(), 4.0);
        assert_eq!(slow.report().baked.len(), 2, "exactly the closure's own numbers");
    };
    let quick = || {
        let next = jit(&device, |x: Tensor| x + 1.0);
        for i in 0..200 {
            assert_eq!(next.call(i as f32).unwrap().item::<f32>().unwrap(), i as f32 + 1.0);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| (0..5).for_each(|_| slow()));
        (0..3).for_each(|_| {
            scope.spawn(quick);
        });
    });
}

#[test]
fn one_function_first_called_from_eight_threads_gives_one_value() {
    let device = device();
    let captures = AtomicUsize::new(0);
    let square = jit(&device, |x: Tensor| {
        captures.fetch_add(1, Ordering::Relaxed);
        &x * &x
    });
    let start = Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                start.wait();
                assert_eq!(square.call(3.0).unwrap().item::<f32>().unwrap(), 9.0);
            });
        }
    });
    assert_eq!(square.cache().entries, 1);
    assert!(captures.load(Ordering::Relaxed) <= 8);
}

#[test]
fn a_closure_may_run_other_compiled_functions_while_it_is_captured() {
    for device in devices() {
        let inner = jit(&device, |x: Tensor| x * 10.0);
        let dropped = Mutex::new(Some(row(&device, &[7.0])));
        let outer = jit(&device, |x: Tensor| {
            let evaluated = inner.call(4.0).unwrap().item::<f32>().unwrap();
            drop(dropped.lock().unwrap().take());
            assert!(format!("{x:?}").contains("ticket"));
            x + f64::from(evaluated)
        });
        assert_eq!(outer.call(2.0).unwrap().item::<f32>().unwrap(), 42.0);
    }
}

#[test]
fn draws_follow_the_key_and_only_the_key() {
    for device in devices() {
        let draw = jit(&device, |key: Key| {
            let [now, next] = key.split();
            (now.uniform([4]), next)
        });
        let key = |seed: u64| kiln::random::Random::new(seed).key(&device).unwrap();
        let series = |seed: u64| {
            let mut key = key(seed);
            let mut seen = Vec::new();
            for _ in 0..5 {
                let (numbers, next) = draw.call(&key).unwrap();
                seen.push(floats(&numbers));
                key = next;
            }
            seen
        };
        let first = series(1);
        for (i, numbers) in first.iter().enumerate() {
            assert!(first[..i].iter().all(|earlier| earlier != numbers), "every call draws anew");
        }
        assert_eq!(first, series(1));
        assert_ne!(first, series(2));
        assert_eq!(draw.cache().misses, 1);
    }
}

#[test]
fn one_array_passed_twice_is_two_parameters() {
    for device in devices() {
        let f = jit(&device, |(x, y): (Tensor, Tensor)| x * 2.0 + y);
        let one = row(&device, &[1.0]);
        let ten = row(&device, &[10.0]);
        assert_eq!(floats(&f.call((&one, &one)).unwrap()), [3.0]);
        assert_eq!(floats(&f.call((&one, &ten)).unwrap()), [12.0]);
        assert_eq!(floats(&f.call((&one, &one)).unwrap()), [3.0]);
        let windows = jit(&device, |a: Tensor| a.slice(0, 0..2) * 2.0 + a.slice(0, 1..3));
        assert_eq!(floats(&windows.call(row(&device, &[1.0, 2.0, 3.0])).unwrap()), [4.0, 7.0]);
    }
}

#[test]
fn constants_closed_over_are_freed_with_their_function() {
    let device = Device::cpu();
    let start = device.memory().live;
    for i in 0..20 {
        let table = HostData::from_literals(
            DType::F32,
            [1000],
            &vec![kiln::ir::Literal::from_f64(DType::F32, f64::from(i)); 1000],
        );
        let table = table.unwrap();
        let add = jit(&device, move |x: Tensor| (x.scope().constant(&table) + &x).sum(0));
        assert_eq!(add.call(1.0).unwrap().item::<f32>().unwrap(), 1000.0 * (i as f32 + 1.0));
        drop(add);
        assert_eq!(device.memory().live, start);
    }
    device.clear_cache();
    assert_eq!((device.memory().live, device.memory().cached), (start, 0));
}

#[test]
fn results_may_be_kept_or_dropped() {
    for device in devices() {
        let add = jit(&device, |(x, y): (Tensor, Tensor)| x + y);
        let x = row(&device, &[1.0, 2.0]);
        drop(add.call((&x, &x)).unwrap());
        let kept = add.call((&x, &x)).unwrap();
        let again = add.call((&kept, &x)).unwrap();
        assert_eq!(floats(&kept), [2.0, 4.0]);
        assert_eq!(floats(&again), [3.0, 6.0]);
    }
}

#[test]
fn compiling_in_parallel_gives_the_same_plan_every_time() {
    let captured = CaptureDevice::new(Backend::Cpu)
        .capture_scope(|scope| {
            let x = scope.input("x", DType::F32, [8, 16]);
            let w = scope.input("w", DType::F32, [16, 4]);
            x.matmul(&w).softmax(1)
        })
        .unwrap();
    let plan = || kiln::passes::compile(&captured.graph, &Options::default()).unwrap();
    let first = plan();
    std::thread::scope(|scope| {
        let plans: Vec<_> = (0..8).map(|_| scope.spawn(plan)).collect();
        for other in plans {
            assert_eq!(other.join().unwrap(), first);
        }
    });
}

#[test]
fn all_mistakes_of_a_capture_are_returned_and_none_of_it_stays() {
    for device in devices() {
        let wrong = Mutex::new(true);
        let f = jit(&device, |(x, y): (Tensor, Tensor)| {
            if *wrong.lock().unwrap() {
                let _ = x.matmul(&y);
                let _ = x.reshape([7]);
            }
            &x + &y
        });
        let x = Array::zeros(&device, DType::F32, [2, 3]).unwrap();
        let y = Array::ones(&device, DType::F32, [2, 3]).unwrap();
        assert_eq!(f.call((&x, &y)).unwrap_err().codes(), [Code::K0301, Code::K0303]);
        assert_eq!((f.cache().entries, f.cache().misses), (0, 0));
        *wrong.lock().unwrap() = false;
        assert_eq!(floats(&f.call((&x, &y)).unwrap()), [1.0; 6]);
    }
}

#[test]
fn inputs_and_outputs_made_by_hand_do_not_shift_the_function_s_own() {
    for device in devices() {
        let f = jit(&device, |x: Tensor| {
            let y = &x * 2.0;
            x.scope().output("by hand", &y);
            y + 1.0
        });
        assert_eq!(f.call(3.0).unwrap().item::<f32>().unwrap(), 7.0);
        let g = jit(&device, |x: Tensor| &x + x.scope().input("w", DType::F32, []));
        let error = g.call(1.0).unwrap_err();
        assert_eq!(error.codes(), [Code::K0108]);
        assert_eq!(error.first().message, "graph reads undeclared input tensor w");
    }
}

#[test]
fn a_panic_inside_the_closure_leaves_nothing_behind() {
    let device = device();
    let panics = AtomicUsize::new(1);
    let f = jit(&device, |x: Tensor| {
        let y = x + 1.0;
        assert!(panics.load(Ordering::Relaxed) == 0, "as told");
        y
    });
    let call = || f.call(1.0);
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
    assert!(unwound.is_err());
    assert_eq!(f.cache().entries, 0);
    panics.store(0, Ordering::Relaxed);
    assert_eq!(f.call(1.0).unwrap().item::<f32>().unwrap(), 2.0);
}

#[test]
fn an_array_on_another_device_is_named() {
    let f = jit(&device(), |(x, y): (Tensor, Tensor)| x + y);
    let here = row(&device(), &[1.0]);
    let elsewhere = row(&Device::reference(), &[1.0]);
    let error = f.call((&here, &elsewhere)).unwrap_err();
    assert_eq!(error.codes(), [Code::K0701]);
    let told = format!("argument `args.1`: expected an array on device {}, got one on ndarray", device());
    assert!(error.first().message.contains(&told), "{error}");
}

#[test]
fn too_large_a_result_is_out_of_memory_and_the_device_goes_on() {
    let device = Device::cpu();
    let grow = jit(&device, |x: Tensor| x.broadcast_to([1 << 20, 1 << 18]).exp());
    let error = grow.call(1.0).unwrap_err();
    assert_eq!(error.codes(), [Code::K0704]);
    let text = error.to_string();
    assert!(text.contains("asked for 1099511627776 bytes for result `out`"), "{text}");
    assert!(text.contains("tests/all/jit.rs"), "{text}");
    let add = jit(&device, |(x, y): (Tensor, Tensor)| x + y);
    assert_eq!(add.call((1.0, 1.0)).unwrap().item::<f32>().unwrap(), 2.0);
}

#[test]
fn taps_are_shown_by_name_and_cost_nothing_when_off() {
    for device in devices() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        let body = |x: Tensor| {
            let h = (x * 2.0).tap("h");
            (h + 1.0).tap("k").sum(0)
        };
        let on = jit(&device, body).on_tap(move |name, array| {
            log.lock().unwrap().push((name.to_owned(), array.to_vec::<f32>().unwrap()));
        });
        let x = row(&device, &[1.0, 2.0]);
        assert_eq!(on.call(&x).unwrap().item::<f32>().unwrap(), 8.0);
        let expected = [("h".to_owned(), vec![2.0, 4.0]), ("k".to_owned(), vec![3.0, 5.0])];
        assert_eq!(*seen.lock().unwrap(), expected);
        let off = jit(&device, body);
        assert_eq!(off.call(&x).unwrap().item::<f32>().unwrap(), 8.0);
        if device == crate::under_test::device() {
            assert!(off.report().bytes() < on.report().bytes());
        }
    }
}

#[test]
fn the_first_op_that_made_a_nan_is_named_with_its_line() {
    for device in devices() {
        let f = jit(&device, |x: Tensor| {
            let root = (&x - 2.0).sqrt();
            (root + 1.0).sum(0)
        })
        .check_finite();
        assert_eq!(f.call(row(&device, &[3.0, 6.0])).unwrap().item::<f32>().unwrap(), 5.0);
        let error = f.call(row(&device, &[3.0, 1.0])).unwrap_err();
        assert_eq!(error.codes(), [Code::K1004]);
        assert_eq!(error.first().message, "`sqrt` made a value that is not finite");
        assert!(error.to_string().contains("let root = (&x - 2.0).sqrt();"), "{error}");
        let error = f.call(row(&device, &[3.0, f32::NAN])).unwrap_err();
        assert_eq!(error.first().message, "argument `args` holds a value that is not finite");
    }
}

#[test]
fn the_report_tells_what_was_compiled() {
    let device = device();
    let f = jit(&device, |(x, w): (Tensor, Tensor)| x.matmul(&w).relu().sum(1) * 3.0).named("forward");
    let x = Array::ones(&device, DType::F32, [4, 8]).unwrap();
    let w = Array::ones(&device, DType::F32, [8, 2]).unwrap();
    f.call((&x, &w)).unwrap();
    f.call((&x, &w)).unwrap();
    let report = f.report();
    assert_eq!((report.name.as_str(), report.runs, report.cache.hits), ("forward", 2, 1));
    assert!(report.launches() >= 1 && report.bytes() > 0 && report.peak_bytes > 0);
    assert_eq!(report.baked.iter().filter(|baked| baked.text == "3.0").count(), 1);
    let text = report.to_string();
    for part in ["`forward`:", "launches per call", "matmul", "tests/all/jit.rs:", "baked in:", "cache: 1 kept"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}
