//! Deviations of a sample: exponentials, moments, and products of differences for the effective
//! rank.

use std::ops::AddAssign;

use vattention_core::{
    sample::{Deviations, LAGS},
    step::Scratch,
};

use super::{LANES, SimdLine, load};
use crate::cpu::simd::{CHUNK, Level, Simd, SimdElement, SimdKernel};

/// Computes `2^(x − shift)` of each number.
pub(crate) fn exp2(level: Level, numbers: &[f32], shift: f32) -> Scratch<f32> {
    let mut out = Scratch::new(numbers.len());
    // SAFETY: reads and writes stay within the slices.
    unsafe { level.run(Exp2Kernel { numbers, shift, out: &mut out }) }
    out
}

struct Exp2Kernel<'a> {
    numbers: &'a [f32],
    shift: f32,
    out: &'a mut [f32],
}

impl SimdKernel for Exp2Kernel<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let shift = S::splat(self.shift);
        let (from, from_rest) = self.numbers.as_chunks::<LANES>();
        let (to, to_rest) = self.out.as_chunks_mut::<LANES>();
        for (from, to) in from.iter().zip(to) {
            S::store(to.as_mut_ptr(), S::exp2(S::sub(S::load(from.as_ptr()), shift)));
        }
        let mut last = [0.0; LANES];
        last[..from_rest.len()].copy_from_slice(from_rest);
        let powers = S::exp2(S::sub(S::load(last.as_ptr()), shift));
        S::store(last.as_mut_ptr(), powers);
        to_rest.copy_from_slice(&last[..to_rest.len()]);
    }
}

/// Terms of a sample's tokens for one query head, in draw order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleTokens<'a> {
    /// `e`, at most about 1.
    pub(crate) e: &'a [f32],
    /// `|v|`.
    pub(crate) norms: &'a [f32],
    /// `v · out`.
    pub(crate) dot_out: &'a [f32],
    /// `v · mean`.
    pub(crate) dot_mean: &'a [f32],
}

/// Means from which deviations are computed. `mean` is the mean of `w = e (v − out)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpreadCentre {
    /// Mean of `e`.
    pub(crate) mean_e: f32,
    /// `|out|²`
    pub(crate) out_squared: f32,
    /// `out · mean`
    pub(crate) out_mean: f32,
    /// `|mean|²`
    pub(crate) mean_squared: f32,
    /// Factor of squares of values, so that fourth powers stay in range.
    pub(crate) unit: f32,
}

/// Sums of powers of a sample's deviations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spread {
    /// Deviations of `e`.
    pub(crate) e: Deviations,
    /// Deviations of `w`, whose squares are multiplied by [`SpreadCentre::unit`].
    pub(crate) w: Deviations,
    /// `Σ e² |v|²`, multiplied by [`SpreadCentre::unit`].
    pub(crate) ev_squares: f64,
}

impl AddAssign for Spread {
    fn add_assign(&mut self, other: Self) {
        for (sum, other) in [(&mut self.e, other.e), (&mut self.w, other.w)] {
            sum.squares += other.squares;
            sum.fourths += other.fourths;
        }
        self.ev_squares += other.ev_squares;
    }
}

/// Computes the spread of a part of a sample. Sums are in f32, so a part should have only a few
/// hundred tokens.
///
/// Squares of deviations of `w` are differences of larger numbers, and are raised to 0 if they are
/// negative. If the deviations are tiny relative to the values, the sums are therefore too large,
/// and so are budgets.
///
/// # Panics
/// If the slices of `tokens` differ in length.
pub(crate) fn spread(level: Level, tokens: &SampleTokens<'_>, centre: &SpreadCentre) -> Spread {
    let count = tokens.e.len();
    let columns = [tokens.norms, tokens.dot_out, tokens.dot_mean];
    assert!(columns.iter().all(|column| column.len() == count));
    // SAFETY: all slices have the same length.
    unsafe { level.run(SpreadKernel { tokens, centre }) }
}

struct SpreadKernel<'a, 't> {
    tokens: &'a SampleTokens<'t>,
    centre: &'a SpreadCentre,
}

impl SimdKernel for SpreadKernel<'_, '_> {
    type Output = Spread;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> Spread {
        let mut sums = [S::splat(0.0); 5];
        for first in (0..self.tokens.e.len()).step_by(LANES) {
            add_spread::<S>(self.tokens, self.centre, first, &mut sums);
        }
        let mut totals = [0.0; 5];
        for (total, sum) in totals.iter_mut().zip(sums) {
            let mut lanes = [0.0; LANES];
            S::store(lanes.as_mut_ptr(), sum);
            *total = f64::from(lanes.iter().sum::<f32>());
        }
        let [e2, e4, w2, w4, ev_squares] = totals;
        Spread {
            e: Deviations { squares: e2, fourths: e4 },
            w: Deviations { squares: w2, fourths: w4 },
            ev_squares,
        }
    }
}

