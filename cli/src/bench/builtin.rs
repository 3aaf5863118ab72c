//! Built-in pipelines, which are measured when no file is named.

/// Sink and window of every built-in pipeline.
const EDGES: &str = "
[[selectors]]
type = \"sink\"
size = 128

[[selectors]]
type = \"window\"
size = 128
";

/// A tenth of the tokens: half selected by score, half sampled.
const HALVES: (&str, &str) = ("size = 0.05", "type = \"ratio\"\ndelta = 0.1\nsize = 0.05");

/// 2 % of the tokens selected by score, and a sample as large as the promise requires.
const PROMISED: (&str, &str) = ("size = 0.02", "type = \"ratio\"\nepsilon = 0.1\ndelta = 0.05");

/// Returns names and texts of all built-in pipelines.
pub(super) fn texts() -> [(String, String); 4] {
    let text = |(name, share, score, (size, estimator)): (&str, &str, &str, (&str, &str))| {
        let text = format!(
            "name = \"hash, {name}\"\nshare = \"{share}\"\n{EDGES}\n\
             [[selectors]]\ntype = \"hash-attention\"\ncodes = \"group\"\nscore = \"{score}\"\n\
             {size}\n\n[estimator]\n{estimator}\n"
        );
        (format!("built-in pipeline hash, {name}"), text)
    };
    [
        ("shared", "group", "group", HALVES),
        ("per-head scores", "group", "head", HALVES),
        ("per-head lists", "head", "head", HALVES),
        ("ratio", "group", "group", PROMISED),
    ]
    .map(text)
}
