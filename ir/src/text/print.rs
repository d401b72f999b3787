//! From a graph to its text.
//!
//! Nodes are renumbered in order, arguments first, so two captures of one program print the same bytes. Printing never fails, not even
//! on a graph that breaks the rules of the IR: the text of such a graph is what a report of that needs.

use std::fmt::{self, Write};
use std::sync::Arc;

use super::quote::{GraphName, Quoted};
use super::{Locations, TextStyle, VERSION};
use crate::{Attribute, Custom, Direction, Graph, HostData, Loc, Node, Op, Precision, TensorType, Value};

/// The longest line on which all arguments, or all results, of a graph stand together.
const WIDTH: usize = 100;

/// A graph with the way to print it: what [`Graph::text`] gives.
#[derive(Clone, Copy, Debug)]
pub struct GraphText<'g> {
    graph: &'g Graph,
    style: TextStyle,
}

impl Graph {
    /// The text of this graph in a chosen style; `to_string()` of it is the text.
    ///
    /// ```
    /// use kiln_ir::{parse, TextStyle};
    /// let text = "kiln 1\ngraph @f() {\n  %0 = literal 1.0 : f32[] @cpu\n  return %0 \"y\"\n}\n";
    /// assert_eq!(parse(text)?.text(TextStyle::default()).to_string(), text);
    /// # Ok::<(), kiln_ir::Diagnostics>(())
    /// ```
    pub fn text(&self, style: TextStyle) -> GraphText<'_> {
        GraphText { graph: self, style }
    }
}

/// The text form, without locations; with `{:#}` the user's lines stand behind each node as comments.
impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let locations = if f.alternate() { Locations::Comments } else { Locations::Omitted };
        self.text(TextStyle { locations, ..TextStyle::default() }).fmt(f)
    }
}

impl fmt::Display for GraphText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "kiln {VERSION}")?;
        let printer = Printer::new(self.graph, self.style, 0);
        write!(f, "graph ")?;
        printer.graph(f)?;
        writeln!(f)
    }
}

/// Where an argument or node of the printed graph stands in the text.
struct Printer<'g> {
    graph: &'g Graph,
    style: TextStyle,
    indent: usize,
    /// The printed number of each node.
    numbers: Vec<usize>,
    /// Which nodes stand in the header.
    in_header: Vec<bool>,
}

impl<'g> Printer<'g> {
    fn new(graph: &'g Graph, style: TextStyle, indent: usize) -> Printer<'g> {
        let count = graph.nodes.len();
        let (mut numbers, mut in_header, mut next) = (vec![0; count], vec![false; count], 0);
        for index in graph.inputs.iter().map(|input| input.node.index()) {
            let is_input = graph.nodes.get(index).is_some_and(|node| matches!(node.op, Op::Input { .. }));
            if is_input && !in_header[index] {
                in_header[index] = true;
                numbers[index] = next;
                next += 1;
            }
        }
        for index in 0..count {
            if !in_header[index] {
                numbers[index] = next;
                next += 1;
            }
        }
        Printer { graph, style, indent, numbers, in_header }
    }

    /// `@name(arguments) { nodes return results }`, without a newline at the end.
    fn graph(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}", GraphName(&self.graph.name))?;
        self.arguments(f)?;
        f.write_str(" {\n")?;
        for (index, node) in self.graph.nodes.iter().enumerate() {
            if !self.in_header[index] {
                self.node(f, index, node)?;
            }
        }
        self.results(f)?;
        write!(f, "\n{:indent$}}}", "", indent = self.indent)
    }

    fn arguments(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.graph.inputs.iter().filter_map(|input| self.graph.nodes.get(input.node.index()));
        let declared: Vec<(String, Loc)> = nodes
            .zip(&self.graph.inputs)
            .filter_map(|(node, &input)| match &node.op {
                Op::Input { name, ty } => Some((format!("{} {}: {ty}", self.value(input), Quoted(name)), node.loc)),
                _ => None,
            })
            .collect();
        self.list(f, ("(", ")"), &declared)
    }

    fn results(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outputs = self.graph.outputs.iter();
        let returned: Vec<_> = outputs
            .map(|output| (format!("{} {}", self.value(output.value), Quoted(&output.name)), Loc::Unknown))
            .collect();
        write!(f, "{:indent$}  return", "", indent = self.indent)?;
        if returned.is_empty() { Ok(()) } else { self.list(f, (" ", ""), &returned) }
    }

    /// Items between brackets: on this line where they fit, else one a line, each with its comment.
    fn list(&self, f: &mut fmt::Formatter<'_>, brackets: (&str, &str), items: &[(String, Loc)]) -> fmt::Result {
        let width: usize = items.iter().map(|(item, _)| item.chars().count() + 2).sum();
        let has_comments = items.iter().any(|(_, loc)| self.comment(*loc).is_some());
        let (open, close) = brackets;
        if width <= WIDTH && !has_comments {
            let items: Vec<&str> = items.iter().map(|(item, _)| item.as_str()).collect();
            return write!(f, "{open}{}{close}", items.join(", "));
        }
        f.write_str(open.trim_end())?;
        for (index, (item, loc)) in items.iter().enumerate() {
            let comma = if index + 1 == items.len() { "" } else { "," };
            write!(
                f,
                "\n{:indent$}    {item}{comma}{}",
                "",
                self.comment(*loc).unwrap_or_default(),
                indent = self.indent
            )?;
        }
        if close.is_empty() { Ok(()) } else { write!(f, "\n{:indent$}{close}", "", indent = self.indent) }
    }

