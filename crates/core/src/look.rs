//! What a sample of any design says of its own error: the definition, in f64.
//!
//! With `w = e (v − o^)` the output's error is `W^ / D^`. The variances of `W^`, `N^` and `D^` at a size
//! are `Σ φ |x − m|²` over the sample, `x` being `w`, `e v` or `e`, and φ and `m` the design's. Estimators
//! are told them as a uniform sample of that size would have them, which errs as much: they are divided
//! by `n_s² (1/size − 1/n_s)`.

use crate::stats::{drift, norm, squared_norms, weighted_rows};
use crate::tally::Residual;
use crate::{Design, Sample, SampleStats, Weighed};

/// One look at a sample, from which follows what a larger one would show.
pub(crate) struct Look<'a> {
    design: &'a dyn Design,
    reader: usize,
    shift: f64,
    /// All but what depends on the size.
    stats: SampleStats,
    /// `|x − m|²` of each token drawn, for `w`, `e v` and `e`.
    squares: Vec<[f64; 3]>,
    /// How much of its own square a term adds to the variance of a variance.
    shares: Vec<f64>,
    /// The stratum of each, and how many tokens each stratum has drawn.
    strata: Option<(Vec<usize>, Vec<f64>)>,
    /// `1 / rank`, and how much of it is due to the heaviest terms.
    inverse_rank: f64,
}

/// The variances of a total at a size, and the squared relative error of its estimate.
struct Variance {
    total: f64,
    doubt: f64,
}

/// What estimated sums come to.
struct Sums {
    d: f64,
    d_certain: f64,
    norm_n_squared: f64,
    drift: f64,
    /// `Σ e |v|`.
    norms: f64,
}

impl<'a> Look<'a> {
    /// Looks at a sample of `size` whose tokens were drawn independently of each other. O(drawn).
    pub(crate) fn of_independent(
        design: &'a dyn Design,
        reader: usize,
        size: usize,
        sample: &Weighed,
        residual: &Residual,
    ) -> Self {
        let Weighed { e, norms, by_out, out_squared, .. } = sample;
        let of_token = |((e, norm), by_out): ((&f64, &f64), &f64)| {
            let (e2, square) = (e * e, norm * norm);
            [e2 * (square - 2.0 * by_out + out_squared).max(0.0), e2 * square, e2]
        };
        let squares: Vec<[f64; 3]> = e.iter().zip(norms).zip(by_out).map(of_token).collect();
        let factors = design.factors(size);
        let inverse_rank = inverse_rank_of_pairs(sample, &factors, &squares);
        let sums = Sums {
            d: sample.d,
            d_certain: sample.d_certain,
            norm_n_squared: out_squared * sample.d * sample.d,
            drift: sample.drift,
            norms: sample.sum_e_norm_v,
        };
        let stats = stats(size, &sums, variance_n(&factors, &squares), sample.value_dim, residual);
        let shares = design.probabilities().into_iter().map(|p| 1.0 - p).collect();
        let shift = sample.shift;
        Self { design, reader, shift, stats, squares, shares, strata: None, inverse_rank }
    }

