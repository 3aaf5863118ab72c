//! Intervals of mean scores.

use schemars::JsonSchema;
use serde::Serialize;

use super::paired::QUANTILE;

/// 95 % interval of a mean of scores from 0 to 1.
///
/// Wilson's score interval (Wilson 1927, "Probable inference, the law of succession, and
/// statistical inference"). For fractional scores it is conservative: the variance of a score
/// within `[0, 1]` is at most that of a Bernoulli variable of the same mean.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ShareInterval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl ShareInterval {
    /// Interval of the `mean` over `cases` independent cases; from 0 to 1 without a case.
    ///
    /// `cases` may be an effective sample size, if cases have different weights.
    pub fn new(mean: f64, cases: f64) -> Self {
        if cases <= 0.0 {
            return Self { low: 0.0, high: 1.0 };
        }
        let square = QUANTILE.powi(2) / cases;
        let centre = mean + square / 2.0;
        let margin = (square * (mean * (1.0 - mean) + square / 4.0)).sqrt();
        let [low, high] = [centre - margin, centre + margin].map(|end| end / (1.0 + square));
        Self { low: low.max(0.0), high: high.min(1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ends of an interval solve `|p - mean| = z sqrt(p (1 - p) / n)`.
    #[test]
    fn ends_solve_the_score_equation() {
        for (mean, cases) in [(0.0, 15.0), (0.3, 10.0), (0.5, 2.0), (0.93, 200.0), (1.0, 4.0)] {
            let ShareInterval { low, high } = ShareInterval::new(mean, cases);
            assert!(0.0 <= low && low <= mean && mean <= high && high <= 1.0);
            for end in [low, high] {
                let distance = QUANTILE * (end * (1.0 - end) / cases).sqrt();
                let solves = ((end - mean).abs() - distance).abs() < 1e-9;
                assert!(solves || end == mean, "{mean} {cases}: {end}");
            }
        }
        assert_eq!(ShareInterval::new(0.5, 0.0), ShareInterval { low: 0.0, high: 1.0 });
    }
}
