//! The one comparison of backends: a compiled CPU plan against the reference.
//!
//! [`check`] runs a graph in several ways and compares each with the reference, element by element:
//!
//! - compiled as it is, called with the inputs, with other values, and with the inputs again (the same bits as at first);
//! - with its inputs baked in as constants;
//! - with kernels fused and one kernel per op, with memory reused and not;
//! - with every intermediate value as one more output. Then each node is compared on *its operands as the CPU computed them*, so errors do not
//!   add up and no jump excuses anything.
//!
//! In a whole graph errors do add up, and where a float is compared or rounded to an integer they may jump. How far is found by experiment:
//! the reference evaluates the graph a few times more, each intermediate moved by as much as [`crate::tolerance`] allows there. An element of
//! an output may differ by a small multiple of what that does to it. Where it makes a number an infinity or changes an integer, the element
//! stands at an edge and is *skipped*; [`Report`] counts.

use std::collections::HashMap;

use kiln_ir::{
    Backend, DType, Graph, GraphBuilder, HostData, Literal, Loc, Node, NodeId, Op, Output, ScalarOp, TensorType, Value,
    rebuild,
};
use kiln_runtime::reference::evaluate;
use smallvec::smallvec;

use crate::cpu::{Compiled, variants};
use crate::data::{Source, Values, tensor};
use crate::tolerance::{agree, bounds, ulp};

/// What was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Report {
    /// Elements of outputs.
    pub(crate) elements: usize,
    /// Those at an edge, which may be anything.
    pub(crate) skipped: usize,
}

/// Compares all ways of running `graph` on the CPU with the reference. Panics with graph, element and both values where they disagree.
#[track_caller]
pub(crate) fn check(graph: &Graph, inputs: &[HostData]) -> Report {
    let report = check_compiled(graph, inputs);
    check_compiled(&with_constants(graph, inputs), &[]);
    check_every_node(graph, inputs);
    report
}

