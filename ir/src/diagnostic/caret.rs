//! Which part of the user's line the caret underlines.
//!
//! A place is a line and a column. In Rust the column is where the compiler says a call stands: the name of a method, or the first
//! character of an expression like `x + y`. The caret underlines the whole name; for an operator it looks for the one sign that can be
//! meant, and stays at the start of the expression where there is none or several. In the text form a node stands where its result is
//! named; the caret underlines its op.

use std::ops::Range;

use crate::Loc;

/// The bytes of `line` that the caret stands under. `None` where the line has no such column: the source is not the one that was compiled.
pub(super) fn span(line: &str, loc: Loc, op: Option<&str>) -> Option<Range<usize>> {
    let (_, column) = loc.line_column()?;
    let start = byte_of_column(line, column)?;
    let closer = match loc {
        Loc::Caller(_) => op.and_then(sign).and_then(|sign| operator(line, start, sign)),
        Loc::Text { .. } => op.and_then(|op| defined_by(line, start, op)),
        Loc::Unknown => None,
    };
    Some(closer.unwrap_or_else(|| start..start + path(&line[start..])))
}

/// Where a column (in characters, from 1) begins. The end of the line is a column too.
fn byte_of_column(line: &str, column: u32) -> Option<usize> {
    let index = (column as usize).saturating_sub(1);
    line.char_indices().map(|(byte, _)| byte).chain([line.len()]).nth(index)
}

/// The length in bytes of the path (`Tensor::from_inner`), name or character that `text` begins with.
fn path(text: &str) -> usize {
    let mut length = token(text);
    while let Some(rest) = text[length..].strip_prefix("::")
        && rest.starts_with(is_name)
    {
        length += "::".len() + token(rest);
    }
    length
}

/// The length in bytes of the name or the character that `text` begins with.
fn token(text: &str) -> usize {
    // Values and graphs of the text form have a sign before their name.
    let lead = text.strip_prefix(['%', '@']).map_or(0, |_| 1);
    let name: usize = text[lead..].chars().take_while(|&c| is_name(c)).map(char::len_utf8).sum();
    match name {
        0 => text.chars().next().map_or(0, char::len_utf8),
        name => lead + name,
    }
}

fn is_name(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// Where the op stands in a line of the text form whose result begins at `start`: `%2 = add %0, %1`.
fn defined_by(line: &str, start: usize, op: &str) -> Option<Range<usize>> {
    let text = &line[start..];
    let (results, rest) = text.split_once('=')?;
    let name = rest.trim_start();
    let ends = name.strip_prefix(op)?.chars().next().is_none_or(|next| !is_name(next) && next != '.');
    let at = start + text.len() - name.len();
    (ends && results.trim_start().starts_with('%')).then(|| at..at + op.len())
}

/// The sign that records an op.
fn sign(op: &str) -> Option<&'static str> {
    Some(match op {
        "add" => "+",
        "sub" => "-",
        "mul" => "*",
        "div" => "/",
        "rem" => "%",
        "and" => "&",
        "or" => "|",
        "xor" => "^",
        "shl" => "<<",
        "shr" => ">>",
        _ => return None,
    })
}

/// Where the only `sign` between two operands stands in the expression that begins at `start`. `None` where the expression is a call of that
/// name, goes on in the next line, or has the sign twice.
fn operator(line: &str, start: usize, sign: &str) -> Option<Range<usize>> {
    let mut depth = 0;
    let mut after_operand = false;
    let mut found = None;
    let mut at = start;
    while let Some(c) = line[at..].chars().next() {
        let rest = &line[at..];
        if rest.starts_with("//") {
            break;
        }
        let is_sign = depth == 0 && after_operand && rest.starts_with(sign) && !is_other(rest, sign);
        if is_sign && found.replace(at..at + sign.len()).is_some() {
            return None;
        }
        let length = match c {
            '"' => quoted(rest),
            _ if is_sign => sign.len(),
            _ => c.len_utf8(),
        };
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => break,
            ')' | ']' | '}' => depth -= 1,
            ',' | ';' if depth == 0 => break,
            _ => {}
        }
        if !c.is_whitespace() {
            after_operand = is_name(c) || matches!(c, ')' | ']' | '}' | '"' | '?');
        }
        at += length;
    }
    found
}

