//! Weighted sums of a sample, from its logits and inclusion probabilities.

use vattention_core::step::Scratch;

use super::products::add_weighted;
use super::{LANES, LEAST, load, reduce};
use crate::cpu::simd::{Level, Simd, SimdElement, SimdKernel};

/// Weighted sums of a sample of `b` tokens for several query heads.
#[derive(Debug)]
pub(crate) struct SampleSums {
    /// Largest logit of each head, in base 2; [`LEAST`] if there are no tokens.
    pub(crate) shifts: Vec<f32>,
    /// `e = 2^(logit − shift)`, `[heads][padded]`, where `padded` is `b` rounded up to whole
    /// vectors; 0 past the end.
    e: Scratch<f32>,
    /// `Σ e / π` of each head.
    pub(crate) denominators: Vec<f64>,
    /// `Σ e v / π`, in the lanes' order, `[heads][stride]`.
    numerators: Scratch<f64>,
    padded: usize,
    stride: usize,
}

impl SampleSums {
    /// Computes the sums for the heads of `logits` `[heads][b]`, from inclusion probabilities `p`
    /// `[b]` and values `[b][stride]`.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub(crate) fn new<E: SimdElement>(
        level: Level,
        logits: &[Vec<f32>],
        p: &[f64],
        values: &[E],
        stride: usize,
    ) -> Self {
        let (b, heads) = (p.len(), logits.len());
        assert!(logits.iter().all(|logits| logits.len() == b), "logits");
        assert_eq!(values.len(), b * stride, "values");
        let padded = b.next_multiple_of(LANES);
        let mut sums = Self {
            shifts: vec![LEAST; heads],
            e: Scratch::new(heads * padded),
            denominators: vec![0.0; heads],
            numerators: Scratch::new(heads * stride),
            padded,
            stride,
        };
        sums.numerators.fill(0.0);
        let mut weights = Scratch::new((1 + TILE) * padded);
        let sample = SumsKernel { logits, p, values, weights: &mut weights, sums: &mut sums };
        // SAFETY: there are a logit and a value for each probability.
        unsafe { level.run(sample) }
        sums
    }

    /// `e` of a head, `[padded]`.
    pub(crate) fn e(&self, head: usize) -> &[f32] {
        &self.e[head * self.padded..][..self.padded]
    }

    /// `Σ e v / π` of a head, in the lanes' order, `[stride]`.
    pub(crate) fn numerator(&self, head: usize) -> &[f64] {
        &self.numerators[head * self.stride..][..self.stride]
    }
}

/// Largest number of query heads whose sums are computed in one pass over the values.
const TILE: usize = 4;

struct SumsKernel<'a, E> {
    /// `[heads][b]`
    logits: &'a [Vec<f32>],
    /// `[b]`
    p: &'a [f64],
    /// `[b][stride]`
    values: &'a [E],
    /// Memory for `1 / π` and, for each head of a tile, `e / π`, `[1 + TILE][padded]`.
    weights: &'a mut [f32],
    sums: &'a mut SampleSums,
}

impl<E: SimdElement> SimdKernel for SumsKernel<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let (inverse_p, past_the_end) = self.weights[..self.sums.padded].split_at_mut(self.p.len());
        inverse_p.iter_mut().zip(self.p).for_each(|(inverse, &p)| *inverse = 1.0 / p as f32);
        past_the_end.fill(0.0);
        let heads = self.logits.len();
        for first in (0..heads).step_by(TILE) {
            match heads - first {
                1 => self.add_heads::<S, 1>(first),
                2 => self.add_heads::<S, 2>(first),
                3 => self.add_heads::<S, 3>(first),
                _ => self.add_heads::<S, TILE>(first),
            }
        }
    }
}

impl<E: SimdElement> SumsKernel<'_, E> {
    /// Computes the sums of `N` heads from `first` on.
    #[inline(always)]
    unsafe fn add_heads<S: Simd, const N: usize>(&mut self, first: usize) {
        let Self { logits, p, values, weights, sums } = self;
        let (padded, stride) = (sums.padded, sums.stride);
        let (inverse_p, weights) = weights.split_at_mut(padded);
        for head in 0..N {
            let logits = &logits[first + head];
            let shift = largest::<S>(logits);
            let e = &mut sums.e[(first + head) * padded..][..padded];
            let weights = &mut weights[head * padded..][..padded];
            for place in (0..padded).step_by(LANES) {
                let powers = S::exp2(S::sub(load::<S>(logits, place, LEAST), S::splat(shift)));
                S::store(e.as_mut_ptr().add(place), powers);
                let inverse = S::load(inverse_p.as_ptr().add(place));
                S::store(weights.as_mut_ptr().add(place), S::mul(powers, inverse));
            }
            sums.shifts[first + head] = shift;
            sums.denominators[first + head] = sum(weights);
        }
        let weights = std::array::from_fn(|head| weights[head * padded..].as_ptr());
        let numerators = sums.numerators[first * stride..][..N * stride].as_mut_ptr();
        add_weighted::<S, E, N>(values.as_ptr(), stride, p.len(), weights, numerators);
    }
}

/// Largest of these numbers; [`LEAST`] if there are none.
#[inline(always)]
unsafe fn largest<S: Simd>(numbers: &[f32]) -> f32 {
    let mut most = S::splat(LEAST);
    for place in (0..numbers.len()).step_by(LANES) {
        most = S::max(most, load::<S>(numbers, place, LEAST));
    }
    let mut lanes = [0.0; LANES];
    S::store(lanes.as_mut_ptr(), most);
    reduce(&lanes, f32::max)
}

/// Sums whole vectors of numbers in f64.
#[inline(always)]
fn sum(numbers: &[f32]) -> f64 {
    let mut sums = [0.0; LANES];
    for numbers in numbers.as_chunks::<LANES>().0 {
        for (sum, &x) in sums.iter_mut().zip(numbers) {
            *sum += f64::from(x);
        }
    }
    sums.iter().sum()
}
