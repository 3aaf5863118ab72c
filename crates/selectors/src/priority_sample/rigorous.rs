//! How large a sample must be for a promise of which every quantity is proved.
//!
//! Of a token that is not read, `e ≤ e^ = exp(score + Δ)` is known, and `|v|`. Let `c` be the output
//! of the tokens that are certain at a threshold, or 0 if none is, and `u = e (v − c)`, so that
//! `|u| ≤ e^ (|v| + |c|)`. The errors of `U^` and `D^` are sums of the independent centred terms
//! `x (ξ/π − 1)`, `x` being `u` or `e` and `ξ` whether the token is drawn: none is longer than
//! `|x| max(1/π − 1, 1)`, and their variance is `V = Σ |x|² (1/π − 1)`. `V` is at most the same sum
//! over the bounds, and at most what its estimate `Σ |x|² (1/π − 1)/π` over the sample proves;
//! Bernstein's inequality then bounds both errors, and these that of the output.
//!
//! The thresholds that are looked at are from a list that is known before the draw, and four
//! inequalities, each of which fails with probability δ/4 over the list's length at most, hold at
//! each of them: so all do together, whatever the threshold at which the sample ends.

use vattention_estimators::formula::{bernstein_radius, output_error, upper_bound};

use super::design::Design;
use super::index::Scan;
use super::sample::Sample;
use crate::sums::square;

/// By how much the expected sample grows from one threshold to the next.
const GROWTH: f64 = std::f64::consts::SQRT_2;

/// Inequalities at each threshold: two errors, two variances.
const EVENTS: f64 = 4.0;

/// Terms of a promise that takes nothing for granted.
#[derive(Debug)]
pub(super) struct Rigorous<'a> {
    design: &'a Design,
    /// What no token's weight exceeds, `[left]`.
    weights: Vec<f64>,
    /// What no value's norm exceeds, `[left]`.
    norms: Vec<f64>,
    /// The relative error allowed.
    epsilon: f64,
    /// The norm that the output is taken for at least.
    floor: f64,
    /// With what probability one inequality may fail.
    delta: f64,
    /// All thresholds, ascending.
    thresholds: Vec<f64>,
}

/// Sums over all tokens at a threshold, of `u` and of `e`.
#[derive(Clone, Copy, Debug, Default)]
struct Proved {
    /// What no error of one token exceeds.
    largest: [f64; 2],
    /// What the variance does not exceed.
    variance: [f64; 2],
    /// What no term of the variance's estimate exceeds.
    largest_square: [f64; 2],
}

impl<'a> Rigorous<'a> {
    /// Weights are relative to `shift`; the first look is at `base` tokens.
    pub(super) fn new(
        (epsilon, delta, floor): (f64, f64, f64),
        scan: &Scan<'_>,
        design: &'a Design,
        shift: f64,
        base: f64,
    ) -> Self {
        let places = || (0..design.len()).map(|place| design.token(place));
        let thresholds: Vec<f64> = std::iter::successors(Some(base), |b| Some(b * GROWTH))
            .take_while(|&b| b < design.len() as f64)
            .map(|b| design.threshold(b))
            .collect();
        Self {
            design,
            weights: places().map(|token| most(scan, token, shift)).collect(),
            norms: places().map(|token| f64::from(scan.norms[token])).collect(),
            epsilon,
            floor: floor * uncancelled(scan, shift),
            delta: delta / (EVENTS * thresholds.len() as f64),
            thresholds,
        }
    }

    /// The least of the thresholds from `t` on that suffices: at `t` itself this is proved, beyond
    /// it foreseen from the sample drawn at `t`. `None` if none does.
    pub(super) fn needed(&self, sample: &Sample<'_>, t: f64) -> Option<f64> {
        let from = self.thresholds.iter().copied().skip_while(|&next| next < t);
        from.into_iter().find(|&next| self.is_enough(sample, t, next))
    }

    fn is_enough(&self, sample: &Sample<'_>, t: f64, next: f64) -> bool {
        let centre = sample.certain(self.design, next).output();
        let length = square(&centre).sqrt();
        let proved = self.proved(t, next, length);
        let estimated = self.estimated(sample, t, next, &centre);
        let radius = |which: usize| {
            let estimated = upper_bound(self.delta, estimated[which], proved.largest_square[which]);
            let variance = proved.variance[which].min(estimated);
            bernstein_radius(self.delta, variance, proved.largest[which])
        };
        let sums = sample.estimate(self.design, t);
        let out = sums.output();
        let drift = out.iter().zip(&centre).map(|(o, c)| (o - c).powi(2)).sum::<f64>().sqrt();
        let error = output_error(radius(0), radius(1), drift, sums.d);
        // |o| is at least |o^| less the error.
        error <= self.epsilon * (square(&out).sqrt() / (1.0 + self.epsilon)).max(self.floor)
    }

