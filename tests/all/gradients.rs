//! Gradients against finite differences on the reference interpreter, and the faults that gradients of other systems have had.

mod composites;
mod difference;
mod families;
mod faults;
mod graphs;
mod scalar;
mod structure;

use kiln_ir::{Backend, DType, Diagnostic, Graph, GraphBuilder, HostData, Literal, Loc, TensorType, Value};

/// No line: these graphs are made by hand.
const LOC: Loc = Loc::Unknown;

/// The type of an argument.
fn ty(dtype: DType, shape: &[usize]) -> TensorType {
    TensorType::new(dtype, shape, Backend::Cpu)
}

/// Data for an argument, rounded to its dtype.
fn data(dtype: DType, shape: &[usize], numbers: &[f64]) -> HostData {
    let elements: Vec<Literal> = numbers.iter().map(|&number| Literal::from_f64(dtype, number)).collect();
    HostData::from_literals(dtype, shape, &elements).expect("as many numbers as the shape has elements")
}

/// The elements of each output, as `f64`.
fn run(graph: &Graph, inputs: &[HostData]) -> Vec<Vec<f64>> {
    kiln_ir::verify(graph).unwrap();
    let outputs = kiln_runtime::reference::evaluate(graph, inputs).unwrap();
    outputs.iter().map(|output| output.elements().map(Literal::to_f64).collect()).collect()
}

/// The gradients of the sum of what a function gives, one per argument. Arguments are of one dtype.
fn gradients(
    dtype: DType,
    arguments: &[(&[usize], &[f64])],
    function: impl Fn(&mut GraphBuilder, &[Value]) -> Result<Value, Diagnostic>,
) -> Vec<Vec<f64>> {
    let mut b = GraphBuilder::new("f");
    let inputs = arguments.iter().enumerate();
    let inputs: Vec<Value> =
        inputs.map(|(index, (shape, _))| b.input(format!("x{index}"), ty(dtype, shape), LOC).unwrap()).collect();
    let y = function(&mut b, &inputs).unwrap();
    let seed = b.full_like(y, 1.0, LOC).unwrap();
    let gradients = kiln_ir::grad::vjp(&mut b, &[y], &[seed], &inputs).unwrap();
    for (&input, &gradient) in inputs.iter().zip(&gradients) {
        assert_eq!(b.ty(gradient), b.ty(input));
    }
    let graph = b.finish(gradients.iter().enumerate().map(|(index, &g)| (format!("g{index}"), g))).unwrap();
    let inputs: Vec<HostData> = arguments.iter().map(|(shape, numbers)| data(dtype, shape, numbers)).collect();
    run(&graph, &inputs)
}

/// The gradient of the sum of the only output of a graph text with regard to each of its float arguments.
fn text_gradients(text: &str, arguments: &[HostData]) -> Vec<Vec<f64>> {
    let graph = kiln_ir::parse(text).unwrap();
    let floats = graph.inputs.iter().copied().filter(|&input| graph.ty(input).dtype.is_float());
    let wrt: Vec<Value> = floats.collect();
    run(&with_gradients(&graph, &wrt), arguments)
}

/// The gradients of the sum of a graph's first output, as a graph.
fn with_gradients(graph: &Graph, wrt: &[Value]) -> Graph {
    let mut b = GraphBuilder::from_graph(graph);
    let y = graph.outputs[0].value;
    let seed = b.full_like(y, 1.0, LOC).unwrap();
    let gradients = kiln_ir::grad::vjp(&mut b, &[y], &[seed], wrt).unwrap();
    b.finish(gradients.iter().enumerate().map(|(index, &g)| (format!("g{index}"), g))).unwrap()
}

/// The derivatives of orders 1, 2, .. of a function of one number.
fn derivatives(
    orders: usize,
    x: f64,
    function: impl Fn(&mut GraphBuilder, Value) -> Result<Value, Diagnostic>,
) -> Vec<f64> {
    let mut b = GraphBuilder::new("f");
    let input = b.input("x", ty(DType::F64, &[]), LOC).unwrap();
    let mut value = function(&mut b, input).unwrap();
    let mut outputs = Vec::new();
    for order in 1..=orders {
        value = kiln_ir::grad::grad(&mut b, value, &[input], LOC).unwrap()[0];
        outputs.push((format!("d{order}"), value));
    }
    let graph = b.finish(outputs).unwrap();
    run(&graph, &[data(DType::F64, &[], &[x])]).concat()
}
