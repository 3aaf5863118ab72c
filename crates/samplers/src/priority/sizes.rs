//! Sizes of tokens, and their inclusion probabilities at any threshold.
//!
//! Both are computed in integers, and in f32 by operations whose order does not depend on the
//! machine, so that all machines draw the same tokens.

use std::cell::RefCell;
use std::f64::consts::LN_2;

use half::bf16;
use multiversion::multiversion;
use vattention_core::{
    Picks,
    step::{Element, Scratch},
};

use super::errors::Scan;
use super::level::{ONE, SLACK, STEPS, half_log, number};
use super::row_levels::{DEPTH, LANES, LevelRow, PART, add_lanes, padded};

/// Level of the least inclusion probability of a token that is drawn at random, 2⁻¹⁷. Draws by
/// uniform numbers of 24 bits have exactly this probability.
pub(super) const LEAST: i16 = ONE - 17 * STEPS;

/// Size of tokens that are not drawn at random, but picked or always read.
pub(super) const FIXED: i16 = i16::MIN;

/// Least size of a token that is drawn at random.
const LEAST_SIZE: i16 = ONE - 60 * STEPS;

/// Threshold at which all tokens are drawn.
pub(super) const EVERYTHING: i16 = 100 * STEPS;

/// Sizes of the tokens that are not picked, as [levels](super::level).
///
/// A threshold `t` is a number of steps. The inclusion probability of a token at `t` has the level
/// `size + t`, but is at least 2⁻¹⁷ and at most 1.
#[derive(Debug)]
pub(super) struct Sizes {
    /// `[visible]`; the largest size over the rows. Before errors and norms raise them, the sizes
    /// of each row sum to 1, except for rounding.
    levels: Scratch<i16>,
    /// Tokens that are not picked but always read, ascending.
    certain: Vec<usize>,
    /// Number of tokens that are not picked, `n_s`.
    residual: usize,
    /// `m`.
    length: f64,
    /// For each row, the natural logarithm of an upper bound on `e √(|v|² + m²) / m` for a token of
    /// size 1.
    units: Vec<f64>,
    /// Nodes whose expected number of draws was computed.
    counted: RefCell<Vec<CountedNode>>,
    /// Sizes whose threshold was computed, with that threshold.
    thresholds: RefCell<Vec<(usize, i16)>>,
}

impl Sizes {
    /// Computes the sizes for all rows together. The tokens of `certain`, which are not picked, are
    /// always read. If the score of another token is too large for sums of steps, all tokens that
    /// are not picked are always read. O(visible · rows).
    pub(super) fn new(scan: &Scan<'_>, picks: &Picks, certain: Vec<usize>) -> Self {
        let mut fixed = picks.indices();
        if !certain.is_empty() {
            fixed.extend(certain.iter().map(|&token| token as u32));
            #[allow(clippy::stable_sort_primitive, reason = "it merges the two ascending lists")]
            fixed.sort();
        }
        let unit = unit(scan.longest);
        let Some(rows) = LevelRow::compute(scan, &fixed, unit) else {
            return Self::new(scan, picks, picks.residual().collect());
        };
        let mut square = 0.0;
        let (mut units, mut shifts) = (Vec::with_capacity(rows.len()), Vec::new());
        for (row, errors) in rows.iter().zip(&scan.errors) {
            let (reference, [weight, squares]) = row.sums();
            square += squares / weight;
            let shift = (f64::from(STEPS) * libm::log2(weight)).round();
            shifts.push(shift as i32 + reference * i32::from(STEPS));
            // Conversions of scores to steps, whose error is relative to the score.
            let rounding = f64::from(f32::EPSILON) * f64::from(reference.abs() + DEPTH);
            let powers = f64::from(reference) + shift / f64::from(STEPS) + SLACK + rounding;
            units.push(LN_2 * powers + errors.common());
        }
        let length = (square / units.len() as f64).sqrt() / f64::from(unit);
        let mut levels = Scratch::new(picks.visible());
        let parts = levels.chunks_mut(PART).zip(scan.norms.chunks(PART));
        for (part, (levels, norms)) in parts.enumerate() {
            let rows = rows.iter().zip(&shifts);
            let rows: Vec<_> = rows.map(|(row, &shift)| row.part(part, shift)).collect();
            combine(&rows, norms, length, levels);
        }
        for token in fixed {
            levels[token as usize] = FIXED;
        }
        let (residual, counted) = (picks.visible() - picks.len(), RefCell::default());
        Self { levels, certain, residual, length, units, counted, thresholds: RefCell::default() }
    }

