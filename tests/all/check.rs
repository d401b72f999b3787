//! The one comparison of backends: a compiled plan, on the backend under test, against the reference.
//!
//! [`check`] runs a graph in several ways and compares each with the reference, element by element:
//!
//! - compiled as it is, called with the inputs, with other values, and with the inputs again (the same bits as at first);
//! - with its inputs baked in as constants;
//! - with kernels fused and one kernel per op, with memory reused and not;
//! - with every intermediate value as one more output. Then each node is compared on *its operands as the CPU computed them*, so errors do not
//!   add up and no jump excuses anything.
//!
//! In a whole graph errors do add up, and where a float is compared or rounded to an integer they may jump: [`reference::Expected`] finds out
//! how far. An element that stands at an edge is *skipped*; [`Report`] counts.

use std::collections::HashMap;

use kiln_ir::{Graph, GraphBuilder, HostData, Node, NodeId, Op, Output, ScalarOp, Value, rebuild};
use kiln_runtime::reference;
use kiln_runtime::reference::expected::{Signs, moved, widen};
use kiln_runtime::reference::tolerance::{agree, bounds, ulp};
use smallvec::smallvec;

use crate::compiled::{Compiled, variants};
use crate::data::{Source, Values, tensor};
use crate::relaxed;
use crate::under_test::{backend, each_or_some};

/// What was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Report {
    /// Elements of outputs.
    pub(crate) elements: usize,
    /// Those at an edge, which may be anything.
    pub(crate) skipped: usize,
}

/// Compares all ways of running `graph` on the backend under test with the reference. What it may refuse ([`relaxed`]) is not compared. Panics with graph, element and both values where they disagree.
#[track_caller]
pub(crate) fn check(graph: &Graph, inputs: &[HostData]) -> Report {
    let report = check_compiled(graph, inputs);
    check_compiled(&with_constants(graph, &relaxed::inputs(inputs)), &[]);
    check_every_node(graph, inputs);
    report
}

/// Compares the graph, compiled in every variant and replayed.
#[track_caller]
pub(crate) fn check_compiled(graph: &Graph, inputs: &[HostData]) -> Report {
    let inputs = &relaxed::inputs(inputs);
    let expected = Expected::of(graph, inputs);
    let others = other_values(inputs);
    let other = others.as_ref().map(|others| Expected::of(graph, others));
    let mut report = Report::default();
    for (variant, options) in variants() {
        let Some(compiled) = Compiled::unless_refused(graph, &options) else { continue };
        if let Some(defined) = compiled.run_by_definition(inputs) {
            expected.compare(graph, inputs, &defined, &format!("{variant}, by the definition of plans"));
        }
        let first = compiled.run(inputs);
        report = expected.compare(graph, inputs, &first, variant);
        if let (Some(others), Some(other)) = (&others, &other) {
            other.compare(graph, others, &compiled.run(others), &format!("{variant}, called again with other values"));
            assert!(compiled.run(inputs) == first, "{variant}: the same call gave other bits the second time\n{graph}");
        }
    }
    report
}

/// Compares the graph with one intermediate value as one more output, for each of them (on a GPU for some).
#[track_caller]
pub(crate) fn check_exposing_each(graph: &Graph, inputs: &[HostData]) {
    let inputs = &relaxed::inputs(inputs);
    for value in each_or_some(2, with_all_outputs(graph).1, &graph.name) {
        if graph.outputs.iter().any(|output| output.value == value) {
            continue;
        }
        let mut exposed = graph.clone();
        exposed.outputs.push(Output { name: "exposed".into(), value });
        let Some(compiled) = Compiled::unless_refused(&exposed, &variants()[0].1) else { continue };
        let outputs = compiled.run(inputs);
        Expected::of(&exposed, inputs).compare(&exposed, inputs, &outputs, &format!("with {value} exposed"));
    }
}

