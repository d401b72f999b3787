//! Where what was compiled is kept between processes.

use std::path::PathBuf;

/// Kiln's folder among the user's caches; `None` where the system has no such place.
pub(crate) fn folder() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let root = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")));
    root.or_else(|| folder("LOCALAPPDATA")).map(|root| root.join("kiln"))
}
