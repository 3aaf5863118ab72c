//! A plug-in is one file and its registration.

use std::path::PathBuf;

use crate::{files, sources};

/// Name of the newest plug-in, to be updated with each new one.
const NEWEST: &str = "fastgen";

/// Outside its own files, a plug-in is mentioned only in `lib.rs` of its crate.
#[test]
fn the_newest_plug_in_is_mentioned_in_one_other_file() {
    let mut sources = Vec::new();
    for folder in sources::crates() {
        sources::add_sources(&folder.join("src"), &mut sources);
    }
    let module = NEWEST.replace('-', "_");
    let is_own_file = |path: &PathBuf| {
        path.iter().any(|part| part.to_str().is_some_and(|part| part.starts_with(&module)))
    };
    let mentions = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).unwrap();
        text.contains(NEWEST) || text.contains(&module)
    };
    let (own_files, others): (Vec<PathBuf>, Vec<PathBuf>) =
        sources.into_iter().filter(mentions).partition(is_own_file);
    assert!(!own_files.is_empty(), "no file defines {NEWEST}");
    let lib = files::root("crates/selectors/src/lib.rs");
    assert_eq!(others, [lib], "see CONTRIBUTING.md for the edits that a plug-in needs");
}
