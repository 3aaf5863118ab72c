//! The laws of samplers, and tests of the index, of thresholds, and of bounds on missed tokens.

use half::{bf16, f16};
use proptest::prelude::*;
use vattention_core::{
    Shape, SoftmaxForm, Step, Tokens,
    sample::{Accumulator, ExactAccumulator, Residual, SampleUse},
    step::{Softmax, StepThreads, StoredRows, Stream, largest_query_integer, round_row},
};
use vattention_testkit::{Head, Texture, heads};

use super::*;

const CODES: Priority = Priority { base: Size::Tokens(16), index: LogitIndex::Codes };
const KEYS: Priority = Priority { index: LogitIndex::Keys, ..CODES };
const SELECTORS: Priority = Priority { index: LogitIndex::Selectors, ..CODES };

vattention_testkit::sampler_laws!(codes, CODES);
vattention_testkit::sampler_laws!(keys, KEYS);
vattention_testkit::sampler_laws!(selectors, SELECTORS);

/// A layer of one KV head.
fn site(dim: usize, query_heads: usize) -> Site {
    let shape = Shape { query_heads, kv_heads: 1, head_dim: dim, value_dim: dim };
    Site { seed: 3, sequence: 0, layer: 0, kv_head: 0, shape }
}

fn uniforms(sequence: u32) -> Uniforms {
    let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: 1, value_dim: 1 };
    let site = Site { seed: 7, sequence, layer: 0, kv_head: 0, shape };
    Uniforms::new(&Stream::new(&site, 1, 0, 0))
}

/// An index of keys `[tokens, dim]`, which serve as values too.
fn index(keys: Tokens<'_>) -> LogitPredictor {
    let mut index = LogitPredictor::new(&site(keys.dim(), 1), LogitIndex::Keys);
    index.append(&NewTokens { first: 0, keys, values: keys, classes: None });
    index
}

/// Checks the bounds of an index on logits and on norms against the stored keys and values.
fn check_scan(keys: Tokens<'_>, query: &[f32], soft_cap: Option<f32>) -> Result<(), TestCaseError> {
    let site = site(keys.dim(), 1);
    let step = Step {
        site: &site,
        queries: query,
        keys,
        values: keys,
        visible: keys.len(),
        step: 0,
        form: SoftmaxForm { soft_cap, ..SoftmaxForm::default() },
        threads: StepThreads::default(),
    };
    let (row, index) = (step.row(0), index(keys));
    let scan = index.scan(&[row], &Picks::new(row.visible()), &[]);
    let errors::Scores::Stored(scores) = &scan.scores else { panic!("scores are stored") };
    let mut value = vec![0.0; keys.dim()];
    for (token, &score) in scores[0].iter().enumerate() {
        keys.copy_row(token, &mut value);
        let exact: f64 = value.iter().zip(query).map(|(k, q)| f64::from(*k) * f64::from(*q)).sum();
        let cap = |logit: f64| {
            soft_cap.map_or(logit, |cap| f64::from(cap) * (logit / f64::from(cap)).tanh())
        };
        let score = f64::from(score);
        // The worst rounding of the query by a backend that multiplies integers.
        let rounded = exact
            + match keys.stored().0 {
                StoredRows::Q8(..) => {
                    let peak = query.iter().fold(0.0_f32, |peak, q| peak.max(q.abs()));
                    let sum: f64 = value.iter().map(|&k| f64::from(k.abs())).sum();
                    f64::from(peak) / f64::from(largest_query_integer(keys.dim())) * sum
                }
                _ => 0.0,
            };
        for logit in [f64::from(row.logit(token)), cap(exact), cap(rounded)] {
            let error = if soft_cap.is_some() { logit - score } else { (logit - score).abs() };
            prop_assert!(error <= scan.errors[0].proved(token), "{logit} scores {score}");
        }
        let norm = value.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        let stored = scan.norms[token].to_f64();
        prop_assert!(stored >= norm && stored <= norm * (1.0 + 1.0 / 127.0) + 1e-38);
    }
    Ok(())
}

