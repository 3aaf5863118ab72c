//! Sequences that return to an earlier point.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crate::common::{self, MODEL_LAYER, normal};
use ndarray::{Array3, s};
use vattention::config::load;
use vattention::{
    Attention, Backend, Error, FallBack, Options, Output, PipelineConfig, Shape, Storage, backend,
};

const SHAPE: Shape = Shape { query_heads: 4, kv_heads: 2, head_dim: 32, value_dim: 32 };
const PROMPT: usize = 600;
const STEPS: usize = 30;

/// Keys, values and queries of a layer: of the tokens that stay, and of others.
struct Layer {
    keys: Array3<f32>,
    values: Array3<f32>,
    queries: Array3<f32>,
}

impl Layer {
    fn new(seed: u64) -> Self {
        let tokens = PROMPT + 2 * STEPS;
        Self {
            keys: normal((SHAPE.kv_heads, tokens, SHAPE.head_dim), seed),
            values: normal((SHAPE.kv_heads, tokens, SHAPE.value_dim), seed + 1),
            queries: normal((SHAPE.query_heads, tokens, SHAPE.head_dim), seed + 2),
        }
    }

    fn append(&self, attention: &mut dyn Attention, tokens: Range<usize>) {
        let new = s![.., tokens, ..];
        common::append(attention, self.keys.slice(new), self.values.slice(new)).unwrap();
    }

    /// Starts a sequence with the prompt.
    fn start(
        &self,
        backend: &dyn Backend,
        config: &Arc<PipelineConfig>,
        options: &Options,
    ) -> Box<dyn Attention> {
        let mut attention = backend.start(config, MODEL_LAYER, SHAPE, options).unwrap();
        self.append(&mut *attention, 0..PROMPT);
        attention.observe(self.queries.slice(s![.., PROMPT - 32..PROMPT, ..])).unwrap();
        attention
    }

    /// Adds one token, and returns the step's output, reports and token lists.
    fn step(&self, attention: &mut dyn Attention, token: usize) -> String {
        self.append(attention, token..token + 1);
        let query = self.queries.slice(s![.., token..=token, ..]);
        let Output { out, rows, selection, .. } = attention.attend(query, None).unwrap();
        format!("{out:?} {rows:?} {selection:?}")
    }
}

fn options(storage: Storage) -> Options {
    Options {
        storage,
        return_selection: true,
        fall_back: FallBack::Never,
        rewindable: STEPS,
        ..Options::default()
    }
}

/// After a return, steps have the results of a sequence that has never computed the steps in
/// between: for all shipped pipelines that can return, in every type. The others are refused.
#[test]
fn steps_after_a_return_are_those_without_the_steps_in_between() {
    let (layer, other) = (Layer::new(1), Layer::new(7));
    let (mut refused, mut returned) = (BTreeSet::new(), 0);
    for (i, path) in common::configs().iter().enumerate() {
        if common::is_trained(path) {
            continue;
        }
        let pipeline = load(path).unwrap();
        let options = options(Storage::ALL[i % 4]);
        for backend in common::backends() {
            let stem = path.file_stem().unwrap().to_str().unwrap();
            // An emulated GPU is slow.
            let emulated = ["dense", "quest", "hybrid"].contains(&stem);
            if backend.name() == "cuda" && !emulated {
                continue;
            }
            let context = format!("{} on {}", path.display(), backend.name());
            let mut straight = layer.start(&*backend, &pipeline, &options);
            let mut returning = layer.start(&*backend, &pipeline, &options);
            let first = match returning.checkpoint() {
                Ok(point) => point,
                Err(Error::NoRewind { component }) => {
                    refused.insert(component);
                    continue;
                }
                Err(error) => panic!("{context}: {error}"),
            };
            returned += 1;
            let steps = if backend.name() == "cuda" { 3 } else { STEPS };
            for step in 0..steps {
                let point = returning.checkpoint().unwrap();
                let ahead = step * 7 % 5;
                for token in PROMPT + step..PROMPT + step + ahead {
                    other.step(&mut *returning, token);
                }
                returning.rewind(&point).unwrap();
                assert_eq!(returning.checkpoint().unwrap(), point, "{context}");
                let expected = layer.step(&mut *straight, PROMPT + step);
                let found = layer.step(&mut *returning, PROMPT + step);
                assert!(found == expected, "{context}, step {step}");
            }
            assert_eq!(returning.index_bytes(), straight.index_bytes(), "{context}");
            assert_eq!(returning.held_bytes(), straight.held_bytes(), "{context}");
            let mut fork = returning.fork(None).unwrap();
            returning.rewind(&first).unwrap();
            assert_eq!(returning.len(), PROMPT, "{context}");
            let mut fresh = layer.start(&*backend, &pipeline, &options);
            let expected = layer.step(&mut *fresh, PROMPT);
            assert!(layer.step(&mut *returning, PROMPT) == expected, "{context}, all steps");
            let expected = layer.step(&mut *straight, PROMPT + steps);
            assert!(layer.step(&mut *fork, PROMPT + steps) == expected, "{context}, a fork");
        }
    }
    let expected = [
        "cluster-kv",
        "fastgen",
        "h2o",
        "inf-llm",
        "lsh",
        "magic-pig",
        "pq-cache",
        "retrieval-attention",
        "reuse",
        "scissorhands",
        "socket",
        "squeezed-attention",
        "tactic",
        "tova",
    ];
    assert!(refused.iter().eq(expected), "{refused:?}");
    assert!(returned > 40, "{returned}");
}