    /// Looks at a sample of `size`, drawn within the strata `of` its tokens, whose exponentials are relative to
    /// `shift`. O(drawn · value_dim²).
    pub(crate) fn of_strata(
        design: &'a dyn Design,
        of: Vec<usize>,
        reader: usize,
        size: usize,
        sample: &Sample<'_>,
        shift: f64,
    ) -> Self {
        let dim = sample.certain.numerator().len();
        let p = design.probabilities();
        let mut drawn = vec![0.0; of.iter().max().map_or(0, |last| last + 1)];
        for &stratum in &of {
            drawn[stratum] += 1.0;
        }
        let values = || sample.values.chunks_exact(dim);
        let (mut d, mut n) = (sample.certain.denominator(), sample.certain.numerator().to_vec());
        let mut norms = sample.certain_norms;
        for ((e, value), p) in sample.e.iter().zip(values()).zip(&p) {
            let e = e / p;
            d += e;
            n.iter_mut().zip(value).for_each(|(n, &v)| *n += e * f64::from(v));
            norms += e * norm(value);
        }
        let out: Vec<f64> = n.iter().map(|n| n / d).collect();
        let rows = |centre: &[f64]| weighted_rows(sample.e, sample.values, centre);
        let w = centred(rows(&out), dim, &of, &drawn);
        let of_ev = squared_norms(&centred(rows(&vec![0.0; dim]), dim, &of, &drawn), dim);
        let of_e = squared_norms(&centred(sample.e.to_vec(), 1, &of, &drawn), 1);
        let of_w = squared_norms(&w, dim).into_iter();
        let squares: Vec<[f64; 3]> =
            of_w.zip(of_ev).zip(of_e).map(|((w, ev), e)| [w, ev, e]).collect();
        let shares = vec![1.0; p.len()];
        let factors = design.factors(size);
        let inverse_rank = Covariance::new(&w, dim, &factors, &shares).inverse_rank();
        let sums = Sums {
            d,
            d_certain: sample.certain.denominator(),
            norm_n_squared: n.iter().map(|n| n * n).sum(),
            drift: drift(&out, sample.certain),
            norms,
        };
        let Sample { n_s, visible, query_heads, max_norm_v, .. } = *sample;
        let residual = Residual { n_s, visible, query_heads, max_norm_v, bound: None };
        let stats = stats(size, &sums, variance_n(&factors, &squares), dim, &residual);
        let strata = Some((of, drawn));
        Self { design, reader, shift, stats, squares, shares, strata, inverse_rank }
    }

    /// What a sample of `size` says, at least that of the one looked at and less than the residual.
    pub(crate) fn at(&self, size: usize) -> SampleStats {
        let factors = self.design.factors(size);
        let [w, ev, e] = self.variances(&factors);
        let (b, n_s) = (size as f64, self.stats.n_s as f64);
        let alike = n_s * n_s * (1.0 / b - 1.0 / n_s);
        SampleStats {
            b: size,
            var_e: e.total / alike,
            trace_ev: ev.total / alike,
            trace_w: w.total / alike,
            // The doubt is added when variances are raised.
            nu: (1.0 / (self.inverse_rank - w.doubt).max(1.0 / n_s)).max(1.0),
            kurtosis_e: 1.0 + b * e.doubt,
            kurtosis_w: 1.0 + b * w.doubt,
            unseen: self.design.unseen(self.reader, size, self.shift),
            ..self.stats
        }
    }

    fn variances(&self, factors: &[f64]) -> [Variance; 3] {
        let (mut totals, mut fourths) = ([0.0; 3], [0.0; 3]);
        for ((factor, squares), share) in factors.iter().zip(&self.squares).zip(&self.shares) {
            for which in 0..3 {
                let term = factor * squares[which];
                totals[which] += term;
                fourths[which] += term * term * share;
            }
        }
        if let Some((of, drawn)) = &self.strata {
            let mut sums = vec![[0.0; 3]; drawn.len()];
            for ((&stratum, factor), squares) in of.iter().zip(factors).zip(&self.squares) {
                (0..3).for_each(|which| sums[stratum][which] += factor * squares[which]);
            }
            for (sums, n) in sums.iter().zip(drawn) {
                (0..3).for_each(|which| fourths[which] -= sums[which].powi(2) / n.max(1.0));
            }
        }
        [0, 1, 2].map(|which| {
            let (total, fourths) = (totals[which], fourths[which].max(0.0));
            Variance { total, doubt: if total > 0.0 { fourths / (total * total) } else { 0.0 } }
        })
    }
}

/// All statistics of a sample of `size` that do not depend on a larger one; variances are missing.
fn stats(
    size: usize,
    sums: &Sums,
    variance_n: f64,
    value_dim: usize,
    residual: &Residual,
) -> SampleStats {
    let Sums { d, d_certain, norm_n_squared: norm_squared, drift, norms } = *sums;
    let Residual { n_s, visible, query_heads, max_norm_v, .. } = *residual;
    SampleStats {
        b: size,
        n_s,
        visible,
        query_heads,
        value_dim,
        d,
        d_certain,
        norm_n: norm_squared.sqrt(),
        norm_n_debiased: (norm_squared - variance_n).max(0.05 * norm_squared).sqrt(),
        drift,
        var_e: f64::NAN,
        trace_ev: f64::NAN,
        trace_w: f64::NAN,
        nu: f64::NAN,
        kurtosis_e: f64::NAN,
        kurtosis_w: f64::NAN,
        sum_e_norm_v: norms,
        max_norm_v,
        bound: None,
        unseen: None,
    }
}

