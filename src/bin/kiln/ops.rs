//! `kiln ops`: the table of all ops, for people and for programs.

use kiln_ir::grad::{Differentiability, differentiability};
use kiln_ir::{OpRow, op_rows};
use serde_json::json;

/// Whether gradients pass, in one word.
fn gradient(row: &OpRow) -> &'static str {
    match differentiability(&row.sample) {
        Differentiability::Differentiable => "yes",
        Differentiability::Zero => "zero",
        Differentiability::Missing => "no",
    }
}

/// Aligned columns: name, number of operands, attributes, dtypes, gradient, what it computes.
pub(crate) fn table() -> String {
    let header = ["op", "operands", "attributes", "dtypes", "gradient", "computes"].map(str::to_owned);
    let rows = op_rows().into_iter().map(|row| {
        let arity = row.arity().map_or_else(|| "any".to_owned(), |arity| arity.to_string());
        let [attributes, dtypes, doc] = [row.attributes, row.dtypes, row.doc].map(str::to_owned);
        [row.name().into_owned(), arity, attributes, dtypes, gradient(&row).to_owned(), doc]
    });
    let rows: Vec<[String; 6]> = std::iter::once(header).chain(rows).collect();
    let widths: [usize; 6] = std::array::from_fn(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0));
    let line = |row: &[String; 6]| {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// A list of objects; `operands` is null where any number will do.
pub(crate) fn json() -> String {
    let rows: Vec<_> = op_rows()
        .iter()
        .map(|row| {
            json!({
                "name": row.name(),
                "operands": row.arity(),
                "attributes": row.attributes,
                "dtypes": row.dtypes,
                "gradient": gradient(row),
                "doc": row.doc,
            })
        })
        .collect();
    format!("{:#}\n", serde_json::Value::Array(rows))
}
