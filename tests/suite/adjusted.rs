//! Forks with adjusted settings equal new sequences with these settings.

use std::ops::Range;
use std::sync::Arc;

use ndarray::s;
use vattention::config::load;
use vattention::plugin::{Tunable, TunableGoal};
use vattention::trace::{Trace, TraceLayer};
use vattention::{
    Attention, Backend, FallBack, Fraction, Options, Output, PipelineConfig, Shape, backend,
};

use crate::common;

const LAYER: usize = 9;
const TOKENS: usize = 1200;
const PROMPT: usize = 1180;

/// Selectors whose index depends on the settings that change: those that evict tokens or cluster a
/// prompt by their size, and `inf-llm`, which learns from the tokens that it picks.
const NOT_ADJUSTABLE: [&str; 7] =
    ["h2o", "inf-llm", "prompt-eviction", "scissorhands", "snapkv", "squeezed-attention", "tova"];

/// Returns the pipeline with other values of all tunable settings.
fn change(pipeline: &PipelineConfig) -> Arc<PipelineConfig> {
    let half = |share: Fraction| Fraction::try_from(share.get() / 2.0).unwrap();
    let mut changed = pipeline.clone();
    changed.change_parts(|part| {
        for selector in &mut part.selectors {
            match selector.tunable() {
                Some(Tunable::Sizes(sizes)) => {
                    for size in sizes {
                        *size = size.scaled(1.7);
                    }
                }
                Some(Tunable::Window(size)) => *size = size.scaled(1.7),
                Some(Tunable::Mass(share) | Tunable::Threshold(share)) => *share = half(*share),
                Some(Tunable::Sink) | None => {}
            }
        }
        let goal = part.estimator.as_mut().and_then(|estimator| estimator.tunable());
        if let Some(TunableGoal { epsilon, size, delta }) = goal {
            if let Some(epsilon) = epsilon {
                *epsilon = half(*epsilon);
            }
            if let Some(size) = size {
                *size = size.scaled(1.7);
            }
            *delta = half(*delta);
        }
    });
    Arc::new(changed)
}

/// Starts a sequence with the first tokens of a layer.
fn start(
    backend: &dyn Backend,
    pipeline: &Arc<PipelineConfig>,
    shape: Shape,
    layer: &TraceLayer,
) -> Box<dyn Attention> {
    let options =
        Options { return_selection: true, fall_back: FallBack::Never, ..Options::default() };
    let mut attention = backend.start(pipeline, LAYER, shape, &options).unwrap();
    append(&mut *attention, layer, 0..PROMPT);
    attention.observe(layer.prompt.as_ref().unwrap().view()).unwrap();
    append(&mut *attention, layer, PROMPT..TOKENS);
    attention
}

fn append(attention: &mut dyn Attention, layer: &TraceLayer, tokens: Range<usize>) {
    let rows = s![.., tokens.clone(), ..];
    let (keys, values) = (layer.keys.slice(rows), layer.values.slice(rows));
    attention.append_rows(keys.into(), values.into(), layer.classes_of(tokens)).unwrap();
}

/// Outputs of two steps, with a new token between them.
fn run(attention: &mut dyn Attention, layer: &TraceLayer) -> [Output; 2] {
    let query = |i: usize| layer.queries.slice(s![.., i..=i, ..]);
    let first = attention.attend(query(0), None).unwrap();
    append(attention, layer, TOKENS..TOKENS + 1);
    [first, attention.attend(query(1), None).unwrap()]
}

#[test]
fn adjusted_forks_equal_new_sequences() {
    let trace = Trace::open(&common::root("data/smollm2.safetensors")).unwrap();
    let layer = trace.layer(LAYER).unwrap().unwrap();
    let (_, layout) = trace.layers().find(|(number, _)| *number == LAYER).unwrap();
    for path in common::configs() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let pipeline = load(&path).unwrap();
        if pipeline.needs_classes().is_some() {
            continue; // The trace has no classes.
        }
        let changed = change(&pipeline);
        let selectors = || pipeline.parts().flat_map(|part| &part.selectors);
        let keeps_index = !selectors().any(|it| NOT_ADJUSTABLE.contains(&it.typetag_name()));
        for backend in ["cpu", "reference"].map(|name| backend(name).unwrap()) {
            let kept = start(&*backend, &pipeline, layout.shape, &layer);
            let adjusted = kept.fork_adjusted(&changed).unwrap();
            assert_eq!(adjusted.is_some(), keeps_index, "{name} on {}", backend.name());
            let Some(mut adjusted) = adjusted else { continue };
            let mut new = start(&*backend, &changed, layout.shape, &layer);
            let [got, expected] = [&mut adjusted, &mut new].map(|it| run(&mut **it, &layer));
            for (got, expected) in got.iter().zip(&expected) {
                assert_eq!(got.out, expected.out, "{name}");
                assert_eq!(got.selection, expected.selection, "{name}");
                assert_eq!(got.rows, expected.rows, "{name}");
            }
            assert!(adjusted.fork_adjusted(&pipeline).unwrap().is_none(), "{name} after steps");
        }
    }
}
