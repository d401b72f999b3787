//! The CPU backend as the tests use it: compile once, run on host data.

use kiln_ir::{Graph, HostData};

/// A graph ready to run. The reference stands in until plans run on the CPU.
pub(crate) struct Compiled(Graph);

/// How to compile.
#[derive(Clone, Debug)]
pub(crate) struct Options;

/// The ways of compiling that must all give the same, by name.
pub(crate) fn variants() -> Vec<(&'static str, Options)> {
    vec![("as it is", Options)]
}

impl Compiled {
    pub(crate) fn new(graph: &Graph, _options: &Options) -> Compiled {
        Compiled(graph.clone())
    }

    pub(crate) fn run(&self, inputs: &[HostData]) -> Vec<HostData> {
        kiln_runtime::reference::evaluate(&self.0, inputs).expect("runs")
    }
}
