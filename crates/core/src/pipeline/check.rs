//! Variances of the estimates from a sample of any design: the reference implementation, in f64.
//!
//! Let `w = e (v − o^)`, and let `W^` be the estimated total of `w`; the output's error is
//! `W^ / D^`. The variances of `W^`, `N^` and `D^` at a sample size are `Σ φ |x − m|²` over the
//! sample, where `x` is `w`, `e v` or `e`, and the design defines φ and `m`
//! (docs/guarantees.md, eq. 18). Estimators receive these variances divided by
//! `n_s² (1/size − 1/n_s)`: the per-token variances of a uniform sample of the same size and error.

use std::cell::RefCell;
use std::rc::Rc;

use multiversion::multiversion;

use crate::{
    plugin::Design,
    sample::{
        Centre, Moments, Residual, SampleStats, Stratification, StratumCentres, WeightedEstimates,
        max_or_nan,
    },
    step::Scratch,
};

/// State of a design at one check, which all query heads share.
pub(crate) struct DesignSnapshot {
    size: usize,
    pub(crate) probabilities: Vec<f64>,
    pub(crate) strata: Option<Stratification>,
    /// Weight of each token's squared term in the variance of an estimated variance: `1 − π` for
    /// independent draws, 1 within strata.
    weights: Scratch<f64>,
    /// Number of tokens drawn from each stratum.
    drawn_by_stratum: Vec<f64>,
    /// φ of each token at this size, and at the other sizes for which it has been computed.
    factors: RefCell<Vec<(usize, Rc<Vec<f64>>)>>,
}

impl DesignSnapshot {
    /// Records the state of a design at a sample size.
    pub(crate) fn new(design: &dyn Design, size: usize) -> Self {
        let (probabilities, strata) = (design.probabilities(), design.strata());
        let mut weights = Scratch::new(probabilities.len());
        for (weight, p) in weights.iter_mut().zip(&probabilities) {
            *weight = if strata.is_some() { 1.0 } else { 1.0 - p };
        }
        let drawn = strata.as_ref().map_or_else(Vec::new, Stratification::drawn);
        let drawn_by_stratum = drawn.into_iter().map(|drawn| drawn as f64).collect();
        let factors = RefCell::default();
        Self { size, probabilities, strata, weights, drawn_by_stratum, factors }
    }

    /// Returns φ of each token at a size. It is the same for all query heads.
    fn factors(&self, design: &dyn Design, size: usize) -> Rc<Vec<f64>> {
        let mut computed = self.factors.borrow_mut();
        if let Some((_, factors)) = computed.iter().find(|entry| entry.0 == size) {
            return factors.clone();
        }
        let factors = Rc::new(design.factors(size));
        computed.push((size, factors.clone()));
        factors
    }
}

/// Statistics of a sample for one query head, and predictions of the statistics of larger samples.
pub(crate) struct SampleCheck<'a> {
    design: &'a dyn Design,
    snapshot: &'a DesignSnapshot,
    /// Index of the query head among those that read the list.
    reader: usize,
    shift: f64,
    /// Statistics that do not depend on the predicted size.
    stats: SampleStats,
    /// `|x − m|²` of each token drawn.
    squares: Squares,
    /// Inverse effective rank of the covariance of `w` (eq. 7' or 7'').
    inverse_rank: f64,
}

/// `|x − m|²` of each token drawn.
struct Squares {
    w: Scratch<f64>,
    ev: Scratch<f64>,
    e: Scratch<f64>,
}

/// Predicted variance of a total.
struct Variance {
    variance: f64,
    /// Squared relative standard error of this prediction.
    relative_error_squared: f64,
}

