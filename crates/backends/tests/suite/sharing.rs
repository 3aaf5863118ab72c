//! KV heads that share the index of common tokens: the same outputs and reports as KV heads that
//! have indexed every token themselves.

use std::sync::Arc;

use ndarray::{Array2, Array3, s};
use serde_json::{Value, json};
use vattention_backends::{EngineHead, HeadRows, RowChecksums};
use vattention_core::{Error, Options, PipelineConfig, Shape, Tokens};

const SHAPE: Shape = Shape { query_heads: 8, kv_heads: 2, head_dim: 32, value_dim: 64 };
/// Tokens of the donor, which become one shared segment of its index.
const DONATED: usize = 1500;
/// Tokens that the sequences have in common.
const COMMON: usize = 1300;
/// Tokens of the common prefix, in blocks of 64.
const BLOCKS: usize = 1280;

/// Pipelines whose indexes sequences can share, by name.
fn shareable() -> Vec<(&'static str, Arc<PipelineConfig>)> {
    let quest = json!({ "type": "quest", "size": 0.05 });
    let twilight = json!({ "type": "twilight", "mass": 0.85, "of": quest });
    let rigorous = json!({ "type": "ratio", "mode": "rigorous", "epsilon": 0.5, "delta": 0.1 });
    let keys = json!({ "type": "priority", "index": "8-bit" });
    let scores = json!({ "type": "priority", "index": "selectors" });
    let stratified = json!({ "type": "stratified" });
    let top_k = json!({ "type": "oracle-top-k", "size": 0.05 });
    let ratio = json!({ "type": "ratio", "epsilon": 0.3, "delta": 0.1 });
    let select_by = |selector: &str| select(&json!({ "type": selector, "size": 0.05 }));
    let sample = |selectors: Value, sampler: Value, estimator: &Value| {
        config(json!({ "selectors": selectors, "sampler": sampler, "estimator": estimator }))
    };
    vec![
        ("dense", config(json!({}))),
        ("quest", select(&quest)),
        ("ark-vale", select_by("ark-vale")),
        ("rotated-codes", select_by("rotated-codes")),
        ("hash-attention", select_by("hash-attention")),
        ("sparq", select_by("sparq")),
        ("twilight", select(&twilight)),
        ("priority", priority()),
        ("priority, 8-bit", sample(json!([]), keys, &rigorous)),
        ("priority, selectors", sample(json!([top_k]), scores, &ratio)),
        ("stratified", sample(json!([top_k]), stratified, &ratio)),
        ("uniform", sample(json!([top_k]), json!({ "type": "uniform" }), &ratio)),
    ]
}

/// Selectors whose indexes serve one sequence, as a pipeline has them.
fn unshareable() -> Vec<Value> {
    let with_size = |name: &str| json!({ "type": name, "size": 100 });
    let names = ["pq-cache", "cluster-kv", "inf-llm", "socket", "snapkv", "tova"];
    let mut selectors: Vec<Value> = names.map(with_size).into();
    selectors.push(json!({ "type": "h2o", "heavy": 100, "recent": 100 }));
    selectors.push(json!({ "type": "twilight", "mass": 0.8, "of": with_size("pq-cache") }));
    let of = json!({ "type": "quest", "size": 100 });
    selectors.push(json!({ "type": "reuse", "every": 4, "of": of }));
    selectors
}

fn config(json: Value) -> Arc<PipelineConfig> {
    Arc::new(serde_json::from_value(json).unwrap())
}

fn priority() -> Arc<PipelineConfig> {
    let ratio = json!({ "type": "ratio", "epsilon": 0.3, "delta": 0.1 });
    config(json!({ "sampler": { "type": "priority" }, "estimator": ratio }))
}

/// Pipeline of a window and a selector.
fn select(selector: &Value) -> Arc<PipelineConfig> {
    let window = json!({ "type": "window", "size": 20 });
    config(json!({ "share": "head", "selectors": [window, selector] }))
}

/// Pseudo-random numbers, sums of three between -1 and 1.
fn numbers(rows: usize, dim: usize, seed: u64) -> Array2<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    Array2::from_shape_simple_fn((rows, dim), || next() + next() + next())
}

/// Keys and values of a sequence, `[tokens, dim]`.
#[derive(Clone)]
struct Sequence {
    keys: Array2<f32>,
    values: Array2<f32>,
}

impl Sequence {
    fn new(tokens: usize, seed: u64) -> Self {
        let keys = numbers(tokens, SHAPE.head_dim, seed);
        Self { keys, values: numbers(tokens, SHAPE.value_dim, seed + 1) }
    }

    /// Returns the first `common` tokens of a sequence, and then those of this one.
    fn after(&self, first: &Self, common: usize) -> Self {
        let mut joined = self.clone();
        joined.keys.slice_mut(s![..common, ..]).assign(&first.keys.slice(s![..common, ..]));
        joined.values.slice_mut(s![..common, ..]).assign(&first.values.slice(s![..common, ..]));
        joined
    }

