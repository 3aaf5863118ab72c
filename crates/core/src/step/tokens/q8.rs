//! Rows of 8-bit integers, each with a scale.
//!
//! An element is the product of its integer, −127 to 127, and the scale of its row, about
//! `max |x| / 127`. A scale has 17 significant bits, so the products are exact in f32, and a row
//! that is read and stored again does not change.
//!
//! llama.cpp's `q8_0` has a scale in f16 for each 32 elements instead. Its rounding errors are
//! smaller if a few elements of a row are much larger than the others, at 8.5 bits an element; here
//! it is 8.25 bits for 128 elements, and a logit takes one multiplication by a scale, not four.

/// Largest integer of a row.
const LARGEST: f32 = 127.0;

/// Least scale of a row: products with integers, and quotients by it, are normal numbers.
const LEAST_SCALE: f32 = f32::from_bits((127 - 110) << 23);

/// Low bits of a scale, which are zero, so that its product with 7 bits fits into the 24 bits of
/// f32.
const ZERO_BITS: u32 = (1 << 7) - 1;

/// Size of a scale in bytes.
pub const SCALE_BYTES: usize = size_of::<f32>();

/// `1.5 · 2^23`: f32 numbers of this magnitude are integers, so that adding it rounds.
const ROUNDER: f32 = 12_582_912.0;

/// Largest integer to which a backend rounds the elements of a query, for rows of 8-bit integers of
/// `dim` elements: products of integers are added in 32 bits. The error of an element is at most
/// the largest magnitude of the query, divided by this integer.
pub fn largest_query_integer(dim: usize) -> i16 {
    let largest = i32::MAX as usize / (dim.max(1) * 128);
    i16::try_from(largest).unwrap_or(i16::MAX)
}

/// Rounds a row to integers, into `integers`, which has the same length, and returns its scale.
/// Elements are finite. The rounding error of each is at most half the scale, and that of the
/// quotient in f32.
pub fn round_row(row: &[f32], integers: &mut [i8]) -> f32 {
    // Magnitudes are in the order of their bits, and integers are compared faster.
    let magnitude = |x: &f32| x.to_bits() & (u32::MAX >> 1);
    let largest = f32::from_bits(row.iter().map(magnitude).fold(0, u32::max));
    // Rounding down keeps the elements of the stored row within the range of the given one, unless
    // the scale is the least.
    let scale = f32::from_bits((largest / LARGEST).max(LEAST_SCALE).to_bits() & !ZERO_BITS);
    for (x, integer) in row.iter().zip(integers) {
        let rounded = (x / scale + ROUNDER).to_bits();
        *integer = rounded.wrapping_sub(ROUNDER.to_bits()) as i8;
    }
    scale
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Upper bound on the difference of an element and its stored value.
    fn largest_error(scale: f32) -> f32 {
        scale * (0.5 + LARGEST * f32::EPSILON)
    }

    fn stored(row: &[f32]) -> (Vec<f32>, f32) {
        let mut integers = vec![0; row.len()];
        let scale = round_row(row, &mut integers);
        (integers.iter().map(|&x| f32::from(x) * scale).collect(), scale)
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        /// Errors are within the bound, products are exact, and stored rows are stored again
        /// without a change. Magnitudes do not grow, except those that round to a multiple of the
        /// least scale.
        #[test]
        fn rows_are_rounded_once(
            row in prop::collection::vec(-1.0_f32..1.0, 0..70),
            exponent in -126_i32..54,
        ) {
            let row: Vec<f32> = row.iter().map(|x| x * (exponent as f32).exp2()).collect();
            let largest = |row: &[f32]| row.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
            let (rounded, scale) = stored(&row);
            prop_assert!(scale == LEAST_SCALE || largest(&rounded) <= largest(&row));
            for (x, got) in row.iter().zip(&rounded) {
                let error = (f64::from(*x) - f64::from(*got)).abs();
                prop_assert!(error <= f64::from(largest_error(scale)), "{x:e}, not {got:e}");
                let integer = f64::from(*got) / f64::from(scale);
                prop_assert_eq!(integer.round(), integer);
            }
            prop_assert_eq!(stored(&rounded), (rounded, scale));
        }
    }

    #[test]
    fn the_largest_element_has_the_largest_integer() {
        for largest in [1e-30, 3e-5, 0.1, 1.0, 7.3, 1e16] {
            let mut integers = [0; 4];
            let scale = round_row(&[largest, -largest, 0.0, largest / 3.0], &mut integers);
            assert_eq!(integers, [127, -127, 0, 42], "{largest:e}");
            assert!(f32::from(127_i8) * scale <= largest);
        }
        assert_eq!(stored(&[0.0, -0.0]).0, [0.0, 0.0]);
    }
}
