//! `KILN_DUMP`: what a graph becomes, printed to standard error while it is compiled.
//!
//! The variable is a list of words, divided by commas: the name of a pass (`inline`, `simplify`) prints the graph before and after it, `plan` the
//! plan with its kernels, `text` the texts that a GPU runs, `all` everything. It changes nothing of what is computed.

use std::fmt::Display;

use kiln_ir::Graph;
use kiln_ir::plan::Plan;
use kiln_passes::{Options, compile_observed};

use kiln_ir::Diagnostic;

/// What the variable asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted(Vec<String>);

impl Wanted {
    /// From the variable's value.
    fn from(words: &str) -> Wanted {
        Wanted(words.split(',').map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect())
    }

    /// From the environment.
    fn by_user() -> Wanted {
        std::env::var("KILN_DUMP").map(|words| Wanted::from(&words)).unwrap_or_default()
    }

    fn has(&self, what: &str) -> bool {
        self.0.iter().any(|word| word == what || word == "all")
    }
}

/// Compiles a graph, printing what is asked for.
pub(crate) fn plan(graph: &Graph, options: &Options) -> Result<Plan, Diagnostic> {
    let wanted = Wanted::by_user();
    planned(graph, options, &wanted, &mut print)
}

fn planned(
    graph: &Graph,
    options: &Options,
    wanted: &Wanted,
    print: &mut dyn FnMut(&str, &dyn Display),
) -> Result<Plan, Diagnostic> {
    if wanted.0.is_empty() {
        return kiln_passes::compile(graph, options);
    }
    let mut before = graph.clone();
    let plan = compile_observed(graph, options, &mut |pass, after| {
        if wanted.has(pass) {
            print(&format!("before `{pass}`"), &before);
            print(&format!("after `{pass}`"), after);
        }
        before = after.clone();
    })?;
    if wanted.has("plan") {
        print("plan", &plan);
    }
    Ok(plan)
}

/// Prints the texts of a GPU, each once, where they are asked for.
#[cfg(feature = "wgpu")]
pub(crate) fn texts(programs: &[Option<std::sync::Arc<kiln_ir::gpu::GpuProgram>>]) {
    if !Wanted::by_user().has("text") {
        return;
    }
    let mut seen = std::collections::HashSet::new();
    for dispatch in programs.iter().flatten().flat_map(|program| &program.dispatches) {
        if seen.insert(&dispatch.source) {
            let [x, y, z] = dispatch.workgroups;
            print(&format!("text of `{}`, {x} x {y} x {z} workgroups", dispatch.entry), &dispatch.source);
        }
    }
}

/// Prints texts for CUDA, each once, where they are asked for.
#[cfg(feature = "cuda")]
pub(crate) fn cuda_texts(programs: &[Option<std::sync::Arc<kiln_ir::cuda::CudaProgram>>]) {
    if !Wanted::by_user().has("text") {
        return;
    }
    let mut seen = std::collections::HashSet::new();
    for text in programs.iter().flatten().flat_map(|program| program.texts()) {
        if seen.insert(&text.source) {
            let [x, y, z] = text.blocks;
            print(&format!("text of `{}`, {x} x {y} x {z} blocks", text.entry), &text.source);
        }
    }
}

/// What is asked for goes where it does not mix with what a program prints.
#[allow(clippy::print_stderr)]
fn print(title: &str, what: &dyn Display) {
    eprintln!("// kiln: {title}\n{what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dumped(words: &str) -> Vec<String> {
        let text = "kiln 1\ngraph @f(%0 \"x\": f32[3] @cpu) {\n  %1 = exp %0 : f32[3] @cpu\n  return %1 \"y\"\n}\n";
        let graph = kiln_ir::parse(text).expect("a sound graph");
        let mut titles = Vec::new();
        let mut note = |title: &str, _: &dyn Display| titles.push(title.to_owned());
        planned(&graph, &Options::default(), &Wanted::from(words), &mut note).expect("it compiles");
        titles
    }

    #[test]
    fn a_pass_is_shown_before_and_after() {
        assert_eq!(dumped("simplify"), ["before `simplify`", "after `simplify`"]);
        assert_eq!(dumped("inline, plan"), ["before `inline`", "after `inline`", "plan"]);
        assert_eq!(dumped("all").len(), 2 * kiln_passes::PASSES.len() + 1);
        assert!(dumped("").is_empty());
    }
}
