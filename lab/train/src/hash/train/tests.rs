use std::path::PathBuf;

use candle_core::{DType, Device, Tensor};
use ndarray::s;
use tempfile::TempDir;
use vattention_core::{NewTokens, Picks, SelectorConfig, Site, Size, Step, Tokens, step::Score};
use vattention_selectors::{Activation, HashAttention, IndexScope};

use super::*;
use crate::hash::recall;
use crate::test_traces;

/// Returns a layer in which all keys share a large element that is zero in queries, so that angles
/// are less informative than `q·k`.
fn learnable(seed: u64) -> TraceLayer {
    let mut layer = test_traces::layer_of(128, 800, seed);
    layer.queries.slice_mut(s![.., .., 0]).fill(0.0);
    layer.keys.slice_mut(s![.., .., 0]).mapv_inplace(|x| x + 10.0);
    layer
}

fn settings(steps: usize) -> TrainingSettings {
    TrainingSettings { steps, queries: 32, tokens: 400, top: 16, ..TrainingSettings::default() }
}

struct Fixture {
    folder: TempDir,
    corpus: Corpus,
    checkpoint: Checkpoint,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let layers = [(2, learnable(1)), (5, learnable(7))];
        let corpus = Corpus::open(&[test_traces::trace(&folder, "trace", &layers)]).unwrap();
        let checkpoint = Checkpoint::beside(&folder.path().join("weights"));
        Self { folder, corpus, checkpoint }
    }

    fn run(
        &self,
        settings: &TrainingSettings,
        resume: bool,
        losses: &mut Vec<f32>,
    ) -> Result<Vec<u8>> {
        let held_out = HeldOut::LastQueries;
        let Self { corpus, checkpoint, .. } = self;
        let training = Training { corpus, settings, held_out, checkpoint };
        training.run(resume, &mut |_, _, loss| losses.push(loss))?.to_bytes()
    }

    fn write(&self, weights: &[u8]) -> PathBuf {
        let path = self.folder.path().join("weights");
        std::fs::write(&path, weights).unwrap();
        path
    }
}

#[test]
fn training_exceeds_random_hyperplanes() {
    let setup = Fixture::new();
    let wide = TrainingSettings { hidden: Some(vec![32]), learning_rate: 6e-3, ..settings(300) };
    let (settings, mut losses) = (wide, Vec::new());
    let weights = setup.run(&settings, false, &mut losses).unwrap();
    let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
    for layer in losses.chunks(300) {
        let (first, last) = (mean(&layer[..10]), mean(&layer[250..]));
        assert!(last < 0.7 * first, "{first} {last}");
    }
    let path = setup.write(&weights);
    let found =
        recall(&settings.selector(&path), settings.top, &setup.corpus, HeldOut::LastQueries)
            .unwrap();
    assert_eq!(found.iter().map(|found| found.layer).collect::<Vec<_>>(), [2, 5]);
    for found in found {
        for (trained, random) in found.trained.iter().zip(&found.hyperplanes) {
            assert!(*trained > random + 0.15, "{found:?}");
        }
    }
}

#[test]
fn a_resumed_run_gives_the_weights_of_an_uninterrupted_one() {
    let setup = Fixture::new();
    let settings = settings(130);
    let whole = setup.run(&settings, false, &mut Vec::new()).unwrap();
    let mut steps = Vec::new();
    // The checkpoint was written at step 100 of the second layer.
    let resumed = setup.run(&settings, true, &mut steps).unwrap();
    assert_eq!((steps.len(), resumed == whole), (30, true));
    setup.checkpoint.remove().unwrap();
    let seeded = TrainingSettings { seed: 1, ..settings.clone() };
    assert_ne!(setup.run(&seeded, false, &mut Vec::new()).unwrap(), whole);
    let refused = setup.run(&settings, true, &mut Vec::new()).unwrap_err().to_string();
    assert!(refused.contains("was made with seed = 1; expected 0"), "{refused}");
}

#[test]
fn held_out_queries_are_excluded_from_training() {
    assert_eq!([2, 7, 8, 64].map(|n| HeldOut::LastQueries.training_queries(n)), [1, 6, 7, 56]);
    let setup = Fixture::new();
    let settings = settings(3);
    let before = setup.run(&settings, false, &mut Vec::new()).unwrap();
    let mut other = learnable(1);
    other.queries.slice_mut(s![.., 112.., ..]).fill(3.0);
    let layers = [(2, other), (5, learnable(7))];
    let corpus = Corpus::open(&[test_traces::trace(&setup.folder, "other", &layers)]).unwrap();
    let setup = Fixture { corpus, ..setup };
    assert_eq!(setup.run(&settings, false, &mut Vec::new()).unwrap(), before);
}

#[test]
fn a_loss_that_is_not_finite_ends_the_training() {
    let setup = Fixture::new();
    let wild = TrainingSettings { learning_rate: 1e38, ..settings(20) };
    let refused = setup.run(&wild, false, &mut Vec::new()).unwrap_err().to_string();
    assert!(refused.starts_with("learning_rate: the loss became"), "{refused}");
}

/// Rewrites a checkpoint with a changed header.
fn rewrite(path: &std::path::Path, change: impl FnOnce(&mut Value)) {
    let bytes = std::fs::read(path).unwrap();
    let size = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + size]).unwrap();
    change(&mut header);
    let header = header.to_string().into_bytes();
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(path, [&length[..], &header, &bytes[8 + size..]].concat()).unwrap();
}

