//! Names in the text form: quoted, with everything that would break a line or hide in it escaped.
//!
//! The set of escaped characters is fixed here, not taken from a Unicode table that grows with the compiler: the same name prints the
//! same bytes for ever.

use std::fmt;

/// A name, printed in quotes: `"logits.max"`, `"two\nlines"`.
pub(super) struct Quoted<'a>(pub(super) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                c if is_hidden(c) => write!(f, "\\u{{{:x}}}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

/// Control characters, line separators, and marks that reorder or hide text.
fn is_hidden(c: char) -> bool {
    matches!(c,
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A graph's name after its `@`: bare where it is a plain word, else quoted.
pub(super) struct GraphName<'a>(pub(super) &'a str);

impl fmt::Display for GraphName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = self.0.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && self.0.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
        if plain { f.write_str(self.0) } else { fmt::Display::fmt(&Quoted(self.0), f) }
    }
}

/// The name between the quotes of a string token, or what is wrong with it.
pub(super) fn unquote(token: &str) -> Result<String, String> {
    let inner = token.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let inner = inner.ok_or_else(|| "a name ends with `\"` on its own line".to_owned())?;
    let mut name = String::with_capacity(inner.len());
    let mut rest = inner.chars();
    while let Some(c) = rest.next() {
        if c != '\\' {
            name.push(c);
            continue;
        }
        match rest.next() {
            Some('"') => name.push('"'),
            Some('\\') => name.push('\\'),
            Some('n') => name.push('\n'),
            Some('r') => name.push('\r'),
            Some('t') => name.push('\t'),
            Some('u') => name.push(unicode(&mut rest)?),
            Some(other) => return Err(format!("`\\{other}` is no escape; known are \\\" \\\\ \\n \\r \\t \\u{{..}}")),
            None => return Err("a name does not end in `\\`".to_owned()),
        }
    }
    Ok(name)
}

/// What follows `\u`: a hexadecimal code point in braces.
fn unicode(rest: &mut std::str::Chars<'_>) -> Result<char, String> {
    let text = rest.as_str();
    let digits = text.strip_prefix('{').and_then(|text| text.split_once('}')).map(|(digits, _)| digits);
    let digits = digits.filter(|digits| (1..=6).contains(&digits.len()));
    let code = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let c = code.and_then(|digits| u32::from_str_radix(digits, 16).ok()).and_then(char::from_u32);
    let c = c.ok_or_else(|| "`\\u` is followed by a character's number, as in `\\u{e9}`".to_owned())?;
    let length = digits.map_or(0, str::len) + 2;
    *rest = text[length..].chars();
    Ok(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back() {
        let long = "x".repeat(300);
        for name in ["", "fn", "a b", "é", "日本", "\"", "\\", "a\nb\r\t", "\0\u{7f}\u{202e}\u{feff}", "😀", &long]
        {
            let printed = Quoted(name).to_string();
            assert_eq!(printed.lines().count(), 1, "{printed}");
            assert_eq!(unquote(&printed).as_deref(), Ok(name));
        }
    }

    #[test]
    fn wrong_escapes_are_named() {
        for text in
            ["\"\\q\"", "\"\\", "\"\\\"", "\"\\u\"", "\"\\u{}\"", "\"\\u{d800}\"", "\"\\u{1234567}\"", "\"\\u{+1}\""]
        {
            assert!(unquote(text).is_err(), "{text}");
        }
    }
}
