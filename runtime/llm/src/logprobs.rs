//! Log-probabilities of tokens.

use serde::Serialize;
use vattention_core::step::{exponentials, largest, sum};

/// Number of logits whose exponentials are in memory at a time.
const CHUNK: usize = 1024;

/// Log-probability of a token, and the most likely tokens at its position.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// Natural logarithm of the model's probability of the token, at most 0.
    pub logprob: f32,
    /// Most likely tokens with their log-probabilities, in descending order; of equally likely
    /// tokens, the lower comes first.
    pub top: Vec<(u32, f32)>,
}

/// Computes the log-probability of a token from the logits `[vocab_size]` at its position, and
/// those of the `top` most likely tokens.
///
/// Cost: one pass over the logits, and one comparison per token and entry of `top` at most.
///
/// # Panics
/// Panics if the token is not less than the number of logits.
pub fn score_token(logits: &[f32], token: u32, top: usize) -> TokenLogprob {
    let total = log_sum_exp(logits);
    let logprob = |token: u32| (f64::from(logits[token as usize]) - total) as f32;
    let top = most_likely_tokens(logits, top).into_iter().map(|token| (token, logprob(token)));
    TokenLogprob { token, logprob: logprob(token), top: top.collect() }
}

/// Returns the log-probabilities of all tokens, `[vocab_size]`, from the logits. Rounded to f32,
/// they equal those of [`score_token`].
///
/// Cost: one exponential per token.
pub fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    let total = log_sum_exp(logits);
    logits.iter().map(|&logit| f64::from(logit) - total).collect()
}

/// Returns the logarithm of the sum of exponentials, in f64.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = f64::from(largest(logits));
    let sums = logits.chunks(CHUNK).map(|logits| sum(&exponentials(logits, largest, 1.0)));
    largest + sums.sum::<f64>().ln()
}

/// Returns the `count` most likely tokens in descending order; of equal logits, the lower token
/// comes first.
fn most_likely_tokens(logits: &[f32], count: usize) -> Vec<u32> {
    if count == 0 {
        return Vec::new();
    }
    let mut found: Vec<u32> = Vec::with_capacity(count + 1);
    for token in 0..logits.len() as u32 {
        let logit = logits[token as usize];
        let is_full = found.len() == count;
        if is_full && found.last().is_none_or(|&last| logits[last as usize] >= logit) {
            continue;
        }
        let place = found.partition_point(|&other| logits[other as usize] >= logit);
        found.insert(place, token);
        found.truncate(count);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_match_their_definition() {
        let logits = [1.0_f32, -2.0, 3.0, 3.0, 0.5];
        let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        let expected = |token: usize| (f64::from(logits[token]).exp() / total).ln();
        for token in 0..5 {
            let found = score_token(&logits, token as u32, 3);
            assert!((f64::from(found.logprob) - expected(token)).abs() < 1e-6);
            assert_eq!(log_probabilities(&logits)[token] as f32, found.logprob);
            let tokens: Vec<u32> = found.top.iter().map(|&(token, _)| token).collect();
            assert_eq!(tokens, [2, 3, 0]);
            assert!((f64::from(found.top[2].1) - expected(0)).abs() < 1e-6);
        }
        assert!(score_token(&logits, 1, 0).top.is_empty());
        assert_eq!(score_token(&logits, 1, 9).top.len(), 5);
    }

    #[test]
    fn large_logits_stay_finite() {
        let found = score_token(&[1e30, -1e30], 0, 1);
        assert_eq!((found.logprob, found.top), (0.0, vec![(0, 0.0)]));
    }
}
