//! Errors of predicted logits (scores), and the increase of tokens' sizes that allows for them.
//!
//! The logit of a token may be larger than its score. So each size is multiplied by `e^x`, with an
//! exponent `x` of the token:
//!
//! - For a copy in 8 bits, `x = Δ`, the proved bound on the logit's error. Then no attention weight
//!   exceeds the one from which its token's size is computed.
//! - For a code of 2 bits, `x = max(σ²/2, z σ − a)`, where `σ` is the standard deviation of the
//!   score's error. The first term corrects the mean: given its score, a token weighs at most
//!   `e^(score + σ²/2)` on average. The second term is a guard: a token that holds a tenth of the
//!   attention, and whose score is `z` standard deviations too low, is still drawn with probability
//!   0.9 in a sample of 128 (docs/guarantees.md, section 3).
//!
//! If the layer caps logits, a score `s` becomes `cap(s)`, and the exponent `cap(s + x) − cap(s)`.
//! The cap is monotone, so the bound on a logit remains one.
//!
//! Tokens whose exponent exceeds [`LIMIT`] are always read: their scores carry almost no
//! information.

use std::ops::Range;

use half::bf16;
use vattention_core::{
    Picks, SoftmaxForm,
    step::{Element, Scratch, StepThreads},
};
use vattention_index::{CodeDeviations, CodeScan, PART};

use super::keys;
use super::level::STEPS_TO_E;

/// `z`: the guard covers errors of a code up to this number of standard deviations.
const GUARD: f32 = 2.82;

/// `a = ln(0.1 · 128 / 0.9)`.
const GUARD_OFFSET: f32 = 2.65;

/// Largest exponent of a token that is drawn at random: σ = 3 for codes.
const LIMIT: f32 = 3.0 * GUARD - GUARD_OFFSET;

/// Predictions of the logits of rows that share a token list.
#[derive(Debug)]
pub(super) struct Scan<'a> {
    pub(super) scores: Scores<'a>,
    /// True if all scores are finite.
    pub(super) is_finite: bool,
    /// Errors of the scores of each row.
    pub(super) errors: Vec<LogitErrors<'a>>,
    /// Upper bounds on the norms of the values, `[visible]`.
    pub(super) norms: &'a [bf16],
    /// Largest of the norms.
    pub(super) longest: bf16,
    /// Threads among which the pass over the scores is divided.
    pub(super) threads: StepThreads<'a>,
}

/// Approximate logits.
#[derive(Debug)]
pub(super) enum Scores<'a> {
    /// Predictions by codes, in steps, for one part of the tokens after another.
    Codes(CodeScan<'a>),
    /// Logits, `[rows][visible]`.
    Stored(Vec<Scratch<f32>>),
}

impl Scores<'_> {
    /// Writes the scores of some rows, from `row` on, to `out`, for a part of the tokens. They are
    /// steps. Elements after the last token are set to the least f32.
    pub(super) fn predict_part(&self, tokens: Range<usize>, row: usize, out: &mut [[f32; PART]]) {
        let len = tokens.len();
        match self {
            Self::Codes(scan) => scan.predict(tokens, row, out),
            Self::Stored(scores) => {
                for (scores, out) in scores[row..].iter().zip(&mut *out) {
                    for (out, score) in out.iter_mut().zip(&scores[tokens.clone()]) {
                        *out = score * STEPS_TO_E;
                    }
                }
            }
        }
        for out in out {
            out[len..].fill(f32::MIN);
        }
    }
}

