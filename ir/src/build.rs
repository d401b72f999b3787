//! Building graphs: the one place where nodes are made, typed and checked.
//!
//! Capture records through it, gradients append to it, passes rebuild with it, the parser reads into it. In *interning* mode equal
//! nodes become one (common subexpressions), which is what every pass wants and capture must not have.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::custom::GradientRule;
use crate::op::{Symmetry, infer};
use crate::rebuild::retarget_op;
use crate::{
    Axes, Backend, Code, Custom, DType, Diagnostic, Graph, HostData, Literal, Loc, Node, NodeId, Op, Operands, Output,
    ReduceKind, ScalarOp, Shape, TensorType, Value,
};

/// What makes two nodes equal.
type Expression = (Op, Operands);

/// A graph under construction.
///
/// ```
/// use kiln_ir::{Backend, DType, GraphBuilder, Loc, ScalarOp, TensorType};
/// let mut b = GraphBuilder::new("double");
/// let x = b.input("x", TensorType::new(DType::F32, [3], Backend::Cpu), Loc::Unknown)?;
/// let y = b.scalar(ScalarOp::Add, &[x, x], Loc::Unknown)?;
/// let graph = b.finish([("y", y)])?;
/// assert_eq!(graph.nodes.len(), 2);
/// # Ok::<(), kiln_ir::Diagnostic>(())
/// ```
#[derive(Clone, Debug)]
pub struct GraphBuilder {
    name: Arc<str>,
    nodes: Vec<Node>,
    inputs: Vec<Value>,
    interned: Option<HashMap<Expression, NodeId>>,
    /// Gradients of custom ops, each on operands of certain types.
    rules: HashMap<(Custom, Vec<TensorType>), GradientRule>,
}

impl GraphBuilder {
    /// A builder in which every `add` makes a node.
    pub fn new(name: impl Into<Arc<str>>) -> GraphBuilder {
        GraphBuilder { name: name.into(), nodes: Vec::new(), inputs: Vec::new(), interned: None, rules: HashMap::new() }
    }

    /// A builder in which equal nodes are made once; operands of commutative ops are put in order.
    pub fn interning(name: impl Into<Arc<str>>) -> GraphBuilder {
        GraphBuilder { interned: Some(HashMap::new()), ..GraphBuilder::new(name) }
    }

    /// A builder that goes on where a graph ends. The graph's outputs are left to the caller.
    pub fn from_graph(graph: &Graph) -> GraphBuilder {
        GraphBuilder {
            name: graph.name.clone(),
            nodes: graph.nodes.clone(),
            inputs: graph.inputs.clone(),
            interned: None,
            rules: HashMap::new(),
        }
    }

    /// Tells what gradients are to be taken for a custom op on operands of these types, in the place of its body's.
    pub fn set_gradient_rule(&mut self, custom: Custom, operands: Vec<TensorType>, rule: GradientRule) {
        self.rules.insert((custom, operands), rule);
    }

    /// The gradient rule of a custom op on operands of these types, if one was set.
    pub fn gradient_rule(&self, custom: &Custom, operands: &[TensorType]) -> Option<&GradientRule> {
        // The key is only made where there is something to find.
        if self.rules.is_empty() {
            return None;
        }
        self.rules.get(&(custom.clone(), operands.to_vec()))
    }

    /// The nodes so far.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The arguments so far.
    pub fn inputs(&self) -> &[Value] {
        &self.inputs
    }

    /// The node that makes a value.
    pub fn node(&self, value: Value) -> &Node {
        &self.nodes[value.node.index()]
    }

    /// The type of a value.
    pub fn ty(&self, value: Value) -> &TensorType {
        &self.node(value).types[value.result as usize]
    }

    /// Declares an argument. K0107 where the name is taken.
    pub fn input(&mut self, name: impl Into<Arc<str>>, ty: TensorType, loc: Loc) -> Result<Value, Diagnostic> {
        let name = name.into();
        let first =
            self.inputs.iter().find(|&&input| matches!(&self.node(input).op, Op::Input { name: n, .. } if *n == name));
        if let Some(&first) = first {
            return Err(Diagnostic::new(Code::K0107, format!("duplicate graph input tensor {name}")).at(loc).note(
                "first",
                self.ty(first).to_string(),
                "declared",
                self.node(first).loc,
            ));
        }
        self.value(Op::Input { name, ty }, &[], loc)
    }

