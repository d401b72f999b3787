//! How many kernels programs become: what fusion owes to its users, as numbers.

use kiln::optim::clip_by_global_norm;
use kiln_capture::{CaptureDevice, Scope, Tensor, cross_entropy, layer_norm, rms_norm, value_and_grad};
use kiln_ir::kernel::{Form, Kernel};
use kiln_ir::plan::Plan;
use kiln_ir::tree::Tree;
use kiln_ir::{Backend, DType};
use kiln_passes::{Options, compile};

fn plan<R: Tree<Tensor>>(body: impl FnOnce(&Scope) -> R) -> Plan {
    planned(Options::default(), body)
}

fn planned<R: Tree<Tensor>>(options: Options, body: impl FnOnce(&Scope) -> R) -> Plan {
    let captured = CaptureDevice::new(Backend::Cpu).capture_scope(body).unwrap();
    compile(&captured.graph, &options).unwrap()
}

fn forms(plan: &Plan) -> Vec<Form> {
    plan.launches().map(|launch| launch.kernel.form()).collect()
}

#[track_caller]
fn at_most(plan: &Plan, most: usize) {
    let count = plan.launches().count();
    assert!(count <= most, "{count} kernels, at most {most} are due:\n{plan}");
}

fn input(scope: &Scope, name: &str, shape: &[usize]) -> Tensor {
    scope.input(name, DType::F32, shape)
}

/// A row function on the last axis of `[256, 1024]`, forward alone and with its gradient.
#[track_caller]
fn row(forward: usize, both: usize, function: impl Fn(&Scope, &Tensor) -> Tensor) {
    at_most(&plan(|scope| function(scope, &input(scope, "x", &[256, 1024]))), forward);
    let backward = plan(|scope| {
        let (x, upstream) = (input(scope, "x", &[256, 1024]), input(scope, "dy", &[256, 1024]));
        let ((y, _), dx) = kiln_capture::value_and_grad_aux(&x, |x| {
            let y = function(scope, x);
            let upstream = if y.shape() == upstream.shape() { upstream.clone() } else { y.ones_like() };
            ((&y * upstream).sum(..), y)
        });
        (y, dx)
    });
    at_most(&backward, both);
}

#[test]
fn softmax_is_one_kernel_and_two_with_its_gradient() {
    row(1, 2, |_, x| x.softmax(-1));
}

#[test]
fn log_softmax_is_one_kernel_and_two_with_its_gradient() {
    row(1, 2, |_, x| x.log_softmax(-1));
}

#[test]
fn layer_norm_is_one_kernel_and_two_with_its_gradient() {
    row(1, 2, |_, x| layer_norm(x, None, None, 1e-5));
}

#[test]
fn rms_norm_is_one_kernel_and_two_with_its_gradient() {
    row(1, 2, |_, x| rms_norm(x, None, 1e-5));
}

#[test]
fn a_row_function_is_one_kernel_on_any_axis() {
    for axis in [-1, 0, 1] {
        at_most(&plan(|scope| input(scope, "x", &[32, 64, 48]).softmax(axis)), 1);
    }
}

#[test]
fn cross_entropy_is_one_kernel_and_two_with_its_gradient() {
    let tensors = |scope: &Scope| (input(scope, "logits", &[128, 512]), scope.input("labels", DType::I32, [128]));
    at_most(
        &plan(|scope| {
            let (logits, labels) = tensors(scope);
            kiln_capture::cross_entropy_rows(&logits, &labels)
        }),
        1,
    );
    at_most(
        &plan(|scope| {
            let (logits, labels) = tensors(scope);
            value_and_grad(&logits, |logits| cross_entropy(logits, &labels))
        }),
        2,
    );
}

#[test]
fn a_normalisation_with_parameters_and_all_its_gradients_is_three_kernels() {
    let program = |scope: &Scope| {
        let x = input(scope, "x", &[256, 1024]);
        let upstream = input(scope, "dy", &[256, 1024]);
        let (weight, bias) = (input(scope, "w", &[1024]), input(scope, "b", &[1024]));
        value_and_grad(&(x, weight, bias), |(x, weight, bias)| {
            (layer_norm(x, Some(weight), Some(bias), 1e-5) * &upstream).sum(..)
        })
    };
    at_most(&plan(program), 3);
}

