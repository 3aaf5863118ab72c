//! A sample whose tokens have weights `1 / π`: its sums, and the products for its moments.

use std::f64::consts::LN_2;
use std::ops::Range;

use vattention_core::{
    sample::{
        Centre, SampleTotals, Stratification, StratumCentres, TokenWeights, WeighedSample,
        WeightedTokens, inverse_rank,
    },
    step::{Scratch, Softmax, largest},
};

use super::kernel::{TermSums, TokenTerms, exp2, fours, products, squares, vectors, weigh};
use super::moments::{fits_f32, longest};
use super::query_heads::QueryHeads;
use super::sample_rows::{PooledElement, SampleRows, SampledElement};
use super::simd::{CHUNK, SimdElement, from_lanes};

/// Largest number of query heads whose sums are computed in one pass over the values.
const HEADS_PER_PASS: usize = 4;

/// Weighted sums over a sample for all query heads, with given probabilities.
#[derive(Debug)]
pub(crate) struct WeightedSample {
    /// Inclusion probability of each token, `[b]`.
    pub(super) p: Scratch<f64>,
    pub(super) heads: Vec<WeightedHead>,
}

/// Sums of one query head over the sample.
#[derive(Debug)]
pub(super) struct WeightedHead {
    /// `e`, relative to the shift of the sums, `[b]`.
    pub(super) e: Scratch<f32>,
    /// Sums with the weights `1 / π`.
    pub(super) sums: Softmax,
}

/// Weighted sums together with the deterministic tokens, for all query heads.
#[derive(Debug)]
pub(crate) struct CheckedSample {
    pub(crate) weighted: WeightedSample,
    /// Variance factor φ of each token, `[b]`.
    factors: Scratch<f32>,
    heads: Vec<CheckedHead>,
    /// Products of the tokens' values with the outputs, `[heads][b]`.
    dot_out: Scratch<f32>,
}

/// Estimates for one query head, from deterministic tokens and the sample.
#[derive(Debug)]
struct CheckedHead {
    totals: SampleTotals,
    /// Output over all tokens, `[value_dim]`.
    out: Vec<f64>,
    /// Factor from `e` relative to the sample's shift to `e` relative to the shift of the totals.
    scale: f64,
}

impl WeightedSample {
    pub(super) fn new<E: SampledElement>(
        heads: &QueryHeads<'_, E>,
        stored: &SampleRows<E::Sample>,
        p: &[f64],
    ) -> Self {
        let mut weights = Scratch::new(p.len());
        weights.iter_mut().zip(p).for_each(|(weight, &p)| *weight = 1.0 / p as f32);
        let logits = stored.rows.logits.chunks(HEADS_PER_PASS);
        let heads = logits.flat_map(|logits| WeightedHead::sum(heads, stored, logits, &weights));
        let heads = heads.collect();
        let mut own_p = Scratch::new(p.len());
        own_p.copy_from_slice(p);
        Self { p: own_p, heads }
    }
}

impl CheckedSample {
    /// Computes the sums of a sample whose tokens have these weights, and the products of the
    /// values with each query head's output. `certain` are sums over deterministic tokens.
    pub(super) fn new<E: SampledElement>(
        heads: &QueryHeads<'_, E>,
        stored: &SampleRows<E::Sample>,
        certain: &[Softmax],
        weights: &TokenWeights<'_>,
    ) -> Self {
        let weighted = WeightedSample::new(heads, stored, weights.p);
        let mut factors = Scratch::new(weights.p.len());
        factors.iter_mut().zip(weights.factors).for_each(|(to, &factor)| *to = factor as f32);
        let all = weighted.heads.iter().zip(certain);
        let checked: Vec<_> =
            all.map(|(head, certain)| CheckedHead::new(certain, &head.sums)).collect();
        let (dim, chunks) = (heads.value_dim(), heads.rows.value_chunks());
        let outs: Vec<f32> =
            checked.iter().flat_map(|head| head.out.iter().map(|&x| x as f32)).collect();
        let outs = vectors::<E::Sample>(&outs, dim, 1.0, 1, chunks);
        let dot_out = products(heads.level, &stored.values, chunks * CHUNK, &outs);
        Self { weighted, factors, heads: checked, dot_out }
    }

