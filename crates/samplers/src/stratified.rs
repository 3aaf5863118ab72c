//! `stratified`: a sample spread over strata of score and position.
//!
//! The residual is divided into 8 levels of equal size by the scores of the last selector that
//! ranked the tokens (for query heads that share a token list, the largest score of any head), and
//! each level into 4 blocks by position. Without such a selector, there are 32 blocks by position.
//! From stratum `h` of `N_h` tokens, `n_h` tokens are drawn uniformly without replacement, each
//! with the weight `N_h / n_h`. So differences between strata add no error: with `w = e (v − o^)`,
//! the estimate `W^` of `Σ w` has the variance
//!
//! `V_W = Σ N_h² (1/n_h − 1/N_h) S_h²`,  `S_h²` the variance of `w` in the stratum,
//!
//! and that of `D^` has `e` in place of `w`. The few tokens drawn from a stratum may be alike where
//! the stratum is not. So `S_h²` is estimated from deviations about the average of the means of the
//! stratum and of its neighbours in the grid of levels and blocks. The mean of this estimate
//! exceeds `S_h²` by the differences between neighbours, and is never below it (docs/guarantees.md,
//! theorem 8). Half of the draws are allocated in proportion to `N_h` and half in proportion to
//! `N_h E_h`, where `E_h` is the root mean square of `exp(score)` in the stratum, which predicts
//! `S_h` if scores are close to logits. The allocation is therefore fixed before the draw. One that
//! depends on the draws would allocate too few to strata whose first draws are alike, and would
//! bias the estimates.
//!
//! For samples much smaller than the residual, and up to terms of order `1/N_h`, the variance is at
//! most twice that of a uniform sample, and at most that of a uniform sample if `E_h` is
//! proportional to `S_h` (docs/guarantees.md, theorem 5).
//!
//! Cost: a few passes over the scores, and at most one over the random order.
//!
//! # Guarantee
//! Totals are unbiased, and their variances are not underestimated on average. The weights of
//! undrawn tokens have no bound, so a promise assumes that none of them is much heavier than the
//! drawn tokens (`tail-seen`).
//!
//! Neyman (1934), "On the two different aspects of the representative method", JRSS 97(4). Strata
//! and variance estimate are this project's own.

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

use strata::DisjointStrata;

/// A sample spread over strata.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stratified {
    /// Sample size at the first check.
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

    fn needs_scores(&self) -> bool {
        true
    }

    fn is_rotation_invariant(&self) -> bool {
        true
    }
}

#[derive(Clone, Copy)]
struct StratifiedSampler;

impl Sampler for StratifiedSampler {
    fn can_truncate(&self) -> bool {
        true
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        None
    }

    fn design<'a>(
        &'a self,
        _: &[Row<'a>],
        picks: &'a Picks,
        stream: &Stream,
    ) -> Box<dyn Design + 'a> {
        Box::new(StratifiedDesign { strata: DisjointStrata::new(picks, stream), drawn: Vec::new() })
    }
}

/// Draws without replacement within strata.
struct StratifiedDesign {
    strata: DisjointStrata,
    /// Stratum of each drawn token, in draw order.
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
        let (draws, neighbours) = (self.strata.allocate(size), self.strata.neighbours());
        let mut factors = Vec::with_capacity(draws.len());
        for (stratum, (size, drawn)) in self.strata.counts().enumerate() {
            let undrawn = size - draws[stratum];
            // This includes strata of one token, which have no degrees of freedom.
            let factor = if undrawn == 0 {
                0.0
            } else {
                let count = neighbours[stratum].len();
                let freedom = Stratification::degrees_of_freedom(drawn, size, count);
                (size * undrawn) as f64 / draws[stratum] as f64 / freedom
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
