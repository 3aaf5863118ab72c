//! Terms of the variances of the estimates from a weighted sample, for one query head.

use multiversion::multiversion;

use crate::{
    sample::{
        Centre, SampleTotals, Stratification, StratumCentres, WeightedTokens, max_or_nan,
        sums::sum_terms,
    },
    step::Scratch,
};

/// Weights of the tokens of a sample, in draw order. They are the same for all query heads.
#[derive(Clone, Copy, Debug)]
pub struct TokenWeights<'a> {
    /// Inclusion probability π of each token, `[b]`.
    pub p: &'a [f64],
    /// Variance factor φ of each token at the current size, `[b]`.
    pub factors: &'a [f64],
    /// Strata of the tokens; `None` if each token was drawn independently of the others.
    pub strata: Option<&'a Stratification>,
}

/// A weighted sample as one query head sees it: estimates, and the terms of their variances.
#[derive(Clone, Debug)]
pub struct WeighedSample {
    /// Estimates of the totals.
    pub totals: SampleTotals,
    /// `|x − m|²` of each token.
    pub squares: TokenSquares,
    /// Variances of the totals of `w`, `e v` and `e` at the current size.
    pub variances: [Variance; 3],
    /// Inverse effective rank of the covariance of `w` (docs/guarantees.md, eq. 7' or 7'').
    pub inverse_rank: f64,
}

/// `|x − m|²` of each token, `[b]`, where `x` is `w`, `e v` or `e`, and `m` is its centre.
#[derive(Clone, Debug)]
pub struct TokenSquares {
    /// Squares of `w = e (v − o^)`.
    pub w: Scratch<f64>,
    /// Squares of `e v`.
    pub ev: Scratch<f64>,
    /// Squares of `e`.
    pub e: Scratch<f64>,
}

/// Estimated variance of a total.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Variance {
    /// `Σ φ |x − m|²`, the variance.
    pub sum: f64,
    /// Sum of the squared terms of the variance, each multiplied by its weight in the variance of
    /// this estimate: `1 − π` for independent draws. Within strata the weight is 1, and the squared
    /// mean of each stratum's terms is subtracted.
    pub fourths: f64,
}

impl Variance {
    /// Squared relative standard error of the estimate.
    pub fn relative_error_squared(&self) -> f64 {
        let fourths = max_or_nan(self.fourths, 0.0);
        if self.sum == 0.0 { 0.0 } else { fourths / (self.sum * self.sum) }
    }
}

impl WeighedSample {
    /// Computes the terms from the tokens and their products: the reference implementation, in f64.
    /// The tokens must have centres if the weights have strata. O(b).
    pub fn new(tokens: &WeightedTokens, weights: &TokenWeights<'_>) -> Self {
        let factors = weights.factors;
        let (squares, alignment) = if let (Some(within), Some(Stratification { strata, .. })) =
            (&tokens.within, weights.strata)
        {
            let squares = TokenSquares::within(tokens, within, strata);
            let alignment = alignment_within(tokens, within, strata, factors, &squares.w);
            (squares, Some(alignment))
        } else {
            let squares = TokenSquares::new(tokens);
            let alignment = alignment_of_tokens(tokens, factors, &squares.w);
            (squares, alignment)
        };
        let variances = squares.variances(weights);
        let squared = sum_squared_terms(factors, &squares.w);
        let inverse_rank = inverse_rank(alignment, variances[0].sum, squared);
        Self { totals: tokens.totals, squares, variances, inverse_rank }
    }
}

/// Inverse effective rank of a covariance, from its `alignment`, its trace and the sum of the
/// squared terms of its trace. Pairs of different tokens leave out the products of tokens with
/// themselves, which are added here. Without an alignment, the rank is 1.
pub fn inverse_rank(alignment: Option<f64>, trace: f64, squared: f64) -> f64 {
    let diagonal = if trace == 0.0 { 0.0 } else { squared / (trace * trace) };
    alignment.map_or(1.0, |alignment| alignment.min(1.0) + diagonal)
}

/// Variances from independent draws.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma", "x86_64+avx2+fma"))]
fn variances(weights: &TokenWeights<'_>, squares: &TokenSquares) -> [Variance; 3] {
    let columns = [weights.factors, weights.p, &squares.w, &squares.ev, &squares.e];
    let [w, w_fourths, ev, ev_fourths, e, e_fourths] =
        sum_terms(columns, |[factor, p, w, ev, e]| {
            let [w, ev, e] = [factor * w, factor * ev, factor * e];
            let weight = 1.0 - p;
            [w, w * w * weight, ev, ev * ev * weight, e, e * e * weight]
        });
    [(w, w_fourths), (ev, ev_fourths), (e, e_fourths)]
        .map(|(sum, fourths)| Variance { sum, fourths })
}

