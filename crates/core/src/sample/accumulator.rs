//! The part of a machine in sampling: it reads rows, and computes the sample's statistics.

use crate::{
    sample::{Residual, Sample, SampleStats, Stratification, Weighed},
    step::{Picks, Row, Softmax},
};

/// The sums that the readers of one list have so far.
///
/// The sampler decides which tokens are read; an accumulator reads them, each once, and stores what
/// the statistics need. [`ExactAccumulator`] is the definition; a backend has its own, which also
/// sums the attention output.
pub trait Accumulator {
    /// Reads the picked tokens. Called once, before any is drawn.
    fn take(&mut self, picks: &Picks);

    /// Reads tokens drawn from the residual, in draw order.
    fn draw(&mut self, tokens: &[u32], for_use: SampleUse);

    /// The statistics of all tokens drawn so far for reader `reader` of the list, as a uniform
    /// sample.
    fn stats(&mut self, reader: usize, residual: &Residual) -> SampleStats;

    /// Shows all tokens drawn so far as reader `reader` sees them, once, and the logit that their
    /// exponentials are relative to.
    fn sample(
        &mut self,
        reader: usize,
        residual: &Residual,
        show: &mut dyn FnMut(&Sample<'_>, f64),
    );

    /// The statistics of all tokens drawn so far for reader `reader`, drawn with probabilities `p` `[b]`: within
    /// `strata`, or independently of each other.
    fn weighed(
        &mut self,
        reader: usize,
        residual: &Residual,
        p: &[f64],
        strata: Option<&Stratification>,
    ) -> Weighed {
        weighed_by_definition(self, reader, residual, p, strata)
    }

    /// The number of rows left to read from which reading all visible tokens in order is faster; if
    /// `checked`, statistics will be needed after that.
    fn dense_from(&self, checked: bool) -> usize {
        let _ = checked;
        usize::MAX
    }
}

/// Purpose for which drawn tokens are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleUse {
    /// Their sums alone: no statistics will be needed any more.
    Sums,
    /// Sums and statistics of a uniform sample.
    Uniform,
    /// Statistics of a sample whose tokens have weights of their own, which are not known yet.
    Weighted,
}

/// Statistics of a weighed sample by their definition, from the sample that an accumulator shows.
pub fn weighed_by_definition<T: Accumulator + ?Sized>(
    accumulator: &mut T,
    reader: usize,
    residual: &Residual,
    p: &[f64],
    strata: Option<&Stratification>,
) -> Weighed {
    let mut weighed = Weighed::default();
    accumulator.sample(reader, residual, &mut |sample, shift| {
        weighed = Weighed::new(sample, p, strata, shift);
    });
    weighed
}

/// The definition: sums in f64, one token after the other, and statistics recomputed at each check.
#[derive(Debug)]
pub struct ExactAccumulator<'a> {
    rows: &'a [Row<'a>],
    /// Sums over the certain tokens, of each row.
    certain: Vec<Softmax>,
    /// Logits of the drawn tokens, `[rows][b]`.
    logits: Vec<Vec<f64>>,
    /// Values of the drawn tokens, `[b · value_dim]`.
    values: Vec<f32>,
}

impl<'a> ExactAccumulator<'a> {
    /// For rows of one KV head that have read nothing.
    pub fn new(rows: &'a [Row<'a>]) -> Self {
        let dim = rows[0].values().dim();
        Self {
            rows,
            certain: vec![Softmax::new(dim); rows.len()],
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
