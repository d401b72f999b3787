//! A transformer's training step, of which every layer is paid for twelve times: its kernels, and what stays in memory between them.

use std::collections::BTreeMap;

use kiln_capture::{
    CaptureDevice, Mask, Scope, Tensor, attention, cross_entropy, embedding, layer_norm, linear, value_and_grad,
};
use kiln_ir::plan::{Blocked, Plan};
use kiln_ir::{Backend, DType};
use kiln_passes::{Options, compile};

const BATCH: usize = 2;
const TOKENS: usize = 48;
const HEADS: usize = 4;
const WIDTH: usize = 64;
const WORDS: usize = 256;

/// Weights of a layer: norm, attention, norm, two products.
const SHAPES: [&[usize]; 12] = [
    &[WIDTH],
    &[WIDTH],
    &[WIDTH, 3 * WIDTH],
    &[3 * WIDTH],
    &[WIDTH, WIDTH],
    &[WIDTH],
    &[WIDTH],
    &[WIDTH],
    &[WIDTH, 4 * WIDTH],
    &[4 * WIDTH],
    &[4 * WIDTH, WIDTH],
    &[WIDTH],
];

fn layer(x: &Tensor, w: &[Tensor]) -> Tensor {
    let normal = layer_norm(x, Some(&w[0]), Some(&w[1]), 1e-5);
    let [q, k, v] = linear(&normal, &w[2], Some(&w[3])).split::<3>(-1);
    let heads = |x: Tensor| x.reshape([BATCH, TOKENS, HEADS, WIDTH / HEADS]).permute([0, 2, 1, 3]);
    let seen = attention(&heads(q), &heads(k), &heads(v), Mask::Causal);
    let seen = seen.permute([0, 2, 1, 3]).reshape([BATCH, TOKENS, WIDTH]);
    let x = x + linear(&seen, &w[4], Some(&w[5]));
    let normal = layer_norm(&x, Some(&w[6]), Some(&w[7]), 1e-5);
    x + linear(&linear(&normal, &w[8], Some(&w[9])).gelu(), &w[10], Some(&w[11]))
}

/// A step with AdamW over all weights, state first among arguments and results.
fn step(layers: usize) -> Plan {
    let shapes: Vec<&[usize]> = std::iter::repeat_n(SHAPES, layers)
        .flatten()
        .chain([&[WORDS, WIDTH][..], &[TOKENS, WIDTH], &[WIDTH], &[WIDTH]])
        .collect();
    let body = |scope: &Scope| {
        let tensors = |kind: &str| -> Vec<Tensor> {
            let named = |(index, shape): (usize, &&[usize])| scope.input(&format!("{kind}{index}"), DType::F32, *shape);
            shapes.iter().enumerate().map(named).collect()
        };
        let (weights, means, squares) = (tensors("w"), tensors("m"), tensors("v"));
        let count = scope.input("count", DType::F32, []) + 1.0;
        let words = scope.input("words", DType::I32, [BATCH, TOKENS]);
        let next = scope.input("next", DType::I32, [BATCH * TOKENS]);
        let lr = scope.input("lr", DType::F32, []);
        let (loss, gradients) = value_and_grad(&weights, |w| {
            let (layers, ends) = w.split_at(layers * SHAPES.len());
            let x = embedding(&ends[0], &words) + &ends[1];
            let x = layers.chunks(SHAPES.len()).fold(x, |x, w| layer(&x, w));
            let x = layer_norm(&x, Some(&ends[2]), Some(&ends[3]), 1e-5);
            let logits = x.matmul(&ends[0].transpose()).reshape([BATCH * TOKENS, WORDS]);
            cross_entropy(&logits, &next)
        });
        let correction = |beta: f64| 1.0 - (&count * beta.ln()).exp();
        let mut state = (Vec::new(), Vec::new(), Vec::new());
        for (((w, g), m), v) in weights.iter().zip(&gradients).zip(&means).zip(&squares) {
            let m = m * 0.9 + g * 0.1;
            let v = v * 0.999 + g.square() * 0.001;
            let step = &m / correction(0.9) / ((&v / correction(0.999)).sqrt() + 1e-8);
            state.0.push(w * 0.999 - step * &lr);
            state.1.push(m);
            state.2.push(v);
        }
        (state, count, loss)
    };
    let captured = CaptureDevice::new(Backend::Cpu).capture_scope(body).unwrap();
    let donate = (0..3 * shapes.len() + 1).map(|leaf| (leaf, leaf)).collect();
    compile(&captured.graph, &Options { donate, ..Options::default() }).unwrap()
}

/// How often each comes, as lines.
fn counted<T: Ord + std::fmt::Display>(things: impl Iterator<Item = T>) -> BTreeMap<T, usize> {
    let mut counts = BTreeMap::new();
    things.for_each(|thing| *counts.entry(thing).or_insert(0) += 1);
    counts
}

/// What one more layer adds.
fn added<T: Ord + std::fmt::Display>(more: BTreeMap<T, usize>, less: &BTreeMap<T, usize>) -> String {
    let line = |(thing, count): (T, usize)| format!("{thing}: {}\n", count - less.get(&thing).copied().unwrap_or(0));
    more.into_iter().map(line).filter(|line| !line.ends_with(": 0\n")).collect()
}

#[test]
fn a_layer_of_a_training_step_is_a_kernel_per_product_and_a_few_more() {
    let (eleven, twelve) = (step(11), step(12));
    let forms = |plan: &Plan| counted(plan.launches().map(|launch| launch.kernel.form().name()));
    // What stays in memory, by the line that made it, with its reason.
    let place = |loc: kiln_ir::Loc| loc.to_string().rsplit('/').next().unwrap_or_default().to_owned();
    let edges = |plan: &Plan| {
        let between = plan.ledger.iter().filter(|edge| edge.blocked != Blocked::Output);
        counted(between.map(|edge| format!("{} {} {}", edge.ty, place(edge.loc), edge.blocked.code())))
    };
    let shown = format!(
        "kernels of a layer, {} of {} in all\n{}\nleft in memory by a layer\n{}",
        twelve.launches().count() - eleven.launches().count(),
        twelve.launches().count(),
        added(forms(&twelve), &forms(&eleven)),
        added(edges(&twelve), &edges(&eleven)),
    );
    insta::assert_snapshot!(shown);
    // Scores never stand in memory.
    assert!(twelve.buffers.iter().all(|buffer| !buffer.ty.shape.ends_with(&[TOKENS, TOKENS])));
}
