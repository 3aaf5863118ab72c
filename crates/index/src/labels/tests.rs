//! What is kept of a number, and what products are of.

use proptest::prelude::*;

use super::*;

const BITS: std::ops::RangeInclusive<u64> = 0..=8;

fn bits(bits: u64) -> LabelBits {
    LabelBits::try_from(bits).unwrap()
}

/// Labels of `channels` numbers in order, from as many of `numbers` as there are.
fn labels(numbers: &[f32], channels: usize, bits: LabelBits, rounding: Rounding) -> Labels {
    let mut labels = Labels::new(channels, bits);
    numbers.chunks_exact(channels).for_each(|label| labels.push(label, rounding));
    labels
}

/// Numbers of all magnitudes, as large as a cache may hold and as small as f32 has.
fn numbers(most: usize) -> impl Strategy<Value = Vec<f32>> {
    let number = prop_oneof![
        4 => -3.0_f32..3.0,
        1 => (-44.0_f32..16.0).prop_map(|exponent| 10_f32.powf(exponent)),
        1 => (-44.0_f32..16.0).prop_map(|exponent| -10_f32.powf(exponent)),
        1 => Just(0.0),
    ];
    prop::collection::vec(number, 1..most)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// Rounded down, what is kept is at most the number, and little more than a step below it; to
    /// the nearest, it is at most half a step away.
    #[test]
    fn numbers_are_kept_as_rounding_says(numbers in numbers(60), channels in 1_usize..20) {
        for bits in BITS.map(bits) {
            for rounding in [Rounding::Nearest, Rounding::Down] {
                let kept = labels(&numbers, channels, bits, rounding);
                for (item, label) in numbers.chunks_exact(channels).enumerate() {
                    let least = label.iter().copied().fold(f32::INFINITY, f32::min);
                    let most = label.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let step = if bits.get() == 0 { 0.0 } else {
                        f64::from(most - least) / f64::from((1_u32 << bits.get()) - 1)
                    };
                    let tiny = 1e-6 * f64::from(least.abs().max(most.abs())) + 1e-42;
                    for (channel, &x) in label.iter().enumerate() {
                        let kept = kept.get(item, channel);
                        let lost = f64::from(x) - f64::from(kept);
                        if rounding == Rounding::Nearest {
                            prop_assert!(lost.abs() <= step / 2.0 + tiny, "{x} is kept as {kept}");
                        } else {
                            prop_assert!(kept <= x && lost <= step + tiny, "{x} is kept as {kept}");
                            prop_assert!(kept >= least);
                        }
                    }
                }
            }
        }
    }

    /// Products are of the numbers that are kept, to the bit, whatever else is packed beside them.
    #[test]
    fn products_are_of_what_is_kept(
        numbers in prop::collection::vec(-9.0_f32..9.0, 0..1400),
        channels in 1_usize..12,
        visible in 0.0..1.0,
    ) {
        for bits in BITS.map(bits) {
            let kept = labels(&numbers, channels, bits, Rounding::Nearest);
            let terms: Vec<Term> =
                (0..channels).rev().step_by(2).map(|c| (c, c as f32 - 2.5)).collect();
            let visible = (kept.len as f64 * visible) as usize;
            let mut scores = vec![1.0; visible];
            kept.add_products(&terms, &mut scores);
            for (item, &score) in scores.iter().enumerate() {
                let sum = terms.iter().fold(0.0, |sum, &(c, weight)| sum + weight * kept.get(item, c));
                prop_assert_eq!(score, 1.0 + sum);
            }
        }
    }
}

#[test]
fn halfway_goes_to_the_even_code() {
    let kept = labels(&[0.0, 3.0, 0.5, 1.5, 2.5], 5, bits(2), Rounding::Nearest);
    assert_eq!([0, 1, 2, 3, 4].map(|channel| kept.get(0, channel)), [0.0, 3.0, 0.0, 2.0, 2.0]);
}

/// Blocks of 64 items, of which the last may have room left.
#[test]
fn the_bytes_are_those_of_the_blocks() {
    for (bits_each, row) in [(0, 256), (1, 8), (2, 16), (3, 32), (4, 32), (5, 64), (8, 64)] {
        let grids = if bits_each == 0 { 0 } else { 2 * 4 * 64 };
        let kept = labels(&[1.0; 65 * 7], 7, bits(bits_each), Rounding::Down);
        assert_eq!(kept.bytes(), 2 * (7 * row + grids), "{bits_each} bits");
    }
}

#[test]
fn bits_beyond_a_byte_are_refused() {
    let error = serde_json::from_str::<LabelBits>("9").unwrap_err().to_string();
    assert!(error.contains("from 0 to 8, got 9"), "{error}");
}