    /// Returns true if the tokens have these weights.
    pub(super) fn has_weights(&self, weights: &TokenWeights<'_>) -> bool {
        let mut factors = self.factors.iter().zip(weights.factors);
        *self.weighted.p == *weights.p && factors.all(|(&own, &factor)| own == factor as f32)
    }

    /// Estimates and their variances for the query head `member`. `None` if f32 is not precise
    /// enough.
    pub(super) fn weigh<E: SampledElement>(
        &self,
        heads: &QueryHeads<'_, E>,
        stored: &SampleRows<E::Sample>,
        member: usize,
        weights: &TokenWeights<'_>,
    ) -> Option<WeighedSample> {
        let (head, e) = (&self.heads[member], &self.weighted.heads[member].e[..]);
        let CheckedHead { totals, out, scale } = head;
        let (b, norms) = (e.len(), &stored.rows.norms[..]);
        let dot_out = &self.dot_out[member * b..][..b];
        if let Some(strata) = weights.strata {
            let tokens = WeightedTokens {
                totals: *totals,
                e: wide(e, *scale),
                norms: wide(norms, 1.0),
                dot_out: wide(dot_out, 1.0),
                fours: stored.fours.pairs(),
                within: Some(stored.within(heads, strata, e, *scale, out)),
            };
            return Some(WeighedSample::new(&tokens, weights));
        }
        let (out_norm, longest) = (totals.out_squared.sqrt() as f32, longest(norms));
        if !fits_f32(e, norms, out_norm, longest) {
            return None;
        }
        let (fours, factors, unit) = (&stored.fours, &self.factors[..], 1.0 / longest);
        let terms = TokenTerms { e, norms, dot_out, fours, factors, out_norm, unit };
        let (squares, sums) = squares(heads.level, &terms, *scale);
        let TermSums { trace, squared, parallel, all } = sums;
        let alignment = (all > 0.0).then(|| parallel / all);
        let inverse_rank = inverse_rank(alignment, trace, squared);
        Some(WeighedSample { totals: *totals, squares, inverse_rank })
    }
}

impl CheckedHead {
    /// Adds the sums over a sample to those over deterministic tokens.
    fn new(certain: &Softmax, sample: &Softmax) -> Self {
        let mut certain = certain.clone();
        certain.rebase(certain.shift().max(sample.shift()));
        let mut all = certain.clone();
        all.merge(sample);
        let out = all.output();
        let totals = SampleTotals::new(certain.shift(), &certain, all.denominator(), &out);
        Self { totals, out, scale: (sample.shift() - certain.shift()).exp() }
    }
}

impl WeightedHead {
    /// Computes the sums of up to [`HEADS_PER_PASS`] query heads over tokens with these weights,
    /// `[b]`. `logits` are in base 2, `[heads][b]`.
    fn sum<E: SampledElement>(
        heads: &QueryHeads<'_, E>,
        stored: &SampleRows<E::Sample>,
        logits: &[Vec<f32>],
        weights: &[f32],
    ) -> Vec<Self> {
        let shifts: Vec<f32> = logits.iter().map(|logits| largest(logits)).collect();
        let e = logits.iter().zip(&shifts).map(|(logits, &shift)| exp2(heads.level, logits, shift));
        let e: Vec<Scratch<f32>> = e.collect();
        let times = |e: &Scratch<f32>| {
            let mut products = Scratch::new(e.len());
            let factors = e.iter().zip(weights);
            products
                .iter_mut()
                .zip(factors)
                .for_each(|(product, (e, weight))| *product = e * weight);
            products
        };
        let weights: Vec<Scratch<f32>> = e.iter().map(times).collect();
        let (stride, dim) = (heads.rows.value_chunks() * CHUNK, heads.value_dim());
        let (level, values) = (heads.level, &stored.values[..]);
        let numerators: Vec<Vec<f64>> = match &weights[..] {
            [a] => weigh(level, values, stride, [a]).into(),
            [a, b] => weigh(level, values, stride, [a, b]).into(),
            [a, b, c] => weigh(level, values, stride, [a, b, c]).into(),
            [a, b, c, d] => weigh(level, values, stride, [a, b, c, d]).into(),
            _ => unreachable!("at most {HEADS_PER_PASS}"),
        };
        let mut sums_of_heads = Vec::with_capacity(e.len());
        for (head, e) in e.into_iter().enumerate() {
            let mut numerator = vec![0.0; dim];
            from_lanes::<E::Sample>(&numerators[head], &mut numerator);
            let largest = f64::from(shifts[head]) * LN_2;
            let shift = if e.is_empty() { f64::NEG_INFINITY } else { largest };
            let sums = Softmax::from_sums(shift, sum(&weights[head]), numerator);
            sums_of_heads.push(Self { e, sums });
        }
        sums_of_heads
    }
}

