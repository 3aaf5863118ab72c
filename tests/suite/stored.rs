//! Sequences that continue from stored rows and a stored state.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use crate::common::{self, MODEL_LAYER, normal};
use ndarray::{Array3, s};
use vattention::config::load;
use vattention::cuda::Gpu;
use vattention::engine::{AttentionState, Pipeline, Site};
use vattention::{
    Attention, Backend, Error, FallBack, Options, PageSize, PipelineConfig, Shape, Storage, backend,
};

const SHAPE: Shape = Shape { query_heads: 4, kv_heads: 2, head_dim: 32, value_dim: 32 };

/// Number of tokens of the prompt, and of the sequence after some steps.
const PROMPT: usize = 640;
const STORED: usize = 644;
const TOKENS: usize = 650;

/// Number of the prompt's last queries that are observed.
const OBSERVED: usize = 16;

/// Keys, values and queries of a layer.
struct RandomLayer {
    keys: Array3<f32>,
    values: Array3<f32>,
    queries: Array3<f32>,
}

impl RandomLayer {
    fn new() -> Self {
        Self {
            keys: normal((SHAPE.kv_heads, TOKENS, SHAPE.head_dim), 1),
            values: normal((SHAPE.kv_heads, TOKENS, SHAPE.value_dim), 2),
            queries: normal((SHAPE.query_heads, TOKENS, SHAPE.head_dim), 3),
        }
    }

    fn append(&self, attention: &mut dyn Attention, tokens: Range<usize>) {
        let new = s![.., tokens, ..];
        common::append(attention, self.keys.slice(new), self.values.slice(new)).unwrap();
    }

    fn read_prompt(&self, attention: &mut dyn Attention) {
        self.append(attention, 0..PROMPT);
        attention.observe(self.queries.slice(s![.., PROMPT - OBSERVED..PROMPT, ..])).unwrap();
    }

    /// Outputs, reports and token lists of the steps of some tokens.
    fn decode(&self, attention: &mut dyn Attention, tokens: Range<usize>) -> Vec<String> {
        let mut step = |token: usize| {
            self.append(attention, token..token + 1);
            let query = self.queries.slice(s![.., token..=token, ..]);
            let output = attention.attend(query, None).unwrap();
            format!("{:?} {:?} {:?}", output.out, output.rows, output.selection)
        };
        tokens.map(&mut step).collect()
    }
}

fn options(storage: Storage) -> Options {
    Options { storage, return_selection: true, fall_back: FallBack::Never, ..Options::default() }
}

/// Copies a sequence by its stored rows and state.
fn restore(stored: &dyn Attention, mut empty: Box<dyn Attention>) -> Box<dyn Attention> {
    let state = stored.state().unwrap();
    let append = |attention: &mut dyn Attention, tokens: Range<usize>| {
        let rows = stored.read_rows(tokens).unwrap();
        common::append(attention, rows.keys.view(), rows.values.view()).unwrap();
    };
    for prompt in &state.prompts {
        let first = empty.len();
        append(&mut *empty, first..prompt.tokens);
        empty.observe(prompt.queries.view()).unwrap();
    }
    let first = empty.len();
    append(&mut *empty, first..stored.len());
    empty.resume(&state).unwrap();
    empty
}

/// Checks that a restored sequence computes the same steps as the stored one, right after the
/// prompt, and after some steps unless a selector learns from steps. Returns true in that case.
fn check(
    layer: &RandomLayer,
    backend: &dyn Backend,
    config: &Arc<PipelineConfig>,
    storage: Storage,
) -> bool {
    let start = || backend.start(config, MODEL_LAYER, SHAPE, &options(storage)).unwrap();
    let mut attention = start();
    layer.read_prompt(&mut *attention);
    let mut restored = restore(&*attention, start());
    let first = layer.decode(&mut *attention, PROMPT..STORED);
    assert_eq!(first, layer.decode(&mut *restored, PROMPT..STORED), "after the prompt");
    match attention.state() {
        Err(Error::Learns) => return true,
        state => assert_eq!(state.unwrap(), restored.state().unwrap()),
    }
    let mut restored = restore(&*attention, start());
    let expected = layer.decode(&mut *attention, STORED..TOKENS);
    assert_eq!(expected, layer.decode(&mut *restored, STORED..TOKENS), "after steps");
    false
}

