//! Programs that stop with a panic elsewhere: each ends with `Err` here, with every mistake in it and nothing else, in a capture that does
//! other, valid work; and the next capture on the same device works.

use kiln::{Array, Device, compile};
use kiln_capture::{CaptureDevice, Scope, Tensor, concat, linear, stack};
use kiln_ir::{Backend, Code, DType};

/// Captures `mistake` among valid work on one device, which must work before, after, and be told of exactly these codes.
#[track_caller]
fn told(expected: &[Code], mistake: impl Fn(&Scope) -> Tensor) -> String {
    let device = CaptureDevice::new(Backend::Cpu);
    let errors = device
        .capture_scope(|scope| {
            let before = valid_work(scope, "before");
            let wrong = mistake(scope);
            (before, wrong.exp(), valid_work(scope, "after"))
        })
        .map(|_| ())
        .expect_err("it holds a mistake");
    assert_eq!(errors.codes(), expected, "{errors}");
    let captured = device.capture_scope(|scope| valid_work(scope, "again")).expect("the device goes on");
    let cpu = Device::cpu();
    let results = compile(&captured.graph, &cpu)
        .and_then(|executable| Ok(executable.run(vec![Array::new(&cpu, [[1.0f32, 2.0]])?.into()])?))
        .expect("and what it captures runs");
    assert_eq!(results[0].to_vec::<f32>().unwrap(), [2.0, 4.0]);
    errors.to_string()
}

/// A gradient through a few ops: `d sum(x^2) = 2x`.
fn valid_work(scope: &Scope, name: &str) -> Tensor {
    let x = scope.input(name, DType::F32, [1, 2]).require_grad();
    x.grad(&linear(&x, &x.transpose(), None).sum(..).backward())
}

fn on(scope: &Scope, backend: Backend, name: &str) -> Tensor {
    scope.on(backend).input(name, DType::F32, [4])
}

#[test]
fn an_op_mixes_two_backends() {
    let text = told(&[Code::K0201], |scope| on(scope, Backend::Wgpu, "x").sin() * on(scope, Backend::Cuda, "y"));
    assert!(
        text.starts_with("error[K0201]: The provided tensors are not on the same backend. Got backends Wgpu and Cuda.")
    );
    assert!(text.contains("f32[4] @wgpu") && text.contains("input \"y\", declared"), "{text}");
}

#[test]
fn a_list_has_one_stray_element() {
    let text = told(&[Code::K0202], |scope| {
        let [a, b] = ["a", "b"].map(|name| on(scope, Backend::Cpu, name));
        let c = on(scope, Backend::Cuda, "c");
        concat(&[&a, &c, &b.exp()], 0)
    });
    assert!(text.starts_with("error[K0202]: Tensor is on the wrong backend (expected Cpu)."));
    assert!(text.contains("element 1 of `concat` is on Cuda"), "{text}");
}

#[test]
fn a_list_has_one_stray_element_which_is_tracked() {
    let text = told(&[Code::K0203], |scope| {
        let a = on(scope, Backend::Cuda, "a");
        let w = on(scope, Backend::Cpu, "w").require_grad();
        let joined = stack(&[&a, &a.exp(), &w.exp()], 0);
        w.grad(&joined.sum(..).backward())
    });
    assert!(text.starts_with("error[K0203]: Autodiff float tensor is on the wrong backend (expected Cuda)."));
    assert!(text.contains("element 2 of `stack` is on Cpu"), "{text}");
}

#[test]
fn a_named_operand_of_an_op_with_two_inputs_is_elsewhere() {
    let text = told(&[Code::K0204], |scope| {
        let weight = scope.on(Backend::Cuda).input("w", DType::F32, [4, 2]).require_grad();
        let output = linear(&scope.input("x", DType::F32, [3, 4]), &weight, None);
        weight.grad(&output.sum(..).backward())
    });
    assert!(text.starts_with("error[K0204]: input tensor `weight` is on the wrong backend"));
    assert!(text.contains("weight of `linear` is on Cuda") || text.contains("weight on Cuda"), "{text}");
}

#[test]
fn an_optional_operand_is_elsewhere() {
    let text = told(&[Code::K0205], |scope| {
        let (x, w) = (scope.input("x", DType::F32, [3, 4]), scope.input("w", DType::F32, [4, 4]));
        linear(&x, &w, Some(&on(scope, Backend::Wgpu, "bias")))
    });
    assert!(text.starts_with("error[K0205]: optional tensor `bias` is on the wrong backend"));
}

#[test]
fn grad_replace_is_given_a_gradient_from_elsewhere() {
    let text = told(&[Code::K0201], |scope| {
        let w = on(scope, Backend::Cpu, "w").require_grad();
        let mut gradients = w.square().sum(..).backward();
        let reduced = on(scope, Backend::Cuda, "reduced");
        w.grad_replace(&mut gradients, reduced);
        w.grad(&gradients) * 0.1
    });
    assert!(
        text.starts_with("error[K0201]: The provided tensors are not on the same backend. Got backends Cpu and Cuda.")
    );
    assert!(text.contains("in `grad_replace`"), "{text}");
}

#[test]
fn all_of_these_in_one_capture_are_all_told() {
    let text = told(&[Code::K0201, Code::K0202, Code::K0203, Code::K0204, Code::K0201], |scope| {
        let (x, y) = (on(scope, Backend::Cpu, "x"), on(scope, Backend::Cuda, "y"));
        let sum = &x + &y;
        concat(&[&x, &x, &y], 0);
        concat(&[&x, &x, &y.require_grad()], 0);
        linear(&x.unsqueeze(0), &y.unsqueeze(1), None);
        let w = x.require_grad();
        let mut gradients = w.sum(..).backward();
        w.grad_replace(&mut gradients, y);
        sum + w.grad(&gradients)
    });
    assert!(text.ends_with("5 errors\n"), "{text}");
}
