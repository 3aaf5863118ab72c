//! A sample whose tokens weigh `1 / π`: its sums, and the products that its moments follow from.

use std::f64::consts::LN_2;
use std::ops::{Range, RangeInclusive};

use vattention_core::{Softmax, StratumMean, Weighed, Within};

use super::kernel::{dots, exp2, fours, weigh};
use super::readers::{Readers, Sums, vectors};
use super::sample::{Kept, Sample, Stored};
use super::simd::{CHUNK, from_lanes};

/// Lengths of values whose products f32 holds with room for smaller ones beside them.
const FITTING: RangeInclusive<f32> = 1e-12..=1e12;

/// Sums over the sample.
struct Drawn {
    /// `e`, relative to the shift of the sums, `[b]`.
    e: Vec<f32>,
    /// Weighed.
    sums: Sums,
}

impl Drawn {
    /// Of a reader with `logits` in powers of two, `[b]`.
    fn new<E: Stored>(
        readers: &Readers<'_, E>,
        kept: &Kept<E>,
        logits: &[f32],
        p: impl Iterator<Item = f64>,
    ) -> Self {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut e = Vec::new();
        exp2(readers.level, logits, largest, &mut e);
        let weights: Vec<f32> = e.iter().zip(p).map(|(&e, p)| (f64::from(e) / p) as f32).collect();
        let stride = readers.rows.value_chunks() * CHUNK;
        let lanes = weigh(readers.level, &kept.values, stride, &weights);
        let mut numerator = vec![0.0; readers.value_dim()];
        from_lanes::<E>(&lanes, &mut numerator);
        let shift = if e.is_empty() { f64::NEG_INFINITY } else { f64::from(largest) * LN_2 };
        let denominator = weights.iter().map(|&w| f64::from(w)).sum();
        let norms = weights.iter().zip(&kept.rows.norms);
        let norms = norms.map(|(&w, &norm)| f64::from(w) * f64::from(norm)).sum();
        Self { e, sums: Sums { softmax: Softmax::from_sums(shift, denominator, numerator), norms } }
    }
}

impl<E: Stored> Sample<E> {
    /// The sums of each reader, weighed by the probabilities `p` `[b]` of the tokens that were drawn and kept.
    pub(crate) fn weighed_sums(&self, readers: &Readers<'_, E>, p: &[f32]) -> Vec<Sums> {
        let of_reader = |logits: &Vec<f32>| {
            Drawn::new(readers, &self.kept, logits, p.iter().map(|&p| f64::from(p))).sums
        };
        self.kept.rows.logits.iter().map(of_reader).collect()
    }

    /// What the sample says to a reader whose certain tokens come to `certain`, if its tokens were drawn with
    /// probabilities `p` `[b]`, within `strata` `[b]` if there are any; `None` if f32 does not hold products of its values.
    pub(crate) fn weighed(
        &mut self,
        readers: &Readers<'_, E>,
        certain: &Sums,
        reader: usize,
        p: &[f64],
        strata: Option<&[usize]>,
    ) -> Option<Weighed> {
        let kept = &mut self.kept;
        let longest = kept.rows.norms.iter().copied().fold(0.0, f32::max);
        if !FITTING.contains(&longest) {
            return None;
        }
        let drawn = Drawn::new(readers, kept, &kept.rows.logits[reader], p.iter().copied());
        let (mut certain, own) = (certain.clone(), drawn.sums.softmax.shift());
        let shift = certain.softmax.shift().max(own);
        certain.rebase(shift);
        let mut all = certain.clone();
        all.add(&drawn.sums);
        let scale = (own - shift).exp();
        let e = drawn.e.iter().map(|&e| scale * f64::from(e)).collect();
        let norms = kept.rows.norms.iter().map(|&norm| f64::from(norm)).collect();
        let output = all.softmax.output();
        let out: Vec<f32> = output.iter().map(|&x| x as f32).collect();
        let out = vectors::<E>(&out, out.len(), 1.0, 1, readers.rows.value_chunks());
        let by_out = dots(readers.level, &kept.values, &out);
        kept.multiply(readers);
        Some(Weighed {
            by_out: by_out.into_iter().map(f64::from).collect(),
            fours: kept.fours.iter().map(|four| four.map(f64::from)).collect(),
            within: strata.map(|of| kept.within(readers, of, &drawn.e, scale, &output)),
            ..Weighed::of_sums(shift, &certain.softmax, &all.softmax, all.norms, e, norms)
        })
    }
}

/// Where tokens that lie side by side are of one stratum.
fn runs(of: &[usize]) -> impl Iterator<Item = Range<usize>> {
    let mut end = 0;
    of.chunk_by(|a, b| a == b).map(move |run| {
        end += run.len();
        end - run.len()..end
    })
}

impl<E: Stored> Kept<E> {
    /// Multiplies the values that have come since the last time, four by four.
    fn multiply(&mut self, readers: &Readers<'_, E>) {
        let stride = readers.rows.value_chunks() * CHUNK;
        let whole = self.rows.norms.len() / Weighed::FOUR * Weighed::FOUR;
        let new = Weighed::FOUR * self.fours.len() * stride..whole * stride;
        self.fours.extend(fours(readers.level, &self.values[new], stride));
    }

    /// What the tokens have to do with the means of the strata `of` that they were drawn within: `e` are theirs, relative
    /// to something, of which `scale` is the exponential.
    fn within(
        &self,
        readers: &Readers<'_, E>,
        of: &[usize],
        e: &[f32],
        scale: f64,
        out: &[f64],
    ) -> Within {
        let (dim, chunks) = (readers.value_dim(), readers.rows.value_chunks());
        let values =
            |run: &Range<usize>| &self.values[run.start * chunks * CHUNK..run.end * chunks * CHUNK];
        let drawn = Within::drawn(of);
        let mut means = vec![(0.0, vec![0.0; dim]); drawn.len()];
        for run in runs(of) {
            let (mean_e, mean) = &mut means[of[run.start]];
            let share = 1.0 / drawn[of[run.start]] as f64;
            *mean_e += share * e[run.clone()].iter().map(|&e| f64::from(e)).sum::<f64>();
            let lanes = weigh(readers.level, values(&run), chunks * CHUNK, &e[run]);
            let mut sums = vec![0.0; dim];
            from_lanes::<E>(&lanes, &mut sums);
            mean.iter_mut().zip(sums).for_each(|(mean, sum)| *mean += share * sum);
        }
        let mut by_mean = Vec::with_capacity(of.len());
        for run in runs(of) {
            let mean: Vec<f32> = means[of[run.start]].1.iter().map(|&x| x as f32).collect();
            let products =
                dots(readers.level, values(&run), &vectors::<E>(&mean, dim, 1.0, 1, chunks));
            by_mean.extend(products.into_iter().map(|x| scale * f64::from(x)));
        }
        let scaled = |(e, mut mean): (f64, Vec<f64>)| {
            for x in &mut mean {
                *x *= scale;
            }
            StratumMean::new(scale * e, &mean, out)
        };
        Within { of: of.to_vec(), by_mean, means: means.into_iter().map(scaled).collect() }
    }
}
