//! Random changes of heads and of their parameters.

use ndarray_rand::rand::Rng;
use ndarray_rand::rand::seq::IndexedRandom;
use ndarray_rand::rand_distr::{Distribution, StandardNormal};
use rand_chacha::ChaCha8Rng;
use vattention_testkit::adversarial::{AdversarialHead, Adversary, BLOCK};
use vattention_testkit::promises::{HeadData, VALUE_DIM};

/// Bound on the absolute value of a head's numbers.
const MOST: f32 = 1e5;

/// Changes the parameters of a head, and its seed.
pub(crate) fn change_parameters(head: &AdversarialHead, rng: &mut ChaCha8Rng) -> AdversarialHead {
    let mut child = AdversarialHead { seed: rng.random(), ..*head };
    if rng.random_bool(0.2) {
        child.head_dim = *[32, 64, 128, 256].choose(rng).unwrap();
    }
    if rng.random_bool(0.2) {
        child.group = *[1, 2, 4, 8, 16].choose(rng).unwrap();
    }
    let mut scaled =
        |x: &mut f64, least: f64, most: f64| *x = (*x * factor(0.4, rng)).clamp(least, most);
    match &mut child.kind {
        Adversary::UnequalKeys { factor } | Adversary::IgnoredAxis { factor } => {
            scaled(factor, 1.0, 60.0);
        }
        Adversary::LateSink { factor, place } | Adversary::RegimeChange { factor, place } => {
            scaled(factor, 1.0, 60.0);
            change_place(place, rng);
        }
        Adversary::LargeLogits { deviation } => scaled(deviation, 1.0, 1e6),
        Adversary::SignChanges { breaks, mean } => {
            scaled(mean, 0.01, 1.0);
            *breaks = rng.random_range(1..=5);
        }
        Adversary::Cancelling => {}
        Adversary::RandomSigns { mean } => scaled(mean, 0.005, 0.9),
        Adversary::DistantNeedle { depth, place } => {
            scaled(depth, 1.0, 100.0);
            change_place(place, rng);
        }
        Adversary::OutlierChannels { channels, magnitude, share } => {
            scaled(magnitude, 1.0, 2e4);
            scaled(share, 1e-3, 1.0);
            *channels = rng.random_range(1..=8);
        }
        Adversary::CommonOffset { length } => scaled(length, 1.0, 2e4),
    }
    child
}

fn change_place(place: &mut usize, rng: &mut ChaCha8Rng) {
    if rng.random_bool(0.5) {
        *place = rng.random_range(0..BLOCK);
    }
}

/// Changes keys, values or the queries of a head.
pub(crate) fn change_head(head: &HeadData, rng: &mut ChaCha8Rng) -> HeadData {
    let mut child = head.clone();
    for _ in 0..rng.random_range(1..=3) {
        let tokens = choose_tokens(&child, rng);
        change_tokens(&mut child, &tokens, rng);
    }
    child.keys.iter_mut().for_each(|x| *x = x.clamp(-MOST, MOST));
    child.values.iter_mut().for_each(|x| *x = x.clamp(-MOST, MOST));
    child
}

fn change_tokens(head: &mut HeadData, tokens: &[usize], rng: &mut ChaCha8Rng) {
    match rng.random_range(0..9) {
        0 => {
            let by = factor(0.7, rng);
            for &token in tokens {
                let (mut along, rest) = split(head, token, rng);
                add(&mut along, by as f32, &rest);
                key(head, token).copy_from_slice(&along);
            }
        }
        1 => {
            let (query, square) = some_query(head, rng);
            let rise = (2.0 * normal(rng)) as f32;
            for &token in tokens {
                add(key(head, token), rise / square, &query);
            }
        }
        2 => {
            let vector = vector(head, rng);
            for &token in tokens {
                add(key(head, token), 1.0, &vector);
            }
        }
        3 => {
            for &token in tokens {
                let vector = vector(head, rng);
                add(key(head, token), 1.0, &vector);
            }
        }
        4 => {
            // The parts orthogonal to the query become parallel to the same part of one token.
            let (_, shape) = split(head, *tokens.choose(rng).unwrap(), rng);
            for &token in tokens {
                let (mut along, rest) = split(head, token, rng);
                let by = dot(&rest, &rest).sqrt() / dot(&shape, &shape).sqrt().max(1e-6);
                add(&mut along, if rng.random_bool(0.5) { by } else { -by }, &shape);
                key(head, token).copy_from_slice(&along);
            }
        }
        5 => scale_values(head, tokens, -1.0),
        6 => scale_values(head, tokens, factor(0.7, rng) as f32),
        7 => {
            for &token in tokens {
                let other = rng.random_range(0..head.values.len() / VALUE_DIM);
                swap(&mut head.keys, head.head_dim, token, other);
                swap(&mut head.values, VALUE_DIM, token, other);
            }
        }
        _ => {
            let by = factor(0.2, rng) as f32;
            head.queries.iter_mut().for_each(|x| *x *= by);
        }
    }
}

