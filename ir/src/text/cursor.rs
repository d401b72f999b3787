//! A place among the tokens, and the small things that are read everywhere: marks, names, integers, types.
//!
//! Each function reads one thing or says what was expected in its place. None of them goes back.

use std::str::FromStr;

use smallvec::SmallVec;

use super::lex::{Kind, Token, tokens};
use super::quote::unquote;
use crate::{Backend, Code, DType, Diagnostic, Loc, Shape, TensorType};

/// Tokens, read from the front.
pub(super) struct Cursor<'t> {
    tokens: Vec<Token<'t>>,
    at: usize,
}

impl<'t> Cursor<'t> {
    pub(super) fn new(text: &'t str) -> Cursor<'t> {
        Cursor { tokens: tokens(text), at: 0 }
    }

    /// The next token; the last one is [`Kind::End`], and stays.
    pub(super) fn peek(&self) -> Token<'t> {
        self.tokens[self.at]
    }

    /// The token after the next one.
    pub(super) fn peek_second(&self) -> Token<'t> {
        self.tokens[(self.at + 1).min(self.tokens.len() - 1)]
    }

    pub(super) fn next(&mut self) -> Token<'t> {
        let token = self.peek();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    /// Where the next token begins.
    pub(super) fn loc(&self) -> Loc {
        self.peek().loc
    }

    /// The diagnostic for a next token that is not what was expected.
    pub(super) fn unexpected(&self, expected: &str) -> Diagnostic {
        let token = self.peek();
        let message = format!("expected {expected}, found {}", shown(token));
        let diagnostic = Diagnostic::new(Code::K0801, message).at(token.loc).label(format!("expected {expected} here"));
        match token.kind {
            Kind::OpenText => {
                diagnostic.help("a name ends with `\"` on its own line; a newline in it is written `\\n`")
            }
            Kind::Value
            | Kind::Word
            | Kind::Number
            | Kind::Text
            | Kind::Hash
            | Kind::Mark(_)
            | Kind::Unknown
            | Kind::End => diagnostic,
        }
    }

    pub(super) fn is_mark(&self, mark: char) -> bool {
        self.peek().kind == Kind::Mark(mark)
    }

    pub(super) fn is_word(&self, word: &str) -> bool {
        self.peek().kind == Kind::Word && self.peek().text == word
    }

    /// Takes the mark if it is next.
    pub(super) fn take_mark(&mut self, mark: char) -> bool {
        let found = self.is_mark(mark);
        if found {
            self.next();
        }
        found
    }

    /// Takes the word if it is next.
    pub(super) fn take_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        if found {
            self.next();
        }
        found
    }

    pub(super) fn mark(&mut self, mark: char) -> Result<(), Diagnostic> {
        if self.take_mark(mark) { Ok(()) } else { Err(self.unexpected(&format!("`{mark}`"))) }
    }

    /// A mark that stands on the line of the token before it: where the line ends too early, that is what is said.
    pub(super) fn mark_on_line(&mut self, mark: char) -> Result<(), Diagnostic> {
        let before = self.at.checked_sub(1).map(|at| self.tokens[at]);
        let (true, Some(Token { text, loc: Loc::Text { line, column }, .. })) = (self.peek().first, before) else {
            return self.mark(mark);
        };
        if self.take_mark(mark) {
            return Ok(());
        }
        let column = column.saturating_add(u32::try_from(text.chars().count()).unwrap_or(u32::MAX));
        Err(Diagnostic::new(Code::K0801, format!("expected `{mark}`, found the end of the line"))
            .at(Loc::Text { line, column })
            .label(format!("expected `{mark}` here")))
    }

    pub(super) fn word(&mut self, expected: &str) -> Result<Token<'t>, Diagnostic> {
        if self.peek().kind == Kind::Word { Ok(self.next()) } else { Err(self.unexpected(expected)) }
    }

    pub(super) fn keyword(&mut self, word: &str) -> Result<(), Diagnostic> {
        if self.take_word(word) { Ok(()) } else { Err(self.unexpected(&format!("`{word}`"))) }
    }

    pub(super) fn end(&mut self) -> Result<(), Diagnostic> {
        if self.peek().kind == Kind::End { Ok(()) } else { Err(self.unexpected("the end of the text")) }
    }

    /// A quoted name.
    pub(super) fn name(&mut self, expected: &str) -> Result<String, Diagnostic> {
        let token = self.peek();
        if token.kind != Kind::Text {
            return Err(self.unexpected(expected));
        }
        self.next();
        unquote(token.text).map_err(|why| Diagnostic::new(Code::K0801, why).at(token.loc).label("in this name"))
    }

    /// The token of a number, to be read once its dtype is known.
    pub(super) fn literal(&mut self) -> Result<Token<'t>, Diagnostic> {
        let token = self.peek();
        let is_literal = match token.kind {
            Kind::Number => true,
            Kind::Word => matches!(token.text, "inf" | "nan" | "true" | "false"),
            Kind::Value | Kind::Text | Kind::OpenText | Kind::Hash | Kind::Mark(_) | Kind::Unknown | Kind::End => false,
        };
        if is_literal { Ok(self.next()) } else { Err(self.unexpected("a number, `true` or `false`")) }
    }

    /// An integer of some Rust type.
    pub(super) fn integer<T: FromStr>(&mut self, expected: &str) -> Result<T, Diagnostic> {
        let token = self.peek();
        if token.kind != Kind::Number {
            return Err(self.unexpected(expected));
        }
        match token.text.parse() {
            Ok(integer) => {
                self.next();
                Ok(integer)
            }
            Err(_) => Err(self.unexpected(expected)),
        }
    }

    /// Things between brackets, separated by commas.
    pub(super) fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Cursor<'t>) -> Result<T, Diagnostic>,
    ) -> Result<Vec<T>, Diagnostic> {
        self.mark('[')?;
        let mut items = Vec::new();
        if self.take_mark(']') {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.take_mark(']') {
                return Ok(items);
            }
            if !self.take_mark(',') {
                return Err(self.unexpected("`,` or `]`"));
            }
        }
    }

    /// `[0, 2]`: indices of axes, extents.
    pub(super) fn indices(&mut self, expected: &str) -> Result<SmallVec<[usize; 4]>, Diagnostic> {
        Ok(self.list(|cursor| cursor.integer(expected))?.into())
    }

    pub(super) fn shape(&mut self) -> Result<Shape, Diagnostic> {
        Ok(self.list(|cursor| cursor.integer("an extent"))?.into())
    }

    pub(super) fn dtype(&mut self) -> Result<DType, Diagnostic> {
        let word = self.word("a dtype such as `f32`")?;
        word.text.parse().map_err(|()| {
            let known = DType::ALL.map(DType::name).join(", ");
            Diagnostic::new(Code::K0802, format!("unknown dtype `{}`", brief(word.text)))
                .at(word.loc)
                .label("not a dtype")
                .help(format!("dtypes are {known}"))
        })
    }

    /// `@cpu`.
    pub(super) fn backend(&mut self) -> Result<Backend, Diagnostic> {
        if !self.take_mark('@') {
            return Err(self.unexpected("a backend such as `@cpu`"));
        }
        let word = self.word("the name of a backend")?;
        word.text.parse().map_err(|()| {
            let known = Backend::ALL.map(|backend| format!("@{}", backend.keyword())).join(", ");
            Diagnostic::new(Code::K0802, format!("unknown backend `@{}`", brief(word.text)))
                .at(word.loc)
                .label("not a backend")
                .help(format!("backends are {known}"))
        })
    }

    /// `f32[32, 10] @cpu`.
    pub(super) fn tensor_type(&mut self) -> Result<TensorType, Diagnostic> {
        let dtype = self.dtype()?;
        let shape = self.shape()?;
        let backend = self.backend()?;
        Ok(TensorType { shape, dtype, backend })
    }

    /// Goes on to the next token that begins a line and can begin a statement or end a graph, over whole graphs in braces.
    pub(super) fn skip_statement(&mut self) {
        let mut depth = 0usize;
        loop {
            let token = self.peek();
            let closes = token.kind == Kind::Mark('}');
            let begins = match token.kind {
                Kind::Value => self.peek_second().kind == Kind::Mark('='),
                Kind::Word => token.text == "return",
                Kind::Mark(_) => closes,
                Kind::Number | Kind::Text | Kind::OpenText | Kind::Hash | Kind::Unknown | Kind::End => false,
            };
            if token.kind == Kind::End || (depth == 0 && token.first && begins) {
                return;
            }
            match token.kind {
                Kind::Mark('{') => depth += 1,
                Kind::Mark('}') => depth = depth.saturating_sub(1),
                Kind::Value
                | Kind::Word
                | Kind::Number
                | Kind::Text
                | Kind::OpenText
                | Kind::Hash
                | Kind::Mark(_)
                | Kind::Unknown
                | Kind::End => {}
            }
            self.next();
        }
    }

    /// Goes on to one of the marks, or to the end.
    pub(super) fn skip_to(&mut self, marks: &[char]) {
        while self.peek().kind != Kind::End && !marks.iter().any(|&mark| self.is_mark(mark)) {
            self.next();
        }
    }
}

/// A token as a message shows it.
fn shown(token: Token<'_>) -> String {
    match token.kind {
        Kind::End => "the end of the text".to_owned(),
        Kind::OpenText => "a name without its closing `\"`".to_owned(),
        Kind::Value | Kind::Word | Kind::Number | Kind::Text | Kind::Hash | Kind::Mark(_) | Kind::Unknown => {
            format!("`{}`", brief(token.text).escape_debug())
        }
    }
}

/// The beginning of a word that may be long.
pub(super) fn brief(text: &str) -> String {
    let mut chars = text.chars();
    let start: String = chars.by_ref().take(40).collect();
    if chars.next().is_some() { start + ".." } else { start }
}
