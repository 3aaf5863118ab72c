//! Activations as sums of three signed bytes.

use multiversion::multiversion;

use super::{BLOCK, LANES};

/// Number of bytes of an activation.
pub(super) const DIGITS: usize = 3;

/// Base of the digits. An odd base allows digits between -127 and 127, whose negatives are digits
/// too.
pub(super) const BASE: i32 = 255;

/// Largest integer that activations are scaled to. Three digits can represent slightly more, so
/// that rounding of the scale does not exceed them.
const LARGEST: f32 = 8.29e6;

/// Least magnitude that a block is scaled by, so that the reciprocal of the scale stays finite.
/// Activations of smaller magnitude lose digits.
const LEAST: f32 = 1e-30;

/// Constant whose addition to a small integer leaves the integer in the low bits. `as i32`, which
/// is defined for numbers of any size, has no vector instruction.
const TO_LOW_BITS: f32 = 1.5 * (1 << 23) as f32;

/// Block of 32 activations, `x = scale · (255² a + 255 b + c)`.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct ActivationBlock {
    /// Digits `a`, `b` and `c`, `[3][32]`.
    pub(super) digits: [[i8; BLOCK]; DIGITS],
    /// Sums of the digits in each half of the block, `[2][3]`.
    pub(super) sums: [[i32; DIGITS]; 2],
    /// Scale of the block; NaN if an activation is not finite.
    pub(super) scale: f32,
    /// Sum of the activations.
    pub(super) total: f32,
}

/// Rows of activations, `[rows][inputs / 32]` blocks.
#[derive(Clone, Debug)]
pub(crate) struct Activations {
    rows: usize,
    blocks: Vec<ActivationBlock>,
}

impl Activations {
    /// Splits `x`, `[rows, inputs]`, into digits. The error of an activation is at most 1.3e-7 of
    /// the largest magnitude in its block.
    ///
    /// # Panics
    /// If rows are not whole blocks.
    pub(crate) fn new(x: &[f32], rows: usize) -> Self {
        assert!(x.len().is_multiple_of(rows * BLOCK), "rows of whole blocks");
        let mut blocks = vec![ActivationBlock::ZERO; x.len() / BLOCK];
        split(x.as_chunks().0, &mut blocks);
        Self { rows, blocks }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the blocks of row `i`.
    pub(super) fn row(&self, i: usize) -> &[ActivationBlock] {
        let len = self.blocks.len() / self.rows;
        &self.blocks[i * len..(i + 1) * len]
    }
}

impl ActivationBlock {
    const ZERO: Self =
        Self { digits: [[0; BLOCK]; DIGITS], sums: [[0; DIGITS]; 2], scale: 0.0, total: 0.0 };

    /// Sum of each kind of digit over the block.
    #[inline(always)]
    pub(super) fn sum(&self) -> [i32; DIGITS] {
        std::array::from_fn(|digit| self.sums[0][digit] + self.sums[1][digit])
    }

    #[inline(always)]
    fn new(x: &[f32; BLOCK]) -> Self {
        // Magnitudes are ordered like their bits, and NaN comes last.
        let mut peaks = [LEAST.to_bits(); LANES];
        for half in x.as_chunks::<LANES>().0 {
            for i in 0..LANES {
                peaks[i] = peaks[i].max(half[i].abs().to_bits());
            }
        }
        let peak = f32::from_bits(reduce(peaks, u32::max));
        let inverse = LARGEST / peak;
        let mut block = Self::ZERO;
        let mut scaled = *x;
        for x in &mut scaled {
            *x *= inverse;
        }
        block.digits = digits(&scaled);
        for (digit, digits) in block.digits.iter().enumerate() {
            for (half, digits) in digits.as_chunks::<LANES>().0.iter().enumerate() {
                block.sums[half][digit] = i32::from(reduce(digits.map(i16::from), |a, b| a + b));
            }
        }
        block.scale = peak / LARGEST + peak * 0.0;
        block.total = block.scale * combine(block.sum());
        block
    }
}

/// Combines all lanes, half of them with the other half.
#[inline(always)]
fn reduce<T: Copy>(mut lanes: [T; LANES], combine: impl Fn(T, T) -> T) -> T {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = combine(lanes[i], lanes[half + i]);
        }
        half /= 2;
    }
    lanes[0]
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2+fma"))]
fn split(x: &[[f32; BLOCK]], blocks: &mut [ActivationBlock]) {
    for (x, block) in x.iter().zip(blocks) {
        *block = ActivationBlock::new(x);
    }
}

