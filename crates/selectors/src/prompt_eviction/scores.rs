//! Scores of a prompt's tokens, in f64 and rounded to f32 at the end.

use std::num::NonZeroU16;

use vattention_core::ndarray::{ArrayView1, Axis};
use vattention_core::{Tokens, plugin::PromptQueries};

/// Negative norm of the key of each token, `[tokens]`.
pub(super) fn key_norms(keys: &Tokens<'_>, tokens: &[u32]) -> Vec<f32> {
    let mut scores = Vec::with_capacity(tokens.len());
    for_each_vector(keys, tokens, |key| scores.push(-norm(key) as f32));
    scores
}

/// Negative cosine of each token's key with the mean direction of all of these keys, `[tokens]`.
pub(super) fn key_differences(keys: &Tokens<'_>, tokens: &[u32]) -> Vec<f32> {
    let mut anchor = vec![0.0; keys.dim()];
    for_each_vector(keys, tokens, |key| {
        let norm = norm(key);
        if norm > 0.0 {
            anchor.iter_mut().zip(key).for_each(|(sum, x)| *sum += x / norm);
        }
    });
    let anchor_norm = norm(&anchor);
    let mut scores = Vec::with_capacity(tokens.len());
    for_each_vector(keys, tokens, |key| {
        let lengths = norm(key) * anchor_norm;
        let product: f64 = key.iter().zip(&anchor).map(|(x, a)| x * a).sum();
        scores.push(if lengths > 0.0 { (-product / lengths) as f32 } else { 0.0 });
    });
    scores
}

/// Ranks of LagKV of the tokens in all complete partitions but the last; empty if there is only
/// one. Ranks rise with the score; among equal scores, the lower token has the higher rank.
pub(super) fn lag_ranks(
    prompt: &PromptQueries<'_>,
    tokens: &[u32],
    partition: NonZeroU16,
) -> Vec<f32> {
    let partition = usize::from(partition.get());
    let [keys, values] =
        [&prompt.keys, &prompt.values].map(|rows| lag_scores(rows, tokens, partition));
    let sums: Vec<f64> = keys.iter().zip(values).map(|(key, value)| key + value).collect();
    let mut ranks = vec![0.0; sums.len()];
    for (sums, ranks) in sums.chunks(partition).zip(ranks.chunks_mut(partition)) {
        let mut rising: Vec<usize> = (0..partition).collect();
        rising.sort_by(|&a, &b| sums[a].total_cmp(&sums[b]).then(b.cmp(&a)));
        for (rank, token) in rising.into_iter().enumerate() {
            ranks[token] = rank as f32;
        }
    }
    ranks
}

/// Softmax, within each complete partition but the last, of the standard deviations of vectors
/// whose elements are scaled to their ranges in the next partition.
fn lag_scores(rows: &Tokens<'_>, tokens: &[u32], partition: usize) -> Vec<f64> {
    let mut vectors = Vec::with_capacity(tokens.len());
    for_each_vector(rows, tokens, |vector| vectors.push(vector.to_vec()));
    let partitions: Vec<&[Vec<f64>]> = vectors.chunks_exact(partition).collect();
    let mut scores = Vec::new();
    for pair in partitions.windows(2) {
        let [scored, reference] = pair else { continue };
        let range = |channel: usize| {
            let elements = reference.iter().map(|vector| vector[channel]);
            (elements.clone().fold(f64::INFINITY, f64::min), elements.fold(f64::MIN, f64::max))
        };
        let ranges: Vec<(f64, f64)> = (0..rows.dim()).map(range).collect();
        let deviations = scored.iter().map(|vector| {
            let scaled: Vec<f64> = (vector.iter().zip(&ranges))
                .map(
                    |(x, (least, largest))| {
                        if largest > least { (x - least) / (largest - least) } else { 0.0 }
                    },
                )
                .collect();
            deviation(&scaled)
        });
        scores.extend(softmax(deviations.collect()));
    }
    scores
}

/// Expected attention weight of each token times the norm of its value, `[tokens]`.
pub(super) fn expected_attention(prompt: &PromptQueries<'_>, tokens: &[u32]) -> Vec<f32> {
    let (members, queries, _) = prompt.queries.dim();
    let count = queries.max(1) as f64;
    let mut weights = vec![0.0; tokens.len()];
    for member in 0..members {
        let mut moments = vec![(0.0, 0.0); tokens.len()];
        for query in prompt.queries.index_axis(Axis(0), member).rows() {
            let logits = logits(prompt, query);
            for ((sum, squares), &token) in moments.iter_mut().zip(tokens) {
                let logit = f64::from(logits[token as usize]);
                *sum += logit;
                *squares += logit * logit;
            }
        }
        let exponent = |(sum, squares): (f64, f64)| {
            let mean = sum / count;
            mean + (squares / count - mean * mean).max(0.0) / 2.0
        };
        let expected = softmax(moments.into_iter().map(exponent).collect());
        weights.iter_mut().zip(expected).for_each(|(sum, weight)| *sum += weight);
    }
    let mut place = weights.into_iter();
    let mut scores = Vec::with_capacity(tokens.len());
    for_each_vector(&prompt.values, tokens, |value| {
        let weight = place.next().unwrap_or_default() / members as f64;
        scores.push((weight * norm(value)) as f32);
    });
    scores
}

/// Logits of all tokens of a prompt for one of its queries, `[tokens]`.
fn logits(prompt: &PromptQueries<'_>, query: ArrayView1<'_, f32>) -> Vec<f32> {
    let tokens = prompt.keys.len();
    let mut logits = vec![0.0; tokens];
    prompt.keys.dots(0..tokens, &query.to_vec(), &mut logits);
    prompt.form.cap(&mut logits);
    logits
}

/// Visits the vectors of some tokens.
fn for_each_vector(rows: &Tokens<'_>, tokens: &[u32], mut visit: impl FnMut(&[f64])) {
    let (mut row, mut vector) = (vec![0.0; rows.dim()], vec![0.0; rows.dim()]);
    for &token in tokens {
        rows.copy_row(token as usize, &mut row);
        vector.iter_mut().zip(&row).for_each(|(x, &element)| *x = f64::from(element));
        visit(&vector);
    }
}

fn norm(vector: &[f64]) -> f64 {
    vector.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// Standard deviation of a sample.
fn deviation(numbers: &[f64]) -> f64 {
    let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
    let squares: f64 = numbers.iter().map(|x| (x - mean) * (x - mean)).sum();
    (squares / (numbers.len() - 1).max(1) as f64).sqrt()
}

/// Softmax of some numbers.
fn softmax(numbers: Vec<f64>) -> Vec<f64> {
    let largest = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exponentials: Vec<f64> = numbers.iter().map(|x| libm::exp(x - largest)).collect();
    let sum: f64 = exponentials.iter().sum();
    exponentials.into_iter().map(|x| x / sum).collect()
}
