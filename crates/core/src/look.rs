//! What a sample of any design says of its own error: the definition, in f64.
//!
//! With `w = e (v − o^)` the output's error is `W^ / D^`. The variances of `W^`, `N^` and `D^` at a size
//! are `Σ φ |x − m|²` over the sample, `x` being `w`, `e v` or `e`, and φ and `m` the design's. Estimators
//! are told them as a uniform sample of that size would have them, which errs as much: they are divided
//! by `n_s² (1/size − 1/n_s)`.

use crate::stats::{drift, norm, squared_norms, weighted_rows};
use crate::{Design, Sample, SampleStats};

/// One look at a sample, from which follows what a larger one would show.
pub(crate) struct Look<'a> {
    design: &'a dyn Design,
    reader: usize,
    shift: f64,
    /// All but what depends on the size.
    stats: SampleStats,
    /// `|x − m|²` of each token drawn, for `w`, `e v` and `e`.
    squares: [Vec<f64>; 3],
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

impl<'a> Look<'a> {
    /// Looks at a sample of `size`, whose exponentials are relative to `shift`. O(drawn · value_dim²).
    pub(crate) fn new(
        design: &'a dyn Design,
        reader: usize,
        size: usize,
        sample: &Sample<'_>,
        shift: f64,
    ) -> Self {
        let dim = sample.certain.numerator().len();
        let p = design.probabilities();
        let strata = design.strata().map(|of| {
            let mut drawn = vec![0.0; of.iter().max().map_or(0, |last| last + 1)];
            for &stratum in &of {
                drawn[stratum] += 1.0;
            }
            (of, drawn)
        });
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
        let centred = |rows: Vec<f64>, dim: usize| match &strata {
            Some((of, drawn)) => centred(rows, dim, of, drawn),
            None => rows,
        };
        let w = centred(rows(&out), dim);
        let squares = [
            squared_norms(&w, dim),
            squared_norms(&centred(rows(&vec![0.0; dim]), dim), dim),
            squared_norms(&centred(sample.e.to_vec(), 1), 1),
        ];
        let shares: Vec<f64> = match &strata {
            Some(_) => vec![1.0; p.len()],
            None => p.iter().map(|p| 1.0 - p).collect(),
        };
        let factors = design.factors(size);
        let variance_n: f64 = factors.iter().zip(&squares[1]).map(|(f, x)| f * x).sum();
        let norm_squared: f64 = n.iter().map(|n| n * n).sum();
        let inverse_rank = Covariance::new(&w, dim, &factors, &shares).inverse_rank();
        let stats = SampleStats {
            b: size,
            n_s: sample.n_s,
            visible: sample.visible,
            query_heads: sample.query_heads,
            value_dim: dim,
            d,
            d_certain: sample.certain.denominator(),
            norm_n: norm_squared.sqrt(),
            norm_n_debiased: (norm_squared - variance_n).max(0.05 * norm_squared).sqrt(),
            drift: drift(&out, sample.certain),
            var_e: f64::NAN,
            trace_ev: f64::NAN,
            trace_w: f64::NAN,
            nu: f64::NAN,
            kurtosis_e: f64::NAN,
            kurtosis_w: f64::NAN,
            sum_e_norm_v: norms,
            max_norm_v: sample.max_norm_v,
            bound: None,
            unseen: None,
        };
        Self { design, reader, shift, stats, squares, shares, strata, inverse_rank }
    }

    /// What a sample of `size` says, at least that of the one looked at and less than the residual.
    pub(crate) fn at(&self, size: usize) -> SampleStats {
        let factors = self.design.factors(size);
        let [w, ev, e] = [0, 1, 2].map(|which| self.variance(&factors, &self.squares[which]));
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

    /// The size of the sample looked at.
    pub(crate) fn size(&self) -> usize {
        self.stats.b
    }

    fn variance(&self, factors: &[f64], squares: &[f64]) -> Variance {
        let terms = || factors.iter().zip(squares).map(|(f, x)| f * x);
        let total: f64 = terms().sum();
        let mut fourths: f64 = terms().zip(&self.shares).map(|(x, share)| x * x * share).sum();
        if let Some((of, drawn)) = &self.strata {
            let mut sums = vec![0.0; drawn.len()];
            of.iter().zip(terms()).for_each(|(&stratum, x)| sums[stratum] += x);
            fourths -= sums.iter().zip(drawn).map(|(sum, n)| sum * sum / n.max(1.0)).sum::<f64>();
        }
        let doubt = if total > 0.0 { fourths.max(0.0) / (total * total) } else { 0.0 };
        Variance { total, doubt }
    }
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
