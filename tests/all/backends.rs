//! Backends in one capture: where tensors may be declared, what crosses, who is blamed where operands are on several, and that a backend
//! which is not here can be captured for.

use std::panic::catch_unwind;

use kiln::{Device, jit};
use kiln_capture::{
    CaptureDevice, Key, Mask, Scope, Tensor, attention, binary_cross_entropy, concat, cross_entropy, dropout,
    embedding, layer_norm, linear, mse, rms_norm, stack, try_concat, try_stack, value_and_grad,
};
use kiln_ir::{Backend, Code, DType, Op};

use crate::shown::{cpu, report, shown};

#[track_caller]
fn on<const N: usize>(scope: &Scope, backend: Backend, name: &str, shape: [usize; N]) -> Tensor {
    scope.on(backend).input(name, DType::F32, shape)
}

/// The codes of the mistakes made on the CPU.
fn codes(body: impl FnOnce(&Scope)) -> Vec<Code> {
    cpu().capture_scope(body).map_or_else(|errors| errors.codes(), |_| Vec::new())
}

#[test]
fn inputs_constants_and_counted_tensors_are_declared_on_any_backend() {
    cpu()
        .capture_scope(|scope| {
            for backend in Backend::ALL {
                let there = scope.on(backend);
                let x = there.input(backend.keyword(), DType::F32, [3]);
                let all = [
                    &x + there.constant([1.0, 2.0, 3.0]),
                    there.constant_of(DType::F32, [3], [1, 2, 3]) * &x,
                    there.arange(3, DType::F32) - &x,
                    there.full([3], 2.0, DType::F32) / &x,
                    there.zeros([3], DType::F32).maximum(&x),
                    there.key().uniform([3]) + &x * 0.5,
                ];
                assert!(all.iter().all(|tensor| tensor.backend() == backend));
            }
        })
        .expect("nothing crosses");
}

#[test]
fn an_argument_is_declared_elsewhere_by_either_spelling() {
    let text = |body: fn(&Scope) -> Tensor| cpu().capture_scope(body).unwrap().graph.to_string();
    assert_eq!(
        text(|scope| scope.input("x", DType::F32, [3]).on(Backend::Cuda).exp()),
        text(|scope| scope.on(Backend::Cuda).input("x", DType::F32, [3]).exp()),
    );
    assert_eq!(
        text(|scope| scope.constant([1.0f32, 2.0]).on(Backend::Wgpu).exp()),
        text(|scope| scope.on(Backend::Wgpu).constant([1.0f32, 2.0]).exp()),
    );
}

#[test]
fn k0202_what_is_computed_or_used_is_not_declared_elsewhere() {
    insta::assert_snapshot!(report(|scope| {
        let x = scope.input("x", DType::F32, [3]);
        let y = x.exp();
        drop((x.on(Backend::Cuda), y.on(Backend::Cuda)));
    }));
}

#[test]
fn a_graph_mixes_backends_through_transfers_alone() {
    let captured = cpu()
        .capture_scope(|scope| {
            let x = on(scope, Backend::Wgpu, "x", [4, 8]);
            let w = on(scope, Backend::Cuda, "w", [8, 2]);
            let (loss, dw) = value_and_grad(&w, |w| x.matmul(&w.to(Backend::Wgpu)).square().mean(..));
            (loss.to(Backend::Cpu), w - dw * 0.1)
        })
        .expect("each op is on one backend");
    assert_eq!(kiln_ir::verify(&captured.graph), Ok(()));
    for node in &captured.graph.nodes {
        let backends = node.operands.iter().map(|&operand| captured.graph.ty(operand).backend);
        let crosses = backends.filter(|&backend| backend != node.types[0].backend).count() > 0;
        assert_eq!(crosses, matches!(node.op, Op::Transfer(_)), "{}", node.op.name());
    }
    insta::assert_snapshot!(captured.graph);
}

