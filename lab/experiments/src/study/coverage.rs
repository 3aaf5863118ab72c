//! `coverage`: what top-k, top-p and a sample see of each row, and how far off they are.
//!
//! After sink and window, by exact scores: a share of the tokens with the largest; as many of them as
//! hold a mass of the softmax; a uniform sample of that share; and half of it each way. The paper's
//! case for its combination: a fixed number of tokens covers little of a flat row, where a sample is
//! near; a peaked row is the other way round.

use serde::Serialize;
use vattention_core::{Fraction, Size, Target};

use super::measure::Study;
use super::natural::Natural;
use super::options::CoverageOptions;
use super::population::ResidualPopulation;
use crate::metrics::mean;
use crate::{ErrorSummary, Result};

/// The methods, by what is printed of them.
const METHODS: [&str; 4] = ["top-k", "top-p", "sample", "half each"];

/// What the study found.
#[derive(Clone, Debug, Serialize)]
pub struct Coverage {
    /// The trace's file, as given.
    pub trace: String,
    /// Tokens besides sink and window, of the visible ones.
    pub share: f64,
    /// What top-p holds of the softmax mass, with sink and window.
    pub mass: f64,
    /// Samples of each row.
    pub trials: u32,
    /// Each method over all rows.
    pub methods: Vec<CoverageMethod>,
    /// Each method on each row.
    pub rows: Vec<RowCoverage>,
}

/// One method over all rows.
#[derive(Clone, Debug, Serialize)]
pub struct CoverageMethod {
    /// Its name.
    pub method: &'static str,
    /// Tokens read, of the visible ones, mean over rows.
    pub density: f64,
    /// The most of any row.
    pub most: f64,
    /// The softmax mass of these, mean over rows.
    pub coverage: f64,
    /// The least of any row.
    pub least: f64,
    /// The relative error of the output over rows.
    pub error: ErrorSummary,
}

/// One method on one row; means over samples, where there are any.
#[derive(Clone, Debug, Serialize)]
pub struct RowCoverage {
    /// The layer.
    pub layer: usize,
    /// The query head.
    pub query_head: usize,
    /// The method's name.
    pub method: &'static str,
    /// Tokens read, of the visible ones.
    pub density: f64,
    /// Their softmax mass.
    pub coverage: f64,
    /// The relative error of the output.
    pub error: f64,
}

/// Measures each row with a share of the tokens, and with those that hold a mass.
///
/// # Errors
/// A setting that does not fit the trace, or a trace that is damaged or too short.
pub fn coverage(study: &Study<'_>, options: &CoverageOptions) -> Result<Coverage> {
    let &CoverageOptions { share, mass, trials } = options;
    let of = |row: &ResidualPopulation| (row.head(), methods(row, share, mass, trials));
    let rows: Vec<((usize, usize), [ReadSet; 4])> =
        study.measure_after(&Natural::ends(), trials, of)?;
    let of_row = |&((layer, query_head), reads): &((usize, usize), [ReadSet; 4])| {
        METHODS.into_iter().zip(reads).map(move |(method, [density, coverage, error])| {
            RowCoverage { layer, query_head, method, density, coverage, error }
        })
    };
    let rows: Vec<RowCoverage> = rows.iter().flat_map(of_row).collect();
    Ok(Coverage {
        trace: study.trace_name(),
        share: share.get(),
        mass: mass.get(),
        trials,
        methods: METHODS.iter().map(|method| CoverageMethod::new(method, &rows)).collect(),
        rows,
    })
}

/// Density, coverage and error of one method on one row.
type ReadSet = [f64; 3];

/// In the order of [`METHODS`].
fn methods(row: &ResidualPopulation, share: Fraction, mass: Fraction, trials: u32) -> [ReadSet; 4] {
    let order = row.by_weight();
    let tokens = Size::Share(share).to_tokens(row.visible()).clamp(1, row.len());
    let holding = tokens_holding(row, &order, mass.get());
    let half = tokens / 2;
    [
        read(row, &order[..tokens], 0, 1),
        read(row, &order[..holding], 0, 1),
        read(row, &[], tokens, trials),
        read(row, &order[..half], tokens - half, trials),
    ]
}

/// How many of the first tokens of an order hold `mass`, together with what is read for certain.
fn tokens_holding(row: &ResidualPopulation, order: &[usize], mass: f64) -> usize {
    let counts: Vec<usize> = (0..order.len()).collect();
    counts.partition_point(|&count| row.mass(&order[..count]) < mass)
}

/// A row that reads the tokens `top`, and samples of `sampled` others.
fn read(row: &ResidualPopulation, top: &[usize], sampled: usize, trials: u32) -> ReadSet {
    let picked = row.with_certain(top);
    let of_trial = |trial| {
        let order = picked.order(trial);
        let error = picked.errors(&order, &[sampled])[0].of(Target::Sdpa);
        (picked.mass(&order[..sampled]), error)
    };
    let (coverages, errors): (Vec<f64>, Vec<f64>) = (0..trials).map(of_trial).unzip();
    let unread = picked.len() - sampled;
    let density = 1.0 - unread as f64 / row.visible() as f64;
    [density, mean(coverages.into_iter()), mean(errors.into_iter())]
}

impl CoverageMethod {
    fn new(method: &'static str, rows: &[RowCoverage]) -> Self {
        let own = || rows.iter().filter(move |row| row.method == method);
        Self {
            method,
            density: mean(own().map(|row| row.density)),
            most: own().map(|row| row.density).fold(0.0, f64::max),
            coverage: mean(own().map(|row| row.coverage)),
            least: own().map(|row| row.coverage).fold(1.0, f64::min),
            error: ErrorSummary::new(own().map(|row| row.error)),
        }
    }
}
