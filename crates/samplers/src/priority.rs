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
//! The norms of the values are stored beside. Of the tokens that are not picked, token `i` then has
//! the size
//!
//! `size_i = e^(s^_i + x_i) √(|v_i|²/m² + 1) / Σ e^s^`.
//!
//! `m²` is the mean of `|v|²` under the approximate attention to these tokens; `x_i` allows for the
//! error of the token's own score (`errors.rs`), after the sum is taken, so that a query head with
//! uncertain scores counts no less in its group. If several rows read one list, the largest of a
//! token's sizes counts. At a threshold `t` token `i` is drawn, independently of others, if
//!
//! `u_i < π_i = min(1, t size_i)`,
//!
//! `u_i` being a uniform number of its own. This is priority sampling with a threshold instead of a
//! number of tokens: heavy tokens are certain, the probabilities are exact, and a larger threshold
//! draws the same tokens and more. The threshold of a size is that at which `size` tokens are drawn
//! on average. Tokens whose scores say next to nothing, and those of a pilot, are always read; they
//! count as drawn, but at least half of the size is left to chance. Sizes and thresholds are
//! logarithms in 16 bits (`level.rs`): any rounding of a size gives another design, whose
//! probabilities are exact.
//!
//! Cost: a pass over the index of each visible token (`head_dim / 4 + 4` bytes of codes,
//! `head_dim + 14` of copies, or the scores, for each row; codes for four rows together), two over
//! its predictions, and one for each check over 2 bytes a token.
//!
//! # Guarantee
//! Unbiased totals, of variance `Σ x² (1/π − 1)`, whatever the scores. By copies in 8 bits,
//! `e ≤ e^(s^ + x)` is proved for every token. As `|v| + |o| ≤ √(|v|² + m²) √(1 + |o|²/m²)`, tokens of
//! which λ draws are expected together add at most
//!
//! `λ u √(m² + |o|²)`, with the weight `u = e √(|v|²/m² + 1)` of a token that is just certain,
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
mod index;
mod keys;
mod learned;
mod level;
mod rigorous;
mod scratch;
mod sizes;

use multiversion::multiversion;
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

use draws::draw;
use errors::{Scan, always_read};
use index::Index;
use level::number;
use rigorous::Rigorous;
use sizes::{EVERYTHING, Sizes, chance};

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
        let mut scans = self.index.scans(readers, picks, &pilot);
        let certain = always_read(&scans, picks, pilot);
        let sizes = Sizes::new(&mut scans, picks, certain);
        Box::new(PriorityDesign::new(scans, sizes, Uniforms::new(stream)))
    }
}

/// Independent draws, each with the probability that its size has at the threshold.
struct PriorityDesign<'a> {
    /// Predictions of the index for each query head.
    scans: Vec<Scan<'a>>,
    sizes: Sizes,
    uniforms: Uniforms,
    /// The threshold so far, if there was any.
    threshold: Option<i16>,
    /// The tokens drawn, in draw order, and the sizes of each.
    drawn: Vec<u32>,
    levels: Vec<i16>,
}

impl<'a> PriorityDesign<'a> {
    fn new(scans: Vec<Scan<'a>>, sizes: Sizes, uniforms: Uniforms) -> Self {
        let (drawn, levels) = (Vec::new(), Vec::new());
        Self { scans, sizes, uniforms, threshold: None, drawn, levels }
    }

    /// The current threshold. Tokens drawn without one are certain.
    fn now(&self) -> i16 {
        self.threshold.unwrap_or(EVERYTHING)
    }

    /// The threshold of a size, at least the current one.
    fn threshold_of(&self, size: usize) -> i16 {
        let t = self.sizes.threshold(size);
        self.threshold.map_or(t, |now| now.max(t))
    }
}

impl Design for PriorityDesign<'_> {
    fn extend(&mut self, size: usize, out: &mut Vec<u32>) {
        let known = self.drawn.len();
        if known == 0 {
            self.drawn.extend(self.sizes.certain().iter().map(|&token| token as u32));
        }
        let before = self.threshold;
        if size > 0 {
            self.threshold = Some(self.threshold_of(size));
        }
        if let Some(t) = self.threshold.filter(|&t| before != Some(t)) {
            draw(self.sizes.levels(), self.uniforms, before, t, &mut self.drawn);
        }
        let new = &self.drawn[known..];
        out.extend_from_slice(new);
        self.levels.extend(new.iter().map(|&token| self.sizes.levels()[token as usize]));
    }

    fn probabilities(&self) -> Vec<f64> {
        let now = self.now();
        let p = |&level: &i16| f64::from(number(chance(level, now)));
        self.levels.iter().map(p).collect()
    }

    fn factors(&self, size: usize) -> Vec<f64> {
        factors(&self.levels, self.now(), self.threshold_of(size))
    }

    fn unseen(&self, reader: usize, size: usize, shift: f64) -> Option<Unseen> {
        let (t, proved) = (self.threshold_of(size), self.scans[reader].errors.is_proved());
        let one = self.sizes.log_of_one_draw(reader, t, shift).exp();
        Some(Unseen { numerator: one * self.sizes.length(), denominator: one, proved })
    }

    fn proof<'a>(
        &'a self,
        sample: &'a Sample<'_>,
        reader: usize,
        terms: &ProofTerms,
    ) -> Option<SampleProof<'a>> {
        let rule = Rigorous::new(terms, &self.scans[reader], &self.sizes);
        Some(rule.proof(sample, &self.drawn, self.now()))
    }
}

/// φ of tokens at a larger threshold.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn factors(levels: &[i16], now: i16, then: i16) -> Vec<f64> {
    let mut factors = vec![0.0; levels.len()];
    for (factor, &level) in factors.iter_mut().zip(levels) {
        let [now, then] = [number(chance(level, now)), number(chance(level, then))];
        *factor = (1.0 / f64::from(then) - 1.0) / f64::from(now);
    }
    factors
}

register!(
    Sampler,
    "priority",
    Priority,
    "drawn by approximate attention, which an index foretells"
);

#[cfg(test)]
mod tests;
