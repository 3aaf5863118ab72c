//! Proved bounds on the tokens that are drawn at random, and on their terms in an error.

use multiversion::multiversion;
use vattention_core::step::{exponentials, largest};

use super::errors::{Scan, Scores};
use super::level::number;
use super::sizes::{Sizes, probability_level};

/// Number of tokens whose terms are computed together.
const LANES: usize = 16;

/// Largest difference of a bound on a logit and the shift whose exponential is computed.
const MAX_EXPONENT: f64 = 700.0;

/// Upper bounds on the weights and on the values' norms of the tokens that are drawn at random,
/// `[tokens]`. Tokens of weight 0 fill the last [`LANES`].
#[derive(Debug)]
pub(super) struct TokenBounds {
    /// Sizes, as levels.
    levels: Vec<i16>,
    /// Bounds on `e`.
    weights: Vec<f64>,
    /// Bounds on `|v|`.
    norms: Vec<f64>,
}

/// Upper bounds over all tokens at a threshold, one for `x = u` and one for `x = e`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TermBounds {
    /// Upper bound on the length of one token's term in the error.
    pub(super) largest: [f64; 2],
    /// Upper bound on the variance `V`.
    pub(super) variance: [f64; 2],
    /// Upper bound on one token's term in the estimate of `V`.
    pub(super) largest_square: [f64; 2],
}

impl TokenBounds {
    /// Computes the bounds from the predictions of one row, unless its scores are not stored.
    /// Weights are relative to the logit `shift`. O(visible).
    pub(super) fn new(scan: &Scan<'_>, row: usize, sizes: &Sizes, shift: f64) -> Option<Self> {
        let Scores::Stored(scores) = &scan.scores else { return None };
        let (scores, errors) = (&scores[row], &scan.errors[row]);
        let tokens: Vec<usize> = sizes.tokens().collect();
        let logit =
            |&token: &usize| ((f64::from(scores[token]) + errors.proved(token)) as f32).next_up();
        let logits: Vec<f32> = tokens.iter().map(logit).collect();
        let mut weights = if f64::from(largest(&logits)) - shift <= MAX_EXPONENT {
            exponentials(&logits, shift, 1.0)
        } else {
            vec![f64::INFINITY; logits.len()]
        };
        let mut levels: Vec<i16> = tokens.iter().map(|&token| sizes.levels()[token]).collect();
        let mut norms: Vec<f64> = tokens.iter().map(|&token| scan.norms[token].to_f64()).collect();
        let padded = tokens.len().next_multiple_of(LANES);
        weights.resize(padded, 0.0);
        levels.resize(padded, 0);
        norms.resize(padded, 0.0);
        Some(Self { levels, weights, norms })
    }

    /// Bounds on errors at the threshold `next`, and on terms of the variance's estimate from a
    /// sample drawn at `t`. `centre` is the length of `c`.
    pub(super) fn terms(&self, t: i16, next: i16, centre: f64) -> TermBounds {
        bound_terms(&self.levels, &self.weights, &self.norms, [t, next], centre)
    }
}

/// Bounds of each lane for one kind of `x`.
#[derive(Clone, Copy)]
struct LaneBounds {
    largest: [f64; LANES],
    variance: [f64; LANES],
    largest_square: [f64; LANES],
}

impl LaneBounds {
    const ZERO: Self =
        Self { largest: [0.0; LANES], variance: [0.0; LANES], largest_square: [0.0; LANES] };

    /// Adds the term of a token with the bound `x`, the probability `p`, and the odds
    /// `1/π − 1` at the next threshold.
    #[inline(always)]
    fn add(&mut self, lane: usize, x: f64, odds: f64, p: f64) {
        let length = x * if odds > 1.0 { odds } else { 1.0 };
        let variance = x * x * odds;
        let square = variance / p;
        let (longest, most) = (&mut self.largest[lane], &mut self.largest_square[lane]);
        *longest = if length > *longest { length } else { *longest };
        *most = if square > *most { square } else { *most };
        self.variance[lane] += variance;
    }
}

/// See [`TokenBounds::terms`]. The order of additions does not depend on the machine.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn bound_terms(
    levels: &[i16],
    weights: &[f64],
    norms: &[f64],
    [t, next]: [i16; 2],
    centre: f64,
) -> TermBounds {
    let mut lanes = [LaneBounds::ZERO; 2];
    let (levels, weights) = (levels.as_chunks::<LANES>().0, weights.as_chunks::<LANES>().0);
    for ((levels, weights), norms) in levels.iter().zip(weights).zip(norms.as_chunks().0) {
        let norms: &[f64; LANES] = norms;
        for lane in 0..LANES {
            let p = f64::from(number(probability_level(levels[lane], t)));
            let p_next = f64::from(number(probability_level(levels[lane], next)));
            let e = if p_next < 1.0 { weights[lane] } else { 0.0 };
            let odds = 1.0 / p_next - 1.0;
            lanes[0].add(lane, e * (norms[lane] + centre), odds, p);
            lanes[1].add(lane, e, odds, p);
        }
    }
    let most = |numbers: [f64; LANES]| numbers.into_iter().fold(0.0, f64::max);
    TermBounds {
        largest: lanes.map(|bounds| most(bounds.largest)),
        variance: lanes.map(|bounds| bounds.variance.into_iter().sum()),
        largest_square: lanes.map(|bounds| most(bounds.largest_square)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The term of a drawn token has the length `x (1/π − 1)`, that of an undrawn token `x`.
    #[test]
    fn no_term_of_one_token_exceeds_the_range() {
        let sizes: Vec<f32> = (0..100).map(|i| 0.7_f32.powi(i % 23)).collect();
        let sizes = Sizes::from_numbers(&sizes);
        let levels = sizes.levels();
        let weights: Vec<f64> = (0..100).map(|i| 1.0 + f64::from(i * 7 % 13)).collect();
        let norms: Vec<f64> = (0..100).map(|i| f64::from(i * 5 % 11)).collect();
        for (size, then) in [(16, 16), (16, 40), (30, 60)] {
            let thresholds = [size, then].map(|size| sizes.threshold(size));
            let bounds = bound_terms(&levels[..96], &weights, &norms, thresholds, 0.5);
            let (mut nearest, mut variance) = ([f64::INFINITY; 2], [0.0; 2]);
            let mut least_room = [f64::INFINITY; 2];
            for token in 0..96 {
                let [p, next] = thresholds.map(|t| sizes.probability(token, t));
                let lengths = [weights[token] * (norms[token] + 0.5), weights[token]];
                for (which, x) in lengths.into_iter().enumerate().filter(|_| next < 1.0) {
                    let room = bounds.largest[which] - (x * (1.0 / next - 1.0)).max(x);
                    nearest[which] = nearest[which].min(room);
                    let term_variance =
                        next * (x * (1.0 / next - 1.0)).powi(2) + (1.0 - next) * x * x;
                    variance[which] += term_variance;
                    let room = bounds.largest_square[which] - term_variance / p;
                    least_room[which] = least_room[which].min(room);
                }
            }
            for which in [0, 1] {
                assert_eq!(nearest[which], 0.0);
                assert!(least_room[which].abs() < 1e-9 * bounds.largest_square[which]);
                assert!((bounds.variance[which] / variance[which] - 1.0).abs() < 1e-9);
            }
        }
    }
}
