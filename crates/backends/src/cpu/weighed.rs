//! A sample whose tokens weigh `1 / π`: its sums, and the products that its moments follow from.

use std::f64::consts::LN_2;
use std::ops::RangeInclusive;

use vattention_core::{Softmax, Weighed};

use super::kernel::{dots, exp2, fours, weigh};
use super::readers::{Readers, Sums, vectors};
use super::sample::{Kept, Stored};
use super::simd::{CHUNK, Level, from_lanes};

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

/// The weighed sums of a reader over the sample, whose tokens were drawn with probabilities `p` `[b]`.
pub(crate) fn weighed_sums<E: Stored>(
    readers: &Readers<'_, E>,
    kept: &Kept<E>,
    reader: usize,
    p: &[f32],
) -> Sums {
    Drawn::new(readers, kept, &kept.rows.logits[reader], p.iter().map(|&p| f64::from(p))).sums
}

/// What the sample says to a reader whose certain tokens come to `certain`; `None` if f32 does not hold products of its values.
pub(crate) fn weighed<E: Stored>(
    readers: &Readers<'_, E>,
    certain: &Sums,
    kept: &mut Kept<E>,
    reader: usize,
    p: &[f64],
) -> Option<Weighed> {
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
    let stride = readers.rows.value_chunks() * CHUNK;
    let out: Vec<f32> = all.softmax.output().into_iter().map(|x| x as f32).collect();
    let out = vectors::<E>(&out, out.len(), 1.0, 1, readers.rows.value_chunks());
    let by_out = dots(readers.level, &kept.values, &out);
    kept.multiply(readers.level, stride);
    Some(Weighed {
        by_out: by_out.into_iter().map(f64::from).collect(),
        fours: kept.fours.iter().map(|four| four.map(f64::from)).collect(),
        ..Weighed::of_sums(shift, &certain.softmax, &all.softmax, all.norms, e, norms)
    })
}

impl<E: Stored> Kept<E> {
    /// Multiplies the values that have come since the last time, four by four.
    fn multiply(&mut self, level: Level, stride: usize) {
        let (done, whole) = (4 * self.fours.len(), self.rows.norms.len() / 4 * 4);
        self.fours.extend(fours(level, &self.values[done * stride..whole * stride], stride));
    }
}
