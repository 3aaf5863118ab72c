//! Positive numbers as logarithms in 16 bits.
//!
//! A level counts steps of 1/128 of a power of two. It is also the upper half of the bits of an
//! f32: level [`ONE`] is 1, and between powers of two the number is a linear function of the level.
//! So each level represents a number exactly, and the level of a product, counted from that of 1,
//! is approximately the sum of the levels of its factors; [`SLACK`] bounds the difference.

/// Steps in a power of two.
pub(super) const STEPS: i16 = 128;

/// Steps in a factor of e.
pub(super) const STEPS_TO_E: f32 = 128.0 * std::f32::consts::LOG2_E;

/// Level of the number 1.
pub(super) const ONE: i16 = 127 * STEPS;

/// Upper bound on the amount, in powers of two, by which a sum of levels is below the binary
/// logarithm of the product that it represents. It is the sum of the errors of four roundings:
///
/// - of the logarithm of a value's length: 0.0861 / 2, as `half_log` is linear between powers of
///   two, and one step, as it rounds down;
/// - of a score to the nearest step: half a step;
/// - of the exponent of the score's error to the nearest step: half a step;
/// - of operations in f32: 0.01 steps. The error of a conversion of scores to steps, which is
///   relative to the score, is not included.
pub(super) const SLACK: f64 = 0.0861 / 2.0 + 2.01 / STEPS as f64;

/// Number that a level represents.
#[inline(always)]
pub(super) fn number(level: i16) -> f32 {
    f32::from_bits((level as u32) << 16)
}

/// Addend that rounds an f32 between ±2²² to an integer: the sum has no fractional bits, and its
/// lower bits are those of the integer.
pub(super) const WHOLE: f32 = 12_582_912.0;

/// Half of the binary logarithm of a number of at least 1, in steps, rounded down.
#[inline(always)]
pub(super) fn half_log(x: f32) -> i16 {
    (x.to_bits().wrapping_sub(1.0_f32.to_bits()) >> 17) as i16
}

/// Level of `bits / 2²⁴`, rounded down to 8 bits. Let `bits` be uniform in 0..2²⁴, and let a level
/// represent a number from 2⁻¹⁷ to 1: the result is below that level with a probability equal to
/// the number.
#[inline(always)]
pub(super) fn uniform(bits: u32) -> i16 {
    (((bits as i32 as f32).to_bits() >> 16) as i16).wrapping_sub(24 * STEPS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_approximate_logarithms() {
        assert_eq!(number(ONE), 1.0);
        assert_eq!(number(ONE - 3 * STEPS), 0.125);
        for i in 0..128_i16 {
            let (line, power) = (f64::from(number(ONE + i)), (f64::from(i) / 128.0).exp2());
            assert!(line >= power && line <= 1.0615 * power, "{i}");
        }
        for x in [-15_360.0, -0.6, 0.4, 3.0, 31_999.0_f32] {
            assert_eq!(f32::from((x + WHOLE).to_bits() as i16), x.round());
        }
        for i in 0..4000_u32 {
            let x = 1.0 + (i * i % 977) as f32 * 1.7_f32.powi((i % 40) as i32);
            let (level, exact) = (f64::from(half_log(x)) / 128.0, 0.5 * f64::from(x).log2());
            assert!(level <= exact && exact <= level + 0.0861 / 2.0 + 1.0 / 128.0, "{x}");
        }
    }

    /// The share of the 2²⁴ uniform levels that are below a level equals that level's number.
    #[test]
    fn uniform_levels_are_below_a_level_with_its_probability() {
        let mut counts = vec![0_u32; usize::from(ONE as u16) + 1];
        let mut others = 0;
        for bits in 0..1_u32 << 24 {
            match usize::try_from(uniform(bits)) {
                Ok(level) => counts[level] += 1,
                Err(_) => others += 1,
            }
        }
        let mut below = others;
        for (level, count) in counts.into_iter().enumerate() {
            if level >= usize::from((ONE - 17 * STEPS) as u16) {
                assert_eq!(below as f32, number(level as i16) * 16_777_216.0);
            }
            below += count;
        }
    }
}