fn numbers(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<f32>> {
    let number = prop_oneof![
        6 => -3.0_f32..3.0,
        1 => -200.0_f32..200.0,
        1 => Just(0.0),
        1 => -1e-6_f32..1e-6,
    ];
    prop::collection::vec(number, count)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn errors_of_scores_are_within_their_bounds(
        keys in numbers(1..300),
        query in numbers(40..41),
        dim in 1_usize..40,
        cap in 0.1_f32..100.0,
    ) {
        let dim = dim.min(keys.len());
        let (len, query) = (keys.len() / dim, &query[..dim]);
        let half: Vec<f16> = keys.iter().map(|&x| f16::from_f32(x)).collect();
        let brain: Vec<bf16> = keys.iter().map(|&x| bf16::from_f32(x)).collect();
        for soft_cap in [None, Some(cap)] {
            check_scan(Tokens::new(&keys, len, dim), query, soft_cap)?;
            check_scan(Tokens::new(&half, len, dim), query, soft_cap)?;
            check_scan(Tokens::new(&brain, len, dim), query, soft_cap)?;
        }
    }

    #[test]
    fn stored_keys_of_8_bits_are_scored_without_copies(
        keys in numbers(1..300),
        query in numbers(40..41),
        dim in 1_usize..40,
        cap in 0.1_f32..100.0,
    ) {
        let dim = dim.min(keys.len());
        let len = keys.len() / dim;
        let mut integers = vec![0; len * dim];
        let rows = keys.chunks_exact(dim).zip(integers.chunks_exact_mut(dim));
        let scales: Vec<f32> = rows.map(|(row, integers)| round_row(row, integers)).collect();
        let rows = Tokens::new(&integers, len, dim).with_scales(&scales).unwrap();
        prop_assert_eq!(index(rows).bytes(), len * (size_of::<f32>() + size_of::<bf16>()));
        for soft_cap in [None, Some(cap)] {
            check_scan(rows, &query[..dim], soft_cap)?;
        }
    }

    #[test]
    fn the_expected_sample_at_a_threshold_has_the_requested_size(
        sizes in prop::collection::vec(1e-3_f32..9.0, 2..60),
        share in 0.0_f64..1.0,
    ) {
        let sizes = Sizes::from_numbers(&sizes);
        let size = 1 + (share * (sizes.residual() - 1) as f64) as usize;
        let t = sizes.threshold(size);
        let expected: f64 = (0..sizes.residual()).map(|token| sizes.probability(token, t)).sum();
        prop_assert!((expected - size as f64).abs() <= 0.05 * expected, "{expected}, not {size}");
    }

    /// The contribution of a token to a sum is at most its probability times the bound for one
    /// expected draw, for every row that shares the token list.
    #[test]
    fn no_token_exceeds_the_bound_on_missed_tokens(head in heads(200), share in 0.0_f64..1.0) {
        let sampler = filled_sampler(&head);
        let step = head.step(head.tokens);
        let (rows, picks) = (step.rows(), Picks::new(head.tokens));
        let mut design = design(&sampler, &rows, &picks);
        let size = 1 + (share * (head.tokens - 1) as f64) as usize;
        let t = design.sizes.threshold(size);
        design.extend(size, &mut Vec::new());
        for (i, row) in rows.iter().enumerate() {
            let unseen = design.unseen(i, size, 0.0).filter(|unseen| unseen.proved);
            let Some(unseen) = unseen else { continue };
            let out = output(row);
            let length = norm(&out);
            let mut value = vec![0.0; row.values().dim()];
            for token in design.sizes.tokens() {
                let p = design.sizes.probability(token, t);
                row.values().copy_row(token, &mut value);
                let e = f64::from(row.logit(token)).exp();
                let distance = |other: &[f64]| {
                    let squares = value.iter().zip(other).map(|(&v, o)| (f64::from(v) - o).powi(2));
                    squares.sum::<f64>().sqrt()
                };
                if p >= 1.0 {
                    continue;
                }
                let bound = |one_draw: f64| one_draw * p * (1.0 + 1e-6);
                prop_assert!(e <= bound(unseen.denominator));
                prop_assert!(e * distance(&vec![0.0; value.len()]) <= bound(unseen.numerator));
                let output = unseen.numerator.hypot(length * unseen.denominator);
                prop_assert!(e * distance(&out) <= bound(output));
            }
        }
    }

    #[test]
    fn a_smaller_epsilon_needs_a_larger_sample(head in heads(200)) {
        let needed = |epsilon: f64| {
            let sampler = filled_sampler(&head);
            let step = head.step(head.tokens);
            let (rows, picks) = ([step.row(0)], Picks::new(head.tokens));
            let mut design = design(&sampler, &rows, &picks);
            let mut tokens = Vec::new();
            design.extend(16, &mut tokens);
            let mut accumulator = ExactAccumulator::new(&rows);
            accumulator.take(&picks);
            accumulator.draw(&tokens, SampleUse::Weighted);
            let (n_s, visible) = (head.tokens, head.tokens);
            let residual = Residual { n_s, visible, query_heads: 1, max_norm_v: 0.0, bound: None };
            let mut needed = None;
            accumulator.sample(0, &residual, &mut |sample, shift| {
                let terms = ProofTerms { delta: 0.2, base: 16, limit: head.tokens, shift };
                let proof = design.proof(sample, 0, &terms).unwrap();
                needed = proof.sizes.iter().copied().find(|&size| (proof.radius)(size) <= epsilon);
            });
            needed.unwrap_or(head.tokens)
        };
        let (tight, usual) = (needed(0.1), needed(0.3));
        prop_assert!(usual <= tight, "{usual}, {tight}");
    }
}

fn new_sampler(site: &Site, index: LogitIndex) -> PrioritySampler {
    PrioritySampler { index: LogitPredictor::new(site, index) }
}

fn filled_sampler(head: &Head) -> PrioritySampler {
    let mut sampler = new_sampler(head.site(), LogitIndex::Keys);
    sampler.append(&head.part(0..head.tokens));
    sampler
}

fn design<'a>(
    sampler: &'a PrioritySampler,
    rows: &[Row<'a>],
    picks: &'a Picks,
) -> PriorityDesign<'a> {
    let scan = sampler.index.scan(rows, picks, &[]);
    let certain = always_read(&scan, picks, Vec::new());
    let sizes = Sizes::new(&scan, picks, certain);
    PriorityDesign::new(scan, sizes, uniforms(0))
}

