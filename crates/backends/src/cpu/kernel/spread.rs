//! How a sample spreads: exponentials, and products of differences for the effective rank.

use vattention_core::LAGS;

use super::{LANES, Line};
use crate::cpu::simd::{CHUNK, Element, Kernel, Level, Simd};

/// `2^(x − shift)` of each number.
pub(crate) fn exp2(level: Level, numbers: &[f32], shift: f32, out: &mut Vec<f32>) {
    out.clear();
    out.resize(numbers.len(), 0.0);
    // SAFETY: reads and writes stay within the slices.
    unsafe { level.run(Exp2 { numbers, shift, out }) }
}

struct Exp2<'a> {
    numbers: &'a [f32],
    shift: f32,
    out: &'a mut [f32],
}

impl Kernel for Exp2<'_> {
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

/// `Σ (x_i · x_j)²` over `j − i` from 1 to [`LAGS`], where `x_i = w_2i − w_2i+1` and
/// `w = e (v − centre)`, for values `[b][chunks · CHUNK]`.
///
/// # Panics
/// If a size does not fit.
pub(crate) fn lagged_squares<E: Element>(
    level: Level,
    e: &[f32],
    values: &[E],
    centre: &[Line],
) -> f64 {
    assert_eq!(values.len(), e.len() * centre.len() * LANES, "values");
    assert_eq!(centre.len() % 2, 0, "whole chunks");
    let mut ring = vec![Line([0.0; LANES]); LAGS * centre.len()];
    // SAFETY: there is a row of values for each weight, and the centre is as long as a row.
    unsafe { level.run(Lagged { e, values, centre, ring: &mut ring }) }
}

struct Lagged<'a, E> {
    e: &'a [f32],
    values: &'a [E],
    centre: &'a [Line],
    /// The last [`LAGS`] differences.
    ring: &'a mut [Line],
}

impl<E: Element> Kernel for Lagged<'_, E> {
    type Output = f64;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f64 {
        let lines = self.centre.len();
        let mut total = 0.0;
        // Products of four differences with the four before each: sixteen sums at once.
        for (four, weights) in self.e.chunks(2 * LAGS).enumerate() {
            let mut products = [S::splat(0.0); LANES];
            for (i, pair) in weights.chunks_exact(2).enumerate() {
                let row = (four * LAGS + i) * 2;
                let slot = self.ring.as_mut_ptr().add(i * lines);
                let values = self.values.as_ptr().add(row * lines * LANES);
                let ring = self.ring.as_ptr();
                let products = products.as_mut_ptr().add(i * LAGS);
                difference::<S, E>(pair, values, self.centre, ring, slot, products);
            }
            let mut sums = [0.0; LANES];
            S::store(sums.as_mut_ptr(), S::sums(&products));
            total += sums.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
        }
        total
    }
}

/// Puts `w_0 − w_1` of two rows into `slot` of the ring, and its products with all differences
/// that were in the ring into `products`.
#[inline(always)]
unsafe fn difference<S: Simd, E: Element>(
    e: &[f32],
    values: *const E,
    centre: &[Line],
    ring: *const Line,
    slot: *mut Line,
    products: *mut S::F,
) {
    let lines = centre.len();
    let (e0, e1) = (S::splat(e[0]), S::splat(e[1]));
    let mut sums = [S::splat(0.0); LAGS];
    for chunk in 0..lines / 2 {
        let at = chunk * CHUNK;
        let first = E::widen::<S>(values.add(at));
        let second = E::widen::<S>(values.add(lines * LANES + at));
        for (half, a, b) in [(0, first.0, second.0), (1, first.1, second.1)] {
            let line = 2 * chunk + half;
            let centre = S::load(centre[line].0.as_ptr());
            let w0 = S::mul(e0, S::sub(a, centre));
            let x = S::sub(w0, S::mul(e1, S::sub(b, centre)));
            for (lag, sum) in sums.iter_mut().enumerate() {
                *sum = S::fma(x, S::load(ring.add(lag * lines + line).cast()), *sum);
            }
            S::store((*slot.add(line)).0.as_mut_ptr(), x);
        }
    }
    for (lag, sum) in sums.iter().enumerate() {
        *products.add(lag) = *sum;
    }
}
