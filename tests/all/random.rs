//! Random well-typed graphs over every op and dtype, with data for their arguments.
//!
//! A graph grows from a *recipe*: a list of steps, each a few random numbers. Every recipe is some graph, valid by construction, and
//! proptest shrinks a recipe by leaving steps out and making numbers smaller, so a failing graph shrinks to a small one:
//!
//! ```ignore
//! use crate::random::{Config, Ops, cases};
//!
//! proptest! {
//!     #[test]
//!     fn the_optimised_graph_gives_the_same_numbers(case in cases(Config { ops: Ops::Continuous, ..Config::default() })) {
//!         let expected = kiln_runtime::reference::evaluate(&case.graph, &case.inputs)?;
//!         // ..
//!     }
//! }
//! ```
//!
//! - [`Config::default`]: all ops, all dtypes, [`Backend::Cpu`], values kept tame, no custom ops, about ten nodes.
//! - [`Config::differentiable`] and [`Config::smooth`]: `f64` (change `dtypes` for others) with one output `"loss"`, a scalar, that every
//!   float value flows into; smooth graphs have no kinks, so finite differences of them are meaningful.
//! - `case.graph` has its arguments first (`x0`, `x1`, ..) and all values that nothing uses as outputs (`y0`, `y1`, ..), so no node is
//!   dead; `case.inputs` is one [`HostData`] for each argument. A failing case prints as the text of its graph and its data.
//! - [`inputs`] makes other data for the same graph, [`graph_from_seed`] a graph without proptest.

mod grow;
mod numbers;

use std::fmt;

use kiln_ir::{Backend, DType, Graph, HostData};
use proptest::prelude::*;

pub(crate) use numbers::{Numbers, inputs};

/// Which ops a random graph may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ops {
    /// All of them.
    All,
    /// All of them, but nothing that turns a small error of a float into a jump: no float is compared, rounded to an integer, cast to
    /// one, bitcast, or asked for the place of its maximum.
    Continuous,
    /// Those with a gradient on the way, kinks (`abs`, `max`, `floor`) included.
    Differentiable,
    /// Those whose finite differences are close to their gradient wherever they are evaluated.
    Smooth,
}

/// Whether values may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// Floats stay below about 100: bounds are tracked and a `tanh` is inserted where one would be passed; functions are kept inside
    /// their domain and away from poles (`log` sees at least 0.5).
    Tame,
    /// Anything goes: overflow, NaN, division by 0.
    Wild,
}

/// Which custom ops a random graph may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Customs {
    /// None.
    Excluded,
    /// Those that run anywhere, by their body.
    WithBody,
    /// Also those that are but a name.
    Any,
}

/// What random graphs are like.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Which ops.
    pub(crate) ops: Ops,
    /// Dtypes of arguments and casts. Index operands and conditions may be of others.
    pub(crate) dtypes: Vec<DType>,
    /// Where arguments live. More than one brings transfers.
    pub(crate) backends: Vec<Backend>,
    /// At most this many steps; most make one node, some a few.
    pub(crate) steps: usize,
    /// At most this many arguments; at least one.
    pub(crate) arguments: usize,
    /// No value has more elements than this.
    pub(crate) max_elements: usize,
    /// May values grow?
    pub(crate) values: Values,
    /// What the arguments' data is like.
    pub(crate) numbers: Numbers,
    /// Custom ops.
    pub(crate) customs: Customs,
    /// Whether the outputs are all loose ends or one scalar of them.
    pub(crate) outputs: Outputs,
}

/// What a random graph returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outputs {
    /// Every value that nothing uses.
    LooseEnds,
    /// The scalar `"loss"`: the sum of all float loose ends, each through a mean of `tanh`.
    Loss,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            ops: Ops::All,
            dtypes: DType::ALL.to_vec(),
            backends: vec![Backend::Cpu],
            steps: 10,
            arguments: 3,
            max_elements: 300,
            values: Values::Tame,
            numbers: Numbers::Plain,
            customs: Customs::Excluded,
            outputs: Outputs::LooseEnds,
        }
    }
}

impl Config {
    /// Graphs to take gradients of, in `f64`, kinks included.
    pub(crate) fn differentiable() -> Config {
        Config {
            ops: Ops::Differentiable,
            dtypes: vec![DType::F64],
            max_elements: 24,
            outputs: Outputs::Loss,
            ..Config::default()
        }
    }

    /// Graphs whose gradients finite differences can check, in `f64`.
    pub(crate) fn smooth() -> Config {
        Config { ops: Ops::Smooth, ..Config::differentiable() }
    }
}

/// A graph with data for its arguments.
#[derive(Clone)]
pub(crate) struct Case {
    /// The graph.
    pub(crate) graph: Graph,
    /// One tensor for each of its arguments.
    pub(crate) inputs: Vec<HostData>,
}

/// The text of the graph, then the data.
impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{}", self.graph)?;
        for (index, input) in self.inputs.iter().enumerate() {
            let elements: Vec<String> = input.elements().take(64).map(|element| element.to_string()).collect();
            let name = self.graph.input_name(index).unwrap_or("?");
            writeln!(f, "{name}: {}{} = {}", input.dtype(), input.shape(), elements.join(", "))?;
        }
        Ok(())
    }
}

