//! Verification of Kiln's own kernels: sound programs pass, the first wrong kernel is told, and the folder that it writes shows it again.

use std::path::PathBuf;
use std::process::Command;

use kiln::prelude::*;
use kiln::reproduction::Reproduction;
use kiln::{Code, Options};
use kiln_capture::layer_norm;
use kiln_ir::Diagnostic;
use kiln_passes::compile_traced;
use kiln_runtime::reference::{evaluate, evaluate_all_with};

use crate::random::{Config, Ops, cases};

fn numbers(seed: usize, shape: &[usize]) -> Array {
    let count: usize = shape.iter().product();
    let numbers: Vec<f32> = (0..count).map(|i| ((i * 37 + seed * 11) % 29) as f32 / 7.0 - 2.0).collect();
    Array::from_vec(&Device::cpu(), numbers, shape).unwrap()
}

/// A product, a softmax of it, and a sum: three kernels, each of which reads what the one before has made.
fn three((x, w): (Tensor, Tensor)) -> Tensor {
    x.matmul(&w).softmax(1).cumsum(0)
}

fn faulty(launch: usize) -> Options {
    Options { fault: Some(launch), ..Options::default() }
}

/// The one diagnostic of an error.
fn told(error: kiln::Error) -> Diagnostic {
    error.into_diagnostics().iter().next().unwrap().clone()
}

/// The folder that a diagnostic names.
fn folder(diagnostic: &Diagnostic) -> PathBuf {
    let help = diagnostic.help.iter().find(|help| help.contains("kiln-K0707-")).expect("it names its folder");
    let (_, rest) = help.split_once("with ").unwrap();
    PathBuf::from(rest.split_once(',').unwrap().0)
}

#[test]
fn the_first_of_several_wrong_or_misled_kernels_is_told() {
    let (x, w) = (numbers(1, &[4, 6]), numbers(2, &[6, 3]));
    for (launch, form) in [(0, "matmul"), (1, "row"), (2, "scan")] {
        let f = jit(&Device::cpu(), three).named("three").options(faulty(launch)).verify();
        let diagnostic = told(f.call((&x, &w)).unwrap_err());
        assert_eq!(diagnostic.code, Code::K0707);
        assert_eq!(diagnostic.message, format!("kernel {launch} of `three` differs from the reference"));
        assert_eq!(diagnostic.op.as_deref(), Some(form), "{diagnostic}");
        // The kernel reads what the reference says, so that the ones before it are no part of what is shown.
        let reproduction = Reproduction::read(&folder(&diagnostic)).unwrap();
        assert!(reproduction.graph.nodes.len() <= 6, "{}", reproduction.graph);
        assert_eq!(
            reproduction.graph.inputs.iter().any(|&x| reproduction.graph.ty(x).shape.to_vec() == [4, 6]),
            launch == 0
        );
    }
}

#[test]
fn the_diagnostic_names_element_values_operands_and_lines() {
    let f = jit(&Device::cpu(), three).named("three").options(faulty(1)).verify();
    let diagnostic = told(f.call((numbers(1, &[4, 6]), numbers(2, &[6, 3]))).unwrap_err());
    let folder = folder(&diagnostic);
    let text = diagnostic.to_string().replace(&*folder.to_string_lossy(), "FOLDER");
    insta::assert_snapshot!(text);
}

