//! Errors of stored elements, and products with them.

use proptest::prelude::*;

use super::*;

const BITS: std::ops::RangeInclusive<u64> = 0..=8;

fn bits(bits: u64) -> LabelBits {
    LabelBits::try_from(bits).unwrap()
}

/// Labels of `channels` elements, taken from `numbers` in order.
fn labels(numbers: &[f32], channels: usize, bits: LabelBits, rounding: Rounding) -> Labels {
    let mut labels = Labels::new(channels, bits);
    numbers.chunks_exact(channels).for_each(|label| labels.push(label, rounding));
    labels
}

/// Numbers of all magnitudes, from the largest that a cache may hold to the smallest of f32.
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
    /// Elements rounded down are at most the originals, and little more than a step below them;
    /// elements rounded to the nearest are at most half a step away.
    #[test]
    fn stored_elements_are_rounded_as_requested(numbers in numbers(60), channels in 1_usize..20) {
        for bits in BITS.map(bits) {
            for rounding in [Rounding::Nearest, Rounding::Down] {
                let labels = labels(&numbers, channels, bits, rounding);
                for (item, label) in numbers.chunks_exact(channels).enumerate() {
                    let least = label.iter().copied().fold(f32::INFINITY, f32::min);
                    let most = label.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let step = if bits.get() == 0 { 0.0 } else {
                        f64::from(most - least) / f64::from((1_u32 << bits.get()) - 1)
                    };
                    let tiny = 1e-6 * f64::from(least.abs().max(most.abs())) + 1e-42;
                    for (channel, &x) in label.iter().enumerate() {
                        let stored = labels.get(item, channel);
                        let error = f64::from(x) - f64::from(stored);
                        if rounding == Rounding::Nearest {
                            prop_assert!(error.abs() <= step / 2.0 + tiny, "{x} as {stored}");
                        } else {
                            prop_assert!(stored <= x && error <= step + tiny, "{x} as {stored}");
                            prop_assert!(stored >= least);
                        }
                    }
                }
            }
        }
    }

    /// Products equal those of the stored elements, to the bit.
    #[test]
    fn products_are_those_of_stored_elements(
        numbers in prop::collection::vec(-9.0_f32..9.0, 0..1400),
        channels in 1_usize..12,
        visible in 0.0..1.0,
    ) {
        for bits in BITS.map(bits) {
            let labels = labels(&numbers, channels, bits, Rounding::Nearest);
            let terms: Vec<Term> =
                (0..channels).rev().step_by(2).map(|c| (c, c as f32 - 2.5)).collect();
            let visible = (labels.len as f64 * visible) as usize;
            let mut scores = vec![1.0; visible];
            labels.add_products(&terms, &mut scores);
            for (item, &score) in scores.iter().enumerate() {
                let products = terms.iter().map(|&(c, weight)| weight * labels.get(item, c));
                prop_assert_eq!(score, 1.0 + products.fold(0.0, |sum, product| sum + product));
            }
        }
    }
}

#[test]
fn ties_are_rounded_to_the_even_code() {
    let labels = labels(&[0.0, 3.0, 0.5, 1.5, 2.5], 5, bits(2), Rounding::Nearest);
    assert_eq!([0, 1, 2, 3, 4].map(|channel| labels.get(0, channel)), [0.0, 3.0, 0.0, 2.0, 2.0]);
}

/// Memory is allocated in blocks of 64 items.
#[test]
fn bytes_are_those_of_the_blocks() {
    for (bits_each, row) in [(0, 256), (1, 8), (2, 16), (3, 32), (4, 32), (5, 64), (8, 64)] {
        let grids = if bits_each == 0 { 0 } else { 2 * 4 * 64 };
        let labels = labels(&[1.0; 65 * 7], 7, bits(bits_each), Rounding::Down);
        assert_eq!(labels.bytes(), 2 * (7 * row + grids), "{bits_each} bits");
    }
}

#[test]
fn more_than_eight_bits_are_refused() {
    let error = serde_json::from_str::<LabelBits>("9").unwrap_err().to_string();
    assert!(error.contains("from 0 to 8, got 9"), "{error}");
}
