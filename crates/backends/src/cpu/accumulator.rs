//! Rows that the query heads of one list have read: partial sums of the output, and a sample to check.

use std::f64::consts::LN_2;
use std::time::{Duration, Instant};

use vattention_core::{
    Picks, SampleStats,
    pipeline::Read,
    sample::{
        Accumulator, Residual, Sample as Shown, SampleUse, Stratification, Weighed,
        weighed_by_definition,
    },
    step::Softmax,
};

use super::kernel::Span;
use super::readers::{Readers, RowByRow, add};
use super::sample::Sample;
use super::stored::Stored;
use crate::executor::RowSums;

/// A list that is read by gathering costs, row for row, this much more than reading everything
/// in order.
const GATHERING: f64 = 1.6;

/// Bytes that are read in order in the time that one query head takes to check one number of a value.
const CHECKING: f64 = 3.5;

/// Expected number of checks per drawn token; the first budget estimate is usually revised once.
const CHECKS: f64 = 2.0;

/// Reads each row once; sums for all readers at a time.
pub(crate) struct CpuAccumulator<'a, E: Stored> {
    readers: &'a Readers<'a, E>,
    /// The tokens that reading everything would read; none if it is out of the question.
    visible: Option<usize>,
    certain: Vec<Softmax>,
    /// Number of picks when they were read; `None` before.
    taken: Option<usize>,
    /// Logits of each certain token, if they will be asked for.
    certain_rows: Option<RowByRow>,
    sample: Sample<E>,
    /// Spent on reading rows.
    attend: Duration,
}

impl<'a, E: Stored> CpuAccumulator<'a, E> {
    /// Nothing read. With `literal`, no list is too long; with `feedback`, logits are kept.
    pub(crate) fn new(
        readers: &'a Readers<'a, E>,
        visible: usize,
        literal: bool,
        feedback: bool,
    ) -> Self {
        Self {
            readers,
            visible: (!literal).then_some(visible),
            certain: readers.nothing(),
            taken: None,
            certain_rows: feedback.then(|| RowByRow::new(readers.members())),
            sample: Sample::new(readers),
            attend: Duration::ZERO,
        }
    }

    /// Spent on reading rows so far.
    pub(crate) fn attend(&self) -> Duration {
        self.attend
    }

    /// Reads what has not been read, and sums up for each reader; also the time spent on rows.
    pub(crate) fn finish(mut self, read: &Read) -> (Vec<RowSums>, Duration) {
        let begin = Instant::now();
        match read.picks() {
            None => self.read_everything(read.len()),
            // If nothing was picked or drawn, the newest token is added to the picks at the end.
            Some(picks) if self.taken != Some(picks.len()) => {
                self.read_certain(Span::List(&picks.indices()));
            }
            Some(_) if read.drawn().is_empty() => {}
            Some(_) => match read.probabilities() {
                None => self.weigh_sample(1.0 / f64::from(read.uniform_probability())),
                Some(p) if self.sample.len() == p.len() => {
                    let sums = self.sample.weighed_sums(self.readers, p);
                    add(&mut self.certain, &sums);
                }
                Some(p) => self.read_weighted(read.drawn(), p),
            },
        }
        let logits = self.logits(read);
        let rows = self.certain.into_iter().zip(logits);
        let rows = rows.map(|(sums, logits)| RowSums { sums, logits }).collect();
        (rows, self.attend + begin.elapsed())
    }

    fn read_everything(&mut self, visible: usize) {
        self.sample = Sample::new(self.readers);
        self.certain = self.readers.nothing();
        let feedback = self.certain_rows.is_some();
        self.certain_rows = feedback.then(|| RowByRow::new(self.readers.members()));
        self.read_certain(Span::Range(0, visible));
    }

    /// Reads what is not of the sample; nothing of it has been read.
    fn read_certain(&mut self, tokens: Span<'_>) {
        match &mut self.certain_rows {
            None => self.certain = self.readers.read(tokens, None),
            Some(rows) => self.readers.note(tokens, None, &mut self.certain, rows),
        }
    }

