//! Tokens with weights `1 / π`, as one query head sees them.
//!
//! Variances are computed from dot products of values. If `μ` is the centre of `e v` and `ē` the
//! centre of `e`, then `m = μ − ē o^` is the centre of `w = e (v − o^)`, and
//! `w · m = e (v · μ − ē v · o^ − μ · o^ + ē |o^|²)`.

use multiversion::multiversion;

use crate::{
    sample::{
        Sample, Stratification, drift,
        stats::norm,
        sums::{sum_of_squares, sum_terms},
    },
    step::Softmax,
};

/// Horvitz-Thompson estimates from a weighted sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SampleTotals {
    /// Logit that exponentials are relative to.
    pub shift: f64,
    /// Number of elements of a value.
    pub value_dim: usize,
    /// Estimate `D^` of the softmax denominator.
    pub d: f64,
    /// Part of `D^` from the picked tokens and the attention sink.
    pub d_certain: f64,
    /// `|o^|²` of the estimated output `o^ = N^/D^`.
    pub out_squared: f64,
    /// Distance `|o^ − c|` from the output `c` of the picked tokens; see [`drift`].
    pub drift: f64,
}

impl SampleTotals {
    /// Computes the totals from the sums over the picked tokens, the sums over `all` tokens, and
    /// the output `out` `[value_dim]` of the latter.
    pub fn new(certain: &Softmax, all: &Softmax, out: &[f64]) -> Self {
        Self {
            shift: all.shift(),
            value_dim: out.len(),
            d: all.denominator(),
            d_certain: certain.denominator_at(all.shift()),
            out_squared: sum_of_squares(out),
            drift: drift(out, certain),
        }
    }

    /// Computes the totals from the sums over the picked tokens and the weighted sums over a
    /// sample. Returns them with the output, `[value_dim]`.
    pub fn add(certain: &Softmax, sample: &Softmax) -> (Self, Vec<f64>) {
        let shift = certain.shift().max(sample.shift());
        let d_certain = certain.denominator_at(shift);
        let d = d_certain + sample.denominator_at(shift);
        let factors = [certain, sample].map(|sums| sums.scale_to(shift) / d);
        let inverse = if d_certain > 0.0 { certain.denominator().recip() } else { 0.0 };
        let mut out = vec![0.0; certain.numerator().len()];
        let numerators = [certain.numerator(), sample.numerator()];
        let [out_squared, drift_squared] = add_outputs(numerators, factors, inverse, &mut out);
        let (value_dim, drift) = (out.len(), drift_squared.sqrt());
        (Self { shift, value_dim, d, d_certain, out_squared, drift }, out)
    }
}

/// Adds two numerators times `factors`, which gives the output `out`. Returns `|out|²`, and the
/// squared distance of `out` from the first numerator times `inverse`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma", "x86_64+avx2+fma"))]
fn add_outputs(
    [certain, sample]: [&[f64]; 2],
    factors: [f64; 2],
    inverse: f64,
    out: &mut [f64],
) -> [f64; 2] {
    for ((out, certain), sample) in out.iter_mut().zip(certain).zip(sample) {
        *out = factors[0] * certain + factors[1] * sample;
    }
    sum_terms([out, certain], |[out, n]| {
        let distance = out - n * inverse;
        [out * out, distance * distance]
    })
}

/// Tokens of a weighted sample, and the products of their values. The `b` tokens are in draw order;
/// each was drawn independently of the others, or within its stratum.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WeightedTokens {
    /// Estimates from the tokens.
    pub totals: SampleTotals,
    /// `e` of each token, `[b]`.
    pub e: Vec<f64>,
    /// `|v|` of each token, `[b]`.
    pub norms: Vec<f64>,
    /// `v · o^` of each token, `[b]`.
    pub dot_out: Vec<f64>,
    /// `v · v'` for the [`PAIRS`](Self::PAIRS) of each four successive tokens `4 i .. 4 i + 4`,
    /// `[b / 4]`.
    pub fours: Vec<[f64; 6]>,
    /// Centres of the strata, if tokens were drawn within strata.
    pub within: Option<StratumCentres>,
}

/// Centres of strata, and their dot products with the values of the drawn tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StratumCentres {
    /// `v · μ` of each token, where `μ` is the centre of `e v` in its stratum, `[b]`.
    pub dot_centre: Vec<f64>,
    /// Centre of each stratum, `[strata]`.
    pub centres: Vec<Centre>,
}

/// Centre of a stratum: the average of the mean over its drawn tokens and those of its neighbours.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Centre {
    /// Centre of `e`.
    pub e: f64,
    /// `|μ|²` of the centre `μ` of `e v`.
    pub squared: f64,
    /// `μ · o^`.
    pub dot_out: f64,
}

