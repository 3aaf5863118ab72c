//! `priority`: a sample drawn by approximate attention.
//!
//! An index predicts the logit `s^` of every visible token for each row:
//!
//! - `"2-bit"`: codes of 2 bits for each element of a key, centred and rotated
//!   ([`RotatedCodes`](vattention_index::RotatedCodes));
//! - `"8-bit"`: the stored keys if they have 8 bits, otherwise copies of them in 8 bits; errors
//!   have proved bounds (`keys.rs`);
//! - `"selectors"`: the scores of the last selector that ranked the tokens, scaled to logits
//!   (`pilot.rs`).
//!
//! If the layer caps logits, so are the predictions. The index also stores the norms of the values.
//! Token `i`, if it is not picked, has the size
//!
//! `size_i = e^(s^_i + x_i) √(|v_i|²/m² + 1) / Σ e^s^`.
//!
//! `m²` is the mean of `|v|²` under the approximate attention to the tokens that are not picked;
//! `x_i` allows for the error of the token's own score (`errors.rs`). The denominator does not
//! include `x`, which would reduce all sizes of a query head with uncertain scores relative to the
//! other heads of its group. If several rows share a token list, each token has the largest of its
//! sizes. At a threshold `t`, token `i` is drawn, independently of other tokens, if
//!
//! `u_i < π_i = min(1, t size_i)`,
//!
//! where `u_i` is a uniform random number of the token. This is priority sampling with a threshold
//! instead of a number of tokens: heavy tokens have `π = 1`, the inclusion probabilities are exact,
//! and a larger threshold draws a superset. The threshold for a sample size is the one at which
//! that number of tokens is drawn on average. Tokens whose scores carry almost no information, and
//! the tokens of a pilot, are always read. They count as drawn, but at least half of the sample
//! size remains for random draws. Sizes and thresholds are logarithms in 16 bits (`level.rs`):
//! rounding a size results in another design, whose probabilities are exact too.
//!
//! Cost: one pass over the index (per visible token and row `head_dim / 4 + 4` bytes of codes,
//! `head_dim + 14` bytes of copies, or one score; codes are scanned for four rows together), one
//! pass over the sizes of the rows, and for each check one pass over the sizes, 2 bytes per token.
//! Predictions become sizes in parts of 1024 tokens, which stay in the first-level cache
//! (`row_levels.rs`). The sizes of a part are relative to its largest prediction, rounded up to a
//! whole power of two, until the largest prediction of all parts is known.
//!
//! # Guarantee
//! Totals are unbiased and have the variance `Σ x² (1/π − 1)`, whatever the scores. With copies in
//! 8 bits, `e ≤ e^(s^ + x)` is proved for every token. Let `u` be the value of `e √(|v|²/m² + 1)`
//! for a token with `t size = 1`. As `|v| + |o| ≤ √(|v|² + m²) √(1 + |o|²/m²)`, a set of tokens
//! whose expected number of draws is λ contributes at most
//!
//! `λ u √(m² + |o|²)`
//!
//! to `Σ e |v − o|`, and the whole set is missed with probability `e^−λ` at most. So an estimator
//! need not assume that no undrawn token is much heavier than the drawn ones (`tail-seen`). With
//! codes, the bound holds on average over rotations, not for every token; with selectors' scores,
//! it is extrapolated from a pilot (three standard deviations). With these two indexes,
//! certificates list the assumption `tail-seen`. Under `mode = "rigorous"`, which needs the copies,
//! nothing is assumed: Bernstein's inequality is applied with proved ranges (`rigorous.rs`).
//!
//! Codes are rotated by signs that are derived from the pipeline's seed. Promises are conditional
//! on the rotation: whoever knows the seed can build a key whose code errs by several standard
//! deviations. A program that reads keys from untrusted sources must draw a secret seed.
//!
//! Priority sampling: Duffield, Lund, Thorup (2007), "Priority sampling for estimation of arbitrary
//! subset sums", JACM 54(6). The thresholds, sizes and bounds are this project's own.

mod draws;
mod errors;
mod index;
mod keys;
mod level;
mod pilot;
mod rigorous;
mod row_levels;
mod sizes;
mod token_bounds;

use multiversion::multiversion;
use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    NewTokens, Picks, Result, Row, Sampler, SamplerConfig, Site, Size, Tokens,
    plugin::{Design, ProofTerms, SampleEvidence, SampleProof, default_base},
    register,
    sample::{MissBounds, Sample, Uniforms},
    step::Stream,
    typetag,
};

use draws::EntryLevels;
use errors::{Scan, always_read};
use index::LogitPredictor;
use level::number;
use rigorous::Rigorous;
use sizes::{EVERYTHING, Sizes, probability_level};

/// A sample drawn by approximate attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Priority {
    /// Sample size at the first check.
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
    /// Codes of the keys, 2 bits for each element.
    #[default]
    #[serde(rename = "2-bit")]
    Codes,
    /// The stored keys if they have 8 bits, otherwise copies of them in 8 bits. Errors have proved
    /// bounds.
    #[serde(rename = "8-bit")]
    Keys,
    /// Scores of the last selector that ranked the tokens, calibrated by the logits of a pilot.
    #[serde(rename = "selectors")]
    Selectors,
}

