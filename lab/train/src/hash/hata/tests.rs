//! Comparison with a transcription of the authors' description (`tests/golden/hata.json`), and
//! tests of training runs.

use serde::Deserialize;

use super::*;
use crate::hash::recall;
use crate::test_traces;

/// Case of the golden file, which `tools/make_selectors_golden.py` writes.
#[derive(Deserialize)]
struct Case {
    queries: Vec<Vec<f32>>,
    keys: Vec<Vec<f32>>,
    weight: Vec<Vec<f32>>,
    targets: Vec<Vec<f32>>,
    losses: [f32; 2],
    after_two_steps: Vec<Vec<f32>>,
}

fn array(rows: &[Vec<f32>]) -> Array2<f32> {
    Array2::from_shape_vec((rows.len(), rows[0].len()), rows.concat()).unwrap()
}

#[test]
fn steps_follow_the_authors_description() {
    let cases = include_str!("../../../../../tests/golden/hata.json");
    let cases: Vec<Case> = serde_json::from_str(cases).unwrap();
    assert_eq!(cases.len(), 2);
    for case in cases {
        let (queries, keys) = (array(&case.queries), array(&case.keys));
        let targets: Vec<f32> =
            queries.outer_iter().flat_map(|q| compute_targets(keys.dot(&q).view())).collect();
        let expected = case.targets.concat();
        assert!(targets.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-4), "{targets:?}");
        let example = Example { queries, keys, targets: array(&case.targets) };
        let mut matrix = HashMatrix::new(array(&case.weight));
        for loss in case.losses {
            let found = matrix.train_step(&example, 0.1);
            assert!((found - loss).abs() < 1e-4 * loss.abs(), "{found} for {loss}");
        }
        let (before, after) = (array(&case.weight), array(&case.after_two_steps));
        let largest = |x: Array2<f32>| x.into_iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        let (change, error) = (largest(&after - &before), largest(&after - &matrix.weight));
        assert!(error < 2e-3 * change && change > 1e-3, "{error} of {change}");
    }
}

#[test]
fn the_first_matrix_is_orthonormal() {
    for (dim, bits) in [(8, 8), (8, 24), (24, 8)] {
        let HashMatrix { weight, .. } = HashMatrix::random(dim, bits, &mut random(1, 2, 0));
        let short = if dim < bits { weight.dot(&weight.t()) } else { weight.t().dot(&weight) };
        for ((i, j), &x) in short.indexed_iter() {
            assert!((x - f32::from(i == j)).abs() < 1e-5, "{dim} {bits}: {i} {j} {x}");
        }
        assert_eq!(weight.dim(), (dim, bits));
    }
}

/// Returns a layer in which four elements are large in keys and zero in queries, so that only the
/// other four directions matter.
fn learnable(seed: u64) -> TraceLayer {
    let mut layer = test_traces::layer_of(128, 800, seed);
    layer.queries.slice_mut(s![.., .., ..4]).fill(0.0);
    layer.queries.mapv_inplace(|x| 20.0 * x);
    layer.keys.mapv_inplace(|x| 20.0 * x);
    layer.keys.slice_mut(s![.., .., ..4]).mapv_inplace(|x| 3.0 * x);
    layer
}

fn corpus(folder: &tempfile::TempDir, name: &str, layer: TraceLayer) -> Corpus {
    Corpus::open(&[test_traces::trace(folder, name, &[(2, layer)])]).unwrap()
}

fn train(corpus: &Corpus, settings: &HataSettings) -> Vec<u8> {
    let held_out = HeldOut::LastQueries;
    train_hata(corpus, settings, held_out, &mut |_, _, _| {}).unwrap().to_bytes().unwrap()
}

#[test]
fn training_exceeds_random_hyperplanes() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = corpus(&folder, "trace", learnable(1));
    let settings = HataSettings { bits: Bits::new(4), tokens: 400, ..HataSettings::default() };
    let path = folder.path().join("weights");
    std::fs::write(&path, train(&corpus, &settings)).unwrap();
    let found = recall(&settings.selector(&path), 16, &corpus, HeldOut::LastQueries).unwrap();
    let mean = |recall: &[f64]| recall.iter().sum::<f64>() / recall.len() as f64;
    let (trained, random) = (mean(&found[0].trained), mean(&found[0].hyperplanes));
    assert!(trained > random + 0.1, "{found:?}");
}

#[test]
fn equal_seeds_make_equal_weights_and_held_out_queries_do_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let settings = HataSettings { steps: 5, bits: Bits::new(16), ..HataSettings::default() };
    let layer = TraceLayer { visible: Some(vec![300; 128]), ..learnable(1) };
    let weights = train(&corpus(&folder, "a", layer.clone()), &settings);
    assert_eq!(train(&corpus(&folder, "b", layer.clone()), &settings), weights);
    let seeded = HataSettings { seed: 1, ..settings.clone() };
    assert_ne!(train(&corpus(&folder, "c", layer.clone()), &seeded), weights);
    let mut changed = layer;
    changed.queries.slice_mut(s![.., 112.., ..]).fill(3.0);
    assert_eq!(train(&corpus(&folder, "d", changed), &settings), weights);
}

#[test]
fn bad_settings_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = corpus(&folder, "trace", learnable(1));
    let refused = |settings: HataSettings| {
        let held_out = HeldOut::LastQueries;
        train_hata(&corpus, &settings, held_out, &mut |_, _, _| {}).unwrap_err().to_string()
    };
    let good = HataSettings::default();
    assert_eq!(refused(HataSettings { steps: 0, ..good.clone() }), "steps: 0; expected at least 1");
    let wild = HataSettings { learning_rate: 1e38, ..good };
    assert!(refused(wild).starts_with("learning_rate: the loss became"));
}
