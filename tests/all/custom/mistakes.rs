//! Mistakes with custom ops end with their code, among other valid work, and leave the device usable.

use kiln::prelude::*;
use kiln::{Code, Program};

use super::{cube, swish};

#[derive(ExtensionType)]
struct Norm<T> {
    weight: T,
    bias: Option<T>,
}

/// The codes of a program's mistakes. There is valid work around it, and the next capture on the device works.
fn codes(program: impl FnOnce(&Scope, &Tensor) -> Tensor) -> Vec<Code> {
    codes_on(Backend::Cpu, program)
}

fn codes_on(backend: Backend, program: impl FnOnce(&Scope, &Tensor) -> Tensor) -> Vec<Code> {
    let device = CaptureDevice::new(backend);
    let errors = device
        .capture_scope(|scope| {
            let x = scope.input("x", DType::F32, [2, 3]);
            let before = swish().call((&x, x.ones_like()));
            let result = program(scope, &(&before + 1.0));
            (result.exp(), before.sum(..))
        })
        .unwrap_err();
    let next = device.capture_scope(|scope| swish().call((scope.input("x", DType::F32, [3]), scope.constant(2.0))));
    assert!(next.is_ok());
    errors.codes()
}

#[test]
fn a_named_operand_of_a_two_input_op_is_on_another_backend() {
    assert_eq!(codes(|_, x| swish().call((x, x.to(Backend::Wgpu)))), [Code::K0204]);
}

#[test]
fn optional_operands_and_list_elements_are_told_by_their_own_codes() {
    let optional = custom_op("scaled", |call: &Norm<Tensor>| call.weight.clone());
    let stray = |x: &Tensor| Norm { weight: x.clone(), bias: Some(x.to(Backend::Wgpu)) };
    assert_eq!(codes(|_, x| optional.call(&stray(x))), [Code::K0205]);
    let list = custom_op("joined", |parts: &Vec<Tensor>| concat(&parts.iter().collect::<Vec<_>>(), 0));
    assert_eq!(codes(|_, x| list.call(vec![x, x, &x.to(Backend::Wgpu)])), [Code::K0202]);
    let tracked = |x: &Tensor| grad(x, |x| list.call(vec![&x.detach(), &x.detach(), &x.to(Backend::Wgpu)]).sum(..));
    assert_eq!(codes(|_, x| tracked(x)), [Code::K0203]);
}

#[test]
fn a_stray_field_of_a_struct_argument_is_told_by_its_path() {
    let scaled = custom_op("scaled", |(x, norm): &(Tensor, Norm<Tensor>)| x * &norm.weight).names(["x", "norm"]);
    let errors = CaptureDevice::new(Backend::Cpu)
        .capture_scope(|scope| {
            let x = scope.input("x", DType::F32, [2, 3]);
            let weight = scope.input("weight", DType::F32, [3]);
            let bias = scope.on(Backend::Cuda).input("bias", DType::F32, [3]);
            (scaled.call((&x, &Norm { weight, bias: Some(bias) })), x.exp())
        })
        .unwrap_err();
    assert_eq!(errors.codes(), [Code::K0206]);
    insta::assert_snapshot!(errors);
}

#[test]
fn an_op_without_a_kernel_for_the_backend_says_which_it_has() {
    assert_eq!(codes_on(Backend::Wgpu, |_, x| cube().call(x)), [Code::K0209]);
    let errors = CaptureDevice::new(Backend::Cuda)
        .capture_scope(|scope| cube().call(scope.input("x", DType::F32, [2])))
        .unwrap_err();
    insta::assert_snapshot!(errors);
}

