//! What composites compute, against values worked out by hand, and the graphs they leave.

// Digits of ln 2 stand among others that have no name.
#![allow(clippy::approx_constant)]

use kiln_capture::{
    CaptureDevice, Correction, Gelu, Key, Mask, Scope, Tensor, attention, binary_cross_entropy, concat, cross_entropy,
    dropout, embedding, gradients, layer_norm, linear, mse, rms_norm, stack, value_and_grad, value_and_grad_aux,
};
use kiln_ir::tree::Tree;
use kiln_ir::{Backend, DType, Graph, HostData, Literal};
use kiln_runtime::reference::evaluate;

fn capture<R: Tree<Tensor>>(body: impl FnOnce(&Scope) -> R) -> Graph {
    CaptureDevice::new(Backend::Cpu).capture_scope(body).unwrap_or_else(|errors| panic!("{errors}")).graph
}

/// The outputs of a capture without inputs.
fn run<R: Tree<Tensor>>(body: impl FnOnce(&Scope) -> R) -> Vec<Vec<f64>> {
    let outputs = evaluate(&capture(body), &[]).unwrap_or_else(|error| panic!("{error}"));
    outputs.iter().map(numbers).collect()
}

fn numbers(data: &HostData) -> Vec<f64> {
    data.elements().map(Literal::to_f64).collect()
}

fn one<R: Tree<Tensor>>(body: impl FnOnce(&Scope) -> R) -> Vec<f64> {
    run(body).swap_remove(0)
}

/// Equal within a few roundings of `f32`; NaN and infinities exactly.
#[track_caller]
fn close(got: &[f64], wanted: &[f64]) {
    let alike =
        |(&a, &b): (&f64, &f64)| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 2e-6 * b.abs().max(1.0);
    assert!(got.len() == wanted.len() && got.iter().zip(wanted).all(alike), "got {got:?}, wanted {wanted:?}");
}

/// The gradient of the sum of a function's result.
fn slope(data: &[f32], f: impl FnOnce(&Tensor) -> Tensor) -> Vec<f64> {
    one(|scope| value_and_grad(&scope.constant(data), |x| f(x).sum(..)).1)
}

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

#[test]
fn relu_keeps_nan_and_has_slope_0_at_0() {
    close(&one(|scope| scope.constant([1.0, f32::NAN, 3.0, -2.0]).relu()), &[1.0, NAN, 3.0, 0.0]);
    close(&slope(&[-1.0, 0.0, 2.0], Tensor::relu), &[0.0, 0.0, 1.0]);
}

#[test]
fn activations_have_their_values() {
    let x = [-1.0f32, 0.0, 2.0];
    close(&one(|scope| scope.constant(x).gelu()), &[-0.15865525, 0.0, 1.95449974]);
    close(&one(|scope| scope.constant(x).gelu_with(Gelu::Tanh)), &[-0.15880801, 0.0, 1.95459769]);
    close(&one(|scope| scope.constant(x).silu()), &[-0.26894142, 0.0, 1.76159416]);
    close(&one(|scope| scope.constant(x).softplus()), &[0.31326169, 0.69314718, 2.12692801]);
    close(&one(|scope| scope.constant(x).log_sigmoid()), &[-1.31326169, -0.69314718, -0.12692801]);
    close(&one(|scope| scope.constant(x).elu(1.0)), &[-0.63212056, 0.0, 2.0]);
    close(&one(|scope| scope.constant(x).leaky_relu(0.1)), &[-0.1, 0.0, 2.0]);
}

