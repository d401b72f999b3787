//! The house itself: who may depend on whom, and how many places an op has.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Names of the workspace's crates that `package` depends on, dev-dependencies left out.
fn dependencies(package: &str) -> BTreeSet<String> {
    let root = env!("CARGO_MANIFEST_DIR");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args([
            "tree",
            "--offline",
            "--edges",
            "normal",
            "--depth",
            "1",
            "--prefix",
            "none",
            "--format",
            "{p}",
            "-p",
            package,
        ])
        .current_dir(root)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| name.starts_with("kiln")).map(str::to_owned).collect()
}

#[test]
fn the_rooms_depend_on_ir_alone() {
    for room in ["kiln-capture", "kiln-passes", "kiln-codegen", "kiln-runtime"] {
        assert_eq!(dependencies(room), BTreeSet::from(["kiln-ir".to_owned()]), "{room}");
    }
    assert_eq!(dependencies("kiln-ir"), BTreeSet::new());
    assert_eq!(dependencies("kiln-derive"), BTreeSet::new());
}

#[test]
fn ir_does_no_input_or_output() {
    for (path, text) in sources("ir/src") {
        for forbidden in ["std::fs", "std::net", "std::process", "println!", "std::env::var"] {
            assert!(!text.contains(forbidden), "{path} holds {forbidden}");
        }
    }
}

#[test]
fn the_executor_never_sees_an_op_and_the_reference_never_sees_a_kernel() {
    for (path, text) in sources("runtime/src/executor").into_iter().chain(sources("runtime/src/cpu")) {
        assert!(!text.contains("kiln_ir::Op") && !text.contains("Op::Scalar"), "{path} knows ops");
    }
    // `plan.rs` runs plans by their definition, to test them; it never sees an op.
    let apart = |path: &str| path.starts_with("runtime/src/reference/plan");
    for (path, text) in sources("runtime/src/reference") {
        if apart(&path) {
            assert!(!text.contains("kiln_ir::Op") && !text.contains(" Op,"), "{path} knows ops");
            continue;
        }
        assert!(!text.contains("kiln_ir::kernel") && !text.contains("kiln_ir::plan"), "{path} knows kernels or plans");
    }
}

#[test]
fn clocks_are_those_that_a_browser_has() {
    for folder in ["ir/src", "capture/src", "passes/src", "codegen/src", "runtime/src", "src"] {
        for (path, text) in sources(folder) {
            for line in text.lines().filter(|line| line.contains("std::time::")) {
                // Asked for the time in a browser, these panic.
                assert!(!line.contains("Instant") && !line.contains("SystemTime"), "{path}: {line}");
            }
        }
    }
}

#[test]
fn an_elementwise_op_stands_where_contributing_says() {
    // `atan2` stands for all of them: a primitive with two operands and a gradient.
    let mut places: Vec<String> = Vec::new();
    for folder in ["ir/src", "capture/src", "passes/src", "codegen/src", "runtime/src"] {
        for (path, text) in sources(folder) {
            let code = text.split("#[cfg(test)]").next().unwrap_or("");
            if code.contains("Atan2") && !path.contains("tests") {
                places.push(path);
            }
        }
    }
    places.sort();
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("CONTRIBUTING.md")).unwrap();
    let listed: Vec<&String> = places.iter().filter(|place| !page.contains(place.as_str())).collect();
    assert!(listed.is_empty(), "CONTRIBUTING.md does not name {listed:?}, where an elementwise op has a place");
}

#[test]
fn the_readme_shows_the_quickstart_as_it_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let example = read("examples/quickstart.rs");
    let (_, code) = example.split_once("\n\n").unwrap();
    assert!(read("README.md").contains(code.trim_end()), "README.md and examples/quickstart.rs differ");
}

#[test]
fn the_readme_shows_an_error_as_its_page_does() {
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let page = kiln_ir::Code::K0301.explain();
    for block in ["```rust,no_run\n", "```text\n"] {
        let text = page.split(block).nth(1).unwrap().split("```").next().unwrap();
        assert!(readme.contains(text), "README.md does not show\n{text}");
    }
}

/// All Rust files below a folder of the project, with their text.
fn sources(folder: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut open = vec![root.join(folder)];
    let mut found = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            found.push((name, std::fs::read_to_string(&path).unwrap()));
        }
    }
    found
}
