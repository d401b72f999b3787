//! The pages of the documented errors: each says what its code means, fails as it says (`codes.rs` runs it), and is mended. Mended Rust
//! programs run as documentation tests of `kiln::errors`; mended texts of the IR are read here.

use std::fmt::Write;

use kiln_ir::{Code, parse};

use crate::codes::assert_file;

/// The fenced blocks of a language on a page.
fn blocks<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let open = format!("```{language}\n");
    page.split(&open).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

#[test]
fn every_page_begins_with_its_code_and_says_what_it_means() {
    for &code in Code::ALL {
        let page = code.explain();
        let title = format!("# {code}: {}\n\n", code.summary());
        assert!(page.starts_with(&title), "{code}");
        let meaning = page[title.len()..].split("\n\n").next().unwrap();
        assert!(meaning.len() > 60 && meaning.trim_end().ends_with(['.', ')']), "{code}: {meaning}");
        assert!(page.lines().all(|line| line.chars().count() <= 160), "{code}");
    }
}

#[test]
fn a_page_shows_how_its_code_is_mended_where_it_can_be_raised() {
    for &code in Code::ALL {
        let page = code.explain();
        match page.split_once("Mended:") {
            Some((_, mended)) => assert!(mended.contains("```"), "{code}"),
            None => assert!(page.contains("Nothing raises it yet"), "{code}"),
        }
    }
}

#[test]
fn texts_on_the_pages_fail_with_their_code_and_are_mended() {
    for &code in Code::ALL {
        for text in blocks(code.explain(), "kiln-fails") {
            assert_eq!(parse(text).expect_err(text).codes(), [code], "{text}");
        }
        for text in blocks(code.explain(), "kiln") {
            let graph = parse(text).unwrap_or_else(|diagnostics| panic!("{diagnostics}\n{text}"));
            assert_eq!(graph.to_string(), text);
        }
    }
}

#[test]
fn the_index_lists_every_page() {
    let mut index = String::from("# Errors\n\nEvery code that Kiln raises. `kiln explain K0201` prints a page.\n");
    let mut family = "";
    for &code in Code::ALL {
        if family != &code.name()[..3] {
            family = &code.name()[..3];
            write!(index, "\n## {family}xx: {}\n\n| code | message |\n|---|---|\n", code.family()).unwrap();
        }
        writeln!(index, "| [{code}](../ir/errors/{code}.md) | {} |", code.summary()).unwrap();
    }
    assert_file("docs/errors.md", &index);
}