    /// Declares a source (an argument, a literal, a constant, a count) on another backend, as long as nothing has used it.
    ///
    /// # Errors
    ///
    /// K0202 for any other value.
    pub fn place(&mut self, value: Value, backend: Backend) -> Result<(), Diagnostic> {
        let node = self.node(value);
        let used = self.nodes.iter().any(|user| user.operands.contains(&value));
        let source = matches!(node.op, Op::Input { .. } | Op::Literal { .. } | Op::Constant { .. } | Op::Iota { .. });
        if used || !source {
            let message = format!("Tensor is on the wrong backend (expected {backend}).");
            let state = if source { "has been used already" } else { "is computed" };
            let diagnostic = Diagnostic::new(Code::K0202, message)
                .label(format!("an argument is declared elsewhere before it is used; this tensor {state}"))
                .help(format!("move it with `.to(Backend::{backend})`; it is the only op that crosses backends"));
            return Err(self.note(diagnostic, "tensor", value));
        }
        let op = retarget_op(&node.op, backend)?;
        let types = infer(&op, &[])?;
        let node = &mut self.nodes[value.node.index()];
        (node.op, node.types) = (op, types);
        Ok(())
    }

    /// Adds a node with one result.
    pub fn value(&mut self, op: Op, operands: &[Value], loc: Loc) -> Result<Value, Diagnostic> {
        Ok(Value { node: self.add(op, operands, loc)?, result: 0 })
    }

    /// Adds a node: infers its types, or says what is wrong with its operands, each with its origin.
    pub fn add(&mut self, op: Op, operands: &[Value], loc: Loc) -> Result<NodeId, Diagnostic> {
        let types = {
            let operand_types: SmallVec<[&TensorType; 4]> = operands.iter().map(|&operand| self.ty(operand)).collect();
            infer(&op, &operand_types).map_err(|diagnostic| self.explain(diagnostic, &op, operands, loc))?
        };
        let mut operands: Operands = operands.into();
        if let (Some(_), Op::Scalar(scalar)) = (&self.interned, &op)
            && scalar.row().symmetry == Symmetry::Commutative
        {
            operands.sort_unstable();
        }
        let is_input = matches!(op, Op::Input { .. });
        let id = NodeId(self.nodes.len() as u32);
        if let Some(interned) = self.interned.as_mut().filter(|_| !is_input) {
            match interned.entry((op.clone(), operands.clone())) {
                std::collections::hash_map::Entry::Occupied(known) => return Ok(*known.get()),
                std::collections::hash_map::Entry::Vacant(place) => place.insert(id),
            };
        }
        self.nodes.push(Node { op, operands, types, loc });
        if is_input {
            self.inputs.push(Value { node: id, result: 0 });
        }
        Ok(id)
    }

    /// The diagnostic with its place, its op, and all operands with their types and origins: what [`GraphBuilder::add`] does to what
    /// [`infer`] says, for whoever checks operands before they are brought to one shape.
    pub fn explain(&self, diagnostic: Diagnostic, op: &Op, operands: &[Value], loc: Loc) -> Diagnostic {
        let diagnostic = diagnostic.at(loc).in_op(op.name());
        operands.iter().enumerate().fold(diagnostic, |diagnostic, (index, &operand)| {
            self.note(diagnostic, &op.role(index, operands.len()), operand)
        })
    }

    /// The diagnostic with one participant: its part, its type, and where it was made.
    pub fn note(&self, diagnostic: Diagnostic, role: &str, value: Value) -> Diagnostic {
        let node = self.node(value);
        let verb = match &node.op {
            Op::Input { name, .. } => format!("input \"{name}\", declared"),
            _ => "made".to_owned(),
        };
        diagnostic.note(role, self.ty(value).to_string(), verb, node.loc)
    }

