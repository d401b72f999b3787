//! From text to tokens, each with its line and column. Nothing fails here: what is no token becomes a token of kind
//! [`Kind::Unknown`], and the parser, which knows what it expected, reports it.

use crate::Loc;

/// What sort of token it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `%7`, `%7.1`, `%x`.
    Value,
    /// A word: `matmul`, `reduce.max`, `f32`, `inf`.
    Word,
    /// `12`, `-1.5e-7`, `-inf`, `nan:0x7fc00001`.
    Number,
    /// `"x"`, quotes included.
    Text,
    /// A name without its closing quote.
    OpenText,
    /// `#0123456789abcdef`.
    Hash,
    /// One of `@ ( ) [ ] { } , : =`.
    Mark(char),
    /// Anything else.
    Unknown,
    /// After the last token.
    End,
}

/// A piece of the text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'t> {
    /// What sort it is.
    pub(super) kind: Kind,
    /// As written.
    pub(super) text: &'t str,
    /// Where it begins.
    pub(super) loc: Loc,
    /// Whether it is the first one of its line.
    pub(super) first: bool,
}

/// All tokens of a text; the last one is [`Kind::End`]. Comments (`//` to the end of the line) and white space are left out.
pub(super) fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut lexer = Lexer { text, at: 0, line: 1, column: 1 };
    let mut tokens = Vec::new();
    let mut line = 0;
    loop {
        lexer.skip_blank();
        let (start, loc) = (lexer.at, Loc::Text { line: lexer.line, column: lexer.column });
        let kind = lexer.token();
        tokens.push(Token { kind, text: &text[start..lexer.at], loc, first: lexer.line != line });
        line = lexer.line;
        if kind == Kind::End {
            return tokens;
        }
    }
}

/// Whether a text holds a comment, which no graph remembers.
pub(super) fn has_comments(text: &str) -> bool {
    let mut lexer = Lexer { text, at: 0, line: 1, column: 1 };
    loop {
        lexer.take_while(char::is_whitespace);
        if lexer.rest().starts_with("//") {
            return true;
        }
        if lexer.token() == Kind::End {
            return false;
        }
    }
}

/// A place in the text. No token spans lines.
struct Lexer<'t> {
    text: &'t str,
    at: usize,
    line: u32,
    column: u32,
}

impl<'t> Lexer<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn advance(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        if c == '\n' {
            self.line = self.line.saturating_add(1);
            self.column = 1;
        } else {
            self.column = self.column.saturating_add(1);
        }
        Some(c)
    }

    fn take_while(&mut self, keep: impl Fn(char) -> bool) {
        while self.peek().is_some_and(&keep) {
            self.advance();
        }
    }

    fn skip_blank(&mut self) {
        loop {
            self.take_while(char::is_whitespace);
            if !self.rest().starts_with("//") {
                return;
            }
            self.take_while(|c| c != '\n');
        }
    }

    fn token(&mut self) -> Kind {
        let Some(first) = self.advance() else { return Kind::End };
        match first {
            '@' | '(' | ')' | '[' | ']' | '{' | '}' | ',' | ':' | '=' => Kind::Mark(first),
            '"' => self.name(),
            '%' => self.value(),
            '#' => {
                self.take_while(is_word);
                Kind::Hash
            }
            '0'..='9' => self.number(),
            '-' if self.peek().is_some_and(|c| c.is_ascii_digit()) => self.number(),
            '-' if self.rest().starts_with("inf") => {
                self.take_while(is_word);
                Kind::Number
            }
            c if c.is_ascii_alphabetic() || c == '_' => self.word(),
            _ => Kind::Unknown,
        }
    }

    fn name(&mut self) -> Kind {
        while let Some(c) = self.peek().filter(|&c| c != '\n') {
            self.advance();
            match c {
                '"' => return Kind::Text,
                '\\' if self.peek().is_some_and(|c| c != '\n') => {
                    self.advance();
                }
                _ => {}
            }
        }
        Kind::OpenText
    }

    fn value(&mut self) -> Kind {
        let start = self.at;
        self.take_while(is_word);
        if self.at == start {
            return Kind::Unknown;
        }
        let mut after = self.rest().chars();
        if after.next() == Some('.') && after.next().is_some_and(|c| c.is_ascii_digit()) {
            self.advance();
            self.take_while(is_word);
        }
        Kind::Value
    }

    fn number(&mut self) -> Kind {
        while let Some(c) = self.peek().filter(|&c| is_word(c) || c == '.') {
            self.advance();
            if matches!(c, 'e' | 'E') && self.peek().is_some_and(|c| matches!(c, '+' | '-')) {
                self.advance();
            }
        }
        Kind::Number
    }

    fn word(&mut self) -> Kind {
        let start = self.at - 1;
        self.take_while(|c| is_word(c) || c == '.');
        if &self.text[start..self.at] == "nan" && self.rest().starts_with(":0x") {
            self.advance();
            self.take_while(is_word);
            return Kind::Number;
        }
        Kind::Word
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<&str> {
        tokens(text).iter().map(|token| token.text).collect()
    }

    #[test]
    fn tokens_stand_alone_without_blanks() {
        assert_eq!(
            texts("%2=reduce.max[1]%1.0:f32[3]@cpu"),
            ["%2", "=", "reduce.max", "[", "1", "]", "%1.0", ":", "f32", "[", "3", "]", "@", "cpu", ""]
        );
        assert_eq!(
            texts("-1.5e-7,-inf nan:0x7fc00001 nan : #00ff"),
            ["-1.5e-7", ",", "-inf", "nan:0x7fc00001", "nan", ":", "#00ff", ""]
        );
    }

    #[test]
    fn slashes_in_a_name_are_no_comment() {
        assert!(!has_comments("graph @\"a // b\" ()"));
        assert!(has_comments("graph @\"a\" () // b"));
    }

    #[test]
    fn columns_count_characters() {
        let tokens = tokens("\"é\" x // comment\n  \"open\n$");
        let places: Vec<_> = tokens.iter().map(|token| (token.kind, token.loc.line_column(), token.first)).collect();
        assert_eq!(
            places,
            [
                (Kind::Text, Some((1, 1)), true),
                (Kind::Word, Some((1, 5)), false),
                (Kind::OpenText, Some((2, 3)), true),
                (Kind::Unknown, Some((3, 1)), true),
                (Kind::End, Some((3, 2)), false),
            ]
        );
    }
}
