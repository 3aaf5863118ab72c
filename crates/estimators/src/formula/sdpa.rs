//! Budgets for `N/D` by bounding `N` and `D` apart.

use super::{c2, split::split, z_two};

/// A budget, and how it divides delta and epsilon between numerator and denominator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SdpaSplit {
    /// Tokens, for an infinite population.
    pub b: f64,
    /// Failure probability given to the numerator.
    pub delta_num: f64,
    /// Failure probability given to the denominator.
    pub delta_den: f64,
    /// Relative error of the numerator.
    pub eps_num: f64,
    /// Relative error of the denominator.
    pub eps_den: f64,
}

/// The exact combination: errors `e1` of `N` and `e2` of `D` make an error of at most
/// `(e1 + e2) / (1 − e2)`, so `√b = min [√c2(δ_N) s_N + (1 + ε) z(δ_D) s_D] / ε`.
///
/// `s_d = n_s σ / D` and `s_n = n_s √Tr / |N|`; `rank` caps the covariance's rank.
pub fn sdpa_exact(epsilon: f64, delta: f64, s_d: f64, s_n: f64, rank: usize) -> SdpaSplit {
    let z_num = |delta: f64| c2(delta, rank).sqrt();
    let root = |num: f64, den: f64| num + (1.0 + epsilon) * den;
    combine(epsilon, delta, s_d, s_n, z_num, root)
}

/// The paper's combination: `2 (e1 + e2) ≤ ε`, and the normal quantile for vectors too, so
/// `√b = min 2 [z(δ_N) s_N + z(δ_D) s_D] / ε`.
pub fn sdpa_paper(epsilon: f64, delta: f64, s_d: f64, s_n: f64) -> SdpaSplit {
    combine(epsilon, delta, s_d, s_n, z_two, |num, den| 2.0 * (num + den))
}

fn combine(
    epsilon: f64,
    delta: f64,
    s_d: f64,
    s_n: f64,
    z_num: impl Fn(f64) -> f64,
    root: impl Fn(f64, f64) -> f64,
) -> SdpaSplit {
    let cost = |num: f64, den: f64| root(z_num(num) * s_n, z_two(den) * s_d) / epsilon;
    let (root_b, delta_num, delta_den) = split(delta, cost);
    SdpaSplit {
        b: root_b * root_b,
        delta_num,
        delta_den,
        eps_num: z_num(delta_num) * s_n / root_b,
        eps_den: z_two(delta_den) * s_d / root_b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        /// The parts meet epsilon exactly, and the paper's budget is up to 4 times larger.
        #[test]
        fn the_exact_split_is_tight(epsilon in 0.01..0.3, delta in 0.01..0.2, s_d in 0.01..3.0, s_n in 0.01..3.0) {
            let exact = sdpa_exact(epsilon, delta, s_d, s_n, 128);
            let combined = (exact.eps_num + exact.eps_den) / (1.0 - exact.eps_den);
            prop_assert!((combined / epsilon - 1.0).abs() < 1e-9);
            let ratio = sdpa_paper(epsilon, delta, s_d, s_n).b / exact.b;
            prop_assert!(ratio <= 4.0 + 1e-9 && ratio >= 4.0 / (1.0 + epsilon).powi(2) - 1e-9);
        }
    }
}