    /// Ends the graph. K0107 where two outputs share a name.
    pub fn finish<N: Into<Arc<str>>>(self, outputs: impl IntoIterator<Item = (N, Value)>) -> Result<Graph, Diagnostic> {
        let outputs: Vec<Output> =
            outputs.into_iter().map(|(name, value)| Output { name: name.into(), value }).collect();
        let mut names = std::collections::HashSet::new();
        if let Some(twice) = outputs.iter().find(|output| !names.insert(output.name.clone())) {
            return Err(Diagnostic::new(Code::K0107, format!("duplicate graph output tensor {}", twice.name))
                .at(self.node(twice.value).loc));
        }
        Ok(Graph { name: self.name, nodes: self.nodes, inputs: self.inputs, outputs })
    }

    // Shorthands for what gradients, composites and rewrites are made of.

    /// An elementwise op.
    pub fn scalar(&mut self, op: ScalarOp, operands: &[Value], loc: Loc) -> Result<Value, Diagnostic> {
        self.value(Op::Scalar(op), operands, loc)
    }

    /// A rank-0 literal of the dtype and backend of `like`, rounded to that dtype.
    pub fn literal_like(&mut self, like: Value, value: f64, loc: Loc) -> Result<Value, Diagnostic> {
        let ty = self.ty(like);
        let op = Op::Literal { value: Literal::from_f64(ty.dtype, value), backend: ty.backend };
        self.value(op, &[], loc)
    }

    /// A tensor of the type of `like`, filled with one number rounded to its dtype.
    pub fn full_like(&mut self, like: Value, value: f64, loc: Loc) -> Result<Value, Diagnostic> {
        let ty = self.ty(like).clone();
        self.full(&ty, Literal::from_f64(ty.dtype, value), loc)
    }

    /// A tensor filled with one literal, of the literal's dtype and `ty`'s shape and backend.
    pub fn full(&mut self, ty: &TensorType, value: Literal, loc: Loc) -> Result<Value, Diagnostic> {
        let literal = self.value(Op::Literal { value, backend: ty.backend }, &[], loc)?;
        self.broadcast(literal, &ty.shape, loc)
    }

    /// A baked-in tensor.
    pub fn constant(&mut self, data: HostData, backend: Backend, loc: Loc) -> Result<Value, Diagnostic> {
        self.value(Op::Constant { data, backend }, &[], loc)
    }

    /// A cast; the operand itself where it already has the dtype.
    pub fn cast(&mut self, x: Value, dtype: DType, loc: Loc) -> Result<Value, Diagnostic> {
        if self.ty(x).dtype == dtype { Ok(x) } else { self.value(Op::Cast(dtype), &[x], loc) }
    }

    /// A broadcast; the operand itself where it already has the shape.
    pub fn broadcast(&mut self, x: Value, shape: &Shape, loc: Loc) -> Result<Value, Diagnostic> {
        if self.ty(x).shape == *shape { Ok(x) } else { self.value(Op::Broadcast(shape.clone()), &[x], loc) }
    }

    /// A reshape; the operand itself where it already has the shape.
    pub fn reshape(&mut self, x: Value, shape: &Shape, loc: Loc) -> Result<Value, Diagnostic> {
        if self.ty(x).shape == *shape { Ok(x) } else { self.value(Op::Reshape(shape.clone()), &[x], loc) }
    }

    /// A permutation of the axes; the operand itself where it is the identity.
    pub fn permute(&mut self, x: Value, permutation: &[usize], loc: Loc) -> Result<Value, Diagnostic> {
        if permutation.iter().enumerate().all(|(index, &axis)| index == axis)
            && permutation.len() == self.ty(x).shape.rank()
        {
            return Ok(x);
        }
        self.value(Op::Permute(permutation.into()), &[x], loc)
    }

    /// A reduction that keeps its axes with extent 1.
    pub fn reduce(&mut self, kind: ReduceKind, axes: Axes, x: Value, loc: Loc) -> Result<Value, Diagnostic> {
        self.value(Op::Reduce { kind, axes }, &[x], loc)
    }
}
