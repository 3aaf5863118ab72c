//! `priority`: a sample drawn by approximate attention.
//!
//! Keys are kept in 8 bits, beside the norms of the values. Each row scores every visible token by
//! them, `s^`; with `scores = "selectors"` no copies are kept, and `s^` is what the last top-k ranked the
//! tokens by, scaled to logits (see `learned.rs`). Token `i` of those not taken then has the size
//!
//! `size_i = e^{s^_i} √(|v_i|² + m²)`, divided by the sum of all,
//!
//! `m²` being the mean of `|v|²` under the approximate attention. If several rows read one list, a
//! token's size is the root of the sum of their squares, divided by the sum of all again. At a
//! threshold `t` token `i` is drawn, independently of others, if
//!
//! `u_i < π_i = min(1, t size_i)`,
//!
//! `u_i` being a uniform number of its own. That is priority sampling with a threshold instead of a
//! number of tokens: heavy tokens are certain, the probabilities are exact, and a larger threshold draws
//! the same tokens and more. The threshold of a size is that at which so many are expected.
//!
//! Cost: a pass over `head_dim + 16` bytes for each visible token and row, or over 4 and the scores; then
//! the design, O(visible) for each look.
//!
//! # Guarantee
//! Unbiased totals, of variance `Σ x² (1/π − 1)`, whatever the scores. By keys in 8 bits, the logit of every
//! token is known to within Δ (see `index.rs`); of selectors' scores three deviations of the pilot are taken
//! for Δ, which proves nothing. As `e ≤ e^(s^ + Δ)`, and `|v − o| ≤ √2 √(|v|² + m²)` if
//! `|o| ≤ m`, tokens of which λ draws are expected together add at most
//!
//! `√2 e^Δ λ/t · Σ e^s^ √(|v|² + m²)`
//!
//! to `Σ e |v − o|`, and they are all missed with probability `e^−λ`. So an estimator need not assume
//! that the sample has seen the tail, unless Δ is not proved or exceeds ln 2 for some token. Under `mode = "rigorous"`
//! nothing is assumed: Bernstein's inequality with proved ranges, see `rigorous.rs`.
//!
//! Priority sampling: Duffield, Lund, Thorup (2007), "Priority sampling for estimation of arbitrary
//! subset sums", JACM 54(6). The rest is of this project.

mod index;
mod learned;
mod rigorous;
mod sizes;
mod uniforms;

use std::f64::consts::{LN_2, SQRT_2};

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Design, Evidence, NewTokens, Picks, ProofGoal, Proved, Result, Row, Sample, Sampler,
    SamplerConfig, Site, Size, Stream, Unseen, default_base, register, typetag,
};

use index::{Index, Scan};
use learned::pilot;
use rigorous::Rigorous;
use sizes::Sizes;
use uniforms::Uniforms;

/// A sample drawn by approximate attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Priority {
    /// Tokens in the first look at the residual.
    #[serde(default = "default_base")]
    pub base: Size,
    /// What foretells the logits.
    #[serde(default)]
    pub scores: Scores,
}

impl Default for Priority {
    fn default() -> Self {
        Self { base: default_base(), scores: Scores::Keys }
    }
}

/// What foretells the logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Scores {
    /// Copies of the keys in 8 bits, which know them to within a bound.
    #[default]
    Keys,
    /// The scores by which the last top-k ranked the tokens, and what a pilot shows of their slope.
    Selectors,
}

#[typetag::serde(name = "priority")]
impl SamplerConfig for Priority {
    fn build(&self, site: &Site) -> Result<Box<dyn Sampler>> {
        let index = Index::new(site.shape.head_dim, self.scores == Scores::Keys);
        Ok(Box::new(Worker { index }))
    }

    fn base(&self) -> Size {
        self.base
    }

    fn evidence(&self) -> Evidence {
        if self.scores == Scores::Keys { Evidence::Proof } else { Evidence::Variances }
    }

    fn wants_scores(&self) -> bool {
        self.scores == Scores::Selectors
    }
}

#[derive(Clone)]
struct Worker {
    index: Index,
}

impl Sampler for Worker {
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
        let pilot = if self.index.has_keys() { Vec::new() } else { pilot(picks) };
        let scan = |row: &Row<'a>| self.index.scan(row, picks, &pilot);
        let scans: Vec<Scan<'a>> = readers.iter().map(scan).collect();
        let sizes = Sizes::new(&scans, picks, &pilot);
        Box::new(PriorityDesign::new(scans, sizes, Uniforms::new(stream)))
    }
}

/// Independent draws, each with the probability that its size has at the threshold.
struct PriorityDesign<'a> {
    /// What the index says to each reader.
    scans: Vec<Scan<'a>>,
    /// `Δ` of each reader: how far the logit of a token that is left to chance may be from its score.
    errors: Vec<f64>,
    sizes: Sizes,
    uniforms: Uniforms,
    threshold: f64,
    /// The places of the tokens drawn, in draw order.
    drawn: Vec<usize>,
}

impl<'a> PriorityDesign<'a> {
    fn new(scans: Vec<Scan<'a>>, sizes: Sizes, uniforms: Uniforms) -> Self {
        let error = |scan: &Scan<'_>| {
            let errors = (0..sizes.len()).map(|place| scan.error(sizes.token(place)));
            errors.fold(0.0, f64::max)
        };
        let errors = scans.iter().map(error).collect();
        Self { scans, errors, sizes, uniforms, threshold: 0.0, drawn: Vec::new() }
    }
}

impl Design for PriorityDesign<'_> {
    fn extend(&mut self, size: usize, out: &mut Vec<u32>) {
        let (before, t) = (self.threshold, self.sizes.threshold(size));
        if t <= before {
            return;
        }
        for place in 0..self.sizes.len() {
            let token = self.sizes.token(place);
            let uniform = self.uniforms.at(token);
            let is_drawn = |t: f64| uniform < self.sizes.probability(place, t);
            if is_drawn(t) && !is_drawn(before) {
                self.drawn.push(place);
                out.push(token as u32);
            }
        }
        self.threshold = t;
    }

    fn probabilities(&self) -> Vec<f64> {
        let p = |&place: &usize| self.sizes.probability(place, self.threshold);
        self.drawn.iter().map(p).collect()
    }

    fn factors(&self, size: usize) -> Vec<f64> {
        let t = self.sizes.threshold(size).max(self.threshold);
        let factor = |&place: &usize| {
            let [p, then] = [self.threshold, t].map(|t| self.sizes.probability(place, t));
            (1.0 / then - 1.0) / p
        };
        self.drawn.iter().map(factor).collect()
    }

    fn unseen(&self, reader: usize, size: usize, shift: f64) -> Option<Unseen> {
        let error = self.errors[reader];
        let is_proved = self.scans[reader].is_proved();
        let (total, length) = self.sizes.total(reader, shift);
        let most = if is_proved { LN_2 } else { f64::INFINITY };
        let one = error.min(most).exp() * total / self.sizes.threshold(size);
        Some(Unseen {
            output: SQRT_2 * one,
            numerator: one,
            denominator: one / length,
            proved: is_proved && error <= LN_2,
        })
    }

    fn proved(&self, sample: &Sample<'_>, reader: usize, goal: &ProofGoal) -> Option<Proved> {
        let rule = Rigorous::new(goal, &self.scans[reader], &self.sizes);
        rule.needed(sample, &self.drawn, self.threshold)
    }
}

register!(Sampler, "priority", Priority, "drawn by approximate attention, from keys in 8 bits");

#[cfg(test)]
mod tests;
