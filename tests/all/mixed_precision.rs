//! Mixed precision: which nodes a policy changes, how far the numbers move, and a loss scale that adapts.

use kiln::ir::{Graph, Op, Precision};
use kiln::nn::Linear;
use kiln::optim::{Adam, LossScale, select_tree};
use kiln::passes::{Options, compile};
use kiln::prelude::*;
use kiln::random::Random;
use kiln_ir::kernel::Kernel;

use crate::under_test::device;

#[derive(Tree, Clone, Debug)]
struct Net<T> {
    hidden: Linear<T>,
    last: Linear<T>,
}

impl Net<Tensor> {
    fn forward(&self, x: &Tensor) -> Tensor {
        self.last.forward(&self.hidden.forward(x).relu())
    }
}

fn net(device: &Device) -> Net<Array> {
    let mut random = Random::new(3);
    let mut layer = |inputs, outputs| Linear::new(device, inputs, outputs, &mut random).unwrap();
    Net { hidden: layer(8, 32), last: layer(32, 4) }
}

/// Rows of which each class has a direction of its own.
fn batch(device: &Device) -> (Array, Array) {
    let mut random = Random::new(5);
    let labels: Vec<i32> = (0..64).map(|row| row % 4).collect();
    let x = labels.iter().flat_map(|&label| (0..8).map(move |column| if column % 4 == label { 1.0f32 } else { 0.0 }));
    let x: Vec<f32> = x.map(|x| x + 0.3 * random.normal()).collect();
    (Array::from_vec(device, x, [64, 8]).unwrap(), Array::from_vec(device, labels, [64]).unwrap())
}

/// The losses of some steps of Adam.
fn losses(device: &Device, policy: Option<Policy>) -> Vec<f32> {
    let train = step(device, |(net, adam): (Net<Tensor>, Adam<Net<Tensor>>), (x, y): (Tensor, Tensor)| {
        let (loss, gradients) = value_and_grad(&net, |net| cross_entropy(&net.forward(&x), &y));
        (adam.step(net, gradients, 1e-2), loss)
    });
    let train = match policy {
        Some(policy) => train.mixed_precision(policy),
        None => train,
    };
    let net = net(device);
    let mut state = (net.clone(), Adam::new(&net).unwrap());
    let (x, y) = batch(device);
    let losses = (0..30).map(|_| train.call(&mut state, (&x, &y)).unwrap().item().unwrap()).collect();
    assert!(state.0.leaves().iter().all(|leaf| leaf.dtype() == DType::F32));
    losses
}

fn captured(body: impl FnOnce(&Scope) -> Tensor) -> Graph {
    CaptureDevice::new(Backend::Cpu).capture_scope(body).unwrap().graph
}

/// The loss and the weights' gradients of two layers.
fn two_layers() -> Graph {
    let capture = CaptureDevice::new(Backend::Cpu);
    let gradients = |scope: &Scope| {
        let x = scope.input("x", DType::F32, [8, 4]);
        let weights = (scope.input("w", DType::F32, [4, 6]), scope.input("v", DType::F32, [6, 2]));
        value_and_grad(&weights, |(w, v)| x.matmul(w).relu().matmul(v).square().sum(..))
    };
    capture.capture_scope(gradients).unwrap().graph
}

/// The same without the lines, which are those of this file.
fn text(graph: &Graph) -> String {
    let text = graph.to_string();
    text.lines().map(|line| line.split(" // ").next().unwrap_or(line).trim_end()).collect::<Vec<_>>().join("\n")
}

fn products(graph: &Graph) -> Vec<(DType, Precision)> {
    let product = |node: &kiln::ir::Node| match node.op {
        Op::MatMul { precision } => Some((node.types[0].dtype, precision)),
        _ => None,
    };
    graph.nodes.iter().filter_map(product).collect()
}

#[test]
fn a_training_step_multiplies_in_bf16_and_keeps_all_else_in_f32() {
    let graph = kiln::mixed_precision(&two_layers(), Policy::bf16()).unwrap();
    kiln_ir::verify(&graph).unwrap();
    insta::assert_snapshot!(text(&graph));
}

#[test]
fn tf32_is_a_precision_of_the_products_and_nothing_else() {
    let before = two_layers();
    let graph = kiln::mixed_precision(&before, Policy::tf32()).unwrap();
    assert_eq!(products(&graph), vec![(DType::F32, Precision::Tf32); products(&before).len()]);
    assert!(graph.nodes.iter().all(|node| node.types[0].dtype != DType::BF16));
}

#[test]
fn a_narrow_value_is_not_rounded_again_behind_a_view() {
    let graph = captured(|scope| {
        let x = scope.input("x", DType::F32, [4, 6]);
        let heads = x.matmul(&scope.input("w", DType::F32, [6, 8])).reshape([4, 2, 4]).swap_axes(0, 1);
        heads.matmul(&heads.transpose())
    });
    let graph = kiln::mixed_precision(&graph, Policy::bf16()).unwrap();
    let casts = |dtype| graph.nodes.iter().filter(|node| node.op == Op::Cast(dtype)).count();
    // `x` and `w`; the last product's result. What is between the two stays narrow.
    assert_eq!((casts(DType::BF16), casts(DType::F32)), (2, 1));
}

