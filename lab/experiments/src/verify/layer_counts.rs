//! Counts of the samples of a layer, by heads, rows, token lists and steps.

use vattention_core::{Goal, promise::Scope};

use super::count::{HeadCount, StepCount, TrialCount};
use super::rows_together::SampleUnit;
use super::trials::RowTrials;
use crate::metrics::largest;

/// Trials of a KV head, by query and group member.
pub(super) type KvHeadTrials = Vec<Vec<RowTrials>>;

/// Counts the samples of one layer.
pub(super) struct LayerCounts<'a> {
    pub(super) goal: &'a Goal,
    pub(super) number: usize,
    pub(super) query_heads: usize,
    pub(super) queries: usize,
    /// Number of query heads that share a token list.
    pub(super) heads_per_list: usize,
}

impl LayerCounts<'_> {
    /// Counts the trials of the KV heads.
    pub(super) fn count(&self, trials: &[KvHeadTrials]) -> LayerTrials {
        let heads: Vec<HeadCount> =
            (0..self.query_heads).map(|head| self.count_head(trials, head)).collect();
        let sampled: f64 = heads.iter().map(|head| head.sampled).sum();
        let mean_sampled = sampled / self.query_heads as f64;
        let (rows, units, step) = match self.goal.scope {
            Scope::Row => (self.count_rows(trials), self.count_lists(trials), None),
            Scope::Step => {
                let (rows, step) = self.count_steps(trials);
                let units = rows.iter().map(unit_of_step).collect();
                (rows, units, Some(step))
            }
        };
        LayerTrials { heads, rows, units, step, mean_sampled }
    }

    /// Returns the trials of one row.
    fn row<'t>(&self, trials: &'t [KvHeadTrials], head: usize, query: usize) -> &'t RowTrials {
        let group = self.query_heads / trials.len();
        &trials[head / group][query][head % group]
    }

    fn count_head(&self, trials: &[KvHeadTrials], head: usize) -> HeadCount {
        let rows: Vec<_> = (0..self.queries).map(|query| self.row(trials, head, query)).collect();
        HeadCount::new(self.number, head, &rows, self.goal)
    }

    /// Counts the samples of each head at each query.
    fn count_rows(&self, trials: &[KvHeadTrials]) -> Vec<TrialCount> {
        let heads = 0..self.query_heads;
        let rows = heads.flat_map(|head| (0..self.queries).map(move |query| (head, query)));
        let count = |(head, query)| {
            let RowTrials { errors, violated, .. } = self.row(trials, head, query);
            TrialCount::at_query(self.number, Some(head), query, errors, violated, self.goal)
        };
        rows.map(count).collect()
    }

    /// Counts the samples of each token list at each query.
    fn count_lists(&self, trials: &[KvHeadTrials]) -> Vec<SampleUnit> {
        let groups = trials.iter().flatten();
        let lists = groups.flat_map(|members| members.chunks(self.heads_per_list));
        lists.map(unit_of_list).collect()
    }

    /// Counts the samples of all heads together, at each query and over all queries.
    fn count_steps(&self, trials: &[KvHeadTrials]) -> (Vec<TrialCount>, StepCount) {
        let combine_heads = |query| {
            let heads: Vec<&RowTrials> =
                (0..self.query_heads).map(|head| self.row(trials, head, query)).collect();
            let samples = 0..heads[0].errors.len();
            let errors = samples.clone().map(|i| largest(heads.iter().map(|row| row.errors[i])));
            let violated = samples.map(|i| heads.iter().any(|row| row.violated[i]));
            (errors.collect(), violated.collect())
        };
        let (errors, violated): (Vec<Vec<f64>>, Vec<Vec<bool>>) =
            (0..self.queries).map(combine_heads).unzip();
        let count = |query: usize| {
            let (errors, violated) = (&errors[query], &violated[query]);
            TrialCount::at_query(self.number, None, query, errors, violated, self.goal)
        };
        let rows = (0..self.queries).map(count).collect();
        (rows, StepCount::new(self.number, errors.concat(), violated.concat(), self.goal))
    }
}

/// Returns the unit of the rows that share a token list at one query.
fn unit_of_list(rows: &[RowTrials]) -> SampleUnit {
    let violations = |row: &RowTrials| row.violated.iter().filter(|&&violated| violated).count();
    SampleUnit {
        samples: rows[0].violated.len(),
        heads: rows.len(),
        violations: rows.iter().map(violations).max().unwrap_or(0),
    }
}

/// Returns the unit of a layer's heads at one query, under a promise about all heads together.
fn unit_of_step(step: &TrialCount) -> SampleUnit {
    SampleUnit { samples: step.trials, heads: 1, violations: step.violations }
}

/// Counts of the samples of one layer.
#[derive(Clone, Debug)]
pub struct LayerTrials {
    /// Count of each query head.
    pub heads: Vec<HeadCount>,
    /// Count of each row.
    pub rows: Vec<TrialCount>,
    /// Groups of rows that share samples.
    pub units: Vec<SampleUnit>,
    /// Count of all query heads together, if the promise is about them together.
    pub step: Option<StepCount>,
    /// Number of sampled tokens of a query head, on average.
    pub mean_sampled: f64,
}

impl LayerTrials {
    /// Number of queries.
    pub(super) fn queries(&self) -> usize {
        self.rows.iter().filter_map(|row| row.query).max().map_or(0, |last| last + 1)
    }
}
