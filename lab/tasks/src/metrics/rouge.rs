//! ROUGE of the Python package `rouge` 1.0.1: over sets of words, with ROUGE-L at the summary
//! level.

use std::collections::HashSet;

use super::subsequence::{Tie, places};
use super::words::split;

/// Splits a text into the words of each sentence. Sentences end at full stops; a sentence of blanks
/// is an empty word.
fn sentences(text: &str) -> Vec<Vec<String>> {
    let words = |sentence: &str| -> Vec<String> {
        let words: Vec<_> = split(sentence).map(str::to_owned).collect();
        if words.is_empty() { vec![String::new()] } else { words }
    };
    text.split('.').filter(|sentence| !sentence.is_empty()).map(words).collect()
}

/// Words of the longest common subsequence that the package finds.
fn common<'a>(right: &'a [String], ours: &[String]) -> impl Iterator<Item = &'a str> {
    places(right, ours, Tie::Ours).into_iter().map(|place| right[place].as_str())
}

/// Recall and precision over different words: the union of the longest common subsequences of all
/// pairs of sentences, relative to the words of either text. `None` if either text has no sentence.
fn longest(answer: &str, right: &str) -> Option<(f64, f64)> {
    let (answer, right) = (sentences(answer), sentences(right));
    if answer.is_empty() || right.is_empty() {
        return None;
    }
    let different =
        |text: &[Vec<String>]| text.iter().flatten().collect::<HashSet<_>>().len() as f64;
    let shared: HashSet<&str> = right
        .iter()
        .flat_map(|sentence| answer.iter().flat_map(|ours| common(sentence, ours)))
        .collect();
    let shared = shared.len() as f64;
    Some((shared / different(&right), shared / different(&answer)))
}

/// F-measure of ROUGE-L; 0 if either text has no sentence.
pub(super) fn f(answer: &str, right: &str) -> f64 {
    longest(answer, right)
        .map_or(0.0, |(recall, precision)| 2.0 * (precision * recall / (precision + recall + 1e-8)))
}

/// Recall of ROUGE-L; 0 if either text has no sentence.
pub(super) fn recall(answer: &str, right: &str) -> f64 {
    longest(answer, right).map_or(0.0, |(recall, _)| recall)
}

/// Share of the right answer's different runs of `n` words that the answer contains; runs may span
/// sentences.
pub(super) fn recall_of_ngrams(n: usize, answer: &str, right: &str) -> f64 {
    let (answer, right) = (sentences(answer).concat(), sentences(right).concat());
    let runs = |words: &[String]| -> HashSet<Vec<String>> {
        words.windows(n).map(<[String]>::to_vec).collect()
    };
    let (answer, right) = (runs(&answer), runs(&right));
    right.intersection(&answer).count() as f64 / right.len().max(1) as f64
}
