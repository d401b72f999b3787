//! The text form: exact round trips, snapshots of texts and of what is said about wrong ones, and no panic on any input.

use kiln_ir::{Backend, Graph, HostData, parse, parse_with, verify};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::random::{Case, Config, Customs, Numbers, Values, cases, graph_from_seed};

/// Every op on every dtype, on backends that have them all.
fn every_op() -> Config {
    Config {
        backends: vec![Backend::NdArray, Backend::Cpu, Backend::Cuda],
        values: Values::Wild,
        numbers: Numbers::Edgy,
        customs: Customs::Any,
        steps: 25,
        ..Config::default()
    }
}

/// Every op on every backend.
fn every_backend() -> Config {
    Config { backends: Backend::ALL.to_vec(), ..every_op() }
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
    fn the_text_with_locations_reads_back_to_an_equal_graph(case in cases(every_backend())) {
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

/// Wrong texts, each with what is wrong about it.
const WRONG: &[(&str, &str)] = &[
    ("an empty text", ""),
    ("no version", "graph @f() {\n  return\n}\n"),
    ("a version to come", "kiln 2\ngraph @f() {\n  return\n}\n"),
    ("a name without its closing quote", "kiln 1\ngraph @f(%0 \"x: f32[] @cpu) {\n  return %0 \"y\"\n}\n"),
    ("an unknown dtype", "kiln 1\ngraph @f(%0 \"x\": float[3] @cpu) {\n  return %0 \"y\"\n}\n"),
    ("an unknown backend", "kiln 1\ngraph @f(%0 \"x\": f32[3] @gpu) {\n  return %0 \"y\"\n}\n"),
    ("two arguments of one name", "kiln 1\ngraph @f(%0 \"x\": f32[] @cpu, %1 \"x\": f32[] @cpu) {\n  return\n}\n"),
    (
        "an argument computed in the graph",
        "kiln 1\ngraph @f(%0 \"x\": f32[] @cpu) {\n  %0 = neg %0 : f32[] @cpu\n  return\n}\n",
    ),
    ("an argument in the wrong place", "kiln 1\ngraph @f() {\n  %0 = input \"x\" : f32[] @cpu\n  return %0 \"y\"\n}\n"),
    (
        "an unknown op",
        "kiln 1\ngraph @f(%0 \"x\": f32[3] @cpu) {\n  %1 = reduce.sun [0] %0 : f32[1] @cpu\n  return %1 \"y\"\n}\n",
    ),
    (
        "an unknown value, and one that comes later",
        "kiln 1\ngraph @f(%0 \"x\": f32[3] @cpu) {\n  %1 = add %0, %9 : f32[3] @cpu\n  %2 = neg %3 : f32[3] @cpu\n  %3 = exp %0 : f32[3] @cpu\n  return %1 \"y\", %2 \"z\"\n}\n",
    ),
    (
        "a result that is not there",
        "kiln 1\ngraph @f(%0 \"x\": f32[3] @cpu) {\n  %1 = exp %0 : f32[3] @cpu\n  %2 = exp %1.1 : f32[3] @cpu\n  return %2 \"y\"\n}\n",
    ),
    (
        "a value defined twice",
        "kiln 1\ngraph @f(%0 \"x\": f32[3] @cpu) {\n  %1 = exp %0 : f32[3] @cpu\n  %1 = log %0 : f32[3] @cpu\n  return %1 \"y\"\n}\n",
    ),
    (
        "too few operands",
        "kiln 1\ngraph @f(%0 \"x\": f32[3] @cpu) {\n  %1 = add %0 : f32[3] @cpu\n  return %1 \"y\"\n}\n",
    ),
    (
        "too many results",
        "kiln 1\ngraph @f(%0 \"x\": f32[3] @cpu) {\n  %1 = exp %0 : (f32[3] @cpu, f32[3] @cpu)\n  return %1 \"y\"\n}\n",
    ),
    ("no type", "kiln 1\ngraph @f(%0 \"x\": f32[3] @cpu) {\n  %1 = exp %0\n  return %1 \"y\"\n}\n"),
    (
        "a type that is not the inferred one",
        "kiln 1\ngraph @f(%0 \"x\": f32[3, 2] @cpu) {\n  %1 = reduce.sum [1] %0 : f32[3] @cpu\n  return %1 \"y\"\n}\n",
    ),
    (
        "operands that do not fit",
        "kiln 1\ngraph @f(%0 \"x\": f32[3, 2] @cpu, %1 \"w\": f32[3, 4] @cpu) {\n  %2 = matmul %0, %1 : f32[3, 4] @cpu\n  return %2 \"y\"\n}\n",
    ),
    (
        "operands on two backends",
        "kiln 1\ngraph @f(%0 \"x\": f32[3] @cpu, %1 \"w\": f32[3] @cuda) {\n  %2 = add %0, %1 : f32[3] @cpu\n  return %2 \"y\"\n}\n",
    ),
    (
        "an attribute missing",
        "kiln 1\ngraph @f(%0 \"x\": f32[3] @cpu) {\n  %1 = scan.sum %0 : f32[3] @cpu\n  return %1 \"y\"\n}\n",
    ),
    (
        "an axis given twice",
        "kiln 1\ngraph @f(%0 \"x\": f32[3] @cpu) {\n  %1 = reduce.max [0, 0] %0 : f32[1] @cpu\n  return %1 \"y\"\n}\n",
    ),
    (
        "a number too large for its dtype",
        "kiln 1\ngraph @f() {\n  %0 = constant [1, 256] : u8[2] @cpu\n  return %0 \"y\"\n}\n",
    ),
    ("too few elements", "kiln 1\ngraph @f() {\n  %0 = constant [1, 2] : u8[3] @cpu\n  return %0 \"y\"\n}\n"),
    (
        "data that is nowhere",
        "kiln 1\ngraph @f() {\n  %0 = constant #0123456789abcdef : u8[100] @cpu\n  return %0 \"y\"\n}\n",
    ),
    (
        "an output that nothing defines",
        "kiln 1\ngraph @f(%0 \"x\": f32[3] @cpu) {\n  return %1 \"y\", %0 \"x\", %0 \"x\"\n}\n",
    ),
    ("no return", "kiln 1\ngraph @f(%0 \"x\": f32[3] @cpu) {\n  %1 = exp %0 : f32[3] @cpu\n}\n"),
    ("something after the graph", "kiln 1\ngraph @f() {\n  return\n}\ngraph @g() {\n  return\n}\n"),
    ("an escape that is none", "kiln 1\ngraph @f(%0 \"\\x\": f32[3] @cpu) {\n  return\n}\n"),
    (
        "three mistakes at once, one of them inside a body",
        "kiln 1\ngraph @f(%0 \"x\": f32[3] @cpu) {\n  %1 = exq %0 : f32[3] @cpu\n  %2 = custom \"c\" %0 : f32[3] @cpu\n    body @c(%0 \"x\": f32[3] @cpu) {\n      %1 = add %0, %7 : f32[3] @cpu\n      return %1 \"y\"\n    }\n  %3 = add %1, %2 : f32[3] @cpu\n  %4 = cast f33 %0 : f32[3] @cpu\n  return %3 \"y\", %4 \"z\"\n}\n",
    ),
];

#[test]
fn wrong_texts_are_told_where_and_what_was_expected() {
    let mut shown = String::new();
    for (what, text) in WRONG {
        let diagnostics = parse(text).expect_err(what);
        shown += &format!("## {what}\n{}\n", diagnostics.render(&|_| Some((*text).to_owned())));
    }
    insta::assert_snapshot!(shown);
}

#[test]
fn data_beside_the_text_must_be_the_data_that_was_there() {
    use kiln_ir::{DType, GraphBuilder, Loc};
    let data = |fill: u8, count: usize| HostData::new(DType::U8, [count], vec![fill; count]).unwrap();
    let mut b = GraphBuilder::new("table");
    let table = b.constant(data(7, 65), Backend::Cpu, Loc::Unknown).unwrap();
    let same = b.constant(data(7, 65), Backend::Cpu, Loc::Unknown).unwrap();
    let small = b.constant(data(7, 64), Backend::Cpu, Loc::Unknown).unwrap();
    let graph = b.finish([("table", table), ("same", same), ("small", small)]).unwrap();
    let text = graph.to_string();
    assert_eq!(graph.blobs(), [data(7, 65)]);
    assert_eq!(reread(&text, &graph), Ok(graph));
    for wrong in [None, Some(data(8, 65)), Some(data(7, 64))] {
        let codes = parse_with(&text, &|_| wrong.clone()).unwrap_err().codes();
        assert!(codes.iter().all(|code| code.name() == "K0806"), "{codes:?}");
    }
}

#[test]
fn an_unlimited_style_keeps_large_constants_in_the_text() {
    use kiln_ir::{DType, GraphBuilder, Loc, TextStyle};
    let mut b = GraphBuilder::new("table");
    let data = HostData::new(DType::I8, [70], vec![255; 70]).unwrap();
    let table = b.constant(data, Backend::Cpu, Loc::Unknown).unwrap();
    let graph = b.finish([("table", table)]).unwrap();
    let text = graph.text(TextStyle { inline_elements: usize::MAX, ..TextStyle::default() }).to_string();
    assert_eq!(parse(&text), Ok(graph));
}

#[test]
fn nodes_that_were_read_know_their_line_and_column() {
    let text = "kiln 1\ngraph @f(%0 \"x\": f32[] @cpu) {\n  %1 = exp %0 : f32[] @cpu return %1 \"y\"\n}\n";
    let graph = parse(text).unwrap();
    let places: Vec<_> = graph.nodes.iter().map(|node| node.loc.line_column()).collect();
    assert_eq!(places, [Some((2, 10)), Some((3, 3))]);
    insta::assert_snapshot!(format!("{graph:#}"), @r#"
    kiln 1
    graph @f(
        %0 "x": f32[] @cpu // <text>:2:10
    ) {
      %1 = exp %0 : f32[] @cpu // <text>:3:3
      return %1 "y"
    }
    "#);
}

#[test]
fn long_lists_of_arguments_stand_one_a_line() {
    let arguments: Vec<String> = (0..9).map(|index| format!("%{index} \"w{index}\": f32[3] @cpu")).collect();
    let text = format!("kiln 1 graph @f({}) {{ return %0 \"y\" }}", arguments.join(", "));
    insta::assert_snapshot!(parse(&text).unwrap(), @r#"
    kiln 1
    graph @f(
        %0 "w0": f32[3] @cpu,
        %1 "w1": f32[3] @cpu,
        %2 "w2": f32[3] @cpu,
        %3 "w3": f32[3] @cpu,
        %4 "w4": f32[3] @cpu,
        %5 "w5": f32[3] @cpu,
        %6 "w6": f32[3] @cpu,
        %7 "w7": f32[3] @cpu,
        %8 "w8": f32[3] @cpu
    ) {
      return %0 "y"
    }
    "#);
}

#[test]
fn graphs_nest_to_a_limit_and_no_deeper() {
    let nested = |depth: usize| {
        let open = "@g(%0 \"x\": f32[] @cpu) { %1 = custom \"c\" %0 : f32[] @cpu body ".repeat(depth);
        let close = " return %1 \"y\" }".repeat(depth);
        format!("kiln 1 graph {open} @g(%0 \"x\": f32[] @cpu) {{ return %0 \"y\" }} {close}")
    };
    let deep = parse(&nested(kiln_ir::MAX_DEPTH - 1)).unwrap();
    verify(&deep).unwrap();
    assert_eq!(parse(&deep.to_string()), Ok(deep));
    assert_eq!(parse(&nested(kiln_ir::MAX_DEPTH)).unwrap_err().first().code.name(), "K0801");
    assert!(parse(&nested(100_000)).is_err());
}

#[test]
fn a_long_chain_and_many_arguments_are_read_in_linear_time() {
    let seconds = |count: usize| {
        let arguments: Vec<String> = (0..count).map(|index| format!("%a{index} \"a{index}\": f32[] @cpu")).collect();
        let mut text = format!("kiln 1\ngraph @f({}) {{\n  %0 = exp %a0 : f32[] @cpu\n", arguments.join(",\n"));
        for index in 1..count {
            text += &format!("  %{index} = add %{}, %a{index} : f32[] @cpu\n", index - 1);
        }
        text += &format!("  return %{} \"y\"\n}}\n", count - 1);
        let start = std::time::Instant::now();
        let graph = parse(&text).unwrap();
        assert_eq!(parse(&graph.to_string()), Ok(graph));
        start.elapsed().as_secs_f64()
    };
    let (small, large) = (seconds(2_500).min(seconds(2_500)), seconds(40_000));
    assert!(large < 16.0 * 6.0 * small.max(0.002), "16 times the text took {large} s after {small} s");
}

/// One node of each family, with every attribute that is not its default somewhere.
#[test]
fn a_graph_of_every_family_prints_each_attribute() {
    use kiln_ir::{
        Attribute, Axes, Custom, DType, Direction, GraphBuilder, Literal, Loc, Op, Precision, ReduceKind, ScalarOp,
        ScanKind, ScatterKind, Shape, TensorType,
    };
    let loc = Loc::Unknown;
    let of = |dtype: DType, shape: &[usize]| TensorType::new(dtype, shape, Backend::Cpu);
    let mut b = GraphBuilder::new("every family");
    let x = b.input("x", of(DType::F32, &[2, 3]), loc).unwrap();
    let indices = b.input("indices", of(DType::I64, &[2, 4]), loc).unwrap();
    let mut outputs = Vec::new();
    let mut add = |b: &mut GraphBuilder, op: Op, operands: &[kiln_ir::Value]| {
        let value = b.value(op, operands, loc).unwrap();
        outputs.push((format!("{}", outputs.len()), value));
        value
    };
    let number = |value: f64| Literal::from_f64(DType::F32, value);
    let literal = add(&mut b, Op::Literal { value: number(-0.0), backend: Backend::Cpu }, &[]);
    let key = HostData::from_literals(DType::U32, [2], &[1, 2].map(|word| Literal::from_i128(DType::U32, word)));
    let key = add(&mut b, Op::Constant { data: key.unwrap(), backend: Backend::Cpu }, &[]);
    let large = HostData::new(DType::BF16, [13, 5], vec![0x3f; 130]).unwrap();
    add(&mut b, Op::Constant { data: large, backend: Backend::Cpu }, &[]);
    add(&mut b, Op::Iota { ty: of(DType::F16, &[2, 3]), axis: 1 }, &[]);
    add(&mut b, Op::RandomBits { shape: Shape::from([2, 0]), stream: 7 }, &[key]);
    let is_nan = add(&mut b, Op::Scalar(ScalarOp::IsNan), &[x]);
    add(&mut b, Op::Scalar(ScalarOp::Clamp), &[x, x, x]);
    add(&mut b, Op::Cast(DType::BF16), &[x]);
    add(&mut b, Op::Bitcast(DType::I32), &[x]);
    add(&mut b, Op::Select, &[is_nan, x, x]);
    add(&mut b, Op::Reduce { kind: ReduceKind::Prod, axes: Axes::all(2) }, &[x]);
    add(&mut b, Op::Reduce { kind: ReduceKind::ArgMin, axes: Axes::one(1) }, &[x]);
    add(&mut b, Op::Reduce { kind: ReduceKind::Max, axes: Axes::default() }, &[x]);
    add(&mut b, Op::Scan { kind: ScanKind::Sum, axis: 1, direction: Direction::Forward }, &[x]);
    add(&mut b, Op::Scan { kind: ScanKind::Max, axis: 0, direction: Direction::Reverse }, &[x]);
    add(&mut b, Op::Reshape(Shape::from([6])), &[x]);
    let turned = add(&mut b, Op::Permute([1, 0].as_slice().into()), &[x]);
    add(&mut b, Op::Broadcast(Shape::from([2])), &[literal]);
    let (starts, steps) = ([0, 2].as_slice().into(), [1, -2].as_slice().into());
    add(&mut b, Op::Slice { starts, sizes: Shape::from([2, 2]), steps }, &[x]);
    let (starts, steps) = ([1, 0].as_slice().into(), [1, 1].as_slice().into());
    add(&mut b, Op::Slice { starts, sizes: Shape::from([1, 3]), steps }, &[x]);
    let (low, high) = ([0, 1].as_slice().into(), [2, 0].as_slice().into());
    add(&mut b, Op::Pad { low, high, value: number(f64::NEG_INFINITY) }, &[x]);
    add(&mut b, Op::Concat { axis: 0 }, &[x, x, x]);
    add(&mut b, Op::MatMul { precision: Precision::Full }, &[x, turned]);
    add(&mut b, Op::MatMul { precision: Precision::Tf32 }, &[x, turned]);
    let taken = add(&mut b, Op::Gather { axis: 1, batch: 1 }, &[x, indices]);
    add(&mut b, Op::Gather { axis: 0, batch: 0 }, &[x, indices]);
    add(&mut b, Op::Scatter { kind: ScatterKind::Add, axis: 1, batch: 1 }, &[x, indices, taken]);
    add(&mut b, Op::Transfer(Backend::Wgpu), &[x]);
    add(&mut b, Op::StopGradient, &[x]);
    add(&mut b, Op::Mark, &[x]);
    add(&mut b, Op::Barrier, &[x]);
    let attributes = vec![
        ("alpha".into(), Attribute::Number(Literal::from_bits(DType::F16, 0x7e01))),
        ("axes".into(), Attribute::Ints(vec![0, -1])),
        ("mode \"m\"".into(), Attribute::Text("two\nlines".into())),
    ];
    let results = [of(DType::F32, &[2]), of(DType::Bool, &[])].as_slice().into();
    let custom = Custom { name: "top k".into(), attributes, results, body: None };
    let both = add(&mut b, Op::Custom(custom), &[x, taken]);
    add(&mut b, Op::Scalar(ScalarOp::Not), &[kiln_ir::Value { result: 1, ..both }]);
    let nothing = Custom { name: "".into(), attributes: Vec::new(), results: [].as_slice().into(), body: None };
    b.add(Op::Custom(nothing), &[], loc).unwrap();
    let graph = b.finish(outputs).unwrap();
    insta::assert_snapshot!(graph);
    assert_eq!(reread(&graph.to_string(), &graph), Ok(graph));
}

#[test]
fn two_captures_of_one_program_print_the_same_bytes() {
    use kiln_capture::{CaptureDevice, Scope, cross_entropy, value_and_grad};
    use kiln_ir::DType;
    let program = |scope: &Scope| {
        let (x, labels) = (scope.input("x", DType::F32, [8, 4]), scope.input("labels", DType::I32, [8]));
        let weights = (scope.input("w", DType::F32, [4, 3]), scope.input("b", DType::F32, [3]));
        let (loss, gradients) = value_and_grad(&weights, |(w, b)| cross_entropy(&(x.matmul(w) + b).gelu(), &labels));
        (loss, gradients)
    };
    let capture = || CaptureDevice::new(Backend::Cpu).capture_scope(program).unwrap().graph;
    let (first, second) = (capture(), capture());
    assert_eq!(first.to_string(), second.to_string());
    assert_eq!(parse(&first.to_string()), Ok(first.canonical()));
}