    /// `centre` is the length of `c`.
    fn proved(&self, t: f64, next: f64, centre: f64) -> Proved {
        let mut proved = Proved::default();
        for (place, (e, norm)) in self.weights.iter().zip(&self.norms).enumerate() {
            let [p, p_next] = [t, next].map(|t| f64::from(self.design.probability(place, t)));
            if p_next >= 1.0 {
                continue;
            }
            for (which, x) in [e * (norm + centre), *e].into_iter().enumerate() {
                let odds = 1.0 / p_next - 1.0;
                proved.largest[which] = proved.largest[which].max(x * odds.max(1.0));
                proved.variance[which] += x * x * odds;
                proved.largest_square[which] = proved.largest_square[which].max(x * x * odds / p);
            }
        }
        proved
    }

    /// The estimated variances at `next`, from the sample drawn at `t`.
    fn estimated(&self, sample: &Sample<'_>, t: f64, next: f64, centre: &[f64]) -> [f64; 2] {
        let mut sums = [0.0; 2];
        for (drawn, value) in sample.tokens() {
            let [p, p_next] = [t, next].map(|t| f64::from(self.design.probability(drawn.place, t)));
            let apart: f64 = value.iter().zip(centre).map(|(v, c)| (v - c).powi(2)).sum();
            let factor = drawn.e.powi(2) * (1.0 / p_next - 1.0) / p;
            sums[0] += factor * apart;
            sums[1] += factor;
        }
        sums
    }
}

/// What a token's weight does not exceed.
fn most(scan: &Scan<'_>, token: usize, shift: f64) -> f64 {
    libm::exp(f64::from(scan.scores[token]) + scan.error(token) - shift)
}

/// What `Σ e |v| / Σ e` does not fall below.
fn uncancelled(scan: &Scan<'_>, shift: f64) -> f64 {
    let least = |token: usize| libm::exp(f64::from(scan.scores[token]) - scan.error(token) - shift);
    let rounding = 1.0 - 2.0 * f64::from(f32::EPSILON);
    let tokens = || 0..scan.scores.len();
    let norms: f64 = tokens().map(|token| least(token) * f64::from(scan.norms[token])).sum();
    rounding * norms / tokens().map(|token| most(scan, token, shift)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use vattention_core::{Picks, Stream};
    use vattention_testkit::{Head, Texture};

    use super::super::index::Index;
    use super::super::uniform::Uniforms;
    use super::*;

    /// A proof for the 100 tokens of a head, none of them certain, from `base` on.
    fn with_proof(base: f64, check: impl Fn(&Rigorous<'_>)) {
        let head = Head::new(100, 8, 1, Texture::Gaussian);
        let mut index = Index::new(8);
        index.append(&head.part(0..100));
        let step = head.step(100);
        let scan = index.scan(&step.row(0));
        let uniforms = Uniforms::new(&Stream::new(head.site(), 1, 0, 0));
        let design = Design::new(&scan, &Picks::new(100), uniforms);
        check(&Rigorous::new((0.1, 0.2, 0.0), &scan, &design, 0.0, base));
    }

    /// Samples of 4, 4 √2, 8 and so on up to 90.5 tokens are expected.
    #[test]
    fn delta_is_divided_over_every_threshold_and_every_inequality() {
        with_proof(4.0, |rule| {
            assert_eq!(rule.thresholds.len(), 10);
            assert!((rule.delta - 0.2 / 40.0).abs() < 1e-12);
        });
    }

    /// A token that is drawn is off by `x (1/π − 1)`, one that is not by `x`.
    #[test]
    fn no_error_of_one_token_exceeds_the_range() {
        with_proof(16.0, |rule| {
            let t = rule.thresholds[0];
            let proved = rule.proved(t, t, 0.5);
            let (mut nearest, mut variance) = ([f64::INFINITY; 2], [0.0; 2]);
            for place in 0..rule.design.len() {
                let p = f64::from(rule.design.probability(place, t));
                let weight = rule.weights[place];
                let lengths = [weight * (rule.norms[place] + 0.5), weight];
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
