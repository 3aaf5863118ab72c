//! Experiments on traces with soft caps and attention sinks.

use std::collections::BTreeMap;
use std::sync::Arc;

use vattention::Shape;
use vattention::Storage;
use vattention::backends::Cpu;
use vattention::config::load;
use vattention::experiments::{
    Entry, Exact, PromiseVerdict, Results, TraceSettings, compare, verify,
};
use vattention::trace::{HeadKind, Synth, Trace, TraceInfo, TraceLayer, write_trace};

use crate::common;

/// `compare` and `verify` measure against attention with the sinks and the cap.
#[test]
fn experiments_count_caps_and_sinks() {
    let layer = Synth {
        kind: HeadKind::Typical,
        tokens: 3000,
        shape: Shape { query_heads: 4, kv_heads: 2, head_dim: 32, value_dim: 32 },
        queries: 4,
        prompt: 8,
        sink_share: 0.4,
        value_mean: 0.7,
        seed: 5,
    };
    let layer = TraceLayer { soft_cap: Some(4.0), ..layer.layer().unwrap() };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("formed.safetensors");
    let layers = BTreeMap::from([(0, layer.clone())]);
    write_trace(&path, &TraceInfo::default(), &layers, Storage::F32).unwrap();
    let trace = Trace::open(&path).unwrap();

    let priority = load(common::root("configs/priority.toml")).unwrap();
    let entry = |pipeline| Entry { pipeline, file: String::new(), set: None };
    let entries = [entry(Arc::default()), entry(priority.clone())];
    let (settings, results) = (TraceSettings::default(), Results::default());
    let (comparison, _) =
        compare(&entries, &trace, &Cpu::default(), &settings, &results, &|_, _| ()).unwrap();
    let [dense, sparse] = &comparison.pipelines[..] else { panic!("two pipelines") };
    assert!(dense.output_error.max < 1e-5 && dense.denominator_error.max < 1e-5, "{dense:?}");
    assert!(sparse.output_error.mean < 0.1, "{sparse:?}");
    let verification = verify(&priority, &trace, 400, &results, &|_, _| {}).unwrap();
    assert_ne!(verification.verdict, PromiseVerdict::Contradicted, "{verification:?}");

    // Without the sinks, or without the cap, the same tokens have other outputs.
    let outputs = |layer: &TraceLayer| {
        let rows = Exact::rows(layer, &layer.shape(), layer.shape().default_scale(), 4);
        rows.into_iter().flat_map(|row| row.output.to_vec()).collect::<Vec<f64>>()
    };
    let formed = outputs(&layer);
    for plain in [
        TraceLayer { sink_logits: None, ..layer.clone() },
        TraceLayer { soft_cap: None, ..layer.clone() },
    ] {
        let apart = formed.iter().zip(outputs(&plain)).map(|(a, b)| (a - b).abs());
        assert!(apart.fold(0.0, f64::max) > 0.05);
    }
}