#[typetag::serde(name = "priority")]
impl SamplerConfig for Priority {
    fn build(&self, site: &Site) -> Result<Box<dyn Sampler>> {
        let index = LogitPredictor::new(site, self.index);
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

    fn needs_scores(&self) -> bool {
        self.index == LogitIndex::Selectors
    }

    fn is_rotation_invariant(&self) -> bool {
        true
    }
}

#[derive(Clone)]
struct PrioritySampler {
    index: LogitPredictor,
}

impl Sampler for PrioritySampler {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.index.append(new);
    }

    fn can_truncate(&self) -> bool {
        true
    }

    fn truncate(&mut self, keys: &Tokens<'_>) {
        self.index.truncate(keys);
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        None
    }

    fn share(&mut self) {
        self.index.share();
    }

    fn index_bytes(&self) -> usize {
        self.index.bytes()
    }

    fn design<'a>(
        &'a self,
        rows: &[Row<'a>],
        picks: &'a Picks,
        stream: &Stream,
    ) -> Box<dyn Design + 'a> {
        let pilot = self.index.choose_pilot(picks);
        let scan = self.index.scan(rows, picks, &pilot);
        let certain = always_read(&scan, picks, pilot);
        let sizes = Sizes::new(&scan, picks, certain);
        Box::new(PriorityDesign::new(scan, sizes, Uniforms::new(stream)))
    }
}

/// Independent draws of tokens, whose inclusion probabilities follow from sizes and a threshold.
struct PriorityDesign<'a> {
    /// Predictions of the index.
    scan: Scan<'a>,
    sizes: Sizes,
    uniforms: Uniforms,
    /// Entry level of each token; computed for the first draw.
    entries: Option<EntryLevels>,
    /// Current threshold; `None` before any.
    threshold: Option<i16>,
    /// Tokens drawn, in draw order.
    drawn: Vec<u32>,
    /// Size of each drawn token, as a level.
    levels: Vec<i16>,
}

impl<'a> PriorityDesign<'a> {
    fn new(scan: Scan<'a>, sizes: Sizes, uniforms: Uniforms) -> Self {
        let (drawn, levels) = (Vec::new(), Vec::new());
        Self { scan, sizes, uniforms, entries: None, threshold: None, drawn, levels }
    }

    /// Current threshold. Tokens drawn before there is a threshold have probability 1.
    fn current_threshold(&self) -> i16 {
        self.threshold.unwrap_or(EVERYTHING)
    }

    /// Threshold for a sample size, at least the current threshold.
    fn threshold_for(&self, size: usize) -> i16 {
        let t = self.sizes.threshold(size);
        self.threshold.map_or(t, |now| now.max(t))
    }
}

impl Design for PriorityDesign<'_> {
    fn extend(&mut self, size: usize, out: &mut Vec<u32>) {
        let before = self.drawn.len();
        if before == 0 {
            self.drawn.extend(self.sizes.certain().iter().map(|&token| token as u32));
        }
        let last = self.threshold;
        if size > 0 {
            self.threshold = Some(self.threshold_for(size));
        }
        if let Some(t) = self.threshold.filter(|&t| last != Some(t)) {
            // Few samples exceed their expected size by more than a quarter.
            let expected = (size + size / 4).saturating_sub(before);
            self.drawn.reserve(expected);
            self.levels.reserve(expected);
            let new = || EntryLevels::new(self.sizes.levels(), self.uniforms);
            self.entries.get_or_insert_with(new).draw(last, t, &mut self.drawn);
        }
        let new = &self.drawn[before..];
        out.extend_from_slice(new);
        self.levels.extend(new.iter().map(|&token| self.sizes.levels()[token as usize]));
    }

    fn probabilities(&self) -> Vec<f64> {
        let t = self.current_threshold();
        let p = |&level: &i16| f64::from(number(probability_level(level, t)));
        self.levels.iter().map(p).collect()
    }

    fn factors(&self, size: usize) -> Vec<f64> {
        variance_factors(&self.levels, self.current_threshold(), self.threshold_for(size))
    }

    fn unseen(&self, row: usize, size: usize, shift: f64) -> Option<MissBounds> {
        let (t, proved) = (self.threshold_for(size), self.scan.errors[row].is_proved());
        let denominator = self.sizes.log_of_one_draw(row, t, shift).exp();
        Some(MissBounds { numerator: denominator * self.sizes.length(), denominator, proved })
    }

    fn proof<'a>(
        &'a self,
        sample: &'a Sample<'_>,
        row: usize,
        terms: &ProofTerms,
    ) -> Option<SampleProof<'a>> {
        let bounds = Rigorous::new(terms, &self.scan, row, &self.sizes)?;
        Some(bounds.proof(sample, &self.drawn, self.current_threshold()))
    }
}

/// Variance factors φ of tokens drawn at the threshold `now`, for a sample at the threshold `then`
/// (docs/guarantees.md, eq. 18).
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn variance_factors(levels: &[i16], now: i16, then: i16) -> Vec<f64> {
    let mut factors = vec![0.0; levels.len()];
    for (factor, &level) in factors.iter_mut().zip(levels) {
        let [now, then] =
            [number(probability_level(level, now)), number(probability_level(level, then))];
        *factor = f64::from((1.0 - then) / (then * now));
    }
    factors
}

register!(Sampler, "priority", Priority, "drawn by approximate attention, which an index predicts");

#[cfg(test)]
mod tests;
