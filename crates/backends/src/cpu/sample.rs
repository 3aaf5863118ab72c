//! The sample that the readers of one list have drawn.

use std::cell::RefCell;
use std::f64::consts::LN_2;
use std::thread::LocalKey;

use half::{bf16, f16};
use vattention_core::{
    SampleStats, Tokens as Rows,
    sample::{Residual, Sample as Shown},
    step::Softmax,
};

use super::kernel::Span;
use super::look::ShiftedMoments;
use super::readers::{Readers, RowByRow, add};
use super::simd::{CHUNK, Element};
use super::weighed::WeighedSample;

/// Samples whose memory a thread keeps: one, and one of a KV head that it begins while it waits.
const POOLED: usize = 2;

/// Tokens drawn so far. Their values are kept as stored, so that checks of the sample need not
/// fetch them again.
pub(crate) struct Sample<E: Stored> {
    /// Sums of each query head.
    sums: Vec<Softmax>,
    pub(crate) kept: Kept<E>,
    /// Moments at the last check, for each query head.
    moments: Vec<ShiftedMoments>,
    /// The same of a sample whose tokens have weights.
    pub(crate) drawn: Option<WeighedSample>,
}

/// Rows stored for each token.
#[derive(Debug, Default)]
pub(crate) struct Kept<E> {
    pub(crate) rows: RowByRow,
    /// `[b][value_chunks · CHUNK]`
    pub(crate) values: Vec<E>,
    /// Products of the values of four tokens, as far as they were asked for.
    pub(crate) fours: Vec<[f64; 6]>,
}

impl<E: Stored> Kept<E> {
    /// The values, `[b · value_dim]`.
    pub(crate) fn values(&self, readers: &Readers<'_, E>) -> Vec<f32> {
        let stride = readers.rows.value_chunks() * CHUNK;
        let (count, dim) = (self.values.len() / stride, readers.value_dim());
        let rows = Rows::strided(&self.values, count, dim, stride);
        rows.to_array(0..count).into_raw_vec_and_offset().0
    }
}

/// A number type of the cache with memory to keep samples in. Steps use the same memory again:
/// megabytes that the system clears at each use would cost more than the statistics.
pub(crate) trait Stored: Element + vattention_core::step::Element {
    /// This thread's memory that is not in use.
    fn pool() -> &'static LocalKey<RefCell<Vec<Kept<Self>>>>;
}

thread_local! {
    static F32: RefCell<Vec<Kept<f32>>> = const { RefCell::new(Vec::new()) };
    static F16: RefCell<Vec<Kept<f16>>> = const { RefCell::new(Vec::new()) };
    static BF16: RefCell<Vec<Kept<bf16>>> = const { RefCell::new(Vec::new()) };
}

impl Stored for f32 {
    fn pool() -> &'static LocalKey<RefCell<Vec<Kept<Self>>>> {
        &F32
    }
}

impl Stored for f16 {
    fn pool() -> &'static LocalKey<RefCell<Vec<Kept<Self>>>> {
        &F16
    }
}

impl Stored for bf16 {
    fn pool() -> &'static LocalKey<RefCell<Vec<Kept<Self>>>> {
        &BF16
    }
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
