//! Gradients of random graphs.

use kiln_ir::{Axes, DType, Graph, GraphBuilder, HostData, Literal, ReduceKind, verify};
use proptest::prelude::*;

use super::{LOC, data, run, with_gradients};
use crate::random::{Case, Config, cases};

const STEP: f64 = 1e-5;

/// The central difference of a graph's only output along one element of one argument, and the size of what was subtracted.
fn difference(graph: &Graph, inputs: &[HostData], argument: usize, element: usize) -> (f64, f64) {
    let at = |step: f64| {
        let mut moved: Vec<f64> = inputs[argument].elements().map(Literal::to_f64).collect();
        moved[element] += step;
        let mut inputs = inputs.to_vec();
        inputs[argument] = data(DType::F64, &inputs[argument].shape().clone(), &moved);
        run(graph, &inputs)[0][0]
    };
    let (above, below) = (at(STEP), at(-STEP));
    ((above - below) / (2.0 * STEP), above.abs().max(1.0))
}

/// The gradient of a graph's scalar output with regard to each `f64` argument agrees with differences at up to three elements.
pub(super) fn agrees(graph: &Graph, inputs: &[HostData]) -> Result<(), TestCaseError> {
    let floats: Vec<usize> = (0..inputs.len()).filter(|&index| inputs[index].dtype() == DType::F64).collect();
    let wrt: Vec<_> = floats.iter().map(|&index| graph.inputs[index]).collect();
    let gradients = run(&with_gradients(graph, &wrt), inputs);
    for (gradient, &argument) in gradients.iter().zip(&floats) {
        for element in (0..gradient.len()).step_by(gradient.len().div_ceil(3).max(1)) {
            let (difference, size) = difference(graph, inputs, argument, element);
            let found = gradient[element];
            prop_assert!(
                (found - difference).abs() <= 1e-5 * size.max(found.abs()),
                "argument {argument}, element {element}: gradient {found}, difference {difference}"
            );
        }
    }
    Ok(())
}

/// The sum of a graph's only output, as a graph.
pub(super) fn summed(graph: &Graph) -> Graph {
    let mut b = GraphBuilder::from_graph(graph);
    let value = graph.outputs[0].value;
    let axes = Axes::all(graph.ty(value).shape.rank());
    let sum = b.reduce(ReduceKind::Sum, axes, value, LOC).unwrap();
    let sum = b.reshape(sum, &[].into(), LOC).unwrap();
    b.finish([("sum", sum)]).unwrap()
}

proptest! {
    #![proptest_config(crate::seeded(300))]

    #[test]
    fn the_gradient_of_a_smooth_graph_equals_finite_differences(case in cases(Config::smooth())) {
        agrees(&case.graph, &case.inputs)?;
    }

    #[test]
    fn the_second_derivative_of_a_smooth_graph_equals_finite_differences(case in cases(Config { steps: 6, ..Config::smooth() })) {
        let Case { graph, inputs } = case;
        for index in (0..inputs.len()).filter(|&index| inputs[index].dtype() == DType::F64) {
            agrees(&summed(&with_gradients(&graph, &[graph.inputs[index]])), &inputs)?;
        }
    }

    #[test]
    fn the_gradient_of_any_differentiable_graph_is_a_graph_of_the_right_types(case in cases(Config::differentiable())) {
        let Case { graph, inputs } = case;
        let wrt: Vec<_> = graph.inputs.iter().copied().filter(|&input| graph.ty(input).dtype.is_float()).collect();
        let first = with_gradients(&graph, &wrt);
        prop_assert!(verify(&first).is_ok());
        for (output, &input) in first.outputs.iter().zip(&wrt) {
            prop_assert_eq!(first.ty(output.value), graph.ty(input));
        }
        // Merging equal nodes changes no number, up to the sign of a NaN.
        let merged = kiln_ir::rebuild(&first, |_, _, _| Ok(None)).unwrap();
        let bits = |graph: &Graph| run(graph, &inputs).concat().iter().map(|x| if x.is_nan() { 0 } else { x.to_bits() }).collect::<Vec<u64>>();
        prop_assert_eq!(bits(&first), bits(&merged));
        prop_assert!(kiln_ir::parse(&first.to_string()).is_ok());
    }
}

proptest! {
    #![proptest_config(crate::seeded(60))]

    #[test]
    fn a_compiled_gradient_gives_what_the_reference_gives(
        case in cases(Config { dtypes: vec![DType::F32], ..Config::differentiable() })
    ) {
        let Case { graph, inputs } = case;
        let wrt: Vec<_> = graph.inputs.iter().copied().filter(|&input| graph.ty(input).dtype.is_float()).collect();
        crate::check::check_compiled(&with_gradients(&graph, &wrt), &inputs);
    }
}