    /// Sizes of tokens for one row, given as numbers.
    #[cfg(test)]
    pub(super) fn from_numbers(sizes: &[f32]) -> Self {
        let total: f32 = sizes.iter().sum();
        let steps = |size: &f32| (f32::from(STEPS) * (size / total).log2()).round() as i16;
        let level = |size: &f32| ONE + steps(size);
        let levels: Vec<i16> = sizes.iter().map(level).collect();
        let (residual, units) = (sizes.len(), vec![0.0]);
        Self {
            levels: levels.into(),
            certain: Vec::new(),
            residual,
            length: 1.0,
            units,
            counted: RefCell::default(),
            thresholds: RefCell::default(),
        }
    }

    /// Natural logarithm of an upper bound on `Σ e √(|v|² + m²) / m` of a row, relative to the
    /// logit `shift`, over tokens whose expected number of draws at threshold `t` is 1 in total.
    pub(super) fn log_of_one_draw(&self, row: usize, t: i16, shift: f64) -> f64 {
        self.units[row] - LN_2 * f64::from(t) / f64::from(STEPS) - shift
    }

    /// Root mean square `m` of the norms of the values under the approximate attention.
    pub(super) fn length(&self) -> f64 {
        self.length
    }

    /// Number of tokens that are not picked, `n_s`.
    pub(super) fn residual(&self) -> usize {
        self.residual
    }

    /// Size of each token, `[visible]`.
    pub(super) fn levels(&self) -> &[i16] {
        &self.levels
    }

    /// Tokens that are not picked but always read, ascending.
    pub(super) fn certain(&self) -> &[usize] {
        &self.certain
    }

    /// Tokens that are drawn at random, ascending.
    pub(super) fn tokens(&self) -> impl Iterator<Item = usize> {
        (0..self.levels.len()).filter(|&token| self.levels[token] != FIXED)
    }

    /// Inclusion probability at threshold `t` of a token that is not picked.
    pub(super) fn probability(&self, token: usize, t: i16) -> f64 {
        f64::from(number(probability_level(self.levels[token], t)))
    }

    /// Threshold at which the expected number of drawn tokens is `size`, to within a step.
    ///
    /// Tokens that are always read count as drawn, but at least half of the sample is drawn at
    /// random. Expected numbers of draws are computed at [nodes](NODE) and interpolated between two
    /// of them. Each node costs one pass over the sizes at its first visit.
    pub(super) fn threshold(&self, size: usize) -> i16 {
        let known = self.thresholds.borrow().iter().find(|pair| pair.0 == size).map(|pair| pair.1);
        known.unwrap_or_else(|| {
            let threshold = self.find_threshold(size);
            self.thresholds.borrow_mut().push((size, threshold));
            threshold
        })
    }

