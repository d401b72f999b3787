//! Functions that WGSL lacks, or leaves less exact than Kiln's ops are.
//!
//! One table; a text gets those that it calls, and those that they call, in the order of their names. WGSL's own `sin`, `exp` and their like may
//! be off by thousands of units in the last place, its `max` may lose NaN and the sign of zero, and a compiler may rewrite sums and products as
//! if they were exact. The functions here hold the bounds of the reference all the same, with these means:
//!
//! - NaN, infinities and signs are told by bits, which no compiler looks through;
//! - where a sum or a product must leave no error, one operand is cut to few bits by a mask, so that it leaves none; nothing relies on
//!   `(a + b) - a` being more than `b`, or on `fma` being fused, but for what `fused` has, for devices that were seen to fuse it;
//! - devices may flush subnormal numbers. Where a result is a normal number all the same, operands are scaled by integers;
//! - functions are of one number. What is called for two or four neighbours has a wrapper that calls it so often.

mod arithmetic;
mod convert;
mod exponential;
mod fused;
mod inverse;
mod keys;
mod logarithm;
mod random;
mod trigonometric;

use std::collections::BTreeSet;

use kiln_ir::gpu::Support;

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

/// The function of a name, as it is where `fma` is fused, or as it is everywhere.
fn find(name: &str, fma: Support) -> Option<&'static Function> {
    let own: &[Function] = if fma.is_present() { fused::TABLE } else { &[] };
    own.iter().chain(all()).find(|function| function.name == name)
}

fn all() -> impl Iterator<Item = &'static Function> {
    TABLES.iter().flat_map(|table| table.iter())
}

/// The name as the table has it, if it has it.
pub(super) fn name(name: &str) -> Option<&'static str> {
    all().find(|function| function.name == name).map(|function| function.name)
}

/// The functions that a text calls.
#[derive(Clone, Debug)]
pub(super) struct Functions {
    /// Whether `fma` is fused.
    fma: Support,
    needed: BTreeSet<&'static str>,
    wide: BTreeSet<(&'static str, u32)>,
}

impl Functions {
    /// None yet, for a device whose `fma` is fused, or may not be.
    pub(super) fn new(fma: Support) -> Functions {
        Functions { fma, needed: BTreeSet::new(), wide: BTreeSet::new() }
    }

    /// The text calls this one.
    pub(super) fn need(&mut self, name: &'static str) {
        if !self.needed.insert(name) {
            return;
        }
        let function = find(name, self.fma).expect("the table has every function that is named");
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
            let function = find(function, self.fma).expect("only names of the table are needed");
            text.push('\n');
            text.push_str(function.text.trim_start_matches('\n'));
            for (name, width) in self.wide.iter().filter(|(name, _)| *name == function.name) {
                text.push('\n');
                let own = fused::wide(name, *width).filter(|_| self.fma.is_present());
                text.push_str(&own.unwrap_or_else(|| wrapper(function.text, name, *width)));
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
    let names: Vec<&str> = parameters.iter().map(|(name, _)| *name).collect();
    format!(
        "fn {name}_x{width}({}) -> vec{width}<{result}> {{\n    return vec{width}<{result}>({});\n}}\n",
        declared.join(", "),
        calls(name, &names, width)
    )
}

/// `name(x.x, y.x), name(x.y, y.y)`.
fn calls(name: &str, parameters: &[&str], width: u32) -> String {
    let call = |component: &&str| {
        let arguments: Vec<String> = parameters.iter().map(|name| format!("{name}.{component}")).collect();
        format!("{name}({})", arguments.join(", "))
    };
    ["x", "y", "z", "w"][..width as usize].iter().map(call).collect::<Vec<_>>().join(", ")
}
