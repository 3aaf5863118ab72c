//! Levels of the tokens of one part for one row, and their sums.

use std::ops::Range;

use half::bf16;
use multiversion::multiversion;
use vattention_core::step::{Element, Scratch, prefetch};
pub(super) use vattention_index::PART;

use super::errors::{LogitErrors, Scan, guarded_exponent};
use super::level::{ONE, STEPS, STEPS_TO_E, WHOLE};

/// Largest distance of a score from the reference of its part, in powers of two. Lower scores are
/// raised to this distance.
pub(super) const DEPTH: i32 = 120;

/// Largest magnitude of a reference, in powers of two. Steps up to this magnitude are exact in f32.
const LARGEST_REFERENCE: f32 = 32_768.0;

/// Number of rows whose scores are computed together.
const ROWS: usize = 4;

/// Number of tokens whose sizes are computed together.
pub(super) const LANES: usize = 32;

/// Sum of partial sums, in an order that does not depend on the machine.
#[inline(always)]
pub(super) fn add_lanes(sums: &[f32; LANES]) -> f64 {
    f64::from(fold_lanes(sums, |a, b| a + b))
}

/// Combines the numbers of all lanes: those of the lower half of the lanes with those of the upper
/// half, and so on.
#[inline(always)]
fn fold_lanes(lanes: &[f32; LANES], combine: impl Fn(f32, f32) -> f32) -> f32 {
    let (mut sixteen, mut eight, mut four) = ([0.0; 16], [0.0; 8], [0.0; 4]);
    for lane in 0..16 {
        sixteen[lane] = combine(lanes[lane], lanes[lane + 16]);
    }
    for lane in 0..8 {
        eight[lane] = combine(sixteen[lane], sixteen[lane + 8]);
    }
    for lane in 0..4 {
        four[lane] = combine(eight[lane], eight[lane + 4]);
    }
    combine(combine(four[0], four[2]), combine(four[1], four[3]))
}

/// Columns of a part of the tokens, which several rows use, `[PART]` each. Elements after the last
/// token are 0.
#[derive(Debug)]
pub(super) struct PartColumns {
    /// `(unit · norm)²` of each token's value.
    squares: Scratch<f32>,
    /// Number of each token from which the exponent of its score's error follows.
    errors: Scratch<f32>,
}

impl PartColumns {
    /// Creates columns of unspecified numbers.
    pub(super) fn new() -> Self {
        Self { squares: Scratch::new(PART), errors: Scratch::new(PART) }
    }

    /// Sets the squares from the norms of the values of the part's tokens.
    pub(super) fn set_squares(&mut self, norms: &[bf16], unit: f32) {
        square(norms, unit, &mut self.squares);
    }

    /// Sets the column of errors of the part `tokens`.
    pub(super) fn set_errors(&mut self, errors: &LogitErrors<'_>, tokens: Range<usize>) {
        let out = &mut *self.errors;
        let copied = match errors {
            LogitErrors::Proved(errors) => &errors.radii[tokens],
            LogitErrors::Deviations(codes) => {
                let coded = codes.factors.len();
                widen(&codes.factors[tokens.start.min(coded)..tokens.end.min(coded)], out);
                return;
            }
            LogitErrors::Common(_) => &[],
            LogitErrors::Capped { exponents, .. } => &exponents[tokens],
        };
        let (out, rest) = out.split_at_mut(copied.len());
        out.copy_from_slice(copied);
        rest.fill(0.0);
    }
}

/// Converts numbers, and sets the remaining elements to 0.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn widen(numbers: &[bf16], out: &mut [f32]) {
    let (out, rest) = out.split_at_mut(numbers.len());
    for (out, number) in out.iter_mut().zip(numbers) {
        *out = number.wide();
    }
    rest.fill(0.0);
}

/// Computes `(unit · norm)²` for each norm, and sets the remaining elements to 0.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn square(norms: &[bf16], unit: f32, out: &mut [f32]) {
    let (out, rest) = out.split_at_mut(norms.len());
    for (out, norm) in out.iter_mut().zip(norms) {
        let norm = unit * norm.wide();
        *out = norm * norm;
    }
    rest.fill(0.0);
}

/// Sums over the tokens of a part for one row, in an order that does not depend on the machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartSums {
    /// Reference of the part, a number of powers of two. The levels of the part are relative to it.
    pub(super) reference: i32,
    /// Sum of the numbers that the levels represent before they are raised.
    pub(super) numbers: f64,
    /// Sum of the products of these numbers with `(unit · norm)²`.
    pub(super) squares: f64,
}

