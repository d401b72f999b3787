//! What users are told: the full text of every mistake that recording can find, with their own lines in it.
//!
//! Line numbers are given from the line of the `report` call, so that a test added above changes no text.

use std::panic::{AssertUnwindSafe, catch_unwind};

use kiln_capture::{
    Key, Mask, Scope, Tensor, attention, concat, cross_entropy, layer_norm, mse, stack, value_and_grad,
};
use kiln_ir::{Backend, Code, DType};

use crate::shown::{cpu, report, shown};

#[track_caller]
fn f32s<const N: usize>(scope: &Scope, name: &str, shape: [usize; N]) -> Tensor {
    scope.input(name, DType::F32, shape)
}

#[test]
fn k0101_a_scope_is_asked_for_where_none_is_open() {
    insta::assert_snapshot!(shown(cpu().try_scope(), line!()));
    assert_eq!(Scope::try_current().map(|_| ()).map_err(|errors| errors.codes()), Err(vec![Code::K0101]));
}

#[test]
fn k0101_panics_at_the_line_of_the_user_where_nothing_can_collect() {
    let payload = catch_unwind(|| cpu().scope()).expect_err("no scope is open");
    let text = payload.downcast_ref::<String>().expect("a formatted text");
    assert!(text.starts_with("error[K0101]: capture tensor operations must run inside CaptureDevice::capture_scope\n"));
    assert!(text.contains("tests/all/mistakes.rs:"), "{text}");
}

#[test]
fn k0102_data_is_asked_for_during_a_capture() {
    let base = line!();
    let mut text = String::new();
    let captured = cpu().capture_scope(|scope| {
        let y = f32s(scope, "x", [3]).exp();
        text = shown(y.try_data(), base);
        y
    });
    assert!(captured.is_ok(), "a refused question is no mistake of the scope");
    insta::assert_snapshot!(text);
}

#[test]
fn k0102_is_not_for_constants_whose_data_is_known() {
    let captured = cpu().capture_scope(|scope| {
        let table = scope.constant([1.0, 2.0]);
        assert_eq!(table.try_data().unwrap().elements().map(|x| x.to_f64()).collect::<Vec<_>>(), [1.0, 2.0]);
    });
    assert!(captured.is_ok());
}

#[test]
fn k0103_a_device_is_seeded_inside_a_scope() {
    let device = cpu();
    let base = line!();
    let captured = device.capture_scope(|_| {
        device.seed(7);
    });
    insta::assert_snapshot!(shown(captured, base));
}

#[test]
fn k0104_a_scope_is_opened_inside_a_scope() {
    let device = cpu();
    let base = line!();
    let mut text = String::new();
    let outer = device.capture_scope(|_| {
        text = shown(device.capture_scope(|_| ()), base);
    });
    assert!(outer.is_ok());
    insta::assert_snapshot!(text);
}

#[test]
fn k0105_a_ticket_is_used_in_a_later_scope() {
    let base = line!();
    let mut kept = None;
    let first = cpu().capture_scope(|scope| kept = Some(f32s(scope, "x", [2])));
    assert!(first.is_ok());
    let later = cpu().capture_scope(|scope| f32s(scope, "y", [2]) + kept.as_ref().unwrap());
    insta::assert_snapshot!(shown(later, base));
}

#[test]
fn k0105_a_ticket_is_used_in_a_scope_of_another_device() {
    let base = line!();
    let mut text = String::new();
    let outer = cpu().capture_scope(|outer| {
        let x = f32s(outer, "x", [2]);
        let inner = cpu().capture_scope(|inner| f32s(inner, "y", [2]) * &x);
        text = shown(inner, base);
        x
    });
    assert!(outer.is_ok(), "the inner scope has the mistake");
    insta::assert_snapshot!(text);
}

