//! Finite differences: the check that every family's tests use.

use kiln_ir::{Axes, DType, Diagnostic, Graph, GraphBuilder, HostData, ReduceKind, ScalarOp, Value, grad};

use super::{LOC, data, run, ty};

/// An argument: its shape and the range its numbers are drawn from.
pub(crate) type Argument<'a> = (&'a [usize], std::ops::Range<f64>);

const STEP: f64 = 1e-5;

/// Gradients of orders up to `orders` equal the central finite differences of the order below, at a generic point.
///
/// Each order is the gradient of a weighted sum of the one before, over all elements of all arguments.
pub(crate) fn agrees(
    name: &str,
    orders: usize,
    arguments: &[Argument<'_>],
    function: impl Fn(&mut GraphBuilder, &[Value]) -> Result<Value, Diagnostic>,
) {
    let mut b = GraphBuilder::new("f");
    let inputs = arguments.iter().enumerate();
    let inputs: Vec<Value> =
        inputs.map(|(index, (shape, _))| b.input(format!("x{index}"), ty(DType::F64, shape), LOC).unwrap()).collect();
    let y = function(&mut b, &inputs).unwrap();
    let numbers: Vec<Vec<f64>> =
        arguments.iter().enumerate().map(|(index, (shape, range))| generic(index, shape, range)).collect();
    let mut loss = weighted(&mut b, &[y]);
    for order in 1..=orders {
        let gradients = grad::grad(&mut b, loss, &inputs, LOC).unwrap();
        let below = b.clone().finish([("loss", loss)]).unwrap();
        let named = gradients.iter().enumerate().map(|(index, &g)| (format!("g{index}"), g));
        let gradient_graph = b.clone().finish(named).unwrap();
        compare(&format!("{name}, order {order}"), arguments, &numbers, &below, &gradient_graph);
        loss = weighted(&mut b, &gradients);
    }
}

fn compare(name: &str, arguments: &[Argument<'_>], numbers: &[Vec<f64>], below: &Graph, gradients: &Graph) {
    let inputs: Vec<HostData> =
        arguments.iter().zip(numbers).map(|((shape, _), numbers)| data(DType::F64, shape, numbers)).collect();
    let found = run(gradients, &inputs);
    for (argument, (shape, _)) in arguments.iter().enumerate() {
        assert_eq!(gradients.ty(gradients.outputs[argument].value).shape[..], **shape, "{name}");
        for element in 0..numbers[argument].len() {
            let loss = |step: f64| {
                let mut moved = numbers[argument].clone();
                moved[element] += step;
                let mut inputs = inputs.clone();
                inputs[argument] = data(DType::F64, shape, &moved);
                run(below, &inputs)[0][0]
            };
            let difference = (loss(STEP) - loss(-STEP)) / (2.0 * STEP);
            let gradient = found[argument][element];
            let size = difference.abs().max(gradient.abs()).max(loss(0.0).abs()).max(1.0);
            assert!(
                (difference - gradient).abs() <= 1e-6 * size,
                "{name}: argument {argument}, element {element} at {}: gradient {gradient}, difference {difference}",
                numbers[argument][element],
            );
        }
    }
}

/// Distinct numbers all over a range, far from each other against the step of the differences, in no order.
fn generic(argument: usize, shape: &[usize], range: &std::ops::Range<f64>) -> Vec<f64> {
    let count: usize = shape.iter().product();
    let golden = 0.618_033_988_749_894_9;
    let at = |index: usize| ((index + 1) as f64 * golden + 0.137 * (argument + 1) as f64).fract();
    (0..count).map(|index| range.start + at(index) * (range.end - range.start)).collect()
}

/// A sum with a different weight on every element of every value.
fn weighted(b: &mut GraphBuilder, values: &[Value]) -> Value {
    let mut total = None;
    for (index, &value) in values.iter().enumerate() {
        let shape = b.ty(value).shape.clone();
        let weights = data(DType::F64, &shape, &generic(index + 7, &shape, &(0.5..1.5)));
        let weights = b.constant(weights, b.ty(value).backend, LOC).unwrap();
        let product = b.scalar(ScalarOp::Mul, &[value, weights], LOC).unwrap();
        let sum = b.reduce(ReduceKind::Sum, Axes::all(shape.rank()), product, LOC).unwrap();
        let sum = b.reshape(sum, &[].into(), LOC).unwrap();
        total = Some(match total {
            None => sum,
            Some(total) => b.scalar(ScalarOp::Add, &[total, sum], LOC).unwrap(),
        });
    }
    total.expect("at least one value")
}
