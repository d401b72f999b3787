//! The error of every fallible call: diagnostics that show the user's own lines.

use std::fmt;
use std::ops::Deref;

use kiln_ir::tree::Mismatch;
use kiln_ir::{Code, Diagnostic, Diagnostics};
use kiln_runtime::RunError;

/// One or more diagnostics. `Display` and `Debug` print them whole, with the source lines where the files can be read, so that
/// `fn main() -> kiln::Result<()>` shows them as they are meant to be seen.
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

    /// What went wrong, as data, by value.
    pub fn into_diagnostics(self) -> Diagnostics {
        self.0
    }
}

/// The whole text of diagnostics, with the user's source lines where the files can be read.
pub fn render(diagnostics: &Diagnostics) -> String {
    diagnostics.render(&|path| std::fs::read_to_string(path).ok())
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
        // `main` prints `Error: ` before this.
        f.write_str("\n")?;
        fmt::Display::fmt(self, f)
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
