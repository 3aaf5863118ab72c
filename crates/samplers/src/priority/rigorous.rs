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
use super::token_bounds::TokenBounds;

/// Number of inequalities at each threshold: two errors, two variances.
const EVENTS: f64 = 4.0;

/// Proved bounds on the error of one row's output, at any threshold that may be checked.
#[derive(Debug)]
pub(super) struct Rigorous<'a> {
    sizes: &'a Sizes,
    tokens: TokenBounds,
    /// Failure probability of one inequality.
    delta: f64,
    /// All sizes that may be checked, ascending, and their thresholds.
    checks: Vec<(usize, i16)>,
}

impl<'a> Rigorous<'a> {
    /// Returns `None` if the scores of the row are not stored.
    pub(super) fn new(
        terms: &ProofTerms,
        scan: &Scan<'_>,
        row: usize,
        sizes: &'a Sizes,
    ) -> Option<Self> {
        let checks: Vec<_> = check_sizes(terms.base, terms.limit, sizes.residual())
            .map(|size| (size, sizes.threshold(size)))
            .collect();
        let tokens = TokenBounds::new(scan, row, sizes, terms.shift)?;
        let delta = terms.delta / (EVENTS * checks.len() as f64);
        Some(Self { sizes, tokens, delta, checks })
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
            self.radius(sample, drawn, &all, [t, next])
        };
        SampleProof { sizes, radius: Box::new(radius), output_norm }
    }

    /// Bound on the relative error at the threshold `next`, from a sample drawn at the threshold
    /// `t`, whose estimates are `all`.
    fn radius(
        &self,
        sample: &Sample<'_>,
        drawn: &[u32],
        all: &Softmax,
        [t, next]: [i16; 2],
    ) -> f64 {
        let is_certain = |token| self.sizes.probability(token, next) >= 1.0;
        let certain = sums(sample, drawn, |token| if is_certain(token) { 1.0 } else { 0.0 });
        let centre = certain.output();
        let proved = self.tokens.terms(t, next, length(&centre));
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
            if p_next >= 1.0 {
                continue;
            }
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
        if e == 0.0 {
            continue;
        }
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
        let scan = index.scan(&[step.row(0)], &picks, &[]);
        let sizes = Sizes::new(&scan, &picks, Vec::new());
        let terms = ProofTerms { delta: 0.2, base, limit: 100, shift: 0.0 };
        check(&Rigorous::new(&terms, &scan, 0, &sizes).expect("scores are stored"));
    }

    #[test]
    fn delta_is_divided_over_every_threshold_and_every_inequality() {
        with_bounds(4, |bounds| {
            let checks: Vec<usize> = bounds.checks.iter().map(|check| check.0).collect();
            assert_eq!(checks, [4, 6, 9, 13, 19, 27, 39, 56, 80]);
            assert!((bounds.delta - 0.2 / 36.0).abs() < 1e-12);
        });
    }
}
