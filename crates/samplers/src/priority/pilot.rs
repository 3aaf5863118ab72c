//! Logits predicted from the selectors' scores, by a regression on a pilot.
//!
//! The scores of selectors have no common scale: they may be numbers of matching bits, bounds of
//! pages or products of codes. So scores are mapped to logits for each row, by a pilot: tokens
//! at equal distances in the residual, whose logits are computed. The least-squares line of the
//! pilot maps scores to logits, and the pilot's standard deviation from the line measures their
//! uncertainty. Where scores carry little information, the line is nearly flat and tokens get
//! nearly equal sizes: the regression shrinks noisy scores. The pilot is always read and never
//! drawn, so it introduces no bias.

use vattention_core::{Picks, Row};

/// Largest number of tokens in the pilot.
const PILOT: usize = 64;

/// Least distance of two tokens of the pilot, counted in tokens that are not picked.
const LEAST_DISTANCE: usize = 8;

/// Chooses the pilot: tokens at equal distances among the tokens that are not picked.
pub(super) fn choose_pilot(picks: &Picks) -> Vec<usize> {
    let left = picks.visible() - picks.len();
    let distance = left.div_ceil(PILOT).max(LEAST_DISTANCE);
    picks.residual().skip(distance / 2).step_by(distance).collect()
}

/// Predicts the logits of the visible tokens from the selectors' scores, and writes them to `out`.
/// Returns the standard deviation of the pilot's logits from their predictions. Without scores, all
/// predictions are equal.
pub(super) fn predict(row: &Row<'_>, picks: &Picks, pilot: &[usize], out: &mut [f32]) -> f64 {
    let score = |token: usize| picks.scores().map_or(0.0, |scores| f64::from(scores[token]));
    let logits = row.logits_of(pilot).into_iter().map(f64::from);
    let points: Vec<_> = pilot.iter().map(|&token| score(token)).zip(logits).collect();
    let line = RegressionLine::fit(&points);
    let limit = f64::from(row.form().soft_cap.unwrap_or(f32::MAX));
    for (token, out) in out.iter_mut().enumerate() {
        *out = line.predict(score(token)).clamp(-limit, limit) as f32;
    }
    line.deviation
}

/// Least-squares line with a slope of at least 0.
#[derive(Debug, PartialEq)]
struct RegressionLine {
    slope: f64,
    /// Mean of the points, which lies on the line.
    middle: (f64, f64),
    /// Standard deviation of the points from the line; infinite for fewer than three points.
    deviation: f64,
}

impl RegressionLine {
    fn fit(points: &[(f64, f64)]) -> Self {
        let n = points.len() as f64;
        let mean = |term: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(term).sum::<f64>() / n;
        let middle = (mean(&|point| point.0), mean(&|point| point.1));
        let (x, y) = middle;
        let slope =
            mean(&|point| (point.0 - x) * (point.1 - y)) / mean(&|point| (point.0 - x).powi(2));
        let slope = if slope.is_finite() { slope.max(0.0) } else { 0.0 };
        let mut line = Self { slope, middle, deviation: 0.0 };
        let square = mean(&|point| (point.1 - line.predict(point.0)).powi(2));
        line.deviation = if n > 2.0 { (square * n / (n - 2.0)).sqrt() } else { f64::INFINITY };
        line
    }

    fn predict(&self, x: f64) -> f64 {
        self.middle.1 + if self.slope > 0.0 { self.slope * (x - self.middle.0) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_fits_its_points_and_does_not_fall() {
        let line = RegressionLine::fit(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]);
        assert_eq!(line, RegressionLine { slope: 2.0, middle: (1.0, 3.0), deviation: 0.0 });
        let falling = RegressionLine::fit(&[(0.0, 2.0), (1.0, 0.0), (2.0, 1.0)]);
        assert_eq!(
            falling,
            RegressionLine { slope: 0.0, middle: (1.0, 1.0), deviation: 2.0_f64.sqrt() }
        );
        let one_score = RegressionLine::fit(&[(3.0, 1.0), (3.0, 2.0), (3.0, 3.0)]);
        assert_eq!((one_score.slope, one_score.predict(9.0)), (0.0, 2.0));
        let infinite = RegressionLine::fit(&[(f64::INFINITY, 1.0), (3.0, 2.0), (3.0, 3.0)]);
        assert_eq!((infinite.slope, infinite.predict(f64::INFINITY)), (0.0, 2.0));
        assert!(RegressionLine::fit(&[(1.0, 1.0), (2.0, 2.0)]).deviation.is_infinite());
    }

    #[test]
    fn the_pilot_is_spread_over_the_residual() {
        let mut picks = Picks::new(1000);
        picks.take_range(0..500);
        let pilot = choose_pilot(&picks);
        assert_eq!((pilot.len(), pilot[0], pilot[61]), (62, 504, 992));
    }
}
