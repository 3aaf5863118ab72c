//! Integers that the nibbles of some formats stand for, and powers of two as scales.

/// Integers of IQ4_NL and IQ4_XS, plus [`IQ4_ZERO`]. Neighbours are closest near zero, where most
/// weights are.
pub(super) const IQ4: [u8; 16] =
    add_zero([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], IQ4_ZERO);

/// Integer that represents zero in [`IQ4`].
pub(super) const IQ4_ZERO: u8 = 128;

/// Doubled numbers of E2M1, a floating-point format of four bits, plus [`E2M1_ZERO`].
pub(super) const E2M1: [u8; 16] =
    add_zero([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], E2M1_ZERO);

/// Integer that represents zero in [`E2M1`].
pub(super) const E2M1_ZERO: u8 = 12;

/// Largest exponent in E8M0 of a block whose weights are all finite: 6 · 2¹²⁶ exceeds f32.
pub(crate) const LARGEST_EXPONENT: u8 = 252;

/// Least power of two as the bits of an f32, 2⁻¹²⁷, whose exponent in E8M0 is 0.
pub(super) const LEAST_POWER: u32 = 1 << 22;

/// Half of a power of two in E8M0, `2^(exponent - 128)`, the scale of doubled numbers.
pub(super) fn half_power(exponent: u8) -> f32 {
    0.5 * f32::from_bits((u32::from(exponent) << 23).max(LEAST_POWER))
}

const fn add_zero(integers: [i8; 16], zero: u8) -> [u8; 16] {
    let mut sums = [0; 16];
    let mut i = 0;
    while i < sums.len() {
        sums[i] = zero.wrapping_add_signed(integers[i]);
        i += 1;
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_are_those_of_powers_of_two() {
        for exponent in 0..=254 {
            let expected = 2.0_f64.powi(i32::from(exponent) - 128);
            assert_eq!(f64::from(half_power(exponent)), expected, "{exponent}");
        }
        let largest_weight = |exponent| 12.0 * half_power(exponent);
        assert!(largest_weight(LARGEST_EXPONENT).is_finite());
        assert!(!largest_weight(LARGEST_EXPONENT + 1).is_finite());
    }
}
