//! The probability with which each token is drawn, at any threshold.
//!
//! It is computed in integers, and in f32 by operations in an order that does not depend on the
//! machine: all draw the same.

use std::cell::RefCell;
use std::f64::consts::LN_2;

use half::bf16;
use multiversion::multiversion;
use vattention_core::{Picks, step::Element};

use super::errors::Scan;
use super::level::{ONE, SLACK, STEPS, STEPS_TO_E, half_log, number, rounded};
use super::scratch::Scratch;

/// The least probability of a token that is left to chance: uniform numbers of 24 bits draw it
/// exactly.
const LEAST: i16 = ONE - 17 * STEPS;

/// The size of tokens that are not left to chance.
const APART: i16 = i16::MIN;

/// Sizes are no smaller.
const LEAST_SIZE: i16 = ONE - 60 * STEPS;

/// The threshold at which everything is drawn.
pub(super) const EVERYTHING: i16 = 100 * STEPS;

/// Scores that are further below the largest count as this far: 120 powers of two.
const DEPTH: f32 = 120.0 * STEPS as f32;

/// The sizes of the tokens that are not picked, as [levels](super::level).
///
/// At a threshold `t`, a number of steps, a token is drawn with the probability of the level
/// `size + t`, 1 at most and 2⁻¹⁷ at least.
#[derive(Debug)]
pub(super) struct Sizes {
    /// `[visible]`; the largest over readers of sizes that sum to 1 for each, before errors raise
    /// them.
    levels: Scratch<i16>,
    /// Tokens that are not picked, but certain at any threshold, ascending.
    certain: Vec<usize>,
    /// Tokens that are not picked.
    left: usize,
    /// `m`.
    length: f64,
    /// For each reader, the logarithm of a size of 1, in the unit of `e √(|v|² + m²) / m`.
    units: Vec<f64>,
    /// Nodes with the draws expected there, as far as they were counted.
    known: RefCell<Vec<(i16, f64)>>,
}

