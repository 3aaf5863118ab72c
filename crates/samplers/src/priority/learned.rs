//! Logits as the selectors' scores foretell them.
//!
//! An index ranks tokens by what suits it: bits that agree, bounds of pages, products of codes. What a
//! score says of the logit is learned anew for each row, from tokens whose logits are read: those of
//! the pilot, which lie at equal distances in the residual. The line of least squares through them
//! makes logits of scores, and the pilot's deviation from it says how unsure they are. If scores say
//! little, it is flat, and tokens are drawn nearly alike: so it makes up for the errors of an index, as
//! products that err by chance are shrunk. The pilot is read for certain: it is no part of what is drawn, and
//! biases nothing.

use vattention_core::{Picks, Row};

/// Tokens of the pilot, if that is at most one in [`LEAST_DISTANCE`].
const PILOT: usize = 64;
const LEAST_DISTANCE: usize = 8;

/// Tokens at equal distances among those that are not picked.
pub(super) fn pilot(picks: &Picks) -> Vec<usize> {
    let left = picks.visible() - picks.len();
    let distance = left.div_ceil(PILOT).max(LEAST_DISTANCE);
    picks.residual().skip(distance / 2).step_by(distance).collect()
}

/// Sets the logits of the visible tokens as scores foretell them, and gives the standard deviation of the pilot's logits
/// from these. All are alike if nobody has given scores.
pub(super) fn learn(row: &Row<'_>, picks: &Picks, pilot: &[usize], out: &mut [f32]) -> f64 {
    let score = |token: usize| picks.scores().map_or(0.0, |scores| f64::from(scores[token]));
    let logits = row.logits_of(pilot).into_iter().map(f64::from);
    let points: Vec<_> = pilot.iter().map(|&token| score(token)).zip(logits).collect();
    let line = RegressionLine::through(&points);
    for (token, out) in out.iter_mut().enumerate() {
        *out = line.at(score(token)).clamp(MOST.0, MOST.1) as f32;
    }
    line.deviation
}

/// What f32 holds.
const MOST: (f64, f64) = (f32::MIN as f64, f32::MAX as f64);

/// The line of least squares that does not fall.
#[derive(Debug, PartialEq)]
struct RegressionLine {
    slope: f64,
    /// A point of it.
    middle: (f64, f64),
    /// Of points from it; infinite if there are fewer than three.
    deviation: f64,
}

impl RegressionLine {
    fn through(points: &[(f64, f64)]) -> Self {
        let n = points.len() as f64;
        let mean = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
        let middle = (mean(&|point| point.0), mean(&|point| point.1));
        let (x, y) = middle;
        let slope =
            mean(&|point| (point.0 - x) * (point.1 - y)) / mean(&|point| (point.0 - x).powi(2));
        let slope = if slope.is_finite() { slope.max(0.0) } else { 0.0 };
        let mut line = Self { slope, middle, deviation: 0.0 };
        let square = mean(&|point| (point.1 - line.at(point.0)).powi(2));
        line.deviation = if n > 2.0 { (square * n / (n - 2.0)).sqrt() } else { f64::INFINITY };
        line
    }

    fn at(&self, x: f64) -> f64 {
        self.middle.1 + if self.slope > 0.0 { self.slope * (x - self.middle.0) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_through_its_points_and_does_not_fall() {
        let line = RegressionLine::through(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]);
        assert_eq!(line, RegressionLine { slope: 2.0, middle: (1.0, 3.0), deviation: 0.0 });
        let falling = RegressionLine::through(&[(0.0, 2.0), (1.0, 0.0), (2.0, 1.0)]);
        assert_eq!(
            falling,
            RegressionLine { slope: 0.0, middle: (1.0, 1.0), deviation: 2.0_f64.sqrt() }
        );
        let one_score = RegressionLine::through(&[(3.0, 1.0), (3.0, 2.0), (3.0, 3.0)]);
        assert_eq!((one_score.slope, one_score.at(9.0)), (0.0, 2.0));
        let infinite = RegressionLine::through(&[(f64::INFINITY, 1.0), (3.0, 2.0), (3.0, 3.0)]);
        assert_eq!((infinite.slope, infinite.at(f64::INFINITY)), (0.0, 2.0));
        assert!(RegressionLine::through(&[(1.0, 1.0), (2.0, 2.0)]).deviation.is_infinite());
    }

    #[test]
    fn a_pilot_is_spread_over_what_is_left() {
        let mut picks = Picks::new(1000);
        picks.take_range(0..500);
        let pilot = pilot(&picks);
        assert_eq!((pilot.len(), pilot[0], pilot[61]), (62, 504, 992));
    }
}
