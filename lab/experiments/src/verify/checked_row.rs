//! Errors of one row's samples, and the causes of errors that are too large.

use ndarray::{Array2, ArrayView1, Axis};
use vattention_core::{
    Goal, Picks, Pipeline, Row, RowReport, SampleStats, Target,
    pipeline::{List, Read},
    sample::{Accumulator, ExactAccumulator, Residual, SampleUse},
    step::Softmax,
};

use super::cause::FailureCause;
use crate::Exact;
use crate::metrics::RowError;

/// Largest number of undrawn tokens that may explain an error, as a share of all undrawn tokens.
const TAIL_SHARE: f64 = 0.01;

/// Statistics of a whole residual.
pub(super) struct ResidualTruth {
    /// Statistics of a sample that contains the whole residual. The effective rank is in `nu`.
    pub(super) stats: SampleStats,
    /// Effective rank of the covariance of `w = e (v − o)`.
    pub(super) nu: f64,
}

/// One row, and the exact attention that its samples are compared with.
pub(super) struct CheckedRow<'a> {
    row: Row<'a>,
    exact: &'a Exact,
    goal: &'a Goal,
    /// Contribution of each visible token to the sum that the promise is about: `e |v − o|`, `e` or
    /// `e |v|`, over `D`.
    contributions: Vec<f64>,
}

impl<'a> CheckedRow<'a> {
    pub(super) fn new(row: &Row<'a>, exact: &'a Exact, goal: &'a Goal) -> Self {
        let mut value = vec![0.0; row.values().dim()];
        let contribution = |token| {
            row.values().copy_row(token, &mut value);
            let weight = weight(row, exact, token);
            let distance = |centre: f64| {
                let squares = value.iter().zip(&exact.output);
                squares.map(|(&v, o)| (f64::from(v) - centre * o).powi(2)).sum::<f64>().sqrt()
            };
            match goal.target {
                Target::Sdpa => weight * distance(1.0),
                Target::Numerator => weight * distance(0.0),
                Target::Denominator => weight,
            }
        };
        let contributions = (0..row.visible()).map(contribution).collect();
        Self { row: *row, exact, goal, contributions }
    }

    /// Computes `N^` and `D^` of a token list, in f64.
    pub(super) fn sums(&self, list: &List) -> Softmax {
        let mut sums = self.row.empty_sums();
        for (&token, &p) in list.indices.iter().zip(&list.probabilities) {
            self.add(token as usize, p, &mut sums);
        }
        sums
    }

    /// Completes the report of a sample whose promise counts the rounding of keys and values.
    pub(super) fn count_rounding(
        &self,
        pipeline: &Pipeline,
        sums: &Softmax,
        report: RowReport,
    ) -> RowReport {
        pipeline.count_rounding(&self.row, sums, report)
    }

    /// Returns the relative error of the promised target.
    pub(super) fn error(&self, sums: &Softmax) -> f64 {
        let output: Vec<f32> = sums.output().into_iter().map(|x| x as f32).collect();
        let output = ArrayView1::from(&output);
        RowError::new(output, sums.log_denominator(), self.exact).relative(self.goal.target)
    }

    /// Computes the statistics of the whole residual that the always-read `picks` leave.
    pub(super) fn truth(&self, picks: &Picks) -> ResidualTruth {
        let tokens: Vec<u32> = picks.residual().map(|token| token as u32).collect();
        ResidualTruth {
            stats: self.stats(picks, &tokens),
            nu: effective_rank(self.deviations(&tokens)),
        }
    }

    /// Returns the cause of a sample's error, given the statistics `truth` of its residual, which
    /// are known for uniform samples only.
    pub(super) fn cause(
        &self,
        read: &Read,
        error: f64,
        truth: Option<&ResidualTruth>,
    ) -> FailureCause {
        if self.misses_tail(&read.list(), error) {
            return FailureCause::TailSeen;
        }
        let (Some(truth), Some(picks)) = (truth, read.picks()) else {
            return FailureCause::MomentsOrNormal;
        };
        let estimate = self.relative_variance(&self.stats(picks, read.drawn()));
        let low = estimate < self.relative_variance(&truth.stats) / 2.0;
        if low { FailureCause::Moments } else { FailureCause::Normal }
    }

