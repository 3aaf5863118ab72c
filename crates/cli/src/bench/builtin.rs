//! The pipelines that are measured when no file is named.

use vattention::config::Loader;
use vattention::experiments::Entry;

use crate::Failure;

/// The first and the last tokens, which every pipeline reads.
const EDGES: &str = "
[[selectors]]
type = \"sink\"
size = 128

[[selectors]]
type = \"window\"
size = 128
";

/// A tenth of the tokens, half of it ranked and half of it drawn.
const HALVES: (&str, &str) = ("size = 0.05", "type = \"ratio\"\ndelta = 0.1\nsize = 0.05");

/// As few tokens as the promise allows.
const PROMISED: (&str, &str) = ("size = 0.02", "type = \"ratio\"\nepsilon = 0.1\ndelta = 0.05");

/// All of them, with the changes of `--set`.
pub(super) fn entries(set: &[String]) -> Result<Vec<Entry>, Failure> {
    let loader = Loader { set: set.to_vec() };
    let load = |(name, share, score, (size, estimator)): (&str, &str, &str, (&str, &str))| {
        let text = format!(
            "name = \"hash, {name}\"\nshare = \"{share}\"\n{EDGES}\n\
             [[selectors]]\ntype = \"hash-attention\"\ncodes = \"group\"\nscore = \"{score}\"\n{size}\n\n[estimator]\n{estimator}\n"
        );
        let file = format!("built-in pipeline hash, {name}");
        loader.parse(&file, &text).map(|pipeline| Entry { pipeline, file, set: None })
    };
    let mut errors = Vec::new();
    let all = [
        ("shared", "group", "group", HALVES),
        ("per-head scores", "group", "head", HALVES),
        ("per-head lists", "head", "head", HALVES),
        ("ratio", "group", "group", PROMISED),
    ];
    let loaded = all.map(load).into_iter();
    let loaded = loaded.filter_map(|one| one.map_err(|error| errors.push(error)).ok()).collect();
    if errors.is_empty() { Ok(loaded) } else { Err(Failure::Config(errors)) }
}
