//! LooGLE's answers to clozes: a Python dict of names by masks.

use serde_json::Value;

use super::words::split;
use crate::python;

/// The share of the masks whose names are `right`. 0 of an answer that is no dict.
pub(super) fn share(
    answer: &str,
    names: &[String],
    masks: &[String],
    right: impl Fn(&str, &str) -> bool,
) -> f64 {
    let Some(Value::Object(told)) = python::literal(answer) else { return 0.0 };
    let is_right = |(name, mask): &(&String, &String)| {
        told.get(*mask).and_then(Value::as_str).is_some_and(|told| right(told, name))
    };
    let count = names.iter().zip(masks).filter(is_right).count();
    count as f64 / names.len().max(1) as f64
}

/// Whether two names have a word in common.
pub(super) fn share_a_word(told: &str, name: &str) -> bool {
    split(told).any(|word| split(name).any(|other| other == word))
}
