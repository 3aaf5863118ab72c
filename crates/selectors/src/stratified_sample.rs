//! `stratified-sample`: a sample of what is left, spread over strata of score and position.
//!
//! The tokens that the selectors before have left are cut into 8 levels of equal size by the scores
//! that the last top-k ranked them by, and each level into 4 blocks by position; without a top-k,
//! into 32 blocks by position. Of stratum `h`, with `N_h` tokens, `n_h` are drawn uniformly without
//! replacement, and each weighs `N_h / n_h`. So what differs between strata adds no error: with
//! `w = e (v − o^)`, that of `W^` has the variance
//!
//! `V_W = Σ N_h² (1/n_h − 1/N_h) S_h²`,  `S_h²` the sample's variance of `w` in the stratum,
//!
//! and that of `D^` the same with `e`. The draws are shared out half in proportion to `N_h` and half to
//! `N_h E_h`, `E_h` being the root mean square of `exp(score)` in the stratum: what the scores, if they
//! are near to logits, foresee of `S_h`. So the shares are known before the draw. If they followed from the
//! draws, strata whose first few look alike would be starved, and the estimates biased.
//!
//! First `base` tokens are drawn. The sample suffices if the bound of
//! [`ratio`](vattention_estimators::Ratio) holds with these variances, raised by an allowance for their
//! error; if it does not, as many are drawn in all as would do, up to `rounds` times.
//!
//! As `1/x` is convex, the variance is at most the mean of those of the two ways to share: at most twice that
//! of a proportional sample, which is at most that of a uniform one, up to terms of order `1/n_h`; and
//! if `E_h` is near to `S_h`, at most once (Neyman).
//!
//! Cost: 8 passes over the scores, one over the random order at most, then the keys and values of what
//! is drawn, O(drawn · value_dim²), at each look; a backend reads what is drawn once more.
//!
//! # Guarantee
//! Asymptotic: `Pr(|out − SDPA| > ε |SDPA|) ≤ δ` if the sums are near to normal, `|N|` and the
//! variances near to the sample's, but for the allowance, and the sample has seen the tail of every
//! stratum. `default` is the only mode.
//!
//! Neyman (1934), "On the two different aspects of the representative method", JRSS 97(4). The rest
//! is of this project.

mod look;
mod strata;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Assumptions, Error, Kind, Picks, Promise, Result, Row, Selector, SelectorConfig, Site, Verdict,
    register, typetag,
};
use vattention_estimators::Mode;
use vattention_estimators::formula::{ALLOWANCE, RatioGrids};

use crate::Promised;
use crate::asymptotic::Asymptotic;
use crate::promised::NEAR_CENSUS;
use look::Look;
use strata::Strata;

/// A sample spread over strata, as large as its promise needs.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct StratifiedSample {
    promised: Promised,
    #[serde(skip)]
    grids: RatioGrids,
}

impl StratifiedSample {
    /// A sample for a promise.
    pub fn new(promised: Promised) -> Self {
        Self { promised, grids: RatioGrids::default() }
    }
}

#[typetag::serde(name = "stratified-sample")]
impl SelectorConfig for StratifiedSample {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        if self.promised.mode != Mode::Default {
            return Err(Error::Build {
                component: "stratified-sample".into(),
                reason:
                    "mode: nothing bounds how much the tokens weigh that no stratum has shown; \
                         expected `default`, or `priority-sample` for other modes"
                        .into(),
            });
        }
        let (delta, dim) = (self.promised.delta_of_row(site), site.shape.value_dim);
        let rule = Asymptotic::new(&self.grids, &self.promised, dim, delta, ALLOWANCE);
        Ok(Box::new(Worker { promised: self.promised.clone(), rule }))
    }

    fn randomized(&self) -> bool {
        true
    }

    fn promise(&self) -> Option<Promise> {
        Some(self.promised.promise())
    }

    fn wants_scores(&self) -> bool {
        true
    }
}

#[derive(Clone)]
struct Worker {
    promised: Promised,
    rule: Asymptotic,
}

impl Worker {
    /// Draws for a row until that suffices, and tells whether it did; `None` if everything must be
    /// read.
    fn run<'a>(&self, row: &'a Row<'a>, picks: &Picks) -> Option<(Strata<'a>, bool)> {
        let left = picks.visible() - picks.len();
        let most = left.checked_sub(NEAR_CENSUS)?;
        let mut strata = Strata::new(row, picks);
        let mut draws = strata.allocate(self.promised.base.of(picks.visible()));
        for round in 1.. {
            if draws.iter().sum::<usize>() > most {
                return None;
            }
            strata.draw(&draws);
            if round > self.promised.rounds.get() {
                return Some((strata, false));
            }
            let needed = Look::new(&strata).needed(&self.rule, &strata)?;
            if needed == draws {
                return Some((strata, true));
            }
            draws = needed;
        }
        unreachable!("the last round returns")
    }
}

impl Selector for Worker {
    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let Some((strata, held)) = self.run(row, picks) else {
            picks.take_range(0..row.visible());
            return;
        };
        let drawn = strata.drawn();
        for &(token, p) in &drawn {
            picks.draw(token as usize, p);
        }
        picks.certify(Verdict {
            kind: Kind::Asymptotic,
            assumes: Assumptions::ALL,
            held,
            budget: drawn.len(),
        });
    }
}

register!(
    Selector,
    "stratified-sample",
    StratifiedSample,
    "a sample spread over levels of the scores before it, as large as its promise needs"
);

#[cfg(test)]
mod tests;
