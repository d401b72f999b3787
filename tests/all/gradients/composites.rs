//! Gradients of what users call: activations, norms and losses, recorded as they record them.

use kiln_capture::{
    CaptureDevice, Correction, Gelu, Key, Mask, Scope, Tensor, attention, binary_cross_entropy, cross_entropy,
    embedding, layer_norm, linear, mse, rms_norm,
};
use kiln_ir::{Backend, DType};

use proptest::test_runner::TestCaseError;

use super::graphs::{agrees, summed};
use super::{data, run, with_gradients};

/// The gradients of orders 1.. of the sum of `function`, each the gradient of the sum of the one before, elementwise.
fn of(dtype: DType, orders: usize, numbers: &[f64], function: impl Fn(&Tensor) -> Tensor) -> Vec<Vec<f64>> {
    let record = |scope: &Scope| function(&scope.input("x", dtype, [numbers.len()]));
    let mut graph = CaptureDevice::new(Backend::Cpu).capture_scope(record).unwrap().graph;
    let mut found = Vec::new();
    for _ in 0..orders {
        graph = with_gradients(&graph, &graph.inputs);
        found.push(run(&graph, &[data(dtype, &[numbers.len()], numbers)]).concat());
    }
    found
}

fn close(found: &[f64], expected: &[f64], tolerance: f64) {
    let near = found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= tolerance);
    assert!(found.len() == expected.len() && near, "found {found:?}, expected {expected:?}");
}

#[test]
fn activations_far_out_have_finite_gradients() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let far = [-100.0, 0.0, 100.0];
        close(&of(dtype, 1, &far, Tensor::sigmoid)[0], &[0.0, 0.25, 0.0], 1e-38);
        close(&of(dtype, 1, &far, Tensor::log_sigmoid)[0], &[1.0, 0.5, 0.0], 1e-38);
        close(&of(dtype, 1, &far, Tensor::softplus)[0], &[0.0, 0.5, 1.0], 1e-38);
        close(&of(dtype, 1, &far, Tensor::silu)[0], &[0.0, 0.5, 1.0], 1e-38);
        close(&of(dtype, 1, &far, Tensor::gelu)[0], &[0.0, 0.5, 1.0], 1e-38);
        close(&of(dtype, 1, &far, Tensor::relu)[0], &[0.0, 0.0, 1.0], 0.0);
        close(&of(dtype, 1, &[-50.0, 50.0], Tensor::tanh)[0], &[0.0, 0.0], 0.0);
    }
}

#[test]
fn smooth_activations_have_their_second_derivative_at_zero_too() {
    close(&of(DType::F64, 2, &[0.0], Tensor::softplus)[1], &[0.25], 1e-12);
    close(&of(DType::F64, 2, &[0.0], Tensor::log_sigmoid)[1], &[-0.25], 1e-12);
    close(&of(DType::F64, 2, &[0.0], Tensor::silu)[1], &[0.5], 1e-12);
    close(&of(DType::F64, 2, &[0.0], Tensor::gelu)[1], &[2.0 / (2.0 * std::f64::consts::PI).sqrt()], 1e-12);
    close(&of(DType::F64, 2, &[-1.0, 2.0], |x| x.relu() * x.relu()).concat(), &[0.0, 4.0, 0.0, 2.0], 0.0);
}

/// What a composite computes of `x`, `f64[3, 4]`.
type Composite = fn(&Tensor) -> Tensor;

