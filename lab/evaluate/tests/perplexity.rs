//! Perplexity of texts, against Hugging Face transformers and against direct computations.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::SafeTensors;
use vattention_backends::Cpu;
use vattention_config::Loader;
use vattention_core::{FallBack, Options, PipelineConfig};
use vattention_evaluate::{
    LazyWeights, PerplexityReport, PerplexityTest, PerplexityWindows, PipelinePerplexity,
};
use vattention_experiments::Results;
use vattention_llm::{Model, PrefillOptions, Session, most_likely_token};
use {vattention_estimators as _, vattention_selectors as _};

const EDGES: &str = r#"
    name = "edges"

    [[selectors]]
    type = "sink"
    size = 2

    [[selectors]]
    type = "window"
    size = 6
"#;

const PROMISE: &str =
    "[sampler]\nbase = 8\n[estimator]\ntype = \"ratio\"\nepsilon = 0.4\ndelta = 0.2";

fn pipeline(text: &str) -> Arc<PipelineConfig> {
    Loader::default().parse("test.toml", text).unwrap()
}

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn recall() -> Model {
    Model::open(&root("models/recall")).unwrap()
}

/// Tokens of a text that no model knows.
fn text(model: &Model, count: usize) -> Vec<u32> {
    let size = model.config().vocab_size as u32;
    (0..count as u32).map(|i| (i * i + 7 * i) % size).collect()
}

fn options() -> Options {
    Options { fall_back: FallBack::Never, ..Options::default() }
}

fn create_test<'a>(
    model: &'a Model,
    backend: &'a Cpu,
    windows: PerplexityWindows,
) -> PerplexityTest<'a> {
    let weights = LazyWeights::Loaded(model);
    PerplexityTest { weights, backend, classes: None, windows, options: options() }
}

fn measure(
    model: &Model,
    windows: &PerplexityWindows,
    text: &[u32],
    pipelines: &[Arc<PipelineConfig>],
) -> PerplexityReport {
    let backend = Cpu::default();
    let test = create_test(model, &backend, windows.clone());
    let go_on = |_, _| ControlFlow::Continue(());
    test.run(text, pipelines, &Results::default(), go_on).unwrap()
}

/// Log-probabilities in f64, by their definition.
fn compute_logprobs(logits: &[f32]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    logits.iter().map(|&x| f64::from(x) - sum.ln()).collect()
}

fn read_numbers<T>(bytes: &[u8], parse: fn([u8; 4]) -> T) -> Vec<T> {
    bytes.chunks_exact(4).map(|chunk| parse(chunk.try_into().unwrap())).collect()
}

#[test]
fn dense_log_likelihoods_match_transformers() {
    for name in ["llama3", "mistral", "qwen3", "qwen3-moe"] {
        let folder = root("runtime/llm/tests/golden").join(name);
        let model = Model::open(&folder).unwrap();
        let file = fs::read(folder.join("golden.safetensors")).unwrap();
        let golden = SafeTensors::deserialize(&file).unwrap();
        let tensor = |name| golden.tensor(name).unwrap().data();
        let [prompt, decoded] =
            ["prompt", "decode_tokens"].map(|it| read_numbers(tensor(it), u32::from_le_bytes));
        let logits = read_numbers(tensor("decode"), f32::from_le_bytes);
        let size = model.config().vocab_size;
        let text = [&prompt[..], &decoded].concat();
        let windows = PerplexityWindows::new(text.len(), Some(prompt.len()), None, vec![]).unwrap();
        let report = measure(&model, &windows, &text, &[]);
        assert_eq!(report.scored_tokens, decoded.len() - 1);
        let mut sum = 0.0;
        for (i, &token) in decoded[1..].iter().enumerate() {
            let expected = compute_logprobs(&logits[i * size..][..size])[token as usize];
            let found = f64::from(report.scores[0].dense[i]);
            assert!((found - expected).abs() < 1e-4, "{name}, {i}: {found} {expected}");
            sum += expected;
        }
        let expected = (-sum / (decoded.len() - 1) as f64).exp();
        assert!((report.dense_perplexity / expected - 1.0).abs() < 1e-4, "{name}");
    }
}

/// Logits after each token of a window that the pipeline reads.
fn read_window(
    model: &Model,
    pipeline: &Arc<PipelineConfig>,
    sequence: u32,
    prefix: &[u32],
    rest: &[u32],
) -> Vec<Vec<f32>> {
    let options = Options { sequence, ..options() };
    let mut session = Session::new(model, &Cpu::default(), pipeline, &options).unwrap();
    session.begin(&model.prefill(prefix, PrefillOptions::default()).unwrap()).unwrap();
    rest.iter().map(|&token| session.step(token).unwrap()).collect()
}