/// Variance of a total from draws within strata, from the squares of its terms.
fn variance_within(strata: &Stratification, factors: &[f64], squares: &[f64]) -> Variance {
    let drawn = strata.drawn();
    let (mut sums, mut fourths) = (vec![0.0; drawn.len()], 0.0);
    for ((&stratum, factor), square) in strata.strata.iter().zip(factors).zip(squares) {
        let term = factor * square;
        sums[stratum] += term;
        fourths += term * term;
    }
    let means = sums.iter().zip(drawn).map(|(sum, n)| sum * sum / n.max(1) as f64);
    Variance { sum: sums.iter().sum(), fourths: fourths - means.sum::<f64>() }
}

/// Sum of the squared terms of the variance `Σ φ |w − m|²`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma", "x86_64+avx2+fma"))]
fn sum_squared_terms(factors: &[f64], w: &[f64]) -> f64 {
    let [squared] = sum_terms([factors, w], |[factor, w]| [factor * w * (factor * w)]);
    squared
}

impl TokenSquares {
    /// Creates squares of this number of tokens, whose values are unspecified.
    pub fn unset(tokens: usize) -> Self {
        Self { w: Scratch::new(tokens), ev: Scratch::new(tokens), e: Scratch::new(tokens) }
    }

    /// Variances of the totals of `w`, `e v` and `e` of tokens with these weights.
    pub(crate) fn variances(&self, weights: &TokenWeights<'_>) -> [Variance; 3] {
        match weights.strata {
            None => variances(weights, self),
            Some(strata) => [&self.w, &self.ev, &self.e]
                .map(|squares| variance_within(strata, weights.factors, squares)),
        }
    }

    /// TokenSquares for independent draws, where `m` is 0.
    fn new(sample: &WeightedTokens) -> Self {
        let mut squares = Self::unset(sample.e.len());
        set_squares(sample, &mut squares);
        squares
    }

    /// TokenSquares for draws within strata. `strata` `[b]` has the stratum of each token.
    fn within(sample: &WeightedTokens, within: &StratumCentres, strata: &[usize]) -> Self {
        let WeightedTokens { totals, e, norms, .. } = sample;
        let mut squares = Self::unset(strata.len());
        for (i, &stratum) in strata.iter().enumerate() {
            let (centre, dot_centre) = (within.centres[stratum], within.dot_centre[i]);
            let along = along_centre(sample, i, centre, dot_centre);
            let w = sample.square(i) - 2.0 * along + centre.square_of_w(totals.out_squared);
            let ev = (e[i] * norms[i]).powi(2) - 2.0 * e[i] * dot_centre + centre.squared;
            squares.w[i] = max_or_nan(w, 0.0);
            squares.ev[i] = max_or_nan(ev, 0.0);
            squares.e[i] = (e[i] - centre.e).powi(2);
        }
        squares
    }
}

/// `w · m` of a token, where `m` is its stratum's centre and `dot_centre` is `v · μ`.
fn along_centre(sample: &WeightedTokens, i: usize, centre: Centre, dot_centre: f64) -> f64 {
    let (e, dot_out, out_squared) = (sample.e[i], sample.dot_out[i], sample.totals.out_squared);
    e * (dot_centre - centre.e * dot_out - centre.dot_out + centre.e * out_squared)
}