impl Sizes {
    /// The sizes for all readers together. Tokens of `certain`, which are not picked, are certain
    /// at any threshold. O(visible · readers).
    pub(super) fn new(scans: &mut [Scan<'_>], picks: &Picks, certain: Vec<usize>) -> Self {
        let (visible, norms) = (picks.visible(), scans[0].norms);
        let unit = unit(norms);
        let (mut levels, mut own) = (Scratch::new(visible), Scratch::new(visible));
        let (mut units, mut square) = (Vec::with_capacity(scans.len()), 0.0);
        let taken: Vec<usize> = picks.iter().chain(certain.iter().copied()).collect();
        levels.fill(APART);
        for scan in scans {
            for &token in &taken {
                scan.scores[token] = f32::MIN;
            }
            let [weight, of_squares] =
                set_levels(&scan.scores, norms, scan.largest, unit, &mut own);
            square += of_squares / weight;
            scan.errors.raise(&mut own);
            let shift = (f64::from(STEPS) * libm::log2(weight)).round();
            raise_to(&mut levels, &own, shift as i16);
            let powers = shift / f64::from(STEPS) + SLACK;
            units.push(f64::from(scan.largest) + LN_2 * powers + scan.errors.common());
        }
        let length = (square / units.len() as f64).sqrt() / f64::from(unit);
        lengthen(&mut levels, norms, length);
        for token in taken {
            levels[token] = APART;
        }
        let (left, known) = (visible - picks.len(), RefCell::default());
        Self { levels, certain, left, length, units, known }
    }

    /// Tokens with given sizes, for one reader.
    #[cfg(test)]
    pub(super) fn given(sizes: &[f32]) -> Self {
        let total: f32 = sizes.iter().sum();
        let level = |size: &f32| ONE + rounded(f32::from(STEPS) * (size / total).log2());
        let levels: Vec<i16> = sizes.iter().map(level).collect();
        let (left, units) = (sizes.len(), vec![0.0]);
        let (levels, known) = (levels.into(), RefCell::default());
        Self { levels, certain: Vec::new(), left, length: 1.0, units, known }
    }

    /// The logarithm of the most that tokens, of which one draw is expected at threshold `t`, add
    /// to `Σ e √(|v|² + m²) / m` of a reader, relative to the logit `shift`.
    pub(super) fn log_of_one_draw(&self, reader: usize, t: i16, shift: f64) -> f64 {
        self.units[reader] - LN_2 * f64::from(t) / f64::from(STEPS) - shift
    }

    /// `m`.
    pub(super) fn length(&self) -> f64 {
        self.length
    }

    /// How many tokens are not picked.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// The size of each token, `[visible]`.
    pub(super) fn levels(&self) -> &[i16] {
        &self.levels
    }

    /// Tokens that are not picked, but certain at any threshold.
    pub(super) fn certain(&self) -> &[usize] {
        &self.certain
    }

    /// Tokens that are left to chance.
    pub(super) fn tokens(&self) -> impl Iterator<Item = usize> {
        (0..self.levels.len()).filter(|&token| self.levels[token] != APART)
    }

    /// The probability with which a token that is not picked is drawn.
    pub(super) fn probability(&self, token: usize, t: i16) -> f64 {
        f64::from(number(chance(self.levels[token], t)))
    }

    /// The threshold at which `size` tokens are expected, or as near as a step comes.
    ///
    /// Tokens that are certain at any threshold count as drawn, but at least half of the sample is
    /// left to chance. Expected draws are counted at [nodes](NODE), and thresholds between two are
    /// interpolated: a handful of passes over the sizes, and none where nodes are known.
    pub(super) fn threshold(&self, size: usize) -> i16 {
        let (size, certain) = (size as f64, self.certain.len() as f64);
        let wanted = (size - certain).max(size / 2.0);
        if wanted >= self.left as f64 - certain {
            return EVERYTHING;
        }
        let suffices = |node: i16| self.draws(node) > wanted;
        let mut low = self.guess(wanted);
        let (mut high, mut step) = (low, 1);
        if suffices(low) {
            while low > FIRST && suffices(low) {
                (high, low, step) = (low, (low - step).max(FIRST), 2 * step);
            }
        } else {
            while !suffices(high) {
                (low, high, step) = (high, (high + step).min(LAST), 2 * step);
            }
        }
        while high - low > 1 {
            let middle = i16::midpoint(low, high);
            if suffices(middle) { high = middle } else { low = middle }
        }
        let [above_low, above_high] =
            [wanted, self.draws(high)].map(|draws| libm::log2(draws / self.draws(low)));
        let part = f64::from(NODE) * above_low / above_high;
        low * NODE + if part.is_finite() { part.round() as i16 } else { NODE }
    }

    /// A node near the threshold at which `wanted` tokens are expected.
    fn guess(&self, wanted: f64) -> i16 {
        // Without any other knowledge: no token is certain, and the sizes sum to 1.
        let (node, draws) = self.known.borrow().last().copied().unwrap_or((0, 1.0));
        let more = f64::from(STEPS / NODE) * libm::log2(wanted / draws);
        (f64::from(node) + more.floor()).clamp(f64::from(FIRST), f64::from(LAST)) as i16
    }

    /// Expected draws at a node. O(visible) the first time.
    fn draws(&self, node: i16) -> f64 {
        let known = self.known.borrow().iter().find(|known| known.0 == node).map(|known| known.1);
        known.unwrap_or_else(|| {
            let draws = expected(&self.levels, node * NODE);
            self.known.borrow_mut().push((node, draws));
            draws
        })
    }
}

/// Steps between the thresholds at which expected draws are counted: half a power of two.
const NODE: i16 = STEPS / 2;

/// The first node, at which only the least probabilities are left, and the last.
const FIRST: i16 = -80 * (STEPS / NODE);
const LAST: i16 = EVERYTHING / NODE;

/// The probability of a token at a threshold, as a level: 1 of tokens that are not left to chance.
#[inline(always)]
pub(super) fn chance(size: i16, t: i16) -> i16 {
    let level = size.saturating_add(t);
    let level = if level > LEAST { level } else { LEAST };
    let level = if level < ONE { level } else { ONE };
    if size == APART { ONE } else { level }
}

/// The uniform levels below which a token is drawn at a threshold: none if it is not left to chance.
#[inline(always)]
pub(super) fn bound(size: i16, t: i16) -> i16 {
    if size == APART { i16::MIN } else { chance(size, t) }
}

/// Numbers that are summed side by side.
const LANES: usize = 64;

/// Numbers whose sums stay in f32.
const PART: usize = 4096;

/// The sum of what `of` makes of up to [`PART`] elements at each place, in an order that does not
/// depend on the machine.
#[inline(always)]
fn sum_of<A: Copy, B: Copy>(a: &[A], b: &[B], of: impl Fn(A, B) -> f32) -> f64 {
    let mut sums = [0.0_f32; LANES];
    let ((a, rest_a), (b, rest_b)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += of(a[lane], b[lane]);
        }
    }
    for (sum, (a, b)) in sums.iter_mut().zip(rest_a.iter().zip(rest_b)) {
        *sum += of(*a, *b);
    }
    for half in [32, 16, 8, 4, 2, 1] {
        for lane in 0..half {
            sums[lane] += sums[lane + half];
        }
    }
    f64::from(sums[0])
}