#[test]
fn moving_a_tensor_to_where_it_is_leaves_no_trace() {
    let captured = cpu().capture_scope(|scope| on(scope, Backend::Cpu, "x", [2]).to(Backend::Cpu)).expect("sound");
    assert_eq!(captured.graph.nodes.len(), 1);
}

/// One program, captured for a backend.
fn layer(backend: Backend) -> String {
    let captured = CaptureDevice::new(backend).capture_scope(|scope| {
        let x = scope.input("x", DType::F32, [4, 8]);
        let w = scope.input("w", DType::F32, [8, 2]).require_grad();
        let loss = linear(&x, &w, Some(&scope.zeros([2], DType::F32))).relu().sum(..);
        let gradient = w.grad(&loss.backward());
        (loss, gradient)
    });
    captured.expect("capturing needs no device").graph.to_string()
}

#[test]
fn a_program_is_captured_for_cuda_on_a_machine_without() {
    insta::assert_snapshot!(layer(Backend::Cuda));
}

#[test]
fn a_program_is_captured_for_wgpu_on_a_machine_without() {
    let text = layer(Backend::Wgpu);
    assert_eq!(text.replace("@wgpu", "@cuda"), layer(Backend::Cuda), "the backend alone differs");
    insta::assert_snapshot!(text);
}

/// In a build without it: with it, another list of backends is told.
#[cfg(not(feature = "cuda"))]
#[test]
fn k0208_a_backend_that_is_not_here_is_refused_when_compiled() {
    let base = line!();
    let captured = CaptureDevice::new(Backend::Cuda)
        .capture_scope(|scope| scope.input("x", DType::F32, [3]).exp())
        .expect("capturing is legal");
    let compiled = kiln::compile(&captured.graph, &Device::cpu()).map_err(|error| error.diagnostics().clone());
    insta::assert_snapshot!(shown(compiled, base));
    let device = Device::of(Backend::Cuda).expect_err("there is no such device");
    assert_eq!(device.code, Code::K0208);
    assert!(device.help.iter().any(|help| help.starts_with("available here: NdArray, Cpu")), "{device}");
}

#[test]
fn k0208_a_transfer_to_a_backend_that_is_not_here_is_refused_when_run() {
    for device in [Device::cpu(), Device::reference()] {
        let f = jit(&device, |x: Tensor| {
            let home = x.backend();
            x.to(Backend::Wgpu).exp().to(home)
        });
        let error = f.call(1.0).expect_err("half of it is elsewhere");
        assert_eq!(error.diagnostics().codes(), [Code::K0208]);
        assert!(error.to_string().contains("available here: NdArray, Cpu"), "{error}");
    }
}

#[test]
fn k0201_a_number_beside_tensors_is_on_no_backend() {
    insta::assert_snapshot!(report(|scope| {
        let (x, high) = (on(scope, Backend::Cuda, "x", [3]), on(scope, Backend::Wgpu, "high", [3]));
        x.clamp(0.0, high);
    }));
}

#[test]
fn k0201_the_operand_that_differs_from_two_others_is_blamed() {
    insta::assert_snapshot!(report(|scope| {
        let (then, otherwise) = (on(scope, Backend::Cuda, "then", [3]), on(scope, Backend::Cuda, "otherwise", [3]));
        scope.input("condition", DType::Bool, [3]).select(then, otherwise);
    }));
}

#[test]
fn k0201_three_operands_on_three_backends_are_all_listed() {
    insta::assert_snapshot!(report(|scope| {
        let (low, high) = (on(scope, Backend::Cuda, "low", [3]), on(scope, Backend::NdArray, "high", [3]));
        on(scope, Backend::Wgpu, "x", [3]).clamp(low, high);
    }));
}

#[test]
fn k0202_elements_are_all_listed_where_no_backend_has_the_most() {
    insta::assert_snapshot!(report(|scope| {
        let [a, b, c, d] = [("a", Backend::Cuda), ("b", Backend::Wgpu), ("c", Backend::Wgpu), ("d", Backend::Cuda)]
            .map(|(name, backend)| on(scope, backend, name, [2]));
        stack(&[&a, &b, &c, &d], 0);
    }));
}

