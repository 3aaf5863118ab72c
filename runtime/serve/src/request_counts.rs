//! Counters of requests by path and status.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Paths that are counted separately. All others share one counter: with one counter for each path,
/// clients could fill the memory.
const COUNTED: [&str; 8] = [
    "/",
    "/health",
    "/metrics",
    "/v1/models",
    "/v1/completions",
    "/v1/chat/completions",
    "/tokenize",
    "/detokenize",
];

/// Returns the name under which a path is counted.
pub(crate) fn name_path(path: &str) -> &'static str {
    COUNTED.into_iter().find(|&known| known == path).unwrap_or("other")
}

/// Numbers of answered requests, by path and status.
#[derive(Debug, Default)]
pub(crate) struct RequestCounts {
    by_status: Mutex<BTreeMap<(&'static str, u16), u64>>,
}

impl RequestCounts {
    /// Counts a request to one of the server's paths.
    pub(crate) fn add(&self, path: &'static str, status: u16) {
        *self.lock().entry((path, status)).or_default() += 1;
    }

    /// Returns the counts by path and status.
    pub(crate) fn list(&self) -> Vec<((&'static str, u16), u64)> {
        self.lock().iter().map(|(&key, &count)| (key, count)).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<(&'static str, u16), u64>> {
        self.by_status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
