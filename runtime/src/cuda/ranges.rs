//! Ranges for NVIDIA's profilers (NVTX, feature `nvtx`): what a step hands over stands under the user's lines that it computes.
//!
//! The library is looked for when the first plan is prepared, as the driver's are; without it, and without the feature, there are no ranges.

use std::ffi::{CString, c_char, c_int};
use std::path::PathBuf;
use std::sync::OnceLock;

use kiln_ir::plan::{Plan, Step};
use libloading::Library;

use super::library::folders;

/// How many of a launch's lines are named.
const LINES: usize = 4;

/// The names of a plan's steps.
pub(crate) struct Ranges {
    nvtx: Option<&'static Nvtx>,
    names: Vec<CString>,
}

/// A range that ends when it goes.
pub(crate) struct Range(Option<&'static Nvtx>);

impl Ranges {
    /// Those of a plan's steps.
    pub(crate) fn of(plan: &Plan) -> Ranges {
        let nvtx = if cfg!(feature = "nvtx") { Nvtx::found() } else { None };
        let names = if nvtx.is_some() { plan.steps.iter().map(name).collect() } else { Vec::new() };
        Ranges { nvtx, names }
    }

    /// Begins the range of a step, by its number.
    pub(crate) fn enter(&self, step: usize) -> Range {
        let named = self.nvtx.zip(self.names.get(step));
        Range(named.map(|(nvtx, name)| {
            // SAFETY: the library's function, which reads the name during the call.
            unsafe { (nvtx.push)(name.as_ptr()) };
            nvtx
        }))
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Some(nvtx) = self.0 {
            // SAFETY: the library's function; the range was begun on this thread, of which this value does not leave the stack.
            unsafe { (nvtx.pop)() };
        }
    }
}

/// The lines that a step computes.
fn name(step: &Step) -> CString {
    let name = match step {
        Step::Launch(launch) if launch.locs.is_empty() => "launch".to_owned(),
        Step::Launch(launch) => {
            let lines: Vec<String> = launch.locs.iter().take(LINES).map(ToString::to_string).collect();
            let more = if launch.locs.len() > LINES { ", .." } else { "" };
            format!("{}{more}", lines.join(", "))
        }
        Step::Copy { .. } => "copy".to_owned(),
    };
    // No path has a zero byte in it.
    CString::new(name).unwrap_or_default()
}

/// The library's functions.
struct Nvtx {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
}

impl Nvtx {
    fn found() -> Option<&'static Nvtx> {
        static FOUND: OnceLock<Option<Nvtx>> = OnceLock::new();
        FOUND.get_or_init(Nvtx::load).as_ref()
    }

    fn load() -> Option<Nvtx> {
        let names: &[&str] = if cfg!(windows) {
            &["nvtx3interop.dll", "nvToolsExt64_1.dll"]
        } else {
            &["libnvtx3interop.so.1", "libnvtx3interop.so", "libnvToolsExt.so.1", "libnvToolsExt.so"]
        };
        let paths = names.iter().map(PathBuf::from);
        let placed = folders().into_iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
        paths.chain(placed.filter(|path| path.exists())).find_map(|path| {
            // SAFETY: NVIDIA's library may be loaded at any time and by any thread; the functions have had these types since its first release.
            unsafe {
                let library = Library::new(path).ok()?;
                let push = *library.get(b"nvtxRangePushA\0").ok()?;
                let pop = *library.get(b"nvtxRangePop\0").ok()?;
                // For the rest of the process: its functions are called until the end.
                std::mem::forget(library);
                Some(Nvtx { push, pop })
            }
        })
    }
}