/// Levels of the tokens for one row, relative to the references of their parts.
#[derive(Debug)]
pub(super) struct LevelRow {
    /// `[visible]`, rounded up to whole [`LANES`].
    levels: Scratch<i16>,
    /// `[parts]`.
    parts: Vec<PartSums>,
}

impl LevelRow {
    /// Computes the levels of all rows, and their sums over the tokens that are not `fixed`, an
    /// ascending list. Returns `None` if the score of such a token is too large. One pass over the
    /// index for each four rows, divided among the scan's threads.
    pub(super) fn compute(scan: &Scan<'_>, fixed: &[u32], unit: f32) -> Option<Vec<Self>> {
        let visible = scan.norms.len();
        let levels = || Scratch::new(visible.next_multiple_of(LANES));
        let mut levels: Vec<Scratch<i16>> = scan.errors.iter().map(|_| levels()).collect();
        let task = |first| {
            let tokens = first..visible.min(first + PART);
            LevelTask { tokens, rows: Vec::with_capacity(levels.len()) }
        };
        let mut tasks: Vec<LevelTask<'_>> = (0..visible).step_by(PART).map(task).collect();
        for levels in &mut levels {
            for (task, levels) in tasks.iter_mut().zip(levels.chunks_mut(PART)) {
                task.rows.push(levels);
            }
        }
        let sums = scan.threads.map(tasks, |task| task.compute(scan, fixed, unit));
        let sums: Vec<PartSums> = sums.into_iter().collect::<Option<Vec<_>>>()?.concat();
        let count = levels.len();
        let row = |(i, levels)| {
            let parts = sums.iter().skip(i).step_by(count).copied().collect();
            Self { levels, parts }
        };
        Some(levels.into_iter().enumerate().map(row).collect())
    }

    /// Largest reference of a part, and the sums of [`PartSums`] relative to it. The tokens are
    /// visible.
    pub(super) fn sums(&self) -> (i32, [f64; 2]) {
        let reference = self.parts.iter().map(|part| part.reference).max().unwrap_or(0);
        let mut sums = [0.0; 2];
        for part in &self.parts {
            let factor = libm::ldexp(1.0, part.reference - reference);
            sums[0] += factor * part.numbers;
            sums[1] += factor * part.squares;
        }
        (reference, sums)
    }

    /// Levels of a part, and the steps that are to be added to them so that they are relative to
    /// `reference`, a number of steps.
    pub(super) fn part(&self, part: usize, reference: i32) -> (&[[i16; LANES]], i16) {
        let more = self.parts[part].reference * i32::from(STEPS) - reference;
        let levels = &self.levels.as_chunks::<LANES>().0[part * (PART / LANES)..];
        (levels, more.clamp(i16::MIN.into(), i16::MAX.into()) as i16)
    }
}

/// A part of the tokens, which one thread processes.
struct LevelTask<'a> {
    tokens: Range<usize>,
    /// Memory for the levels of each row, `[rows][tokens]`, rounded up to whole [`LANES`].
    rows: Vec<&'a mut [i16]>,
}

impl LevelTask<'_> {
    /// Computes the levels. Returns the sums of each row, or `None` if the score of a token that is
    /// not `fixed` is too large.
    fn compute(mut self, scan: &Scan<'_>, fixed: &[u32], unit: f32) -> Option<Vec<PartSums>> {
        let tokens = self.tokens;
        let place = |token: usize| fixed.partition_point(|&other| (other as usize) < token);
        let fixed = &fixed[place(tokens.start)..place(tokens.end)];
        let (mut columns, mut scores) = (PartColumns::new(), Scratch::new(ROWS * PART));
        let norms = &scan.norms[tokens.clone()];
        // They arrive while the scores are computed.
        prefetch(norms);
        let mut sums = Vec::with_capacity(self.rows.len());
        for (group, rows) in self.rows.chunks_mut(ROWS).enumerate() {
            let scores = &mut scores.as_chunks_mut::<PART>().0[..rows.len()];
            scan.scores.predict_part(tokens.clone(), group * ROWS, scores);
            if group == 0 {
                columns.set_squares(norms, unit);
            }
            for (i, (out, scores)) in rows.iter_mut().zip(scores).enumerate() {
                for &token in fixed {
                    scores[token as usize - tokens.start] = f32::MIN;
                }
                let (i, errors) = (group * ROWS + i, &scan.errors[group * ROWS + i]);
                if i == 0 || matches!(errors, LogitErrors::Capped { .. }) {
                    columns.set_errors(errors, tokens.clone());
                }
                sums.push(set_levels(&scores[..out.len()], &columns, errors, out)?);
            }
        }
        Some(sums)
    }
}

