//! Difference between the scores of two variants in the same cases.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::binomial;

/// 97.5 % quantile of the normal distribution: intervals have a confidence of 95 %.
pub(super) const QUANTILE: f64 = 1.959_963_984_540_054;

/// Mean difference of scores from 0 to 1 in the same cases, with a 95 % interval and a paired test.
///
/// The interval is Tango's score interval for paired shares (Tango 1998, "Equivalence test and
/// confidence interval for the difference in proportions for the paired-sample design", Statistics
/// in Medicine 17). If scores are fractions, sums of gains and losses take the place of counts,
/// which is conservative: the square of a difference within `[-1, 1]` is at most its absolute
/// value. Cases are assumed to be independent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PairedDifference {
    /// Number of cases.
    pub cases: usize,
    /// Mean over the cases, from -1 to 1.
    pub mean: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end of the 95 % interval.
    pub high: f64,
    /// Two-sided p-value of McNemar's exact test: gains against losses, without the cases that do
    /// not differ.
    pub p_value: f64,
}

impl PairedDifference {
    /// Summary of differences within `[-1, 1]` of the cases of several tasks, each task of the same
    /// weight; `None` without a case.
    ///
    /// The interval is that of the effective number of cases (Kish): the number of equally weighted
    /// cases whose mean has the same variance.
    ///
    /// Cost: O(cases), and some 100 evaluations of the score statistic.
    pub fn new(tasks: &[&[f64]]) -> Option<Self> {
        let tasks: Vec<&[f64]> = tasks.iter().copied().filter(|task| !task.is_empty()).collect();
        if tasks.is_empty() {
            return None;
        }
        let squares: f64 = tasks.iter().map(|task| 1.0 / task.len() as f64).sum();
        let effective_cases = (tasks.len() * tasks.len()) as f64 / squares;
        let (mut gain, mut loss) = (0.0, 0.0);
        let (mut better, mut worse) = (0, 0);
        for task in &tasks {
            let weight = effective_cases / (tasks.len() * task.len()) as f64;
            for &difference in *task {
                gain += weight * difference.max(0.0);
                loss += weight * (-difference).max(0.0);
                better += usize::from(difference > 0.0);
                worse += usize::from(difference < 0.0);
            }
        }
        let pairs = Pairs { cases: effective_cases, gain, loss };
        let opposite = Pairs { gain: loss, loss: gain, ..pairs };
        Some(Self {
            cases: tasks.iter().map(|task| task.len()).sum(),
            mean: pairs.mean(),
            low: -opposite.upper_end(),
            high: pairs.upper_end(),
            p_value: mcnemar(better, worse),
        })
    }
}

/// McNemar's exact two-sided test: the sign test of the cases that differ.
fn mcnemar(better: usize, worse: usize) -> f64 {
    let tail = binomial::p_value(better.max(worse), better + worse, 0.5);
    (2.0 * tail).min(1.0)
}

/// Sums of the positive and of the negative differences.
#[derive(Clone, Copy)]
struct Pairs {
    cases: f64,
    gain: f64,
    loss: f64,
}

impl Pairs {
    fn mean(&self) -> f64 {
        (self.gain - self.loss) / self.cases
    }

    /// Largest difference that the score test does not reject.
    fn upper_end(&self) -> f64 {
        let (mut inside, mut outside) = (self.mean(), 1.0);
        for _ in 0..60 {
            let middle = f64::midpoint(inside, outside);
            *(if self.score(middle) > -QUANTILE { &mut inside } else { &mut outside }) = middle;
        }
        inside
    }

