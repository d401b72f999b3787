//! Compiled graphs as the tests use them: compile once, run on host data.

use kiln_ir::plan::Plan;
use kiln_ir::{Graph, HostData};
use kiln_passes::{Fusion, Options, Reuse};
use kiln_runtime::reference::{Arguments, Walk, run_plan};
use kiln_runtime::{Argument, Array, Device, Executable};

use crate::relaxed;
use crate::under_test::device;

/// A graph ready to run.
pub(crate) struct Compiled {
    device: Device,
    executable: Executable,
}

/// The ways of compiling that must all give the same, by name.
pub(crate) fn variants() -> Vec<(&'static str, Options)> {
    vec![
        ("fused", Options::default()),
        ("one kernel per op", Options { fusion: Fusion::Off, ..Options::default() }),
        ("without reuse of memory", Options { reuse: Reuse::Off, ..Options::default() }),
    ]
}

/// Plans with at most this many elements in all buffers are also run by their definition, which is slow.
const SMALL: usize = 4000;

impl Compiled {
    #[track_caller]
    pub(crate) fn new(graph: &Graph, options: &Options) -> Compiled {
        Compiled::unless_refused(graph, options).unwrap_or_else(|| panic!("the device lacks something of\n{graph}"))
    }

    /// `None` where the backend under test may refuse the graph, and does.
    #[track_caller]
    pub(crate) fn unless_refused(graph: &Graph, options: &Options) -> Option<Compiled> {
        let device = device();
        let graph = &graph.retarget(device.backend()).expect("a graph moves to any backend");
        match kiln::compile_with(graph, options, &device) {
            Ok(compiled) => Some(Compiled { device, executable: compiled.into() }),
            Err(error) if error.diagnostics().iter().all(|refusal| relaxed::may_refuse(graph, refusal)) => None,
            Err(error) => panic!("{error:?}\nfrom\n{graph}"),
        }
    }

    fn plan(&self) -> &Plan {
        self.executable.plan().expect("what was compiled has a plan")
    }

    /// Runs on the device; the arguments are kept.
    #[track_caller]
    pub(crate) fn run(&self, inputs: &[HostData]) -> Vec<HostData> {
        self.call(inputs, Argument::Borrowed)
    }

    /// Runs on the device; the arguments are given up.
    #[track_caller]
    pub(crate) fn run_donating(&self, inputs: &[HostData]) -> Vec<HostData> {
        self.call(inputs, Argument::Donated)
    }

    #[track_caller]
    fn call(&self, inputs: &[HostData], argument: fn(Array) -> Argument) -> Vec<HostData> {
        let arguments = inputs.iter().map(|data| argument(Array::new(&self.device, data).unwrap())).collect();
        match self.executable.run(arguments) {
            Ok(results) => results.iter().map(|array| array.to_host().unwrap()).collect(),
            Err(error) => panic!("{error}\nin {:#?}", self.plan()),
        }
    }

    /// The results by the definition of plans, where that is quick: with points in either order, arguments kept and given up.
    #[track_caller]
    pub(crate) fn run_by_definition(&self, inputs: &[HostData]) -> Option<Vec<HostData>> {
        let elements: usize = self.plan().buffers.iter().map(|buffer| buffer.ty.shape.num_elements()).sum();
        if elements > SMALL {
            return None;
        }
        let run = |walk, arguments| match run_plan(self.plan(), inputs, walk, arguments) {
            Ok(results) => results,
            Err(error) => panic!("{error}\nin {:#?}", self.plan()),
        };
        let forward = run(Walk::Forward, Arguments::Lent);
        assert!(
            forward == run(Walk::Backward, Arguments::Donated),
            "the order of points matters in {:#?}",
            self.plan()
        );
        Some(forward)
    }
}
