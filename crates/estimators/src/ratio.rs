//! `ratio`: the default; bounds the output's own error instead of those of its parts.
//!
//! With `w = e (v − N/D)` the error is `N^/D^ − N/D = W^/D^` exactly, where `W^` estimates a sum
//! that is 0. So with `s_W = n_s √Tr Cov(w) / |N|` and `s_D = n_s σ / D`, both estimated,
//!
//! `√b = min over δ_W + δ_D = δ of [√q(δ_W) s_W / ε + max(0, z(δ_D)) s_D]`,
//!
//! `q` being the quantile of a Gaussian vector's squared length that suits the effective rank of
//! the sample; then the finite-population correction. The denominator's error has no `1/ε`: it is
//! of second order.
//!
//! Cost: O(1) beside the statistics; its tables take tens of milliseconds once.
//!
//! # Guarantee
//! (eq. 12, 13.) Asymptotic: `Pr(|out − SDPA| > ε |SDPA|) ≤ δ` once the sample has seen the residual's tail, with
//! 6 times fewer sampled tokens than the paper's theorem on the shipped trace. It can fail where a few tokens that
//! no selector took carry much of the output and the sample missed them all; put a selector that
//! finds heavy tokens in front. Where values cancel, `|N|` is small and everything is read.
//!
//! Of this project. The effective-rank quantile is verified numerically, not proved.

use std::num::NonZeroU8;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Assumptions, Budget, BudgetEstimator, ClosedForm, Denominator, Formula, Fraction, Kind,
    Numerator, Population, Promise, SampleStats, Scope, Target, register, typetag,
};

use crate::Mode;
use crate::formula::{ALLOWANCE, RatioGrids, fpc, whole_tokens};
use crate::goal::Goal;
use crate::terms::default_rounds;

/// The direct ratio estimator.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ratio {
    /// What is to be within epsilon: the output.
    #[serde(default)]
    pub target: RatioTarget,
    /// The relative error allowed.
    pub epsilon: Fraction,
    /// The probability with which it may be exceeded.
    pub delta: Fraction,
    /// What may be taken for granted.
    #[serde(default)]
    pub mode: Mode,
    /// The least that `|N|` is taken for, as a share of `Σ e |v|`: what it would be if values did not
    /// cancel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<Fraction>,
    /// Whether delta is of each query head, or of all of a layer together.
    #[serde(default)]
    pub scope: Scope,
    /// How often the sample may be looked at, at least 1.
    #[serde(default = "default_rounds")]
    pub rounds: NonZeroU8,
    #[serde(skip)]
    grids: RatioGrids,
}

/// The one target that this estimator has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RatioTarget {
    /// The attention output.
    #[default]
    Sdpa,
}

impl Ratio {
    /// An estimator with every default.
    pub fn new(epsilon: Fraction, delta: Fraction) -> Self {
        Self {
            target: RatioTarget::Sdpa,
            epsilon,
            delta,
            mode: Mode::default(),
            floor: None,
            scope: Scope::default(),
            rounds: default_rounds(),
            grids: RatioGrids::default(),
        }
    }

    /// By the central limit theorem, from a table made at the first call.
    fn asymptotic(&self, stats: &SampleStats, goal: &Goal) -> usize {
        let n_s = stats.n_s as f64;
        let s_w = n_s * stats.trace_w.sqrt() / goal.norm_n(stats.norm_n_debiased, stats);
        let s_d = n_s * stats.var_e.sqrt() / stats.d;
        let grid = self.grids.get(goal.delta, stats.value_dim);
        let infinite = grid.budget(goal.epsilon, s_w, s_d, stats.nu);
        whole_tokens(fpc(infinite, stats.n_s), stats.n_s)
    }

    fn terms(&self) -> Promise {
        Promise {
            floor: self.floor,
            scope: self.scope,
            ..Promise::new(Target::Sdpa, self.epsilon, self.delta)
        }
    }
}

#[typetag::serde(name = "ratio")]
impl BudgetEstimator for Ratio {
    fn budget(&self, stats: &SampleStats) -> Budget {
        self.mode
            .budget(&self.terms(), stats, ALLOWANCE, |stats, goal| self.asymptotic(stats, goal))
    }

    fn promise(&self) -> Option<Promise> {
        Some(self.terms())
    }

    fn needs_bound(&self) -> bool {
        self.mode.needs_bound()
    }

    fn rounds(&self) -> usize {
        self.rounds.get().into()
    }

    fn closed_form(&self, query_heads: usize, value_dim: usize) -> Option<ClosedForm> {
        if self.mode != Mode::Default || self.floor.is_some() {
            return None;
        }
        let delta = self.scope.share_of(self.delta.get(), query_heads);
        let formula = Formula {
            numerator: Numerator::Output,
            denominator: Denominator::Estimated,
            epsilon: self.epsilon.get(),
            splits: self.grids.get(delta, value_dim).splits().to_vec(),
            population: Population::Finite,
            allowance: ALLOWANCE,
        };
        Some(ClosedForm::Formula { formula, kind: Kind::Asymptotic, assumes: Assumptions::ALL })
    }
}

register!(Estimator, "ratio", Ratio, "the output's own error, the thriftiest promise (default)");