/// Whether what begins with `sign` is another sign that is longer: `->`, `&&`, `||`.
fn is_other(text: &str, sign: &str) -> bool {
    let next = text[sign.len()..].chars().next();
    matches!((sign, next), ("-", Some('>')) | ("&", Some('&')) | ("|", Some('|')))
}

/// The length of a quoted string, quotes included.
fn quoted(text: &str) -> usize {
    let mut escaped = false;
    for (index, c) in text.char_indices().skip(1) {
        match c {
            '"' if !escaped => return index + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn under(line: &str, op: &str) -> Option<String> {
        let start = line.find('~').expect("the column is marked by a tilde");
        let line = line.replacen('~', "", 1);
        operator(&line, start, sign(op)?).map(|span| {
            let spaces = " ".repeat(line[..span.start].chars().count());
            format!("{line}\n{spaces}{}", "^".repeat(span.len()))
        })
    }

    #[test]
    fn the_caret_stands_under_the_sign_of_an_operator() {
        for (line, op, lead) in [
            ("let h = ~x.matmul(&w) + &b;", "add", "let h = x.matmul(&w) "),
            ("~x - f(y, -z)", "sub", "x "),
            ("f(~x * (y * z), u * v)", "mul", "f(x "),
            ("~a * *b", "mul", "a "),
            ("~a & &b", "and", "a "),
            ("~a << 1", "shl", "a "),
            ("~a /= b; // a / b / c", "div", "a "),
            ("~s.input(\"a + b\", [1]) + 1.0", "add", "s.input(\"a + b\", [1]) "),
            ("~(a + b) + c", "add", "(a + b) "),
            ("(~a + b) + c", "add", "(a "),
            ("~-x - y", "sub", "-x "),
        ] {
            let shown = under(line, op).unwrap_or_else(|| panic!("{line}"));
            let carets = shown.lines().nth(1).unwrap_or_default();
            assert_eq!(carets.trim_end_matches('^'), " ".repeat(lead.chars().count()), "{shown}");
        }
    }

    #[test]
    fn the_caret_stays_at_the_start_where_several_signs_could_be_meant_or_none() {
        for (line, op) in
            [("~a + b + c", "add"), ("~x.add(y)", "add"), ("~a", "mul"), ("~f(a + b)", "add"), ("~-x", "sub")]
        {
            assert_eq!(under(line, op), None, "{line}");
        }
    }

    #[test]
    fn a_name_is_underlined_whole_and_any_other_character_alone() {
        let cases =
            [("matmul(&w)", "matmul"), ("%x, %y", "%x"), ("@gpu)", "@gpu"), ("(a)", "("), ("λx + 1", "λx"), ("", "")];
        for (text, expected) in cases {
            assert_eq!(&text[..path(text)], expected);
        }
        assert_eq!(path("Tensor::from_inner(w)"), "Tensor::from_inner".len());
        assert_eq!(path("sum::<f32>()"), "sum".len());
    }

    #[test]
    fn in_the_text_form_the_op_of_a_node_is_underlined() {
        let under = |line: &str, column, op| {
            span(line, Loc::Text { line: 1, column }, Some(op)).map(|span| line[span].to_owned())
        };
        assert_eq!(under("  %y = reduce.sum [0] %x", 3, "reduce.sum").as_deref(), Some("reduce.sum"));
        assert_eq!(under("  %a, %b = top_k k=2 %x", 3, "top_k").as_deref(), Some("top_k"));
        assert_eq!(under("  %y = reduce.sum [0] %x", 3, "reduce").as_deref(), Some("%y"));
        assert_eq!(under("  %y = add %x, %x : f32[]", 21, "add").as_deref(), Some("f32"));
    }

    #[test]
    fn a_column_beyond_the_line_has_no_place() {
        let place = |column| span("ab", Loc::Text { line: 1, column }, None);
        assert_eq!([place(1), place(3), place(4)], [Some(0..2), Some(2..2), None]);
    }
}