/// `|w|²`, `|e v|²` and `e²` of each token, from products of its value.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma", "x86_64+avx2+fma"))]
fn set_squares(sample: &WeightedTokens, out: &mut TokenSquares) {
    let WeightedTokens { totals: SampleTotals { out_squared, .. }, e, norms, dot_out, .. } = sample;
    let tokens = e.len();
    // Slices of one length, so that the loop has no bounds checks.
    let (norms, dot_out) = (&norms[..tokens], &dot_out[..tokens]);
    let TokenSquares { w: out_w, ev: out_ev, e: out_e } = out;
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

/// Estimate of the alignment `Tr(S²) / Tr(S)²` for the covariance `S` of the total of `w`, from
/// pairs of different tokens, each weighted by its contribution to the trace (docs/guarantees.md,
/// first term of eq. 7'). `None` for fewer than four tokens, or if all terms are 0.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma", "x86_64+avx2+fma"))]
fn alignment_of_tokens(sample: &WeightedTokens, factors: &[f64], squares: &[f64]) -> Option<f64> {
    const FOUR: usize = WeightedTokens::FOUR;
    let WeightedTokens { totals: SampleTotals { out_squared, .. }, e, dot_out, fours, .. } = sample;
    let (mut parallel, mut all) = (0.0, 0.0);
    let (e, dot_out) = (e.as_chunks::<FOUR>().0, dot_out.as_chunks::<FOUR>().0);
    let (factors, squares) = (factors.as_chunks::<FOUR>().0, squares.as_chunks::<FOUR>().0);
    for (four, products) in fours.iter().enumerate() {
        let (e, dot_out) = (e[four], dot_out[four]);
        let (factors, squares) = (factors[four], squares[four]);
        let weights: [f64; FOUR] = std::array::from_fn(|i| factors[i] * e[i] * e[i]);
        let terms: [f64; FOUR] = std::array::from_fn(|i| factors[i] * squares[i]);
        for (product, (i, j)) in products.iter().zip(WeightedTokens::PAIRS) {
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
    sample: &WeightedTokens,
    within: &StratumCentres,
    strata: &[usize],
    factors: &[f64],
    squares: &[f64],
) -> f64 {
    const FOUR: usize = WeightedTokens::FOUR;
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
        for (product, (i, j)) in products.into_iter().zip(WeightedTokens::PAIRS) {
            if strata[i] != strata[j] {
                continue;
            }
            let square_of_centre = within.centres[strata[i]].square_of_w(sample.totals.out_squared);
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
mod tests {
    use super::*;
    use crate::{sample::Sample, step::Softmax};

    /// Tokens of equal weight with given values, drawn within strata of 20 successive tokens, each
    /// a neighbour of the strata before and after it.
    fn stratified_sample(values: &[[f64; 2]]) -> (WeightedTokens, Stratification) {
        let strata: Vec<usize> = (0..values.len()).map(|i| i / 20).collect();
        let last = strata[values.len() - 1];
        let beside =
            |h: usize| [h.wrapping_sub(1), h + 1].into_iter().filter(|&h| h <= last).collect();
        let strata = Stratification { strata, neighbours: (0..=last).map(beside).collect() };
        let values: Vec<f32> = values.iter().flatten().map(|&x| x as f32).collect();
        let (e, p) = (vec![1.0; values.len() / 2], vec![1.0; values.len() / 2]);
        let certain = Softmax::new(2);
        let sample = Sample {
            e: &e,
            values: &values,
            certain: &certain,
            n_s: e.len(),
            visible: e.len(),
            query_heads: 1,
            max_norm_v: 2.0,
            bound: None,
        };
        (WeightedTokens::new(&sample, &p, Some(&strata), 0.0), strata)
    }

    /// Effective ranks from pairs of any tokens, and from pairs within the strata.
    fn ranks(values: &[[f64; 2]]) -> [f64; 2] {
        let (sample, Stratification { strata, .. }) = stratified_sample(values);
        let within = sample.within.as_ref().unwrap();
        let factors = vec![2.0; values.len()];
        let by_tokens =
            alignment_of_tokens(&sample, &factors, &TokenSquares::new(&sample).w).unwrap();
        let squares = TokenSquares::within(&sample, within, &strata).w;
        let by_strata = alignment_within(&sample, within, &strata, &factors, &squares);
        [1.0 / by_tokens, 1.0 / by_strata]
    }

    fn circle(i: usize) -> [f64; 2] {
        [((i * i) as f64).cos(), ((i * i) as f64).sin()]
    }

    /// Values on a line through the output have rank 1, values on a circle around it rank 2.
    #[test]
    fn effective_ranks_from_pairs() {
        let values = |shape: &dyn Fn(usize) -> [f64; 2]| -> Vec<[f64; 2]> {
            (0..500).map(shape).map(|[x, y]| [x + 0.7, y - 0.4]).collect()
        };
        for line in ranks(&values(&|i| [(i % 7) as f64 - 3.0, 0.0])) {
            assert!((line - 1.0).abs() < 1e-6, "1, not {line}");
        }
        for circle in ranks(&values(&circle)) {
            assert!((1.8..2.2).contains(&circle), "about 2, not {circle}");
        }
    }

    /// A large difference between neighbouring strata outweighs the variance within each stratum.
    #[test]
    fn a_difference_between_neighbouring_strata_has_rank_one() {
        let values = |i: usize| {
            let [x, y] = circle(i).map(|x| 0.01 * x);
            [if i < 200 { 1.0 + x } else { x - 1.0 }, y]
        };
        let [_, rank] = ranks(&(0..400).map(values).collect::<Vec<_>>());
        assert!((1.0..1.1).contains(&rank), "about 1, not {rank}");
    }

    /// With one token per stratum there are no pairs, so the alignment is 1.
    #[test]
    fn pairs_are_taken_within_strata() {
        let (sample, _) = stratified_sample(&(0..8).map(circle).collect::<Vec<_>>());
        let (products, squares) = (sample.within.clone().unwrap(), TokenSquares::new(&sample).w);
        let alignment = |strata: [usize; 8]| {
            let centres = vec![products.centres[0]; 8];
            let within = StratumCentres { centres, ..products.clone() };
            alignment_within(&sample, &within, &strata, &[1.0; 8], &squares)
        };
        assert_eq!(alignment([0, 1, 2, 3, 4, 5, 6, 7]), 1.0);
        assert!(alignment([0, 0, 1, 1, 2, 2, 3, 3]) < 1.0);
    }
}
