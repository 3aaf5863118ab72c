//! Statistics of a sample, from which estimators bound its error.

use crate::{
    sample::{Residual, Unseen},
    step::Softmax,
};

/// `Φ⁻¹(0.9)`: by how many of its own standard errors an estimated variance is raised. The true one is
/// larger with probability 0.1, if estimates are normal.
pub const ALLOWANCE: f64 = 1.281_551_565_544_600_4;

/// Statistics of one row at one check, from all tokens drawn so far, in draw order.
///
/// They are those of a uniform sample. Of another design they are what a uniform sample of as many
/// tokens would show that errs as much: `n_s² (1/b − 1/n_s)` times a variance is that of the total.
///
/// Per residual token, `e = exp(logit − shift)`, and `w = e (v − N^/D^)`. Sums over the residual
/// are estimated by `n_s / b` times the sample's. Everything is relative to one shift, which no
/// budget depends on. Variances have the divisor `b − 1`; they are NaN for `b = 1` and 0 for
/// `b = 0`, when nothing has been drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleStats {
    /// Tokens drawn so far, which the moments are from.
    pub drawn: usize,
    /// Tokens of the sample that is judged: as many, or a larger one of the same moments.
    pub b: usize,
    /// Tokens in the residual.
    pub n_s: usize,
    /// Tokens that the row may read.
    pub visible: usize,
    /// Query heads of the layer.
    pub query_heads: usize,
    /// Elements of a value; no covariance of values has a higher rank.
    pub value_dim: usize,
    /// Estimate `D^` of the softmax denominator.
    pub d: f64,
    /// The certain tokens' part of it, which is exact.
    pub d_certain: f64,
    /// Norm of the estimate `N^` of the numerator.
    pub norm_n: f64,
    /// `|o^ − c|`: how far the estimate `o^ = N^/D^` is from `c`, the certain tokens' own output;
    /// `c` is 0 if there are none.
    pub drift: f64,
    /// Sample variance of `e`.
    pub var_e: f64,
    /// Trace of the sample covariance of `e v`.
    pub trace_ev: f64,
    /// Trace of the sample covariance of `w`.
    pub trace_w: f64,
    /// Effective rank `Tr(S)² / Tr(S²)` of the covariance of `w`, shrunk to be safe; at least 1.
    pub nu: f64,
    /// Kurtosis of `e`; 3 for a Gaussian.
    pub kurtosis_e: f64,
    /// `b Σ|w|⁴ / (Σ|w|²)²` of the centred `w`.
    pub kurtosis_w: f64,
    /// The largest norm of a visible value; 0 for designs that are not uniform.
    pub max_norm_v: f64,
    /// The largest `e` that an untaken token can have, if an exact selector promised one.
    pub bound: Option<f64>,
    /// The design's bounds on the tokens that the sample may have missed, if it has any.
    pub unseen: Option<Unseen>,
}

/// A sample of the residual, and what is known of the rest.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// `e` of each drawn token, `[b]`, in draw order.
    pub e: &'a [f64],
    /// Their values, `[b · value_dim]`.
    pub values: &'a [f32],
    /// Sums over the certain tokens, relative to the shift of `e`.
    pub certain: &'a Softmax,
    /// Tokens in the residual.
    pub n_s: usize,
    /// Tokens that the row may read.
    pub visible: usize,
    /// Query heads of the layer.
    pub query_heads: usize,
    /// The largest norm of a visible value.
    pub max_norm_v: f64,
    /// The largest `e` that an untaken token can have.
    pub bound: Option<f64>,
}

/// Sums that the statistics follow from, however they were made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moments {
    /// Elements of a value.
    pub value_dim: usize,
    /// `D^`, and the certain tokens' part of it.
    pub d: f64,
    /// The certain tokens' part of `D^`.
    pub d_certain: f64,
    /// `|N^|²`.
    pub norm_n_squared: f64,
    /// `|N^/D^ − c|`, `c` being the certain tokens' own output.
    pub drift: f64,
    /// Deviations of `e`.
    pub e: Deviations,
    /// Sum of the squared deviations of `e v`.
    pub ev_squares: f64,
    /// Deviations of `w`.
    pub w: Deviations,
    /// An estimate of `Tr(S²)` of the covariance of `w`.
    pub trace_of_square: f64,
}

