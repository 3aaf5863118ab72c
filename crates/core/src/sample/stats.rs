//! Statistics of a sample, from which estimators bound its error.

use crate::{
    sample::{
        MissBounds, Residual,
        sums::{sum_of_squares, sum_terms},
    },
    step::Softmax,
};

/// Number of standard errors by which an estimated variance is raised, `Φ⁻¹(0.9)`. If estimates are
/// normal, the true variance exceeds the raised estimate with probability 0.1.
pub const ALLOWANCE: f64 = 1.281_551_565_544_600_4;

/// Statistics of one row at one check, from all tokens drawn so far, in draw order.
///
/// They describe a uniform sample. For other designs, they are the statistics of a uniform sample
/// with the same size and error: `n_s² (1/b − 1/n_s)` times a variance is the variance of the
/// estimated total.
///
/// For a token of the residual, `e = exp(logit − shift)` and `w = e (v − N^/D^)`. Sums over the
/// residual are estimated by `n_s / b` times the sums over the sample. All numbers are relative to
/// the same shift, on which no budget depends. Variances have the divisor `b − 1`. They are NaN for
/// `b = 1`, and 0 for `b = 0`, when nothing has been drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleStats {
    /// Number of tokens drawn so far, from which the moments are estimated.
    pub drawn: usize,
    /// Size of the sample that is described: the number of tokens drawn, or a larger number.
    pub b: usize,
    /// Number of tokens in the residual.
    pub n_s: usize,
    /// Number of tokens that the row may read.
    pub visible: usize,
    /// Number of query heads of the layer.
    pub query_heads: usize,
    /// Number of elements of a value, which limits the rank of covariances.
    pub value_dim: usize,
    /// Estimate `D^` of the softmax denominator.
    pub d: f64,
    /// Part of `D^` from the picked tokens and the attention sink, which is exact.
    pub d_certain: f64,
    /// Norm of the estimate `N^` of the numerator.
    pub norm_n: f64,
    /// Distance `|o^ − c|` of the estimated output `o^ = N^/D^` from the output `c` of the picked
    /// tokens and the attention sink. If no token is picked, `c` is 0.
    pub drift: f64,
    /// Sample variance of `e`.
    pub var_e: f64,
    /// Trace of the sample covariance of `e v`.
    pub trace_ev: f64,
    /// Trace of the sample covariance of `w`.
    pub trace_w: f64,
    /// Effective rank `Tr(S)² / Tr(S²)` of the covariance of `w`, at least 1, estimated to err low
    /// (docs/guarantees.md, eq. 7, 7' and 7'').
    pub nu: f64,
    /// Kurtosis of `e`; 3 for a Gaussian.
    pub kurtosis_e: f64,
    /// Kurtosis of `w`, `b Σ|w|⁴ / (Σ|w|²)²` of the centred `w`.
    pub kurtosis_w: f64,
    /// Largest norm of a visible value; 0 for designs that are not uniform.
    pub max_norm_v: f64,
    /// Upper bound on `e` of the residual's tokens, if a selector proved one.
    pub bound: Option<f64>,
    /// Bounds of the design on the weights that the sample may have missed, if it has any.
    pub unseen: Option<MissBounds>,
}

/// A sample of the residual for one row, and facts about the residual.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// `e` of each drawn token, `[b]`, in draw order.
    pub e: &'a [f64],
    /// Values of the drawn tokens, `[b · value_dim]`.
    pub values: &'a [f32],
    /// Sums over the picked tokens and the attention sink, relative to the shift of `e`.
    pub certain: &'a Softmax,
    /// Number of tokens in the residual.
    pub n_s: usize,
    /// Number of tokens that the row may read.
    pub visible: usize,
    /// Number of query heads of the layer.
    pub query_heads: usize,
    /// Largest norm of a visible value.
    pub max_norm_v: f64,
    /// Upper bound on `e` of the residual's tokens, if a selector proved one.
    pub bound: Option<f64>,
}

/// Sums over a sample from which its statistics follow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moments {
    /// Number of elements of a value.
    pub value_dim: usize,
    /// Estimate `D^` of the softmax denominator.
    pub d: f64,
    /// Part of `D^` from the picked tokens and the attention sink.
    pub d_certain: f64,
    /// `|N^|²`.
    pub norm_n_squared: f64,
    /// Distance `|N^/D^ − c|` from the output `c` of the picked tokens; see [`drift`].
    pub drift: f64,
    /// Deviations of `e`.
    pub e: Deviations,
    /// Sum of the squared deviations of `e v`.
    pub ev_squares: f64,
    /// Deviations of `w`.
    pub w: Deviations,
    /// Estimate of `Tr(S²)` for the covariance `S` of `w`.
    pub trace_of_square: f64,
}