/// Evicted tokens are freed late enough to return, and no later.
#[test]
fn windows_keep_the_rows_to_which_a_sequence_can_return() {
    let (layer, other) = (Layer::new(1), Layer::new(7));
    let pipeline = load(common::root("configs/streaming-llm.toml")).unwrap();
    let cpu = backend("cpu").unwrap();
    let options = Options { free_evicted: true, rewindable: 5, ..options(Storage::F16) };
    let mut straight = layer.start(&*cpu, &pipeline, &options);
    let mut returning = layer.start(&*cpu, &pipeline, &options);
    for step in 0..STEPS {
        let point = returning.checkpoint().unwrap();
        for token in PROMPT + step..PROMPT + step + step % 6 {
            other.step(&mut *returning, token);
        }
        returning.rewind(&point).unwrap();
        let expected = layer.step(&mut *straight, PROMPT + step);
        assert!(layer.step(&mut *returning, PROMPT + step) == expected, "step {step}");
    }
    assert!(returning.held_bytes() < PROMPT / 2 * SHAPE.kv_heads * 128);
    let point = returning.checkpoint().unwrap();
    (0..6).for_each(|token| drop(layer.step(&mut *returning, PROMPT + STEPS + token)));
    assert!(matches!(returning.rewind(&point), Err(Error::Freed)));
    assert_eq!(returning.len(), PROMPT + STEPS + 6, "nothing has changed");
}

#[test]
fn points_before_a_prompt_or_after_the_end_are_refused() {
    let layer = Layer::new(1);
    let pipeline = load(common::root("configs/priority.toml")).unwrap();
    let mut attention = layer.start(&*backend("cpu").unwrap(), &pipeline, &options(Storage::F32));
    let start = attention.checkpoint().unwrap();
    layer.step(&mut *attention, PROMPT);
    let point = attention.checkpoint().unwrap();
    attention.rewind(&start).unwrap();
    let error = attention.rewind(&point).unwrap_err().to_string();
    assert!(error.starts_with("tokens to keep: expected 600 to 600"), "{error}");
    layer.step(&mut *attention, PROMPT);
    attention.observe(layer.queries.slice(s![.., ..4, ..])).unwrap();
    let error = attention.rewind(&start).unwrap_err().to_string();
    assert!(error.starts_with("tokens to keep: expected 601 to 601"), "{error}");
    let mut foreign = attention.checkpoint().unwrap();
    foreign.first_sizes.pop();
    let error = attention.rewind(&foreign).unwrap_err().to_string();
    assert_eq!(error, "first sizes: expected 4, got 3");
}
