//! A sample whose tokens weigh `1 / π`, as one reader sees it, by products of values.
//!
//! Deviations follow from the products: with `μ` the centre of `e v` and `ē` that of `e`,
//! `m = μ − ē o^` is that of `w = e (v − o^)`, and `w · m = e (v · μ − ē v · o^ − μ · o^ + ē |o^|²)`.

use std::rc::Rc;

use crate::{
    sample::{Sample, Stratification, drift, stats::norm},
    step::Softmax,
};

/// Horvitz-Thompson estimates from a weighted sample, and the per-token terms of their variance.
/// `b` tokens, in draw order, each drawn independently of the others or within its stratum.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weighed {
    /// The logit that exponentials are relative to.
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
    /// `e` of each token, `[b]`.
    pub e: Vec<f64>,
    /// `|v|`, `[b]`; readers share them.
    pub norms: Rc<[f64]>,
    /// `v · o^`, `[b]`.
    pub by_out: Vec<f64>,
    /// `v · v'` of the [`PAIRS`](Self::PAIRS) of tokens `4 i .. 4 i + 4`, `[b / 4]`.
    pub fours: Rc<[[f64; 6]]>,
    /// If tokens were drawn within strata.
    pub within: Option<Within>,
}

/// Tokens beside the centres of the strata that they were drawn within.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Within {
    /// `v · μ` of each token, `μ` being its stratum's centre, `[b]`.
    pub by_centre: Vec<f64>,
    /// `[strata]`
    pub centres: Vec<Centre>,
}

/// Centre of a stratum: the average of the means over the tokens drawn of it and of its neighbours.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Centre {
    /// Centre of `e`.
    pub e: f64,
    /// `|μ|²`, of the average `μ` of `e v`.
    pub squared: f64,
    /// `μ · o^`.
    pub by_out: f64,
}

impl Within {
    /// The definition, of tokens with weights `e` and `values` drawn within strata.
    fn new(stratification: &Stratification, e: &[f64], values: &[&[f32]], out: &[f64]) -> Self {
        let drawn = stratification.drawn();
        // Of `e v`, then of `e`.
        let mut means = vec![vec![0.0; out.len() + 1]; drawn.len()];
        for ((&stratum, e), value) in stratification.strata.iter().zip(e).zip(values) {
            let e = e / drawn[stratum] as f64;
            let terms = value.iter().map(|&v| f64::from(v)).chain([1.0]);
            means[stratum].iter_mut().zip(terms).for_each(|(mean, x)| *mean += e * x);
        }
        let averages = stratification.average_neighbours(&means);
        let tokens = stratification.strata.iter().zip(values);
        Self {
            by_centre: tokens.map(|(&stratum, value)| by(value, &averages[stratum])).collect(),
            centres: averages.iter().map(|average| Centre::new(average, out)).collect(),
        }
    }
}

impl Centre {
    /// The centre that is an average of `e v`, then of `e`, `[value_dim + 1]`, beside the output.
    pub fn new(average: &[f64], out: &[f64]) -> Self {
        let (e, average) = (average[out.len()], &average[..out.len()]);
        let squared = average.iter().map(|x| x * x).sum();
        Self { e, squared, by_out: average.iter().zip(out).map(|(x, o)| x * o).sum() }
    }

    /// `|m|²` of the centre `m` of `w`.
    pub(crate) fn square_of_w(&self, out_squared: f64) -> f64 {
        self.squared - self.e * (2.0 * self.by_out - self.e * out_squared)
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

    /// The definition, in f64: of a sample that was drawn with probabilities `p` `[b]`, within strata
    /// if there are any, with exponentials relative to `shift`. O(b · value_dim).
    pub fn new(
        sample: &Sample<'_>,
        p: &[f64],
        strata: Option<&Stratification>,
        shift: f64,
    ) -> Self {
        let dim = sample.certain.numerator().len();
        let values: Vec<&[f32]> = sample.values.chunks_exact(dim).collect();
        let norms = values.iter().map(|value| norm(value)).collect();
        let mut d = sample.certain.denominator();
        let mut n = sample.certain.numerator().to_vec();
        for ((e, p), value) in sample.e.iter().zip(p).zip(&values) {
            let weight = e / p;
            d += weight;
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
            within: strata.map(|strata| Within::new(strata, sample.e, &values, &out)),
            ..Self::of_sums(shift, sample.certain, &total, sample.e.to_vec(), norms)
        }
    }

    /// From the sums over the certain tokens and over all, which are relative to the same shift; the
    /// products are missing.
    pub fn of_sums(
        shift: f64,
        certain: &Softmax,
        all: &Softmax,
        e: Vec<f64>,
        norms: Rc<[f64]>,
    ) -> Self {
        let out = all.output();
        Self {
            shift,
            value_dim: out.len(),
            d: all.denominator(),
            d_certain: certain.denominator(),
            out_squared: out.iter().map(|o| o * o).sum(),
            drift: drift(&out, certain),
            e,
            norms,
            by_out: Vec::new(),
            fours: Rc::default(),
            within: None,
        }
    }
}
