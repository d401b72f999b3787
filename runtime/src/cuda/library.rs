//! The libraries that a CUDA device needs, found when they are first asked for.
//!
//! They are loaded by name, as the system's loader finds them. What it does not find is looked for where toolkits and packages put it, and loaded
//! by its path: the loader then knows it by name as well.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use kiln_ir::{Code, Diagnostic};
use libloading::Library;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needed {
    /// The driver, which comes with the hardware.
    Driver,
    /// The compiler of texts.
    Nvrtc,
    /// Matrix products.
    CublasLt,
}

impl Needed {
    /// Its file, as the loader knows it.
    fn names(self) -> &'static [&'static str] {
        match self {
            Needed::Driver if cfg!(windows) => &["nvcuda.dll"],
            Needed::Driver => &["libcuda.so.1", "libcuda.so"],
            Needed::Nvrtc if cfg!(windows) => &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"],
            Needed::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
            Needed::CublasLt if cfg!(windows) => &["cublasLt64_13.dll", "cublasLt64_12.dll"],
            Needed::CublasLt => &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
        }
    }

    fn what(self) -> &'static str {
        match self {
            Needed::Driver => "the NVIDIA driver",
            Needed::Nvrtc => "the compiler NVRTC",
            Needed::CublasLt => "the library cuBLASLt",
        }
    }

    fn help(self) -> &'static str {
        match self {
            Needed::Driver => "install the driver of this machine's GPU",
            Needed::Nvrtc => {
                "install the CUDA toolkit 12 or 13, or the package nvidia-cuda-nvrtc, and set CUDA_HOME to where it lies"
            }
            Needed::CublasLt => {
                "install the CUDA toolkit 12 or 13, or the package nvidia-cublas, and set CUDA_HOME to where it lies"
            }
        }
    }
}

/// Makes sure that a library is loaded. K0708 that says what was looked for where.
pub(super) fn load(needed: Needed) -> Result<(), Diagnostic> {
    static FOUND: [OnceLock<Result<(), Diagnostic>>; 3] = [const { OnceLock::new() }; 3];
    FOUND[needed as usize].get_or_init(|| find(needed)).clone()
}

fn find(needed: Needed) -> Result<(), Diagnostic> {
    let folders = folders();
    let paths = needed.names().iter().map(PathBuf::from);
    let placed = folders.iter().flat_map(|folder| needed.names().iter().map(|name| folder.join(name)));
    let mut refused = None;
    for path in paths.chain(placed.filter(|path| path.exists())) {
        // SAFETY: NVIDIA's libraries may be loaded at any time and by any thread; their initialisers have no demands on the caller.
        match unsafe { Library::new(&path) } {
            Ok(library) => {
                // For the rest of the process: what was found in it is called until the end.
                std::mem::forget(library);
                return Ok(());
            }
            Err(error) if path.is_absolute() => refused = Some(format!("{}: {error}", path.display())),
            Err(_) => {}
        }
    }
    let folders: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    let error = Diagnostic::new(Code::K0708, format!("no CUDA device: {} was not found", needed.what()))
        .label(format!("looked for {} in the loader's path, {}", needed.names().join(", "), folders.join(", ")))
        .help(needed.help());
    Err(match refused {
        Some(refused) => error.help(format!("one that was found does not load: {refused}")),
        None => error,
    })
}

/// Where toolkits put libraries.
pub(super) fn folders() -> Vec<PathBuf> {
    roots()
        .iter()
        .flat_map(|root| ["lib64", "lib", "bin"].map(|folder| root.join(folder)))
        .filter(|folder| folder.is_dir())
        .collect()
}

/// Where the headers of 16-bit floats may be, for the compiler of texts.
pub(super) fn include_folders() -> Vec<PathBuf> {
    let found = roots().into_iter().map(|root| root.join("include"));
    found.filter(|folder| folder.join("cuda_fp16.h").exists()).collect()
}

/// Toolkits: the one that the environment names, those in the usual places, and those of Python's packages.
fn roots() -> Vec<PathBuf> {
    let named = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    let usual =
        ["/usr/local/cuda", "/usr/local/cuda-13", "/usr/local/cuda-13.0", "/usr/local/cuda-12", "/opt/cuda", "/usr"];
    let mut roots: Vec<PathBuf> = named.chain(usual.iter().map(PathBuf::from)).collect();
    // Packages put theirs at the end of Python's path: .../nvidia/cu13, or .../nvidia/cuda_nvrtc.
    let libraries = ["/usr/local/lib", "/usr/lib"].map(Path::new);
    for python in libraries.iter().flat_map(|folder| children(folder)).filter(|folder| named_python(folder)) {
        for packages in ["site-packages", "dist-packages"] {
            roots.extend(children(&python.join(packages).join("nvidia")));
        }
    }
    roots
}

fn named_python(folder: &Path) -> bool {
    folder.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("python3"))
}

fn children(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_found_is_told_with_names_and_places() {
        // Where the driver is, there is nothing to tell.
        let Err(error) = load(Needed::Driver) else { return };
        assert_eq!(error.code, Code::K0708);
        let label = error.label.unwrap_or_default();
        assert!(label.contains("libcuda.so.1") || label.contains("nvcuda.dll"), "{label}");
    }
}
