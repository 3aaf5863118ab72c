//! Evidence on the promised delta from a count of violations.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use super::binomial::{first_true, p_value};

/// Significance level: p-values below this contradict a promise. The p-value is the probability of
/// at least the observed number of violations if the promise is kept.
pub const LEVEL: f64 = 1e-6;

/// Level of suspicion: with a p-value below this, a promise is not reported as held.
pub const SUSPICION: f64 = 0.05;

/// Evidence on the promised delta from violations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// The share of violations is at most delta.
    WithinDelta,
    /// The share of violations is larger than delta, possibly by chance.
    AboveDelta,
    /// The share of violations is significantly larger than delta.
    Contradicted,
}

impl Evidence {
    /// All variants, the best first.
    pub const ALL: [Self; 3] = [Self::WithinDelta, Self::AboveDelta, Self::Contradicted];

    /// Evidence from `violations` in `trials`, where p-values below `level` contradict delta.
    pub fn new(violations: usize, trials: usize, delta: f64, level: f64) -> Self {
        let contradicted = p_value(violations, trials, delta) < level;
        Self::from_rate(contradicted, violations as f64 / trials as f64, delta)
    }

    /// Evidence from the share of violations, and from the result of their test.
    pub(super) fn from_rate(contradicted: bool, rate: f64, delta: f64) -> Self {
        if contradicted {
            Self::Contradicted
        } else if rate > delta {
            Self::AboveDelta
        } else {
            Self::WithinDelta
        }
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WithinDelta => "within delta",
            Self::AboveDelta => "above delta",
            Self::Contradicted => "contradicted",
        })
    }
}

/// Test of a count of violations, and the smallest rate that it can detect.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct CountTest {
    /// Number of trials.
    pub trials: usize,
    /// Significance level: smaller p-values contradict delta.
    pub limit: f64,
    /// Least number of violations that contradict delta; `None` if there are too few trials for any
    /// number to do so.
    pub contradicted_from: Option<usize>,
    /// `contradicted_from` as a share of the trials.
    pub rate: Option<f64>,
}

impl CountTest {
    /// Test of `trials` trials, where p-values below `limit` contradict delta.
    ///
    /// Cost: O(log trials) p-values.
    pub fn new(trials: usize, delta: f64, limit: f64) -> Self {
        let contradicts = |violations| p_value(violations, trials, delta) < limit;
        let contradicted_from = contradicts(trials).then(|| first_true(0, trials, contradicts));
        let rate = contradicted_from.map(|violations| violations as f64 / trials as f64);
        Self { trials, limit, contradicted_from, rate }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_above_delta_may_be_chance() {
        let evidence = |violations, trials| Evidence::new(violations, trials, 0.1, LEVEL);
        assert_eq!(
            (evidence(0, 256), evidence(25, 256)),
            (Evidence::WithinDelta, Evidence::WithinDelta)
        );
        assert_eq!(
            (evidence(26, 256), evidence(49, 256)),
            (Evidence::AboveDelta, Evidence::AboveDelta)
        );
        assert_eq!(
            (evidence(53, 256), evidence(256, 256)),
            (Evidence::Contradicted, Evidence::Contradicted)
        );
        assert_eq!(
            (evidence(3, 30), evidence(0, 0)),
            (Evidence::WithinDelta, Evidence::WithinDelta)
        );
    }

    /// 2,000 samples of each of eight heads, tested as `verify` does.
    #[test]
    fn a_test_reports_the_smallest_count_that_contradicts() {
        for (delta, rate) in [(0.1, 0.137), (0.01, 0.024)] {
            let test = CountTest::new(2000, delta, LEVEL / 8.0);
            let least = test.contradicted_from.expect("enough");
            assert!((test.rate.expect("enough") - rate).abs() < 2e-3, "{test:?}");
            assert!(p_value(least, 2000, delta) < LEVEL / 8.0);
            assert!(p_value(least - 1, 2000, delta) >= LEVEL / 8.0);
        }
        assert_eq!(CountTest::new(6, 0.1, 1e-6).contradicted_from, None, "a millionth");
        assert_eq!(CountTest::new(7, 0.1, 1e-6).contradicted_from, Some(7));
        assert_eq!(CountTest::new(0, 0.1, 1e-6).contradicted_from, None);
    }
}
