//! Compiled graphs as the tests use them: compile once, run on host data.

use kiln_ir::plan::Plan;
use kiln_ir::{Graph, HostData};
use kiln_passes::{Fusion, Options, Reuse, compile};
use kiln_runtime::reference::{Arguments, Walk, run_plan};

/// A graph ready to run.
pub(crate) struct Compiled {
    plan: Plan,
}

/// The ways of compiling that must all give the same, by name.
pub(crate) fn variants() -> Vec<(&'static str, Options)> {
    vec![
        ("fused", Options::default()),
        ("one kernel per op", Options { fusion: Fusion::Off, ..Options::default() }),
        ("without reuse of memory", Options { reuse: Reuse::Off, ..Options::default() }),
    ]
}

impl Compiled {
    #[track_caller]
    pub(crate) fn new(graph: &Graph, options: &Options) -> Compiled {
        match compile(graph, options) {
            Ok(plan) => Compiled { plan },
            Err(error) => panic!("{error}\nfrom\n{graph}"),
        }
    }

    /// Runs the plan by its definition and on the CPU.
    #[track_caller]
    pub(crate) fn run(&self, inputs: &[HostData]) -> Vec<HostData> {
        let run = |walk, arguments| match run_plan(&self.plan, inputs, walk, arguments) {
            Ok(results) => results,
            Err(error) => panic!("{error}\nin {:#?}", self.plan),
        };
        let forward = run(Walk::Forward, Arguments::Lent);
        assert!(forward == run(Walk::Backward, Arguments::Donated), "order of points matters in {:#?}", self.plan);
        forward
    }
}
