//! A sample whose tokens weigh `1 / π`: its sums, and the products that its moments follow from.

use std::f64::consts::LN_2;
use std::ops::Range;
use std::rc::Rc;

use vattention_core::{
    sample::{Centre, Stratification, Weighed, Within},
    step::{Softmax, largest},
};

use super::kernel::{exp2, fours, products, weigh};
use super::readers::{Readers, vectors};
use super::simd::{CHUNK, from_lanes};
use super::stored::{SampleRows, Stored};

/// Readers whose sums are made together.
const TOGETHER: usize = 4;

/// Weighted sums over a sample for all query heads, with given probabilities.
#[derive(Debug)]
pub(crate) struct WeighedSample {
    /// Probability of each token, `[b]`.
    pub(super) p: Vec<f64>,
    /// Lengths of values, `[b]`, and products of four, as far as they were asked for.
    pub(super) norms: Rc<[f64]>,
    pub(super) fours: Rc<[[f64; 6]]>,
    pub(super) readers: Vec<WeighedReader>,
}

/// Sums over the sample of one reader.
#[derive(Debug)]
pub(super) struct WeighedReader {
    /// `e`, relative to the shift of the sums, `[b]`.
    pub(super) e: Vec<f32>,
    /// Weighed.
    pub(super) sums: Softmax,
    /// Beside the certain tokens; absent until it is asked for.
    pub(super) all: Option<WithCertain>,
}

/// A reader's sample beside its certain tokens.
#[derive(Debug)]
pub(super) struct WithCertain {
    /// Sums over the certain tokens, and over all, relative to one shift.
    pub(super) certain: Softmax,
    pub(super) all: Softmax,
    /// Values times the output of all, `[b]`.
    pub(super) by_out: Vec<f64>,
}

impl WeighedSample {
    pub(super) fn new<E: Stored>(
        readers: &Readers<'_, E>,
        kept: &SampleRows<E>,
        p: &[f64],
    ) -> Self {
        let weights: Vec<f32> = p.iter().map(|&p| 1.0 / p as f32).collect();
        let of_readers = kept.rows.logits.chunks(TOGETHER);
        let of_readers =
            of_readers.flat_map(|logits| WeighedReader::together(readers, kept, logits, &weights));
        let (norms, fours) = (wide(&kept.rows.norms, 1.0).into(), Rc::default());
        Self { p: p.to_vec(), norms, fours, readers: of_readers.collect() }
    }

    /// Multiplies the values with each reader's output.
    pub(super) fn multiply<E: Stored>(
        &mut self,
        readers: &Readers<'_, E>,
        kept: &SampleRows<E>,
        certain: &[Softmax],
    ) {
        self.fours = kept.fours[..].into();
        let mut sums = Vec::with_capacity(self.readers.len());
        let mut outs = Vec::with_capacity(self.readers.len() * readers.value_dim());
        for (drawn, certain) in self.readers.iter().zip(certain) {
            let mut certain = certain.clone();
            certain.rebase(certain.shift().max(drawn.sums.shift()));
            let mut all = certain.clone();
            all.merge(&drawn.sums);
            outs.extend(all.output().into_iter().map(|x| x as f32));
            sums.push((certain, all));
        }
        let chunks = readers.rows.value_chunks();
        let outs = vectors::<E>(&outs, readers.value_dim(), 1.0, 1, chunks);
        let products = products(readers.level, &kept.values, chunks * CHUNK, &outs);
        let products = products.chunks(self.p.len().max(1));
        for ((drawn, (certain, all)), by_out) in self.readers.iter_mut().zip(sums).zip(products) {
            drawn.all = Some(WithCertain { certain, all, by_out: wide(by_out, 1.0) });
        }
    }
}

impl WeighedReader {
    /// For up to [`TOGETHER`] query heads with `logits` in powers of two, `[b]`, of tokens that weigh `weights` `[b]`.
    fn together<E: Stored>(
        readers: &Readers<'_, E>,
        kept: &SampleRows<E>,
        logits: &[Vec<f32>],
        weights: &[f32],
    ) -> Vec<Self> {
        let shifts: Vec<f32> = logits.iter().map(|logits| largest(logits)).collect();
        let e = logits.iter().zip(&shifts).map(|(logits, &shift)| {
            let mut e = Vec::new();
            exp2(readers.level, logits, shift, &mut e);
            e
        });
        let e: Vec<Vec<f32>> = e.collect();
        let times = |e: &Vec<f32>| e.iter().zip(weights).map(|(e, weight)| e * weight).collect();
        let weights: Vec<Vec<f32>> = e.iter().map(times).collect();
        let (stride, dim) = (readers.rows.value_chunks() * CHUNK, readers.value_dim());
        let (level, values) = (readers.level, &kept.values[..]);
        let numerators: Vec<Vec<f64>> = match &weights[..] {
            [a] => weigh(level, values, stride, [a]).into(),
            [a, b] => weigh(level, values, stride, [a, b]).into(),
            [a, b, c] => weigh(level, values, stride, [a, b, c]).into(),
            [a, b, c, d] => weigh(level, values, stride, [a, b, c, d]).into(),
            _ => unreachable!("at most {TOGETHER}"),
        };
        let readers = e.into_iter().zip(&shifts).zip(weights.iter().zip(numerators));
        let sums = readers.map(|((e, &shift), (weights, lanes))| {
            let mut numerator = vec![0.0; dim];
            from_lanes::<E>(&lanes, &mut numerator);
            let shift = if e.is_empty() { f64::NEG_INFINITY } else { f64::from(shift) * LN_2 };
            let sums = Softmax::from_sums(shift, sum(weights), numerator);
            Self { e, sums, all: None }
        });
        sums.collect()
    }
}