#[test]
fn k0105_panics_where_no_scope_is_open() {
    let mut kept = None;
    assert!(cpu().capture_scope(|scope| kept = Some(f32s(scope, "x", [2]))).is_ok());
    let kept = kept.unwrap();
    let payload = catch_unwind(AssertUnwindSafe(|| kept.exp())).expect_err("its scope is complete");
    assert!(payload.downcast_ref::<String>().unwrap().starts_with("error[K0105]: capture scope is already complete\n"));
}

#[test]
fn k0107_two_inputs_have_one_name() {
    insta::assert_snapshot!(report(|scope| {
        f32s(scope, "x", [2]);
        scope.input("x", DType::F32, [3]);
    }));
}

#[test]
fn k0111_a_ticket_is_taken_out_of_its_capture() {
    let base = line!();
    let mut text = String::new();
    let captured = cpu().capture_scope(|scope| text = shown(f32s(scope, "x", [2]).try_into_data(), base));
    assert!(captured.is_ok());
    insta::assert_snapshot!(text);
}

#[test]
fn k0201_operands_are_on_two_backends() {
    insta::assert_snapshot!(report(|scope| {
        let x = scope.on(Backend::Wgpu).input("x", DType::F32, [32, 10]);
        let b = scope.on(Backend::Cuda).input("b", DType::F32, [10]);
        let _sum = x.exp() + b;
    }));
}

#[test]
fn k0201_a_matrix_product_spans_two_backends() {
    insta::assert_snapshot!(report(|scope| {
        let w = scope.on(Backend::NdArray).input("w", DType::F32, [784, 10]);
        f32s(scope, "x", [784]).matmul(&w);
    }));
}

#[test]
fn k0202_an_element_of_a_list_is_on_another_backend() {
    insta::assert_snapshot!(report(|scope| {
        let (a, b) = (f32s(scope, "a", [2]), f32s(scope, "b", [2]));
        let c = scope.on(Backend::Cuda).input("c", DType::F32, [2]);
        concat(&[&a, &c, &b], 0);
        stack(&[&a, &b, &c], 0);
    }));
}

#[test]
fn k0301_inner_extents_of_a_matrix_product_differ() {
    insta::assert_snapshot!(report(|scope| {
        let (x, w) = (f32s(scope, "x", [32, 784]), f32s(scope, "w", [10, 784]));
        x.matmul(&w);
        x.matmul(&f32s(scope, "v", [3]));
    }));
}

#[test]
fn k0302_shapes_do_not_broadcast() {
    insta::assert_snapshot!(report(|scope| {
        let (x, rows) = (f32s(scope, "x", [32, 10]), f32s(scope, "rows", [32]));
        let _product = &x * &rows;
        x.clamp(0.0, f32s(scope, "high", [3, 10]));
    }));
}

#[test]
fn k0303_a_reshape_changes_the_number_of_elements() {
    insta::assert_snapshot!(report(|scope| {
        let x = f32s(scope, "x", [4, 6]);
        x.reshape([5, 5]);
        x.reshape([5, -1]);
        x.squeeze(0);
    }));
}

#[test]
fn k0304_an_axis_is_out_of_range() {
    insta::assert_snapshot!(report(|scope| {
        let x = f32s(scope, "x", [4, 6]);
        x.sum(2);
        x.mean(-3);
        x.softmax(5);
        x.sum([0, 0]);
        x.sum(..).sum(0);
    }));
}

#[test]
fn k0305_extents_differ_beside_the_joined_axis() {
    insta::assert_snapshot!(report(|scope| {
        concat(&[&f32s(scope, "a", [2, 3]), &f32s(scope, "b", [2, 4])], 0);
    }));
}

#[test]
fn k0306_an_empty_axis_has_no_largest_element() {
    insta::assert_snapshot!(report(|scope| {
        f32s(scope, "x", [3, 0]).max(1);
    }));
}

#[test]
fn k0307_axes_are_no_permutation() {
    insta::assert_snapshot!(report(|scope| {
        f32s(scope, "x", [3, 4]).permute([0, 0]);
    }));
}

