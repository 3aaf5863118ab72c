//! Variances of the estimates from a sample of any design: the definition, in f64.
//!
//! Estimators get the statistics of a uniform sample of the same size with the same error.
//!
//! With `w = e (v − o^)` the output's error is `W^ / D^`. The variances of `W^`, `N^` and `D^` at a size
//! are `Σ φ |x − m|²` over the sample, `x` being `w`, `e v` or `e`, and φ and `m` the design's. Estimators
//! get the variances of a uniform sample of that size with the same error: they are divided by `n_s²
//! (1/size − 1/n_s)`.

use std::cell::RefCell;
use std::rc::Rc;

use multiversion::multiversion;

use crate::{
    plugin::Design,
    sample::{Centre, Moments, Residual, SampleStats, Stratification, Weighed, Within, max_or_nan},
};

/// The design's view of its drawn tokens at one check.
pub(crate) struct DesignSnapshot {
    size: usize,
    pub(crate) probabilities: Vec<f64>,
    pub(crate) strata: Option<Stratification>,
    /// φ of each token at this size, and at the other sizes that were asked for.
    factors: RefCell<Vec<(usize, Rc<[f64]>)>>,
}

impl DesignSnapshot {
    /// At a sample of `size`.
    pub(crate) fn new(design: &dyn Design, size: usize) -> Self {
        let (probabilities, strata) = (design.probabilities(), design.strata());
        Self { size, probabilities, strata, factors: RefCell::default() }
    }

    /// φ of each token at a size. All readers share them.
    fn factors(&self, design: &dyn Design, size: usize) -> Rc<[f64]> {
        let mut known = self.factors.borrow_mut();
        if let Some((_, factors)) = known.iter().find(|known| known.0 == size) {
            return factors.clone();
        }
        let factors: Rc<[f64]> = design.factors(size).into();
        known.push((size, factors.clone()));
        factors
    }
}

/// One check of a sample; it predicts the statistics of a larger one.
pub(crate) struct SampleCheck<'a> {
    design: &'a dyn Design,
    snapshot: &'a DesignSnapshot,
    reader: usize,
    shift: f64,
    /// Everything that does not depend on the size.
    stats: SampleStats,
    /// `|x − m|²` of each token drawn.
    squares: Squares,
    /// Part of its own square that each term adds to the variance of a variance.
    shares: Vec<f64>,
    /// Number of tokens drawn from each stratum.
    of_strata: Vec<f64>,
    /// `1 / rank`, and how much of it is due to the heaviest terms.
    inverse_rank: f64,
}

/// `|x − m|²` of each token drawn.
struct Squares {
    w: Vec<f64>,
    ev: Vec<f64>,
    e: Vec<f64>,
}

/// The variances of a total at a size, and the squared relative error of its estimate.
struct Variance {
    total: f64,
    doubt: f64,
}

impl<'a> SampleCheck<'a> {
    /// Checks a sample. O(drawn).
    pub(crate) fn new(
        design: &'a dyn Design,
        snapshot: &'a DesignSnapshot,
        reader: usize,
        sample: &Weighed,
        residual: &Residual,
    ) -> Self {
        let DesignSnapshot { size, probabilities, strata, .. } = snapshot;
        let factors = &snapshot.factors(design, *size);
        let squares = match (&sample.within, strata) {
            (Some(within), Some(strata)) => Squares::within(sample, within, &strata.strata),
            _ => Squares::new(sample),
        };
        let pairs = match (&sample.within, strata) {
            (Some(within), Some(strata)) => {
                Some(alignment_within(sample, within, &strata.strata, factors, &squares.w))
            }
            _ => alignment_of_tokens(sample, factors, &squares.w),
        };
        let [trace, squared] = traces(factors, &squares.w);
        // What terms add that are parallel to themselves: 1 over the number of terms that would weigh as much if all weighed the
        // same.
        let own_share = if trace == 0.0 { 0.0 } else { squared / (trace * trace) };
        let share = |p: &f64| if strata.is_some() { 1.0 } else { 1.0 - p };
        let drawn = strata.as_ref().map_or_else(Vec::new, Stratification::drawn);
        Self {
            design,
            snapshot,
            reader,
            shift: sample.shift,
            stats: stats(*size, sample, residual),
            squares,
            shares: probabilities.iter().map(share).collect(),
            of_strata: drawn.into_iter().map(|drawn| drawn as f64).collect(),
            inverse_rank: pairs.map_or(1.0, |pairs| pairs.min(1.0) + own_share),
        }
    }

    /// The statistics of a sample of `size`, at least the current one and less than the residual.
    pub(crate) fn predict(&self, size: usize) -> SampleStats {
        let [w, ev, e] = self.variances(&self.snapshot.factors(self.design, size));
        let (b, n_s) = (size as f64, self.stats.n_s as f64);
        let drawn = self.stats.drawn as f64;
        let alike = n_s * n_s * (1.0 / b - 1.0 / n_s);
        SampleStats {
            b: size,
            var_e: e.total / alike,
            trace_ev: ev.total / alike,
            trace_w: w.total / alike,
            // The doubt is added when variances are raised.
            // A rank of 1 is safe, so the last `max` may drop a NaN.
            nu: (1.0 / max_or_nan(self.inverse_rank - w.doubt, 1.0 / n_s)).max(1.0),
            kurtosis_e: 1.0 + drawn * e.doubt,
            kurtosis_w: 1.0 + drawn * w.doubt,
            unseen: self.design.unseen(self.reader, size, self.shift),
            ..self.stats
        }
    }

