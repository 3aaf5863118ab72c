//! Filters that keep likely tokens, by partial selection instead of sorting.

use std::cmp::Ordering;

use super::SamplingParams;

/// Token that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TokenCandidate {
    pub(super) token: u32,
    pub(super) logit: f32,
}

/// Number of tokens that `top_p` sorts first; each further selection is four times as large.
const FIRST_SELECTION: usize = 64;

/// Returns the tokens to draw from, in ascending order. Tokens whose logit is -∞ or NaN are
/// excluded.
///
/// Cost: one pass over the logits per active filter. `top_p` also sorts the tokens that it keeps,
/// and at most about three times as many others.
pub(super) fn filter(logits: &[f32], params: &SamplingParams) -> Vec<TokenCandidate> {
    let candidates = logits.iter().enumerate();
    let candidates = candidates.filter(|&(_, &logit)| logit > f32::NEG_INFINITY);
    let mut candidates: Vec<TokenCandidate> =
        candidates.map(|(token, &logit)| TokenCandidate { token: token as u32, logit }).collect();
    keep_top_k(&mut candidates, params.top_k);
    keep_top_p(&mut candidates, f64::from(params.top_p));
    keep_min_p(&mut candidates, f64::from(params.min_p));
    // The order must not depend on the algorithm of the selection.
    candidates.sort_unstable_by_key(|candidate| candidate.token);
    candidates
}

/// Returns the largest logit; -∞ if there are no candidates.
pub(super) fn largest_logit(candidates: &[TokenCandidate]) -> f64 {
    let logits = candidates.iter().map(|candidate| candidate.logit);
    f64::from(logits.fold(f32::NEG_INFINITY, f32::max))
}

/// Orders by descending logit; of equal logits, the lower token comes first.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "slices pass items by reference")]
fn compare(a: &TokenCandidate, b: &TokenCandidate) -> Ordering {
    let by_logit = b.logit.partial_cmp(&a.logit).expect("no candidate has NaN");
    by_logit.then(a.token.cmp(&b.token))
}

fn keep_top_k(candidates: &mut Vec<TokenCandidate>, count: usize) {
    if count > 0 && count < candidates.len() {
        candidates.select_nth_unstable_by(count - 1, compare);
        candidates.truncate(count);
    }
}

fn keep_top_p(candidates: &mut Vec<TokenCandidate>, share: f64) {
    if share >= 1.0 || candidates.is_empty() {
        return;
    }
    let largest = largest_logit(candidates);
    let weight = |candidate: &TokenCandidate| (f64::from(candidate.logit) - largest).exp();
    let total: f64 = candidates.iter().map(weight).sum();
    // The tokens below this weight have at most the fraction `1 - share` of the total weight, so
    // the other tokens suffice. The last factor covers rounding.
    let least = (1.0 - share) * total / candidates.len() as f64 * (1.0 - 1e-6);
    let least_logit = largest + least.ln();
    candidates.retain(|candidate| f64::from(candidate.logit) >= least_logit);
    let (mut sorted, mut sum, mut size) = (0, 0.0, FIRST_SELECTION);
    while sorted < candidates.len() {
        let end = (sorted + size).min(candidates.len());
        let rest = &mut candidates[sorted..];
        rest.select_nth_unstable_by(end - sorted - 1, compare);
        rest[..end - sorted].sort_unstable_by(compare);
        for i in sorted..end {
            sum += weight(&candidates[i]);
            if sum >= share * total {
                candidates.truncate(i + 1);
                return;
            }
        }
        (sorted, size) = (end, 4 * size);
    }
}

fn keep_min_p(candidates: &mut Vec<TokenCandidate>, share: f64) {
    if share > 0.0 {
        let least = largest_logit(candidates) + share.ln();
        candidates.retain(|candidate| f64::from(candidate.logit) >= least);
    }
}