#[test]
fn a_gradient_through_an_op_without_a_rule_shows_the_way_from_the_loss() {
    let ruleless = || opaque_op("ruleless", |x: &TensorType| Ok(x.clone())).cpu(|_, _| Ok(()));
    assert_eq!(codes(|_, x| grad(x, |x| ruleless().call(x).sum(..))), [Code::K0501]);
    let unasked = |_: &Scope, x: &Tensor| ruleless().call(x);
    let device = CaptureDevice::new(Backend::Cpu);
    assert!(device.capture_scope(|scope| unasked(scope, &scope.input("x", DType::F32, [2]))).is_ok());
    let errors = device
        .capture_scope(|scope| {
            let x = scope.input("x", DType::F32, [2]);
            grad(&x, |x| (ruleless().call(x * 2.0).exp() + x).sum(..))
        })
        .unwrap_err();
    insta::assert_snapshot!(errors);
}

#[test]
fn a_tracked_tensor_is_refused_by_an_untracked_operand() {
    let barred = || swish().untracked(["beta"]);
    assert_eq!(codes(|_, x| grad(x, |x| barred().call((x, x * 2.0)).sum(..))), [Code::K0509]);
    let device = CaptureDevice::new(Backend::Cpu);
    let detached = device.capture_scope(|scope| {
        let x = scope.input("x", DType::F32, [2]);
        grad(&x, |x| barred().call((x, x.detach())).sum(..))
    });
    assert!(detached.is_ok());
}

#[test]
fn what_the_type_function_refuses_shows_all_operands() {
    let rows = || {
        let types = |(x, rows): &(TensorType, TensorType)| {
            if rows.dtype == DType::I32 { Ok(x.clone()) } else { Err(format!("rows are i32, got {}", rows.dtype)) }
        };
        opaque_op("rows", types).names(["x", "rows"]).cpu(|_, _| Ok(()))
    };
    assert_eq!(codes(|_, x| rows().call((x, x))), [Code::K0312]);
    let errors = CaptureDevice::new(Backend::Cpu)
        .capture_scope(|scope| {
            let x = scope.input("x", DType::F32, [2, 3]);
            rows().call((&x, &x))
        })
        .unwrap_err();
    insta::assert_snapshot!(errors);
}

#[test]
fn mistakes_in_a_body_and_in_a_rule_are_told_with_both_lines() {
    let body = custom_op("squared", |x: &Tensor| x.matmul(x));
    assert_eq!(codes(|_, x| body.call(x)), [Code::K0301]);
    let rule = custom_op("halved", |x: &Tensor| x * 0.5).gradient(|x, _, _| x.sum(..));
    assert_eq!(codes(|_, x| grad(x, |x| rule.call(x).sum(..))), [Code::K0312]);
    let outside = |_: &Scope, x: &Tensor| {
        let outer = x.clone();
        custom_op("leaking", move |x: &Tensor| x + &outer).call(x)
    };
    assert_eq!(codes(outside), [Code::K0105]);
    let errors = CaptureDevice::new(Backend::Cpu)
        .capture_scope(|scope| {
            let x = scope.input("x", DType::F32, [2, 3]);
            grad(&x, |x| rule.call(x).sum(..))
        })
        .unwrap_err();
    insta::assert_snapshot!(errors);
}

#[test]
fn two_ops_of_one_name_are_told_apart_in_one_capture_only() {
    let (first, second) = (custom_op("same", |x: &Tensor| x * 2.0), custom_op("same", |x: &Tensor| x * 3.0));
    assert_eq!(codes(|_, x| first.call(x) + second.call(x)), [Code::K0107]);
    let device = CaptureDevice::new(Backend::Cpu);
    for op in [first.clone(), second.clone(), first.clone()] {
        assert!(device.capture_scope(|scope| op.call(op.call(scope.input("x", DType::F32, [2])))).is_ok());
    }
}

#[test]
fn an_op_on_poison_is_silent_and_its_results_are_poison() {
    let pair = custom_op("pair", |x: &Tensor| (x + 1.0, x * 2.0));
    let program = |_: &Scope, x: &Tensor| {
        let (a, b) = pair.call(x.matmul(x));
        assert!(a.is_poisoned() && b.is_poisoned());
        a + b
    };
    assert_eq!(codes(program), [Code::K0301]);
}