/// The attention output over all visible tokens.
fn output(row: &Row<'_>) -> Vec<f64> {
    let mut sums = Softmax::new(row.values().dim());
    let mut value = vec![0.0; row.values().dim()];
    for token in 0..row.visible() {
        row.values().copy_row(token, &mut value);
        sums.add(f64::from(row.logit(token)), 1.0, &value);
    }
    sums.output()
}

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// The counts of pairs of numbers, of neighbouring tokens and of two sequences, are within six
/// standard deviations of their means.
#[test]
fn uniform_numbers_are_uniform_and_independent() {
    const TOKENS: u32 = 200_000;
    const CELLS: usize = 8;
    let cell = |sequence: u32, token: u32| {
        ((u64::from(uniforms(sequence).number(token)) * CELLS as u64) >> 32) as usize
    };
    let mut counts = [[0_u32; CELLS * CELLS]; 2];
    for token in 0..TOKENS {
        let here = cell(0, token);
        counts[0][here * CELLS + cell(0, token + 1)] += 1;
        counts[1][here * CELLS + cell(1, token)] += 1;
    }
    let p = 1.0 / (CELLS * CELLS) as f64;
    let deviation = (f64::from(TOKENS) * p * (1.0 - p)).sqrt();
    for count in counts.as_flattened() {
        let off = f64::from(*count) - f64::from(TOKENS) * p;
        assert!(off.abs() < 6.0 * deviation, "{off} of {deviation}");
    }
}

