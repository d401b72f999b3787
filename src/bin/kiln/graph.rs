//! The subcommands that read a graph and print one.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::builder::PossibleValuesParser;
use kiln::graph_file::GraphFile;
use kiln_ir::{Backend, Code, Diagnostic, Diagnostics, Graph, Locations, grad, has_comments};
use kiln_passes::{Options, PASSES};

use crate::Outcome;

/// A file, `-` being standard input.
pub(crate) fn read(path: &Path) -> Result<GraphFile, String> {
    if path != Path::new("-") {
        return GraphFile::read(path).map_err(|diagnostics| kiln::render_colored(&diagnostics));
    }
    let mut text = String::new();
    match std::io::stdin().read_to_string(&mut text) {
        Ok(_) => Ok(GraphFile::from_text("<stdin>", text)),
        Err(error) => {
            let unreadable = Diagnostic::new(Code::K1001, format!("cannot read standard input: {error}"));
            Err(kiln::render_colored(&unreadable.into()))
        }
    }
}

/// Reads a file and does something with its graph; diagnostics show the lines of the file.
pub(crate) fn with_graph<T>(
    path: &Path,
    work: impl FnOnce(&GraphFile, Graph) -> Result<T, Diagnostics>,
) -> Result<T, String> {
    let file = read(path)?;
    file.graph().and_then(|graph| work(&file, graph)).map_err(|diagnostics| file.render_colored(&diagnostics))
}

/// `kiln check`: one line for each file that is fine, and the diagnostics of all others.
pub(crate) fn check(files: &[PathBuf]) -> Outcome {
    let (mut fine, mut wrong) = (String::new(), Vec::new());
    for path in files {
        match with_graph(path, |_, graph| Ok(summary(&graph))) {
            Ok(summary) => fine += &format!("{}: {summary}\n", path.display()),
            Err(text) => wrong.push(text),
        }
    }
    if wrong.is_empty() { Ok(fine) } else { Err(wrong.join("\n")) }
}

fn summary(graph: &Graph) -> String {
    let count = |count: usize, one: &str, many: &str| format!("{count} {}", if count == 1 { one } else { many });
    let backends: Vec<&str> = graph.backends().into_iter().map(Backend::keyword).collect();
    format!(
        "graph {:?} with {}, {}, {}, on {}",
        graph.name,
        count(graph.inputs.len(), "input", "inputs"),
        count(graph.nodes.len() - graph.inputs.len(), "op", "ops"),
        count(graph.outputs.len(), "output", "outputs"),
        if backends.is_empty() { "no backend".to_owned() } else { backends.join(", ") },
    )
}

/// What becomes of the printed form.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Formatted {
    /// Printed.
    Print,
    /// Written to the file.
    Write,
    /// Compared with the file.
    Compare,
}

impl Formatted {
    pub(crate) fn from_flags(write: bool, check: bool) -> Formatted {
        match (write, check) {
            (true, _) => Formatted::Write,
            (false, true) => Formatted::Compare,
            (false, false) => Formatted::Print,
        }
    }
}

/// `kiln fmt`.
pub(crate) fn format(path: &Path, wanted: Formatted) -> Outcome {
    with_graph(path, |file, graph| {
        let text = file.print(&graph, Locations::Omitted);
        match wanted {
            Formatted::Print => Ok(text),
            Formatted::Compare if text == file.text() => Ok(String::new()),
            Formatted::Compare => {
                let message = format!("{} is not in printed form", path.display());
                Err(Diagnostic::new(Code::K1002, message).help("`kiln fmt --write` writes it so").into())
            }
            Formatted::Write if path == Path::new("-") => Ok(text),
            Formatted::Write if has_comments(file.text()) => {
                let message = format!("{} has comments, which the printed form has not", path.display());
                Err(Diagnostic::new(Code::K1002, message).help("`kiln fmt` without `--write` prints it").into())
            }
            Formatted::Write => std::fs::write(path, text).map(|()| String::new()).map_err(|error| {
                Diagnostic::new(Code::K1001, format!("cannot write {}: {error}", path.display())).into()
            }),
        }
    })
}

/// The names of the passes, for `--pass`.
pub(crate) fn pass_names() -> PossibleValuesParser {
    PossibleValuesParser::new(PASSES.iter().map(|pass| pass.name))
}

/// `kiln opt`: the text after some passes, or all.
pub(crate) fn optimize(path: &Path, names: &[String]) -> Outcome {
    with_graph(path, |file, mut graph| {
        let chosen = names.iter().filter_map(|name| PASSES.iter().find(|pass| pass.name == name));
        let passes: Vec<_> = if names.is_empty() { PASSES.iter().collect() } else { chosen.collect() };
        for pass in passes {
            graph = (pass.run)(&graph, &Options::default())?;
        }
        Ok(file.print(&graph, Locations::Omitted))
    })
}

/// `kiln grad`.
pub(crate) fn differentiate(path: &Path, of: &str, wrt: &[String]) -> Outcome {
    with_graph(path, |file, graph| {
        let names: Vec<&str> = wrt.iter().flat_map(|names| split(&graph, names)).collect();
        Ok(file.print(&grad::append(&graph, of, &names)?, Locations::Omitted))
    })
}

/// Names separated by commas; a name of the graph that has a comma itself is taken whole.
fn split<'n>(graph: &Graph, names: &'n str) -> Vec<&'n str> {
    let is_one = (0..graph.inputs.len()).any(|index| graph.input_name(index) == Some(names))
        || graph.outputs.iter().any(|output| &*output.name == names);
    if is_one { vec![names] } else { names.split(',').collect() }
}
