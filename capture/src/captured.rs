//! What a capture gives: the graph, and what belongs to it but is no part of it.

use std::sync::Arc;

use kiln_ir::{CustomOps, Graph, Loc, Op, Output, TensorType, Value};

/// A recorded program.
#[derive(Clone, Debug)]
pub struct CapturedGraph {
    /// The graph: inputs in the order of declaration, outputs as returned or marked.
    pub graph: Graph,
    /// Values that [`Tensor::tap`](crate::Tensor::tap) named. They are computed only in [`CapturedGraph::with_taps`].
    pub taps: Vec<Tap>,
    /// What the user may want to know: gradients that are zero because nothing depends on them, for example.
    pub notices: Vec<Notice>,
    /// What the custom ops do that the graph names.
    pub customs: CustomOps,
}

/// A value that is to be seen when taps are on.
#[derive(Clone, Debug, PartialEq)]
pub struct Tap {
    /// The user's name for it.
    pub name: Arc<str>,
    /// The value.
    pub value: Value,
    /// Where it was tapped.
    pub loc: Loc,
}

/// A remark about a capture, which is no mistake.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// What there is to know.
    pub text: String,
    /// Which line it is about.
    pub loc: Loc,
}

/// A number or tensor that the capture took in as it was: another value needs another capture.
#[derive(Clone, Debug, PartialEq)]
pub struct Baked {
    /// Where it stands in the graph.
    pub value: Value,
    /// Its type.
    pub ty: TensorType,
    /// The number itself, or what is known of a tensor's data.
    pub text: String,
    /// The user's line.
    pub loc: Loc,
}

impl CapturedGraph {
    pub(crate) fn new(graph: Graph, taps: Vec<Tap>, notices: Vec<Notice>, customs: CustomOps) -> CapturedGraph {
        CapturedGraph { graph, taps, notices, customs }
    }

    /// The graph with every tap as a further output, named `tap.` and the tap's name.
    ///
    /// ```
    /// use kiln_capture::CaptureDevice;
    /// use kiln_ir::{Backend, DType};
    /// let captured = CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
    ///     scope.input("x", DType::F32, [3]).exp().tap("h").sum(..)
    /// })?;
    /// assert_eq!(captured.graph.outputs.len(), 1);
    /// assert_eq!(&*captured.with_taps().outputs[1].name, "tap.h");
    /// # Ok::<(), kiln_ir::Diagnostics>(())
    /// ```
    pub fn with_taps(&self) -> Graph {
        let mut graph = self.graph.clone();
        for tap in &self.taps {
            let taken = |graph: &Graph, name: &str| graph.outputs.iter().any(|output| &*output.name == name);
            let mut name = format!("tap.{}", tap.name);
            let mut count = 1;
            while taken(&graph, &name) {
                count += 1;
                name = format!("tap.{}.{count}", tap.name);
            }
            graph.outputs.push(Output { name: name.into(), value: tap.value });
        }
        graph
    }

    /// Everything that was baked into the graph, in the order in which it was recorded.
    pub fn baked(&self) -> Vec<Baked> {
        let nodes = self.graph.nodes.iter().enumerate();
        nodes
            .filter_map(|(index, node)| {
                let text = match &node.op {
                    Op::Literal { value, .. } => value.to_string(),
                    Op::Constant { data, .. } => format!("{data:?}"),
                    Op::Input { .. }
                    | Op::Iota { .. }
                    | Op::RandomBits { .. }
                    | Op::Scalar(_)
                    | Op::Cast(_)
                    | Op::Bitcast(_)
                    | Op::Select
                    | Op::Reduce { .. }
                    | Op::Scan { .. }
                    | Op::Reshape(_)
                    | Op::Permute(_)
                    | Op::Broadcast(_)
                    | Op::Slice { .. }
                    | Op::Pad { .. }
                    | Op::Concat { .. }
                    | Op::MatMul { .. }
                    | Op::Gather { .. }
                    | Op::Scatter { .. }
                    | Op::Transfer(_)
                    | Op::StopGradient
                    | Op::Mark
                    | Op::Barrier
                    | Op::Custom(_) => return None,
                };
                Some(Baked { value: Value::first(index), ty: node.types[0].clone(), text, loc: node.loc })
            })
            .collect()
    }
}
