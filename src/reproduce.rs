//! A mistake of Kiln's own (K0901), told with a file that shows it again.
//!
//! The file holds the graph as it was captured, whole, so that it reads back, and below it, as comments, the graph after the pass that broke
//! a rule. It lies in the system's folder for temporary files, named by its contents: the same mistake has the same file.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};

use kiln_ir::{Code, Diagnostic, Graph, Locations, TextStyle};
use kiln_passes::{Options, compile_observed};

/// The diagnostic with a file that reproduces it, where it is a mistake of Kiln's. Others are left as they are.
pub(crate) fn reproducible(graph: &Graph, options: &Options, diagnostic: Diagnostic) -> Diagnostic {
    if diagnostic.code != Code::K0901 {
        return diagnostic;
    }
    let mut last = None;
    // What it ends with is known; this time it is watched.
    let _ = compile_observed(graph, options, &mut |pass, graph| last = Some((pass.to_owned(), graph.clone())));
    let after = last.as_ref().map(|(pass, graph)| (pass.as_str(), graph));
    match write(&std::env::temp_dir(), &text(graph, after)) {
        Ok(file) => diagnostic.help(format!("this is a mistake of Kiln's: please report it, with {}", file.display())),
        Err(_) => diagnostic.help(format!("this is a mistake of Kiln's: please report it, with this graph:\n{graph}")),
    }
}

fn text(graph: &Graph, after: Option<(&str, &Graph)>) -> String {
    let style = TextStyle { locations: Locations::Omitted, inline_elements: usize::MAX };
    let mut text = graph.text(style).to_string();
    if let Some((pass, graph)) = after {
        text += &format!("\n// After `{pass}`:\n");
        for line in graph.to_string().lines() {
            text += format!("// {line}").trim_end();
            text.push('\n');
        }
    }
    text
}

fn write(folder: &Path, text: &str) -> io::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let file = folder.join(format!("kiln-K0901-{:016x}.kiln", hasher.finish()));
    std::fs::write(&file, text)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph() -> Graph {
        let text = "kiln 1\ngraph @f(%0 \"x\": f32[3] @cpu) {\n  %1 = exp %0 : f32[3] @cpu\n  return %1 \"y\"\n}\n";
        kiln_ir::parse(text).expect("a sound graph")
    }

    #[test]
    fn the_file_reads_back_to_the_graph_and_shows_what_became_of_it() {
        let text = text(&graph(), Some(("simplify", &graph())));
        assert_eq!(kiln_ir::parse(&text).expect("it reads back"), graph());
        assert!(text.contains("\n// After `simplify`:\n// kiln 1\n// graph @f("), "{text}");
    }

    #[test]
    fn a_mistake_of_kilns_names_the_file() {
        let found = reproducible(&graph(), &Options::default(), Diagnostic::new(Code::K0901, "internal: a test"));
        let named = found.help[0].rsplit_once("with ").expect("it ends with the file").1;
        let read = std::fs::read_to_string(named).expect("the file is there");
        assert!(read.starts_with(&graph().to_string()) && read.contains("// After `narrow`:"), "{read}");
        std::fs::remove_file(named).expect("it can be removed");
    }

    #[test]
    fn a_mistake_of_a_user_is_left_as_it_is() {
        let mistake = Diagnostic::new(Code::K0301, "matrix product");
        assert_eq!(reproducible(&graph(), &Options::default(), mistake.clone()), mistake);
    }
}
