//! Functions of the user's that fail while a compiled function runs.

use kiln::Code;
use kiln::prelude::*;

/// Fails by an error where an element is negative, panics where one is above 100.
fn picky() -> CustomOp<Tensor, Tensor> {
    opaque_op("picky", |x: &TensorType| Ok(x.clone()))
        .cpu(|x, y| {
            let x = x.as_slice::<f32>()?;
            y.as_mut_slice::<f32>()?.copy_from_slice(x);
            if x.iter().any(|&x| x < 0.0) {
                return Err("it takes no negative numbers".into());
            }
            assert!(x.iter().all(|&x| x <= 100.0), "too large");
            Ok(())
        })
        .gradient(|_, _, dy| dy.clone())
}

#[test]
fn an_error_or_a_panic_of_a_cpu_function_is_a_diagnostic_at_the_op() {
    for device in [Device::cpu(), Device::reference()] {
        let line = line!() + 1;
        let f = jit(&device, |x: Tensor| picky().call(x + 1.0) * 2.0);
        for (value, reason) in [(-3.0, "it takes no negative numbers"), (200.0, "panicked: too large")] {
            let error = f.call(Array::new(&device, [value as f32]).unwrap()).unwrap_err();
            assert_eq!(error.codes(), [Code::K0705]);
            assert!(error.first().label.as_ref().unwrap().contains(reason), "{error}");
            assert_eq!(error.first().loc.line_column().unwrap().0, line);
        }
        assert_eq!(f.call(Array::new(&device, [1.0f32]).unwrap()).unwrap().to_vec::<f32>().unwrap(), [4.0]);
    }
}

#[test]
fn a_step_that_fails_before_its_state_is_written_leaves_it_as_it_was() {
    for device in [Device::cpu(), Device::reference()] {
        let f = step(&device, |state: Tensor, x: Tensor| {
            let next = &state + picky().call(&x);
            (next.clone(), next.sum(..))
        });
        let mut state = Array::new(&device, [1.0f32, 2.0]).unwrap();
        let good = Array::new(&device, [1.0f32, 1.0]).unwrap();
        f.call(&mut state, &good).unwrap();
        let error = f.call(&mut state, Array::new(&device, [-1.0f32, 1.0]).unwrap()).unwrap_err();
        assert_eq!(error.codes(), [Code::K0705]);
        assert_eq!(state.to_vec::<f32>().unwrap(), [2.0, 3.0]);
        f.call(&mut state, &good).unwrap();
        assert_eq!(state.to_vec::<f32>().unwrap(), [3.0, 4.0]);
    }
}

#[test]
fn a_leaf_that_was_written_over_before_the_failure_is_lost_and_the_others_are_not() {
    let device = Device::cpu();
    let body = |(first, second): (Tensor, Tensor), x: Tensor| {
        let next = &first * 2.0;
        // The new first leaf is made before the op that fails reads it.
        let checked = picky().call(&next.barrier() - &x);
        ((next, second + &checked), checked.sum(..))
    };
    let state = || (Array::new(&device, [1.0f32; 4]).unwrap(), Array::new(&device, [5.0f32; 4]).unwrap());
    let bad = Array::new(&device, [10.0f32; 4]).unwrap();
    let f = step(&device, body);
    let mut donated = state();
    let error = f.call(&mut donated, &bad).unwrap_err();
    assert_eq!(error.codes(), [Code::K0705]);
    assert_eq!(donated.1.to_vec::<f32>().unwrap(), [5.0; 4]);
    assert!(donated.0.is_lost(), "the first leaf's memory was taken before the op ran");
    assert_eq!(donated.0.to_vec::<f32>().unwrap_err().codes(), [Code::K0703]);
    assert!(error.first().help.iter().any(|help| help.contains("state.0")), "{error}");
    assert_eq!(f.call(&mut donated, &bad).unwrap_err().codes(), [Code::K0703]);
    let kept = step(&device, body).keep_previous();
    let mut whole = state();
    assert_eq!(kept.call(&mut whole, &bad).unwrap_err().codes(), [Code::K0705]);
    assert_eq!(whole.0.to_vec::<f32>().unwrap(), [1.0; 4]);
}

#[test]
fn elements_taken_for_another_type_are_an_error_and_no_wrong_numbers() {
    let wrong = opaque_op("wrong", |x: &TensorType| Ok(x.with_dtype(DType::I32))).cpu(|_, y| {
        y.as_mut_slice::<f32>()?.fill(1.0);
        Ok(())
    });
    let f = jit(&Device::cpu(), |x: Tensor| wrong.call(x));
    let error = f.call(Array::new(&Device::cpu(), [1.0f32]).unwrap()).unwrap_err();
    assert_eq!(error.codes(), [Code::K0705]);
    assert!(error.to_string().contains("declared as i32, the kernel takes them for f32"), "{error}");
}

#[test]
fn what_a_function_leaves_unwritten_is_zero_in_every_run() {
    let lazy = opaque_op("lazy", |x: &TensorType| Ok(x.clone())).cpu(|_, y| {
        y.as_mut_slice::<f32>()?[0] = 1.0;
        Ok(())
    });
    let f = jit(&Device::cpu(), |x: Tensor| (lazy.call(x.exp()), x + 7.0));
    let x = Array::new(&Device::cpu(), [1.0f32; 5]).unwrap();
    for _ in 0..3 {
        assert_eq!(f.call(&x).unwrap().0.to_vec::<f32>().unwrap(), [1.0, 0.0, 0.0, 0.0, 0.0]);
    }
}
