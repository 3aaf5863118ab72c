//! Tests of sequences that begin with stored keys and values.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::common::{CASES, case, dense, sparse};
use ndarray::Array3;
use vattention_backends::Cpu;
use vattention_core::{
    Attention, Backend, Options, PipelineConfig, Result, RowsView, Shape, TokenClass,
    engine::{Wrapper, wrap},
};
use vattention_llm::{Model, Session};

const PROMPT: [u32; 40] = {
    let mut tokens = [0; 40];
    let mut i = 0;
    while i < 40 {
        tokens[i] = (7 * i as u32) % 50 + 2;
        i += 1;
    }
    tokens
};

type RecordedRows = Arc<Mutex<BTreeMap<usize, (Array3<f32>, Array3<f32>)>>>;

/// Backend that records the first keys and values of each layer.
#[derive(Default)]
struct RecordingBackend {
    recorded: RecordedRows,
}

#[derive(Clone)]
struct LayerRecorder {
    number: usize,
    recorded: RecordedRows,
}

impl Backend for RecordingBackend {
    fn name(&self) -> &'static str {
        "recorder"
    }

    fn summary(&self) -> &'static str {
        "the CPU's, which records keys and values for a test"
    }

    fn start(
        &self,
        pipeline: &Arc<PipelineConfig>,
        layer: usize,
        shape: Shape,
        options: &Options,
    ) -> Result<Box<dyn Attention>> {
        let inner = Cpu::default().start(pipeline, layer, shape, options)?;
        Ok(wrap(inner, LayerRecorder { number: layer, recorded: self.recorded.clone() }))
    }
}

impl Wrapper for LayerRecorder {
    fn append_rows(
        &mut self,
        inner: &mut dyn Attention,
        keys: RowsView<'_>,
        values: RowsView<'_>,
        classes: Option<&[TokenClass]>,
    ) -> Result<()> {
        let given = (keys.to_f32().to_owned(), values.to_f32().to_owned());
        self.recorded.lock().unwrap().entry(self.number).or_insert(given);
        inner.append_rows(keys, values, classes)
    }

    fn fork(&self, _: Option<u32>) -> Result<Self> {
        Ok(self.clone())
    }
}

fn empty<'m>(model: &'m Model, pipeline: &Arc<PipelineConfig>) -> Session<'m> {
    Session::new(model, &Cpu::default(), pipeline, &Options::default()).unwrap()
}

#[test]
fn stored_prompts_continue_like_prompts() {
    for name in CASES {
        let model = Model::open(&case(name)).unwrap();
        for pipeline in [dense(), sparse()] {
            let recorder = RecordingBackend::default();
            let mut read = Session::new(&model, &recorder, &pipeline, &Options::default()).unwrap();
            read.prefill(&PROMPT).unwrap();
            let recorded = recorder.recorded.lock().unwrap().clone();
            let stored = empty(&model, &pipeline);
            let mut stored = stored.with_context(PROMPT.len(), |l| recorded[&l].clone()).unwrap();
            assert_eq!(stored.len(), PROMPT.len());
            for token in [5, 9, 2] {
                assert_eq!(stored.step(token).unwrap(), read.step(token).unwrap(), "{name}");
            }
        }
    }
}

#[test]
fn invalid_contexts_are_refused() {
    let model = Model::open(&case("llama3")).unwrap();
    let Shape { kv_heads, head_dim, value_dim, .. } = model.config().shape;
    let zeros = |tokens| {
        (Array3::zeros((kv_heads, tokens, head_dim)), Array3::zeros((kv_heads, tokens, value_dim)))
    };
    let refusal = |session: Session<'_>, tokens, given| {
        session.with_context(tokens, |_| zeros(given)).err().unwrap().to_string()
    };
    let begun = empty(&model, &dense()).with_context(3, |_| zeros(3)).unwrap();
    assert!(
        refusal(begun, 3, 3)
            .contains("3 tokens for a sequence that has 3; expected at least 1, and an empty")
    );
    assert!(refusal(empty(&model, &dense()), 0, 0).contains("0 tokens"));
    assert!(refusal(empty(&model, &dense()), 3, 2).contains("layer 0 has 2 tokens; expected 3"));
    let context = model.config().context;
    assert!(refusal(empty(&model, &dense()), context + 1, 1).contains("expected at most"));
    let wrong = |_| (Array3::zeros((kv_heads + 1, 3, head_dim)), zeros(3).1);
    assert!(empty(&model, &dense()).with_context(3, wrong).is_err());
}
