//! Radii that are proved for every finite sample.
//!
//! For a token that is not read, the bound `e ≤ e^ = exp(score + Δ)` and an upper bound on `|v|`
//! are known. Let `c` be the output of the tokens with `π = 1` at a threshold, or 0 if there are
//! none, and `u = e (v − c)`, so that `|u| ≤ e^ (|v| + |c|)`. The errors of `U^` and `D^` are sums
//! of independent centred terms `x (ξ/π − 1)`, where `x` is `u` or `e`, and `ξ` is 1 if the token
//! is drawn and 0 otherwise. The length of a term is at most `|x| max(1/π − 1, 1)`, and the
//! variance of the sum is `V = Σ |x|² (1/π − 1)`. Two upper bounds on `V` are used: the same sum
//! over the tokens' bounds on `|x|`, and a confidence bound from the unbiased estimate
//! `Σ |x|² (1/π − 1)/π` over the sample. Bernstein's inequality then bounds both errors, and these
//! bound the error of the output.
//!
//! All checked thresholds are from a list that is fixed before the draw. At each of them four
//! inequalities are used, each of which fails with probability at most `δ / (4 n)` for a list of
//! `n` thresholds. By the union bound all hold together with probability at least `1 − δ`, whatever
//! the threshold of the final sample.

use vattention_core::{
    plugin::{ProofTerms, SampleProof},
    sample::Sample,
    step::Softmax,
};
use vattention_estimators::formula::{bernstein_radius, output_error, relative_error, upper_bound};

use super::errors::Scan;
use super::sizes::Sizes;

/// Number of inequalities at each threshold: two errors, two variances.
const EVENTS: f64 = 4.0;

/// Proved bounds on the error of one row's output, at any threshold that may be checked.
#[derive(Debug)]
pub(super) struct Rigorous<'a> {
    sizes: &'a Sizes,
    /// Bounds on each token that is drawn at random.
    tokens: Vec<TokenBounds>,
    /// Failure probability of one inequality.
    delta: f64,
    /// All sizes that may be checked, ascending, and their thresholds.
    checks: Vec<(usize, i16)>,
}

/// Upper bounds on the weight and on the value's norm of a token.
#[derive(Clone, Copy, Debug)]
struct TokenBounds {
    token: usize,
    weight: f64,
    norm: f64,
}

/// Upper bounds over all tokens at a threshold, one for `x = u` and one for `x = e`.
#[derive(Clone, Copy, Debug, Default)]
struct WeightBounds {
    /// Upper bound on the length of one token's term in the error.
    largest: [f64; 2],
    /// Upper bound on the variance `V`.
    variance: [f64; 2],
    /// Upper bound on one token's term in the estimate of `V`.
    largest_square: [f64; 2],
}

impl<'a> Rigorous<'a> {
    pub(super) fn new(terms: &ProofTerms, scan: &Scan<'_>, sizes: &'a Sizes) -> Self {
        let bounds = |token| TokenBounds {
            token,
            weight: weight_bound(scan, token, terms.shift),
            norm: scan.norms[token].to_f64(),
        };
        let checks: Vec<_> = check_sizes(terms.base, terms.limit, sizes.residual())
            .map(|size| (size, sizes.threshold(size)))
            .collect();
        Self {
            sizes,
            tokens: sizes.tokens().map(bounds).collect(),
            delta: terms.delta / (EVENTS * checks.len() as f64),
            checks,
        }
    }

    /// Radii at the sizes whose threshold is `t` or more. `drawn` are the tokens of the sample,
    /// drawn at `t`: the radius at `t` is proved, radii at larger thresholds are predicted from the
    /// sample.
    pub(super) fn proof(
        mut self,
        sample: &'a Sample<'_>,
        drawn: &'a [u32],
        t: i16,
    ) -> SampleProof<'a> {
        self.checks.retain(|&(_, next)| next >= t);
        let sizes = self.checks.iter().map(|check| check.0).collect();
        let all = sums(sample, drawn, |token| 1.0 / self.sizes.probability(token, t));
        let output_norm = length(&all.output());
        let radius = move |size: usize| {
            let next = self.sizes.threshold(size).max(t);
            self.radius(sample, drawn, t, next)
        };
        SampleProof { sizes, radius: Box::new(radius), output_norm }
    }

    /// Bound on the relative error at the threshold `next`, from a sample drawn at the threshold
    /// `t`.
    fn radius(&self, sample: &Sample<'_>, drawn: &[u32], t: i16, next: i16) -> f64 {
        let p = |token: usize, t: i16| self.sizes.probability(token, t);
        let is_certain = |token| p(token, next) >= 1.0;
        let certain = sums(sample, drawn, |token| if is_certain(token) { 1.0 } else { 0.0 });
        let (centre, all) = (certain.output(), sums(sample, drawn, |token| 1.0 / p(token, t)));
        let proved = self.bounds(t, next, length(&centre));
        let estimated = self.estimate_variances(sample, drawn, [t, next], &centre);
        let radius = |which: usize| {
            let estimated = upper_bound(self.delta, estimated[which], proved.largest_square[which]);
            let variance = proved.variance[which].min(estimated);
            bernstein_radius(self.delta, variance, proved.largest[which])
        };
        let out = all.output();
        let drift = length(&out.iter().zip(&centre).map(|(o, c)| o - c).collect::<Vec<_>>());
        let error = output_error(radius(0), radius(1), drift, all.denominator());
        relative_error(error, length(&out))
    }

    /// Bounds on errors at the threshold `next`, and on terms of the variance's estimate from a
    /// sample drawn at `t`. `centre` is the length of `c`.
    fn bounds(&self, t: i16, next: i16, centre: f64) -> WeightBounds {
        let mut proved = WeightBounds::default();
        for &TokenBounds { token, weight: e, norm } in &self.tokens {
            let [p, p_next] = [t, next].map(|t| self.sizes.probability(token, t));
            if p_next >= 1.0 {
                continue;
            }
            for (which, x) in [e * (norm + centre), e].into_iter().enumerate() {
                let odds = 1.0 / p_next - 1.0;
                proved.largest[which] = proved.largest[which].max(x * odds.max(1.0));
                proved.variance[which] += x * x * odds;
                proved.largest_square[which] = proved.largest_square[which].max(x * x * odds / p);
            }
        }
        proved
    }

    /// Estimates the variances of `U^` and `D^` at the second threshold from a sample drawn at the
    /// first.
    fn estimate_variances(
        &self,
        sample: &Sample<'_>,
        drawn: &[u32],
        thresholds: [i16; 2],
        centre: &[f64],
    ) -> [f64; 2] {
        let mut sums = [0.0; 2];
        for ((&token, e), value) in drawn.iter().zip(sample.e).zip(values(sample)) {
            let [p, p_next] = thresholds.map(|t| self.sizes.probability(token as usize, t));
            let square: f64 =
                value.iter().zip(centre).map(|(&v, c)| (f64::from(v) - c).powi(2)).sum();
            let factor = e * e * (1.0 / p_next - 1.0) / p;
            sums[0] += factor * square;
            sums[1] += factor;
        }
        sums
    }
}