/// Digits of the nearest integers to `x`, the highest first.
#[inline(always)]
fn digits(x: &[f32; BLOCK]) -> [[i8; BLOCK]; DIGITS] {
    let base = BASE as f32;
    // Products with inverses give the same digits as quotients.
    let (inverse, inverse_square) = (1.0 / base, 1.0 / (base * base));
    let mut digits = [[0; BLOCK]; DIGITS];
    for i in 0..BLOCK {
        let whole = x[i].round_ties_even();
        let high = (whole * inverse_square).round_ties_even();
        let rest = whole - high * (base * base);
        let middle = (rest * inverse).round_ties_even();
        for (digits, digit) in digits.iter_mut().zip([high, middle, rest - middle * base]) {
            digits[i] = (digit + TO_LOW_BITS).to_bits() as i8;
        }
    }
    digits
}

/// Value in f32 of a sum of products, given for each kind of digit.
#[inline(always)]
pub(super) fn combine([high, middle, low]: [i32; DIGITS]) -> f32 {
    (high as f32).mul_add((BASE * BASE) as f32, (BASE * middle + low) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_integer_has_its_digits() {
        for first in (-(LARGEST as i32) - 2..=LARGEST as i32 + 2).step_by(BLOCK) {
            let digits = digits(&std::array::from_fn(|i| (first + i as i32) as f32));
            for i in 0..BLOCK {
                let [a, b, c] = digits.map(|digits| i32::from(digits[i]));
                assert_eq!((a * BASE + b) * BASE + c, first + i as i32);
                assert!(a.abs().max(b.abs()).max(c.abs()) <= 127, "{a}, {b}, {c}");
            }
        }
    }

    #[test]
    fn activations_are_within_rounding_of_their_digits() {
        let x: Vec<f32> = (0..10 * BLOCK)
            .map(|i| (i as f32 * 1.7).sin() * 3.0_f32.powi(i as i32 / 8 - 20))
            .collect();
        let activations = Activations::new(&x, 2);
        let blocks = (0..2).flat_map(|row| activations.row(row));
        for (x, block) in x.as_chunks::<BLOCK>().0.iter().zip(blocks) {
            let peak = x.iter().fold(0.0_f64, |peak, x| peak.max(f64::from(x.abs())));
            let mut total = 0.0;
            for (i, x) in x.iter().enumerate() {
                let [a, b, c] = block.digits.map(|digits| f64::from(digits[i]));
                let value = f64::from(block.scale) * ((a * 255.0 + b) * 255.0 + c);
                total += value;
                assert!((value - f64::from(*x)).abs() <= 1.3e-7 * peak, "{x}: {value}");
            }
            assert!((total - f64::from(block.total)).abs() <= 32.0 * 1.3e-7 * peak);
        }
    }

    #[test]
    fn the_smallest_activations_stay_finite_and_infinite_ones_become_nan() {
        let row = |x: f32| Activations::new(&[x; BLOCK], 1).blocks[0];
        for x in [0.0, -0.0, 1e-45, 1e-38, 1e-31, f32::MAX] {
            let block = row(x);
            let value = block.scale * combine(block.digits.map(|digits| i32::from(digits[0])));
            assert!((value - x).abs() <= 1e-36 + 2e-7 * x.abs(), "{x}: {value}");
        }
        for x in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            assert!(row(x).scale.is_nan() && row(x).total.is_nan());
        }
    }
}
