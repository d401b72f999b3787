//! The error of every fallible call: diagnostics that show the user's own lines.

use std::fmt;
use std::io::Write;
use std::ops::Deref;
use std::process::ExitCode;

use kiln_capture::source_text;
use kiln_ir::tree::Mismatch;
use kiln_ir::{Code, Color, Diagnostic, Diagnostics, Loc, Rendering};
use kiln_runtime::RunError;

/// One or more diagnostics. `Display` is the whole text, with the user's source lines where the files can be read.
///
/// Rust prints the `Debug` form of what `fn main() -> kiln::Result<()>` returns: `{:?}` is the same text, so that it shows mistakes as they
/// are meant to be seen, without colour. `{:#?}` is the data. [`kiln::main`](crate::main) prints in colour on a terminal.
///
/// ```
/// fn read() -> kiln::Result<Vec<i32>> {
///     let array = kiln::Array::new(&kiln::Device::cpu(), [1.0f32, 2.0])?;
///     Ok(array.to_vec()?)
/// }
/// assert!(read().unwrap_err().to_string().starts_with("error[K0404]: Should be int, got float"));
/// ```
#[derive(Clone, PartialEq)]
pub struct Error(Diagnostics);

/// The result type of the facade.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// What went wrong, as data.
    pub fn diagnostics(&self) -> &Diagnostics {
        &self.0
    }

    /// This error at the line of a call, where it has no line of its own.
    pub(crate) fn called_at(self, loc: Loc) -> Error {
        Error(self.0.map(|diagnostic| match diagnostic.loc {
            Loc::Unknown => diagnostic.at(loc),
            Loc::Caller(_) | Loc::Text { .. } => diagnostic,
        }))
    }

    /// What went wrong, as data, by value.
    pub fn into_diagnostics(self) -> Diagnostics {
        self.0
    }
}

/// The whole text of diagnostics, with the user's source lines where the files can be read.
pub fn render(diagnostics: &Diagnostics) -> String {
    diagnostics.render(&source_text)
}

/// As [`render`], with the escape codes that colour it on a terminal. Print it through a stream that takes them away elsewhere, such as those
/// of `anstream`.
pub fn render_colored(diagnostics: &Diagnostics) -> String {
    diagnostics.render_as(&Rendering { color: Color::Ansi, ..Rendering::plain(&source_text) })
}

/// The body of a `main` whose mistakes are printed to the standard error, in colour on a terminal, plain elsewhere and where `NO_COLOR` is set.
/// The exit code is 0, or 1 after a mistake.
///
/// ```
/// use kiln::prelude::*;
///
/// fn main() -> std::process::ExitCode {
///     kiln::main(|| {
///         let double = jit(&Device::cpu(), |x: Tensor| &x + &x);
///         assert_eq!(double.call(4.0)?.item::<f32>()?, 8.0);
///         Ok(())
///     })
/// }
/// ```
pub fn main(body: impl FnOnce() -> Result<()>) -> ExitCode {
    match body() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Where nobody listens there is nothing to be said.
            let _ = anstream::stderr().write_all(render_colored(&error).as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// The page of a documented error: what it means, a failing snippet, the mended snippet. `None` for an unknown code.
///
/// ```
/// assert!(kiln::explain("K0201").is_some());
/// assert!(kiln::explain("K9999").is_none());
/// ```
pub fn explain(code: &str) -> Option<&'static str> {
    code.parse::<Code>().ok().map(Code::explain)
}

impl Deref for Error {
    type Target = Diagnostics;

    fn deref(&self) -> &Diagnostics {
        &self.0
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&render(&self.0))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return f.debug_tuple("Error").field(&self.0).finish();
        }
        // `main` prints `Error: ` before this, and a newline after it.
        write!(f, "\n{}", render(&self.0).trim_end())
    }
}

impl std::error::Error for Error {}

impl From<Diagnostics> for Error {
    fn from(diagnostics: Diagnostics) -> Error {
        Error(diagnostics)
    }
}

impl From<Diagnostic> for Error {
    fn from(diagnostic: Diagnostic) -> Error {
        Error(diagnostic.into())
    }
}

impl From<RunError> for Error {
    fn from(error: RunError) -> Error {
        Error(error.diagnostics)
    }
}

/// K1003.
impl From<Mismatch> for Error {
    fn from(mismatch: Mismatch) -> Error {
        Diagnostic::new(Code::K1003, format!("trees differ in structure: {mismatch}")).into()
    }
}

/// K1001.
impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        Diagnostic::new(Code::K1001, format!("file cannot be read or written: {error}")).into()
    }
}
