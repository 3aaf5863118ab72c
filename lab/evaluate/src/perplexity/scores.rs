//! Scores of the tokens of a window.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use vattention_llm::{LayerReport, log_probabilities, mean_density};

/// Scores of one window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WindowScores {
    /// Log-probabilities of the scored tokens by dense attention.
    pub dense: Vec<f32>,
    /// Scores by each pipeline, in order.
    pub pipelines: Vec<PipelineScores>,
}

/// Scores of one window by a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PipelineScores {
    /// Log-probabilities of the scored tokens.
    pub logprobs: Vec<f32>,
    /// Sum over the scored tokens of the Kullback-Leibler divergence of the pipeline's distribution
    /// from that of dense attention, in nats.
    pub kl_divergence: f64,
    /// Number of scored positions at which pipeline and dense attention have the same most likely
    /// token.
    pub same_top: usize,
    /// Sum over the steps of the share of the visible tokens that a KV head's query heads read
    /// together, averaged over layers and KV heads.
    pub density: f64,
    /// Number of rows with a promise: query heads of all layers at all steps.
    pub promised: usize,
    /// Number of these rows whose certificate holds.
    pub held: usize,
    /// Number of rows with an infinite error bar.
    pub unbounded: usize,
    /// Radius of the largest finite error bar; `None` if there is none.
    pub largest_bar: Option<f64>,
}

/// Predicted distribution of the next token, and the token that follows in the text.
pub(super) struct NextToken {
    /// Log-probabilities of all tokens.
    all: Vec<f64>,
    token: u32,
}

impl WindowScores {
    pub(super) fn new(pipelines: usize) -> Self {
        Self { dense: Vec::new(), pipelines: vec![PipelineScores::default(); pipelines] }
    }
}

impl PipelineScores {
    /// Adds a step: the pipeline's distribution of the next token, that of dense attention, and the
    /// reports of the layers.
    pub(super) fn add(&mut self, found: &NextToken, dense: &NextToken, layers: &[LayerReport]) {
        self.logprobs.push(found.logprob());
        self.kl_divergence += found.divergence_from(dense);
        self.same_top += usize::from(found.most_likely() == dense.most_likely());
        self.density += mean_density(layers).unwrap_or(1.0);
        for row in layers.iter().flat_map(|layer| &layer.rows) {
            let certificate = &row.certificate;
            if certificate.promise.is_some() {
                self.promised += 1;
                self.held += usize::from(certificate.held);
            }
            let Some(bar) = certificate.bar else { continue };
            if bar.radius.is_finite() {
                self.largest_bar = Some(self.largest_bar.unwrap_or(0.0).max(bar.radius));
            } else {
                self.unbounded += 1;
            }
        }
    }
}

impl NextToken {
    pub(super) fn new(logits: &[f32], token: u32) -> Self {
        Self { all: log_probabilities(logits), token }
    }

    /// Log-probability of the token that follows in the text.
    pub(super) fn logprob(&self) -> f32 {
        self.all[self.token as usize] as f32
    }

    /// Most likely token; the lowest of several.
    fn most_likely(&self) -> usize {
        let better = |best: usize, i: usize| if self.all[i] > self.all[best] { i } else { best };
        (0..self.all.len()).reduce(better).unwrap_or(0)
    }

    /// Kullback-Leibler divergence of this distribution from `dense`:
    /// `Σ dense · (ln dense - ln this)`.
    fn divergence_from(&self, dense: &Self) -> f64 {
        let term = |i: usize| dense.all[i].exp() * (dense.all[i] - self.all[i]);
        // Rounding can make the sum negative.
        (0..self.all.len()).map(term).sum::<f64>().max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergences_match_their_definition() {
        let dense = NextToken::new(&[0.0, (3_f32).ln(), 0.0], 1);
        let found = NextToken::new(&[(2_f32).ln(), (2_f32).ln(), 0.0], 1);
        let expected = 0.2 * (0.2_f64 / 0.4).ln() + 0.6 * (0.6_f64 / 0.4).ln();
        assert!((found.divergence_from(&dense) - expected).abs() < 1e-6);
        assert_eq!(dense.divergence_from(&dense), 0.0);
        assert_eq!((dense.most_likely(), found.most_likely()), (1, 0));
        assert!((found.logprob() - (0.4_f32).ln()).abs() < 1e-6);
    }
}
