//! Reading graphs: statements into a [`GraphBuilder`], which infers and checks every type.
//!
//! A statement that is wrong is reported and skipped up to the next one; what it would have defined is remembered as *broken*, and uses
//! of it stay silent, so that independent mistakes are all reported and none of them twice.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use smallvec::SmallVec;

use super::cursor::{Cursor, brief};
use super::lex::{Kind, Token};
use super::ops::{self, Draft};
use super::print::Types;
use super::{MAX_DEPTH, VERSION};
use crate::{
    Code, Diagnostic, Diagnostics, Graph, GraphBuilder, HostData, Loc, NodeId, Op, Operands, Result, TensorType, Value,
};

/// Mistakes beyond this many are not reported.
const MAX_DIAGNOSTICS: usize = 20;

/// A whole text: version, graph, nothing else.
pub(super) fn graph(text: &str, blob: &dyn Fn(u64) -> Option<HostData>) -> Result<Graph> {
    let mut reader = Reader { cursor: Cursor::new(text), blob, diagnostics: Vec::new(), depth: 0 };
    let graph = reader.version().and_then(|()| {
        reader.cursor.keyword("graph")?;
        let graph = reader.graph()?;
        reader.cursor.end()?;
        Ok(graph)
    });
    if let Err(diagnostic) = &graph {
        reader.report(diagnostic.clone());
    }
    match (Diagnostics::from_list(reader.diagnostics), graph) {
        (None, Ok(Some(graph))) => Ok(graph),
        (Some(diagnostics), _) => Err(diagnostics),
        (None, Ok(None)) | (None, Err(_)) => unreachable!("a graph is given up only after a report"),
    }
}

struct Reader<'t, 'b> {
    cursor: Cursor<'t>,
    blob: &'b dyn Fn(u64) -> Option<HostData>,
    diagnostics: Vec<Diagnostic>,
    /// How many graphs are open around this place.
    depth: usize,
}

/// What a value's name stands for.
#[derive(Clone, Copy)]
enum Definition {
    Input(Value),
    Node(NodeId),
    /// Its statement was wrong.
    Broken,
}

/// One graph while it is read.
struct Scope<'t> {
    name: Arc<str>,
    builder: GraphBuilder,
    values: HashMap<&'t str, Definition>,
    inputs: HashMap<String, Loc>,
    /// Unknown names with the report of each, which is amended if the name is defined further down.
    unknown: Vec<(&'t str, usize)>,
}

/// `%7.1` as written: the name, and the number of the result.
struct Reference<'t> {
    name: &'t str,
    result: u32,
    token: Token<'t>,
}

