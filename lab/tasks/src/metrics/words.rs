//! Metrics over words and classes.

use std::collections::HashMap;
use std::hash::Hash;

/// Returns true for the characters at which Python's `str.split` splits.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Splits a text into words, like Python's `str.split`.
pub(super) fn split(text: &str) -> impl Iterator<Item = &str> {
    text.split(is_space).filter(|word| !word.is_empty())
}

/// Words in lower case, without ASCII punctuation and articles. An article is a word between
/// characters that are neither letters nor digits.
fn normalise(text: &str) -> Vec<String> {
    let text: String = text.to_lowercase().chars().filter(|c| !c.is_ascii_punctuation()).collect();
    let mut bare = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        bare += if matches!(word, "a" | "an" | "the") { " " } else { word };
        let mut after = after.chars();
        bare.extend(after.next());
        rest = after.as_str();
    }
    split(&bare).map(str::to_owned).collect()
}

/// F1 of the words of both texts with their multiplicity.
pub(super) fn f1(answer: &str, right: &str) -> f64 {
    f1_of(&normalise(answer), &normalise(right))
}

/// F1 of the words of both texts, each transliterated to ASCII after the normalisation.
pub(super) fn ascii_f1(answer: &str, right: &str) -> f64 {
    let ascii_words = |text: &str| -> Vec<String> {
        let ascii = deunicode::deunicode(&normalise(text).join(" "));
        split(&ascii).map(str::to_owned).collect()
    };
    f1_of(&ascii_words(answer), &ascii_words(right))
}

/// F1 of the common items with their multiplicity.
pub(super) fn f1_of<T: Eq + Hash>(answer: &[T], right: &[T]) -> f64 {
    let mut left = HashMap::<&T, usize>::new();
    for item in right {
        *left.entry(item).or_default() += 1;
    }
    let mut same = 0;
    for item in answer {
        if let Some(count @ 1..) = left.get_mut(item) {
            *count -= 1;
            same += 1;
        }
    }
    if same == 0 {
        return 0.0;
    }
    let (precision, recall) =
        (f64::from(same) / answer.len() as f64, f64::from(same) / right.len() as f64);
    2.0 * precision * recall / (precision + recall)
}

/// Reciprocal of the number of classes in the answer, if the right class is among them. Classes
/// that are part of the right one are removed, but the published loop skips the class after a
/// removed one.
pub(super) fn classification(answer: &str, right: &str, classes: &[String]) -> f64 {
    let mut found: Vec<&str> =
        classes.iter().map(String::as_str).filter(|class| answer.contains(class)).collect();
    let mut place = 0;
    while let Some(&class) = found.get(place) {
        if right.contains(class) && class != right {
            // Python's `list.remove` removes the first equal item.
            let first = found.iter().position(|other| *other == class).unwrap_or(place);
            found.remove(first);
        }
        place += 1;
    }
    if found.contains(&right) { 1.0 / found.len() as f64 } else { 0.0 }
}
