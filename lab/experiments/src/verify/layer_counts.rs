//! What the samples of a layer's rows are counted as.

use vattention_core::{Goal, promise::Scope};

use super::count::{Count, HeadCount, StepCount};
use super::rows_together::SampleUnit;
use super::trials::RowTrials;
use crate::metrics::largest;

/// What became of the rows of a KV head: of each query, the members of the group.
pub(super) type KvHeadTrials = Vec<Vec<RowTrials>>;

/// One layer.
pub(super) struct LayerCounts<'a> {
    pub(super) goal: &'a Goal,
    pub(super) number: usize,
    pub(super) query_heads: usize,
    pub(super) queries: usize,
    /// Query heads that share a token list.
    pub(super) heads_per_list: usize,
}

impl LayerCounts<'_> {
    /// Counts of the trials of each KV head.
    pub(super) fn of(&self, done: &[KvHeadTrials]) -> LayerTrials {
        let heads: Vec<HeadCount> =
            (0..self.query_heads).map(|head| self.count_head(done, head)).collect();
        let sampled: f64 = heads.iter().map(|head| head.sampled).sum();
        let mean_sampled = sampled / self.query_heads as f64;
        let (rows, units, step) = match self.goal.scope {
            Scope::Row => (self.count_rows(done), self.count_lists(done), None),
            Scope::Step => {
                let (rows, step) = self.count_steps(done);
                let units = rows.iter().map(unit_of_step).collect();
                (rows, units, Some(step))
            }
        };
        LayerTrials { heads, rows, units, step, mean_sampled }
    }

    /// What became of one row.
    fn row<'t>(&self, done: &'t [KvHeadTrials], head: usize, query: usize) -> &'t RowTrials {
        let group = self.query_heads / done.len();
        &done[head / group][query][head % group]
    }

    fn count_head(&self, done: &[KvHeadTrials], head: usize) -> HeadCount {
        let rows: Vec<_> = (0..self.queries).map(|query| self.row(done, head, query)).collect();
        HeadCount::new(self.number, head, &rows, self.goal)
    }

    /// Every head at every query.
    fn count_rows(&self, done: &[KvHeadTrials]) -> Vec<Count> {
        let heads = 0..self.query_heads;
        let rows = heads.flat_map(|head| (0..self.queries).map(move |query| (head, query)));
        let count = |(head, query)| {
            let RowTrials { errors, violated, .. } = self.row(done, head, query);
            Count::at_query(self.number, Some(head), query, errors, violated, self.goal)
        };
        rows.map(count).collect()
    }

    /// Every token list at every query.
    fn count_lists(&self, done: &[KvHeadTrials]) -> Vec<SampleUnit> {
        let groups = done.iter().flatten();
        let lists = groups.flat_map(|members| members.chunks(self.heads_per_list));
        lists.map(unit_of_list).collect()
    }

    /// All heads together, at every query and over all queries.
    fn count_steps(&self, done: &[KvHeadTrials]) -> (Vec<Count>, StepCount) {
        let of_query = |query| {
            let heads: Vec<&RowTrials> =
                (0..self.query_heads).map(|head| self.row(done, head, query)).collect();
            let trials = 0..heads[0].errors.len();
            let errors =
                trials.clone().map(|trial| largest(heads.iter().map(|row| row.errors[trial])));
            let violated = trials.clone().map(|trial| heads.iter().any(|row| row.violated[trial]));
            (errors.collect(), violated.collect())
        };
        let (errors, violated): (Vec<Vec<f64>>, Vec<Vec<bool>>) =
            (0..self.queries).map(of_query).unzip();
        let count = |query: usize| {
            let (errors, violated) = (&errors[query], &violated[query]);
            Count::at_query(self.number, None, query, errors, violated, self.goal)
        };
        let rows = (0..self.queries).map(count).collect();
        (rows, StepCount::new(self.number, errors.concat(), violated.concat(), self.goal))
    }
}

/// Unit of the rows that share a token list at one query.
fn unit_of_list(rows: &[RowTrials]) -> SampleUnit {
    let violations = |row: &RowTrials| row.violated.iter().filter(|&&violated| violated).count();
    SampleUnit {
        samples: rows[0].violated.len(),
        heads: rows.len(),
        violations: rows.iter().map(violations).max().unwrap_or(0),
    }
}

/// Unit of a layer's heads at one query, of which the promise is about all together.
fn unit_of_step(step: &Count) -> SampleUnit {
    SampleUnit { samples: step.trials, heads: 1, violations: step.violations }
}

/// What many samples of one layer came to.
#[derive(Clone, Debug)]
pub struct LayerTrials {
    /// Every query head's own count.
    pub heads: Vec<HeadCount>,
    /// Every row's own count.
    pub rows: Vec<Count>,
    /// The rows by the samples that they share.
    pub units: Vec<SampleUnit>,
    /// All query heads together, if the promise is about that.
    pub step: Option<StepCount>,
    /// Tokens drawn at random for a query head, on average.
    pub mean_sampled: f64,
}

impl LayerTrials {
    /// Number of queries.
    pub(super) fn queries(&self) -> usize {
        self.rows.iter().filter_map(|row| row.query).max().map_or(0, |last| last + 1)
    }
}
