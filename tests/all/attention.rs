//! Attention: recognised from its primitives in many spellings, forward and backward; right where it is, and left alone where it is not.

mod backward;
mod halves;
mod memory;
mod near_misses;
mod random;
mod spellings;

use kiln::prelude::*;
use kiln_capture::CapturedGraph;
use kiln_ir::kernel::Form;
use kiln_ir::plan::Plan;
use kiln_ir::tree::Tree;
use kiln_ir::{Graph, HostData, Literal};
use kiln_passes::{Options, compile};
use kiln_runtime::reference::evaluate;
use rayon::ThreadPoolBuilder;

use crate::compiled::Compiled;
use kiln_runtime::reference::tolerance::agree;

pub(crate) fn capture<R: Tree<Tensor>>(body: impl FnOnce(&Scope) -> R) -> CapturedGraph {
    CaptureDevice::new(Backend::Cpu).capture_scope(body).unwrap()
}

pub(crate) fn plan_of(captured: &CapturedGraph) -> Plan {
    compile(&captured.graph, &Options::default()).unwrap()
}

pub(crate) fn forms(plan: &Plan) -> Vec<Form> {
    plan.launches().map(|launch| launch.kernel.form()).collect()
}

/// How many kernels are attention, in which order they come among the others.
pub(crate) fn attentions(plan: &Plan) -> usize {
    forms(plan).into_iter().filter(|form| *form == Form::Attention).count()
}

/// Arguments for a graph: numbers around 0, bools of which most are true.
pub(crate) fn arguments(graph: &Graph, seed: u64) -> Vec<HostData> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f64 / f64::from(1 << 24)
    };
    let mut tensor = |ty: &TensorType| {
        let count = ty.shape.num_elements();
        let element = |number: f64| match ty.dtype {
            DType::Bool => Literal::from_i128(DType::Bool, i128::from(number < 0.75)),
            dtype => Literal::from_f64(dtype, number * 2.0 - 1.0),
        };
        let elements: Vec<Literal> = (0..count).map(|_| element(next())).collect();
        HostData::from_literals(ty.dtype, &ty.shape, &elements).unwrap()
    };
    graph.inputs.iter().map(|&input| tensor(graph.ty(input))).collect()
}

/// How far results may be apart, as a part of the largest element of each.
fn slack(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 1e-5,
        DType::F16 => 4e-3,
        DType::BF16 => 3e-2,
        DType::I8 | DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::Bool => 0.0,
    }
}

/// Fails where results are not the reference's, NaN and infinities included.
#[track_caller]
pub(crate) fn same(graph: &Graph, expected: &[HostData], found: &[HostData], what: &str) {
    for ((expected, found), output) in expected.iter().zip(found).zip(&graph.outputs) {
        let finite = expected.elements().map(|element| element.to_f64().abs()).filter(|size| size.is_finite());
        // One number is a sum of hundreds around 1, of both signs: what it lacks goes by them, and not by what they come to.
        let least = if expected.shape().is_empty() { 1.0 } else { 1e-3 };
        let bound = slack(expected.dtype()) * finite.fold(least, f64::max);
        for (index, (a, b)) in expected.elements().zip(found.elements()).enumerate() {
            assert!(agree(a, b, bound), "{what}: {} [{index}]: expected {a}, found {b}, bound {bound}", output.name);
        }
    }
}

/// Runs a graph on these arguments on one thread and on two, and by the definition of its kernels, and compares with the reference.
#[track_caller]
pub(crate) fn agrees_on(graph: &Graph, inputs: &[HostData]) {
    let Some(compiled) = Compiled::unless_refused(graph, &Options::default()) else { return };
    let expected = evaluate(graph, inputs).unwrap();
    let on = |threads: usize| {
        ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| compiled.run(inputs))
    };
    let alone = on(1);
    same(graph, &expected, &alone, "on one thread");
    assert!(on(2) == alone, "two threads give other bits than one");
    if let Some(defined) = compiled.run_by_definition(inputs) {
        same(graph, &expected, &defined, "by definition");
    }
}

#[track_caller]
pub(crate) fn agrees(captured: &CapturedGraph) {
    agrees_on(&captured.graph, &arguments(&captured.graph, 7));
}

/// Checks that a program is one attention kernel and nothing else, and right.
#[track_caller]
pub(crate) fn is_one_kernel<R: Tree<Tensor>>(body: impl FnOnce(&Scope) -> R) {
    let captured = capture(body);
    let plan = plan_of(&captured);
    assert_eq!(forms(&plan), [Form::Attention], "{plan}");
    agrees(&captured);
}

/// Queries, keys and values `[2, 3, s, 8]`.
pub(crate) fn three(scope: &Scope, queries: usize, keys: usize, dtype: DType) -> [Tensor; 3] {
    [("q", queries), ("k", keys), ("v", keys)].map(|(name, rows)| scope.input(name, dtype, [2, 3, rows, 8]))
}