/// Adds at most sixteen tokens from `first` on.
#[inline(always)]
unsafe fn add_spread<S: Simd>(
    tokens: &SampleTokens<'_>,
    centre: &SpreadCentre,
    first: usize,
    sums: &mut [S::F; 5],
) {
    let left = (tokens.e.len() - first).min(LANES);
    let mut mask = [0.0; LANES];
    mask[..left].fill(1.0);
    let mask = S::load(mask.as_ptr());
    let (e, norms) = (load::<S>(tokens.e, first, 0.0), load::<S>(tokens.norms, first, 0.0));
    let (dot_out, dot_mean) =
        (load::<S>(tokens.dot_out, first, 0.0), load::<S>(tokens.dot_mean, first, 0.0));

    let deviation = S::mul(mask, S::sub(e, S::splat(centre.mean_e)));
    let squared_e = S::mul(deviation, deviation);
    // |e (v − out) − mean|² is computed from |v − out|² and (v − out) · mean.
    let unit = S::splat(centre.unit);
    let squared_norm = S::mul(norms, S::mul(norms, unit));
    let twice_out = S::mul(dot_out, S::splat(2.0 * centre.unit));
    let squared_distance =
        S::sub(S::add(squared_norm, S::splat(centre.out_squared * centre.unit)), twice_out);
    let along = S::mul(S::sub(dot_mean, S::splat(centre.out_mean)), S::splat(2.0 * centre.unit));
    let squared_w = S::mul(e, S::sub(S::mul(e, squared_distance), along));
    let squared_w = S::add(squared_w, S::splat(centre.mean_squared * centre.unit));
    let squared_w = S::mul(mask, S::max(squared_w, S::splat(0.0)));

    sums[0] = S::add(sums[0], squared_e);
    sums[1] = S::fma(squared_e, squared_e, sums[1]);
    sums[2] = S::add(sums[2], squared_w);
    sums[3] = S::fma(squared_w, squared_w, sums[3]);
    sums[4] = S::fma(S::mul(e, e), squared_norm, sums[4]);
}

/// Sum `Σ (x_i · x_j)²` over `j − i` from 1 to [`LAGS`], where `x_i = w_2i − w_2i+1` and
/// `w = e (v − centre)`, of a sample that is added in parts.
#[derive(Clone, Debug)]
pub(crate) struct LaggedSquares {
    pub(crate) sum: f64,
    centre: Scratch<SimdLine>,
    /// The last [`LAGS`] differences.
    ring: Vec<SimdLine>,
}

impl LaggedSquares {
    /// Creates the sum over no tokens. The centre has whole chunks, in the lanes' order.
    pub(crate) fn new(centre: Scratch<SimdLine>) -> Self {
        let ring = vec![SimdLine([0.0; LANES]); LAGS * centre.len()];
        Self { sum: 0.0, centre, ring }
    }

    /// Adds tokens with values `[b][chunks · CHUNK]`; all parts but the last have a multiple of
    /// `2 · LAGS` tokens.
    ///
    /// # Panics
    /// If the numbers of weights and values differ.
    pub(crate) fn add<E: SimdElement>(&mut self, level: Level, e: &[f32], values: &[E]) {
        let Self { sum, centre, ring } = self;
        assert_eq!(values.len(), e.len() * centre.len() * LANES, "values");
        // SAFETY: there is a row of values for each weight, and the centre has the length of a row.
        *sum += unsafe { level.run(LaggedKernel { e, values, centre, ring }) };
    }
}

struct LaggedKernel<'a, E> {
    e: &'a [f32],
    values: &'a [E],
    centre: &'a [SimdLine],
    ring: &'a mut [SimdLine],
}

impl<E: SimdElement> SimdKernel for LaggedKernel<'_, E> {
    type Output = f64;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f64 {
        let lines = self.centre.len();
        let mut total = 0.0;
        // Each of four differences is multiplied with the four before it: sixteen sums.
        for (four, weights) in self.e.chunks(2 * LAGS).enumerate() {
            let mut products = [S::no_sums(); LANES];
            for (i, pair) in weights.chunks_exact(2).enumerate() {
                let row = (four * LAGS + i) * 2;
                let ring = self.ring.as_mut_ptr();
                let values = self.values.as_ptr().add(row * lines * LANES);
                let products = products.as_mut_ptr().add(i * LAGS);
                difference::<S, E>(pair, values, self.centre, ring, i, products);
            }
            let mut sums = [0.0; LANES];
            S::store(sums.as_mut_ptr(), S::sums(&products));
            total += sums.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
        }
        total
    }
}

/// Writes `w_0 − w_1` of two rows to `slot` of the ring, and its products with all differences that
/// were in the ring to `products`.
#[inline(always)]
unsafe fn difference<S: Simd, E: SimdElement>(
    e: &[f32],
    values: *const E,
    centre: &[SimdLine],
    ring: *mut SimdLine,
    slot: usize,
    products: *mut S::D,
) {
    let lines = centre.len();
    let (e0, e1) = (S::splat(e[0]), S::splat(e[1]));
    let mut sums = [S::no_sums(); LAGS];
    for chunk in 0..lines / 2 {
        let offset = chunk * CHUNK;
        let first = E::widen::<S>(values.add(offset));
        let second = E::widen::<S>(values.add(lines * LANES + offset));
        for (half, a, b) in [(0, first.0, second.0), (1, first.1, second.1)] {
            let line = 2 * chunk + half;
            let centre = S::load(centre[line].0.as_ptr());
            let w0 = S::mul(e0, S::sub(a, centre));
            let x = S::sub(w0, S::mul(e1, S::sub(b, centre)));
            for (lag, sum) in sums.iter_mut().enumerate() {
                *sum = S::fold(x, S::load(ring.add(lag * lines + line).cast()), *sum);
            }
            S::store(ring.add(slot * lines + line).cast(), x);
        }
    }
    for (lag, sum) in sums.iter().enumerate() {
        *products.add(lag) = *sum;
    }
}