#[test]
fn several_reductions_of_one_tensor_are_one_pass() {
    let plan = plan(|scope| {
        let x = input(scope, "x", &[256, 1024]);
        (x.sum(1), x.max(1), x.square().mean(1), x.argmax(1))
    });
    assert_eq!(forms(&plan).len(), 1, "{plan}");
    let launch = plan.launches().next().unwrap();
    assert_eq!(launch.bytes.read, 256 * 1024 * 4, "x is read once");
}

/// Parameters of a few shapes with their gradients, as arguments.
fn parameters(scope: &Scope, names: &[&str]) -> Vec<Vec<Tensor>> {
    let shapes: [&[usize]; 5] = [&[64, 128], &[128], &[128, 32], &[32], &[7]];
    let tensors = |name: &&str| -> Vec<Tensor> {
        shapes.iter().enumerate().map(|(index, shape)| input(scope, &format!("{name}{index}"), shape)).collect()
    };
    names.iter().map(tensors).collect()
}

#[test]
fn an_optimizer_updates_all_parameters_in_one_kernel() {
    let donate = (0..15).map(|leaf| (leaf, leaf)).collect();
    let plan = planned(Options { donate, ..Options::default() }, |scope| {
        let all = parameters(scope, &["w", "m", "v", "g"]);
        let rate = input(scope, "lr", &[]);
        let mut state: Vec<Vec<Tensor>> = vec![Vec::new(); 3];
        for (((w, m), v), g) in all[0].iter().zip(&all[1]).zip(&all[2]).zip(&all[3]) {
            let m = m * 0.9 + g * 0.1;
            let v = v * 0.999 + g.square() * 0.001;
            state[0].push(w - &rate * &m / (v.sqrt() + 1e-8));
            state[1].push(m);
            state[2].push(v);
        }
        state.into_iter().flatten().collect::<Vec<_>>()
    });
    assert_eq!(forms(&plan), [Form::Horizontal]);
    let Kernel::Horizontal(kernel) = &*plan.launches().next().unwrap().kernel else { unreachable!() };
    assert_eq!(kernel.parts.len(), 5);
    // All state is updated where it lies.
    assert_eq!(plan.buffers.iter().filter(|buffer| buffer.donated_to.is_some()).count(), 15);
    assert_eq!(plan.slots, [0; 0]);
    insta::assert_snapshot!(plan);
}

#[test]
fn clipping_by_the_norm_of_all_gradients_costs_three_kernels_for_all_parameters() {
    let donate = (0..5).map(|leaf| (leaf, leaf)).collect();
    let plan = planned(Options { donate, ..Options::default() }, |scope| {
        let all = parameters(scope, &["w", "g"]);
        let gradients = clip_by_global_norm(all[1].clone(), 1.0);
        all[0].iter().zip(&gradients).map(|(w, g)| w - g * 0.1).collect::<Vec<_>>()
    });
    at_most(&plan, 3);
}

/// What keeps the members of a group of independent kernels apart.
#[test]
fn kernels_that_need_each_other_stay_apart() {
    let plan = plan(|scope| {
        let (x, y) = (input(scope, "x", &[64, 32]), input(scope, "y", &[48]));
        let total = x.exp().sum(..);
        (total.clone(), (y * total).exp())
    });
    assert_eq!(forms(&plan).len(), 2, "{plan}");
}

#[test]
fn joining_kernels_does_not_raise_the_peak() {
    // Two chains of large intermediates: side by side all four would live at once.
    let plan = plan(|scope| {
        let chain = |name: &str, rows: usize| {
            let x = input(scope, name, &[rows, 512]);
            let columns = x.exp().sum(0);
            ((x * columns).softmax(0).sum(1), rows)
        };
        (chain("a", 4096).0, chain("b", 4000).0)
    });
    let largest = 4096 * 512 * 4;
    assert!(plan.slots.iter().sum::<usize>() <= largest + (1 << 16) + 4 * 4096 * 4, "{plan}");
}