/// Every composite that has a gradient. Those with a kink are as they are away from it.
const COMPOSITES: &[(&str, Composite)] = &[
    ("relu", |x| x.relu()),
    ("gelu", |x| x.gelu()),
    ("gelu by tanh", |x| x.gelu_with(Gelu::Tanh)),
    ("silu", |x| x.silu()),
    ("softplus", |x| x.softplus()),
    ("log_sigmoid", |x| x.log_sigmoid()),
    ("elu", |x| x.elu(0.7)),
    ("leaky_relu", |x| x.leaky_relu(0.1)),
    ("softmax", |x| x.softmax(-1)),
    ("softmax of columns", |x| x.softmax(0)),
    ("log_softmax", |x| x.log_softmax(-1)),
    ("logsumexp", |x| x.logsumexp(-1)),
    ("mean", |x| x.mean(0)),
    ("var", |x| x.var_with(-1, Correction::Unbiased)),
    ("std", |x| x.std_with(-1, Correction::Biased)),
    ("layer_norm", |x| layer_norm(x, Some(&x.at(0, 0)), Some(&x.at(0, 1)), 1e-3)),
    ("rms_norm", |x| rms_norm(x, Some(&x.at(0, 0)), 1e-3)),
    ("linear", |x| linear(x, &x.transpose(), Some(&x.at(1, 0)))),
    ("attention", |x| attention(x, &x.sin(), &x.exp(), Mask::Causal)),
    ("mse", |x| mse(x, &x.sin())),
    ("cross_entropy", |x| cross_entropy(x, &Scope::current().constant([3, 0, 1]))),
    ("binary_cross_entropy", |x| binary_cross_entropy(x, &x.sigmoid())),
    ("embedding", |x| embedding(x, &Scope::current().constant([2, 0, 2]))),
];

#[test]
fn first_and_second_derivatives_of_composites_equal_finite_differences() {
    let numbers: Vec<f64> = (0..12).map(|index| ((index * 7 % 12) as f64 - 5.3) / 4.0).collect();
    let inputs = [data(DType::F64, &[3, 4], &numbers)];
    for (name, composite) in COMPOSITES {
        // Squares, lest a softmax sum to 1.
        let record = |scope: &Scope| composite(&scope.input("x", DType::F64, [3, 4])).square().sum(..);
        let graph =
            CaptureDevice::new(Backend::Cpu).capture_scope(record).unwrap_or_else(|e| panic!("{name}: {e}")).graph;
        let x = graph.inputs[0];
        let by_name = |order: u32| move |error: TestCaseError| panic!("{name}, order {order}: {error}");
        agrees(&graph, &inputs).unwrap_or_else(by_name(1));
        agrees(&summed(&with_gradients(&graph, &[x])), &inputs).unwrap_or_else(by_name(2));
    }
}

#[test]
fn a_centred_or_normalised_input_has_the_gradient_that_vanishes() {
    let numbers = [1.0, -2.0, 0.5, 3.0];
    close(&of(DType::F64, 1, &numbers, |x| x - x.mean(0))[0], &[0.0; 4], 1e-15);
    close(&of(DType::F64, 1, &numbers, |x| x.softmax(0))[0], &[0.0; 4], 1e-15);
    close(&of(DType::F64, 1, &numbers, |x| layer_norm(x, None, None, 1e-5))[0], &[0.0; 4], 1e-6);
    close(
        &of(DType::F64, 1, &numbers, |x| x.softmax(0).log())[0],
        &of(DType::F64, 1, &numbers, |x| x.log_softmax(0))[0],
        1e-12,
    );
    let first = of(DType::F64, 1, &numbers, |x| (x - x.mean(0)).slice(0, 0..1));
    close(&first[0], &[0.75, -0.25, -0.25, -0.25], 1e-15);
}

#[test]
fn a_random_mask_is_drawn_once_and_used_by_the_gradient() {
    let record = |scope: &Scope| {
        let x = scope.input("x", DType::F32, [64]);
        let mask = Key::new(&scope.input("key", DType::U32, [2])).uniform([64]).gt(0.5);
        x * mask.cast(DType::F32) / 0.5
    };
    let graph = CaptureDevice::new(Backend::Cpu).capture_scope(record).unwrap().graph;
    let inputs = [data(DType::F32, &[64], &[1.0; 64]), data(DType::U32, &[2], &[3.0, 4.0])];
    let x = graph.inputs[0];
    assert_eq!(run(&graph, &inputs), run(&with_gradients(&graph, &[x]), &inputs));
}