    /// Score statistic of the hypothesis that the true difference is `difference`.
    fn score(&self, difference: f64) -> f64 {
        let &Self { cases, gain, loss } = self;
        let a = 2.0 * cases;
        let b = (a - gain + loss) * difference - gain - loss;
        let c = -loss * difference * (1.0 - difference);
        let loss_rate = ((b * b - 4.0 * a * c).max(0.0).sqrt() - b) / (2.0 * a);
        let variance = cases * (2.0 * loss_rate + difference * (1.0 - difference));
        let distance = gain - loss - cases * difference;
        if variance <= 0.0 { distance * f64::INFINITY } else { distance / variance.sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(better: usize, worse: usize, same: usize) -> PairedDifference {
        let all = [vec![1.0; better], vec![-1.0; worse], vec![0.0; same]].concat();
        PairedDifference::new(&[&all]).expect("a case")
    }

    #[test]
    fn equal_scores_do_not_prove_equality() {
        let found = difference(0, 0, 15);
        let end = QUANTILE.powi(2) / (15.0 + QUANTILE.powi(2));
        assert!((found.high - end).abs() < 1e-9 && (found.low + end).abs() < 1e-9, "{found:?}");
        assert_eq!((found.mean, found.p_value, found.cases), (0.0, 1.0, 15));
    }

    #[test]
    fn intervals_of_two_cases_stay_within_minus_one_and_one() {
        for (better, worse, same) in [(0, 1, 1), (0, 2, 0), (1, 1, 0), (2, 0, 0)] {
            let PairedDifference { mean, low, high, .. } = difference(better, worse, same);
            assert!(-1.0 <= low && low <= mean && mean <= high && high <= 1.0, "{low} {high}");
        }
        assert_eq!(PairedDifference::new(&[]), None);
        assert_eq!(PairedDifference::new(&[&[]]), None);
    }

    #[test]
    fn tasks_have_the_same_weight_with_any_numbers_of_cases() {
        let found = PairedDifference::new(&[&[0.0; 12], &[-1.0]]).expect("cases");
        assert!((found.mean + 0.5).abs() < 1e-12 && found.cases == 13, "{found:?}");
        // The interval is that of 4 / (1 + 1/12) cases, half of which are losses.
        assert!(found.high - found.low > 0.6, "{found:?}");
        let halves = [&[1.0, 0.0][..], &[0.0, -1.0]];
        let pooled = [1.0, 0.0, 0.0, -1.0];
        let [halves, pooled] = [&halves[..], &[&pooled[..]]].map(PairedDifference::new);
        let [halves, pooled] = [halves, pooled].map(|found| found.expect("cases"));
        let ends = |found: &PairedDifference| [found.mean, found.low, found.high];
        let distances = ends(&halves).into_iter().zip(ends(&pooled)).map(|(a, b)| (a - b).abs());
        assert!(distances.into_iter().all(|distance| distance < 1e-9), "{halves:?} {pooled:?}");
    }

    /// The critical value of McNemar's asymptotic test is `(b - c) / sqrt(b + c) = 1.96`.
    #[test]
    fn the_interval_excludes_zero_where_mcnemars_statistic_is_large() {
        for better in 0..30 {
            let found = difference(better, 5, 40);
            let statistic = (better as f64 - 5.0) / (better as f64 + 5.0).sqrt();
            assert_eq!(found.low > 0.0, statistic > QUANTILE, "{better}");
            assert_eq!(found.high < 0.0, statistic < -QUANTILE, "{better}");
        }
    }

    /// Ten gains against two losses: `2 P(Binomial(12, 1/2) >= 10)` is `2 * 79 / 4096`.
    #[test]
    fn the_p_value_is_exact() {
        assert!((difference(10, 2, 7).p_value - 2.0 * 79.0 / 4096.0).abs() < 1e-12);
    }

    /// Computes the exact coverage, over all outcomes of 20 cases.
    #[test]
    fn intervals_cover_the_truth() {
        let (cases, mut covered, mut points) = (20_usize, 0.0, 0.0);
        for (gain, loss) in [(0.02, 0.02), (0.1, 0.1), (0.3, 0.1), (0.05, 0.25), (0.4, 0.4)] {
            let mut coverage = 0.0;
            let mut with_better = (1.0_f64 - gain - loss).powi(cases as i32);
            let neither = 1.0 - gain - loss;
            for better in 0..=cases {
                let mut probability = with_better;
                for worse in 0..=cases - better {
                    let found = difference(better, worse, cases - better - worse);
                    if (found.low..=found.high).contains(&(gain - loss)) {
                        coverage += probability;
                    }
                    let same = cases - better - worse;
                    probability *= same as f64 / (worse + 1) as f64 * loss / neither;
                }
                with_better *= (cases - better) as f64 / (better + 1) as f64 * gain / neither;
            }
            assert!(coverage > 0.92, "{gain} {loss}: {coverage}");
            covered += coverage;
            points += 1.0;
        }
        assert!(covered / points > 0.94, "{}", covered / points);
    }
}