/// Factor of norms that keeps their squares in range: the inverse of the largest, or of the power
/// of two below it.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn unit(norms: &[bf16]) -> f32 {
    // They are not negative: the largest has the most bits.
    let mut largest = 0;
    for norm in norms {
        largest = largest.max(norm.to_bits());
    }
    let exponent = i32::from(largest >> 7) - 127;
    2.0_f32.powi(-exponent.clamp(-120, 120))
}

/// The level of `e^(score − largest)`, less that of 1.
#[inline(always)]
fn level(score: f32, largest: f32) -> i16 {
    let steps = (score - largest) * STEPS_TO_E;
    rounded(if steps > -DEPTH { steps } else { -DEPTH })
}

/// Sets the levels of `e^(score − largest)`, and sums their numbers and the products with squared
/// norms.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn set_levels(
    scores: &[f32],
    norms: &[bf16],
    largest: f32,
    unit: f32,
    out: &mut [i16],
) -> [f64; 2] {
    let mut totals = [0.0; 2];
    let parts = scores.chunks(PART).zip(norms.chunks(PART)).zip(out.chunks_mut(PART));
    for ((scores, norms), out) in parts {
        for (out, &score) in out.iter_mut().zip(scores) {
            *out = level(score, largest);
        }
        totals[0] += sum_of(out, out, |level, _| number(level + ONE));
        totals[1] += sum_of(out, norms, |level, norm| {
            let norm = unit * norm.wide();
            number(level + ONE) * (norm * norm)
        });
    }
    totals
}

/// Multiplies sizes by `√(|v|² / m² + 1)`; none stays below the least.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn lengthen(sizes: &mut [i16], norms: &[bf16], length: f64) {
    let inverse = if length > 0.0 { (1.0 / length) as f32 } else { 0.0 };
    for (size, norm) in sizes.iter_mut().zip(norms) {
        let norm = inverse * norm.wide();
        let longer = size.saturating_add(half_log(norm * norm + 1.0));
        *size = if longer > LEAST_SIZE { longer } else { LEAST_SIZE };
    }
}

/// Raises sizes to those that a reader's levels make.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn raise_to(sizes: &mut [i16], levels: &[i16], shift: i16) {
    for (size, level) in sizes.iter_mut().zip(levels) {
        let other = level.saturating_add(ONE - shift);
        *size = if other > *size { other } else { *size };
    }
}

/// Expected draws at a threshold of the tokens that are left to chance.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn expected(sizes: &[i16], t: i16) -> f64 {
    let draws = |size, _| if size == APART { 0.0 } else { number(chance(size, t)) };
    let mut total = 0.0;
    // The closure of an iterator would not be compiled for these instructions.
    for sizes in sizes.chunks(PART) {
        total += sum_of(sizes, sizes, draws);
    }
    total
}