#[test]
fn activations_stay_finite_far_out_and_so_do_their_slopes() {
    let far = [-100.0f32, 0.0, 100.0];
    close(&slope(&far, Tensor::sigmoid), &[0.0, 0.25, 0.0]);
    close(&slope(&far, Tensor::tanh), &[0.0, 1.0, 0.0]);
    close(&slope(&far, Tensor::log_sigmoid), &[1.0, 0.5, 0.0]);
    close(&slope(&far, Tensor::softplus), &[0.0, 0.5, 1.0]);
    close(&slope(&far, Tensor::silu), &[0.0, 0.5, 1.0]);
    close(&slope(&far, Tensor::gelu), &[0.0, 0.5, 1.0]);
    close(&slope(&far, |x| x.gelu_with(Gelu::Tanh)), &[0.0, 0.5, 1.0]);
    close(&slope(&far, |x| x.elu(1.0)), &[0.0, 1.0, 1.0]);
    close(&one(|scope| scope.constant(far).softplus()), &[0.0, 0.69314718, 100.0]);
}

#[test]
fn softmax_of_masked_and_of_large_logits_is_exact() {
    close(&one(|scope| scope.constant([f32::NEG_INFINITY, 0.0, 0.0]).softmax(0)), &[0.0, 0.5, 0.5]);
    close(&one(|scope| scope.constant([f32::NEG_INFINITY; 2]).softmax(0)), &[NAN, NAN]);
    close(&one(|scope| (scope.constant([1e14, 5e13, -2e14]) * 0.3).softmax(0)), &[1.0, 0.0, 0.0]);
}

#[test]
fn log_softmax_never_forms_the_softmax() {
    close(&one(|scope| scope.constant([1000.0, 0.0, -1000.0]).log_softmax(0)), &[0.0, -1000.0, -2000.0]);
    close(&one(|scope| scope.constant([0.0, -200.0]).log_softmax(0)), &[0.0, -200.0]);
    let masked = one(|scope| scope.constant([f32::NEG_INFINITY, 0.0, 0.0]).log_softmax(0));
    close(&masked, &[-INF, -0.6931472, -0.6931472]);
}

#[test]
fn logsumexp_survives_rows_of_infinities() {
    let rows = [[0.0, 0.0], [f32::NEG_INFINITY, f32::NEG_INFINITY], [f32::INFINITY, 0.0], [1000.0, 1000.0]];
    close(&one(|scope| scope.constant(rows).logsumexp(1)), &[0.6931472, -INF, INF, 1000.6931472]);
}

#[test]
fn the_slope_of_softmax_vanishes_under_a_seed_of_ones() {
    close(&slope(&[1.0, 2.0, 3.0], |x| x.softmax(0)), &[0.0; 3]);
    close(&slope(&[f32::NEG_INFINITY, 0.0, 0.0], |x| x.softmax(0)), &[0.0; 3]);
    close(&slope(&[1.0, 2.0, 4.0], |x| layer_norm(x, None, None, 1e-5)), &[0.0; 3]);
    let centred = |x: &Tensor| x - x.mean(..);
    close(&slope(&[1.0, 2.0, 3.0, 9.0], centred), &[0.0; 4]);
    close(&slope(&[1.0, 2.0, 3.0, 9.0], |x| centred(x).at(0, 0)), &[0.75, -0.25, -0.25, -0.25]);
}

#[test]
fn variance_takes_two_passes() {
    let far = [10000.0, 10001.0, 10002.0];
    close(&one(|scope| scope.constant(far).var(..)), &[0.6666667]);
    close(&one(|scope| scope.constant(far).var_with(.., Correction::Unbiased)), &[1.0]);
    close(&one(|scope| scope.full([7], 12345.678, DType::F32).var(0)), &[0.0]);
    let normal = one(|scope| layer_norm(&scope.constant(far), None, None, 1e-5));
    assert!(normal.iter().zip([-1.22474, 0.0, 1.22474]).all(|(a, b)| (a - b).abs() < 1e-4), "{normal:?}");
}

#[test]
fn means_are_of_floats_and_of_truth() {
    close(&one(|scope| scope.constant([[1.0, 2.0], [3.0, 6.0]]).mean(0)), &[2.0, 4.0]);
    close(&one(|scope| scope.constant([true, true, false, true]).mean(..)), &[0.75]);
    let half = one(|scope| scope.constant([30000.0; 4]).cast(DType::F16).mean(..));
    close(&half, &[30000.0 - 16.0 + 16.0]);
}