    fn rows(&self, tokens: usize) -> HeadRows<'_> {
        let (keys, values) = (view_rows(&self.keys, tokens), view_rows(&self.values, tokens));
        HeadRows { keys, values }
    }
}

fn view_rows(all: &Array2<f32>, tokens: usize) -> Tokens<'_> {
    Tokens::new(all.as_slice().unwrap(), tokens, all.ncols())
}

fn options(sequence: u32) -> Options {
    Options {
        sequence,
        first_step: 3,
        soft_cap: Some(20.0),
        sink_logits: Some([0.5, -1.0, 2.0, 0.0, 0.5, -1.0, 2.0, 0.0].into()),
        ..Options::default()
    }
}

fn start(config: &Arc<PipelineConfig>, sequence: u32) -> EngineHead {
    EngineHead::new(config, 3, 1, SHAPE, &options(sequence)).unwrap()
}

/// Returns a KV head that has indexed tokens by itself.
fn indexed(config: &Arc<PipelineConfig>, number: u32, rows: &HeadRows<'_>) -> EngineHead {
    let mut head = start(config, number);
    head.append(rows, None).unwrap();
    head
}

fn queries(seed: u64) -> Array3<f32> {
    let numbers = numbers(SHAPE.group() * 3, SHAPE.head_dim, seed);
    numbers.into_shape_with_order((SHAPE.group(), 3, SHAPE.head_dim)).unwrap()
}

/// Runs steps that see all tokens, some and one, on two KV heads, and compares them.
fn compare(expected: &mut EngineHead, found: &mut EngineHead, rows: &HeadRows<'_>, context: &str) {
    let visible = [rows.keys.len(), rows.keys.len() - 70, 1];
    let queries = queries(rows.keys.len() as u64);
    let expected = expected.attend(rows, queries.view(), Some(&visible)).unwrap();
    let found = found.attend(rows, queries.view(), Some(&visible)).unwrap();
    assert_eq!(expected.out, found.out, "{context}");
    assert_eq!(expected.log_denominator, found.log_denominator, "{context}");
    assert_eq!(expected.rows, found.rows, "{context}");
}

#[test]
fn a_shared_index_equals_an_index_of_ones_own() {
    let first = Sequence::new(DONATED, 1);
    let second = Sequence::new(DONATED, 5).after(&first, COMMON);
    let third = Sequence::new(DONATED, 9).after(&second, 1400);
    for (name, config) in shareable() {
        let mut donor = indexed(&config, 7, &first.rows(DONATED - 30));
        donor.append(&first.rows(DONATED), None).unwrap();
        let mut alone = indexed(&config, 8, &second.rows(COMMON));
        let mut sharing = start(&config, 8);
        let shared = sharing.share_index(&mut donor, &second.rows(COMMON)).unwrap();
        assert_eq!((shared, sharing.len()), (BLOCKS, BLOCKS), "{name}");
        sharing.append(&second.rows(COMMON), None).unwrap();
        compare(&mut alone, &mut sharing, &second.rows(COMMON), name);

        // The donor continues, and both lose tokens and get others.
        let mut untouched = indexed(&config, 7, &first.rows(DONATED));
        for head in [&mut alone, &mut sharing] {
            head.truncate(&second.rows(COMMON), 1220).unwrap();
            head.append(&second.rows(DONATED), None).unwrap();
        }
        compare(&mut untouched, &mut donor, &first.rows(DONATED), name);
        donor.truncate(&first.rows(DONATED), 100).unwrap();
        compare(&mut alone, &mut sharing, &second.rows(DONATED), name);
        drop(donor);

        // A part of the index of a KV head that has shared another one.
        let mut alone = indexed(&config, 9, &third.rows(DONATED));
        let mut last = start(&config, 9);
        assert_eq!(last.share_index(&mut sharing, &third.rows(DONATED)).unwrap(), 1344);
        drop(sharing);
        last.append(&third.rows(DONATED), None).unwrap();
        compare(&mut alone, &mut last, &third.rows(DONATED), name);
    }
}

#[test]
fn an_index_of_one_sequence_is_refused_by_name() {
    let sequence = Sequence::new(100, 1);
    let mut parts: Vec<_> = unshareable()
        .into_iter()
        .map(|selector| (selector["type"].as_str().unwrap().to_owned(), select(&selector)))
        .collect();
    let lsh = json!({ "type": "lsh", "bits": 4, "tables": 8 });
    parts.push(("lsh".into(), config(json!({ "share": "head", "sampler": lsh }))));
    for (name, config) in parts {
        let (mut head, mut donor) = (start(&config, 1), start(&config, 2));
        let error = head.share_index(&mut donor, &sequence.rows(100)).unwrap_err();
        let Error::NoSharing { component, reason } = &error else { panic!("{name}: {error}") };
        assert_eq!(component, &name);
        assert!(reason.ends_with("its own sequence"), "{error}");
        assert_eq!(donor.check_shareable().unwrap_err().to_string(), error.to_string());
        assert!(donor.checksums().is_none() && head.is_empty(), "{name}");
    }
}

