//! What a count of violations says of the delta promised.

use std::fmt;

use serde::Serialize;

use super::binomial::{first_true, p_value};

/// A promise is contradicted where violations as many as those seen are less probable than this, if
/// it is kept.
pub const LEVEL: f64 = 1e-6;

/// Level of suspicion: a promise is not called held where violations as many as those seen are less
/// probable than this, if it is kept.
pub const SUSPICION: f64 = 0.05;

/// What violations say of the delta promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// Their share is at most delta.
    WithinDelta,
    /// Their share is more than delta, which may be chance.
    AboveDelta,
    /// That is no chance.
    Contradicted,
}

impl Evidence {
    /// All, the best first.
    pub const ALL: [Self; 3] = [Self::WithinDelta, Self::AboveDelta, Self::Contradicted];

    /// Of `violations` in `trials`, where p-values below `level` contradict delta.
    pub fn new(violations: usize, trials: usize, delta: f64, level: f64) -> Self {
        let contradicted = p_value(violations, trials, delta) < level;
        Self::from_rate(contradicted, violations as f64 / trials as f64, delta)
    }

    /// Evidence from the share of violations, and from a test of them.
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

/// How a count of violations is judged, and what it could tell.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CountTest {
    /// How many trials there are.
    pub trials: usize,
    /// Smaller p-values contradict delta.
    pub limit: f64,
    /// The fewest violations that do; `None`: none, so few are the trials.
    pub contradicted_from: Option<usize>,
    /// Their share of the trials.
    pub rate: Option<f64>,
}

impl CountTest {
    /// Of `trials` trials, where p-values below `limit` contradict delta.
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
        let of = |violations, trials| Evidence::new(violations, trials, 0.1, LEVEL);
        assert_eq!((of(0, 256), of(25, 256)), (Evidence::WithinDelta, Evidence::WithinDelta));
        assert_eq!((of(26, 256), of(49, 256)), (Evidence::AboveDelta, Evidence::AboveDelta));
        assert_eq!((of(53, 256), of(256, 256)), (Evidence::Contradicted, Evidence::Contradicted));
        assert_eq!((of(3, 30), of(0, 0)), (Evidence::WithinDelta, Evidence::WithinDelta));
    }

    /// 2,000 samples of each of eight heads, as `verify` judges them.
    #[test]
    fn it_is_told_what_could_be_told() {
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
