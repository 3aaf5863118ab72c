//! The sample that the readers of one list have drawn, and its statistics.

use std::f64::consts::LOG2_E;

use vattention_core::{
    Deviations, Moments, Residual, SampleStats, mean_of_lagged_squares, scale_up,
};

use super::kernel::{Centre, Span, Spread, Tokens, exp2, lagged_squares, scores, spread};
use super::readers::{Readers, RowByRow, Sums, add, vectors};
use super::simd::{CHUNK, Element};
use crate::cache::Chunks;

/// Tokens drawn so far. Their values are kept as stored, so that looks at the sample need not
/// fetch them again.
pub(crate) struct Sample<E> {
    /// Of each reader.
    sums: Vec<Sums>,
    rows: RowByRow,
    /// `[b][value_chunks · CHUNK]`
    values: Vec<E>,
    /// What was made of all that at the last look, for each reader.
    look: Vec<Look>,
}

/// One reader's look at the sample.
struct Look {
    /// What the exponentials are relative to.
    shift: f64,
    moments: Moments,
}

/// What a reader's sums come to.
struct Estimate {
    shift: f64,
    /// The certain part, and the sample's, relative to the shift.
    certain: Sums,
    sample: Sums,
    /// `D^`, `N^` and their ratio.
    d: f64,
    n: Vec<f64>,
    out: Vec<f32>,
    /// The mean of `w = e (v − out)`.
    mean_w: Vec<f32>,
}

impl<E: Element> Sample<E> {
    pub(crate) fn new(readers: &Readers<'_, E>) -> Self {
        Self {
            sums: readers.nothing(),
            rows: RowByRow::default(),
            values: Vec::new(),
            look: Vec::new(),
        }
    }

    /// The sums of each reader, unweighted.
    pub(crate) fn sums(&self) -> &[Sums] {
        &self.sums
    }

    /// A reader's logits, in powers of two, in draw order.
    pub(crate) fn logits(&self, reader: usize) -> &[f32] {
        self.rows.logits.get(reader).map_or(&[], Vec::as_slice)
    }

    fn len(&self) -> usize {
        self.rows.norms.len()
    }

    /// Reads more tokens.
    pub(crate) fn draw(&mut self, readers: &Readers<'_, E>, tokens: &[u32]) {
        readers.note(tokens, &mut self.sums, &mut self.rows);
        for &token in tokens {
            self.values.extend_from_slice(readers.rows.value(token as usize));
        }
        self.look.clear();
    }

    /// Reads more tokens, for their sums alone: there can be no look after that.
    pub(crate) fn sum(&mut self, readers: &Readers<'_, E>, tokens: &[u32]) {
        add(&mut self.sums, &readers.read(Span::List(tokens), None, false));
    }

    /// What the sample says to a reader whose certain tokens come to `certain[reader]`.
    pub(crate) fn stats(
        &mut self,
        readers: &Readers<'_, E>,
        certain: &[Sums],
        reader: usize,
        residual: &Residual,
    ) -> SampleStats {
        if self.look.is_empty() {
            self.look = self.look(readers, certain, residual.n_s);
        }
        let Look { shift, moments } = &self.look[reader];
        let bound = residual.bound.map(|logit| (f64::from(logit) - shift).exp());
        let Residual { n_s, visible, max_norm_v, .. } = *residual;
        let residual = Residual { n_s, visible, max_norm_v, bound };
        SampleStats::from_moments(self.len(), moments, &residual)
    }

    fn look(&self, readers: &Readers<'_, E>, certain: &[Sums], n_s: usize) -> Vec<Look> {
        let b = self.len();
        let estimates: Vec<Estimate> = certain
            .iter()
            .zip(&self.sums)
            .map(|(certain, sample)| Estimate::new(certain, sample, b, n_s))
            .collect();
        let products = self.products(readers, &estimates);
        let count = estimates.len();
        let look = |(reader, estimate): (usize, &Estimate)| {
            let column = |i: usize| &products[i * b..][..b];
            let (by_out, by_mean) = (column(reader), column(count + reader));
            let moments = self.moments(readers, reader, estimate, by_out, by_mean, n_s);
            Look { shift: estimate.shift, moments }
        };
        estimates.iter().enumerate().map(look).collect()
    }

