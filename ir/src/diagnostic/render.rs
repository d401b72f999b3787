//! Diagnostics as text: code and message, the source line with a caret, the operands in a table, the help.
//!
//! The window onto the source is drawn by `annotate-snippets`, which knows tabs, wide characters and lines that are longer than a screen;
//! the lines around it are those of the documentation. What a user named (inputs, files) is shown with its control characters made
//! visible: no name can break a line or colour a terminal.

use std::cell::RefCell;
use std::collections::HashMap;

use annotate_snippets::renderer::{
    DEFAULT_CONTEXT_STYLE, DEFAULT_EMPHASIS_STYLE, DEFAULT_ERROR_STYLE, DEFAULT_HELP_STYLE, Style,
};
use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet, normalize_untrusted_str};
use unicode_width::UnicodeWidthStr;

use super::caret;
use super::{Diagnostic, Diagnostics, Note};
use crate::Loc;

/// Whether a text carries the escape codes of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Color {
    /// Text alone.
    Plain,
    /// With ANSI escape codes for colours.
    Ansi,
}

/// How diagnostics become text.
///
/// ```
/// use kiln_ir::{Color, Rendering, parse};
///
/// let text = "kiln 1\ngraph @f(%0 \"x\": f32[2] @cpu) {\n  %1 = exq %0 : f32[2] @cpu\n  return %1 \"y\"\n}\n";
/// let source = |file: &str| (file == "f.kiln").then(|| text.to_owned());
/// let rendering = Rendering { text_file: "f.kiln", ..Rendering::plain(&source) };
/// let shown = parse(text).unwrap_err().render_as(&rendering);
/// assert!(shown.contains(" --> f.kiln:3:8\n"), "{shown}");
/// assert!(shown.contains("3 |   %1 = exq %0 : f32[2] @cpu\n"), "{shown}");
/// ```
#[derive(Clone, Copy)]
pub struct Rendering<'s> {
    /// Gives the text of a file by the path in a [`Loc::Caller`], or by `text_file`. Where it gives nothing, no source line is shown.
    pub source: &'s dyn Fn(&str) -> Option<String>,
    /// The name of the file that places in an IR text ([`Loc::Text`]) are in.
    pub text_file: &'s str,
    /// Whether the text is coloured.
    pub color: Color,
}

impl<'s> Rendering<'s> {
    /// Without colour; places in an IR text are in `<text>`.
    pub fn plain(source: &'s dyn Fn(&str) -> Option<String>) -> Rendering<'s> {
        Rendering { source, text_file: "<text>", color: Color::Plain }
    }
}

impl Diagnostic {
    /// The text of this diagnostic, without colour, ending in a newline. `source` gives the text of a file by the path in [`Loc::Caller`]
    /// (or `"<text>"` for IR text); where it gives nothing the source line is left out.
    pub fn render(&self, source: &dyn Fn(&str) -> Option<String>) -> String {
        self.render_as(&Rendering::plain(source))
    }

    /// The text of this diagnostic, ending in a newline.
    pub fn render_as(&self, rendering: &Rendering<'_>) -> String {
        let palette = Palette::of(rendering.color);
        let mut text = self.title(&palette);
        let window = Window::find(self, rendering);
        text += &self.place(&palette, rendering, window.as_ref());
        text += &self.label_lines(&palette, rendering, window.as_ref());
        text += &self.table(&palette, rendering);
        for help in &self.help {
            text += &hanging(&paint(palette.help, "help"), help);
        }
        text
    }

    fn title(&self, palette: &Palette) -> String {
        let code = format!("error[{}]", self.code);
        let message = visible(&self.message);
        let mut lines = message.lines();
        let mut text = paint(palette.error, &code);
        text += &paint(palette.message, &format!(": {}", lines.next().unwrap_or_default()));
        text.push('\n');
        for line in lines {
            text += &format!("  {line}\n");
        }
        text
    }

    /// ` --> src/model.rs:42:17 in `add``, its arrow above the bar of the window.
    fn place(&self, palette: &Palette, rendering: &Rendering<'_>, window: Option<&Window>) -> String {
        let indent = " ".repeat(window.map_or(2, |window| window.line.to_string().len()));
        let arrow = paint(palette.frame, "-->");
        let op = self.op.as_ref().map_or_else(String::new, |op| format!(" in `{}`", visible_line(op)));
        match (self.loc, op.is_empty()) {
            (Loc::Unknown, true) => String::new(),
            (Loc::Unknown, false) => format!("{indent}{arrow}{op}\n"),
            (loc, _) => format!("{indent}{arrow} {}{op}\n", place(loc, rendering)),
        }
    }

    /// The window with the label at its caret, or the label alone.
    fn label_lines(&self, palette: &Palette, rendering: &Rendering<'_>, window: Option<&Window>) -> String {
        let label = visible(self.label.as_deref().unwrap_or(""));
        let mut lines = label.lines();
        let mut text = String::new();
        if let Some(window) = window {
            text += &window.draw(rendering.color, lines.next().unwrap_or_default());
        }
        for line in lines {
            text += &format!("  {}\n", paint(palette.label, line));
        }
        text
    }

