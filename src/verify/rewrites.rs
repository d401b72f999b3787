//! The graph after the passes held against the graph that was captured.

use kiln_ir::{Code, Diagnostic, Graph, HostData};
use kiln_runtime::reference::Expected;

use super::kernels::in_words;
use crate::Result;

/// K0707 where a rewritten graph gives something else than the captured one. `values` are the rewritten one's, by node and result.
pub(super) fn check(captured: &Graph, rewritten: &Graph, inputs: &[HostData], values: &[Vec<HostData>]) -> Result<()> {
    let expected = Expected::of(captured, inputs)?;
    let result = |output: &kiln_ir::Output| values[output.value.node.index()][output.value.result as usize].clone();
    let found: Vec<HostData> = rewritten.outputs.iter().map(result).collect();
    let Some(difference) = expected.difference(&found) else { return Ok(()) };
    let output = &captured.outputs[difference.output];
    let message = format!("the passes changed what `{}` computes", captured.name);
    let diagnostic = Diagnostic::new(Code::K0707, message)
        .at(captured.node(output.value).loc)
        .label(in_words(&output.name, &expected, &difference))
        .help(format!("this is a mistake of Kiln's: please report it, with this graph:\n{captured}"));
    Err(diagnostic.into())
}

#[cfg(test)]
mod tests {
    use kiln_ir::parse;
    use kiln_runtime::reference::evaluate_all_with;

    use super::*;

    fn graph(body: &str) -> Graph {
        let text = format!("kiln 1\ngraph @f(%0 \"x\": f32[2] @cpu) {{\n{body}}}\n");
        parse(&text).expect("the graph is right")
    }

    fn checked(captured: &str, rewritten: &str) -> Result<()> {
        let (captured, rewritten) = (graph(captured), graph(rewritten));
        let bytes: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|number| number.to_le_bytes()).collect();
        let inputs = [HostData::new(kiln_ir::DType::F32, [2], bytes).expect("two numbers")];
        let values = evaluate_all_with(&rewritten, &inputs, &Default::default())?;
        check(&captured, &rewritten, &inputs, &values)
    }

    #[test]
    fn a_rewrite_that_changes_the_program_is_told_and_another_is_not() {
        let twice = "  %1 = add %0, %0 : f32[2] @cpu\n  return %1 \"y\"\n";
        let square = "  %1 = mul %0, %0 : f32[2] @cpu\n  return %1 \"y\"\n";
        assert!(checked(twice, twice).is_ok());
        let told = checked(twice, square).expect_err("the square of 1.5 is not 3").to_string();
        assert!(told.contains("the passes changed what `f` computes"), "{told}");
        assert!(told.contains("element [0] of `y` is 2.25, and 3"), "{told}");
    }
}