#[test]
fn norms_scale_and_shift() {
    let (weight, bias) = ([2.0, 0.5], [1.0, -1.0]);
    let layer = one(|scope| {
        let (weight, bias) = (scope.constant(weight), scope.constant(bias));
        layer_norm(&scope.constant([[1.0, 3.0]]), Some(&weight), Some(&bias), 0.0)
    });
    close(&layer, &[-1.0, -0.5]);
    let rms = one(|scope| rms_norm(&scope.constant([[3.0, 4.0]]), Some(&scope.constant(weight)), 0.0));
    close(&rms, &[3.0 / 12.5f64.sqrt() * 2.0, 4.0 / 12.5f64.sqrt() * 0.5]);
}

#[test]
fn sixteen_bit_composites_compute_in_f32_and_round_once() {
    let graph = capture(|scope| layer_norm(&scope.input("x", DType::BF16, [4, 8]), None, None, 1e-9));
    let text = graph.to_string();
    assert_eq!(text.matches(" = cast").count(), 2, "{text}");
    let zeros = one(|scope| rms_norm(&scope.zeros([5], DType::F16), None, 1e-9));
    close(&zeros, &[0.0; 5]);
    let many = one(|scope| scope.zeros([4096], DType::F16).softmax(0));
    assert!((many.iter().sum::<f64>() - 1.0).abs() < 1e-3);
}

#[test]
fn cross_entropy_takes_indices_or_probabilities() {
    let logits = [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]];
    let wanted = [(2.4076059 + 1.0986123) / 2.0];
    close(&one(|scope| cross_entropy(&scope.constant(logits), &scope.constant([0, 1]))), &wanted);
    close(&one(|scope| cross_entropy(&scope.constant(logits), &scope.constant([-3, 2]))), &wanted);
    let probabilities = [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]];
    close(&one(|scope| cross_entropy(&scope.constant(logits), &scope.constant(probabilities))), &wanted);
    let masked = [[f32::NEG_INFINITY, 0.0]];
    close(&one(|scope| cross_entropy(&scope.constant(masked), &scope.constant([1]))), &[0.0]);
    close(&one(|scope| cross_entropy(&scope.constant(masked), &scope.constant([[0.0, 1.0]]))), &[0.0]);
}

#[test]
fn the_slope_of_cross_entropy_is_softmax_less_one_hot() {
    let logits = [[1.0, 2.0, 3.0]];
    let got = one(|scope| {
        let labels = scope.constant([2]);
        value_and_grad(&scope.constant(logits), |x| cross_entropy(x, &labels)).1
    });
    close(&got, &[0.09003057, 0.24472847, 0.66524096 - 1.0]);
}

#[test]
fn losses_have_their_values() {
    close(&one(|scope| mse(&scope.constant([1.0, 4.0]), &scope.constant([0.0, 2.0]))), &[2.5]);
    let got = one(|scope| binary_cross_entropy(&scope.constant([0.0, 100.0]), &scope.constant([1.0, 0.0])));
    close(&got, &[(0.6931472 + 100.0) / 2.0]);
}

