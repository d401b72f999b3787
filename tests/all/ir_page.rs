//! `docs/ir.md` is true: its texts parse, and its tables are those of the code, with an example for every op.

use kiln_ir::{OpRow, op_rows, parse, verify};

const PAGE: &str = include_str!("../../docs/ir.md");

/// The contents of the fenced blocks of a language.
fn blocks(language: &str) -> Vec<&'static str> {
    let open = format!("\n```{language}\n");
    PAGE.split(&open).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// What the page says of an op, but for the example. A bar in a table is escaped.
fn cells(row: &OpRow) -> String {
    let operands = match row.arity() {
        Some(count) => (0..count).map(|index| row.sample.role(index, count)).collect::<Vec<_>>().join(", "),
        None => "any number".to_owned(),
    };
    let attributes = if row.attributes.is_empty() { String::new() } else { format!("`{}`", row.attributes) };
    format!("| `{}` | {attributes} | {operands} | {} | {} |", row.name(), row.dtypes, row.doc.replace('|', "\\|"))
}

/// The example of an op: the last cell of its line.
fn example(row: &OpRow) -> &'static str {
    let cells = cells(row);
    let line = PAGE.lines().find(|line| line.starts_with(&cells));
    let line = line.unwrap_or_else(|| panic!("docs/ir.md has no line that starts with\n{cells}"));
    line[cells.len()..].trim().strip_suffix(" |").and_then(|cell| cell.strip_prefix('`')?.strip_suffix('`')).unwrap()
}

#[test]
fn the_texts_on_the_page_are_in_printed_form() {
    let texts = blocks("kiln");
    assert_eq!(texts.len(), 3);
    for text in texts {
        let graph = parse(text).unwrap_or_else(|diagnostics| panic!("{diagnostics}\n{text}"));
        verify(&graph).unwrap();
        assert_eq!(graph.to_string(), text);
    }
}

#[test]
fn every_op_stands_on_the_page_with_an_example_that_parses() {
    let arguments = blocks("kiln-arguments")[0];
    for row in op_rows() {
        let (example, name) = (example(&row), row.name());
        let text = if name == "input" {
            format!("kiln 1 graph @example({example}) {{ return }}")
        } else {
            format!("kiln 1\ngraph @example({arguments}) {{\n{example}\nreturn %r \"r\"\n}}\n")
        };
        let graph = parse(&text).unwrap_or_else(|diagnostics| panic!("{diagnostics}\n{text}"));
        assert!(graph.nodes.iter().any(|node| node.op.name() == name), "{example}");
        verify(&graph).unwrap();
    }
}