    fn variances(&self, factors: &[f64]) -> [Variance; 3] {
        let Squares { w, ev, e } = &self.squares;
        [w, ev, e].map(|squares| {
            let [total, mut fourths] = total_and_fourths(factors, squares, &self.shares);
            if let Some(Stratification { strata, .. }) = &self.snapshot.strata {
                let mut sums = vec![0.0; self.of_strata.len()];
                for ((&stratum, factor), square) in strata.iter().zip(factors).zip(squares) {
                    sums[stratum] += factor * square;
                }
                let means = sums.iter().zip(&self.of_strata).map(|(sum, n)| sum * sum / n.max(1.0));
                fourths -= means.sum::<f64>();
            }
            let fourths = max_or_nan(fourths, 0.0);
            Variance { total, doubt: if total == 0.0 { 0.0 } else { fourths / (total * total) } }
        })
    }
}

/// Numbers that are summed side by side.
const LANES: usize = 16;

/// The sums of `of` applied to the numbers at each place.
#[inline(always)]
fn sums_of<const N: usize>(
    a: &[f64],
    b: &[f64],
    c: &[f64],
    of: impl Fn(f64, f64, f64) -> [f64; N],
) -> [f64; N] {
    let mut sums = [[0.0; LANES]; N];
    let (a, b, c) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>(), c.as_chunks::<LANES>());
    for ((a, b), c) in a.0.iter().zip(b.0).zip(c.0) {
        for lane in 0..LANES {
            let terms = of(a[lane], b[lane], c[lane]);
            for (sums, term) in sums.iter_mut().zip(terms) {
                sums[lane] += term;
            }
        }
    }
    for (lane, ((a, b), c)) in a.1.iter().zip(b.1).zip(c.1).enumerate() {
        for (sums, term) in sums.iter_mut().zip(of(*a, *b, *c)) {
            sums[lane] += term;
        }
    }
    sums.map(|sums| sums.iter().sum())
}

/// `Σ φ |x − m|²`, and the sum of the squares of its terms, each times its share.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma", "x86_64+avx2+fma"))]
fn total_and_fourths(factors: &[f64], squares: &[f64], shares: &[f64]) -> [f64; 2] {
    sums_of(factors, squares, shares, |factor, square, share| {
        let term = factor * square;
        [term, term * term * share]
    })
}

/// The variance of the total of `w`, and the sum of the squares of its terms.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma", "x86_64+avx2+fma"))]
fn traces(factors: &[f64], w: &[f64]) -> [f64; 2] {
    sums_of(factors, w, w, |factor, w, _| {
        let term = factor * w;
        [term, term * term]
    })
}

impl Squares {
    /// For independent draws.
    fn new(sample: &Weighed) -> Self {
        let zeros = || vec![0.0; sample.e.len()];
        let mut squares = Self { w: zeros(), ev: zeros(), e: zeros() };
        set_squares(sample, &mut squares);
        squares
    }

    /// For draws within strata: `strata` `[b]` are the tokens'.
    fn within(sample: &Weighed, within: &Within, strata: &[usize]) -> Self {
        let Weighed { e, norms, out_squared, .. } = sample;
        let mut squares = Self { w: Vec::new(), ev: Vec::new(), e: Vec::new() };
        for (i, &stratum) in strata.iter().enumerate() {
            let (centre, by_centre) = (within.centres[stratum], within.by_centre[i]);
            let along = along_centre(sample, i, centre, by_centre);
            let w = sample.square(i) - 2.0 * along + centre.square_of_w(*out_squared);
            let ev = (e[i] * norms[i]).powi(2) - 2.0 * e[i] * by_centre + centre.squared;
            squares.w.push(max_or_nan(w, 0.0));
            squares.ev.push(max_or_nan(ev, 0.0));
            squares.e.push((e[i] - centre.e).powi(2));
        }
        squares
    }
}

/// `w · m` of a token, `m` being its stratum's centre and `by_centre` `v · μ`.
fn along_centre(sample: &Weighed, i: usize, centre: Centre, by_centre: f64) -> f64 {
    let (e, by_out, out_squared) = (sample.e[i], sample.by_out[i], sample.out_squared);
    e * (by_centre - centre.e * by_out - centre.by_out + centre.e * out_squared)
}

