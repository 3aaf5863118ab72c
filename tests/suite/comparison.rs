//! Comparisons of pipelines on a trace, with known results.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ndarray::Array3;
use serde::{Deserialize, Serialize};
use vattention::experiments::{Comparison, Entry, Results, TraceSettings, compare};
use vattention::plugin::schemars::{self, JsonSchema};
use vattention::trace::{Trace, TraceInfo, TraceLayer, write_trace};
use vattention::{
    PipelineConfig, Result, Storage, backend,
    plugin::{
        AttentionWeights, Picks, PromptQueries, Row, Selector, SelectorConfig, Site, register,
        typetag,
    },
    selectors,
};

static OBSERVED: Mutex<usize> = Mutex::new(0);

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Watch {}

#[typetag::serde(name = "watch")]
impl SelectorConfig for Watch {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }
}

register!(Selector, "watch", Watch, "counts the queries of prompts");

impl Selector for Watch {
    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        *OBSERVED.lock().unwrap() += prompt.queries.dim().1;
    }
    fn select(&self, _: &Row<'_>, picks: &mut Picks) {
        picks.take(0);
    }
}

/// Picks one token more for each feedback.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
struct Listen {
    feedbacks: usize,
}

#[typetag::serde(name = "listen")]
impl SelectorConfig for Listen {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }
}

register!(Selector, "listen", Listen, "one token more for each feedback");

impl Selector for Listen {
    fn needs_feedback(&self) -> bool {
        true
    }
    fn feedback(&mut self, _: &Row<'_>, _: &AttentionWeights<'_>) {
        self.feedbacks += 1;
    }
    fn select(&self, _: &Row<'_>, picks: &mut Picks) {
        picks.take_range(0..self.feedbacks);
    }
}

fn run(queries: &Array3<f32>, scale: f32) -> Comparison {
    let make = |n, t, dim, salt: usize| {
        Array3::from_shape_fn((n, t, dim), |(h, t, d)| {
            ((h * 31 + t * 7 + d * 5 + salt) % 13) as f32 / 4.0 - 1.5
        })
    };
    let layer = |salt| TraceLayer {
        queries: queries.clone(),
        keys: make(2, 50, 4, salt),
        values: make(2, 50, 3, salt + 1),
        visible: Some(vec![10, 20, 40]),
        prompt: Some(make(4, 6, 4, 3)),
        prompt_tokens: None,
        classes: None,
        soft_cap: None,
        sink_logits: None,
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.safetensors");
    let info = TraceInfo { scale: Some(scale), ..TraceInfo::default() };
    write_trace(&path, &info, &BTreeMap::from([(3, layer(0)), (11, layer(5))]), Storage::F32)
        .unwrap();
    let sink = || selectors::Sink { size: serde_json::from_str("4").unwrap() };
    let entry = |pipeline| Entry { pipeline: Arc::new(pipeline), file: String::new(), set: None };
    let entries = [
        entry(PipelineConfig::default()),
        entry(PipelineConfig {
            selectors: vec![Box::new(sink())],
            dense_layers: vec![3.into()],
            ..PipelineConfig::default()
        }),
        entry(PipelineConfig { selectors: vec![Box::new(Watch {})], ..PipelineConfig::default() }),
        entry(PipelineConfig {
            selectors: vec![Box::new(Listen::default())],
            ..PipelineConfig::default()
        }),
    ];
    let settings = TraceSettings { queries: Some(2), ..TraceSettings::default() };
    let backend = backend("cpu").unwrap();
    compare(
        &entries,
        &Trace::open(&path).unwrap(),
        &*backend,
        &settings,
        &Results::default(),
        &|_, _| (),
    )
    .unwrap()
    .0
}

#[test]
fn densities_and_errors_of_a_comparison_are_those_expected() {
    let queries =
        Array3::from_shape_fn((4, 3, 4), |(h, t, d)| ((h * 5 + t * 11 + d * 3) % 7) as f32 - 3.0);
    let scaled = run(&queries, 0.25);
    assert_eq!(*OBSERVED.lock().unwrap(), 2 * 2 * 6, "layers, KV heads, prompt queries");
    let [dense, sink, _, learning] = &scaled.pipelines[..] else { panic!() };
    assert!(dense.output_error.max < 1e-5, "{dense:?}");
    assert!(dense.denominator_error.max < 1e-5 && dense.numerator_error.max < 1e-5);
    // Layer 3 is dense; in layer 11, the last two queries read 4 of 20 and of 40 tokens.
    assert!((sink.density_per_query_head - 0.575).abs() < 1e-12, "{sink:?}");
    assert!(sink.denominator_error.mean > 0.1);
    // The first query is not measured but gives feedback, for two query heads. So the selector
    // picks 2 of 20 tokens for the second query, and 4 of 40 for the third.
    assert!((learning.density_per_query_head - 0.1).abs() < 1e-12, "{learning:?}");
    let plain = run(&(queries * 0.25), 1.0);
    let difference = plain.pipelines[1].denominator_error.mean - sink.denominator_error.mean;
    assert!(difference.abs() < 1e-6, "the scale multiplies the queries");
}
