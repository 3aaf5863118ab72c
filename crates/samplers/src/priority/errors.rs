//! Errors of scores, and the sizes that tokens get for them.
//!
//! A token whose score errs may weigh more than its score says. Its size is multiplied by `e^x`,
//! with an exponent `x` of its own:
//!
//! - of a copy in 8 bits, `x = Δ`, the proved bound of the logit's error: no token then weighs more
//!   than its size says;
//! - of a code of 2 bits, with `σ` the standard deviation of the score's error,
//!   `x = max(σ²/2, z σ − a)`. The first is the mean: given its score, a token weighs
//!   at most `e^(score + σ²/2)` on average. The second is a guard: a token that holds a tenth of the
//!   attention, and whose score is `z` standard deviations too low, is still drawn with probability
//!   0.9 in a sample of 128 (docs/guarantees.md, section 3).
//!
//! Tokens whose exponent exceeds [`LIMIT`] are always read: their scores say next to nothing.

use half::bf16;
use multiversion::multiversion;
use vattention_core::{Picks, step::Element};
use vattention_index::CodeDeviations;

use super::keys;
use super::level::{STEPS_TO_E, rounded};
use super::scratch::Scratch;

/// `z`: standard deviations of a code's error that are guarded against.
const GUARD: f32 = 2.82;

/// `a = ln(0.1 · 128 / 0.9)`.
const ROOM: f32 = 2.65;

/// The largest exponent of a token that is left to chance: σ = 3 for codes.
const LIMIT: f32 = 3.0 * GUARD - ROOM;

/// Predictions of the logits of one row.
#[derive(Debug)]
pub(super) struct Scan<'a> {
    /// Approximate logits, `[visible]`.
    pub(super) scores: Scratch<f32>,
    /// The largest of them; infinite or not a number if any is.
    pub(super) largest: f32,
    /// At least the norms of the values, `[visible]`.
    pub(super) norms: &'a [bf16],
    /// Errors of the scores.
    pub(super) errors: LogitErrors<'a>,
}

/// How far logits may be above scores.
#[derive(Debug)]
pub(super) enum LogitErrors<'a> {
    /// Proved bounds Δ of each token.
    Proved(keys::KeyErrors<'a>),
    /// Standard deviations of each token.
    Deviations(CodeDeviations<'a>),
    /// One bound Δ for all tokens, expected of what a pilot shows; no size is multiplied by it.
    Common(f64),
}

impl LogitErrors<'_> {
    /// Raises the level of each token `[visible]`.
    pub(super) fn raise(&self, levels: &mut [i16]) {
        match self {
            Self::Proved(errors) => raise_by_bounds(levels, errors),
            Self::Deviations(of_codes) => {
                raise_by_deviations(levels, of_codes.factors, of_codes.unit);
            }
            Self::Common(_) => {}
        }
    }

    /// The bound that sizes leave out.
    pub(super) fn common(&self) -> f64 {
        if let Self::Common(error) = self { *error } else { 0.0 }
    }

    /// The proved bound of a token's error; infinite if there is none.
    pub(super) fn proved(&self, token: usize) -> f64 {
        if let Self::Proved(errors) = self { errors.bound(token) } else { f64::INFINITY }
    }

    /// Whether bounds are proved.
    pub(super) fn is_proved(&self) -> bool {
        matches!(self, Self::Proved(_))
    }

    /// Whether the exponent of any token may exceed the limit.
    fn may_exceed(&self) -> bool {
        match self {
            Self::Proved(errors) => is_beyond(of_bound(errors.largest, errors)),
            Self::Deviations(of_codes) => is_beyond(of_deviation(of_codes.unit * of_codes.peak)),
            Self::Common(_) => false,
        }
    }

    /// Whether the exponent of a token exceeds the limit, or is not a number.
    fn exceeds(&self, token: usize) -> bool {
        match self {
            Self::Proved(errors) => is_beyond(of_bound(errors.radii[token], errors)),
            Self::Deviations(of_codes) => {
                let factor = of_codes.factors.get(token).map_or(0.0, |factor| factor.to_f32());
                is_beyond(of_deviation(of_codes.unit * factor))
            }
            Self::Common(_) => false,
        }
    }
}

/// Tokens that are not picked but always read, ascending: the pilot, and tokens whose score says next
/// to nothing to any reader. O(1) if there are none but the pilot, else O(visible · readers).
pub(super) fn always_read(scans: &[Scan<'_>], picks: &Picks, pilot: Vec<usize>) -> Vec<usize> {
    if scans.iter().any(|scan| !scan.largest.is_finite()) {
        return picks.residual().collect();
    }
    let errors: Vec<_> =
        scans.iter().map(|scan| &scan.errors).filter(|errors| errors.may_exceed()).collect();
    if errors.is_empty() {
        return pilot;
    }
    picks.residual().filter(|&token| errors.iter().any(|errors| errors.exceeds(token))).collect()
}

/// The exponent of a code whose score errs with a standard deviation.
#[inline(always)]
fn of_deviation(sigma: f32) -> f32 {
    let (mean, guard) = (0.5 * sigma * sigma, GUARD * sigma - ROOM);
    if guard > mean { guard } else { mean }
}

/// The exponent of a copy with the error `r`.
#[inline(always)]
fn of_bound(radius: f32, errors: &keys::KeyErrors<'_>) -> f32 {
    errors.query * radius + errors.tiny
}

/// Whether an exponent is above the limit or not a number.
#[inline(always)]
fn is_beyond(exponent: f32) -> bool {
    exponent > LIMIT || exponent.is_nan()
}

/// The exponent of a token that is left to chance, in steps of a level; sizes of others are not
/// used.
#[inline(always)]
fn steps(exponent: f32) -> i16 {
    let exponent = if exponent < LIMIT { exponent } else { LIMIT };
    rounded(exponent * STEPS_TO_E)
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn raise_by_deviations(levels: &mut [i16], factors: &[bf16], unit: f32) {
    for (level, factor) in levels.iter_mut().zip(factors) {
        *level = level.wrapping_add(steps(of_deviation(unit * factor.wide())));
    }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn raise_by_bounds(levels: &mut [i16], errors: &keys::KeyErrors<'_>) {
    for (level, &radius) in levels.iter_mut().zip(errors.radii) {
        *level = level.wrapping_add(steps(of_bound(radius, errors)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Over all σ that are left to chance, a token of a tenth of the attention whose score is 2.8
    /// standard deviations too low expects 0.9 draws of 128, or 128 times its share of the attention
    /// by its size.
    #[test]
    fn a_heavy_token_that_is_underestimated_is_still_drawn() {
        for i in 0..=300_u16 {
            let sigma = f32::from(i) / 100.0;
            let expected = 128.0 * 0.1 * (of_deviation(sigma) - 2.8 * sigma).exp();
            assert!(expected >= 0.9, "{sigma}: {expected}");
            assert!(!is_beyond(of_deviation(sigma)), "{sigma}");
            assert!(of_deviation(sigma) >= 0.5 * sigma * sigma);
        }
        for sigma in [3.01, 100.0, f32::INFINITY, f32::NAN] {
            assert!(is_beyond(of_deviation(sigma)), "{sigma}");
        }
    }
}
