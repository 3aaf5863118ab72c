//! KV heads over rows of an engine: the same outputs, reports and errors as the library's cache.

use crate::common::{normal, root};
use ndarray::{Array3, ArrayView3, s};
use vattention::backends::{Cpu, EngineHead, HeadRows};
use vattention::config::{Loader, load};
use vattention::engine::Tokens;
use vattention::{Attention, Backend, Options, Output, Shape, TokenClass};

const SHAPE: Shape = Shape { query_heads: 4, kv_heads: 2, head_dim: 32, value_dim: 64 };
const TOKENS: usize = 1200;
const PROMPT: usize = 1000;

/// Pipelines with all needs: none, feedback, a prompt, and a prompt with classes.
const NAMES: [&str; 7] =
    ["dense", "priority", "vattention-oracle", "quest", "h2o", "snapkv", "fastgen"];

/// A sequence in the library's cache, and the same sequence in an engine's.
struct Pair {
    keys: Array3<f32>,
    values: Array3<f32>,
    queries: Array3<f32>,
    library: Box<dyn Attention>,
    engine: Vec<EngineHead>,
}

impl Pair {
    fn new(name: &str) -> Self {
        let config = load(root("configs").join(format!("{name}.toml"))).unwrap();
        let options = Options {
            sequence: 5,
            first_step: 3,
            soft_cap: Some(20.0),
            sink_logits: Some([0.5, -1.0, 2.0, 0.0].into()),
            ..Options::default()
        };
        let head = |kv_head| EngineHead::new(&config, 2, kv_head, SHAPE, &options).unwrap();
        Self {
            keys: normal((SHAPE.kv_heads, TOKENS, SHAPE.head_dim), 1),
            values: normal((SHAPE.kv_heads, TOKENS, SHAPE.value_dim), 2),
            queries: normal((SHAPE.query_heads, TOKENS, SHAPE.head_dim), 3) * 2.0,
            library: Cpu::default().start(&config, 2, SHAPE, &options).unwrap(),
            engine: (0..SHAPE.kv_heads).map(head).collect(),
        }
    }

    fn append(&mut self, to: usize) {
        let new = self.library.len()..to;
        let classes = vec![TokenClass::Punctuation; new.len()];
        let (keys, values) =
            (self.keys.slice(s![.., new.clone(), ..]), self.values.slice(s![.., new, ..]));
        self.library.append_classed(keys, values, &classes).unwrap();
        for (kv_head, head) in self.engine.iter_mut().enumerate() {
            let rows = rows(&self.keys, &self.values, kv_head, to);
            head.append(&rows, Some(&classes)).unwrap();
        }
    }

    fn observe(&mut self) {
        let last = self.library.len() - 40..self.library.len();
        let queries = self.queries.slice(s![.., last, ..]);
        self.library.observe(queries).unwrap();
        let len = self.library.len();
        for (kv_head, head) in self.engine.iter_mut().enumerate() {
            let rows = rows(&self.keys, &self.values, kv_head, len);
            head.observe(&rows, group(queries, kv_head)).unwrap();
        }
    }

    /// Runs steps for the last queries, and compares outputs and reports.
    fn attend(&mut self, visible: &[usize], context: &str) {
        let len = self.library.len();
        let queries = self.queries.slice(s![.., len - visible.len()..len, ..]);
        let want = self.library.attend(queries, Some(visible)).unwrap();
        for (kv_head, head) in self.engine.iter_mut().enumerate() {
            let rows = rows(&self.keys, &self.values, kv_head, len);
            let got = head.attend(&rows, group(queries, kv_head), Some(visible)).unwrap();
            compare(&want, &got, kv_head, context);
        }
    }

    fn fork(&mut self, sequence: u32) -> Self {
        Self {
            keys: self.keys.clone(),
            values: self.values.clone(),
            queries: self.queries.clone(),
            library: self.library.fork(Some(sequence)).unwrap(),
            engine: self.engine.iter_mut().map(|head| head.fork(Some(sequence))).collect(),
        }
    }
}

fn rows<'a>(
    keys: &'a Array3<f32>,
    values: &'a Array3<f32>,
    kv_head: usize,
    len: usize,
) -> HeadRows<'a> {
    let view = |all: &'a Array3<f32>| {
        let dim = all.dim().2;
        let head = &all.as_slice().unwrap()[kv_head * TOKENS * dim..];
        Tokens::new(head, len, dim)
    };
    HeadRows { keys: view(keys), values: view(values) }
}

