//! Truncation of a sequence within a prompt from which selectors have learned.

use std::sync::Arc;

use crate::common::{self, MODEL_LAYER, normal};
use ndarray::{Array3, s};
use vattention::config::load;
use vattention::engine::{Pipeline, Site};
use vattention::{Attention, Backend, FallBack, Options, PipelineConfig, Shape, backend};

const SHAPE: Shape = Shape { query_heads: 4, kv_heads: 2, head_dim: 32, value_dim: 32 };
const TOKENS: usize = 1500;

/// Number of the prompt's last queries that are observed.
const OBSERVED: usize = 8;

/// Keys, values and queries of a layer.
struct Layer {
    keys: Array3<f32>,
    values: Array3<f32>,
    queries: Array3<f32>,
}

impl Layer {
    fn new() -> Self {
        Self {
            keys: normal((SHAPE.kv_heads, TOKENS, SHAPE.head_dim), 1),
            values: normal((SHAPE.kv_heads, TOKENS, SHAPE.value_dim), 2),
            queries: normal((SHAPE.query_heads, OBSERVED, SHAPE.head_dim), 3),
        }
    }

    /// Starts an empty sequence whose first step has the number `step`.
    fn start(
        &self,
        backend: &dyn Backend,
        config: &Arc<PipelineConfig>,
        step: u32,
    ) -> Sequence<'_> {
        let options = Options {
            first_step: step,
            return_selection: true,
            fall_back: FallBack::Never,
            ..Options::default()
        };
        let attention = backend.start(config, MODEL_LAYER, SHAPE, &options).unwrap();
        Sequence { layer: self, attention }
    }
}

struct Sequence<'a> {
    layer: &'a Layer,
    attention: Box<dyn Attention>,
}

impl Sequence<'_> {
    fn append(&mut self, tokens: std::ops::Range<usize>) {
        let new = s![.., tokens, ..];
        let (keys, values) = (self.layer.keys.slice(new), self.layer.values.slice(new));
        common::append(&mut *self.attention, keys, values).unwrap();
    }

    /// Observes the first of the prompt's last queries.
    fn observe(&mut self, queries: usize) {
        self.attention.observe(self.layer.queries.slice(s![.., ..queries, ..])).unwrap();
    }

    /// Output, reports and token lists of a step, or its error.
    fn attend(&mut self) -> Result<String, String> {
        let output = self.attention.attend(self.layer.queries.slice(s![.., ..1, ..]), None);
        let output = output.map_err(|error| error.to_string())?;
        Ok(format!("{:?} {:?} {:?}", output.out, output.rows, output.selection))
    }
}

/// Shipped pipelines that learn from a prompt and not from steps.
fn pipelines() -> Vec<(String, Arc<PipelineConfig>)> {
    let learns = |config: &Arc<PipelineConfig>| {
        let site = Site { seed: 0, sequence: 0, layer: MODEL_LAYER, kv_head: 0, shape: SHAPE };
        let pipeline = Pipeline::new(config, site).unwrap();
        pipeline.awaits_prompt().is_some() && !pipeline.needs_feedback()
    };
    let files = common::configs().into_iter().filter(|path| !common::is_trained(path));
    files
        .map(|path| (path.display().to_string(), load(&path).unwrap()))
        .filter(|(_, config)| learns(config))
        .collect()
}

/// After a truncation within a prompt, selectors learn from its remaining queries. If no query
/// remains, steps are errors until a prompt is observed again. No pipeline becomes dense silently.
#[test]
fn selectors_learn_from_a_truncated_prompt_or_steps_are_errors() {
    let (layer, pipelines) = (Layer::new(), pipelines());
    let names: Vec<&str> = pipelines.iter().map(|(name, _)| &name[..]).collect();
    for learner in ["snapkv", "pyramid-kv", "squeezed-attention", "hierarchical", "tactic", "retr"]
    {
        assert!(names.iter().any(|name| name.contains(learner)), "{learner}: {names:?}");
    }
    for (name, config) in &pipelines {
        for backend_name in ["reference", "cpu"] {
            let context = format!("{name} on {backend_name}");
            let backend = backend(backend_name).unwrap();
            let mut longer = layer.start(&*backend, config, 0);
            longer.append(0..TOKENS);
            longer.observe(OBSERVED);
            longer.attend().unwrap();
            longer.attention.truncate(TOKENS - 5).unwrap();
            let mut shorter = layer.start(&*backend, config, 1);
            shorter.append(0..TOKENS - 5);
            shorter.observe(OBSERVED - 5);
            assert_eq!(longer.attend(), shorter.attend(), "{context}");

            for kept in [TOKENS - OBSERVED, TOKENS - 50] {
                longer.attention.truncate(kept).unwrap();
                let error = longer.attend().unwrap_err();
                assert!(error.contains("has received none"), "{context}: {error}");
                let mut fork = longer.attention.fork(None).unwrap();
                assert!(fork.attend(layer.queries.view(), None).is_err(), "{context}, a fork");
            }
            longer.observe(3);
            let mut again = layer.start(&*backend, config, 2);
            again.append(0..TOKENS - 50);
            again.observe(3);
            assert_eq!(longer.attend(), again.attend(), "{context}, another prompt");

            longer.attention.truncate(0).unwrap();
            longer.append(0..20);
            longer.attend().unwrap();
        }
    }
}

/// Reports of rows whose selectors have no prompt are marked.
#[test]
fn a_row_without_a_prompt_is_reported() {
    let layer = Layer::new();
    for (name, config) in pipelines() {
        let mut sequence = layer.start(&*backend("cpu").unwrap(), &config, 0);
        sequence.append(0..TOKENS);
        for observed in [false, true] {
            if observed {
                sequence.observe(OBSERVED);
            }
            let output = sequence.attention.attend(layer.queries.view(), None).unwrap();
            assert!(output.rows.iter().all(|row| row.unobserved != observed), "{name}");
            let dense = output.rows.iter().all(|row| row.density() == 1.0);
            assert_eq!(dense, !observed, "{name}");
        }
    }
}
