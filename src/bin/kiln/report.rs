//! `kiln report`: what a graph compiles to, as text, as JSON, as a page.

use std::path::{Path, PathBuf};

use kiln::graph_run::report_graph;
use kiln_ir::Backend;

use crate::Outcome;
use crate::graph::with_graph;
use crate::run::Place;

/// How the report is given.
pub(crate) enum Shape {
    /// Printed for people.
    Text,
    /// Printed for programs.
    Json,
    /// Written to a file, for a browser.
    Page(PathBuf),
}

impl Shape {
    pub(crate) fn from_flags(json: bool, html: Option<PathBuf>) -> Shape {
        match html {
            Some(path) => Shape::Page(path),
            None if json => Shape::Json,
            None => Shape::Text,
        }
    }
}

pub(crate) fn report(path: &Path, backend: Option<Place>, shape: &Shape) -> Outcome {
    with_graph(path, |file, graph| {
        let report = report_graph(&graph, backend.map(Backend::from))?;
        let report = report.with_text(path.display().to_string(), file.text());
        Ok(match shape {
            Shape::Text => report.to_string(),
            Shape::Json => report.to_json() + "\n",
            Shape::Page(path) => {
                report.save_html(path)?;
                format!("{}\n", path.display())
            }
        })
    })
}
