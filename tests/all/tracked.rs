//! Tracked tensors: `require_grad`, `backward` and `grad` give what `value_and_grad` gives, whatever is nested in what; and each misuse is
//! told as documented.

use kiln::{Array, Device, jit};
use kiln_capture::{CaptureDevice, Gradients, Scope, Tensor, concat, stack, value_and_grad, value_and_grad_aux};
use kiln_ir::{Backend, Code, DType, Op};

use crate::shown::{cpu, report, shown};
use crate::under_test::device;

#[track_caller]
fn f32s<const N: usize>(scope: &Scope, name: &str, shape: [usize; N]) -> Tensor {
    scope.input(name, DType::F32, shape)
}

/// The codes of the mistakes made on the CPU.
fn codes(body: impl FnOnce(&Scope)) -> Vec<Code> {
    cpu().capture_scope(body).map_or_else(|errors| errors.codes(), |_| Vec::new())
}

/// What a function of one tensor gives at some numbers, the same on the reference and on the CPU.
#[track_caller]
fn at<const N: usize>(numbers: [f32; N], function: impl Fn(Tensor) -> Tensor) -> Vec<f32> {
    let [reference, cpu] = [Device::reference(), device()].map(|device| {
        let x = Array::new(&device, numbers).expect("there is memory");
        jit(&device, &function).call(&x).expect("it runs").to_vec::<f32>().expect("floats")
    });
    for (a, b) in reference.iter().zip(&cpu) {
        assert!((a - b).abs() <= 1e-5 * a.abs().max(1.0), "{reference:?} and {cpu:?}");
    }
    reference
}

/// A loss with every kind of op that a small model has.
fn loss(x: &Tensor, w: &Tensor) -> Tensor {
    let hidden = x.matmul(&w.reshape([2, 2])).relu() + w.slice(0, 1..3);
    let joined = concat(&[&hidden, &hidden.tanh()], 1);
    (joined.softmax(1) * joined.exp()).sum(1).log().mean(..)
}

fn data(x: &Tensor) -> Tensor {
    x.scope().constant([[0.5, -1.0], [2.0, 0.25], [-0.75, 1.5]])
}

#[test]
fn a_marked_tensor_has_the_gradient_that_value_and_grad_gives() {
    let w = [0.3, -0.2, 0.7, 1.1];
    let by_marks = at(w, |w| {
        let w = w.require_grad();
        w.grad(&loss(&data(&w), &w).backward())
    });
    let by_function = at(w, |w| value_and_grad(&w, |w| loss(&data(w), w)).1);
    assert_eq!(by_marks, by_function);
    // The definition, by central differences of the loss.
    let step = 1e-2;
    for (index, gradient) in by_marks.iter().enumerate() {
        let moved = |by: f32| {
            let mut w = w;
            w[index] += by;
            at(w, |w| loss(&data(&w), &w))[0]
        };
        let slope = (moved(step) - moved(-step)) / (2.0 * step);
        assert!((slope - gradient).abs() < 2e-3, "{index}: {slope} and {gradient}");
    }
}

