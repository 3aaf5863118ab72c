//! `priority-sample`: a sample of what is left, drawn by approximate attention, as large as the promise needs.
//!
//! Keys are kept in 8 bits, beside the norms of the values. A row scores every visible token by
//! them, `s^`, and token `i` of those not taken yet is drawn, independently of others, if
//!
//! `u_i < π_i = min(1, t size_i)`,  `size_i = e^{s^_i} √(|v_i|² + m²)`,
//!
//! `u_i` being a uniform number of its own and `m²` the mean of `|v|²` under the approximate
//! attention. That is priority sampling with a threshold instead of a number of tokens: heavy
//! tokens are certain, the probabilities are exact, and a larger threshold draws the same tokens and
//! more. A token weighs `1/π`, so that numerator and denominator are unbiased whatever the scores.
//!
//! The threshold is first that at which `base` tokens are expected. With `w = e (v − o^)` over the
//! sample, the errors of `W^` and `D^` at any threshold `t' ≥ t` have the estimated variances
//!
//! `V_W(t') = Σ |w|²/π (1/π(t') − 1)`,  `V_D(t') = Σ e²/π (1/π(t') − 1)`,
//!
//! and the sample suffices if the bound of [`ratio`](vattention_estimators::Ratio) holds with them;
//! if it does not, `t` becomes the least `t'` at which it would, up to `rounds` times.
//!
//! Cost: a pass over `head_dim + 16` bytes for each visible token, then the keys and values of what
//! is drawn, O(drawn · value_dim²), at each look; a backend reads what is drawn once more.
//!
//! # Guarantee
//! `Pr(|out − SDPA| > ε |SDPA|) ≤ δ`. By `mode`:
//!
//! - `default` and `strict` are asymptotic: the sums are taken to be near to normal, and `|N|` and
//!   the variances (strict: with an allowance for their error) to be near to the sample's. That
//!   nothing heavy is left unseen need not be assumed: the logit of every token is known to within
//!   Δ (see `index.rs`), so no token that is left to chance weighs more than its probability allows,
//!   and the sample is so large that tokens which would shift the output by more than ε are missed
//!   with probability `δ/10` at most (see `needed.rs`). Where Δ exceeds ln 2 for some token it is
//!   assumed too.
//! - `rigorous` rests on nothing: Bernstein's inequality with proved ranges, see `rigorous.rs`. It
//!   needs more tokens, and reads everything if it cannot prove less to suffice.
//!
//! Priority sampling: Duffield, Lund, Thorup (2007), "Priority sampling for estimation of arbitrary
//! subset sums", JACM 54(6). The rest is of this project.

mod design;
mod index;
mod look;
mod needed;
mod rigorous;
mod sample;
mod uniform;

use std::f64::consts::LN_2;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Assumption, Assumptions, Kind, NewTokens, Picks, Promise, Result, Row, Selector,
    SelectorConfig, Site, Verdict, register, typetag,
};
use vattention_estimators::Mode;
use vattention_estimators::formula::{ALLOWANCE, RatioGrids};

use crate::Promised;
use crate::asymptotic::Asymptotic;
use crate::promised::NEAR_CENSUS;
use design::Design;
use index::{Index, Scan};
use look::Look;
use needed::{Terms, UNSEEN_SHARE, unseen};
use rigorous::Rigorous;
use sample::Sample;
use uniform::Uniforms;

/// A sample drawn by approximate attention, as large as its promise needs.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct PrioritySample {
    promised: Promised,
    #[serde(skip)]
    grids: RatioGrids,
}

impl PrioritySample {
    /// A sample for a promise.
    pub fn new(promised: Promised) -> Self {
        Self { promised, grids: RatioGrids::default() }
    }

    fn worker(&self, site: &Site) -> Worker {
        let delta = self.promised.delta_of_row(site);
        let rule = match self.promised.mode {
            Mode::Default | Mode::Strict => {
                let left = (1.0 - UNSEEN_SHARE) * delta;
                let z = if self.promised.mode == Mode::Strict { ALLOWANCE } else { 0.0 };
                let dim = site.shape.value_dim;
                let rule = Asymptotic::new(&self.grids, &self.promised, dim, left, z);
                Rule::Asymptotic { rule, delta }
            }
            Mode::Rigorous => Rule::Rigorous {
                epsilon: self.promised.epsilon.get(),
                delta,
                floor: self.promised.least_share(),
            },
        };
        Worker { promised: self.promised.clone(), rule, index: Index::new(site.shape.head_dim) }
    }
}

