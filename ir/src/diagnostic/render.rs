//! A diagnostic as text: code and message, the source line with a caret, the operands in a table, the help.

use std::fmt::Write;

use super::Diagnostic;
use crate::Loc;

impl Diagnostic {
    /// The text of this diagnostic, ending in a newline. `source` gives the text of a file by the path in [`Loc::Caller`]
    /// (or `"<text>"` for IR text); where it gives nothing the source line is left out.
    pub fn render(&self, source: &dyn Fn(&str) -> Option<String>) -> String {
        self.render_named("<text>", source)
    }

    /// As [`Diagnostic::render`], with the name of the file that an IR text came from. `source` is asked for that name.
    pub fn render_named(&self, file: &str, source: &dyn Fn(&str) -> Option<String>) -> String {
        let mut text = format!("error[{}]: {}\n", self.code, self.message);
        self.render_place(&mut text, file, source);
        self.render_notes(&mut text, file);
        for help in &self.help {
            line(&mut text, format_args!("  help: {help}"));
        }
        text
    }

    fn render_place(&self, text: &mut String, file: &str, source: &dyn Fn(&str) -> Option<String>) {
        let op = self.op.as_ref().map_or_else(String::new, |op| format!(" in `{op}`"));
        if !self.loc.is_unknown() {
            line(text, format_args!("  --> {}{op}", place(self.loc, file)));
        } else if !op.is_empty() {
            line(text, format_args!("  -->{op}"));
        }
        let label = self.label.as_deref().unwrap_or("");
        match source_line(self.loc, file, source) {
            Some((number, column, code)) => {
                let number = number.to_string();
                let gutter = " ".repeat(number.len());
                let lead: String = code.chars().take(column - 1).map(|c| if c == '\t' { c } else { ' ' }).collect();
                line(text, format_args!("{gutter} |"));
                line(text, format_args!("{number} | {code}"));
                line(text, format_args!("{gutter} | {lead}^ {label}"));
            }
            None if !label.is_empty() => line(text, format_args!("  {label}")),
            None => {}
        }
    }

    fn render_notes(&self, text: &mut String, file: &str) {
        let width = |part: fn(&super::Note) -> &str| {
            self.notes.iter().map(|note| part(note).chars().count()).max().unwrap_or(0)
        };
        let (roles, texts) = (width(|note| &note.role), width(|note| &note.text));
        for note in &self.notes {
            let place = match (note.loc, note.verb.as_str()) {
                (Loc::Unknown, verb) => verb.to_owned(),
                (loc, verb) => format!("{verb} at {}", place(loc, file)),
            };
            line(text, format_args!("  {:roles$}  {:texts$}   {place}", note.role, note.text));
        }
    }
}

fn line(text: &mut String, content: std::fmt::Arguments<'_>) {
    let start = text.len();
    write!(text, "{content}").expect("writing to a string cannot fail");
    let kept = text[start..].trim_end().len();
    text.truncate(start + kept);
    text.push('\n');
}

/// A place as the user sees it: one in an IR text by the name of its file.
fn place(loc: Loc, file: &str) -> String {
    match loc {
        Loc::Text { line, column } => format!("{file}:{line}:{column}"),
        Loc::Unknown | Loc::Caller(_) => loc.to_string(),
    }
}

fn source_line(loc: Loc, text_file: &str, source: &dyn Fn(&str) -> Option<String>) -> Option<(u32, usize, String)> {
    let (line, column) = loc.line_column()?;
    let file = match loc {
        Loc::Unknown => return None,
        Loc::Caller(location) => location.file(),
        Loc::Text { .. } => text_file,
    };
    let text = source(file)?;
    let code = text.lines().nth(line as usize - 1)?;
    Some((line, (column as usize).max(1), code.to_owned()))
}
