//! Functions that WGSL lacks, or leaves less exact than Kiln's ops are.
//!
//! One table; a text gets those that it calls, and those that they call, in the order of their names. WGSL's own `sin`, `exp` and their like may
//! be off by thousands of units in the last place, its `max` may lose NaN and the sign of zero, and a compiler may rewrite sums and products as
//! if they were exact. The functions here hold the bounds of the reference all the same, with these means:
//!
//! - NaN, infinities and signs are told by bits, which no compiler looks through;
//! - where a sum or a product must leave no error, one operand is cut to few bits by a mask, so that it leaves none; nothing relies on
//!   `(a + b) - a` being more than `b`, or on `fma` being fused;
//! - devices may flush subnormal numbers. Where a result is a normal number all the same, operands are scaled by integers;
//! - functions are of one number. What is called for two or four neighbours has a wrapper that calls it so often.

mod arithmetic;
mod convert;
mod exponential;
mod inverse;
mod keys;
mod logarithm;
mod random;
mod trigonometric;

use std::collections::BTreeSet;

/// A function of the table.
#[derive(Debug)]
pub(super) struct Function {
    /// Its name.
    name: &'static str,
    /// Those that it calls.
    calls: &'static [&'static str],
    /// Its text.
    text: &'static str,
}

const TABLES: &[&[Function]] = &[
    arithmetic::TABLE,
    convert::TABLE,
    exponential::TABLE,
    inverse::TABLE,
    keys::TABLE,
    logarithm::TABLE,
    random::TABLE,
    trigonometric::TABLE,
];

fn all() -> impl Iterator<Item = &'static Function> {
    TABLES.iter().flat_map(|table| table.iter())
}

/// The name as the table has it, if it has it.
pub(super) fn name(name: &str) -> Option<&'static str> {
    all().find(|function| function.name == name).map(|function| function.name)
}

/// The functions that a text calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Functions {
    needed: BTreeSet<&'static str>,
    wide: BTreeSet<(&'static str, u32)>,
}

impl Functions {
    /// The text calls this one.
    pub(super) fn need(&mut self, name: &'static str) {
        if !self.needed.insert(name) {
            return;
        }
        let function =
            all().find(|function| function.name == name).expect("the table has every function that is named");
        for call in function.calls {
            self.need(call);
        }
    }

    /// The text calls this one for `width` neighbours: the name that does it.
    pub(super) fn need_wide(&mut self, name: &'static str, width: u32) -> String {
        self.need(name);
        if width == 1 {
            return name.to_owned();
        }
        self.wide.insert((name, width));
        format!("{name}_x{width}")
    }

    /// The functions, each after an empty line.
    pub(super) fn print(&self, text: &mut String) {
        for function in &self.needed {
            let function = all().find(|entry| entry.name == *function).expect("only names of the table are needed");
            text.push('\n');
            text.push_str(function.text.trim_start_matches('\n'));
            for (name, width) in self.wide.iter().filter(|(name, _)| *name == function.name) {
                text.push('\n');
                text.push_str(&wrapper(function.text, name, *width));
            }
        }
    }
}

/// The function for vectors, which calls the one for numbers: parameters and result are those of the text's first line.
fn wrapper(text: &str, name: &str, width: u32) -> String {
    let head = text.trim_start().lines().next().unwrap_or_default();
    let (parameters, result) = head.split_once(") -> ").expect("a function of the table has a result");
    let parameters = parameters.split_once('(').map_or("", |(_, list)| list);
    let result = result.trim_end_matches(" {");
    let parameters: Vec<(&str, &str)> = parameters.split(", ").filter_map(|part| part.split_once(": ")).collect();
    let declared: Vec<String> = parameters.iter().map(|(name, ty)| format!("{name}: vec{width}<{ty}>")).collect();
    let calls: Vec<String> = ["x", "y", "z", "w"][..width as usize]
        .iter()
        .map(|component| {
            let arguments: Vec<String> = parameters.iter().map(|(name, _)| format!("{name}.{component}")).collect();
            format!("{name}({})", arguments.join(", "))
        })
        .collect();
    format!(
        "fn {name}_x{width}({}) -> vec{width}<{result}> {{\n    return vec{width}<{result}>({});\n}}\n",
        declared.join(", "),
        calls.join(", ")
    )
}