impl Moments {
    /// The sums over a sample of a residual of `n_s` tokens: weights `e` `[b]`, values
    /// `[b · value_dim]`, beside the sums over the certain tokens, relative to the shift of `e`. In f64, which is the definition. Cost O(b · value_dim), a handful of passes.
    pub fn new(e: &[f64], values: &[f32], certain: &Softmax, n_s: usize) -> Self {
        let dim = certain.numerator().len();
        let scale = scale_up(e.len(), n_s);
        let ev = weighted_rows(e, values, &vec![0.0; dim]);
        let d = certain.denominator() + scale * e.iter().sum::<f64>();
        let both = certain.numerator().iter().zip(column_sums(&ev, dim));
        let n: Vec<f64> = both.map(|(n, s)| n + scale * s).collect();
        let out: Vec<f64> = n.iter().map(|n| n / d).collect();
        let w = centred(weighted_rows(e, values, &out), dim);
        let mean_e = e.iter().sum::<f64>() / e.len() as f64;
        Self {
            value_dim: dim,
            d,
            d_certain: certain.denominator(),
            norm_n_squared: n.iter().map(|n| n * n).sum(),
            drift: drift(&out, certain),
            e: e.iter().map(|e| (e - mean_e).powi(2)).collect(),
            ev_squares: squared_norms(&centred(ev, dim), dim).iter().sum(),
            w: squared_norms(&w, dim).into_iter().collect(),
            trace_of_square: trace_of_square(&w, dim),
        }
    }
}

/// Sums of powers of the deviations of a sample's tokens from their mean.
#[derive(Clone, Copy, Debug, Default)]
pub struct Deviations {
    /// `Σ |x − mean|²`.
    pub squares: f64,
    /// `Σ |x − mean|⁴`.
    pub fourths: f64,
}

impl FromIterator<f64> for Deviations {
    /// From the squared deviations.
    fn from_iter<I: IntoIterator<Item = f64>>(squares: I) -> Self {
        squares.into_iter().fold(Self::default(), |sum, x| Self {
            squares: sum.squares + x,
            fourths: sum.fourths + x * x,
        })
    }
}

impl SampleStats {
    /// The statistics of a sample. Cost O(b · value_dim), a handful of passes.
    pub fn new(sample: &Sample<'_>) -> Self {
        let residual = Residual {
            n_s: sample.n_s,
            visible: sample.visible,
            query_heads: sample.query_heads,
            max_norm_v: sample.max_norm_v,
            bound: sample.bound,
        };
        let Sample { e, values, certain, n_s, .. } = *sample;
        let moments = Moments::new(e, values, certain, n_s);
        Self::from_moments(e.len(), &moments, &residual)
    }

    /// The statistics of a sample of `b` tokens, from its sums. In `residual`, the bound is of
    /// `e`, relative to the shift of the sums.
    pub fn from_moments(b: usize, moments: &Moments, residual: &Residual<f64>) -> Self {
        let n_s = residual.n_s;
        let divide = |sum: f64| match b {
            0 => 0.0,
            1 => f64::NAN,
            _ => sum / (b as f64 - 1.0),
        };
        let (trace_ev, trace_w) = (divide(moments.ev_squares), divide(moments.w.squares));
        Self {
            drawn: b,
            b,
            n_s,
            visible: residual.visible,
            query_heads: residual.query_heads,
            value_dim: moments.value_dim,
            d: moments.d,
            d_certain: moments.d_certain,
            norm_n: moments.norm_n_squared.sqrt(),
            drift: moments.drift,
            var_e: divide(moments.e.squares),
            trace_ev,
            trace_w,
            nu: effective_rank(b, trace_w, moments.trace_of_square),
            kurtosis_e: kurtosis(b, &moments.e),
            kurtosis_w: kurtosis(b, &moments.w),
            max_norm_v: residual.max_norm_v,
            bound: residual.bound,
            unseen: None,
        }
    }
}