/// The random numbers that a graph grows from.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    /// A few numbers for each argument.
    arguments: Vec<[u16; 3]>,
    /// A few numbers for each step.
    steps: Vec<[u16; STEP_NUMBERS]>,
}

/// Numbers that one step may use.
const STEP_NUMBERS: usize = 14;

/// Random graphs with random data.
pub(crate) fn cases(config: Config) -> impl Strategy<Value = Case> {
    let arguments = proptest::collection::vec(any::<[u16; 3]>(), 1..=config.arguments.max(1));
    let steps = proptest::collection::vec(any::<[u16; STEP_NUMBERS]>(), 0..=config.steps);
    (arguments, steps, any::<u64>()).prop_map(move |(arguments, steps, seed)| {
        let graph = grow::graph(&config, &Recipe { arguments, steps });
        let inputs = inputs(&graph, config.numbers, seed);
        Case { graph, inputs }
    })
}

/// The random graph of a number, with data: for tests that want many graphs, or large ones, without shrinking.
pub(crate) fn graph_from_seed(config: &Config, seed: u64) -> Case {
    let mut source = numbers::Source::new(seed);
    let count = 1 + source.below(config.arguments.max(1));
    let arguments = (0..count).map(|_| std::array::from_fn(|_| source.next() as u16)).collect();
    let steps = (0..config.steps).map(|_| std::array::from_fn(|_| source.next() as u16)).collect();
    let graph = grow::graph(config, &Recipe { arguments, steps });
    let inputs = inputs(&graph, config.numbers, seed);
    Case { graph, inputs }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use kiln_ir::{Op, ScalarOp, verify};

    use super::*;

    fn all() -> Config {
        Config {
            backends: vec![Backend::Cpu, Backend::NdArray],
            values: Values::Wild,
            customs: Customs::Any,
            steps: 30,
            ..Config::default()
        }
    }

    #[test]
    fn random_graphs_hold_the_rules_of_the_ir() {
        let exact = Config { numbers: Numbers::Dyadic, customs: Customs::WithBody, ..Config::default() };
        for config in [all(), exact, Config::default(), Config::differentiable(), Config::smooth()] {
            for seed in 0..200 {
                let case = graph_from_seed(&config, seed);
                verify(&case.graph).unwrap_or_else(|diagnostic| panic!("{diagnostic}\n{:?}", case.graph));
                assert_eq!(case.graph.inputs.len(), case.inputs.len());
                assert!(case.graph.nodes.iter().flat_map(|node| &node.types).all(|ty| ty.shape.num_elements() <= 300));
            }
        }
    }

    #[test]
    fn random_graphs_use_every_op_on_every_dtype() {
        let mut seen = BTreeSet::new();
        for seed in 0..3000 {
            for node in graph_from_seed(&all(), seed).graph.nodes {
                if let Some(ty) = node.types.first() {
                    seen.insert((node.op.name().into_owned(), ty.dtype));
                }
            }
        }
        let is_seen = |name: &str, dtype: DType| seen.contains(&(name.to_owned(), dtype));
        for &op in ScalarOp::ALL {
            for result in DType::ALL.into_iter().filter_map(|dtype| op.result_dtype(dtype)) {
                assert!(is_seen(op.name(), result), "{op} {result}");
            }
        }
        let families = [
            "input",
            "literal",
            "constant",
            "cast",
            "select",
            "reduce.max",
            "reduce.min",
            "reshape",
            "permute",
            "broadcast",
            "slice",
            "pad",
            "concat",
            "gather",
            "scatter.set",
            "transfer",
            "stop_gradient",
            "mark",
            "barrier",
            "custom",
        ];
        for name in families {
            assert!(DType::ALL.into_iter().all(|dtype| is_seen(name, dtype)), "{name}");
        }
        let numeric = [
            "iota",
            "reduce.sum",
            "reduce.prod",
            "scan.sum",
            "scan.prod",
            "scan.max",
            "scan.min",
            "matmul",
            "scatter.add",
            "scatter.max",
            "bitcast",
        ];
        for name in numeric {
            assert!(
                DType::ALL.into_iter().filter(|&dtype| dtype != DType::Bool).all(|dtype| is_seen(name, dtype)),
                "{name}"
            );
        }
        assert!(
            is_seen("random_bits", DType::U32)
                && is_seen("reduce.argmax", DType::I32)
                && is_seen("reduce.argmin", DType::I32)
        );
    }

    #[test]
    fn tame_graphs_of_floats_stay_finite_in_their_literals_and_have_one_loss() {
        for seed in 0..100 {
            let graph = graph_from_seed(&Config::smooth(), seed).graph;
            let [loss] = graph.outputs.as_slice() else { panic!("one output") };
            assert_eq!((&*loss.name, graph.ty(loss.value).to_string().as_str()), ("loss", "f64[] @cpu"));
            assert!(graph.nodes.iter().all(|node| !matches!(node.op, Op::Scalar(ScalarOp::Floor | ScalarOp::Abs))));
        }
    }
}
