//! Tests of the steps of sampling: comparisons with a simple reference, and general properties.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::SamplingParams;
use super::draw::{RandomNumbers, draw_at};
use super::filters::filter;
use super::history::TokenHistory;
use super::sampler::TokenSampler;

/// Inputs for the sampling of one token.
#[derive(Clone, Debug)]
struct Case {
    logits: Vec<f32>,
    params: SamplingParams,
    prompt: Vec<u32>,
    text: Vec<u32>,
}

/// Returns cases whose logits are on a grid, so that many are equal, and biases and penalties are
/// exact.
fn cases() -> impl Strategy<Value = Case> {
    let number = |scale: i32| move |n: i32| n as f32 / scale as f32;
    let params = (
        prop_oneof![Just(0_usize), 1..12_usize],
        prop_oneof![Just(1.0_f32), 0.01..0.99_f32],
        prop_oneof![Just(0.0_f32), 0.01..0.9_f32],
        prop_oneof![Just(1.0_f32), Just(2.0), Just(0.5)],
        prop::collection::vec((-16..=16_i32).prop_map(number(8)), 2),
        prop::collection::vec((0..8_u32, (-400..=400_i32).prop_map(number(4))), 0..3),
        0.05..3.0_f32,
        any::<u64>(),
    );
    let logits = prop_oneof![
        prop::collection::vec((-40..40_i32).prop_map(number(8)), 8..40),
        prop::collection::vec((-40..40_i32).prop_map(number(8)), 100..600),
        prop::collection::vec((-4..4_i32).prop_map(number(4)), 300..900),
    ];
    let tokens = || prop::collection::vec(0..12_u32, 0..10);
    (logits, params, tokens(), tokens()).prop_map(|(logits, params, prompt, text)| {
        let (top_k, top_p, min_p, repetition_penalty, penalties, logit_bias, temperature, seed) =
            params;
        let params = SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty: penalties[0],
            frequency_penalty: penalties[1],
            logit_bias,
            seed,
        };
        Case { logits, params, prompt, text }
    })
}

impl Case {
    fn sampler(&self) -> TokenSampler {
        let mut sampler = TokenSampler::new(&self.params, &self.prompt);
        self.text.iter().for_each(|&token| sampler.push(token));
        sampler
    }

    fn choose(&self, position: usize) -> u32 {
        self.sampler().choose(&mut self.logits.clone(), position).unwrap()
    }

    /// Logits after biases and penalties.
    fn changed_logits(&self) -> Vec<f64> {
        let mut logits: Vec<f64> = self.logits.iter().map(|&logit| f64::from(logit)).collect();
        for (token, logit) in logits.iter_mut().enumerate() {
            let biases = self.params.logit_bias.iter();
            for (_, bias) in biases.filter(|(other, _)| *other as usize == token) {
                let is_excluded = *bias <= -100.0;
                *logit += if is_excluded { f64::NEG_INFINITY } else { f64::from(*bias) };
            }
            let count = |tokens: &[u32]| tokens.iter().filter(|&&t| t as usize == token).count();
            let (of_prompt, of_text) = (count(&self.prompt), count(&self.text));
            if of_prompt + of_text > 0 {
                let factor = f64::from(self.params.repetition_penalty);
                *logit = if *logit > 0.0 { *logit / factor } else { *logit * factor };
            }
            if of_text > 0 {
                *logit -= f64::from(self.params.presence_penalty);
                *logit -= of_text as f64 * f64::from(self.params.frequency_penalty);
            }
        }
        logits
    }

