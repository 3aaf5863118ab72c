//! ROUGE of the Python package `rouge` 1.0.1: over sets of words, ROUGE-L at the level of summaries.

use std::collections::HashSet;

use super::words::split;

/// The words of each sentence. Sentences end at full stops; one of blanks alone is an empty word.
fn sentences(text: &str) -> Vec<Vec<String>> {
    let words = |sentence: &str| -> Vec<String> {
        let words: Vec<_> = split(sentence).map(str::to_owned).collect();
        if words.is_empty() { vec![String::new()] } else { words }
    };
    text.split('.').filter(|sentence| !sentence.is_empty()).map(words).collect()
}

/// The words of a longest common subsequence: among several the one that the package finds, which
/// goes back in `ours` only where that keeps more.
fn common<'a>(right: &'a [String], ours: &[String]) -> Vec<&'a str> {
    let (rows, columns) = (right.len() + 1, ours.len() + 1);
    let mut lengths = vec![0_u32; rows * columns];
    for i in 1..rows {
        for j in 1..columns {
            lengths[i * columns + j] = if right[i - 1] == ours[j - 1] {
                lengths[(i - 1) * columns + j - 1] + 1
            } else {
                lengths[(i - 1) * columns + j].max(lengths[i * columns + j - 1])
            };
        }
    }
    let (mut i, mut j, mut words) = (right.len(), ours.len(), Vec::new());
    while i > 0 && j > 0 {
        if right[i - 1] == ours[j - 1] {
            words.push(right[i - 1].as_str());
            (i, j) = (i - 1, j - 1);
        } else if lengths[(i - 1) * columns + j] > lengths[i * columns + j - 1] {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    words
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