/// The variance of `N^`.
fn variance_n(factors: &[f64], squares: &[[f64; 3]]) -> f64 {
    factors.iter().zip(squares).map(|(factor, [_, ev, _])| factor * ev).sum()
}

/// `Tr(S²) / Tr(S)²` of the covariance `S` of a total of `w` from pairs of different tokens, each weighed by what
/// it adds to the trace, and what tokens add that are parallel to themselves: so it errs high (docs/guarantees.md, eq. 7).
/// 1 of fewer than four tokens.
fn inverse_rank_of_pairs(sample: &Weighed, factors: &[f64], squares: &[[f64; 3]]) -> f64 {
    let Weighed { e, by_out, out_squared, fours, .. } = sample;
    let (mut parallel, mut all) = (0.0, 0.0);
    for (four, products) in fours.iter().enumerate() {
        for ((i, j), product) in Weighed::PAIRS.into_iter().zip(products) {
            let (i, j) = (Weighed::FOUR * four + i, Weighed::FOUR * four + j);
            let factor = factors[i] * factors[j];
            let product = e[i] * e[j] * (product - by_out[i] - by_out[j] + out_squared);
            parallel += factor * product * product;
            all += factor * squares[i][0] * squares[j][0];
        }
    }
    let terms = || factors.iter().zip(squares).map(|(factor, [w, ..])| factor * w);
    let (trace, fourths) = (terms().sum::<f64>(), terms().map(|x| x * x).sum::<f64>());
    if all > 0.0 { (parallel / all).min(1.0) + fourths / (trace * trace) } else { 1.0 }
}

/// Rows less the mean of their stratum.
fn centred(mut rows: Vec<f64>, dim: usize, of: &[usize], drawn: &[f64]) -> Vec<f64> {
    let mut means = vec![0.0; drawn.len() * dim];
    for (&stratum, row) in of.iter().zip(rows.chunks_exact(dim)) {
        let mean = &mut means[stratum * dim..][..dim];
        mean.iter_mut().zip(row).for_each(|(mean, x)| *mean += x / drawn[stratum]);
    }
    for (&stratum, row) in of.iter().zip(rows.chunks_exact_mut(dim)) {
        let mean = &means[stratum * dim..][..dim];
        row.iter_mut().zip(mean).for_each(|(x, mean)| *x -= mean);
    }
    rows
}

/// What a sample says of the covariance `S` of a total of `w`, from `A = Σ φ w w'`.
struct Covariance {
    /// `Tr(S)`.
    trace: f64,
    /// `Tr(S²)`, without bias, if draws are independent.
    of_square: f64,
    /// `Σ φ² |w|⁴`.
    fourths: f64,
}

impl Covariance {
    /// `|A|²` exceeds `Tr(S²)` on average by a share of the squares of its own terms.
    fn new(w: &[f64], dim: usize, factors: &[f64], shares: &[f64]) -> Self {
        let mut sums = vec![0.0; dim * dim];
        let (mut trace, mut fourths, mut excess) = (0.0, 0.0, 0.0);
        for ((w, factor), share) in w.chunks_exact(dim).zip(factors).zip(shares) {
            // The upper triangle is kept.
            for (i, &x) in w.iter().enumerate() {
                let row = &mut sums[i * dim..][i..dim];
                row.iter_mut().zip(&w[i..]).for_each(|(sum, y)| *sum += factor * x * y);
            }
            let part = factor * w.iter().map(|x| x * x).sum::<f64>();
            trace += part;
            fourths += part * part;
            excess += part * part * share;
        }
        let squares = |i: usize| {
            let row = &sums[i * dim..][i..dim];
            2.0 * row.iter().map(|x| x * x).sum::<f64>() - row[0] * row[0]
        };
        let of_square = (0..dim).map(squares).sum::<f64>() - excess;
        Self { trace, of_square, fourths }
    }

    /// `Tr(S²) / Tr(S)²`, and what makes the rank err low (docs/guarantees.md, eq. 7): 1 over the number
    /// of tokens that would weigh as much if all weighed the same.
    fn inverse_rank(&self) -> f64 {
        let squared = self.trace * self.trace;
        if squared > 0.0 {
            (self.of_square.max(0.0) / squared).min(1.0) + self.fourths / squared
        } else {
            1.0
        }
    }
}

#[cfg(test)]
mod tests;
