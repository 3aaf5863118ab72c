//! ROUGE of the Python package `rouge` 1.0.1: over sets of words, ROUGE-L at the level of summaries.

use std::collections::HashSet;

use super::subsequence::{Tie, places};
use super::words::split;

/// The words of each sentence. Sentences end at full stops; one of blanks alone is an empty word.
fn sentences(text: &str) -> Vec<Vec<String>> {
    let words = |sentence: &str| -> Vec<String> {
        let words: Vec<_> = split(sentence).map(str::to_owned).collect();
        if words.is_empty() { vec![String::new()] } else { words }
    };
    text.split('.').filter(|sentence| !sentence.is_empty()).map(words).collect()
}

/// The words of the longest common subsequence that the package finds.
fn common<'a>(right: &'a [String], ours: &[String]) -> impl Iterator<Item = &'a str> {
    places(right, ours, Tie::Ours).into_iter().map(|place| right[place].as_str())
}

/// The recall and the precision over different words: those of any sentence's longest common
/// subsequence with any sentence of the answer, over those of either text. `None` if either has no sentence.
fn longest(answer: &str, right: &str) -> Option<(f64, f64)> {
    let (answer, right) = (sentences(answer), sentences(right));
    if answer.is_empty() || right.is_empty() {
        return None;
    }
    let different =
        |text: &[Vec<String>]| text.iter().flatten().collect::<HashSet<_>>().len() as f64;
    let shared: HashSet<&str> =
        right.iter().flat_map(|one| answer.iter().flat_map(|ours| common(one, ours))).collect();
    let shared = shared.len() as f64;
    Some((shared / different(&right), shared / different(&answer)))
}

/// The F-measure of ROUGE-L. 0 if either has no sentence.
pub(super) fn f(answer: &str, right: &str) -> f64 {
    longest(answer, right)
        .map_or(0.0, |(recall, precision)| 2.0 * (precision * recall / (precision + recall + 1e-8)))
}

/// The recall of ROUGE-L. 0 if either has no sentence.
pub(super) fn recall(answer: &str, right: &str) -> f64 {
    longest(answer, right).map_or(0.0, |(recall, _)| recall)
}

/// The share of the different runs of `n` words that the answer has, too, across sentences.
pub(super) fn recall_of_runs(n: usize, answer: &str, right: &str) -> f64 {
    let (answer, right) = (sentences(answer).concat(), sentences(right).concat());
    let runs = |words: &[String]| -> HashSet<Vec<String>> {
        words.windows(n).map(<[String]>::to_vec).collect()
    };
    let (answer, right) = (runs(&answer), runs(&right));
    right.intersection(&answer).count() as f64 / right.len().max(1) as f64
}