impl Moments {
    /// Computes the sums over a sample of a residual of `n_s` tokens, with weights `e` `[b]` and
    /// values `[b · value_dim]`. The sums over the `certain` tokens, which are the picks, are
    /// relative to the shift of `e`. This is the reference implementation, in f64.
    /// O(b · value_dim), in several passes.
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
    /// Sums squared deviations, and their squares.
    fn from_iter<I: IntoIterator<Item = f64>>(squares: I) -> Self {
        squares.into_iter().fold(Self::default(), |sum, x| Self {
            squares: sum.squares + x,
            fourths: sum.fourths + x * x,
        })
    }
}

impl SampleStats {
    /// Computes the statistics of a sample. O(b · value_dim), in several passes.
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

    /// Computes the statistics of a sample of `b` tokens from its sums. The bound of `residual` is
    /// a bound on `e`, relative to the shift of the sums.
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
    /// Statistics of a sample of `b` tokens with the same moments. The standard errors of the
    /// moments do not change, because they depend on the number of tokens drawn.
    #[must_use]
    pub fn with_size(&self, b: usize) -> Self {
        Self { b, ..*self }
    }

    /// Statistics with variances raised by `z` of their standard errors, and with an effective rank
    /// that allows for heavy tokens; unchanged for `z = 0`.
    ///
    /// A variance is multiplied by `1 + z √((kurtosis − 1) / drawn)`. The rank is estimated from
    /// pairs of different tokens, which leave out the products of tokens with themselves. These
    /// products contribute `Σ |w|⁴ / (Σ |w|²)² = kurtosis / drawn` to the inverse rank. `nu`
    /// already includes `1 / drawn`, so this method adds the other `(kurtosis − 1) / drawn`.
    #[must_use]
    pub fn with_raised_variances(&self, z: f64) -> Self {
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

/// Distance of an output from the output of the picked tokens alone, or from 0 if no token is
/// picked.
pub fn drift(out: &[f64], certain: &Softmax) -> f64 {
    let d = certain.denominator();
    if d > 0.0 {
        let [sum] = sum_terms([out, certain.numerator()], |[o, n]| [(o - n / d).powi(2)]);
        sum.sqrt()
    } else {
        sum_of_squares(out).sqrt()
    }
}

/// Factor `n_s / b` that turns a sum over the sample into an estimated total, or 0 if `b` is 0.
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

/// Sum of rows `[b · dim]`.
fn column_sums(rows: &[f64], dim: usize) -> Vec<f64> {
    let mut sums = vec![0.0; dim];
    for row in rows.chunks_exact(dim) {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    sums
}

/// Rows minus their mean.
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

/// Euclidean norm of a value.
pub(crate) fn norm(value: &[f32]) -> f64 {
    value.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt()
}

/// The larger of two numbers, or NaN if one of them is NaN, which `f64::max` would ignore.
///
/// A NaN bounds nothing, so it must reach [`Radius::new`](crate::plugin::Radius::new), which turns
/// it into infinity.
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
    // `f64::max` may ignore a NaN, because a rank of 1 is safe.
    (1.0 / (1.0 / raw.max(1.0) + 1.0 / b as f64)).max(1.0)
}

/// Unbiased estimate of `Tr(S²)`. The differences of disjoint pairs are independent with covariance
/// `2S`, so the squared product of two differences has mean `4 Tr(S²)`.
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

/// Largest lag at which differences are multiplied to estimate `Tr(S²)`.
pub const LAGS: usize = 4;

/// Estimate of `Tr(S²)` from `sum`, the sum of squared products of `differences` differences over
/// all lags up to [`LAGS`].
pub fn mean_of_lagged_squares(differences: usize, sum: f64) -> f64 {
    let products: usize = (1..=LAGS).map(|lag| differences.saturating_sub(lag)).sum();
    if products > 0 { sum / (4.0 * products as f64) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Statistics of tokens of equal weight with values of dimension 1, without picked tokens.
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
    fn nan_in_a_kurtosis_or_rank_is_never_favourable() {
        let unknown = SampleStats { kurtosis_w: f64::NAN, ..stats(&[1.0, 2.0, 4.0], 1000) };
        assert!(unknown.with_raised_variances(1.0).trace_w.is_nan());
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