/// Compares every node on operands as the backend computed them.
#[track_caller]
pub(crate) fn check_every_node(graph: &Graph, inputs: &[HostData]) {
    let inputs = &relaxed::inputs(inputs);
    let graph = &without_customs(graph);
    let (exposed, values) = with_all_outputs(graph);
    let Some(compiled) = Compiled::unless_refused(&exposed, &variants()[0].1) else { return };
    let results = compiled.run(inputs);
    let mut seen: HashMap<Value, HostData> = graph.inputs.iter().copied().zip(inputs.iter().cloned()).collect();
    seen.extend(values.into_iter().zip(results));
    for (index, node) in graph.nodes.iter().enumerate().filter(|(_, node)| !is_input(node)) {
        let operands: Vec<HostData> = node.operands.iter().map(|operand| seen[operand].clone()).collect();
        let expected = apply(node, &operands);
        let mut allowed = bounds(&node.op, &operands.iter().collect::<Vec<_>>(), &expected);
        widen_by_unrounded_operands(graph, node, &operands, &expected, &mut allowed);
        for (result, expected) in expected.iter().enumerate() {
            let value = Value { node: NodeId(index as u32), result: result as u32 };
            compare(expected, &seen[&value], &allowed[result], &|| {
                format!("{value} with every value as an output\n{graph}{}", listed(graph, inputs))
            });
        }
    }
}

/// What the reference says, and how far each element may be from it.
struct Expected(reference::Expected);

/// Evaluations with moved operands.
const TRIALS: u64 = 4;

impl Expected {
    fn of(graph: &Graph, inputs: &[HostData]) -> Expected {
        let expected = reference::Expected::of(&without_customs(graph), inputs);
        Expected(expected.expect("the reference runs every checked graph"))
    }

    #[track_caller]
    fn compare(&self, graph: &Graph, inputs: &[HostData], actual: &[HostData], variant: &str) -> Report {
        let reference::Expected { outputs, bounds } = &self.0;
        assert_eq!(actual.len(), outputs.len(), "number of outputs");
        let mut report = Report::default();
        for (index, (expected, actual)) in outputs.iter().zip(actual).enumerate() {
            let name = &graph.outputs[index].name;
            let bounds = &bounds[index];
            compare(expected, actual, bounds, &|| {
                format!("output {name}, {variant}\n{graph}{}", listed(graph, inputs))
            });
            report.elements += bounds.len();
            report.skipped += bounds.iter().filter(|bound| bound.is_infinite()).count();
        }
        report
    }
}

#[track_caller]
fn compare(expected: &HostData, actual: &HostData, bounds: &[f64], place: &dyn Fn() -> String) {
    assert_eq!((expected.dtype(), expected.shape()), (actual.dtype(), actual.shape()), "type of {}", place());
    let backend = backend();
    for (index, (expected, actual)) in expected.elements().zip(actual.elements()).enumerate() {
        let bound = bounds[index];
        assert!(
            bound.is_infinite() || agree(expected, actual, bound) || relaxed::may_differ(expected, actual),
            "element {index}: reference {expected:?}, {backend} {actual:?}, allowed {bound:e}, in {}",
            place()
        );
    }
}

/// Widens the bounds of a node by what it makes of operands that may not have been rounded.
fn widen_by_unrounded_operands(
    graph: &Graph,
    node: &Node,
    operands: &[HostData],
    expected: &[HostData],
    bounds: &mut [Vec<f64>],
) {
    let loose: Vec<Option<Vec<f64>>> = node
        .operands
        .iter()
        .zip(operands)
        .map(|(&operand, data)| {
            let made = graph.node(through_views(graph, operand));
            let product = matches!(made.op, Op::Scalar(ScalarOp::Mul));
            let adds = matches!(node.op, Op::Scalar(ScalarOp::Add | ScalarOp::Sub));
            let wide = matches!(made.op, Op::MatMul { .. }) && data.dtype().size() == 2;
            (data.dtype().is_float() && (wide || (product && adds)))
                .then(|| data.elements().map(|element| ulp(element.dtype(), element.to_f64())).collect())
        })
        .collect();
    if loose.iter().all(Option::is_none) {
        return;
    }
    for trial in 0..TRIALS {
        let mut signs = Signs::new(trial);
        let shaken: Vec<HostData> = operands
            .iter()
            .zip(&loose)
            .map(|(data, loose)| {
                loose.as_ref().map_or_else(|| data.clone(), |reaches| moved(data, reaches, &mut signs))
            })
            .collect();
        for ((bounds, expected), shaken) in bounds.iter_mut().zip(expected).zip(&apply(node, &shaken)) {
            widen(bounds, expected, shaken, 2.0);
        }
    }
}

