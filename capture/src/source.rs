//! The user's source lines, for mistakes that are shown.
//!
//! The compiler names a file by a path from the root of its workspace, or absolutely. A program runs anywhere: what is looked for is a
//! folder above the program, or above the current folder, that holds the file. Folders with a `Cargo.lock`, the roots of workspaces, come
//! first, since a member of a workspace may well have a file of the same path. Where nothing is found the mistake is shown without its
//! line.

use std::path::{Path, PathBuf};

use kiln_ir::{Diagnostic, Diagnostics};

/// The text of a source file, by the path that the compiler gave it ([`std::panic::Location::file`]). `None` where it cannot be read here.
///
/// ```
/// let text = kiln_capture::source_text("capture/src/source.rs");
/// assert!(text.is_none_or(|text| text.starts_with("//! The user's source lines")));
/// assert!(kiln_capture::source_text("no/such/file.rs").is_none());
/// ```
pub fn source_text(path: &str) -> Option<String> {
    let starts = [std::env::current_exe().ok(), std::env::current_dir().ok()];
    let folders: Vec<&Path> = starts.iter().flatten().flat_map(|start| start.ancestors()).collect();
    std::fs::read_to_string(find(path, &folders)?).ok()
}

/// The file of this path below one of the folders: below the root of a workspace, if there is one that has it.
fn find(path: &str, folders: &[&Path]) -> Option<PathBuf> {
    let path = Path::new(path);
    if path.is_absolute() {
        return Some(path.to_owned());
    }
    let (roots, others): (Vec<&Path>, Vec<&Path>) =
        folders.iter().partition(|folder| folder.join("Cargo.lock").is_file());
    roots.into_iter().chain(others).map(|folder| folder.join(path)).find(|file| file.is_file())
}

/// Panics with the text of a diagnostic, the user's source line in it where it can be read.
#[track_caller]
pub(crate) fn refuse(diagnostic: &Diagnostic) -> ! {
    panic!("{}", text(diagnostic))
}

/// As [`refuse`], with all of them.
#[track_caller]
pub(crate) fn refuse_all(diagnostics: &Diagnostics) -> ! {
    panic!("{}", diagnostics.render(&source_text))
}

/// What a panic says.
pub(crate) fn text(diagnostic: &Diagnostic) -> String {
    diagnostic.render(&source_text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_looked_for_below_the_root_of_the_workspace_first() {
        let root = std::env::temp_dir().join(format!("kiln-source-{}", std::process::id()));
        let member = root.join("member");
        std::fs::create_dir_all(member.join("src")).unwrap();
        std::fs::create_dir_all(root.join("src")).unwrap();
        for file in
            [root.join("Cargo.lock"), root.join("src/lib.rs"), member.join("src/lib.rs"), member.join("src/a.rs")]
        {
            std::fs::write(file, "").unwrap();
        }
        let folders: Vec<&Path> = member.ancestors().collect();
        assert_eq!(find("src/lib.rs", &folders), Some(root.join("src/lib.rs")));
        assert_eq!(find("member/src/a.rs", &folders), Some(member.join("src/a.rs")));
        assert_eq!(find("src/a.rs", &folders), Some(member.join("src/a.rs")));
        assert_eq!(find("src/b.rs", &folders), None);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