/// Bounds on, or standard deviations of, the amount by which logits exceed scores.
#[derive(Debug)]
pub(super) enum LogitErrors<'a> {
    /// Proved bound Δ of each token.
    Proved(keys::KeyErrors<'a>),
    /// Standard deviation of each token's error.
    Deviations(CodeDeviations<'a>),
    /// One bound Δ for all tokens, extrapolated from a pilot; sizes are not multiplied by `e^Δ`.
    Common(f64),
    /// Exponents of the tokens of a layer with a soft cap, `[visible]`; `proved` is true if they
    /// are proved bounds.
    Capped { exponents: Scratch<f32>, proved: bool },
}

impl LogitErrors<'_> {
    /// Caps `scores`, which predict products of queries and keys, `[visible]`, and replaces their
    /// errors by those of the capped scores. Does nothing if the layer does not cap logits.
    pub(super) fn cap(&mut self, scores: &mut [f32], form: SoftmaxForm<'_>) {
        if form.soft_cap.is_none() {
            return;
        }
        let mut exponents = Scratch::new(scores.len());
        exponents.fill(0.0);
        match &*self {
            Self::Proved(errors) => {
                for (exponent, &radius) in exponents.iter_mut().zip(errors.radii) {
                    *exponent = bound_exponent(radius, errors);
                }
            }
            Self::Deviations(codes) => {
                for (exponent, factor) in exponents.iter_mut().zip(codes.factors) {
                    *exponent = deviation_exponent(codes.unit * factor.wide());
                }
            }
            Self::Common(_) | Self::Capped { .. } => return,
        }
        for (exponent, score) in exponents.iter_mut().zip(&*scores) {
            *exponent += score;
        }
        form.cap(&mut exponents);
        form.cap(scores);
        // Both caps and the caps of the true logits are rounded.
        let rounding = (3.0 * form.cap_rounding()) as f32;
        for (exponent, score) in exponents.iter_mut().zip(&*scores) {
            *exponent = *exponent - score + rounding;
        }
        *self = Self::Capped { exponents, proved: self.is_proved() };
    }

    /// Bound common to all tokens, which sizes do not include; 0 if there is none.
    pub(super) fn common(&self) -> f64 {
        if let Self::Common(error) = self { *error } else { 0.0 }
    }

    /// Proved bound on the amount by which a token's logit exceeds its score; infinite if there is
    /// none.
    pub(super) fn proved(&self, token: usize) -> f64 {
        match self {
            Self::Proved(errors) => errors.bound(token),
            Self::Capped { exponents, proved: true } => exponents[token].into(),
            _ => f64::INFINITY,
        }
    }

    /// Returns true if bounds are proved.
    pub(super) fn is_proved(&self) -> bool {
        matches!(self, Self::Proved(_) | Self::Capped { proved: true, .. })
    }

    /// Returns true if the exponent of any token may exceed the limit.
    fn may_exceed(&self) -> bool {
        match self {
            Self::Proved(errors) => is_beyond(bound_exponent(errors.largest, errors)),
            Self::Deviations(codes) => is_beyond(deviation_exponent(codes.unit * codes.peak)),
            Self::Common(_) => false,
            Self::Capped { .. } => true,
        }
    }

    /// Returns true if the exponent of a token exceeds the limit or is NaN.
    fn exceeds(&self, token: usize) -> bool {
        match self {
            Self::Proved(errors) => is_beyond(bound_exponent(errors.radii[token], errors)),
            Self::Deviations(codes) => {
                let factor = codes.factors.get(token).map_or(0.0, |factor| factor.to_f32());
                is_beyond(deviation_exponent(codes.unit * factor))
            }
            Self::Common(_) => false,
            Self::Capped { exponents, .. } => is_beyond(exponents[token]),
        }
    }
}

/// Tokens that are not picked but always read, ascending: the pilot, or the tokens whose exponent
/// exceeds the limit for any row. If any score is not finite, all tokens that are not picked are
/// always read. O(1) if no exponent can exceed the limit, else O(visible · rows).
pub(super) fn always_read(scan: &Scan<'_>, picks: &Picks, pilot: Vec<usize>) -> Vec<usize> {
    if !scan.is_finite {
        return picks.residual().collect();
    }
    let errors: Vec<_> = scan.errors.iter().filter(|errors| errors.may_exceed()).collect();
    if errors.is_empty() {
        return pilot;
    }
    picks.residual().filter(|&token| errors.iter().any(|errors| errors.exceeds(token))).collect()
}

/// Exponent of a code whose score's error has the standard deviation `sigma`.
#[inline(always)]
pub(super) fn deviation_exponent(sigma: f32) -> f32 {
    let (mean, guard) = (0.5 * sigma * sigma, GUARD * sigma - GUARD_OFFSET);
    if guard > mean { guard } else { mean }
}

/// Function from the factor of a code to the exponent of its token, in steps; `σ` is
/// `unit · factor`. The function is that of [`deviation_exponent`], except for rounding.
#[inline(always)]
pub(super) fn guarded_exponent(unit: f32) -> impl Fn(f32) -> f32 {
    // Half of the square of `scale · σ` is `σ²/2` in steps.
    let scale = (0.5 * STEPS_TO_E).sqrt();
    let [unit, guard, offset] =
        [unit * scale, GUARD * STEPS_TO_E / scale, GUARD_OFFSET * STEPS_TO_E];
    #[inline(always)]
    move |factor| {
        let sigma = unit * factor;
        let [mean, guard] = [sigma * sigma, guard.mul_add(sigma, -offset)];
        if guard > mean { guard } else { mean }
    }
}

/// Exponent of a copy with the error bound `radius`, the `r` of [`keys`].
#[inline(always)]
pub(super) fn bound_exponent(radius: f32, errors: &keys::KeyErrors<'_>) -> f32 {
    errors.query * radius + errors.underflow
}

/// Returns true if an exponent is above the limit or NaN.
#[inline(always)]
fn is_beyond(exponent: f32) -> bool {
    exponent > LIMIT || exponent.is_nan()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For every σ within the limit, a token that holds a tenth of the attention and whose score is
    /// 2.8 standard deviations too low has an expected number of draws of at least 0.9 in a sample
    /// of 128.
    #[test]
    fn a_heavy_token_that_is_underestimated_is_still_drawn() {
        for i in 0..=300_u16 {
            let sigma = f32::from(i) / 100.0;
            let expected = 128.0 * 0.1 * (deviation_exponent(sigma) - 2.8 * sigma).exp();
            assert!(expected >= 0.9, "{sigma}: {expected}");
            assert!(!is_beyond(deviation_exponent(sigma)), "{sigma}");
            assert!(deviation_exponent(sigma) >= 0.5 * sigma * sigma);
        }
        for sigma in [3.01, 100.0, f32::INFINITY, f32::NAN] {
            assert!(is_beyond(deviation_exponent(sigma)), "{sigma}");
        }
    }
}
