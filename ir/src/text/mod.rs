//! The text form of graphs: printing, reading, and what lies beside the text.
//!
//! [`Graph`]'s `Display` prints; [`parse`] reads what was printed, or written by hand, and says with line and column what is wrong. The
//! form is versioned, free of addresses and hash order, and described in `docs/ir.md`.
//!
//! - `parse(print(g)) == g.canonical()`: the same graph with its arguments first, which is how capture and every pass lay a graph out.
//! - `print(parse(print(g))) == print(g)`, byte for byte.
//! - Names, numbers and constants come back exactly, NaN payloads included. A constant of more than [`INLINE_ELEMENTS`] elements prints
//!   as its hash; its data travels beside the text ([`Graph::blobs`], [`parse_with`]).
//! - Reading takes time linear in the text, recurs over nested graphs only (at most [`MAX_DEPTH`] of them), and never panics.

mod build;
mod cursor;
mod lex;
mod number;
mod ops;
mod print;
mod quote;

use std::collections::HashMap;
use std::str::FromStr;

pub use print::GraphText;
pub(crate) use print::custom_attributes;

use crate::{Custom, Diagnostic, Diagnostics, Graph, HostData, Node, NodeId, Op, Result, TensorType, Value};

/// The version of the text form, as in `kiln 1`.
pub const VERSION: u32 = 1;

/// Constants up to this many elements are printed in the text.
pub const INLINE_ELEMENTS: usize = 64;

/// How deep graphs may be nested in ops that own graphs.
pub const MAX_DEPTH: usize = 32;

/// How a graph is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextStyle {
    /// Whether the user's lines stand in comments.
    pub locations: Locations,
    /// Constants up to this many elements are printed in the text, larger ones as their hash.
    pub inline_elements: usize,
}

/// Whether a text shows where nodes were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Locations {
    /// No: the form for snapshots.
    #[default]
    Omitted,
    /// As a comment at the end of a node's line.
    Comments,
}

impl Default for TextStyle {
    /// No locations, constants up to [`INLINE_ELEMENTS`] in the text.
    fn default() -> TextStyle {
        TextStyle { locations: Locations::Omitted, inline_elements: INLINE_ELEMENTS }
    }
}

/// Reads a graph. The diagnostics are K0801 to K0806 with line and column, or what the typing rules and [`crate::verify`] say of a node.
///
/// ```
/// let text = r#"kiln 1
/// graph @double(%0 "x": f32[3] @cpu) {
///   %1 = add %0, %0 : f32[3] @cpu
///   return %1 "y"
/// }
/// "#;
/// let graph = kiln_ir::parse(text)?;
/// assert_eq!(graph.to_string(), text);
/// let wrong = kiln_ir::parse(&text.replace("add", "ad")).unwrap_err();
/// assert_eq!(wrong.first().code.name(), "K0802");
/// # Ok::<(), kiln_ir::Diagnostics>(())
/// ```
pub fn parse(text: &str) -> Result<Graph> {
    parse_with(text, &|_| None)
}

/// Reads a graph whose large constants lie beside the text: `blob` gives the data of a hash. K0806 where it gives nothing, or data with
/// another hash or type than the text says.
pub fn parse_with(text: &str, blob: &dyn Fn(u64) -> Option<HostData>) -> Result<Graph> {
    build::graph(text, blob)
}

/// Whether a text holds comments: the graph that is read from it, and what that prints, do not.
///
/// ```
/// assert!(kiln_ir::has_comments("kiln 1 // the first line"));
/// ```
pub fn has_comments(text: &str) -> bool {
    lex::has_comments(text)
}

impl FromStr for Graph {
    type Err = Diagnostics;

    fn from_str(text: &str) -> Result<Graph> {
        parse(text)
    }
}

/// Reads a type: `f32[32, 10] @cpu`. K0801 says what was expected, K0802 names an unknown dtype or backend.
///
/// ```
/// let ty: kiln_ir::TensorType = "f32[32, 10] @cpu".parse()?;
/// assert_eq!(ty.to_string(), "f32[32, 10] @cpu");
/// # Ok::<(), kiln_ir::Diagnostic>(())
/// ```
impl FromStr for TensorType {
    type Err = Diagnostic;

