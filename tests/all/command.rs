//! The `kiln` command, run as a user runs it: what it prints, and its exit codes (0 fine, 1 diagnostics, 2 usage).

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

use kiln::files::{read_npy, write_npy};
use kiln_ir::{DType, HostData, Literal, op_rows};

/// A folder of its own, gone at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("kiln-command-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// A folder with one file, `step.kiln`.
    fn with(text: &str) -> Folder {
        let folder = Folder::new();
        std::fs::write(folder.path("step.kiln"), text).unwrap();
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Runs `kiln` in this folder.
    fn kiln(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_kiln")).args(arguments).current_dir(&self.0).output().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left behind is in the system's folder for such things.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a run that is fine prints.
#[track_caller]
fn fine(output: Output) -> String {
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""));
    String::from_utf8(output.stdout).unwrap()
}

/// The diagnostics of a run that has some.
#[track_caller]
fn wrong(output: Output) -> String {
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(output.stdout.is_empty());
    errors
}

const STEP: &str = r#"kiln 1
// A dense layer and its loss.
graph @step(%x "x": f32[2, 3] @cpu, %w "w": f32[3, 1] @cpu) {
  %y = matmul %x, %w : f32[2, 1] @cpu
  %0 = mul %y, %y : f32[2, 1] @cpu
  %unused = exp %x : f32[2, 3] @cpu
  %s = reduce.sum [0, 1] %0 : f32[1, 1] @cpu
  %l = reshape [] %s : f32[] @cpu
  return %l "loss"
}
"#;

