//! One name, one meaning: no two public types of the workspace have the same name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::common::root;

/// Each crate has its own, as the standard library's modules do; elsewhere they are written with the crate's name.
const EACH_CRATES_OWN: [&str; 2] = ["Error", "Result"];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The name that a line of a file declares for a public type.
fn public_type(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub ")?;
    let (kind, rest) = rest.split_once(' ')?;
    let end = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
    ["struct", "enum", "trait", "type"].contains(&kind).then(|| &rest[..end])
}

#[test]
fn public_types_have_names_of_their_own() {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(root("crates")).unwrap() {
        sources(&entry.unwrap().path().join("src"), &mut files);
    }
    let mut declared: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for name in text.lines().filter_map(public_type) {
            declared.entry(name.to_owned()).or_default().push(file.clone());
        }
    }
    assert!(declared.len() > 200, "{} public types", declared.len());
    let twice = |(name, files): &(&String, &Vec<PathBuf>)| {
        files.len() > 1 && !EACH_CRATES_OWN.contains(&name.as_str())
    };
    let twice: Vec<_> = declared.iter().filter(twice).collect();
    assert!(twice.is_empty(), "used for different things: {twice:#?}");
}