    /// Reads a sample of which each token has a weight of its own, now that it is known.
    fn read_weighted(&mut self, tokens: &[u32], probabilities: &[f32]) {
        let log_weights: Vec<f32> = probabilities.iter().map(|p| -p.log2()).collect();
        let (tokens, log_weights) = (Span::List(tokens), Some(&log_weights[..]));
        match &mut self.certain_rows {
            None => add(&mut self.certain, &self.readers.read(tokens, log_weights)),
            Some(rows) => {
                self.sample = Sample::new(self.readers);
                self.readers.note(tokens, log_weights, &mut self.certain, rows);
            }
        }
    }

    fn weigh_sample(&mut self, weight: f64) {
        let mut sample = self.sample.sums().to_vec();
        for sums in &mut sample {
            sums.scale(weight);
        }
        add(&mut self.certain, &sample);
    }

    /// Each reader's logits of the tokens read, ascending; none if they were not kept.
    fn logits(&self, read: &Read) -> Vec<Vec<f64>> {
        let Some(rows) = &self.certain_rows else {
            return vec![Vec::new(); self.readers.members()];
        };
        let mut places: Vec<(u32, usize)> =
            read.tokens().into_iter().enumerate().map(|(i, token)| (token, i)).collect();
        places.sort_unstable();
        let of_reader = |reader: usize| {
            let certain = rows.logits[reader].iter();
            let all: Vec<f32> = certain.chain(self.sample.logits(reader)).copied().collect();
            places.iter().map(|&(_, i)| f64::from(all[i]) * LN_2).collect()
        };
        (0..self.readers.members()).map(of_reader).collect()
    }
}

impl<E: Stored> Accumulator for CpuAccumulator<'_, E> {
    fn take(&mut self, picks: &Picks) {
        let begin = Instant::now();
        self.read_certain(Span::List(&picks.indices()));
        self.taken = Some(picks.len());
        self.attend += begin.elapsed();
    }

    fn draw(&mut self, tokens: &[u32], for_use: SampleUse) {
        let begin = Instant::now();
        match for_use {
            SampleUse::Weighted => self.sample.gather(self.readers, tokens),
            SampleUse::Sums if self.certain_rows.is_none() => {
                self.sample.sum(self.readers, tokens);
            }
            SampleUse::Sums | SampleUse::Uniform => self.sample.draw(self.readers, tokens),
        }
        self.attend += begin.elapsed();
    }

    fn stats(&mut self, reader: usize, residual: &Residual) -> SampleStats {
        self.sample.stats(self.readers, &self.certain, reader, residual)
    }

    fn sample(
        &mut self,
        reader: usize,
        residual: &Residual,
        show: &mut dyn FnMut(&Shown<'_>, f64),
    ) {
        self.sample.show(self.readers, &self.certain[reader], reader, residual, show);
    }

    fn weighed(
        &mut self,
        reader: usize,
        residual: &Residual,
        p: &[f64],
        strata: Option<&Stratification>,
    ) -> Weighed {
        let weighed = self.sample.weighed(self.readers, &self.certain, reader, p, strata);
        weighed.unwrap_or_else(|| weighed_by_definition(self, reader, residual, p, strata))
    }

    fn dense_from(&self, checked: bool) -> usize {
        let Some(visible) = self.visible else { return usize::MAX };
        if !checked {
            return dense_from(visible);
        }
        let check = check_cost(self.readers);
        // Drawn tokens have been checked once.
        let again = (CHECKS - 1.0) * check * self.sample.len() as f64;
        rows_worth(visible as f64 - again, GATHERING + CHECKS * check)
    }
}

/// Cost of one check of a token for all query heads, in rows read in order.
fn check_cost<E: Stored>(readers: &Readers<'_, E>) -> f64 {
    let numbers = (readers.members() * readers.value_dim()) as f64;
    CHECKING * numbers / readers.rows.bytes() as f64
}

/// Number of rows of lists that take as long as all `visible` ones in order.
pub(crate) fn dense_from(visible: usize) -> usize {
    rows_worth(visible as f64, GATHERING)
}

/// Number of rows, each as slow as `cost` rows in order, that take as long as `rows` in order.
fn rows_worth(rows: f64, cost: f64) -> usize {
    (rows.max(0.0) / cost) as usize + 1
}