/// An index is not taken over for rows that differ from those of which it was computed.
#[test]
fn only_the_index_of_equal_rows_is_shared() {
    let config = priority();
    let first = Sequence::new(DONATED, 1);
    let mut donor = indexed(&config, 7, &first.rows(DONATED));
    let mut share = |rows: &HeadRows<'_>| start(&config, 8).share_index(&mut donor, rows).unwrap();
    for token in [0, 63, 64, 700, BLOCKS - 1] {
        for in_keys in [true, false] {
            let mut other = first.clone();
            let number =
                if in_keys { &mut other.keys[[token, 31]] } else { &mut other.values[[token, 0]] };
            *number = number.next_up();
            assert_eq!(share(&other.rows(DONATED)), token / 64 * 64);
        }
    }
    assert_eq!(share(&first.rows(70)), 64);
    assert_eq!(share(&first.rows(63)), 0);
    assert_eq!(share(&Sequence::new(DONATED, 3).rows(DONATED)), 0);

    // The donor replaces tokens.
    let second = Sequence::new(DONATED, 5).after(&first, DONATED - 100);
    donor.truncate(&first.rows(DONATED), DONATED - 100).unwrap();
    donor.append(&second.rows(DONATED), None).unwrap();
    for (sequence, common) in [(&first, 1344), (&second, 1344)] {
        let mut head = start(&config, 8);
        let rows = sequence.rows(DONATED);
        let shared = head.share_index(&mut donor, &rows).unwrap();
        // Checksums end at a cut that is older than a block.
        assert_eq!(shared, common);
        head.append(&rows, None).unwrap();
        compare(&mut indexed(&config, 8, &rows), &mut head, &rows, "after a truncation");
    }
    let [all, donated] = [&second, &first].map(|rows| RowChecksums::new(&rows.rows(DONATED)));
    assert_eq!(all.count_common_tokens(&donated), 1344);
}

#[test]
fn memory_of_a_prefix_is_held_once() {
    for (name, config) in shareable() {
        if !["priority", "quest", "rotated-codes", "hash-attention", "sparq"].contains(&name) {
            continue;
        }
        let first = Sequence::new(DONATED, 1);
        let mut heads = vec![indexed(&config, 0, &first.rows(DONATED))];
        let alone = heads[0].index_bytes();
        for sequence in 1..4 {
            let mut head = start(&config, sequence);
            assert_eq!(head.share_index(&mut heads[0], &first.rows(DONATED)).unwrap(), 1472);
            heads.push(head);
        }
        let forks = [heads[0].fork(Some(4)), heads[1].fork(Some(5))];
        heads.extend(forks);
        let all: usize = heads.iter().map(EngineHead::index_bytes).sum();
        // `priority` copies 4 of its 13 bytes per token.
        let most = if matches!(name, "priority" | "rotated-codes") { 2.6 } else { 1.1 };
        assert!((all as f64) < most * alone as f64, "{name}: {all} bytes, alone {alone}");
        let last = heads.pop().unwrap();
        drop(heads);
        assert!(last.index_bytes() as f64 > 0.97 * alone as f64, "{name}: the last one has all");
    }
}

#[test]
fn wrong_donors_are_errors_that_change_nothing() {
    let (config, again) = (priority(), priority());
    let sequence = Sequence::new(200, 1);
    let rows = sequence.rows(200);
    let mut head = start(&config, 1);
    let mut message = |mut donor: EngineHead, rows: &HeadRows<'_>| {
        donor.append(&sequence.rows(200), None).unwrap();
        let error = head.share_index(&mut donor, rows).unwrap_err().to_string();
        assert!(head.is_empty() && head.index_bytes() == 0);
        error
    };
    let new =
        |layer, kv_head| EngineHead::new(&config, layer, kv_head, SHAPE, &options(2)).unwrap();
    let narrow = HeadRows { values: rows.keys, ..rows };
    for (message, part) in [
        (message(new(2, 1), &rows), "donor: expected one of the site"),
        (message(new(3, 0), &rows), "kv_head: 0"),
        (message(start(&again, 2), &rows), "the same pipeline configuration"),
        (message(start(&config, 2), &narrow), "value_dim of the values"),
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let (mut head, mut donor) = (indexed(&config, 1, &rows), indexed(&config, 2, &rows));
    let error = head.share_index(&mut donor, &rows).unwrap_err().to_string();
    assert!(error.contains("tokens: expected 0 before an index is shared, got 200"), "{error}");
}
