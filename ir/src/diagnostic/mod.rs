//! Diagnostics: the one error type of the project.
//!
//! A [`Diagnostic`] is plain data: a documented code, a message, the user's line, the operands with their origins, the way out.
//! [`Diagnostics`] is what functions return: one or more of them. Rendering needs the user's source text, which this crate never
//! reads: whoever renders hands in a lookup ([`Rendering`]). `Display` is the text without source lines, `Debug` the data.

mod caret;
mod code;
mod render;
#[cfg(test)]
mod tests;

use std::fmt;

pub use code::Code;
pub use render::{Color, Rendering};

use crate::Loc;

/// One mistake, named with everything its author needs to mend it.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostic {
    /// The documented code.
    pub code: Code,
    /// The first line after the code, as documented.
    pub message: String,
    /// Where it happened.
    pub loc: Loc,
    /// The op that was being recorded, as the text form names it.
    pub op: Option<String>,
    /// What the caret says.
    pub label: Option<String>,
    /// Operands and other places that belong to the mistake.
    pub notes: Vec<Note>,
    /// Ways out.
    pub help: Vec<String>,
}

/// An operand (or another participant) of a mistake: `lhs  f32[32, 10] @wgpu   made at src/model.rs:40:13`.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// What part it plays: `lhs`, `rhs`, ``element 2``.
    pub role: String,
    /// What it is, a type as a rule.
    pub text: String,
    /// How it came to be there: `made`, `input "b", declared`.
    pub verb: String,
    /// Where.
    pub loc: Loc,
}

impl Diagnostic {
    /// A diagnostic with its message; the rest is added by the methods below.
    pub fn new(code: Code, message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            code,
            message: message.into(),
            loc: Loc::Unknown,
            op: None,
            label: None,
            notes: Vec::new(),
            help: Vec::new(),
        }
    }

    /// Sets where it happened.
    pub fn at(mut self, loc: Loc) -> Diagnostic {
        self.loc = loc;
        self
    }

    /// Sets the op, by the name the text form uses.
    pub fn in_op(mut self, op: impl Into<String>) -> Diagnostic {
        self.op = Some(op.into());
        self
    }

    /// Sets what the caret says.
    pub fn label(mut self, label: impl Into<String>) -> Diagnostic {
        self.label = Some(label.into());
        self
    }

    /// Adds an operand or another participant.
    pub fn note(
        mut self,
        role: impl Into<String>,
        text: impl Into<String>,
        verb: impl Into<String>,
        loc: Loc,
    ) -> Diagnostic {
        self.notes.push(Note { role: role.into(), text: text.into(), verb: verb.into(), loc });
        self
    }

    /// Adds a way out.
    pub fn help(mut self, help: impl Into<String>) -> Diagnostic {
        self.help.push(help.into());
        self
    }
}

/// One or more diagnostics: the error of every fallible function. `Display` renders them all as text without source lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostics(Vec<Diagnostic>);

/// The result type of the project.
pub type Result<T, E = Diagnostics> = std::result::Result<T, E>;

impl Diagnostics {
    /// Wraps a list. `None` where it is empty.
    pub fn from_list(list: Vec<Diagnostic>) -> Option<Diagnostics> {
        (!list.is_empty()).then_some(Diagnostics(list))
    }

    /// The first diagnostic.
    pub fn first(&self) -> &Diagnostic {
        &self.0[0]
    }

    /// All of them, in the order in which they were raised.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.0.iter()
    }

    /// How many there are; never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Each of them changed.
    pub fn map(self, change: impl FnMut(Diagnostic) -> Diagnostic) -> Diagnostics {
        Diagnostics(self.0.into_iter().map(change).collect())
    }

    /// Their codes.
    pub fn codes(&self) -> Vec<Code> {
        self.0.iter().map(|diagnostic| diagnostic.code).collect()
    }
}

impl IntoIterator for Diagnostics {
    type Item = Diagnostic;
    type IntoIter = std::vec::IntoIter<Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl From<Diagnostic> for Diagnostics {
    fn from(diagnostic: Diagnostic) -> Diagnostics {
        Diagnostics(vec![diagnostic])
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(&|_| None))
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(&|_| None))
    }
}

impl std::error::Error for Diagnostic {}
impl std::error::Error for Diagnostics {}