    /// The values times each reader's output, then times each reader's mean: `[2 · readers][b]`,
    /// and more.
    fn products(&self, readers: &Readers<'_, E>, estimates: &[Estimate]) -> Vec<f32> {
        let (dim, chunks) = (readers.value_dim(), readers.rows.value_chunks());
        let outs = estimates.iter().flat_map(|estimate| &estimate.out);
        let means = estimates.iter().flat_map(|estimate| &estimate.mean_w);
        let factors: Vec<f32> = outs.chain(means).copied().collect();
        let factors = vectors::<E>(&factors, dim, 1.0, 4, chunks);
        let columns = (2 * estimates.len()).next_multiple_of(4);
        let mut products = vec![0.0; self.len() * columns];
        let rows = Chunks {
            chunks: &[&self.values],
            log2_per_chunk: usize::BITS - 1,
            stride: chunks * CHUNK,
            value_offset: chunks * CHUNK,
            len: self.len(),
        };
        scores(readers.level, &rows, &factors, &mut products);
        products
    }

    fn moments(
        &self,
        readers: &Readers<'_, E>,
        reader: usize,
        estimate: &Estimate,
        by_out: &[f32],
        by_mean: &[f32],
        n_s: usize,
    ) -> Moments {
        let b = self.len();
        let mut e = Vec::new();
        exp2(readers.level, self.logits(reader), (estimate.shift * LOG2_E) as f32, &mut e);
        let norms = &self.rows.norms;
        let longest = norms.iter().copied().fold(f32::MIN_POSITIVE, f32::max);
        let unit = 1.0 / (f64::from(longest) * f64::from(longest));
        let from = Centre {
            mean_e: (estimate.sample.softmax.denominator() / b as f64) as f32,
            out_squared: squared(&estimate.out) as f32,
            out_mean: dot(&estimate.out, &estimate.mean_w) as f32,
            mean_squared: squared(&estimate.mean_w) as f32,
            unit: unit as f32,
        };
        let tokens = Tokens { e: &e, norms, by_out, by_mean };
        let Spread { e: of_e, w, ev_squares } = spread(readers.level, &tokens, &from);
        let ev_squares = ev_squares / unit;
        let w = Deviations { squares: w.squares / unit, fourths: w.fourths / (unit * unit) };
        let sum_ev_squared: f64 = estimate.sample.softmax.numerator().iter().map(|n| n * n).sum();
        let centre =
            vectors::<E>(&estimate.out, readers.value_dim(), 1.0, 1, readers.rows.value_chunks());
        let lagged = lagged_squares(readers.level, &e, &self.values, &centre);
        Moments {
            value_dim: readers.value_dim(),
            d: estimate.d,
            d_certain: estimate.certain.softmax.denominator(),
            norm_n_squared: estimate.n.iter().map(|n| n * n).sum(),
            e: of_e,
            ev_squares: (ev_squares - sum_ev_squared / b as f64).max(0.0),
            w,
            trace_of_square: mean_of_lagged_squares(b / 2, lagged),
            sum_e_norm_v: estimate.certain.norms + scale_up(b, n_s) * estimate.sample.norms,
        }
    }
}

impl Estimate {
    fn new(certain: &Sums, sample: &Sums, b: usize, n_s: usize) -> Self {
        let (mut certain, mut sample) = (certain.clone(), sample.clone());
        let shift = certain.softmax.shift().max(sample.softmax.shift());
        certain.rebase(shift);
        sample.rebase(shift);
        let scale = scale_up(b, n_s);
        let d = certain.softmax.denominator() + scale * sample.softmax.denominator();
        let both = certain.softmax.numerator().iter().zip(sample.softmax.numerator());
        let n: Vec<f64> = both.map(|(certain, sample)| certain + scale * sample).collect();
        let out: Vec<f64> = n.iter().map(|n| n / d).collect();
        let mean = |(ev, out): (&f64, &f64)| (ev - out * sample.softmax.denominator()) / b as f64;
        let mean_w = sample.softmax.numerator().iter().zip(&out).map(mean);
        let mean_w = mean_w.map(|x| x as f32).collect();
        let out = out.iter().map(|&x| x as f32).collect();
        Self { shift, certain, sample, d, n, out, mean_w }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

fn squared(a: &[f32]) -> f64 {
    dot(a, a)
}
