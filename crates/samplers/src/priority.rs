//! `priority`: a sample drawn by approximate attention.
//!
//! An index predicts the logit `s^` of every visible token for each row:
//!
//! - `"2-bit"`: codes of 2 bits for each element of a key, centred and rotated
//!   ([`RotatedCodes`](vattention_index::RotatedCodes));
//! - `"8-bit"`: copies of the keys in 8 bits, whose errors are known to within a bound (`keys.rs`);
//! - `"selectors"`: the scores of the last selector that ranked the tokens, scaled to logits
//!   (`learned.rs`).
//!
//! The norms of the values are stored beside. Token `i` of those that are not picked then has the size
//!
//! `size_i = e^(s^_i + x_i) √(|v_i|² + m²) / Σ e^s^ √(|v|² + m²)`.
//!
//! `m²` is the mean of `|v|²` under the approximate attention; `x_i` allows for the error of the
//! token's own score (`errors.rs`), after the sum is taken, so that a query head with uncertain scores
//! counts no less in its group. If several rows read one list, a token's size is the root of the sum
//! of their squares. Sizes are divided by their sum again. At a threshold `t` token `i` is drawn,
//! independently of others, if
//!
//! `u_i < π_i = min(1, t size_i)`,
//!
//! `u_i` being a uniform number of its own. This is priority sampling with a threshold instead of a
//! number of tokens: heavy tokens are certain, the probabilities are exact, and a larger threshold
//! draws the same tokens and more. The threshold of a size is that at which `size` tokens are drawn on
//! average. Tokens whose scores say next to nothing, and those of a pilot, are always read; they count
//! as drawn, but at least half of the size is left to chance.
//!
//! Cost: a pass over the index of each visible token (`head_dim / 4 + 4` bytes of codes,
//! `head_dim + 14` of copies, or the scores, for each row; codes for four rows together), and over its
//! predictions; the first draws are a pass, and larger samples are drawn from what that kept.
//!
//! # Guarantee
//! Unbiased totals, of variance `Σ x² (1/π − 1)`, whatever the scores. By copies in 8 bits,
//! `e ≤ e^(s^ + x)` is proved for every token. As `|v − o| ≤ √2 √(|v|² + m²)` if `|o| ≤ m`, tokens of
//! which λ draws are expected together add at most
//!
//! `√2 λ/t · Σ size`, in the unit of `e^s^ √(|v|² + m²)`,
//!
//! to `Σ e |v − o|`, and they are all missed with probability `e^−λ`. So an estimator need not assume
//! that the sample has seen the tail. By codes this holds on average over rotations, not for every
//! token, and by selectors' scores it is expected of what a pilot shows (three standard deviations):
//! both certificates say `tail-seen`. Under `mode = "rigorous"` nothing is assumed: Bernstein's
//! inequality with proved ranges (`rigorous.rs`).
//!
//! Codes are rotated by signs that follow from the pipeline's seed. Promises are conditional on the
//! rotation: whoever knows the seed can build a key whose code errs by several standard deviations. A
//! program that reads keys of strangers draws a seed of its own.
//!
//! Priority sampling: Duffield, Lund, Thorup (2007), "Priority sampling for estimation of arbitrary
//! subset sums", JACM 54(6). The rest is of this project.

mod draws;
mod errors;
mod exp;
mod index;
mod keys;
mod learned;
mod rigorous;
mod scratch;
mod sizes;

use std::f64::consts::SQRT_2;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    NewTokens, Picks, Result, Row, Sampler, SamplerConfig, Site, Size,
    plugin::{Design, ProofTerms, SampleEvidence, SampleProof, default_base},
    register,
    sample::{Sample, Uniforms, Unseen},
    step::Stream,
    typetag,
};

use draws::Draws;
use errors::Scan;
use errors::always_read;
use index::Index;
use rigorous::Rigorous;
use sizes::Sizes;

/// A sample drawn by approximate attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Priority {
    /// Tokens at the first check.
    #[serde(default = "default_base")]
    pub base: Size,
    /// Index that predicts the logits.
    #[serde(default)]
    pub index: LogitIndex,
}

impl Default for Priority {
    fn default() -> Self {
        Self { base: default_base(), index: LogitIndex::Codes }
    }
}

/// Index that predicts the logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LogitIndex {
    /// Codes of the keys of 2 bits for each element.
    #[default]
    #[serde(rename = "2-bit")]
    Codes,
    /// Copies of the keys in 8 bits, which know them to within a bound.
    #[serde(rename = "8-bit")]
    Keys,
    /// The scores of the last selector that ranked the tokens, and what a pilot shows of their slope.
    #[serde(rename = "selectors")]
    Selectors,
}

