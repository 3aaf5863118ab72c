//! `epsilon`: mean error as a function of epsilon.
//!
//! Sample sizes follow from the residual's true moments, by `clt` with the paper's constants and by
//! `ratio`, which bounds the output itself. Each promise is measured without and with a floor: the
//! natural configuration's base sample as the least size. A size of `(c / ε)²` tokens makes the
//! mean error proportional to ε, up to the finite-population correction; where the base sample is
//! larger, the error is constant.

use schemars::JsonSchema;
use serde::Serialize;
use vattention_core::{Estimator, Fraction, Target, pipeline::required_size};
use vattention_estimators::{Clt, Ratio};

use super::measure::Study;
use super::natural::{Natural, paper_terms};
use super::options::EpsilonOptions;
use super::population::ResidualPopulation;
use crate::Result;
use crate::metrics::mean;

/// Names of the promises (promised sum, estimator), and their targets.
const PROMISES: [(&str, Target); 4] = [
    ("denominator, clt", Target::Denominator),
    ("numerator, clt", Target::Numerator),
    ("output, clt", Target::Sdpa),
    ("output, ratio", Target::Sdpa),
];

/// Result of the study.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct EpsilonStudy {
    /// File of the trace, as given.
    pub trace: String,
    /// Probability with which the error may exceed epsilon.
    pub delta: f64,
    /// Number of samples of each row.
    pub trials: u32,
    /// Results of each promise, without and with the floor.
    pub series: Vec<EpsilonSeries>,
}

/// Errors under one promise.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct EpsilonSeries {
    /// Promised sum, and the estimator's name in pipeline files.
    pub promise: &'static str,
    /// True if the base sample is the least size.
    pub floor: bool,
    /// Pearson's correlation of epsilon and the mean error; NaN if either is constant.
    pub correlation: f64,
    /// Results by epsilon, in the order given.
    pub points: Vec<EpsilonPoint>,
}

/// Errors at one epsilon.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct EpsilonPoint {
    /// Allowed relative error.
    pub epsilon: f64,
    /// Required sample size, mean over rows.
    pub tokens: f64,
    /// Relative error of the promised target, mean over rows and samples.
    pub error: f64,
}

/// One promise at one epsilon.
struct EpsilonCase {
    estimator: Box<dyn Estimator>,
    target: Target,
    floor: bool,
}

/// Measures errors at each epsilon.
///
/// # Errors
/// If a setting does not fit the trace, or the trace is damaged or too short.
pub fn epsilon(study: &Study<'_>, options: &EpsilonOptions) -> Result<EpsilonStudy> {
    let &EpsilonOptions { ref epsilons, delta, trials } = options;
    let kinds: Vec<(usize, bool)> =
        (0..PROMISES.len()).flat_map(|promise| [(promise, false), (promise, true)]).collect();
    let cases: Vec<EpsilonCase> = kinds
        .iter()
        .flat_map(|&kind| {
            epsilons.iter().map(move |&epsilon| EpsilonCase::new(kind, epsilon, delta))
        })
        .collect();
    let rows = study.measure(trials, |row| measure(row, &cases, trials))?;
    let series = kinds.iter().enumerate().map(|(i, &(promise, floor))| {
        let point = |(j, epsilon): (usize, &Fraction)| {
            let case = i * epsilons.len() + j;
            let tokens = mean(rows.iter().map(|row| row[case].0));
            let error = mean(rows.iter().map(|row| row[case].1));
            EpsilonPoint { epsilon: epsilon.get(), tokens, error }
        };
        let points: Vec<EpsilonPoint> = epsilons.iter().enumerate().map(point).collect();
        let correlation = correlation(&points);
        EpsilonSeries { promise: PROMISES[promise].0, floor, correlation, points }
    });
    let series = series.collect();
    Ok(EpsilonStudy { trace: study.trace_name(), delta: delta.get(), trials, series })
}

impl EpsilonCase {
    fn new((promise, floor): (usize, bool), epsilon: Fraction, delta: Fraction) -> Self {
        let (name, target) = PROMISES[promise];
        let estimator: Box<dyn Estimator> = if name.ends_with("ratio") {
            Box::new(Ratio::new(epsilon, delta))
        } else {
            Box::new(Clt(paper_terms(target, epsilon, delta)))
        };
        Self { estimator, target, floor }
    }
}

/// Returns the sample size and the mean error of one row in each case.
fn measure(row: &ResidualPopulation, cases: &[EpsilonCase], trials: u32) -> Vec<(f64, f64)> {
    let truth = row.truth();
    let base = Natural::default().base.to_tokens(row.visible());
    let size = |case: &EpsilonCase| {
        let required = required_size(&*case.estimator, &truth).tokens;
        if case.floor { required.max(base).min(row.len()) } else { required }
    };
    let sizes: Vec<usize> = cases.iter().map(size).collect();
    let mut sums = vec![0.0; cases.len()];
    for trial in 0..trials {
        let errors = row.errors(&row.draw_order(trial), &sizes);
        for ((sum, case), error) in sums.iter_mut().zip(cases).zip(errors) {
            *sum += error.relative(case.target);
        }
    }
    sizes.iter().zip(sums).map(|(&b, sum)| (b as f64, sum / f64::from(trials))).collect()
}

fn correlation(points: &[EpsilonPoint]) -> f64 {
    let (x, y) = (mean(points.iter().map(|p| p.epsilon)), mean(points.iter().map(|p| p.error)));
    let moment = |f: &dyn Fn(&EpsilonPoint) -> f64| points.iter().map(f).sum::<f64>();
    let both = moment(&|p| (p.epsilon - x) * (p.error - y));
    let squares = moment(&|p| (p.epsilon - x).powi(2)) * moment(&|p| (p.error - y).powi(2));
    both / squares.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_correlation_is_pearsons() {
        let point = |(epsilon, error): (f64, f64)| EpsilonPoint { epsilon, tokens: 1.0, error };
        let correlate = |points: &[(f64, f64)]| {
            correlation(&points.iter().copied().map(point).collect::<Vec<_>>())
        };
        assert!((correlate(&[(0.1, 2.0), (0.2, 4.0), (0.4, 8.0)]) - 1.0).abs() < 1e-12);
        assert!((correlate(&[(1.0, 2.0), (2.0, 1.0), (3.0, 3.0)]) - 0.5).abs() < 1e-12);
        assert!(correlate(&[(1.0, 2.0), (2.0, 2.0)]).is_nan());
    }
}
