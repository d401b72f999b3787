//! How a program ends that has made a mistake: what stands on its standard error, run as a user runs it.
//!
//! This binary runs itself: a run of the one test [`a_program`] with the name of an ending in the environment is the program.

use std::process::{Command, ExitCode, Termination};

use kiln::prelude::*;

const ENDING: &str = "KILN_TEST_ENDING";

fn mistaken() -> kiln::Result<()> {
    CaptureDevice::new(Backend::Cpu)
        .capture_scope(|scope| scope.zeros([3], DType::F32) + scope.zeros([4], DType::F32))?;
    Ok(())
}

#[test]
fn a_program() {
    match std::env::var(ENDING).as_deref() {
        // What the standard library does with the result of `fn main() -> kiln::Result<()>`.
        Ok("result") => assert_eq!(mistaken().report(), ExitCode::FAILURE),
        Ok("main") => assert_eq!(kiln::main(mistaken), ExitCode::FAILURE),
        Ok("fail_fast") => {
            let device = CaptureDevice::new(Backend::Cpu);
            device.fail_fast();
            let _ = device.capture_scope(|scope| scope.zeros([3], DType::F32).sum(7));
        }
        Ok("unwrap") => mistaken().unwrap(),
        _ => {}
    }
}

/// The standard error of a program that ends so. It runs in a folder below the project's, as `cargo test` runs members of a workspace.
fn standard_error(ending: &str, variable: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all");
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "ending::a_program", "--nocapture"]).current_dir(folder);
    program.env_remove("RUST_BACKTRACE").env(ENDING, ending).env(variable, "1");
    String::from_utf8(program.output().unwrap().stderr).unwrap()
}

const TEXT: &str = r#"error[K0302]: shapes [3] and [4] do not broadcast: axis 0 is 3 and 4
  --> tests/all/ending.rs:13:32 in `add`
   |
13 |         .capture_scope(|scope| scope.zeros([3], DType::F32) + scope.zeros([4], DType::F32))?;
   |                                                             ^ operands of `add`: axes are aligned at the end, each pair must be equal or hold a 1
  lhs  f32[3] @cpu   made at tests/all/ending.rs:13:38
  rhs  f32[4] @cpu   made at tests/all/ending.rs:13:69
  help: reshape, slice or broadcast one of them to the other's shape
"#;

#[test]
fn a_main_that_returns_the_result_shows_the_mistake_and_its_line() {
    assert_eq!(standard_error("result", "NO_COLOR"), format!("Error: \n{TEXT}"));
}

#[test]
fn a_main_made_by_kiln_shows_nothing_else_in_colour_where_there_is_colour() {
    assert_eq!(standard_error("main", "KILN_TEST_NOTHING"), TEXT);
    let colored = standard_error("main", "CLICOLOR_FORCE");
    assert!(colored.starts_with("\u{1b}[1m\u{1b}[91merror[K0302]\u{1b}[0m\u{1b}[1m: shapes"), "{colored}");
}

#[test]
fn an_unwrapped_error_panics_with_the_whole_text() {
    assert!(standard_error("unwrap", "NO_COLOR").contains(&format!("Err` value: \n{TEXT}")));
}

#[test]
fn fail_fast_panics_with_the_source_line_in_the_text() {
    let text = standard_error("fail_fast", "NO_COLOR");
    assert!(text.contains("panicked at tests/all/ending.rs:26:79:\nerror[K0304]: axis 7 is out of range"), "{text}");
    assert!(text.contains("26 |             let _ = device.capture_scope("), "{text}");
}

#[test]
fn the_debug_form_of_an_error_is_its_text_and_the_alternate_form_its_data() {
    let error = mistaken().unwrap_err();
    assert_eq!(format!("{error:?}\n"), format!("\n{TEXT}"));
    assert_eq!(error.to_string(), TEXT);
    assert!(format!("{error:#?}").contains("code: K0302,"), "{error:#?}");
}
