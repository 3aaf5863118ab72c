//! The laws, and what is said of the index, of the draw, and of sums over it.

use half::{bf16, f16};
use proptest::prelude::*;
use vattention_core::{Fraction, Shape, Size, Step, Stream, Tokens};
use vattention_testkit::{Head, Texture, heads};

use super::*;

fn fraction(x: f64) -> Fraction {
    x.try_into().unwrap()
}

fn promised(mode: Mode) -> Promised {
    let base = Size::Tokens(16);
    Promised { mode, base, ..Promised::new(fraction(0.3), fraction(0.2)) }
}

fn config(mode: Mode) -> PrioritySample {
    PrioritySample::new(promised(mode))
}

vattention_testkit::laws!(default, config(Mode::Default));
vattention_testkit::laws!(strict, config(Mode::Strict));
vattention_testkit::laws!(rigorous, config(Mode::Rigorous));

fn uniforms(sequence: u32) -> Uniforms {
    let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: 1, value_dim: 1 };
    let site = Site { seed: 7, sequence, layer: 0, kv_head: 0, shape };
    Uniforms::new(&Stream::new(&site, 1, 0, 0))
}

/// The index of keys `[tokens, dim]`, which are their own values.
fn index(keys: Tokens<'_>) -> Index {
    let mut index = Index::new(keys.dim());
    index.append(&NewTokens { first: 0, keys, values: keys });
    index
}

/// What an index says of a row is true of what was stored.
fn check_scan(keys: Tokens<'_>, query: &[f32]) -> Result<(), TestCaseError> {
    let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: keys.dim(), value_dim: keys.dim() };
    let site = Site { seed: 0, sequence: 0, layer: 0, kv_head: 0, shape };
    let step =
        Step { site: &site, queries: query, keys, values: keys, visible: keys.len(), step: 0 };
    let (row, index) = (step.row(0), index(keys));
    let scan = index.scan(&row);
    let mut value = vec![0.0; keys.dim()];
    for token in 0..keys.len() {
        keys.copy_row(token, &mut value);
        let exact: f64 = value.iter().zip(query).map(|(k, q)| f64::from(*k) * f64::from(*q)).sum();
        let score = f64::from(scan.scores[token]);
        for logit in [f64::from(row.logit(token)), exact] {
            let error = (logit - score).abs();
            prop_assert!(error <= scan.error(token), "{logit} scores {score}");
        }
        let norm = value.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        let kept = f64::from(scan.norms[token]);
        prop_assert!(kept >= norm && kept <= norm * (1.0 + 1e-6) + 1e-30);
    }
    Ok(())
}