#[test]
fn scores_match_a_direct_computation() {
    let model = recall();
    let text = text(&model, 300);
    let windows = PerplexityWindows::new(200, Some(185), Some(30), vec![1]).unwrap();
    let pipelines = [pipeline(EDGES), pipeline(&format!("{EDGES}{PROMISE}"))];
    let report = measure(&model, &windows, &text, &pipelines);
    assert_eq!((report.windows, report.scored_windows, report.scored_tokens), (4, 4, 4 * 14));
    let mut dense_sum = 0.0;
    let [mut sums, mut divergences, mut same] = [[0.0; 2]; 3];
    for number in 0..4 {
        let tokens = [&[1], &text[number * 30..][..199]].concat();
        let (prefix, rest) = tokens.split_at(185);
        let read = |pipeline| read_window(&model, pipeline, number as u32, prefix, rest);
        let dense_pipeline = Arc::default();
        let dense = read(&dense_pipeline);
        let found: Vec<_> = pipelines.iter().map(read).collect();
        for i in 0..14 {
            let token = rest[i + 1] as usize;
            let expected = compute_logprobs(&dense[i]);
            dense_sum += expected[token];
            for place in 0..2 {
                let logprobs = compute_logprobs(&found[place][i]);
                sums[place] += logprobs[token];
                divergences[place] += (0..expected.len())
                    .map(|j| expected[j].exp() * (expected[j] - logprobs[j]))
                    .sum::<f64>();
                let [a, b] = [&dense, &found[place]].map(|all| most_likely_token(&all[i]).unwrap());
                same[place] += f64::from(a == b);
                let recorded = report.scores[number].pipelines[place].logprobs[i];
                assert!((f64::from(recorded) - logprobs[token]).abs() < 1e-5);
            }
        }
    }
    let tokens = 56.0;
    assert!((report.dense_log_likelihood - dense_sum / tokens).abs() < 1e-5);
    for place in 0..2 {
        let found = &report.pipelines[place];
        assert!((found.log_likelihood - sums[place] / tokens).abs() < 1e-5);
        let expected = (-sums[place] / tokens).exp();
        assert!((found.perplexity / expected - 1.0).abs() < 1e-4);
        assert!((found.to_dense.mean - (sums[place] - dense_sum) / tokens).abs() < 1e-5);
        assert!((found.kl_divergence - divergences[place] / tokens).abs() < 1e-5);
        assert!((found.same_top - same[place] / tokens).abs() < 1e-12);
        let interval = found.to_dense.interval.unwrap();
        assert!(interval.low < found.to_dense.mean && found.to_dense.mean < interval.high);
    }
    let [edges, promised] = &report.pipelines[..] else { panic!() };
    // Each step reads 8 of 186 to 199 tokens.
    let expected = (186..200).map(|visible| 8.0 / f64::from(visible)).sum::<f64>() / 14.0;
    assert!((edges.density - expected).abs() < 1e-9, "{}", edges.density);
    assert_eq!((edges.held, edges.largest_bar, edges.unbounded), (None, None, 0));
    assert!(edges.kl_divergence > promised.kl_divergence && edges.density < promised.density);
    assert!(promised.held.unwrap() > 0.5 && promised.largest_bar.unwrap() > 0.0);
}

#[test]
fn dense_attention_does_not_differ_from_itself() {
    let model = recall();
    let windows = PerplexityWindows::new(32, None, None, vec![]).unwrap();
    let report = measure(&model, &windows, &text(&model, 90), &[pipeline("name = \"dense\"")]);
    let PipelinePerplexity { to_dense, kl_divergence, same_top, density, .. } =
        &report.pipelines[0];
    let interval = to_dense.interval.unwrap();
    assert_eq!((to_dense.mean, interval.low, interval.high), (0.0, 0.0, 0.0));
    assert_eq!((*kl_divergence, *same_top, *density), (0.0, 1.0, 1.0));
    assert_eq!(report.pipelines[0].perplexity, report.dense_perplexity);
}

#[test]
fn an_interrupted_measurement_reports_finished_windows() {
    let (model, backend) = (recall(), Cpu::default());
    let text = text(&model, 90);
    let windows = PerplexityWindows::new(32, None, None, vec![]).unwrap();
    let pipelines = [pipeline(EDGES)];
    let whole = measure(&model, &windows, &text, &pipelines);
    let test = create_test(&model, &backend, windows);
    for (last, finished) in [(1, 1), (15, 1), (16, 2), (60, 4)] {
        let mut calls = 0;
        let observe = |done, total| {
            calls += 1;
            assert_eq!((done, total), (calls, 15 * 4));
            if done == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let report = test.run(&text, &pipelines, &Results::default(), observe).unwrap();
        assert_eq!((report.windows, report.scored_windows), (4, finished));
        assert_eq!(report.scored_tokens, finished * 15);
        assert_eq!(report.scores[..], whole.scores[..finished]);
    }
}

#[test]
fn texts_that_do_not_fit_are_refused() {
    let (model, backend) = (recall(), Cpu::default());
    let run = |windows: PerplexityWindows, text: &[u32]| {
        let test = create_test(&model, &backend, windows);
        let go_on = |_, _| ControlFlow::Continue(());
        test.run(text, &[], &Results::default(), go_on).unwrap_err().to_string()
    };
    let windows = || PerplexityWindows::new(8, None, None, vec![]).unwrap();
    assert!(run(windows(), &[3; 7]).starts_with("text: 7 tokens; expected at least 8"));
    assert!(run(windows(), &[u32::MAX; 8]).starts_with("tokens: 4294967295 at [0]"));
}