#[test]
fn check_says_what_is_in_a_sound_file() {
    let folder = Folder::with(STEP);
    insta::assert_snapshot!(fine(folder.kiln(&["check", "step.kiln"])), @r#"step.kiln: graph "step" with 2 inputs, 5 ops, 1 output, on cpu"#);
}

#[test]
fn check_shows_each_mistake_with_its_line() {
    let folder = Folder::with(&STEP.replace("matmul %x, %w", "matmul %w, %x").replace("reshape []", "reshape [2]"));
    insta::assert_snapshot!(wrong(folder.kiln(&["check", "step.kiln"])), @r#"
    error[K0301]: matrix product of [3, 1] and [2, 3]: inner extents 1 and 2 differ
     --> step.kiln:4:3 in `matmul`
      |
    4 |   %y = matmul %w, %x : f32[2, 1] @cpu
      |        ^^^^^^ the last axis of lhs (1) meets the last but one of rhs (2)
      lhs  f32[3, 1] @cpu   input "w", declared at step.kiln:3:37
      rhs  f32[2, 3] @cpu   input "x", declared at step.kiln:3:13
      help: rhs would fit with shape [.., 1, 3]
    "#);
}

#[test]
fn files_that_cannot_be_read_are_diagnostics() {
    let folder = Folder::new();
    std::fs::write(folder.path("bytes"), [0xff, 0xfe]).unwrap();
    assert!(wrong(folder.kiln(&["check", "nowhere.kiln"])).starts_with("error[K1001]: cannot read nowhere.kiln"));
    assert!(wrong(folder.kiln(&["fmt", "bytes"])).starts_with("error[K1002]: bytes is no text"));
}

#[test]
fn fmt_prints_writes_and_compares_the_printed_form() {
    let folder = Folder::with(STEP);
    let printed = fine(folder.kiln(&["fmt", "step.kiln"]));
    insta::assert_snapshot!(printed, @r#"
    kiln 1
    graph @step(%0 "x": f32[2, 3] @cpu, %1 "w": f32[3, 1] @cpu) {
      %2 = matmul %0, %1 : f32[2, 1] @cpu
      %3 = mul %2, %2 : f32[2, 1] @cpu
      %4 = exp %0 : f32[2, 3] @cpu
      %5 = reduce.sum [0, 1] %3 : f32[1, 1] @cpu
      %6 = reshape [] %5 : f32[] @cpu
      return %6 "loss"
    }
    "#);
    assert!(wrong(folder.kiln(&["fmt", "--check", "step.kiln"])).contains("step.kiln is not in printed form"));
    assert!(wrong(folder.kiln(&["fmt", "--write", "step.kiln"])).contains("has comments"));
    std::fs::write(folder.path("step.kiln"), STEP.replace("// A dense layer and its loss.", "")).unwrap();
    assert_eq!(fine(folder.kiln(&["fmt", "--write", "step.kiln"])), "");
    assert_eq!(std::fs::read_to_string(folder.path("step.kiln")).unwrap(), printed);
    assert_eq!(fine(folder.kiln(&["fmt", "--check", "step.kiln"])), "");
}

#[test]
fn fmt_keeps_the_elements_of_constants_that_have_no_file_beside_them() {
    let elements = vec!["7"; 100].join(", ");
    let text = format!("kiln 1\ngraph @f() {{\n  %0 = constant [{elements}] : u8[100] @cpu\n  return %0 \"y\"\n}}\n");
    let folder = Folder::with(&text);
    assert_eq!(fine(folder.kiln(&["fmt", "step.kiln"])), text);
}

#[test]
fn large_constants_lie_in_a_safetensors_file_beside_the_text() {
    let folder = Folder::new();
    let bytes: Vec<u8> = (0..400u32).map(|byte| byte as u8).collect();
    let mut b = kiln_ir::GraphBuilder::new("table");
    let data = HostData::new(DType::F32, [10, 10], bytes).unwrap();
    let table = b.constant(data, kiln_ir::Backend::Cpu, kiln_ir::Loc::Unknown).unwrap();
    let graph = b.finish([("table", table)]).unwrap();
    let path = folder.path("step.kiln");
    kiln::graph_file::write_graph(&path, &graph).unwrap();
    assert_eq!(kiln::graph_file::GraphFile::read(&path).unwrap().graph().unwrap(), graph);
    assert_eq!(fine(folder.kiln(&["fmt", "step.kiln"])), graph.to_string());
    std::fs::remove_file(folder.path("step.safetensors")).unwrap();
    assert!(wrong(folder.kiln(&["check", "step.kiln"])).starts_with("error[K0806]: data of constant #"));
    std::fs::write(folder.path("step.safetensors"), "something else").unwrap();
    assert!(
        wrong(folder.kiln(&["check", "step.kiln"])).starts_with("error[K1002]: step.safetensors is no safetensors")
    );
}

#[test]
fn opt_prints_the_graph_after_the_passes() {
    let folder = Folder::with(STEP);
    let all = fine(folder.kiln(&["opt", "step.kiln"]));
    assert!(!all.contains("exp"), "what nothing uses is gone:\n{all}");
    kiln_ir::parse(&all).unwrap();
    let one = fine(folder.kiln(&["opt", "step.kiln", "--pass", "simplify"]));
    assert!(!one.contains("exp"), "{one}");
}

#[test]
fn grad_adds_gradients_as_outputs() {
    let folder = Folder::with(STEP);
    let text = fine(folder.kiln(&["grad", "step.kiln", "--of", "loss", "--wrt", "w,x"]));
    let names: Vec<String> =
        kiln_ir::parse(&text).unwrap().outputs.iter().map(|output| output.name.to_string()).collect();
    assert_eq!(names, ["loss", "grad.w", "grad.x"]);
    let unknown = wrong(folder.kiln(&["grad", "step.kiln", "--of", "loss", "--wrt", "v"]));
    assert!(unknown.starts_with("error[K0106]: unknown graph step tensor v"), "{unknown}");
}

#[test]
fn ops_lists_every_op() {
    let folder = Folder::new();
    let table = fine(folder.kiln(&["ops"]));
    let names: Vec<&str> = table.lines().skip(1).filter_map(|line| line.split(' ').next()).collect();
    let expected: Vec<String> = op_rows().iter().map(|row| row.name().into_owned()).collect();
    assert_eq!(names, expected);
    let json: serde_json::Value = serde_json::from_str(&fine(folder.kiln(&["ops", "--json"]))).unwrap();
    let concat = json.as_array().unwrap().iter().find(|row| row["name"] == "concat").unwrap();
    assert!(concat["operands"].is_null());
    assert_eq!((&concat["gradient"], &concat["attributes"]), (&"yes".into(), &"axis=N".into()));
    assert_eq!(json.as_array().unwrap().len(), expected.len());
}

#[test]
fn explain_prints_the_page_of_a_code() {
    let folder = Folder::new();
    assert!(fine(folder.kiln(&["explain", "k0201"])).starts_with("# K0201: The provided tensors are not on the same"));
    let page = fine(folder.kiln(&["explain", "K0703"]));
    assert!(page.contains("```rust\n") && !page.contains("# Ok") && !page.contains("no_run"), "{page}");
}

#[test]
fn explain_lists_all_codes_where_none_is_named() {
    let list = fine(Folder::new().kiln(&["explain"]));
    let codes: Vec<&str> = list.lines().filter_map(|line| line.split_once("  ")).map(|(code, _)| code).collect();
    assert_eq!(codes, kiln_ir::Code::ALL.iter().map(|code| code.name()).collect::<Vec<_>>());
    assert!(list.contains("K0301  matrix product extents differ\n"), "{list}");
}

#[test]
fn colour_is_for_terminals_and_not_where_it_is_refused() {
    let folder = Folder::with("kiln 1\n");
    let run = |variable: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
        command.args(["check", "step.kiln"]).current_dir(&folder.0).env_remove("NO_COLOR").env(variable, "1");
        wrong(command.output().unwrap())
    };
    assert!(run("CLICOLOR_FORCE").starts_with("\u{1b}[1m\u{1b}[91merror[K0801]\u{1b}[0m"));
    for variable in ["NO_COLOR", "KILN_NOTHING"] {
        assert!(run(variable).starts_with("error[K0801]"), "{variable}");
    }
}

#[test]
fn wrong_usage_has_exit_code_2() {
    let folder = Folder::with(STEP);
    let usages: [&[&str]; 7] = [
        &[],
        &["frobnicate"],
        &["check"],
        &["explain", "K9999"],
        &["opt", "step.kiln", "--pass", "magic"],
        &["grad", "step.kiln", "--of", "loss"],
        &["fmt", "step.kiln", "--write", "--check"],
    ];
    for usage in usages {
        let output = folder.kiln(usage);
        assert_eq!(output.status.code(), Some(2), "{usage:?}");
        assert!(!output.stderr.is_empty());
    }
}

fn floats(shape: &[usize], values: &[f64]) -> HostData {
    let elements: Vec<Literal> = values.iter().map(|&value| Literal::from_f64(DType::F32, value)).collect();
    HostData::from_literals(DType::F32, shape, &elements).unwrap()
}

/// A folder with `step.kiln`, and data for its inputs in `x.npy` and `w.npy`.
fn folder_with_data() -> Folder {
    let folder = Folder::with(STEP);
    write_npy(&folder.path("x.npy"), &floats(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])).unwrap();
    write_npy(&folder.path("w.npy"), &floats(&[3, 1], &[1.0, 0.0, -1.0])).unwrap();
    folder
}

#[test]
fn run_writes_the_same_numbers_on_every_backend() {
    let folder = folder_with_data();
    let arguments = ["run", "step.kiln", "--input", "x=x.npy", "--input", "w=w.npy", "--out"];
    let printed = fine(folder.kiln(&[&arguments[..], &["own"]].concat()));
    assert_eq!(printed.replace('\\', "/"), "own/loss.npy: f32[]\n");
    fine(folder.kiln(&[&arguments[..], &["reference", "--backend", "ndarray"]].concat()));
    for place in ["own", "reference"] {
        assert_eq!(read_npy(&folder.path(place).join("loss.npy")).unwrap(), floats(&[], &[8.0]), "{place}");
    }
}

#[test]
fn run_reports_kernels_and_memory_when_asked() {
    let folder = folder_with_data();
    let arguments = ["run", "step.kiln", "--input", "x=x.npy", "--input", "w=w.npy", "--out", "out", "--report"];
    let printed = fine(folder.kiln(&arguments));
    assert!(
        printed.contains("`step`: ") && printed.contains("launches") && printed.contains("peak memory: "),
        "{printed}"
    );
}

#[test]
fn report_prints_what_a_file_compiles_to_and_needs_no_data() {
    let folder = Folder::with(STEP);
    let printed = fine(folder.kiln(&["report", "step.kiln"]));
    assert!(printed.starts_with("`step`: ") && printed.contains("step.kiln:4"), "{printed}");
    let json: serde_json::Value = serde_json::from_str(&fine(folder.kiln(&["report", "step.kiln", "--json"]))).unwrap();
    assert_eq!(json["schema"], "kiln-report");
    assert_eq!(fine(folder.kiln(&["report", "step.kiln", "--html", "page.html"])), "page.html\n");
    let page = std::fs::read_to_string(folder.path("page.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("%s = reduce.sum"), "{page}");
}

#[test]
fn report_is_given_for_backends_that_are_not_here() {
    let folder = Folder::with(STEP);
    let on = |backend: &str| fine(folder.kiln(&["report", "step.kiln", "--json", "--backend", backend]));
    let kernels = |text: String| serde_json::from_str::<serde_json::Value>(&text).unwrap()["kernels"].clone();
    assert_eq!(kernels(on("cuda")), kernels(on("cpu")));
    assert_eq!(kernels(on("ndarray")), kernels(on("cpu")));
}

#[test]
fn run_runs_a_printed_gradient() {
    let folder = folder_with_data();
    let text = fine(folder.kiln(&["grad", "step.kiln", "--of", "loss", "--wrt", "w"]));
    std::fs::write(folder.path("grad.kiln"), text).unwrap();
    fine(folder.kiln(&["run", "grad.kiln", "--input", "x=x.npy", "--input", "w=w.npy", "--out", "out"]));
    // loss = |x w|^2, so its gradient is 2 x^T (x w), and x w = (-2, -2).
    let gradient = read_npy(&folder.path("out").join("grad.w.npy")).unwrap();
    assert_eq!(gradient, floats(&[3, 1], &[-20.0, -28.0, -36.0]));
}

#[test]
fn run_says_which_inputs_are_unknown_missing_or_of_another_type() {
    let folder = folder_with_data();
    let arguments = ["run", "step.kiln", "--input", "v=x.npy", "--input", "w=x.npy", "--out", "out"];
    insta::assert_snapshot!(wrong(folder.kiln(&arguments)), @r#"
    error[K0106]: unknown graph input tensor v
      help: inputs of @step: x, w

    error[K0701]: argument `x`: expected f32[2, 3] @cpu, got nothing
     --> step.kiln:3:13
      |
    3 | graph @step(%x "x": f32[2, 3] @cpu, %w "w": f32[3, 1] @cpu) {
      |             ^^ declared here

    error[K0701]: argument `w`: expected f32[3, 1] @cpu, got f32[2, 3]
     --> step.kiln:3:37
      |
    3 | graph @step(%x "x": f32[2, 3] @cpu, %w "w": f32[3, 1] @cpu) {
      |                                     ^^ declared here

    3 errors
    "#);
    assert!(!folder.path("out").exists());
}

#[test]
fn run_refuses_backends_that_are_not_here_and_files_that_are_no_arrays() {
    let folder = folder_with_data();
    let arguments = ["run", "step.kiln", "--input", "x=x.npy", "--input", "w=w.npy", "--out", "out"];
    if !cfg!(feature = "cuda") {
        let elsewhere = wrong(folder.kiln(&[&arguments[..], &["--backend", "cuda"]].concat()));
        assert!(elsewhere.starts_with("error[K0208]: unsupported dispatch backend"), "{elsewhere}");
    }
    let text = wrong(folder.kiln(&["run", "step.kiln", "--input", "x=step.kiln", "--out", "out"]));
    assert!(text.starts_with("error[K1002]: step.kiln: is no .npy file"), "{text}");
    assert_eq!(folder.kiln(&["run", "step.kiln", "--out", "out", "--backend", "abacus"]).status.code(), Some(2));
}

#[test]
fn run_of_a_printed_capture_gives_the_numbers_of_the_api() {
    use kiln::prelude::*;
    let program = |x: Tensor| {
        let table: Vec<f32> = (0..100).map(|number| (number as f32).sin()).collect();
        let table = x.scope().constant(table);
        value_and_grad(&x, |x| ((x + table).gelu() * 0.1).exp().mean(..)).1
    };
    let device = Device::cpu();
    let data = floats(&[2, 100], &(0..200).map(|number| f64::from(number) / 64.0 - 1.0).collect::<Vec<f64>>());
    let expected = jit(&device, program).call(Array::new(&device, &data).unwrap()).unwrap().to_host().unwrap();

    let captured = CaptureDevice::new(Backend::Cpu)
        .capture_scope(|scope| program(scope.input("x", DType::F32, [2, 100])))
        .unwrap();
    let folder = Folder::new();
    kiln::graph_file::write_graph(&folder.path("step.kiln"), &captured.graph).unwrap();
    write_npy(&folder.path("x.npy"), &data).unwrap();
    let printed = fine(folder.kiln(&["run", "step.kiln", "--input", "x=x.npy", "--out", "out"]));
    assert!(folder.path("step.safetensors").exists() && printed.ends_with(".npy: f32[2, 100]\n"), "{printed}");
    let name = format!("{}.npy", captured.graph.outputs[0].name);
    assert_eq!(read_npy(&folder.path("out").join(name)).unwrap(), expected);
}
