//! BLEU of one order, equal to `nltk.translate.bleu_score.sentence_bleu` without smoothing.

use std::collections::HashMap;

use super::words::split;

/// Share of the answer's runs of `n` words that the right answer contains, counted at most as often
/// as there, times a penalty for shorter answers.
pub(super) fn score_ngrams(n: usize, answer: &str, right: &str) -> f64 {
    let (answer, right): (Vec<&str>, Vec<&str>) = (split(answer).collect(), split(right).collect());
    let mut left = HashMap::<_, usize>::new();
    right.windows(n).for_each(|run| *left.entry(run).or_default() += 1);
    let mut hits = 0_u32;
    for run in answer.windows(n) {
        if let Some(count @ 1..) = left.get_mut(run) {
            (*count, hits) = (*count - 1, hits + 1);
        }
    }
    let runs = (answer.len() + 1).saturating_sub(n).max(1);
    let precision = f64::from(hits) / runs as f64;
    let penalty = match answer.len() {
        0 => 0.0,
        words if words > right.len() => 1.0,
        words => (1.0 - right.len() as f64 / words as f64).exp(),
    };
    penalty * precision
}