impl<'a> SampleCheck<'a> {
    /// Computes the statistics of the drawn tokens. O(drawn).
    pub(crate) fn new(
        design: &'a dyn Design,
        snapshot: &'a DesignSnapshot,
        reader: usize,
        sample: &WeightedEstimates<'_>,
        residual: &Residual,
    ) -> Self {
        let DesignSnapshot { size, strata, .. } = snapshot;
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
        // Pairs of different tokens leave out the products of tokens with themselves.
        let diagonal = if trace == 0.0 { 0.0 } else { squared / (trace * trace) };
        Self {
            design,
            snapshot,
            reader,
            shift: sample.shift,
            stats: stats(*size, sample, residual),
            squares,
            inverse_rank: pairs.map_or(1.0, |pairs| pairs.min(1.0) + diagonal),
        }
    }

    /// Predicts the statistics of a sample of `size` tokens, at least the current size and fewer
    /// than the residual.
    pub(crate) fn predict(&self, size: usize) -> SampleStats {
        let [w, ev, e] = self.variances(&self.snapshot.factors(self.design, size));
        let (b, n_s) = (size as f64, self.stats.n_s as f64);
        let drawn = self.stats.drawn as f64;
        // The variance of a total from a uniform sample whose values have variance 1.
        let uniform = n_s * n_s * (1.0 / b - 1.0 / n_s);
        SampleStats {
            b: size,
            var_e: e.variance / uniform,
            trace_ev: ev.variance / uniform,
            trace_w: w.variance / uniform,
            // The squared error is subtracted here, because
            // `SampleStats::with_raised_variances` adds it again.
            // The last `max` may drop a NaN, because a rank of 1 is safe.
            nu: (1.0 / max_or_nan(self.inverse_rank - w.relative_error_squared, 1.0 / n_s))
                .max(1.0),
            kurtosis_e: 1.0 + drawn * e.relative_error_squared,
            kurtosis_w: 1.0 + drawn * w.relative_error_squared,
            unseen: self.design.unseen(self.reader, size, self.shift),
            ..self.stats
        }
    }

    /// Variances of the estimated totals of `w`, `e v` and `e`, from φ of each token.
    fn variances(&self, factors: &[f64]) -> [Variance; 3] {
        let Squares { w, ev, e } = &self.squares;
        let DesignSnapshot { weights, strata, drawn_by_stratum: drawn, .. } = self.snapshot;
        let mut sums = sum_squares_and_fourths(factors, weights, &self.squares);
        if let Some(Stratification { strata, .. }) = strata {
            for ([_, fourths], squares) in sums.iter_mut().zip([w, ev, e]) {
                let mut sums = vec![0.0; drawn.len()];
                for ((&stratum, factor), square) in strata.iter().zip(factors).zip(&**squares) {
                    sums[stratum] += factor * square;
                }
                let means = sums.iter().zip(drawn).map(|(sum, n)| sum * sum / n.max(1.0));
                *fourths -= means.sum::<f64>();
            }
        }
        sums.map(|[variance, fourths]| {
            let fourths = max_or_nan(fourths, 0.0);
            let relative_error_squared =
                if variance == 0.0 { 0.0 } else { fourths / (variance * variance) };
            Variance { variance, relative_error_squared }
        })
    }
}

/// Number of partial sums. Loops over this number of sums are compiled to vector instructions.
const LANES: usize = 16;

/// Sums of the `N` terms that `compute` returns for the numbers at each place of `M` columns of one
/// length.
#[inline(always)]
fn sum_terms<const M: usize, const N: usize>(
    columns: [&[f64]; M],
    compute: impl Fn([f64; M]) -> [f64; N],
) -> [f64; N] {
    let mut sums = [[0.0; LANES]; N];
    let len = columns[0].len();
    let whole = len / LANES * LANES;
    for first in (0..whole).step_by(LANES) {
        let columns: [&[f64; LANES]; M] = std::array::from_fn(|column| {
            columns[column][first..].first_chunk().expect("all columns have one length")
        });
        for lane in 0..LANES {
            let terms = compute(columns.map(|column| column[lane]));
            for (sums, term) in sums.iter_mut().zip(terms) {
                sums[lane] += term;
            }
        }
    }
    for place in whole..len {
        let terms = compute(columns.map(|column| column[place]));
        for (sums, term) in sums.iter_mut().zip(terms) {
            sums[place - whole] += term;
        }
    }
    sums.map(|mut sums| {
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                sums[lane] += sums[lane + half];
            }
        }
        sums[0]
    })
}

