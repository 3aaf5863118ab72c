//! Budgets for `N/D` from separate bounds on `N` and `D`.
//!
//! A bound is given by its radius at one draw: with `b` draws the relative error exceeds
//! `radius(δ) / √b` with probability at most δ.

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};

use super::{c2, split::split, z_two};

/// A budget, with its division of delta and epsilon between numerator and denominator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SdpaSplit {
    /// Number of draws, for an infinite population.
    pub b: f64,
    /// Failure probability of the numerator's bound.
    pub delta_num: f64,
    /// Failure probability of the denominator's bound.
    pub delta_den: f64,
    /// Relative error of the numerator.
    pub eps_num: f64,
    /// Relative error of the denominator.
    pub eps_den: f64,
}

/// Constants of the bounds on numerator and denominator, and of their combination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Combine {
    /// The smallest correct constants.
    #[default]
    Exact,
    /// The constants of the paper.
    Paper,
}

impl Combine {
    /// Bound on the relative error of `N/D`, from those of `N` and `D`.
    pub fn error(self, num: f64, den: f64) -> f64 {
        match self {
            Self::Exact if den < 1.0 => (num + den) / (1.0 - den),
            Self::Exact => f64::INFINITY,
            Self::Paper => 2.0 * (num + den),
        }
    }

    /// `√b ε` for the `b` at which the error equals `ε`, from the radii at one draw.
    pub(crate) fn root(self, epsilon: f64, num: f64, den: f64) -> f64 {
        match self {
            Self::Exact => num + (1.0 + epsilon) * den,
            Self::Paper => 2.0 * (num + den),
        }
    }
}

/// Least budget whose error is `epsilon`, over all splits of `delta`:
/// `√b = min [num(δ_N) + (1 + ε) den(δ_D)] / ε`, or `min 2 [num(δ_N) + den(δ_D)] / ε` with the
/// constants of the paper.
pub fn sdpa(
    combine: Combine,
    epsilon: f64,
    delta: f64,
    num: impl Fn(f64) -> f64,
    den: impl Fn(f64) -> f64,
) -> SdpaSplit {
    let cost = |delta_num: f64, delta_den: f64| {
        combine.root(epsilon, num(delta_num), den(delta_den)) / epsilon
    };
    let (root_b, delta_num, delta_den) = split(delta, cost);
    SdpaSplit {
        b: root_b * root_b,
        delta_num,
        delta_den,
        eps_num: num(delta_num) / root_b,
        eps_den: den(delta_den) / root_b,
    }
}

/// Least error of `N/D` over all splits of `delta`, from the radii of numerator and denominator at
/// the size of the sample: the inverse of [`sdpa`].
pub fn sdpa_error(
    combine: Combine,
    delta: f64,
    num: impl Fn(f64) -> f64,
    den: impl Fn(f64) -> f64,
) -> f64 {
    let error = |delta_num: f64, delta_den: f64| combine.error(num(delta_num), den(delta_den));
    split(delta, error).0
}

/// [`sdpa`] with Gaussian radii and exact constants: `√c2(δ_N) s_N` and `z(δ_D) s_D`.
///
/// `s_d = n_s σ / D`, `s_n = n_s √Tr / |N|`, and `rank` is an upper bound on the covariance's rank.
pub fn sdpa_exact(epsilon: f64, delta: f64, s_d: f64, s_n: f64, rank: usize) -> SdpaSplit {
    let num = |delta: f64| c2(delta, rank).sqrt() * s_n;
    sdpa(Combine::Exact, epsilon, delta, num, |delta| z_two(delta) * s_d)
}

/// [`sdpa`] as in the paper: with the normal quantile for vectors, and the paper's combination.
pub fn sdpa_paper(epsilon: f64, delta: f64, s_d: f64, s_n: f64) -> SdpaSplit {
    let num = |delta: f64| z_two(delta) * s_n;
    sdpa(Combine::Paper, epsilon, delta, num, |delta| z_two(delta) * s_d)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        /// The combined error equals epsilon, and the paper's budget is up to 4 times larger.
        #[test]
        fn the_exact_split_is_tight(
            epsilon in 0.01..0.3,
            delta in 0.01..0.2,
            s_d in 0.01..3.0,
            s_n in 0.01..3.0,
        ) {
            let exact = sdpa_exact(epsilon, delta, s_d, s_n, 128);
            let combined = Combine::Exact.error(exact.eps_num, exact.eps_den);
            prop_assert!((combined / epsilon - 1.0).abs() < 1e-9);
            let ratio = sdpa_paper(epsilon, delta, s_d, s_n).b / exact.b;
            prop_assert!(ratio <= 4.0 + 1e-9 && ratio >= 4.0 / (1.0 + epsilon).powi(2) - 1e-9);
        }
    }
}
