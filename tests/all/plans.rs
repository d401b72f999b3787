//! Compiled plans give what the reference gives, whatever is switched on or off, by the definition of kernels.

use kiln_ir::plan::Plan;
use kiln_ir::{Graph, HostData, Literal, Op};
use kiln_passes::{Fusion, Limits, Options, Reuse, compile};
use kiln_runtime::reference::{self, Arguments, Walk, run_plan};
use proptest::prelude::*;

use crate::random::{Config, Numbers, Values, cases};

/// Fails where a plan's results differ from the reference's by more than the order of a sum explains.
fn check(graph: &Graph, inputs: &[HostData], options: &Options, arguments: Arguments) -> Result<(), TestCaseError> {
    let expected = reference::evaluate(graph, inputs).expect("the reference evaluates valid graphs");
    let plan = compile(graph, options).expect("valid graphs compile");
    for walk in [Walk::Forward, Walk::Backward] {
        let found = run_plan(&plan, inputs, walk, arguments)
            .map_err(|error| TestCaseError::fail(format!("{error}\n{plan}")))?;
        compare(graph, &plan, &expected, &found)?;
    }
    Ok(())
}

fn compare(graph: &Graph, plan: &Plan, expected: &[HostData], found: &[HostData]) -> Result<(), TestCaseError> {
    for ((expected, found), output) in expected.iter().zip(found).zip(&graph.outputs) {
        for (index, (a, b)) in expected.elements().zip(found.elements()).enumerate() {
            prop_assert!(close(a, b), "{} [{index}]: expected {a}, found {b}\n{plan}", output.name);
        }
    }
    Ok(())
}

fn close(a: Literal, b: Literal) -> bool {
    let (x, y) = (a.to_f64(), b.to_f64());
    a == b
        || (x.is_nan() && y.is_nan())
        || (a.dtype().is_float() && (x - y).abs() <= 1e-4 * x.abs().max(y.abs()).max(1e-1))
}

/// Whether the graph reads a float's bits, where NaNs with equal meaning differ.
fn sees_bits_of_nan(graph: &Graph) -> bool {
    graph.nodes.iter().any(|node| matches!(node.op, Op::Bitcast(_)) && graph.ty(node.operands[0]).dtype.is_float())
}

fn all_ops() -> Config {
    Config { steps: 30, max_elements: 60, ..Config::default() }
}

proptest! {
    #![proptest_config(crate::seeded(300))]

    #[test]
    fn a_fused_plan_gives_what_the_reference_gives(case in cases(all_ops())) {
        check(&case.graph, &case.inputs, &Options::default(), Arguments::Lent)?;
    }

    #[test]
    fn a_fused_plan_keeps_the_places_of_nan_and_infinity(
        case in cases(Config { values: Values::Wild, numbers: Numbers::Edgy, ..all_ops() })
    ) {
        if !sees_bits_of_nan(&case.graph) {
            check(&case.graph, &case.inputs, &Options::default(), Arguments::Lent)?;
        }
    }

    #[test]
    fn a_plan_of_single_ops_gives_what_the_reference_gives(case in cases(all_ops())) {
        let options = Options { fusion: Fusion::Off, reuse: Reuse::Off, ..Options::default() };
        check(&case.graph, &case.inputs, &options, Arguments::Lent)?;
    }

    #[test]
    fn tight_limits_split_kernels_and_change_no_value(case in cases(all_ops())) {
        let limits = Limits { instructions: 12, buffers: 8, attention_buffers: 8, row_elements: 4, row_count: 2, small: 8, ..Limits::cpu() };
        check(&case.graph, &case.inputs, &Options { limits, ..Options::default() }, Arguments::Lent)?;
    }

    #[test]
    fn results_may_be_written_over_donated_arguments(case in cases(all_ops())) {
        let graph = &case.graph;
        let mut donate = Vec::new();
        for (input, &value) in graph.inputs.iter().enumerate() {
            let alike = |output: &usize| graph.ty(graph.outputs[*output].value) == graph.ty(value)
                && donate.iter().all(|(_, taken)| taken != output);
            if let Some(output) = (0..graph.outputs.len()).find(alike) {
                donate.push((input, output));
            }
        }
        let options = Options { donate, ..Options::default() };
        check(graph, &case.inputs, &options, Arguments::Donated)?;
        check(graph, &case.inputs, &options, Arguments::Lent)?;
    }
}
