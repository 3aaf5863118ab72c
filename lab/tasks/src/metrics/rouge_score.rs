//! ROUGE of the Python package `rouge-score` 0.1.2, which Hugging Face's `evaluate` calls:
//! F-measures over words with their multiplicity.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use super::porter;
use super::subsequence::{Tie, places};

/// Least length of a word that is stemmed.
const STEMMED_FROM: usize = 4;

/// Splits a text into runs of ASCII letters and digits in lower case, or their stems.
fn words(text: &str, stemmed: bool) -> Vec<String> {
    let text = text.to_lowercase();
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let or_stem = |word: &str| {
        if stemmed && word.len() >= STEMMED_FROM { porter::stem(word) } else { word.to_owned() }
    };
    words.map(or_stem).collect()
}

fn f(hits: usize, answer: usize, right: usize) -> f64 {
    let (precision, recall) =
        (hits as f64 / answer.max(1) as f64, hits as f64 / right.max(1) as f64);
    if hits == 0 { 0.0 } else { 2.0 * precision * recall / (precision + recall) }
}

fn count_items<T: Eq + Hash>(items: impl Iterator<Item = T>) -> HashMap<T, usize> {
    let mut counts = HashMap::new();
    items.for_each(|item| *counts.entry(item).or_default() += 1);
    counts
}

/// ROUGE-n, over runs of n words.
pub(super) fn score_ngrams(n: usize, answer: &str, right: &str) -> f64 {
    let (answer, right) = (words(answer, false), words(right, false));
    let (answer, right) = (count_items(answer.windows(n)), count_items(right.windows(n)));
    let hits = right.iter().map(|(run, count)| *count.min(answer.get(run).unwrap_or(&0))).sum();
    f(hits, answer.values().sum(), right.values().sum())
}

/// ROUGE-L, over a longest common subsequence.
pub(super) fn score_subsequence(answer: &str, right: &str) -> f64 {
    let (answer, right) = (words(answer, false), words(right, false));
    f(common(&right, &answer).len(), answer.len(), right.len())
}

/// ROUGE-Lsum: for each line of the right text, the union of its longest common subsequences with
/// the lines of the answer. A word counts at most as often as either text contains it.
pub(super) fn score_lines(answer: &str, right: &str, stemmed: bool) -> f64 {
    let lines = |text: &str| -> Vec<Vec<String>> {
        text.split('\n').filter(|line| !line.is_empty()).map(|line| words(line, stemmed)).collect()
    };
    let (answer, right) = (lines(answer), lines(right));
    let mut left_of_answer = count_items(answer.iter().flatten());
    let mut left_of_right = count_items(right.iter().flatten());
    let (in_answer, in_right) = (left_of_answer.values().sum(), left_of_right.values().sum());
    let mut hits = 0;
    for line in &right {
        let union: BTreeSet<usize> = answer.iter().flat_map(|ours| common(line, ours)).collect();
        for place in union {
            let (ours, theirs) =
                (left_of_answer.get_mut(&line[place]), left_of_right.get_mut(&line[place]));
            if let (Some(ours @ 1..), Some(theirs @ 1..)) = (ours, theirs) {
                (*ours, *theirs, hits) = (*ours - 1, *theirs - 1, hits + 1);
            }
        }
    }
    f(hits, in_answer, in_right)
}

/// Places in `right` of the longest common subsequence that the package finds.
fn common(right: &[String], ours: &[String]) -> Vec<usize> {
    places(right, ours, Tie::Right)
}
