use ndarray::{Axis, s};

use super::generator::{SINKS, mass};

use super::*;

fn small(kind: HeadKind) -> Synth {
    let shape = Shape { query_heads: 8, kv_heads: 2, head_dim: 64, value_dim: 48 };
    let (tokens, sink_share, value_mean) = (2048, 0.0, 0.7);
    Synth { kind, tokens, shape, queries: 8, prompt: 0, sink_share, value_mean, seed: 0 }
}

/// Returns the scores of each query over its visible tokens.
fn scores(synth: &Synth) -> Vec<Vec<f64>> {
    let TraceLayer { queries, keys, visible, .. } = synth.layer().unwrap();
    let scale = 1.0 / (synth.shape.head_dim as f32).sqrt();
    let mut all = Vec::new();
    for (head, rows) in queries.outer_iter().enumerate() {
        let keys = keys.index_axis(Axis(0), head / synth.shape.group());
        for (row, &visible_tokens) in rows.outer_iter().zip(visible.as_ref().unwrap()) {
            let scores = keys.slice(s![..visible_tokens, ..]).dot(&row) * scale;
            all.push(scores.iter().map(|&x| f64::from(x)).collect());
        }
    }
    all
}

/// Returns the mean of a statistic over all queries of four layers.
fn mean(kind: HeadKind, statistic: impl Fn(&[f64]) -> f64) -> f64 {
    let scores_of_layer = |seed| scores(&Synth { seed, ..small(kind) });
    let all = (0..4).flat_map(scores_of_layer).map(|scores| statistic(&scores));
    let all: Vec<f64> = all.collect();
    all.iter().sum::<f64>() / all.len() as f64
}