#[test]
fn a_weight_is_rounded_once_for_forward_and_backward() {
    let graph = kiln::mixed_precision(&two_layers(), Policy::bf16()).unwrap();
    for name in ["w", "v"] {
        let at = graph.nodes.iter().position(|node| matches!(&node.op, Op::Input { name: own, .. } if &**own == name));
        let reads = |node: &&kiln::ir::Node| node.operands.iter().any(|operand| Some(operand.node.index()) == at);
        assert_eq!(graph.nodes.iter().filter(reads).count(), 1, "{name}:\n{graph}");
    }
}

#[test]
fn other_products_are_left_alone() {
    let graph = captured(|scope| {
        let wide = scope.input("wide", DType::F64, [3, 3]);
        let bytes = scope.input("bytes", DType::I8, [3, 3]);
        let half = scope.input("half", DType::F16, [3, 3]);
        let sums = bytes.matmul_with(&bytes, Precision::Wide).cast(DType::F64);
        wide.matmul(&wide) + sums + half.matmul(&half).cast(DType::F64)
    });
    let same = kiln_ir::rebuild(&graph, |_, _, _| Ok(None)).unwrap();
    assert_eq!(kiln::mixed_precision(&graph, Policy::bf16()).unwrap(), same);
}

#[test]
fn attention_under_a_policy_is_still_one_kernel() {
    let graph = captured(|scope| {
        let [q, k, v] = ["q", "k", "v"].map(|name| scope.input(name, DType::F32, [2, 2, 16, 8]));
        attention(&q, &k, &v, Mask::Causal)
    });
    let graph = kiln::mixed_precision(&graph, Policy::bf16()).unwrap();
    let plan = compile(&graph, &Options::default()).unwrap();
    assert_eq!(plan.launches().filter(|launch| matches!(*launch.kernel, Kernel::Attention(_))).count(), 1);
    assert!(plan.launches().all(|launch| !matches!(*launch.kernel, Kernel::MatMul(_))));
}

#[test]
fn training_goes_as_in_f32() {
    let device = device();
    let full = losses(&device, None);
    for policy in [Policy::bf16(), Policy::tf32()] {
        let mixed = losses(&device, Some(policy));
        for (full, mixed) in full.iter().zip(&mixed) {
            assert!((full - mixed).abs() <= 0.02 * full.abs() + 0.01, "{policy:?}: {full} {mixed}");
        }
    }
    assert!(full[29] < 0.3 * full[0]);
    // And it is not the same.
    assert_ne!(losses(&device, Some(Policy::bf16())), full);
}

#[test]
fn the_reference_interpreter_follows_the_policy() {
    let (here, there) =
        (losses(&Device::cpu(), Some(Policy::f16())), losses(&Device::reference(), Some(Policy::f16())));
    for (here, there) in here.iter().zip(&there) {
        assert!((here - there).abs() < 1e-2, "{here} {there}");
    }
}

/// Takes steps on one weight, whose gradient is `x * seed`, and gives the weight and the factors after each.
fn scaled(device: &Device, scale: LossScale<Array>, w: f32, steps: &[(f32, f32)]) -> (f32, Vec<f32>) {
    let train = step(device, |(w, scale): (Tensor, LossScale<Tensor>), (x, seed): (Tensor, Tensor)| {
        let (loss, gradient, finite) = scale.value_and_grad(&w, |w| (x.matmul(w) * &seed).sum(..));
        let w = select_tree(&finite, &w - gradient, w);
        ((w, scale.adjust(&finite)), loss)
    })
    .mixed_precision(Policy::f16());
    let one = |number: f32| Array::new(device, [[number]]).unwrap();
    let mut state = (one(w), scale);
    let mut factors = Vec::new();
    for &(x, seed) in steps {
        train.call(&mut state, (one(x), one(seed))).unwrap();
        factors.push(state.1.factor().item().unwrap());
    }
    assert_eq!(train.cache().misses, 1);
    (state.0.item().unwrap(), factors)
}

#[test]
fn a_gradient_that_vanishes_in_f16_is_kept_by_the_scale() {
    let device = device();
    // Of 1e-8 nothing is left in `f16`; times 2^15 it is 3e-4.
    let (w, _) = scaled(&device, LossScale::new(&device).unwrap(), 0.0, &[(1.0, 1e-8)]);
    assert!((w + 1e-8).abs() < 1e-11, "{w}");
    let (w, _) = scaled(&device, LossScale::with_factor(&device, 1.0).unwrap(), 0.0, &[(1.0, 1e-8)]);
    assert_eq!(w, 0.0);
}

#[test]
fn an_infinite_gradient_leaves_the_weights_and_halves_the_factor() {
    let device = device();
    let scale = LossScale::new(&device).unwrap().patience(2);
    let steps = [(1.0, 1e3), (1.0, 1e3), (1.0, 1.0), (1.0, 1.0), (1.0, 1.0)];
    let (w, factors) = scaled(&device, scale, 2.0, &steps);
    // Two steps too large, then two that are fine and one more.
    assert_eq!(factors, [16384.0, 8192.0, 8192.0, 16384.0, 16384.0]);
    assert_eq!(w, -1.0);
}
