//! `stratified`: a sample spread over strata of score and position.
//!
//! The tokens that the selectors have left are cut into 8 levels of equal size by the scores that the
//! last selector that ranks gave them (of a group, the largest that any head's gave), and each level into 4
//! blocks by position; without such a selector, into 32 blocks by position. Of stratum `h`, with `N_h` tokens,
//! `n_h` are drawn uniformly without replacement, and each weighs `N_h / n_h`. So what differs between
//! strata adds no error: with `w = e (v − o^)`, that of `W^` has the variance
//!
//! `V_W = Σ N_h² (1/n_h − 1/N_h) S_h²`,  `S_h²` the sample's variance of `w` in the stratum,
//!
//! and that of `D^` the same with `e`. The draws are shared out half in proportion to `N_h` and half to
//! `N_h E_h`, `E_h` being the root mean square of `exp(score)` in the stratum: what the scores, if they
//! are near to logits, foresee of `S_h`. So the shares are known before the draw. If they followed from the
//! draws, strata whose first few look alike would be starved, and the estimates biased.
//!
//! As `1/x` is convex, the variance is at most the mean of those of the two ways to share: at most twice that
//! of a proportional sample, which is at most that of a uniform one, up to terms of order `1/n_h`; and
//! if `E_h` is near to `S_h`, at most once (Neyman).
//!
//! Cost: 8 passes over the scores, one over the random order at most.
//!
//! # Guarantee
//! Unbiased totals, whose variances follow from the sample. Nothing bounds how much the tokens weigh
//! that no stratum has shown, so a promise assumes that the sample has seen the tail of each.
//!
//! Neyman (1934), "On the two different aspects of the representative method", JRSS 97(4). The rest
//! is of this project.

mod strata;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Design, Picks, Result, Row, Sampler, SamplerConfig, Site, Size, Stream, default_base, register,
    typetag,
};

use strata::Strata;

/// A sample spread over strata.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stratified {
    /// Tokens in the first look at the residual.
    #[serde(default = "default_base")]
    pub base: Size,
}

#[typetag::serde(name = "stratified")]
impl SamplerConfig for Stratified {
    fn build(&self, _: &Site) -> Result<Box<dyn Sampler>> {
        Ok(Box::new(Worker))
    }

    fn base(&self) -> Size {
        self.base
    }

    fn wants_scores(&self) -> bool {
        true
    }
}

#[derive(Clone, Copy)]
struct Worker;

impl Sampler for Worker {
    fn design<'a>(
        &'a self,
        _: &[Row<'a>],
        picks: &'a Picks,
        stream: &Stream,
    ) -> Box<dyn Design + 'a> {
        Box::new(StratifiedDesign { strata: Strata::new(picks, stream), drawn: Vec::new() })
    }
}

/// Draws without replacement within strata.
struct StratifiedDesign {
    strata: Strata,
    /// The stratum of each token drawn, in draw order.
    drawn: Vec<usize>,
}

impl Design for StratifiedDesign {
    fn extend(&mut self, size: usize, out: &mut Vec<u32>) {
        let draws = self.strata.allocate(size);
        for (stratum, token) in self.strata.draw(&draws) {
            self.drawn.push(stratum);
            out.push(token);
        }
    }

    fn probabilities(&self) -> Vec<f64> {
        let p = |(size, drawn): (usize, usize)| f64::from(drawn as f32 / size as f32);
        let p: Vec<f64> = self.strata.counts().map(p).collect();
        self.drawn.iter().map(|&stratum| p[stratum]).collect()
    }

    fn factors(&self, size: usize) -> Vec<f64> {
        let then = self.strata.allocate(size);
        let factor = |((size, drawn), then): ((usize, usize), usize)| {
            // A stratum of one token is read in whole.
            let least = drawn.max(2) - 1;
            (size * (size - then)) as f64 / then.max(1) as f64 / least as f64
        };
        let factors: Vec<f64> = self.strata.counts().zip(then).map(factor).collect();
        self.drawn.iter().map(|&stratum| factors[stratum]).collect()
    }

    fn strata(&self) -> Option<Vec<usize>> {
        Some(self.drawn.clone())
    }
}

register!(
    Sampler,
    "stratified",
    Stratified,
    "spread over levels of the selectors' scores and over positions"
);

#[cfg(test)]
mod tests;