#[test]
fn k0203_a_tracked_element_of_a_list_is_on_another_backend() {
    insta::assert_snapshot!(report(|scope| {
        let (a, b) = (on(scope, Backend::Wgpu, "a", [2]), on(scope, Backend::Wgpu, "b", [2]));
        let w = on(scope, Backend::Cuda, "w", [2]).require_grad().exp();
        concat(&[&a, &w, &b], 0);
        value_and_grad(&on(scope, Backend::Cpu, "v", [2]), |v| stack(&[v, &a, &b], 0).sum(..));
    }));
}

#[test]
fn a_stray_element_is_k0202_where_only_the_others_are_tracked() {
    let codes = codes(|scope| {
        let (a, b) = (on(scope, Backend::Wgpu, "a", [2]).require_grad(), on(scope, Backend::Wgpu, "b", [2]));
        concat(&[&a, &b.require_grad(), &on(scope, Backend::Cuda, "c", [2])], 0);
        concat(&[&a, &a.detach(), &a.inner().to(Backend::Cpu)], 0);
    });
    assert_eq!(codes, [Code::K0202; 2]);
}

#[test]
fn k0204_a_named_operand_is_on_another_backend() {
    insta::assert_snapshot!(report(|scope| {
        let (x, bias) = (on(scope, Backend::Wgpu, "x", [4, 8]), on(scope, Backend::Wgpu, "bias", [2]));
        let weight = on(scope, Backend::Cuda, "w", [8, 2]).require_grad();
        linear(&x, &weight, Some(&bias));
        linear(&x, &weight, None);
        attention(&x, &x, &on(scope, Backend::NdArray, "v", [4, 8]), Mask::Causal);
    }));
}

#[test]
fn k0204_every_composite_with_named_operands_knows_them() {
    let names = |body: &dyn Fn(&Scope, Tensor)| {
        let errors = cpu().capture_scope(|scope| body(scope, on(scope, Backend::Cuda, "stray", [4, 8])));
        let errors = errors.map(|_| ()).expect_err("an operand is elsewhere");
        let message = &errors.first().message;
        assert_eq!((errors.len(), errors.first().code), (1, Code::K0204), "{errors}");
        let name =
            message.strip_prefix("input tensor `").and_then(|rest| rest.strip_suffix("` is on the wrong backend"));
        name.expect("the documented text").to_owned()
    };
    let x = |scope: &Scope| scope.input("x", DType::F32, [4, 8]);
    let ints = |scope: &Scope| scope.on(Backend::Wgpu).input("i", DType::I32, [4]);
    assert_eq!(names(&|scope, stray| drop(linear(&x(scope), &stray, None))), "weight");
    assert_eq!(names(&|scope, stray| drop(attention(&stray, &x(scope), &stray.to(Backend::Cpu), Mask::None))), "query");
    assert_eq!(names(&|scope, stray| drop(attention(&x(scope), &stray, &stray.to(Backend::Cpu), Mask::None))), "key");
    assert_eq!(names(&|scope, _| drop(embedding(&x(scope), &ints(scope)))), "indices");
    assert_eq!(names(&|scope, _| drop(cross_entropy(&x(scope), &ints(scope)))), "labels");
    assert_eq!(names(&|scope, stray| drop(mse(&x(scope), &stray))), "target");
    assert_eq!(names(&|scope, stray| drop(binary_cross_entropy(&x(scope), &stray))), "targets");
    assert_eq!(names(&|scope, stray| drop(dropout(&stray, 0.5, scope.key()))), "key");
    let weighted = |scope: &Scope, stray: Tensor| {
        let weight = scope.input("weight", DType::F32, [8]);
        layer_norm(&stray, Some(&weight), Some(&(&weight * 0.0)), 1e-5);
    };
    assert_eq!(names(&weighted), "input");
    let keyed = |scope: &Scope, stray: Tensor| {
        let bits = scope.on(Backend::Cuda).input("bits", DType::U32, [2]);
        dropout(&stray, scope.input("rate", DType::F32, []), Key::new(&bits));
    };
    assert_eq!(names(&keyed), "rate");
}

