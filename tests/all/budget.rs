//! A budget of bytes: plans that compute values again where they are wanted late, and refusals.

use kiln::prelude::*;
use kiln_ir::Code;
use kiln_passes::{Options, compile};
use kiln_runtime::reference::{self, Arguments, Walk, run_plan};
use proptest::prelude::*;

use crate::random::{Config, cases};

/// Lines of shown errors count from here.
const TOP: u32 = line!();
const LAYERS: usize = 12;
const WIDTH: usize = 16;
const ROWS: usize = 512;

/// The gradient of a deep stack of small layers on many rows: activations are nearly all of its memory.
fn deep((weights, x): (Vec<Tensor>, Tensor)) -> (Tensor, Vec<Tensor>) {
    value_and_grad(&weights, |weights| {
        let end = weights.iter().fold(x.clone(), |x, weight| (x.matmul(weight)).tanh() + &x);
        end.square().mean(..)
    })
}

fn arguments(device: &Device) -> (Vec<Array>, Array) {
    let numbers = |count: usize, seed: usize| -> Vec<f32> {
        (0..count).map(|index| ((index * 37 + seed * 11) % 101) as f32 / 101.0 - 0.5).collect()
    };
    let weights =
        (0..LAYERS).map(|layer| Array::from_vec(device, numbers(WIDTH * WIDTH, layer), [WIDTH, WIDTH]).unwrap());
    (weights.collect(), Array::from_vec(device, numbers(ROWS * WIDTH, 99), [ROWS, WIDTH]).unwrap())
}

#[test]
fn a_deep_gradient_fits_less_memory_and_gives_the_same() {
    let device = Device::cpu();
    let (weights, x) = arguments(&device);
    let free = jit(&device, deep);
    let (loss, gradients) = free.call((&weights, &x)).unwrap();
    let peak = free.report().peak_bytes;
    assert!(peak > LAYERS * ROWS * WIDTH * 4, "activations are kept");
    assert!(free.report().recomputed.is_empty());
    let tight = jit(&device, deep).max_bytes(peak * 6 / 10);
    let (tight_loss, tight_gradients) = tight.call((&weights, &x)).unwrap();
    let report = tight.report();
    assert!(report.peak_bytes <= peak * 6 / 10, "{report}");
    assert!(!report.recomputed.is_empty());
    assert!(report.flops() > free.report().flops() && report.flops() < 2 * free.report().flops(), "{report}");
    assert_eq!(loss.to_vec::<f32>().unwrap(), tight_loss.to_vec::<f32>().unwrap());
    for (gradient, tight) in gradients.iter().zip(&tight_gradients) {
        assert_eq!(gradient.to_vec::<f32>().unwrap(), tight.to_vec::<f32>().unwrap());
    }
}

#[test]
fn what_fits_anyway_is_left_as_it_is() {
    let device = Device::cpu();
    let (weights, x) = arguments(&device);
    let (free, roomy) = (jit(&device, deep), jit(&device, deep).max_bytes(1 << 30));
    free.call((&weights, &x)).unwrap();
    roomy.call((&weights, &x)).unwrap();
    assert_eq!(free.report().kernels, roomy.report().kernels);
}

#[test]
fn what_cannot_fit_is_refused_with_its_largest_tensors_and_the_state_stays() {
    let device = Device::cpu();
    let (mut weights, x) = arguments(&device);
    let before: Vec<Vec<f32>> = weights.iter().map(|weight| weight.to_vec().unwrap()).collect();
    let train = step(&device, |weights: Vec<Tensor>, x: Tensor| {
        let (loss, gradients) = deep((weights.clone(), x));
        let next = weights.iter().zip(&gradients).map(|(weight, gradient)| weight - gradient * 0.1).collect();
        (next, loss)
    })
    .max_bytes(20_000);
    let error = train.call(&mut weights, &x).unwrap_err();
    assert!(error.diagnostics().iter().all(|diagnostic| diagnostic.code == Code::K0704));
    insta::assert_snapshot!(crate::shown::shown::<()>(Err(error.into_diagnostics()), TOP));
    let after: Vec<Vec<f32>> = weights.iter().map(|weight| weight.to_vec().unwrap()).collect();
    assert_eq!(before, after);
}

proptest! {
    #![proptest_config(crate::seeded(200))]

    #[test]
    fn plans_of_random_graphs_within_a_budget_are_right_or_refused(
        case in cases(Config { steps: 40, max_elements: 80, ..Config::default() })
    ) {
        let free = compile(&case.graph, &Options::default()).expect("valid graphs compile");
        let expected = reference::evaluate(&case.graph, &case.inputs).expect("the reference evaluates valid graphs");
        for part in [9, 7, 5] {
            let budget = free.peak_bytes() * part / 10;
            match compile(&case.graph, &Options { max_bytes: Some(budget), ..Options::default() }) {
                Err(error) => prop_assert_eq!(error.code, Code::K0704),
                Ok(plan) => {
                    prop_assert!(plan.peak_bytes() <= budget);
                    let found = run_plan(&plan, &case.inputs, Walk::Forward, Arguments::Lent)
                        .map_err(|error| TestCaseError::fail(format!("{error}\n{plan}")))?;
                    for (expected, found) in expected.iter().zip(&found) {
                        for (a, b) in expected.elements().zip(found.elements()) {
                            let (x, y) = (a.to_f64(), b.to_f64());
                            let near = a.dtype().is_float() && (x - y).abs() <= 1e-4 * x.abs().max(y.abs()).max(1e-1);
                            prop_assert!(a == b || near || (x.is_nan() && y.is_nan()), "{}, {}\n{}", a, b, plan);
                        }
                    }
                }
            }
        }
    }
}