fn numbers(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<f32>> {
    let number = prop_oneof![6 => -3.0_f32..3.0, 1 => -200.0_f32..200.0, 1 => Just(0.0), 1 => -1e-6_f32..1e-6];
    prop::collection::vec(number, count)
}

/// Sizes of up to six tokens.
fn sizes() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(0.05_f64..3.0, 1..7)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_error_of_a_score_is_proved(keys in numbers(1..300), query in numbers(40..41), dim in 1_usize..40) {
        let dim = dim.min(keys.len());
        let (len, query) = (keys.len() / dim, &query[..dim]);
        let half: Vec<f16> = keys.iter().map(|&x| f16::from_f32(x)).collect();
        let brain: Vec<bf16> = keys.iter().map(|&x| bf16::from_f32(x)).collect();
        check_scan(Tokens::new(&keys, len, dim), query)?;
        check_scan(Tokens::new(&half, len, dim), query)?;
        check_scan(Tokens::new(&brain, len, dim), query)?;
    }

    /// What is drawn at one threshold is drawn at a larger one, and what is certain is drawn.
    #[test]
    fn samples_are_nested(sizes in prop::collection::vec(0.0_f64..9.0, 1..60), t in 0.1_f64..30.0, more in 1.0_f64..4.0) {
        let design = Design::of((0..sizes.len() as u32).collect(), sizes, 0.0, uniforms(0));
        for place in 0..design.len() {
            prop_assert!(!design.is_drawn(place, t) || design.is_drawn(place, t * more));
            prop_assert!(design.probability(place, t) < 1.0 || design.is_drawn(place, t));
            prop_assert!(!design.is_drawn(place, 0.0));
        }
    }

    #[test]
    fn thresholds_draw_as_many_as_expected(sizes in prop::collection::vec(1e-3_f64..9.0, 2..60), share in 0.0_f64..1.0) {
        let design = Design::of((0..sizes.len() as u32).collect(), sizes, 0.0, uniforms(0));
        let expected = share * design.len() as f64;
        let found = design.expected(design.threshold(expected));
        prop_assert!((found - expected).abs() <= 1e-6 * expected.max(1.0), "{found}, not {expected}");
    }

    /// Over all samples that can be drawn, `N^` and `D^` average to `N` and `D`, and the estimated
    /// variance of `D^` at any larger threshold to the true one.
    #[test]
    fn sums_are_unbiased(sizes in sizes(), t in 0.3_f64..3.0, more in 1.0_f64..3.0, seed in 0_u64..99) {
        let head = Head::new(sizes.len() + 2, 2, seed, vattention_testkit::Texture::Gaussian);
        let step = head.step(head.tokens);
        let row = step.row(0);
        let mut picks = Picks::new(head.tokens);
        picks.take_all([0, 1]);
        let tokens: Vec<u32> = picks.residual().map(|token| token as u32).collect();
        let design = Design::of(tokens, sizes, 0.0, uniforms(0));
        let mut found = [0.0; 4];
        for pattern in 0..1 << design.len() {
            let mut sample = Sample::new(&row, &picks, 0.0);
            let mut chance = 1.0;
            for place in 0..design.len() {
                let p = f64::from(design.probability(place, t));
                let drawn = pattern >> place & 1 == 1;
                chance *= if drawn { p } else { 1.0 - p };
                if drawn {
                    sample.draw(&design, place);
                }
            }
            if chance > 0.0 {
                let sums = sample.estimate(&design, t);
                let [_, variance] = Look::new(&sample, &design, t).variances(&design, t * more, 0.0);
                let terms = [sums.n[0], sums.n[1], sums.d, variance];
                found.iter_mut().zip(terms).for_each(|(sum, x)| *sum += chance * x);
            }
        }
        let mut want = [0.0; 4];
        let mut value = [0.0; 2];
        for token in 0..head.tokens {
            let e = f64::from(row.logit(token)).exp();
            row.values().copy_row(token, &mut value);
            let terms = [e * f64::from(value[0]), e * f64::from(value[1]), e];
            want.iter_mut().zip(terms).for_each(|(sum, x)| *sum += x);
        }
        for place in 0..design.len() {
            let (p, e) = (f64::from(design.probability(place, t * more)), row.logit(design.token(place)));
            want[3] += (2.0 * f64::from(e)).exp() * (1.0 / p - 1.0);
        }
        for (found, want) in found.into_iter().zip(want) {
            prop_assert!((found - want).abs() <= 1e-6 * want.abs().max(want_scale(&head)), "{found}, not {want}");
        }
    }

    /// More is asked for at a smaller epsilon, and less with a floor.
    #[test]
    fn thresholds_follow_the_promise(head in heads(200)) {
        let budget = |promised: Promised| {
            let mut worker = PrioritySample::new(promised).worker(head.site());
            worker.append(&head.part(0..head.tokens));
            let step = head.step(head.tokens);
            let (row, mut picks) = (step.row(0), Picks::new(head.tokens));
            worker.select(&row, &mut picks);
            picks.verdict().map_or(head.tokens, |verdict| verdict.budget)
        };
        for mode in [Mode::Default, Mode::Rigorous] {
            // One look, so that thresholds follow from the same sample.
            let once = Promised { rounds: std::num::NonZeroU8::MIN, ..promised(mode) };
            let usual = budget(once.clone());
            let tight = budget(Promised { epsilon: fraction(0.1), ..once.clone() });
            let floored = budget(Promised { floor: Some(fraction(0.9)), ..once });
            prop_assert!(floored <= usual && usual <= tight, "{floored}, {usual}, {tight}");
        }
    }
}