/// Compares the graph, compiled in every variant and replayed.
#[track_caller]
pub(crate) fn check_compiled(graph: &Graph, inputs: &[HostData]) -> Report {
    let expected = Expected::of(graph, inputs);
    let others = other_values(inputs);
    let other = others.as_ref().map(|others| Expected::of(graph, others));
    let mut report = Report::default();
    for (variant, options) in variants() {
        let compiled = Compiled::new(graph, &options);
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

/// Compares the graph with one intermediate value as one more output, for each of them.
#[track_caller]
pub(crate) fn check_exposing_each(graph: &Graph, inputs: &[HostData]) {
    for value in with_all_outputs(graph).1 {
        if graph.outputs.iter().any(|output| output.value == value) {
            continue;
        }
        let mut exposed = graph.clone();
        exposed.outputs.push(Output { name: "exposed".into(), value });
        let outputs = Compiled::new(&exposed, &variants()[0].1).run(inputs);
        Expected::of(&exposed, inputs).compare(&exposed, inputs, &outputs, &format!("with {value} exposed"));
    }
}

/// Compares every node on operands as the CPU computed them.
#[track_caller]
pub(crate) fn check_every_node(graph: &Graph, inputs: &[HostData]) {
    let graph = &without_customs(graph);
    let (exposed, values) = with_all_outputs(graph);
    let results = Compiled::new(&exposed, &variants()[0].1).run(inputs);
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
struct Expected {
    outputs: Vec<HostData>,
    bounds: Vec<Vec<f64>>,
}

/// Evaluations with moved intermediates.
const TRIALS: u64 = 4;

/// How many times the largest deviation that was seen in these is allowed.
const MARGIN: f64 = 4.0;

impl Expected {
    fn of(graph: &Graph, inputs: &[HostData]) -> Expected {
        let graph = &without_customs(graph);
        let outputs = evaluate(graph, inputs).expect("the reference runs every checked graph");
        let exact = evaluate_moved(graph, inputs, None);
        let mut bounds: Vec<Vec<f64>> = exact.outputs_bounds;
        if exact.any_freedom {
            for trial in 0..TRIALS {
                let moved = evaluate_moved(graph, inputs, Some(trial)).outputs;
                for ((bounds, expected), moved) in bounds.iter_mut().zip(&outputs).zip(&moved) {
                    widen(bounds, expected, moved, MARGIN);
                }
            }
        }
        Expected { outputs, bounds }
    }

    #[track_caller]
    fn compare(&self, graph: &Graph, inputs: &[HostData], actual: &[HostData], variant: &str) -> Report {
        assert_eq!(actual.len(), self.outputs.len(), "number of outputs");
        let mut report = Report::default();
        for (index, (expected, actual)) in self.outputs.iter().zip(actual).enumerate() {
            let name = &graph.outputs[index].name;
            let bounds = &self.bounds[index];
            compare(expected, actual, bounds, &|| {
                format!("output {name}, {variant}\n{graph}{}", listed(graph, inputs))
            });
            report.elements += bounds.len();
            report.skipped += bounds.iter().filter(|bound| bound.is_infinite()).count();
        }
        report
    }
}

/// Adds to each bound what moving did to the element; an infinity where it changed its kind.
fn widen(bounds: &mut [f64], expected: &HostData, moved: &HostData, margin: f64) {
    for ((bound, expected), moved) in bounds.iter_mut().zip(expected.elements()).zip(moved.elements()) {
        if expected == moved {
            continue;
        }
        let deviation = (expected.to_f64() - moved.to_f64()).abs();
        let both_nan = expected.to_f64().is_nan() && moved.to_f64().is_nan();
        if both_nan {
            continue;
        }
        // An edge, or so near to one that a comparison would say nothing.
        let vague = !expected.dtype().is_float()
            || !deviation.is_finite()
            || deviation > 0.1 * expected.to_f64().abs().max(0.01);
        *bound = if vague { f64::INFINITY } else { bound.max(margin * deviation) };
    }
}

#[track_caller]
fn compare(expected: &HostData, actual: &HostData, bounds: &[f64], place: &dyn Fn() -> String) {
    assert_eq!((expected.dtype(), expected.shape()), (actual.dtype(), actual.shape()), "type of {}", place());
    for (index, (expected, actual)) in expected.elements().zip(actual.elements()).enumerate() {
        let bound = bounds[index];
        assert!(
            bound.is_infinite() || agree(expected, actual, bound),
            "element {index}: reference {expected:?}, CPU {actual:?}, allowed {bound:e}, in {}",
            place()
        );
    }
}

struct Moved {
    outputs: Vec<HostData>,
    /// What is allowed at each output on operands that are exact.
    outputs_bounds: Vec<Vec<f64>>,
    /// Whether any value that other nodes read may differ at all.
    any_freedom: bool,
}

/// Evaluates node by node; in a trial each float result is moved by as much as it may differ, up or down at random.
fn evaluate_moved(graph: &Graph, inputs: &[HostData], trial: Option<u64>) -> Moved {
    let mut source = Source::new(trial.unwrap_or(0));
    let mut values: HashMap<Value, HostData> = graph.inputs.iter().copied().zip(inputs.iter().cloned()).collect();
    let mut own: HashMap<Value, Vec<f64>> = HashMap::new();
    let mut any_freedom = false;
    let mut used = vec![false; graph.nodes.len()];
    graph.nodes.iter().flat_map(|node| &node.operands).for_each(|operand| used[operand.node.index()] = true);
    for (index, node) in graph.nodes.iter().enumerate().filter(|(_, node)| !is_input(node)) {
        let operands: Vec<HostData> = node.operands.iter().map(|operand| values[operand].clone()).collect();
        let mut results = apply(node, &operands);
        let mut bounds = bounds(&node.op, &operands.iter().collect::<Vec<_>>(), &results);
        for (result, (data, bounds)) in results.iter_mut().zip(&mut bounds).enumerate() {
            let value = Value { node: NodeId(index as u32), result: result as u32 };
            let lent: Vec<&HostData> = operands.iter().collect();
            let loose = unrounded(&node.op, &lent, data).unwrap_or_else(|| vec![0.0; bounds.len()]);
            let reaches: Vec<f64> = bounds.iter().zip(&loose).map(|(&bound, &loose)| bound.max(loose)).collect();
            any_freedom |= used[index] && reaches.iter().any(|&reach| reach > f64::MIN_POSITIVE);
            if trial.is_some() {
                *data = moved(data, &reaches, &mut source);
            }
            values.insert(value, data.clone());
            own.insert(value, std::mem::take(bounds));
        }
    }
    let zeros = |value: Value| vec![0.0; graph.ty(value).shape.num_elements()];
    Moved {
        outputs: graph.outputs.iter().map(|output| values[&output.value].clone()).collect(),
        outputs_bounds: graph
            .outputs
            .iter()
            .map(|output| own.get(&output.value).cloned().unwrap_or_else(|| zeros(output.value)))
            .collect(),
        any_freedom,
    }
}

fn moved(data: &HostData, reaches: &[f64], source: &mut Source) -> HostData {
    let elements: Vec<Literal> = data
        .elements()
        .zip(reaches)
        .map(|(element, &reach)| {
            if reach <= f64::MIN_POSITIVE || !element.dtype().is_float() {
                return element;
            }
            let sign = if source.next().is_multiple_of(2) { 1.0 } else { -1.0 };
            Literal::from_f64(element.dtype(), element.to_f64() + sign * reach)
        })
        .collect();
    HostData::from_literals(data.dtype(), data.shape(), &elements).expect("as many elements as before")
}

/// How far each element of a result may be from what a kernel goes on with instead, unrounded: a product in a fused multiply-add, and a
/// 16-bit matrix product in its epilogue. `None` where the op's results are always rounded.
fn unrounded(op: &Op, operands: &[&HostData], result: &HostData) -> Option<Vec<f64>> {
    let dtype = result.dtype();
    match op {
        Op::Scalar(ScalarOp::Mul) if dtype.is_float() => {
            let pairs = operands[0].elements().zip(operands[1].elements()).zip(result.elements());
            let exact = |x: f64, y: f64, product: f64| x.mul_add(y, -product) == 0.0 || !product.is_finite();
            let reach = |x: f64, y: f64, product: f64| if exact(x, y, product) { 0.0 } else { ulp(dtype, product) };
            Some(pairs.map(|((x, y), product)| reach(x.to_f64(), y.to_f64(), product.to_f64())).collect())
        }
        Op::MatMul { .. } if matches!(dtype, DType::F16 | DType::BF16) => {
            Some(result.elements().map(|element| ulp(dtype, element.to_f64())).collect())
        }
        _ => None,
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
        let mut source = Source::new(trial);
        let shaken: Vec<HostData> = operands
            .iter()
            .zip(&loose)
            .map(|(data, loose)| {
                loose.as_ref().map_or_else(|| data.clone(), |reaches| moved(data, reaches, &mut source))
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
    let mut b = GraphBuilder::new("one op");
    let mut inputs = Vec::new();
    for (index, data) in operands.iter().enumerate() {
        let ty = TensorType::new(data.dtype(), data.shape(), backend_of(node));
        inputs.push(b.input(format!("x{index}"), ty, Loc::Unknown).expect("names differ"));
    }
    let id = b.add(node.op.clone(), &inputs, Loc::Unknown).expect("the op took such operands before");
    let results: Vec<_> =
        (0..node.types.len()).map(|r| (format!("y{r}"), Value { node: id, result: r as u32 })).collect();
    evaluate(&b.finish(results).expect("names differ"), operands).expect("the reference runs every op")
}

/// Any backend will do for operands: a transfer goes from wherever they are.
fn backend_of(node: &Node) -> Backend {
    node.types.first().map_or(Backend::Cpu, |ty| ty.backend)
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