#[test]
fn texts_that_cannot_be_kernels_of_their_op_are_refused_where_it_is_called() {
    let wgsl = |text: &'static str, entry: &'static str| {
        opaque_op("double", |x: &TensorType| Ok(x.clone())).wgsl(move |_, _| WgslKernel::new(text, entry, [1, 1, 1]))
    };
    let bindings = "@group(0) @binding(0) var<storage, read> x: array<f32>;
        @group(0) @binding(1) var<storage, read_write> y: array<f32>;";
    let whole = format!("{bindings} @compute @workgroup_size(1) fn main() {{ y[0] = x[0]; }}").leak();
    let device = CaptureDevice::new(Backend::Wgpu);
    assert!(device.capture_scope(|scope| wgsl(whole, "main").call(scope.input("x", DType::F32, [2]))).is_ok());
    let plain = format!("{bindings} fn main() {{}}").leak();
    let commented = "/* @group(0) @binding(1) var<storage> y; */ @group(0) @binding(0) var<storage> x: array<f32>;
        @compute @workgroup_size(1) fn main() {}";
    for (text, entry) in [(&*whole, "other"), (plain, "main"), (commented, "main")] {
        assert_eq!(codes_on(Backend::Wgpu, |_, x| wgsl(text, entry).call(x)), [Code::K0211], "{text}");
    }
    let cuda = |text: &'static str| {
        let op = opaque_op("double", |x: &TensorType| Ok(x.clone()));
        op.cuda(move |_, _| CudaKernel::new(text, "twice", [1, 1, 1], [32, 1, 1]))
    };
    let device = CaptureDevice::new(Backend::Cuda);
    let whole = "extern \"C\" __global__ void twice(const float* x, float* y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }";
    assert!(device.capture_scope(|scope| cuda(whole).call(scope.input("x", DType::F32, [2]))).is_ok());
    for text in [
        "extern \"C\" __global__ void twice(const float* x) {}",
        "extern \"C\" void twice(const float* x, float* y) {}",
        "__global__ void twice(const float* x, float* y) {}",
        "extern \"C\" __global__ void thrice(const float* x, float* y) {}",
    ] {
        assert_eq!(codes_on(Backend::Cuda, |_, x| cuda(text).call(x)), [Code::K0211], "{text}");
    }
}

#[test]
fn an_op_with_no_tensors_and_no_scope_panics_with_its_code() {
    let ramp = custom_op("ramp", |_: &i32| Scope::current().arange(3, DType::F32));
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ramp.call(3))).unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.starts_with("error[K0210]: dispatched operation received no tensor input"), "{text}");
}

#[test]
fn a_parsed_text_needs_the_op_beside_it() {
    let text =
        "kiln 1\ngraph @f(%0 \"x\": f32[2] @cpu) {\n  %1 = custom \"cube\" %0 : f32[2] @cpu\n  return %1 \"y\"\n}\n";
    let graph = kiln::ir::parse(text).unwrap();
    for device in [Device::cpu(), Device::reference()] {
        let graph = graph.retarget(device.backend()).unwrap();
        let x = Array::new(&device, [2.0f32, 3.0]).unwrap();
        let run = |program: Program| kiln::compile(program, &device)?.run(vec![(&x).into()]).map_err(kiln::Error::from);
        assert_eq!(run((&graph).into()).unwrap_err().codes(), [Code::K0209]);
        let customs = cube().at(&TensorType::new(DType::F32, [2], device.backend())).unwrap();
        assert_eq!(run((&graph, &customs).into()).unwrap()[0].to_vec::<f32>().unwrap(), [8.0, 27.0]);
    }
    let data = kiln::HostData::from_literals(DType::F32, [2], &[kiln_ir::Literal::one(DType::F32); 2]).unwrap();
    let error = kiln::graph_run::run_graph(&graph, &[("x".to_owned(), data)], None).unwrap_err();
    assert_eq!(error.codes(), [Code::K0209]);
}
