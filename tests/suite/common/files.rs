//! Files of the repository.

use std::path::{Path, PathBuf};

/// A path in the repository. Its root is that of the running cargo command, or else that of the
/// build.
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

/// Folders of the workspace's crates, including the root and the Python package.
pub(crate) fn crates() -> Vec<PathBuf> {
    let mut folders = vec![root("."), root("cli"), root("python")];
    for room in ["crates", "runtime", "lab"] {
        folders.extend(std::fs::read_dir(root(room)).unwrap().map(|entry| entry.unwrap().path()));
    }
    folders.sort();
    folders
}

/// Adds the Rust files of a folder and its subfolders to `found`.
pub(crate) fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}