#[test]
fn k0308_a_slice_leaves_its_axis() {
    insta::assert_snapshot!(report(|scope| {
        let x = f32s(scope, "x", [3, 4]);
        x.slice(1, 2..5);
        x.slice(0, -4..);
    }));
}

#[test]
fn k0309_a_rank_is_wrong() {
    insta::assert_snapshot!(report(|scope| {
        let x = f32s(scope, "x", [3, 4]);
        x.dot(&x);
        x.matmul(&f32s(scope, "s", []));
        x.slices((.., .., 1..));
        value_and_grad(&x, |x| x * 2.0);
    }));
}

#[test]
fn k0310_a_tensor_is_too_large_to_address() {
    insta::assert_snapshot!(report(|scope| {
        let n = 1 << 31;
        let (a, b) = (f32s(scope, "a", [n, 1]), f32s(scope, "b", [1, n]));
        let _sum = a + b;
    }));
}

#[test]
fn k0311_an_index_known_at_capture_is_out_of_range() {
    insta::assert_snapshot!(report(|scope| {
        let x = f32s(scope, "x", [3, 4]);
        x.at(0, 3);
        x.take(1, &scope.constant([0, 4]));
        x.take_along(1, &scope.constant([[0], [-5], [1]]));
        x.index_add(0, &scope.constant([-4]), 1.0);
        scope.constant([0, 10]).one_hot(10, DType::F32);
    }));
}

#[test]
fn k0312_shapes_do_not_fit_together() {
    insta::assert_snapshot!(report(|scope| {
        let x = f32s(scope, "x", [3, 4]);
        x.scatter_add(1, &scope.input("i", DType::I32, [5, 2]), 1.0);
        x.index_set(0, &scope.input("j", DType::I32, [2]), f32s(scope, "u", [3, 4]));
        cross_entropy(&x, &scope.input("labels", DType::I32, [4]));
        let _key = Key::new(&x);
        concat(&[], 0);
    }));
}

#[test]
fn k0401_a_float_is_needed() {
    insta::assert_snapshot!(report(|scope| {
        let i = scope.input("i", DType::I32, [3]);
        i.exp();
        i.mean(..);
        i.softmax(0);
        layer_norm(&f32s(scope, "x", [3]), Some(&i), None, 1e-5);
        value_and_grad(&f32s(scope, "y", [3]), |y| y.argmax(0));
    }));
}

#[test]
fn k0402_dtypes_differ() {
    insta::assert_snapshot!(report(|scope| {
        let x = f32s(scope, "x", [32, 10]);
        let _sum = &x + scope.input("b", DType::I32, [10]);
        let _product = &x * scope.input("h", DType::F16, [10]);
        x.matmul(&scope.input("w", DType::F64, [10, 2]));
    }));
}

#[test]
fn k0403_a_bool_is_needed() {
    insta::assert_snapshot!(report(|scope| {
        let x = f32s(scope, "x", [3]);
        x.select(1.0, 0.0);
        x.any(..);
        let _not = !x;
    }));
}

#[test]
fn k0404_an_int_is_needed() {
    insta::assert_snapshot!(report(|scope| {
        let x = f32s(scope, "x", [3]);
        x.take(0, &x);
        x.one_hot(3, DType::F32);
        let _shifted = &x << 1;
    }));
}

#[test]
fn k0405_a_number_is_needed() {
    insta::assert_snapshot!(report(|scope| {
        let b = scope.input("b", DType::Bool, [3]);
        b.sum(..);
        let _sum = &b + &b;
    }));
}

#[test]
fn k0406_a_number_does_not_fit_the_dtype_beside_it() {
    insta::assert_snapshot!(report(|scope| {
        let _byte = scope.input("u", DType::U8, [3]) + 300;
        let _half = scope.input("i", DType::I32, [3]) * 0.5;
        let _large = scope.input("h", DType::F16, [3]) * 1e6;
        scope.input("b", DType::Bool, [3]).eq(1);
        scope.full([2], -1, DType::U32);
    }));
}

