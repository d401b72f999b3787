//! Compiled captures by signature, the least recently used given up first, and the reasons for every miss.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use kiln_ir::TensorType;
use kiln_ir::tree::Structure;

/// How many captures a compiled function keeps unless told otherwise.
pub(crate) const CAPACITY: usize = 64;

/// After how many recompilations a warning is due unless told otherwise.
pub(crate) const WARN_AFTER: usize = 16;

/// How many of the last reasons are remembered.
const REMEMBERED: usize = 8;

/// What a capture depends on: the trees it takes, with their plain data, and the types of their leaves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Signature {
    pub(crate) state: Structure,
    pub(crate) arguments: Structure,
    pub(crate) types: Vec<TensorType>,
}

impl Signature {
    /// The name of every leaf: `state.0.weight`, `args.1`.
    pub(crate) fn names(&self) -> Vec<String> {
        let state = self.state.names().into_iter().map(|name| qualified("state", &name));
        state.chain(self.arguments.names().into_iter().map(|name| qualified("args", &name))).collect()
    }

    /// The first way in which this signature differs from an earlier one.
    fn difference(&self, earlier: &Signature) -> String {
        for (what, new, old) in [("state", &self.state, &earlier.state), ("args", &self.arguments, &earlier.arguments)]
        {
            if let Err(mismatch) = old.matches(new) {
                let place = qualified(what, &mismatch.path);
                return format!("argument `{place}`: {} was {}", mismatch.found, mismatch.expected);
            }
        }
        let mut leaves = self.types.iter().zip(&earlier.types).enumerate();
        let changed = leaves.find(|(_, (new, old))| new != old);
        match changed {
            None => "an entry of the same signature was given up".to_owned(),
            Some((leaf, (new, old))) => {
                let name = self.names().swap_remove(leaf);
                format!("argument `{name}`: {}{} was {}{}", new.dtype, new.shape, old.dtype, old.shape)
            }
        }
    }
}

/// A leaf's name under the tree it belongs to.
pub(crate) fn qualified(tree: &str, leaf: &str) -> String {
    if leaf.is_empty() { tree.to_owned() } else { format!("{tree}.{leaf}") }
}

/// How a compiled function's cache has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Captures kept now.
    pub entries: usize,
    /// Calls that found their capture.
    pub hits: u64,
    /// Calls that captured and compiled.
    pub misses: u64,
    /// Captures given up to make room.
    pub evictions: u64,
    /// Why the last misses (the very first one aside) were misses, oldest first.
    pub reasons: Vec<String>,
    /// Set once there were more recompilations than seem healthy.
    pub warning: Option<String>,
}

impl fmt::Display for CacheStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CacheStatistics { entries, hits, misses, evictions, .. } = self;
        writeln!(f, "cache: {entries} kept, {hits} hits, {misses} misses, {evictions} given up")?;
        for reason in &self.reasons {
            writeln!(f, "  miss: {reason}")?;
        }
        match &self.warning {
            Some(warning) => writeln!(f, "  warning: {warning}"),
            None => Ok(()),
        }
    }
}

/// The cache of one compiled function.
pub(crate) struct Cache<T> {
    entries: HashMap<Arc<Signature>, Kept<T>>,
    latest: Option<Arc<Signature>>,
    capacity: usize,
    warn_after: usize,
    clock: u64,
    statistics: CacheStatistics,
}

struct Kept<T> {
    entry: Arc<T>,
    used: u64,
}

impl<T> Cache<T> {
    pub(crate) fn new() -> Cache<T> {
        Cache {
            entries: HashMap::new(),
            latest: None,
            capacity: CAPACITY,
            warn_after: WARN_AFTER,
            clock: 0,
            statistics: CacheStatistics::default(),
        }
    }

