//! Tests of causal attention against its definition.

use super::*;
use crate::config::LayerWindow;

/// Returns numbers that do not repeat, `[a, b, c]`.
fn numbers(dims: (usize, usize, usize), seed: f32) -> Array3<f32> {
    Array3::from_shape_fn(dims, |(i, j, k)| {
        ((i as f32 * 31.0 + j as f32 * 7.3 + k as f32 + seed) * 1.7).sin() * 2.0
    })
}

const PLAIN: AttentionForm<'static> =
    AttentionForm { scale: 0.5, soft_cap: None, sinks: None, window: None };

/// Computes one row of attention by its definition, in f64, with the sink of its query head.
fn row(
    query: &[f32],
    keys: &[f32],
    values: &[f32],
    tokens: usize,
    form: AttentionForm<'_>,
    sink: Option<f32>,
) -> Vec<f64> {
    let (head_dim, value_dim) = (query.len(), values.len() / tokens);
    let first = form.window.map_or(0, |window| window.first(tokens - 1));
    let dot = |key: &[f32]| -> f64 {
        query.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum()
    };
    let weight = |key| {
        let logit = dot(key) * f64::from(form.scale);
        let cap = form.soft_cap.map(f64::from);
        cap.map_or(logit, |cap| cap * (logit / cap).tanh()).exp()
    };
    let weights: Vec<f64> = keys.chunks_exact(head_dim).skip(first).map(weight).collect();
    let sink = sink.map_or(0.0, |sink| f64::from(sink).exp());
    let total: f64 = sink + weights.iter().sum::<f64>();
    let output = |i: usize| -> f64 {
        let values = values.chunks_exact(value_dim).skip(first);
        weights.iter().zip(values).map(|(w, value)| w * f64::from(value[i])).sum()
    };
    (0..value_dim).map(|i| output(i) / total).collect()
}

/// Plain attention within a window.
fn within(size: usize, aligned: bool) -> AttentionForm<'static> {
    AttentionForm { window: Some(LayerWindow { size, aligned }), ..PLAIN }
}

#[test]
fn attention_matches_its_definition_wherever_tiles_end() {
    let sinks: [f32; 6] = [0.3, -2.0, 5.0, 1.0, 0.0, -0.5];
    let forms = [
        PLAIN,
        within(1, false),
        AttentionForm { scale: 0.8, ..within(90, false) },
        within(50, true),
        AttentionForm { soft_cap: Some(1.5), sinks: Some(&sinks), ..PLAIN },
        AttentionForm { sinks: Some(&sinks), ..within(KEYS + 3, false) },
        AttentionForm { sinks: Some(&sinks), ..within(KEYS + 3, true) },
    ];
    for form in forms {
        check_form(form);
    }
}

fn check_form(form: AttentionForm<'_>) {
    let (head_dim, value_dim) = (4, 6);
    for (kv_heads, group) in [(1, 1), (2, 3)] {
        for (first, count) in [(0, 1), (0, 5), (3, QUERIES + 1), (KEYS - 2, 5), (700, 2 * QUERIES)]
        {
            let (heads, tokens) = (kv_heads * group, first + count);
            let keys = numbers((kv_heads, tokens, head_dim), 0.3);
            let values = numbers((kv_heads, tokens, value_dim), 0.6);
            let queries = numbers((count, heads, head_dim), 0.0);
            let causal = Causal {
                query_heads: heads,
                keys: &keys,
                values: &values,
                first,
                reads: &[],
                form,
            };
            let mut found = Array3::zeros((count, heads, value_dim));
            causal.attend(queries.as_slice().unwrap(), found.as_slice_mut().unwrap());
            for i in 0..count {
                for head in 0..heads {
                    let visible = first + i + 1;
                    let (k, v) = (
                        keys.index_axis(Axis(0), head / group),
                        values.index_axis(Axis(0), head / group),
                    );
                    let query = queries.slice(ndarray::s![i, head, ..]);
                    let expected = row(
                        query.as_slice().unwrap(),
                        &k.as_slice().unwrap()[..visible * head_dim],
                        &v.as_slice().unwrap()[..visible * value_dim],
                        visible,
                        form,
                        form.sinks.map(|sinks| sinks[head]),
                    );
                    let found = found.slice(ndarray::s![i, head, ..]);
                    let close = |(&a, &b): (&f32, &f64)| (f64::from(a) - b).abs() < 1e-5;
                    assert!(found.iter().zip(&expected).all(close), "{first} {count}: {i} {head}");
                }
            }
        }
    }
}

#[test]
fn growing_logits_do_not_overflow() {
    let tokens = 3 * KEYS;
    let keys = Array3::from_shape_fn((1, tokens, 2), |(_, token, _)| token as f32);
    let values = Array3::from_shape_fn((1, tokens, 1), |(_, token, _)| token as f32);
    let (first, form) = (tokens - 1, PLAIN);
    let causal = Causal { query_heads: 1, keys: &keys, values: &values, first, reads: &[], form };
    let mut output = [0.0];
    causal.attend(&[30.0, 30.0], &mut output);
    assert!((output[0] - (tokens - 1) as f32).abs() < 1e-3, "{output:?}");
}