fn group(queries: ArrayView3<'_, f32>, kv_head: usize) -> ArrayView3<'_, f32> {
    let group = kv_head * SHAPE.group()..(kv_head + 1) * SHAPE.group();
    queries.slice_move(s![group, .., ..])
}

fn compare(want: &Output, got: &Output, kv_head: usize, context: &str) {
    let heads = kv_head * SHAPE.group()..(kv_head + 1) * SHAPE.group();
    assert_eq!(want.out.slice(s![heads.clone(), .., ..]), got.out, "{context}");
    assert_eq!(want.log_denominator.slice(s![heads.clone(), ..]), got.log_denominator);
    let all = want.rows.chunks(SHAPE.query_heads).flat_map(|step| &step[heads.clone()]);
    assert!(all.eq(&got.rows), "{context}");
}

#[test]
fn a_sequence_equals_that_of_the_librarys_cache() {
    for name in NAMES {
        let mut pair = Pair::new(name);
        pair.append(PROMPT - 300);
        pair.append(PROMPT);
        pair.observe();
        pair.attend(&[PROMPT - 1, PROMPT], name);
        pair.append(PROMPT + 1);
        let mut fork = pair.fork(9);
        for pair in [&mut pair, &mut fork] {
            pair.attend(&[PROMPT + 1], name);
            pair.append(PROMPT + 3);
            pair.attend(&[PROMPT + 3], name);
        }
    }
}

/// After a truncation, outputs are those of a sequence that never had the tokens, up to the sample:
/// the step number continues. Pipelines whose index cannot lose tokens refuse, by name.
#[test]
fn tokens_are_removed_in_place_or_refused() {
    let queries = normal((SHAPE.group(), 1, SHAPE.head_dim), 4);
    for name in ["dense", "priority", "quest", "vattention-oracle"] {
        let (mut long, mut short) = (Pair::new(name), Pair::new(name));
        long.append(TOKENS);
        short.append(PROMPT);
        assert!(long.engine[0].can_truncate(), "{name}");
        let all = rows(&long.keys, &long.values, 0, TOKENS);
        long.engine[0].truncate(&all, PROMPT).unwrap();
        assert_eq!(long.engine[0].len(), PROMPT);
        assert_eq!(long.engine[0].index_bytes(), short.engine[0].index_bytes(), "{name}");
        let first = rows(&long.keys, &long.values, 0, PROMPT);
        let got = long.engine[0].attend(&first, queries.view(), None).unwrap();
        let rows = rows(&short.keys, &short.values, 0, PROMPT);
        let want = short.engine[0].attend(&rows, queries.view(), None).unwrap();
        assert_eq!(got.out, want.out, "{name}");
    }
    for name in ["pq-cache", "h2o", "inf-llm"] {
        let mut pair = Pair::new(name);
        pair.append(PROMPT);
        assert!(!pair.engine[0].can_truncate(), "{name}");
        let all = rows(&pair.keys, &pair.values, 0, PROMPT);
        let error = pair.engine[0].truncate(&all, PROMPT - 1).unwrap_err().to_string();
        assert!(error.contains(&format!("`{name}` cannot remove tokens")), "{error}");
    }
    let mut prompted = Pair::new("snapkv");
    prompted.append(PROMPT);
    prompted.observe();
    let all = rows(&prompted.keys, &prompted.values, 0, PROMPT);
    let checked = prompted.engine[0].check_truncate(&all, PROMPT - 1).unwrap_err().to_string();
    let error = prompted.engine[0].truncate(&all, PROMPT - 1).unwrap_err().to_string();
    assert!(error.contains("since the last observed prompt"), "{error}");
    assert_eq!(checked, error);
}

/// Misuse is an error that names the argument, and changes nothing.
#[test]
fn wrong_rows_and_queries_are_errors() {
    let mut pair = Pair::new("snapkv");
    pair.append(PROMPT);
    let (keys, values) = (pair.keys.clone(), pair.values.clone());
    let rows = |len| rows(&keys, &values, 0, len);
    let queries = normal((SHAPE.group(), 1, SHAPE.head_dim), 4);
    let head = &mut pair.engine[0];
    let mut message = |rows: &HeadRows<'_>, queries: &Array3<f32>| {
        let checked = head.check_attend(rows, queries.view(), None).unwrap_err().to_string();
        let attended = head.attend(rows, queries.view(), None).unwrap_err().to_string();
        assert_eq!(checked, attended);
        attended
    };
    let narrow = HeadRows { keys: rows(PROMPT).values, ..rows(PROMPT) };
    let fewer = HeadRows { values: rows(PROMPT - 1).values, ..rows(PROMPT) };
    let infinite = queries.mapv(|_| f32::INFINITY);
    for (message, part) in [
        (message(&rows(PROMPT), &queries), "`snapkv` learns from the last queries"),
        (message(&rows(PROMPT + 1), &queries), "tokens: expected 1000, those appended"),
        (message(&narrow, &queries), "head_dim of the keys"),
        (message(&fewer, &queries), "values: expected 1000"),
        (message(&rows(PROMPT), &infinite), "queries[0, 0, 0]"),
        (message(&rows(PROMPT), &normal((3, 1, SHAPE.head_dim), 1)), "queries: expected [2, 1"),
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let error = head.append(&rows(PROMPT - 1), None).unwrap_err().to_string();
    assert!(error.contains("at least 1000"), "{error}");
    let checked = head.check_append(&rows(PROMPT - 1), None).unwrap_err().to_string();
    assert_eq!(checked, error);
    let many = normal((SHAPE.group(), PROMPT + 1, SHAPE.head_dim), 5);
    let error = head.observe(&rows(PROMPT), many.view()).unwrap_err().to_string();
    assert!(error.contains("at most 1000"), "{error}");
    let checked = head.check_observe(&rows(PROMPT), many.view()).unwrap_err().to_string();
    assert_eq!(checked, error);
    let mut broken = keys.clone();
    broken[[0, PROMPT, 7]] = f32::NAN;
    let broken = self::rows(&broken, &values, 0, PROMPT + 1);
    let error = head.append(&broken, None).unwrap_err().to_string();
    assert!(error.contains("keys[1000, 7] is NaN"), "{error}");
    assert_eq!(head.len(), PROMPT);
}

#[test]
fn promises_about_unrounded_rows_are_refused() {
    let text = "extends = \"vattention-oracle\"\nestimator.reference = \"unrounded\"";
    let config = Loader::default().parse("unrounded", text).unwrap();
    let error = EngineHead::new(&config, 0, 0, SHAPE, &Options::default()).unwrap_err();
    assert!(error.to_string().contains("leave out `reference`"), "{error}");
    let error = EngineHead::new(&config, 0, 2, SHAPE, &Options::default()).unwrap_err();
    assert!(error.to_string().contains("kv_head: expected less than 2"), "{error}");
}