#[test]
fn k0205_an_optional_operand_is_on_another_backend() {
    insta::assert_snapshot!(report(|scope| {
        let (x, weight) = (on(scope, Backend::Wgpu, "x", [4, 8]), on(scope, Backend::Wgpu, "w", [8, 2]));
        linear(&x, &weight, Some(&on(scope, Backend::Cuda, "b", [2])));
        attention(&x, &x, &x, Mask::Allowed(scope.input("mask", DType::Bool, [4, 4])));
        layer_norm(&x, None, Some(&on(scope, Backend::Cuda, "shift", [8])), 1e-5);
        rms_norm(&x, Some(&on(scope, Backend::Cuda, "scale", [8])), 1e-5);
    }));
}

#[test]
fn a_required_operand_is_blamed_before_an_optional_one() {
    insta::assert_snapshot!(report(|scope| {
        let [q, k, v] = [("q", Backend::Cpu), ("k", Backend::Cuda), ("v", Backend::Cuda)]
            .map(|(name, backend)| on(scope, backend, name, [4, 8]));
        attention(&k, &q, &v, Mask::Added(on(scope, Backend::Wgpu, "mask", [4, 4])));
        linear(&on(scope, Backend::Wgpu, "y", [4, 8]), &k, Some(&q));
    }));
}

#[test]
fn a_composite_that_is_refused_records_nothing() {
    let captured = cpu().capture_scope(|scope| {
        let (x, weight) = (on(scope, Backend::Cpu, "x", [4, 8]), on(scope, Backend::Cuda, "w", [8, 2]));
        let before = scope.zeros([1], DType::F32).value().unwrap().node.index();
        linear(&x, &weight, None);
        attention(&x, &x, &weight, Mask::None);
        let after = scope.zeros([1], DType::F32).value().unwrap().node.index();
        assert_eq!(after - before, 2, "a literal and its broadcast");
    });
    assert_eq!(captured.map(|_| ()).expect_err("two of them").codes(), [Code::K0204; 2]);
}

#[test]
fn poison_makes_no_echo() {
    let codes = codes(|scope| {
        let (x, y) = (on(scope, Backend::Cpu, "x", [4, 4]), on(scope, Backend::Cuda, "y", [4, 4]));
        let bad = &x + &y;
        concat(&[&bad, &x, &y], 0);
        linear(&x, &bad, Some(&y));
        let marked = (&bad * 2.0).require_grad();
        let mut gradients = marked.sum(..).backward();
        marked.grad_replace(&mut gradients, &y);
        let _sum = marked.grad(&gradients) + Tensor::from_inner(&bad).inner() + marked.grad_remove(&mut gradients);
        let w = x.require_grad();
        let none = w.argmax(0).backward();
        let _zero = w.grad(&none) + &x.grad(&none);
    });
    assert_eq!(codes, [Code::K0201, Code::K0503], "one sum, one `backward` of integers");
}

#[test]
fn k0210_nothing_says_which_backend_is_meant() {
    insta::assert_snapshot!(shown(try_concat(&[], 0), line!()));
    assert_eq!(try_stack(&[], 0).map(|_| ()).map_err(|errors| errors.codes()), Err(vec![Code::K0210]));
    let payload = catch_unwind(|| concat(&[], 0)).map(|_| ()).expect_err("nothing collects it");
    let text = payload.downcast_ref::<String>().expect("a formatted text");
    assert!(text.starts_with("error[K0210]: dispatched operation received no tensor input to select a backend from\n"));
    assert_eq!(codes(|_| drop(concat(&[], 0))), [Code::K0312], "a scope gives the backend, and nothing gives a shape");
}
