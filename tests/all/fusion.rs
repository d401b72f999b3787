//! Which kernels programs become: counts, forms, and whole kernel texts.

use kiln_capture::{CaptureDevice, CapturedGraph, Tensor, cross_entropy, layer_norm, value_and_grad};
use kiln_ir::kernel::Form;
use kiln_ir::plan::Plan;
use kiln_ir::{Backend, DType};
use kiln_passes::{Options, compile};

fn plan(captured: &CapturedGraph) -> Plan {
    compile(&captured.graph, &Options::default()).unwrap()
}

fn capture<R: kiln_ir::tree::Tree<Tensor>>(body: impl FnOnce(&kiln_capture::Scope) -> R) -> CapturedGraph {
    CaptureDevice::new(Backend::Cpu).capture_scope(body).unwrap()
}

fn forms(plan: &Plan) -> Vec<Form> {
    plan.launches().map(|launch| launch.kernel.form()).collect()
}

#[test]
fn an_elementwise_chain_is_one_map() {
    let captured = capture(|scope| {
        let x = scope.input("x", DType::F32, [64, 1024]);
        let a = scope.input("a", DType::F32, [1024]);
        (&x * &a + 1.0).tanh() * x.sigmoid()
    });
    insta::assert_snapshot!(plan(&captured));
}

#[test]
fn a_softmax_is_one_row_kernel() {
    let captured = capture(|scope| scope.input("x", DType::F32, [64, 1024]).softmax(-1));
    insta::assert_snapshot!(plan(&captured));
}

#[test]
fn a_layer_norm_is_one_row_kernel() {
    let captured = capture(|scope| {
        let x = scope.input("x", DType::F32, [64, 1024]);
        let (weight, bias) = (scope.input("w", DType::F32, [1024]), scope.input("b", DType::F32, [1024]));
        layer_norm(&x, Some(&weight), Some(&bias), 1e-5)
    });
    assert_eq!(forms(&plan(&captured)), [Form::Row]);
}

/// An MLP's training step: cross entropy, gradient, Adam; state first among arguments and results.
pub(crate) fn training_step() -> (CapturedGraph, Options) {
    let shapes: [&[usize]; 4] = [&[64, 128], &[128], &[128, 10], &[10]];
    let captured = capture(|scope| {
        let tensors = |kind: &str| -> Vec<Tensor> {
            shapes.iter().enumerate().map(|(i, &shape)| scope.input(&format!("{kind}{i}"), DType::F32, shape)).collect()
        };
        let (weights, means, squares) = (tensors("w"), tensors("m"), tensors("v"));
        let count = scope.input("count", DType::F32, []) + 1.0;
        let x = scope.input("x", DType::F32, [32, 64]);
        let y = scope.input("y", DType::I32, [32]);
        let lr = scope.input("lr", DType::F32, []);
        let (loss, gradients) = value_and_grad(&weights, |w| {
            let hidden = (x.matmul(&w[0]) + &w[1]).relu();
            cross_entropy(&(hidden.matmul(&w[2]) + &w[3]), &y)
        });
        let correction = |beta: f64| 1.0 - (&count * beta.ln()).exp();
        let mut state = (Vec::new(), Vec::new(), Vec::new());
        for (((w, g), m), v) in weights.iter().zip(&gradients).zip(&means).zip(&squares) {
            let m = m * 0.9 + g * 0.1;
            let v = v * 0.999 + g.square() * 0.001;
            let step = &m / correction(0.9) / ((&v / correction(0.999)).sqrt() + 1e-8);
            state.0.push(w - step * &lr);
            state.1.push(m);
            state.2.push(v);
        }
        (state, count, loss)
    });
    let donate = (0..13).map(|leaf| (leaf, leaf)).collect();
    (captured, Options { donate, ..Options::default() })
}

#[test]
fn a_training_step_is_a_kernel_per_product_and_a_few_more() {
    let (captured, options) = training_step();
    let plan = compile(&captured.graph, &options).unwrap();
    let forms = forms(&plan);
    let products = forms.iter().filter(|form| **form == Form::MatMul).count();
    assert_eq!(products, 5);
    assert!(forms.len() <= products + 5, "{forms:?}");
    // All state is updated where it lies.
    assert_eq!(plan.buffers.iter().filter(|buffer| buffer.donated_to.is_some()).count(), 13);
    insta::assert_snapshot!(plan);
}