#[test]
fn k0407_bits_of_another_width_are_asked_for() {
    insta::assert_snapshot!(report(|scope| {
        f32s(scope, "x", [3]).bitcast(DType::I64);
    }));
}

#[test]
fn k0502_a_gradient_with_regard_to_integers_is_asked_for() {
    insta::assert_snapshot!(report(|scope| {
        let model = (f32s(scope, "w", [3]), scope.input("steps", DType::I32, []));
        value_and_grad(&model, |(w, _)| w.sum(..));
    }));
}

#[test]
fn losses_do_not_broadcast() {
    insta::assert_snapshot!(report(|scope| {
        mse(&f32s(scope, "prediction", [32, 1]), &f32s(scope, "target", [32]));
    }));
}

#[test]
fn three_mistakes_in_one_scope_give_three_diagnostics() {
    insta::assert_snapshot!(report(|scope| {
        let (x, w) = (f32s(scope, "x", [32, 784]), f32s(scope, "w", [10, 784]));
        let hidden = x.matmul(&w).relu();
        let scores = (hidden + f32s(scope, "b", [10])).softmax(1);
        let bad = x.sum(2) + scores;
        let _worse = bad * scope.input("i", DType::I32, [2]) + (w + 1).pow(scope.input("n", DType::I32, []));
    }));
}

#[test]
fn a_mistake_deep_inside_a_composite_is_at_the_line_of_the_user() {
    insta::assert_snapshot!(report(|scope| {
        let x = f32s(scope, "x", [2, 4, 8]);
        layer_norm(&x, Some(&f32s(scope, "weight", [4])), None, 1e-5);
        attention(&x, &f32s(scope, "keys", [2, 5, 16]), &x, Mask::Causal);
    }));
}

#[test]
fn a_compiled_function_tells_its_arguments_by_the_line_of_the_call() {
    let base = line!();
    let device = kiln::Device::cpu();
    let fit = kiln::jit(&device, |(x, w): (Tensor, Tensor)| x.matmul(&w));
    let array = |shape: [usize; 2]| kiln::Array::zeros(&device, DType::F32, shape).unwrap();
    let called = fit.call((array([2, 3]), array([2, 3])));
    insta::assert_snapshot!(shown(called.map_err(kiln::Error::into_diagnostics), base));
}

#[test]
fn labels_that_are_floats_of_the_shape_of_indices_should_be_ints() {
    insta::assert_snapshot!(report(|scope| {
        cross_entropy(&f32s(scope, "logits", [32, 10]), &f32s(scope, "labels", [32]));
    }));
}

#[test]
fn fail_fast_panics_at_the_line_of_the_user_also_inside_composites() {
    let device = cpu();
    device.fail_fast();
    let lines = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = lines.clone();
    let before = std::panic::take_hook();
    let this_thread = std::thread::current().id();
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().id() == this_thread {
            seen.lock().unwrap().push(info.location().map(ToString::to_string));
        }
    }));
    let attempt =
        |mistake: &dyn Fn(&Scope)| catch_unwind(AssertUnwindSafe(|| device.capture_scope(mistake).map(|_| ())));
    let line = line!();
    let plain = attempt(&|scope| drop(f32s(scope, "x", [2]) + f32s(scope, "y", [3])));
    let inside = attempt(&|scope| drop(f32s(scope, "x", [2]).softmax(1)));
    std::panic::set_hook(before);
    for (payload, caret) in [(plain, "^ operands of `add`"), (inside, "^^^^^^^")] {
        let payload = payload.expect_err("fails at once");
        let text = payload.downcast_ref::<String>().unwrap();
        assert!(text.starts_with("error[K03") && text.contains(" | ") && text.contains(caret), "{text}");
    }
    let at = |line: u32, column: u32| Some(format!("tests/all/mistakes.rs:{line}:{column}"));
    assert_eq!(*lines.lock().unwrap(), [at(line + 1, 39), at(line + 2, 62)]);
    assert!(device.capture_scope(|scope| f32s(scope, "x", [2]).exp()).is_ok(), "the device goes on");
}
