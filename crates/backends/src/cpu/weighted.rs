//! A sample whose tokens have weights `1 / π`: its sums, and the terms of their variances.

use std::f64::consts::LN_2;
use std::ops::Range;

use vattention_core::{
    sample::{
        Centre, SampleTotals, Stratification, StratumCentres, TokenSquares, TokenWeights,
        WeighedSample, WeightedTokens, inverse_rank,
    },
    step::{Scratch, Softmax},
};

use super::kernel::{
    HeadTerms, SampleSums, SampleValues, SimdLine, TermSums, fours, products, square_terms,
    vectors, weigh,
};
use super::moments::{LEAST_SHARE, LEAST_SPREAD, longest};
use super::query_heads::QueryHeads;
use super::sample_rows::{PooledElement, SampleRows, SampledElement};
use super::simd::{CHUNK, SimdElement, from_lanes};

/// Weighted sums over a sample for all query heads, with given probabilities.
#[derive(Debug)]
pub(crate) struct WeightedSums {
    /// Inclusion probability of each token, `[b]`.
    pub(super) p: Scratch<f64>,
    /// Sums of each head with the weights `1 / π`.
    pub(super) heads: Vec<Softmax>,
}

impl WeightedSums {
    /// Computes the sums, and `e` of each token relative to their shifts.
    pub(super) fn new<E: SampledElement>(
        heads: &QueryHeads<'_, E>,
        stored: &SampleRows<E::Sample>,
        p: &[f64],
    ) -> (Self, SampleSums) {
        let stride = heads.rows.value_chunks() * CHUNK;
        let logits = &stored.rows.logits;
        let sums = SampleSums::new(heads.level, logits, p, &stored.values, stride);
        let head = |head: usize| {
            let mut numerator = vec![0.0; heads.value_dim()];
            from_lanes::<E::Sample>(sums.numerator(head), &mut numerator);
            let shift = f64::from(sums.shifts[head]) * LN_2;
            let shift = if p.is_empty() { f64::NEG_INFINITY } else { shift };
            Softmax::from_sums(shift, sums.denominators[head], numerator)
        };
        let softmaxes = (0..heads.members()).map(head).collect();
        let mut own_p = Scratch::new(p.len());
        own_p.copy_from_slice(p);
        (Self { p: own_p, heads: softmaxes }, sums)
    }
}

/// Estimates for one query head, from deterministic tokens and a sample.
struct HeadEstimate {
    totals: SampleTotals,
    /// Output over all tokens, `[value_dim]`.
    out: Vec<f64>,
    /// Factor from `e` relative to the sample's shift to `e` relative to the shift of the totals.
    scale: f64,
}

impl HeadEstimate {
    /// Adds the sums over a sample to those over deterministic tokens.
    fn new(certain: &Softmax, sample: &Softmax) -> Self {
        let (totals, out) = SampleTotals::add(certain, sample);
        Self { totals, out, scale: (sample.shift() - totals.shift).exp() }
    }
}

impl<T: PooledElement> SampleRows<T> {
    /// Weighted sums for all query heads, and estimates and their variances, from tokens with these
    /// weights. `certain` are sums over deterministic tokens. `None` if f32 is not precise enough
    /// for the variances. The values must have been [multiplied](Self::multiply).
    pub(super) fn weigh<E: SampledElement<Sample = T>>(
        &self,
        heads: &QueryHeads<'_, E>,
        certain: &[Softmax],
        weights: &TokenWeights<'_>,
    ) -> Option<(WeightedSums, Vec<WeighedSample>)> {
        let (weighted, sums) = WeightedSums::new(heads, self, weights.p);
        let both = certain.iter().zip(&weighted.heads);
        let estimates: Vec<_> =
            both.map(|(certain, sample)| HeadEstimate::new(certain, sample)).collect();
        let (dim, chunks) = (heads.value_dim(), heads.rows.value_chunks());
        let outs = estimates.iter().flat_map(|head| head.out.iter().map(|&x| x as f32));
        let outs = vectors::<T>(&outs.collect::<Vec<_>>(), dim, 1.0, 1, chunks);
        let samples = match weights.strata {
            None => self.weigh_tokens(heads, weights, &sums, &estimates, &outs)?,
            Some(strata) => self.weigh_within(heads, weights, strata, (&sums, &estimates, &outs)),
        };
        Some((weighted, samples))
    }