impl StratumCentres {
    /// Computes the centres for drawn tokens with exponentials `e` and `values`.
    fn new(stratification: &Stratification, e: &[f64], values: &[&[f32]], out: &[f64]) -> Self {
        let drawn = stratification.drawn();
        // Means of the elements of `e v`, then of `e`.
        let mut means = vec![vec![0.0; out.len() + 1]; drawn.len()];
        for ((&stratum, e), value) in stratification.strata.iter().zip(e).zip(values) {
            let e = e / drawn[stratum] as f64;
            let terms = value.iter().map(|&v| f64::from(v)).chain([1.0]);
            means[stratum].iter_mut().zip(terms).for_each(|(mean, x)| *mean += e * x);
        }
        let averages = stratification.average_neighbours(&means);
        let tokens = stratification.strata.iter().zip(values);
        Self {
            dot_centre: tokens.map(|(&stratum, value)| dot(value, &averages[stratum])).collect(),
            centres: averages.iter().map(|average| Centre::new(average, out)).collect(),
        }
    }
}

impl Centre {
    /// Creates a centre from the centres of the elements of `e v` and of `e`, `[value_dim + 1]`,
    /// and the output `out` `[value_dim]`.
    pub fn new(average: &[f64], out: &[f64]) -> Self {
        let (e, average) = (average[out.len()], &average[..out.len()]);
        let squared = average.iter().map(|x| x * x).sum();
        Self { e, squared, dot_out: average.iter().zip(out).map(|(x, o)| x * o).sum() }
    }

    /// `|m|²` of the centre `m` of `w`.
    pub(crate) fn square_of_w(&self, out_squared: f64) -> f64 {
        self.squared - self.e * (2.0 * self.dot_out - self.e * out_squared)
    }
}

/// Dot product of a value and a vector.
fn dot(value: &[f32], vector: &[f64]) -> f64 {
    value.iter().zip(vector).map(|(&v, x)| f64::from(v) * x).sum()
}

impl WeightedTokens {
    /// Number of successive tokens whose values are multiplied with each other.
    pub const FOUR: usize = 4;

    /// Pairs of tokens among four, in the order of their products.
    pub const PAIRS: [(usize, usize); 6] = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];

    /// `|w|²` of a token.
    pub(crate) fn square(&self, i: usize) -> f64 {
        let square = self.norms[i] * self.norms[i];
        let out_squared = self.totals.out_squared;
        self.e[i] * self.e[i] * (square - 2.0 * self.dot_out[i] + out_squared)
    }

    /// `w · w'` of the [`PAIRS`](Self::PAIRS) of tokens `4 four .. 4 four + 4`.
    pub(crate) fn products(&self, four: usize) -> [f64; 6] {
        let Self { e, dot_out, fours, .. } = self;
        std::array::from_fn(|pair| {
            let (i, j) = Self::PAIRS[pair];
            let (i, j) = (Self::FOUR * four + i, Self::FOUR * four + j);
            e[i] * e[j] * (fours[four][pair] - dot_out[i] - dot_out[j] + self.totals.out_squared)
        })
    }

    /// Computes the products of a sample whose inclusion probabilities are `p` `[b]`, drawn within
    /// strata if there are any, with exponentials relative to `shift`. O(b · value_dim).
    pub fn new(
        sample: &Sample<'_>,
        p: &[f64],
        strata: Option<&Stratification>,
        shift: f64,
    ) -> Self {
        let dim = sample.certain.numerator().len();
        let values: Vec<&[f32]> = sample.values.chunks_exact(dim).collect();
        let mut d = sample.certain.denominator();
        let mut n = sample.certain.numerator().to_vec();
        for ((e, p), value) in sample.e.iter().zip(p).zip(&values) {
            let weight = e / p;
            d += weight;
            n.iter_mut().zip(*value).for_each(|(n, &v)| *n += weight * f64::from(v));
        }
        let all = Softmax::from_sums(shift, d, n);
        let out = all.output();
        let product = |a: &[f32], b: &[f32]| {
            a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>()
        };
        let four = |four: &[&[f32]]| Self::PAIRS.map(|(i, j)| product(four[i], four[j]));
        Self {
            totals: SampleTotals::new(sample.certain, &all, &out),
            e: sample.e.to_vec(),
            norms: values.iter().map(|value| norm(value)).collect(),
            dot_out: values.iter().map(|value| dot(value, &out)).collect(),
            fours: values.chunks_exact(Self::FOUR).map(four).collect(),
            within: strata.map(|strata| StratumCentres::new(strata, sample.e, &values, &out)),
        }
    }
}
