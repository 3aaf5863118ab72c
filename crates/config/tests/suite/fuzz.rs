//! Random texts: for each, reading ends with a pipeline or with problems whose places are in the
//! text.

use proptest::prelude::*;
use vattention_config::Loader;
use {vattention_estimators as _, vattention_selectors as _};

/// Pieces of pipeline files, valid and invalid ones.
const PIECES: [&str; 44] = [
    "[[selectors]]",
    "[estimator]",
    "[sampler]",
    "[selectors]",
    "[estimator.x]",
    "type",
    "size",
    "epsilon",
    "delta",
    "rounds",
    "share",
    "name",
    "seed",
    "dense_layers",
    "extends",
    "target",
    "combine",
    "=",
    "=",
    "=",
    "\n",
    "\n",
    "\n",
    " ",
    "\"sink\"",
    "\"window\"",
    "\"ratio\"",
    "\"clt\"",
    "\"oracle-top-k\"",
    "\"sdpa\"",
    "\"group\"",
    "0.05",
    "128",
    "1.0",
    "-1",
    "nan",
    "inf",
    "1e999",
    "99999999999999999999",
    "[0, 1]",
    "{ a = 1 }",
    "2026-01-01",
    "\"ünï\u{0}\"",
    "'''x",
];

const GOOD: &str = include_str!("../../../../configs/vattention-oracle.toml");

fn settings(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn read(text: &str, set: Vec<String>) {
    let Err(error) = (Loader { set }).parse("fuzz.toml", text) else { return };
    assert!(!error.problems.is_empty());
    let _ = error.to_string();
    for problem in &error.problems {
        let Some(("fuzz.toml", line, column)) = problem.place() else { continue };
        assert!(line >= 1 && line <= text.matches('\n').count() + 1, "{line} in {text:?}");
        assert!(column >= 1 && column <= text.chars().count() + 1, "{column} in {text:?}");
    }
}

proptest! {
    #![proptest_config(settings(10_000))]

    #[test]
    fn texts_of_random_pieces(
        pieces in prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..40),
    ) {
        read(&pieces.concat(), Vec::new());
    }

    #[test]
    fn good_files_with_a_part_replaced(
        start in 0..GOOD.len(),
        length in 0usize..30,
        replacement in "\\PC{0,12}",
    ) {
        let boundary = |index: usize| {
            (0..=index.min(GOOD.len())).rev().find(|&i| GOOD.is_char_boundary(i)).unwrap()
        };
        let (start, end) = (boundary(start), boundary(start + length));
        let text = format!("{}{replacement}{}", &GOOD[..start], &GOOD[end..]);
        read(&text, Vec::new());
    }
}

proptest! {
    #![proptest_config(settings(10_000))]

    #[test]
    fn arbitrary_texts(text in any::<String>()) {
        read(&text, Vec::new());
    }

    #[test]
    fn arbitrary_changes(changes in prop::collection::vec("[a-z0-9.]{0,20}=?[ -~]{0,12}", 0..4)) {
        read(GOOD, changes);
    }
}
