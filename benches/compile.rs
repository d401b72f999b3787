//! Recording and compiling: ops captured per second, and the time of each pass on graphs of 10, 1,000 and 10,000 nodes. Time must grow
//! linearly with the nodes, whether they form one deep chain or many layers.

#![allow(missing_docs)]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kiln_capture::{CaptureDevice, Scope, Tensor};
use kiln_ir::{Backend, DType, Graph};
use kiln_passes::{Options, compile, inline, simplify};

/// One op after the other on one tensor.
fn chain(scope: &Scope, nodes: usize) -> Tensor {
    let (x, y) = (scope.input("x", DType::F32, [256]), scope.input("y", DType::F32, [256]));
    (2..nodes).fold(x, |sum, index| match index % 4 {
        0 => sum + &y,
        1 => sum.tanh(),
        2 => sum * &y,
        _ => -sum,
    })
}

/// Layers of ten nodes or so: a product, a bias, a norm by hand, a nonlinearity.
fn layers(scope: &Scope, nodes: usize) -> Tensor {
    let x = scope.input("x", DType::F32, [16, 32]);
    let (w, b) = (scope.input("w", DType::F32, [32, 32]), scope.input("b", DType::F32, [32]));
    (0..nodes / 12).fold(x, |x, _| {
        let h = x.matmul(&w) + &b;
        let h = &h - h.mean(-1).unsqueeze(-1);
        (h.relu() + &x) * 0.5
    })
}

fn graph(program: fn(&Scope, usize) -> Tensor, nodes: usize) -> Graph {
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| program(scope, nodes)).expect("the program is right").graph
}

fn recording(c: &mut Criterion) {
    let mut group = c.benchmark_group("capture");
    for nodes in [10, 1_000, 10_000] {
        group.throughput(Throughput::Elements(nodes as u64));
        group.bench_function(BenchmarkId::new("chain", nodes), |b| b.iter(|| graph(chain, black_box(nodes))));
    }
    group.finish();
}

fn compiling(c: &mut Criterion) {
    for (name, program) in [("chain", chain as fn(&Scope, usize) -> Tensor), ("layers", layers)] {
        let mut group = c.benchmark_group(format!("compile/{name}"));
        group.sample_size(20);
        for nodes in [10, 1_000, 10_000] {
            let graph = graph(program, nodes.max(24));
            group.throughput(Throughput::Elements(graph.nodes.len() as u64));
            group.bench_function(BenchmarkId::new("inline", nodes), |b| b.iter(|| inline(&graph, &Options::default())));
            group.bench_function(BenchmarkId::new("simplify", nodes), |b| b.iter(|| simplify(&graph)));
            group.bench_function(BenchmarkId::new("all", nodes), |b| b.iter(|| compile(&graph, &Options::default())));
        }
        group.finish();
    }
}

criterion_group!(benches, recording, compiling);
criterion_main!(benches);
