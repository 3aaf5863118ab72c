//! Metrics of LooGLE's clozes, whose answers are a Python dict from masks to names.

use serde_json::Value;

use super::words::split;
use crate::python;

/// Share of the masks whose names are `right`; 0 if the answer is not a dict.
pub(super) fn share(
    answer: &str,
    names: &[String],
    masks: &[String],
    right: impl Fn(&str, &str) -> bool,
) -> f64 {
    let Some(Value::Object(found)) = python::literal(answer) else { return 0.0 };
    let is_right = |(name, mask): &(&String, &String)| {
        found.get(*mask).and_then(Value::as_str).is_some_and(|found| right(found, name))
    };
    let count = names.iter().zip(masks).filter(is_right).count();
    count as f64 / names.len().max(1) as f64
}

/// Returns true if two names have a word in common.
pub(super) fn share_a_word(found: &str, name: &str) -> bool {
    split(found).any(|word| split(name).any(|other| other == word))
}