/// Sizes at which a sample from `n_s` tokens may be checked: `base` first, each next one larger by
/// a factor of `√2`, and finally `limit`, if smaller than `n_s`. They are fixed before the draw.
fn check_sizes(base: usize, limit: usize, n_s: usize) -> impl Iterator<Item = usize> {
    let larger = |&size: &usize| Some(((size as f64 * std::f64::consts::SQRT_2).ceil()) as usize);
    let below =
        std::iter::successors(Some(base), larger).take_while(move |&size| size < limit.min(n_s));
    below.chain((limit < n_s).then_some(limit))
}

/// Sums over the tokens that are always read, with weight 1, and over the drawn tokens, each
/// multiplied by `weight(token)`.
fn sums(sample: &Sample<'_>, drawn: &[u32], weight: impl Fn(usize) -> f64) -> Softmax {
    let mut n = sample.certain.numerator().to_vec();
    let mut d = sample.certain.denominator();
    for ((&token, e), value) in drawn.iter().zip(sample.e).zip(values(sample)) {
        let e = e * weight(token as usize);
        d += e;
        n.iter_mut().zip(value).for_each(|(n, &v)| *n += e * f64::from(v));
    }
    Softmax::from_sums(0.0, d, n)
}

fn values<'s>(sample: &'s Sample<'_>) -> impl Iterator<Item = &'s [f32]> {
    sample.values.chunks_exact(sample.certain.numerator().len())
}

fn length(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// Upper bound on the weight `e` of a token.
fn weight_bound(scan: &Scan<'_>, token: usize, shift: f64) -> f64 {
    libm::exp(f64::from(scan.scores[token]) + scan.errors.proved(token) - shift)
}

#[cfg(test)]
mod tests {
    use vattention_core::Picks;
    use vattention_testkit::{Head, Texture};

    use super::super::LogitIndex;
    use super::super::index::LogitPredictor;
    use super::*;

    /// Calls `check` with the bounds for 100 tokens, none of which is always read.
    fn with_bounds(base: usize, check: impl Fn(&Rigorous<'_>)) {
        let head = Head::new(100, 8, 1, Texture::Gaussian);
        let mut index = LogitPredictor::new(head.site(), LogitIndex::Keys);
        index.append(&head.part(0..100));
        let step = head.step(100);
        let picks = Picks::new(100);
        let mut scans = index.scan(&[step.row(0)], &picks, &[]);
        let sizes = Sizes::new(&mut scans, &picks, Vec::new());
        let terms = ProofTerms { delta: 0.2, base, limit: 100, shift: 0.0 };
        check(&Rigorous::new(&terms, &scans[0], &sizes));
    }

    #[test]
    fn delta_is_divided_over_every_threshold_and_every_inequality() {
        with_bounds(4, |bounds| {
            let checks: Vec<usize> = bounds.checks.iter().map(|check| check.0).collect();
            assert_eq!(checks, [4, 6, 9, 13, 19, 27, 39, 56, 80]);
            assert!((bounds.delta - 0.2 / 36.0).abs() < 1e-12);
        });
    }

    /// The term of a drawn token has the length `x (1/π − 1)`, that of an undrawn token `x`.
    #[test]
    fn no_term_of_one_token_exceeds_the_range() {
        with_bounds(16, |bounds| {
            let t = bounds.checks[0].1;
            let proved = bounds.bounds(t, t, 0.5);
            let (mut nearest, mut variance) = ([f64::INFINITY; 2], [0.0; 2]);
            for &TokenBounds { token, weight, norm } in &bounds.tokens {
                let p = bounds.sizes.probability(token, t);
                let lengths = [weight * (norm + 0.5), weight];
                for (which, x) in lengths.into_iter().enumerate().filter(|_| p < 1.0) {
                    let room = proved.largest[which] - (x * (1.0 / p - 1.0)).max(x);
                    nearest[which] = nearest[which].min(room);
                    variance[which] += p * (x * (1.0 / p - 1.0)).powi(2) + (1.0 - p) * x * x;
                }
            }
            for which in [0, 1] {
                assert_eq!(nearest[which], 0.0);
                assert!((proved.variance[which] / variance[which] - 1.0).abs() < 1e-9);
            }
        });
    }
}
