//! Suggestions for unknown names: names in another spelling, similar names, and names that papers
//! and other libraries use.

use vattention_core::plugin::{ComponentKind, components};
use vattention_core::schemars::SchemaGenerator;

use crate::schema::fields;

/// Suggests a known name for an unknown one: the same in another spelling, or a similar one.
pub(crate) fn suggest(name: &str, known: &[impl AsRef<str>]) -> Option<String> {
    let likely = find_respelled(name, known).or_else(|| find_nearest(name, known))?;
    Some(format!("did you mean `{likely}`?"))
}

/// Suggests a component for the unknown `type` of a table, also by its names in other libraries.
pub fn suggest_type(name: &str, known: &[impl AsRef<str>]) -> Option<String> {
    let mut normalized = normalize(name);
    loop {
        if let Some(likely) = find_respelled(&normalized, known) {
            return Some(format!("did you mean `{likely}`?"));
        }
        if let Some((_, here)) = ELSEWHERE.iter().find(|(names, _)| names.contains(&&*normalized)) {
            return Some(format!("{here}."));
        }
        match ENDINGS.iter().find_map(|ending| normalized.strip_suffix(ending)) {
            Some(rest) if !rest.is_empty() => normalized.truncate(rest.len()),
            _ => return suggest(name, known),
        }
    }
}

/// Suggests keys such as `estimator.epsilon` for the name of a component's field.
pub(crate) fn suggest_place(field: &str) -> Option<String> {
    let has = |kind| {
        let mut schemas = components(kind)
            .into_iter()
            .map(|component| fields(component, &mut SchemaGenerator::default()));
        schemas.any(|schema| schema["properties"].get(field).is_some())
    };
    let kinds = [
        (ComponentKind::Estimator, "estimator"),
        (ComponentKind::Sampler, "sampler"),
        (ComponentKind::Selector, "selectors.0"),
    ];
    let places = kinds.into_iter().filter(|(kind, _)| field != "type" && has(*kind));
    let places: Vec<String> = places.map(|(_, place)| format!("`{place}.{field}`")).collect();
    (!places.is_empty()).then(|| format!("did you mean {}?", places.join(" or ")))
}

/// Returns the known name that differs from `name` only by case, dashes, underscores and spaces.
pub(crate) fn find_respelled<'a>(name: &str, known: &'a [impl AsRef<str>]) -> Option<&'a str> {
    let name = normalize(name);
    known.iter().map(AsRef::as_ref).find(|known| normalize(known) == name)
}

/// Reduces a name to its letters and digits, in lower case.
fn normalize(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Returns the nearest known name by edit distance, if its distance is small.
fn find_nearest<'a>(name: &str, known: &'a [impl AsRef<str>]) -> Option<&'a str> {
    known
        .iter()
        .map(|known| (strsim::damerau_levenshtein(name, known.as_ref()), known.as_ref()))
        .filter(|(distance, known)| *distance <= 2.max(known.len() / 3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// Returns at most five known names that are similar to the name or contain it, the nearest first.
pub(crate) fn near_names<'a>(name: &str, known: &[&'a str]) -> Vec<&'a str> {
    let name = name.to_lowercase();
    let mut near: Vec<(usize, &str)> = known
        .iter()
        .map(|&known| (strsim::damerau_levenshtein(&name, known), known))
        .filter(|&(distance, known)| distance <= 2.max(known.len() / 3) || known.contains(&name))
        .collect();
    near.sort_unstable();
    near.into_iter().take(5).map(|(_, known)| known).collect()
}

/// Endings that libraries append to the names of their classes.
const ENDINGS: [&str; 4] = ["config", "masker", "press", "topk"];

