//! Rows with enough samples to be judged by themselves.

use serde::Serialize;

use super::count::Count;
use crate::metrics::{LEVEL, binomial};

/// Numbers of rows whose samples could contradict delta, if all of them violated the promise, and
/// of rows whose samples are too few for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct JudgedRows {
    /// Rows with enough samples.
    pub judged: usize,
    /// Rows with fewer, or none.
    pub unjudged: usize,
    /// Least samples of a judged row.
    pub least_samples: usize,
    /// Least trials of a KV head that give every row that number of samples.
    pub least_trials: usize,
}

impl JudgedRows {
    /// Coverage of all rows, where a layer has at most `queries` queries.
    pub(super) fn new(rows: &[Count], queries: usize, delta: f64) -> Self {
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
