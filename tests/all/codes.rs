//! A small program for every code: it is run, and what it ends with is what the page of the code shows, word for word.
//!
//! # A new code
//!
//! The compiler asks for its row in `programs!` below. What else there is to write:
//!
//! 1. `tests/all/codes/Kxxxx.rs`, a whole program whose `main` ends with the code. (For a mistake in a text of the IR: `Kxxxx.kiln`, and the
//!    row is under `text`.) Mistakes that only `try_` forms or panics can tell go through the `try_` form and `?`.
//! 2. `ir/errors/Kxxxx.md`: the title `# Kxxxx: ` with the summary, what the code means, and after the word `Mended:` a program that is fine.
//! 3. The part from `Fails:` on is written by `INSTA_UPDATE=always cargo test --test all codes`, program and text as it is rendered; so is
//!    the index, `docs/errors.md`. Read both as you read code.
//!
//! A code that nothing can raise is none: it comes with what raises it.

use std::path::Path;

use kiln_ir::{Code, Rendering, parse};

use crate::documented::{DOCUMENTED, FAMILIES};

/// What ends with a code.
enum Program {
    /// A program of a user, in `src/main.rs`.
    Rust { source: &'static str, run: fn() -> kiln::Result<()> },
    /// A text of the IR, in `step.kiln`.
    Text(&'static str),
}

macro_rules! programs {
    (rust: $($rust:ident)*; text: $($text:ident)*;) => {
        $(
            #[allow(non_snake_case, clippy::print_stdout)]
            mod $rust {
                include!(concat!("codes/", stringify!($rust), ".rs"));

                pub(super) fn run() -> kiln::Result<()> {
                    main()
                }
            }
        )*

        fn program(code: Code) -> Program {
            match code {
                $(Code::$rust => Program::Rust {
                    source: include_str!(concat!("codes/", stringify!($rust), ".rs")),
                    run: $rust::run,
                },)*
                $(Code::$text => Program::Text(include_str!(concat!("codes/", stringify!($text), ".kiln"))),)*
            }
        }
    };
}

programs! {
    rust:
        K0101 K0102 K0103 K0104 K0105 K0106 K0107 K0111
        K0201 K0202 K0203 K0204 K0205 K0206 K0207 K0208 K0209 K0210 K0211
        K0301 K0302 K0303 K0304 K0305 K0306 K0307 K0308 K0309 K0310 K0311 K0312
        K0401 K0402 K0403 K0404 K0405 K0406 K0407
        K0501 K0502 K0503 K0504 K0505 K0506 K0507 K0508 K0509
        K0601 K0603
        K0701 K0702 K0703 K0704 K0705 K0706 K0707 K0708
        K0901
        K1001 K1002 K1003 K1004;
    text:
        K0108 K0109 K0110
        K0801 K0802 K0803 K0804 K0805 K0806;
}

/// The rendered text that the program of a code ends with, and the program as its page shows it.
struct Raised {
    text: String,
    program: String,
}

fn raise(code: Code) -> Raised {
    let rust = format!("tests/all/codes/{code}.rs");
    let (diagnostics, file, source, program) = match program(code) {
        Program::Rust { source, run } => {
            let error = run().expect_err("the program makes a mistake");
            (error.into_diagnostics(), &*rust, source, format!("```rust,no_run\n{source}```\n"))
        }
        Program::Text(text) => {
            let error = parse(text).expect_err("the text has a mistake");
            (error, "step.kiln", text, format!("```kiln-fails\n{text}```\n"))
        }
    };
    assert!(diagnostics.iter().all(|diagnostic| diagnostic.code == code), "{code}: {diagnostics}");
    let lookup = |path: &str| (path == file).then(|| source.to_owned());
    let text_file = if file == rust { "<text>" } else { file };
    let text = diagnostics.render_as(&Rendering { text_file, ..Rendering::plain(&lookup) });
    Raised {
        // Whatever else this build has: the page is the same.
        text: text
            .replace("NdArray, Cpu, Wgpu", "NdArray, Cpu")
            .replace(&rust, "src/main.rs")
            .replace(&*std::env::temp_dir().to_string_lossy(), "/tmp"),
        program,
    }
}

/// Compares a file of the project with what it should hold, or writes it so where snapshots are written.
#[track_caller]
pub(crate) fn assert_file(path: &str, expected: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    if found != expected && std::env::var("INSTA_UPDATE").as_deref() == Ok("always") {
        std::fs::write(&file, expected).unwrap();
        return;
    }
    assert_eq!(found, expected, "{path}: `INSTA_UPDATE=always` writes it anew");
}

#[test]
fn every_page_shows_a_program_that_raises_its_code_and_the_text_it_ends_with() {
    for &code in Code::ALL {
        // It lists the backends of the build; the page has those of one without GPUs.
        if code == Code::K0208 && cfg!(any(feature = "wgpu", feature = "cuda")) {
            continue;
        }
        let Raised { text, program } = raise(code);
        let path = format!("ir/errors/{code}.md");
        let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(&path)).unwrap();
        let (meaning, mended) = page.split_once("Mended:").unwrap_or_else(|| panic!("{code} has no mended program"));
        let meaning = meaning.split("Fails:").next().unwrap_or_default().trim_end();
        let expected = format!("{meaning}\n\nFails:\n\n{program}\n```text\n{text}```\n\nMended:{mended}");
        assert_file(&path, &expected);
    }
}

/// Whether a text is a message with something in every `{}`.
fn is_filled(text: &str, message: &str) -> bool {
    let mut parts = message.split("{}");
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    for part in parts {
        let end = if part.is_empty() { Some(rest.len()) } else { rest.find(part) };
        match end {
            Some(end) if end > 0 => rest = &rest[end + part.len()..],
            _ => return false,
        }
    }
    rest.is_empty()
}

#[test]
fn every_documented_message_is_raised_word_for_word() {
    for (name, message) in DOCUMENTED {
        let code: Code = name.parse().unwrap_or_else(|()| panic!("{name} is documented, and no code"));
        let raised = raise(code);
        let line = raised.text.lines().next().unwrap_or_default();
        let found = line.strip_prefix(&format!("error[{name}]: ")).unwrap_or_else(|| panic!("{name}: {line}"));
        assert!(is_filled(found, message), "{name} says\n{found}\nand is documented as\n{message}");
        assert_eq!(code.summary(), message);
    }
    for family in FAMILIES {
        assert!(Code::ALL.iter().any(|code| code.name().starts_with(family)), "{family}");
    }
}

#[test]
fn a_message_is_filled_with_names_only_where_it_has_room_for_them() {
    assert!(is_filled("Got backends Cpu and Cuda.", "Got backends {} and {}."));
    assert!(is_filled("unknown graph f tensor w", "unknown graph {} tensor {}"));
    for text in ["Got backends Cpu and .", "Got backends Cpu and Cuda", "Got backends Cpu and Cuda. More"] {
        assert!(!is_filled(text, "Got backends {} and {}."), "{text}");
    }
}