/// `|w|²`, `|e v|²` and `e²` of each token, from products of its value.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma", "x86_64+avx2+fma"))]
fn set_squares(sample: &Weighed, out: &mut Squares) {
    let Weighed { e, norms, by_out, out_squared, .. } = sample;
    let tokens = e.iter().zip(&norms[..]).zip(by_out);
    let out = out.w.iter_mut().zip(&mut out.ev).zip(&mut out.e);
    for (((e, norm), by_out), ((out_w, out_ev), out_e)) in tokens.zip(out) {
        let (e, norm) = (e * e, norm * norm);
        let w = e * (norm - 2.0 * by_out + out_squared);
        // A NaN stays one.
        *out_w = if w < 0.0 { 0.0 } else { w };
        *out_ev = e * norm;
        *out_e = e;
    }
}

/// All statistics of a sample of `size` that do not depend on a larger one; variances are missing.
fn stats(size: usize, sample: &Weighed, residual: &Residual) -> SampleStats {
    let Residual { n_s, visible, query_heads, max_norm_v, .. } = *residual;
    let moments = Moments {
        value_dim: sample.value_dim,
        d: sample.d,
        d_certain: sample.d_certain,
        norm_n_squared: sample.out_squared * sample.d * sample.d,
        drift: sample.drift,
        ..Moments::default()
    };
    let residual = Residual { n_s, visible, query_heads, max_norm_v, bound: None };
    SampleStats::from_moments(size, &moments, &residual)
}

/// `Tr(S²) / Tr(S)²` of the covariance `S` of a total of `w`, from pairs of different tokens, each weighed by what
/// it adds to the trace (docs/guarantees.md, eq. 7'). `None` for fewer than four tokens.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma", "x86_64+avx2+fma"))]
fn alignment_of_tokens(sample: &Weighed, factors: &[f64], squares: &[f64]) -> Option<f64> {
    const FOUR: usize = Weighed::FOUR;
    let Weighed { e, by_out, out_squared, fours, .. } = sample;
    let (mut parallel, mut all) = (0.0, 0.0);
    let (e, by_out) = (e.as_chunks::<FOUR>().0, by_out.as_chunks::<FOUR>().0);
    let (factors, squares) = (factors.as_chunks::<FOUR>().0, squares.as_chunks::<FOUR>().0);
    let tokens = e.iter().zip(by_out).zip(factors.iter().zip(squares));
    for (products, ((e, by_out), (factors, squares))) in fours.iter().zip(tokens) {
        let weights: [f64; FOUR] = std::array::from_fn(|i| factors[i] * e[i] * e[i]);
        let terms: [f64; FOUR] = std::array::from_fn(|i| factors[i] * squares[i]);
        for (product, (i, j)) in products.iter().zip(Weighed::PAIRS) {
            let product = product - by_out[i] - by_out[j] + out_squared;
            parallel += weights[i] * weights[j] * (product * product);
            all += terms[i] * terms[j];
        }
    }
    (all > 0.0).then(|| parallel / all)
}

/// Upper bound on the same for draws within strata, from pairs of tokens of one stratum: the mean
/// over strata of each one's own alignment, weighted by its part of the trace (eq. 7''). A stratum
/// without such pairs counts as one direction.
fn alignment_within(
    sample: &Weighed,
    within: &Within,
    strata: &[usize],
    factors: &[f64],
    squares: &[f64],
) -> f64 {
    const FOUR: usize = Weighed::FOUR;
    let mut sums = vec![StratumSums::default(); within.centres.len()];
    for ((&stratum, factor), square) in strata.iter().zip(factors).zip(squares) {
        sums[stratum].trace += factor * square;
    }
    for (four, of_four) in strata.chunks_exact(FOUR).enumerate() {
        let products = sample.products(four);
        let along = |i: usize| {
            let token = FOUR * four + i;
            along_centre(sample, token, within.centres[of_four[i]], within.by_centre[token])
        };
        for (product, (i, j)) in products.into_iter().zip(Weighed::PAIRS) {
            if of_four[i] != of_four[j] {
                continue;
            }
            let square_of_centre = within.centres[of_four[i]].square_of_w(sample.out_squared);
            let product = product - along(i) - along(j) + square_of_centre;
            let sums = &mut sums[of_four[i]];
            sums.parallel += product * product;
            sums.all += squares[FOUR * four + i] * squares[FOUR * four + j];
        }
    }
    let trace: f64 = sums.iter().map(|sums| sums.trace).sum();
    let aligned: f64 = sums.iter().map(|sums| sums.trace * sums.alignment()).sum();
    if trace > 0.0 { aligned / trace } else { 1.0 }
}

/// Sums over the tokens drawn from a stratum, and over pairs of them.
#[derive(Clone, Copy, Debug, Default)]
struct StratumSums {
    /// `Σ φ |w − m|²`.
    trace: f64,
    /// `Σ ((w − m) · (w' − m))²`.
    parallel: f64,
    /// `Σ |w − m|² |w' − m|²`.
    all: f64,
}

impl StratumSums {
    /// `Tr(S²) / Tr(S)²` of the stratum's covariance `S`; 1 if there is nothing to estimate it from.
    fn alignment(&self) -> f64 {
        if self.all > 0.0 { (self.parallel / self.all).min(1.0) } else { 1.0 }
    }
}

#[cfg(test)]
mod tests;
