//! Rows read for one token list: partial sums of the output, and a sample to check.

use std::f64::consts::LN_2;
use std::time::{Duration, Instant};

use vattention_core::{
    Picks, SampleStats,
    pipeline::Read,
    sample::{
        Accumulator, RemainingWork, Residual, Sample, SampleUse, TokenWeights, WeighedSample,
        compute_weighed,
    },
    step::Softmax,
};

use super::kernel::TokenSpan;
use super::query_heads::{LogitsAndNorms, QueryHeads, add};
use super::sample::DrawnSample;
use super::sample_rows::SampledElement;
use crate::executor::RowSums;

// Costs on AMD's Zen 5 with AVX-512, for heads of 64 and 128 elements in bf16, somewhat below those
// of one thread: several threads share the memory that limits rows in order. Costs in bytes are the
// number of bytes that are read in order in the same time.

/// Cost of a row of a list, relative to a row read in order.
const LISTED: f64 = 1.6;

/// Cost of a drawn row, whose value is copied for checks, relative to a row read in order.
const GATHERING: f64 = 2.0;

/// Cost in bytes of checking one element of a value for one query head.
const CHECKING: f64 = 1.0;

/// Cost in bytes of checking a token, apart from the elements of its value.
const CHECKING_TOKEN: f64 = 300.0;

/// Cost of a sampler's scan of a token, relative to a row read in order.
const SCANNING: f64 = 0.25;

/// Cost in bytes of a scanned sample, apart from its tokens: query rotations, first searches and
/// reports.
const SAMPLING: f64 = 100_000.0;

/// Expected number of checks per drawn token: some samples grow after the first check.
const CHECKS: f64 = 1.5;

/// Sums over the rows of one token list. Each row is read once for all query heads.
pub(crate) struct CpuAccumulator<'a, E: SampledElement> {
    heads: &'a QueryHeads<'a, E>,
    /// Number of tokens that a dense step would read; `None` if a dense step is ruled out.
    visible: Option<usize>,
    /// Sums over the attention sink and the tokens that are read deterministically, for each query
    /// head.
    certain: Vec<Softmax>,
    /// Number of picks that were read; `None` before they are read.
    taken: Option<usize>,
    /// Logits of the tokens in `certain`, if a selector needs feedback.
    certain_rows: Option<LogitsAndNorms>,
    sample: DrawnSample<E>,
    /// Time spent on reading rows.
    attend: Duration,
}

impl<'a, E: SampledElement> CpuAccumulator<'a, E> {
    /// Creates an accumulator without rows. With `never_dense`, token lists of any length are read;
    /// with `feedback`, logits are stored.
    pub(crate) fn new(
        heads: &'a QueryHeads<'a, E>,
        visible: usize,
        never_dense: bool,
        feedback: bool,
    ) -> Self {
        Self {
            heads,
            visible: (!never_dense).then_some(visible),
            certain: heads.initial_sums(),
            taken: None,
            certain_rows: feedback.then(|| LogitsAndNorms::new(heads.members())),
            sample: DrawnSample::new(heads),
            attend: Duration::ZERO,
        }
    }

    /// Time spent on reading rows so far.
    pub(crate) fn attend(&self) -> Duration {
        self.attend
    }