#[test]
fn both_ways_record_the_same_gradient_nodes() {
    let text = |body: &dyn Fn(&Scope) -> Tensor| cpu().capture_scope(body).expect("sound").graph.to_string();
    let by_marks = text(&|scope| {
        let w = f32s(scope, "w", [4]).require_grad();
        w.grad(&w.square().sum(..).backward())
    });
    let by_function = text(&|scope| value_and_grad(&f32s(scope, "w", [4]), |w| w.square().sum(..)).1);
    let plain = |text: &str| {
        text.lines()
            .filter(|line| !line.contains("stop_gradient") && !line.contains("return"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(plain(&by_marks), plain(&by_function));
}

#[test]
fn several_marked_tensors_have_their_own_gradients() {
    let gradients = at([2.0, 3.0], |x| {
        let (a, b) = (x.at(0, 0).require_grad(), x.at(0, 1).require_grad());
        let gradients = (&a * &a * &b).backward();
        stack(&[&a.grad(&gradients), &b.grad(&gradients)], 0)
    });
    assert_eq!(gradients, [12.0, 4.0]);
}

#[test]
fn what_is_not_marked_is_constant() {
    assert_eq!(
        at([3.0], |x| {
            let marked = x.require_grad();
            marked.grad(&(&marked * &x + marked.inner() * marked.detach()).sum(..).backward())
        }),
        [3.0]
    );
}

#[test]
fn a_tensor_marked_twice_has_second_derivatives() {
    let second = at([2.0, -1.0], |x| {
        let outer = x.require_grad();
        let inner = outer.require_grad();
        let first = inner.grad(&inner.powi(3).sum(..).backward());
        assert!(first.is_tracked());
        let gradients = first.sum(..).backward();
        let second = outer.grad(&gradients);
        assert!(!second.is_tracked());
        stack(&[&first, &second, &inner.grad(&gradients)], 0)
    });
    assert_eq!(second, [12.0, 3.0, 12.0, -6.0, 12.0, -6.0]);
}

#[test]
fn the_second_derivative_of_a_line_is_zero_and_no_mistake() {
    let second = at([2.0], |x| {
        let outer = x.require_grad();
        let inner = outer.require_grad();
        outer.grad(&inner.grad(&(&inner * 2.0).sum(..).backward()).sum(..).backward())
    });
    assert_eq!(second, [0.0]);
}

#[test]
fn the_gradient_of_a_tensor_marked_once_is_a_constant() {
    // d(x dx)/dx = dx, and not 2x more.
    let again = at([3.0], |x| {
        let x = x.require_grad();
        let dx = x.grad(&x.square().sum(..).backward());
        assert!(!dx.is_tracked());
        x.grad(&(&x * dx).sum(..).backward())
    });
    assert_eq!(again, [6.0]);
}

#[test]
fn backward_inside_of_value_and_grad_is_differentiated_by_it() {
    // One step of descent in x on (x - w)^2, as a function of w: x - lr * 2 (x - w); its square has slope 2 (..) * 2 lr.
    let meta = at([0.5], |w| {
        value_and_grad(&w, |w| {
            let x = w.full_like(3.0).require_grad();
            let dx = x.grad(&(&x - w).square().sum(..).backward());
            (&x - dx * 0.1).square().sum(..)
        })
        .1
    });
    let next = 3.0 - 0.2 * 2.5;
    assert!((meta[0] - 2.0 * next * 0.2).abs() < 1e-5, "{meta:?}");
}

#[test]
fn value_and_grad_inside_of_backward_is_differentiated_by_it() {
    let second = at([2.0], |x| {
        let x = x.require_grad();
        let (_, first) = value_and_grad(&x, |x| x.powi(3).sum(..));
        x.grad(&first.sum(..).backward())
    });
    assert_eq!(second, [12.0]);
}

#[test]
fn backward_twice_gives_the_same_and_sums_nothing_up() {
    let twice = at([3.0], |x| {
        let x = x.require_grad();
        let loss = x.square().sum(..);
        let (first, second) = (loss.backward(), loss.backward());
        concat(&[&x.grad(&first), &x.grad(&second), &x.grad(&first)], 0)
    });
    assert_eq!(twice, [6.0; 3]);
}

#[test]
fn a_gradient_comes_back_through_a_transfer() {
    let captured = cpu()
        .capture_scope(|scope| {
            let w = scope.on(Backend::Cuda).input("w", DType::F32, [3]).require_grad();
            let dw = w.grad(&w.to(Backend::Cpu).square().sum(..).backward());
            assert_eq!(dw.backend(), Backend::Cuda);
            dw
        })
        .expect("each op is on one backend");
    let transfers = captured.graph.nodes.iter().filter(|node| matches!(node.op, Op::Transfer(_))).count();
    assert_eq!(transfers, 2);
}

#[test]
fn a_replaced_gradient_is_what_is_asked_for_afterwards() {
    let clipped = at([3.0, -0.1], |x| {
        let x = x.require_grad();
        let mut gradients = x.square().sum(..).backward();
        let clipped = x.grad(&gradients).clamp(-1.0, 1.0);
        x.grad_replace(&mut gradients, clipped);
        let seen = x.grad(&gradients);
        concat(&[&seen, &x.grad_remove(&mut gradients)], 0)
    });
    assert_eq!(clipped, [1.0, -0.2, 1.0, -0.2]);
}

#[test]
fn a_removed_gradient_may_be_put_back() {
    let back = at([3.0], |x| {
        let x = x.require_grad();
        let mut gradients = x.square().sum(..).backward();
        let removed = x.grad_remove(&mut gradients);
        x.grad_replace(&mut gradients, removed * 0.5);
        x.grad(&gradients)
    });
    assert_eq!(back, [3.0]);
}

#[test]
fn a_marked_tensor_that_the_loss_does_not_depend_on_has_zeros_and_a_notice() {
    let device = Device::reference();
    let f = jit(&device, |x: Tensor| {
        let (used, unused) = (x.require_grad(), x.require_grad());
        let gradients = used.square().sum(..).backward();
        let late = x.require_grad();
        concat(&[&used.grad(&gradients), &unused.grad(&gradients), &late.grad(&gradients)], 0)
    });
    let x = Array::new(&device, [1.0f32, 2.0]).unwrap();
    assert_eq!(f.call(&x).unwrap().to_vec::<f32>().unwrap(), [2.0, 4.0, 0.0, 0.0, 0.0, 0.0]);
    let report = f.report().to_string();
    assert_eq!(report.matches("is zero everywhere: the loss does not depend on it").count(), 2, "{report}");
}

#[test]
fn a_loop_of_steps_is_written_as_in_burn() {
    // Two steps on (w - 1)^2 with rate 0.25 halve the distance twice.
    let updated = at([5.0], |start| {
        let mut w = start;
        for _ in 0..2 {
            let tracked = Tensor::from_inner(&w).require_grad();
            let mut gradients = (&tracked - 1.0).square().sum(..).backward();
            w = tracked.inner() - tracked.grad_remove(&mut gradients) * 0.25;
            assert!(!w.is_tracked());
        }
        w
    });
    assert_eq!(updated, [2.0]);
}

#[test]
fn tracking_follows_floats_through_ops() {
    let captured = cpu().capture_scope(|scope| {
        let x = f32s(scope, "x", [3]);
        let w = x.require_grad();
        let tracked =
            [w.exp(), &x + &w, concat(&[&x, &w], 0), w.cast(DType::F16), w.gt(0.0).select(&w, &x), w.softmax(0)];
        assert!(tracked.iter().all(Tensor::is_tracked));
        assert!(tracked.iter().all(|tensor| !tensor.is_require_grad()) && w.is_require_grad());
        let untracked = [x.exp(), w.argmax(0), w.gt(0.0), w.detach(), w.inner(), w.ones_like(), w.cast(DType::I32)];
        assert!(untracked.iter().all(|tensor| !tensor.is_tracked()));
        assert!(!x.is_tracked(), "marking gives another tensor");
    });
    assert!(captured.is_ok());
}

#[test]
fn tracking_leaves_no_trace_in_the_type_or_in_the_compiled_graph() {
    let device = device();
    let kernels = |body: fn(Tensor) -> Tensor| {
        let f = jit(&device, body);
        f.call(Array::new(&device, [1.0f32, 2.0]).unwrap()).unwrap();
        f.report().to_string().matches("kernel").count()
    };
    let by_marks = kernels(|x| {
        let x = x.require_grad();
        x.grad(&x.exp().sum(..).backward())
    });
    assert_eq!(by_marks, kernels(|x| value_and_grad(&x, |x| x.exp().sum(..)).1));
}

#[test]
fn results_of_value_and_grad_are_tracked_as_outside_of_it() {
    let captured = cpu().capture_scope(|scope| {
        let (x, w) = (f32s(scope, "x", [3]), f32s(scope, "w", [3]).require_grad());
        let ((loss, (inside, count)), dx) = value_and_grad_aux(&x, |x| {
            assert!(x.is_tracked() && !x.is_require_grad());
            let hidden = x.exp();
            (hidden.sum(..), (hidden, 3))
        });
        assert_eq!(count, 3);
        let sum = loss + inside.sum(..) + dx.sum(..);
        assert!(!sum.is_tracked());
        let ((loss, ()), dw) = value_and_grad_aux(&w, |w| ((w * &x).sum(..), ()));
        assert!(loss.is_tracked() && dw.is_tracked(), "`w` was marked before");
        w.grad(&(loss + dw.sum(..)).backward());
        sum
    });
    assert!(captured.is_ok());
}

#[test]
fn k0502_integers_are_marked() {
    insta::assert_snapshot!(report(|scope| {
        let i = scope.input("i", DType::I8, [3]);
        i.require_grad();
        Tensor::from_inner(i.gt(0));
    }));
}

#[test]
fn k0503_a_tensor_is_not_tracked() {
    insta::assert_snapshot!(report(|scope| {
        let x = f32s(scope, "x", [3]);
        x.sum(..).backward();
        let w = x.require_grad();
        let mut gradients = w.sum(..).backward();
        x.grad(&gradients);
        x.grad_remove(&mut gradients);
        x.grad_replace(&mut gradients, &w);
        x.inner();
        w.grad(&gradients);
    }));
}

#[test]
fn k0504_a_tracked_tensor_is_wrapped_again() {
    insta::assert_snapshot!(report(|scope| {
        let w = f32s(scope, "w", [3]).require_grad();
        Tensor::from_inner(w.exp());
        let twice = w.exp().require_grad();
        let mut gradients = twice.sum(..).backward();
        twice.grad_replace(&mut gradients, f32s(scope, "g", [3]));
    }));
}

#[test]
fn k0504_is_not_for_nested_gradients() {
    let codes = codes(|scope| {
        let x = f32s(scope, "x", [3]);
        value_and_grad(&x, |x| {
            let marked = x.require_grad();
            let mut gradients = marked.square().sum(..).backward();
            marked.grad_replace(&mut gradients, x);
            value_and_grad(&marked, |x| x.exp().sum(..)).0 + marked.grad(&gradients).sum(..)
        });
        let promoted = Tensor::from_inner(&x).require_grad();
        let mut gradients = promoted.sum(..).backward();
        promoted.grad_replace(&mut gradients, &x);
    });
    assert_eq!(codes, []);
}

#[test]
fn k0505_an_op_without_a_rule_is_on_the_way() {
    insta::assert_snapshot!(report(|scope| {
        let w = f32s(scope, "w", [3]).require_grad();
        let bits = w.bitcast(DType::I32).bitcast(DType::F32);
        w.grad(&bits.sum(..).backward());
    }));
}

#[test]
fn k0506_an_element_is_not_tracked_in_a_strict_capture() {
    let device = cpu();
    device.strict();
    let base = line!();
    let captured = device.capture_scope(|scope| {
        let (w, x, i) = (f32s(scope, "w", [3]).require_grad(), f32s(scope, "x", [3]), f32s(scope, "i", [3]));
        concat(&[&w, &x, &i], 0);
        stack(&[&w, &Tensor::from_inner(&x), &i], 0);
        concat(&[&w, &Tensor::from_inner(&x)], 0);
        concat(&[&x, &i], 0);
        let _sum = w + x;
    });
    insta::assert_snapshot!(shown(captured, base));
}

#[test]
fn k0507_a_tensor_was_never_marked() {
    insta::assert_snapshot!(report(|scope| {
        let x = f32s(scope, "x", [3]);
        Tensor::from_inner(&x).sum(..).backward();
        let w = x.require_grad();
        let hidden = w.exp();
        let mut gradients = hidden.sum(..).backward();
        hidden.grad(&gradients);
        hidden.grad_replace(&mut gradients, &x);
        w.grad_remove(&mut gradients);
        w.grad(&gradients);
    }));
}

#[test]
fn k0508_a_tensor_is_kept_from_inside_of_value_and_grad() {
    insta::assert_snapshot!(report(|scope| {
        let x = f32s(scope, "x", [3]);
        let mut kept = None;
        value_and_grad(&x, |x| {
            let hidden = x.exp();
            kept = Some(hidden.clone());
            hidden.sum(..)
        });
        let kept = kept.unwrap();
        let _sum = &x + &kept;
        kept.softmax(0);
    }));
}

#[test]
fn poison_that_is_kept_from_inside_of_value_and_grad_stays_silent() {
    let codes = codes(|scope| {
        let x = f32s(scope, "x", [3]);
        let mut kept = None;
        value_and_grad(&x.sum(7), |bad| {
            kept = Some(bad.clone());
            bad * 2.0
        });
        let _sum = kept.unwrap() + x;
    });
    assert_eq!(codes, [Code::K0304]);
}

#[test]
fn k0508_a_call_is_over_also_where_its_loss_panics() {
    let codes = codes(|scope| {
        let x = f32s(scope, "x", [3]);
        let mut kept = None;
        let keeping = std::panic::AssertUnwindSafe(|| {
            value_and_grad(&x, |x| -> Tensor {
                kept = Some(x.exp());
                std::panic::panic_any("the user's own")
            })
        });
        assert!(std::panic::catch_unwind(keeping).is_err());
        kept.unwrap().log();
        x.log();
    });
    assert_eq!(codes, [Code::K0508]);
}

#[test]
fn a_gradient_that_does_not_fit_is_refused() {
    insta::assert_snapshot!(report(|scope| {
        let w = f32s(scope, "w", [3]).require_grad();
        let mut gradients = w.sum(..).backward();
        w.grad_replace(&mut gradients, scope.on(Backend::Cuda).input("elsewhere", DType::F32, [3]));
        w.grad_replace(&mut gradients, scope.input("double", DType::F64, [3]));
        w.grad_replace(&mut gradients, f32s(scope, "short", [2]));
        w.grad(&gradients);
    }));
}

#[test]
fn a_loss_is_a_float_scalar() {
    insta::assert_snapshot!(report(|scope| {
        let w = f32s(scope, "w", [3]).require_grad();
        w.grad(&w.exp().backward());
    }));
}

#[test]
fn gradients_of_another_capture_are_refused() {
    let base = line!();
    let mut kept: Option<Gradients> = None;
    let first = CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        kept = Some(f32s(scope, "v", [3]).require_grad().sum(..).backward());
    });
    assert!(first.is_ok());
    let second = cpu().capture_scope(|scope| {
        let w = f32s(scope, "w", [3]).require_grad();
        w.grad(kept.as_ref().unwrap());
    });
    insta::assert_snapshot!(shown(second, base));
}
