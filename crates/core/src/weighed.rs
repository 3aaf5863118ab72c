//! A sample whose tokens weigh `1 / π`, as one reader sees it, by products of values.
//!
//! Deviations follow from the products: with `μ` the mean of `e v` and `ē` that of `e`, `m = μ − ē o^` is that of
//! `w = e (v − o^)`, and `w · m = e (v · μ − ē v · o^ − μ · o^ + ē |o^|²)`.

use crate::stats::{drift, norm};
use crate::{Accumulator, Residual, Sample, Softmax};

/// What a sample comes to, and of each of its tokens what moments of it follow from. `b` tokens, in draw order, each drawn
/// independently of the others or within its stratum.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weighed {
    /// What exponentials are relative to.
    pub shift: f64,
    /// Elements of a value.
    pub value_dim: usize,
    /// `D^`.
    pub d: f64,
    /// The certain tokens' part of it.
    pub d_certain: f64,
    /// `|o^|²`, of `o^ = N^/D^`.
    pub out_squared: f64,
    /// `|o^ − c|`, `c` being the certain tokens' own output.
    pub drift: f64,
    /// Estimate of `Σ e |v|` over all visible tokens.
    pub sum_e_norm_v: f64,
    /// `e` of each token, `[b]`.
    pub e: Vec<f64>,
    /// `|v|`, `[b]`.
    pub norms: Vec<f64>,
    /// `v · o^`, `[b]`.
    pub by_out: Vec<f64>,
    /// `v · v'` of the [`PAIRS`](Self::PAIRS) of tokens `4 i .. 4 i + 4`, `[b / 4]`.
    pub fours: Vec<[f64; 6]>,
    /// If tokens were drawn within strata.
    pub within: Option<Within>,
}

/// Strata that the tokens of a sample were drawn within.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Within {
    /// The stratum of each token, `[b]`.
    pub of: Vec<usize>,
    /// `v · μ` of each token, `μ` being its stratum's, `[b]`.
    pub by_mean: Vec<f64>,
    /// `[strata]`
    pub means: Vec<StratumMean>,
}

/// The means over the tokens drawn of a stratum; 0 of none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StratumMean {
    /// Of `e`.
    pub e: f64,
    /// `|μ|²`, of the mean `μ` of `e v`.
    pub squared: f64,
    /// `μ · o^`.
    pub by_out: f64,
}

impl Within {
    /// Tokens drawn of each stratum, `[strata]`.
    pub fn drawn(of: &[usize]) -> Vec<usize> {
        let mut drawn = vec![0; of.iter().max().map_or(0, |last| last + 1)];
        for &stratum in of {
            drawn[stratum] += 1;
        }
        drawn
    }

    /// The definition, of tokens with weights `e` and `values` drawn within the strata `of`.
    fn new(of: &[usize], e: &[f64], values: &[&[f32]], out: &[f64]) -> Self {
        let drawn = Self::drawn(of);
        let mut means = vec![(0.0, vec![0.0; out.len()]); drawn.len()];
        for ((&stratum, e), value) in of.iter().zip(e).zip(values) {
            let (mean_e, mean) = &mut means[stratum];
            let e = e / drawn[stratum] as f64;
            *mean_e += e;
            mean.iter_mut().zip(*value).for_each(|(mean, &v)| *mean += e * f64::from(v));
        }
        let by_mean = of.iter().zip(values).map(|(&stratum, value)| by(value, &means[stratum].1));
        let mean = |(e, mean): &(f64, Vec<f64>)| StratumMean::new(*e, mean, out);
        Self {
            of: of.to_vec(),
            by_mean: by_mean.collect(),
            means: means.iter().map(mean).collect(),
        }
    }
}

impl StratumMean {
    /// Of means of `e` and of `e v` `[value_dim]`, beside the output.
    pub fn new(e: f64, mean: &[f64], out: &[f64]) -> Self {
        let squared = mean.iter().map(|x| x * x).sum();
        Self { e, squared, by_out: mean.iter().zip(out).map(|(x, o)| x * o).sum() }
    }
}

/// A value times a vector.
fn by(value: &[f32], vector: &[f64]) -> f64 {
    value.iter().zip(vector).map(|(&v, x)| f64::from(v) * x).sum()
}