fn pipelines() -> impl Iterator<Item = PathBuf> {
    common::configs().into_iter().filter(|path| !common::is_trained(path))
}

#[test]
fn restored_sequences_compute_the_same_steps() {
    let layer = RandomLayer::new();
    let site = Site { seed: 0, sequence: 0, layer: MODEL_LAYER, kv_head: 0, shape: SHAPE };
    let mut learners = 0;
    for (i, path) in pipelines().enumerate() {
        let config = load(&path).unwrap();
        let learns = Pipeline::new(&config, site).unwrap().needs_feedback();
        learners += usize::from(learns);
        for name in ["reference", "cpu"] {
            let context = format!("{} on {name}", path.display());
            eprintln!("{context}");
            let found = check(&layer, &*backend(name).unwrap(), &config, Storage::ALL[i % 4]);
            assert_eq!(found, learns, "{context}");
        }
    }
    assert!(learners > 4, "{learners} pipelines learn from steps");
}

#[test]
fn rows_of_a_device_are_restored() {
    let Some(emulator) = common::emulator() else { return };
    let config = load(common::root("configs/quest.toml")).unwrap();
    check(&RandomLayer::new(), &Gpu::new(emulator), &config, Storage::F16);
}

#[test]
fn rows_are_those_that_were_stored() {
    let layer = RandomLayer::new();
    let pipeline = Arc::new(PipelineConfig::default());
    for storage in Storage::ALL {
        let mut attention =
            backend("cpu").unwrap().start(&pipeline, 0, SHAPE, &options(storage)).unwrap();
        layer.append(&mut *attention, 0..PROMPT);
        let all = attention.read_rows(0..PROMPT).unwrap();
        let part = attention.read_rows(100..103).unwrap();
        assert_eq!(part.keys, all.keys.slice(s![.., 100..103, ..]));
        assert_eq!(part.values, all.values.slice(s![.., 100..103, ..]));
        assert_eq!(attention.read_rows(7..7).unwrap().keys.dim(), (2, 0, 32));
        let exact = all.keys == layer.keys.slice(s![.., ..PROMPT, ..]);
        assert_eq!(exact, storage == Storage::F32, "{storage}");
        #[allow(clippy::reversed_empty_ranges, reason = "such a range is refused")]
        for range in [0..PROMPT + 1, 5..4] {
            let message = attention.read_rows(range).unwrap_err().to_string();
            assert!(message.contains("a range within 0..640"), "{message}");
        }
    }
}

#[test]
fn freed_rows_and_foreign_states_are_refused() {
    let layer = RandomLayer::new();
    let options = Options { free_evicted: true, page_size: PageSize::Small, ..Options::default() };
    let evicts = load(common::root("configs/streaming-llm.toml")).unwrap();
    let cpu = backend("cpu").unwrap();
    let mut attention = cpu.start(&evicts, MODEL_LAYER, SHAPE, &options).unwrap();
    layer.append(&mut *attention, 0..PROMPT);
    let all = attention.read_rows(0..PROMPT).unwrap();
    layer.decode(&mut *attention, PROMPT..PROMPT + 1);
    assert!(matches!(attention.read_rows(0..PROMPT), Err(Error::Freed)));
    // Sink and window are live.
    for live in [0..1, PROMPT - 8..PROMPT] {
        let rows = attention.read_rows(live.clone()).unwrap();
        assert_eq!(rows.keys, all.keys.slice(s![.., live.clone(), ..]));
        assert_eq!(rows.values, all.values.slice(s![.., live, ..]));
    }

    let state = attention.state().unwrap();
    for first_sizes in [vec![], vec![0; 3], vec![u64::MAX; 4]] {
        let foreign = AttentionState { first_sizes, ..state.clone() };
        let message = attention.resume(&foreign).unwrap_err().to_string();
        assert!(message.contains("first sizes"), "{message}");
        assert_eq!(attention.state().unwrap(), state);
    }
}