#[typetag::serde(name = "priority")]
impl SamplerConfig for Priority {
    fn build(&self, site: &Site) -> Result<Box<dyn Sampler>> {
        let index = Index::new(site, self.index);
        Ok(Box::new(PrioritySampler { index }))
    }

    fn base(&self) -> Size {
        self.base
    }

    fn evidence(&self) -> SampleEvidence {
        if self.index == LogitIndex::Keys {
            SampleEvidence::Proof
        } else {
            SampleEvidence::Variances
        }
    }

    fn wants_scores(&self) -> bool {
        self.index == LogitIndex::Selectors
    }
}

#[derive(Clone)]
struct PrioritySampler {
    index: Index,
}

impl Sampler for PrioritySampler {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.index.append(new);
    }

    fn index_bytes(&self) -> usize {
        self.index.bytes()
    }

    fn design<'a>(
        &'a self,
        readers: &[Row<'a>],
        picks: &'a Picks,
        stream: &Stream,
    ) -> Box<dyn Design + 'a> {
        let pilot = self.index.pilot(picks);
        let scans = self.index.scans(readers, picks, &pilot);
        let sizes = Sizes::new(&scans, picks, always_read(&scans, picks, pilot));
        Box::new(PriorityDesign::new(scans, sizes, Uniforms::new(stream)))
    }
}

/// Independent draws, each with the probability that its size has at the threshold.
struct PriorityDesign<'a> {
    /// Predictions of the index for each query head.
    scans: Vec<Scan<'a>>,
    sizes: Sizes,
    draws: Draws,
    threshold: f64,
    /// The tokens drawn, in draw order, the sizes of each, and 1 over its probability.
    drawn: Vec<usize>,
    shares: Vec<f32>,
    weights: Vec<f64>,
}

impl<'a> PriorityDesign<'a> {
    fn new(scans: Vec<Scan<'a>>, sizes: Sizes, uniforms: Uniforms) -> Self {
        let (draws, drawn) = (Draws::new(uniforms), Vec::new());
        let (shares, weights) = (Vec::new(), Vec::new());
        Self { scans, sizes, draws, threshold: 0.0, drawn, shares, weights }
    }
}

impl Design for PriorityDesign<'_> {
    fn extend(&mut self, size: usize, out: &mut Vec<u32>) {
        let (before, t) = (self.threshold, self.sizes.threshold(size));
        let known = self.drawn.len();
        if known == 0 {
            self.drawn.extend_from_slice(self.sizes.certain());
        }
        if t > before {
            let new = self.draws.beyond(&self.sizes, before, t);
            self.drawn.extend(new.map(|token| token as usize));
            self.threshold = t;
        }
        let new = &self.drawn[known..];
        out.extend(new.iter().map(|&token| token as u32));
        self.shares.extend(new.iter().map(|&token| self.sizes.shares()[token]));
        self.weights = self.probabilities().into_iter().map(|p| 1.0 / p).collect();
    }

    fn probabilities(&self) -> Vec<f64> {
        let p = |&token: &usize| self.sizes.probability(token, self.threshold);
        self.drawn.iter().map(p).collect()
    }

    fn factors(&self, size: usize) -> Vec<f64> {
        let t = self.sizes.threshold(size).max(self.threshold) as f32;
        let factor = |(&share, weight): (&f32, &f64)| {
            // Of those that are certain at any threshold there is no share.
            let then = if share > 0.0 { (t * share).min(1.0) } else { 1.0 };
            (1.0 / f64::from(then) - 1.0) * weight
        };
        self.shares.iter().zip(&self.weights).map(factor).collect()
    }

    fn unseen(&self, reader: usize, size: usize, shift: f64) -> Option<Unseen> {
        let errors = &self.scans[reader].errors;
        let (log, length) = self.sizes.total(reader, shift);
        let one = (log + errors.common() - self.sizes.threshold(size).ln()).exp();
        Some(Unseen {
            output: SQRT_2 * one,
            numerator: one,
            denominator: one / length,
            proved: errors.is_proved(),
        })
    }

    fn proof<'a>(
        &'a self,
        sample: &'a Sample<'_>,
        reader: usize,
        terms: &ProofTerms,
    ) -> Option<SampleProof<'a>> {
        let rule = Rigorous::new(terms, &self.scans[reader], &self.sizes);
        Some(rule.proof(sample, &self.drawn, self.threshold))
    }
}

register!(
    Sampler,
    "priority",
    Priority,
    "drawn by approximate attention, which an index foretells"
);

#[cfg(test)]
mod tests;
