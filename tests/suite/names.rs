//! One name, one meaning: no two public types of the workspace have the same name.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::common::{crates, sources};

/// Each crate has its own, as the standard library's modules do; elsewhere they are written with the crate's name.
const EACH_CRATES_OWN: [&str; 2] = ["Error", "Result"];

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
    for folder in crates() {
        sources(&folder.join("src"), &mut files);
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
