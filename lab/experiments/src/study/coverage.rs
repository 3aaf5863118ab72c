//! `coverage`: attention weight and error of top-k, top-p and a sample.
//!
//! After sink and window, the methods read, by exact scores: a share of the tokens with the largest
//! scores (top-k); the fewest tokens that hold a share of the attention weight (top-p); a uniform
//! sample of the same size as top-k; and half of that size by top-k, half by a sample. The study
//! makes the paper's case for its combination: a fixed number of tokens covers little of a flat
//! row, where a sample is accurate; a peaked row is the opposite.

use schemars::JsonSchema;
use serde::Serialize;
use vattention_core::{Fraction, Size, Target};

use super::measure::Study;
use super::natural::Natural;
use super::options::CoverageOptions;
use super::population::ResidualPopulation;
use crate::metrics::mean;
use crate::{ErrorSummary, Result};

/// Names of the methods.
const METHODS: [&str; 4] = ["top-k", "top-p", "sample", "half each"];

/// Result of the study.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Coverage {
    /// File of the trace, as given.
    pub trace: String,
    /// Number of tokens besides sink and window, as a share of the visible tokens.
    pub share: f64,
    /// Attention weight that top-p covers, sink and window included.
    pub mass: f64,
    /// Number of samples of each row.
    pub trials: u32,
    /// Each method over all rows.
    pub methods: Vec<CoverageMethod>,
    /// Each method on each row.
    pub rows: Vec<RowCoverage>,
}

/// One method over all rows.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CoverageMethod {
    /// Name of the method.
    pub method: &'static str,
    /// Density of a query head, mean over rows.
    pub density: f64,
    /// Largest density of a row.
    pub most: f64,
    /// Attention weight of the tokens read, mean over rows.
    pub coverage: f64,
    /// Smallest attention weight of a row.
    pub least: f64,
    /// Relative error of the output, over rows.
    pub error: ErrorSummary,
}

/// One method on one row; means over samples, if the method samples.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RowCoverage {
    /// Layer.
    pub layer: usize,
    /// Query head.
    pub query_head: usize,
    /// Name of the method.
    pub method: &'static str,
    /// Density.
    pub density: f64,
    /// Attention weight of the tokens read.
    pub coverage: f64,
    /// Relative error of the output.
    pub error: f64,
}

/// Measures density, attention weight and error of each method on each row.
///
/// # Errors
/// If a setting does not fit the trace, or the trace is damaged or too short.
pub fn coverage(study: &Study<'_>, options: &CoverageOptions) -> Result<Coverage> {
    let &CoverageOptions { share, mass, trials } = options;
    let measure =
        |row: &ResidualPopulation| (row.head(), measure_methods(row, share, mass, trials));
    let rows: Vec<((usize, usize), [ReadSet; 4])> =
        study.measure_after(&Natural::without_top_k(), trials, measure)?;
    let label_row = |&((layer, query_head), reads): &((usize, usize), [ReadSet; 4])| {
        METHODS.into_iter().zip(reads).map(move |(method, [density, coverage, error])| {
            RowCoverage { layer, query_head, method, density, coverage, error }
        })
    };
    let rows: Vec<RowCoverage> = rows.iter().flat_map(label_row).collect();
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

/// Measures one row by each method, in the order of [`METHODS`].
fn measure_methods(
    row: &ResidualPopulation,
    share: Fraction,
    mass: Fraction,
    trials: u32,
) -> [ReadSet; 4] {
    let order = row.sort_by_weight();
    let tokens = Size::Share(share).to_tokens(row.visible()).clamp(1, row.len());
    let for_mass = count_tokens_for_mass(row, &order, mass.get());
    let half = tokens / 2;
    [
        measure_row(row, &order[..tokens], 0, 1),
        measure_row(row, &order[..for_mass], 0, 1),
        measure_row(row, &[], tokens, trials),
        measure_row(row, &order[..half], tokens - half, trials),
    ]
}

/// Returns the least number of first tokens of an order that hold the attention weight `mass`
/// together with the always-read tokens.
fn count_tokens_for_mass(row: &ResidualPopulation, order: &[usize], mass: f64) -> usize {
    let counts: Vec<usize> = (0..order.len()).collect();
    counts.partition_point(|&count| row.mass(&order[..count]) < mass)
}

/// Measures a row that always reads the tokens `top`, and samples `sampled` other tokens.
fn measure_row(row: &ResidualPopulation, top: &[usize], sampled: usize, trials: u32) -> ReadSet {
    let picked = row.with_always_read(top);
    let run_trial = |trial| {
        let order = picked.draw_order(trial);
        let error = picked.errors(&order, &[sampled])[0].relative(Target::Sdpa);
        (picked.mass(&order[..sampled]), error)
    };
    let (coverages, errors): (Vec<f64>, Vec<f64>) = (0..trials).map(run_trial).unzip();
    let unread = picked.len() - sampled;
    let density = 1.0 - unread as f64 / row.visible() as f64;
    [density, mean(coverages.into_iter()), mean(errors.into_iter())]
}

impl CoverageMethod {
    fn new(method: &'static str, rows: &[RowCoverage]) -> Self {
        let of_method = || rows.iter().filter(move |row| row.method == method);
        Self {
            method,
            density: mean(of_method().map(|row| row.density)),
            most: of_method().map(|row| row.density).fold(0.0, f64::max),
            coverage: mean(of_method().map(|row| row.coverage)),
            least: of_method().map(|row| row.coverage).fold(1.0, f64::min),
            error: ErrorSummary::new(of_method().map(|row| row.error)),
        }
    }
}