/// Every error names the file and the fault.
#[test]
fn a_checkpoint_that_does_not_fit_is_refused() {
    let setup = Fixture::new();
    let settings = settings(100);
    setup.run(&settings, false, &mut Vec::new()).unwrap();
    let path = setup.checkpoint.path();
    let whole = std::fs::read(path).unwrap();
    let refuse = |expected: &str, change: &dyn Fn(&mut Value)| {
        std::fs::write(path, &whole).unwrap();
        rewrite(path, change);
        let refused = setup.run(&settings, true, &mut Vec::new()).unwrap_err().to_string();
        let expected = format!("{}: {expected}", path.display());
        assert!(refused.starts_with(&expected), "{refused}, not {expected}");
    };
    let turn =
        |name: &'static str| move |header: &mut Value| header[name]["shape"] = vec![4, 64].into();
    refuse("`layers.5.query.0.weight` is (F32, [4, 64])", &turn("layers.5.query.0.weight"));
    refuse("`layers.2.query.0.weight` is (F32, [4, 64])", &turn("layers.2.query.0.weight"));
    refuse("`first.query.0.weight` is (F32, [4, 64])", &turn("first.query.0.weight"));
    let whole_numbers = |header: &mut Value| {
        header["second.key.0.weight"]["dtype"] = "I32".into();
    };
    refuse("`second.key.0.weight` is (I32", &whole_numbers);
    let place = |place: &'static str| {
        move |header: &mut Value| header["__metadata__"]["place"] = place.into()
    };
    refuse("metadata `place` is", &place(r#"{"layer": 3, "step": 5}"#));
    refuse("metadata `place` is", &place(r#"{"layer": 5, "step": 101}"#));
    refuse("metadata `place` has no `step`", &place(r#"{"layer": 5}"#));
}

/// The selector picks the keys whose signs agree with the query's by the networks of the training.
#[test]
fn the_selector_computes_the_trained_networks() {
    let setup = Fixture::new();
    let settings = settings(1);
    let path = setup.write(&setup.run(&settings, false, &mut Vec::new()).unwrap());
    let weights = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    let layer = learnable(1);
    let maps = Maps::random(4, &settings.widths(8), &mut ChaCha8Rng::from_seed([0; 32])).unwrap();
    for (name, var) in maps.parameters() {
        let stored = &weights[&format!("layers.2.{name}")];
        var.set(&stored.to_dtype(DType::F32).unwrap()).unwrap();
    }
    let agreements = count_agreements(&maps, &layer);
    let shape = layer.shape();
    for (head, agreements) in agreements.iter().enumerate() {
        let (kv_head, member) = (head / shape.group(), head % shape.group());
        let site = Site { seed: 0, sequence: 0, layer: 2, kv_head, shape };
        let keys = layer.keys.slice(s![kv_head, .., ..]).to_owned();
        let keys = Tokens::new(keys.as_slice().unwrap(), 800, 8);
        let config = HashAttention {
            size: Size::Tokens(50),
            weights: Some(path.clone()),
            bits: None,
            codes: IndexScope::Head,
            activation: Activation::Silu,
            score: Score::Head,
        };
        let mut selector = config.build(&site).unwrap();
        selector.append(&NewTokens { first: 0, keys, values: keys, classes: None });
        let first = kv_head * shape.group();
        let queries = layer.queries.slice(s![first..first + shape.group(), 0, ..]);
        let queries: Vec<f32> = queries.iter().map(|x| x * shape.default_scale()).collect();
        let step = Step { visible: 800, ..Step::new(&site, &queries, keys, keys) };
        let mut picks = Picks::new(800);
        selector.select(&step.row(member), &mut picks);
        let mut expected: Vec<u32> = (0..800).collect();
        expected.sort_by_key(|&token| (-agreements[token as usize], token));
        expected.truncate(50);
        expected.sort_unstable();
        assert_eq!(picks.indices(), expected, "head {head}");
    }
}

/// Returns `Σ ±1 · ±1` of each head's first query and every key, by the networks of the training.
fn count_agreements(maps: &Maps, layer: &TraceLayer) -> Vec<Vec<i32>> {
    let tensor = |heads: Vec<ndarray::ArrayView2<'_, f32>>| {
        let (rows, dim) = heads[0].dim();
        let numbers: Vec<f32> = heads.iter().flat_map(|head| head.iter().copied()).collect();
        Tensor::from_vec(numbers, (heads.len(), rows, dim), &Device::Cpu).unwrap()
    };
    let queries = tensor((0..4).map(|h| layer.queries.slice(s![h, ..1, ..])).collect());
    let keys = tensor((0..4).map(|h| layer.keys.slice(s![h / 2, .., ..])).collect());
    let (queries, keys) = maps.numbers(&queries, &keys).unwrap();
    let signs = |x: Tensor| (x.gt(0.0).unwrap().to_dtype(DType::F32).unwrap() * 2.0).unwrap() - 1.0;
    let (queries, keys) = (signs(queries).unwrap(), signs(keys).unwrap());
    let products = queries.matmul(&keys.transpose(1, 2).unwrap()).unwrap();
    let products = products.squeeze(1).unwrap().to_vec2::<f32>().unwrap();
    products.iter().map(|row| row.iter().map(|&x| x as i32).collect()).collect()
}
