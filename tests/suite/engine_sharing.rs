//! KV heads that share the index of common tokens: the same outputs and reports as KV heads that
//! have indexed every token themselves.

use std::sync::Arc;

use ndarray::{Array2, Array3, s};
use vattention::backends::{EngineHead, HeadRows, RowChecksums};
use vattention::config::{Loader, load};
use vattention::engine::Tokens;
use vattention::{Error, Options, PipelineConfig, Shape};

use crate::common::{normal, root};

const SHAPE: Shape = Shape { query_heads: 8, kv_heads: 2, head_dim: 32, value_dim: 64 };
/// Tokens of the donor, which is one shared segment of codes and a few tokens after it.
const DONATED: usize = 1500;
/// Tokens that the sequences have in common.
const COMMON: usize = 1300;
/// Tokens of the common prefix, in blocks of 64.
const BLOCKS: usize = 1280;

/// Built-in pipelines whose indexes sequences can share.
const SHAREABLE: [&str; 18] = [
    "ark-vale",
    "dense",
    "hash-hyperplanes",
    "oracle-top-k",
    "oracle-top-p",
    "priority",
    "priority-layer",
    "priority-limited",
    "priority-rigorous",
    "quest",
    "quest-paper",
    "random",
    "rotated-codes",
    "sparq",
    "stratified",
    "streaming-llm",
    "twilight",
    "vattention-oracle",
];

/// Keys and values of a sequence, `[tokens, dim]`.
#[derive(Clone)]
struct Sequence {
    keys: Array2<f32>,
    values: Array2<f32>,
}

impl Sequence {
    fn new(tokens: usize, seed: u64) -> Self {
        let numbers = |dim, seed| normal((1, tokens, dim), seed).remove_axis(ndarray::Axis(0));
        Self { keys: numbers(SHAPE.head_dim, seed), values: numbers(SHAPE.value_dim, seed + 1) }
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
    normal((SHAPE.group(), 3, SHAPE.head_dim), seed) * 2.0
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

/// Every built-in pipeline that this shape supports, by name.
fn pipelines() -> Vec<(String, Arc<PipelineConfig>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root("configs")).unwrap() {
        let path = entry.unwrap().path();
        let Some(name) = path.file_name().unwrap().to_str().unwrap().strip_suffix(".toml") else {
            continue;
        };
        let Ok(config) = load(&path) else { continue };
        if EngineHead::new(&config, 3, 1, SHAPE, &options(0)).is_ok() {
            found.push((name.to_owned(), config));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

#[test]
fn a_shared_index_equals_an_index_of_ones_own() {
    let first = Sequence::new(DONATED, 1);
    let second = Sequence::new(DONATED, 5).after(&first, COMMON);
    let third = Sequence::new(DONATED, 9).after(&second, 1400);
    let mut shareable = Vec::new();
    for (name, config) in pipelines() {
        if start(&config, 0).check_shareable().is_err() {
            continue;
        }
        let mut donor = indexed(&config, 7, &first.rows(DONATED - 30));
        donor.append(&first.rows(DONATED), None).unwrap();
        let mut alone = indexed(&config, 8, &second.rows(COMMON));
        let mut sharing = start(&config, 8);
        let shared = sharing.share_index(&mut donor, &second.rows(COMMON)).unwrap();
        assert_eq!((shared, sharing.len()), (BLOCKS, BLOCKS), "{name}");
        sharing.append(&second.rows(COMMON), None).unwrap();
        compare(&mut alone, &mut sharing, &second.rows(COMMON), &name);

        // The donor continues, and both lose tokens and get others.
        let mut untouched = indexed(&config, 7, &first.rows(DONATED));
        for head in [&mut alone, &mut sharing] {
            head.truncate(&second.rows(COMMON), 1220).unwrap();
            head.append(&second.rows(DONATED), None).unwrap();
        }
        compare(&mut untouched, &mut donor, &first.rows(DONATED), &name);
        donor.truncate(&first.rows(DONATED), 100).unwrap();
        compare(&mut alone, &mut sharing, &second.rows(DONATED), &name);
        drop(donor);

        // A part of the index of a KV head that has shared another one.
        let mut alone = indexed(&config, 9, &third.rows(DONATED));
        let mut last = start(&config, 9);
        assert_eq!(last.share_index(&mut sharing, &third.rows(DONATED)).unwrap(), 1344);
        drop(sharing);
        last.append(&third.rows(DONATED), None).unwrap();
        compare(&mut alone, &mut last, &third.rows(DONATED), &name);
        shareable.push(name);
    }
    assert_eq!(shareable, SHAREABLE);
}

#[test]
fn an_index_of_one_sequence_is_refused_by_name() {
    let sequence = Sequence::new(100, 1);
    let rows = sequence.rows(100);
    let mut reasons = Vec::new();
    for (name, config) in pipelines() {
        if SHAREABLE.contains(&&*name) {
            continue;
        }
        let (mut head, mut donor) = (start(&config, 1), start(&config, 2));
        let error = head.share_index(&mut donor, &rows).unwrap_err();
        let Error::NoSharing { component, reason } = &error else { panic!("{name}: {error}") };
        assert!(donor.checksums().is_none(), "{name}");
        let is_part = config.selectors.iter().any(|part| part.typetag_name() == component)
            || config.sampler().typetag_name() == component;
        assert!(is_part, "{name}: {error}");
        assert!(reason.ends_with("its own sequence"), "{name}: {error}");
        assert!(error.to_string().contains(&format!("`{component}` {reason}")), "{error}");
        reasons.push(component.clone());
    }
    for name in ["pq-cache", "h2o", "snapkv", "tactic", "magic-pig", "socket", "inf-llm"] {
        assert!(reasons.iter().any(|component| component == name), "{name} is not in {reasons:?}");
    }
}

/// An index is not taken over for rows that differ from those of which it was computed.
#[test]
fn only_the_index_of_equal_rows_is_shared() {
    let config = load(root("configs/priority.toml")).unwrap();
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
    for name in ["priority", "quest", "rotated-codes", "hash-hyperplanes", "sparq"] {
        let config = load(root("configs").join(format!("{name}.toml"))).unwrap();
        let first = Sequence::new(DONATED, 1);
        let mut heads = vec![indexed(&config, 0, &first.rows(DONATED))];
        let alone = heads[0].index_bytes();
        for sequence in 1..4 {
            let mut head = start(&config, sequence);
            assert_eq!(head.share_index(&mut heads[0], &first.rows(DONATED)).unwrap(), 1472);
            heads.push(head);
        }
        heads.push(heads[0].fork(Some(4)));
        heads.push(heads[1].fork(Some(5)));
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
    let config = load(root("configs/priority.toml")).unwrap();
    let again = Loader::default().parse("again", "extends = 'priority'").unwrap();
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
