//! Files of the repository.

use std::path::PathBuf;

/// Returns a path below the repository's root: the root that cargo sets for the running test or,
/// without cargo, the root at build time.
pub(crate) fn root(path: &str) -> PathBuf {
    let root = std::env::var_os("CARGO_MANIFEST_DIR");
    root.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from).join(path)
}

/// Pipeline files of the repository.
pub(crate) fn configs() -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(root("configs"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths
}