    /// Probability of each token that can be chosen; `None` if the decision of a filter depends on
    /// rounding.
    fn probabilities(&self) -> Option<BTreeMap<u32, f64>> {
        let logits = self.changed_logits();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.retain(|&token| logits[token] > f64::NEG_INFINITY);
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        if self.params.top_k > 0 {
            order.truncate(self.params.top_k);
        }
        let largest = logits[order[0]];
        let weight = |token: usize| (logits[token] - largest).exp();
        let total: f64 = order.iter().map(|&token| weight(token)).sum();
        let (mut sum, mut kept) = (0.0, order.len());
        let top_p = f64::from(self.params.top_p);
        if top_p < 1.0 {
            for (i, &token) in order.iter().enumerate() {
                sum += weight(token) / total;
                if (sum - top_p).abs() < 1e-9 {
                    return None;
                }
                if sum >= top_p {
                    kept = i + 1;
                    break;
                }
            }
        }
        order.truncate(kept);
        let min_p = f64::from(self.params.min_p);
        if order.iter().any(|&token| (weight(token) - min_p).abs() < 1e-9) {
            return None;
        }
        order.retain(|&token| weight(token) >= min_p);
        let temperature = f64::from(self.params.temperature);
        let weight = |token: usize| ((logits[token] - largest) / temperature).exp();
        let total: f64 = order.iter().map(|&token| weight(token)).sum();
        Some(order.iter().map(|&token| (token as u32, weight(token) / total)).collect())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn choices_match_the_reference(case in cases()) {
        let Some(expected) = case.probabilities() else { return Ok(()) };
        let mut logits = case.logits.clone();
        case.sampler().choose(&mut logits, 0).unwrap();
        let changed: Vec<f64> = logits.iter().map(|&logit| f64::from(logit)).collect();
        prop_assert_eq!(changed, case.changed_logits());
        let candidates = filter(&logits, &case.params);
        let tokens: Vec<u32> = candidates.iter().map(|candidate| candidate.token).collect();
        prop_assert_eq!(&tokens, &expected.keys().copied().collect::<Vec<_>>());
        // Each token is drawn inside its interval, except at the borders, which are rounded.
        let mut begin = 0.0;
        for (&token, &probability) in &expected {
            for share in [0.001, 0.5, 0.999] {
                let position = begin + share * probability;
                if probability > 1e-9 {
                    let drawn = draw_at(&candidates, case.params.temperature, position);
                    prop_assert_eq!(drawn, Some(token));
                }
            }
            begin += probability;
        }
    }

    #[test]
    fn narrow_filters_are_greedy(case in cases(), position in 0..1000_usize) {
        let logits = case.changed_logits();
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let first = logits.iter().position(|&logit| logit == largest).unwrap() as u32;
        let changes: [fn(&mut SamplingParams); 4] = [
            |params| params.temperature = 0.0,
            |params| params.top_k = 1,
            |params| params.top_p = 1e-30,
            |params| (params.top_k, params.min_p) = (1, 0.0),
        ];
        for change in changes {
            let mut greedy = case.clone();
            change(&mut greedy.params);
            prop_assert_eq!(greedy.choose(position), first);
        }
        let mut cold = case.clone();
        cold.params.temperature = f32::MIN_POSITIVE;
        let chosen = cold.choose(position) as usize;
        prop_assert_eq!(logits[chosen], largest, "one of the likeliest");
    }

    #[test]
    fn biases_exclude_and_force(case in cases(), token in 0..8_u32, position in 0..100_usize) {
        let mut excluded = case.clone();
        excluded.params.logit_bias = vec![(token, -100.0)];
        prop_assert_ne!(excluded.choose(position), token);
        let mut forced = case.clone();
        forced.params.logit_bias = vec![(token, 100.0)];
        forced.params.repetition_penalty = 1.0;
        prop_assert_eq!(forced.choose(position), token, "logits differ by 10 at most");
    }
}

/// Returns the natural logarithms of the factorials from 0 to `n`.
fn log_factorials(n: usize) -> Vec<f64> {
    let mut sums = vec![0.0; n + 1];
    for i in 1..=n {
        sums[i] = sums[i - 1] + (i as f64).ln();
    }
    sums
}

/// Returns the p-value of a binomial count, which is twice the probability of the smaller tail.
fn p_value(count: usize, trials: usize, probability: f64) -> f64 {
    let logs = log_factorials(trials);
    let term = |k: usize| {
        let choices = logs[trials] - logs[k] - logs[trials - k];
        let rest = (trials - k) as f64 * (-probability).ln_1p();
        (choices + k as f64 * probability.ln() + rest).exp()
    };
    let below: f64 = (0..=count).map(term).sum();
    let above: f64 = (count..=trials).map(term).sum();
    (2.0 * below.min(above)).min(1.0)
}

#[test]
fn p_values_are_tails() {
    assert!((p_value(2, 2, 0.5) - 0.5).abs() < 1e-12);
    assert!((p_value(0, 3, 0.5) - 0.25).abs() < 1e-12);
    assert_eq!(p_value(5, 10, 0.5), 1.0);
}

/// Exact test of the frequencies of tokens, over positions of one seed and over seeds at one
/// position.
#[test]
fn frequencies_match_the_reference() {
    const TRIALS: usize = 4000;
    let logits: Vec<f32> = (0..50).map(|i| (i * 7 % 50) as f32 / 8.0).collect();
    let plain = SamplingParams::default();
    let cases = [
        plain.clone(),
        SamplingParams { temperature: 2.5, ..plain.clone() },
        SamplingParams { temperature: 0.6, top_k: 12, ..plain.clone() },
        SamplingParams { top_p: 0.9, min_p: 0.02, ..plain.clone() },
        SamplingParams { frequency_penalty: 0.7, presence_penalty: 0.4, ..plain.clone() },
        SamplingParams { repetition_penalty: 1.3, logit_bias: vec![(3, 1.5)], ..plain },
    ];
    for (number, params) in cases.into_iter().enumerate() {
        let (prompt, text) = (vec![1, 2, 49], vec![7, 7, 14]);
        let case = Case { logits: logits.clone(), params, prompt, text };
        let expected = case.probabilities().unwrap();
        let mut by_position = BTreeMap::<u32, usize>::new();
        let mut by_seed = BTreeMap::<u32, usize>::new();
        for trial in 0..TRIALS {
            let mut case = case.clone();
            case.params.seed = 1000 + number as u64;
            *by_position.entry(case.choose(trial)).or_default() += 1;
            case.params.seed = trial as u64;
            *by_seed.entry(case.choose(5)).or_default() += 1;
        }
        for counts in [by_position, by_seed] {
            assert!(counts.keys().all(|token| expected.contains_key(token)));
            for (token, &probability) in &expected {
                let count = counts.get(token).copied().unwrap_or(0);
                let p = p_value(count, TRIALS, probability);
                assert!(p > 1e-6, "case {number}, token {token}: {count} of {TRIALS}, p {p:e}");
            }
        }
    }
}

#[test]
fn random_numbers_depend_on_seed_and_position_alone() {
    let numbers = |seed, positions: &[usize]| -> Vec<f64> {
        let mut random = RandomNumbers::new(seed);
        positions.iter().map(|&position| random.get(position)).collect()
    };
    let ahead = numbers(7, &[0, 1, 2, 1000]);
    let back = numbers(7, &[1000, 2, 1, 0]);
    assert!(ahead.iter().eq(back.iter().rev()));
    assert!(ahead.iter().all(|number| (0.0..1.0).contains(number)));
    assert!(ahead.windows(2).all(|pair| pair[0] != pair[1]));
    assert_ne!(ahead, numbers(8, &[0, 1, 2, 1000]));
}

#[test]
fn penalties_follow_their_definitions() {
    let params = SamplingParams {
        repetition_penalty: 2.0,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        ..SamplingParams::default()
    };
    let mut history = TokenHistory::new(&params, &[0, 1, u32::MAX]);
    for token in [2, 2, 3] {
        history.push(token);
    }
    let mut logits = [4.0, -4.0, 4.0, -4.0, 4.0];
    history.penalise(&mut logits);
    assert_eq!(logits, [2.0, -8.0, 2.0 - 1.0, -8.0 - 0.75, 4.0]);
}

#[test]
fn logits_without_a_finite_number_are_refused() {
    let params = SamplingParams { logit_bias: vec![(0, -100.0)], ..SamplingParams::default() };
    for logits in [&mut [1.0][..], &mut [1.0, f32::INFINITY], &mut [], &mut [f32::NAN; 3]] {
        for temperature in [0.0, 1.0] {
            let params = match logits.len() {
                1 => params.clone(),
                _ => SamplingParams { temperature, ..SamplingParams::default() },
            };
            let error = TokenSampler::new(&params, &[]).choose(logits, 0).unwrap_err();
            assert!(error.to_string().starts_with("logits: "), "{error}");
        }
    }
    // Logits of tokens that are not chosen may be -∞.
    let mut logits = [f32::NEG_INFINITY, 0.5];
    let chosen = TokenSampler::new(&SamplingParams::default(), &[]).choose(&mut logits, 0);
    assert_eq!(chosen.unwrap(), 1);
}
