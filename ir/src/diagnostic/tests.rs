//! What a rendered diagnostic looks like.

use super::*;

fn text(line: u32, column: u32) -> Loc {
    Loc::Text { line, column }
}

/// The text of a diagnostic about `source`, whose file is `src/model.rs`.
fn shown(diagnostics: impl Into<Diagnostics>, source: &str, color: Color) -> String {
    let lookup = |file: &str| (file == "src/model.rs").then(|| source.to_owned());
    diagnostics.into().render_as(&Rendering { source: &lookup, text_file: "src/model.rs", color })
}

/// A file of 42 lines, of which the last is `line`.
fn file(line: &str) -> String {
    "\n".repeat(41) + line
}

fn two_backends() -> Diagnostic {
    let message = "The provided tensors are not on the same backend. Got backends Wgpu and Cuda.";
    Diagnostic::new(Code::K0201, message)
        .at(text(42, 26))
        .in_op("add")
        .label("inputs of `add` are on different backends")
        .note("lhs", "f32[32, 10] @wgpu", "made", text(40, 13))
        .note("rhs", "f32[10] @cuda", "input \"b\", declared", text(37, 20))
        .help("move one with `.to(Backend::Wgpu)`; it is the only op that crosses backends")
}

#[test]
fn a_mistake_is_shown_with_its_line_and_every_operand() {
    insta::assert_snapshot!(shown(two_backends(), &file("    let h = x.matmul(&w) + &b;"), Color::Plain), @r#"
    error[K0201]: The provided tensors are not on the same backend. Got backends Wgpu and Cuda.
      --> src/model.rs:42:26 in `add`
       |
    42 |     let h = x.matmul(&w) + &b;
       |                          ^ inputs of `add` are on different backends
      lhs  f32[32, 10] @wgpu   made at src/model.rs:40:13
      rhs  f32[10] @cuda       input "b", declared at src/model.rs:37:20
      help: move one with `.to(Backend::Wgpu)`; it is the only op that crosses backends
    "#);
}

#[test]
fn without_the_source_the_same_is_said_in_plain_lines() {
    insta::assert_snapshot!(two_backends(), @r#"
    error[K0201]: The provided tensors are not on the same backend. Got backends Wgpu and Cuda.
      --> <text>:42:26 in `add`
      inputs of `add` are on different backends
      lhs  f32[32, 10] @wgpu   made at <text>:40:13
      rhs  f32[10] @cuda       input "b", declared at <text>:37:20
      help: move one with `.to(Backend::Wgpu)`; it is the only op that crosses backends
    "#);
}

#[test]
fn colours_are_escape_codes_around_the_same_text() {
    let colored = shown(two_backends(), &file("    let h = x.matmul(&w) + &b;"), Color::Ansi);
    insta::assert_snapshot!(colored.replace('\u{1b}', "~"), @r#"
    ~[1m~[91merror[K0201]~[0m~[1m: The provided tensors are not on the same backend. Got backends Wgpu and Cuda.~[0m
      ~[1m~[94m-->~[0m src/model.rs:42:26 in `add`
       ~[1m~[94m|~[0m
    ~[1m~[94m42~[0m ~[1m~[94m|~[0m     let h = x.matmul(&w) + &b;
       ~[1m~[94m|~[0m                          ~[1m~[91m^~[0m ~[1m~[91minputs of `add` are on different backends~[0m
      ~[1m~[94mlhs~[0m  f32[32, 10] @wgpu   made at src/model.rs:40:13
      ~[1m~[94mrhs~[0m  f32[10] @cuda       input "b", declared at src/model.rs:37:20
      ~[1m~[96mhelp~[0m: move one with `.to(Backend::Wgpu)`; it is the only op that crosses backends
    "#);
    let mut plain = String::new();
    for part in colored.split('\u{1b}') {
        plain += part.split_once('m').filter(|(code, _)| code.starts_with('[')).map_or(part, |(_, text)| text);
    }
    assert_eq!(plain, shown(two_backends(), &file("    let h = x.matmul(&w) + &b;"), Color::Plain));
}

fn at_column(column: u32, label: &str) -> Diagnostic {
    Diagnostic::new(Code::K0304, "axis 2 is out of range for rank 2").at(text(42, column)).label(label)
}

#[test]
fn tabs_and_wide_characters_leave_the_caret_in_its_place() {
    let tabs = shown(at_column(11, "tabs are four wide"), &file("\t\tlet y = sum(2);"), Color::Plain);
    insta::assert_snapshot!(tabs, @r"
    error[K0304]: axis 2 is out of range for rank 2
      --> src/model.rs:42:11
       |
    42 |         let y = sum(2);
       |                 ^^^ tabs are four wide
    ");
    let wide = shown(at_column(18, "after wide ones"), &file("let 損失 = \"é\"; 誤差.sum(2);"), Color::Plain);
    insta::assert_snapshot!(wide, @r#"
    error[K0304]: axis 2 is out of range for rank 2
      --> src/model.rs:42:18
       |
    42 | let 損失 = "é"; 誤差.sum(2);
       |                      ^^^ after wide ones
    "#);
}

#[test]
fn of_a_very_long_line_the_part_around_the_caret_is_shown() {
    let line = format!("let y = {}.sum(2) + {};", "a".repeat(300), "b".repeat(300));
    insta::assert_snapshot!(shown(at_column(310, "here"), &file(&line), Color::Plain), @r"
    error[K0304]: axis 2 is out of range for rank 2
      --> src/model.rs:42:310
       |
    42 | ...aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.sum(2) + bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb...
       |                                                                ^^^ here
    ");
}

#[test]
fn the_end_of_a_line_is_a_place_and_what_lies_beyond_is_not_shown() {
    insta::assert_snapshot!(shown(at_column(4, "the line ends here"), &file("sum"), Color::Plain), @r"
    error[K0304]: axis 2 is out of range for rank 2
      --> src/model.rs:42:4
       |
    42 | sum
       |    ^ the line ends here
    ");
    insta::assert_snapshot!(shown(at_column(5, "another source"), &file("sum"), Color::Plain), @r"
    error[K0304]: axis 2 is out of range for rank 2
      --> src/model.rs:42:5
      another source
    ");
}

#[test]
fn no_name_breaks_a_line_or_colours_a_terminal() {
    let names = Diagnostic::new(Code::K0106, "unknown graph input tensor \u{1b}[31mx\nerror: none")
        .at(text(42, 1))
        .in_op("a\nb")
        .label("x\u{7}\nis not an input")
        .note("l\ths", "f32[2]\n@cpu", "input \"\u{202e}\u{9b}\", declared", text(1, 1))
        .note("入力", "", "made", text(2, 2))
        .help("one\ntwo");
    insta::assert_snapshot!(shown(names, &file("x"), Color::Plain), @r#"
    error[K0106]: unknown graph input tensor ␛[31mx
      error: none
      --> src/model.rs:42:1 in `a␊b`
       |
    42 | x
       | ^ x␇
      is not an input
      l    hs  f32[2]␊@cpu   input "��", declared at src/model.rs:1:1
      入力                   made at src/model.rs:2:2
      help: one
            two
    "#);
}

#[test]
fn several_mistakes_are_parted_by_an_empty_line_and_counted() {
    let both = Diagnostics(vec![at_column(1, "first"), at_column(9, "second").at(Loc::Unknown)]);
    insta::assert_snapshot!(shown(both, &file("sum(2) + sum(3)"), Color::Plain), @r"
    error[K0304]: axis 2 is out of range for rank 2
      --> src/model.rs:42:1
       |
    42 | sum(2) + sum(3)
       | ^^^ first

    error[K0304]: axis 2 is out of range for rank 2
      second

    2 errors
    ");
}

#[test]
fn a_file_is_read_once_for_all_mistakes_in_it() {
    let reads = std::cell::Cell::new(0);
    let lookup = |_: &str| {
        reads.set(reads.get() + 1);
        Some(file("sum"))
    };
    let all = Diagnostics(vec![at_column(1, ""), at_column(2, ""), at_column(3, "")]);
    let text = all.render(&lookup);
    assert_eq!((reads.get(), text.matches("42 | sum\n").count()), (1, 3));
}

#[test]
fn debug_is_the_data() {
    let debug = format!("{:?}", Diagnostics::from(two_backends()));
    assert!(debug.contains("code: K0201") && debug.contains("Note { role: \"lhs\""), "{debug}");
}

#[test]
fn diagnostics_are_an_error_that_any_main_can_return() {
    fn fails() -> Result<(), Box<dyn std::error::Error>> {
        Err(Diagnostics::from(two_backends()))?;
        Ok(())
    }
    assert_eq!(fails().unwrap_err().to_string(), two_backends().to_string());
}
