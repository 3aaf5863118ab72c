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

#[cfg(test)]
mod tests {
    use vattention_core::{Shape, Site, SoftmaxForm, Step, Tokens};

    use super::*;

    #[test]
    fn samplers_receive_capped_logits_of_a_query_head() {
        let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: 1, value_dim: 1 };
        let site = Site { seed: 0, sequence: 0, layer: 0, kv_head: 0, shape };
        let rows = Tokens::new(&[0.0, 1.0, 4.0], 3, 1);
        let form = SoftmaxForm { soft_cap: Some(2.0), ..SoftmaxForm::default() };
        let step = Step { form, ..Step::new(&site, &[1.0], rows, rows) };
        let scores = |score| {
            let mut picks = Picks::new(3);
            picks.store_scores();
            take_top_predicted(&step.row(0), &mut picks, 1, score, &[0.0, 1.0, 4.0]);
            assert_eq!(picks.indices(), [2]);
            picks.scores().map(<[f32]>::to_vec)
        };
        assert_eq!(scores(Score::Group), Some(vec![0.0, 1.0, 4.0]));
        let capped = scores(Score::Head).unwrap();
        for (capped, logit) in capped.iter().zip([0.0, 1.0, 4.0_f32]) {
            assert!((capped - 2.0 * (logit / 2.0).tanh()).abs() < 1e-6, "{capped} of {logit}");
        }
    }
}