fn sorted(scores: &[f64]) -> Vec<f64> {
    let mut sorted = scores.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Returns the share of the attention weight, without the sinks, of the `count` heaviest tokens.
fn top_share(scores: &[f64], count: usize) -> f64 {
    let sorted = sorted(&scores[SINKS..]);
    mass(sorted.iter().rev().take(count)) / mass(sorted.iter())
}

fn assert_near(kind: HeadKind, got: f64, expected: f64, factor: f64) {
    let name = kind.name();
    assert!((expected / factor..=expected * factor).contains(&got), "{name}: {got}, {expected}");
}

#[test]
fn equal_seeds_make_equal_layers() {
    let synth = Synth { prompt: 3, ..small(HeadKind::Typical) };
    let layer = synth.layer().unwrap();
    assert_eq!(layer, synth.layer().unwrap());
    let other = Synth { seed: 1, ..synth.clone() }.layer().unwrap();
    assert_ne!(layer.keys, other.keys);
    assert_ne!(layer.keys.index_axis(Axis(0), 0), layer.keys.index_axis(Axis(0), 1));
    let longer = Synth { queries: 20, prompt: 0, ..synth }.layer().unwrap();
    assert_eq!((layer.keys, layer.values), (longer.keys, longer.values));
}

/// The sinks hold their share of the attention of the last query, and change nothing else.
#[test]
fn learned_sinks_hold_their_share() {
    let plain = small(HeadKind::Typical);
    let synth = Synth { sink_share: 0.3, ..plain.clone() };
    let layer = synth.layer().unwrap();
    let scores = scores(&synth);
    for (head, &sink) in layer.sink_logits.as_ref().unwrap().iter().enumerate() {
        let last = &scores[(head + 1) * plain.queries - 1];
        let sink = f64::from(sink).exp();
        let share = sink / (sink + mass(last.iter()));
        assert!((share - 0.3).abs() < 1e-3, "head {head}: {share}");
    }
    assert_eq!(TraceLayer { sink_logits: None, ..layer }, plain.layer().unwrap());
}

#[test]
fn layers_have_the_shape_of_the_settings() {
    let synth = Synth { prompt: 600, tokens: 600, ..small(HeadKind::Local) };
    let layer = synth.layer().unwrap();
    assert_eq!(layer.queries.dim(), (8, 8, 64));
    assert_eq!(layer.keys.dim(), (2, 600, 64));
    assert_eq!(layer.values.dim(), (2, 600, 48));
    assert_eq!(layer.prompt.unwrap().dim(), (8, 600, 64));
    assert_eq!(layer.visible, Some((593..=600).collect()));
    let pair = Shape { query_heads: 1, kv_heads: 1, head_dim: 2, value_dim: 1 };
    let smallest = Synth { shape: pair, queries: 600, prompt: 0, ..synth }.layer().unwrap();
    assert_eq!(smallest.visible, Some((1..=600).collect()));
    assert_eq!(smallest.prompt, None);
}

#[test]
fn numbers_fit_half_precision() {
    for kind in HeadKind::ALL {
        let synth = Synth { prompt: 64, value_mean: 1000.0, ..small(kind) };
        let layer = synth.layer().unwrap();
        let arrays = [layer.queries, layer.keys, layer.values, layer.prompt.unwrap()];
        let fits = |x: &f32| x.abs() <= 65504.0;
        assert!(arrays.iter().flatten().all(fits), "{}", kind.name());
    }
}

#[test]
fn sinks_hold_their_share() {
    for kind in HeadKind::ALL {
        let share = mean(kind, |scores| mass(scores[..SINKS].iter()) / mass(scores.iter()));
        let expected = kind.recipe().sinks;
        if expected > 0.0 {
            assert_near(kind, share, expected, 1.6);
        } else {
            assert!(share < 0.01, "{}: {share}", kind.name());
        }
    }
}

#[test]
fn scores_have_the_standard_deviation_of_their_kind() {
    for kind in HeadKind::ALL {
        // The statistic leaves out the highest 2 %, which include the planted tokens.
        let deviation = mean(kind, |scores| {
            let rest = &sorted(scores)[..scores.len() * 98 / 100];
            let mean = rest.iter().sum::<f64>() / rest.len() as f64;
            (rest.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / rest.len() as f64).sqrt()
        });
        let reshaped = matches!(kind, HeadKind::Local | HeadKind::Heavy);
        assert_near(kind, deviation, kind.recipe().bulk, if reshaped { 1.7 } else { 1.1 });
    }
}

#[test]
fn the_heaviest_tokens_have_the_weight_of_their_kind() {
    let top = |kind| mean(kind, |scores| top_share(scores, 32));
    assert_near(HeadKind::Needle, top(HeadKind::Needle), 0.5, 1.2);
    let kinds = [HeadKind::Diffuse, HeadKind::Typical, HeadKind::Sharp, HeadKind::Vsharp];
    let shares = kinds.map(top);
    assert!(shares.windows(2).all(|pair| pair[1] > 1.1 * pair[0]), "{shares:?}");
}

#[test]
fn kinds_differ_as_their_names_say() {
    use HeadKind::{Diffuse, Heavy, Local, Osc, Sharp};
    let recent = |kind| mean(kind, |s| mass(s[s.len() - 64..].iter()) / mass(s.iter()));
    assert!(recent(Local) > 2.0 * recent(Diffuse));
    let tail = |kind| {
        mean(kind, |scores| {
            let sorted = sorted(scores);
            let below = |share| sorted[sorted.len() / 2] - sorted[sorted.len() / share];
            below(200) / below(6)
        })
    };
    assert!(tail(Heavy) > 1.1 * tail(Diffuse));
    let jumps = |kind| {
        mean(kind, |scores| {
            let jump = |pair: &[f64]| (pair[1] - pair[0]).abs();
            scores.windows(2).map(jump).sum::<f64>() / scores.len() as f64
        }) / kind.recipe().bulk
    };
    assert!(jumps(Osc) < 0.5 * jumps(Sharp));
}

#[test]
fn names_round_trip() {
    for kind in HeadKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
    let error = "spiky".parse::<HeadKind>().unwrap_err();
    assert!(error.starts_with("unknown kind `spiky`; expected one of diffuse, typical"));
}

#[test]
fn settings_out_of_range_are_refused() {
    let good = small(HeadKind::Osc);
    let shaped = |change: fn(&mut Shape)| {
        let mut synth = good.clone();
        change(&mut synth.shape);
        synth
    };
    for (bad, expected) in [
        (Synth { tokens: 511, ..good.clone() }, "tokens: 511; expected 512 to"),
        (Synth { tokens: 1 << 25, ..good.clone() }, "tokens: 33554432; expected"),
        (Synth { queries: 0, ..good.clone() }, "queries: 0; expected 1 to 2048"),
        (Synth { queries: 2049, ..good.clone() }, "queries: 2049"),
        (Synth { prompt: 2049, ..good.clone() }, "prompt_queries: 2049; expected 0 to 2048"),
        (Synth { sink_share: 1.0, ..good.clone() }, "sink_share: 1; expected 0 to below 1"),
        (Synth { value_mean: f64::NAN, ..good.clone() }, "value_mean: NaN"),
        (Synth { value_mean: 1e4, ..good.clone() }, "value_mean: 10000; expected 0 to"),
        (shaped(|s| s.head_dim = 65), "head_dim: 65; expected an even"),
        (shaped(|s| s.head_dim = 34), "head_dim: 34; expected at least 36 for kind `osc`"),
        (shaped(|s| s.head_dim = 0), "head_dim: head_dim"),
        (shaped(|s| s.value_dim = 0), "value_dim: value_dim"),
        (shaped(|s| s.kv_heads = 0), "kv_heads: kv_heads"),
        (shaped(|s| s.query_heads = 3), "query_heads: query_heads"),
    ] {
        let error = bad.layer().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}
