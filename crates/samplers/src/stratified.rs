//! `stratified`: a sample spread over strata of score and position.
//!
//! The tokens that the selectors have left are cut into 8 levels of equal size by the scores that the
//! last selector that ranks gave them (of a group, the largest that any head's gave), and each level into 4
//! blocks by position; without such a selector, into 32 blocks by position. Of stratum `h`, with `N_h` tokens,
//! `n_h` are drawn uniformly without replacement, and each weighs `N_h / n_h`. So what differs between
//! strata adds no error: with `w = e (v − o^)`, that of `W^` has the variance
//!
//! `V_W = Σ N_h² (1/n_h − 1/N_h) S_h²`,  `S_h²` the variance of `w` in the stratum,
//!
//! and that of `D^` the same with `e`. Few draws of a stratum may be alike where the stratum is not,
//! so `S_h²` is estimated from deviations about the average of the means of the stratum and of those
//! beside it in the grid of levels and blocks: too large on average by what neighbours differ by,
//! never too small (docs/guarantees.md, theorem 8). The draws are shared out half in proportion to `N_h` and half to
//! `N_h E_h`, `E_h` being the root mean square of `exp(score)` in the stratum: what the scores, if they
//! are near to logits, foresee of `S_h`. So the shares are known before the draw. If they followed from the
//! draws, strata whose first few look alike would be starved, and the estimates biased.
//!
//! As `1/x` is convex, the variance is at most the mean of those of the two ways to share: at most twice that
//! of a proportional sample, which is at most that of a uniform one, up to terms of order `1/n_h`; and
//! if `E_h` is near to `S_h`, at most once (Neyman).
//!
//! Cost: some passes over the scores, one over the random order at most.
//!
//! # Guarantee
//! Unbiased totals, whose variances are not underestimated on average. Nothing bounds how much the tokens weigh
//! that no stratum has shown, so a promise assumes that the sample has seen the tail of each.
//!
//! Neyman (1934), "On the two different aspects of the representative method", JRSS 97(4). The rest
//! is of this project.

mod levels;
mod strata;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Picks, Result, Row, Sampler, SamplerConfig, Site, Size,
    plugin::{Design, default_base},
    register,
    sample::Stratification,
    step::Stream,
    typetag,
};

use strata::Strata;

/// A sample spread over strata.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stratified {
    /// Tokens at the first check.
    #[serde(default = "default_base")]
    pub base: Size,
}

#[typetag::serde(name = "stratified")]
impl SamplerConfig for Stratified {
    fn build(&self, _: &Site) -> Result<Box<dyn Sampler>> {
        Ok(Box::new(StratifiedSampler))
    }

    fn base(&self) -> Size {
        self.base
    }

    fn wants_scores(&self) -> bool {
        true
    }
}

#[derive(Clone, Copy)]
struct StratifiedSampler;

impl Sampler for StratifiedSampler {
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
        let (then, neighbours) = (self.strata.allocate(size), self.strata.neighbours());
        let mut factors = Vec::with_capacity(then.len());
        for (stratum, (size, drawn)) in self.strata.counts().enumerate() {
            let left = size - then[stratum];
            // A stratum of one token is read in whole.
            let factor = if left == 0 {
                0.0
            } else {
                let beside = neighbours[stratum].len();
                let freedom = Stratification::degrees_of_freedom(drawn, size, beside);
                (size * left) as f64 / then[stratum] as f64 / freedom
            };
            factors.push(factor);
        }
        self.drawn.iter().map(|&stratum| factors[stratum]).collect()
    }

    fn strata(&self) -> Option<Stratification> {
        let neighbours = self.strata.neighbours();
        Some(Stratification { strata: self.drawn.clone(), neighbours })
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