impl<'t> Reader<'t, '_> {
    fn report(&mut self, diagnostic: Diagnostic) {
        if self.diagnostics.len() < MAX_DIAGNOSTICS {
            self.diagnostics.push(diagnostic);
        }
    }

    fn version(&mut self) -> Result<(), Diagnostic> {
        self.cursor
            .keyword("kiln")
            .map_err(|diagnostic| diagnostic.help(format!("an IR text begins with its version, `kiln {VERSION}`")))?;
        let loc = self.cursor.loc();
        let version: u64 = self.cursor.integer("the version of the text form")?;
        if version == u64::from(VERSION) {
            return Ok(());
        }
        Err(Diagnostic::new(Code::K0805, format!("version {version} of the text form is not supported"))
            .at(loc)
            .label(format!("this Kiln reads version {VERSION}")))
    }

    /// A graph from its `@`. `None` where something in it was wrong, and was reported; an error where reading cannot go on.
    fn graph(&mut self) -> Result<Option<Graph>, Diagnostic> {
        let reported = self.diagnostics.len();
        let name: Arc<str> = self.graph_name()?.into();
        let mut scope = Scope {
            name: name.clone(),
            builder: GraphBuilder::new(name),
            values: HashMap::new(),
            inputs: HashMap::new(),
            unknown: Vec::new(),
        };
        self.inputs(&mut scope)?;
        self.cursor.mark('{')?;
        let outputs = loop {
            let token = self.cursor.peek();
            match token.kind {
                Kind::Value => {
                    if let Err(diagnostic) = self.statement(&mut scope) {
                        self.report(diagnostic);
                        self.cursor.skip_statement();
                    }
                }
                Kind::Word if token.text == "return" => {
                    self.cursor.next();
                    break self.outputs(&mut scope)?;
                }
                Kind::Mark('}') | Kind::End => {
                    return Err(self.cursor.unexpected("a statement such as `%1 = ..`, or `return`"));
                }
                Kind::Word
                | Kind::Number
                | Kind::Text
                | Kind::OpenText
                | Kind::Hash
                | Kind::Mark(_)
                | Kind::Unknown => {
                    let diagnostic = self.cursor.unexpected("a statement such as `%1 = ..`, or `return`");
                    self.report(diagnostic);
                    self.cursor.next();
                    self.cursor.skip_statement();
                }
            }
        };
        self.amend_unknown(&scope);
        self.cursor.mark('}').map_err(|diagnostic| diagnostic.help("nothing follows `return` in a graph"))?;
        if self.diagnostics.len() > reported || self.diagnostics.len() == MAX_DIAGNOSTICS {
            return Ok(None);
        }
        scope.builder.finish(outputs).map(Some)
    }

    fn graph_name(&mut self) -> Result<String, Diagnostic> {
        self.cursor.mark('@').map_err(|diagnostic| diagnostic.help("a graph's name is written `@step`"))?;
        match self.cursor.peek().kind {
            Kind::Word => Ok(self.cursor.next().text.to_owned()),
            Kind::Value
            | Kind::Number
            | Kind::Text
            | Kind::OpenText
            | Kind::Hash
            | Kind::Mark(_)
            | Kind::Unknown
            | Kind::End => self.cursor.name("the graph's name"),
        }
    }

    fn inputs(&mut self, scope: &mut Scope<'t>) -> Result<(), Diagnostic> {
        self.cursor.mark('(')?;
        if self.cursor.take_mark(')') {
            return Ok(());
        }
        loop {
            if let Err(diagnostic) = self.input(scope) {
                self.cursor.skip_to(&[',', ')', '{']);
                if !self.cursor.is_mark(',') && !self.cursor.is_mark(')') {
                    return Err(diagnostic);
                }
                self.report(diagnostic);
            }
            if self.cursor.take_mark(')') {
                return Ok(());
            }
            if !self.cursor.take_mark(',') {
                return Err(self.cursor.unexpected("`,` or `)`"));
            }
        }
    }

    fn input(&mut self, scope: &mut Scope<'t>) -> Result<(), Diagnostic> {
        let reference = self.reference("an input such as `%0 \"x\": f32[3] @cpu`")?;
        let fresh = self.define(scope, &reference);
        let name = self.cursor.name("the input's name")?;
        self.cursor.mark(':')?;
        let ty = self.cursor.tensor_type()?;
        fresh?;
        let loc = reference.token.loc;
        if let Some(&first) = scope.inputs.get(&name) {
            return Err(Diagnostic::new(Code::K0107, format!("duplicate graph input tensor {name}"))
                .at(loc)
                .label("an input's name is used once")
                .note("first", "", "declared", first));
        }
        // Not through `input`, which looks at all inputs so far.
        let value = scope.builder.value(Op::Input { name: name.clone().into(), ty }, &[], loc)?;
        scope.inputs.insert(name, loc);
        scope.values.insert(reference.name, Definition::Input(value));
        Ok(())
    }

    /// `%2 = op attributes operands : types`, and the graph of a custom op.
    fn statement(&mut self, scope: &mut Scope<'t>) -> Result<(), Diagnostic> {
        let reference = self.reference("a value such as `%1`")?;
        let fresh = self.define(scope, &reference);
        self.cursor.mark('=')?;
        let op_name = self.cursor.peek().text;
        let draft = ops::read(&mut self.cursor)?;
        let operands = self.operands(scope)?;
        self.cursor.mark_on_line(':').map_err(|diagnostic| {
            diagnostic.help("a statement ends with the type of its result: `%2 = add %0, %1 : f32[3] @cpu`")
        })?;
        let types_loc = self.cursor.loc();
        let types = self.types()?;
        let is_custom = matches!(draft, Draft::Custom { .. });
        let op = draft.finish(&types, types_loc, self.blob);
        let body = if is_custom && self.cursor.take_word("body") { Some(self.body()?) } else { None };
        fresh?;
        let (mut op, Some(operands)) = (op?, operands) else { return Ok(()) };
        if let (Op::Custom(custom), Some(body)) = (&mut op, body) {
            let Some(body) = body else { return Ok(()) };
            custom.body = Some(Arc::new(body));
        }
        let loc = reference.token.loc;
        let id = scope.builder.add(op, &operands, loc)?;
        scope.values.insert(reference.name, Definition::Node(id));
        let inferred = &scope.builder.nodes()[id.index()].types;
        if **inferred == *types {
            return Ok(());
        }
        Err(declared_differently(op_name, inferred, &types).at(types_loc))
    }

    fn body(&mut self) -> Result<Option<Graph>, Diagnostic> {
        if self.depth + 1 >= MAX_DEPTH {
            let message = format!("graphs are nested deeper than {MAX_DEPTH}");
            return Err(Diagnostic::new(Code::K0801, message).at(self.cursor.loc()).label("one more here"));
        }
        self.depth += 1;
        let body = self.graph();
        self.depth -= 1;
        body
    }

    /// Takes the name for a statement; it stays broken until the statement is read. An error where it is taken already.
    fn define(&mut self, scope: &mut Scope<'t>, reference: &Reference<'t>) -> Result<(), Diagnostic> {
        let place = |name: &str, message: String| {
            Diagnostic::new(Code::K0107, message).at(reference.token.loc).label(format!("%{name} is defined already"))
        };
        let name = reference.name;
        if reference.token.text.contains('.') {
            let message = format!("expected the name of a value, found one of its results, `{}`", reference.token.text);
            return Err(Diagnostic::new(Code::K0801, message).at(reference.token.loc).label("without the `.` here"));
        }
        let (message, first) = match scope.values.get(name) {
            None => {
                scope.values.insert(name, Definition::Broken);
                return Ok(());
            }
            Some(Definition::Input(value)) => {
                let message = format!("graph input tensor %{name} is produced within the graph");
                let diagnostic = place(name, message).note("first", "", "declared", scope.builder.node(*value).loc);
                return Err(Diagnostic { code: Code::K0109, ..diagnostic });
            }
            Some(Definition::Node(id)) => {
                (format!("duplicate graph value tensor %{name}"), scope.builder.nodes()[id.index()].loc)
            }
            Some(Definition::Broken) => (format!("duplicate graph value tensor %{name}"), Loc::Unknown),
        };
        Err(place(name, message).note("first", "", "defined", first))
    }

    fn reference(&mut self, expected: &str) -> Result<Reference<'t>, Diagnostic> {
        let token = self.cursor.peek();
        if token.kind != Kind::Value {
            return Err(self.cursor.unexpected(expected));
        }
        self.cursor.next();
        let written = &token.text[1..];
        let (name, result) = written.split_once('.').unwrap_or((written, "0"));
        let result = result.parse().map_err(|_| {
            Diagnostic::new(Code::K0801, format!("expected the number of a result, found `{}`", brief(result)))
                .at(token.loc)
                .label("as in `%7.1`")
        })?;
        Ok(Reference { name, result, token })
    }

    /// Operands up to the `:`. `None` where one of them is broken or unknown.
    fn operands(&mut self, scope: &mut Scope<'t>) -> Result<Option<Operands>, Diagnostic> {
        let mut operands = Some(Operands::new());
        if self.cursor.peek().kind != Kind::Value {
            return Ok(operands);
        }
        loop {
            let reference = self.reference("an operand such as `%1`")?;
            match (self.resolve(scope, &reference), &mut operands) {
                (Some(value), Some(operands)) => operands.push(value),
                (None, _) => operands = None,
                (Some(_), None) => {}
            }
            if !self.cursor.take_mark(',') {
                return Ok(operands);
            }
        }
    }

    /// The value a reference means; where it means none, that is reported, unless its statement was.
    fn resolve(&mut self, scope: &mut Scope<'t>, reference: &Reference<'t>) -> Option<Value> {
        let node = match scope.values.get(reference.name) {
            Some(Definition::Broken) => return None,
            Some(Definition::Input(value)) => value.node,
            Some(Definition::Node(id)) => *id,
            None => {
                scope.unknown.push((reference.name, self.diagnostics.len()));
                let message = format!("unknown value `%{}`", brief(reference.name));
                self.report(Diagnostic::new(Code::K0802, message).at(reference.token.loc).label("nothing defines it"));
                return None;
            }
        };
        let count = scope.builder.nodes()[node.index()].types.len();
        if (reference.result as usize) < count {
            return Some(Value { node, result: reference.result });
        }
        let results = if count == 1 { "result" } else { "results" };
        let message =
            format!("`%{}` has {count} {results}, there is no `{}`", brief(reference.name), reference.token.text);
        let place = scope.builder.nodes()[node.index()].loc;
        self.report(Diagnostic::new(Code::K0802, message).at(reference.token.loc).note(
            format!("%{}", brief(reference.name)),
            "",
            "defined",
            place,
        ));
        None
    }

    /// Says of unknown values that are defined further down that this is what is wrong.
    fn amend_unknown(&mut self, scope: &Scope<'t>) {
        for &(name, index) in &scope.unknown {
            if let (true, Some(diagnostic)) = (scope.values.contains_key(name), self.diagnostics.get_mut(index)) {
                diagnostic.label = Some("defined further down; a value comes before its uses".to_owned());
            }
        }
    }

    fn types(&mut self) -> Result<SmallVec<[TensorType; 1]>, Diagnostic> {
        if !self.cursor.take_mark('(') {
            return Ok(SmallVec::from_elem(self.cursor.tensor_type()?, 1));
        }
        let mut types = SmallVec::new();
        if self.cursor.take_mark(')') {
            return Ok(types);
        }
        loop {
            types.push(self.cursor.tensor_type()?);
            if self.cursor.take_mark(')') {
                return Ok(types);
            }
            if !self.cursor.take_mark(',') {
                return Err(self.cursor.unexpected("`,` or `)`"));
            }
        }
    }

    fn outputs(&mut self, scope: &mut Scope<'t>) -> Result<Vec<(Arc<str>, Value)>, Diagnostic> {
        let (mut outputs, mut names) = (Vec::new(), HashSet::new());
        if self.cursor.peek().kind != Kind::Value {
            return Ok(outputs);
        }
        loop {
            let reference = self.reference("an output such as `%2 \"y\"`")?;
            let loc = reference.token.loc;
            let name: Arc<str> = self.cursor.name("the output's name")?.into();
            if !names.insert(name.clone()) {
                self.report(
                    Diagnostic::new(Code::K0107, format!("duplicate graph output tensor {name}"))
                        .at(loc)
                        .label("an output's name is used once"),
                );
            }
            if scope.values.contains_key(reference.name) {
                outputs.extend(self.resolve(scope, &reference).map(|value| (name, value)));
            } else {
                self.report(
                    Diagnostic::new(Code::K0110, format!("graph output tensor {name} does not survive the graph"))
                        .at(loc)
                        .label(format!("nothing in @{} defines `%{}`", scope.name, brief(reference.name))),
                );
            }
            if !self.cursor.take_mark(',') {
                return Ok(outputs);
            }
        }
    }
}

fn declared_differently(op: &str, inferred: &[TensorType], declared: &[TensorType]) -> Diagnostic {
    if inferred.len() != declared.len() {
        let results = if inferred.len() == 1 { "result" } else { "results" };
        let message = format!("`{op}` has {} {results}, {} types are declared", inferred.len(), declared.len());
        return Diagnostic::new(Code::K0803, message).label(format!("`{op}` gives {}", Types(inferred)));
    }
    Diagnostic::new(Code::K0804, format!("declared {}, but `{op}` gives {}", Types(declared), Types(inferred)))
        .label("differs from the inferred type")
        .in_op(op)
}
