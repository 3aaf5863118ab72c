//! Names that are written otherwise than pipeline files have them, and names of other people's for
//! the same things.

use vattention_core::plugin::{ComponentKind, components};
use vattention_core::schemars::SchemaGenerator;

use crate::schema::fields;

/// What may have been meant by a name that is none of `known`.
pub(crate) fn meant(name: &str, known: &[impl AsRef<str>]) -> Option<String> {
    let likely = respelled(name, known).or_else(|| near(name, known))?;
    Some(format!("did you mean `{likely}`?"))
}

/// Returns a sentence about the known components that an unknown name may mean.
pub fn type_meant(name: &str, known: &[impl AsRef<str>]) -> Option<String> {
    let mut bare = bare(name);
    loop {
        if let Some(likely) = respelled(&bare, known) {
            return Some(format!("did you mean `{likely}`?"));
        }
        if let Some((_, here)) = ELSEWHERE.iter().find(|(names, _)| names.contains(&&*bare)) {
            return Some(format!("{here}."));
        }
        match ENDINGS.iter().find_map(|ending| bare.strip_suffix(ending)) {
            Some(rest) if !rest.is_empty() => bare.truncate(rest.len()),
            _ => return meant(name, known),
        }
    }
}

/// Advice with the keys that the bare name of a component's field may mean.
pub(crate) fn place_meant(field: &str) -> Option<String> {
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

/// The known name that differs by nothing but case, dashes, underscores and spaces.
pub(crate) fn respelled<'a>(name: &str, known: &'a [impl AsRef<str>]) -> Option<&'a str> {
    let name = bare(name);
    known.iter().map(AsRef::as_ref).find(|known| bare(known) == name)
}

fn bare(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// The nearest known name, if one is near.
fn near<'a>(name: &str, known: &'a [impl AsRef<str>]) -> Option<&'a str> {
    known
        .iter()
        .map(|known| (strsim::damerau_levenshtein(name, known.as_ref()), known.as_ref()))
        .filter(|(distance, known)| *distance <= 2.max(known.len() / 3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// Known names that resemble or contain the name, the nearest first, at most five.
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

/// What libraries append to the names of their classes.
const ENDINGS: [&str; 4] = ["config", "masker", "press", "topk"];

/// Names of papers and libraries, bare, and what they are here: of `StreamingLLM`, of
/// sparse-attention-hub's maskers, of kvpress's presses.
const ELSEWHERE: &[(&[&str], &str)] = &[
    (&["local", "localwindow", "slidingwindow", "recent"], "that is `window` here"),
    (&["attentionsink", "attentionsinks", "initial"], "that is `sink` here"),
    (&["streamingllm", "streaming"], "StreamingLLM is two tables here, `sink` and `window`"),
    (&["topk", "exacttopk"], "an exact top-k is `oracle-top-k` here"),
    (
        &["topp", "exacttopp"],
        "an exact top-p is `oracle-top-p` here; of what another selector picks, `twilight`",
    ),
    (&["heavyhitter", "heavyhitters", "observedattention"], "heavy hitters are `h2o` here"),
    (&["doublesparse", "ds"], "that is `double-sparsity` here"),
    (&["hat"], "that is `hash-attention` here"),
    (
        &["clusterkv", "retroinfer"],
        "there is none here; the nearest are `tactic` and `squeezed-attention`, by clusters of keys",
    ),
    (&["roargraph", "graph"], "a search in a graph of keys is `retrieval-attention` here"),
    (&["pq"], "that is `pq-cache` here"),
    (
        &["prioritysample", "prioritysampling", "stratifiedsample"],
        "how the rest is drawn is said under `[sampler]` here: `priority`, `stratified`",
    ),
    (
        &["random", "randomsampling", "uniform", "fixed"],
        "a random sample of the rest is an estimator with a `size` here, such as `ratio` under \
         `[estimator]`",
    ),
    (
        &["vattention", "adaptive", "adaptivesampling"],
        "a sample as large as its promise needs is an estimator here, `ratio` under `[estimator]`",
    ),
    (&["normal", "gaussian"], "bounds by the central limit theorem are `ratio` and `clt` here"),
    (
        &["knorm", "keydiff", "lagkv"],
        "no selector here ranks by keys alone; the nearest is `snapkv`, by the prompt's last queries",
    ),
    (
        &["tova"],
        "there is none here; the nearest is `h2o`, which sums the attention of all queries",
    ),
    (
        &["expectedattention", "criticalkv", "finch"],
        "there is none here; the nearest is `snapkv`, by the prompt's last queries",
    ),
    (
        &["infinigen"],
        "there is none here; the nearest are `loki` and `sparq`, by a part of each key",
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
    (&["socket"], "there is none here; the nearest is `hash-attention`"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spelling_comes_before_the_names_of_others_and_those_before_what_is_near() {
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
            assert_eq!(type_meant(name, &known).as_deref(), Some(expected), "{name}");
        }
        for unlike in ["", "config", "nothing-like-it", "é"] {
            assert_eq!(type_meant(unlike, &known), None, "{unlike}");
        }
        assert_eq!(meant("top-k", &known), None, "a field has no names elsewhere");
        assert_eq!(meant("Sink", &known).as_deref(), Some("did you mean `sink`?"));
    }

    #[test]
    fn names_elsewhere_are_bare_and_stand_once() {
        let names: Vec<&str> =
            ELSEWHERE.iter().flat_map(|(names, _)| names.iter().copied()).collect();
        for (i, name) in names.iter().enumerate() {
            assert_eq!(bare(name), *name);
            assert!(!names[..i].contains(name), "{name}");
        }
    }
}
