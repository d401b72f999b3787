//! NVRTC, which needs no GPU. Where it is not found nothing is compiled, unless `KILN_REQUIRE` names `nvrtc`.

use std::collections::HashSet;
use std::sync::{LazyLock, Mutex};

use cudarc::nvrtc::{CompileError, CompileOptions, compile_ptx_with_opts};
use kiln_ir::cuda::CudaText;

/// The oldest devices that texts are for, and the newest.
const DEVICES: [&str; 2] = ["sm_80", "sm_90"];

static IS_THERE: LazyLock<bool> = LazyLock::new(|| {
    // SAFETY: loading NVRTC runs its initialisers, which ask nothing of the caller.
    let found = unsafe { cudarc::nvrtc::sys::is_culib_present() };
    assert!(found || !super::is_required("nvrtc"), "NVRTC is required and not found: see LD_LIBRARY_PATH");
    found
});

static COMPILED: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);

/// Panics where a text does not compile, with the text.
#[track_caller]
pub(crate) fn compile(text: &CudaText) {
    if !*IS_THERE || !COMPILED.lock().expect("no test panics here").insert(text.source.to_string()) {
        return;
    }
    for device in DEVICES {
        let options = CompileOptions { arch: Some(device), fmad: Some(false), ..CompileOptions::default() };
        match compile_ptx_with_opts(&*text.source, options) {
            Ok(ptx) => assert!(ptx.to_src().contains(&*text.entry), "the entry point is there"),
            Err(CompileError::CompileError { log, .. }) => {
                panic!("{device}: {}\n{}", log.to_string_lossy(), text.source)
            }
            Err(error) => panic!("{device}: {error:?}\n{}", text.source),
        }
    }
}