    fn from_str(text: &str) -> Result<TensorType, Diagnostic> {
        let mut cursor = cursor::Cursor::new(text);
        let ty = cursor.tensor_type()?;
        cursor.end()?;
        Ok(ty)
    }
}

impl Graph {
    /// The data of the constants that the text gives by their hash: those of more than [`INLINE_ELEMENTS`] elements, each once, in
    /// order of first use, those of nested graphs included.
    pub fn blobs(&self) -> Vec<HostData> {
        let mut found: HashMap<u64, Vec<HostData>> = HashMap::new();
        let mut blobs = Vec::new();
        let mut open = vec![self.nodes.iter()];
        while let Some(nodes) = open.last_mut() {
            let Some(node) = nodes.next() else {
                open.pop();
                continue;
            };
            if let Op::Custom(Custom { body: Some(body), .. }) = &node.op {
                open.push(body.nodes.iter());
            }
            if let Op::Constant { data, .. } = &node.op
                && data.shape().num_elements() > INLINE_ELEMENTS
            {
                let same = found.entry(data.content_hash()).or_default();
                if !same.contains(data) {
                    same.push(data.clone());
                    blobs.push(data.clone());
                }
            }
        }
        blobs
    }

    /// This graph with its arguments first, in their order, which is how the text form lays it out: reading the text of a graph gives
    /// its canonical form. A graph that capture, a pass or the parser made is canonical already, unless an argument was declared late.
    ///
    /// The graph must hold the rules of [`crate::verify`].
    pub fn canonical(&self) -> Graph {
        let inputs = self.inputs.iter().map(|input| input.node.index());
        let mut is_input = vec![false; self.nodes.len()];
        inputs.clone().for_each(|index| is_input[index] = true);
        let order: Vec<usize> = inputs.chain((0..self.nodes.len()).filter(|&index| !is_input[index])).collect();
        let mut places = vec![NodeId(0); self.nodes.len()];
        for (place, &index) in order.iter().enumerate() {
            places[index] = NodeId(place as u32);
        }
        let moved = |value: Value| Value { node: places[value.node.index()], ..value };
        let node = |&index: &usize| {
            let mut node: Node = self.nodes[index].clone();
            node.operands.iter_mut().for_each(|operand| *operand = moved(*operand));
            if let Op::Custom(Custom { body: Some(body), .. }) = &mut node.op {
                *body = body.canonical().into();
            }
            node
        };
        let nodes = order.iter().map(node).collect();
        let mut outputs = self.outputs.clone();
        outputs.iter_mut().for_each(|output| output.value = moved(output.value));
        Graph { name: self.name.clone(), nodes, inputs: self.inputs.iter().copied().map(moved).collect(), outputs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    const STEP: &str = r#"kiln 1
graph @step(%0 "x": f32[32, 784] @cpu, %1 "w": f32[784, 10] @cpu) {
  %2 = matmul %0, %1 : f32[32, 10] @cpu
  %3 = reduce.max [1] %2 : f32[32, 1] @cpu
  %4 = custom "best" {"k": i32 3, "axes": [0, -1], "mode": "fast"} %3, %2 : (f32[2] @cpu, i32[2] @cpu)
    body @"two values"(%0 "a": f32[32, 1] @cpu, %1 "b": f32[32, 10] @cpu) {
      %2 = constant [-0.0, nan:0x7fc00001] : f32[2] @cpu
      %3 = constant [-1, 7] : i32[2] @cpu
      return %2 "p", %3 "q"
    }
  return %3 "logits.max", %4.1 "k"
}
"#;

    #[test]
    fn a_text_reads_back_to_the_same_bytes() {
        let graph = parse(STEP).expect("the text is well formed");
        assert_eq!(graph.to_string(), STEP);
        crate::verify(&graph).expect("what is read holds the rules");
    }

    #[test]
    fn independent_mistakes_are_all_reported() {
        let wrong = STEP.replace("matmul %0, %1", "matmul %1, %0").replace("i32 3", "i32 x").replace("%4.1", "%5");
        let codes = parse(&wrong).expect_err("three mistakes").codes();
        assert_eq!(codes, [Code::K0301, Code::K0801, Code::K0110]);
    }
}
