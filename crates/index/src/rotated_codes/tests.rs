//! Errors of predicted logits, and equality of predictions on every machine.

use proptest::prelude::*;
use vattention_core::{Shape, Site, Step};

use super::scan::{CodeQuery, LogitRow};
use super::*;

/// Random keys `[tokens · dim]` with a mean that differs from block to block.
fn keys(tokens: usize, dim: usize) -> Vec<f32> {
    let mut state = 1_u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 24) as f32 - 0.5
    };
    (0..tokens * dim).map(|i| (i / dim / BLOCK) as f32 + 4.0 * (next() + next() + next())).collect()
}

/// Calls `check` with a row for each query, to which all keys are visible.
fn with_rows(keys: &[f32], queries: &[f32], dim: usize, check: impl FnOnce(&[Row<'_>])) {
    let (tokens, heads) = (keys.len() / dim, queries.len() / dim);
    let shape = Shape { query_heads: heads, kv_heads: 1, head_dim: dim, value_dim: dim };
    let site = Site { seed: 0, sequence: 0, layer: 0, kv_head: 0, shape };
    let keys = Tokens::new(keys, tokens, dim);
    let step = Step::new(&site, queries, keys, keys);
    check(&step.rows());
}

fn site(dim: usize) -> Site {
    let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: dim, value_dim: dim };
    Site { seed: 1, sequence: 0, layer: 0, kv_head: 0, shape }
}

/// Index of keys.
fn encode(keys: &[f32], dim: usize) -> RotatedCodes {
    let mut codes = RotatedCodes::new(&site(dim));
    codes.append(&Tokens::new(keys, keys.len() / dim, dim));
    codes
}

/// Logits that codes predict for rows, `[rows][visible]`.
fn logits(codes: &RotatedCodes, rows: &[Row<'_>], shrink: f32) -> Vec<Vec<f32>> {
    let mut out: Vec<Vec<f32>> = rows.iter().map(|row| vec![0.0; row.visible()]).collect();
    let picks = Picks::new(rows[0].visible());
    let mut slices = out.iter_mut().map(|out| &mut out[..]).collect::<Vec<_>>();
    codes.logits(rows, &picks, shrink, &mut slices);
    out
}

/// Errors have the module's standard deviation; logits after the complete blocks are exact.
#[test]
fn errors_of_logits_have_the_predicted_deviation() {
    for dim in [32, 80, 128] {
        let (keys, query) = (keys(64 * 40 + 7, dim), keys(1, dim));
        let codes = encode(&keys, dim);
        with_rows(&keys, &query, dim, |rows| {
            let predicted = logits(&codes, rows, 1.0).remove(0);
            let mut exact = vec![0.0; predicted.len()];
            rows[0].logits(&mut exact);
            assert_eq!(predicted[64 * 40..], exact[64 * 40..]);
            let errors =
                || predicted.iter().zip(&exact).take(64 * 40).map(|(a, b)| f64::from(a - b));
            let deviation = (errors().map(|x| x * x).sum::<f64>() / 2560.0).sqrt();
            let length = |x: &[f32]| x.iter().map(|x| f64::from(x * x)).sum::<f64>().sqrt();
            // Centred keys have elements of variance 4.
            let expected = 0.37 * length(&query) * 2.0;
            assert!(
                deviation < 1.15 * expected && deviation > 0.85 * expected,
                "{dim}: {deviation}, {expected}"
            );
            let deviations = codes.deviations(&rows[0]);
            assert_eq!(deviations.factors.len(), 2560);
            let sigma = |f: &bf16| f64::from(deviations.unit * f.to_f32());
            let standard = errors().zip(deviations.factors).map(|(e, f)| e / sigma(f));
            let square = standard.map(|z| z * z).sum::<f64>() / 2560.0;
            // For short keys `f`, and so σ, is too large: the mean is 0.72 with 32 elements.
            assert!(square > 0.7 && square < 1.3, "{dim}: {square}");
            let largest = deviations.factors.iter().fold(0.0_f32, |most, f| most.max(f.to_f32()));
            assert_eq!(deviations.peak, largest);
            let bias = errors().sum::<f64>() / 2560.0;
            assert!(bias.abs() < 6.0 * deviation / 2560.0_f64.sqrt(), "{dim}: bias {bias}");
        });
    }
}

/// The rotation depends on seed, layer and KV head, and not on the sequence.
#[test]
fn rotations_differ_between_seeds_layers_and_kv_heads() {
    let (dim, here) = (48, site(48));
    let codes = |site: &Site| {
        let mut codes = RotatedCodes::new(site);
        codes.append(&Tokens::new(&keys(64, dim), 64, dim));
        codes
    };
    assert_eq!(codes(&here), codes(&Site { sequence: 9, ..here }));
    for other in [Site { seed: 2, ..here }, Site { layer: 1, ..here }, Site { kv_head: 1, ..here }]
    {
        assert_ne!(codes(&here), codes(&other));
    }
}

#[test]
fn tokens_after_the_last_block_are_scored_unless_all_are_picked() {
    let (keys, query) = (keys(100, 16), keys(1, 16));
    let codes = encode(&keys, 16);
    with_rows(&keys, &query, 16, |rows| {
        for (last, is_picked) in [(100, true), (99, false)] {
            let (mut picks, mut out) = (Picks::new(100), vec![0.0; 100]);
            picks.take_range(64..last);
            codes.logits(rows, &picks, 1.0, &mut [&mut out]);
            assert_eq!(out[64..].iter().all(|&logit| logit == f32::MIN), is_picked);
            assert!(out[..64].iter().all(|&logit| logit > f32::MIN));
        }
    });
}

#[test]
fn rows_are_scored_alike_together_and_alone() {
    let dim = 48;
    let (keys, queries) = (keys(200, dim), keys(6, dim));
    let codes = encode(&keys, dim);
    with_rows(&keys, &queries, dim, |rows| {
        let together = logits(&codes, rows, 0.9);
        for (row, expected) in rows.iter().zip(&together) {
            assert_eq!(&logits(&codes, &[*row], 0.9)[0], expected);
        }
    });
}

#[test]
fn equal_tiny_and_huge_keys_are_scored() {
    for scale in [0.0_f32, 1e-38, 1e-20, 1e16] {
        let dim = 16;
        let keys: Vec<f32> = keys(64, dim).into_iter().map(|x| x * scale / 8.0).collect();
        let query = vec![1.0; dim];
        with_rows(&keys, &query, dim, |rows| {
            let predicted = logits(&encode(&keys, dim), rows, 1.0).remove(0);
            let mut exact = vec![0.0; 64];
            rows[0].logits(&mut exact);
            let distance = |(a, b): (&f32, &f32)| (a - b).abs();
            let error = predicted.iter().zip(&exact).map(distance).fold(0.0, f32::max);
            assert!(error <= 10.0 * scale, "{scale}: {error}");
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// Predictions by vector instructions equal those of the portable version.
    #[test]
    fn predictions_are_the_same_on_every_machine(
        words in prop::collection::vec(any::<u32>(), 20 * BLOCK),
        factors in prop::collection::vec(0.0_f32..3.0, BLOCK),
        queries in prop::collection::vec(-9.0_f32..9.0, 4 * 20 * PER_WORD),
        used in 1_usize..=20,
        centre in -300.0_f32..300.0,
    ) {
        let dim = used * PER_WORD;
        let rotation = Rotation::new(dim, &Stream::new(&site(dim), 0, 0, 0));
        let queries: Vec<CodeQuery> = queries
            .chunks_exact(20 * PER_WORD)
            .map(|query| CodeQuery::new(&query[..dim], &rotation, 0.9))
            .collect();
        let factors: Vec<bf16> = factors.into_iter().map(bf16::from_f32).collect();
        let block = (&words[..used * BLOCK], factors.as_array().expect("a block"));
        let plain = predict_with(predict_plain, block, &queries, centre);
        for predict in [predict_by_avx2, predict_by_vnni] {
            prop_assert_eq!(&plain, &predict_with(predict, block, &queries, centre));
        }
    }
}

/// Codes and factors of a block.
type CodeBlock<'a> = (&'a [u32], &'a [bf16; BLOCK]);

/// Predicts the logits of a block for four queries.
fn predict_with(
    predict: fn(CodeBlock<'_>, &mut [LogitRow<'_>; 4]),
    block: CodeBlock<'_>,
    queries: &[CodeQuery],
    centre: f32,
) -> Vec<[f32; BLOCK]> {
    let (centres, mut out) = ([centre], vec![[0.0; BLOCK]; 4]);
    let mut slots = out.chunks_exact_mut(1);
    let mut rows = std::array::from_fn(|i| {
        let out = slots.next().expect("four rows");
        LogitRow { query: &queries[i], centres: &centres, out }
    });
    predict(block, &mut rows);
    out
}

fn predict_plain((words, factors): CodeBlock<'_>, rows: &mut [LogitRow<'_>; 4]) {
    scan::predict_block(words, factors, 0, rows);
}

/// Predicts by AVX2, or by the portable version if the machine lacks it.
#[multiversion(targets("x86_64+avx2+fma"))]
fn predict_by_avx2((words, factors): CodeBlock<'_>, rows: &mut [LogitRow<'_>; 4]) {
    #[allow(unsafe_code, unused_unsafe, reason = "safe only in a version for these machines")]
    {
        multiversion::target::match_target! {
            "x86_64+avx2+fma" => {
                // SAFETY: This arm is compiled only where these instructions are enabled.
                unsafe { scan::avx2::predict_block(words, factors, 0, rows) }
            }
            _ => scan::predict_block(words, factors, 0, rows),
        }
    }
}

/// Predicts by VNNI, or by the portable version if the machine lacks it.
#[multiversion(targets("x86_64+avx512f+avx512vnni"))]
fn predict_by_vnni((words, factors): CodeBlock<'_>, rows: &mut [LogitRow<'_>; 4]) {
    #[allow(unsafe_code, unused_unsafe, reason = "safe only in a version for these machines")]
    {
        multiversion::target::match_target! {
            "x86_64+avx512f+avx512vnni" => {
                // SAFETY: This arm is compiled only where these instructions are enabled.
                unsafe { scan::vnni::predict_block(words, factors, 0, rows) }
            }
            _ => scan::predict_block(words, factors, 0, rows),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64, failure_persistence: None, ..ProptestConfig::default()
    })]
    /// After keys were removed and others appended, within a block or across blocks, logits and
    /// deviations are those of codes that never had the removed keys.
    #[test]
    fn removed_keys_leave_no_trace(
        kept in 0_usize..300,
        removed in 0_usize..200,
        more in 1_usize..200,
        dim in 1_usize..40,
    ) {
        let all = keys(kept + removed.max(more), dim);
        let mut others = all.clone();
        others[kept * dim..].iter_mut().for_each(|x| *x = 1.5 - *x);
        let all = &all[..(kept + more) * dim];
        let mut cut = encode(&others[..(kept + removed) * dim], dim);
        cut.truncate(&Tokens::new(all, kept, dim));
        if kept > 0 {
            check_equal(&cut, &encode(&all[..kept * dim], dim), &all[..kept * dim], dim);
        }
        cut.append(&Tokens::new(&all[kept * dim..], more, dim));
        check_equal(&cut, &encode(all, dim), all, dim);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64, failure_persistence: None, ..ProptestConfig::default()
    })]
    /// Codes of which a part is shared predict the same as codes of one's own, also over several
    /// groups of blocks.
    #[test]
    fn shared_codes_equal_codes_of_ones_own(
        parts in prop::collection::vec(1_usize..1500, 1..4),
        kept in 0.0..1.0_f64,
        more in 1_usize..1500,
        dim in 1_usize..20,
    ) {
        let donated: usize = parts.iter().sum();
        let kept = (kept * donated as f64) as usize;
        let all = keys(donated.max(kept + more), dim);
        let mut donor = RotatedCodes::new(&site(dim));
        let mut end = 0;
        for part in parts {
            donor.append(&Tokens::new(&all[end * dim..], part, dim));
            donor.share();
            end += part;
        }
        let mut others = all[..(kept + more) * dim].to_vec();
        others[kept * dim..].iter_mut().for_each(|x| *x = 1.5 - *x);
        let mut codes = donor.clone();
        codes.truncate(&Tokens::new(&others, kept, dim));
        codes.append(&Tokens::new(&others[kept * dim..], more, dim));
        for (found, all) in [(&codes, &others[..]), (&donor, &all[..donated * dim])] {
            check_predictions(found, &encode(all, dim), all, dim);
        }
    }
}

/// Checks that two indexes of the same keys predict the same and have the same size.
fn check_equal(found: &RotatedCodes, expected: &RotatedCodes, all: &[f32], dim: usize) {
    check_predictions(found, expected, all, dim);
    assert_eq!(found.bytes(), expected.bytes());
}

/// Checks that two indexes of the same keys predict the same.
fn check_predictions(found: &RotatedCodes, expected: &RotatedCodes, all: &[f32], dim: usize) {
    with_rows(all, &keys(5, dim), dim, |rows| {
        assert_eq!(logits(found, rows, 1.0), logits(expected, rows, 1.0));
        let [found, expected] = [found, expected].map(|codes| codes.deviations(&rows[0]));
        assert_eq!((found.factors, found.peak), (expected.factors, expected.peak));
    });
}