    pub(crate) fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity.max(1);
        self.make_room(0);
    }

    pub(crate) fn set_warn_after(&mut self, recompilations: usize) {
        self.warn_after = recompilations;
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    pub(crate) fn statistics(&self) -> CacheStatistics {
        CacheStatistics { entries: self.entries.len(), ..self.statistics.clone() }
    }

    /// The entry that was used last, if it is still kept.
    pub(crate) fn latest(&self) -> Option<Arc<T>> {
        self.latest.as_ref().and_then(|signature| self.entries.get(signature)).map(|kept| kept.entry.clone())
    }

    /// The entry for a signature, and counts the hit.
    pub(crate) fn find(&mut self, signature: &Signature) -> Option<Arc<T>> {
        self.clock += 1;
        let (known, _) = self.entries.get_key_value(signature)?;
        let known = known.clone();
        let kept = self.entries.get_mut(signature)?;
        kept.used = self.clock;
        let entry = kept.entry.clone();
        self.latest = Some(known);
        self.statistics.hits += 1;
        Some(entry)
    }

    /// Keeps a new entry and notes why it had to be made. Gives back the warning if this is when it falls due. Where another thread was
    /// quicker, its entry stays.
    pub(crate) fn insert(&mut self, signature: Signature, entry: T) -> (Arc<T>, Option<String>) {
        self.statistics.misses += 1;
        let warning = self.latest.clone().and_then(|latest| self.note(signature.difference(&latest)));
        if let Some(kept) = self.entries.get(&signature) {
            return (kept.entry.clone(), warning);
        }
        self.make_room(1);
        let (signature, entry) = (Arc::new(signature), Arc::new(entry));
        self.clock += 1;
        self.latest = Some(signature.clone());
        self.entries.insert(signature, Kept { entry: entry.clone(), used: self.clock });
        (entry, warning)
    }

    fn note(&mut self, reason: String) -> Option<String> {
        let recompilations = self.statistics.misses - 1;
        let due = recompilations >= self.warn_after as u64 && self.statistics.warning.is_none();
        if due {
            let text = format!("recompiled {recompilations} times; the last time because of {reason}");
            self.statistics.warning = Some(text);
        }
        if self.statistics.reasons.len() == REMEMBERED {
            self.statistics.reasons.remove(0);
        }
        self.statistics.reasons.push(reason);
        self.statistics.warning.clone().filter(|_| due)
    }

    fn make_room(&mut self, new: usize) {
        while self.entries.len() + new > self.capacity {
            let oldest = self.entries.iter().min_by_key(|(_, kept)| kept.used).map(|(signature, _)| signature.clone());
            let Some(oldest) = oldest else { return };
            self.entries.remove(&oldest);
            self.statistics.evictions += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use kiln_ir::{Backend, DType};

    use super::*;

    fn signature(extent: usize) -> Signature {
        let (state, mut arguments) = (Structure::default(), Structure::default());
        arguments.leaf();
        Signature { state, arguments, types: vec![TensorType::new(DType::F32, [extent], Backend::Cpu)] }
    }

    #[test]
    fn the_least_recently_used_entry_is_given_up() {
        let mut cache = Cache::new();
        cache.set_capacity(2);
        cache.insert(signature(1), 1);
        cache.insert(signature(2), 2);
        assert_eq!(cache.find(&signature(1)).as_deref(), Some(&1));
        cache.insert(signature(3), 3);
        assert_eq!(cache.find(&signature(2)), None);
        assert_eq!(cache.find(&signature(1)).as_deref(), Some(&1));
        assert_eq!(cache.statistics().evictions, 1);
    }

    #[test]
    fn a_miss_says_what_changed() {
        let mut cache = Cache::new();
        cache.insert(signature(64), ());
        cache.insert(signature(32), ());
        assert_eq!(cache.statistics().reasons, ["argument `args`: f32[32] was f32[64]"]);
    }

    #[test]
    fn the_warning_comes_once_and_names_the_last_change() {
        let mut cache = Cache::new();
        cache.set_warn_after(3);
        let warnings: Vec<String> = (1..10).filter_map(|extent| cache.insert(signature(extent), ()).1).collect();
        assert_eq!(warnings, ["recompiled 3 times; the last time because of argument `args`: f32[4] was f32[3]"]);
    }
}
