//! Positive numbers as logarithms in 16 bits.
//!
//! A level is a number of steps of 1/128 of a power of two, and the upper half of the bits of an
//! f32: level [`ONE`] is 1, and between powers of two levels are a straight line. So a product is a
//! sum of levels, but for the [`SLACK`] between a line and an exponential, and a level is an exact
//! number.

/// Steps in a power of two.
pub(super) const STEPS: i16 = 128;

/// Steps in a factor of e.
pub(super) const STEPS_TO_E: f32 = 128.0 * std::f32::consts::LOG2_E;

/// The level of 1.
pub(super) const ONE: i16 = 127 * STEPS;

/// Part of a power of two by which a sum of levels may be below the logarithm of the product that
/// it stands for: half of the 0.0861 between a line and a logarithm, of a length, the step to which
/// that is rounded down, and half a step for each of a score and the exponent of its error; and a
/// little for f32.
pub(super) const SLACK: f64 = 0.0861 / 2.0 + 2.01 / STEPS as f64;

/// The number of a level.
#[inline(always)]
pub(super) fn number(level: i16) -> f32 {
    f32::from_bits((level as u32) << 16)
}

/// A number of this size has no digits behind the point, and its lower bits are those of an integer
/// that was added to it.
const WHOLE: f32 = 12_582_912.0;

/// The nearest integer to a number between ±32,000.
#[inline(always)]
pub(super) fn rounded(x: f32) -> i16 {
    (x + WHOLE).to_bits() as i16
}

/// Half of the logarithm of a number of 1 or more, in steps, rounded down.
#[inline(always)]
pub(super) fn half_log(x: f32) -> i16 {
    (x.to_bits().wrapping_sub(1.0_f32.to_bits()) >> 17) as i16
}

/// The level of `bits / 2²⁴`, rounded down to 8 bits. Of bits that are uniform in 0..2²⁴ it is
/// below a level of 2⁻¹⁷ or more with a probability that is the number of that level.
#[inline(always)]
pub(super) fn uniform(bits: u32) -> i16 {
    (((bits as i32 as f32).to_bits() >> 16) as i16).wrapping_sub(24 * STEPS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_logarithms() {
        assert_eq!(number(ONE), 1.0);
        assert_eq!(number(ONE - 3 * STEPS), 0.125);
        for i in 0..128_i16 {
            let (line, power) = (f64::from(number(ONE + i)), (f64::from(i) / 128.0).exp2());
            assert!(line >= power && line <= 1.0615 * power, "{i}");
        }
        for x in [-15_360.0, -0.6, 0.4, 3.0, 31_999.0_f32] {
            assert_eq!(f32::from(rounded(x)), x.round());
        }
        for i in 0..4000_u32 {
            let x = 1.0 + (i * i % 977) as f32 * 1.7_f32.powi((i % 40) as i32);
            let (level, exact) = (f64::from(half_log(x)) / 128.0, 0.5 * f64::from(x).log2());
            assert!(level <= exact && exact <= level + 0.0861 / 2.0 + 1.0 / 128.0, "{x}");
        }
    }

    /// The share of 2²⁴ uniform levels that are below a level is that level's number.
    #[test]
    fn a_uniform_level_is_below_another_with_its_probability() {
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