    fn find_threshold(&self, size: usize) -> i16 {
        let (size, certain) = (size as f64, self.certain.len() as f64);
        let target = (size - certain).max(size / 2.0);
        if target >= self.residual as f64 - certain {
            return EVERYTHING;
        }
        let log = libm::log2(target);
        let suffices = |node: i16| self.count(node).draws > target;
        let mut low = self.guess(log);
        let (mut high, mut step) = (low, 1);
        if suffices(low) {
            while low > FIRST && suffices(low) {
                let next = self.guess(log).min(low - (step / 2).max(1));
                (high, low, step) = (low, next.max(FIRST), 2 * step);
            }
        } else {
            while !suffices(high) {
                let next = (self.guess(log) + 1).max(high + (step / 2).max(1));
                (low, high, step) = (high, next.min(LAST), 2 * step);
            }
        }
        while high - low > 1 {
            let middle = i16::midpoint(low, high);
            if suffices(middle) { high = middle } else { low = middle }
        }
        let [above_low, above_high] =
            [log, self.count(high).log].map(|log| log - self.count(low).log);
        let part = f64::from(NODE) * above_low / above_high;
        low * NODE + if part.is_finite() { part.round() as i16 } else { NODE }
    }

    /// Guesses the last node at which the expected number of draws is at most a number with the
    /// binary logarithm `log`, from the counted node whose number is nearest. The guess assumes
    /// that no probability is 1. If some are, the exact node is farther from the counted one.
    fn guess(&self, log: f64) -> i16 {
        let distance = |counted: &CountedNode| (counted.log - log).abs();
        let counted = self.counted.borrow();
        let nearest = counted.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
        // The first guess assumes that the sizes sum to 1.
        let (node, known) = nearest.map_or((0, 0.0), |nearest| (nearest.node, nearest.log));
        let more = f64::from(STEPS / NODE) * (log - known);
        (f64::from(node) + more.floor()).clamp(f64::from(FIRST), f64::from(LAST)) as i16
    }

    /// Expected number of draws at a node. O(visible) at the first visit.
    fn count(&self, node: i16) -> CountedNode {
        let known = self.counted.borrow().iter().find(|counted| counted.node == node).copied();
        known.unwrap_or_else(|| {
            let draws = self.expected_draws(node * NODE);
            let counted = CountedNode { node, draws, log: libm::log2(draws) };
            self.counted.borrow_mut().push(counted);
            counted
        })
    }

    /// Expected number of draws at a threshold, of the tokens that are drawn at random.
    fn expected_draws(&self, t: i16) -> f64 {
        let random = self.residual - self.certain.len();
        let fixed = self.levels.len().next_multiple_of(CHUNK) - random;
        let of_fixed = fixed as f64 * f64::from(number(LEAST));
        (sum_probabilities(&self.levels, t) - of_fixed).max(0.0)
    }
}

/// Expected number of draws at a node.
#[derive(Clone, Copy, Debug)]
struct CountedNode {
    node: i16,
    draws: f64,
    /// Binary logarithm of `draws`.
    log: f64,
}

/// Steps between two nodes, the thresholds at which expected draws are computed: half a power of
/// two.
const NODE: i16 = STEPS / 2;

/// First node, at which all probabilities are the least.
const FIRST: i16 = -80 * (STEPS / NODE);

/// Last node, at which all tokens are drawn.
const LAST: i16 = EVERYTHING / NODE;

/// Number of sizes that are summed in f32.
const DRAW_PART: usize = 4096;

/// Number of sizes whose probabilities are computed together.
const CHUNK: usize = 2 * LANES;

/// Inclusion probability of a token at a threshold, as a level: 1 for tokens that are always read.
#[inline(always)]
pub(super) fn probability_level(size: i16, t: i16) -> i16 {
    if size == FIXED { ONE } else { random_level(size, t) }
}

/// Inclusion probability of a token that is drawn at random, as a level. It is the least for the
/// size [`FIXED`].
#[inline(always)]
fn random_level(size: i16, t: i16) -> i16 {
    let level = size.saturating_add(t);
    let level = if level > LEAST { level } else { LEAST };
    if level < ONE { level } else { ONE }
}

/// Factor that keeps the squares of norms in range: the inverse of the largest norm rounded down to
/// a power of two.
fn unit(longest: bf16) -> f32 {
    let exponent = i32::from(longest.to_bits() >> 7) - 127;
    2.0_f32.powi(-exponent.clamp(-120, 120))
}