/// The value that a value is a view of, signs aside.
fn through_views(graph: &Graph, mut value: Value) -> Value {
    while let Op::Reshape(_)
    | Op::Permute(_)
    | Op::Broadcast(_)
    | Op::Slice { .. }
    | Op::Pad { .. }
    | Op::Concat { .. }
    | Op::Mark
    | Op::StopGradient
    | Op::Transfer(_)
    | Op::Scalar(ScalarOp::Neg) = graph.node(value).op
    {
        value = graph.node(value).operands[0];
    }
    value
}

/// A node's results on given operands, by the reference.
fn apply(node: &Node, operands: &[HostData]) -> Vec<HostData> {
    reference::expected::apply(node, operands).expect("the reference runs every op")
}

fn is_input(node: &Node) -> bool {
    matches!(node.op, Op::Input { .. })
}

/// The graph with its custom ops written out: what they are allowed follows from what they are made of.
fn without_customs(graph: &Graph) -> Graph {
    if graph.nodes.iter().any(|node| matches!(node.op, Op::Custom(_))) {
        kiln_passes::inline(graph, &kiln_passes::Options::default()).expect("customs have bodies")
    } else {
        graph.clone()
    }
}

/// The graph with its inputs baked in.
pub(crate) fn with_constants(graph: &Graph, inputs: &[HostData]) -> Graph {
    let mut data = graph.inputs.iter().zip(inputs);
    rebuild(graph, |b, node, _| {
        if !is_input(node) {
            return Ok(None);
        }
        let (_, data) = data.next().expect("inputs are visited in declared order");
        Ok(Some(smallvec![b.constant(data.clone(), node.types[0].backend, node.loc)?]))
    })
    .expect("a constant stands where an input stood")
}

/// The graph with every value but its inputs as an output, and these values in order.
pub(crate) fn with_all_outputs(graph: &Graph) -> (Graph, Vec<Value>) {
    let nodes = graph.nodes.iter().enumerate().filter(|(_, node)| !is_input(node));
    let values: Vec<Value> = nodes
        .flat_map(|(index, node)| {
            (0..node.types.len() as u32).map(move |result| Value { node: NodeId(index as u32), result })
        })
        .collect();
    let outputs = values.iter().map(|value| (format!("v{}.{}", value.node.0, value.result), *value));
    let exposed = GraphBuilder::from_graph(graph).finish(outputs).expect("names differ");
    (exposed, values)
}

/// Other data of the same types; none where there is no input with an element.
fn other_values(inputs: &[HostData]) -> Option<Vec<HostData>> {
    let mut source = Source::new(99);
    let others: Vec<HostData> =
        inputs.iter().map(|data| tensor(data.dtype(), data.shape(), Values::Tame, &mut source)).collect();
    others.iter().any(|data| data.shape().num_elements() > 0).then_some(others)
}

/// The inputs as text, cut short.
fn listed(graph: &Graph, inputs: &[HostData]) -> String {
    let line = |(index, data): (usize, &HostData)| {
        let elements: Vec<String> = data.elements().take(40).map(|element| element.to_string()).collect();
        let name = graph.input_name(index).unwrap_or("?");
        format!("{name}: {}{} = {}\n", data.dtype(), data.shape(), elements.join(", "))
    };
    inputs.iter().enumerate().map(line).collect()
}
