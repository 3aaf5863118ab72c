//! `tightness`: sample size that each bound requires, and failure rate of samples of that size.
//!
//! The target is the denominator. The bounds know the residual's true moments, so that a failure is
//! due to the bound and not to an estimated moment:
//!
//! | bound | tokens |
//! |---|---|
//! | `clt` | `(z(δ) s_D / ε)²` |
//! | `sub-gaussian`, named Hoeffding in the paper | `2 ln(2/δ) (s_D / ε)²` |
//! | `hoeffding`, with the range of the tokens outside the exact top-k |
//! `½ ln(2/δ) (n_s B / (ε D))²` |
//!
//! Each bound is measured without and with a floor: the natural configuration's base sample as the
//! least size.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use vattention_core::{Estimator, Target, pipeline::required_size};
use vattention_estimators::{Clt, Hoeffding, SubGaussian};

use super::measure::Study;
use super::natural::{Natural, paper_terms};
use super::options::TightnessOptions;
use super::population::ResidualPopulation;
use crate::Result;
use crate::metrics::exceeds;
use crate::metrics::mean;

/// Names of the bounds in pipeline files.
const BOUNDS: [&str; 3] = ["clt", "sub-gaussian", "hoeffding"];

/// Result of the study.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Tightness {
    /// File of the trace, as given.
    pub trace: String,
    /// Allowed relative error.
    pub epsilon: f64,
    /// Probability with which the error may exceed epsilon.
    pub delta: f64,
    /// Number of samples of each row.
    pub trials: u32,
    /// Each bound without and with the floor, over all heads.
    pub bounds: Vec<BoundCount>,
    /// Each head under each bound.
    pub heads: Vec<HeadBound>,
}

/// One bound over all heads.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct BoundCount {
    /// Name of the bound in pipeline files.
    pub bound: &'static str,
    /// True if the base sample is the least size.
    pub floor: bool,
    /// Required sample size, mean over rows.
    pub tokens: f64,
    /// Required sample size, relative to that of `clt` with the same floor.
    pub of_clt: f64,
    /// Share of samples whose error exceeded epsilon.
    pub rate: f64,
    /// Largest such share of any head.
    pub worst_rate: f64,
}

/// One bound at one head.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct HeadBound {
    /// Layer.
    pub layer: usize,
    /// Query head.
    pub query_head: usize,
    /// Name of the bound in pipeline files.
    pub bound: &'static str,
    /// True if the base sample is the least size.
    pub floor: bool,
    /// Required sample size, mean over queries.
    pub tokens: f64,
    /// Number of samples whose error exceeded epsilon.
    pub failures: usize,
    /// Number of samples.
    pub trials: usize,
}

/// Index of a bound in [`BOUNDS`], and whether it has the floor.
type BoundCase = (usize, bool);

/// Sample sizes and failures of one row in each case.
#[derive(Serialize, Deserialize)]
struct BoundRow {
    head: (usize, usize),
    tokens: Vec<usize>,
    failures: Vec<usize>,
}

/// Measures required sizes and failures of each bound.
///
/// # Errors
/// If a setting does not fit the trace, or the trace is damaged or too short.
pub fn tightness(study: &Study<'_>, options: &TightnessOptions) -> Result<Tightness> {
    let &TightnessOptions { epsilon, delta, trials } = options;
    let terms = paper_terms(Target::Denominator, epsilon, delta);
    let hoeffding = Hoeffding {
        combine: terms.combine,
        correction: terms.correction,
        ..Hoeffding::new(Target::Denominator, epsilon, delta)
    };
    let bounds: [&dyn Estimator; 3] = [&Clt(terms.clone()), &SubGaussian(terms), &hoeffding];
    let rows = study.measure(trials, |row| BoundRow::new(row, bounds, epsilon.get(), trials))?;
    let by_head = |&head: &(usize, usize)| {
        let rows: Vec<&BoundRow> = rows.iter().filter(|row| row.head == head).collect();
        let case = |(i, case)| HeadBound::new(&rows, i, case, trials);
        cases().enumerate().map(case).collect::<Vec<_>>()
    };
    let heads = distinct(rows.iter().map(|row| row.head));
    let heads: Vec<HeadBound> = heads.iter().flat_map(by_head).collect();
    Ok(Tightness {
        trace: study.trace_name(),
        epsilon: epsilon.get(),
        delta: delta.get(),
        trials,
        bounds: cases().map(|case| BoundCount::new(&heads, case)).collect(),
        heads,
    })
}

/// Returns all cases: every bound without the floor, then every bound with it.
fn cases() -> impl Iterator<Item = BoundCase> {
    [false, true].into_iter().flat_map(|floor| (0..BOUNDS.len()).map(move |bound| (bound, floor)))
}

impl BoundRow {
    fn new(
        row: &ResidualPopulation,
        bounds: [&dyn Estimator; 3],
        epsilon: f64,
        trials: u32,
    ) -> Self {
        let truth = row.truth();
        let base = Natural::default().base.to_tokens(row.visible());
        let size = |(bound, floor): BoundCase| {
            let required = required_size(bounds[bound], &truth).tokens;
            if floor { required.max(base).min(row.len()) } else { required }
        };
        let tokens: Vec<usize> = cases().map(size).collect();
        let mut failures = vec![0; tokens.len()];
        for trial in 0..trials {
            let estimates = row.denominators(&row.draw_order(trial), &tokens);
            for (failures, d) in failures.iter_mut().zip(estimates) {
                *failures += usize::from(exceeds((d / truth.d - 1.0).abs(), epsilon));
            }
        }
        Self { head: row.head(), tokens, failures }
    }
}

impl HeadBound {
    /// Summarizes the `i`-th case over the rows of a head.
    fn new(rows: &[&BoundRow], i: usize, (bound, floor): BoundCase, trials: u32) -> Self {
        let (layer, query_head) = rows[0].head;
        Self {
            layer,
            query_head,
            bound: BOUNDS[bound],
            floor,
            tokens: mean(rows.iter().map(|row| row.tokens[i] as f64)),
            failures: rows.iter().map(|row| row.failures[i]).sum(),
            trials: rows.len() * trials as usize,
        }
    }

    /// Share of samples whose error exceeded epsilon.
    pub fn rate(&self) -> f64 {
        self.failures as f64 / self.trials as f64
    }
}

impl BoundCount {
    fn new(heads: &[HeadBound], (bound, floor): BoundCase) -> Self {
        let heads_of = |bound| {
            heads.iter().filter(move |head| head.bound == BOUNDS[bound] && head.floor == floor)
        };
        let tokens = |bound| mean(heads_of(bound).map(|head| head.tokens));
        Self {
            bound: BOUNDS[bound],
            floor,
            tokens: tokens(bound),
            of_clt: tokens(bound) / tokens(0),
            rate: mean(heads_of(bound).map(HeadBound::rate)),
            worst_rate: heads_of(bound).map(HeadBound::rate).fold(0.0, f64::max),
        }
    }
}

/// Returns the distinct heads (layer, query head), ascending.
fn distinct(heads: impl Iterator<Item = (usize, usize)>) -> Vec<(usize, usize)> {
    heads.collect::<BTreeSet<_>>().into_iter().collect()
}