/// Sets the sizes of the tokens of a part: the largest over the rows, multiplied by
/// `√(|v|² / m² + 1)`, and at least [`LEAST_SIZE`]. Each row's levels are given with the number of
/// steps that is to be added to them.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn combine(rows: &[(&[[i16; LANES]], i16)], norms: &[bf16], length: f64, out: &mut [i16]) {
    let inverse = if length > 0.0 { (1.0 / length) as f32 } else { 0.0 };
    let (whole, rest) = out.as_chunks_mut::<LANES>();
    let (norms, norms_rest) = norms.as_chunks::<LANES>();
    for (i, (out, norms)) in whole.iter_mut().zip(norms).enumerate() {
        *out = combine_lanes(rows, i, norms, inverse);
    }
    if !rest.is_empty() {
        let sizes = combine_lanes(rows, norms.len(), &padded(norms_rest, bf16::ZERO), inverse);
        rest.copy_from_slice(&sizes[..rest.len()]);
    }
}

/// Sizes of the tokens of [`combine`] in chunk `i`.
#[inline(always)]
fn combine_lanes(
    rows: &[(&[[i16; LANES]], i16)],
    i: usize,
    norms: &[bf16; LANES],
    inverse: f32,
) -> [i16; LANES] {
    let mut sizes = [i16::MIN; LANES];
    for &(levels, more) in rows {
        for (size, level) in sizes.iter_mut().zip(&levels[i]) {
            let other = level.saturating_add(more);
            *size = if other > *size { other } else { *size };
        }
    }
    for (size, norm) in sizes.iter_mut().zip(norms) {
        let norm = inverse * norm.wide();
        let longer = size.saturating_add(half_log(norm * norm + 1.0));
        *size = if longer > LEAST_SIZE { longer } else { LEAST_SIZE };
    }
    sizes
}

/// Sum of the probabilities at a threshold, to which each [`FIXED`] size adds the least. Such sizes
/// fill the last chunk.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn sum_probabilities(sizes: &[i16], t: i16) -> f64 {
    let mut total = 0.0;
    for sizes in sizes.chunks(DRAW_PART) {
        let mut sums = [[0.0; LANES / 2]; 2 * CHUNK / LANES];
        let (whole, rest) = sizes.as_chunks::<CHUNK>();
        for sizes in whole {
            add_probabilities(sizes, t, &mut sums);
        }
        if !rest.is_empty() {
            add_probabilities(&padded(rest, FIXED), t, &mut sums);
        }
        for sums in sums.as_flattened().as_chunks::<LANES>().0 {
            total += add_lanes(sums);
        }
    }
    total
}

/// Adds the probabilities of tokens at a threshold to the sums of the lanes.
#[inline(always)]
fn add_probabilities(
    sizes: &[i16; CHUNK],
    t: i16,
    sums: &mut [[f32; LANES / 2]; 2 * CHUNK / LANES],
) {
    let mut levels = [0_i16; CHUNK];
    for (level, size) in levels.iter_mut().zip(sizes) {
        *level = random_level(*size, t);
    }
    // The upper half of a word is a number, and so is the lower half after a shift. Sums of upper
    // and of lower halves are added to each other in the end, whatever their order in memory.
    let words: [u32; CHUNK / 2] = bytemuck::must_cast(levels);
    for (words, sums) in words.as_chunks::<{ LANES / 2 }>().0.iter().zip(sums.as_chunks_mut().0) {
        let [low, high]: &mut [[f32; LANES / 2]; 2] = sums;
        for lane in 0..LANES / 2 {
            low[lane] += f32::from_bits(words[lane] << 16);
            high[lane] += f32::from_bits(words[lane] & 0xFFFF_0000);
        }
    }
}

#[cfg(test)]
mod tests;