/// `Σ φ |x − m|²`, and the sum of its squared terms, each multiplied by its weight, for `w`, `e v`
/// and `e`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma", "x86_64+avx2+fma"))]
fn sum_squares_and_fourths(factors: &[f64], weights: &[f64], squares: &Squares) -> [[f64; 2]; 3] {
    let columns = [factors, weights, &squares.w, &squares.ev, &squares.e];
    let [w, w_fourths, ev, ev_fourths, e, e_fourths] =
        sum_terms(columns, |[factor, weight, w, ev, e]| {
            let [w, ev, e] = [factor * w, factor * ev, factor * e];
            [w, w * w * weight, ev, ev * ev * weight, e, e * e * weight]
        });
    [[w, w_fourths], [ev, ev_fourths], [e, e_fourths]]
}

/// Variance of the total of `w`, `Σ φ |w − m|²`, and the sum of its squared terms.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma", "x86_64+avx2+fma"))]
fn traces(factors: &[f64], w: &[f64]) -> [f64; 2] {
    sum_terms([factors, w], |[factor, w]| {
        let term = factor * w;
        [term, term * term]
    })
}

impl Squares {
    /// Memory for the squares of this number of tokens, whose values are unspecified.
    fn unset(tokens: usize) -> Self {
        Self { w: Scratch::new(tokens), ev: Scratch::new(tokens), e: Scratch::new(tokens) }
    }

    /// Squares for independent draws, where `m` is 0.
    fn new(sample: &WeightedEstimates<'_>) -> Self {
        let mut squares = Self::unset(sample.e.len());
        set_squares(sample, &mut squares);
        squares
    }

    /// Squares for draws within strata. `strata` `[b]` has the stratum of each token.
    fn within(sample: &WeightedEstimates<'_>, within: &StratumCentres, strata: &[usize]) -> Self {
        let WeightedEstimates { e, norms, out_squared, .. } = sample;
        let mut squares = Self::unset(strata.len());
        for (i, &stratum) in strata.iter().enumerate() {
            let (centre, dot_centre) = (within.centres[stratum], within.dot_centre[i]);
            let along = along_centre(sample, i, centre, dot_centre);
            let w = sample.square(i) - 2.0 * along + centre.square_of_w(*out_squared);
            let ev = (e[i] * norms[i]).powi(2) - 2.0 * e[i] * dot_centre + centre.squared;
            squares.w[i] = max_or_nan(w, 0.0);
            squares.ev[i] = max_or_nan(ev, 0.0);
            squares.e[i] = (e[i] - centre.e).powi(2);
        }
        squares
    }
}

/// `w · m` of a token, where `m` is its stratum's centre and `dot_centre` is `v · μ`.
fn along_centre(sample: &WeightedEstimates<'_>, i: usize, centre: Centre, dot_centre: f64) -> f64 {
    let (e, dot_out, out_squared) = (sample.e[i], sample.dot_out[i], sample.out_squared);
    e * (dot_centre - centre.e * dot_out - centre.dot_out + centre.e * out_squared)
}

/// `|w|²`, `|e v|²` and `e²` of each token, from products of its value.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma", "x86_64+avx2+fma"))]
fn set_squares(sample: &WeightedEstimates<'_>, out: &mut Squares) {
    let WeightedEstimates { e, norms, dot_out, out_squared, .. } = sample;
    let tokens = e.len();
    // Slices of one length, so that the loop has no bounds checks.
    let (norms, dot_out) = (&norms[..tokens], &dot_out[..tokens]);
    let Squares { w: out_w, ev: out_ev, e: out_e } = out;
    let (out_w, out_ev) = (&mut out_w[..tokens], &mut out_ev[..tokens]);
    let out_e = &mut out_e[..tokens];
    for i in 0..tokens {
        let (e, norm) = (e[i] * e[i], norms[i] * norms[i]);
        let w = e * (norm - 2.0 * dot_out[i] + out_squared);
        // `max` would replace a NaN by 0.
        out_w[i] = if w < 0.0 { 0.0 } else { w };
        out_ev[i] = e * norm;
        out_e[i] = e;
    }
}