fn want_scale(head: &Head) -> f64 {
    let step = head.step(head.tokens);
    (0..head.tokens).map(|token| f64::from(step.row(0).logit(token)).exp()).sum()
}

/// Shares of tokens, of pairs of neighbours, and of pairs of rows, each within six deviations.
#[test]
fn uniform_numbers_are_uniform_and_independent() {
    const TOKENS: usize = 200_000;
    const CELLS: usize = 8;
    let cell = |sequence: u32, token: usize| (uniforms(sequence).at(token) * CELLS as f64) as usize;
    let mut counts = [[0_u32; CELLS * CELLS]; 2];
    for token in 0..TOKENS {
        let here = cell(0, token);
        counts[0][here * CELLS + cell(0, token + 1)] += 1;
        counts[1][here * CELLS + cell(1, token)] += 1;
    }
    let p = 1.0 / (CELLS * CELLS) as f64;
    let deviation = (TOKENS as f64 * p * (1.0 - p)).sqrt();
    for count in counts.as_flattened() {
        let off = f64::from(*count) - TOKENS as f64 * p;
        assert!(off.abs() < 6.0 * deviation, "{off} of {deviation}");
    }
}

/// What is said of 600 tokens, of which one key has a number so large that a step is not small.
fn verdict(mode: Mode, largest: f32) -> Verdict {
    let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: 3, value_dim: 2 };
    let site = Site { seed: 0, sequence: 0, layer: 0, kv_head: 0, shape };
    let mut keys: Vec<f32> = (0..1800_u16).map(|i| f32::from(i % 3)).collect();
    keys[..3].copy_from_slice(&[-largest, 0.5, 1.0]);
    let values: Vec<f32> = (0..1200_u16).map(|i| 1.0 + f32::from(i % 3)).collect();
    let (keys, values) = (Tokens::new(&keys, 600, 3), Tokens::new(&values, 600, 2));
    let mut worker = config(mode).worker(&site);
    worker.append(&NewTokens { first: 0, keys, values });
    let step = Step { site: &site, queries: &[1.0; 3], keys, values, visible: 600, step: 0 };
    let mut picks = Picks::new(600);
    worker.select(&step.row(0), &mut picks);
    picks.verdict().unwrap()
}

#[test]
fn the_tail_is_assumed_to_be_seen_where_scores_are_not_known_well() {
    let verdict = |largest| verdict(Mode::Default, largest);
    assert!(!verdict(3.0).assumes.contains(Assumption::TailSeen));
    assert!(verdict(1000.0).assumes.contains(Assumption::TailSeen));
    assert!(verdict(3.0).assumes.contains(Assumption::Normal) && verdict(3.0).held);
}

/// One look asks for more if the variances are raised by their own errors.
#[test]
fn strict_asks_for_more() {
    let budget = |mode| {
        let head = Head::new(3000, 8, 1, Texture::Gaussian);
        let tight = Promised { epsilon: fraction(0.05), ..promised(mode) };
        let once = Promised { rounds: std::num::NonZeroU8::MIN, ..tight };
        let mut worker = PrioritySample::new(once).worker(head.site());
        worker.append(&head.part(0..3000));
        let mut picks = Picks::new(3000);
        worker.select(&head.step(3000).row(0), &mut picks);
        picks.verdict().map_or(3000, |verdict| verdict.budget)
    };
    let (usual, strict) = (budget(Mode::Default), budget(Mode::Strict));
    assert!(usual < strict && strict < 3000, "{usual} {strict}");
}
