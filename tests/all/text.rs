//! The text form: exact round trips, snapshots of texts and of what is said about wrong ones, and no panic on any input.

use kiln_ir::{Backend, Graph, HostData, parse, parse_with, verify};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::random::{Case, Config, Customs, Numbers, Values, cases, graph_from_seed};

fn every_op() -> Config {
    Config {
        backends: Backend::ALL.to_vec(),
        values: Values::Wild,
        numbers: Numbers::Edgy,
        customs: Customs::Any,
        steps: 25,
        ..Config::default()
    }
}

/// Reads a text whose large constants are those of a graph.
fn reread(text: &str, graph: &Graph) -> kiln_ir::Result<Graph> {
    let blobs = graph.blobs();
    parse_with(text, &|hash| blobs.iter().find(|blob| blob.content_hash() == hash).cloned())
}

fn round_trip(case: &Case) -> Result<(), TestCaseError> {
    let text = case.graph.to_string();
    let read = reread(&text, &case.graph);
    let read = read.map_err(|diagnostics| TestCaseError::fail(diagnostics.to_string()))?;
    prop_assert_eq!(&read, &case.graph);
    prop_assert_eq!(read.to_string(), text);
    verify(&read).map_err(|diagnostic| TestCaseError::fail(diagnostic.to_string()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_text_of_a_graph_reads_back_to_an_equal_graph(case in cases(every_op())) {
        round_trip(&case)?;
    }

    #[test]
    fn the_text_with_locations_reads_back_to_an_equal_graph(case in cases(every_op())) {
        let text = format!("{:#}", case.graph);
        let read = reread(&text, &case.graph).map_err(|diagnostics| TestCaseError::fail(diagnostics.to_string()))?;
        prop_assert_eq!(read, case.graph);
    }

    #[test]
    fn any_bytes_are_a_graph_or_a_diagnostic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        never_panics(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_soup_of_tokens_is_a_graph_or_a_diagnostic(tokens in proptest::collection::vec(token(), 0..60)) {
        let soup = tokens.join(" ");
        never_panics(&soup);
        never_panics(&format!("kiln 1 graph @f(%0 \"x\": f32[2, 3] @cpu) {{ {soup}"));
        never_panics(&format!("kiln 1 graph @f(%0 \"x\": i32[3] @cpu) {{ %1 = {soup} return %1 \"y\" }}"));
    }

    #[test]
    fn any_damage_to_a_text_is_a_graph_or_a_diagnostic(
        seed in 0u64..500,
        damage in proptest::collection::vec((any::<Index>(), any::<Index>(), token(), 0..4), 1..4),
    ) {
        let mut text = graph_from_seed(&every_op(), seed).graph.to_string();
        for (from, to, token, kind) in damage {
            text = damaged(&text, from, to, token, kind);
        }
        never_panics(&text);
    }
}

/// Reads a text; what comes out is a valid graph, or diagnostics that can be shown beside it.
fn never_panics(text: &str) {
    match parse_with(text, &|hash| HostData::new(kiln_ir::DType::U8, [1], vec![hash as u8])) {
        Ok(graph) => verify(&graph).unwrap_or_else(|diagnostic| panic!("{diagnostic}\n{text}")),
        Err(diagnostics) => {
            let shown = diagnostics.render(&|_| Some(text.to_owned()));
            assert!(shown.starts_with("error[K"));
            assert!(diagnostics.iter().all(|diagnostic| !diagnostic.loc.is_unknown()), "{shown}\n{text}");
        }
    }
}

fn token() -> impl Strategy<Value = &'static str> {
    let tokens = [
        "kiln",
        "1",
        "0",
        "-1",
        "99999999999999999999",
        "4294967296",
        "1.5",
        "nan",
        "inf",
        "-inf",
        "nan:0x7fc00001",
        "true",
        "graph",
        "@",
        "f",
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "=",
        "%0",
        "%1",
        "%2",
        "%0.1",
        "%x",
        "\"x\"",
        "\"y\"",
        "\"\\q\"",
        "\"",
        "#0123456789abcdef",
        "#1",
        "return",
        "body",
        "f32",
        "i64",
        "bool",
        "bf16",
        "cpu",
        "@cuda",
        "input",
        "literal",
        "constant",
        "iota",
        "axis",
        "axis=0",
        "batch=1",
        "stream=1",
        "random_bits",
        "cast",
        "bitcast",
        "select",
        "reduce.max",
        "reduce.argmin",
        "scan.sum",
        "reverse",
        "reshape",
        "permute",
        "broadcast",
        "slice",
        "starts=[0]",
        "sizes=[9223372036854775807]",
        "steps=[-9223372036854775808]",
        "pad",
        "low=[18446744073709551615]",
        "high=[1]",
        "value=0",
        "concat",
        "matmul",
        "tf32",
        "gather",
        "scatter.add",
        "transfer",
        "mark",
        "custom",
        "add",
        "clamp",
        "neg",
        "[2, 3]",
        "[0, 9223372036854775807]",
        "[4294967296, 4294967296, 4294967296]",
        "[]",
        ": f32[3] @cpu",
        ": i32[] @cpu",
        "// x",
        "\n",
        "é",
        "\u{0}",
        "()",
        "(f32[] @cpu, f32[0] @cpu)",
    ];
    proptest::sample::select(tokens.to_vec())
}

/// A text with a part left out, doubled, replaced or moved.
fn damaged(text: &str, from: Index, to: Index, token: &str, kind: i32) -> String {
    let places: Vec<usize> = text.char_indices().map(|(place, _)| place).chain([text.len()]).collect();
    let (from, to) = (places[from.index(places.len())], places[to.index(places.len())]);
    let (start, end) = (from.min(to), from.max(to));
    match kind {
        0 => format!("{}{}", &text[..start], &text[end..]),
        1 => format!("{}{}", &text[..end], &text[start..]),
        2 => format!("{}{token}{}", &text[..start], &text[start..]),
        _ => {
            let end = text[start..].find(char::is_whitespace).map_or(text.len(), |length| start + length);
            format!("{} {token} {}", &text[..start], &text[end..])
        }
    }
}

#[test]
fn inputs_come_first_in_the_canonical_form() {
    use kiln_ir::{DType, GraphBuilder, Loc, ScalarOp, TensorType};
    let mut b = GraphBuilder::new("late");
    let ty = TensorType::new(DType::F32, [2], Backend::Cpu);
    let x = b.input("x", ty.clone(), Loc::Unknown).unwrap();
    let y = b.scalar(ScalarOp::Exp, &[x], Loc::Unknown).unwrap();
    let late = b.input("late", ty, Loc::Unknown).unwrap();
    let z = b.scalar(ScalarOp::Sub, &[y, late], Loc::Unknown).unwrap();
    let graph = b.finish([("z", z)]).unwrap();
    let text = graph.to_string();
    insta::assert_snapshot!(text, @r#"
    kiln 1
    graph @late(%0 "x": f32[2] @cpu, %1 "late": f32[2] @cpu) {
      %2 = exp %0 : f32[2] @cpu
      %3 = sub %2, %1 : f32[2] @cpu
      return %3 "z"
    }
    "#);
    let read = parse(&text).unwrap();
    assert_ne!(read, graph);
    assert_eq!(read, graph.canonical());
    assert_eq!(read.to_string(), text);
}