/// Numbers that are summed side by side: one after the other, each would wait for the one before.
const SIDE_BY_SIDE: usize = 16;

/// The sum of numbers, in f64.
fn sum(numbers: &[f32]) -> f64 {
    let mut sums = [0.0; SIDE_BY_SIDE];
    let (whole, rest) = numbers.as_chunks::<SIDE_BY_SIDE>();
    for numbers in whole {
        for (sum, &x) in sums.iter_mut().zip(numbers) {
            *sum += f64::from(x);
        }
    }
    sums.into_iter().chain(rest.iter().map(|&x| f64::from(x))).sum()
}

pub(super) fn wide(numbers: &[f32], unit: f64) -> Vec<f64> {
    numbers.iter().map(|&x| unit * f64::from(x)).collect()
}

/// Runs of neighbouring tokens of one stratum.
fn runs(of: &[usize]) -> impl Iterator<Item = Range<usize>> {
    let mut end = 0;
    of.chunk_by(|a, b| a == b).map(move |run| {
        end += run.len();
        end - run.len()..end
    })
}

impl<E: Stored> SampleRows<E> {
    /// Multiplies the values that have come since the last time, four by four.
    pub(super) fn multiply(&mut self, readers: &Readers<'_, E>) {
        let stride = readers.rows.value_chunks() * CHUNK;
        let whole = self.rows.norms.len() / Weighed::FOUR * Weighed::FOUR;
        let new = Weighed::FOUR * self.fours.len() * stride..whole * stride;
        let new = fours(readers.level, &self.values[new], stride);
        self.fours.extend(new.iter().map(|four| four.map(f64::from)));
    }

    /// Products of the tokens with the centres of the strata that they were drawn within: `e` are
    /// theirs, relative to something of which `scale` is the exponential.
    pub(super) fn within(
        &self,
        readers: &Readers<'_, E>,
        strata: &Stratification,
        e: &[f32],
        scale: f64,
        out: &[f64],
    ) -> Within {
        let (dim, chunks) = (readers.value_dim(), readers.rows.value_chunks());
        let values =
            |run: &Range<usize>| &self.values[run.start * chunks * CHUNK..run.end * chunks * CHUNK];
        let (tokens, drawn) = (&strata.strata, strata.drawn());
        // Of `e v`, then of `e`.
        let mut means = vec![vec![0.0; dim + 1]; drawn.len()];
        for run in runs(tokens) {
            let stratum = tokens[run.start];
            let share = 1.0 / drawn[stratum] as f64;
            let sum_e: f64 = e[run.clone()].iter().map(|&e| f64::from(e)).sum();
            let [lanes] = weigh(readers.level, values(&run), chunks * CHUNK, [&e[run]]);
            let mut sums = vec![0.0; dim];
            from_lanes::<E>(&lanes, &mut sums);
            sums.push(sum_e);
            means[stratum].iter_mut().zip(sums).for_each(|(mean, sum)| *mean += share * sum);
        }
        let averages = strata.average_neighbours(&means);
        let mut by_centre = Vec::with_capacity(tokens.len());
        for run in runs(tokens) {
            let average = &averages[tokens[run.start]][..dim];
            let average: Vec<f32> = average.iter().map(|&x| x as f32).collect();
            let average = vectors::<E>(&average, dim, 1.0, 1, chunks);
            let products = products(readers.level, values(&run), chunks * CHUNK, &average);
            by_centre.extend(products.into_iter().map(|x| scale * f64::from(x)));
        }
        let scaled =
            |average: &Vec<f64>| -> Vec<f64> { average.iter().map(|x| scale * x).collect() };
        let centres = averages.iter().map(|average| Centre::new(&scaled(average), out)).collect();
        Within { by_centre, centres }
    }
}