/// [Normalized](normalize) names in papers and libraries (`StreamingLLM`, maskers of
/// sparse-attention-hub, presses of kvpress), with a description of their counterparts here.
const ELSEWHERE: &[(&[&str], &str)] = &[
    (&["local", "localwindow", "slidingwindow", "recent"], "that is `window` here"),
    (&["attentionsink", "attentionsinks", "initial"], "that is `sink` here"),
    (&["streamingllm", "streaming"], "StreamingLLM is two tables here, `sink` and `window`"),
    (&["topk", "exacttopk"], "an exact top-k is `oracle-top-k` here"),
    (
        &["topp", "exacttopp"],
        "an exact top-p is `oracle-top-p` here; a top-p among the picks of another selector is \
         `twilight`",
    ),
    (&["heavyhitter", "heavyhitters", "observedattention"], "heavy hitters are `h2o` here"),
    (&["doublesparse", "ds"], "that is `double-sparsity` here"),
    (&["hat"], "that is `hash-attention` here"),
    (
        &["retroinfer"],
        "there is no equivalent here; the nearest are `cluster-kv` and `tactic`, by clusters of \
         keys",
    ),
    (&["roargraph", "graph"], "a search in a graph of keys is `retrieval-attention` here"),
    (&["pq"], "that is `pq-cache` here"),
    (
        &["prioritysample", "prioritysampling", "stratifiedsample"],
        "the sampling design is set under `[sampler]` here: `priority`, `stratified`",
    ),
    (
        &["random", "randomsampling", "uniform", "fixed"],
        "random sampling needs an estimator with a `size` here, such as `ratio` under \
         `[estimator]`",
    ),
    (
        &["vattention", "adaptive", "adaptivesampling"],
        "adaptive sampling needs an estimator here, such as `ratio` under `[estimator]`",
    ),
    (&["normal", "gaussian"], "bounds by the central limit theorem are `ratio` and `clt` here"),
    (
        &["knorm", "keynorm", "keynorms"],
        "that is `prompt-eviction` here with `score = \"key-norm\"`",
    ),
    (&["keydiff"], "that is `prompt-eviction` here with `score = \"key-difference\"`"),
    (&["lagkv"], "that is `prompt-eviction` here with `score = \"lag\"`"),
    (
        &["expectedattention"],
        "that is `prompt-eviction` here with `score = \"expected-attention\"`",
    ),
    (
        &["criticalkv", "finch", "kvzip"],
        "there is no equivalent here; the nearest are `snapkv` and `prompt-eviction`",
    ),
    (
        &["freekv", "tidaldecode"],
        "that is `reuse` here, around a selector such as `quest`, for successive steps of a layer",
    ),
    (&["rabitq", "rabitqcache"], "codes of rotated keys are `rotated-codes` here"),
    (
        &["infinigen"],
        "there is no equivalent here; the nearest are `loki` and `sparq`, by a part of each key",
    ),
    (
        &["pyramidkv", "pyramid"],
        "PyramidKV is `snapkv` here with a size for each layer, under `[[layers]]`",
    ),
    (&["duo"], "that is `duo-attention` here"),
    (
        &["hata"],
        "HATA is `hash-attention` here with `weights` of `train-hata`, `codes = \"group\"` and \
         `score = \"group\"`",
    ),
    (
        &["adakv", "headkv"],
        "budgets are not divided among the heads of a layer here; the nearest is `snapkv`, with a \
         size for each layer under `[[layers]]`",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_precede_names_elsewhere_and_these_precede_similar_names() {
        let known = ["oracle-top-k", "pq-cache", "quest", "sink", "snapkv", "window"];
        for (name, expected) in [
            ("SnapKV", "did you mean `snapkv`?"),
            ("snap_kv", "did you mean `snapkv`?"),
            ("SnapKVPress", "did you mean `snapkv`?"),
            ("OracleTopKConfig", "did you mean `oracle-top-k`?"),
            ("QuestTopKMaskerConfig", "did you mean `quest`?"),
            ("SinkMasker", "did you mean `sink`?"),
            ("LocalMaskerConfig", "that is `window` here."),
            ("streaming-llm", "StreamingLLM is two tables here, `sink` and `window`."),
            (
                "PyramidKVPress",
                "PyramidKV is `snapkv` here with a size for each layer, under `[[layers]]`.",
            ),
            ("top-k", "an exact top-k is `oracle-top-k` here."),
            ("snik", "did you mean `sink`?"),
        ] {
            assert_eq!(suggest_type(name, &known).as_deref(), Some(expected), "{name}");
        }
        for unlike in ["", "config", "nothing-like-it", "é"] {
            assert_eq!(suggest_type(unlike, &known), None, "{unlike}");
        }
        assert_eq!(suggest("top-k", &known), None, "a field has no names elsewhere");
        assert_eq!(suggest("Sink", &known).as_deref(), Some("did you mean `sink`?"));
    }

    #[test]
    fn names_elsewhere_are_normalized_and_unique() {
        let names: Vec<&str> =
            ELSEWHERE.iter().flat_map(|(names, _)| names.iter().copied()).collect();
        for (i, name) in names.iter().enumerate() {
            assert_eq!(normalize(name), *name);
            assert!(!names[..i].contains(name), "{name}");
        }
    }
}
