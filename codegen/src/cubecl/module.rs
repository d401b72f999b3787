//! A text as CubeCL prints it, made ready: our functions in it, names numbered by first appearance, lines indented by their braces.

use std::collections::HashMap;

use super::functions::Functions;

/// Whether a word is a name that CubeCL gave to a value.
fn is_given(word: &str) -> bool {
    let digits = word.strip_prefix('v').or_else(|| word.strip_prefix("op")).unwrap_or_default();
    digits.starts_with(|c: char| c.is_ascii_digit()) || word.starts_with("block") && word.contains("_arg")
}

/// The finished text.
pub(super) fn text(printed: &str, functions: &Functions, shares: bool) -> String {
    let (head, body) = parts(printed);
    let mut text = String::with_capacity(printed.len() + 1024);
    for line in head {
        text.push_str(&line);
        text.push('\n');
    }
    text.push_str(&functions.text());
    if shares {
        text.push_str(SHARED);
    }
    text.push_str(&body);
    text
}

/// Declares the memory that a block's threads share.
pub(super) const SHARED: &str = "extern __shared__ __align__(16) unsigned char shared[];\n";

/// The types of a text, a line each, and its entry point.
pub(super) fn parts(printed: &str) -> (Vec<String>, String) {
    let begin = printed.find("extern \"C\"").unwrap_or(0);
    let (head, body) = printed.split_at(begin);
    // What no text here uses.
    let unused = ["template <typename T", "typedef struct CUtensorMap_st", "struct info_st"];
    let mut skipping = false;
    let mut lines = Vec::new();
    for line in head.lines().filter(|line| !line.trim().is_empty()) {
        skipping |= unused.iter().any(|start| line.starts_with(start));
        if !skipping {
            lines.push(line.to_owned());
        }
        if line.starts_with('}') {
            skipping = false;
        }
    }
    let mut text = String::with_capacity(body.len() + 256);
    indent(&mut text, &renumbered(body));
    (lines, text)
}

fn renumbered(body: &str) -> String {
    let mut names: HashMap<&str, String> = HashMap::new();
    let mut text = String::with_capacity(body.len());
    let mut rest = body;
    while let Some(start) = rest.find(|c: char| c.is_ascii_alphabetic() || c == '_') {
        // A number's suffix or exponent is no word.
        let inside_number = rest[..start].ends_with(|c: char| c.is_ascii_digit() || c == '.');
        let word_end =
            rest[start..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len() - start);
        let (before, word) = (&rest[..start], &rest[start..start + word_end]);
        text.push_str(before);
        let (base, suffix) = match word.strip_suffix("_store") {
            Some(base) => (base, "_store"),
            None => (word, ""),
        };
        if !inside_number && is_given(base) {
            let next = names.len();
            let name = names.entry(base).or_insert_with(|| format!("v{next}"));
            text.push_str(name);
            text.push_str(suffix);
        } else {
            text.push_str(word);
        }
        rest = &rest[start + word_end..];
    }
    text.push_str(rest);
    text
}

fn indent(text: &mut String, body: &str) {
    let mut depth = 0usize;
    for line in body.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (opens, closes) = (line.matches('{').count(), line.matches('}').count());
        let leading = line.chars().take_while(|&c| c == '}').count();
        depth = depth.saturating_sub(leading);
        text.push_str(&"    ".repeat(depth));
        text.push_str(line);
        text.push('\n');
        depth = (depth + opens).saturating_sub(closes - leading);
    }
}
