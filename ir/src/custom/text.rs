//! Kernels as texts: what a custom op gives for GPUs, and what can be told about a text without compiling it.
//!
//! Both kinds are given the operands' buffers, then the results', in the order of the node. A text may be made for the shapes at hand.

use crate::{Backend, Code, Diagnostic};

/// A kernel in WGSL: `@group(0) @binding(i)` is operand `i`, the results' bindings follow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WgslKernel {
    /// The module.
    pub source: String,
    /// Its compute entry point.
    pub entry: String,
    /// How many workgroups are dispatched along x, y and z.
    pub workgroups: [u32; 3],
}

/// A kernel in CUDA C++: a `__global__` function of pointers to the operands, then to the results.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CudaKernel {
    /// The translation unit.
    pub source: String,
    /// Its function, `extern "C"`.
    pub entry: String,
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
}

/// What both kinds of text are asked.
pub trait KernelText {
    /// Where it runs.
    const BACKEND: Backend;

    /// What does not fit a kernel of so many buffers, in words; `None` where nothing does that can be seen without a compiler.
    fn misfit(&self, buffers: usize) -> Option<String>;
}

impl WgslKernel {
    /// A kernel from its module, its entry point and its number of workgroups.
    pub fn new(source: impl Into<String>, entry: impl Into<String>, workgroups: [u32; 3]) -> WgslKernel {
        WgslKernel { source: source.into(), entry: entry.into(), workgroups }
    }
}

impl CudaKernel {
    /// A kernel from its source, its function and its launch.
    pub fn new(source: impl Into<String>, entry: impl Into<String>, grid: [u32; 3], block: [u32; 3]) -> CudaKernel {
        CudaKernel { source: source.into(), entry: entry.into(), grid, block }
    }
}

impl KernelText for WgslKernel {
    const BACKEND: Backend = Backend::Wgpu;

    fn misfit(&self, buffers: usize) -> Option<String> {
        let text = without_comments(&self.source);
        let Some(at) = function(&text, "fn", &self.entry) else {
            return Some(format!("the text has no `fn {}`", self.entry));
        };
        // The attributes of a function stand between it and the end of what comes before.
        let before = text[..at].rfind(['}', ';']).map_or(0, |end| end + 1);
        if !text[before..at].contains("@compute") {
            return Some(format!("`{}` is no `@compute` entry point", self.entry));
        }
        let bound = |index: usize| squeezed(&text).contains(&format!("@binding({index})"));
        if let Some(missing) = (0..buffers).find(|&index| !bound(index)) {
            return Some(format!("the text has no `@binding({missing})`, and the op binds {buffers} buffers"));
        }
        let more = bound(buffers);
        (more || self.workgroups.contains(&0)).then(|| match more {
            true => format!("the text has a `@binding({buffers})`, and the op binds {buffers} buffers, from 0 on"),
            false => format!("{:?} workgroups are none", self.workgroups),
        })
    }
}

impl KernelText for CudaKernel {
    const BACKEND: Backend = Backend::Cuda;

    fn misfit(&self, buffers: usize) -> Option<String> {
        let text = without_comments(&self.source);
        let Some(at) = function(&text, "void", &self.entry) else {
            return Some(format!("the text has no function `void {}(..)`", self.entry));
        };
        let before = text[..at].rfind(['}', ';']).map_or(0, |end| end + 1);
        let head = &text[before..at];
        if !head.contains("__global__") {
            return Some(format!("`{}` is no `__global__` function", self.entry));
        }
        if !text.contains("extern \"C\"") {
            return Some(format!("`{}` is not `extern \"C\"`, so it cannot be found by its name", self.entry));
        }
        let parameters = parameters(&text[at..]);
        if parameters != Some(buffers) {
            let found = parameters.map_or_else(|| "no list of parameters".to_owned(), |n| format!("{n} parameters"));
            return Some(format!("`{}` has {found}, and the op binds {buffers} buffers", self.entry));
        }
        (self.grid.contains(&0) || self.block.contains(&0))
            .then(|| format!("a grid of {:?} blocks of {:?} threads is none", self.grid, self.block))
    }
}

/// K0211 where a text does not fit the op that it is a kernel of.
pub fn check<K: KernelText>(name: &str, kernel: &K, buffers: usize) -> Result<(), Diagnostic> {
    match kernel.misfit(buffers) {
        None => Ok(()),
        Some(misfit) => {
            let message = format!("kernel of custom op `{name}` does not fit its declaration");
            Err(Diagnostic::new(Code::K0211, message).in_op(name).label(format!("for {}: {misfit}", K::BACKEND)))
        }
    }
}

/// Where `keyword name` followed by `(` or `<` begins.
fn function(text: &str, keyword: &str, name: &str) -> Option<usize> {
    text.match_indices(keyword).map(|(at, _)| at).find(|&at| {
        let rest = &text[at + keyword.len()..];
        let after = rest.trim_start();
        rest.len() > after.len() && after.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with('('))
    })
}

/// How many parameters the first pair of parentheses holds.
fn parameters(text: &str) -> Option<usize> {
    let list = &text[text.find('(')? + 1..];
    let mut depth = 0usize;
    let mut commas = 0;
    for (at, c) in list.char_indices() {
        match c {
            '(' | '<' | '[' => depth += 1,
            ')' if depth == 0 => return Some(if list[..at].trim().is_empty() { 0 } else { commas + 1 }),
            ')' | '>' | ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => commas += 1,
            _ => {}
        }
    }
    None
}

fn squeezed(text: &str) -> String {
    text.split_whitespace().collect()
}

/// The text with a space for each comment of either kind.
fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("//").into_iter().chain(rest.find("/*")).min() {
        out.push_str(&rest[..at]);
        out.push(' ');
        let end = if rest[at..].starts_with("//") {
            rest[at..].find('\n').map(|end| at + end)
        } else {
            rest[at + 2..].find("*/").map(|end| at + end + 4)
        };
        rest = end.map_or("", |end| &rest[end..]);
    }
    out + rest
}