impl SampleStats {
    /// The statistics of a sample of `b` tokens with the same moments. How much these are in doubt
    /// depends on the tokens drawn, so it stays as it is.
    #[must_use]
    pub fn with_size(&self, b: usize) -> Self {
        Self { b, ..*self }
    }

    /// The statistics with variances larger by `z` of the standard errors of their estimates, and an
    /// effective rank that counts heavy tokens; unchanged for `z = 0`.
    ///
    /// A variance is multiplied by `1 + z √((kurtosis − 1) / drawn)`. Pairs of different tokens, from which
    /// the rank is estimated, do not see that a token is parallel to itself: `Σ |w|⁴ / (Σ |w|²)²`
    /// of the sample, which is `kurtosis / drawn`, is added to its inverse beyond `1 / drawn`.
    #[must_use]
    pub fn raised(&self, z: f64) -> Self {
        if z == 0.0 {
            return *self;
        }
        let excess = |kurtosis: f64| max_or_nan(kurtosis - 1.0, 0.0) / self.drawn.max(1) as f64;
        let [raise_e, raise_w] =
            [self.kurtosis_e, self.kurtosis_w].map(|kurtosis| 1.0 + z * excess(kurtosis).sqrt());
        Self {
            var_e: self.var_e * raise_e,
            trace_ev: self.trace_ev * raise_w,
            trace_w: self.trace_w * raise_w,
            nu: 1.0 / (1.0 / self.nu + excess(self.kurtosis_w)),
            ..*self
        }
    }
}

/// Distance of an output from that of the certain tokens alone, or from 0 if there are none.
pub fn drift(out: &[f64], certain: &Softmax) -> f64 {
    let d = certain.denominator();
    let centre = certain.numerator().iter().map(|n| if d > 0.0 { n / d } else { 0.0 });
    out.iter().zip(centre).map(|(o, c)| (o - c).powi(2)).sum::<f64>().sqrt()
}

/// `n_s / b`: what a sum over the sample is multiplied by.
pub fn scale_up(b: usize, n_s: usize) -> f64 {
    if b == 0 { 0.0 } else { n_s as f64 / b as f64 }
}

/// `e (v − centre)` of each token, `[b · dim]`.
fn weighted_rows(e: &[f64], values: &[f32], centre: &[f64]) -> Vec<f64> {
    let rows = values.chunks_exact(centre.len());
    let mut out = Vec::with_capacity(values.len());
    for (e, row) in e.iter().zip(rows) {
        out.extend(row.iter().zip(centre).map(|(&v, c)| e * (f64::from(v) - c)));
    }
    out
}

