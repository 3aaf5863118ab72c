//! The source files of the workspace.

use std::path::{Path, PathBuf};

use crate::files;

/// Folders of all crates: those of the workspace, the root and the Python package.
pub(crate) fn crates() -> Vec<PathBuf> {
    let mut folders = vec![files::root("."), files::root("cli"), files::root("python")];
    for room in ["crates", "runtime", "lab"] {
        folders.extend(
            std::fs::read_dir(files::root(room)).unwrap().map(|entry| entry.unwrap().path()),
        );
    }
    folders.sort();
    folders
}

/// Adds the Rust files of a folder and of its subfolders.
pub(crate) fn add_sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}