#[test]
fn the_folder_reads_back_and_the_command_shows_the_difference() {
    let f = jit(&Device::cpu(), three).named("folder").options(faulty(1)).verify();
    let diagnostic = told(f.call((numbers(3, &[4, 6]), numbers(4, &[6, 3]))).unwrap_err());
    let folder = folder(&diagnostic);
    let reproduction = Reproduction::read(&folder).unwrap();
    let expected = evaluate(&reproduction.graph, &reproduction.inputs).unwrap();
    assert_ne!(expected, reproduction.found);
    // Compiled rightly it agrees now; what was found then is shown beside.
    let run = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_kiln")).arg("run").arg(&folder).args(arguments).output().unwrap()
    };
    let fine = run(&[]);
    let text = String::from_utf8(fine.stdout).unwrap();
    assert_eq!(fine.status.code(), Some(0), "{text}");
    assert!(text.contains("now: agrees with the reference") && text.contains("found: element [0, 0]"), "{text}");
    // Compiled wrongly again it differs again.
    let wrong = run(&["--fault", "0"]);
    let text = String::from_utf8(wrong.stderr).unwrap();
    assert_eq!(wrong.status.code(), Some(1), "{text}");
    assert!(text.contains("now: element [0, 0]") && text.contains("found: element [0, 0]"), "{text}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_state_is_as_it_was_where_a_kernel_is_wrong() {
    let add = |w: Tensor, x: Tensor| (&w + x, w.sum(..));
    let step = step(&Device::cpu(), add).options(faulty(0)).verify();
    let mut w = Array::new(&Device::cpu(), [1.0f32, 2.0]).unwrap();
    assert_eq!(told(step.call(&mut w, 1.0).unwrap_err()).code, Code::K0707);
    assert_eq!(w.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(step.report().runs, 0);
}

#[test]
fn an_update_in_place_is_verified_on_a_copy() {
    let step = step(&Device::cpu(), |w: Tensor, x: Tensor| (&w - x * 0.5, w.sum(..))).verify();
    let mut w = numbers(1, &[16]);
    let before = w.to_vec::<f32>().unwrap();
    step.call(&mut w, 1.0).unwrap();
    let expected: Vec<f32> = before.iter().map(|w| w - 0.5).collect();
    assert_eq!(w.to_vec::<f32>().unwrap(), expected);
    assert!(step.report().copied.is_empty());
}

#[test]
fn sound_programs_pass() {
    let device = Device::cpu();
    let train = step(&device, |w: Tensor, (x, y): (Tensor, Tensor)| {
        let (loss, gradient) = value_and_grad(&w, |w| cross_entropy(&layer_norm(&x.matmul(w), None, None, 1e-5), &y));
        (w - gradient * 0.1, loss)
    })
    .verify();
    let mut w = numbers(1, &[6, 5]);
    let y = Array::new(&device, [1i32, 0, 4, 2]).unwrap();
    for seed in 2..4 {
        train.call(&mut w, (numbers(seed, &[4, 6]), &y)).unwrap();
    }
    let embed = jit(&device, |(table, ids): (Tensor, Tensor)| {
        let rows = table.take(0, &ids).gelu();
        (table.index_add(0, &ids, rows), table.cast(DType::F16).matmul(&table.cast(DType::F16).transpose()))
    })
    .verify();
    embed.call((numbers(1, &[8, 3]), Array::new(&device, [1i32, 7, 1]).unwrap())).unwrap();
}

#[test]
fn attention_and_an_update_of_all_parameters_in_one_launch_pass_and_are_told_where_they_are_wrong() {
    let device = Device::cpu();
    type Weights<T> = [T; 3];
    let train = |weights: Weights<Tensor>, x: Tensor| {
        let (loss, gradients) = value_and_grad(&weights, |[q, k, v]| {
            kiln_capture::attention(&x.matmul(q), &x.matmul(k), &x.matmul(v), kiln_capture::Mask::Causal)
                .square()
                .sum(..)
        });
        let [a, b, c] = gradients;
        let [q, k, v] = weights;
        ([q - a * 0.1, k - b * 0.1, v - c * 0.1], loss)
    };
    let state = || [1, 2, 3].map(|seed| numbers(seed, &[6, 4]));
    let x = || numbers(4, &[5, 6]);
    let sound = step(&device, train).verify();
    sound.call(&mut state(), x()).unwrap();
    for launch in 0..sound.report().launches() {
        let wrong = step(&device, train).options(faulty(launch)).verify();
        let error = told(wrong.call(&mut state(), x()).unwrap_err());
        assert_eq!(error.message, format!("kernel {launch} of `step` differs from the reference"));
    }
}

#[test]
fn an_executable_is_verified_before_it_runs() {
    let captured = CaptureDevice::new(Backend::Cpu)
        .capture_scope(|scope| three((scope.input("x", DType::F32, [4, 6]), scope.input("w", DType::F32, [6, 3]))))
        .unwrap();
    let verified = kiln::compile(&captured, &Device::cpu()).unwrap().verify().unwrap();
    let arguments = || vec![numbers(1, &[4, 6]).into(), numbers(2, &[6, 3]).into()];
    let results = verified.run(arguments()).unwrap();
    let plain = verified.executable().run(arguments()).unwrap();
    assert_eq!(results[0].to_host().unwrap(), plain[0].to_host().unwrap());
    kiln::verify(&captured, &[numbers(1, &[4, 6]), numbers(2, &[6, 3])]).unwrap();
}

proptest::proptest! {
    #![proptest_config(crate::seeded(120))]

    #[test]
    fn launches_by_themselves_give_what_the_reference_gives_for_random_graphs(
        case in cases(Config { steps: 20, max_elements: 60, ..Config::default() })
    ) {
        let device = Device::cpu();
        let arrays: Vec<Array> = case.inputs.iter().map(|input| Array::new(&device, input).unwrap()).collect();
        if let Err(error) = kiln::verify(&case.graph, &arrays) {
            return Err(proptest::test_runner::TestCaseError::fail(error.to_string()));
        }
    }

    #[test]
    fn a_launch_by_itself_has_the_part_of_the_graph_that_it_computes(
        case in cases(Config { ops: Ops::Continuous, steps: 20, max_elements: 60, ..Config::default() })
    ) {
        let options = Options { donate: Vec::new(), ..Options::default() };
        let traced = compile_traced(&case.graph, &options, &mut |_, _| {}).unwrap();
        let values = evaluate_all_with(&traced.graph, &case.inputs, &Default::default()).unwrap();
        let of = |value: &kiln_ir::Value| values[value.node.index()][value.result as usize].clone();
        for number in 0..traced.plan.launches().count() {
            let alone = traced.isolate(number).unwrap();
            kiln_ir::verify(&alone.graph).unwrap();
            let operands: Vec<HostData> = alone.operands.iter().map(of).collect();
            let results: Vec<HostData> = alone.results.iter().map(of).collect();
            proptest::prop_assert_eq!(evaluate(&alone.graph, &operands).unwrap(), results);
        }
    }
}
