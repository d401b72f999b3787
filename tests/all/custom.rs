//! Custom ops as their users see them: declared, called, compiled, run, differentiated.

use kiln::prelude::*;
use kiln::{Code, KernelResult, View, ViewMut};
use kiln_ir::kernel::Form;

mod arguments;
mod failing;
mod mistakes;
mod texts;
mod verify;

/// An op with a body.
pub(crate) fn swish() -> CustomOp<(Tensor, Tensor), Tensor> {
    custom_op("swish", |(x, beta): &(Tensor, Tensor)| x * (x * beta).sigmoid()).names(["x", "beta"])
}

/// An op that Kiln cannot look into, with a gradient rule.
pub(crate) fn cube() -> CustomOp<Tensor, Tensor> {
    opaque_op("cube", |x: &TensorType| Ok(x.clone()))
        .cpu(|x, y| each(x, y, |x| x * x * x))
        .gradient(|x, _, dy| dy * x * x * 3.0)
}

fn each(x: &View, y: &mut ViewMut, function: impl Fn(f32) -> f32) -> KernelResult {
    let (x, y) = (x.as_slice::<f32>()?, y.as_mut_slice::<f32>()?);
    y.iter_mut().zip(x).for_each(|(y, &x)| *y = function(x));
    Ok(())
}

#[test]
fn an_op_with_a_body_runs_everywhere_and_fuses_with_its_neighbours() {
    for device in [Device::cpu(), Device::reference()] {
        let f = jit(&device, |x: Tensor| swish().call((&x + 1.0, x.full_like(2.0))) * 10.0);
        let y = f.call(Array::new(&device, [-1.0f32, 0.0, 1.0]).unwrap()).unwrap().to_vec::<f32>().unwrap();
        let expected = [0.0, 1.0f32, 2.0].map(|x| 10.0 * x / (1.0 + (-2.0 * x).exp()));
        y.iter().zip(expected).for_each(|(y, expected)| assert!((y - expected).abs() < 1e-5, "{y} {expected}"));
        if device == Device::cpu() {
            assert_eq!(f.report().launches(), 1);
        }
    }
}

#[test]
fn a_cpu_function_runs_as_a_step_between_kernels() {
    for device in [Device::cpu(), Device::reference()] {
        let f = jit(&device, |x: Tensor| cube().call((x + 1.0).reshape([4])).reshape([2, 2]).sum(1) * 2.0);
        let x = Array::new(&device, [[0.0f32, 1.0], [2.0, 3.0]]).unwrap();
        assert_eq!(f.call(&x).unwrap().to_vec::<f32>().unwrap(), [18.0, 182.0]);
        assert_eq!(f.call(&x).unwrap().to_vec::<f32>().unwrap(), [18.0, 182.0]);
        if device == Device::cpu() {
            let forms: Vec<Form> = f.report().kernels.iter().map(|kernel| kernel.form).collect();
            assert_eq!(forms, [Form::Map, Form::Custom, Form::Reduce]);
        }
    }
}

#[test]
fn a_gradient_rule_is_used_to_any_order() {
    for device in [Device::cpu(), Device::reference()] {
        let f = jit(&device, |x: Tensor| {
            let first = |x: &Tensor| grad(x, |x| cube().call(x).sum(..));
            let second = grad(&x, |x| first(x).sum(..));
            (first(&x), second)
        });
        let (first, second) = f.call(Array::new(&device, [1.0f32, 2.0, -3.0]).unwrap()).unwrap();
        assert_eq!(first.to_vec::<f32>().unwrap(), [3.0, 12.0, 27.0]);
        assert_eq!(second.to_vec::<f32>().unwrap(), [6.0, 12.0, -18.0]);
    }
}

#[test]
fn backward_uses_the_rule_as_well() {
    let f = jit(&Device::cpu(), |x: Tensor| {
        let x = x.require_grad();
        x.grad(&cube().call(&x).sum(..).backward())
    });
    let gradient = f.call(Array::new(&Device::cpu(), [1.0f32, 2.0]).unwrap()).unwrap();
    assert_eq!(gradient.to_vec::<f32>().unwrap(), [3.0, 12.0]);
}

#[test]
fn a_captured_program_is_compiled_with_its_custom_ops() {
    let device = Device::cpu();
    let captured =
        CaptureDevice::new(Backend::Cpu).capture_scope(|scope| cube().call(scope.input("x", DType::F32, [2]))).unwrap();
    let x = Array::new(&device, [2.0f32, 3.0]).unwrap();
    let results = kiln::compile(&captured, &device).unwrap().run(vec![(&x).into()]).unwrap();
    assert_eq!(results[0].to_vec::<f32>().unwrap(), [8.0, 27.0]);
    let error = kiln::compile(&captured.graph, &device).map(|_| ()).unwrap_err();
    assert_eq!(error.codes(), [Code::K0209]);
    let parsed = kiln::ir::parse(&captured.graph.to_string()).unwrap();
    let customs = cube().at(&TensorType::new(DType::F32, [2], Backend::Cpu)).unwrap();
    let results = kiln::compile((&parsed, &customs), &device).unwrap().run(vec![(&x).into()]).unwrap();
    assert_eq!(results[0].to_vec::<f32>().unwrap(), [8.0, 27.0]);
}

#[allow(dead_code)]
#[path = "../../examples/custom_op.rs"]
mod example;

#[test]
fn the_example_trains_to_the_same_losses_on_the_cpu_and_the_reference() {
    let (cpu, reference) =
        (example::train(&Device::cpu(), 20).unwrap(), example::train(&Device::reference(), 20).unwrap());
    assert!(cpu[19] < cpu[0] * 0.5, "{cpu:?}");
    cpu.iter().zip(&reference).for_each(|(a, b)| assert!((a - b).abs() < 1e-4, "{a} {b}"));
}
