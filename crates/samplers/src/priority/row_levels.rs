//! Levels of the tokens for one row, and their sums.

use half::bf16;
use multiversion::multiversion;
use vattention_core::step::Element;
use vattention_index::CodeDeviations;

use super::errors::{LogitErrors, Scan, bound_exponent, deviation_exponent, steps};
use super::keys::KeyErrors;
use super::level::{ONE, STEPS, STEPS_TO_E, low_bits, number};

/// Largest distance of a score from the largest score, in steps: 120 powers of two. Lower scores
/// are raised to this distance.
const DEPTH: f32 = 120.0 * STEPS as f32;

/// Number of tokens whose sizes are computed together.
pub(super) const LANES: usize = 64;

/// Number of elements that are summed in f32; sums of such parts are added in f64.
pub(super) const PART: usize = 4096;

/// Sum of partial sums, in an order that does not depend on the machine.
#[inline(always)]
pub(super) fn add_lanes(mut sums: [f32; LANES]) -> f64 {
    for half in [32, 16, 8, 4, 2, 1] {
        for lane in 0..half {
            sums[lane] += sums[lane + half];
        }
    }
    f64::from(sums[0])
}

impl Scan<'_> {
    /// Writes the level of `e^(score − largest)` of each token to `out`, relative to the level of 1
    /// and raised by the exponent that allows for the score's error. Returns the sum of the numbers
    /// that the levels represent before they are raised, and the sum of their products with
    /// `(unit · norm)²`, both in an order that does not depend on the machine. One pass over the
    /// scores.
    pub(super) fn set_levels(&self, unit: f32, out: &mut [i16]) -> [f64; 2] {
        match &self.errors {
            LogitErrors::Proved(errors) => set_levels_by_bounds(self, unit, errors, out),
            LogitErrors::Deviations(codes) => set_levels_by_deviations(self, unit, codes, out),
            LogitErrors::Common(_) => set_levels_by_exponents(self, unit, &[], out),
            LogitErrors::Capped { exponents, .. } => {
                set_levels_by_exponents(self, unit, exponents, out)
            }
        }
    }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn set_levels_by_deviations(
    scan: &Scan<'_>,
    unit: f32,
    codes: &CodeDeviations<'_>,
    out: &mut [i16],
) -> [f64; 2] {
    let raise = |factor: bf16| steps(deviation_exponent(codes.unit * factor.wide()));
    set_levels(scan, unit, codes.factors, raise, out)
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn set_levels_by_bounds(
    scan: &Scan<'_>,
    unit: f32,
    errors: &KeyErrors<'_>,
    out: &mut [i16],
) -> [f64; 2] {
    let raise = |radius| steps(bound_exponent(radius, errors));
    set_levels(scan, unit, errors.radii, raise, out)
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn set_levels_by_exponents(
    scan: &Scan<'_>,
    unit: f32,
    exponents: &[f32],
    out: &mut [i16],
) -> [f64; 2] {
    set_levels(scan, unit, exponents, steps, out)
}

/// Level of `e^(score − largest)`, relative to the level of 1, as the lower bits of the result.
#[inline(always)]
fn level(score: f32, largest: f32) -> u32 {
    let steps = (score - largest) * STEPS_TO_E;
    low_bits(if steps > -DEPTH { steps } else { -DEPTH })
}

/// Writes the level of `e^(score − largest)` of each token to `out`, relative to the level of 1 and
/// raised by the steps that `raise` returns for the token's element of `column`. The column ends
/// with the last token, or earlier with a whole number of [`LANES`]; later tokens have the element
/// 0. Returns the sums of [`Scan::set_levels`].
#[inline(always)]
fn set_levels<A: Copy + Default>(
    scan: &Scan<'_>,
    unit: f32,
    column: &[A],
    raise: impl Fn(A) -> u32,
    out: &mut [i16],
) -> [f64; 2] {
    let mut totals = [0.0; 2];
    let parts = out.chunks_mut(PART).zip(scan.scores.chunks(PART)).zip(scan.norms.chunks(PART));
    for (part, ((out, scores), norms)) in parts.enumerate() {
        let mut sums = [[0.0; LANES]; 2];
        let column = column.get(part * PART..).unwrap_or_default();
        let (whole, rest) = out.as_chunks_mut::<LANES>();
        let (scores, scores_rest) = scores.as_chunks::<LANES>();
        let (norms, norms_rest) = norms.as_chunks::<LANES>();
        let (column, column_rest) = column.as_chunks::<LANES>();
        let column_rest = padded(column_rest, A::default());
        let column = |chunk: usize| column.get(chunk).unwrap_or(&column_rest);
        for (chunk, ((out, scores), norms)) in whole.iter_mut().zip(scores).zip(norms).enumerate() {
            let tokens = (scores, norms, column(chunk));
            set_chunk(tokens, (scan.largest, unit), &raise, out, &mut sums);
        }
        if !rest.is_empty() {
            let mut levels = [0; LANES];
            let scores_rest = padded(scores_rest, f32::MIN);
            let tokens = (&scores_rest, &padded(norms_rest, bf16::ZERO), column(scores.len()));
            set_chunk(tokens, (scan.largest, unit), &raise, &mut levels, &mut sums);
            rest.copy_from_slice(&levels[..rest.len()]);
        }
        for (total, sums) in totals.iter_mut().zip(sums) {
            *total += add_lanes(sums);
        }
    }
    totals
}

/// Elements, and `default` in the remaining lanes.
#[inline(always)]
pub(super) fn padded<A: Copy>(elements: &[A], default: A) -> [A; LANES] {
    let mut lanes = [default; LANES];
    lanes[..elements.len()].copy_from_slice(elements);
    lanes
}

/// Sets the levels of scores, norms and elements of a column, and adds to the sums of
/// [`set_levels`].
#[inline(always)]
fn set_chunk<A: Copy>(
    (scores, norms, column): (&[f32; LANES], &[bf16; LANES], &[A; LANES]),
    (largest, unit): (f32, f32),
    raise: &impl Fn(A) -> u32,
    out: &mut [i16; LANES],
    [numbers, squares]: &mut [[f32; LANES]; 2],
) {
    for lane in 0..LANES {
        let level = level(scores[lane], largest);
        let (number, norm) = (number(level as i16 + ONE), unit * norms[lane].wide());
        numbers[lane] += number;
        squares[lane] += number * (norm * norm);
        out[lane] = level.wrapping_add(raise(column[lane])) as i16;
    }
}