    /// The operands, one a line: role, what it is, how it came to be there.
    fn table(&self, palette: &Palette, rendering: &Rendering<'_>) -> String {
        let cells: Vec<[String; 3]> = self.notes.iter().map(|note| cells(note, rendering)).collect();
        let width = |column: usize| cells.iter().map(|cells| cells[column].width()).max().unwrap_or(0);
        let (roles, texts) = (width(0), width(1));
        let pad = |text: &str, width: usize| " ".repeat(width - text.width());
        let mut table = String::new();
        for [role, text, origin] in &cells {
            let cell = if texts == 0 { String::new() } else { format!("{text}{}   ", pad(text, texts)) };
            let row = format!("{}  {cell}{origin}", pad(role, roles));
            let row = format!("  {}{}", paint(palette.frame, role), row.trim_end());
            table += row.trim_end();
            table.push('\n');
        }
        table
    }
}

impl Diagnostics {
    /// The whole text, with source lines where `source` can give the text of a file, without colour.
    pub fn render(&self, source: &dyn Fn(&str) -> Option<String>) -> String {
        self.render_as(&Rendering::plain(source))
    }

    /// The whole text: the diagnostics with an empty line between two, and how many they are where there are several.
    pub fn render_as(&self, rendering: &Rendering<'_>) -> String {
        let read: RefCell<HashMap<String, Option<String>>> = RefCell::default();
        let once = |file: &str| {
            let mut read = read.borrow_mut();
            read.entry(file.to_owned()).or_insert_with(|| (rendering.source)(file)).clone()
        };
        let rendering = Rendering { source: &once, ..*rendering };
        let mut parts: Vec<String> = self.iter().map(|diagnostic| diagnostic.render_as(&rendering)).collect();
        if parts.len() > 1 {
            let palette = Palette::of(rendering.color);
            parts.push(paint(palette.message, &format!("{} errors", parts.len())) + "\n");
        }
        parts.join("\n")
    }
}

/// What is coloured how: as in the window.
struct Palette {
    error: Style,
    message: Style,
    frame: Style,
    label: Style,
    help: Style,
}

impl Palette {
    fn of(color: Color) -> Palette {
        match color {
            Color::Plain => {
                let none = Style::new();
                Palette { error: none, message: none, frame: none, label: none, help: none }
            }
            Color::Ansi => Palette {
                error: DEFAULT_ERROR_STYLE,
                message: DEFAULT_EMPHASIS_STYLE,
                frame: DEFAULT_CONTEXT_STYLE,
                label: DEFAULT_ERROR_STYLE,
                help: DEFAULT_HELP_STYLE,
            },
        }
    }
}

fn paint(style: Style, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{style}{text}{style:#}") }
}

/// The line of the source that is shown, and the part of it that is underlined.
struct Window {
    line: u32,
    code: String,
    span: std::ops::Range<usize>,
}

impl Window {
    fn find(diagnostic: &Diagnostic, rendering: &Rendering<'_>) -> Option<Window> {
        let (line, _) = diagnostic.loc.line_column()?;
        let file = match diagnostic.loc {
            Loc::Unknown => return None,
            Loc::Caller(location) => location.file(),
            Loc::Text { .. } => rendering.text_file,
        };
        let text = (rendering.source)(file)?;
        let code = text.lines().nth((line as usize).checked_sub(1)?)?.to_owned();
        let span = caret::span(&code, diagnostic.loc, diagnostic.op.as_deref())?;
        Some(Window { line, code, span })
    }

    fn draw(&self, color: Color, label: &str) -> String {
        let renderer = match color {
            Color::Plain => Renderer::plain(),
            Color::Ansi => Renderer::styled().hyperlink(false),
        };
        let caret = AnnotationKind::Primary.span(self.span.clone());
        let caret = if label.is_empty() { caret } else { caret.label(label) };
        let snippet = Snippet::source(&self.code).line_start(self.line as usize).annotation(caret);
        let mut text = renderer.render(&[Group::with_level(Level::ERROR).element(snippet)]);
        text.push('\n');
        text
    }
}

fn cells(note: &Note, rendering: &Rendering<'_>) -> [String; 3] {
    let origin = match note.loc {
        Loc::Unknown => visible_line(&note.verb),
        loc => format!("{} at {}", visible_line(&note.verb), place(loc, rendering)),
    };
    [visible_line(&note.role), visible_line(&note.text), origin]
}

/// A place as the user sees it: one in an IR text by the name of its file.
fn place(loc: Loc, rendering: &Rendering<'_>) -> String {
    match loc {
        Loc::Text { line, column } => format!("{}:{line}:{column}", visible_line(rendering.text_file)),
        Loc::Unknown | Loc::Caller(_) => loc.to_string(),
    }
}

/// A text after what it is, its further lines below its first.
fn hanging(lead: &str, text: &str) -> String {
    let text = visible(text);
    let mut lines = text.lines();
    let mut shown = format!("  {lead}: {}", lines.next().unwrap_or_default());
    for line in lines {
        shown += &format!("\n        {line}");
    }
    shown + "\n"
}

/// The text with its control characters shown as signs, line breaks left as they are.
fn visible(text: &str) -> String {
    let strange = |c: char| c.is_control() && c != '\n';
    normalize_untrusted_str(text).replace(strange, "\u{fffd}")
}

/// As [`visible`], on one line.
fn visible_line(text: &str) -> String {
    visible(text).replace('\n', "␊")
}