#[test]
fn layers_have_their_values() {
    let got = run(|scope| {
        let (x, w) = (scope.constant([[1.0, 2.0]]), scope.constant([[1.0, 0.0, 3.0], [0.0, 1.0, 1.0]]));
        let table = scope.constant([[1.0, 2.0], [3.0, 4.0]]);
        (
            linear(&x, &w, Some(&scope.constant([10.0, 20.0, 30.0]))),
            embedding(&table, &scope.constant([[1], [0]])),
            scope.constant([2, 0]).one_hot(3, DType::I32),
        )
    });
    close(&got[0], &[11.0, 22.0, 35.0]);
    close(&got[1], &[3.0, 4.0, 1.0, 2.0]);
    close(&got[2], &[0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
}

#[test]
fn attention_weighs_values_and_masks_hide_keys() {
    let got = run(|scope| {
        let q = scope.zeros([1, 2, 4], DType::F32);
        let k = scope.ones([1, 2, 4], DType::F32);
        let v = scope.constant([[[1.0], [3.0]]]);
        let allowed = scope.constant([[false, true], [true, false]]);
        (
            attention(&q, &k, &v, Mask::None),
            attention(&q, &k, &v, Mask::Causal),
            attention(&q, &k, &v, Mask::Allowed(allowed)),
            attention(&q, &k, &v, Mask::Added(scope.constant([[0.0, f32::NEG_INFINITY]]))),
        )
    });
    close(&got[0], &[2.0, 2.0]);
    close(&got[1], &[1.0, 2.0]);
    close(&got[2], &[3.0, 1.0]);
    close(&got[3], &[1.0, 1.0]);
}

#[test]
fn division_rounds_down_in_floor_div_and_modulo() {
    let (a, b) = ([-7, 7, -7, 7], [2, -2, -2, 2]);
    let got = run(|scope| {
        let (a, b) = (scope.constant(a), scope.constant(b));
        (a.floor_div(&b), a.modulo(&b), &a / &b, &a % &b)
    });
    close(&got[0], &[-4.0, -4.0, 3.0, 3.0]);
    close(&got[1], &[1.0, -1.0, -1.0, 1.0]);
    close(&got[2], &[-3.0, -3.0, 3.0, 3.0]);
    close(&got[3], &[-1.0, 1.0, -1.0, 1.0]);
    let edges = run(|scope| {
        let (a, b) = (scope.constant([i32::MIN, 7, -7]), scope.constant([-1, 0, 0]));
        (a.floor_div(&b), a.modulo(&b))
    });
    close(&edges[0], &[f64::from(i32::MIN), 0.0, 0.0]);
    close(&edges[1], &[0.0, 7.0, -7.0]);
    let floats = run(|scope| {
        let (a, b) = (scope.constant([-7.5, 7.5, 1.0]), scope.constant([2.0, -2.0, 0.1]));
        (a.floor_div(&b), a.modulo(&b))
    });
    close(&floats[0], &[-4.0, -4.0, 9.0]);
    close(&floats[1], &[0.5, -0.5, 0.1]);
}

#[test]
fn selection_keeps_the_branch_not_taken_out_of_the_slope() {
    close(&slope(&[-1.0, 4.0], |x| x.gt(0).select(x.sqrt(), x)), &[1.0, 0.25]);
    close(&slope(&[1.0], |w| w.gt(5).select(w / 0.0, w)), &[1.0]);
    close(&slope(&[100.0], |x| x.le(0).select(x.exp(), x + 1)), &[1.0]);
    close(&slope(&[-1.0, 100.0], |x| x.exp().minimum(1)), &[0.3678794, 0.0]);
}

#[test]
fn powers_have_the_right_slope_at_0_and_below() {
    close(&slope(&[0.0], |x| x.powi(2)), &[0.0]);
    close(&slope(&[0.0], |x| x.powi(1)), &[1.0]);
    close(&slope(&[0.0], |x| x.powi(0)), &[0.0]);
    close(&slope(&[-2.0], |x| x.powi(3)), &[12.0]);
    close(&one(|scope| scope.constant([2.0, -2.0]).powi(-3)), &[0.125, -0.125]);
}

#[test]
fn indexing_reads_and_writes_where_numpy_would() {
    let got = run(|scope| {
        let x = scope.arange(16, DType::I32).reshape([1, 1, 4, 4]);
        let three = scope.constant([1, 2, 3]);
        let m = scope.constant([[1, 2, 3], [4, 5, 6]]);
        (
            x.take(2, &three).take(3, &three),
            m.take_along(1, &scope.constant([[2, 0], [-1, 1]])),
            m.take_along(0, &scope.constant([[1, 0, 1]])),
            scope.zeros([3], DType::F32).scatter_add(0, &scope.constant([0, 0, 2]), scope.constant([1.0, 2.0, 3.0])),
            scope.zeros([3, 2], DType::F32).index_add(0, &scope.constant([0, 0, 2]), 1),
            m.scatter_set(0, &scope.constant([[1, 0, 1]]), 9),
        )
    });
    close(&got[0], &[5.0, 6.0, 7.0, 9.0, 10.0, 11.0, 13.0, 14.0, 15.0]);
    close(&got[1], &[3.0, 1.0, 6.0, 5.0]);
    close(&got[2], &[4.0, 2.0, 6.0]);
    close(&got[3], &[3.0, 0.0, 3.0]);
    close(&got[4], &[2.0, 2.0, 0.0, 0.0, 1.0, 1.0]);
    close(&got[5], &[1.0, 9.0, 3.0, 9.0, 5.0, 9.0]);
}

#[test]
fn views_rearrange_as_their_names_say() {
    let got = run(|scope| {
        let m = scope.constant([[1, 2, 3], [4, 5, 6]]);
        (
            (m.transpose(), m.flip(1), m.slice(1, kiln_capture::Part::from(..).by(-2)), m.slices((1.., ..-1))),
            (m.repeat(0, 2), m.pad(&[(1, 0), (0, 1)], 7), m.tril(0), m.triu(1)),
            (concat(&[&m, &m.slice(1, 0..1)], 1), stack(&[&m.at(0, 0), &m.at(0, -1)], 1), m.cumsum_reverse(1)),
            m.split::<3>(1).map(|piece| piece.flatten()).to_vec(),
            m.chunks(1, 2),
        )
    });
    let wanted: [&[f64]; 16] = [
        &[1., 4., 2., 5., 3., 6.],
        &[3., 2., 1., 6., 5., 4.],
        &[3., 1., 6., 4.],
        &[4., 5.],
        &[1., 2., 3., 4., 5., 6., 1., 2., 3., 4., 5., 6.],
        &[7., 7., 7., 7., 1., 2., 3., 7., 4., 5., 6., 7.],
        &[1., 0., 0., 4., 5., 0.],
        &[0., 2., 3., 0., 0., 6.],
        &[1., 2., 3., 1., 4., 5., 6., 4.],
        &[1., 4., 2., 5., 3., 6.],
        &[6., 5., 3., 15., 11., 6.],
        &[1., 4.],
        &[2., 5.],
        &[3., 6.],
        &[1., 2., 4., 5.],
        &[3., 6.],
    ];
    for (got, wanted) in got.iter().zip(wanted) {
        close(got, wanted);
    }
}

#[test]
fn gradients_come_as_the_model_they_are_of() {
    let got = run(|scope| {
        let (x, y) = (scope.constant([[1.0, 2.0], [3.0, 4.0]]), scope.constant([1.0, 0.0]));
        let model = (scope.constant([0.5, -0.5]), vec![scope.constant(1.0)]);
        let (loss, (dw, db)) = value_and_grad(&model, |(w, b)| mse(&(x.matmul(w) + &b[0]), &y));
        (loss, dw, db)
    });
    close(&got[0], &[(0.25 + 0.25) / 2.0]);
    close(&got[1], &[-0.5 + 1.5, -1.0 + 2.0]);
    close(&got[2], &[0.0]);
}

#[test]
fn only_uses_through_the_argument_count_and_calls_nest() {
    let got = run(|scope| {
        let x = scope.constant(3.0);
        let outside = value_and_grad(&x, |inner| inner * &x).1;
        let second = value_and_grad(&x, |x| value_and_grad(x, |x| x.powi(3)).1).1;
        let third = value_and_grad(&x, |x| value_and_grad(x, |x| value_and_grad(x, |x| x.powi(3)).1).1).1;
        let stopped = value_and_grad(&x, |x| (x + 1) * (x + 1).detach()).1;
        (outside, second, third, stopped, gradients(&(&x * &x), &[&x]))
    });
    assert_eq!(got, [[3.0], [18.0], [6.0], [4.0], [6.0]]);
}

#[test]
fn a_function_may_return_more_than_its_loss() {
    let got = run(|scope| {
        let ((loss, (double, n)), gradient) =
            value_and_grad_aux(&scope.constant([1.0, 2.0]), |x| (x.square().sum(..), (x * 2, 5)));
        assert_eq!(n, 5);
        (loss, double, gradient)
    });
    assert_eq!(got, [vec![5.0], vec![2.0, 4.0], vec![2.0, 4.0]]);
}

#[test]
fn an_unused_leaf_gets_zeros_and_a_notice() {
    let captured = CaptureDevice::new(Backend::Cpu)
        .capture_scope(|scope| {
            let model = (scope.constant([1.0, 2.0]), scope.constant([[3.0]]));
            value_and_grad(&model, |(used, _)| used.sum(..)).1
        })
        .unwrap();
    let notices: Vec<&str> = captured.notices.iter().map(|notice| &*notice.text).collect();
    assert_eq!(notices, ["the gradient of `1` is zero everywhere: the loss does not depend on it"]);
    assert_eq!(numbers(&evaluate(&captured.graph, &[]).unwrap()[1]), [0.0]);
}

#[test]
fn draws_of_one_capture_differ_and_dropout_has_one_mask_in_both_directions() {
    let got = run(|scope| {
        let (a, b) = (scope.key().uniform([8]), scope.key().uniform([8]));
        let [left, right] = scope.key().split();
        (a, b, left.uniform([8]), right.uniform([8]))
    });
    for (index, draw) in got.iter().enumerate() {
        assert!(draw.iter().all(|&x| (0.0..1.0).contains(&x)));
        assert!(got[..index].iter().all(|other| other != draw));
    }
    let masks = run(|scope| {
        let x = scope.ones([64], DType::F32);
        let key = scope.key();
        let kept = std::cell::RefCell::new(None);
        let slope = value_and_grad(&x, |x| {
            let y = dropout(x, 0.5, key);
            *kept.borrow_mut() = Some(y.clone());
            y.sum(..)
        });
        (kept.into_inner().unwrap(), slope.1)
    });
    assert_eq!(masks[0], masks[1]);
    assert!(masks[0].contains(&0.0) && masks[0].contains(&2.0) && masks[0].iter().all(|&x| x == 0.0 || x == 2.0));
}

#[test]
fn draws_follow_their_distribution() {
    let got = run(|scope| {
        let [a, b, c, d] = Key::new(&scope.constant([7u32, 9])).split();
        let normal = a.normal([20000]);
        let spread = b.uniform_between(-1.0, 3.0, [20000]);
        (
            normal.mean(..),
            normal.std(..),
            spread.mean(..),
            c.bernoulli(0.25, [20000]).mean(..),
            d.bernoulli(1.0, [9]).all(..),
        )
    });
    let near = |got: &[f64], wanted: f64| assert!((got[0] - wanted).abs() < 0.03, "{got:?} is not {wanted}");
    near(&got[0], 0.0);
    near(&got[1], 1.0);
    near(&got[2], 1.0);
    near(&got[3], 0.25);
    near(&got[4], 1.0);
}

#[test]
fn the_seed_of_a_device_sets_the_key_of_later_scopes() {
    let draw = |seed: Option<u64>| {
        let device = CaptureDevice::new(Backend::Cpu);
        if let Some(seed) = seed {
            device.seed(seed);
        }
        numbers(&evaluate(&device.capture_scope(|scope| scope.key().uniform([4])).unwrap().graph, &[]).unwrap()[0])
    };
    assert_eq!(draw(Some(1)), draw(Some(1)));
    assert_ne!(draw(Some(1)), draw(Some(2)));
    assert_eq!(draw(None), draw(None));
}