    /// Estimates and their variances, from tokens drawn independently of each other.
    fn weigh_tokens<E: SampledElement<Sample = T>>(
        &self,
        heads: &QueryHeads<'_, E>,
        weights: &TokenWeights<'_>,
        sums: &SampleSums,
        estimates: &[HeadEstimate],
        outs: &[SimdLine],
    ) -> Option<Vec<WeighedSample>> {
        let norms = &self.rows.norms[..];
        let (mut factors, mut squares_weights) =
            (Scratch::new(norms.len()), Scratch::new(norms.len()));
        factors.iter_mut().zip(weights.factors).for_each(|(to, &factor)| *to = factor as f32);
        squares_weights.iter_mut().zip(weights.p).for_each(|(to, &p)| *to = (1.0 - p) as f32);
        let longest = longest(norms);
        let sample = SampleValues {
            values: &self.values[..],
            stride: heads.rows.value_chunks() * CHUNK,
            norms,
            fours: &self.fours,
            factors: &factors,
            weights: &squares_weights,
            unit: 1.0 / longest,
        };
        let terms = |(head, estimate): (usize, &HeadEstimate)| HeadTerms {
            e: sums.e(head),
            out_norm: estimate.totals.out_squared.sqrt() as f32,
            scale: estimate.scale,
            squares: TokenSquares::unset(norms.len()),
            sums: TermSums::default(),
        };
        let mut all_terms: Vec<_> = estimates.iter().enumerate().map(terms).collect();
        square_terms(heads.level, &sample, outs, &mut all_terms);
        let least = LEAST_SHARE.max(LEAST_SPREAD / longest);
        if all_terms.iter().any(|terms| terms.sums.largest < least * least) {
            return None;
        }
        let finish = |(terms, estimate): (HeadTerms<'_>, &HeadEstimate)| {
            let TermSums { squared, parallel, all, .. } = terms.sums;
            let alignment = (all > 0.0).then(|| parallel / all);
            let inverse_rank = inverse_rank(alignment, terms.sums.trace(), squared);
            let variances = terms.variances(sample.unit);
            let (totals, squares) = (estimate.totals, terms.squares);
            WeighedSample { totals, squares, variances, inverse_rank }
        };
        Some(all_terms.into_iter().zip(estimates).map(finish).collect())
    }

    /// Estimates and their variances, from tokens drawn within strata, by the reference
    /// implementation.
    fn weigh_within<E: SampledElement<Sample = T>>(
        &self,
        heads: &QueryHeads<'_, E>,
        weights: &TokenWeights<'_>,
        strata: &Stratification,
        (sums, estimates, outs): (&SampleSums, &[HeadEstimate], &[SimdLine]),
    ) -> Vec<WeighedSample> {
        let (b, stride) = (self.rows.norms.len(), heads.rows.value_chunks() * CHUNK);
        let dot_outs = products(heads.level, &self.values, stride, outs);
        let head = |(head, estimate): (usize, &HeadEstimate)| {
            let HeadEstimate { totals, out, scale } = estimate;
            let e = &sums.e(head)[..b];
            let tokens = WeightedTokens {
                totals: *totals,
                e: wide(e, *scale),
                norms: wide(&self.rows.norms, 1.0),
                dot_out: wide(&dot_outs[head * b..][..b], 1.0),
                fours: self.fours.pairs(),
                within: Some(self.within(heads, strata, e, *scale, out)),
            };
            WeighedSample::new(&tokens, weights)
        };
        estimates.iter().enumerate().map(head).collect()
    }
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
    /// Computes the norms of values and their products within each group of four tokens, for the
    /// tokens that were added since the last call.
    pub(super) fn multiply<E: SimdElement<Sample = T>>(&mut self, heads: &QueryHeads<'_, E>) {
        let stride = heads.rows.value_chunks() * CHUNK;
        // Norms of an incomplete four are computed again.
        let done = self.fours.neighbours.len();
        self.rows.norms.truncate(done);
        let new = &self.values[done * stride..];
        fours(heads.level, new, stride, &mut self.fours, &mut self.rows.norms);
    }

    /// Computes the products of the values with the centres of the strata that they were drawn
    /// from. `scale · e` are the exponentials of the tokens' logits, and `out` is the output.
    fn within<E: SimdElement<Sample = T>>(
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
            let lanes = weigh(heads.level, values(&run), chunks * CHUNK, &e[run]);
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
