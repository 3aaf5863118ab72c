//! Picks by predicted logits.

use vattention_core::{Picks, Row, step::Score};

/// Picks the `k` best tokens like [`Picks::take_top`], by scores that predict the logits of one
/// query head before their soft cap, or sums of them over a group. Samplers, for which the
/// magnitude of a logit matters, receive the capped logits of a query head.
pub(crate) fn take_top_predicted(
    row: &Row<'_>,
    picks: &mut Picks,
    k: usize,
    score: Score,
    scores: &[f32],
) -> Option<f32> {
    let left = picks.take_top(k, scores);
    if score == Score::Head && row.form().soft_cap.is_some() {
        // Computed only if a sampler needs scores.
        let capped = || {
            let mut capped = scores.to_vec();
            row.form().cap(&mut capped);
            capped
        };
        picks.set_scores(std::iter::once_with(capped).flatten());
    }
    left
}
