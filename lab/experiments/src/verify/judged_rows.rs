//! Rows with enough samples to be tested individually.

use schemars::JsonSchema;
use serde::Serialize;

use super::count::TrialCount;
use crate::metrics::{LEVEL, binomial};

/// Number of rows whose samples would contradict delta if all of them violated the promise, and
/// number of rows with too few samples for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct JudgedRows {
    /// Number of rows with enough samples.
    pub judged: usize,
    /// Number of rows with fewer samples, or none.
    pub unjudged: usize,
    /// Least number of samples that suffices for a row.
    pub least_samples: usize,
    /// Least number of trials of a KV head that gives every row that number of samples.
    pub least_trials: usize,
}

impl JudgedRows {
    /// Counts rows, where a layer has at most `queries` queries.
    pub(super) fn new(rows: &[TrialCount], queries: usize, delta: f64) -> Self {
        let least_samples = binomial::least_trials(delta, LEVEL / rows.len() as f64);
        let judged = rows.iter().filter(|row| row.trials >= least_samples).count();
        Self {
            judged,
            unjudged: rows.len() - judged,
            least_samples,
            least_trials: least_samples.saturating_mul(queries),
        }
    }
}