/// Number of independent partial sums, so that additions do not wait for each other.
const PARTIAL_SUMS: usize = 16;

/// Sums numbers in f64.
fn sum(numbers: &[f32]) -> f64 {
    let mut sums = [0.0; PARTIAL_SUMS];
    let (whole, rest) = numbers.as_chunks::<PARTIAL_SUMS>();
    for numbers in whole {
        for (sum, &x) in sums.iter_mut().zip(numbers) {
            *sum += f64::from(x);
        }
    }
    sums.into_iter().chain(rest.iter().map(|&x| f64::from(x))).sum()
}

/// Converts numbers to f64, times `unit`.
fn wide(numbers: &[f32], unit: f64) -> Vec<f64> {
    numbers.iter().map(|&x| unit * f64::from(x)).collect()
}

/// Runs of neighbouring tokens of one stratum. `strata` is the stratum of each token.
fn runs(strata: &[usize]) -> impl Iterator<Item = Range<usize>> {
    let mut end = 0;
    strata.chunk_by(|a, b| a == b).map(move |run| {
        end += run.len();
        end - run.len()..end
    })
}

impl<T: PooledElement> SampleRows<T> {
    /// Computes the products of values within each group of four tokens, for the tokens that were
    /// added since the last call.
    pub(super) fn multiply<E: SimdElement<Sample = T>>(&mut self, heads: &QueryHeads<'_, E>) {
        let stride = heads.rows.value_chunks() * CHUNK;
        let whole = self.rows.norms.len() / WeightedTokens::FOUR * WeightedTokens::FOUR;
        let new = self.fours.neighbours.len() * stride..whole * stride;
        fours(heads.level, &self.values[new], stride, &mut self.fours);
    }

    /// Computes the products of the values with the centres of the strata that they were drawn
    /// from. `scale · e` are the exponentials of the tokens' logits, and `out` is the output.
    pub(super) fn within<E: SimdElement<Sample = T>>(
        &self,
        heads: &QueryHeads<'_, E>,
        strata: &Stratification,
        e: &[f32],
        scale: f64,
        out: &[f64],
    ) -> StratumCentres {
        let (dim, chunks) = (heads.value_dim(), heads.rows.value_chunks());
        let values =
            |run: &Range<usize>| &self.values[run.start * chunks * CHUNK..run.end * chunks * CHUNK];
        let (tokens, drawn) = (&strata.strata, strata.drawn());
        // Means per stratum: those of `e v`, then that of `e`.
        let mut means = vec![vec![0.0; dim + 1]; drawn.len()];
        for run in runs(tokens) {
            let stratum = tokens[run.start];
            let share = 1.0 / drawn[stratum] as f64;
            let sum_e: f64 = e[run.clone()].iter().map(|&e| f64::from(e)).sum();
            let [lanes] = weigh(heads.level, values(&run), chunks * CHUNK, [&e[run]]);
            let mut sums = vec![0.0; dim];
            from_lanes::<T>(&lanes, &mut sums);
            sums.push(sum_e);
            means[stratum].iter_mut().zip(sums).for_each(|(mean, sum)| *mean += share * sum);
        }
        let averages = strata.average_neighbours(&means);
        let mut dot_centre = Vec::with_capacity(tokens.len());
        for run in runs(tokens) {
            let average = &averages[tokens[run.start]][..dim];
            let average: Vec<f32> = average.iter().map(|&x| x as f32).collect();
            let average = vectors::<T>(&average, dim, 1.0, 1, chunks);
            let products = products(heads.level, values(&run), chunks * CHUNK, &average);
            dot_centre.extend(products.iter().map(|&x| scale * f64::from(x)));
        }
        let scaled =
            |average: &Vec<f64>| -> Vec<f64> { average.iter().map(|x| scale * x).collect() };
        let centres = averages.iter().map(|average| Centre::new(&scaled(average), out)).collect();
        StratumCentres { dot_centre, centres }
    }
}