impl Weighed {
    /// Tokens whose values are multiplied with each other.
    pub const FOUR: usize = 4;

    /// The pairs of a four, in the order of their products.
    pub const PAIRS: [(usize, usize); 6] = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];

    /// The ways to make two pairs of a four.
    pub(crate) const PAIRINGS: [([usize; 2], [usize; 2]); 3] =
        [([0, 1], [2, 3]), ([0, 2], [1, 3]), ([0, 3], [1, 2])];

    /// The place of a pair, the earlier token first.
    pub(crate) const fn pair(i: usize, j: usize) -> usize {
        if i == 0 { j - 1 } else { i + j }
    }

    /// `|w|²` of a token.
    pub(crate) fn square(&self, i: usize) -> f64 {
        let square = self.norms[i] * self.norms[i];
        self.e[i] * self.e[i] * (square - 2.0 * self.by_out[i] + self.out_squared)
    }

    /// `w · w'` of the [`PAIRS`](Self::PAIRS) of a four.
    pub(crate) fn products(&self, four: usize) -> [f64; 6] {
        let Self { e, by_out, out_squared, fours, .. } = self;
        std::array::from_fn(|pair| {
            let (i, j) = Self::PAIRS[pair];
            let (i, j) = (Self::FOUR * four + i, Self::FOUR * four + j);
            e[i] * e[j] * (fours[four][pair] - by_out[i] - by_out[j] + out_squared)
        })
    }

    /// The definition, in f64: of a sample that was drawn with probabilities `p` `[b]`, within `strata` `[b]` if there are
    /// any, with exponentials relative to `shift`. O(b · value_dim).
    pub fn new(sample: &Sample<'_>, p: &[f64], strata: Option<&[usize]>, shift: f64) -> Self {
        let dim = sample.certain.numerator().len();
        let values: Vec<&[f32]> = sample.values.chunks_exact(dim).collect();
        let norms: Vec<f64> = values.iter().map(|value| norm(value)).collect();
        let (mut d, mut e_norms) = (sample.certain.denominator(), sample.certain_norms);
        let mut n = sample.certain.numerator().to_vec();
        for (((e, p), value), norm) in sample.e.iter().zip(p).zip(&values).zip(&norms) {
            let weight = e / p;
            d += weight;
            e_norms += weight * norm;
            n.iter_mut().zip(*value).for_each(|(n, &v)| *n += weight * f64::from(v));
        }
        let total = Softmax::from_sums(0.0, d, n);
        let out = total.output();
        let product = |a: &[f32], b: &[f32]| {
            a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>()
        };
        let four = |four: &[&[f32]]| Self::PAIRS.map(|(i, j)| product(four[i], four[j]));
        Self {
            by_out: values.iter().map(|value| by(value, &out)).collect(),
            fours: values.chunks_exact(Self::FOUR).map(four).collect(),
            within: strata.map(|of| Within::new(of, sample.e, &values, &out)),
            ..Self::of_sums(shift, sample.certain, &total, e_norms, sample.e.to_vec(), norms)
        }
    }

    /// The definition, of the sample that an accumulator shows.
    pub fn by_definition<T: Accumulator + ?Sized>(
        accumulator: &mut T,
        reader: usize,
        residual: &Residual,
        p: &[f64],
        strata: Option<&[usize]>,
    ) -> Self {
        let mut weighed = Self::default();
        accumulator.sample(reader, residual, &mut |sample, shift| {
            weighed = Self::new(sample, p, strata, shift);
        });
        weighed
    }

    /// With what the sums over the certain tokens and over all come to, which are relative to the same shift; the
    /// products are missing.
    pub fn of_sums(
        shift: f64,
        certain: &Softmax,
        all: &Softmax,
        sum_e_norm_v: f64,
        e: Vec<f64>,
        norms: Vec<f64>,
    ) -> Self {
        let out = all.output();
        Self {
            shift,
            value_dim: out.len(),
            d: all.denominator(),
            d_certain: certain.denominator(),
            out_squared: out.iter().map(|o| o * o).sum(),
            drift: drift(&out, certain),
            sum_e_norm_v,
            e,
            norms,
            by_out: Vec::new(),
            fours: Vec::new(),
            within: None,
        }
    }
}