#[typetag::serde(name = "priority-sample")]
impl SelectorConfig for PrioritySample {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.worker(site)))
    }

    fn randomized(&self) -> bool {
        true
    }

    fn promise(&self) -> Option<Promise> {
        Some(self.promised.promise())
    }
}

#[derive(Clone)]
struct Worker {
    promised: Promised,
    rule: Rule,
    index: Index,
}

/// What tells how large the sample must be.
#[derive(Clone, Debug)]
enum Rule {
    Asymptotic { rule: Asymptotic, delta: f64 },
    Rigorous { epsilon: f64, delta: f64, floor: f64 },
}

/// A sample that is large enough, as far as it was looked at.
#[derive(Clone, Copy, Debug)]
struct End {
    threshold: f64,
    held: bool,
}

impl Worker {
    /// Draws for a row until that suffices; `None` if everything must be read.
    fn run(&self, row: &Row<'_>, picks: &Picks, scan: &Scan<'_>, design: &Design) -> Option<End> {
        let base = self.promised.base.of(picks.visible()) as f64;
        let last = design.len().checked_sub(NEAR_CENSUS)? as f64;
        if base >= last {
            return None;
        }
        let shift = scan.scores.iter().copied().fold(f32::NEG_INFINITY, f32::max).into();
        let mut sample = Sample::new(row, picks, shift);
        let (first, last) = (design.threshold(base), design.threshold(last));
        match &self.rule {
            Rule::Asymptotic { rule, delta } => {
                let error = largest_error(design, scan).min(LN_2);
                let terms = Terms { rule, unseen: unseen(*delta, error, design.total(shift)) };
                self.looks(&mut sample, design, first, |sample, t| {
                    terms.needed(&Look::new(sample, design, t), design, t, last)
                })
            }
            &Rule::Rigorous { epsilon, delta, floor } => {
                let rule = Rigorous::new((epsilon, delta, floor), scan, design, shift, base);
                let end = self.looks(&mut sample, design, first, |sample, t| {
                    rule.needed(sample, t).filter(|&needed| needed <= last)
                });
                end.filter(|end| end.held)
            }
        }
    }

    /// Looks at the sample of a threshold, then at that which the look before asked for.
    fn looks<'a>(
        &self,
        sample: &mut Sample<'a>,
        design: &Design,
        first: f64,
        needed: impl Fn(&Sample<'a>, f64) -> Option<f64>,
    ) -> Option<End> {
        let (mut before, mut t) = (0.0, first);
        for _ in 0..self.promised.rounds.get() {
            sample.extend(design, before, t);
            let needed = needed(sample, t)?;
            if needed <= t {
                return Some(End { threshold: t, held: true });
            }
            (before, t) = (t, needed);
        }
        Some(End { threshold: t, held: false })
    }

    /// What is said of a sample.
    fn verdict(&self, design: &Design, scan: &Scan<'_>, end: End) -> Verdict {
        let (kind, assumes) = match self.rule {
            Rule::Asymptotic { .. } => (Kind::Asymptotic, assumed(design, scan)),
            Rule::Rigorous { .. } => (Kind::FiniteSample, Assumptions::NONE),
        };
        let budget = design.expected(end.threshold).ceil() as usize;
        Verdict { kind, assumes, held: end.held, budget }
    }
}

/// What is taken for granted of a sample, if anything is.
fn assumed(design: &Design, scan: &Scan<'_>) -> Assumptions {
    let always = Assumptions::of(Assumption::Normal) | Assumptions::of(Assumption::Moments);
    let unsure = largest_error(design, scan) > LN_2;
    if unsure { always | Assumptions::of(Assumption::TailSeen) } else { always }
}

/// `Δ`: how far the logit of a token that is left to chance may be from its score.
fn largest_error(design: &Design, scan: &Scan<'_>) -> f64 {
    (0..design.len()).map(|place| scan.error(design.token(place))).fold(0.0, f64::max)
}

impl Selector for Worker {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.index.append(new);
    }

    fn index_bytes(&self) -> usize {
        self.index.bytes()
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let scan = self.index.scan(row);
        let design = Design::new(&scan, picks, Uniforms::new(&row.stream()));
        let Some(end) = self.run(row, picks, &scan, &design) else {
            picks.take_range(0..row.visible());
            return;
        };
        for place in 0..design.len() {
            if design.is_drawn(place, end.threshold) {
                picks.draw(design.token(place), design.probability(place, end.threshold));
            }
        }
        picks.certify(self.verdict(&design, &scan, end));
    }
}

register!(
    Selector,
    "priority-sample",
    PrioritySample,
    "a sample drawn by approximate attention, as large as its promise needs"
);

#[cfg(test)]
mod tests;
