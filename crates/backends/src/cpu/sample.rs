//! The sample that the readers of one list have drawn.

use std::f64::consts::LN_2;
use std::ops::RangeInclusive;

use vattention_core::{
    SampleStats,
    sample::{Residual, Sample as Shown, Stratification, Weighed},
    step::{Softmax, largest},
};

use super::kernel::Span;
use super::moments::ShiftedMoments;
use super::readers::{Readers, add};
use super::stored::{SampleRows, Stored};
use super::weighed::{WeighedSample, WithCertain, wide};

/// Samples whose memory a thread keeps: one, and one of a KV head that it begins while it waits.
const POOLED: usize = 2;

/// Lengths of values whose products f32 holds with room for smaller ones beside them.
const FITTING: RangeInclusive<f32> = 1e-12..=1e12;

/// Tokens drawn so far. Their values are kept as stored, so that checks of the sample need not
/// fetch them again.
pub(crate) struct Sample<E: Stored> {
    /// Sums of each query head.
    sums: Vec<Softmax>,
    pub(crate) kept: SampleRows<E>,
    /// Moments at the last check, for each query head.
    moments: Vec<ShiftedMoments>,
    /// The same of a sample whose tokens have weights.
    pub(crate) drawn: Option<WeighedSample>,
}

impl<E: Stored> Sample<E> {
    pub(crate) fn new(readers: &Readers<'_, E>) -> Self {
        let mut kept = E::pool().with_borrow_mut(Vec::pop).unwrap_or_default();
        kept.rows.logits.resize(readers.members(), Vec::new());
        Self { sums: readers.nothing(), kept, moments: Vec::new(), drawn: None }
    }

    /// The sums of each reader, unweighted.
    pub(crate) fn sums(&self) -> &[Softmax] {
        &self.sums
    }

    /// Tokens drawn that can be checked.
    pub(crate) fn len(&self) -> usize {
        self.kept.rows.norms.len()
    }

    /// A reader's logits, in powers of two, in draw order.
    pub(crate) fn logits(&self, reader: usize) -> &[f32] {
        &self.kept.rows.logits[reader]
    }

    /// Reads more tokens.
    pub(crate) fn draw(&mut self, readers: &Readers<'_, E>, tokens: &[u32]) {
        readers.note(Span::List(tokens), None, &mut self.sums, &mut self.kept.rows);
        for &token in tokens {
            self.kept.values.extend_from_slice(readers.rows.value(token as usize));
        }
        self.moments.clear();
        self.drawn = None;
    }

    /// Reads more tokens whose weights are not known yet.
    pub(crate) fn gather(&mut self, readers: &Readers<'_, E>, tokens: &[u32]) {
        readers.gather(tokens, &mut self.kept.rows, &mut self.kept.values);
    }

    /// Reads more tokens, for their sums alone: there can be no check after that.
    pub(crate) fn sum(&mut self, readers: &Readers<'_, E>, tokens: &[u32]) {
        add(&mut self.sums, &readers.read(Span::List(tokens), None));
    }

    /// Shows the sample to a query head whose certain tokens sum to `certain`, in f64.
    pub(crate) fn show(
        &self,
        readers: &Readers<'_, E>,
        certain: &Softmax,
        reader: usize,
        residual: &Residual,
        show: &mut dyn FnMut(&Shown<'_>, f64),
    ) {
        let logits = &self.kept.rows.logits[reader];
        let largest = logits.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(f64::from(b) * LN_2));
        let mut certain = certain.clone();
        let shift = certain.shift().max(largest);
        certain.rebase(shift);
        let e: Vec<f64> =
            logits.iter().map(|&logit| (f64::from(logit) * LN_2 - shift).exp()).collect();
        let sample = Shown {
            e: &e,
            values: &self.kept.values(readers),
            certain: &certain,
            n_s: residual.n_s,
            visible: residual.visible,
            query_heads: residual.query_heads,
            max_norm_v: residual.max_norm_v,
            bound: residual.bound.map(|logit| (f64::from(logit) - shift).exp()),
        };
        show(&sample, shift);
    }

    /// Statistics for a query head whose certain tokens sum to `certain[reader]`.
    pub(crate) fn stats(
        &mut self,
        readers: &Readers<'_, E>,
        certain: &[Softmax],
        reader: usize,
        residual: &Residual,
    ) -> SampleStats {
        if self.moments.is_empty() {
            self.moments =
                ShiftedMoments::all(readers, certain, &self.sums, &self.kept, residual.n_s);
        }
        self.moments[reader].stats(self.len(), residual)
    }

    /// The sums of each reader, weighed by the probabilities `p` `[b]` of the tokens that were drawn and kept.
    pub(crate) fn weighed_sums(&mut self, readers: &Readers<'_, E>, p: &[f32]) -> Vec<Softmax> {
        let is_of = |drawn: &WeighedSample| {
            drawn.p.len() == p.len() && drawn.p.iter().zip(p).all(|(&a, &b)| a as f32 == b)
        };
        let drawn = self.drawn.take().filter(is_of).unwrap_or_else(|| {
            let p: Vec<f64> = p.iter().map(|&p| f64::from(p)).collect();
            WeighedSample::new(readers, &self.kept, &p)
        });
        drawn.readers.into_iter().map(|of_reader| of_reader.sums).collect()
    }

    /// Estimates for a query head whose certain tokens sum to `certain[reader]`, if tokens were drawn
    /// with probabilities `p` `[b]`, within `strata` if there are any; `None` if f32 does not hold
    /// products of the values.
    pub(crate) fn weighed(
        &mut self,
        readers: &Readers<'_, E>,
        certain: &[Softmax],
        reader: usize,
        p: &[f64],
        strata: Option<&Stratification>,
    ) -> Option<Weighed> {
        let kept = &mut self.kept;
        if self.drawn.as_ref().is_none_or(|drawn| drawn.p != p) {
            if !FITTING.contains(&largest(&kept.rows.norms)) {
                return None;
            }
            kept.multiply(readers);
            let mut drawn = WeighedSample::new(readers, kept, p);
            drawn.multiply(readers, kept, certain);
            self.drawn = Some(drawn);
        }
        let all_drawn = self.drawn.as_ref().expect("it was made");
        let WeighedSample { norms, fours, readers: of_readers, .. } = all_drawn;
        let drawn = &of_readers[reader];
        let WithCertain { certain, all, by_out } = drawn.all.as_ref().expect("it was multiplied");
        let shift = certain.shift();
        let scale = (drawn.sums.shift() - shift).exp();
        let within =
            strata.map(|strata| kept.within(readers, strata, &drawn.e, scale, &all.output()));
        let e = wide(&drawn.e, scale);
        Some(Weighed {
            by_out: by_out.clone(),
            fours: fours.clone(),
            within,
            ..Weighed::of_sums(shift, certain, all, e, norms.clone())
        })
    }
}

impl<E: Stored> Drop for Sample<E> {
    fn drop(&mut self) {
        let mut kept = std::mem::take(&mut self.kept);
        kept.values.clear();
        kept.fours.clear();
        kept.rows.norms.clear();
        kept.rows.logits.iter_mut().for_each(Vec::clear);
        E::pool().with_borrow_mut(|pool| {
            if pool.len() < POOLED {
                pool.push(kept);
            }
        });
    }
}
