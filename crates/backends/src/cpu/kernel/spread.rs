//! How a sample spreads: exponentials, and products of differences for the effective rank.

use std::ops::AddAssign;

use vattention_core::sample::{Deviations, LAGS};

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

/// A sample as one reader sees it, token by token, in draw order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens<'a> {
    /// `e`, at most about 1.
    pub(crate) e: &'a [f32],
    /// `|v|`.
    pub(crate) norms: &'a [f32],
    /// `v · out`.
    pub(crate) by_out: &'a [f32],
    /// `v · mean`.
    pub(crate) by_mean: &'a [f32],
}

/// What deviations are taken from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Centre {
    /// The mean of `e`.
    pub(crate) mean_e: f32,
    /// `|out|²`, `out · mean` and `|mean|²`, where `mean` is that of `w = e (v − out)`.
    pub(crate) out_squared: f32,
    pub(crate) out_mean: f32,
    pub(crate) mean_squared: f32,
    /// What squares of values are multiplied by, so that their squares stay in range.
    pub(crate) unit: f32,
}

/// How a sample spreads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spread {
    pub(crate) e: Deviations,
    /// Of `w`; its squares in the unit of the centre.
    pub(crate) w: Deviations,
    /// `Σ e² |v|²`, in that unit.
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

/// The spread of a part of a sample, summed in f32: some hundred tokens.
///
/// # Panics
/// If the tokens' slices differ in length.
pub(crate) fn spread(level: Level, tokens: &Tokens<'_>, centre: &Centre) -> Spread {
    let count = tokens.e.len();
    assert!([tokens.norms, tokens.by_out, tokens.by_mean].iter().all(|of| of.len() == count));
    // SAFETY: the slices are as long as each other.
    unsafe { level.run(SpreadOf { tokens, centre }) }
}

struct SpreadOf<'a, 't> {
    tokens: &'a Tokens<'t>,
    centre: &'a Centre,
}

impl Kernel for SpreadOf<'_, '_> {
    type Output = Spread;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> Spread {
        let mut sums = [S::splat(0.0); 5];
        for at in (0..self.tokens.e.len()).step_by(LANES) {
            add_spread::<S>(self.tokens, self.centre, at, &mut sums);
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

/// Adds sixteen tokens from `at` on, or as many as there are.
#[inline(always)]
unsafe fn add_spread<S: Simd>(
    tokens: &Tokens<'_>,
    centre: &Centre,
    at: usize,
    sums: &mut [S::F; 5],
) {
    let left = (tokens.e.len() - at).min(LANES);
    let mut there = [0.0; LANES];
    there[..left].fill(1.0);
    let there = S::load(there.as_ptr());
    let (e, norms) = (load::<S>(tokens.e, at), load::<S>(tokens.norms, at));
    let (by_out, by_mean) = (load::<S>(tokens.by_out, at), load::<S>(tokens.by_mean, at));

    let deviation = S::mul(there, S::sub(e, S::splat(centre.mean_e)));
    let squared_e = S::mul(deviation, deviation);
    // |v − out|², (v − out) · mean, and |e (v − out) − mean|² from them.
    let unit = S::splat(centre.unit);
    let squared_norm = S::mul(norms, S::mul(norms, unit));
    let twice_out = S::mul(by_out, S::splat(2.0 * centre.unit));
    let apart = S::sub(S::add(squared_norm, S::splat(centre.out_squared * centre.unit)), twice_out);
    let along = S::mul(S::sub(by_mean, S::splat(centre.out_mean)), S::splat(2.0 * centre.unit));
    let squared_w = S::mul(e, S::sub(S::mul(e, apart), along));
    let squared_w = S::add(squared_w, S::splat(centre.mean_squared * centre.unit));
    let squared_w = S::mul(there, S::max(squared_w, S::splat(0.0)));

    sums[0] = S::add(sums[0], squared_e);
    sums[1] = S::fma(squared_e, squared_e, sums[1]);
    sums[2] = S::add(sums[2], squared_w);
    sums[3] = S::fma(squared_w, squared_w, sums[3]);
    sums[4] = S::fma(S::mul(e, e), squared_norm, sums[4]);
}

/// Sixteen numbers from `at` on, or as many as there are and zeros.
#[inline(always)]
unsafe fn load<S: Simd>(numbers: &[f32], at: usize) -> S::F {
    if numbers.len() - at >= LANES {
        return S::load(numbers.as_ptr().add(at));
    }
    let mut last = [0.0; LANES];
    last[..numbers.len() - at].copy_from_slice(&numbers[at..]);
    S::load(last.as_ptr())
}

/// `Σ (x_i · x_j)²` over `j − i` from 1 to [`LAGS`], where `x_i = w_2i − w_2i+1` and
/// `w = e (v − centre)`, of a sample that comes in parts.
#[derive(Clone, Debug)]
pub(crate) struct LaggedSquares {
    pub(crate) sum: f64,
    centre: Vec<Line>,
    /// The last [`LAGS`] differences.
    ring: Vec<Line>,
}

impl LaggedSquares {
    /// Of no tokens; the centre is in whole chunks, in the lanes' order.
    pub(crate) fn new(centre: Vec<Line>) -> Self {
        let ring = vec![Line([0.0; LANES]); LAGS * centre.len()];
        Self { sum: 0.0, centre, ring }
    }

    /// Adds tokens with values `[b][chunks · CHUNK]`; all parts but the last have a multiple of
    /// `2 · LAGS` tokens.
    ///
    /// # Panics
    /// If a size does not fit.
    pub(crate) fn add<E: Element>(&mut self, level: Level, e: &[f32], values: &[E]) {
        let Self { sum, centre, ring } = self;
        assert_eq!(values.len(), e.len() * centre.len() * LANES, "values");
        // SAFETY: there is a row of values for each weight, and the centre is as long as a row.
        *sum += unsafe { level.run(Lagged { e, values, centre, ring }) };
    }
}

struct Lagged<'a, E> {
    e: &'a [f32],
    values: &'a [E],
    centre: &'a [Line],
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

/// Puts `w_0 − w_1` of two rows into `slot` of the ring, and its products with all differences
/// that were in the ring into `products`.
#[inline(always)]
unsafe fn difference<S: Simd, E: Element>(
    e: &[f32],
    values: *const E,
    centre: &[Line],
    ring: *mut Line,
    slot: usize,
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
            S::store(ring.add(slot * lines + line).cast(), x);
        }
    }
    for (lag, sum) in sums.iter().enumerate() {
        *products.add(lag) = *sum;
    }
}
