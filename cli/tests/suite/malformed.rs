//! Messages of `vattention check` about malformed files. Read a new snapshot as a user before
//! accepting it.

use std::path::Path;
use std::process::Command;

use crate::world::expect_code;

/// Runs `vattention check FILE` in the folder of the files, and returns standard error. The file
/// must be refused.
fn check(file: &str, more: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_vattention"))
        .args(["check", file])
        .args(more)
        .current_dir(folder())
        .output()
        .unwrap();
    assert!(output.stdout.is_empty(), "{file}: a malformed pipeline is not printed");
    without_lists(&expect_code(&output, 2))
}

/// Replaces lists of all selectors or estimators, which change with new plug-ins, by `[all]`.
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
fn malformed_files_are_refused() {
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
fn bad_changes_are_refused() {
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
