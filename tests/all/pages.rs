//! The pages of the documented errors: each says what its code means, and its IR texts fail and are mended as it says. The Rust snippets run
//! as documentation tests of the facade.

use kiln_ir::{Code, parse};

/// Codes that no snippet can raise: what would raise them is not there, or is a fault of a machine, or of ours.
const WITHOUT_SNIPPET: [Code; 6] = [Code::K0601, Code::K0602, Code::K0603, Code::K0702, Code::K0901, Code::K1003];

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
        assert!(page.lines().all(|line| line.chars().count() <= 150), "{code}");
    }
}

#[test]
fn every_page_shows_how_its_code_is_raised_and_mended() {
    for &code in Code::ALL.iter().filter(|code| !WITHOUT_SNIPPET.contains(code)) {
        let page = code.explain();
        let (fails, mended) = page.split_once("Mended:").unwrap_or_else(|| panic!("{code}"));
        let asserted = blocks(fails, "rust").iter().any(|block| block.contains(&format!("error[{code}]")));
        assert!(asserted || !blocks(fails, "kiln-fails").is_empty(), "{code}");
        assert!(mended.contains("```"), "{code}");
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