fn scale_values(head: &mut HeadData, tokens: &[usize], by: f32) {
    for &token in tokens {
        for x in &mut head.values[token * VALUE_DIM..][..VALUE_DIM] {
            *x *= by;
        }
    }
}

/// Chooses one token, consecutive tokens, random tokens, those with the largest logits, or all.
fn choose_tokens(head: &HeadData, rng: &mut ChaCha8Rng) -> Vec<usize> {
    let n = head.values.len() / VALUE_DIM;
    match rng.random_range(0..10) {
        0..3 => vec![rng.random_range(0..n)],
        3..5 => {
            let first = rng.random_range(0..n);
            (first..n.min(first + rng.random_range(1..=BLOCK))).collect()
        }
        5 => (0..rng.random_range(2..n / 20)).map(|_| rng.random_range(0..n)).collect(),
        6..9 => {
            let (query, _) = some_query(head, rng);
            let logit =
                |token: &usize| dot(&head.keys[token * head.head_dim..][..query.len()], &query);
            let mut tokens: Vec<usize> = (0..n).collect();
            tokens.sort_by(|a, b| logit(b).total_cmp(&logit(a)));
            tokens.truncate(rng.random_range(1..=32));
            if rng.random_bool(0.5) {
                tokens = vec![*tokens.choose(rng).unwrap()];
            }
            tokens
        }
        _ => (0..n).collect(),
    }
}

/// A query of the group, and its squared length.
fn some_query(head: &HeadData, rng: &mut ChaCha8Rng) -> (Vec<f32>, f32) {
    let member = rng.random_range(0..head.group);
    let query = head.queries[member * head.head_dim..][..head.head_dim].to_vec();
    let square = dot(&query, &query);
    (query, square)
}

/// Splits a key into the part parallel to a query, and the orthogonal rest.
fn split(head: &HeadData, token: usize, rng: &mut ChaCha8Rng) -> (Vec<f32>, Vec<f32>) {
    let (query, square) = some_query(head, rng);
    let mut rest = head.keys[token * head.head_dim..][..head.head_dim].to_vec();
    let part = dot(&rest, &query) / square;
    add(&mut rest, -part, &query);
    (query.iter().map(|x| part * x).collect(), rest)
}

/// A random vector whose length is similar to that of some key.
fn vector(head: &HeadData, rng: &mut ChaCha8Rng) -> Vec<f32> {
    let token = rng.random_range(0..head.values.len() / VALUE_DIM);
    let (_, rest) = split(head, token, rng);
    let deviation = (dot(&rest, &rest) / rest.len() as f32).sqrt() * factor(1.0, rng) as f32;
    rest.iter().map(|_| deviation * normal(rng) as f32).collect()
}

fn key(head: &mut HeadData, token: usize) -> &mut [f32] {
    &mut head.keys[token * head.head_dim..][..head.head_dim]
}

fn swap(rows: &mut [f32], dim: usize, a: usize, b: usize) {
    (0..dim).for_each(|i| rows.swap(a * dim + i, b * dim + i));
}

fn factor(spread: f64, rng: &mut ChaCha8Rng) -> f64 {
    (spread * normal(rng)).exp()
}

fn normal(rng: &mut ChaCha8Rng) -> f64 {
    StandardNormal.sample(rng)
}

fn add(x: &mut [f32], factor: f32, y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += factor * y);
}

fn dot(x: &[f32], y: &[f32]) -> f32 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}