    /// Reads the remaining tokens of `read`. Returns the sums of each query head, and the time
    /// spent on reading rows.
    pub(crate) fn finish(mut self, read: &Read) -> (Vec<RowSums>, Duration) {
        let begin = Instant::now();
        match read.picks() {
            None => self.read_all(read.len()),
            // The newest token was added to the picks if no token was picked or drawn.
            Some(picks) if self.taken != Some(picks.len()) => {
                self.read_certain(TokenSpan::List(&picks.indices()));
            }
            Some(_) if read.drawn().is_empty() => {}
            Some(_) => match read.probabilities() {
                None => self.weigh_sample(1.0 / f64::from(read.uniform_probability())),
                Some(p) if self.sample.len() == p.len() => {
                    let sums = self.sample.weighted_sums(self.heads, p);
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

    fn read_all(&mut self, visible: usize) {
        self.sample = DrawnSample::new(self.heads);
        self.certain = self.heads.initial_sums();
        let feedback = self.certain_rows.is_some();
        self.certain_rows = feedback.then(|| LogitsAndNorms::new(self.heads.members()));
        self.read_certain(TokenSpan::Range(0, visible));
    }

    /// Reads the deterministic tokens. Their sums replace the sums of earlier calls.
    fn read_certain(&mut self, tokens: TokenSpan<'_>) {
        match &mut self.certain_rows {
            None => {
                self.certain = self.heads.initial_sums();
                add(&mut self.certain, &self.heads.read(tokens, None));
            }
            Some(rows) => self.heads.read_and_record(tokens, None, &mut self.certain, rows),
        }
    }

    /// Reads a sample whose tokens have these inclusion probabilities.
    fn read_weighted(&mut self, tokens: &[u32], probabilities: &[f32]) {
        let log_weights: Vec<f32> = probabilities.iter().map(|p| -p.log2()).collect();
        let (tokens, log_weights) = (TokenSpan::List(tokens), Some(&log_weights[..]));
        match &mut self.certain_rows {
            None => add(&mut self.certain, &self.heads.read(tokens, log_weights)),
            Some(rows) => {
                self.sample = DrawnSample::new(self.heads);
                self.heads.read_and_record(tokens, log_weights, &mut self.certain, rows);
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

    /// Logits of the tokens read in ascending order of tokens, for each query head; empty without
    /// feedback.
    fn logits(&self, read: &Read) -> Vec<Vec<f64>> {
        let Some(rows) = &self.certain_rows else {
            return vec![Vec::new(); self.heads.members()];
        };
        let mut places: Vec<(u32, usize)> =
            read.tokens().into_iter().enumerate().map(|(i, token)| (token, i)).collect();
        places.sort_unstable();
        let sorted_logits = |head: usize| {
            let certain = rows.logits[head].iter();
            let all: Vec<f32> = certain.chain(self.sample.logits(head)).copied().collect();
            places.iter().map(|&(_, i)| f64::from(all[i]) * LN_2).collect()
        };
        (0..self.heads.members()).map(sorted_logits).collect()
    }
}

impl<E: SampledElement> Accumulator for CpuAccumulator<'_, E> {
    fn take(&mut self, picks: &Picks) {
        let begin = Instant::now();
        self.read_certain(TokenSpan::List(&picks.indices()));
        self.taken = Some(picks.len());
        self.attend += begin.elapsed();
    }

    fn draw(&mut self, tokens: &[u32], for_use: SampleUse) {
        let begin = Instant::now();
        match for_use {
            SampleUse::Weighted => self.sample.gather(self.heads, tokens),
            SampleUse::Sums if self.certain_rows.is_none() => {
                self.sample.sum(self.heads, tokens);
            }
            SampleUse::Sums | SampleUse::Uniform => self.sample.draw(self.heads, tokens),
        }
        self.attend += begin.elapsed();
    }

    fn stats(&mut self, member: usize, residual: &Residual) -> SampleStats {
        self.sample.stats(self.heads, &self.certain, member, residual)
    }

    fn sample(
        &mut self,
        member: usize,
        residual: &Residual,
        show: &mut dyn FnMut(&Sample<'_>, f64),
    ) {
        self.sample.show(self.heads, &self.certain[member], member, residual, show);
    }

    fn weighed(
        &mut self,
        residuals: &[Residual],
        weights: &TokenWeights<'_>,
    ) -> Vec<WeighedSample> {
        let Self { heads, certain, sample, .. } = self;
        let weighed = sample.weighed(heads, certain, weights);
        weighed.unwrap_or_else(|| compute_weighed(self, residuals, weights))
    }

    fn dense_from(&self, work: RemainingWork) -> usize {
        let Some(visible) = self.visible else { return usize::MAX };
        let scan = match work {
            RemainingWork::Reading => return dense_from(visible),
            RemainingWork::Checks => 0.0,
            RemainingWork::Scan => {
                SCANNING * visible as f64 + SAMPLING / self.heads.rows.bytes() as f64
            }
        };
        let check = check_cost(self.heads);
        // Drawn tokens were read and checked once, and are expected to be checked again.
        let rechecks = (CHECKS - 1.0) * check * self.sample.len() as f64;
        count_rows(visible as f64 - scan - rechecks, GATHERING + CHECKS * check)
    }
}

/// Cost of one check of a token for all query heads: number of rows that are read in order in the
/// same time.
fn check_cost<E: SampledElement>(heads: &QueryHeads<'_, E>) -> f64 {
    let numbers = (heads.members() * heads.value_dim()) as f64;
    (CHECKING * numbers + CHECKING_TOKEN) / heads.rows.bytes() as f64
}

/// Smallest number of rows of a list that take longer than all `visible` rows read in order.
pub(crate) fn dense_from(visible: usize) -> usize {
    count_rows(visible as f64, LISTED)
}

/// Smallest number of rows at `cost` each that take longer than `rows` rows read in order.
fn count_rows(rows: f64, cost: f64) -> usize {
    (rows.max(0.0) / cost) as usize + 1
}
