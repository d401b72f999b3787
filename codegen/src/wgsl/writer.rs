//! Text under construction: indented lines and names that nothing else has.

/// Lines of WGSL, each at the depth of the blocks that are open.
#[derive(Debug, Default)]
pub(super) struct Writer {
    text: String,
    depth: usize,
    names: u32,
}

impl Writer {
    /// Nothing yet, at the depth of a function's body.
    pub(super) fn body() -> Writer {
        Writer { depth: 1, ..Writer::default() }
    }

    /// A line.
    pub(super) fn line(&mut self, text: impl AsRef<str>) {
        for _ in 0..self.depth {
            self.text.push_str("    ");
        }
        self.text.push_str(text.as_ref());
        self.text.push('\n');
    }

    /// Opens a block: `head {`, or `{` alone.
    pub(super) fn open(&mut self, head: impl AsRef<str>) {
        self.line(format!("{} {{", head.as_ref()).trim_start());
        self.depth += 1;
    }

    /// Closes the innermost block.
    pub(super) fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        self.line("}");
    }

    /// Closes the innermost block and opens another: `} head {`.
    pub(super) fn reopen(&mut self, head: impl AsRef<str>) {
        self.depth = self.depth.saturating_sub(1);
        self.line(format!("}} {} {{", head.as_ref()));
        self.depth += 1;
    }

    /// A name that this text has not used: `prefix` and a number.
    pub(super) fn fresh(&mut self, prefix: &str) -> String {
        let name = format!("{prefix}{}", self.names);
        self.names += 1;
        name
    }

    /// What has been written.
    pub(super) fn text(&self) -> &str {
        &self.text
    }
}
