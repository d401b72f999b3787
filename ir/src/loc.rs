//! Where something was written: a user's Rust line, or a place in an IR text.

use std::fmt;
use std::panic::Location;

/// The origin of a node or diagnostic. It is carried through every pass, and is no part of a graph's equality.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Loc {
    /// Not known.
    #[default]
    Unknown,
    /// The user's line, as `#[track_caller]` gives it.
    Caller(&'static Location<'static>),
    /// A place in an IR text; the text's file name is known to whoever renders it.
    Text {
        /// Line, from 1.
        line: u32,
        /// Column in characters, from 1.
        column: u32,
    },
}

impl Loc {
    /// The caller of the function that is marked `#[track_caller]`.
    #[track_caller]
    pub fn caller() -> Loc {
        Loc::Caller(Location::caller())
    }

    /// Whether nothing is known.
    pub fn is_unknown(self) -> bool {
        self == Loc::Unknown
    }

    /// Line and column, from 1, where known.
    pub fn line_column(self) -> Option<(u32, u32)> {
        match self {
            Loc::Unknown => None,
            Loc::Caller(location) => Some((location.line(), location.column())),
            Loc::Text { line, column } => Some((line, column)),
        }
    }
}

/// `src/model.rs:42:17`, `<text>:3:5`, or `<unknown>`.
impl fmt::Display for Loc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loc::Unknown => f.write_str("<unknown>"),
            Loc::Caller(location) => write!(f, "{location}"),
            Loc::Text { line, column } => write!(f, "<text>:{line}:{column}"),
        }
    }
}