/// Writes the level of `2^(score / STEPS − reference)` of each token of a part to `out`, raised by
/// the exponent that allows for the score's error. The reference is the largest score, rounded up
/// to a whole power of two. Returns `None` if it is too large.
///
/// The scores are steps. Those that fill the last [`LANES`] must be the least f32. Two passes over
/// the scores.
pub(super) fn set_levels(
    scores: &[f32],
    columns: &PartColumns,
    errors: &LogitErrors<'_>,
    out: &mut [i16],
) -> Option<PartSums> {
    let scores = scores.as_chunks::<LANES>().0;
    let largest = find_largest(scores) / f32::from(STEPS);
    if largest > LARGEST_REFERENCE {
        return None;
    }
    let reference = largest.ceil().max(-LARGEST_REFERENCE);
    let [numbers, squares] = match errors {
        LogitErrors::Proved(errors) => {
            let terms = [errors.query * STEPS_TO_E, errors.underflow * STEPS_TO_E];
            set_levels_by_bounds(scores, reference, columns, terms, out)
        }
        LogitErrors::Deviations(codes) => {
            set_levels_by_deviations(scores, reference, columns, codes.unit, out)
        }
        LogitErrors::Common(_) | LogitErrors::Capped { .. } => {
            set_levels_by_bounds(scores, reference, columns, [STEPS_TO_E, 0.0], out)
        }
    };
    Some(PartSums { reference: reference as i32, numbers, squares })
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn find_largest(numbers: &[[f32; LANES]]) -> f32 {
    let mut most = [f32::MIN; LANES];
    for numbers in numbers {
        for lane in 0..LANES {
            most[lane] = larger(numbers[lane], most[lane]);
        }
    }
    fold_lanes(&most, larger)
}

/// Larger of two numbers; the second if one is NaN.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// The exponent of a token with the error `x` is `factor · x + offset`, in steps.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn set_levels_by_bounds(
    scores: &[[f32; LANES]],
    reference: f32,
    columns: &PartColumns,
    [factor, offset]: [f32; 2],
    out: &mut [i16],
) -> [f64; 2] {
    set_levels_by(scores, reference, columns, |x| factor * x + offset, out)
}

/// The errors of the tokens have the standard deviations `unit · x`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn set_levels_by_deviations(
    scores: &[[f32; LANES]],
    reference: f32,
    columns: &PartColumns,
    unit: f32,
    out: &mut [i16],
) -> [f64; 2] {
    let exponent = guarded_exponent(unit);
    set_levels_by(scores, reference, columns, exponent, out)
}

#[inline(always)]
fn set_levels_by(
    scores: &[[f32; LANES]],
    reference: f32,
    columns: &PartColumns,
    exponent: impl Fn(f32) -> f32,
    out: &mut [i16],
) -> [f64; 2] {
    let reference = reference * f32::from(STEPS);
    let least = reference - (DEPTH * i32::from(STEPS)) as f32;
    // Adding `to_level` rounds a score to a whole number of steps, whose lower bits are the level.
    let to_level = WHOLE + (f32::from(ONE) - reference);
    let (squares, errors) = (columns.squares.as_chunks().0, columns.errors.as_chunks().0);
    let (mut sums, mut square_sums) = ([0.0; LANES], [0.0; LANES]);
    let parts = scores.iter().zip(squares).zip(errors).zip(out.as_chunks_mut::<LANES>().0);
    for (((scores, squares), errors), out) in parts {
        let (squares, errors): (&[f32; LANES], &[f32; LANES]) = (squares, errors);
        for lane in 0..LANES {
            let level = larger(scores[lane], least) + to_level;
            let number = f32::from_bits(level.to_bits() << 16);
            sums[lane] += number;
            square_sums[lane] = number.mul_add(squares[lane], square_sums[lane]);
            out[lane] = (level + exponent(errors[lane])).to_bits() as i16;
        }
    }
    [add_lanes(&sums), add_lanes(&square_sums)]
}

/// Elements, and `default` in the remaining lanes.
#[inline(always)]
pub(super) fn padded<A: Copy, const N: usize>(elements: &[A], default: A) -> [A; N] {
    let mut lanes = [default; N];
    lanes[..elements.len()].copy_from_slice(elements);
    lanes
}

#[cfg(test)]
mod tests;