    fn node(&self, f: &mut fmt::Formatter<'_>, index: usize, node: &Node) -> fmt::Result {
        write!(f, "{:indent$}  %{} = {}", "", self.numbers[index], node.op.name(), indent = self.indent)?;
        attributes(f, &node.op, self.style)?;
        for (index, &operand) in node.operands.iter().enumerate() {
            write!(f, "{}{}", if index == 0 { " " } else { ", " }, self.value(operand))?;
        }
        write!(f, " : {}", Types(&node.types))?;
        let comment = self.comment(node.loc).unwrap_or_default();
        if let Op::Custom(Custom { body: Some(body), .. }) = &node.op {
            writeln!(f, "{comment}")?;
            write!(f, "{:indent$}    body ", "", indent = self.indent)?;
            Printer::new(body, self.style, self.indent + 4).graph(f)?;
            return writeln!(f);
        }
        writeln!(f, "{comment}")
    }

    /// The printed name of a value; one that does not exist keeps a name that cannot be read back.
    fn value(&self, value: Value) -> String {
        match (self.numbers.get(value.node.index()), value.result) {
            (Some(number), 0) => format!("%{number}"),
            (Some(number), result) => format!("%{number}.{result}"),
            (None, _) => format!("%missing_{}", value.node.0),
        }
    }

    fn comment(&self, loc: Loc) -> Option<String> {
        match self.style.locations {
            Locations::Comments if !loc.is_unknown() => Some(format!(" // {loc}")),
            Locations::Comments | Locations::Omitted => None,
        }
    }
}

/// What stands between an op's name and its operands, each part with a blank before it.
fn attributes(f: &mut fmt::Formatter<'_>, op: &Op, style: TextStyle) -> fmt::Result {
    match op {
        Op::Input { name, .. } => write!(f, " {}", Quoted(name)),
        Op::Literal { value, .. } => write!(f, " {value}"),
        Op::Constant { data, .. } => constant(f, data, style),
        Op::Iota { axis, .. } | Op::Concat { axis } => write!(f, " axis={axis}"),
        Op::RandomBits { shape, stream } => write!(f, " {shape} stream={stream}"),
        Op::Cast(dtype) | Op::Bitcast(dtype) => write!(f, " {dtype}"),
        Op::Reduce { axes, .. } => write!(f, " {:?}", &**axes),
        Op::Scan { axis, direction, .. } => match direction {
            Direction::Forward => write!(f, " axis={axis}"),
            Direction::Reverse => write!(f, " axis={axis} reverse"),
        },
        Op::Reshape(shape) | Op::Broadcast(shape) => write!(f, " {shape}"),
        Op::Permute(permutation) => write!(f, " {permutation:?}"),
        Op::Slice { starts, sizes, steps } => {
            write!(f, " starts={starts:?} sizes={sizes}")?;
            let plain = steps.len() == starts.len() && steps.iter().all(|&step| step == 1);
            if plain { Ok(()) } else { write!(f, " steps={steps:?}") }
        }
        Op::Pad { low, high, value } => write!(f, " low={low:?} high={high:?} value={value}"),
        Op::MatMul { precision } => match precision {
            Precision::Full => Ok(()),
            Precision::Tf32 => f.write_str(" tf32"),
            Precision::Wide => f.write_str(" wide"),
        },
        Op::Gather { axis, batch } | Op::Scatter { axis, batch, .. } => {
            write!(f, " axis={axis}")?;
            if *batch == 0 { Ok(()) } else { write!(f, " batch={batch}") }
        }
        Op::Transfer(backend) => write!(f, " @{}", backend.keyword()),
        Op::Custom(custom) => {
            write!(f, " {}", Quoted(&custom.name))?;
            custom_attributes(f, &custom.attributes)
        }
        Op::Scalar(_) | Op::Select | Op::StopGradient | Op::Mark | Op::Barrier => Ok(()),
    }
}

/// The elements where they are few, else the hash of the data.
fn constant(f: &mut fmt::Formatter<'_>, data: &HostData, style: TextStyle) -> fmt::Result {
    if data.shape().num_elements() > style.inline_elements {
        return write!(f, " #{:016x}", data.content_hash());
    }
    f.write_str(" [")?;
    for (index, element) in data.elements().enumerate() {
        write!(f, "{}{element}", if index == 0 { "" } else { ", " })?;
    }
    f.write_char(']')
}

/// A custom op's attributes in braces; nothing where there are none.
pub(crate) fn custom_attributes(f: &mut fmt::Formatter<'_>, attributes: &[(Arc<str>, Attribute)]) -> fmt::Result {
    if attributes.is_empty() {
        return Ok(());
    }
    f.write_str(" {")?;
    for (index, (name, attribute)) in attributes.iter().enumerate() {
        write!(f, "{}{}: ", if index == 0 { "" } else { ", " }, Quoted(name))?;
        match attribute {
            Attribute::Number(number) => write!(f, "{} {number}", number.dtype())?,
            Attribute::Ints(ints) => write!(f, "{ints:?}")?,
            Attribute::Text(text) => write!(f, "{}", Quoted(text))?,
        }
    }
    f.write_char('}')
}

/// One type bare, any other number of them in parentheses.
pub(super) struct Types<'a>(pub(super) &'a [TensorType]);

impl fmt::Display for Types<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [ty] = self.0 {
            return write!(f, "{ty}");
        }
        f.write_char('(')?;
        for (index, ty) in self.0.iter().enumerate() {
            write!(f, "{}{ty}", if index == 0 { "" } else { ", " })?;
        }
        f.write_char(')')
    }
}