/// Statistics of a sample of `size` tokens apart from its variances, which are not set.
fn stats(size: usize, sample: &WeightedEstimates<'_>, residual: &Residual) -> SampleStats {
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

/// Estimate of the alignment `Tr(S²) / Tr(S)²` for the covariance `S` of the total of `w`, from
/// pairs of different tokens, each weighted by its contribution to the trace (docs/guarantees.md,
/// first term of eq. 7'). `None` for fewer than four tokens, or if all terms are 0.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma", "x86_64+avx2+fma"))]
fn alignment_of_tokens(
    sample: &WeightedEstimates<'_>,
    factors: &[f64],
    squares: &[f64],
) -> Option<f64> {
    const FOUR: usize = WeightedEstimates::FOUR;
    let WeightedEstimates { e, dot_out, out_squared, fours, .. } = sample;
    let (mut parallel, mut all) = (0.0, 0.0);
    let (e, dot_out) = (e.as_chunks::<FOUR>().0, dot_out.as_chunks::<FOUR>().0);
    let (factors, squares) = (factors.as_chunks::<FOUR>().0, squares.as_chunks::<FOUR>().0);
    for (four, products) in fours.iter().enumerate() {
        let (e, dot_out) = (e[four], dot_out[four]);
        let (factors, squares) = (factors[four], squares[four]);
        let weights: [f64; FOUR] = std::array::from_fn(|i| factors[i] * e[i] * e[i]);
        let terms: [f64; FOUR] = std::array::from_fn(|i| factors[i] * squares[i]);
        for (product, (i, j)) in products.iter().zip(WeightedEstimates::PAIRS) {
            let product = product - dot_out[i] - dot_out[j] + out_squared;
            parallel += weights[i] * weights[j] * (product * product);
            all += terms[i] * terms[j];
        }
    }
    (all > 0.0).then(|| parallel / all)
}

/// Upper bound on the alignment for draws within strata, from pairs of tokens of one stratum: the
/// mean of the strata's alignments, weighted by their parts of the trace (first term of eq. 7'').
/// A stratum without such pairs has alignment 1, as if all its tokens were parallel.
fn alignment_within(
    sample: &WeightedEstimates<'_>,
    within: &StratumCentres,
    strata: &[usize],
    factors: &[f64],
    squares: &[f64],
) -> f64 {
    const FOUR: usize = WeightedEstimates::FOUR;
    let mut sums = vec![StratumSums::default(); within.centres.len()];
    for ((&stratum, factor), square) in strata.iter().zip(factors).zip(squares) {
        sums[stratum].trace += factor * square;
    }
    for (four, strata) in strata.chunks_exact(FOUR).enumerate() {
        let products = sample.products(four);
        let along = |i: usize| {
            let token = FOUR * four + i;
            along_centre(sample, token, within.centres[strata[i]], within.dot_centre[token])
        };
        for (product, (i, j)) in products.into_iter().zip(WeightedEstimates::PAIRS) {
            if strata[i] != strata[j] {
                continue;
            }
            let square_of_centre = within.centres[strata[i]].square_of_w(sample.out_squared);
            let product = product - along(i) - along(j) + square_of_centre;
            let sums = &mut sums[strata[i]];
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
    /// `Tr(S²) / Tr(S)²` of the stratum's covariance `S`, or 1 if there are no pairs.
    fn alignment(&self) -> f64 {
        if self.all > 0.0 { (self.parallel / self.all).min(1.0) } else { 1.0 }
    }
}

#[cfg(test)]
mod tests;
