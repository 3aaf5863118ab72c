//! `clt`: as many tokens as the central limit theorem asks for, `N` and `D` bounded apart.
//!
//! With `s_D = n_s σ / D`, `s_N = n_s √Tr Cov(e v) / |N|` estimated from the sample:
//!
//! | target        | `combine = "exact"`                            | `combine = "paper"`                    |
//! |---------------|------------------------------------------------|----------------------------------------|
//! | `denominator` | `b = (z s_D / ε)²`                             | the same                               |
//! | `numerator`   | `b = c2(δ) (s_N / ε)²`                         | `b = (z s_N / ε)²`, `N` not debiased   |
//! | `sdpa`        | `√b = min [√c2(δ_N) s_N + (1 + ε) z(δ_D) s_D] / ε` | `√b = min 2 [z(δ_N) s_N + z(δ_D) s_D] / ε` |
//!
//! Then the finite-population correction, unless `correction = "none"`.
//!
//! Cost: O(1) beside the statistics; some 20 µs for `sdpa`, milliseconds there if δ > 0.215.
//!
//! # Guarantee
//! Asymptotic: `Pr(relative error of the target > ε) ≤ δ` once the sample has seen the residual's
//! tail. Conservative for `sdpa`, whose measured error is a quarter to a half of ε; with `combine =
//! "paper"` about an eighth. The paper's constant for vectors is too small for δ > 0.215.
//!
//! "vAttention: Verified Sparse Attention" (2025), <https://arxiv.org/abs/2510.05688>; `c2`:
//! Székely, Bakirov (2003).

use serde::{Deserialize, Serialize};
use vattention_core::{
    Budget, BudgetEstimator, Fraction, Kind, Promise, SampleStats, Target, register, typetag,
};

use crate::formula::{c2, fpc, sdpa_exact, sdpa_paper, whole_tokens, z_two};

/// The paper's estimator, and its repaired form.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clt {
    /// What is to be within epsilon.
    pub target: Target,
    /// The relative error allowed.
    pub epsilon: Fraction,
    /// The probability with which it may be exceeded.
    pub delta: Fraction,
    /// Which constants to use.
    #[serde(default)]
    pub combine: Combine,
    /// Whether to use that the residual is finite.
    #[serde(default)]
    pub correction: Correction,
    /// How often the sample may be looked at, at least 1; the paper looks once.
    #[serde(default = "default_rounds")]
    pub rounds: Rounds,
}

/// How the errors of numerator and denominator are bounded and combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Combine {
    /// With the constants that are right, and no larger than needed.
    #[default]
    Exact,
    /// As the paper does.
    Paper,
}

/// Whether the residual is finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Correction {
    /// Sampling without replacement needs fewer tokens, see [`fpc`].
    #[default]
    Finite,
    /// As if tokens were drawn from an infinite population.
    None,
}

/// Looks at the sample.
pub(crate) type Rounds = std::num::NonZeroU8;

pub(crate) fn default_rounds() -> Rounds {
    const { Rounds::new(6).expect("6 is not 0") }
}

impl Clt {
    /// The budget for an infinite population.
    fn infinite(&self, stats: &SampleStats) -> f64 {
        let (epsilon, delta) = (self.epsilon.get(), self.delta.get());
        let n_s = stats.n_s as f64;
        let paper = self.combine == Combine::Paper;
        let norm_n = if paper { stats.norm_n } else { stats.norm_n_debiased };
        let s_d = n_s * stats.var_e.sqrt() / stats.d;
        let s_n = n_s * stats.trace_ev.sqrt() / norm_n;
        match self.target {
            Target::Denominator => (z_two(delta) * s_d / epsilon).powi(2),
            Target::Numerator if paper => (z_two(delta) * s_n / epsilon).powi(2),
            Target::Numerator => c2(delta, stats.value_dim) * (s_n / epsilon).powi(2),
            Target::Sdpa if paper => sdpa_paper(epsilon, delta, s_d, s_n).b,
            Target::Sdpa => sdpa_exact(epsilon, delta, s_d, s_n, stats.value_dim).b,
        }
    }
}

#[typetag::serde(name = "clt")]
impl BudgetEstimator for Clt {
    fn budget(&self, stats: &SampleStats) -> Budget {
        let infinite = self.infinite(stats);
        let b = match self.correction {
            Correction::Finite => fpc(infinite, stats.n_s),
            Correction::None => infinite,
        };
        Budget { tokens: whole_tokens(b, stats.n_s), kind: Kind::Asymptotic }
    }

    fn promise(&self) -> Option<Promise> {
        Some(Promise { target: self.target, epsilon: self.epsilon, delta: self.delta })
    }

    fn rounds(&self) -> usize {
        self.rounds.get().into()
    }
}

register!(Estimator, "clt", Clt, "central limit theorem, numerator and denominator bounded apart");
