//! Texts compiled to machine code, once a machine: kept in memory by their text, on disk by their hash.
//!
//! A file is written beside its place and then moved there, so that processes that compile the same at once do not see halves of it. Who cannot
//! write there compiles each time.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaContext, CudaFunction, sys};
use cudarc::nvrtc;
use kiln_ir::cuda::CudaText;
use kiln_ir::{Code, Diagnostic};
use rayon::prelude::*;

use super::library::{self, Needed};

/// The functions of a device.
pub(super) struct Modules {
    known: Mutex<HashMap<Arc<str>, CudaFunction>>,
    /// Such as `sm_90`.
    architecture: String,
    folder: Option<PathBuf>,
}

impl Modules {
    pub(super) fn new(capability: (i32, i32)) -> Modules {
        let folder = crate::cache::folder().map(|folder| folder.join("cuda"));
        Modules { known: Mutex::default(), architecture: format!("sm_{}{}", capability.0, capability.1), folder }
    }

    /// The function of each text, in order; those that are new are compiled side by side.
    ///
    /// Errors: K0708 without NVRTC; K0901 where one does not compile, a mistake of ours; K0702 where the device does not take it.
    pub(super) fn functions(
        &self,
        texts: &[&CudaText],
        context: &Arc<CudaContext>,
    ) -> Result<Vec<CudaFunction>, Diagnostic> {
        let mut missing: HashMap<&Arc<str>, &CudaText> = HashMap::new();
        {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            for text in texts.iter().filter(|text| !known.contains_key(&text.source)) {
                missing.insert(&text.source, text);
            }
        }
        let missing: Vec<&CudaText> = missing.into_values().collect();
        let compiled: Result<Vec<Vec<u8>>, Diagnostic> = missing.par_iter().map(|text| self.binary(text)).collect();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for (text, binary) in missing.iter().zip(compiled?) {
            let loaded = context
                .load_module(nvrtc::Ptx::from_binary(binary))
                .and_then(|module| module.load_function(&text.entry))
                .map_err(|error| super::fault("loading a kernel", error))?;
            if text.shared_bytes > 48 << 10 {
                let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                loaded
                    .set_attribute(attribute, text.shared_bytes as i32)
                    .map_err(|error| super::fault("asking for shared memory", error))?;
            }
            known.insert(text.source.clone(), loaded);
        }
        Ok(texts.iter().map(|text| known[&text.source].clone()).collect())
    }

    /// The machine code of a text: from the disk, or compiled and put there.
    fn binary(&self, text: &CudaText) -> Result<Vec<u8>, Diagnostic> {
        let file = self.folder.as_ref().map(|folder| folder.join(self.key(text)));
        if let Some(kept) = file.as_ref().and_then(|file| std::fs::read(file).ok()).filter(|kept| is_binary(kept)) {
            return Ok(kept);
        }
        library::load(Needed::Nvrtc)?;
        let made =
            compile(&text.source, &self.architecture).map_err(|log| {
                Diagnostic::new(Code::K0901, format!("internal: a text for CUDA does not compile: {}", text.entry))
                    .note("compiler", log, "said", kiln_ir::Loc::Unknown)
            })?;
        if let Some(file) = &file {
            // A cache that cannot be written is no mistake of anybody's.
            let _ = keep(file, &made);
        }
        Ok(made)
    }

    fn key(&self, text: &CudaText) -> String {
        let mut hasher = std::hash::DefaultHasher::new();
        (&*text.source, &self.architecture, OPTIONS).hash(&mut hasher);
        let first = hasher.finish();
        // Twice as many bits: what is found is run unseen.
        (first, text.source.len()).hash(&mut hasher);
        format!("{}_{first:016x}{:016x}.cubin", text.entry, hasher.finish())
    }
}

/// What texts are compiled with. A product and a sum stay two roundings.
const OPTIONS: [&str; 2] = ["--fmad=false", "--std=c++17"];

fn compile(source: &str, architecture: &str) -> Result<Vec<u8>, String> {
    let source = CString::new(source).map_err(|error| error.to_string())?;
    let program = nvrtc::result::create_program(&source, None).map_err(|error| error.to_string())?;
    let mut options: Vec<String> = OPTIONS.iter().map(|option| (*option).to_owned()).collect();
    options.push(format!("--gpu-architecture={architecture}"));
    options.extend(library::include_folders().iter().map(|folder| format!("--include-path={}", folder.display())));
    // SAFETY: the program was made above and is destroyed once, below.
    let compiled = unsafe { nvrtc::result::compile_program(program, &options) };
    let made = match compiled {
        Ok(()) => binary_of(program),
        Err(error) => Err(log_of(program).unwrap_or_else(|| error.to_string())),
    };
    // SAFETY: made above, used by nobody any more.
    let _ = unsafe { nvrtc::result::destroy_program(program) };
    made
}

fn binary_of(program: nvrtc::sys::nvrtcProgram) -> Result<Vec<u8>, String> {
    let mut bytes = 0;
    // SAFETY: a compiled program, and a place for one number.
    unsafe { nvrtc::sys::nvrtcGetCUBINSize(program, &mut bytes) }.result().map_err(|error| error.to_string())?;
    let mut binary = vec![0u8; bytes];
    // SAFETY: as many bytes as the compiler has asked for.
    unsafe { nvrtc::sys::nvrtcGetCUBIN(program, binary.as_mut_ptr().cast()) }
        .result()
        .map_err(|error| error.to_string())?;
    Ok(binary)
}

fn log_of(program: nvrtc::sys::nvrtcProgram) -> Option<String> {
    // SAFETY: the program lives.
    let log = unsafe { nvrtc::result::get_program_log(program) }.ok()?;
    let bytes: Vec<u8> = log.iter().map(|&byte| byte.to_ne_bytes()[0]).collect();
    CStr::from_bytes_until_nul(&bytes).ok().map(|log| log.to_string_lossy().into_owned())
}

/// Whether bytes begin as machine code for a GPU does.
fn is_binary(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x7fELF")
}

fn keep(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let Some(folder) = file.parent() else { return Ok(()) };
    std::fs::create_dir_all(folder)?;
    let thread = format!("{:?}", std::thread::current().id());
    let digits: String = thread.chars().filter(char::is_ascii_digit).collect();
    let beside = file.with_extension(format!("{}-{digits}.part", std::process::id()));
    std::fs::write(&beside, bytes)?;
    std::fs::rename(&beside, file)
}
