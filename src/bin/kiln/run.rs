//! `kiln run`: a graph from a text, inputs and outputs as `.npy` files.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use kiln::files::{read_npy, write_npy};
use kiln::graph_run::run_graph;
use kiln::reproduction::Reproduction;
use kiln_ir::{Backend, Code, Diagnostic, Graph, HostData};
use kiln_passes::Options;

use crate::Outcome;
use crate::graph::with_graph;

/// A backend's name on the command line.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Place {
    Ndarray,
    Cpu,
    Wgpu,
    Cuda,
}

impl From<Place> for Backend {
    fn from(place: Place) -> Backend {
        match place {
            Place::Ndarray => Backend::NdArray,
            Place::Cpu => Backend::Cpu,
            Place::Wgpu => Backend::Wgpu,
            Place::Cuda => Backend::Cuda,
        }
    }
}

/// Whether the report is printed after the outputs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reporting {
    Silent,
    Printed,
}

/// Runs a graph and writes its outputs; prints one line for each.
pub(crate) fn run(path: &Path, inputs: &[String], backend: Option<Place>, out: &Path, reporting: Reporting) -> Outcome {
    with_graph(path, |file, graph| {
        let data = inputs.iter().map(|input| read(&graph, input)).collect::<Result<Vec<_>, Diagnostic>>()?;
        let run = run_graph(&graph, &data, backend.map(Backend::from))?;
        std::fs::create_dir_all(out).map_err(|error| {
            Diagnostic::new(Code::K1001, format!("cannot make the folder {}: {error}", out.display()))
        })?;
        let mut printed = String::new();
        let mut taken = HashSet::new();
        for (name, data) in &run.outputs {
            let file = out.join(file_name(name, &mut taken));
            write_npy(&file, data)?;
            printed += &format!("{}: {}{}\n", file.display(), data.dtype(), data.shape());
        }
        if reporting == Reporting::Printed {
            printed += &run.report.with_text(path.display().to_string(), file.text()).to_string();
        }
        Ok(printed)
    })
}

/// Shows a kernel that was found to be wrong beside the reference, on its own operands. Exit code 1 where it still is.
pub(crate) fn reproduce(folder: &Path, fault: Option<usize>) -> Outcome {
    let options = Options { fault, ..Options::default() };
    let compared = Reproduction::read(folder).and_then(|reproduction| reproduction.compare(&options));
    match compared {
        Ok(comparison) if comparison.agrees() => Ok(comparison.to_string()),
        Ok(comparison) => Err(comparison.to_string()),
        Err(diagnostics) => Err(kiln::render_colored(&diagnostics)),
    }
}

/// `NAME=FILE` as the name of an input and its data. Where several `=` could divide them, the one after the name of an input does.
fn read(graph: &Graph, input: &str) -> Result<(String, HostData), Diagnostic> {
    let splits: Vec<(&str, &str)> =
        input.match_indices('=').map(|(place, _)| (&input[..place], &input[place + 1..])).collect();
    let is_input = |name: &str| (0..graph.inputs.len()).any(|index| graph.input_name(index) == Some(name));
    let found = splits.iter().rev().find(|(name, _)| is_input(name)).or(splits.first());
    let &(name, file) = found.ok_or_else(|| {
        Diagnostic::new(Code::K0106, format!("unknown graph input tensor {input}"))
            .help("write `--input NAME=FILE.npy`")
    })?;
    Ok((name.to_owned(), read_npy(&PathBuf::from(file))?))
}

/// The file of an output. Names are arbitrary texts: whatever a file system may take amiss is written as `%` and its code, and a name that is
/// taken, or too long, gets a number.
fn file_name(name: &str, taken: &mut HashSet<String>) -> String {
    let mut plain = String::new();
    for (index, byte) in name.bytes().enumerate() {
        let is_plain = byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-') || (byte == b'.' && index > 0);
        if is_plain {
            plain.push(char::from(byte));
        } else {
            plain += &format!("%{byte:02x}");
        }
    }
    plain.truncate(200);
    // Two names that differ in case alone are one file on some systems.
    let mut candidate = plain.clone();
    for number in 1.. {
        if !candidate.is_empty() && taken.insert(candidate.to_lowercase()) {
            break;
        }
        candidate = format!("{plain}~{number}");
    }
    candidate + ".npy"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_of_an_output_becomes_a_file_of_its_own_in_the_folder() {
        let long = "x".repeat(300);
        let names = ["y", "Y", "grad.w", "../up", "a/b", ".", "", "é", "a b", "100%", &long, &(long.clone() + "y")];
        let mut taken = HashSet::new();
        let files: Vec<String> = names.iter().map(|name| file_name(name, &mut taken)).collect();
        assert_eq!(files[..4], ["y.npy", "Y~1.npy", "grad.w.npy", "%2e.%2fup.npy"]);
        let distinct: HashSet<String> = files.iter().map(|file| file.to_lowercase()).collect();
        assert_eq!(distinct.len(), names.len());
        assert!(files.iter().all(|file| file.len() < 220 && !file.starts_with('.') && !file.contains(['/', '\\'])));
    }
}
