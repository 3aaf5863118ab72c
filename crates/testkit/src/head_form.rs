//! Soft caps and attention sinks of test heads.

use vattention_core::Tokens;

use crate::head_data::HeadData;

/// Soft cap and attention sinks that are added to a head.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeadForm {
    /// Cap of the logits.
    pub soft_cap: Option<f32>,
    /// Number that is added to every product of a query and a key, so that a cap matters. Queries
    /// must be orthogonal to each other.
    pub offset: f64,
    /// Share of a query head's attention that its sink holds, between 0 and 1; `None` for heads
    /// without sinks.
    pub sink_share: Option<f64>,
}

impl HeadForm {
    /// Returns a head with this form.
    pub fn apply(self, mut head: HeadData) -> HeadData {
        for query in head.queries.chunks_exact(head.head_dim) {
            let square: f64 = query.iter().map(|&q| f64::from(q).powi(2)).sum();
            for key in head.keys.chunks_exact_mut(head.head_dim) {
                for (k, &q) in key.iter_mut().zip(query) {
                    *k += (self.offset / square * f64::from(q)) as f32;
                }
            }
        }
        head.soft_cap = self.soft_cap;
        head.sink_logits = self.sink_share.map(|share| {
            let odds = (share / (1.0 - share)).ln();
            (0..head.group).map(|member| (log_sum_exp(&head, member) + odds) as f32).collect()
        });
        head
    }
}

/// Logarithm of `Σ e^logit` over the tokens of a query head.
fn log_sum_exp(head: &HeadData, member: usize) -> f64 {
    let logits = logits(head, member);
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    most + logits.iter().map(|logit| (logit - most).exp()).sum::<f64>().ln()
}

/// Logits of the tokens of a query head, `[tokens]`, in f64.
pub(crate) fn logits(head: &HeadData, member: usize) -> Vec<f64> {
    let query = &head.queries[member * head.head_dim..][..head.head_dim];
    let keys = Tokens::new(&head.keys, head.tokens(), head.head_dim);
    let logit = |token: usize| {
        let product = f64::from(keys.dot(token, query));
        let cap = |cap: f32| f64::from(cap) * (product / f64::from(cap)).tanh();
        head.soft_cap.map_or(product, cap)
    };
    (0..head.tokens()).map(logit).collect()
}
