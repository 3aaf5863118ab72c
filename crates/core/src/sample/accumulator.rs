//! Accumulators, which read the rows of a sample and compute its statistics.

use crate::{
    sample::{Residual, Sample, SampleStats, TokenWeights, WeighedSample, WeightedTokens},
    step::{Picks, Row, Softmax},
};

/// Sums over the tokens that the query heads of one token list have read so far.
///
/// The sampler decides which tokens are read. An accumulator reads each of them once and stores the
/// sums that the statistics need. [`ExactAccumulator`] is the reference implementation. A backend
/// has its own accumulator, which also computes the attention output. The
/// [attention sink](crate::step::SoftmaxForm) of a query head counts from the beginning, once, like
/// a picked token with the value zero ([`Row::empty_sums`]).
///
/// The argument `reader` is the index of a query head among those that read the list.
pub trait Accumulator {
    /// Reads the picked tokens. It is called once, before any token is drawn.
    fn take(&mut self, picks: &Picks);

    /// Reads tokens drawn from the residual, in draw order.
    fn draw(&mut self, tokens: &[u32], for_use: SampleUse);

    /// Statistics of all tokens drawn so far, as a uniform sample, for one query head.
    fn stats(&mut self, reader: usize, residual: &Residual) -> SampleStats;

    /// Calls `show` once with all tokens drawn so far, as one query head sees them, and the logit
    /// that their exponentials are relative to.
    fn sample(
        &mut self,
        reader: usize,
        residual: &Residual,
        show: &mut dyn FnMut(&Sample<'_>, f64),
    );

    /// Estimates and their variances for each query head, from all tokens drawn so far, which have
    /// these weights. `residuals` has an element for each query head that reads the list.
    fn weighed(
        &mut self,
        residuals: &[Residual],
        weights: &TokenWeights<'_>,
    ) -> Vec<WeighedSample> {
        compute_weighed(self, residuals, weights)
    }

    /// Smallest number of rows still to be read for which reading all visible tokens in order is
    /// faster, if `work` remains for these rows.
    fn dense_from(&self, work: RemainingWork) -> usize {
        let _ = work;
        usize::MAX
    }
}

/// Work that remains for the rows still to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemainingWork {
    /// The rows are read.
    Reading,
    /// The rows are read and checked.
    Checks,
    /// All visible tokens are scanned before the rows are drawn, read and checked.
    Scan,
}

/// Purpose for which drawn tokens are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleUse {
    /// Sums only, because no more statistics will be needed.
    Sums,
    /// Sums and statistics of a uniform sample.
    Uniform,
    /// Statistics of a sample whose tokens have different weights, which are not known yet.
    Weighted,
}

/// Computes estimates and their variances by the reference implementation, from the samples that an
/// accumulator shows. It is the default of [`Accumulator::weighed`].
pub fn compute_weighed<T: Accumulator + ?Sized>(
    accumulator: &mut T,
    residuals: &[Residual],
    weights: &TokenWeights<'_>,
) -> Vec<WeighedSample> {
    let mut samples = Vec::with_capacity(residuals.len());
    for (reader, residual) in residuals.iter().enumerate() {
        accumulator.sample(reader, residual, &mut |sample, shift| {
            let tokens = WeightedTokens::new(sample, weights.p, weights.strata, shift);
            samples.push(WeighedSample::new(&tokens, weights));
        });
    }
    samples
}

/// The reference implementation: it sums in f64, one token after the other, and recomputes the
/// statistics at each check.
#[derive(Debug)]
pub struct ExactAccumulator<'a> {
    rows: &'a [Row<'a>],
    /// Sums over the attention sink and the picked tokens, for each row.
    certain: Vec<Softmax>,
    /// Logits of the drawn tokens, `[rows][b]`.
    logits: Vec<Vec<f64>>,
    /// Values of the drawn tokens, `[b · value_dim]`.
    values: Vec<f32>,
}

impl<'a> ExactAccumulator<'a> {
    /// Creates an accumulator for rows of one KV head, which have not read any token.
    pub fn new(rows: &'a [Row<'a>]) -> Self {
        Self {
            rows,
            certain: rows.iter().map(Row::empty_sums).collect(),
            logits: vec![Vec::new(); rows.len()],
            values: Vec::new(),
        }
    }
}

impl Accumulator for ExactAccumulator<'_> {
    fn take(&mut self, picks: &Picks) {
        let tokens: Vec<usize> = picks.iter().collect();
        let logits: Vec<Vec<f32>> = self.rows.iter().map(|row| row.logits_of(&tokens)).collect();
        let mut value = vec![0.0; self.rows[0].values().dim()];
        for (i, &token) in tokens.iter().enumerate() {
            self.rows[0].values().copy_row(token, &mut value);
            for (logits, certain) in logits.iter().zip(&mut self.certain) {
                certain.add(f64::from(logits[i]), 1.0, &value);
            }
        }
    }

    fn draw(&mut self, tokens: &[u32], _: SampleUse) {
        let tokens: Vec<usize> = tokens.iter().map(|&token| token as usize).collect();
        for (row, logits) in self.rows.iter().zip(&mut self.logits) {
            logits.extend(row.logits_of(&tokens).into_iter().map(f64::from));
        }
        let mut value = vec![0.0; self.rows[0].values().dim()];
        for token in tokens {
            self.rows[0].values().copy_row(token, &mut value);
            self.values.extend_from_slice(&value);
        }
    }

    fn stats(&mut self, reader: usize, residual: &Residual) -> SampleStats {
        let mut stats = None;
        self.sample(reader, residual, &mut |sample, _| stats = Some(SampleStats::new(sample)));
        stats.expect("the sample is shown")
    }

    fn sample(
        &mut self,
        reader: usize,
        residual: &Residual,
        show: &mut dyn FnMut(&Sample<'_>, f64),
    ) {
        let mut sums = self.certain[reader].clone();
        let logits = &self.logits[reader];
        let shift = logits.iter().copied().fold(sums.shift(), f64::max);
        sums.rebase(shift);
        let e: Vec<f64> = logits.iter().map(|logit| (logit - shift).exp()).collect();
        let sample = Sample {
            e: &e,
            values: &self.values,
            certain: &sums,
            n_s: residual.n_s,
            visible: residual.visible,
            query_heads: residual.query_heads,
            max_norm_v: residual.max_norm_v,
            bound: residual.bound.map(|logit| (f64::from(logit) - shift).exp()),
        };
        show(&sample, shift);
    }
}