    /// Returns true if the error is less than half when the undrawn tokens that outweigh every
    /// drawn one are read as well, at most [`TAIL_SHARE`] of all undrawn tokens.
    fn misses_tail(&self, list: &List, error: f64) -> bool {
        let mut read = Picks::new(self.row.visible());
        read.take_all(list.indices.iter().map(|&token| token as usize));
        let drawn = list.indices.iter().zip(&list.probabilities).filter(|&(_, &p)| p < 1.0);
        let heaviest =
            drawn.map(|(&token, _)| self.contributions[token as usize]).fold(0.0, f64::max);
        let most = (TAIL_SHARE * (read.visible() - read.len()) as f64).max(1.0) as usize;
        let mut undrawn: Vec<usize> =
            read.residual().filter(|&token| self.contributions[token] > heaviest).collect();
        undrawn.sort_by(|&a, &b| self.contributions[b].total_cmp(&self.contributions[a]));
        let mut sums = self.sums(list);
        for token in undrawn.into_iter().take(most) {
            self.add(token, 1.0, &mut sums);
        }
        self.error(&sums) < error / 2.0
    }

    fn add(&self, token: usize, p: f32, sums: &mut Softmax) {
        let mut value = vec![0.0; self.row.values().dim()];
        self.row.values().copy_row(token, &mut value);
        sums.add(f64::from(self.row.logit(token)), 1.0 / f64::from(p), &value);
    }

    /// Computes `w = e (v − o) / D` of tokens, `[tokens, value_dim]`.
    fn deviations(&self, tokens: &[u32]) -> Array2<f64> {
        let mut value = vec![0.0; self.row.values().dim()];
        let mut w = Array2::zeros((tokens.len(), value.len()));
        for (mut w, &token) in w.rows_mut().into_iter().zip(tokens) {
            self.row.values().copy_row(token as usize, &mut value);
            let weight = weight(&self.row, self.exact, token as usize);
            for ((w, &v), o) in w.iter_mut().zip(&value).zip(&self.exact.output) {
                *w = weight * (f64::from(v) - o);
            }
        }
        w
    }

    /// Computes the statistics of a uniform sample `drawn` from the residual of the always-read
    /// `picks`.
    fn stats(&self, picks: &Picks, drawn: &[u32]) -> SampleStats {
        let rows = [self.row];
        let mut accumulator = ExactAccumulator::new(&rows);
        accumulator.take(picks);
        accumulator.draw(drawn, SampleUse::Uniform);
        accumulator.stats(
            0,
            &Residual {
                n_s: picks.visible() - picks.len(),
                visible: picks.visible(),
                query_heads: self.row.site().shape.query_heads,
                max_norm_v: 0.0,
                bound: None,
            },
        )
    }

    /// Variance of the terms of the target's sum, over the square of the norm that the target's
    /// error is relative to.
    fn relative_variance(&self, stats: &SampleStats) -> f64 {
        match self.goal.target {
            Target::Sdpa => stats.trace_w / stats.norm_n.powi(2),
            Target::Numerator => stats.trace_ev / stats.norm_n.powi(2),
            Target::Denominator => stats.var_e / stats.d.powi(2),
        }
    }
}

/// Attention weight `e / D` of a token.
fn weight(row: &Row<'_>, exact: &Exact, token: usize) -> f64 {
    (f64::from(row.logit(token)) - exact.log_denominator).exp()
}

/// Returns `Tr(S)² / Tr(S²)` of the covariance `S` of rows `[rows, dim]`; 1 if the rows do not
/// vary.
fn effective_rank(mut rows: Array2<f64>) -> f64 {
    let Some(mean) = rows.mean_axis(Axis(0)) else { return 1.0 };
    rows -= &mean;
    let covariance = rows.t().dot(&rows);
    let square = covariance.iter().map(|x| x * x).sum::<f64>();
    if square > 0.0 { covariance.diag().sum().powi(2) / square } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;

    #[test]
    fn the_effective_rank_counts_directions_by_their_variance() {
        let corners = array![[9.0, 1.0, 3.0], [7.0, 1.0, 3.0], [8.0, 2.0, 3.0], [8.0, 0.0, 3.0]];
        assert!((effective_rank(corners) - 2.0).abs() < 1e-12);
        let line = array![[1.0, 2.0], [2.0, 4.0], [5.0, 10.0]];
        assert!((effective_rank(line) - 1.0).abs() < 1e-12);
        assert_eq!(effective_rank(Array2::ones((3, 2))), 1.0);
    }
}