/// Digest of a sample from 1000 tokens for two rows, and of its probabilities. Keys and queries are
/// exact on every machine.
fn digest(index: LogitIndex) -> u64 {
    const DIM: usize = 24;
    let mut state = 5_u64;
    let mut numbers = |count: usize| -> Vec<f32> {
        let mut number = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 52) as f32 / 1024.0 - 2.0
        };
        (0..count).map(|_| number()).collect()
    };
    let (keys, queries) = (numbers(1000 * DIM), numbers(2 * DIM));
    let keys = Tokens::new(&keys, 1000, DIM);
    let site = site(DIM, 2);
    let mut sampler = new_sampler(&site, index);
    sampler.append(&NewTokens { first: 0, keys, values: keys, classes: None });
    let step = Step { visible: 1000, ..Step::new(&site, &queries, keys, keys) };
    let picks = Picks::new(1000);
    let mut design = design(&sampler, &step.rows(), &picks);
    let mut tokens = Vec::new();
    design.extend(100, &mut tokens);
    design.extend(300, &mut tokens);
    let numbers = tokens.iter().map(|&token| u64::from(token));
    let numbers = numbers.chain(design.probabilities().into_iter().map(f64::to_bits));
    // FNV-1a.
    numbers.fold(0xCBF2_9CE4_8422_2325, |hash, x| (hash ^ x).wrapping_mul(0x0100_0000_01B3))
}

/// Samples do not depend on the vector instructions of a machine.
#[test]
fn samples_are_the_same_on_every_machine() {
    assert_eq!(digest(LogitIndex::Codes), 3_135_588_617_725_014_690);
    assert_eq!(digest(LogitIndex::Keys), 3_453_306_408_812_893_302);
}

/// Calls `check` with a design for 600 tokens. The first key has an element of magnitude `largest`,
/// and the error of its copy in 8 bits is proportional to it.
fn with_outlier(largest: f32, check: impl Fn(&PriorityDesign<'_>)) {
    let mut keys: Vec<f32> = (0..1800_u16).map(|i| f32::from(i % 3)).collect();
    keys[..3].copy_from_slice(&[-largest, -0.501 * largest, 1.0]);
    let keys = Tokens::new(&keys, 600, 3);
    let (sampler, site) = (PrioritySampler { index: index(keys) }, site(3, 1));
    let queries = &[1.0; 3];
    let step = Step { visible: 600, ..Step::new(&site, queries, keys, keys) };
    let picks = Picks::new(600);
    check(&design(&sampler, &[step.row(0)], &picks));
}

/// A key with a large error is always read, and it does not loosen the bound on the other tokens.
#[test]
fn a_key_with_a_large_error_is_always_read() {
    with_outlier(3.0, |design| assert!(design.sizes.certain().is_empty()));
    with_outlier(10_000.0, |design| {
        assert_eq!(design.sizes.certain(), [0]);
        let unseen = design.unseen(0, 100, 0.0).expect("`priority` has a bound");
        // 99 draws of 599 tokens with logits of 3, and with `√(|v|²/m² + 1)` equal to √2.
        let expected = 2.0_f64.sqrt() * 599.0 / 99.0 * 3.0_f64.exp();
        assert!(unseen.proved);
        let ratio = unseen.denominator / expected;
        assert!((1.0..1.13).contains(&ratio), "{unseen:?} {expected}");
    });
}

/// Queries so large that scores carry no information about logits.
#[test]
fn everything_is_read_where_errors_exceed_the_limit() {
    for scale in [1e5, 1e20, 1e38] {
        let head = Head::new(200, 8, 1, Texture::Gaussian);
        let step = head.step(200);
        let queries: Vec<f32> = step.queries.iter().map(|q| q * scale).collect();
        let step = Step { queries: &queries, ..step };
        let picks = Picks::new(200);
        for index in [LogitIndex::Codes, LogitIndex::Keys] {
            let mut sampler = new_sampler(head.site(), index);
            sampler.append(&head.part(0..200));
            let mut design = design(&sampler, &step.rows(), &picks);
            let mut tokens = Vec::new();
            design.extend(16, &mut tokens);
            // Tokens after the last whole block have no codes, so their scores are exact.
            let exact = if index == LogitIndex::Codes && scale < 1e38 { 200 % 64 } else { 0 };
            assert!(tokens.len() >= 200 - exact, "{scale}, {index:?}: {}", tokens.len());
        }
    }
}
