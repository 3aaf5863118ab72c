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
            let visible = (labels.len() as f64 * visible) as usize;
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

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64, failure_persistence: None, ..ProptestConfig::default()
    })]
    /// After items were removed and others appended, elements are those of labels that never had
    /// the removed items.
    #[test]
    fn removed_items_leave_no_trace(
        kept in 0_usize..150,
        removed in 0_usize..100,
        more in 1_usize..100,
        channels in 1_usize..5,
    ) {
        let number = |i: usize, seed: f32| (i as f32 * seed).sin();
        let count = (kept + removed.max(more)) * channels;
        let all: Vec<f32> = (0..count).map(|i| number(i, 1.7)).collect();
        let mut others: Vec<f32> = (0..count).map(|i| number(i, 0.9)).collect();
        others[..kept * channels].copy_from_slice(&all[..kept * channels]);
        for bits in BITS.map(bits) {
            let label = |numbers: &[f32]| labels(numbers, channels, bits, Rounding::Nearest);
            let mut cut = label(&others[..(kept + removed) * channels]);
            cut.truncate(kept);
            prop_assert_eq!(cut.bytes(), label(&all[..kept * channels]).bytes());
            let all = &all[..(kept + more) * channels];
            for new in all[kept * channels..].chunks_exact(channels) {
                cut.push(new, Rounding::Nearest);
            }
            let expected = label(all);
            let terms: Vec<Term> = (0..channels).map(|channel| (channel, 1.5)).collect();
            let [mut found_scores, mut scores] = [vec![0.0; kept + more], vec![0.0; kept + more]];
            cut.add_products(&terms, &mut found_scores);
            expected.add_products(&terms, &mut scores);
            prop_assert_eq!(found_scores, scores);
            for (item, channel) in (0..kept + more).flat_map(|i| (0..channels).map(move |c| (i, c)))
            {
                prop_assert_eq!(cut.get(item, channel), expected.get(item, channel));
            }
        }
    }
}