/// The sum of rows `[b · dim]`.
fn column_sums(rows: &[f64], dim: usize) -> Vec<f64> {
    let mut sums = vec![0.0; dim];
    for row in rows.chunks_exact(dim) {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    sums
}

/// Rows less their mean.
fn centred(mut rows: Vec<f64>, dim: usize) -> Vec<f64> {
    let count = (rows.len() / dim) as f64;
    let mean: Vec<f64> = column_sums(&rows, dim).into_iter().map(|sum| sum / count).collect();
    for row in rows.chunks_exact_mut(dim) {
        row.iter_mut().zip(&mean).for_each(|(x, m)| *x -= m);
    }
    rows
}

fn squared_norms(rows: &[f64], dim: usize) -> Vec<f64> {
    rows.chunks_exact(dim).map(|row| row.iter().map(|x| x * x).sum()).collect()
}

/// The Euclidean norm of a value.
pub(crate) fn norm(value: &[f32]) -> f64 {
    value.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt()
}

/// The larger of two numbers; NaN if one is NaN, which `f64::max` would drop.
///
/// A bound that is NaN is no bound: it must reach [`Radius::new`](crate::plugin::Radius::new), which makes
/// it infinite.
pub fn max_or_nan(x: f64, least: f64) -> f64 {
    if x.is_nan() || least.is_nan() { f64::NAN } else { x.max(least) }
}

/// `b Σ x⁴ / (Σ x²)²` of deviations `x`; 1 if they are all zero.
fn kurtosis(b: usize, x: &Deviations) -> f64 {
    if x.squares == 0.0 { 1.0 } else { b as f64 * x.fourths / (x.squares * x.squares) }
}

/// `Tr(S)² / Tr(S²)`, with `1/b` added to its inverse so that it errs low (eq. 7).
fn effective_rank(b: usize, trace: f64, trace_of_square: f64) -> f64 {
    if b == 0 {
        return 1.0;
    }
    let raw = if trace_of_square == 0.0 { f64::INFINITY } else { trace * trace / trace_of_square };
    // A rank of 1 is safe, so `f64::max` may drop a NaN.
    (1.0 / (1.0 / raw.max(1.0) + 1.0 / b as f64)).max(1.0)
}

/// An unbiased estimate of `Tr(S²)`: differences of disjoint pairs are independent with
/// covariance `2S`, so the squared product of two of them has the mean `4 Tr(S²)`.
fn trace_of_square(rows: &[f64], dim: usize) -> f64 {
    let differences: Vec<f64> = rows
        .chunks_exact(2 * dim)
        .flat_map(|pair| (0..dim).map(|j| pair[j] - pair[dim + j]))
        .collect();
    let differences: Vec<&[f64]> = differences.chunks_exact(dim).collect();
    let mut sum = 0.0;
    for lag in 1..=LAGS.min(differences.len().saturating_sub(1)) {
        for (x, y) in differences.iter().zip(&differences[lag..]) {
            sum += x.iter().zip(*y).map(|(x, y)| x * y).sum::<f64>().powi(2);
        }
    }
    mean_of_lagged_squares(differences.len(), sum)
}

/// Lags at which differences are multiplied to estimate `Tr(S²)`.
pub const LAGS: usize = 4;

/// The estimate of `Tr(S²)` from the sum, over all lags up to [`LAGS`], of the squared products of
/// `differences` differences.
pub fn mean_of_lagged_squares(differences: usize, sum: f64) -> f64 {
    let products: usize = (1..=LAGS).map(|lag| differences.saturating_sub(lag)).sum();
    if products > 0 { sum / (4.0 * products as f64) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Statistics of tokens of equal weight, with one number as a value, and nothing certain.
    fn stats(values: &[f32], n_s: usize) -> SampleStats {
        SampleStats::new(&Sample {
            e: &vec![1.0; values.len()],
            values,
            certain: &Softmax::new(1),
            n_s,
            visible: n_s,
            query_heads: 1,
            max_norm_v: 0.0,
            bound: None,
        })
    }

    #[test]
    fn a_kurtosis_or_rank_that_is_not_a_number_is_not_taken_for_a_good_one() {
        let unknown = SampleStats { kurtosis_w: f64::NAN, ..stats(&[1.0, 2.0, 4.0], 1000) };
        assert!(unknown.raised(1.0).trace_w.is_nan());
        assert!(kurtosis(5, &Deviations { squares: f64::NAN, fourths: 1.0 }).is_nan());
        assert_eq!(effective_rank(1000, 1.0, f64::NAN), 1.0);
        assert!(max_or_nan(f64::NAN, 0.0).is_nan() && max_or_nan(0.0, f64::NAN).is_nan());
        assert_eq!(max_or_nan(-1.0, 0.0), 0.0);
    }

    #[test]
    fn the_effective_rank_of_numbers_is_one() {
        let alternating: Vec<f32> = (0..64_u8).map(|i| f32::from(i % 2)).collect();
        assert_eq!(stats(&alternating, 1000).nu, 1.0);
    }
}
