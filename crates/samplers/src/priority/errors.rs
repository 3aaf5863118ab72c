//! Errors of scores, and what they make of the sizes that tokens are drawn by.
//!
//! A token whose score errs may weigh more than its score says. Its size is multiplied by `e^x`,
//! with an exponent `x` of its own:
//!
//! - of a copy in 8 bits, `x = Δ`, the proved bound of the logit's error: no token then weighs more
//!   than its size says;
//! - of a code of 2 bits, `x = ¾ σ²`, `σ` being the standard deviation of the score. The mean of `e`
//!   given the score is at most `e^(score + σ²/2)`, and its root mean square, to which the best
//!   probabilities are proportional, at most `e^(score + σ²)`.
//!
//! Tokens whose exponent exceeds [`LIMIT`] are always read: their scores say next to nothing.

use half::bf16;
use multiversion::multiversion;
use vattention_core::{Element, Picks};
use vattention_selectors::Deviations;

use super::exp::exp;
use super::index::Scan;
use super::keys;

/// The exponent of a code's error, as a multiple of σ².
const SPREAD: f32 = 0.75;

/// The largest exponent of a token that is left to chance: σ = 3 for codes.
const LIMIT: f32 = 9.0 * SPREAD;

/// How far logits may be above scores.
#[derive(Debug)]
pub(super) enum Errors<'a> {
    /// Proved bounds Δ of each token.
    Proved(keys::Errors<'a>),
    /// Standard deviations of each token.
    Deviations(Deviations<'a>),
    /// One bound Δ for all tokens, expected of what a pilot shows; no size is multiplied by it.
    Common(f64),
}

impl Errors<'_> {
    /// Multiplies each token's size `[visible]`.
    pub(super) fn raise(&self, sizes: &mut [f32]) {
        match self {
            Self::Proved(errors) => raise_by_radii(sizes, errors),
            Self::Deviations(of_codes) => {
                raise_by_squares(sizes, of_codes.factors, per_square(of_codes));
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
            Self::Proved(errors) => !(exponent(errors.largest(), errors) <= LIMIT),
            Self::Deviations(of_codes) => {
                !(per_square(of_codes) * of_codes.peak * of_codes.peak <= LIMIT)
            }
            Self::Common(_) => false,
        }
    }

    /// Whether the exponent of a token exceeds the limit, or is not a number.
    fn exceeds(&self, token: usize) -> bool {
        let exponent = match self {
            Self::Proved(errors) => exponent(errors.radii[token], errors),
            Self::Deviations(of_codes) => {
                let factor = of_codes.factors.get(token).map_or(0.0, |factor| factor.to_f32());
                per_square(of_codes) * factor * factor
            }
            Self::Common(_) => 0.0,
        };
        !(exponent <= LIMIT)
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

/// The exponent of a factor of 1.
fn per_square(of_codes: &Deviations<'_>) -> f32 {
    SPREAD * of_codes.unit * of_codes.unit
}

fn exponent(radius: f32, errors: &keys::Errors<'_>) -> f32 {
    errors.query * radius + errors.tiny
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn raise_by_squares(sizes: &mut [f32], factors: &[bf16], per_square: f32) {
    for (size, factor) in sizes.iter_mut().zip(factors) {
        let factor = factor.wide();
        *size *= exp(at_most(per_square * (factor * factor)));
    }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn raise_by_radii(sizes: &mut [f32], errors: &keys::Errors<'_>) {
    for (size, &radius) in sizes.iter_mut().zip(errors.radii) {
        *size *= exp(at_most(exponent(radius, errors)));
    }
}

/// The exponent of a token that is left to chance as it is, others so that sizes stay finite.
#[inline(always)]
fn at_most(exponent: f32) -> f32 {
    if exponent < LIMIT { exponent } else { LIMIT }
}
