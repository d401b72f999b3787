//! Random graphs: the optimised plan on the CPU gives what the reference gives.
//!
//! Each case goes through [`check`]: the whole graph in every variant, replayed, with its inputs baked in, and every node on the operands that
//! the CPU computed. Elements that stand at an edge (a comparison, a floor, a cast to an integer within tolerance of where it jumps) are
//! skipped, and their share is held under one in a hundred.

use std::cell::Cell;

use kiln_ir::DType;
use proptest::test_runner::TestRunner;

use crate::check::{Report, check, check_every_node};
use crate::random::{Case, Config, Customs, Numbers, Ops, Values, cases, graph_from_seed};
use crate::under_test::tried;

/// Runs `count` random cases through a check; the smallest failing one is shown.
#[track_caller]
fn check_random(config: Config, count: u32, check_case: fn(&Case) -> Report) {
    let kinds = config.dtypes.clone();
    let (elements, skipped) = (Cell::new(0), Cell::new(0));
    let outcome = TestRunner::new(crate::seeded(tried(count))).run(&cases(config), |case| {
        let report = check_case(&case);
        elements.set(elements.get() + report.elements);
        skipped.set(skipped.get() + report.skipped);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    let (elements, skipped) = (elements.get(), skipped.get());
    let refused =
        crate::under_test::device().target().is_some_and(|target| !kinds.iter().any(|&dtype| target.has(dtype)));
    assert!(elements > 0 || refused, "nothing was compared");
    assert!(refused || 100 * skipped < elements, "{skipped} of {elements} elements were skipped");
}

fn in_all_ways(case: &Case) -> Report {
    check(&case.graph, &case.inputs)
}

/// For values that jump or overflow everywhere: only node by node, where no error is handed on.
fn node_by_node(case: &Case) -> Report {
    check_every_node(&case.graph, &case.inputs);
    let outputs = case.graph.outputs.iter().map(|output| case.graph.ty(output.value).shape.num_elements());
    Report { elements: outputs.sum::<usize>().max(1), skipped: 0 }
}

#[test]
fn random_graphs_of_continuous_ops_match() {
    check_random(Config { ops: Ops::Continuous, ..Config::default() }, 500, in_all_ways);
}

#[test]
fn random_graphs_of_all_ops_match_on_dyadic_numbers() {
    check_random(Config { numbers: Numbers::Dyadic, ..Config::default() }, 500, in_all_ways);
}

#[test]
fn random_graphs_of_all_ops_match_node_by_node() {
    check_random(Config::default(), 1000, node_by_node);
}

#[test]
fn random_graphs_of_wild_values_match_node_by_node() {
    check_random(Config { values: Values::Wild, numbers: Numbers::Edgy, ..Config::default() }, 1000, node_by_node);
}

#[test]
fn random_graphs_with_custom_ops_match() {
    check_random(Config { ops: Ops::Continuous, customs: Customs::WithBody, ..Config::default() }, 300, in_all_ways);
}

#[test]
fn long_random_graphs_match_node_by_node() {
    for seed in 0..u64::from(tried(20)) {
        let config = Config { steps: 80, max_elements: 2000, ..Config::default() };
        node_by_node(&graph_from_seed(&config, seed));
    }
}

/// The graph of a scalar `"loss"` with its gradients with regard to all float arguments.
fn with_gradients(case: &Case) -> Case {
    let names = (0..case.graph.inputs.len()).filter(|&index| case.inputs[index].dtype().is_float());
    let names: Vec<&str> = names.filter_map(|index| case.graph.input_name(index)).collect();
    let graph = kiln_ir::grad::append(&case.graph, "loss", &names).unwrap();
    Case { graph, inputs: case.inputs.clone() }
}

#[test]
fn gradients_of_random_graphs_match_in_all_ways() {
    check_random(Config::smooth(), 100, |case| in_all_ways(&with_gradients(case)));
    let single = Config { dtypes: vec![DType::F32], ..Config::smooth() };
    check_random(single, 100, |case| in_all_ways(&with_gradients(case)));
}

#[test]
fn gradients_of_random_graphs_with_kinks_match_node_by_node() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        let config = Config { dtypes: vec![dtype], ..Config::differentiable() };
        check_random(config, 100, |case| node_by_node(&with_gradients(case)));
    }
}
