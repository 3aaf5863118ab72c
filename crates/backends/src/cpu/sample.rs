//! The sample drawn for the query heads of one token list.

use std::f64::consts::LN_2;
use std::ops::RangeInclusive;

use vattention_core::{
    SampleStats,
    sample::{Residual, Sample, TokenWeights, WeighedSample},
    step::{Softmax, largest},
};

use super::kernel::TokenSpan;
use super::moments::ShiftedMoments;
use super::query_heads::{QueryHeads, add};
use super::sample_rows::{PooledElement, SampleRows, SampledElement};
use super::simd::CHUNK;
use super::weighted::WeightedSums;

/// Number of samples whose memory a thread keeps. A thread that waits for parallel work can begin
/// another KV head, so that two samples are in use.
const POOLED: usize = 2;

/// Range of the largest norm of the values within which f32 can represent the products of values,
/// shorter ones included.
const FITTING: RangeInclusive<f32> = 1e-12..=1e12;

/// Tokens drawn so far. Copies of their values are stored, so that checks of the sample read them
/// in order.
pub(crate) struct DrawnSample<E: SampledElement> {
    /// Sums of each query head.
    sums: Vec<Softmax>,
    pub(crate) stored: SampleRows<E::Sample>,
    /// Moments at the last check, for each query head; empty after a draw.
    moments: Vec<ShiftedMoments>,
    /// Sums at the last check, if the tokens have weights.
    weighted: Option<WeightedSums>,
}

impl<E: SampledElement> DrawnSample<E> {
    pub(crate) fn new(heads: &QueryHeads<'_, E>) -> Self {
        let mut stored = E::Sample::pool().with_borrow_mut(Vec::pop).unwrap_or_default();
        stored.rows.logits.resize(heads.members(), Vec::new());
        Self { sums: heads.empty_sums(), stored, moments: Vec::new(), weighted: None }
    }

    /// Unweighted sums of each query head.
    pub(crate) fn sums(&self) -> &[Softmax] {
        &self.sums
    }

    /// Number of drawn tokens whose rows are stored.
    pub(crate) fn len(&self) -> usize {
        self.stored.rows.logits[0].len()
    }

    /// Logits of a query head in base 2, in draw order.
    pub(crate) fn logits(&self, member: usize) -> &[f32] {
        &self.stored.rows.logits[member]
    }

    /// Reads more tokens of weight 1.
    pub(crate) fn draw(&mut self, heads: &QueryHeads<'_, E>, tokens: &[u32]) {
        heads.read_and_record(TokenSpan::List(tokens), None, &mut self.sums, &mut self.stored.rows);
        let (values, stride) = (&mut self.stored.values, heads.rows.value_chunks() * CHUNK);
        let before = values.len();
        values.resize(before + tokens.len() * stride, E::Sample::default());
        let copies = values[before..].chunks_exact_mut(stride);
        for (&token, copy) in tokens.iter().zip(copies) {
            heads.rows.copy_value(token as usize, copy);
        }
        self.moments.clear();
        self.weighted = None;
    }

    /// Reads more tokens whose weights are given later.
    pub(crate) fn gather(&mut self, heads: &QueryHeads<'_, E>, tokens: &[u32]) {
        heads.gather(tokens, &mut self.stored.rows, &mut self.stored.values);
    }

    /// Adds more tokens to the sums without storing their rows, so that the sample can no longer be
    /// checked.
    pub(crate) fn sum(&mut self, heads: &QueryHeads<'_, E>, tokens: &[u32]) {
        add(&mut self.sums, &heads.read(TokenSpan::List(tokens), None));
    }

    /// Calls `show` with the sample of a query head in f64, and the logit that its exponentials are
    /// relative to. `certain` are the head's sums over deterministic tokens.
    pub(crate) fn show(
        &self,
        heads: &QueryHeads<'_, E>,
        certain: &Softmax,
        member: usize,
        residual: &Residual,
        show: &mut dyn FnMut(&Sample<'_>, f64),
    ) {
        let logits = &self.stored.rows.logits[member];
        let largest = logits.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(f64::from(b) * LN_2));
        let mut certain = certain.clone();
        let shift = certain.shift().max(largest);
        certain.rebase(shift);
        let e: Vec<f64> =
            logits.iter().map(|&logit| (f64::from(logit) * LN_2 - shift).exp()).collect();
        let sample = Sample {
            e: &e,
            values: &self.stored.values(heads),
            certain: &certain,
            n_s: residual.n_s,
            visible: residual.visible,
            query_heads: residual.query_heads,
            max_norm_v: residual.max_norm_v,
            bound: residual.bound.map(|logit| (f64::from(logit) - shift).exp()),
        };
        show(&sample, shift);
    }

    /// Statistics for the query head `member`. `certain` are sums over deterministic tokens.
    pub(crate) fn stats(
        &mut self,
        heads: &QueryHeads<'_, E>,
        certain: &[Softmax],
        member: usize,
        residual: &Residual,
    ) -> SampleStats {
        if self.moments.is_empty() {
            self.moments =
                ShiftedMoments::compute_all(heads, certain, &self.sums, &self.stored, residual.n_s);
        }
        self.moments[member].stats(self.len(), residual)
    }

    /// Sums of each query head over the stored rows, weighted by `1 / p` with the inclusion
    /// probabilities `p` `[b]`.
    pub(crate) fn weighted_sums(&mut self, heads: &QueryHeads<'_, E>, p: &[f32]) -> Vec<Softmax> {
        let has_probabilities = |weighted: &WeightedSums| {
            weighted.p.len() == p.len() && weighted.p.iter().zip(p).all(|(&a, &b)| a as f32 == b)
        };
        let weighted = self.weighted.take().filter(has_probabilities).unwrap_or_else(|| {
            let p: Vec<f64> = p.iter().map(|&p| f64::from(p)).collect();
            WeightedSums::new(heads, &self.stored, &p).0
        });
        weighted.heads
    }

    /// Estimates and their variances for each query head, from tokens with these weights.
    /// `certain` are sums over deterministic tokens. `None` if f32 is not precise enough.
    pub(crate) fn weighed(
        &mut self,
        heads: &QueryHeads<'_, E>,
        certain: &[Softmax],
        weights: &TokenWeights<'_>,
    ) -> Option<Vec<WeighedSample>> {
        self.stored.multiply(heads);
        if !FITTING.contains(&largest(&self.stored.rows.norms)) {
            return None;
        }
        let (weighted, samples) = self.stored.weigh(heads, certain, weights)?;
        self.weighted = Some(weighted);
        Some(samples)
    }
}

impl<E: SampledElement> Drop for DrawnSample<E> {
    fn drop(&mut self) {
        let mut stored = std::mem::take(&mut self.stored);
        stored.values.clear();
        stored.fours.clear();
        stored.rows.norms.clear();
        stored.rows.logits.iter_mut().for_each(Vec::clear);
        E::Sample::pool().with_borrow_mut(|pool| {
            if pool.len() < POOLED {
                pool.push(stored);
            }
        });
    }
}
