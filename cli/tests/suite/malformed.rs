//! What `vattention check` says of files that are wrong, each read by a person before it was kept.

use std::path::Path;
use std::process::Command;

use crate::world::expect_code;

/// Standard error of `vattention check FILE`, run where the files are, which must be refused.
fn check(file: &str, more: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_vattention"))
        .args(["check", file])
        .args(more)
        .current_dir(folder())
        .output()
        .unwrap();
    assert!(output.stdout.is_empty(), "{file}: nothing is printed of a bad pipeline");
    without_lists(&expect_code(&output, 2))
}

/// What was said, with `[all]` for lists of every selector or estimator, which grow.
fn without_lists(said: &str) -> String {
    let shorten = |(i, part): (usize, &str)| {
        let end = part.find("\n  ×").or(part.find("\nerror")).unwrap_or(part.len());
        let (list, rest) = part.split_at(end);
        let all = list.contains("`sink`") || list.contains("`ratio`");
        if i > 0 && all { format!(" [all]{rest}") } else { part.to_owned() }
    };
    said.split("known:").enumerate().map(shorten).collect::<Vec<_>>().join("known:")
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/malformed"))
}

#[test]
fn every_malformed_file_is_refused_in_words_that_help() {
    let mut files: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert!(files.len() >= 20);
    for file in files {
        insta::assert_snapshot!(file.trim_end_matches(".toml"), check(&file, &[]));
    }
}

#[test]
fn changes_are_refused_where_they_were_made() {
    let good = "../../../configs/vattention-oracle.toml";
    for (name, set) in [
        ("set-bad-value", "estimator.epsilon = 2"),
        ("set-unknown-key", "estimator.epsilom=0.1"),
        ("set-bad-size", "selectors.0.size = \"big\""),
        ("set-bad-index", "selectors.9.size = 4"),
        ("set-no-value", "estimator.epsilon"),
        ("set-empty", ""),
    ] {
        insta::assert_snapshot!(name, check(good, &["--set", set]));
    }
}
