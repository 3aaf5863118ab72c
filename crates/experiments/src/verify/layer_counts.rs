//! What the samples of a layer's rows are counted as.

use vattention_core::{Demand, Scope};

use super::LayerTrials;
use super::count::{Count, HeadCount, StepCount};
use super::trials::RowTrials;
use crate::metrics::largest;

/// What became of the rows of a KV head: of each query, the members of the group.
pub(super) type KvHeadTrials = Vec<Vec<RowTrials>>;

/// One layer.
pub(super) struct LayerCounts<'a> {
    pub(super) demand: &'a Demand,
    pub(super) number: usize,
    pub(super) query_heads: usize,
    pub(super) queries: usize,
}

impl LayerCounts<'_> {
    /// Of `trials` trials of each KV head.
    pub(super) fn of(&self, done: &[KvHeadTrials], trials: usize) -> LayerTrials {
        let heads: Vec<HeadCount> =
            (0..self.query_heads).map(|head| self.count_head(done, head)).collect();
        let sampled: f64 = heads.iter().map(|head| head.sampled).sum();
        let (rows, step) = match self.demand.scope {
            Scope::Row => (self.count_rows(done, trials), None),
            Scope::Step => {
                let (rows, step) = self.count_steps(done, trials);
                (rows, Some(step))
            }
        };
        LayerTrials { mean_sampled: sampled / self.query_heads as f64, heads, rows, step }
    }

    /// What became of one row.
    fn row<'t>(&self, done: &'t [KvHeadTrials], head: usize, query: usize) -> &'t RowTrials {
        let group = self.query_heads / done.len();
        &done[head / group][query][head % group]
    }

    fn count_head(&self, done: &[KvHeadTrials], head: usize) -> HeadCount {
        let rows: Vec<_> = (0..self.queries).map(|query| self.row(done, head, query)).collect();
        HeadCount::new(self.number, head, &rows, self.demand)
    }

    /// Every head at every query that was tried.
    fn count_rows(&self, done: &[KvHeadTrials], trials: usize) -> Vec<Count> {
        let heads = 0..self.query_heads;
        let tried = self.queries.min(trials);
        let rows = heads.flat_map(|head| (0..tried).map(move |query| (head, query)));
        let count = |(head, query)| {
            let violated = &self.row(done, head, query).violated;
            Count::at_query(self.number, Some(head), query, violated, self.demand)
        };
        rows.map(count).collect()
    }

    /// All heads together, at every query that was tried and over all queries.
    fn count_steps(&self, done: &[KvHeadTrials], trials: usize) -> (Vec<Count>, StepCount) {
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
            (0..self.queries.min(trials)).map(of_query).unzip();
        let count = |(query, violated): (usize, &Vec<bool>)| {
            Count::at_query(self.number, None, query, violated, self.demand)
        };
        let rows = violated.iter().enumerate().map(count).collect();
        (rows, StepCount::new(self.number, errors.concat(), violated.concat(), self.demand))
    }
}
