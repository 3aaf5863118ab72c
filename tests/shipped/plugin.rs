//! A plug-in is one file and its registration.

use std::path::PathBuf;

use crate::{files, sources};

/// The newest plug-in: whoever adds one writes its name here.
const NEWEST: &str = "fastgen";

/// Product code outside the plug-in's own files names it in `lib.rs` of its crate alone.
#[test]
fn the_newest_plug_in_is_named_in_one_other_file() {
    let mut sources = Vec::new();
    for folder in sources::crates() {
        sources::add_sources(&folder.join("src"), &mut sources);
    }
    let module = NEWEST.replace('-', "_");
    let own = |path: &PathBuf| {
        path.iter().any(|part| part.to_str().is_some_and(|part| part.starts_with(&module)))
    };
    let names_it = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).unwrap();
        text.contains(NEWEST) || text.contains(&module)
    };
    let (own, others): (Vec<PathBuf>, Vec<PathBuf>) =
        sources.into_iter().filter(names_it).partition(own);
    assert!(!own.is_empty(), "no file defines {NEWEST}");
    let lib = files::root("crates/selectors/src/lib.rs");
    assert_eq!(others, [lib], "see CONTRIBUTING.md for the edits that a plug-in needs");
}
